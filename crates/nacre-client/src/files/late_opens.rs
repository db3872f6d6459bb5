//! Opens for reading that were made without a request, under the OPEN bit of a lock.
//!
//! Rules: (1) such an open is made and entered here in one visit; the lock may be used at that moment, the inode has a
//! name, and no own change of the inode is under way. (2) The opens of an inode are reported to the MDT before its OPEN
//! bit is returned, before an own change that may remove its last name, and, after a restart of the MDT, before this
//! mount reports that it uses no lock of an earlier start. From then on they are opens like all others. (3) An open
//! that is closed before it was reported leaves nothing at the MDT. (4) An eviction opens every handle again by a
//! request. So an inode that is open has an open at the MDT before any client can remove it.
//!
//! Not here: the request (`targets/open_reports.rs`). Bounded: with [`LATE_OPENS_MAX`] of them, further opens are requested.

use crate::files::table::{AtMdt, Open};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, WaitList};
use nacre_types::Fid;

/// Opens that were not reported to one MDT.
const LATE_OPENS_MAX: usize = 4096;

/// The opens of one inode.
#[derive(Default)]
struct OfInode {
    unknown: Vec<Rc<Open>>,
    /// Opens with a report under way.
    reporting: usize,
}

/// The opens that were not reported to one MDT.
pub(crate) struct LateOpens {
    by_fid: RefCell<BTreeMap<Fid, OfInode>>,
    count: Cell<usize>,
    reported: WaitList,
}

impl LateOpens {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self { by_fid: RefCell::default(), count: Cell::new(0), reported: ctx.wait_list() }
    }
    pub(crate) fn is_idle(&self) -> bool {
        self.by_fid.borrow().is_empty()
    }
    pub(crate) fn has_room(&self) -> bool {
        self.count.get() < LATE_OPENS_MAX
    }
    /// Enters an open that was made without a request.
    pub(crate) fn add(&self, open: &Rc<Open>) {
        open.set_at_mdt(AtMdt::Unknown);
        self.count.set(self.count.get() + 1);
        self.by_fid.borrow_mut().entry(open.file.fid).or_default().unknown.push(open.clone());
    }
    /// Removes an open that ends, or that is requested now. False: it has been reported, or its report is under way.
    pub(crate) fn remove(&self, open: &Open) -> bool {
        if open.at_mdt() != AtMdt::Unknown {
            return false;
        }
        let mut by_fid = self.by_fid.borrow_mut();
        if let Some(of_inode) = by_fid.get_mut(&open.file.fid) {
            of_inode.unknown.retain(|late| late.handle != open.handle);
            if of_inode.unknown.is_empty() && of_inode.reporting == 0 {
                by_fid.remove(&open.file.fid);
            }
        }
        open.set_at_mdt(AtMdt::Known);
        self.count.set(self.count.get() - 1);
        true
    }
    /// Whether opens of an inode are not known to the MDT, or are being reported.
    pub(crate) fn has(&self, fid: Fid) -> bool {
        self.by_fid.borrow().contains_key(&fid)
    }
    /// The inodes with such opens.
    pub(crate) fn fids(&self) -> Vec<Fid> {
        self.by_fid.borrow().keys().copied().collect()
    }
    /// Takes the opens of these inodes, to be reported.
    pub(crate) fn begin_report(&self, fids: &[Fid]) -> Vec<Rc<Open>> {
        let mut by_fid = self.by_fid.borrow_mut();
        let mut due = Vec::new();
        for fid in fids {
            let Some(of_inode) = by_fid.get_mut(fid) else { continue };
            of_inode.reporting += of_inode.unknown.len();
            due.append(&mut of_inode.unknown);
        }
        due.iter().for_each(|open| open.set_at_mdt(AtMdt::Reporting));
        self.count.set(self.count.get() - due.len());
        due
    }
    /// The reports of these opens have been acknowledged.
    pub(crate) fn end_report(&self, opens: &[Rc<Open>]) {
        let mut by_fid = self.by_fid.borrow_mut();
        for open in opens {
            open.set_at_mdt(AtMdt::Known);
            let Some(of_inode) = by_fid.get_mut(&open.file.fid) else { continue };
            of_inode.reporting -= 1;
            if of_inode.unknown.is_empty() && of_inode.reporting == 0 {
                by_fid.remove(&open.file.fid);
            }
        }
        drop(by_fid);
        self.reported.wake_all();
    }
    /// Waits for the reports of opens of these inodes that are under way.
    pub(crate) async fn all_reported(&self, fids: &[Fid]) {
        while self.is_reporting(fids) {
            self.reported.wait().await;
        }
    }
    fn is_reporting(&self, fids: &[Fid]) -> bool {
        let by_fid = self.by_fid.borrow();
        fids.iter().any(|fid| by_fid.get(fid).is_some_and(|of_inode| of_inode.reporting > 0))
    }
    /// Waits for the report of an open that is under way.
    pub(crate) async fn reported(&self, open: &Open) {
        while open.at_mdt() == AtMdt::Reporting {
            self.reported.wait().await;
        }
    }
}
