//! Opens for reading that were made without a request, under the OPEN bit of a lock.
//!
//! Rules: (1) such an open is made and entered here in one visit, while the lock may be used, of an inode that has a name, and
//! while no own change of the inode is under way. (2) The opens of an inode are reported to the MDT before its OPEN bit is
//! returned, before an own change that may remove its last name, and before the MDT hears after its restart that no lock of
//! an earlier start is used. From then on they are opens like all others. (3) One that is closed before that leaves nothing
//! at the MDT. (4) An eviction opens every handle again by a request. So an inode that is open has an open at the MDT before
//! anybody can remove it.
//!
//! Bounded: with [`LATE_OPENS_MAX`] of them, further opens are requested.

use crate::files::table::Open;
use crate::targets::mdt::Mdt;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Errno, Fid};
use nacre_wire::mdt::{OpenHow, REPORTED_OPENS_MAX, ReportOpens, ReportedOpen};

/// Opens that one MDT does not know of.
const LATE_OPENS_MAX: usize = 4096;

/// What the MDT knows of an open handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtMdt {
    /// It has the open.
    Known,
    /// It has not.
    Unknown,
    /// A report is under way.
    Reporting,
}

/// The opens of one inode.
#[derive(Default)]
struct OfInode {
    unknown: Vec<Rc<Open>>,
    /// Opens with a report under way.
    reporting: usize,
}

/// The opens that an MDT does not know of.
pub(crate) struct LateOpens {
    by_fid: RefCell<BTreeMap<Fid, OfInode>>,
    count: core::cell::Cell<usize>,
    reported: WaitList,
}

impl LateOpens {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self { by_fid: RefCell::default(), count: core::cell::Cell::new(0), reported: ctx.wait_list() }
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
    /// Takes an open out that ends, or that is requested now. False: the MDT knows it, or is being told.
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
    fn fids(&self) -> Vec<Fid> {
        self.by_fid.borrow().keys().copied().collect()
    }
    /// Takes the opens of these inodes, to be reported.
    fn begin_report(&self, fids: &[Fid]) -> Vec<Rc<Open>> {
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
    fn end_report(&self, opens: &[Rc<Open>]) {
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

impl Mdt {
    /// Reports the opens of these inodes; when it returns, the MDT knows them. An open that it refuses is lost.
    pub(crate) async fn report_opens(&self, fids: &[Fid]) {
        let due = self.late_opens().begin_report(fids);
        for some in due.chunks(REPORTED_OPENS_MAX) {
            let reported = |open: &Rc<Open>| ReportedOpen {
                fid: open.file.fid,
                how: OpenHow { handle: open.handle, flags: open.flags() },
            };
            let request = ReportOpens { opens: some.iter().map(reported).collect() };
            match self.call(&request).await {
                Ok(reply) => {
                    let results = reply
                        .results
                        .iter()
                        .map(|status| status.error())
                        .chain(core::iter::repeat(Some(Errno::EPROTO)));
                    for (open, error) in some.iter().zip(results) {
                        if let Some(error) = error {
                            tracing::error!(fid = %open.file.fid, %error,
                                "the MDT refuses an open that was made under a lock: its handle fails with EIO");
                            open.set_stale();
                        }
                    }
                }
                // Evicted, and every handle is opened again, or at the end of the mount.
                Err(error) => {
                    tracing::debug!(target_name = %self.name, %error, "opens could not be reported");
                }
            }
            self.late_opens().end_report(some);
        }
        while self.late_opens().is_reporting(fids) {
            self.late_opens().reported.wait().await;
        }
    }
    /// The same for all opens.
    pub(crate) async fn report_all_opens(&self) {
        let fids = self.late_opens().fids();
        self.report_opens(&fids).await;
    }
}
