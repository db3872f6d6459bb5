//! The ends of handles through which bytes were written that this mount still keeps, or with an access time to report: they
//! are carried out later, several together.
//!
//! Reason: close(2) waits for neither the bytes nor the CLOSE of a file. With one file after the other, each costs a request
//! with its bytes and one for its close; together they share a `WriteMany` and a batch.
//!
//! Rules: (1) Such a handle stays open, here and as far as the MDT knows, with its dirty bytes: as if its program closed it a
//! moment later. So all that holds for an open file holds for it (`data/write_back.rs`, `late_opens.rs`, `atime.rs`). File
//! locks are the exception: a handle with lock owners ends at once. The handle of a reader stays only while this mount has a
//! lock that another mount revokes before it changes the file or sets its times. (2) A handle ends when there are many, and
//! [`LATE_TIME`] after the first of them at the latest. (3) It ends before any operation that could tell: before an own open
//! beside a writer, unlink, rename over, truncate or change of the layout, and before a bit of the inode's lock other than
//! ATIME is returned. These wait for [`ENDED_TIMEOUT`] at most: an OST that does not reply must not block them, and a handle
//! that is open for longer does no harm. (4) The unmount ends it like all others.
//!
//! Not here: the decision whether a handle may end later, and its end (`open.rs`).
//!
//! Bounded: by [`LATE_MAX`], as targets that do not reply keep handles from ending.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Fid, OpenHandle};
use nacre_wire::mdt::BATCH_MAX;

/// No handle ends later than that because of this file.
const LATE_TIME: Duration = Duration::from_millis(100);
/// Handles of one MDT that end later; beyond that, they end at once.
const LATE_MAX: usize = 4096;
/// How long an operation waits for ends of handles of its inode.
const ENDED_TIMEOUT: Duration = Duration::from_millis(250);

/// The handles at one MDT that their programs have closed and that end later.
pub(crate) struct LateReleases {
    waiting: RefCell<Vec<(Fid, OpenHandle)>>,
    /// Handles by inode, both those that wait and those that are ending, and their number.
    by_fid: RefCell<BTreeMap<Fid, u32>>,
    count: Cell<usize>,
    has_task: Cell<bool>,
    is_due: Cell<bool>,
    due: WaitList,
    ended: WaitList,
}

impl LateReleases {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            waiting: RefCell::default(),
            by_fid: RefCell::default(),
            count: Cell::new(0),
            has_task: Cell::new(false),
            is_due: Cell::new(false),
            due: ctx.wait_list(),
            ended: ctx.wait_list(),
        }
    }
    pub(crate) fn is_idle(&self) -> bool {
        self.by_fid.borrow().is_empty()
    }
    pub(super) fn has_room(&self) -> bool {
        self.count.get() < LATE_MAX
    }
    fn has(&self, fid: Fid) -> bool {
        self.by_fid.borrow().contains_key(&fid)
    }
    /// Adds a handle. True: it needs a task that ends it.
    pub(super) fn add(&self, fid: Fid, handle: OpenHandle) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        waiting.push((fid, handle));
        *self.by_fid.borrow_mut().entry(fid).or_default() += 1;
        self.count.set(self.count.get() + 1);
        if waiting.len() >= BATCH_MAX {
            self.end_now();
        }
        !self.has_task.replace(true)
    }
    fn end_now(&self) {
        self.is_due.set(true);
        self.due.wake_all();
    }
    /// Waits until handles are to end, and takes them.
    pub(super) async fn take(&self, ctx: &Ctx) -> Vec<(Fid, OpenHandle)> {
        if !self.is_due.get() {
            let _due = ctx.timeout(ctx.now() + LATE_TIME, self.due.wait()).await;
        }
        self.is_due.set(false);
        self.has_task.set(false);
        core::mem::take(&mut *self.waiting.borrow_mut())
    }
    pub(super) fn end(&self, fid: Fid) {
        let mut by_fid = self.by_fid.borrow_mut();
        if let Some(count) = by_fid.get_mut(&fid) {
            *count -= 1;
            self.count.set(self.count.get() - 1);
            if *count == 0 {
                by_fid.remove(&fid);
            }
        }
        drop(by_fid);
        self.ended.wake_all();
    }
    /// Ends those of these inodes, and waits for a moment until it is done.
    pub(crate) async fn ended(&self, ctx: &Ctx, fids: &[Fid]) {
        if !fids.iter().any(|fid| self.has(*fid)) {
            return;
        }
        self.end_now();
        let all = async {
            while fids.iter().any(|fid| self.has(*fid)) {
                self.ended.wait().await;
            }
        };
        if ctx.timeout(ctx.now() + ENDED_TIMEOUT, all).await.is_none() {
            tracing::debug!(
                "an operation goes on although closed handles of its inode have not ended: a target does not reply"
            );
        }
    }
    /// The same for all inodes.
    pub(crate) async fn all_ended(&self, ctx: &Ctx) {
        let fids: Vec<Fid> = self.by_fid.borrow().keys().copied().collect();
        self.ended(ctx, &fids).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Oid, Seq};

    #[test]
    fn the_first_handle_needs_a_task_and_many_are_due_at_once() {
        let late = LateReleases::new(&Ctx::new(1));
        let fid = |number| Fid::new(Seq(0x100), Oid(number));
        assert!(late.add(fid(1), OpenHandle(1)), "the first one starts the task");
        assert!(!late.add(fid(1), OpenHandle(2)) && !late.is_due.get());
        late.end(fid(1));
        assert!(late.has(fid(1)), "the inode has another handle");
        late.end(fid(1));
        assert!(late.is_idle());
        for handle in 3..=BATCH_MAX as u64 {
            assert!(!late.is_due.get());
            late.add(fid(2), OpenHandle(handle));
        }
        assert!(late.is_due.get());
    }
}
