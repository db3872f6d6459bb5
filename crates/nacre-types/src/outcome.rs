//! The failure of a request: an errno for the program, or an outcome that belongs to the protocol.
//!
//! An outcome is for the protocol of the client (wait, connect again, repeat); no program sees it. A function whose error is
//! a [`Failure`] can end with an outcome; one whose error is an [`Errno`] cannot. [`Failure::for_caller`] converts an outcome
//! where no client can handle it: where an error leaves the file system. In a reply both are numbers; those of outcomes are
//! above every errno of Linux.

use crate::{DecodeError, Errno};
use core::fmt;

macro_rules! outcomes {
    ($($(#[$m:meta])* $name:ident = $n:literal, $errno:ident, $text:literal;)*) => {
        /// See the module.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
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
    /// The MDT does not have the bytes of the file (any more): they are in objects. The client uses these.
    InObjects = 4106, EIO, "the bytes of the file are in objects";
    /// The change was not executed: the MDT has the bytes of the file and cannot have so many. The client sends `MoveData` first.
    MoveDataFirst = 4107, EFBIG, "the bytes of the file have to move to objects first";
    /// The connection of the client was gone before the change was executed. Never sent: the next copy of the request is
    /// executed as if this one had been lost on its way.
    Abandoned = 4104, ENOTCONN, "the connection of the client is gone";
}

impl fmt::Display for ProtocolOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for ProtocolOutcome {}

/// The reason why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// The system call fails with this errno.
    Errno(Errno),
    /// The protocol of the client handles it.
    Outcome(ProtocolOutcome),
}

impl Failure {
    /// The errno for the program whose system call fails: an outcome becomes the errno nearest to it.
    pub fn for_caller(self) -> Errno {
        match self {
            Self::Errno(errno) => errno,
            Self::Outcome(outcome) => outcome.errno(),
        }
    }
}

macro_rules! constants {
    ($($name:ident = $n:literal, $text:literal;)*) => {
        /// The errnos, for patterns.
        impl Failure {
            $(pub const $name: Failure = Failure::Errno(Errno::$name);)*
        }
    };
}
crate::errno::errnos!(constants);

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}
impl From<ProtocolOutcome> for Failure {
    fn from(outcome: ProtocolOutcome) -> Self {
        Self::Outcome(outcome)
    }
}
impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        Errno::from(error).into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => errno.fmt(f),
            Self::Outcome(outcome) => outcome.fmt(f),
        }
    }
}
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => errno.fmt(f),
            Self::Outcome(outcome) => outcome.fmt(f),
        }
    }
}
impl core::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_have_numbers_of_their_own_and_programs_see_errnos_only() {
        for &outcome in ProtocolOutcome::ALL {
            let number = outcome as i32;
            assert_eq!(
                (Errno::from_number(number), ProtocolOutcome::from_number(number)),
                (None, Some(outcome))
            );
            assert!(Failure::from(outcome).for_caller().symbol().is_some(), "{outcome:?}");
        }
        assert_eq!(Failure::ESTALE.for_caller(), Errno::ESTALE);
        assert_eq!(core::mem::size_of::<Result<(), Failure>>(), 4);
    }
}
