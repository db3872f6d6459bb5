//! Locks, inodes, names and changes under way, taken together: decides whether a call may be served from the cache, and
//! applies replies and lost locks to all tables.
//!
//! Everything here happens in one visit and without I/O. [`super::metadata::MetadataCache`] sends the resulting
//! notifications and requests.

use crate::api::ListedEntry;
use crate::cache::entries::{Entries, Gone, Named, Under};
use crate::cache::in_flight::{InFlight, Touches};
use crate::cache::inodes::{Inodes, attr_bits, xattr_bits};
use crate::cache::kernel::Stale;
use crate::cache::last_attrs::LastAttrs;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_dlm::client::{GrantedInodeLocks, InodeCancel};
use nacre_dlm::server::InodeGrant;
use nacre_types::{
    Attr, ConnEpoch, Fid, FileType, InodeBits, InodeMode, Instant, SeededHash, SizeState, Timestamp, Transno,
};
use nacre_wire::mdt::{EntryReply, InodeRevoke};

/// Inodes on which locks are kept, unless the parameter says otherwise.
const LRU_SIZE: usize = 100_000;

/// The known state of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    Entry(EntryReply),
    NotThere,
}

/// The effect of a successful own change on its names.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NameEffect {
    /// Nothing.
    None,
    /// The one name of the change leads to this inode now, or to none.
    Leads(Option<Fid>),
    /// The first name of the change was moved to the second one.
    Moved,
    /// The same, and the first name leads to a new inode.
    MovedFromWhiteout,
    /// The two names of the change were exchanged.
    Exchanged,
    /// It is not known what the names of the change lead to.
    Unknown,
}

/// The inode of a name when a change of it began.
#[derive(Debug, Clone, Copy)]
pub(super) struct NameBefore {
    fid: Option<Fid>,
    serial: u64,
}

/// The state of the cache.
#[derive(Debug)]
pub(super) struct Tables {
    locks: GrantedInodeLocks,
    /// Counts the starts of the MDT and the generations of this client there: locks end with them.
    era: ConnEpoch,
    /// Frames of earlier connections have no effect on locks.
    era_began: ConnEpoch,
    inodes: Inodes,
    entries: Entries,
    in_flight: InFlight,
    last_attrs: LastAttrs,
    now: Instant,
}

impl Tables {
    /// Empty tables. `hash`: with a seed of their own.
    pub(super) fn new(hash: SeededHash) -> Self {
        Self {
            locks: GrantedInodeLocks::new(LRU_SIZE, hash),
            era: ConnEpoch::default(),
            era_began: ConnEpoch::default(),
            inodes: Inodes::new(hash),
            entries: Entries::new(hash),
            in_flight: InFlight::new(hash),
            last_attrs: LastAttrs::default(),
            now: Instant::default(),
        }
    }
    pub(super) fn set_time(&mut self, now: Instant) {
        self.now = now;
        self.entries.set_time(now);
    }
    /// All locks have ended; frames of connections before `epoch` count no more.
    pub(super) fn begin_era(&mut self, epoch: ConnEpoch) {
        self.era = ConnEpoch(self.era.0 + 1);
        self.era_began = epoch;
        self.locks.enter(self.era);
        self.inodes.clear();
        self.entries.clear();
    }

