//! The rules of a conversation between a client and a target, as plain values: who may send what when, what is
//! resent, what is executed and what is answered from memory.
//!
//! [`Import`] is one target as a client sees it: connection state, slots and tags, xids, resend, the list of
//! changes that may have to be replayed, the lease. [`Export`] is one client as a target sees it: which requests
//! are admitted, reply records, unacknowledged callbacks. Both take events (`handle_*`) and a time, and give
//! effects; neither knows a socket, a clock or a task. Not here: what a request means, and how records are stored.
#![no_std]
extern crate alloc;

mod connection;
mod export;
mod identity;
mod import;
mod lease;
mod record;
mod replay;
mod sending;
mod slots;
mod state;

pub use export::{Admission, CallbacksFull, Export, RUNNING_MAX};
pub use import::{CallError, Import, ImportConfig, ImportEffect, Request};
pub use lease::ClientLease;
pub use record::{PreVersions, ReplyRecord, SubRecord};
pub use replay::{ReplayEntry, ReplayList};
pub use slots::{MOD_RPCS_MAX, RPCS_MAX, RpcHistogram, Slots, TAG_MAX};
pub use state::{ImportState, StateHistory};
