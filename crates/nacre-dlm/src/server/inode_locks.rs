//! The inode-bit locks of a target: which client may cache which bits of which inode, and who waits for them.
//!
//! A client has one lock per inode, with a mode for each bit. How a read and a change use the table:
//!
//! - A read claims bits before it reads the rows ([`InodeLocks::claim`]) and asks afterwards which of the claimed bits
//!   it may still have ([`InodeLocks::stands`]); its reply grants those. A claim never waits: bits that are not free
//!   are left out.
//! - A change asks in its own visit whether it conflicts with locks of others ([`InodeLocks::conflicts`]). If so it takes a
//!   ticket ([`InodeLocks::enter`], [`InodeLocks::set_wants`]), which revokes these locks, waits for
//!   [`InodeLockEffect::Ready`], and begins again. It leaves ([`InodeLocks::leave`]) when it has been applied or has failed.
//!
//! Invariants: (1) two holders never have the same bit in conflicting modes; (2) no bit is granted for which a change
//! waits, which is being revoked from its claimant, or which is paused after a revoke, so a waiting change waits for
//! fewer locks with each acknowledgement; (3) a bit has at most one unacknowledged callback to its holder; (4) a ticket
//! that becomes ready is reported once, in the order of the tickets of an inode; (5) this table has every bit that a
//! client may use. Claims, losses, grants and callbacks carry numbers of one sequence for that: a claim with a smaller
//! number than a loss no longer counts for the lost bits, the client discards a grant with a smaller number than a
//! callback on the same bits, and a cancel with a smaller number than the latest grant is ignored.
//!
//! Not here: modes and bits (`policy/inodebits.rs`), messages and deadlines of callbacks (`nacre-target`), rows.

use crate::policy::{BitCounts, HeldBits, InodeBits, InodeMode};
use crate::server::inode_waits::{Ticket, TicketError, Waits};
use crate::server::revoke_pauses::Pauses;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;
use nacre_types::{Fid, Generation, Instant, Oid, Seq};

/// At its limit, a client's oldest lock is revoked only if it has stood for this time: a client that walks through a large
/// tree asks for each inode once, and would otherwise lose a lock with each.
const MIN_HOLD_TIME: Duration = Duration::from_secs(30);
/// At the limit, this many of the oldest locks are looked at for one that is not being revoked yet.
const OLDEST_MAX: usize = 64;
/// An inode with more holders has counts per bit, until it has half of them.
const CROWD: usize = 16;

/// Bits that will be granted unless they are lost before the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a claim is granted by `InodeLocks::stands`"]
pub struct InodeClaim {
    holder: Generation,
    fid: Fid,
    mode: InodeMode,
    bits: InodeBits,
    /// Those that the client did not have before.
    new: InodeBits,
    number: u64,
}
impl InodeClaim {
    /// The claimed bits: those of the wanted ones that were free.
    pub fn bits(&self) -> InodeBits {
        self.bits
    }
    /// The inode.
    pub fn fid(&self) -> Fid {
        self.fid
    }
}

/// The bits that a reply grants. The client merges them with those that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeGrant {
    /// The granted bits.
    pub bits: InodeBits,
    /// The mode of the bits.
    pub mode: InodeMode,
    /// Its place among the grants and callbacks to this client.
    pub number: u64,
}

/// A callback to send: the client has to return bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeRevoke {
    /// The client.
    pub holder: Generation,
    /// The inode.
    pub fid: Fid,
    /// The bits.
    pub bits: InodeBits,
    /// The mode in which others want the bits: for PR the client may keep them in PR.
    pub wanted: InodeMode,
    /// Names the callback; its place among the grants and callbacks to this client.
    pub number: u64,
}

/// How a client acknowledges a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevokeAck {
    /// The client has dropped the bits.
    Dropped,
    /// The client keeps the bits in PR. To a callback that wanted EX this means the same as `Dropped`.
    Converted,
}

/// An effect that the target carries out, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InodeLockEffect {
    /// A callback has to be sent.
    Revoke(InodeRevoke),
    /// No lock of others is in the way of the change any more.
    Ready(Ticket),
}

/// The lock of a holder, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeLockState {
    /// The holder.
    pub holder: Generation,
    /// The bits by mode.
    pub held: HeldBits,
    /// The bits with an unacknowledged callback.
    pub revoking: InodeBits,
}

