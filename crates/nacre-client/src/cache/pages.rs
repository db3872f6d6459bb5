//! The bytes of files that the kernel keeps in its page cache.
//!
//! The kernel keeps what it reads through a handle without direct I/O, and what a mapping needs; such a read is a *fill*. It
//! cannot be given bytes that it does not keep. Rules:
//!
//! 1. The bytes of a fill stay with the kernel if every object that was read is under a data lock (`data_locks`) which the
//!    reply to the read itself has granted and which stands when the fill is decided, and if this mount has no handle open for
//!    writing. Otherwise the kernel drops them right after the reply.
//! 2. When a data lock ends, the kernel drops the bytes of the file, and only then is the lock returned.
//! 3. Handles that are open for writing use direct I/O. The first one is opened when the kernel has dropped what it kept. Fills
//!    for mappings of such handles stay, although no lock covers them, until the last of these handles is closed: a mapping
//!    may be written, and the kernel writes its pages back before it drops them, for which it would wait for the very change
//!    that has revoked a lock. If the file also has a handle without direct I/O, from before, the kernel drops fills at once.
//! 4. The kernel asks for attributes before it reads from its cache, unless it has valid ones. Attributes are valid no longer
//!    than the leases of the data locks, and not at all while there are bytes that no lock covers. The reply to the question waits until
//!    the kernel has dropped all bytes that no lock covered when the question came, and those whose lease has run out (`settle`).
//!    So do opens; replies to writes wait for drops under way, so that no reader of this mount finds older bytes afterwards.
//!
//! Mappings do not ask for attributes: a load may return older bytes while the mount is cut off or stopped, and while the
//! kernel drops a page that no lock covers.

use crate::cache::data_locks::{DataLocks, KeptBytes};
use crate::cache::kernel::{KernelCache, Stale};
use crate::targets::lock_returns::return_locks;
use crate::targets::target::Target;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, WaitList};
use nacre_types::{Extent, Fid, Instant, ObjectId, OstIndex};
use nacre_wire::ost::ObjectState;
use nacre_wire::{Frame, flags};

/// What may bring bytes into the kernel's cache, or is about to remove them.
#[derive(Debug)]
enum Pending {
    /// A fill that reads from these OSTs.
    Fill(Vec<OstIndex>),
    /// The kernel is dropping bytes.
    Drop,
}

/// The bytes of one file.
#[derive(Default)]
struct FilePages {
    /// The OSTs under whose data locks the kernel keeps bytes.
    kept: BTreeSet<OstIndex>,
    pending: BTreeMap<u64, Pending>,
    /// Made by the first who waits for the end of something pending.
    changed: Option<Rc<WaitList>>,
}

/// The bytes of all files, and the data locks of all OSTs.
pub(crate) struct Pages {
    ctx: Rc<Ctx>,
    me: Weak<Pages>,
    on: Cell<bool>,
    kernel: RefCell<Option<Rc<dyn KernelCache>>>,
    osts: RefCell<BTreeMap<OstIndex, Rc<DataLocks>>>,
    files: RefCell<BTreeMap<Fid, FilePages>>,
    /// Number of the latest fill or drop.
    last: Cell<u64>,
}

/// Something pending; it ends when this is dropped.
pub(crate) struct Unsettled {
    pages: Rc<Pages>,
    fid: Fid,
    number: u64,
}
impl Drop for Unsettled {
    fn drop(&mut self) {
        let mut files = self.pages.files.borrow_mut();
        let Some(file) = files.get_mut(&self.fid) else { return };
        file.pending.remove(&self.number);
        if let Some(changed) = &file.changed {
            changed.wake_all();
        }
        if file.pending.is_empty() && file.kept.is_empty() {
            files.remove(&self.fid);
        }
    }
}

/// For what a caller waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settle {
    /// For drops.
    Drops,
    /// For drops, and for fills that may bring bytes which no lock covers.
    Uncovered,
    /// For drops and fills.
    All,
}

/// A read for the kernel's page cache under way.
pub(crate) struct Fill {
    unsettled: Unsettled,
    range: Extent,
    /// The serials of the locks that the replies have granted. `None`: a reply has granted none.
    granted: RefCell<BTreeMap<OstIndex, Option<u64>>>,
    states: RefCell<Vec<(OstIndex, ObjectId, ObjectState)>>,
}
impl Fill {
    /// The flags of its requests.
    pub(crate) fn wanted(&self) -> u32 {
        if self.unsettled.pages.is_on() { flags::MAY_LOCK } else { 0 }
    }
    /// Processes the reply of an OST.
    pub(crate) fn replied(&self, ost: OstIndex, frame: &Frame, object: ObjectId, state: ObjectState) {
        let serial = self.unsettled.pages.locks_of(ost).and_then(|locks| locks.granted(frame, object.fid));
        let mut granted = self.granted.borrow_mut();
        let all = granted.entry(ost).or_insert(serial);
        if *all != serial {
            *all = None;
        }
        self.states.borrow_mut().push((ost, object, state));
    }
}

