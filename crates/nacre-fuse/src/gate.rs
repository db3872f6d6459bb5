//! The gate between replies with a validity and the notifications that end one. Shared by all threads of a mount.
//!
//! A reply is decided in the island and written later, by the thread that leaves the island or by that of a ring; a
//! notification is written by another thread. Invariants: a reply with a validity is never written after a notification
//! that ends it (the writer holds the gate shared, and the generation is raised exclusively before the notification is
//! written); a validity does not start long after its decision. The kernel counts a validity from the reply on, the
//! lease counts from the request that renewed it: the difference must stay within the third of the lease that is left
//! ([`Terms::slack`]). So the clock is checked immediately before the write, and once more after it: if the process was
//! stopped in between, everything is forgotten.
//!
//! The kernel counts in jiffies, which stop while the machine is suspended, the lease in CLOCK_BOOTTIME. While some
//! validity is running, the clocks are compared every [`CLOCK_LOOK`]; after a suspend everything is forgotten. Until that
//! comparison, at most [`CLOCK_LOOK`] after the resume, the kernel may use validities that ran out during the suspend.
//!
//! Not here: which validity a reply gets and what is forgotten (`kernel_cache/`), the writing of notifications
//! (`notify.rs`).

use crate::neighbours::Neighbours;
use nacre_types::Instant;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// Interval at which the clocks are compared while some validity is running.
pub(crate) const CLOCK_LOOK: Duration = Duration::from_millis(500);
/// A difference of the clocks that is no suspend.
const CLOCK_TOLERANCE_MS: i64 = 20;

/// Counted notifications and replies.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counted {
    Epochs,
    Names,
    Inodes,
    /// Notifications of names that did not return in time: an epoch followed.
    Blocked,
    /// Replies whose validity ended before they were written.
    Withheld,
    /// Replies whose validity may have started after its end: everything was forgotten.
    Late,
    Suspends,
}
const COUNTERS: [&str; 7] = ["epochs", "names", "inodes", "blocked", "withheld", "late", "suspends"];

/// The state that replies and notifications of one mount share.
#[derive(Default)]
pub(crate) struct Gate {
    generation: RwLock<u64>,
    /// End of the latest validity that was decided, in nanoseconds of CLOCK_BOOTTIME.
    valid_until: AtomicU64,
    /// CLOCK_BOOTTIME less CLOCK_MONOTONIC in milliseconds; 0 = not known.
    suspended_ms: AtomicI64,
    /// Makes the island forget everything that the kernel has received.
    forget_everything: OnceLock<Box<dyn Fn() + Send + Sync>>,
    neighbours: Neighbours,
    counters: [AtomicU64; COUNTERS.len()],
}

/// The gate held shared: the generation does not change.
pub(crate) struct Pass<'a>(RwLockReadGuard<'a, u64>);

