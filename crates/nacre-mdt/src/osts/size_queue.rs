//! Files whose size the OSTs have to be asked for, in memory; after a restart they are found by their rows.
//!
//! Invariant: a file that was written or truncated while its OSTs were asked is marked, so that an outdated reply is not
//! stored.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::mem;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Fid, Instant};

/// Files for which the OSTs are asked at a time.
const ASKED_MAX: usize = 64;

#[derive(Default)]
struct Files {
    due: BTreeSet<Fid>,
    /// Files for which the OSTs could not be asked; they are tried again after a pause.
    postponed: BTreeSet<Fid>,
    /// Files for which the OSTs are being asked; true: the file was written or truncated meanwhile.
    asked: BTreeMap<Fid, bool>,
}

/// See the module.
pub(crate) struct SizeQueue {
    ctx: Rc<Ctx>,
    files: RefCell<Files>,
    changed: WaitList,
}

impl SizeQueue {
    pub(crate) fn new(ctx: &Rc<Ctx>) -> Self {
        Self { ctx: ctx.clone(), files: RefCell::default(), changed: ctx.wait_list() }
    }
    /// The OSTs have to be asked for the size of a file.
    pub(crate) fn push(&self, fid: Fid) {
        self.files.borrow_mut().due.insert(fid);
        self.changed.wake_all();
    }
    /// A client writes to the file or truncates it: the awaited reply is outdated.
    pub(crate) fn disturb(&self, fid: Fid) {
        if let Some(disturbed) = self.files.borrow_mut().asked.get_mut(&fid) {
            *disturbed = true;
        }
    }
    /// Whether the file was neither written nor truncated since its OSTs were asked.
    pub(crate) fn is_undisturbed(&self, fid: Fid) -> bool {
        self.files.borrow().asked.get(&fid) == Some(&false)
    }
    /// Files whose OSTs are not being asked.
    pub(crate) fn waiting(&self) -> usize {
        let files = self.files.borrow();
        files.due.len() + files.postponed.len()
    }
    /// Takes the files for which the OSTs are asked next.
    pub(crate) fn take_next(&self) -> Vec<Fid> {
        let files = &mut *self.files.borrow_mut();
        let room = ASKED_MAX.saturating_sub(files.asked.len());
        // A file for which the OSTs are being asked waits: its mark must not be lost.
        let next = files.due.iter().filter(|fid| !files.asked.contains_key(fid)).take(room);
        let next: Vec<Fid> = next.copied().collect();
        for fid in &next {
            files.due.remove(fid);
            files.asked.insert(*fid, false);
        }
        next
    }
    /// The OSTs were asked. `settled`: nothing is left to do.
    pub(crate) fn finished(&self, fid: Fid, settled: bool) {
        let mut files = self.files.borrow_mut();
        files.asked.remove(&fid);
        if !settled {
            files.postponed.insert(fid);
        }
        drop(files);
        self.changed.wake_all();
    }
    /// Waits for a change of the queue; at `deadline` postponed files are due again.
    pub(crate) async fn wait(&self, deadline: Instant) {
        if self.ctx.timeout(deadline, self.changed.wait()).await.is_none() {
            let files = &mut *self.files.borrow_mut();
            files.due.append(&mut mem::take(&mut files.postponed));
        }
    }
    /// Wakes the task that waits, for the end of the service.
    pub(crate) fn wake(&self) {
        self.changed.wake_all();
    }
}
