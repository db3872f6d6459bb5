//! Signals: when a caller gets its call back although the servers have not answered.
//!
//! A waiting file lock ends at once (the kernel restarts the call if the signal had no handler). Any other request waits for
//! its servers for [`PATIENCE`]; after that the front end looks why its caller was interrupted (`caller.rs`). A caller
//! that is ending gets its call back whatever the request was: it looks at no result, and every process can be killed, however
//! long the servers stay away. A caller that handles the signal waits on, as on a local disk: POSIX gives lseek(2), stat(2) and
//! link(2) no EINTR, and EINTR for a change that may still happen would mislead everybody else. Mount option `intr` lets
//! signals that ask programs to give up end requests that change nothing.
//!
//! The task of a request that was given up runs to its end: the change happens once or never, as after a crash of
//! the caller. Its cancellation is requested, so a read or write that still waits for an extent lock leaves the
//! OST's queue. The handlers give back what the caller would have had to give back (an open handle, a lock).
//! Invariants: a request has one answer; at most [`GIVEN_UP_MAX`] tasks work for callers that have gone.

use crate::abi::{InterruptIn, op};
use crate::caller::Reason;
use crate::door::{Door, FuseEffect};
use crate::ops::Ops;
use crate::request::FuseRequest;
use nacre_node::Effect;
use nacre_types::{Errno, Instant};
use std::rc::Rc;
use std::time::Duration;

/// How long a request waits for its servers before a signal counts.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// How often a caller is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Beyond this callers wait: what was given up still has its place in a server's queue.
const GIVEN_UP_MAX: usize = 10_000;

/// The caller of request `unique` should get its call back: comes to the island as [`nacre_node::Event::Door`].
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
        // Read by another loop but not here yet (the kernel sends the interrupt again), or answered already (the
        // kernel knows and drops it).
        let Some((task, start, target)) = found else { return self.reply(request, Err(Errno::EAGAIN)) };
        if target.opcode() == op::SETLKW {
            self.ctx.unwanted(task);
        }
        self.ctx.spawn(self.clone().patiently(target, start));
    }

    /// Gives `target` up when it is time. Also for requests of which the kernel sends no interrupt.
    pub(crate) async fn patiently(self: Rc<Self>, target: Rc<FuseRequest>, start: Instant) {
        self.ctx.sleep_until(start + PATIENCE).await;
        while !target.is_answered() {
            let (unique, pid) = (target.unique(), target.header.pid);
            self.ctx.push(Effect::Door(Box::new(FuseEffect::LookAtCaller { unique, pid })));
            self.ctx.sleep(LOOK).await;
        }
    }

    /// The answer to [`FuseEffect::LookAtCaller`].
    pub(crate) fn interrupted(&self, Interrupted { unique, reason }: Interrupted) {
        let target = self.running.borrow().get(&unique).map(|r| r.request.clone());
        if let Some(target) = target
            && (reason == Reason::Ends || changes_nothing(target.opcode()))
        {
            self.give_up(&target);
        }
    }

    fn give_up(&self, target: &FuseRequest) {
        if !target.is_answered() && self.given_up.get() < GIVEN_UP_MAX {
            self.given_up.set(self.given_up.get() + 1);
            if let Some(running) = self.running.borrow().get(&target.unique()) {
                self.ctx.unwanted(running.task);
            }
            self.reply(target, Err(Errno::EINTR));
        }
    }
}

/// Whether the result of a request can be thrown away.
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
