//! Listening sockets: accept connections and assign them to the loops in turn.

use crate::clock;
use crate::event_loop::{Command, LoopHandle};
use crate::gate::Gate;
use crate::node::{Node, RtError, Shared};
use crate::socket::Socket;
use nacre_net::Address;
use nacre_types::Instant;
use rustix::event::epoll::EventFlags;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const ACCEPTS_PER_TURN: usize = 32;
/// Pause of a listener when the process has no descriptor left.
const REST: Duration = Duration::from_millis(100);

pub(crate) struct Listener {
    fd: OwnedFd,
    address: Address,
    gate: Arc<Gate>,
    rests_until: Option<Instant>,
    watched: bool,
}

/// Result of a round of accepting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accepting {
    GoesOn,
    /// Until its deadline.
    Rests,
}

impl Node {
    /// Listens at `address` from now on; peers find islands there by name. Returns the bound address.
    ///
    /// # Errors
    /// `Net`, with a sentence for the user (port in use, path in use).
    pub fn listen(&self, address: &Address) -> Result<Address, RtError> {
        let shared = self.shared();
        let (fd, bound) = nacre_net::listen(address)?;
        let gate = Gate::new(shared.config.connections_max, shared.config.connections_per_host_max);
        let listener = Listener { fd, address: bound.clone(), gate, rests_until: None, watched: true };
        if let Some(first) = shared.loops.first() {
            first.command(Command::AddListener(shared.token(), listener), &shared.stats);
        }
        shared.add_address(bound.clone());
        Ok(bound)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        nacre_net::unlink(&self.address);
    }
}

impl Listener {
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }
    pub(crate) fn ready(&mut self, shared: &Shared) -> Accepting {
        for _ in 0..ACCEPTS_PER_TURN {
            let accepted = match nacre_net::accept(&self.fd, &self.address) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(address = %self.address, %error, "a connection cannot be accepted now, new connections wait");
                    self.rests_until = Some(clock::now() + REST);
                    return Accepting::Rests;
                }
            };
            let place = match self.gate.admit(accepted.from) {
                Ok(place) => place,
                Err(why) => {
                    shared.stats.connections_refused.add(1);
                    shared.complain(&accepted.peer, &why);
                    continue;
                }
            };
            shared.sockets.fetch_add(1, Ordering::Relaxed);
            let socket = Box::new(Socket::accepted(accepted, place, shared.bulk_buffers()));
            if let Some(handle) = shared.loops.get(shared.next_loop()) {
                handle.command(Command::AddSocket(shared.token(), socket), &shared.stats);
            }
        }
        Accepting::GoesOn
    }

    /// Pauses and resumes; returns the time of the next check.
    pub(crate) fn deadline(&mut self, handle: &LoopHandle, token: u64, now: Instant) -> Option<Instant> {
        let until = self.rests_until?;
        let wanted = until <= now;
        if wanted != self.watched {
            let flags = if wanted { EventFlags::IN } else { EventFlags::empty() };
            match handle.watch_for(&self.fd, token, flags) {
                Ok(()) => self.watched = wanted,
                Err(error) => {
                    tracing::error!(address = %self.address, %error, "cannot watch a listening socket")
                }
            }
        }
        if wanted {
            self.rests_until = None;
        }
        self.rests_until
    }
}
