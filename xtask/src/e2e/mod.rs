//! Tests on real mounts. Each starts its own `nacre up` in a temporary directory and stops it.

mod apps;
mod matrix;
mod pjdfstest;
mod system;

pub(crate) use apps::run as apps;
pub(crate) use matrix::run as matrix;
pub(crate) use pjdfstest::run as pjdfstest;
