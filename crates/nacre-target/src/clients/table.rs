//! All clients of a target.
//!
//! Tools have no rows: their exports are in memory only, with generations from [`FIRST_TOOL`] on.

use crate::clients::export::ClientExport;
use crate::clients::incompat::Incompat;
use crate::clients::rows::ExportId;
use alloc::collections::BTreeMap;
use core::cell::{Cell, Ref, RefCell, RefMut};
use nacre_node::{Ctx, WaitList};
use nacre_types::{ClientUuid, Generation, Instant};
use nacre_wire::target::Role;

/// Generations from here on are in memory only.
const FIRST_TOOL: u32 = 1 << 31;

/// The clients of one target, and the state that follows from them.
pub(crate) struct Clients {
    exports: RefCell<Exports>,
    incompat: Incompat,
    /// A client has connected, or an export has ended.
    changed: WaitList,
    /// Some client may rely on volatile locks of an earlier start.
    may_have_former_locks: Cell<bool>,
}

impl Clients {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            exports: RefCell::default(),
            incompat: Incompat::default(),
            changed: ctx.wait_list(),
            may_have_former_locks: Cell::new(true),
        }
    }
    pub(crate) fn exports(&self) -> Ref<'_, Exports> {
        self.exports.borrow()
    }
    pub(crate) fn exports_mut(&self) -> RefMut<'_, Exports> {
        self.exports.borrow_mut()
    }
    /// Changes an export, if it exists.
    pub(crate) fn with(&self, id: ExportId, change: impl FnOnce(&mut ClientExport)) {
        if let Some(export) = self.exports.borrow_mut().get_mut(id) {
            change(export);
        }
    }
    pub(crate) fn incompat(&self) -> &Incompat {
        &self.incompat
    }
    /// Call when a client has connected or an export has ended.
    pub(crate) fn notify_changed(&self) {
        self.changed.wake_all();
    }
    pub(crate) async fn wait_changed(&self) {
        self.changed.wait().await;
    }
    /// When the next client cannot rely any more on a volatile lock of an earlier start, among those for which `relevant`
    /// holds: when its lease runs out, and for one that has connected since, at `latest`. Once there is none, there will
    /// never be one again.
    pub(crate) fn former_locks_deadline(
        &self,
        now: Instant,
        latest: Instant,
        relevant: impl Fn(&ClientExport) -> bool,
    ) -> Option<Instant> {
        if !self.may_have_former_locks.get() {
            return None;
        }
        let exports = self.exports.borrow();
        let deadline = |e: &ClientExport| match (e.is_seen(), e.has_former_locks()) {
            (false, _) => Some(e.lease_deadline()),
            (true, true) => Some(latest),
            (true, false) => None,
        };
        let relying = exports.iter().map(|(_, e)| e).filter(|e| relevant(e)).filter_map(deadline);
        let next = relying.filter(|deadline| *deadline > now).min();
        self.may_have_former_locks.set(next.is_some());
        next
    }
}

/// The exports by generation and by uuid.
#[derive(Default)]
pub(crate) struct Exports {
    by_id: BTreeMap<ExportId, ClientExport>,
    by_uuid: BTreeMap<ClientUuid, ExportId>,
    last: u32,
    tools: u32,
}

impl Exports {
    /// Clients with an export of their own; more are refused.
    pub(crate) const MAX: usize = 65_536;

    /// The next generation. Those of clients with a row are never reused.
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
    /// The latest generation of a client with a row.
    pub(crate) fn last_generation(&self) -> Generation {
        Generation(self.last)
    }
    pub(crate) fn set_last_generation(&mut self, last: Generation) {
        self.last = self.last.max(last.0);
    }
    pub(crate) fn insert(&mut self, export: ClientExport) -> ExportId {
        let id = export.rpc.generation();
        if export.role() != Role::Tool {
            self.by_uuid.insert(export.uuid(), id);
        }
        self.by_id.insert(id, export);
        id
    }
    pub(crate) fn remove(&mut self, id: ExportId) -> Option<ClientExport> {
        let export = self.by_id.remove(&id)?;
        if self.by_uuid.get(&export.uuid()) == Some(&id) {
            self.by_uuid.remove(&export.uuid());
        }
        Some(export)
    }
    pub(crate) fn get(&self, id: ExportId) -> Option<&ClientExport> {
        self.by_id.get(&id)
    }
    pub(crate) fn get_mut(&mut self, id: ExportId) -> Option<&mut ClientExport> {
        self.by_id.get_mut(&id)
    }
    pub(crate) fn of_client(&self, uuid: ClientUuid) -> Option<ExportId> {
        self.by_uuid.get(&uuid).copied()
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExportId, &ClientExport)> + '_ {
        self.by_id.iter().map(|(&id, export)| (id, export))
    }
    /// The number of clients, without tools.
    pub(crate) fn len(&self) -> usize {
        self.by_uuid.len()
    }
    /// When the next lease runs out.
    pub(crate) fn next_lease_deadline(&self) -> Option<Instant> {
        self.by_id.values().filter(|e| e.has_lease()).map(ClientExport::lease_deadline).min()
    }
    /// Exports whose lease has run out.
    pub(crate) fn expired(&self, now: Instant) -> impl Iterator<Item = (ExportId, &ClientExport)> + '_ {
        self.iter().filter(move |(_, e)| e.has_lease() && e.lease_deadline() <= now)
    }
}
