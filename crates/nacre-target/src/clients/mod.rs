//! The clients of a target: connected ones, and known ones that are not connected.
//!
//! - `export.rs`: one client: connection, lease, exactly-once state.
//! - `table.rs`: all clients, by generation and by uuid.
//! - `rows.rs`: their rows, from which a restart restores them.
//! - `reply_order.rs`: the order of replies to one client.
//! - `evictions.rs`: exports to be evicted, and the causes of past evictions.
//! - `incompat.rs`: features in use that another server must support.
//! - `op_stats.rs`: counters of operations.

pub(crate) mod evictions;
pub(crate) mod export;
pub(crate) mod incompat;
pub(crate) mod op_stats;
pub(crate) mod reply_order;
pub(crate) mod rows;
pub(crate) mod table;

pub use rows::{ClientRow, ExportId};
