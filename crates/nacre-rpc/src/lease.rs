//! The client's side of the lease: how long what the target granted may still be used.
//!
//! Invariant: the lease counts from the moment the last answered message was *sent*, so the client's view ends
//! before the server's, which counts from receipt. Two thirds may be used; the rest is the margin for clocks.

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
    pub fn length(&self) -> Duration {
        self.length
    }
    pub(crate) fn set_length(&mut self, length: Duration) {
        self.length = length;
    }
    /// A message sent at `sent` was answered.
    pub(crate) fn renew(&mut self, sent: Instant) {
        self.renewed = self.renewed.max(Some(sent));
    }
    pub(crate) fn forget(&mut self) {
        self.renewed = None;
    }
    /// When the latest answered message was sent.
    pub fn renewed(&self) -> Option<Instant> {
        self.renewed
    }
    /// Until when locks of this target may be used.
    pub fn usable_until(&self) -> Option<Instant> {
        self.renewed.map(|at| at + self.length * 2 / 3)
    }
    /// Until when the target gives nobody else what it has granted, as far as is known here; a twelfth is for the clocks.
    pub fn granted_until(&self) -> Option<Instant> {
        self.renewed.map(|at| at + self.length * 11 / 12)
    }
    pub fn ok(&self, now: Instant) -> bool {
        self.usable_until().is_some_and(|end| now < end)
    }
}
