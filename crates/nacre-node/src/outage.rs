//! Log lines about a target that is away: one when requests have waited for a moment, the same line after pauses that
//! double, and one when the connection is back. Nothing is logged if the import is back before a request had to wait.

use crate::log_limiter::{LogLimiter, RepeatedErrors};
use alloc::string::String;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_rpc::{Import, ImportState};
use nacre_types::Instant;

/// The outage of one import, and what the log has of it.
#[derive(Default)]
pub(crate) struct Outage {
    /// When the import was last examined.
    examined: Cell<Instant>,
    /// Start of the outage, once it was logged.
    logged: Cell<Option<Instant>>,
    repeated: RefCell<RepeatedErrors>,
}

impl Outage {
    /// Requests wait for this time before a line is logged; a restart takes less.
    const QUIET: Duration = Duration::from_secs(2);
    /// The same while no request waits.
    const QUIET_IDLE: Duration = Duration::from_secs(30);

    /// When [`Outage::handle`] must be called next.
    pub(crate) fn deadline<T>(&self, import: &Import<T>) -> Option<Instant> {
        let since = import.away_since()?;
        // A ping of an idle import needs no deadline here: if it stays without a reply, the import closes the connection.
        let idle = import.state() == ImportState::Full && requests(import) == 0;
        (!idle).then(|| since.max(self.examined.get()) + Self::QUIET)
    }

    /// Logs what is due: the state of the import may have changed, or the deadline has passed.
    pub(crate) fn handle<T>(
        &self,
        now: Instant,
        import: &Import<T>,
        names: (&str, &str),
        all: &RefCell<LogLimiter>,
    ) {
        let (client, target) = names;
        let Some(since) = import.away_since() else {
            if let Some(since) = self.logged.take() {
                self.repeated.take();
                if !import.is_ending() {
                    let seconds = now.saturating_since(since).as_secs();
                    tracing::info!(client, "{target}{}: connected again after {seconds} s", at(import));
                }
            }
            return;
        };
        if now < since.max(self.examined.get()) + Self::QUIET {
            self.examined.set(self.examined.get().max(since));
            return;
        }
        self.examined.set(now);
        let (away, requests) = (now.saturating_since(since), requests(import));
        if !import.is_active() || (requests == 0 && away < Self::QUIET_IDLE) {
            return;
        }
        // One error for all reasons: reasons that alternate must not cause a line each.
        if self.repeated.borrow_mut().allow(target, "away", now).is_none() {
            return;
        }
        let Some(left_out) = all.borrow_mut().allow(now) else { return };
        self.logged.set(Some(since));
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
    pub(crate) fn was_logged(&self) -> bool {
        self.logged.get().is_some()
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
        (_, ImportState::Full) => "it does not reply",
        (Some(error), _) => error,
        (None, ImportState::Replay | ImportState::ReplayLocks | ImportState::ReplayWait) => {
            "it was restarted and waits for its other clients"
        }
        (None, _) if import.current_address().is_none() => "its address is not known yet",
        (None, _) => "not connected yet",
    }
}
