//! Signals that end a process, and wake-ups from inside it: the main thread waits for both.

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals as Iterator;

pub(crate) struct Signals(Iterator);

/// The reason why the main thread wakes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Ctrl-C, or a polite kill.
    Asked,
    /// The terminal was closed: the user cannot read or type any more.
    HungUp,
    /// Another thread of the process called [`wake`].
    Inside,
}
impl Woken {
    fn of(signal: i32) -> Self {
        match signal {
            SIGUSR1 => Self::Inside,
            SIGHUP => Self::HungUp,
            _ => Self::Asked,
        }
    }
}

impl Signals {
    /// From now on the signals do not end the process.
    pub(crate) fn catch() -> Result<Self> {
        let mut signals = that_end();
        signals.push(SIGUSR1);
        Ok(Self(Iterator::new(signals)?))
    }
    /// The next one.
    pub(crate) fn wait(&mut self) -> Woken {
        self.0.forever().next().map_or(Woken::Inside, Woken::of)
    }
    /// Whether a signal that ends the process has arrived.
    pub(crate) fn pending(&mut self) -> bool {
        self.0.pending().any(|s| Woken::of(s) != Woken::Inside)
    }
    /// Whether the user has asked again, to end at once. SIGHUP does not count: a terminal that is closed sends several.
    pub(crate) fn hurry(&mut self) -> bool {
        self.0.pending().any(|s| Woken::of(s) == Woken::Asked)
    }
}

/// The signals that end a process.
pub(crate) fn that_end() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM];
    // nohup(1) ignores it on purpose.
    if !is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

/// Makes [`Signals::wait`] return.
pub(crate) fn wake() {
    drop(signal_hook::low_level::raise(SIGUSR1));
}
