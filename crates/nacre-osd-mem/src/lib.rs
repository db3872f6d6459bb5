//! A store in memory: for tests, for the simulator and for targets that live as long as their process.
//!
//! Every operation runs inline (`try_execute` never gives one back). Capacity is bounded by a parameter; beyond
//! it writes fail with `NoSpace`, as a full disk would. "Durable" means: as long as the store lives.

mod sparse;
mod store;

pub use sparse::{PAGE_BYTES, SparseFile};
pub use store::MemStore;