/// An inode and a holder. The parts of the FID stand here one by one because that saves eight bytes per lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    seq: Seq,
    oid: Oid,
    holder: Generation,
}
impl Key {
    fn new(fid: Fid, holder: Generation) -> Self {
        Self { seq: fid.seq, oid: fid.oid, holder }
    }
}

#[derive(Debug)]
struct Lock {
    held: HeldBits,
    /// Bits with an unacknowledged callback, also if the client has cancelled them meanwhile: they are not granted before
    /// the acknowledgement, because the client may process the callback after such a grant.
    revoking: InodeBits,
    /// All bits that the lock has ever lost.
    lost: InodeBits,
    /// Number of the latest loss. Claims from before do not stand for bits that were ever lost.
    lost_at: u64,
    /// Number of the lock's first claim; its place in the order of age.
    first: u64,
    /// Number of the latest grant.
    granted: u64,
    since: Instant,
}

#[derive(Debug)]
struct Callback {
    fid: Fid,
    bits: InodeBits,
    wanted: InodeMode,
}

#[derive(Debug, Default)]
struct HolderState {
    /// The inodes of its locks, the oldest first.
    ages: BTreeMap<u64, Fid>,
    /// Unacknowledged callbacks by number.
    callbacks: BTreeMap<u64, Callback>,
    /// Its locks are being removed.
    ending: bool,
}

/// The counts of an inode with many holders.
#[derive(Debug, Default)]
struct Crowd {
    holders: usize,
    held: BitCounts,
    ex: BitCounts,
    /// Bits without an open callback.
    settled: BitCounts,
}
impl Crowd {
    fn add(&mut self, held: HeldBits, revoking: InodeBits) {
        self.held.add(held.all());
        self.ex.add(held.covering(InodeMode::Ex));
        self.settled.add(held.all() - revoking);
    }
    fn remove(&mut self, held: HeldBits, revoking: InodeBits) {
        self.held.remove(held.all());
        self.ex.remove(held.covering(InodeMode::Ex));
        self.settled.remove(held.all() - revoking);
    }
}

/// The inode-bit locks of one target.
#[derive(Debug)]
pub struct InodeLocks {
    locks: BTreeMap<Key, Lock>,
    holders: BTreeMap<Generation, HolderState>,
    crowds: BTreeMap<Fid, Crowd>,
    waits: Waits,
    pauses: Pauses,
    effects: VecDeque<InodeLockEffect>,
    sequence: u64,
    locks_per_client_max: usize,
    revokes: u64,
}

impl InodeLocks {
    /// An empty table; a client may hold locks on `locks_per_client_max` inodes.
    pub fn new(locks_per_client_max: usize) -> Self {
        Self {
            locks: BTreeMap::new(),
            holders: BTreeMap::new(),
            crowds: BTreeMap::new(),
            waits: Waits::default(),
            pauses: Pauses::default(),
            effects: VecDeque::new(),
            sequence: 0,
            locks_per_client_max,
            revokes: 0,
        }
    }
    /// The number of inodes on which a client may hold locks.
    pub fn limit(&self) -> usize {
        self.locks_per_client_max
    }
    /// Sets that limit. Locks above it are revoked one by one as their holder claims others.
    pub fn set_limit(&mut self, locks_per_client_max: usize) {
        self.locks_per_client_max = locks_per_client_max;
    }

    // ---- reads

