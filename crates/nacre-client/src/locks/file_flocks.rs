//! The file locks that this mount has on one file, through whichever of its handles.

use alloc::collections::BTreeSet;
use core::cell::{Cell, RefCell};
use nacre_dlm::client::GrantedFlocks;
use nacre_dlm::policy::flock::{Family, Kind, Lock};
use nacre_types::OpenHandle;
use nacre_wire::mdt::{FileLock, FlockFamily, FlockType};

/// Locks of one file, as the MDT or this mount itself has granted them.
#[derive(Default)]
pub(crate) struct FileFlocks {
    /// A lock was requested through some handle: only then a close has to look for locks in all of them.
    were_requested: Cell<bool>,
    granted: RefCell<GrantedFlocks>,
}

impl FileFlocks {
    /// A lock is about to be requested.
    pub(crate) fn requested(&self) {
        self.were_requested.set(true);
    }
    pub(crate) fn were_requested(&self) -> bool {
        self.were_requested.get()
    }
    /// Records a lock or an unlock that the MDT has granted.
    pub(crate) fn record(&self, handle: OpenHandle, lock: &FileLock) {
        let mut granted = self.granted.borrow_mut();
        let (family, (start, end)) = (family_of(lock.family), range_of(lock));
        match kind_of(lock.kind) {
            None => granted.unlock(family, lock.owner, start, end),
            Some(kind) => {
                granted.lock(handle, family, lock.owner, Lock { start, end, kind, pid: lock.pid });
            }
        }
    }
    /// The locks of an owner have ended.
    pub(crate) fn remove_owner(&self, family: FlockFamily, owner: u64) {
        self.granted.borrow_mut().remove_owner(family_of(family), owner);
    }
    /// The MDT has evicted this mount: there are no locks any more.
    pub(crate) fn clear(&self) {
        self.granted.borrow_mut().clear();
    }
    /// Whether there is no lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.granted.borrow().is_empty()
    }
    /// Whether an owner has a lock.
    pub(crate) fn has(&self, family: FlockFamily, owner: u64) -> bool {
        self.granted.borrow().has(family_of(family), owner)
    }
    /// Whether there are locks through this handle.
    pub(crate) fn covers(&self, handle: OpenHandle) -> bool {
        self.granted.borrow().covers(handle)
    }
    /// The processes that have locks through this handle.
    pub(crate) fn processes(&self, handle: OpenHandle) -> BTreeSet<u32> {
        self.granted.borrow().processes(handle)
    }
}

pub(super) fn family_of(family: FlockFamily) -> Family {
    match family {
        FlockFamily::Flock => Family::Flock,
        FlockFamily::Posix => Family::Posix,
    }
}
/// `None`: an unlock.
pub(super) fn kind_of(kind: FlockType) -> Option<Kind> {
    match kind {
        FlockType::Unlock => None,
        FlockType::Read => Some(Kind::Read),
        FlockType::Write => Some(Kind::Write),
    }
}
/// The locked range, `end` inclusive. flock(2) covers the whole file, whatever the range says.
pub(super) fn range_of(lock: &FileLock) -> (u64, u64) {
    match lock.family {
        FlockFamily::Flock => (0, u64::MAX),
        FlockFamily::Posix => (lock.start, lock.end),
    }
}
