//! The inode-bit locks that a mount has been granted by one MDT.
//!
//! Rules: (1) a lock is valid on the connection epoch of its grant; a new epoch begins without locks. (2) The tasks that
//! process grants and callbacks may run in any order. Both carry numbers of one sequence of the MDT: a grant is ignored for
//! the bits that a callback or cancel with a greater number has ended. Only the latest of these ends are remembered; a
//! grant with a smaller number than a forgotten end is discarded. (3) Bits end here first; then the caller drops the state
//! that they protected and notifies its kernel; then it sends the acknowledgement or the cancel, with the number that this
//! table returned. (4) Beyond the limit the least recently used locks are cancelled, in batches.
//!
//! Not here: what the bits protect, the lease (`nacre-client`), which bits conflict (`policy/inodebits.rs`).

use crate::policy::{HeldBits, InodeBits, InodeMode};
use crate::server::InodeGrant;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use nacre_types::{ConnEpoch, Fid, SeededHash};

/// Locks that are cancelled at a time. The table exceeds its limit by at most as many.
pub const CANCELS_MAX: usize = 64;
/// Ends of bits that are remembered.
const ENDS_MAX: usize = 256;
/// Locks that are looked at for one that may be cancelled.
const ROTATIONS_MAX: usize = 4 * CANCELS_MAX;

/// The relation of an epoch to that of the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpochChange {
    /// It is over: its frames have no effect on locks.
    Older,
    /// It is that of the locks.
    Current,
    /// It has just begun: all locks have ended.
    New,
}

/// Bits that the mount has dropped on its own and that it has to cancel at the MDT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeCancel {
    /// The inode.
    pub fid: Fid,
    /// The bits.
    pub bits: InodeBits,
    /// The number of the latest grant on the inode.
    pub number: u64,
}

#[derive(Debug)]
struct Lock {
    held: HeldBits,
    /// The number of the latest grant.
    number: u64,
    /// Its place in `order`.
    place: u64,
    /// It was used since it got that place.
    used: bool,
}

/// Grants of these bits up to a number are not taken.
#[derive(Debug)]
struct End {
    number: u64,
    fid: Fid,
    bits: InodeBits,
}

/// The granted locks.
#[derive(Debug)]
pub struct GrantedInodeLocks {
    epoch: ConnEpoch,
    locks: HashMap<Fid, Lock, SeededHash>,
    order: BTreeMap<u64, Fid>,
    last_place: u64,
    ends: VecDeque<End>,
    /// The greatest number of an end.
    last_end: u64,
    /// The greatest number of an end that is not remembered any more.
    forgotten: u64,
    limit: usize,
}

impl GrantedInodeLocks {
    /// An empty table for locks on `limit` inodes. `hash`: with a seed of its own.
    pub fn new(limit: usize, hash: SeededHash) -> Self {
        Self {
            epoch: ConnEpoch::default(),
            locks: HashMap::with_hasher(hash),
            order: BTreeMap::new(),
            last_place: 0,
            ends: VecDeque::new(),
            last_end: 0,
            forgotten: 0,
            limit,
        }
    }
    /// The number of inodes on which locks are kept.
    pub fn limit(&self) -> usize {
        self.limit
    }
    /// Sets that limit; [`GrantedInodeLocks::cancel_surplus`] follows it.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Notes the epoch of a frame before its grants and callbacks are processed. A new epoch ends all locks.
    pub fn enter(&mut self, epoch: ConnEpoch) -> EpochChange {
        if epoch < self.epoch {
            return EpochChange::Older;
        }
        if epoch == self.epoch {
            return EpochChange::Current;
        }
        *self = Self { epoch, last_place: self.last_place, ..self.emptied() };
        EpochChange::New
    }
    /// Ends all locks and takes no other ones until the next epoch, because a callback could not be read.
    pub fn distrust(&mut self) {
        *self = Self { epoch: self.epoch, forgotten: u64::MAX, ..self.emptied() };
    }
    fn emptied(&self) -> Self {
        Self::new(self.limit, *self.locks.hasher())
    }

