//! Recovery: after every start that does not follow a planned stop, clients replay the changes that the log has lost.
//!
//! Rules: a recovery is due when the target was not stopped as planned, or when an earlier recovery did not end. Nothing
//! else proves that the log is whole: the machine may have booted again, the device may have refused what the kernel's
//! cache still shows, the store may be a copy. Every known client reports, except those that were in the process of the
//! former start and ended with it; a client that has not reported when a lease has passed since the start is given up.
//! Changes are replayed one at a time in the order of their old transnos, which they keep; before the next one is chosen,
//! every client that has not reported the end of its replay has one in the queue. Meanwhile `last_committed` is that of the
//! loss, replies tell new clients how long they have to wait, and the target's own changes have transnos of the next epoch. A
//! gap stays a gap: changes that an absent client does not replay are lost, and the service finds out whether a replayed
//! change builds on one of them (it gets the versions that the change met when it was first executed). The client of a
//! change that cannot be replayed is evicted at the end of the recovery. The progress is in the log, so that a second loss
//! resumes where the first one stopped.
//! Not here: the client's side (`nacre_rpc::Import`), the meaning of changes (the services).
//!
//! `state.rs` is the queue of replays and the clients that are waited for; `island/replay.rs` drives it.

pub(crate) mod state;

/// Row of `TARGET`: the latest change that needs no replay. It exists only while a recovery is under way.
pub(crate) const RECOVERY_KEY: &[u8] = b"recovery";
