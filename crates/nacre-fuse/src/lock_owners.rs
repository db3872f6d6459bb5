//! The owners of file locks, as the servers know them.
//!
//! The kernel names an owner by the address of an open file (flock(2), OFD locks) or of the table of open files of a process
//! (fcntl(2)). An address is used again as soon as its open file is gone, whose RELEASE may still be on its way:
//! without names of our own, the next open file at the address would inherit the lock, and lose its own to that RELEASE.
//!
//! Rules: (1) The owner of a flock(2) is its handle. (2) Any other owner gets a new name with its first lock. The name is that
//! of the handles through which it locks, and ends with the last of them. (3) A known owner that locks through another
//! handle is a process with two handles, or a new open file in the place of one that was closed. The latter is possible only
//! if that one was closed (FLUSH) after its last lock: then the lock waits for its RELEASE, for [`RELEASE_TIMEOUT`] at most. (4)
//! An owner is a process for good once that is certain or the wait was in vain. So a process waits once at most. (5) The
//! kernel waits for no RELEASE, which first sends the bytes that were written. A lock that does not wait, and meets a conflict
//! meanwhile, is tried again afterwards: its program may have closed the file that had the lock.
//!
//! Bounded by the open handles.

use crate::door::Door;
use crate::ops::Ops;
use crate::request::FuseRequest;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Errno, Fid, OpenHandle};
use nacre_wire::mdt::{FileLock, FlockOutcome};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The kernel sends a RELEASE in the background, behind other requests of that kind.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Owner {
    name: u64,
    handles: BTreeSet<u64>,
    is_process: bool,
}

/// A handle through which locks were requested.
#[derive(Debug, Default)]
struct Used {
    /// The kernel's names of those that did.
    by: BTreeSet<u64>,
    /// It was closed after its last lock, perhaps not for the last time.
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Known {
    /// By the kernel's name.
    owners: BTreeMap<u64, Owner>,
    handles: BTreeMap<u64, Used>,
    /// The latest name.
    name: u64,
    /// Files with handles that are ending and may have locks.
    ending: BTreeMap<Fid, u32>,
}

/// The owners of one mount that are not those of a flock(2), and the handles with locks of any kind that are ending.
pub(crate) struct LockOwners {
    known: RefCell<Known>,
    /// A RELEASE has come, or was carried out.
    released: WaitList,
}

impl Known {
    fn fresh(&mut self) -> u64 {
        self.name = self.name.wrapping_add(1);
        self.name
    }
    /// The name for a lock through a handle. `None`: the owner may be another one than before.
    fn locks(&mut self, kernel: u64, handle: u64) -> Option<u64> {
        let is_new = !self.owners.contains_key(&kernel);
        let fresh = if is_new { self.fresh() } else { 0 };
        let new = || Owner { name: fresh, handles: BTreeSet::new(), is_process: false };
        let owner = self.owners.entry(kernel).or_insert_with(new);
        if !is_new && !owner.is_process && !owner.handles.contains(&handle) {
            let is_closed = |other| self.handles.get(other).is_none_or(|used| used.is_closed);
            if owner.handles.iter().all(is_closed) {
                return None;
            }
            owner.is_process = true;
        }
        owner.handles.insert(handle);
        let used = self.handles.entry(handle).or_default();
        used.by.insert(kernel);
        used.is_closed = false;
        Some(owner.name)
    }
    /// The name of an owner that does not lock; a new one if it has no locks.
    fn name(&mut self, kernel: u64) -> u64 {
        let name = self.owners.get(&kernel).map(|owner| owner.name);
        name.unwrap_or_else(|| self.fresh())
    }
    /// An owner is a process.
    fn note_process(&mut self, kernel: u64) {
        if let Some(owner) = self.owners.get_mut(&kernel) {
            owner.is_process = true;
        }
    }
    fn released(&mut self, handle: u64) {
        for kernel in self.handles.remove(&handle).unwrap_or_default().by {
            if let Some(owner) = self.owners.get_mut(&kernel)
                && owner.handles.remove(&handle)
                && owner.handles.is_empty()
            {
                self.owners.remove(&kernel);
            }
        }
    }
}

impl LockOwners {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        let known = Known { name: ctx.random(), ..Known::default() };
        Self { known: RefCell::new(known), released: ctx.wait_list() }
    }
    /// The name of an owner that does not lock; a new one if it has no locks.
    pub(crate) fn name(&self, kernel: u64) -> u64 {
        self.known.borrow_mut().name(kernel)
    }
    /// A process, which the kernel names, closes a descriptor of a handle. Returns the name of the process.
    pub(crate) fn closes(&self, process: u64, handle: u64) -> u64 {
        let known = &mut *self.known.borrow_mut();
        if known.owners.is_empty() {
            return process; // nearly always: it has no locks
        }
        if let Some(used) = known.handles.get_mut(&handle) {
            used.is_closed = true;
        }
        known.note_process(process);
        known.name(process)
    }
    /// The RELEASE of a handle has come. `flock`: it may have such a lock. Returns whether it may have locks.
    fn released(&self, handle: u64, flock: bool, fid: Fid) -> bool {
        let known = &mut *self.known.borrow_mut();
        if !flock && !known.handles.contains_key(&handle) {
            return false; // nearly always
        }
        known.released(handle);
        *known.ending.entry(fid).or_default() += 1;
        self.released.wake_all();
        true
    }
    /// It was carried out.
    fn ended(&self, fid: Fid) {
        let known = &mut *self.known.borrow_mut();
        if let Some(handles) = known.ending.get_mut(&fid) {
            *handles -= 1;
            if *handles == 0 {
                known.ending.remove(&fid);
            }
        }
        self.released.wake_all();
    }
    fn is_ending(&self, fid: Fid) -> bool {
        self.known.borrow().ending.contains_key(&fid)
    }
}

