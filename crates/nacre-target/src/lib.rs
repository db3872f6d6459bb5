//! What every server target has in common: exports and their records, admission, leases, replies, parameters.
//!
//! A target is a [`Service`] (what a request means) inside a [`TargetIsland`] (who may ask, exactly once). The
//! service changes its rows through [`TargetCore::transact`], which puts the reply record into the same transaction.
#![no_std]
extern crate alloc;

mod admission;
mod answers;
mod connect;
mod dispatch;
mod exports;
mod fault;
mod identity;
mod incompat;
mod island;
pub mod last_rcvd;
mod lease;
mod op_stats;
mod params;
mod recalls;
mod recovery;
mod registration;
mod service;
mod target_core;

pub use exports::ClientRow;
pub use fault::Fault;
pub use identity::Sender;
pub use island::TargetIsland;
pub use lease::Neighbours;
pub use nacre_wire::matches;
pub use op_stats::OpStats;
pub use params::set_params;
pub use recalls::Recalled;
pub use registration::Registration;
pub use service::{Reply, Request, Service};
pub use target_core::{ExportId, RECORD_BYTES, RECORD_ROWS, TargetConfig, TargetCore};
