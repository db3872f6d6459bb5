//! File locks that this mount grants without a request, and their reports to the MDT.
//!
//! While this mount has the lock bit WRITE_BACK of a file, no other client has the file open, so none can have or request a
//! lock on it. Programs that lock for every operation (SQLite takes six locks for a transaction) would otherwise send a
//! change to the MDT for each.
//!
//! Rules: (1) A lock is granted here while WRITE_BACK may be used at that moment and this mount has the file open for writing
//! (without that, others open the file and do not revoke the bit), and if the MDT knows no lock of this mount on the file and
//! no request about one is under way. (2) An unlock is carried out here whenever all locks of this mount on
//! the file are known here only. (3) A request that would have to wait goes to the MDT. (4) Before any request about a lock on
//! the file, all locks that are known here only are reported to the MDT, and from then on they are locks like all others,
//! until this mount has none on the file. (5) They are also reported before WRITE_BACK is returned, and before a
//! handle that may write is closed at the MDT. A restarted MDT revokes WRITE_BACK of whoever has the file open for writing. So
//! another client that opens the file meets the locks at the MDT. (6) An eviction ends them, like those that the MDT knows.
//!
//! Not here: conflicts and bounds (`LocalFlocks` of nacre-dlm), requests (`flocks.rs`), the reports (`targets/flock_reports.rs`).

use crate::files::table::Open;
use crate::locks::file_flocks::{family_of, range_of};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_dlm::client::{LocalFlocks as Locks, LocalOutcome, OwnedLock};
use nacre_dlm::policy::flock::{Family, Kind, Lock};
use nacre_node::{Ctx, WaitList};
use nacre_types::Fid;
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType};

/// A lock that is to be reported, and the handle through which its owner has requested locks.
pub(crate) type Reported = (FileLock, Option<Rc<Open>>);

#[derive(Default)]
struct State {
    locks: Locks,
    /// The handles of the owners of these locks.
    opens: BTreeMap<(Fid, Family, u64), Rc<Open>>,
    /// Files whose locks the MDT knows or is told, each with the requests about them that are under way.
    at_mdt: BTreeMap<Fid, u32>,
    reporting: BTreeSet<Fid>,
}

/// The file locks that one MDT does not know.
pub(crate) struct LocalFlocks {
    state: RefCell<State>,
    reported: WaitList,
}

impl LocalFlocks {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self { state: RefCell::default(), reported: ctx.wait_list() }
    }
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.borrow();
        state.locks.is_empty() && state.at_mdt.is_empty() && state.reporting.is_empty()
    }
    /// Whether locks on this file go to the MDT.
    fn is_at_mdt(&self, fid: Fid) -> bool {
        self.state.borrow().at_mdt.contains_key(&fid)
    }
    /// Removes a lock here. False: it has to be removed at the MDT.
    pub(super) fn unlock(&self, fid: Fid, lock: &FileLock) -> bool {
        if self.is_at_mdt(fid) {
            return false;
        }
        let state = &mut *self.state.borrow_mut();
        let (family, (start, end)) = (family_of(lock.family), range_of(lock));
        let done = state.locks.unlock(fid, family, lock.owner, start, end) == LocalOutcome::Granted;
        if !state.locks.has(fid, family, lock.owner) {
            state.opens.remove(&(fid, family, lock.owner));
        }
        done
    }
    /// Grants or refuses a lock. `None`: the MDT has to decide.
    pub(super) fn lock(
        &self,
        open: &Rc<Open>,
        lock: &FileLock,
        kind: Kind,
        wait: bool,
    ) -> Option<FlockOutcome> {
        let fid = open.file.fid;
        if self.is_at_mdt(fid) {
            return None;
        }
        let state = &mut *self.state.borrow_mut();
        let (family, (start, end)) = (family_of(lock.family), range_of(lock));
        match state.locks.lock(fid, family, lock.owner, Lock { start, end, kind, pid: lock.pid }) {
            LocalOutcome::Granted => {
                state.opens.insert((fid, family, lock.owner), open.clone());
                Some(FlockOutcome::Granted)
            }
            LocalOutcome::Conflict if !wait => Some(FlockOutcome::Conflict),
            LocalOutcome::Conflict | LocalOutcome::Full => None,
        }
    }
    /// A lock that conflicts with this one. `None`: the MDT has to be asked.
    pub(super) fn test(&self, fid: Fid, lock: &FileLock, kind: Kind) -> Option<Option<FileLock>> {
        if self.is_at_mdt(fid) {
            return None;
        }
        let (start, end) = range_of(lock);
        let wanted = Lock { start, end, kind, pid: lock.pid };
        Some(self.state.borrow().locks.test(fid, family_of(lock.family), lock.owner, &wanted).map(as_sent))
    }
    /// A request about locks on a file begins: until it ends, all others go to the MDT as well.
    pub(crate) fn request(&self, fid: Fid) -> FlockRequest<'_> {
        *self.state.borrow_mut().at_mdt.entry(fid).or_default() += 1;
        FlockRequest { locks: self, fid }
    }
    /// Takes the locks on a file, to be reported.
    pub(crate) fn begin_report(&self, fid: Fid) -> Vec<Reported> {
        let state = &mut *self.state.borrow_mut();
        let mut due = Vec::new();
        for owned in state.locks.take(fid) {
            let open = state.opens.get(&(fid, owned.0, owned.1)).cloned();
            due.push((as_sent(owned), open));
        }
        for (lock, _) in &due {
            state.opens.remove(&(fid, family_of(lock.family), lock.owner));
        }
        if !due.is_empty() {
            state.at_mdt.entry(fid).or_default();
            state.reporting.insert(fid);
        }
        due
    }
    pub(crate) fn end_report(&self, fid: Fid) {
        self.state.borrow_mut().reporting.remove(&fid);
        self.reported.wake_all();
    }
    /// Waits for the report of the locks on a file that is under way.
    pub(crate) async fn reported(&self, fid: Fid) {
        while self.state.borrow().reporting.contains(&fid) {
            self.reported.wait().await;
        }
    }
    /// The MDT has evicted this mount: there are no locks any more. Requests that wait are sent again.
    pub(crate) fn evicted(&self) {
        let state = &mut *self.state.borrow_mut();
        (state.locks, state.opens) = (Locks::default(), BTreeMap::new());
        state.at_mdt.retain(|_, requests| *requests > 0);
    }
}

/// A request about locks on a file that goes to the MDT.
pub(crate) struct FlockRequest<'a> {
    locks: &'a LocalFlocks,
    fid: Fid,
}
impl FlockRequest<'_> {
    /// It has its outcome. `has_locks`: this mount has locks on the file now.
    pub(crate) fn ended(self, has_locks: bool) {
        let mut state = self.locks.state.borrow_mut();
        if state.at_mdt.get(&self.fid) == Some(&1) && !has_locks && !state.reporting.contains(&self.fid) {
            state.at_mdt.remove(&self.fid);
        }
    }
}
impl Drop for FlockRequest<'_> {
    fn drop(&mut self) {
        if let Some(requests) = self.locks.state.borrow_mut().at_mdt.get_mut(&self.fid) {
            *requests = requests.saturating_sub(1);
        }
    }
}

fn as_sent((family, owner, lock): OwnedLock) -> FileLock {
    let family = match family {
        Family::Flock => FlockFamily::Flock,
        Family::Posix => FlockFamily::Posix,
    };
    let kind = match lock.kind {
        Kind::Read => FlockType::Read,
        Kind::Write => FlockType::Write,
    };
    FileLock { family, kind, start: lock.start, end: lock.end, owner, pid: lock.pid }
}
