//! A whole cluster in one process from one seed: the same logic crates as the binary, with virtual time, a network
//! of ordered connections with random delays, stores in memory, and faults.
//!
//! A run is a function of its seed. `world` drives islands and knows nothing of file systems; `cluster` makes
//! targets and mounts; `model` is what POSIX says; `ops` are the operations that are tried, `common` those in which
//! mounts meet; `check` compares, `offline` formats and looks at what stopped targets hold; `bed` is for tests of
//! one kind of target; `run` is one seed from start to end.

pub mod bed;
pub mod check;
pub mod cluster;
pub mod common;
pub mod describe;
pub mod household;
pub mod model;
pub mod mount;
pub mod offline;
pub mod ops;
pub mod power;
pub mod run;
pub mod world;

pub use mount::{JobId, Jobs, MountIsland};
pub use world::{Faults, NodeId, World};
