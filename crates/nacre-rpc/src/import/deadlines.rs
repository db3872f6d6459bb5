//! Deadlines of changes, in the clock of the target: the target must not begin a change after its deadline.
//!
//! A caller sets the deadline itself at first. Without one, as for a change that was rejected as late, it is a quarter of
//! the lease after each copy is sent. On a slow network that may be too short: after a reply with the outcome
//! `DeadlinePassed`, later changes get twice the time that the rejected change took, until changes are fast again. The
//! extension ends with the connection.

use core::time::Duration;
use nacre_types::{Instant, ProtocolOutcome};
use nacre_wire::{Header, Status};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// The target's clock in the latest reply, and when that reply came: by now the clock shows more. Nothing is sent on a
    /// new connection before its first reply.
    clock: Option<(u32, Instant)>,
    extension: Duration,
}

impl Deadlines {
    /// A reply shows the target's clock; 0: it shows none.
    pub(super) fn set_clock(&mut self, now: Instant, clock_ms: u32) {
        self.clock = Some((clock_ms, now)).filter(|(ms, _)| *ms != 0);
    }
    pub(super) fn forget_extension(&mut self) {
        self.extension = Duration::ZERO;
    }
    /// A request that was sent at `sent` has a reply with this status.
    pub(super) fn note_duration(
        &mut self,
        now: Instant,
        request: &Header,
        sent: Instant,
        status: Status,
        lease: Duration,
    ) {
        if !status.is(ProtocolOutcome::DeadlinePassed) && self.extension.is_zero() {
            return;
        }
        if request.has_deadline() {
            let extension = (now.saturating_since(sent) * 2).max(self.extension * 7 / 8);
            self.extension = if extension > lease / 4 { extension } else { Duration::ZERO };
        }
    }
    /// The deadline of a request in the target's clock; 0 if it has none, or the clock is not known.
    pub(super) fn clock_at(
        &self,
        now: Instant,
        request: &Header,
        deadline: Option<Instant>,
        lease: Duration,
    ) -> u32 {
        let (true, Some((shown, at))) = (request.has_deadline(), self.clock) else { return 0 };
        let deadline = deadline.unwrap_or(now + self.extension.max(lease / 4));
        let (ahead, over) = (deadline.saturating_since(at), at.saturating_since(deadline));
        shown.wrapping_add(ahead.as_millis() as u32).wrapping_sub(over.as_millis() as u32).max(1)
    }
}
