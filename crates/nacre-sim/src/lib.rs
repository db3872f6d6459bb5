//! A whole cluster in one process from one seed: the same logic crates as the binary, with virtual time, a network
//! of ordered connections with random delays, stores in memory, and faults.
//!
//! A run is a function of its seed. `world` drives islands, `net` is what is between them; both know nothing of file
//! systems. `cluster` makes targets and mounts; `model` is what POSIX says; `ops` are the operations that are tried,
//! `common` those in which mounts meet; `faults` is what goes wrong, `loss` what it may take; `check` compares, `rest` looks at what is left,
//! `offline` formats targets and looks at what stopped ones hold; `bed` is for tests of one kind of target; `run` is one
//! seed from start to end, `plan` what it tries.

pub mod bed;
pub mod check;
mod clock;
pub mod cluster;
pub mod common;
pub mod describe;
mod faults;
pub mod heard_clients;
mod lose_both;
mod loss;
pub mod model;
pub mod mount;
pub mod net;
pub mod offline;
pub mod ops;
pub mod plan;
pub mod power;
mod rest;
pub mod run;
mod task;
pub mod world;

pub use mount::{JobId, Jobs, MountIsland};
pub use net::Noise;
pub use world::{DieAt, Faults, NodeId, World};