    /// Claims those of the wanted bits that are free, before the rows are read. `None`: there is nothing for the client now.
    ///
    /// A claim of an inode that is not locked by a client at its limit is not granted; it revokes the client's oldest lock.
    pub fn claim(
        &mut self,
        holder: Generation,
        fid: Fid,
        mode: InodeMode,
        wanted: InodeBits,
        now: Instant,
    ) -> Option<InodeClaim> {
        if self.holders.get(&holder).is_some_and(|state| state.ending) {
            return None;
        }
        let key = Key::new(fid, holder);
        let (has, revoking) = match self.locks.get(&key) {
            Some(lock) => (lock.held.covering(mode), lock.revoking),
            None => (InodeBits::NONE, InodeBits::NONE),
        };
        let mut new = wanted - has - revoking;
        if !new.is_empty() {
            new -= self.waits.wanted(fid, mode) | self.pauses.bits(now, fid);
            new -= self.held_by_others(Some(holder), fid, mode);
        }
        let bits = ((wanted & has) - revoking) | new;
        if bits.is_empty() {
            return None;
        }
        if !self.locks.contains_key(&key) && !self.add(key, fid, now) {
            return None;
        }
        let number = self.next_number();
        self.change(key, fid, |lock| lock.held.grant(mode, new));
        Some(InodeClaim { holder, fid, mode, bits, new, number })
    }
    /// Leaves bits out of a claim, because the rows do not permit them. Bits that the client had before, or that another
    /// reply has granted since, stay with it.
    pub fn take_back(&mut self, claim: InodeClaim, bits: InodeBits) -> InodeClaim {
        let key = Key::new(claim.fid, claim.holder);
        if self.locks.get(&key).is_some_and(|lock| lock.granted < claim.number) {
            self.change(key, claim.fid, |lock| lock.held.drop_bits(bits & claim.new));
        }
        InodeClaim { bits: claim.bits - bits, ..claim }
    }

    /// Adds bits that an earlier start has granted, and that their holder may still use, to its lock. Neither its limit nor a
    /// pause counts. A ticket that wants the bits must set its wants again, to have them revoked.
    pub fn restore(&mut self, holder: Generation, fid: Fid, mode: InodeMode, bits: InodeBits, now: Instant) {
        if self.holders.get(&holder).is_some_and(|state| state.ending) {
            return;
        }
        let key = Key::new(fid, holder);
        if !self.locks.contains_key(&key) {
            self.insert(key, fid, now);
        }
        self.change(key, fid, |lock| lock.held.grant(mode, bits));
    }

    /// The bits that the reply to a claim grants, after the rows have been read. The caller must not wait for anything
    /// afterwards.
    pub fn stands(&mut self, claim: InodeClaim) -> Option<InodeGrant> {
        if self.holders.get(&claim.holder).is_none_or(|state| state.ending) {
            return None;
        }
        let number = self.next_number();
        let lock = self.locks.get_mut(&Key::new(claim.fid, claim.holder))?;
        let mut bits = claim.bits & (lock.held.covering(claim.mode) - lock.revoking);
        if claim.number < lock.lost_at {
            bits -= lock.lost;
        }
        if claim.number < lock.first || bits.is_empty() {
            return None;
        }
        lock.granted = number;
        Some(InodeGrant { bits, mode: claim.mode, number })
    }

    // ---- changes

    /// Whether a change of these bits conflicts with locks of holders other than `own`. `own` is `None` for a change of the
    /// target's own. Costs one search per inode and allocates nothing.
    pub fn conflicts(&self, own: Option<Generation>, changed: &[(Fid, InodeBits)]) -> bool {
        self.conflicts_in(own, InodeMode::Ex, changed)
    }
    /// Like [`InodeLocks::conflicts`], for a request in a mode: a read conflicts with locks in EX only.
    pub fn conflicts_in(
        &self,
        own: Option<Generation>,
        mode: InodeMode,
        wanted: &[(Fid, InodeBits)],
    ) -> bool {
        wanted.iter().any(|(fid, bits)| self.held_by_others(own, *fid, mode).intersects(*bits))
    }

    /// Takes the next place among the waiting changes, for a request in `mode`: EX for a change.
    ///
    /// # Errors
    /// The client has too many waiting changes.
    pub fn enter(
        &mut self,
        own: Option<Generation>,
        mode: InodeMode,
        now: Instant,
    ) -> Result<Ticket, TicketError> {
        self.waits.enter(own, mode, now)
    }
    /// Sets the bits for which a ticket waits, instead of those of an earlier attempt, and revokes the locks in its way.
    /// Returns whether there are none, so that no [`InodeLockEffect::Ready`] follows.
    ///
    /// # Errors
    /// The change touches too many inodes; the wants are unchanged.
    ///
    /// # Panics
    /// If the ticket has left.
    pub fn set_wants(&mut self, ticket: Ticket, wanted: &[(Fid, InodeBits)]) -> Result<bool, TicketError> {
        self.waits.set_wants(ticket, wanted)?;
        Ok(!self.revoke_blockers(ticket))
    }
    /// Whether no lock conflicts with a ticket, or the ticket has left.
    pub fn is_ready(&self, ticket: Ticket) -> bool {
        self.waits.is_ready(ticket)
    }
    /// A change has been applied or has failed for good: its ticket ends, and the bits that it had to revoke are paused.
    pub fn leave(&mut self, ticket: Ticket, now: Instant) {
        let Some(waiter) = self.waits.leave(ticket) else { return };
        for (fid, bits) in waiter.contended() {
            self.pauses.begin(now, waiter.since(), fid, bits);
        }
    }

