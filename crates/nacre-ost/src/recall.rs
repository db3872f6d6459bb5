//! Grants that are asked back from clients when other room is short.
//!
//! A client has a grant for more than it keeps in memory, so that its next writes need not ask; it returns an idle one only after a
//! while. On a small or nearly full device that holds space which other writes could use. So before one of them is refused,
//! and before a statfs that the grants would distort, each client is asked for the part that it does not need: a callback,
//! which it answers with a `Grant`.
//!
//! Invariants: a client that does not answer in time delays nobody again before it has answered; it has at most one such callback
//! to answer. What clients need for the bytes in their memory stays granted.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;
use nacre_node::{Ctx, WaitList};
use nacre_target::{ExportId, TargetCore};
use nacre_types::Instant;
use nacre_wire::Opcode;
use nacre_wire::ost::ReturnGrant;

/// How long a client's answer is waited for. Less than the time that the MDT has for a statfs.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Clients that have been asked and have not answered yet.
pub(crate) struct Recalls {
    /// Their answers are waited for until then.
    awaited: RefCell<BTreeMap<ExportId, Instant>>,
    answered: WaitList,
}

impl Recalls {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self { awaited: RefCell::default(), answered: ctx.wait_list() }
    }
    /// The client has answered, or is gone.
    pub(crate) fn ended(&self, export: ExportId) {
        if self.awaited.borrow_mut().remove(&export).is_some() {
            self.answered.wake_all();
        }
    }
    fn awaits_any(&self, now: Instant) -> bool {
        self.awaited.borrow().values().any(|until| now < *until)
    }
    /// Asks these clients, except those that have not answered yet, and waits for the answers.
    pub(crate) async fn ask(&self, core: &TargetCore, clients: Vec<ExportId>) {
        let until = core.ctx.now() + ANSWER_TIMEOUT;
        for export in clients {
            if self.awaited.borrow().contains_key(&export) {
                continue;
            }
            self.awaited.borrow_mut().insert(export, until);
            if core.callback(export, Opcode::ReturnGrant, &ReturnGrant {}).is_none() {
                self.ended(export);
            }
        }
        while self.awaits_any(core.ctx.now()) && core.ctx.now() < until {
            let _answered = core.ctx.timeout(until, self.answered.wait()).await;
        }
    }
}
