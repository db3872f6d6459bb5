//! The inbound connections of a target.

use crate::clients::rows::ExportId;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;
use nacre_node::{ConnId, Ctx, Origin, WaitList};
use nacre_types::Instant;

/// Connections of a target; more are closed at once.
const CONNS_MAX: usize = 65_536;
/// A peer that is connected to the process becomes a client of the target within this time.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A tool that sends nothing for this long is disconnected.
const TOOL_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

struct Conn {
    /// For people.
    from: String,
    origin: Origin,
    /// When it was accepted, or disconnected from its export.
    since: Instant,
    /// When its latest frame arrived.
    last_frame: Instant,
    export: Option<ExportId>,
}

/// All connections, by number.
pub(crate) struct Connections {
    conns: RefCell<BTreeMap<ConnId, Conn>>,
    /// A connection was accepted.
    accepted: WaitList,
}

/// Connections that no lease watches over.
pub(crate) struct Unleased {
    any: bool,
    expired: Vec<ConnId>,
}
impl Unleased {
    /// Whether there is any.
    pub(crate) fn any(&self) -> bool {
        self.any
    }
    /// Those whose time is over.
    pub(crate) fn expired(&self) -> &[ConnId] {
        &self.expired
    }
}

impl Connections {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self { conns: RefCell::default(), accepted: ctx.wait_list() }
    }
    /// Adds a connection; returns false if there are too many.
    pub(crate) fn accept(&self, conn: ConnId, from: String, origin: Origin, now: Instant) -> bool {
        let mut conns = self.conns.borrow_mut();
        if conns.len() >= CONNS_MAX {
            return false;
        }
        conns.insert(conn, Conn { from, origin, since: now, last_frame: now, export: None });
        self.accepted.wake_all();
        true
    }
    pub(crate) async fn wait_accepted(&self) {
        self.accepted.wait().await;
    }
    pub(crate) fn contains(&self, conn: ConnId) -> bool {
        self.conns.borrow().contains_key(&conn)
    }
    /// Removes a connection; returns its export.
    pub(crate) fn remove(&self, conn: ConnId) -> Option<ExportId> {
        self.conns.borrow_mut().remove(&conn).and_then(|c| c.export)
    }
    /// A frame has arrived. Returns the export of the connection; the outer `None` means that the connection was closed.
    pub(crate) fn received(&self, conn: ConnId, now: Instant) -> Option<Option<ExportId>> {
        let mut conns = self.conns.borrow_mut();
        let c = conns.get_mut(&conn)?;
        c.last_frame = now;
        Some(c.export)
    }
    pub(crate) fn export(&self, conn: ConnId) -> Option<ExportId> {
        self.conns.borrow().get(&conn).and_then(|c| c.export)
    }
    /// The origin of a connection: a text for people, and the kind that its privileges follow from.
    pub(crate) fn origin(&self, conn: ConnId) -> Option<(String, Origin)> {
        self.conns.borrow().get(&conn).map(|c| (c.from.clone(), c.origin))
    }
    /// Ties a connection to an export.
    pub(crate) fn connect(&self, conn: ConnId, export: ExportId) {
        if let Some(c) = self.conns.borrow_mut().get_mut(&conn) {
            c.export = Some(export);
        }
    }
    /// Its client has disconnected.
    pub(crate) fn disconnect(&self, conn: ConnId, now: Instant) {
        if let Some(c) = self.conns.borrow_mut().get_mut(&conn) {
            (c.export, c.since) = (None, now);
        }
    }
    /// Connections that no lease watches over: those that have not connected to an export, and those of tools. During a
    /// recovery new clients wait, and send a connect from time to time.
    pub(crate) fn unleased(
        &self,
        now: Instant,
        in_recovery: bool,
        has_lease: impl Fn(ExportId) -> bool,
    ) -> Unleased {
        let deadline = |c: &Conn| match c.export {
            None => Some(if in_recovery { c.last_frame } else { c.since } + CONNECT_TIMEOUT),
            Some(id) => (!has_lease(id)).then_some(c.last_frame + TOOL_IDLE_TIMEOUT),
        };
        let mut found = Unleased { any: false, expired: Vec::new() };
        for (conn, c) in self.conns.borrow().iter() {
            let Some(deadline) = deadline(c) else { continue };
            found.any = true;
            if deadline <= now {
                found.expired.push(*conn);
            }
        }
        found
    }
}
