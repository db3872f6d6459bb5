//! Tests and measurements on real mounts, for developers and CI: `cargo xtask` calls them.
//!
//! Each starts its own servers and mounts in a temporary directory and stops them (`system` one process, `network`
//! hosts of their own, [`crash`] processes that are killed while programs work). They fail with an error that says what
//! was seen; nothing here is part of the product.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tools for developers write to the terminal")]

mod apps;
mod compare;
mod crash;
mod edges;
mod fsx;
mod matrix;
mod million;
mod netns;
mod network;
mod pairs;
mod pjdfstest;
mod postgres;
mod profile;
mod proxy;
pub mod shell;
mod stores;
mod sweep;
mod system;
mod transport;
mod trips;

pub use apps::run as apps;
pub use compare::{Compare, run as compare};
pub use crash::{Options as CrashOptions, run as crash};
pub use edges::run as edges;
pub use fsx::{Fsx, run as fsx};
pub use matrix::run as matrix;
pub use million::run as million;
pub use netns::run as netns;
pub use pairs::{Pairs, run as pairs};
pub use pjdfstest::run as pjdfstest;
pub use profile::{run as profile, warn_if_void as warn_if_profile_is_void};
pub use proxy::{Proxy, run as proxy};
pub use stores::{Options as StoreOptions, run as stores};
pub use sweep::{Sweep, run as sweep};
pub use system::binary;
pub use transport::with_uring;
pub use trips::{Trips, run as trips};

/// Lets other processes run for a moment. Never a condition of a test.
fn pause() {
    nacre_testkit::wait::pause(std::time::Duration::from_millis(100));
}
