//! Signals: when a call ends although the servers have not replied.
//!
//! A waiting file lock ends at once (the kernel restarts the call if the signal had no handler). Any other request
//! waits for its servers for [`SIGNAL_DELAY`]; after that the front end examines why its caller was interrupted
//! (`caller.rs`). If the caller is ending, its call ends, whatever the request: no program uses the result, and so every
//! process can be killed, however long the servers are away. If the caller handles the signal, the call continues, as on
//! a local disk: POSIX gives lseek(2), stat(2) and link(2) no EINTR, and EINTR for a change that may still happen would
//! be misleading. With the mount option `intr`, signals that ask programs to stop also end requests that change nothing.
//!
//! The kernel sends no INTERRUPT for a request of a ring if the signal came before the request was copied to us, and drops
//! one that overtook its request on the way to the island. Therefore the callers of requests from rings are examined
//! without an INTERRUPT, too, while these wait for long ([`Door::watch_callers`]).
//!
//! The task of an abandoned request runs to its end: the change happens once or never, as after a crash of the caller.
//! Its cancellation is requested, so a read or write that still waits for an extent lock leaves the OST's queue. The
//! handlers release what the caller would have had to release (an open handle, a lock). Invariants: a request has one
//! reply; at most [`GIVEN_UP_MAX`] tasks work for callers that have ended.

use crate::abi::{InterruptIn, op};
use crate::caller::Reason;
use crate::door::{Door, FuseEffect, Running};
use crate::ops::Ops;
use crate::request::FuseRequest;
use nacre_node::Effect;
use nacre_types::{Errno, Instant};
use std::rc::Rc;
use std::time::Duration;

/// How long a request waits for its servers before a signal counts.
pub(crate) const SIGNAL_DELAY: Duration = Duration::from_secs(2);
/// Interval at which a caller is examined.
const LOOK: Duration = Duration::from_millis(500);
/// Callers of requests from rings that are examined in one visit.
const LOOKS_MAX: usize = 256;
/// Beyond this callers wait: abandoned requests still occupy a server's queue.
const GIVEN_UP_MAX: usize = 10_000;

/// The call of request `unique` is to end; delivered to the island as [`nacre_node::Event::Door`]. A plain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted {
    pub(crate) unique: u64,
    pub(crate) reason: Reason,
}

impl<O: Ops> Door<O> {
    /// A signal for the caller of a request.
    pub(crate) fn interrupt(self: &Rc<Self>, request: &FuseRequest) {
        let Ok(args) = request.args().take::<InterruptIn>() else { return };
        let found = self.running.borrow().get(&args.unique).map(|r| (r.task, r.start, r.request.clone()));
        // The request was read by another loop and is not here yet (the kernel sends the interrupt again, unless the
        // request came through a ring), or has its reply already (the kernel drops the interrupt).
        let Some((task, start, target)) = found else { return self.reply(request, Err(Errno::EAGAIN)) };
        if target.opcode() == op::SETLKW {
            self.ctx.cancel(task);
        }
        self.ctx.spawn(self.clone().patiently(target, start));
    }

    /// Abandons `target` when it is time. Also for requests for which the kernel sends no interrupt.
    pub(crate) async fn patiently(self: Rc<Self>, target: Rc<FuseRequest>, start: Instant) {
        self.ctx.sleep_until(start + SIGNAL_DELAY).await;
        while !target.has_reply() {
            let (unique, pid) = (target.unique(), target.header.pid);
            self.ctx.push(Effect::Door(Box::new(FuseEffect::LookAtCaller { unique, pid })));
            self.ctx.sleep(LOOK).await;
        }
    }

    /// Starts to examine the callers of requests from rings, every [`SIGNAL_DELAY`] as long as there are such requests.
    pub(crate) fn watch_callers(self: &Rc<Self>) {
        if self.watches_callers().replace(true) {
            return;
        }
        let door = self.clone();
        self.ctx.spawn(async move {
            let mut after = 0;
            loop {
                door.ctx.sleep(SIGNAL_DELAY).await;
                match door.look_at_callers(after) {
                    Some(last) => after = last,
                    None => break,
                }
            }
            door.watches_callers().set(false);
        });
    }
    /// Has the callers of requests with numbers above `after` examined. Returns the last number, 0 if there are no more;
    /// `None`: no request from a ring is in progress.
    fn look_at_callers(&self, after: u64) -> Option<u64> {
        let running = self.running.borrow();
        let of_rings = |r: &&Running| r.request.is_from_ring() && !r.request.has_reply();
        running.values().find(of_rings)?;
        let now = self.ctx.now();
        // The state of a caller in a foreign pid name space (number 0) is not known.
        let is_due = |r: &&Running| r.start + SIGNAL_DELAY <= now && r.request.header.pid != 0;
        let due = running.range(after + 1..).map(|(_, r)| r).filter(of_rings).filter(is_due).take(LOOKS_MAX);
        let mut looks = 0;
        let mut last = 0;
        for r in due {
            (looks, last) = (looks + 1, r.request.unique());
            let look = FuseEffect::LookAtCaller { unique: last, pid: r.request.header.pid };
            self.ctx.push(Effect::Door(Box::new(look)));
        }
        Some(if looks == LOOKS_MAX { last } else { 0 })
    }

    /// The result of [`FuseEffect::LookAtCaller`].
    pub(crate) fn interrupted(&self, Interrupted { unique, reason }: Interrupted) {
        let target = self.running.borrow().get(&unique).map(|r| r.request.clone());
        if let Some(target) = target
            && (reason == Reason::Ends || changes_nothing(target.opcode()))
        {
            self.give_up(&target);
        }
    }

    fn give_up(&self, target: &FuseRequest) {
        if !target.has_reply() && self.given_up.get() < GIVEN_UP_MAX {
            self.given_up.set(self.given_up.get() + 1);
            if let Some(running) = self.running.borrow().get(&target.unique()) {
                self.ctx.cancel(running.task);
            }
            self.reply(target, Err(Errno::EINTR));
        }
    }
}

/// Whether the result of a request can be discarded.
fn changes_nothing(opcode: u32) -> bool {
    matches!(
        opcode,
        op::LOOKUP
            | op::GETATTR
            | op::STATX
            | op::STATFS
            | op::READLINK
            | op::OPEN
            | op::OPENDIR
            | op::READ
            | op::READDIR
            | op::READDIRPLUS
            | op::GETXATTR
            | op::LISTXATTR
            | op::GETLK
            | op::FSYNC
            | op::FSYNCDIR
    )
}
