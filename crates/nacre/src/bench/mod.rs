//! `nacre bench`: loads that any file system can be put under, so that figures can be compared in one run.

mod md;
mod sweep;
mod worker;

pub(crate) use md::{MdArgs, run as md};
pub(crate) use worker::{WorkerArgs, run as worker};