impl<O: Ops> Door<O> {
    /// The name of the owner of a lock that is requested through a handle.
    ///
    /// # Errors
    /// EINTR: its caller has ended meanwhile, and the handle may have been released.
    pub(crate) async fn lock_owner(
        &self,
        request: &FuseRequest,
        kernel: u64,
        handle: u64,
    ) -> Result<u64, Errno> {
        let LockOwners { known, released } = self.lock_owners();
        let deadline = self.ctx.now() + RELEASE_TIMEOUT;
        loop {
            if request.has_reply() {
                return Err(Errno::EINTR);
            }
            if let Some(name) = known.borrow_mut().locks(kernel, handle) {
                return Ok(name);
            }
            if self.ctx.timeout(deadline, released.wait()).await.is_none() {
                known.borrow_mut().note_process(kernel);
            }
        }
    }
    /// Carries out a RELEASE. `flock`: the handle may have a lock of flock(2).
    pub(crate) async fn release(&self, fid: Fid, handle: u64, flock: bool) -> Result<(), Errno> {
        let has_locks = self.lock_owners().released(handle, flock, fid);
        let released = self.ops.release(OpenHandle(handle), flock.then_some(handle)).await;
        if has_locks {
            self.lock_owners().ended(fid);
        }
        released
    }
    /// Requests a lock. One that does not wait waits only for handles that are ending.
    pub(crate) async fn lock(
        &self,
        fid: Fid,
        handle: OpenHandle,
        lock: FileLock,
        wait: bool,
    ) -> Result<FlockOutcome, Errno> {
        let deadline = self.ctx.now() + RELEASE_TIMEOUT;
        loop {
            let outcome = self.ops.flock(handle, lock, wait).await?;
            if outcome != FlockOutcome::Conflict || !self.lock_owners().is_ending(fid) {
                return Ok(outcome);
            }
            if self.ctx.timeout(deadline, self.lock_owners().released.wait()).await.is_none() {
                return Ok(outcome);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names by which the kernel calls an open file and two processes.
    const FILE: u64 = 0xf11e;
    const PROCESS: u64 = 0x9a;
    const CHILD: u64 = 0xc4;

    fn closes(known: &mut Known, process: u64, handle: u64) {
        known.handles.get_mut(&handle).expect("it was locked").is_closed = true;
        known.note_process(process);
    }

    #[test]
    fn an_open_file_in_the_place_of_a_closed_one_waits_for_its_release() {
        let mut known = Known::default();
        let first = known.locks(FILE, 1).expect("a new owner");
        assert_eq!(known.locks(FILE, 1), Some(first), "the same open file");
        closes(&mut known, PROCESS, 1);
        assert_eq!(known.locks(FILE, 2), None);
        known.released(1);
        let second = known.locks(FILE, 2).expect("the former one is gone");
        assert_ne!(first, second);
        closes(&mut known, PROCESS, 2);
        known.released(2);
        assert!(known.owners.is_empty() && known.handles.is_empty());
    }

    #[test]
    fn a_process_with_two_handles_is_one_owner() {
        let mut known = Known::default();
        let name = known.locks(PROCESS, 1).expect("a new owner");
        assert_eq!(known.locks(PROCESS, 2), Some(name), "handle 1 is open");
        // A child that inherits a handle closes it before it executes another program.
        closes(&mut known, CHILD, 1);
        closes(&mut known, CHILD, 2);
        assert_eq!(known.locks(PROCESS, 3), Some(name), "it is known to be a process");
        known.released(1);
        known.released(3);
        assert_eq!(known.name(PROCESS), name);
        known.released(2);
        assert_ne!(known.name(PROCESS), name);
    }

    #[test]
    fn a_process_that_waited_in_vain_does_not_wait_again() {
        let mut known = Known::default();
        let name = known.locks(PROCESS, 1).expect("a new owner");
        closes(&mut known, CHILD, 1);
        assert_eq!(known.locks(PROCESS, 2), None);
        known.note_process(PROCESS);
        assert_eq!(known.locks(PROCESS, 2), Some(name));
        closes(&mut known, CHILD, 2);
        assert_eq!(known.locks(PROCESS, 3), Some(name));
    }
}