    /// Begins to revoke bits of a lock, for a request of others in `wanted`. `None`: no callback is needed, because the
    /// holder has none of these bits in a conflicting mode or all of them are being revoked.
    pub fn begin_revoke(
        &mut self,
        holder: Generation,
        fid: Fid,
        wanted: InodeMode,
        bits: InodeBits,
    ) -> Option<InodeRevoke> {
        let key = Key::new(fid, holder);
        let lock = self.locks.get(&key)?;
        let bits = (lock.held.conflicting(wanted) & bits) - lock.revoking;
        let number = self.next_number();
        let state = self.holders.get_mut(&holder).filter(|state| !state.ending)?;
        if bits.is_empty() {
            return None;
        }
        state.callbacks.insert(number, Callback { fid, bits, wanted });
        self.revokes += 1;
        self.change(key, fid, |lock| lock.revoking |= bits);
        Some(InodeRevoke { holder, fid, bits, wanted, number })
    }

    /// Begins to revoke bits from all holders but `own`, for a change that does not wait for them.
    pub fn revoke_from_others(&mut self, own: Option<Generation>, fid: Fid, bits: InodeBits) {
        let others = self.of_inode(fid).filter(|lock| Some(lock.holder) != own);
        let holders: Vec<Generation> = others.map(|lock| lock.holder).collect();
        for holder in holders {
            let revoke = self.begin_revoke(holder, fid, InodeMode::Ex, bits);
            self.effects.extend(revoke.map(InodeLockEffect::Revoke));
        }
    }

    // ---- ends of locks

    /// The client has acknowledged a callback. Returns false for a callback that is not open (any more).
    pub fn acknowledged(&mut self, holder: Generation, number: u64, ack: RevokeAck) -> bool {
        let Some(state) = self.holders.get_mut(&holder) else { return false };
        let Some(Callback { fid, bits, wanted }) = state.callbacks.remove(&number) else { return false };
        self.change(Key::new(fid, holder), fid, |lock| {
            lock.revoking -= bits;
            match (ack, wanted) {
                (RevokeAck::Converted, InodeMode::Pr) => lock.held.convert_to_pr(bits),
                (RevokeAck::Converted, InodeMode::Ex) | (RevokeAck::Dropped, _) => lock.held.drop_bits(bits),
            }
        });
        true
    }
    /// The client has cancelled bits on its own; the others stand. `number` is that of the latest grant on the inode that
    /// it has processed: if a later one is on its way to the client, the cancel is outdated, and false is returned.
    pub fn cancelled(&mut self, holder: Generation, fid: Fid, bits: InodeBits, number: u64) -> bool {
        let key = Key::new(fid, holder);
        if self.locks.get(&key).is_none_or(|lock| number < lock.granted) {
            return false;
        }
        self.change(key, fid, |lock| lock.held.drop_bits(bits));
        true
    }
    /// The inode is gone: the lock of this client on it ends without a callback.
    pub fn forget_inode(&mut self, holder: Generation, fid: Fid) {
        self.change(Key::new(fid, holder), fid, |lock| lock.held.drop_bits(InodeBits::ALL));
    }
    /// Removes up to `at_most` locks of a client with a new connection epoch or none; returns true when none is left. Until
    /// then the client is granted nothing. Its callbacks need no acknowledgement any more. Its tickets stay.
    pub fn drop_holder(&mut self, holder: Generation, at_most: usize) -> bool {
        let Some(state) = self.holders.get_mut(&holder) else { return true };
        state.ending = true;
        state.callbacks.clear();
        for _ in 0..at_most {
            let Some(fid) =
                self.holders.get(&holder).and_then(|state| Some(*state.ages.first_key_value()?.1))
            else {
                break;
            };
            self.change(Key::new(fid, holder), fid, |lock| {
                lock.revoking = InodeBits::NONE;
                lock.held.drop_bits(InodeBits::ALL);
            });
        }
        self.drop_idle(holder);
        !self.holders.contains_key(&holder)
    }

