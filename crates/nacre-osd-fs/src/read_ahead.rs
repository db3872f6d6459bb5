//! Read-ahead: the bytes after those of a sequential reader are brought into the page cache while it uses what it has.
//!
//! The kernel's own read-ahead is too short for readers behind a network, which send the next request only after a round
//! trip. The window grows with the bytes that were read in sequence, to at most [`WINDOW_MAX`]. It begins when a read
//! misses the cache, so a file that is in memory costs nothing. Reads inside the window are served from the cache; the
//! read that passes its middle is given to an I/O thread, which extends the window.
//!
//! The state is a hint: readers of one file that race for it cost a window, never a wrong byte.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that are read ahead of a reader at most.
const WINDOW_MAX: u64 = 8 << 20;
/// Shorter windows are left to the kernel.
const WINDOW_MIN: u64 = 512 << 10;

/// The known state of the readers of one file.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// Where the last read ended.
    next: AtomicU64,
    /// Bytes read in sequence up to there.
    run: AtomicU64,
    /// The end of the range that was requested from the device; 0: none.
    until: AtomicU64,
}

impl ReadAhead {
    /// A read that the page cache may serve; `true`: it has come to where the window must be extended, and is to be
    /// carried out by a thread that may wait for the device.
    pub(crate) fn is_due(&self, range: &Range<u64>) -> bool {
        let until = self.until.load(Relaxed);
        until > 0
            && self.next.load(Relaxed) == range.start
            && until.saturating_sub(range.end) < self.window(range) / 2
    }
    /// A read was served from the page cache.
    pub(crate) fn note(&self, range: &Range<u64>) {
        self.advance(range);
    }
    /// A read that may wait for the device, before it begins: the range to ask of the device meanwhile.
    pub(crate) fn extend(&self, range: &Range<u64>) -> Option<Range<u64>> {
        if !self.advance(range) {
            return None;
        }
        let window = self.window(&(range.end..range.end));
        let from = self.until.load(Relaxed).max(range.end);
        let to = range.end.saturating_add(window);
        if window < WINDOW_MIN || to < from.saturating_add(window / 2) {
            return None;
        }
        self.until.store(to, Relaxed);
        Some(from..to)
    }

    /// Returns whether the read continues the last one, or is the first of the file.
    fn advance(&self, range: &Range<u64>) -> bool {
        let is_sequential = self.next.swap(range.end, Relaxed) == range.start;
        let len = range.end.saturating_sub(range.start);
        if is_sequential {
            self.run.store(self.run.load(Relaxed).saturating_add(len), Relaxed);
        } else {
            self.run.store(len, Relaxed);
            self.until.store(0, Relaxed);
        }
        is_sequential || range.start == 0
    }
    /// The window of a reader that has read up to the end of `more`.
    fn window(&self, more: &Range<u64>) -> u64 {
        let run = self.run.load(Relaxed).saturating_add(more.end.saturating_sub(more.start));
        run.saturating_mul(2).min(WINDOW_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_window_grows_with_a_sequential_reader_and_is_extended_in_its_middle() {
        let ahead = ReadAhead::default();
        let mut asked = 0; // end of what the device was asked for
        for at in 0..64 {
            let range = at * MIB..(at + 1) * MIB;
            let is_cached = range.end <= asked;
            if is_cached && !ahead.is_due(&range) {
                ahead.note(&range);
                continue;
            }
            if let Some(more) = ahead.extend(&range) {
                assert_eq!(more.start, asked.max(range.end), "nothing is asked for twice, nothing left out");
                assert!(more.end - range.end <= WINDOW_MAX);
                asked = more.end;
            }
            assert!(asked > range.end, "the device works while the reader uses what it has");
        }
        assert_eq!(asked.div_ceil(WINDOW_MAX), 9, "the last window reaches beyond the last read");
    }

    #[test]
    fn random_reads_small_files_and_files_in_memory_ask_for_nothing() {
        let ahead = ReadAhead::default();
        for at in [7, 3, 90, 12, 55] {
            assert_eq!(ahead.extend(&(at * MIB..(at + 1) * MIB)), None);
        }
        let small = ReadAhead::default();
        assert_eq!(small.extend(&(0..4096)), None, "the kernel's window is long enough");
        let warm = ReadAhead::default();
        for at in 0..64 {
            let range = at * MIB..(at + 1) * MIB;
            assert!(!warm.is_due(&range));
            warm.note(&range);
        }
    }

    #[test]
    fn a_reader_that_jumps_begins_anew() {
        let ahead = ReadAhead::default();
        assert_eq!(ahead.extend(&(0..MIB)), Some(MIB..3 * MIB));
        assert_eq!(ahead.extend(&(50 * MIB..51 * MIB)), None);
        assert!(!ahead.is_due(&(51 * MIB..52 * MIB)), "the old window is not his");
        assert_eq!(ahead.extend(&(51 * MIB..52 * MIB)), Some(52 * MIB..56 * MIB));
    }
}
