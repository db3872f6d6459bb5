//! Replies with names and attributes that their callers may not have taken over yet.
//!
//! The kernel takes over a reply on the thread of the caller, some time after it was written. Meanwhile an INVAL_INODE
//! finds nothing to invalidate if the inode is new to the kernel, and a change of a directory invalidates attributes that
//! an older reply then puts back. So the last reply of each calling thread is remembered until that thread's next request
//! shows that the reply was taken over. A thread that sends no further request has ended, or has taken its reply over
//! within [`AGE_MAX`]. A reply also counts as settled once its attributes were forgotten in the way that reaches replies
//! which were not taken over: otherwise a program that has listed a directory and ended would cost every later change of
//! the directory a notification.
//!
//! Not here: what follows from an unsettled reply (`kernel_cache/`).

use nacre_types::{Fid, Instant};
use std::collections::BTreeMap;
use std::time::Duration;

/// A thread in the kernel is not kept from running for longer.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Replies that are remembered; beyond it replies have no validity.
const REPLIES_MAX: usize = 4096;
/// Directories of which it is remembered when their attributes were forgotten; beyond it they are forgotten once more.
const FORGOTTEN_MAX: usize = 4096;
/// How long a directory that several threads use and change gets no validity: it would have to be forgotten at the next
/// change. This saves notifications only: a validity that is given nevertheless is forgotten at the next change.
const SHARED: Duration = Duration::from_millis(100);
/// A directory is shared if it is forgotten again within this time, in which it had a validity for a while. Once is not
/// enough: the other thread may have looked at it and ended, and what the directory's only user does next would cost a
/// request for each step of a path through it. Longer than [`SHARED`], so that a directory which stays shared is forgotten
/// once in that time and not twice.
const AGAIN: Duration = Duration::from_millis(200);

/// A calling thread; those that the kernel cannot name are told apart by a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    pid: u32,
    number: u64,
}

struct Reply {
    /// `None`: those of a whole listing.
    fid: Option<Fid>,
    /// The directory that the caller holds in the kernel until it has taken over the reply.
    dir: Option<Fid>,
    at: Instant,
}

/// When a directory was forgotten.
#[derive(Debug, Clone, Copy, Default)]
struct Forgotten {
    /// The time at which that began. Once it has ended, no older reply brings the attributes back.
    since: Instant,
    /// It had been forgotten shortly before.
    is_again: bool,
}

/// The replies of one mount.
#[derive(Default)]
pub(crate) struct Unsettled {
    replies: BTreeMap<Thread, Reply>,
    unnamed: u64,
    /// Directories whose attributes the kernel was made to forget after a change.
    forgotten: BTreeMap<Fid, Forgotten>,
}