    /// Processes a grant on an epoch and returns its bits that are valid: none on another epoch than the current one, and
    /// none that have ended meanwhile.
    pub fn granted(&mut self, epoch: ConnEpoch, fid: Fid, grant: InodeGrant) -> InodeBits {
        let bits = grant.bits - self.ended(fid, grant.number);
        if epoch != self.epoch || bits.is_empty() {
            return InodeBits::NONE;
        }
        let is_full = self.locks.len() >= self.limit.saturating_add(CANCELS_MAX);
        let lock = match self.locks.entry(fid) {
            Entry::Occupied(lock) => lock.into_mut(),
            Entry::Vacant(_) if is_full => return InodeBits::NONE,
            Entry::Vacant(vacant) => {
                self.last_place += 1;
                self.order.insert(self.last_place, fid);
                let (held, place) = (HeldBits::default(), self.last_place);
                vacant.insert(Lock { held, number: 0, place, used: false })
            }
        };
        lock.held.grant(grant.mode, bits);
        lock.number = lock.number.max(grant.number);
        bits
    }
    /// Processes a callback and returns the bits that this mount had in a mode that conflicts with `wanted`. They have been
    /// dropped, or converted if PR is wanted.
    pub fn revoked(
        &mut self,
        epoch: ConnEpoch,
        fid: Fid,
        wanted: InodeMode,
        bits: InodeBits,
        number: u64,
    ) -> InodeBits {
        if epoch != self.epoch {
            return InodeBits::NONE;
        }
        self.remember(End { number, fid, bits });
        let Some(lock) = self.locks.get_mut(&fid) else { return InodeBits::NONE };
        let ended = lock.held.conflicting(wanted) & bits;
        match wanted {
            InodeMode::Pr => lock.held.convert_to_pr(ended),
            InodeMode::Ex => lock.held.drop_bits(ended),
        }
        self.remove_if_empty(fid);
        ended
    }

    /// Whether a lock covers these bits in a mode, on the epoch on which locks may be used now. Counts as a use.
    pub fn covers(&mut self, epoch: Option<ConnEpoch>, fid: Fid, mode: InodeMode, bits: InodeBits) -> bool {
        let Some(lock) = self.locks.get_mut(&fid).filter(|_| epoch == Some(self.epoch)) else { return false };
        lock.used = true;
        lock.held.covering(mode).contains(bits)
    }
    /// The bits of an inode by mode.
    pub fn held(&self, fid: Fid) -> HeldBits {
        self.locks.get(&fid).map(|lock| lock.held).unwrap_or_default()
    }
    /// The number of inodes with a lock.
    pub fn len(&self) -> usize {
        self.locks.len()
    }
    /// Whether there is no lock.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Drops bits that are not needed any more. `None`: the mount has none of them.
    pub fn cancel(&mut self, fid: Fid, bits: InodeBits) -> Option<InodeCancel> {
        let lock = self.locks.get_mut(&fid)?;
        let (bits, number) = (lock.held.all() & bits, lock.number);
        if bits.is_empty() {
            return None;
        }
        lock.held.drop_bits(bits);
        self.remember(End { number, fid, bits });
        self.remove_if_empty(fid);
        Some(InodeCancel { fid, bits, number })
    }
    /// Drops locks beyond the limit, at most [`CANCELS_MAX`] and those first that were not used for the longest time. Locks
    /// on inodes that are busy stay. A large table swings around its limit, so that one request returns many locks.
    pub fn cancel_surplus(&mut self, is_busy: impl Fn(Fid) -> bool) -> Vec<InodeCancel> {
        let mut cancels = Vec::new();
        let swing = (self.limit / 16).min(CANCELS_MAX / 2);
        if self.locks.len() <= self.limit + swing {
            return cancels;
        }
        for _ in 0..ROTATIONS_MAX {
            if self.locks.len() <= self.limit - swing || cancels.len() >= CANCELS_MAX {
                break;
            }
            let Some((_, fid)) = self.order.pop_first() else { break };
            let Some(lock) = self.locks.get_mut(&fid) else { continue };
            self.last_place += 1;
            lock.place = self.last_place;
            self.order.insert(lock.place, fid);
            if !core::mem::take(&mut lock.used) && !is_busy(fid) {
                cancels.extend(self.cancel(fid, InodeBits::ALL));
            }
        }
        cancels
    }

    fn remove_if_empty(&mut self, fid: Fid) {
        if let Some(lock) = self.locks.get(&fid).filter(|lock| lock.held.is_empty()) {
            self.order.remove(&lock.place);
            self.locks.remove(&fid);
        }
    }
    fn remember(&mut self, end: End) {
        if self.ends.len() >= ENDS_MAX
            && let Some(oldest) = self.ends.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest.number);
        }
        self.last_end = self.last_end.max(end.number);
        self.ends.push_back(end);
    }
    /// The bits that a grant with this number does not grant any more.
    fn ended(&self, fid: Fid, number: u64) -> InodeBits {
        if number <= self.forgotten {
            return InodeBits::ALL;
        }
        if number > self.last_end {
            return InodeBits::NONE;
        }
        let later = self.ends.iter().filter(|end| end.fid == fid && number <= end.number);
        later.map(|end| end.bits).collect()
    }
}
