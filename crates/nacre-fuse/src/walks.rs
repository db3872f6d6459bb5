//! Calls whose path the kernel may walk a second time.
//!
//! When a request of a path walk, or the request at its end, fails with ESTALE, the kernel walks the path again on the same
//! thread, with a LOOKUP of every component. It does so once: the next ESTALE would reach the program, which never sees one
//! on a local file system. (For the LOOKUP of the name of something new it does not do so at all: that LOOKUP never fails with
//! ESTALE, see `handlers/names.rs` and `moved.rs`.) So threads whose call may be in its second walk are recorded here. In a
//! second walk
//!
//! - a directory that another mount has moved gets a node number that the kernel knows at no place (`moved.rs`),
//! - a regular file stays open here from its LOOKUP on, so that the request that follows finds it although its name leads to
//!   another file already (`handlers/names.rs`),
//! - ESTALE becomes ENOENT: the name was removed while it was used.
//!
//! A thread is forgotten when a request that ends a walk has a reply other than ESTALE, when it is silent for
//! [`SILENT_MAX`], or after [`LOOKUPS_MAX`] LOOKUPs. For a thread that is recorded by mistake only the three effects above
//! follow, which do no harm.

use crate::abi::op;
use nacre_types::{Errno, Instant};
use std::collections::BTreeMap;
use std::time::Duration;

/// The kernel begins the second walk, and continues it after each reply, within this time.
const SILENT_MAX: Duration = Duration::from_secs(1);
/// LOOKUPs of a walk; in longer ones a second ESTALE reaches the program.
const LOOKUPS_MAX: u32 = 64;
/// Threads at a time; beyond it a walk counts as the second one.
const THREADS_MAX: usize = 4096;

struct Walk<T> {
    /// The last request or reply.
    at: Instant,
    /// LOOKUPs since it is noted.
    lookups: u32,
    /// The node that the last of them has shown.
    shown: Option<u64>,
    /// ESTALE was sent.
    is_certain: bool,
    /// A node whose reply the kernel may have refused, or dropped.
    tried: Option<(u64, T)>,
    /// `tried` was the reply to the last request.
    is_latest: bool,
}
impl<T> Walk<T> {
    fn new(at: Instant) -> Self {
        Self { at, lookups: 0, shown: None, is_certain: false, tried: None, is_latest: false }
    }
}

/// A request that gets its reply: a plain record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replied {
    pid: u32,
    opcode: u32,
    /// Its node.
    node: u64,
    /// Only a walk makes such a request.
    by_path: bool,
    /// The node that the reply to a LOOKUP shows.
    shows: Option<u64>,
}
impl Replied {
    /// The request of a thread for a node.
    pub(crate) fn new(pid: u32, (opcode, node): (u32, u64), by_path: bool, shows: Option<u64>) -> Self {
        Self { pid, opcode, node, by_path, shows }
    }
}

/// The threads. `T`: what is noted of a node that a reply has shown and the kernel may refuse.
pub(crate) struct Walks<T>(BTreeMap<u32, Walk<T>>);

impl<T> Default for Walks<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Walks<T> {
    /// A thread has made a request for `node`. Returns what was noted of this node if it was shown last: the kernel has taken
    /// over the reply.
    pub(crate) fn arrived(&mut self, pid: u32, node: u64, now: Instant) -> Option<T> {
        let walk = self.0.get_mut(&pid)?;
        if now - walk.at > SILENT_MAX {
            self.0.remove(&pid);
            return None;
        }
        walk.at = now;
        if !std::mem::take(&mut walk.is_latest) || walk.tried.as_ref().is_none_or(|(tried, _)| *tried != node)
        {
            return None;
        }
        let tried = walk.tried.take().map(|(_, tried)| tried);
        if !walk.is_certain {
            self.0.remove(&pid);
        }
        tried
    }
    /// A request of a thread has a reply. Returns whether ESTALE has to become ENOENT.
    pub(crate) fn replied(&mut self, request: Replied, error: Option<Errno>, now: Instant) -> bool {
        let Replied { pid, opcode, node, by_path, shows } = request;
        if error == Some(Errno::ESTALE) {
            let known = self.0.remove(&pid);
            // A second walk looks names up before it comes to a file. Otherwise the file is opened by its handle, for which
            // ESTALE is the right error, each time, or a second walk has ended without a request that shows it, and the
            // thread has found the file under a name that another one has looked up.
            let is_second = known.is_some_and(|walk| by_path || walk.shown == Some(node));
            if is_second || !self.has_room(now) {
                return true;
            }
            self.0.insert(pid, Walk { is_certain: true, ..Walk::new(now) });
            return false;
        }
        let Some(walk) = self.0.get_mut(&pid) else { return false };
        walk.at = now;
        walk.lookups += u32::from(opcode == op::LOOKUP);
        walk.shown = shows.or(walk.shown);
        if walk.lookups > LOOKUPS_MAX || ends_a_walk(opcode) {
            self.0.remove(&pid);
        }
        false
    }
    /// If the thread may be in its second walk: the node of its first walk that the kernel may have refused, if there
    /// was one.
    pub(crate) fn second(&self, pid: u32) -> Option<Option<&T>> {
        self.0.get(&pid).map(|walk| walk.tried.as_ref().map(|(_, tried)| tried))
    }
    /// Whether a thread is in its second walk for certain.
    pub(crate) fn is_certain(&self, pid: u32) -> bool {
        self.0.get(&pid).is_some_and(|walk| walk.is_certain)
    }
    pub(crate) fn has_room(&mut self, now: Instant) -> bool {
        if self.0.len() >= THREADS_MAX {
            self.0.retain(|_, walk| now - walk.at <= SILENT_MAX);
        }
        self.0.len() < THREADS_MAX
    }
    /// The reply to a LOOKUP shows a node that the kernel may refuse.
    pub(crate) fn tries(&mut self, pid: u32, tried: (u64, T), now: Instant) {
        let walk = self.0.entry(pid).or_insert_with(|| Walk::new(now));
        (walk.tried, walk.is_latest) = (Some(tried), true);
    }
}