impl Gate {
    /// A gate that never compares the clocks: in measurements that count instructions the clock of the process cannot be read.
    pub(crate) fn without_clocks() -> Self {
        Self { valid_until: AtomicU64::new(u64::MAX), ..Self::default() }
    }
    /// `forget_everything` has the island forget everything that the kernel was given. The first call counts.
    pub(crate) fn attach(&self, forget_everything: impl Fn() + Send + Sync + 'static) {
        let _first = self.forget_everything.set(Box::new(forget_everything));
    }
    /// The file systems that are mounted on directories of this mount.
    pub(crate) fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }
    pub(crate) fn count(&self, counted: Counted) {
        if let Some(counter) = self.counters.get(counted as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
    /// A line for each counter.
    pub(crate) fn text(&self) -> String {
        let lines = COUNTERS.iter().zip(&self.counters);
        lines.map(|(name, n)| format!("{name}: {}\n", n.load(Ordering::Relaxed))).collect()
    }
    /// For the writer of replies, from before the check until they are written.
    pub(crate) fn pass(&self) -> Pass<'_> {
        Pass(self.generation.read().unwrap_or_else(PoisonError::into_inner))
    }
    /// Replies decided before `generation` lose their validity from now on. Waits for those that are being written.
    pub(crate) fn raise(&self, generation: u64) {
        let mut now = self.generation.write().unwrap_or_else(PoisonError::into_inner);
        *now = generation.max(*now);
    }
    pub(crate) fn generation(&self) -> u64 {
        *self.pass().0
    }
    /// Notes a validity that ends at `until`. True if none was running: the watch of the clocks is to begin.
    pub(crate) fn note(&self, now: Instant, until: Instant) -> bool {
        let begins = self.valid_until.fetch_max(until.0, Ordering::Relaxed) < now.0;
        if begins {
            // An earlier suspend ended no validity.
            let _earlier = self.was_suspended();
        }
        begins
    }
    pub(crate) fn forget_everything(&self) {
        if let Some(forget) = self.forget_everything.get() {
            forget();
        }
    }
    /// When to compare the clocks next. `None`: no validity is running.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        match self.valid_until.load(Ordering::Relaxed) {
            u64::MAX => None,
            until => (until >= nacre_rt::now().0).then_some(CLOCK_LOOK),
        }
    }
    /// Whether the machine was suspended since the last call.
    pub(crate) fn was_suspended(&self) -> bool {
        let monotonic = clock_gettime(ClockId::Monotonic);
        let monotonic_ms = monotonic.tv_sec * 1000 + monotonic.tv_nsec / 1_000_000;
        self.saw_suspended((nacre_rt::now().0 / 1_000_000).cast_signed() - monotonic_ms)
    }
    fn saw_suspended(&self, difference_ms: i64) -> bool {
        // 0 is left for "not known".
        let difference_ms = difference_ms.max(0) + 1;
        let before = self.suspended_ms.swap(difference_ms, Ordering::Relaxed);
        let jumped = before != 0 && difference_ms - before > CLOCK_TOLERANCE_MS;
        if jumped {
            self.count(Counted::Suspends);
        }
        jumped
    }
}

/// The places of validities in the head of a reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Places {
    #[default]
    None,
    /// A `fuse_entry_out` at this byte.
    Entry(u32),
    /// A `fuse_attr_out` or `fuse_statx_out` at this byte: they begin alike.
    Attr(u32),
    /// The `fuse_entry_out` of a listing.
    Entries(Vec<u32>),
}

/// The conditions under which a reply keeps its validity.
pub(crate) struct Terms {
    gate: Arc<Gate>,
    generation: u64,
    decided: Instant,
    /// Half of the shortest validity in the reply. A validity is at most 2/3 of the lease, so this is at most the third
    /// that is left.
    slack: Duration,
    places: Places,
}

