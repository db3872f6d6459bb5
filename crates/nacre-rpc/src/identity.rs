//! Which target an import means: the one that the list of targets names, with everything that it has called durable.
//!
//! The target itself compares (`nacre_target`), by what the client remembers. A target that refuses for that reason is used
//! by nobody: calls fail at once instead of waiting for somebody to put the right one back, and the import asks again as
//! ever. An import without a known target (to an MGS, of a tool) takes whoever answers.

use crate::connection::Link;
use crate::import::{CallError, Import, ImportEffect};
use crate::sending::Lane;
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use nacre_types::{Generation, Instant, Remembered};
use nacre_wire::target::ConnectReply;

/// What the import knows of its target.
#[derive(Debug, Default)]
pub(crate) struct Known {
    target: Option<Remembered>,
    /// How often another one was admitted in its place.
    replaced: u32,
    /// Another target, or one that has gone back, answers at this address: why it is not used.
    mismatch: Option<(usize, String)>,
}

impl Known {
    pub(crate) fn new(target: Option<Remembered>, replaced: u32) -> Self {
        Self { target, replaced, mismatch: None }
    }
    pub(crate) fn replaced(&self) -> u32 {
        self.replaced
    }
}

impl<T> Import<T> {
    /// The list of targets says which target this is. Another one that was admitted in its place has nothing of what the
    /// former one was asked or has granted.
    pub fn expect(&mut self, now: Instant, target: Remembered, replaced: u32) {
        if replaced <= self.known.replaced {
            if let Some(known) = self.known.target.as_mut().filter(|_| replaced == self.known.replaced) {
                known.committed = known.committed.max(self.last_committed);
                known.learn(&target);
            }
            return;
        }
        self.known = Known::new(Some(target), replaced);
        self.forget_commits();
        self.evicted(now, String::from("an administrator has admitted another target in its place"));
        (self.generation, self.target, self.instance, self.replay_due) = (Generation(0), None, None, false);
        match self.link {
            Link::Gone | Link::Leaving { .. } | Link::Down { .. } => {}
            _ => self.lose(now, "another target was admitted in its place"),
        }
        if let Link::Down { .. } = self.link {
            self.attempts = 0;
            self.open(now);
        }
    }

    /// How often another target was admitted in the place of this one, as far as the import was told.
    pub fn replaced(&self) -> u32 {
        self.known.replaced
    }

    /// Why the target that answers is not used; `None`: the right one does, or nobody.
    pub fn mismatch(&self) -> Option<&str> {
        self.known.mismatch.as_ref().map(|(_, why)| why.as_str())
    }

    /// What is told to a target at connect: its identity with the highest change that it has called durable.
    pub fn remembered(&self) -> Option<Remembered> {
        let known = self.known.target?;
        Some(Remembered { committed: known.committed.max(self.last_committed), ..known })
    }

    /// Takes in who has answered a connect. False: it is not to be used, and the connection is given up.
    pub(crate) fn meet(&mut self, now: Instant, reply: &ConnectReply) -> bool {
        let other = self.known.target.is_some_and(|known| known.uuid != reply.target);
        if reply.refused.is_empty() && !other {
            self.known.mismatch = None;
            if let Some(known) = &mut self.known.target {
                known.incarnation = reply.incarnation;
            }
            return true;
        }
        let why = if reply.refused.is_empty() { "it is another target" } else { reply.refused.as_str() };
        if other || reply.mismatch {
            self.found_mismatch(why);
        }
        self.lose(now, why);
        false
    }

    fn found_mismatch(&mut self, why: &str) {
        let news = self.mismatch() != Some(why);
        self.known.mismatch = Some((self.address, why.to_owned()));
        if news {
            self.effects.push_back(ImportEffect::Mismatch { why: why.to_owned() });
        }
        self.fail_calls(CallError::Mismatch);
    }

    /// Nobody answers at an address: if another target did before, it is gone, and the right one may come.
    pub(crate) fn nobody_answers(&mut self) {
        if self.known.mismatch.as_ref().is_some_and(|(address, _)| *address == self.address) {
            self.known.mismatch = None;
        }
    }

    /// Ends every call but those that give something back, which are sent when the target is there again.
    pub(crate) fn fail_calls(&mut self, error: CallError) {
        let kept = core::mem::take(&mut self.urgent);
        let sent = core::mem::take(&mut self.unreplied);
        let (kept_sent, given_up): (BTreeMap<_, _>, BTreeMap<_, _>) =
            sent.into_iter().partition(|(_, call)| Lane::of(call.class) == Lane::Urgent);
        self.unreplied = given_up;
        self.fail_all(error);
        (self.unreplied, self.urgent) = (kept_sent, kept);
    }
}
