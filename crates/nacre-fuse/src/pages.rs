//! How the kernel is made to drop pages of a file before a lock is returned.
//!
//! INVAL_INODE with a range waits for each page that a READ is filling, and we may be unable to answer that READ: its OST
//! may be away. The ranges of such READs are therefore left out: they fill pages that are not trusted (`nacre_client`,
//! `cache/pages.rs`). A READ that comes later is found when the notification does not return; then another one leaves out
//! its range as well.
//!
//! Not here: when pages are dropped (`nacre_client`), the writing of notifications (`notify.rs`).

use crate::notify::Notification;
use nacre_types::{Fid, Timestamp};
use std::cell::Cell;

/// Bytes of a file, `end` excluded.
pub(crate) type Range = (u64, u64);

/// The notifications that drop the pages of a file, without these ranges.
pub(crate) fn all_but(fid: Fid, mut left_out: Vec<Range>) -> Vec<Notification> {
    left_out.sort_unstable();
    let mut notifications = Vec::with_capacity(left_out.len() + 1);
    let mut from = 0;
    for (start, end) in left_out {
        if start > from {
            notifications.push(Notification::InvalInode { fid, pages: Some((from, start - from)) });
        }
        from = from.max(end);
    }
    // Without an end.
    notifications.push(Notification::InvalInode { fid, pages: Some((from, 0)) });
    notifications
}

/// Modification times that no file has had: the kernel drops all pages of a file whose time has changed (AUTO_INVAL_DATA).
#[derive(Default)]
pub(crate) struct OtherTimes(Cell<u32>);

impl OtherTimes {
    /// Another time than `real`, and than the one before.
    pub(crate) fn instead_of(&self, real: Timestamp) -> Timestamp {
        let mut nsec = (self.0.get() + 1) % 1_000_000_000;
        if nsec == real.nsec {
            nsec = (nsec + 1) % 1_000_000_000;
        }
        self.0.set(nsec);
        Timestamp { nsec, ..real }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_left_out_in_any_order_and_may_overlap() {
        let pages = |left_out: &[Range]| {
            let all = all_but(Fid::ROOT, left_out.to_vec()).into_iter();
            let range = |n| match n {
                Notification::InvalInode { pages, .. } => pages,
                _ => None,
            };
            all.filter_map(range).collect::<Vec<_>>()
        };
        assert_eq!(pages(&[]), [(0, 0)]);
        assert_eq!(pages(&[(0, 4096)]), [(4096, 0)]);
        assert_eq!(pages(&[(8192, 12288), (4096, 8192)]), [(0, 4096), (12288, 0)]);
        assert_eq!(
            pages(&[(4096, 20480), (8192, 12288), (40960, 45056)]),
            [(0, 4096), (20480, 20480), (45056, 0)]
        );
    }

    #[test]
    fn times_differ_from_the_real_one_and_from_each_other() {
        let times = OtherTimes::default();
        let real = |nsec| Timestamp { sec: 7, nsec };
        let given = [1, 2, 9].map(|nsec| times.instead_of(real(nsec)));
        assert_eq!(given, [real(2), real(3), real(4)]);
        times.0.set(999_999_998);
        assert_eq!([999_999_999, 0].map(|nsec| times.instead_of(real(nsec))), [real(0), real(1)]);
    }
}
