//! The common part of all server targets: exports and their records, admission, leases, replies, parameters.
//!
//! A target is a [`Service`] (the meaning of requests) inside a [`TargetIsland`] (admission, exactly once). The
//! service changes its rows through [`TargetCore::transact`], which puts the reply record into the same transaction.
#![no_std]
extern crate alloc;

mod admission;
mod admitted;
mod clients;
mod fault;
mod identity;
mod island;
mod kept_logs;
pub mod last_rcvd;
mod lease;
mod locks;
mod neighbours;
mod params;
mod record_rows;
mod recovery;
mod registration;
mod request;
mod rivals;
mod service;
mod shared_device;
mod target_core;
mod transact;

pub use admitted::Admitted;
pub use clients::op_stats::OpStats;
pub use clients::{ClientRow, ExportId};
pub use fault::Fault;
pub use identity::Sender;
pub use island::TargetIsland;
pub use locks::deadlines::RevokedLock;
pub use locks::persistent::{PersistentLocks, parse_persistent_lock};
pub use locks::uncommitted::{ConflictKey, Uncommitted, UncommittedChange};
pub use nacre_wire::matches;
pub use neighbours::Neighbours;
pub use params::set_params;
pub use registration::Registration;
pub use request::{Reply, ReplyTail, Request};
pub use rivals::Whereabouts;
pub use service::{Service, StartRow};
pub use shared_device::{DeviceShare, SharedDevices};
pub use target_core::{KeptWrites, TargetConfig, TargetCore};
pub use transact::{RECORD_BYTES, RECORD_ROWS};