    pub(super) fn era(&self) -> ConnEpoch {
        self.era
    }
    /// Whether a frame of this connection tells nothing of the locks of now.
    pub(super) fn is_former(&self, epoch: ConnEpoch) -> bool {
        epoch < self.era_began
    }
    /// Sets the number of inodes on which locks are kept.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.locks.set_limit(limit);
    }
    /// Whether no change of this mount is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_idle()
    }
    /// Inodes with locks and their limit, names, bytes of attributes.
    pub(super) fn sizes(&self) -> (usize, usize, usize, usize) {
        (self.locks.len(), self.locks.limit(), self.entries.len(), self.inodes.bytes())
    }

    // ---- lookups

    fn covers(&mut self, fid: Fid, bits: InodeBits) -> bool {
        self.locks.covers(Some(self.era), fid, InodeMode::Pr, bits)
    }
    /// Attributes as the MDT sent them.
    pub(super) fn inode(&mut self, fid: Fid) -> Option<EntryReply> {
        self.inode_ref(fid).cloned()
    }
    /// The same without a copy.
    pub(super) fn inode_ref(&mut self, fid: Fid) -> Option<&EntryReply> {
        if self.in_flight.changes_inode(fid) {
            return None;
        }
        let entry = self.inodes.entry(fid)?;
        let is_covered = self.locks.covers(Some(self.era), fid, InodeMode::Pr, attr_bits(&entry.attr));
        is_covered.then_some(entry)
    }
    /// The bytes of a file, with the time of their last change.
    pub(super) fn data(&mut self, fid: Fid) -> Option<(Bytes, Timestamp)> {
        let Attr { size_state, mtime, .. } = self.inode_ref(fid)?.attr;
        let data = self.inodes.data(fid).filter(|_| size_state == SizeState::Exact)?;
        Some((data.clone(), mtime))
    }
    /// Keeps the bytes that a file has since the own change `at`.
    pub(super) fn keep_data(&mut self, fid: Fid, at: Transno, data: &Bytes) {
        self.inodes.set_data(fid, at, data);
    }
    /// Whether [`Tables::inode`] gives the attributes.
    pub(super) fn has_inode(&mut self, fid: Fid) -> bool {
        self.inode_ref(fid).is_some()
    }
    /// The same of an inode that may be opened for reading without a request. An orphan may not: its last close ends it.
    pub(super) fn openable(&mut self, fid: Fid) -> Option<EntryReply> {
        if !self.covers(fid, InodeBits::OPEN | InodeBits::LAYOUT) {
            return None;
        }
        self.inode_ref(fid).filter(|entry| entry.attr.nlink > 0).cloned()
    }
    /// Whether bytes that are written to a file may be kept.
    pub(super) fn may_write_back(&mut self, fid: Fid) -> bool {
        self.covers(fid, InodeBits::WRITE_BACK)
    }
    /// Whether the close of a handle of this inode may be sent later. That of an orphan may not, nor while an own change is
    /// under way, which may make it one.
    pub(super) fn is_closable_later(&mut self, fid: Fid) -> bool {
        self.inode_ref(fid).is_some_and(|entry| entry.attr.nlink > 0) && self.covers(fid, InodeBits::OPEN)
    }
    pub(super) fn named(&self, parent: Fid, name: &[u8]) -> Option<Fid> {
        match self.entries.find(parent, name) {
            Named::Inode(fid) => Some(fid),
            Named::NotThere | Named::Unknown => None,
        }
    }
    pub(super) fn find(&mut self, parent: Fid, name: &[u8]) -> Option<Found> {
        if self.in_flight.changes_of_name(parent, name) > 0 {
            return None;
        }
        match self.entries.find(parent, name) {
            Named::Unknown => None,
            Named::NotThere => self.covers(parent, InodeBits::UPDATE).then_some(Found::NotThere),
            Named::Inode(fid) => self.inode(fid).map(Found::Entry),
        }
    }
    /// Whether a name may be served, and leads to this inode; `None`: to none.
    pub(super) fn leads_to(&mut self, parent: Fid, name: &[u8], fid: Option<Fid>) -> bool {
        if self.in_flight.changes_of_name(parent, name) > 0 {
            return false;
        }
        match (self.entries.find(parent, name), fid) {
            (Named::NotThere, None) => self.covers(parent, InodeBits::UPDATE),
            (Named::Inode(found), Some(fid)) => found == fid && self.has_inode(fid),
            (Named::Unknown | Named::NotThere | Named::Inode(_), _) => false,
        }
    }
    pub(super) fn list(
        &mut self,
        dir: Fid,
        cookie: u64,
        names_max: usize,
    ) -> Option<(Vec<ListedEntry>, bool)> {
        if !self.has_names(dir) {
            return None;
        }
        self.entries.list(dir, cookie, names_max)
    }
    /// Whether nobody but this mount changes the names of a directory, and this mount is not about to.
    pub(super) fn has_names(&mut self, dir: Fid) -> bool {
        !self.in_flight.changes_names_in(dir) && self.covers(dir, InodeBits::UPDATE)
    }
    pub(super) fn parent(&mut self, fid: Fid) -> Option<Fid> {
        let parent = self.inodes.parent(fid)?;
        (!self.in_flight.changes_inode(fid) && self.covers(fid, InodeBits::LOOKUP)).then_some(parent)
    }
    pub(super) fn target(&mut self, fid: Fid) -> Option<Bytes> {
        let target = self.inodes.target(fid)?;
        (!self.in_flight.changes_inode(fid) && self.covers(fid, InodeBits::LOOKUP)).then_some(target)
    }
    /// A number for a read of extended attributes that begins now.
    pub(super) fn xattr_serial(&mut self, fid: Fid) -> Option<u64> {
        if self.in_flight.changes_inode(fid) || !self.covers(fid, xattr_bits()) {
            return None;
        }
        self.inodes.serial(fid)
    }
    /// A number that changes when PERM is lost, and with own changes of extended attributes. `None` without PERM.
    pub(super) fn permissions_serial(&mut self, fid: Fid) -> Option<u64> {
        self.covers(fid, InodeBits::PERM).then(|| self.inodes.serial(fid))?
    }
    /// Keeps what was read of extended attributes, unless the inode has changed since the number was given.
    pub(super) fn keep_xattr(&mut self, fid: Fid, serial: u64, name: &[u8], value: Option<&Bytes>) {
        if self.xattr_serial(fid) == Some(serial) {
            self.inodes.set_xattr(fid, serial, name, value);
        }
    }
    pub(super) fn keep_xattr_names(&mut self, fid: Fid, serial: u64, names: &[Bytes]) {
        if self.xattr_serial(fid) == Some(serial) {
            self.inodes.set_xattr_names(fid, serial, names);
        }
    }
    pub(super) fn keep_target(&mut self, fid: Fid, target: &[u8]) {
        self.inodes.set_target(fid, target);
    }
    /// Whether a page of a listing after `cookie` can be kept.
    pub(super) fn would_keep(&self, dir: Fid, cookie: u64) -> bool {
        self.entries.would_keep(dir, cookie)
    }
    pub(super) fn xattr(&mut self, fid: Fid, name: &[u8]) -> Option<Option<Bytes>> {
        if self.has_no_xattrs(fid) {
            return Some(None);
        }
        self.xattr_serial(fid)?;
        self.inodes.xattr(fid, name)
    }
    pub(super) fn xattr_names(&mut self, fid: Fid) -> Option<Vec<Bytes>> {
        if self.has_no_xattrs(fid) {
            return Some(Vec::new());
        }
        self.xattr_serial(fid)?;
        self.inodes.xattr_names(fid)
    }
    /// Whether the attributes say that there are none. Their bits are enough: the first extended attribute, and the end of
    /// the last one, change an attribute under UPDATE.
    fn has_no_xattrs(&mut self, fid: Fid) -> bool {
        self.inode_ref(fid).is_some_and(|entry| !entry.has_xattrs)
    }

    // ---- lookups

    /// The kernel is given a name until a time. False: it may not have it, also if another mount could change the permissions
    /// of the inode without the kernel's being told.
    pub(super) fn give_name(&mut self, parent: Fid, name: &[u8], until: Instant) -> bool {
        let locks = &self.locks;
        self.entries
            .give_to_kernel(parent, name, until, |fid| locks.held(fid).all().contains(InodeBits::PERM))
    }
    pub(super) fn names_in_kernel(&self) -> Vec<(Fid, Bytes)> {
        self.entries.in_kernel()
    }
    pub(super) fn give_attrs(&mut self, fid: Fid, until: Instant) {
        self.inodes.give_to_kernel(fid, until);
    }
    pub(super) fn give_acls(&mut self, fid: Fid) -> bool {
        self.inodes.give_acls(fid);
        self.locks.held(fid).all().contains(InodeBits::PERM)
    }
    /// Takes the attributes in the reply to a read, under the bits granted with it.
    pub(super) fn read_inode(&mut self, entry: &EntryReply, seen: Transno, bits: InodeBits) {
        self.inodes.read(entry, seen, bits);
    }
    /// A page of a listing begins after this cookie.
    pub(super) fn page_begins(&mut self, dir: Fid, cookie: u64, seen: Transno) {
        self.entries.page_begins(dir, cookie, seen);
    }
    pub(super) fn page_ends(&mut self, dir: Fid, last: u64, eof: bool) {
        self.entries.page_ends(dir, last, eof);
    }
    /// This mount has created the directory: all its names are known.
    pub(super) fn created_dir(&mut self, dir: Fid) {
        self.entries.created_dir(dir);
    }
    /// The MDT has recorded an access time that this mount has sent.
    pub(super) fn accessed(&mut self, fid: Fid, atime: Timestamp) {
        self.inodes.accessed(fid, atime);
    }
    /// No lock of this start of the MDT is used any more.
    pub(super) fn distrust(&mut self, stale: &mut Vec<Stale>) {
        self.cancel_all(stale);
        self.locks.distrust();
    }
    /// Processes a grant of a reply; returns the bits of it that are valid.
    pub(super) fn granted(&mut self, fid: Fid, grant: InodeGrant, seen: Transno) -> InodeBits {
        let before = self.locks.held(fid).all();
        let valid = self.locks.granted(self.era, fid, grant);
        if !valid.is_empty() {
            self.inodes.granted(fid, !before.contains(valid), seen);
        }
        valid
    }
    /// A read has found this behind a name, with these bits granted by its reply.
    pub(super) fn read_name(
        &mut self,
        (parent, name): (Fid, &[u8]),
        fid: Option<Fid>,
        seen: Transno,
        (granted_parent, granted_child): (InodeBits, InodeBits),
    ) {
        let mut under = Under { parent: granted_parent.contains(InodeBits::UPDATE), child: false };
        if let Some(fid) = fid
            && granted_child.contains(InodeBits::LOOKUP)
        {
            under.child = self.inodes.add_name(fid, parent, &Bytes::copy_from_slice(name));
        }
        if under.is_none() {
            return;
        }
        let gone = self.entries.read(parent, name, fid, seen, under);
        self.renamed(gone, parent, name);
    }
    /// A name was replaced or removed here: it is not valid under LOOKUP of its former inode any more.
    fn renamed(&mut self, gone: Option<Gone>, parent: Fid, name: &[u8]) {
        if let Some(Gone { parent: gone_parent, name: gone_name, fid: Some(fid), .. }) = gone
            && self.entries.find(parent, name) != Named::Inode(fid)
        {
            self.inodes.remove_name(fid, gone_parent, &gone_name);
        }
    }

    /// A change begins; what its names lead to now.
    pub(super) fn begin(&mut self, touches: &mut Touches) -> Vec<Option<NameBefore>> {
        let mut before = Vec::with_capacity(touches.names.len());
        for (parent, name) in &touches.names {
            let known = self.entries.known(*parent, name);
            touches.inodes.extend(known.and_then(|(fid, _)| fid));
            let is_alone = self.in_flight.changes_of_name(*parent, name) == 0;
            before.push(known.filter(|_| is_alone).map(|(fid, serial)| NameBefore { fid, serial }));
            self.in_flight.begin_name(*parent, name, known.is_some());
        }
        touches.inodes.iter().for_each(|fid| self.in_flight.begin_inode(*fid));
        touches.xattrs.iter().for_each(|fid| self.inodes.drop_xattrs(*fid));
        before
    }
    pub(super) fn end(&mut self, touches: &Touches) {
        touches.inodes.iter().for_each(|fid| self.in_flight.end_inode(*fid));
        touches.names.iter().for_each(|(parent, name)| self.in_flight.end_name(*parent, name));
    }
    /// The state of an inode after an own change.
    pub(super) fn changed_inode(&mut self, at: Transno, entry: EntryReply) {
        let held = self.locks.held(entry.attr.fid).all();
        self.inodes.changed(entry, at, held);
    }
    /// The MDT does not tell the states of the inodes of a change.
    pub(super) fn unknown_inodes(&mut self, at: Transno, touches: &Touches) {
        touches.inodes.iter().for_each(|fid| self.inodes.unknown(*fid, at));
        if touches.names.iter().any(|(parent, name)| self.in_flight.is_blind(*parent, name)) {
            self.inodes.all_unknown(at);
        }
    }
    /// An own change has succeeded: its names, and what else it may have changed. `leaves`: whether the kernel is being told to
    /// forget a name.
    pub(super) fn replied(
        &mut self,
        at: Transno,
        touches: &Touches,
        before: &[Option<NameBefore>],
        effect: &NameEffect,
        leaves: &dyn Fn(Fid, &[u8]) -> bool,
        stale: &mut Vec<Stale>,
    ) {
        touches.xattrs.iter().for_each(|fid| self.inodes.drop_xattrs(*fid));
        match (effect, touches.names.as_slice()) {
            (NameEffect::None, _) => {}
            (NameEffect::Leads(fid), [(parent, name)]) => self.changed_name(*parent, name, *fid, at),
            _ => self.moved_names(at, touches, before, effect, leaves, stale),
        }
    }
    /// The part of [`Tables::replied`] for changes that move names, or whose effect is not known.
    fn moved_names(
        &mut self,
        at: Transno,
        touches: &Touches,
        before: &[Option<NameBefore>],
        effect: &NameEffect,
        leaves: &dyn Fn(Fid, &[u8]) -> bool,
        stale: &mut Vec<Stale>,
    ) {
        // A name that was lost here, and has been read again since, has no time, although the kernel may still use it: the
        // notification finds it no more if it waits for the rename.
        let until = |(parent, name): &(Fid, Bytes)| {
            let until = self.entries.kernel_until(*parent, name)?;
            (until > self.now || !leaves(*parent, name)).then_some(until)
        };
        let in_kernel: Vec<Option<Instant>> = touches.names.iter().map(until).collect();
        let unchanged = |tables: &Self, nth: usize| {
            let (parent, name) = touches.names.get(nth)?;
            let before = before.get(nth).copied().flatten()?;
            let is_same =
                tables.entries.known(*parent, name).is_some_and(|(_, serial)| serial == before.serial)
                    && tables.in_flight.changes_of_name(*parent, name) == 1;
            is_same.then_some(before.fid)
        };
        let (first, second) = (unchanged(self, 0), unchanged(self, 1));
        match (effect, touches.names.as_slice(), first, second) {
            // Two names of one inode both stay.
            (NameEffect::Moved, _, Some(Some(moved)), Some(Some(replaced))) if moved == replaced => {}
            (NameEffect::Moved | NameEffect::MovedFromWhiteout, [from, to], Some(Some(moved)), replaced)
                if replaced.map_or_else(|| self.has_one_name(moved), |replaced| replaced != Some(moved)) =>
            {
                if matches!(effect, NameEffect::Moved) {
                    self.changed_name(from.0, &from.1, None, at);
                } else {
                    self.unknown_name(from, at);
                }
                self.changed_name(to.0, &to.1, Some(moved), at);
            }
            (NameEffect::Exchanged, [a, b], Some(Some(first)), Some(Some(second))) => {
                self.changed_name(a.0, &a.1, Some(second), at);
                self.changed_name(b.0, &b.1, Some(first), at);
            }
            (_, names, ..) => names.iter().for_each(|name| self.unknown_name(name, at)),
        }
        if let ([from, to], [from_until, to_until]) = (touches.names.as_slice(), in_kernel.as_slice()) {
            if matches!(effect, NameEffect::Moved | NameEffect::MovedFromWhiteout | NameEffect::Exchanged) {
                self.moved_in_kernel(to, *from_until, stale);
            }
            if matches!(effect, NameEffect::Exchanged) {
                self.moved_in_kernel(from, *to_until, stale);
            }
        }
    }
    /// The kernel moves its entry of a renamed name to the new name, with its validity: this is noted there, or, if the new
    /// name is not known here, the kernel has to forget it.
    fn moved_in_kernel(&mut self, to: &(Fid, Bytes), until: Option<Instant>, stale: &mut Vec<Stale>) {
        let (parent, name) = to;
        let is_noted =
            until.is_some_and(|until| until <= self.now || self.entries.kernel_moves(*parent, name, until));
        if !is_noted {
            stale.push(Stale::Name { parent: *parent, name: name.clone(), child: None });
        }
    }
    fn unknown_name(&mut self, (parent, name): &(Fid, Bytes), at: Transno) {
        let gone = self.entries.unknown(*parent, name, at);
        self.renamed(gone, *parent, name);
    }
    fn has_one_name(&self, fid: Fid) -> bool {
        self.inodes.entry(fid).is_some_and(|entry| entry.attr.is_dir() || entry.attr.nlink == 1)
    }
    fn changed_name(&mut self, parent: Fid, name: &Bytes, fid: Option<Fid>, at: Transno) {
        let is_held = |tables: &Self, fid: Fid, bits: InodeBits| {
            tables.locks.held(fid).all().contains(bits) && tables.inodes.is_after_grant(fid, at)
        };
        let mut under = Under { parent: is_held(self, parent, InodeBits::UPDATE), child: false };
        if let Some(fid) = fid
            && is_held(self, fid, InodeBits::LOOKUP)
        {
            under.child = self.inodes.add_name(fid, parent, name);
        }
        let gone = self.entries.changed(parent, name, fid, at, under);
        self.renamed(gone, parent, name);
    }

    // ---- listings

    /// An entry of a page of a listing.
    pub(super) fn read_listed(
        &mut self,
        (dir, name): (Fid, &[u8]),
        (fid, cookie, file_type): (Fid, u64, FileType),
        seen: Transno,
        granted: (InodeBits, InodeBits),
    ) {
        self.read_name((dir, name), Some(fid), seen, granted);
        if self.entries.find(dir, name) == Named::Inode(fid) {
            self.entries.place(dir, name, cookie, file_type);
        }
    }

    // ---- the ends of locks

    /// A callback ends bits. Names and inodes that the kernel must forget are added to `stale`.
    pub(super) fn revoked(&mut self, revoke: &InodeRevoke, stale: &mut Vec<Stale>) {
        let InodeRevoke { fid, bits, wanted, number } = *revoke;
        let ended = self.locks.revoked(self.era, fid, wanted, bits, number);
        if wanted == InodeMode::Ex {
            self.lost(fid, ended, stale);
        }
    }
    /// Bits have been dropped from the table of locks.
    pub(super) fn lost(&mut self, fid: Fid, ended: InodeBits, stale: &mut Vec<Stale>) {
        let left = self.locks.held(fid).all();
        let mut gone = Vec::new();
        if ended.intersects(InodeBits::UPDATE) {
            gone = self.entries.lost_update(fid);
        }
        if self.inodes.take_acls(fid, ended) {
            stale.push(Stale::Acls(fid));
        }
        let (names, in_kernel) = self.inodes.lost(fid, ended, left, self.now);
        for (parent, name) in names {
            gone.extend(self.entries.lost_lookup(parent, &name, fid));
        }
        if in_kernel {
            stale.push(Stale::Inode(fid));
        }
        if ended.intersects(InodeBits::PERM) {
            for (parent, name) in self.inodes.names(fid) {
                if self.entries.take_from_kernel(*parent, name) {
                    stale.push(Stale::Permissions { parent: *parent, name: name.clone() });
                }
            }
        }
        if ended.intersects(InodeBits::SIZE) {
            stale.push(Stale::Pages(fid));
        }
        if ended.intersects(InodeBits::UPDATE) {
            stale.push(Stale::Listing(fid));
            let entries = &self.entries;
            self.in_flight.names_became_unknown(fid, |name| entries.find(fid, name) != Named::Unknown);
        }
        for Gone { parent, name, fid: child, in_kernel } in gone {
            self.in_flight.name_became_unknown(parent, &name);
            if let Some(child) = child {
                self.inodes.remove_name(child, parent, &name);
            }
            if in_kernel {
                stale.push(Stale::Name { parent, name, child });
            }
        }
    }
    /// The last attributes of a file that this mount has removed, if it is one of the last ones.
    pub(super) fn removed_inode(&self, fid: Fid) -> Option<Attr> {
        self.last_attrs.of_removed(fid)
    }
    /// The inode is gone, by an own change, and the locks on it with it.
    pub(super) fn removed(&mut self, fid: Fid, at: Transno) {
        let mut stale = Vec::new();
        // Not if another change of it is under way, which may have a later state.
        if let Some(entry) = self.inodes.entry(fid)
            && self.in_flight.changes_of_inode(fid) <= 1
            && self.locks.covers(Some(self.era), fid, InodeMode::Pr, attr_bits(&entry.attr))
        {
            self.last_attrs.note(entry);
        }
        if let Some(InodeCancel { bits, .. }) = self.locks.cancel(fid, InodeBits::ALL) {
            self.lost(fid, bits, &mut stale);
        }
        self.inodes.note_forgotten(at);
    }
    /// Bytes of a file are not kept any more. Returns what is to be cancelled.
    pub(super) fn no_write_back(&mut self, fid: Fid) -> Option<InodeCancel> {
        let cancel = self.locks.cancel(fid, InodeBits::WRITE_BACK)?;
        self.lost(fid, cancel.bits, &mut Vec::new());
        Some(cancel)
    }
    /// Drops locks beyond the limit; they are to be cancelled.
    pub(super) fn cancel_surplus(&mut self, stale: &mut Vec<Stale>) -> Vec<InodeCancel> {
        let in_flight = &self.in_flight;
        let cancels = self.locks.cancel_surplus(|fid| in_flight.changes_inode(fid));
        cancels.iter().for_each(|cancel| self.lost(cancel.fid, cancel.bits, stale));
        cancels
    }
    /// Drops all locks; they are to be cancelled.
    pub(super) fn cancel_all(&mut self, stale: &mut Vec<Stale>) -> Vec<InodeCancel> {
        let fids = self.inodes.fids();
        let cancels: Vec<InodeCancel> =
            fids.into_iter().filter_map(|fid| self.locks.cancel(fid, InodeBits::ALL)).collect();
        cancels.iter().for_each(|cancel| self.lost(cancel.fid, cancel.bits, stale));
        cancels
    }
}
