//! Lines of a log that strangers can cause: so many per second, the rest is counted.

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

    /// Whether one more line may be written now; if so, how many were left out before it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_makes_ten_lines_a_second_and_a_count() {
        let mut complaints = Complaints::default();
        let at = |ms: u64| Instant(5_000_000_000 + ms * 1_000_000);
        let said = (0..1000).filter_map(|i| complaints.allow(at(i / 2))).collect::<alloc::vec::Vec<_>>();
        assert_eq!(said, [0; 10]);
        assert_eq!(complaints.allow(at(1100)), Some(990));
        assert_eq!(complaints.allow(at(1101)), Some(0));
    }
}
