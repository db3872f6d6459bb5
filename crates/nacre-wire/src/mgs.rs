//! Messages of the management server.

use crate::bounds;
use crate::opcode::rpc;
use crate::target::Empty;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_types::{ClientUuid, FsName, TargetKind, codec_struct};

codec_struct! {
    /// A target says that it is served, and where. Idempotent; the latest registration wins unless the uuid of
    /// the index is another one (then EEXIST: two targets with one index).
    pub struct RegisterTarget {
        pub fs: FsName,
        pub kind: TargetKind,
        pub index: u32,
        pub uuid: ClientUuid,
        /// Addresses to reach it, best first: `unix:/path`, `host:port`.
        pub addresses: Vec<String> [bounds::ADDRESSES],
    }
}
codec_struct! {
    pub struct RegisterReply {
        pub config_version: u64,
        /// Key of the name hash of the file system, made by the MGS at the first registration.
        pub hash_key: (u64, u64),
    }
}
codec_struct! { pub struct ListTargets { pub fs: FsName } }
codec_struct! {
    pub struct TargetEntry {
        pub kind: TargetKind,
        pub index: u32,
        pub uuid: ClientUuid,
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

rpc! {
    RegisterTarget => RegisterTarget, Modify, RegisterReply;
    ListTargets => ListTargets, Read, TargetList;
    KeepParam => KeepParam, Read, Empty;
}
