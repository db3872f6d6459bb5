//! The identity of the expected target: its uuid, and the highest change that it has reported as durable.
//!
//! The target itself compares (`nacre_target`) the identity that the client remembers with its own. A target that
//! refuses the client for this reason is not used: calls fail at once instead of waiting until an administrator
//! restores the right target, and the import keeps trying to connect. An import without an expected target (to an MGS,
//! or of a tool) accepts any target.

use super::Import;
use super::request::{CallError, ImportEffect};
use super::session::Link;
use alloc::borrow::ToOwned;
use alloc::string::String;
use nacre_types::{Instant, Remembered, Transno};
use nacre_wire::target::ConnectReply;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Expected {
    target: Option<Remembered>,
    /// How often another target was admitted in its place.
    replaced: u32,
    /// The address at which another target or an old copy replies, and why it is not used.
    mismatch: Option<(usize, String)>,
}

impl Expected {
    pub(super) fn new(target: Option<Remembered>, replaced: u32) -> Self {
        Self { target, replaced, mismatch: None }
    }
    pub(super) fn replaced(&self) -> u32 {
        self.replaced
    }
    pub(super) fn mismatch(&self) -> Option<&str> {
        self.mismatch.as_ref().map(|(_, why)| why.as_str())
    }
    fn remembered(&self, last_committed: Transno) -> Option<Remembered> {
        let known = self.target?;
        Some(Remembered { committed: known.committed.max(last_committed), ..known })
    }
    /// No process replies at an address: another target that did before is gone, and the right one may follow.
    pub(super) fn no_reply_at(&mut self, address: usize) {
        if self.mismatch.as_ref().is_some_and(|(at, _)| *at == address) {
            self.mismatch = None;
        }
    }
}

impl<T> Import<T> {
    /// Sets the identity of the expected target, from the list of targets. If another target was admitted in its place, the
    /// new one has neither the changes nor the grants of the former one.
    pub fn expect(&mut self, now: Instant, target: Remembered, replaced: u32) {
        if replaced <= self.expected.replaced {
            if let Some(known) = self.expected.target.as_mut().filter(|_| replaced == self.expected.replaced)
            {
                known.committed = known.committed.max(self.commits.last_committed());
                known.learn(&target);
            }
            return;
        }
        self.expected = Expected::new(Some(target), replaced);
        self.commits.forget_numbers();
        self.evicted(now, String::from("an administrator has admitted another target in its place"));
        self.admitted.forget_target();
        self.commits.end_replay();
        match self.session.link() {
            Link::Gone | Link::Leaving { .. } | Link::Down { .. } => {}
            _ => self.lose(now, "another target was admitted in its place"),
        }
        if let Link::Down { .. } = self.session.link() {
            self.session.forget_attempts();
            self.open(now);
        }
    }

    /// How often another target was admitted in the place of this one, as far as the import knows.
    pub fn replaced(&self) -> u32 {
        self.expected.replaced
    }

    /// Why the target at the address is not used; `None` if it is the expected one, or none replies.
    pub fn mismatch(&self) -> Option<&str> {
        self.expected.mismatch()
    }

    /// The identity that a connect presents to the target: with the highest change that the target has called durable.
    pub fn remembered(&self) -> Option<Remembered> {
        self.expected.remembered(self.commits.last_committed())
    }

    /// Compares the target that has replied to connect. False: it is not used, and the connection is closed.
    pub(super) fn check_identity(&mut self, now: Instant, reply: &ConnectReply) -> bool {
        let other = self.expected.target.is_some_and(|known| known.uuid != reply.target);
        if reply.refused.is_empty() && !other {
            self.expected.mismatch = None;
            if let Some(known) = &mut self.expected.target {
                known.incarnation = reply.incarnation;
            }
            return true;
        }
        let why = if reply.refused.is_empty() { "it is another target" } else { reply.refused.as_str() };
        if other || reply.mismatch {
            self.set_mismatch(why);
        }
        self.lose(now, why);
        false
    }

    fn set_mismatch(&mut self, why: &str) {
        let is_new = self.mismatch() != Some(why);
        self.expected.mismatch = Some((self.session.address(), why.to_owned()));
        if is_new {
            self.effects.push_back(ImportEffect::Mismatch { why: why.to_owned() });
        }
        self.fail_calls(CallError::Mismatch);
    }
}
