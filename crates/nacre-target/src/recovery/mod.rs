//! Recovery: after every start that does not follow a planned stop, clients replay the changes that the log has lost.
//!
//! A recovery is due when the target was not stopped as planned, or when an earlier recovery did not end. No other
//! evidence would prove that the log is complete: the machine may have booted again, the device may have refused writes
//! that the kernel's cache still shows, the store may be a copy. The target waits for every known client, except those
//! that were in the process of the former start and ended with it. A client that has not connected when a lease has
//! passed since the start is given up: its changes are lost.
//!
//! Changes are replayed one at a time in the order of their old transnos, which they keep. The next change is chosen
//! only when the queue contains one from every client that has not reported the end of its replay. During the recovery
//! `last_committed` keeps the value that it had at the loss, replies tell new clients how long they have to wait, and
//! the target's own changes get transnos of the next epoch.
//!
//! The changes of a client that was given up leave gaps in the transnos. Another client's change may build on such a
//! lost change. The service detects this by the versions that a replayed change met when it was first executed, and
//! refuses the replay. The client of a change that cannot be replayed is evicted at the end of the recovery. The
//! progress is in the log, so that the recovery resumes where it stopped if the log is lost a second time.
//!
//! Not here: the client's side (`nacre_rpc::Import`), the meaning of changes (the services).
//!
//! `state.rs` is the queue of replays and the clients that are waited for; `island/replay.rs` drives it.

pub(crate) mod state;

/// Row of `TARGET`: the latest change that needs no replay. It exists only while a recovery is under way.
pub(crate) const RECOVERY_KEY: &[u8] = b"recovery";
