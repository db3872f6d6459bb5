//! Counters of islands and of the node. Written without read-modify-write where one thread at a time writes.

use crate::entry::Waited;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A histogram of times by powers of two of nanoseconds.
#[derive(Debug)]
pub struct Times([AtomicU64; 40]);
impl Default for Times {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}
impl Times {
    fn add(&self, d: Duration) {
        let ns = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (64 - ns.leading_zeros()) as usize;
        if let Some(n) = self.0.get(bucket.min(39)) {
            bump(n);
        }
    }
    /// Number of times added.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|n| n.load(Relaxed)).sum()
    }
    /// Upper bound of the bucket in which the quantile `q` (0..=1) lies.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = (self.count() as f64 * q).ceil() as u64;
        let mut seen = 0;
        for (i, n) in self.0.iter().enumerate() {
            seen += n.load(Relaxed);
            if seen >= rank {
                return Duration::from_nanos((1u64 << i) - 1);
            }
        }
        Duration::from_nanos(u64::MAX)
    }
}

/// The writer is inside the island: nobody else writes.
fn bump(n: &AtomicU64) {
    n.store(n.load(Relaxed) + 1, Relaxed);
}

/// Counters of the entries of one island.
#[derive(Debug, Default)]
pub struct IslandStats {
    visits: AtomicU64,
    spun: AtomicU64,
    parked: AtomicU64,
    /// Time from the wish to enter until entry.
    pub wait: Times,
}
impl IslandStats {
    pub(crate) fn entered(&self, waited: Waited, for_: Duration) {
        bump(&self.visits);
        match waited {
            Waited::No => {}
            Waited::Spun => bump(&self.spun),
            Waited::Parked => bump(&self.parked),
        }
        self.wait.add(for_);
    }
    /// Entries so far.
    pub fn visits(&self) -> u64 {
        self.visits.load(Relaxed)
    }
    /// Entries that found the island occupied and succeeded during the spin.
    pub fn spun(&self) -> u64 {
        self.spun.load(Relaxed)
    }
    /// Entries that slept.
    pub fn parked(&self) -> u64 {
        self.parked.load(Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$m:meta])* $name:ident),* $(,)?) => {
        /// Counters of a node's work outside its islands.
        #[derive(Debug, Default)]
        pub struct NodeStats { $($(#[$m])* pub(crate) $name: Counter),* }
        impl NodeStats {
            /// Name and value of every counter.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get())),*]
            }
            $($(#[$m])* pub fn $name(&self) -> u64 { self.$name.get() })*
        }
    };
}
counters! {
    /// Event loops woken through their eventfd.
    loop_wakeups,
    /// Returns of a loop from the kernel.
    loop_turns,
    /// Times that a thread of a front end served the sockets in the place of a loop.
    turns_led,
    /// Times that a loop began to keep idle CPUs from halting.
    idle_polls,
    /// Store operations executed in place by the thread that left the island.
    io_inline,
    /// Store operations executed by an I/O thread.
    io_handed_over,
    /// Store operations executed by a sync thread.
    io_synced,
    frames_received,
    frames_sent,
    /// Frames among them whose bulk a peer on this machine has looked at where it was, in shared memory.
    frames_shared,
    /// Calls of `sendmsg`.
    sends,
    /// Times a socket was full.
    sends_blocked,
    /// Times that reading a connection was paused because of its bytes in memory.
    reads_paused,
    connections_accepted,
    connections_opened,
    connections_refused,
}

/// Written by several threads, rarely read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);
impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }
    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
