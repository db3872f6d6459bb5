//! Slots of modifying requests: how many may be outstanding, and which tag each carries.
//!
//! Invariants: a tag is the lowest free bit + 1 and belongs to one outstanding request; at most `limit` tags are in use,
//! plus one for a CLOSE or a batch of closes only. (Before a lock is cancelled, a file may have to be closed. Without the
//! extra slot this close could wait for changes that themselves wait for the cancel.) Requests that serve a callback take
//! no slot.

use alloc::vec::Vec;
use nacre_types::Tag;
use nacre_wire::params::{CLIENT_MOD_RPCS_MAX, CLIENT_RPCS_MAX};

/// Largest `max_mod_rpcs_in_flight` of a client.
pub const MOD_RPCS_MAX: u16 = CLIENT_MOD_RPCS_MAX;
/// Largest `max_rpcs_in_flight`.
pub const RPCS_MAX: u16 = CLIENT_RPCS_MAX;
/// Largest tag: the extra CLOSE and one in reserve above the limit.
pub const TAG_MAX: u16 = MOD_RPCS_MAX + 2;

const WORDS: usize = (TAG_MAX as usize).div_ceil(64);

/// Counts of modifying requests by the number in flight when each got its slot (`rpc_stats`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RpcHistogram {
    counts: Vec<u64>,
}
impl RpcHistogram {
    fn add(&mut self, in_flight: u16) {
        let at = usize::from(in_flight); // at most TAG_MAX: the bound of this list
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
    }
    /// Requests per number in flight, from 0.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }
    /// Starts all counts again at zero.
    pub fn clear(&mut self) {
        self.counts.clear();
    }
}

/// The slots of one import.
#[derive(Debug)]
pub struct Slots {
    limit: u16,
    used: [u64; WORDS],
    in_flight: u16,
    close_in_flight: u16,
    histogram: RpcHistogram,
}

impl Slots {
    /// Creates slots; `limit` is clamped to 1..=[`MOD_RPCS_MAX`].
    pub fn new(limit: u16) -> Self {
        Self {
            limit: limit.clamp(1, MOD_RPCS_MAX),
            used: [0; WORDS],
            in_flight: 0,
            close_in_flight: 0,
            histogram: RpcHistogram::default(),
        }
    }
    /// Modifying requests that may be in flight, without the one extra CLOSE.
    pub fn limit(&self) -> u16 {
        self.limit
    }
    /// Sets the limit. A lower one takes effect as slots are released.
    pub fn set_limit(&mut self, limit: u16) {
        self.limit = limit.clamp(1, MOD_RPCS_MAX);
    }
    /// Slots in use, that of the extra CLOSE included.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }
    /// Counted since the start or the last [`RpcHistogram::clear`].
    pub fn histogram(&self) -> &RpcHistogram {
        &self.histogram
    }
    /// For [`RpcHistogram::clear`].
    pub fn histogram_mut(&mut self) -> &mut RpcHistogram {
        &mut self.histogram
    }

    /// Whether a request would get a slot now.
    pub fn admits(&self, close: bool) -> bool {
        self.in_flight < self.limit || (close && self.in_flight == self.limit && self.close_in_flight == 0)
    }

    /// Takes the lowest free tag, `None` if the request must wait.
    pub fn take(&mut self, close: bool) -> Option<Tag> {
        if !self.admits(close) {
            return None;
        }
        let word =
            self.used.iter().position(|&w| w != u64::MAX).expect("fewer tags are out than there are bits");
        let bit = self.used[word].trailing_ones();
        self.used[word] |= 1 << bit;
        self.in_flight += 1;
        self.close_in_flight += u16::from(close);
        self.histogram.add(self.in_flight);
        Some(Tag(word as u16 * 64 + bit as u16 + 1))
    }

    /// Releases a tag.
    pub fn release(&mut self, tag: Tag, close: bool) {
        let index = usize::from(tag.0.checked_sub(1).expect("tag 0 is no slot"));
        let (word, bit) = (index / 64, index % 64);
        assert!(self.used[word] & (1 << bit) != 0, "{tag:?} was released twice");
        self.used[word] &= !(1 << bit);
        self.in_flight -= 1;
        self.close_in_flight -= u16::from(close);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_close_goes_beyond_the_limit() {
        let mut s = Slots::new(2);
        assert_eq!((s.take(false), s.take(false), s.take(false)), (Some(Tag(1)), Some(Tag(2)), None));
        assert_eq!((s.take(true), s.take(true)), (Some(Tag(3)), None));
        s.release(Tag(1), false);
        assert!(!s.admits(false), "two are still out");
        assert!(!s.admits(true), "the extra slot is for one close at a time");
        s.release(Tag(3), true);
        assert_eq!(s.take(false), Some(Tag(1)));
        assert_eq!(s.histogram().counts(), [0, 1, 2, 1]);
    }

    #[test]
    fn tags_reach_the_largest_limit() {
        let mut s = Slots::new(u16::MAX);
        for n in 1..=MOD_RPCS_MAX {
            assert_eq!(s.take(false), Some(Tag(n)));
        }
        assert_eq!((s.take(false), s.take(true)), (None, Some(Tag(MOD_RPCS_MAX + 1))));
    }
}
