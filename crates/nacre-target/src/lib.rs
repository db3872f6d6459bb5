//! What every server target has in common: exports and their records, admission, leases, replies, parameters.
//!
//! A target is a [`Service`] (what a request means) inside a [`TargetIsland`] (who may ask, exactly once). The
//! service changes its rows through [`TargetCore::transact`], which puts the reply record into the same transaction.
#![no_std]
extern crate alloc;

mod core_;
mod island;
mod registration;
mod service;

pub use core_::{ExportId, TargetConfig, TargetCore};
pub use island::TargetIsland;
pub use registration::Registration;
pub use service::{Reply, Request, Service};
