//! Pauses after revokes: for a short time no client is granted the bits that a change had to revoke.
//!
//! Without a pause, an inode that two clients use in turn costs a revoke for every change. A pause that is longer than the
//! time between changes costs the cache. So the pause of an inode follows its use: it doubles when the bits were wanted
//! again sooner after the pause than the pause had lasted, halves when they could be cached for four times as long, and is
//! forgotten after eight times. Bounded: beyond the limit the oldest pauses are forgotten, which costs revokes only.

use crate::policy::InodeBits;
use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;
use nacre_types::{Fid, Instant};

/// The first pause of an inode.
pub const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause of an inode.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Bound of the inodes whose pauses are remembered.
pub const PAUSES_MAX: usize = 65_536;

#[derive(Debug)]
struct Pause {
    bits: InodeBits,
    length: Duration,
    until: Instant,
    forget_at: Instant,
}

/// The pauses of all inodes.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    pauses: BTreeMap<Fid, Pause>,
    /// The same in the order of their beginnings, with the time at which each may be forgotten. A prolonged pause is there
    /// more than once.
    ends: VecDeque<(Instant, Fid)>,
}

impl Pauses {
    pub(crate) fn len(&self) -> usize {
        self.pauses.len()
    }
    /// The bits of an inode that are not granted now.
    pub(crate) fn bits(&self, now: Instant, fid: Fid) -> InodeBits {
        match self.pauses.get(&fid) {
            Some(pause) if now < pause.until => pause.bits,
            _ => InodeBits::NONE,
        }
    }
    /// A change that conflicted with locks on these bits at `since` has been applied.
    pub(crate) fn begin(&mut self, now: Instant, since: Instant, fid: Fid, bits: InodeBits) {
        self.forget(now);
        let pause = match self.pauses.get_mut(&fid) {
            // The conflict was there before this pause or arose within it: it says nothing about the pause's length.
            Some(pause) if since < pause.until => {
                let until = pause.until.max(now + pause.length);
                pause.bits |= bits;
                if until < pause.until + pause.length / 2 {
                    return;
                }
                Pause { until, ..*pause }
            }
            Some(pause) => {
                let free = since - pause.until;
                let length = match pause.length {
                    length if free < length => (length * 2).min(PAUSE_MAX),
                    length if free < length * 4 => length,
                    length => (length / 2).max(PAUSE_MIN),
                };
                Pause { bits, length, until: now + length, forget_at: now }
            }
            None => Pause { bits, length: PAUSE_MIN, until: now + PAUSE_MIN, forget_at: now },
        };
        let forget_at = pause.until + pause.length * 8;
        if self.ends.len() >= PAUSES_MAX {
            self.forget_oldest();
        }
        self.ends.push_back((forget_at, fid));
        self.pauses.insert(fid, Pause { forget_at, ..pause });
    }
    fn forget(&mut self, now: Instant) {
        while self.ends.front().is_some_and(|(forget_at, _)| *forget_at <= now) {
            self.forget_oldest();
        }
    }
    fn forget_oldest(&mut self) {
        if let Some((forget_at, fid)) = self.ends.pop_front()
            && self.pauses.get(&fid).is_some_and(|pause| pause.forget_at == forget_at)
        {
            self.pauses.remove(&fid);
        }
    }
}
