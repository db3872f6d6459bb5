//! State that a mount keeps per file in use: layout, owner, changes of its own, order of its operations.
//!
//! Invariant: the known state of objects comes from replies to this mount since its first writer opened the file, and is
//! forgotten with the last writer, so that a close never reports sizes that another mount may have changed in between.

use crate::data::long_append::LongAppend;
use crate::data::stripes;
use crate::files::ask_again::AskAgain;
use crate::files::atime::Accessed;
use crate::files::ranges::RangeLock;
use crate::locks::file_flocks::FileFlocks;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use nacre_types::{
    Attr, Caller, Component, Errno, Extent, Failure, Fid, Instant, Layout, Owner, Timestamp, mode,
};
use nacre_wire::mdt::EntryReply;
use nacre_wire::ost::ObjectState;

/// State that this mount keeps of a file in use. The parts that other folders use directly guard their own state.
pub(crate) struct FileState {
    pub(crate) fid: Fid,
    /// Order of this mount's operations on the file.
    pub(crate) ranges: RangeLock,
    pub(crate) long_append: LongAppend,
    component: RefCell<Option<Rc<Component>>>,
    /// The most bytes of the file that its MDT keeps, 0 if they are in objects; and the generation of the layout that says so.
    dom_bytes: Cell<(u32, u32)>,
    owner: Cell<Owner>,
    /// A write by an ordinary user must remove set-id bits first.
    kill_priv: Cell<bool>,
    /// A write by a user who is not in the group must remove the set-group-id bit.
    set_gid: Cell<bool>,
    /// The number of the permissions when these two were learned last (`Cache::permissions_serial`).
    privileges_at: Cell<Option<u64>>,
    /// Handles open for writing.
    writers: Cell<u32>,
    /// Last known state per object, while there are writers.
    known: RefCell<Vec<Option<ObjectState>>>,
    /// The file was written since the first writer opened.
    dirty: Cell<bool>,
    /// Closes of a file that was written, which the MDT may not have executed yet.
    dirty_closes: Cell<u32>,
    /// Replies to this mount's writes do not tell the state of the objects until the last of the present writers is gone:
    /// the MDT has evicted this mount, so that others may have changed the file since, or space was freed, so that the
    /// latest of several replies, which come in any order, is not the largest.
    untrusted: Cell<bool>,
    /// Kept bytes lie in holes or preallocated space, perhaps: the objects get more blocks than are known, until none is kept.
    fills_holes: Cell<bool>,
    /// This mount has set space aside behind the end: as many blocks as the size needs do not say that there is no hole.
    is_preallocated: Cell<bool>,
    /// What the last sync of the MDT for this file has covered.
    synced_at: Cell<Option<SyncPoint>>,
    /// Writes that failed after their calls had returned: their number, and the error of the latest.
    failed_writes: Cell<(u64, Option<Failure>)>,
    /// The questions for WRITE_BACK.
    asks: Cell<AskAgain>,
    flocks: FileFlocks,
    pub(crate) accessed: Accessed,
}

/// What of a file a sync of its MDT covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyncPoint {
    /// Metadata changes of this mount.
    changes: u64,
    /// Where the bytes are: another mount may have had them moved, and what is written to objects is found only as long as the
    /// MDT does not forget that.
    dom_bytes: (u32, u32),
}