    // ---- questions

    /// The next effect, in order.
    pub fn poll_effect(&mut self) -> Option<InodeLockEffect> {
        self.effects.pop_front()
    }
    /// The bits of an inode that a holder has, by mode.
    pub fn held(&self, holder: Generation, fid: Fid) -> HeldBits {
        self.locks.get(&Key::new(fid, holder)).map(|lock| lock.held).unwrap_or_default()
    }
    /// The locks on an inode in the order of their holders.
    pub fn of_inode(&self, fid: Fid) -> impl Iterator<Item = InodeLockState> + '_ {
        let locks = self.locks.range(Key::new(fid, Generation(0))..=Key::new(fid, Generation(u32::MAX)));
        locks.map(|(key, lock)| InodeLockState {
            holder: key.holder,
            held: lock.held,
            revoking: lock.revoking,
        })
    }
    /// The inodes on which a client holds locks, the oldest lock first.
    pub fn of_holder(&self, holder: Generation) -> impl Iterator<Item = Fid> + '_ {
        self.holders.get(&holder).into_iter().flat_map(|state| state.ages.values().copied())
    }
    /// The number of inodes on which a client holds locks.
    pub fn held_by(&self, holder: Generation) -> usize {
        self.holders.get(&holder).map_or(0, |state| state.ages.len())
    }
    /// The number of locks.
    pub fn len(&self) -> usize {
        self.locks.len()
    }
    /// Whether there is no lock.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }
    /// The number of tickets.
    pub fn waiting(&self) -> usize {
        self.waits.len()
    }
    /// The number of inodes whose pauses are remembered.
    pub fn pauses(&self) -> usize {
        self.pauses.len()
    }
    /// The number of callbacks so far.
    pub fn revokes(&self) -> u64 {
        self.revokes
    }

    // ---- one lock

    fn next_number(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Adds a lock without bits. At the client's limit there is none, and its oldest lock is revoked.
    fn add(&mut self, key: Key, fid: Fid, now: Instant) -> bool {
        let held = self.held_by(key.holder);
        if held >= self.locks_per_client_max {
            let above = held > self.locks_per_client_max; // the limit was lowered
            self.revoke_oldest(key.holder, now, above);
            return false;
        }
        self.insert(key, fid, now);
        true
    }
    fn insert(&mut self, key: Key, fid: Fid, now: Instant) {
        let first = self.next_number();
        let lock = Lock {
            held: HeldBits::default(),
            revoking: InodeBits::NONE,
            lost: InodeBits::NONE,
            lost_at: 0,
            first,
            granted: 0,
            since: now,
        };
        self.locks.insert(key, lock);
        self.holders.entry(key.holder).or_default().ages.insert(first, fid);
        if let Some(crowd) = self.crowds.get_mut(&fid) {
            crowd.holders += 1;
        } else if self.of_inode(fid).take(CROWD + 1).count() > CROWD {
            let mut crowd = Crowd { holders: CROWD + 1, ..Crowd::default() };
            self.of_inode(fid).for_each(|lock| crowd.add(lock.held, lock.revoking));
            self.crowds.insert(fid, crowd);
        }
    }
    fn revoke_oldest(&mut self, holder: Generation, now: Instant, above: bool) {
        let Some(state) = self.holders.get(&holder) else { return };
        let oldest = state.ages.values().take(OLDEST_MAX).copied().find(|fid| {
            let lock = self.locks.get(&Key::new(*fid, holder));
            lock.is_some_and(|lock| lock.revoking.is_empty() && (above || now >= lock.since + MIN_HOLD_TIME))
        });
        let revoke = oldest.and_then(|fid| self.begin_revoke(holder, fid, InodeMode::Ex, InodeBits::ALL));
        self.effects.extend(revoke.map(InodeLockEffect::Revoke));
    }

    /// Changes a lock, if it exists, and everything that follows from its bits: the loss, counts, waiting changes. A lock
    /// without bits and callbacks is removed.
    fn change(&mut self, key: Key, fid: Fid, change: impl FnOnce(&mut Lock)) {
        let Some(lock) = self.locks.get_mut(&key) else { return };
        let (before, revoking_before) = (lock.held, lock.revoking);
        change(lock);
        let (after, revoking) = (lock.held, lock.revoking);
        let lost_ex = before.covering(InodeMode::Ex) - after.covering(InodeMode::Ex);
        let lost = (before.all() - after.all()) | lost_ex;
        if !lost.is_empty() {
            self.sequence += 1;
            lock.lost_at = self.sequence;
            lock.lost |= lost;
        }
        let (first, is_gone) = (lock.first, after.is_empty() && revoking.is_empty());
        if is_gone {
            self.locks.remove(&key);
            if let Some(state) = self.holders.get_mut(&key.holder) {
                state.ages.remove(&first);
            }
            self.drop_idle(key.holder);
        }
        if let Some(crowd) = self.crowds.get_mut(&fid) {
            crowd.remove(before, revoking_before);
            crowd.add(after, revoking);
            crowd.holders -= usize::from(is_gone);
            if crowd.holders <= CROWD / 2 {
                self.crowds.remove(&fid);
            }
        }
        if !lost.is_empty() {
            self.wake(fid, lost);
        }
    }
    /// Removes the state of a client that has no locks and no open callbacks.
    fn drop_idle(&mut self, holder: Generation) {
        if self.holders.get(&holder).is_some_and(|state| state.ages.is_empty() && state.callbacks.is_empty())
        {
            self.holders.remove(&holder);
        }
    }

    // ---- conflicts

    /// The bits of an inode that conflict with a request in `mode` because holders other than `own` have them.
    fn held_by_others(&self, own: Option<Generation>, fid: Fid, mode: InodeMode) -> InodeBits {
        let Some(crowd) = self.crowds.get(&fid) else {
            let others = self.of_inode(fid).filter(|lock| Some(lock.holder) != own);
            return others.map(|lock| lock.held.conflicting(mode)).collect();
        };
        let own = own.map_or(InodeBits::NONE, |own| self.held(own, fid).conflicting(mode));
        let counts = match mode {
            InodeMode::Pr => &crowd.ex,
            InodeMode::Ex => &crowd.held,
        };
        counts.above(1) | (counts.above(0) - own)
    }

    /// Revokes the locks in the way of a ticket. Returns false if there are none: then the ticket is ready.
    fn revoke_blockers(&mut self, ticket: Ticket) -> bool {
        let Some(waiter) = self.waits.get(ticket) else { return false };
        let (own, mode) = (waiter.holder(), waiter.mode());
        let wants: Vec<(Fid, InodeBits)> = waiter.wants().collect();
        let mut is_blocked = false;
        for (fid, bits) in wants {
            let contended = self.held_by_others(own, fid, mode) & bits;
            if contended.is_empty() {
                continue;
            }
            is_blocked = true;
            self.waits.add_contended(ticket, fid, contended);
            if self.crowds.get(&fid).is_some_and(|crowd| !crowd.settled.above(0).intersects(contended)) {
                continue; // of a crowd, each holder is revoked once, however many changes wait
            }
            let others = self.of_inode(fid).filter(|lock| Some(lock.holder) != own);
            let to_revoke =
                others.filter(|lock| (lock.held.conflicting(mode) - lock.revoking).intersects(bits));
            let holders: Vec<Generation> = to_revoke.map(|lock| lock.holder).collect();
            for holder in holders {
                let revoke = self.begin_revoke(holder, fid, mode, bits);
                self.effects.extend(revoke.map(InodeLockEffect::Revoke));
            }
        }
        if !is_blocked {
            self.waits.set_ready(ticket);
        }
        is_blocked
    }

    /// A holder has lost bits of an inode: finds the tickets that have become ready.
    fn wake(&mut self, fid: Fid, lost: InodeBits) {
        // While two holders have a bit, it conflicts with every change of its part. A bit in EX has one holder.
        let two_holders = match self.crowds.get(&fid) {
            Some(crowd) => crowd.held.above(1),
            None => {
                let mut counts = BitCounts::default();
                self.of_inode(fid).for_each(|lock| counts.add(lock.held.all()));
                counts.above(1)
            }
        };
        let free = lost - two_holders;
        if free.is_empty() {
            return; // of a crowd, only the last holder lets changes go on: they are not searched for the others
        }
        for ticket in self.waits.waiting_for(fid, free) {
            // A lock that was converted to PR may have to be revoked once more.
            if !self.revoke_blockers(ticket) {
                self.effects.push_back(InodeLockEffect::Ready(ticket));
            }
        }
    }
}
