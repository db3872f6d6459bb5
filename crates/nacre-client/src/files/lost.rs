//! Processes that have lost file locks with an eviction: all their changes fail until they close the handles that had the
//! locks.
//!
//! Reason: a program that has a lock on one file changes other files under it, by name and through other handles: SQLite
//! creates, rewinds and removes a journal beside the database that it has locked. After an eviction another client may have
//! the lock, and by then the name may belong to the journal of that client. Without this journal its database cannot be
//! repaired. The handle with the lost lock fails with EIO (`open.rs`), and so does every change by its process, until the
//! handle is closed. Reads of the process and calls of all other processes are not affected.
//!
//! A process has a handle if two conditions hold. (1) It has the file open now. The front end examines this, because
//! children inherit handles and processes pass them on. (2) It has locked the file, or may have opened it before the
//! eviction. Where the front end cannot examine processes, those that the kernel named with the locks count. Bounded by the
//! open handles. Not here: how a front end knows its caller (`nacre-fuse/src/caller.rs`).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_types::{Fid, OpenHandle};

/// A handle that had locks.
struct Lost {
    fid: Fid,
    /// Processes that had locked the file through it.
    processes: BTreeSet<u32>,
    /// Processes that the log has named.
    logged: BTreeSet<u32>,
}

#[derive(Default)]
struct State {
    handles: BTreeMap<OpenHandle, Lost>,
    /// Handles of the same files that were opened since, with the processes that opened them.
    later: BTreeMap<OpenHandle, (Fid, u32)>,
}

/// The handles of a mount that have lost their locks and are still open.
#[derive(Default)]
pub(crate) struct LostHandles(RefCell<State>);

impl LostHandles {
    pub(crate) fn lost(&self, handle: OpenHandle, fid: Fid, processes: BTreeSet<u32>) {
        self.0.borrow_mut().handles.insert(handle, Lost { fid, processes, logged: BTreeSet::new() });
    }
    pub(crate) fn closed(&self, handle: OpenHandle) {
        let mut state = self.0.borrow_mut();
        state.handles.remove(&handle);
        state.later.remove(&handle);
        if state.handles.is_empty() {
            state.later.clear();
        }
    }
    pub(crate) fn files(&self) -> Vec<Fid> {
        let state = self.0.borrow();
        let mut files: Vec<Fid> = state.handles.values().map(|lost| lost.fid).collect();
        files.sort_unstable();
        files.dedup();
        files
    }
    pub(crate) fn opened(&self, handle: OpenHandle, fid: Fid, process: u32) {
        let mut state = self.0.borrow_mut();
        if state.handles.values().any(|lost| lost.fid == fid) {
            state.later.insert(handle, (fid, process));
        }
    }
    /// The file whose handle blocks the changes of a process, and whether this is the first time.
    pub(crate) fn blocked_by(&self, process: u32, open: Option<&[Fid]>) -> Option<(Fid, bool)> {
        let state = &mut *self.0.borrow_mut();
        let later = &state.later;
        let has = |lost: &Lost| {
            let locked = lost.processes.contains(&process);
            let opened_later = || later.values().any(|of| *of == (lost.fid, process));
            open.map_or(locked, |open| open.contains(&lost.fid) && (locked || !opened_later()))
        };
        let lost = state.handles.values_mut().find(|lost| has(lost))?;
        Some((lost.fid, lost.logged.insert(process)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Oid, Seq};

    #[test]
    fn a_process_is_kept_from_changes_until_its_handle_is_closed() {
        let lost = LostHandles::default();
        let (a, b) = (Fid::new(Seq(0x100), Oid(1)), Fid::new(Seq(0x100), Oid(2)));
        assert!(lost.files().is_empty() && lost.blocked_by(7, None).is_none());
        lost.lost(OpenHandle(1), a, [7].into());
        assert_eq!(lost.blocked_by(7, None), Some((a, true)), "it had locked");
        assert_eq!(lost.blocked_by(7, Some(&[a])), Some((a, false)), "said once");
        assert_eq!(lost.blocked_by(7, Some(&[])), None, "it has closed it, and a child has it");
        assert_eq!(lost.blocked_by(8, None), None);
        assert_eq!(lost.blocked_by(8, Some(&[b])), None);
        assert_eq!(lost.blocked_by(8, Some(&[a])), Some((a, true)), "a child that has inherited the handle");
        lost.opened(OpenHandle(2), a, 9);
        lost.opened(OpenHandle(3), b, 9);
        assert_eq!(lost.blocked_by(9, Some(&[a, b])), None, "it has opened the file by itself");
        lost.opened(OpenHandle(4), a, 7);
        assert_eq!(lost.blocked_by(7, Some(&[a])), Some((a, false)), "it still has the old handle");
        lost.closed(OpenHandle(2));
        assert_eq!(lost.blocked_by(9, Some(&[a])), Some((a, true)));
        lost.closed(OpenHandle(1));
        assert!(lost.blocked_by(7, Some(&[a])).is_none() && lost.files().is_empty());
        assert!(lost.0.borrow().later.is_empty());
    }
}
