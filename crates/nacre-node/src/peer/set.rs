//! The peers of an island, found by the connection that an event belongs to.

use super::Peer;
use crate::event::{ConnId, Event};
use crate::log_limiter::LogLimiter;
use alloc::collections::BTreeMap;
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

/// The peers of an island. The table keeps none of them alive; each peer refers to the table.
#[derive(Default)]
pub struct Peers {
    by_conn: RefCell<BTreeMap<ConnId, Weak<Peer>>>,
    /// Number of peers created so far.
    created: Cell<u32>,
    /// Limits the log lines about outages, because many targets may be away at once.
    outage_lines: RefCell<LogLimiter>,
}
impl Peers {
    pub(super) fn register(&self, conn: ConnId, peer: Weak<Peer>) {
        self.by_conn.borrow_mut().insert(conn, peer);
    }
    pub(super) fn remove(&self, conn: ConnId) {
        self.by_conn.borrow_mut().remove(&conn);
    }
    /// A number for each peer, so that of peers that become idle together one pings first.
    pub(super) fn next_rank(&self) -> u32 {
        self.created.replace(self.created.get() + 1)
    }
    pub(super) fn outage_lines(&self) -> &RefCell<LogLimiter> {
        &self.outage_lines
    }
    pub(super) fn connected(&self) -> Vec<Rc<Peer>> {
        self.by_conn.borrow().values().filter_map(Weak::upgrade).collect()
    }
    /// Routes an event of an outbound connection to its peer. Returns the event if no peer here has that connection; late
    /// events of closed connections may be dropped.
    pub fn handle(&self, event: Event) -> Option<Event> {
        let conn = match &event {
            Event::Opened { conn } | Event::Closed { conn, .. } | Event::Frame { conn, .. } => *conn,
            Event::Start
            | Event::Accepted { .. }
            | Event::IoDone { .. }
            | Event::Timer
            | Event::Door(_)
            | Event::Stop => return Some(event),
        };
        let peer = self.by_conn.borrow().get(&conn).and_then(Weak::upgrade);
        match peer {
            Some(peer) => {
                peer.handle(conn, event);
                None
            }
            None => Some(event),
        }
    }
}
