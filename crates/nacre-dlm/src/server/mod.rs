//! The server side of locks: one lock space per target and lock family, with fair queues and deadlock detection.

mod extent_locks;
mod flocks;
mod inode_locks;
mod inode_waits;
mod revoke_pauses;

pub use extent_locks::{Enqueued, Holder, LockEffect, LockError, LockId, LockRequest, LockSpace, ResourceId};
pub use flocks::{FlockSpace, Outcome, SEGMENTS_MAX, WAITERS_MAX, WaitResult};
pub use inode_locks::{
    InodeClaim, InodeGrant, InodeLockEffect, InodeLockState, InodeLocks, InodeRevoke, RevokeAck,
};
pub use inode_waits::{INODES_PER_TICKET_MAX, TICKETS_PER_HOLDER_MAX, Ticket, TicketError};
pub use revoke_pauses::{PAUSE_MAX, PAUSE_MIN, PAUSES_MAX};
