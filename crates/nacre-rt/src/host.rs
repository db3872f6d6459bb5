//! What an island requests of its node: connections, store operations, timers, and the report of its end.

use crate::conn::Conn;
use crate::island::{EndReason, Host, IslandRef};
use crate::node::{Node, Shared};
use crate::{io, open};
use nacre_node::{IoTicket, StoreOp};
use std::sync::Arc;
use std::thread::JoinHandle;

impl Host for Shared {
    fn send_queue_bytes_max(&self) -> usize {
        self.config.send_queue_bytes_max
    }
    fn wake_timers_before(&self, at: u64) {
        // The loop with the timers must not sleep beyond it.
        if let Some(first) = self.loops.first() {
            first.wake_if_sleeping_beyond(at, &self.stats);
        }
    }
    fn keep_thread(&self, thread: JoinHandle<()>) {
        Shared::keep_thread(self, thread);
    }
    fn open(self: Arc<Self>, island: &IslandRef, conn: Arc<Conn>, address: &str, target: &str) {
        open::open(&self, island, conn, address, target);
    }
    fn start_io(self: Arc<Self>, island: IslandRef, ticket: IoTicket, op: StoreOp) {
        io::start(&self, island, ticket, op);
    }
    fn ended(self: Arc<Self>, island: &IslandRef, reason: &EndReason) {
        self.forget(island);
        (self.on_island_end)(&Node::from(self.clone()), island, reason);
    }
}
