//! Closes that are sent later, several together: those of handles that changed nothing and have no access time to report.
//!
//! Rules: (1) The close of such a handle is kept while this mount has the OPEN bit of the inode's lock (for a file also
//! SIZE), the inode has a name, and no own change of it is under way; that of a writer only if no other handle of the mount
//! writes. To the MDT the handle is open. (2) Kept closes are sent when they fill a batch, and [`KEPT_TIME`] after the first
//! of them at the latest. (3) They are sent before any operation that could tell: before OPEN or SIZE of the inode is
//! returned; before an own unlink, rename over, truncate or change of the layout; before an own handle opened for writing is
//! used; at sync(2) and at the unmount. (4) After a restart of the MDT they are sent before the mount reports that it uses no
//! former lock. An eviction ends them: the MDT has closed the handles.
//!
//! So no client sees an open that its process has ended: whoever removes, writes or truncates the file revokes a bit first.
//! Only the MDT's counts of opens show them. A close that comes too late all the same is like one that was sent late: it
//! ends an orphan, or makes the size exact, when it comes.
//!
//! Not here: the requests (`closes.rs`). Bounded: a batch is kept, and those under way have the bounds of requests.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Fid, OpenHandle, SeededHash};
use nacre_wire::mdt::{BATCH_MAX, Close};

/// No close is kept for longer.
pub(super) const KEPT_TIME: Duration = Duration::from_millis(100);

/// The next step for closes that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// They fill a batch.
    Now,
    /// This is the first: it starts the timer.
    Later,
    /// The timer runs.
    WithTimer,
}

/// The closes of one inode: a plain record.
#[derive(Debug, Clone, Copy, Default)]
struct OfInode {
    /// Those that are kept and those that are under way.
    closes: u32,
    /// The MDT says that this mount may change the size, and no handle of it does.
    is_unchanged: bool,
}

/// The closes for one MDT that are kept, and those of them that are under way.
pub(crate) struct KeptCloses {
    kept: RefCell<Vec<Close>>,
    by_fid: RefCell<HashMap<Fid, OfInode, SeededHash>>,
    has_timer: Cell<bool>,
    ended: WaitList,
}

impl KeptCloses {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            kept: RefCell::default(),
            by_fid: RefCell::new(HashMap::with_hasher(SeededHash::new(ctx.random()))),
            has_timer: Cell::new(false),
            ended: ctx.wait_list(),
        }
    }
    pub(crate) fn is_idle(&self) -> bool {
        self.by_fid.borrow().is_empty()
    }
    /// Whether the MDT may still take a handle of this inode as open.
    pub(crate) fn has(&self, fid: Fid) -> bool {
        self.by_fid.borrow().contains_key(&fid)
    }
    /// Whether the file is open for writing by this mount at the MDT only, and was not changed.
    pub(crate) fn are_of_unchanged(&self, fid: Fid) -> bool {
        self.by_fid.borrow().get(&fid).is_some_and(|of_inode| of_inode.is_unchanged)
    }
    /// This mount opens the file for writing.
    pub(crate) fn writer_opened(&self, fid: Fid) {
        if let Some(of_inode) = self.by_fid.borrow_mut().get_mut(&fid) {
            of_inode.is_unchanged = false;
        }
    }
    /// The inodes of these closes.
    pub(crate) fn fids(&self) -> Vec<Fid> {
        let mut fids: Vec<Fid> = self.by_fid.borrow().keys().copied().collect();
        fids.sort_unstable();
        fids
    }
    /// Keeps a close.
    pub(super) fn keep(&self, fid: Fid, handle: OpenHandle, is_writer: bool) -> Due {
        let mut kept = self.kept.borrow_mut();
        kept.push(Close { fid, handle, dirty: false, written: None, atime: None, data: None });
        let mut by_fid = self.by_fid.borrow_mut();
        let of_inode = by_fid.entry(fid).or_default();
        of_inode.closes += 1;
        of_inode.is_unchanged |= is_writer;
        match kept.len() {
            BATCH_MAX.. => Due::Now,
            _ if self.has_timer.replace(true) => Due::WithTimer,
            _ => Due::Later,
        }
    }
    pub(super) fn timer_ended(&self) {
        self.has_timer.set(false);
    }
    /// Takes all closes that are kept; they are under way from now on.
    pub(super) fn begin(&self) -> Vec<Close> {
        core::mem::take(&mut *self.kept.borrow_mut())
    }
    /// These closes have been executed, or the MDT has closed the handles otherwise.
    pub(super) fn end(&self, closes: &[Close]) {
        let mut by_fid = self.by_fid.borrow_mut();
        for close in closes {
            let Entry::Occupied(mut of_inode) = by_fid.entry(close.fid) else { continue };
            of_inode.get_mut().closes -= 1;
            if of_inode.get().closes == 0 {
                of_inode.remove();
            }
        }
        drop(by_fid);
        self.ended.wake_all();
    }
    /// The MDT has evicted this mount, and closed its handles.
    pub(crate) fn evicted(&self) {
        let closed = self.begin();
        self.end(&closed);
    }
    /// Waits until the MDT has executed all closes of these inodes.
    pub(super) async fn executed(&self, fids: &[Fid]) {
        while fids.iter().any(|fid| self.has(*fid)) {
            self.ended.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Oid, Seq};

    #[test]
    fn a_file_counts_as_unchanged_until_its_close_ends_or_a_writer_comes() {
        let kept = KeptCloses::new(&Ctx::new(1));
        let fid = |number| Fid::new(Seq(0x100), Oid(number));
        assert_eq!(kept.keep(fid(1), OpenHandle(1), true), Due::Later);
        assert_eq!(kept.keep(fid(1), OpenHandle(2), false), Due::WithTimer);
        assert_eq!(kept.keep(fid(2), OpenHandle(3), true), Due::WithTimer);
        let due = kept.begin();
        assert!(
            kept.are_of_unchanged(fid(1)) && kept.are_of_unchanged(fid(2)),
            "also while they are under way"
        );
        kept.writer_opened(fid(2));
        assert!(!kept.are_of_unchanged(fid(2)) && kept.has(fid(2)));
        kept.timer_ended();
        assert_eq!(kept.keep(fid(1), OpenHandle(4), false), Due::Later);
        kept.end(&due);
        assert!(kept.has(fid(1)) && !kept.has(fid(2)));
        kept.evicted();
        assert!(kept.is_idle() && !kept.are_of_unchanged(fid(1)));
    }

    #[test]
    fn closes_that_fill_a_batch_are_due() {
        let kept = KeptCloses::new(&Ctx::new(1));
        let fid = Fid::new(Seq(0x100), Oid(1));
        let due = (1..=BATCH_MAX as u64).map(|handle| kept.keep(fid, OpenHandle(handle), false));
        assert_eq!(due.filter(|due| *due == Due::Now).count(), 1);
        assert_eq!(kept.begin().len(), BATCH_MAX);
    }
}
