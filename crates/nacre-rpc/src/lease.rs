//! The client's side of the lease: how long grants of the target may be used.
//!
//! Invariant: the lease counts from the moment at which the last message with a reply was *sent*, so the client's view
//! ends before the server's, which counts from receipt. Two thirds may be used; the rest is the margin for clocks.

use core::time::Duration;
use nacre_types::Instant;

/// Lease of one import.
#[derive(Debug, Clone, Copy)]
pub struct ClientLease {
    length: Duration,
    renewed: Option<Instant>,
}

impl ClientLease {
    pub(crate) fn new() -> Self {
        Self { length: Duration::from_secs(10), renewed: None }
    }
    /// Length of the lease.
    pub fn length(&self) -> Duration {
        self.length
    }
    pub(crate) fn set_length(&mut self, length: Duration) {
        self.length = length;
    }
    /// A message that was sent at `sent` has its reply.
    pub(crate) fn renew(&mut self, sent: Instant) {
        self.renewed = self.renewed.max(Some(sent));
    }
    pub(crate) fn forget(&mut self) {
        self.renewed = None;
    }
    /// When the latest message with a reply was sent.
    pub fn renewed(&self) -> Option<Instant> {
        self.renewed
    }
    /// End of the time in which locks of this target may be used.
    pub fn usable_until(&self) -> Option<Instant> {
        self.renewed.map(|at| at + self.length * 2 / 3)
    }
    /// End of the time in which the target grants no conflicting lock to others, as far as this side knows; a twelfth of the
    /// lease is the margin for clocks.
    pub fn granted_until(&self) -> Option<Instant> {
        self.renewed.map(|at| at + self.length * 11 / 12)
    }
    /// Whether locks of this target may be used now.
    pub fn ok(&self, now: Instant) -> bool {
        self.usable_until().is_some_and(|end| now < end)
    }
}