impl FileState {
    pub(crate) fn new(fid: Fid) -> Self {
        Self {
            fid,
            ranges: RangeLock::default(),
            long_append: LongAppend::default(),
            component: RefCell::default(),
            dom_bytes: Cell::default(),
            owner: Cell::default(),
            kill_priv: Cell::new(false),
            set_gid: Cell::new(false),
            privileges_at: Cell::new(None),
            writers: Cell::new(0),
            known: RefCell::default(),
            dirty: Cell::new(false),
            dirty_closes: Cell::new(0),
            untrusted: Cell::new(false),
            fills_holes: Cell::new(false),
            is_preallocated: Cell::new(false),
            synced_at: Cell::new(None),
            failed_writes: Cell::default(),
            asks: Cell::default(),
            flocks: FileFlocks::default(),
            accessed: Accessed::default(),
        }
    }
    /// Records a reply about the inode.
    pub(crate) fn learn(&self, reply: &EntryReply) {
        let Attr { uid, gid, projid, .. } = reply.attr;
        self.owner.set(Owner { uid, gid, projid });
        self.kill_priv.set(reply.kill_priv);
        self.set_gid.set(reply.attr.mode & mode::SGID != 0);
        self.accessed.learn(&reply.attr);
        if let Some(layout) = &reply.layout {
            self.learn_layout(layout);
        }
    }
    /// Privileges were just learned, with the permissions of this number if they are locked.
    pub(crate) fn privileges_learned(&self, serial: Option<u64>) {
        self.privileges_at.set(serial);
    }
    /// The number of the permissions with which privileges were learned.
    pub(crate) fn privileges_at(&self) -> Option<u64> {
        self.privileges_at.get()
    }
    /// Whether the file has set-id bits or capabilities that a write may take away.
    pub(crate) fn has_privileges(&self) -> bool {
        self.kill_priv.get()
    }
    /// Whether a change of the bytes by an ordinary user takes something away.
    pub(crate) fn loses_privileges(&self, caller: &Caller) -> bool {
        self.has_privileges() || self.set_gid.get() && !caller.in_group(self.owner().gid)
    }
    pub(crate) fn learn_layout(&self, layout: &Layout) {
        *self.component.borrow_mut() = stripes::only_component(layout).cloned().map(Rc::new);
        if layout.generation >= self.dom_bytes.get().1 {
            self.dom_bytes.set((layout.dom_bytes, layout.generation));
        }
    }
    /// The most bytes that the MDT keeps of this file as long as there are no more; 0: they are in objects.
    pub(crate) fn dom_bytes(&self) -> u32 {
        self.dom_bytes.get().0
    }
    /// The MDT has said that the bytes are in objects.
    pub(crate) fn data_has_moved(&self) {
        let (dom_bytes, generation) = self.dom_bytes.get();
        if dom_bytes > 0 {
            // The layout that says so is a later one than the known one, which a late reply may still bring.
            self.dom_bytes.set((0, generation + 1));
        }
    }
    /// The size of a file whose MDT has its bytes, if it is known.
    pub(crate) fn size_of_data(&self) -> Option<u64> {
        self.known.borrow().first().copied().flatten().map(|state| state.size)
    }
    /// The state of all objects of a file whose MDT has its bytes, as if they were in objects: in the first one.
    pub(crate) fn states_of_data(&self, size: u64, mtime: Timestamp) -> Vec<ObjectState> {
        let stripes = self.component.borrow().as_ref().map_or(0, |component| component.stripes.len());
        let mut states = alloc::vec![ObjectState::default(); stripes];
        if let Some(first) = states.first_mut() {
            *first = ObjectState { size, blocks: Attr::blocks_of(size), mtime };
        }
        states
    }
    pub(crate) fn owner(&self) -> Owner {
        self.owner.get()
    }
    /// File locks of this mount.
    pub(crate) fn flocks(&self) -> &FileFlocks {
        &self.flocks
    }
    /// What a sync of the MDT covers that begins when this mount has made so many metadata changes.
    pub(crate) fn sync_point(&self, changes: u64) -> SyncPoint {
        SyncPoint { changes, dom_bytes: self.dom_bytes.get() }
    }
    /// Whether the MDT was synced for this file at the same point.
    pub(crate) fn is_synced_at(&self, point: SyncPoint) -> bool {
        self.synced_at.get() == Some(point)
    }
    pub(crate) fn set_synced_at(&self, point: SyncPoint) {
        self.synced_at.set(Some(point));
    }
    /// Where the bytes lie, if a layout that this build can use is known.
    pub(crate) fn known_component(&self) -> Option<Rc<Component>> {
        self.component.borrow().clone()
    }
    /// Where the bytes lie.
    ///
    /// # Errors
    /// EIO for a layout that this build cannot use (or no regular file).
    pub(crate) fn component(&self) -> Result<Rc<Component>, Errno> {
        self.known_component().ok_or_else(|| {
            tracing::error!(fid = %self.fid, "no layout that this build understands: upgrade this client");
            Errno::EIO
        })
    }
    /// Takes the state of an object from the reply to a write.
    pub(crate) fn note_written(&self, stripe: u32, state: ObjectState) {
        self.accessed.changed(state.mtime);
        if self.writers.get() == 0 {
            return;
        }
        self.dirty.set(true);
        if self.untrusted.get() {
            return;
        }
        let mut known = self.known.borrow_mut();
        let stripe = stripe as usize;
        if known.len() <= stripe {
            known.resize(stripe + 1, None);
        }
        // Replies to writes of different ranges may come in any order; a truncate is alone.
        known[stripe] = Some(match known[stripe] {
            Some(old) => ObjectState {
                size: old.size.max(state.size),
                blocks: old.blocks.max(state.blocks),
                mtime: old.mtime.max(state.mtime),
            },
            None => state,
        });
    }
    /// Records the write of a range of an object, whose last state is `old`, that this mount keeps. Its blocks are counted as far
    /// as that is certain, which is never too many.
    pub(crate) fn note_kept(&self, stripe: u32, old: ObjectState, range: Extent, mtime: Timestamp) {
        let size = range.end.max(old.size);
        let has_all_blocks = old.blocks == Attr::blocks_of(old.size) && !self.is_preallocated.get();
        if !has_all_blocks {
            self.fills_holes.set(true);
            self.note_written(stripe, ObjectState { size, blocks: old.blocks, mtime });
            return;
        }
        // Zeros before the write are bytes like others where the MDT has them.
        let hole_end = if self.dom_bytes() > 0 { 0 } else { Attr::whole_blocks_of(range.start) };
        let counted = old.blocks.max(hole_end);
        let blocks = old.blocks + Attr::blocks_of(range.end).saturating_sub(counted);
        self.note_written(stripe, ObjectState { size, blocks, mtime });
    }
    /// Space is set aside behind the end of the file, until its last writer is gone.
    pub(crate) fn note_preallocated(&self) {
        self.is_preallocated.set(true);
    }
    /// The mount keeps no byte of the file: what is known of the objects is all there is.
    pub(crate) fn note_clean(&self) {
        self.fills_holes.set(false);
    }
    /// Whether the objects get more blocks than are known when they get the kept bytes.
    pub(crate) fn fills_holes(&self) -> bool {
        self.fills_holes.get()
    }
    /// A write has failed: the state of the object is unknown.
    pub(crate) fn note_uncertain(&self, stripe: u32) {
        self.dirty.set(true);
        if let Some(state) = self.known.borrow_mut().get_mut(stripe as usize) {
            *state = None;
        }
    }
    /// A truncate has set the state of every object.
    pub(crate) fn note_truncated(&self, states: &[ObjectState]) {
        if self.writers.get() > 0 {
            self.dirty.set(true);
            if !self.untrusted.get() {
                *self.known.borrow_mut() = states.iter().copied().map(Some).collect();
            }
        }
    }
    /// Whether the file was written since the first writer opened it.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.get()
    }
    /// Last known state of each object, while there are writers.
    pub(crate) fn known_states(&self) -> Vec<Option<ObjectState>> {
        self.known.borrow().clone()
    }
    /// The MDT has forgotten this mount's opens.
    pub(crate) fn evicted(&self) {
        self.distrust_replies();
    }
    /// A hole is punched: objects have fewer blocks than replies have said.
    pub(crate) fn note_freed(&self) {
        self.distrust_replies();
    }
    fn distrust_replies(&self) {
        if self.writers.get() > 0 {
            self.untrusted.set(true);
            self.known.borrow_mut().fill(None);
        }
    }
    /// Changes by the writers of this mount since the first of them opened the file; `None`: not known.
    pub(crate) fn own_changes(&self) -> Option<OwnChanges> {
        if self.writers.get() == 0 {
            return None;
        }
        if !self.dirty.get() {
            return Some(OwnChanges::None);
        }
        self.known.borrow().iter().copied().collect::<Option<Vec<_>>>().map(OwnChanges::States)
    }
    /// The state of every object with the changes of this mount, if it is known: also before its first change.
    pub(crate) fn states(&self) -> Option<OwnChanges> {
        if self.writers.get() == 0 || self.untrusted.get() {
            return None;
        }
        self.known.borrow().iter().copied().collect::<Option<Vec<_>>>().map(OwnChanges::States)
    }
    /// Whether replies tell the state of the objects.
    pub(crate) fn may_know_objects(&self) -> bool {
        self.writers.get() > 0 && !self.untrusted.get()
    }
    /// The state of an object that no other client changes.
    pub(crate) fn note_glimpsed(&self, stripe: u32, state: ObjectState) {
        if let Some(known) = self.known.borrow_mut().get_mut(stripe as usize)
            && known.is_none()
        {
            *known = Some(state);
        }
    }
    /// Whether the MDT may be asked for WRITE_BACK again.
    pub(crate) fn is_time_to_ask(&self, now: Instant) -> bool {
        let Some(asks) = self.asks.get().next(now) else { return false };
        self.asks.set(asks);
        true
    }
    /// This mount has WRITE_BACK: when it is lost, the MDT is asked again soon.
    pub(crate) fn note_write_back(&self) {
        self.asks.set(AskAgain::default());
    }
    /// A write has failed after its call had returned.
    pub(crate) fn write_failed(&self, error: Failure) {
        let (count, _) = self.failed_writes.get();
        self.failed_writes.set((count + 1, Some(error)));
    }
    /// The number of such writes so far, and the error of the latest.
    pub(crate) fn failed_writes(&self) -> (u64, Option<Failure>) {
        self.failed_writes.get()
    }
    /// Whether handles of this mount are open for writing.
    pub(crate) fn has_writers(&self) -> bool {
        self.writers.get() > 0
    }
    pub(crate) fn writer_opened(&self, created: bool) {
        if self.writers.get() == 0 {
            // The MDT may have executed this open before such a close. Then the size that it knows until the last writer is
            // gone is that of before the changes, and they count as made since the first writer opened the file.
            self.dirty.set(self.dirty_closes.get() > 0);
            let stripes = self.component.borrow().as_ref().map_or(0, |c| c.stripes.len());
            let state = created.then(ObjectState::default);
            *self.known.borrow_mut() = alloc::vec![state; stripes];
        }
        self.writers.set(self.writers.get() + 1);
    }
    /// The close of a handle is about to be sent that tells of changes; until the guard is dropped, the MDT may not know them.
    pub(crate) fn begin_dirty_close(&self) -> DirtyClose<'_> {
        self.dirty_closes.set(self.dirty_closes.get() + 1);
        DirtyClose { file: self }
    }
    pub(crate) fn writer_closed(&self) {
        self.writers.set(self.writers.get().saturating_sub(1));
        if self.writers.get() == 0 {
            self.dirty.set(false);
            self.untrusted.set(false);
            self.is_preallocated.set(false);
            self.known.borrow_mut().clear();
        }
    }
}

/// The close of a written file is under way.
pub(crate) struct DirtyClose<'a> {
    file: &'a FileState,
}
impl Drop for DirtyClose<'_> {
    fn drop(&mut self) {
        self.file.dirty_closes.set(self.file.dirty_closes.get().saturating_sub(1));
    }
}

/// Changes of a mount that the MDT does not know.
pub(crate) enum OwnChanges {
    None,
    /// One for each object.
    States(Vec<ObjectState>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Oid, Seq};

    #[test]
    fn a_late_reply_does_not_bring_bytes_back_to_the_mdt() {
        let file = FileState::new(Fid::new(Seq(0x100), Oid(1)));
        let before = Layout { generation: 3, dom_bytes: 1000, components: Vec::new() };
        file.learn_layout(&before);
        file.data_has_moved();
        file.learn_layout(&before);
        assert_eq!(file.dom_bytes(), 0);
        file.data_has_moved();
        file.learn_layout(&Layout { generation: 4, dom_bytes: 0, ..before });
        assert_eq!(file.dom_bytes(), 0);
    }
}
