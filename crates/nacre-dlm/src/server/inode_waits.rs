//! Changes that wait for inode-bit locks of other holders, each with a ticket that keeps its place.
//!
//! Invariant: while a ticket exists, no client is granted a lock that conflicts with it. So the number of locks for which it
//! waits only falls.
//! Not here: which locks conflict and when a ticket is ready (`inode_locks.rs`).

use crate::policy::{BitCounts, InodeBits, InodeMode};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use nacre_types::{Fid, Generation, Instant};

/// Bound of the tickets of one client, or of the target's own changes.
pub const TICKETS_PER_HOLDER_MAX: u32 = 1024;
/// Bound of the inodes for which one ticket waits.
pub const INODES_PER_TICKET_MAX: usize = 1024;

/// The place of a waiting change. Later tickets are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Why a change cannot wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// Too many changes of the client wait already.
    #[error("{held} changes of the client wait for inode locks, its limit")]
    TooManyTickets { held: u32 },
    /// The change touches too many inodes.
    #[error("the change waits for {found} inodes, at most {INODES_PER_TICKET_MAX} are allowed")]
    TooManyInodes { found: usize },
}

#[derive(Debug)]
pub(crate) struct Waiter {
    holder: Option<Generation>,
    mode: InodeMode,
    since: Instant,
    wants: BTreeMap<Fid, InodeBits>,
    /// The wanted bits that others held at any time of the wait.
    contended: BTreeMap<Fid, InodeBits>,
    ready: bool,
}

impl Waiter {
    pub(crate) fn holder(&self) -> Option<Generation> {
        self.holder
    }
    pub(crate) fn mode(&self) -> InodeMode {
        self.mode
    }
    pub(crate) fn since(&self) -> Instant {
        self.since
    }
    pub(crate) fn wants(&self) -> impl Iterator<Item = (Fid, InodeBits)> {
        self.wants.iter().map(|(fid, bits)| (*fid, *bits))
    }
    pub(crate) fn contended(&self) -> impl Iterator<Item = (Fid, InodeBits)> {
        self.contended.iter().map(|(fid, bits)| (*fid, *bits))
    }
}

/// The tickets that want bits of one inode.
#[derive(Debug, Default)]
struct Queue {
    tickets: BTreeMap<Ticket, InodeBits>,
    pr: BitCounts,
    ex: BitCounts,
}

/// All tickets.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    waiters: BTreeMap<Ticket, Waiter>,
    queues: BTreeMap<Fid, Queue>,
    held: BTreeMap<Option<Generation>, u32>,
    last: u64,
}

impl Waits {
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }
    pub(crate) fn enter(
        &mut self,
        holder: Option<Generation>,
        mode: InodeMode,
        now: Instant,
    ) -> Result<Ticket, TicketError> {
        let held = self.held.get(&holder).copied().unwrap_or(0);
        if held >= TICKETS_PER_HOLDER_MAX {
            return Err(TicketError::TooManyTickets { held });
        }
        self.held.insert(holder, held + 1);
        self.last += 1;
        let (wants, contended) = (BTreeMap::new(), BTreeMap::new());
        let waiter = Waiter { holder, mode, since: now, wants, contended, ready: false };
        self.waiters.insert(Ticket(self.last), waiter);
        Ok(Ticket(self.last))
    }

    /// Replaces the wants of a ticket.
    ///
    /// # Panics
    /// If the ticket has left.
    pub(crate) fn set_wants(
        &mut self,
        ticket: Ticket,
        wants: &[(Fid, InodeBits)],
    ) -> Result<&mut Waiter, TicketError> {
        let mut merged: BTreeMap<Fid, InodeBits> = BTreeMap::new();
        for (fid, bits) in wants.iter().filter(|(_, bits)| !bits.is_empty()) {
            *merged.entry(*fid).or_default() |= *bits;
        }
        if merged.len() > INODES_PER_TICKET_MAX {
            return Err(TicketError::TooManyInodes { found: merged.len() });
        }
        self.unqueue(ticket);
        let waiter = self.waiters.get_mut(&ticket).expect("a ticket stays until it leaves");
        for (fid, bits) in &merged {
            let queue = self.queues.entry(*fid).or_default();
            queue.tickets.insert(ticket, *bits);
            queue.counts(waiter.mode).add(*bits);
        }
        waiter.wants = merged;
        waiter.ready = false;
        Ok(waiter)
    }
    pub(crate) fn add_contended(&mut self, ticket: Ticket, fid: Fid, bits: InodeBits) {
        if let Some(waiter) = self.waiters.get_mut(&ticket) {
            *waiter.contended.entry(fid).or_default() |= bits;
        }
    }
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<Waiter> {
        self.unqueue(ticket);
        let waiter = self.waiters.remove(&ticket)?;
        if let Some(held) = self.held.get_mut(&waiter.holder) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&waiter.holder);
            }
        }
        Some(waiter)
    }
    fn unqueue(&mut self, ticket: Ticket) {
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
        for (fid, bits) in core::mem::take(&mut waiter.wants) {
            let Some(queue) = self.queues.get_mut(&fid) else { continue };
            queue.tickets.remove(&ticket);
            queue.counts(waiter.mode).remove(bits);
            if queue.tickets.is_empty() {
                self.queues.remove(&fid);
            }
        }
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiters.get(&ticket)
    }
    pub(crate) fn is_ready(&self, ticket: Ticket) -> bool {
        self.waiters.get(&ticket).is_none_or(|waiter| waiter.ready)
    }
    pub(crate) fn set_ready(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waiters.get_mut(&ticket) {
            waiter.ready = true;
        }
    }
    /// The bits of an inode that waiting changes want and that must therefore not be granted in `mode`.
    pub(crate) fn wanted(&self, fid: Fid, mode: InodeMode) -> InodeBits {
        let Some(queue) = self.queues.get(&fid) else { return InodeBits::NONE };
        match mode {
            InodeMode::Pr => queue.ex.above(0),
            InodeMode::Ex => queue.ex.above(0) | queue.pr.above(0),
        }
    }
    /// The tickets that are not ready and want one of these bits, in order.
    pub(crate) fn waiting_for(&self, fid: Fid, bits: InodeBits) -> Vec<Ticket> {
        let Some(queue) = self.queues.get(&fid) else { return Vec::new() };
        let wanting = queue.tickets.iter().filter(|(_, wanted)| wanted.intersects(bits));
        wanting.map(|(ticket, _)| *ticket).filter(|ticket| !self.is_ready(*ticket)).collect()
    }
}

impl Queue {
    fn counts(&mut self, mode: InodeMode) -> &mut BitCounts {
        match mode {
            InodeMode::Pr => &mut self.pr,
            InodeMode::Ex => &mut self.ex,
        }
    }
}
