//! Messages of the management server.

use crate::bounds;
use crate::opcode::rpc;
use crate::target::Empty;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_types::{FsName, Identity, Remembered, TargetKind, Transno, codec_enum, codec_struct};

codec_struct! {
    /// Registers a target and its addresses, at its start and periodically. Idempotent. The reply refuses another
    /// target, or an old copy, until an administrator has admitted it ([`AdmitTarget`]).
    pub struct RegisterTarget {
        /// The file system that the target is part of.
        pub fs: FsName,
        /// An MDT or an OST; with `index` it makes the name.
        pub kind: TargetKind,
        /// From 0, at most [`TargetKind::index_max`].
        pub index: u32,
        /// Compared with the memory of the MGS, so that a copy or a stranger is refused.
        pub identity: Identity,
        /// The latest durable change of the target.
        pub committed: Transno,
        /// The latest `replaced` that the target received.
        pub replaced: u32,
        /// The target has no objects (OST), or only its root directory (MDT).
        pub blank: bool,
        /// Addresses to reach it, best first: `unix:/path`, `host:port`.
        pub addresses: Vec<String> [bounds::ADDRESSES],
    }
}
codec_struct! {
    /// Reply to [`RegisterTarget`].
    pub struct RegisterReply {
        /// Version of the target list after the registration; greater after each change of it.
        pub config_version: u64,
        /// Key of the name hash of the file system, made by the MGS at the first registration.
        pub hash_key: (u64, u64),
        /// Number of admissions of a replacement or an old copy under this name.
        pub replaced: u32,
        /// The reason why the target must not be served, for its log; empty: it is registered.
        pub refused: String [bounds::SENTENCE],
    }
}
codec_struct! {
    /// Asks for the targets of a file system and the permanent parameters.
    pub struct ListTargets { pub fs: FsName }
}
codec_struct! {
    /// One target as clients find it.
    pub struct TargetEntry {
        /// The MGS, an MDT or an OST.
        pub kind: TargetKind,
        /// Its index in the file system, from 0.
        pub index: u32,
        /// The target that has this name; clients refuse others.
        pub known: Remembered,
        /// See `RegisterReply`; stripes that were laid out under a lower number may have lost their objects.
        pub replaced: u32,
        /// Addresses to reach it, best first: `unix:/path`, `host:port`.
        pub addresses: Vec<String> [bounds::ADDRESSES],
    }
}
codec_struct! {
    /// Reply to [`ListTargets`].
    pub struct TargetList {
        /// Greater after each change of the list or the parameters.
        pub config_version: u64,
        /// Key of the file system's name hash; the same for its whole life.
        pub hash_key: (u64, u64),
        /// The registered targets, also those that are not running.
        pub targets: Vec<TargetEntry>,
        /// Permanent parameters; a process that has a matching one sets it.
        pub params: Vec<PermanentParam>,
    }
}
codec_struct! {
    /// A parameter of the whole installation: `*` matches within a dotted part of the name.
    pub struct PermanentParam { pub name: String [bounds::NAME], pub value: String [bounds::VALUE] }
}
codec_struct! {
    /// Sets a parameter permanently (`set_param -P`), or removes it if there is no value. Durable when acknowledged;
    /// idempotent.
    pub struct SetPermanentParam { pub name: String [bounds::NAME], pub value: Option<String> [bounds::VALUE] }
}

codec_enum! {
    /// The admission that an administrator grants in the place of a registered target.
    pub enum Admit: u8 {
        /// A new, empty target.
        Replacement = 1,
        /// The same target without its latest changes.
        Rollback = 2,
    }
}
codec_struct! {
    /// The next registration of this kind is accepted; durable when acknowledged. Idempotent.
    pub struct AdmitTarget {
        /// The file system of the target.
        pub fs: FsName,
        /// An MDT or an OST.
        pub kind: TargetKind,
        /// Its index, from 0.
        pub index: u32,
        /// Which of the two the administrator expects.
        pub admit: Admit,
        /// Withdraws an earlier admission that was not used.
        pub revoke: bool,
    }
}
codec_struct! {
    /// Reply to [`AdmitTarget`].
    pub struct AdmitReply {
        /// The registered target.
        pub known: Remembered,
        /// Number of admissions under this name so far.
        pub replaced: u32,
        /// The reason why the admission is refused; empty: it is granted.
        pub refused: String [bounds::SENTENCE],
    }
}

rpc! {
    AdmitTarget => AdmitTarget, Read, AdmitReply;
    RegisterTarget => RegisterTarget, Modify, RegisterReply;
    ListTargets => ListTargets, Read, TargetList;
    SetPermanentParam => SetPermanentParam, Read, Empty;
}
