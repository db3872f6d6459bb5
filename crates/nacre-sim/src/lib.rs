//! A whole cluster in one process from one seed: the same logic crates as the binary, with virtual time, a network
//! of ordered connections with random delays, stores in memory, and faults.
//!
//! A run is a function of its seed. Its parts:
//! - `world` drives islands, `net` is the network between them; both know nothing of file systems.
//! - `cluster` has the targets and mounts; `bed` is a smaller world for tests of one kind of target.
//! - `plan` and `run` plan a seed and run it; `ops` are its operations, `common` the work on files that mounts share.
//! - `faults` injects faults, `loss` describes the losses that they permit.
//! - `model` is the model of POSIX, `check` compares a mount with it, `rest` verifies the state at the end.
//! - `offline` formats targets and reads the stores of stopped ones.

pub mod bed;
pub mod check;
mod clock;
pub mod cluster;
pub mod common;
pub mod describe;
pub mod execute;
mod faults;
pub mod kernel;
pub mod lease_table;
pub mod local_mount;
mod loss;
pub mod model;
pub mod mount;
pub mod offline;
pub mod ops;
pub mod plan;
pub mod power;
pub mod run;
mod task;
pub mod world;

pub use mount::{JobId, Jobs, MountIsland};
pub use world::net::Noise;
pub use world::{DieAt, Faults, NodeId, World};
