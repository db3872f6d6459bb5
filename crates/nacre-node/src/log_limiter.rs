//! Limits of log lines that strangers or repeated errors can cause.
//!
//! [`LogLimiter`] allows a number of lines per second and counts the others. [`RepeatedErrors`] logs the error of a peer when
//! it changes, and otherwise after pauses that double.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::cell::RefCell;
use core::num::NonZeroU64;
use core::time::Duration;
use nacre_types::Instant;

/// Lines that were left out before one that is logged. As a field of that line it is absent if there are none.
pub type LeftOut = Option<NonZeroU64>;

fn take(left_out: &mut u64) -> LeftOut {
    NonZeroU64::new(core::mem::take(left_out))
}

/// Allows [`LogLimiter::PER_SECOND`] lines per second.
#[derive(Debug, Default)]
pub struct LogLimiter {
    since: Instant,
    logged: u32,
    left_out: u64,
}

impl LogLimiter {
    /// Lines that are allowed per second.
    pub const PER_SECOND: u32 = 10;

    /// Returns `None` if the line must be left out now.
    pub fn allow(&mut self, now: Instant) -> Option<LeftOut> {
        if now.saturating_since(self.since).as_secs() > 0 {
            (self.since, self.logged) = (now, 0);
        }
        if self.logged >= Self::PER_SECOND {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        Some(take(&mut self.left_out))
    }
}

/// A limit for each kind of line, so that a flood of one kind hides no other kind.
#[derive(Debug, Default)]
pub struct LogLimiters {
    kinds: RefCell<BTreeMap<&'static str, LogLimiter>>,
}
impl LogLimiters {
    /// Like [`LogLimiter::allow`], for lines of this kind.
    pub fn allow(&self, kind: &'static str, now: Instant) -> Option<LeftOut> {
        self.kinds.borrow_mut().entry(kind).or_default().allow(now)
    }
}

/// The latest error of each peer. Bounded: the entry that is due first makes room.
#[derive(Debug, Default)]
pub struct RepeatedErrors {
    peers: BTreeMap<String, RepeatedError>,
}
#[derive(Debug)]
struct RepeatedError {
    error: String,
    next: Instant,
    pause: Duration,
    left_out: u64,
}

impl RepeatedErrors {
    /// The first pause; each later one is twice as long as the one before.
    const PAUSE: Duration = Duration::from_secs(60);
    const PAUSE_MAX: Duration = Duration::from_secs(3600);
    const PEERS_MAX: usize = 256;

    /// Returns `None` if the error of a peer must not be logged now.
    pub fn allow(&mut self, peer: &str, error: &str, now: Instant) -> Option<LeftOut> {
        if let Some(known) = self.peers.get_mut(peer).filter(|known| known.error == error) {
            if now < known.next {
                known.left_out += 1;
                return None;
            }
            known.pause = (known.pause * 2).min(Self::PAUSE_MAX);
            known.next = now + known.pause;
            return Some(take(&mut known.left_out));
        }
        if self.peers.len() >= Self::PEERS_MAX {
            let oldest = self.peers.iter().min_by_key(|(_, known)| known.next).map(|(peer, _)| peer.clone());
            oldest.and_then(|peer| self.peers.remove(&peer));
        }
        let new =
            RepeatedError { error: error.into(), next: now + Self::PAUSE, pause: Self::PAUSE, left_out: 0 };
        let old = self.peers.insert(peer.into(), new);
        Some(old.and_then(|mut old| take(&mut old.left_out)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(left_out: LeftOut) -> u64 {
        left_out.map_or(0, NonZeroU64::get)
    }

    #[test]
    fn an_error_is_logged_when_it_changes_and_otherwise_after_pauses_that_double() {
        let mut errors = RepeatedErrors::default();
        let mut logged = alloc::vec::Vec::new();
        for second in 0..1000u64 {
            let error = if second < 500 { "no frame" } else { "another version" };
            for _ in 0..8 {
                let now = Instant(second * 1_000_000_000);
                logged.extend(errors.allow("host:1", error, now).map(|left_out| (second, count(left_out))));
            }
        }
        let expected =
            [(0, 0), (60, 479), (180, 959), (420, 1919), (500, 639), (560, 479), (680, 959), (920, 1919)];
        assert_eq!(logged, expected);
        for host in 0..1000 {
            assert!(errors.allow(&alloc::format!("host:{host}"), "no frame", Instant(0)).is_some());
        }
        assert_eq!(errors.peers.len(), RepeatedErrors::PEERS_MAX);
    }

    #[test]
    fn a_flood_makes_ten_lines_a_second_and_a_count() {
        let mut limiter = LogLimiter::default();
        let at = |ms: u64| Instant(5_000_000_000 + ms * 1_000_000);
        let logged = (0..1000).filter_map(|i| limiter.allow(at(i / 2))).collect::<alloc::vec::Vec<_>>();
        assert_eq!(logged, [None; 10]);
        assert_eq!(limiter.allow(at(1100)).map(count), Some(990));
        assert_eq!(limiter.allow(at(1101)), Some(None));
    }

    #[test]
    fn a_flood_of_one_kind_hides_no_other() {
        let lines = LogLimiters::default();
        let logged = (0..1000).filter_map(|_| lines.allow("new client", Instant(7))).count();
        assert_eq!((logged, lines.allow("client evicted", Instant(7))), (10, Some(None)));
    }
}
