//! Lets the thread of a front end serve the sockets while its requests wait for replies.
//!
//! Without it the reply to a request wakes the event loop, which then wakes the thread that has the request: two wake-ups, where
//! the second one would do. So a thread whose requests wait watches the descriptor of loop 0 as well, and serves what is ready
//! there ([`Leader::watched`]); the loop itself sleeps meanwhile, without its sockets.
//!
//! A thread leads from the first request that it cannot reply to at once until it has slept for [`IDLE`] without another one.
//! The loop is then woken, and watches its sockets again.

use crate::event_loop;
use crate::node::Node;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// A sleep of this length ends the lead.
const IDLE: Duration = Duration::from_millis(3);

/// The state of one thread. It tells the thread when to watch [`Leader::fd`].
pub struct Leader<'a> {
    node: &'a Node,
    /// Its node lets threads lead, and its descriptor can be watched.
    may_lead: bool,
    /// A request has come since the last sleep.
    came: bool,
    is_busy: bool,
    /// The descriptor is being watched.
    watches: bool,
    /// Counted among the leaders of the node.
    leads: bool,
    /// Without elements between turns; kept for its memory.
    events: Vec<epoll::Event>,
}

impl<'a> Leader<'a> {
    /// The state of a thread of this node.
    pub fn new(node: &'a Node) -> Self {
        Self {
            node,
            may_lead: node.shared().config.servers_lead,
            came: false,
            is_busy: false,
            watches: false,
            leads: false,
            events: event_loop::room_for_events(),
        }
    }
    /// The descriptor that is readable when something is to be served.
    pub fn fd(&self) -> Option<BorrowedFd<'a>> {
        self.node.shared().loops.first().map(|handle| handle.ready_fd().as_fd())
    }
    /// The thread has taken a request.
    pub fn came(&mut self) {
        self.came = true;
    }
    /// The thread is about to sleep; `waits`: it has requests without a reply. True: it watches the descriptor from now on,
    /// until it is readable once.
    pub fn before_sleep(&mut self, waits: bool) -> bool {
        let came = std::mem::take(&mut self.came);
        self.is_busy |= came && waits && self.may_lead;
        if self.watches {
            return false;
        }
        if self.is_busy {
            self.begin();
            self.watches = true;
        } else {
            self.end();
        }
        self.watches
    }
    /// How long the thread may sleep, if it had nothing to do for `left`.
    pub fn bound(&self, left: Duration) -> Duration {
        if self.is_busy { left.min(IDLE) } else { left }
    }
    /// The thread has slept for as long as [`Self::bound`] allows. True: it stops watching the descriptor.
    pub fn was_idle(&mut self) -> bool {
        std::mem::take(&mut self.is_busy) && self.watches
    }
    /// The descriptor is not watched any more. With `is_readable`, the thread serves what is ready, and does the work that
    /// follows. `waits`: it has requests without a reply. Otherwise the reply is one for another thread, which is to be woken
    /// itself the next time.
    pub fn watched(&mut self, is_readable: bool, waits: bool) {
        self.watches = false;
        self.is_busy &= waits;
        if is_readable {
            self.node.shared().stats.turns_led.add(1);
            event_loop::lead(self.node, &mut self.events);
        }
    }

    /// The kernel cannot watch the descriptor: the loop serves the sockets from now on.
    pub fn refused(&mut self) {
        (self.may_lead, self.is_busy) = (false, false);
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.leads, true) {
            self.node.shared().begin_lead();
        }
    }
    fn end(&mut self) {
        if std::mem::take(&mut self.leads) {
            self.node.shared().end_lead();
        }
    }
}
impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
