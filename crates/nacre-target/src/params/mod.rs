//! Parameters of a target. A new one begins with its row in `nacre-wire/src/params/table.rs`.
//!
//! - `values.rs`: the values that the core keeps.
//! - `common.rs`: the parameters that every target has, and how any parameter is read and set.
//! - `permanent.rs`: permanent parameters (`set_param -P`).

pub(crate) mod common;
pub(crate) mod permanent;
pub(crate) mod values;

pub use common::set_params;
