//! A store in memory: for tests, for the simulator, and for targets that live as long as their process.
//!
//! Every operation runs inline (`try_execute` never returns one). Capacity is bounded by a parameter; beyond it writes
//! fail with `NoSpace`, as on a full disk. "Durable" means: as long as the store lives.

mod sparse;
mod store;

pub use sparse::{PAGE_BYTES, SparseFile};
pub use store::MemStore;
