//! Opcodes, and the class of each request.

use nacre_types::{Codec, codec_enum};

codec_enum! {
    /// The operation that a request asks for. Numbers never change.
    pub enum Opcode: u16 {
        // every target
        Connect = 0x01,
        Disconnect = 0x02,
        Ping = 0x03,
        GetParams = 0x04,
        SetParam = 0x05,
        Statfs = 0x06,
        Sync = 0x07,
        Status = 0x08,
        Shutdown = 0x09,
        RecoveryRows = 0x0a,
        Commit = 0x0b,
        // MGS
        RegisterTarget = 0x10,
        ListTargets = 0x11,
        SetPermanentParam = 0x12,
        AdmitTarget = 0x13,
        // MDT
        GrantSeq = 0x20,
        Lookup = 0x21,
        Getattr = 0x22,
        Readdir = 0x23,
        Create = 0x24,
        Open = 0x25,
        Close = 0x26,
        Link = 0x27,
        Unlink = 0x28,
        Rename = 0x29,
        Setattr = 0x2a,
        ReportSize = 0x2b,
        Readlink = 0x2c,
        Getxattr = 0x2d,
        Setxattr = 0x2e,
        Listxattr = 0x2f,
        Removexattr = 0x30,
        Flock = 0x31,
        FlockTest = 0x32,
        FlockCancel = 0x33,
        SetLayout = 0x34,
        GetLayout = 0x35,
        FidLinks = 0x36,
        Batch = 0x37,
        Reclaim = 0x38,
        CancelInodeLocks = 0x39,
        FormerLocksEnded = 0x3a,
        AwaitInodeLocks = 0x3b,
        ReportOpens = 0x3c,
        Settle = 0x3d,
        ReadData = 0x3e,
        StoreData = 0x3f,
        MoveData = 0x50,
        // OST
        Read = 0x40,
        Write = 0x41,
        Truncate = 0x42,
        Allocate = 0x43,
        Glimpse = 0x44,
        SetOwner = 0x45,
        Destroy = 0x46,
        SyncObject = 0x47,
        Enqueue = 0x48,
        Cancel = 0x49,
        Reserve = 0x4a,
        FreeSpace = 0x4b,
        Punch = 0x4c,
        Seek = 0x4d,
        Grant = 0x4e,
        WriteMany = 0x4f,
        // callbacks, server to client
        LockGranted = 0x60,
        LockBlocking = 0x61,
        FlockGranted = 0x62,
        ReturnGrant = 0x63,
        Ended = 0x64,
        RevokeInodeLocks = 0x65,
    }
}

/// How the import and the export treat a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Changes nothing: no slot, tag 0, executed again when resent.
    Read,
    /// May change something: takes a slot; a reply record decides about its resend.
    Modify,
    /// Like `Modify`, and may use the extra slot of CLOSE. A client counts a batch of nothing but closes here too.
    Close,
    /// Serves a callback (cancel, flush): no slot needed, admitted beyond every bound, idempotent.
    Callback,
    /// Connect, disconnect, ping: belongs to the import itself.
    Import,
}

/// How long a client keeps a change for replay after its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptUntil {
    /// Until the transaction is committed: the log holds the whole change.
    Committed,
    /// Until the bytes are stable, too: the log may hold rows whose bytes are lost with the machine.
    Stable,
}

impl Opcode {
    /// How long a change of this kind is kept for replay.
    pub fn kept_until(self) -> KeptUntil {
        match self {
            Self::Write | Self::WriteMany | Self::Truncate | Self::Punch => KeptUntil::Stable,
            _ => KeptUntil::Committed,
        }
    }
    /// Whether a request of the class `Read` must not be executed twice on one connection: a lock that was cancelled would
    /// be granted once more, and no client would use or cancel it.
    pub fn runs_once(self) -> bool {
        matches!(self, Self::Enqueue)
    }
    /// Whether a request of this kind carries a deadline (`clock_ms` of the header) after which the target must not begin
    /// it. Changes of objects do: they rely on file locks of the MDT, which an OST does not know.
    pub fn has_deadline(self) -> bool {
        matches!(self, Self::Write | Self::WriteMany | Self::Truncate | Self::Allocate | Self::Punch)
    }
    /// Whether the bulk of a request of this kind is file data. Other changes carry their former reply there when they are
    /// replayed.
    pub fn has_data(self) -> bool {
        matches!(self, Self::Write | Self::WriteMany)
    }
    /// Whether parts of a request of this kind may fail alone. Its replay has the former reply behind its data, so that only
    /// the parts are repeated that had succeeded.
    pub fn fails_in_parts(self) -> bool {
        matches!(self, Self::WriteMany)
    }
    /// The class of a request of this opcode: the same as [`Rpc::CLASS`].
    pub fn class(self) -> Class {
        match self {
            Self::Connect | Self::Disconnect | Self::Ping => Class::Import,
            Self::Close => Class::Close,
            Self::Cancel
            | Self::CancelInodeLocks
            | Self::FormerLocksEnded
            | Self::AwaitInodeLocks
            | Self::ReportOpens
            | Self::Settle => Class::Callback,
            _ if self.needs_slot() => Class::Modify,
            _ => Class::Read,
        }
    }
    fn needs_slot(self) -> bool {
        matches!(
            self,
            Self::RegisterTarget
                | Self::GrantSeq
                | Self::Create
                | Self::Open
                | Self::Link
                | Self::Unlink
                | Self::Rename
                | Self::Setattr
                | Self::ReportSize
                | Self::Setxattr
                | Self::Removexattr
                | Self::Flock
                | Self::FlockCancel
                | Self::SetLayout
                | Self::StoreData
                | Self::MoveData
                | Self::Batch
                | Self::Write
                | Self::WriteMany
                | Self::Truncate
                | Self::Allocate
                | Self::Punch
                | Self::SetOwner
                | Self::Destroy
                | Self::Reserve
        )
    }
}

/// A request type: its opcode, its class, its reply.
pub trait Rpc {
    /// Names the request in the frame header.
    const OPCODE: Opcode;
    /// Decides about slot, tag, reply record and replay.
    const CLASS: Class;
    /// Body of a successful reply.
    type Reply: for<'a> Codec<'a> + core::fmt::Debug;
}

/// `rpc! { Lookup<'_> => Lookup, Read, EntryReply }`
macro_rules! rpc {
    ($($req:ty => $op:ident, $class:ident, $reply:ty;)*) => {$(
        impl $crate::Rpc for $req {
            const OPCODE: $crate::Opcode = $crate::Opcode::$op;
            const CLASS: $crate::Class = $crate::Class::$class;
            type Reply = $reply;
        }
    )*
        #[cfg(test)]
        pub(crate) const CLASSES: &[($crate::Opcode, $crate::Class)] =
            &[$(($crate::Opcode::$op, $crate::Class::$class)),*];
    };
}
pub(crate) use rpc;

#[cfg(test)]
mod tests {
    #[test]
    fn an_opcode_has_the_class_of_its_request() {
        for list in [crate::mdt::CLASSES, crate::mgs::CLASSES, crate::ost::CLASSES, crate::target::CLASSES] {
            for &(opcode, class) in list {
                assert_eq!(opcode.class(), class, "{opcode:?}");
            }
        }
    }
}
