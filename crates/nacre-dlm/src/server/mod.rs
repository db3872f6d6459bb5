//! The server side of locks: one lock space per target and lock family, with fair queues and deadlock detection.

mod extent_locks;
mod flocks;

pub use extent_locks::{Enqueued, Holder, LockEffect, LockError, LockId, LockRequest, LockSpace, ResourceId};
pub use flocks::{FlockSpace, Outcome, SEGMENTS_MAX, WAITERS_MAX, WaitResult};
