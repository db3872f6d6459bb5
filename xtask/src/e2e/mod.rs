//! Tests on real mounts. Each starts its own `nacre up` in a temporary directory and stops it.

mod apps;
mod crash;
mod edges;
mod matrix;
mod million;
mod netns;
mod network;
mod pjdfstest;
mod postgres;
mod stores;
mod sweep;
mod system;
mod transport;
mod trips;

pub(crate) use apps::run as apps;
pub(crate) use crash::{Options as CrashOptions, run as crash};
pub(crate) use edges::run as edges;
pub(crate) use matrix::run as matrix;
pub(crate) use million::run as million;
pub(crate) use netns::run as netns;
pub(crate) use pjdfstest::run as pjdfstest;
pub(crate) use stores::{Options as StoreOptions, run as stores};
pub(crate) use sweep::{Sweep, run as sweep};
pub(crate) use transport::with_uring;
pub(crate) use trips::run as trips;

/// A moment for another process to get on (never a condition of a test).
fn pause() {
    let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let _ = rustix::event::poll(&mut [], Some(&moment));
}
