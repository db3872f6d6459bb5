//! Whether a device is fast enough to be written past the cache.
//!
//! The copy into the page cache takes about 0.3 ms of a CPU for each MiB, which limits a server whose device is faster.
//! On a slower device it costs nothing that anybody would notice, and it lets the next reader find the bytes in memory. So
//! when [`SLOW_SAMPLES`] in a row, of [`SAMPLE_BYTES`] each, took longer than at [`FAST_BYTES_PER_SECOND`], the next
//! [`CACHED_BYTES`] go through the cache. Then a store tries again. One sample is not enough: a fast device also stands still
//! for 0.2 s now and then, for instance while the blocks of a deleted file are freed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A device that takes so many bytes in a second is fast.
const FAST_BYTES_PER_SECOND: u64 = 400 << 20;
/// Bytes by which the device is judged, and how often in a row it must have been too slow.
const SAMPLE_BYTES: u64 = 32 << 20;
const SLOW_SAMPLES: u32 = 4;
/// Bytes that go through the cache after a verdict of slowness.
const CACHED_BYTES: u64 = 4 << 30;

/// The pace of a device: what it took of the present sample. Kept by the threads of a store together.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<Sample>);

#[derive(Debug, Default)]
struct Sample {
    /// Writes past the cache that are under way, and since when there is one.
    under_way: u32,
    since: Option<Instant>,
    /// Bytes of those that have ended, and the time in which there was one under way.
    bytes: u64,
    busy: Duration,
    /// Samples in a row that were too slow.
    slow: u32,
    /// Bytes that are still to go through the cache.
    cached: u64,
}

impl Pace {
    fn lock(&self) -> MutexGuard<'_, Sample> {
        // Plain numbers: consistent between any two statements that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// A write of `bytes` begins; whether it goes past the cache. Then [`Self::end`] follows.
    pub(crate) fn begin(&self, bytes: u64, now: Instant) -> bool {
        let mut sample = self.lock();
        if sample.cached > 0 {
            sample.cached = sample.cached.saturating_sub(bytes);
            return false;
        }
        sample.under_way += 1;
        sample.since.get_or_insert(now);
        true
    }
    /// A write past the cache has ended.
    pub(crate) fn end(&self, bytes: u64, now: Instant) {
        let mut sample = self.lock();
        sample.under_way = sample.under_way.saturating_sub(1);
        sample.bytes += bytes;
        if sample.under_way == 0 || sample.bytes >= SAMPLE_BYTES {
            let since = sample.since.take().unwrap_or(now);
            sample.busy += now.saturating_duration_since(since);
            sample.since = (sample.under_way > 0).then_some(now);
        }
        if sample.bytes >= SAMPLE_BYTES {
            let is_slow = sample.busy.as_secs_f64() * FAST_BYTES_PER_SECOND as f64 > sample.bytes as f64;
            (sample.bytes, sample.busy) = (0, Duration::ZERO);
            sample.slow = if is_slow { sample.slow + 1 } else { 0 };
            if sample.slow == SLOW_SAMPLES {
                sample.slow = 0;
                sample.cached = CACHED_BYTES;
                tracing::debug!("the device is slow: writes of the next 4 GiB go through the page cache");
            }
        }
    }
    /// No write past the cache is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().under_way == 0
    }
    /// The file system has no such writes.
    pub(crate) fn never(&self) {
        self.lock().cached = u64::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Writes of 4 MiB each, `depth` at a time, on a device that needs `per_write` for one; returns how many of them went past
    /// the cache.
    fn run(pace: &Pace, mut now: Instant, writes: u32, depth: u32, per_write: Duration) -> (u32, Instant) {
        let mut past = 0;
        for _ in 0..writes / depth {
            let begun = (0..depth).filter(|_| pace.begin(4 * MIB, now)).count() as u32;
            for _ in 0..begun {
                now += per_write;
                pace.end(4 * MIB, now);
            }
            past += begun;
            now += Duration::from_secs(1); // nothing is under way
        }
        (past, now)
    }

    #[test]
    fn a_fast_device_is_written_past_the_cache_and_a_slow_one_tried_now_and_then() {
        for depth in [1, 8] {
            let fast = Pace::default();
            let (past, now) = run(&fast, Instant::now(), 800, depth, Duration::from_millis(9));
            assert_eq!(past, 800, "444 MiB/s, {depth} at a time");
            // It becomes slow: 363 MiB/s.
            let (past, now) = run(&fast, now, 1024, depth, Duration::from_millis(11));
            assert!((32..=40).contains(&past), "four samples of 32 MiB: {past} writes, {depth} at a time");
            let (past, now) = run(&fast, now, 1024, depth, Duration::from_millis(11));
            assert!((24..=40).contains(&past), "tried once again after 4 GiB: {past} writes");
            let (past, now) = run(&fast, now, 1024, depth, Duration::from_millis(11));
            assert!((24..=40).contains(&past), "and again: {past} writes");
            let (past, now) = run(&fast, now, 2048, depth, Duration::from_millis(9));
            assert!(past >= 1000, "fast again: {past} writes");
            let (mut past, mut now) = (0, now);
            for turn in 0..100 {
                let hiccup = Duration::from_millis(if turn % 4 == 0 { 200 } else { 9 });
                let (more, later) = run(&fast, now, 8, depth, hiccup);
                (past, now) = (past + more, later);
            }
            assert_eq!(past, 800, "every fourth sample is slow");
        }
    }

    #[test]
    fn a_file_system_without_such_writes_is_not_asked_again() {
        let pace = Pace::default();
        pace.never();
        assert!((0..100_000).all(|_| !pace.begin(1 << 30, Instant::now())));
    }
}
