//! `nacre bench`: loads that any file system can be put under, so that figures can be compared in one run.
//!
//! [`md`] runs on a [`site::Site`]: programs with system calls on a directory ([`crew`]), or tasks on the client core
//! without the kernel ([`library`]). [`io`] measures bandwidth, with [`rpc_size`] by the size of a mount's requests. [`tree`] runs
//! the programs that people use. [`floor`] is a file system to compare with, [`memory`] its content. [`scratch`] has the
//! directories that a load makes and removes, and the parameters that it restores.

mod batch;
mod chart;
mod crew;
mod floor;
mod io;
mod library;
mod md;
mod md_args;
mod memory;
mod report;
mod rpc_size;
mod scratch;
mod site;
mod sweep;
mod tasks;
mod tree;
mod worker;

pub(crate) use floor::{FloorArgs, run as floor};
pub(crate) use io::{IoArgs, run as io};
pub(crate) use md::run as md;
pub(crate) use md_args::MdArgs;
pub(crate) use tree::{TreeArgs, run as tree};
pub(crate) use worker::{WorkerArgs, run as worker};
