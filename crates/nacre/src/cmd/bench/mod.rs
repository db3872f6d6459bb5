//! `nacre bench`: loads that any file system can be put under, so that figures can be compared in one run.
//!
//! A load runs on a [`site::Site`]: programs with system calls on a directory ([`crew`]), or tasks on the client
//! core without the kernel ([`library`]).

mod batch;
mod chart;
mod crew;
mod library;
mod md;
mod site;
mod sweep;
mod tasks;
mod worker;

pub(crate) use md::{MdArgs, run as md};
pub(crate) use worker::{WorkerArgs, run as worker};
