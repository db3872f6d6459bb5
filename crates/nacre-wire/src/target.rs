//! Messages that every target (and every island with a name) understands.

use crate::bounds;
use crate::opcode::rpc;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{
    ClientUuid, Generation, Incarnation, Remembered, Secret, Timestamp, Transno, Xid, codec_enum,
    codec_struct,
};

/// Bits of `features` in connect. The reply carries those that both sides know.
pub mod features {
    use alloc::string::String;
    use alloc::vec::Vec;

    /// Several modifying requests in flight, each with a tag and a reply record.
    pub const MULTI_MOD_RPCS: u64 = 1;
    /// Batches of sub-operations.
    pub const BATCH: u64 = 2;
    /// Locks of inodes (`LockTail`): the client returns revoked ones, and says when it has forgotten those of an earlier
    /// start of the target.
    pub const INODE_LOCKS: u64 = 8;
    /// The features that this build knows.
    pub const ALL: u64 = MULTI_MOD_RPCS | BATCH | INODE_LOCKS;

    /// The names of the features in `bits`, for people; the field's names where they exist.
    pub fn names(bits: u64) -> String {
        let names = [(MULTI_MOD_RPCS, "multi_mod_rpcs"), (BATCH, "batch_rpc"), (INODE_LOCKS, "ibits")];
        let known = names.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| name);
        known.collect::<Vec<_>>().join(", ")
    }
}

codec_enum! {
    /// Role of a client at a target.
    pub enum Role: u8 {
        /// A mount or library.
        Client = 1,
        /// Another target.
        Target = 2,
        /// A command line tool: no lease, no record.
        Tool = 3,
    }
}

