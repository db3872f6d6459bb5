//! Outcomes of a request that belong to the protocol, beside the errnos of system calls.
//!
//! An outcome is for the protocol of the client (wait, connect again, repeat); no program sees it. It has a number in the
//! same space as [`Errno`], above every errno of Linux, so the two cannot be confused. Handlers of a server return an
//! outcome as an [`Errno`] with that number; a reply carries it as a status of its own; [`Errno::for_caller`] converts it
//! where an error leaves the file system.

use crate::Errno;
use core::fmt;

/// The highest errno of Linux.
const ERRNO_MAX: i32 = 4095;

macro_rules! outcomes {
    ($($(#[$m:meta])* $name:ident = $n:literal, $errno:ident, $text:literal;)*) => {
        /// See the module.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i32)]
        pub enum ProtocolOutcome { $($(#[$m])* $name = $n),* }

        impl ProtocolOutcome {
            /// Every outcome.
            pub const ALL: &'static [ProtocolOutcome] = &[$(ProtocolOutcome::$name),*];
            /// The outcome with this number.
            pub fn from_number(n: i32) -> Option<Self> {
                match n { $($n => Some(Self::$name),)* _ => None }
            }
            /// The explanation, for messages.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
            /// The errno for a program, where no code of the protocol has handled the outcome.
            fn errno(self) -> Errno {
                match self { $(Self::$name => Errno::$errno),* }
            }
        }
    };
}

outcomes! {
    /// Nothing was executed: the target is recovering, or an OST that the request needs may connect soon. The client sends a
    /// new request after a pause.
    TryLater = 4097, EAGAIN, "not now: send it again later";
    /// Reply to a replay: the target has lost nothing. The client keeps its uncommitted changes and stops replaying.
    NothingLost = 4098, EIO, "the target has lost nothing";
    /// The change was not executed, because the deadline that its client gave had passed. The client sends a new request if
    /// it still holds the locks.
    DeadlinePassed = 4099, ETIME, "the deadline of the change has passed";
    /// The client has no such lock any more: it was evicted, or the target was started again. The client enqueues again.
    LockLost = 4100, ESTALE, "the lock is lost";
    /// Reply to a replay: it depends on a change that is lost, and was not executed.
    VersionMismatch = 4101, EOVERFLOW, "it builds on a change of a client that did not come back";
    /// The target has no export of this client (any more): the client connects again.
    ExportGone = 4102, ESTALE, "the target does not know this client any more";
    /// Reply to a connect: its epoch is not newer than that of another connection of the same client.
    StaleEpoch = 4103, ESTALE, "the client has connected with a newer epoch";
    /// The change was not executed: other clients have to return locks first, which may take a while. The change keeps its
    /// place: the client sends `AwaitInodeLocks`, and the change again after the reply to that.
    LocksAwaited = 4105, EINPROGRESS, "other clients have to return locks first";
    /// The connection of the client was gone before the change was executed. Never sent: the next copy of the request is
    /// executed as if this one had been lost on its way.
    Abandoned = 4104, ENOTCONN, "the connection of the client is gone";
}

impl fmt::Display for ProtocolOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl From<ProtocolOutcome> for Errno {
    fn from(outcome: ProtocolOutcome) -> Self {
        Errno(outcome as i32)
    }
}

impl Errno {
    /// The outcome that this number stands for.
    pub fn outcome(self) -> Option<ProtocolOutcome> {
        ProtocolOutcome::from_number(self.0)
    }
    /// Whether this number stands for `outcome`.
    pub fn is(self, outcome: ProtocolOutcome) -> bool {
        self.0 == outcome as i32
    }
    /// The errno for the program whose system call fails: an outcome becomes the errno nearest to it.
    pub fn for_caller(self) -> Errno {
        match self.outcome() {
            Some(outcome) => outcome.errno(),
            None if (1..=ERRNO_MAX).contains(&self.0) => self,
            None => Errno::EIO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_no_errnos_and_programs_see_errnos_only() {
        for &outcome in ProtocolOutcome::ALL {
            let carried = Errno::from(outcome);
            assert!(carried.0 > ERRNO_MAX && carried.symbol().is_none(), "{outcome:?}");
            assert_eq!((carried.outcome(), carried.is(outcome)), (Some(outcome), true));
            assert!((1..=ERRNO_MAX).contains(&carried.for_caller().0), "{outcome:?}");
        }
        assert_eq!(Errno::ESTALE.for_caller(), Errno::ESTALE);
        assert_eq!((Errno(9999).for_caller(), Errno(-3).for_caller()), (Errno::EIO, Errno::EIO));
    }
}