impl Terms {
    /// The terms of a reply that was decided at `decided` in `generation`; its validities are `shortest` or longer.
    pub(crate) fn new(
        gate: &Arc<Gate>,
        generation: u64,
        decided: Instant,
        shortest: Duration,
        places: Places,
    ) -> Self {
        Self { gate: gate.clone(), generation, decided, slack: shortest / 2, places }
    }
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }
    /// Immediately before the reply is written: removes validities that have ended.
    pub(crate) fn apply(&self, pass: &Pass<'_>, head: &mut [u8], now: Instant) {
        if self.generation < *pass.0 || now - self.decided > self.slack / 2 {
            self.gate.count(Counted::Withheld);
            self.withhold(head);
        }
    }
    /// After the reply was written: if the process was stopped meanwhile, its validity may have started after its end.
    pub(crate) fn check(&self, now: Instant) {
        if now - self.decided > self.slack {
            self.gate.count(Counted::Late);
            self.gate.forget_everything();
        }
    }
    /// Sets the validities in the encoded reply to zero.
    pub(crate) fn withhold(&self, head: &mut [u8]) {
        /// `entry_valid`, `attr_valid` and their nanoseconds in `fuse_entry_out`.
        const ENTRY: std::ops::Range<usize> = 16..40;
        /// `attr_valid` and its nanoseconds in `fuse_attr_out`.
        const ATTR: std::ops::Range<usize> = 0..12;
        let mut zero = |at: u32, range: std::ops::Range<usize>| {
            let at = at as usize;
            if let Some(bytes) = head.get_mut(at + range.start..at + range.end) {
                bytes.fill(0);
            }
        };
        match &self.places {
            Places::None => {}
            Places::Entry(at) => zero(*at, ENTRY),
            Places::Attr(at) => zero(*at, ATTR),
            Places::Entries(all) => all.iter().for_each(|at| zero(*at, ENTRY)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{AttrOut, EntryOut, Field};

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }
    fn terms(gate: &Arc<Gate>, generation: u64, places: Places) -> Terms {
        Terms::new(gate, generation, at(5000), Duration::from_millis(2000), places)
    }
    fn entry() -> Vec<u8> {
        let mut head = vec![7; 16];
        let valid = EntryOut { nodeid: 9, entry_valid: 3, attr_valid: 4, ..EntryOut::default() };
        EntryOut { entry_valid_nsec: 5, attr_valid_nsec: 6, ..valid }.put(&mut head);
        head
    }
    fn validities(head: &[u8]) -> (u64, u64, u32, u32) {
        let out = EntryOut::take(&mut &head[16..]).unwrap();
        assert_eq!(out.nodeid, 9);
        (out.entry_valid, out.attr_valid, out.entry_valid_nsec, out.attr_valid_nsec)
    }

    #[test]
    fn a_reply_that_was_decided_before_a_revoke_is_written_without_validity() {
        let gate = Arc::new(Gate::default());
        let mut head = entry();
        let before = terms(&gate, 0, Places::Entry(16));
        before.apply(&gate.pass(), &mut head, at(5001));
        assert_eq!(validities(&head), (3, 4, 5, 6));
        gate.raise(1);
        before.apply(&gate.pass(), &mut head, at(5001));
        assert_eq!(validities(&head), (0, 0, 0, 0));
        let mut head = entry();
        terms(&gate, 1, Places::Entry(16)).apply(&gate.pass(), &mut head, at(5001));
        assert_eq!(validities(&head), (3, 4, 5, 6), "it was decided after the revoke");
        gate.raise(0);
        terms(&gate, 0, Places::Entries(vec![16])).apply(&gate.pass(), &mut head, at(5001));
        assert_eq!(validities(&head), (0, 0, 0, 0), "generations only grow");
    }

    #[test]
    fn a_reply_that_is_written_late_has_no_validity() {
        let gate = Arc::new(Gate::default());
        let terms = terms(&gate, 0, Places::Attr(16));
        let mut head = vec![7; 16];
        AttrOut { attr_valid: 3, attr_valid_nsec: 4, ..AttrOut::default() }.put(&mut head);
        let valid = |head: &[u8]| AttrOut::take(&mut &head[16..]).map(|a| (a.attr_valid, a.attr_valid_nsec));
        terms.apply(&gate.pass(), &mut head, at(5500));
        assert_eq!(valid(&head), Ok((3, 4)));
        terms.apply(&gate.pass(), &mut head, at(5501));
        assert_eq!(valid(&head), Ok((0, 0)));
        let late = || gate.text().contains("late: 1\n");
        terms.check(at(6000));
        assert!(!late());
        terms.check(at(6001));
        assert!(late(), "the process was stopped between the decision and the end of the write");
    }

    #[test]
    fn a_suspend_is_seen_once_and_small_differences_are_none() {
        let gate = Gate::default();
        let seen: Vec<bool> = [0, 3, 15, 5000, 5001, 0].map(|ms| gate.saw_suspended(ms)).into();
        assert_eq!(seen, [false, false, false, true, false, false]);
        assert!(!gate.was_suspended());
        assert!(!gate.was_suspended());
    }
}
