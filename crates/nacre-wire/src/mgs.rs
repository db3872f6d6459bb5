//! Messages of the management server.

use crate::bounds;
use crate::opcode::rpc;
use crate::target::Empty;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_types::{FsName, Identity, Remembered, TargetKind, Transno, codec_enum, codec_struct};

codec_struct! {
    /// A target says that it is served, and where, at its start and from time to time. Idempotent. Another target, or one
    /// that has gone back, is refused in the reply until an administrator has admitted it ([`AdmitTarget`]).
    pub struct RegisterTarget {
        pub fs: FsName,
        pub kind: TargetKind,
        pub index: u32,
        pub identity: Identity,
        /// The latest change that is durable there.
        pub committed: Transno,
        /// The latest `replaced` that it was told.
        pub replaced: u32,
        /// It holds no objects (OST), or nothing but its root directory (MDT).
        pub blank: bool,
        /// Addresses to reach it, best first: `unix:/path`, `host:port`.
        pub addresses: Vec<String> [bounds::ADDRESSES],
    }
}
codec_struct! {
    pub struct RegisterReply {
        pub config_version: u64,
        /// Key of the name hash of the file system, made by the MGS at the first registration.
        pub hash_key: (u64, u64),
        /// How often the target of this name was replaced or accepted as an old copy.
        pub replaced: u32,
        /// Why the target must not be served, for its log; empty: it is registered.
        pub refused: String [bounds::SENTENCE],
    }
}
codec_struct! { pub struct ListTargets { pub fs: FsName } }
codec_struct! {
    pub struct TargetEntry {
        pub kind: TargetKind,
        pub index: u32,
        /// The target that has this name; clients refuse others.
        pub known: Remembered,
        /// See `RegisterReply`; stripes that were laid out under a lower number may have lost their objects.
        pub replaced: u32,
        pub addresses: Vec<String> [bounds::ADDRESSES],
    }
}
codec_struct! {
    pub struct TargetList {
        pub config_version: u64,
        pub hash_key: (u64, u64),
        pub targets: Vec<TargetEntry>,
        /// Parameters that were set for good; whoever has one that matches sets it.
        pub params: Vec<KeptParam>,
    }
}
codec_struct! {
    /// A parameter of the whole installation: `*` matches within a dotted part of the name.
    pub struct KeptParam { pub name: String [bounds::NAME], pub value: String [bounds::VALUE] }
}
codec_struct! {
    /// Keeps a parameter (`set_param -P`), or forgets it when there is no value. Durable when answered; idempotent.
    pub struct KeepParam { pub name: String [bounds::NAME], pub value: Option<String> [bounds::VALUE] }
}

codec_enum! {
    /// What an administrator accepts in the place of a registered target.
    pub enum Admit: u8 {
        /// A new, empty target.
        Replacement = 1,
        /// The same target with less than it had.
        Rollback = 2,
    }
}
codec_struct! {
    /// The next registration of this kind is accepted; durable when answered. Idempotent.
    pub struct AdmitTarget {
        pub fs: FsName,
        pub kind: TargetKind,
        pub index: u32,
        pub admit: Admit,
        /// Takes an earlier admission back that was not used.
        pub revoke: bool,
    }
}
codec_struct! {
    pub struct AdmitReply {
        /// What is registered now.
        pub known: Remembered,
        pub replaced: u32,
        /// Why nothing is admitted, a sentence; empty: it is.
        pub refused: String [bounds::SENTENCE],
    }
}

rpc! {
    AdmitTarget => AdmitTarget, Read, AdmitReply;
    RegisterTarget => RegisterTarget, Modify, RegisterReply;
    ListTargets => ListTargets, Read, TargetList;
    KeepParam => KeepParam, Read, Empty;
}
