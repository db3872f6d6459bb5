//! Limits for log lines that strangers can cause: a bounded number per second of each kind, the rest is counted. And
//! errors of peers that are contacted repeatedly: logged when the error changes, and periodically.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::cell::RefCell;
use core::time::Duration;
use nacre_types::Instant;

/// See the module.
#[derive(Debug, Default)]
pub struct Complaints {
    since: Instant,
    said: u32,
    left_out: u64,
}

impl Complaints {
    const PER_SECOND: u32 = 10;

    /// Whether one more line may be written now; if so, the number of suppressed lines before it.
    pub fn allow(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_since(self.since).as_secs() > 0 {
            (self.since, self.said) = (now, 0);
        }
        if self.said >= Self::PER_SECOND {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(core::mem::take(&mut self.left_out))
    }
}

/// A limit for each kind of line, so that a flood of one kind hides no other.
#[derive(Debug, Default)]
pub struct Lines {
    kinds: RefCell<BTreeMap<&'static str, Complaints>>,
}
impl Lines {
    /// As [`Complaints::allow`], for lines of this kind.
    pub fn allow(&self, kind: &'static str, now: Instant) -> Option<u64> {
        self.kinds.borrow_mut().entry(kind).or_default().allow(now)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Grievances {
    peers: BTreeMap<String, Grievance>,
}
#[derive(Debug)]
struct Grievance {
    what: String,
    next: Instant,
    pause: Duration,
    left_out: u64,
}

impl Grievances {
    /// The first pause; each later one is twice as long.
    const PAUSE: Duration = Duration::from_secs(60);
    const PAUSE_MAX: Duration = Duration::from_secs(3600);
    const PEERS_MAX: usize = 256;

    /// Whether to log a peer's error now; if so, the number of suppressed repetitions.
    pub fn allow(&mut self, peer: &str, what: &str, now: Instant) -> Option<u64> {
        if let Some(known) = self.peers.get_mut(peer).filter(|known| known.what == what) {
            if now < known.next {
                known.left_out += 1;
                return None;
            }
            known.pause = (known.pause * 2).min(Self::PAUSE_MAX);
            known.next = now + known.pause;
            return Some(core::mem::take(&mut known.left_out));
        }
        if self.peers.len() >= Self::PEERS_MAX {
            let oldest = self.peers.iter().min_by_key(|(_, known)| known.next).map(|(peer, _)| peer.clone());
            oldest.and_then(|peer| self.peers.remove(&peer));
        }
        let new = Grievance { what: what.into(), next: now + Self::PAUSE, pause: Self::PAUSE, left_out: 0 };
        let old = self.peers.insert(peer.into(), new);
        Some(old.map_or(0, |old| old.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_when_it_changes_and_else_ever_more_rarely() {
        let mut grievances = Grievances::default();
        let mut said = alloc::vec::Vec::new();
        for second in 0..1000u64 {
            let what = if second < 500 { "no frame" } else { "another version" };
            for _ in 0..8 {
                let now = Instant(second * 1_000_000_000);
                said.extend(grievances.allow("host:1", what, now).map(|left_out| (second, left_out)));
            }
        }
        let expected =
            [(0, 0), (60, 479), (180, 959), (420, 1919), (500, 639), (560, 479), (680, 959), (920, 1919)];
        assert_eq!(said, expected);
        for host in 0..1000 {
            assert!(grievances.allow(&alloc::format!("host:{host}"), "no frame", Instant(0)).is_some());
        }
        assert_eq!(grievances.peers.len(), Grievances::PEERS_MAX);
    }

    #[test]
    fn a_flood_makes_ten_lines_a_second_and_a_count() {
        let mut complaints = Complaints::default();
        let at = |ms: u64| Instant(5_000_000_000 + ms * 1_000_000);
        let said = (0..1000).filter_map(|i| complaints.allow(at(i / 2))).collect::<alloc::vec::Vec<_>>();
        assert_eq!(said, [0; 10]);
        assert_eq!(complaints.allow(at(1100)), Some(990));
        assert_eq!(complaints.allow(at(1101)), Some(0));
    }

    #[test]
    fn a_flood_of_one_kind_hides_no_other() {
        let lines = Lines::default();
        let said = (0..1000).filter_map(|_| lines.allow("new client", Instant(7))).count();
        assert_eq!((said, lines.allow("client evicted", Instant(7))), (10, Some(0)));
    }
}