/// Whether the kernel makes such requests at the end of a walk. Others belong to the walk, or to open files, and may run in
/// the background (RELEASE).
fn ends_a_walk(opcode: u32) -> bool {
    let is_other = matches!(
        opcode,
        op::OPEN | op::OPENDIR | op::SETATTR | op::SETXATTR | op::LISTXATTR | op::REMOVEXATTR | op::STATFS
    );
    is_other || op::changes_names(opcode)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = 7;
    const FILE: u64 = 0x2000;
    const STALE: Option<Errno> = Some(Errno::ESTALE);
    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }
    fn of(opcode: u32) -> Replied {
        Replied {
            pid: PID,
            opcode,
            node: FILE,
            by_path: false,
            shows: (opcode == op::LOOKUP).then_some(FILE),
        }
    }

    #[test]
    fn the_second_stale_reply_of_a_call_becomes_enoent() {
        let mut walks = Walks::<()>::default();
        assert!(!walks.replied(of(op::OPEN), STALE, at(0)), "the kernel walks again");
        assert!(walks.is_certain(PID) && !walks.is_certain(8));
        assert!(!walks.replied(of(op::LOOKUP), None, at(1)));
        assert!(walks.replied(of(op::OPEN), STALE, at(2)));
        assert!(!walks.is_certain(PID), "the call has ended");
        // A directory that is gone, named by the call itself.
        assert!(!walks.replied(Replied { by_path: true, ..of(op::GETATTR) }, STALE, at(3)));
        assert!(walks.replied(Replied { by_path: true, ..of(op::GETATTR) }, STALE, at(4)));
    }

    #[test]
    fn a_file_that_another_thread_has_looked_up_is_stale_for_the_first_time() {
        let mut walks = Walks::<()>::default();
        assert!(!walks.replied(of(op::GETATTR), STALE, at(0)));
        assert!(!walks.replied(of(op::LOOKUP), None, at(1)), "the attributes came with the name");
        let other = Replied { node: FILE + 1, ..of(op::GETATTR) };
        assert!(!walks.replied(other, STALE, at(2)), "the kernel walks again for the next call");
        assert!(walks.is_certain(PID));
        assert!(!walks.replied(of(op::LOOKUP), None, at(3)));
        assert!(walks.replied(of(op::GETATTR), STALE, at(4)), "this was its second walk");
    }

    #[test]
    fn a_file_that_is_opened_by_its_handle_is_stale_each_time() {
        let mut walks = Walks::<()>::default();
        for n in 0..3 {
            assert!(!walks.replied(of(op::GETATTR), STALE, at(n)));
            assert!(!walks.replied(of(op::OPEN), STALE, at(n)));
        }
    }

    #[test]
    fn a_thread_is_forgotten_when_its_call_has_ended() {
        let mut walks = Walks::<()>::default();
        let begin = |walks: &mut Walks<()>, ms| assert!(!walks.replied(of(op::OPEN), STALE, at(ms)));
        begin(&mut walks, 0);
        walks.replied(of(op::LOOKUP), None, at(1));
        walks.replied(of(op::RELEASE), None, at(1));
        assert!(walks.second(PID).is_some(), "a file was closed before");
        walks.replied(of(op::OPEN), None, at(2));
        assert!(walks.second(PID).is_none(), "it was opened");
        begin(&mut walks, 3);
        assert!(walks.arrived(PID, 1, at(1003)).is_none() && walks.second(PID).is_some());
        assert!(walks.arrived(PID, 1, at(2004)).is_none() && walks.second(PID).is_none(), "it was silent");
        begin(&mut walks, 3000);
        for _ in 0..=LOOKUPS_MAX {
            assert!(walks.second(PID).is_some());
            walks.replied(of(op::LOOKUP), None, at(3001));
        }
        assert!(walks.second(PID).is_none());
        for pid in 0..THREADS_MAX as u32 {
            assert!(!walks.replied(Replied { pid, ..of(op::OPEN) }, STALE, at(4000)));
        }
        assert!(
            walks.replied(Replied { pid: THREADS_MAX as u32, ..of(op::OPEN) }, STALE, at(4000)),
            "there is no room"
        );
        assert!(
            !walks.replied(Replied { pid: THREADS_MAX as u32, ..of(op::OPEN) }, STALE, at(5001)),
            "the others are silent"
        );
    }
}
