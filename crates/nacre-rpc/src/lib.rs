//! The rules of the conversation between a client and a target, as plain values: order, resend, exactly-once execution,
//! replay.
//!
//! [`Import`] is one target as a client sees it: connection state, slots and tags, xids, resend, the list of changes that may
//! have to be replayed, the lease. [`Export`] is one client as a target sees it: admission of requests, reply records,
//! callbacks without an acknowledgement. Both take events (`handle_*`) and a time, and return effects; neither knows a socket,
//! a clock or a task. Not here: the meaning of requests, and how records are stored.
#![no_std]
extern crate alloc;

mod export;
mod import;
mod lease;
mod record;
mod replay;
mod slots;
mod state;

pub use export::{Admission, CallbacksFull, Export, RUNNING_MAX};
pub use import::{CallError, Import, ImportConfig, ImportEffect, Request, ServerTime};
pub use lease::ClientLease;
pub use record::{PreVersions, ReplyRecord, SubRecord};
pub use replay::{ReplayEntry, ReplayList};
pub use slots::{MOD_RPCS_MAX, RPCS_MAX, RpcHistogram, Slots, TAG_MAX};
pub use state::{ImportState, StateHistory};
