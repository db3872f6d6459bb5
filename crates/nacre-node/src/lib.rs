//! The parts of an island except the meaning of its messages: context, tasks, events and effects, the store port,
//! imports with an async interface, outboxes and permits.
//!
//! An island is a [`Logic`] value around an `Rc<`[`Ctx`]`>`. A driver (`nacre-rt`, or the simulator) enters it with
//! one [`Event`], every task that can run runs, and the [`Effect`]s are taken out. Nothing in here does I/O,
//! reads a clock or knows a thread.
#![no_std]
extern crate alloc;

mod ctx;
mod event;
mod executor;
mod gate;
mod log_limiter;
mod outage;
mod outbox;
mod peer;
mod permit;
pub mod store;

pub use ctx::{Ctx, Rng};
pub use event::{ConnId, Effect, Event, IoTicket, Logic, Origin, visit};
pub use executor::{Awaited, Promise, TaskId, WaitList, join_all};
pub use gate::{Gate, Inside};
pub use log_limiter::{LeftOut, LogLimiter, LogLimiters, RepeatedErrors};
pub use outbox::{Claim, Next, Outbox, OutboxError};
pub use peer::{Call, Peer, PeerConfig, Peers, Reply, RpcError};
pub use permit::{Permit, Revoked};
pub use store::{
    FileId, FileKind, Keep, ReadFrom, Store, StoreDone, StoreError, StoreOp, StoreSpace, WriteTo,
};
