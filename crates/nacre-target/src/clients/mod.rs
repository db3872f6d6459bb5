//! The clients of a target: who is connected, who is only known, and their rows.
//!
//! Rows: `CLIENT` by generation (big-endian) holds a [`ClientRow`]; `REPLY` by generation and tag holds the
//! record of the latest change under that tag, so that the rows of a client are bounded by its tags and the
//! record with its highest transno is only ever replaced by a newer one. Generations are never used twice.
//! A tool has an export in memory only, under a generation from [`FIRST_TOOL`] on.

pub(crate) mod incompat;
pub(crate) mod op_stats;
pub(crate) mod reply_order;

use crate::clients::op_stats::OpStats;
use crate::clients::reply_order::ReplyOrder;
use crate::request::ReplyTail;
use crate::rivals::Contest;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_node::{ConnId, Origin};
use nacre_rpc::{Export, PreVersions, SubRecord};
use nacre_types::{ClientUuid, ConnEpoch, Fid, Generation, Instant, Secret, Tag, Transno, Xid, codec_struct};
use nacre_wire::target::Role;

/// An export: the generation of its client record.
pub type ExportId = Generation;

/// Generations from here on are in memory only.
const FIRST_TOOL: u32 = 1 << 31;

codec_struct! {
    /// What a restart must know of a client.
    pub struct ClientRow {
        pub uuid: ClientUuid,
        /// Shown at its first connect, asked for at every later one.
        pub secret: Secret,
        pub generation: Generation,
        /// As of the making of the row; the records say what came later.
        pub last_transno: Transno,
        pub name: String,
        pub role: Role,
        /// Features agreed at its first connect.
        pub features: u64,
        /// A mount or target in the server's own process: it ends with that process.
        pub local: bool,
        /// See [`nacre_wire::target::Connect::instance`].
        pub instance: u64,
    }
}

/// What the record of a request under way will carry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Note {
    pub(crate) data: u64,
    pub(crate) fid: Fid,
    pub(crate) results: Vec<SubRecord>,
    pub(crate) versions: PreVersions,
    /// An addition to the reply, not to the record.
    pub(crate) tail: Option<ReplyTail>,
    /// The reply waits for the commit of the change, so it is in order by itself.
    pub(crate) reply_waits_for_commit: bool,
}

/// One client.
pub(crate) struct Entry {
    pub(crate) uuid: ClientUuid,
    pub(crate) secret: Secret,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) rpc: Export,
    pub(crate) conn: Option<ConnId>,
    pub(crate) lease_until: Instant,
    /// The lease is not renewed any more: why.
    pub(crate) ending: Option<String>,
    /// Of its connection, if it has one.
    pub(crate) connected_since: Option<Instant>,
    /// When it acknowledged a callback last.
    pub(crate) acknowledged: Instant,
    /// Since when a callback of the current connection is not acknowledged.
    pub(crate) callback_since: Option<Instant>,
    /// Its row is committed.
    pub(crate) durable: bool,
    /// Has connected since the start of the target.
    pub(crate) seen: bool,
    /// Replies that are being rebuilt.
    pub(crate) refills: usize,
    /// By xid and the epoch of the copy that is executed.
    pub(crate) notes: BTreeMap<(Xid, ConnEpoch), Note>,
    pub(crate) reply_order: ReplyOrder,
    /// Where its latest connection came from, for people.
    pub(crate) from: String,
    pub(crate) origin: Origin,
    /// Where the connection came from that the latest one has replaced, if from another host.
    pub(crate) replaced: String,
    /// Features that both sides know.
    pub(crate) features: u64,
    /// The same as of its row: what a restart will know.
    pub(crate) row_features: u64,
    /// Slots that were agreed at its latest connect.
    pub(crate) max_mod_rpcs: u16,
    pub(crate) stats: OpStats,
    pub(crate) contest: Contest,
}
impl Entry {
    pub(crate) fn has_lease(&self) -> bool {
        self.role != Role::Tool
    }
    /// In this process.
    pub(crate) fn is_local(&self) -> bool {
        self.origin == Origin::Process
    }
    /// A recovery waits for it: it may live.
    pub(crate) fn is_awaited(&self) -> bool {
        self.has_lease() && !self.is_local()
    }
}

/// Every client of the target.
#[derive(Default)]
pub(crate) struct Exports {
    by_id: BTreeMap<ExportId, Entry>,
    by_uuid: BTreeMap<ClientUuid, ExportId>,
    last: u32,
    tools: u32,
}

impl Exports {
    /// Clients with an export of their own; more are refused.
    pub(crate) const MAX: usize = 65_536;

    /// The next generation: durable ones are handed out once for ever.
    pub(crate) fn next_generation(&mut self, role: Role) -> Generation {
        match role {
            Role::Tool => {
                self.tools = (self.tools + 1) % FIRST_TOOL;
                Generation(FIRST_TOOL + self.tools)
            }
            Role::Client | Role::Target => {
                self.last += 1;
                assert!(self.last < FIRST_TOOL, "two thousand million clients have connected");
                Generation(self.last)
            }
        }
    }
    /// Latest generation of a durable export.
    pub(crate) fn last_generation(&self) -> Generation {
        Generation(self.last)
    }
    pub(crate) fn set_last_generation(&mut self, last: Generation) {
        self.last = self.last.max(last.0);
    }
    pub(crate) fn insert(&mut self, entry: Entry) -> ExportId {
        let id = entry.rpc.generation();
        if entry.role != Role::Tool {
            self.by_uuid.insert(entry.uuid, id);
        }
        self.by_id.insert(id, entry);
        id
    }
    pub(crate) fn remove(&mut self, id: ExportId) -> Option<Entry> {
        let entry = self.by_id.remove(&id)?;
        if self.by_uuid.get(&entry.uuid) == Some(&id) {
            self.by_uuid.remove(&entry.uuid);
        }
        Some(entry)
    }
    pub(crate) fn get(&self, id: ExportId) -> Option<&Entry> {
        self.by_id.get(&id)
    }
    pub(crate) fn get_mut(&mut self, id: ExportId) -> Option<&mut Entry> {
        self.by_id.get_mut(&id)
    }
    pub(crate) fn of_client(&self, uuid: ClientUuid) -> Option<ExportId> {
        self.by_uuid.get(&uuid).copied()
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExportId, &Entry)> + '_ {
        self.by_id.iter().map(|(&id, entry)| (id, entry))
    }
    /// Without tools.
    pub(crate) fn len(&self) -> usize {
        self.by_uuid.len()
    }
    /// When the next lease runs out.
    pub(crate) fn next_lease_end(&self) -> Option<Instant> {
        self.by_id.values().filter(|e| e.has_lease()).map(|e| e.lease_until).min()
    }
    pub(crate) fn expired(&self, now: Instant) -> impl Iterator<Item = ExportId> + '_ {
        self.iter().filter(move |(_, e)| e.has_lease() && e.lease_until <= now).map(|(id, _)| id)
    }
}

/// Key of a client's row.
pub(crate) fn client_key(id: ExportId) -> [u8; 4] {
    id.0.to_be_bytes()
}
/// Key of a record.
pub(crate) fn reply_key(id: ExportId, tag: Tag) -> [u8; 6] {
    let [a, b, c, d] = id.0.to_be_bytes();
    let [e, f] = tag.0.to_be_bytes();
    [a, b, c, d, e, f]
}
/// First key after those of a client's records.
pub(crate) fn reply_end(id: ExportId) -> [u8; 6] {
    reply_key(Generation(id.0 + 1), Tag(0))
}