impl Unsettled {
    /// A thread has made a request: it has taken over its last reply.
    pub(crate) fn settle(&mut self, pid: u32) {
        self.replies.remove(&Thread { pid, number: 0 });
    }
    /// Whether there is room for one more.
    pub(crate) fn has_room(&mut self, now: Instant) -> bool {
        if self.replies.len() >= REPLIES_MAX {
            self.replies.retain(|_, reply| now - reply.at < AGE_MAX);
        }
        self.replies.len() < REPLIES_MAX
    }
    /// A reply to thread `pid` is sent: attributes of `fid` (`None`: of many inodes; the default: only a name), to a caller
    /// that holds `dir`.
    pub(crate) fn add(&mut self, pid: u32, fid: Option<Fid>, dir: Option<Fid>, now: Instant) {
        self.unnamed += u64::from(pid == 0);
        let number = if pid == 0 { self.unnamed } else { 0 };
        self.replies.insert(Thread { pid, number }, Reply { fid, dir, at: now });
    }
    /// The directories held by callers that may still bring `fid` into the kernel.
    pub(crate) fn dirs_of(&self, fid: Fid, now: Instant) -> Vec<Fid> {
        let mut dirs: Vec<Fid> = self.matching(fid, now).filter_map(|(_, reply)| reply.dir).collect();
        dirs.sort_unstable();
        dirs.dedup();
        dirs
    }
    /// The directories held by callers that may still take over a reply of any kind, or a listing.
    pub(crate) fn dirs(&self, listings_only: bool, now: Instant) -> Vec<Fid> {
        let fits = |reply: &&Reply| now - reply.at < AGE_MAX && (reply.fid.is_none() || !listings_only);
        let mut dirs: Vec<Fid> = self.replies.values().filter(fits).filter_map(|reply| reply.dir).collect();
        dirs.sort_unstable();
        dirs.dedup();
        dirs
    }
    /// The directories held by callers that may still take over a reply which was sent at `start` or before.
    pub(crate) fn dirs_before(&self, start: Instant, now: Instant) -> Vec<Fid> {
        let fits = |reply: &&Reply| reply.at <= start && now - reply.at < AGE_MAX;
        self.replies.values().filter(fits).filter_map(|reply| reply.dir).collect()
    }
    /// The attributes of a directory have been forgotten, which began at `since`, because another thread than the one that
    /// changed it may have been given older ones.
    pub(crate) fn forgotten(&mut self, dir: Fid, since: Instant, now: Instant) {
        if self.forgotten.len() >= FORGOTTEN_MAX {
            self.forgotten.retain(|_, forgotten| now - forgotten.since < AGE_MAX);
        }
        let before = self.forgotten.get(&dir).copied();
        if self.forgotten.len() < FORGOTTEN_MAX || before.is_some() {
            let is_again = before.is_some_and(|before| since - before.since < AGAIN);
            self.forgotten.insert(dir, Forgotten { since, is_again });
        }
    }
    /// Whether several threads use and change a directory at this time.
    pub(crate) fn is_shared(&self, dir: Fid, now: Instant) -> bool {
        self.forgotten.get(&dir).is_some_and(|forgotten| forgotten.is_again && now - forgotten.since < SHARED)
    }
    /// Whether a thread other than `pid` may still take over attributes of `fid`.
    pub(crate) fn has_other(&self, fid: Fid, pid: u32, now: Instant) -> bool {
        self.matching(fid, now).any(|(thread, _)| thread.pid != pid || pid == 0)
    }
    fn matching(&self, fid: Fid, now: Instant) -> impl Iterator<Item = (&Thread, &Reply)> {
        let Forgotten { since, .. } = self.forgotten.get(&fid).copied().unwrap_or_default();
        let fits = move |reply: &Reply| {
            reply.fid.is_none_or(|f| f == fid) && reply.at >= since && now - reply.at < AGE_MAX
        };
        self.replies.iter().filter(move |(_, reply)| fits(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Oid, Seq};

    fn fid(n: u32) -> Fid {
        Fid::new(Seq(0x100), Oid(n))
    }
    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn a_reply_is_settled_by_the_next_request_of_its_thread() {
        let mut unsettled = Unsettled::default();
        unsettled.add(7, Some(fid(1)), Some(fid(9)), at(0));
        unsettled.add(8, None, Some(fid(5)), at(0));
        assert_eq!(unsettled.dirs_of(fid(1), at(1)), [fid(5), fid(9)]);
        assert_eq!(unsettled.dirs_of(fid(2), at(1)), [fid(5)]);
        assert_eq!((unsettled.dirs(true, at(1)), unsettled.dirs(false, at(1)).len()), (vec![fid(5)], 2));
        assert!(unsettled.has_other(fid(2), 7, at(1)) && !unsettled.has_other(fid(2), 8, at(1)));
        unsettled.settle(8);
        assert!(unsettled.dirs_of(fid(2), at(1)).is_empty());
        assert!(!unsettled.has_other(fid(1), 7, at(1)) && unsettled.has_other(fid(1), 8, at(1)));
        unsettled.add(7, Some(fid(1)), None, at(1));
        assert!(unsettled.dirs_of(fid(1), at(1)).is_empty(), "the last reply of the thread counts");
        assert!(!unsettled.has_other(fid(1), 8, at(1001)), "its thread has run or ended since");
    }

    #[test]
    fn replies_from_before_a_directory_was_forgotten_are_settled_for_it_alone() {
        let mut unsettled = Unsettled::default();
        unsettled.add(7, Some(fid(1)), None, at(0));
        unsettled.add(8, None, Some(fid(5)), at(0));
        unsettled.forgotten(fid(1), at(1), at(2));
        assert!(!unsettled.has_other(fid(1), 9, at(2)));
        assert!(unsettled.has_other(fid(2), 9, at(2)), "the listing may bring attributes of others");
        assert_eq!(unsettled.dirs(false, at(2)), [fid(5)], "and names");
        unsettled.add(7, Some(fid(1)), None, at(1));
        assert!(unsettled.has_other(fid(1), 9, at(2)), "it was sent while they were being forgotten");
        for n in 2..=FORGOTTEN_MAX as u32 + 1 {
            unsettled.forgotten(fid(n), at(500), at(500));
        }
        assert_eq!(unsettled.forgotten.len(), FORGOTTEN_MAX);
        unsettled.forgotten(fid(1), at(1100), at(1100));
        assert_eq!(unsettled.forgotten.len(), FORGOTTEN_MAX);
        unsettled.add(7, Some(fid(1)), None, at(1099));
        assert!(!unsettled.has_other(fid(1), 9, at(1101)), "it has a place of its own");
    }

    #[test]
    fn a_directory_is_shared_from_its_second_time_in_a_short_while_on() {
        let mut unsettled = Unsettled::default();
        let mut forget = |ms: u64| {
            unsettled.forgotten(fid(1), at(ms), at(ms));
            let shared = |ms: u64| unsettled.is_shared(fid(1), at(ms));
            (shared(ms), shared(ms + 99), shared(ms + 100))
        };
        assert_eq!(forget(1000), (false, false, false), "the other thread may have ended");
        assert_eq!(forget(1010), (true, true, false));
        assert_eq!(forget(1120), (true, true, false), "it stays shared, and is forgotten once in that time");
        assert_eq!(forget(1320), (false, false, false));
    }

    #[test]
    fn threads_without_a_number_are_many_and_the_list_is_bounded() {
        let mut unsettled = Unsettled::default();
        unsettled.add(0, Some(fid(1)), None, at(0));
        unsettled.add(0, Some(fid(2)), None, at(0));
        unsettled.settle(0);
        assert!(unsettled.has_other(fid(1), 0, at(1)) && unsettled.has_other(fid(2), 0, at(1)));
        for _ in 2..REPLIES_MAX {
            assert!(unsettled.has_room(at(10)));
            unsettled.add(0, Some(fid(3)), None, at(10));
        }
        assert!(!unsettled.has_room(at(10)));
        assert!(unsettled.has_room(at(1005)), "the first two are old");
    }
}