impl Pages {
    pub(crate) fn new(ctx: &Rc<Ctx>, on: bool) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            ctx: ctx.clone(),
            me: me.clone(),
            on: Cell::new(on),
            kernel: RefCell::default(),
            osts: RefCell::default(),
            files: RefCell::default(),
            last: Cell::new(0),
        })
    }
    fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("a call borrows a value that lives in an Rc")
    }
    /// Whether the administrator wants the kernel to keep bytes.
    pub(crate) fn is_wanted(&self) -> bool {
        self.on.get()
    }
    /// Whether the kernel may keep bytes.
    pub(crate) fn is_on(&self) -> bool {
        self.on.get() && self.kernel.borrow().is_some()
    }
    pub(crate) fn is_idle(&self) -> bool {
        self.files.borrow().values().all(|file| file.pending.is_empty())
    }
    pub(crate) fn set_kernel(&self, kernel: Rc<dyn KernelCache>) {
        *self.kernel.borrow_mut() = Some(kernel);
    }
    pub(super) fn kernel(&self) -> Option<Rc<dyn KernelCache>> {
        self.kernel.borrow().clone()
    }
    /// Turns the cache on or off. Without it the next opens use direct I/O, and the kernel drops what it keeps.
    pub(crate) fn set_on(&self, on: bool) {
        self.on.set(on);
        if !on {
            for locks in self.all_locks() {
                locks.cancel_all();
                return_locks(&locks);
            }
        }
    }
    /// A new OST.
    pub(crate) fn add_ost(&self, index: OstIndex, ost: &Rc<Target>) -> Rc<DataLocks> {
        let locks = DataLocks::new(&self.ctx, index, ost.clone(), self.me.clone());
        self.osts.borrow_mut().insert(index, locks.clone());
        locks
    }
    pub(crate) fn locks_of(&self, ost: OstIndex) -> Option<Rc<DataLocks>> {
        self.osts.borrow().get(&ost).cloned()
    }
    pub(crate) fn all_locks(&self) -> Vec<Rc<DataLocks>> {
        self.osts.borrow().values().cloned().collect()
    }
    fn begin(&self, fid: Fid, pending: Pending) -> Unsettled {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.files.borrow_mut().entry(fid).or_default().pending.insert(number, pending);
        Unsettled { pages: self.me(), fid, number }
    }

    // ---- fills

    /// A fill begins. It is ordered among the operations of this mount: its bytes are read after this.
    pub(crate) fn begin_fill(&self, fid: Fid, range: Extent, mut osts: Vec<OstIndex>) -> Fill {
        osts.sort_unstable();
        osts.dedup();
        Fill {
            unsettled: self.begin(fid, Pending::Fill(osts)),
            range,
            granted: RefCell::default(),
            states: RefCell::default(),
        }
    }
    /// The bytes of a fill have been read, and its reply is sent in this visit. `may_stay`: no handle of this mount is open for
    /// writing. Returns whether the bytes stay with the kernel; otherwise it drops them after the reply.
    pub(crate) fn end_fill(&self, fill: Fill, may_stay: bool) -> bool {
        let fid = fill.unsettled.fid;
        let granted = fill.granted.take();
        let stands = |ost: &OstIndex| {
            let serial = granted.get(ost).copied().flatten();
            serial.is_some() && self.locks_of(*ost).and_then(|locks| locks.serial(fid)) == serial
        };
        let mut files = self.files.borrow_mut();
        let Some(file) = files.get_mut(&fid) else { return false };
        let number = fill.unsettled.number;
        let stay = may_stay
            && self.is_on()
            && matches!(file.pending.get(&number), Some(Pending::Fill(osts)) if osts.iter().all(stands));
        if stay {
            file.kept.extend(granted.keys());
            drop(files);
            for (ost, object, state) in fill.states.take() {
                self.locks_of(ost).into_iter().for_each(|locks| locks.note_state(object, state));
            }
            return true;
        }
        file.pending.insert(number, Pending::Drop);
        drop(files);
        // The task begins after the reply has been passed on.
        self.drop_in_background(fill.unsettled, fill.range);
        false
    }
    fn drop_in_background(&self, unsettled: Unsettled, range: Extent) {
        let Some(kernel) = self.kernel() else { return };
        self.ctx.spawn(async move {
            kernel.forget(alloc::vec![Stale::Pages { fid: unsettled.fid, range }]).await;
            drop(unsettled);
        });
    }

    // ---- the ends of locks, own changes

    /// The kernel drops what it keeps of a file.
    pub(crate) async fn drop_kept(&self, fid: Fid) {
        self.all_locks().iter().for_each(|locks| locks.forget_states(fid));
        let is_kept = match self.files.borrow_mut().get_mut(&fid) {
            Some(file) => !core::mem::take(&mut file.kept).is_empty(),
            None => return,
        };
        if is_kept {
            let unsettled = self.begin(fid, Pending::Drop);
            if let Some(kernel) = self.kernel() {
                kernel.forget(alloc::vec![Stale::Pages { fid, range: Extent::ALL }]).await;
            }
            drop(unsettled);
        }
    }
    /// The kernel drops all bytes of a file, also those of mappings, in the background.
    pub(crate) fn drop_all(&self, fid: Fid) {
        self.drop_in_background(self.begin(fid, Pending::Drop), Extent::ALL);
    }

    // ---- questions

    /// Until when attributes of a file may be valid, as far as its bytes are concerned. `None`: the kernel has none of them.
    pub(super) fn valid_until(&self, fid: Fid, has_writers: impl FnOnce() -> bool) -> Option<Instant> {
        let files = self.files.borrow();
        let file = files.get(&fid)?;
        let own_writers = has_writers();
        if file.pending.values().any(|pending| !self.is_covered(fid, pending, own_writers)) {
            return Some(Instant::default());
        }
        let until = |ost: &OstIndex| self.locks_of(*ost)?.usable_until();
        let filling = file.pending.values().flat_map(|pending| match pending {
            Pending::Fill(osts) => osts.as_slice(),
            Pending::Drop => &[],
        });
        file.kept.iter().chain(filling).map(|ost| until(ost).unwrap_or_default()).min()
    }
    /// Whether what is pending can only bring bytes under locks: if one of them ends, the kernel is told.
    fn is_covered(&self, fid: Fid, pending: &Pending, own_writers: bool) -> bool {
        match pending {
            Pending::Drop => false,
            Pending::Fill(osts) => {
                let has_lock =
                    |ost: &OstIndex| self.locks_of(*ost).is_some_and(|locks| locks.serial(fid).is_some());
                !own_writers && self.is_on() && osts.iter().all(has_lock)
            }
        }
    }
    /// Waits for what was pending when the call came. The kernel drops what it keeps under locks that may not be used now.
    pub(crate) async fn settle(&self, fid: Fid, what: Settle, own_writers: bool) {
        let last = self.last.get();
        while let Some(wait) = self.unsettled(fid, last, what, own_writers) {
            match wait {
                Wait::Change(changed) => changed.wait().await,
                Wait::Lease => self.drop_kept(fid).await,
            }
        }
    }
    fn unsettled(&self, fid: Fid, last: u64, what: Settle, own_writers: bool) -> Option<Wait> {
        let mut files = self.files.borrow_mut();
        let file = files.get_mut(&fid)?;
        let counts = |pending: &Pending| match what {
            Settle::Drops => matches!(pending, Pending::Drop),
            Settle::Uncovered => !self.is_covered(fid, pending, own_writers),
            Settle::All => true,
        };
        if file.pending.range(..=last).any(|(_, pending)| counts(pending)) {
            let changed = file.changed.get_or_insert_with(|| Rc::new(self.ctx.wait_list()));
            return Some(Wait::Change(changed.clone()));
        }
        let is_usable =
            |ost: &OstIndex| self.locks_of(*ost).is_some_and(|locks| locks.usable_until().is_some());
        let has_lapsed = what != Settle::Drops && !file.kept.iter().all(is_usable);
        has_lapsed.then_some(Wait::Lease)
    }
}

impl KeptBytes for Pages {
    fn kernel(&self) -> Option<Rc<dyn KernelCache>> {
        Pages::kernel(self)
    }
    /// Attributes may be valid that rest on the lock of a fill under way: they end with an empty range.
    fn lost(&self, fid: Fid, ost: OstIndex) -> Option<(Box<dyn Any>, Extent)> {
        let (was_kept, is_filling) = {
            let mut files = self.files.borrow_mut();
            let file = files.get_mut(&fid)?;
            let reads = |p: &Pending| matches!(p, Pending::Fill(osts) if osts.contains(&ost));
            (file.kept.remove(&ost), file.pending.values().any(reads))
        };
        let range = if was_kept { Extent::ALL } else { Extent::new(0, 0) };
        (was_kept || is_filling)
            .then(|| -> (Box<dyn Any>, Extent) { (Box::new(self.begin(fid, Pending::Drop)), range) })
    }
}

/// For what [`Pages::settle`] waits next.
enum Wait {
    Change(Rc<WaitList>),
    /// A lease has run out.
    Lease,
}
