//! Callers that may hold the kernel's lock of a directory although none of their requests is in progress.
//!
//! The kernel locks a directory for a call that changes its names, or looks up the name of something new. It does so before
//! the first request of the call, and keeps the lock until the caller has run again after the reply to the last one, which
//! takes milliseconds on a busy machine. A reply that has the kernel move an entry in the meantime would fail (`moved.rs`).
//! So replies are remembered for [`RECENT`]. Locks of calls that make no request are not known.

use nacre_types::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// A caller has run again this long after its reply.
const RECENT: Duration = Duration::from_millis(100);
/// Replies that are remembered, equal ones in a row once. When one has to be dropped, all directories count as locked until
/// it would have ended.
const REPLIES_MAX: usize = 4096;

/// Callers in other name spaces of processes all have this number.
const UNKNOWN: u32 = 0;

struct Replied {
    pid: u32,
    /// The node of the directory. `None`: a rename, which may lock any directory.
    dir: Option<u64>,
    until: Instant,
}

/// The replies, the oldest first.
#[derive(Default)]
pub(crate) struct NameLocks {
    replies: VecDeque<Replied>,
    all_until: Option<Instant>,
}

impl NameLocks {
    /// The caller `pid` gets a reply about a name in directory `dir`.
    pub(crate) fn replied(&mut self, pid: u32, dir: Option<u64>, now: Instant) {
        let until = now + RECENT;
        if let Some(last) = self.replies.back_mut().filter(|last| (last.pid, last.dir) == (pid, dir)) {
            last.until = until;
            return;
        }
        while self.replies.front().is_some_and(|first| first.until < now) {
            self.replies.pop_front();
        }
        if self.replies.len() >= REPLIES_MAX {
            self.all_until = self.replies.pop_front().map(|first| first.until);
        }
        self.replies.push_back(Replied { pid, dir, until });
    }
    /// Whether a caller other than `pid` may have locked this directory, or, if it is not known, any.
    pub(crate) fn may_be_locked(&self, dir: Option<u64>, pid: u32, now: Instant) -> bool {
        let conflicts = |reply: &Replied| match (dir, reply.dir) {
            (Some(dir), Some(locked)) => dir == locked,
            _ => true,
        };
        let mut recent = self.replies.iter().rev().take_while(|reply| reply.until >= now);
        self.all_until.is_some_and(|until| until >= now)
            || recent.any(|reply| (reply.pid != pid || pid == UNKNOWN) && conflicts(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn a_directory_counts_as_locked_for_a_while_after_a_reply_to_another_caller() {
        let mut locks = NameLocks::default();
        locks.replied(7, Some(5), at(0));
        assert!(locks.may_be_locked(Some(5), 8, at(100)) && locks.may_be_locked(None, 8, at(100)));
        assert!(!locks.may_be_locked(Some(6), 8, at(1)), "another directory");
        assert!(!locks.may_be_locked(Some(5), 7, at(1)), "the caller itself");
        locks.replied(UNKNOWN, Some(9), at(1));
        assert!(locks.may_be_locked(Some(9), UNKNOWN, at(1)), "perhaps another one");
        locks.replied(7, Some(5), at(50));
        assert!(locks.may_be_locked(Some(5), 8, at(150)) && !locks.may_be_locked(Some(5), 8, at(151)));
        locks.replied(7, None, at(200));
        assert!(locks.may_be_locked(Some(6), 8, at(201)), "a rename");
        assert_eq!(locks.replies.len(), 1, "earlier replies are forgotten");
    }

    #[test]
    fn beyond_the_bound_all_directories_count_as_locked() {
        let mut locks = NameLocks::default();
        for pid in 0..=REPLIES_MAX as u32 {
            assert!(!locks.may_be_locked(Some(6), 8, at(0)));
            locks.replied(pid, Some(5), at(0));
        }
        assert_eq!(locks.replies.len(), REPLIES_MAX);
        assert!(locks.may_be_locked(Some(6), 8, at(100)) && !locks.may_be_locked(Some(6), 8, at(101)));
    }
}
