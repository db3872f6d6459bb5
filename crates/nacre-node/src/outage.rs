//! Log lines about a target that is away: one line once requests have waited for a moment, repetitions at growing
//! intervals, and one line when the target is back. No line if the target is back before a request had to wait.

use crate::complaints::{Complaints, Grievances};
use alloc::string::String;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_rpc::{Import, ImportState};
use nacre_types::Instant;

/// See the module; of one import.
#[derive(Default)]
pub(crate) struct Outage {
    looked: Cell<Instant>,
    /// Start of the outage, once it was logged.
    said: Cell<Option<Instant>>,
    grievances: RefCell<Grievances>,
}

impl Outage {
    /// Requests wait this long before the first line; a restart takes less.
    const QUIET: Duration = Duration::from_secs(2);
    /// The same if no request waits.
    const QUIET_IDLE: Duration = Duration::from_secs(30);

    /// Time of the next call of `look`.
    pub(crate) fn look_at<T>(&self, import: &Import<T>) -> Option<Instant> {
        let since = import.away_since()?;
        // A ping of an idle import needs no second call: if it stays unanswered, the connection is closed.
        let idle = import.state() == ImportState::Full && requests(import) == 0;
        (!idle).then(|| since.max(self.looked.get()) + Self::QUIET)
    }

    /// The state may have changed, or the time of `look_at` has come.
    pub(crate) fn look<T>(
        &self,
        now: Instant,
        import: &Import<T>,
        who: (&str, &str),
        all: &RefCell<Complaints>,
    ) {
        let (client, target) = who;
        let Some(since) = import.away_since() else {
            if let Some(since) = self.said.take() {
                self.grievances.take();
                if !import.is_ending() {
                    let seconds = now.saturating_since(since).as_secs();
                    tracing::info!(client, "{target}{}: connected again after {seconds} s", at(import));
                }
            }
            return;
        };
        if now < since.max(self.looked.get()) + Self::QUIET {
            self.looked.set(self.looked.get().max(since));
            return;
        }
        self.looked.set(now);
        let (away, requests) = (now.saturating_since(since), requests(import));
        if !import.is_active() || (requests == 0 && away < Self::QUIET_IDLE) {
            return;
        }
        // The same error each time: alternating reasons do not count as a change.
        if self.grievances.borrow_mut().allow(target, "away", now).is_none() {
            return;
        }
        let Some(left_out) = all.borrow_mut().allow(now) else { return };
        self.said.set(Some(since));
        let left_out = (left_out > 0).then_some(left_out);
        let (at, seconds, reason) = (at(import), away.as_secs(), reason(import));
        match requests {
            0 => {
                tracing::warn!(client, left_out, "no connection to {target}{at}: {reason}, since {seconds} s")
            }
            1 => tracing::warn!(
                client,
                left_out,
                "waiting for {target}{at}: {reason}, since {seconds} s, 1 request waits"
            ),
            n => tracing::warn!(
                client,
                left_out,
                "waiting for {target}{at}: {reason}, since {seconds} s, {n} requests wait"
            ),
        }
    }
    /// Whether the outage was logged.
    pub(crate) fn was_said(&self) -> bool {
        self.said.get().is_some()
    }
}

fn requests<T>(import: &Import<T>) -> usize {
    import.in_flight() + import.waiting()
}
fn at<T>(import: &Import<T>) -> String {
    import.current_address().map(|address| alloc::format!(" ({address})")).unwrap_or_default()
}
fn reason<T>(import: &Import<T>) -> &str {
    match (import.last_error(), import.state()) {
        (_, ImportState::Full) => "it does not answer",
        (Some(error), _) => error,
        (None, ImportState::Replay | ImportState::ReplayLocks | ImportState::ReplayWait) => {
            "it was started again and waits for its other clients"
        }
        (None, _) if import.current_address().is_none() => "its address is not known yet",
        (None, _) => "not connected yet",
    }
}