codec_struct! {
    /// Opens or renews an export. Executed on every new connection epoch.
    pub struct Connect {
        /// Random; of a mount for one life of its process, of a target for ever.
        pub client: ClientUuid,
        /// Decides about the lease, the record and the requests that are allowed.
        pub role: Role,
        /// Chosen at random for this import, the same at each of its connects. A connect that names a known client with
        /// another secret is refused with EACCES. Tools have none.
        pub secret: Secret,
        /// For people: host and mount point, or the target's name.
        pub name: String [bounds::NAME],
        /// Bits of features that the client can use.
        pub features: u64,
        /// Number of slots that the client wants.
        pub max_mod_rpcs: u16,
        /// Generation from the latest connect reply, 0 on the first connect. A server that does not know it has evicted
        /// the client and says so.
        pub generation: Generation,
        /// The target that the client means, from its memory; `None`: any.
        pub known: Option<Remembered>,
        /// Number of admissions of a replacement or an old copy under this name, as far as the client knows.
        pub replaced: u32,
        /// Of a target: the opening of its store from which it connects, which distinguishes two processes with copies
        /// of one store. Clients have a new uuid at each start, and 0 here.
        pub instance: u64,
    }
}
codec_struct! {
    /// Reply to [`Connect`].
    #[derive(Default)]
    pub struct ConnectReply {
        /// The uuid of the target, for the client's memory.
        pub target: ClientUuid,
        /// The bits of the client's features that the target has too: both sides use these.
        pub features: u64,
        /// Limit of slots that the server agrees to.
        pub max_mod_rpcs: u16,
        /// The target's lease: it evicts a client that was silent for so many milliseconds.
        pub lease_ms: u32,
        /// For the next [`Connect`]: proves that the client was not evicted in between.
        pub generation: Generation,
        /// The client was known under another generation: its locks and opens are gone.
        pub evicted: bool,
        /// Counts the starts of the target.
        pub instance: u64,
        /// The server's wall clock. A client corrects the times in its requests by the difference to its own clock.
        pub server_time: Timestamp,
        /// Milliseconds until recovery ends, 0 = not recovering. The client waits and connects again.
        pub recovery_ms: u32,
        /// With `evicted`: the cause, for the client's log.
        pub cause: String [bounds::SENTENCE],
        /// Host of the connection that this one replaces, if that one was still open and came from another host; else
        /// empty.
        pub replaced: String [bounds::NAME],
        /// Names the server process; 0: unnamed. See `PingReply`.
        pub process: u64,
        /// Number of leases that have ended in the process, see [`PingReply::process`].
        pub ended: u64,
        /// The client lives in the process of the target and ends with it. A recovery does not wait for it, so it keeps
        /// no changes for replay.
        pub local: bool,
        /// In a recovery: changes of this client that are in the log, whose replies it may not have.
        pub executed: Vec<ExecutedChange>,
        /// The opening of the target's store that replies.
        pub incarnation: Incarnation,
        /// The reason why the target does not serve this client; empty: it does. If it is not empty, the other fields
        /// have no meaning.
        pub refused: String [bounds::SENTENCE],
        /// With `refused`: this is not the target that the client means, and a retry does not help. Otherwise the
        /// client's list of targets is older or newer than the target, which is temporary.
        pub mismatch: bool,
    }
}
codec_struct! {
    /// A change that the target has executed.
    pub struct ExecutedChange {
        /// Of the request, which identifies it for the client.
        pub xid: Xid,
        /// Of the change: its place in the order of replays.
        pub transno: Transno,
    }
}
codec_struct! {
    /// Ends the export: its locks, opens and records are removed.
    pub struct Disconnect {}
}
codec_struct! {
    /// The reply to requests that return nothing but their status.
    pub struct Empty {}
}
codec_struct! {
    /// Renews the lease; at the end of a replay, with `REPLAY_DONE`, it reports that end.
    pub struct Ping {}
}
codec_struct! {
    /// Reply to [`Ping`].
    pub struct PingReply {
        /// Version of the file system's target list as this server knows it; 0 = not the MGS.
        pub config_version: u64,
        /// Milliseconds until recovery ends at the latest, 0 = not recovering. A client that has replayed its changes
        /// repeats the ping.
        pub recovery_ms: u32,
        /// Names the server process. Its reply renews the leases of the client's other exports in the process whose
        /// latest own reply had the same `ended`: the number of leases that have ended there so far.
        pub process: u64,
        /// Number of leases that have ended in the process so far.
        pub ended: u64,
    }
}
codec_struct! {
    /// Reads parameters: `*` matches within a dotted part.
    pub struct GetParams { pub pattern: String [bounds::NAME] }
}
codec_struct! {
    /// One parameter as `lctl get_param` shows it.
    pub struct Param {
        /// Full dotted name.
        pub name: String [bounds::NAME],
        /// As text; may have several lines.
        pub value: String,
        /// May be set.
        pub writable: bool,
        /// One sentence with unit, range and default.
        pub help: String [bounds::SENTENCE],
    }
}
codec_struct! {
    /// The parameters that match.
    pub struct ParamList { pub params: Vec<Param> }
}
codec_struct! {
    /// Sets every parameter that matches: `*` matches within a dotted part of the name.
    pub struct SetParam { pub name: String [bounds::NAME], pub value: String [bounds::VALUE] }
}
codec_struct! {
    /// Result of `SetParam`: an empty `refused`, or the sentence for the user.
    pub struct SetParamReply { pub matched: u32, pub refused: String [bounds::SENTENCE] }
}
codec_struct! {
    /// A page of a target's records of its clients, for the administrator's tools on its own machine: client rows
    /// (without secrets), or with `replies` reply records. Others are refused with EPERM.
    pub struct RecoveryRows { pub replies: bool, pub from: Bytes }
}
codec_struct! {
    /// A page of rows, and the head of `last_rcvd` in the field's terms.
    pub struct RecoveryRowsReply {
        /// Name of the target.
        pub name: String [bounds::NAME],
        /// Bits of incompatible features, as `lr_reader` prints them.
        pub incompat: u32,
        /// The latest transno that is committed.
        pub last_transaction: u64,
        /// The index in its name.
        pub target_index: u32,
        /// Number of starts of the target.
        pub mount_count: u64,
        /// Rows as they are stored, client rows with a secret of zeros.
        pub rows: Vec<Bytes>,
        /// Where the next page begins.
        pub next: Option<Bytes>,
    }
}
codec_struct! {
    /// Asks for the space of the target.
    pub struct Statfs {}
}
codec_struct! {
    /// Space of a target, as its store reports it.
    #[derive(Copy, Default)]
    pub struct StatfsReply {
        /// Size of the store.
        pub bytes_total: u64,
        /// Free, with the part that only root or the ballast may use.
        pub bytes_free: u64,
        /// Space that can still be used (without reserve and ballast).
        pub bytes_avail: u64,
        /// Objects or inodes: number in use, and an estimate of the number that still fit.
        pub files_used: u64,
        /// Estimate of the number that still fit.
        pub files_free: u64,
        /// Device of the store: targets with the same number share their space, which a sum counts once. 0: not shared.
        pub device: u64,
    }
}
impl StatfsReply {
    /// Default of the free space that is not used for new files: a thousandth of the store, at least 1 MiB.
    pub fn reserve_bytes(bytes_total: u64) -> u64 {
        const MIB: u64 = 1 << 20;
        (bytes_total / 1000 / MIB).max(1) * MIB
    }
    /// Whether there is no room for a new file.
    pub fn is_full(&self) -> bool {
        self.bytes_avail < Self::reserve_bytes(self.bytes_total)
    }
}
codec_struct! {
    /// Puts every byte that was written and every change that was acknowledged before on stable storage.
    pub struct Sync {}
}

codec_struct! {
    /// Commits every change that was replied to before; bytes of objects are not waited for.
    pub struct Commit {}
}

rpc! {
    Connect => Connect, Import, ConnectReply;
    Disconnect => Disconnect, Import, Empty;
    Ping => Ping, Import, PingReply;
    GetParams => GetParams, Read, ParamList;
    SetParam => SetParam, Read, SetParamReply;
    Statfs => Statfs, Read, StatfsReply;
    RecoveryRows => RecoveryRows, Read, RecoveryRowsReply;
    Sync => Sync, Read, Empty;
    Commit => Commit, Read, Empty;
}
