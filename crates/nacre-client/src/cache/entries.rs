//! Names in directories: which inode a name leads to, or that there is no such name.
//!
//! Rules: (1) A positive entry is valid while this mount holds the UPDATE bit of its directory, or the LOOKUP bit of the
//! inode that it leads to; a negative entry (the name does not exist) is valid only under UPDATE of the directory. An
//! entry is removed when no bit covers it any more. (2) Replies to own changes of a name are ordered by transno; a read
//! that was executed before the latest own change is ignored. (3) A directory is `complete` if it was created by this
//! mount or listed from its start to its end, with UPDATE held all the time: then a name that is missing here does not
//! exist. The directory can be listed from here only if the cookie of every name is known; only listings by the MDT
//! contain cookies. The number of names is bounded, and so is the number of negative entries of a directory.

use crate::api::ListedEntry;
use crate::cache::name_table::NameTable;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use hashbrown::HashMap;
use nacre_types::{Fid, FileType, Instant, SeededHash, Transno, name};

/// Names in the table. A listing that would exceed it is not kept.
const NAMES_MAX: usize = 2 << 20;
/// Names per directory that are known not to exist, not counting complete directories.
const ABSENT_MAX: usize = 1024;
/// Interval at which the names of a directory are searched for those of them that can be dropped: while the kernel uses them
/// all, a search for every name that is not found would cost as much as the directory is large.
const ABSENT_LOOK: Duration = Duration::from_millis(100);

/// The locks under which a name is valid: a plain value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Under {
    /// UPDATE of the directory.
    pub(super) parent: bool,
    /// LOOKUP of the inode.
    pub(super) child: bool,
}
impl Under {
    pub(super) fn is_none(self) -> bool {
        !self.parent && !self.child
    }
}

#[derive(Debug, Clone, Copy)]
struct NameEntry {
    /// `None`: there is no such name.
    fid: Option<Fid>,
    under: Under,
    /// The own change that has made it so.
    changed_at: Transno,
    /// Place in listings; 0: not known.
    cookie: u64,
    /// Changes when the name leads to something else.
    serial: u64,
    /// The kernel may use the name until then.
    kernel_until: Instant,
}

#[derive(Debug)]
struct Directory {
    names: NameTable<NameEntry>,
    /// Names by cookie.
    placed: BTreeMap<u64, (Bytes, FileType)>,
    /// Names that are there and have no cookie.
    unplaced: usize,
    /// Names that are not there.
    absent: usize,
    /// When they were last searched for some that can be dropped.
    searched: Option<Instant>,
    is_complete: bool,
    /// The names up to this cookie have been listed, and none was added since.
    listed_to: Option<u64>,
    /// The latest own change that may have added a name.
    named_at: Transno,
    /// The latest own change of a name.
    changed_at: Transno,
}

impl Directory {
    fn new(hash: SeededHash, changed_at: Transno) -> Self {
        Self {
            names: NameTable::new(hash),
            placed: BTreeMap::new(),
            unplaced: 0,
            absent: 0,
            searched: None,
            is_complete: false,
            listed_to: None,
            named_at: changed_at,
            changed_at,
        }
    }
    fn remove(&mut self, name: &[u8]) -> Option<NameEntry> {
        let gone = self.names.remove(name)?;
        self.uncount(gone.fid, gone.cookie);
        Some(gone)
    }
    /// Adds a name that is not in the table.
    fn insert(&mut self, name: Bytes, entry: NameEntry) {
        self.count(entry.fid);
        self.names.insert(name, entry);
    }
    /// Replaces what is known of a name that is in the table; returns the inode to which it led. The kernel's use of the
    /// name goes on.
    fn replace(&mut self, name: &[u8], new: NameEntry) -> Option<Option<Fid>> {
        let entry = self.names.get_mut(name)?;
        let kernel_until = entry.kernel_until;
        let old = core::mem::replace(entry, NameEntry { kernel_until, ..new });
        self.uncount(old.fid, old.cookie);
        self.count(new.fid);
        Some(old.fid)
    }
    fn count(&mut self, fid: Option<Fid>) {
        match fid {
            None => self.absent += 1,
            Some(_) => self.unplaced += 1,
        }
    }
    fn uncount(&mut self, fid: Option<Fid>, cookie: u64) {
        match fid {
            None => self.absent -= 1,
            Some(_) if cookie == 0 => self.unplaced -= 1,
            Some(_) => {
                self.placed.remove(&cookie);
            }
        }
    }
    fn place(&mut self, name: &[u8], cookie: u64, file_type: FileType) {
        let Some((name, _)) = self.names.get_key_value(name) else { return };
        let name = name.clone();
        if let Some(entry) = self.names.get_mut(&name)
            && entry.fid.is_some()
            && entry.cookie == 0
        {
            entry.cookie = cookie;
            self.unplaced -= 1;
            self.placed.insert(cookie, (name, file_type));
        }
    }
    fn incomplete(&mut self) {
        self.is_complete = false;
        self.listed_to = None;
    }
    /// An own change may have added a name, whose place in the listing is not known.
    fn named(&mut self, at: Transno) {
        self.listed_to = None;
        self.named_at = self.named_at.max(at);
    }
}

/// The known state of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    Inode(Fid),
    NotThere,
    Unknown,
}

/// A name that is not in the table any more: a plain value.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) parent: Fid,
    pub(super) name: Bytes,
    pub(super) fid: Option<Fid>,
    /// The kernel may use it.
    pub(super) in_kernel: bool,
}

/// The table.
#[derive(Debug)]
pub(super) struct Entries {
    dirs: HashMap<Fid, Directory, SeededHash>,
    /// The latest own change of a name that is not in the table.
    forgotten: Transno,
    count: usize,
    serials: u64,
    now: Instant,
}

impl Entries {
    pub(super) fn new(hash: SeededHash) -> Self {
        let (dirs, now) = (HashMap::with_hasher(hash), Instant::default());
        Self { dirs, forgotten: Transno::default(), count: 0, serials: 0, now }
    }
    /// The time of what follows.
    pub(super) fn set_time(&mut self, now: Instant) {
        self.now = now;
    }
    pub(super) fn len(&self) -> usize {
        self.count
    }
    pub(super) fn clear(&mut self) {
        *self = Self { serials: self.serials, now: self.now, ..Self::new(*self.dirs.hasher()) };
    }
    /// The names of a directory, also if none was known so far.
    fn dir_mut(&mut self, dir: Fid) -> &mut Directory {
        let hash = *self.dirs.hasher();
        let forgotten = self.forgotten;
        self.dirs.entry(dir).or_insert_with(|| Directory::new(hash, forgotten))
    }
    fn entry(&self, parent: Fid, name: &[u8]) -> Option<&NameEntry> {
        self.dirs.get(&parent)?.names.get(name)
    }

    // ---- what is known

    pub(super) fn find(&self, parent: Fid, name: &[u8]) -> Named {
        let Some(dir) = self.dirs.get(&parent) else { return Named::Unknown };
        match dir.names.get(name) {
            Some(NameEntry { fid: Some(fid), .. }) => Named::Inode(*fid),
            Some(_) => Named::NotThere,
            None if dir.is_complete => Named::NotThere,
            None => Named::Unknown,
        }
    }
    /// The inode to which a known name leads, if any, and a number that changes when it leads to another one; 0 for a name
    /// that does not exist in a complete directory.
    pub(super) fn known(&self, parent: Fid, name: &[u8]) -> Option<(Option<Fid>, u64)> {
        let dir = self.dirs.get(&parent)?;
        let entry = dir.names.get(name).map(|entry| (entry.fid, entry.serial));
        entry.or(dir.is_complete.then_some((None, 0)))
    }
    /// Up to `names_max` names behind a cookie, and whether the last of them ends the directory. `None`: they are not known
    /// with their cookies. While a listing is under way, the part that it has read is known.
    pub(super) fn list(&self, dir: Fid, cookie: u64, names_max: usize) -> Option<(Vec<ListedEntry>, bool)> {
        let known = self.dirs.get(&dir)?;
        let is_whole = known.is_complete && known.unplaced == 0;
        let to = if is_whole { u64::MAX } else { known.listed_to.filter(|to| cookie < *to)? };
        let mut behind = known.placed.range(cookie.checked_add(1)?..=to);
        let mut names = Vec::new();
        for (cookie, (name, file_type)) in behind.by_ref().take(names_max) {
            let fid = known.names.get(name)?.fid?;
            names.push(ListedEntry {
                cookie: *cookie,
                name: name.clone(),
                fid,
                file_type: *file_type,
                entry: None,
            });
        }
        let is_end = is_whole && behind.next().is_none();
        Some((names, is_end))
    }

    // ---- changes of the table

    /// A read from which `seen` is known has found what a name leads to. Returns the name that it replaces.
    pub(super) fn read(
        &mut self,
        parent: Fid,
        name: &[u8],
        fid: Option<Fid>,
        seen: Transno,
        under: Under,
    ) -> Option<Gone> {
        let known = self.entry(parent, name);
        let changed_at = known.map_or(self.forgotten, |entry| entry.changed_at);
        if seen < changed_at {
            // The result of the read is older; a listing cannot be completed with it.
            if known.is_none()
                && let Some(dir) = self.dirs.get_mut(&parent)
            {
                dir.incomplete();
            }
            return None;
        }
        if let Some(known) = known
            && known.fid == fid
        {
            let changed_at = known.changed_at;
            self.set_under(parent, name, under, changed_at);
            return None;
        }
        self.set(parent, name, fid, changed_at, under)
    }
    /// The own change at a transno has made a name lead to `fid`. Returns the name that it replaces.
    pub(super) fn changed(
        &mut self,
        parent: Fid,
        name: &[u8],
        fid: Option<Fid>,
        at: Transno,
        under: Under,
    ) -> Option<Gone> {
        let known = self.entry(parent, name).map(|entry| entry.changed_at);
        if at < known.unwrap_or_else(|| self.changed_in(parent)) {
            // The reply to a later change came first. If nothing is known of the name, that may be because of it.
            if known.is_none()
                && let Some(dir) = self.dirs.get_mut(&parent)
            {
                dir.incomplete();
            }
            return None;
        }
        let gone = self.set(parent, name, fid, at, under);
        if let Some(dir) = self.dirs.get_mut(&parent) {
            dir.changed_at = dir.changed_at.max(at);
            if fid.is_some() {
                dir.named(at);
            }
        }
        gone
    }
    /// When a name of a directory that is not in the table may last have been changed by this mount.
    fn changed_in(&self, dir: Fid) -> Transno {
        self.dirs.get(&dir).map_or(self.forgotten, |dir| dir.changed_at)
    }
    /// The inode of a name after the own change at a transno is not known.
    pub(super) fn unknown(&mut self, parent: Fid, name: &[u8], at: Transno) -> Option<Gone> {
        self.forgotten = self.forgotten.max(at);
        if let Some(dir) = self.dirs.get_mut(&parent) {
            dir.incomplete();
            dir.named(at);
            dir.changed_at = dir.changed_at.max(at);
        }
        if self.entry(parent, name).is_some_and(|entry| at < entry.changed_at) {
            return None;
        }
        self.remove(parent, name)
    }

    /// The same name is valid under more locks.
    fn set_under(&mut self, parent: Fid, name: &[u8], under: Under, changed_at: Transno) {
        let dir = self.dirs.get_mut(&parent);
        if let Some(entry) = dir.and_then(|dir| dir.names.get_mut(name)) {
            entry.under.parent |= under.parent;
            entry.under.child |= under.child;
            entry.changed_at = changed_at;
        }
    }
    fn set(&mut self, parent: Fid, name: &[u8], fid: Option<Fid>, at: Transno, under: Under) -> Option<Gone> {
        let is_complete = self.dirs.get(&parent).is_some_and(|dir| dir.is_complete);
        if fid.is_none() && is_complete || !self.has_room(parent, name, fid) || under.is_none() {
            self.forgotten = self.forgotten.max(at);
            if fid.is_some()
                && let Some(dir) = self.dirs.get_mut(&parent)
            {
                dir.incomplete();
            }
            return self.remove(parent, name);
        }
        self.insert(parent, name, fid, at, under)
    }
    fn has_room(&mut self, parent: Fid, name: &[u8], fid: Option<Fid>) -> bool {
        if fid.is_some() {
            return self.count < NAMES_MAX || self.entry(parent, name).is_some();
        }
        let absent = |entries: &Self| entries.dirs.get(&parent).map_or(0, |dir| dir.absent);
        if absent(self) >= ABSENT_MAX {
            self.drop_absent(parent);
        }
        absent(self) < ABSENT_MAX
    }
    fn insert(
        &mut self,
        parent: Fid,
        name: &[u8],
        fid: Option<Fid>,
        at: Transno,
        under: Under,
    ) -> Option<Gone> {
        self.serials += 1;
        let (serial, kernel_until) = (self.serials, Instant::default());
        let entry = NameEntry { fid, under, changed_at: at, cookie: 0, serial, kernel_until };
        let dir = self.dir_mut(parent);
        if let Some(fid) = dir.replace(name, entry) {
            // The kernel's use of the name goes on: it learns of own changes by itself.
            return Some(Gone { parent, name: Bytes::copy_from_slice(name), fid, in_kernel: false });
        }
        dir.insert(Bytes::copy_from_slice(name), entry);
        self.count += 1;
        None
    }
    fn remove(&mut self, parent: Fid, name: &[u8]) -> Option<Gone> {
        let dir = self.dirs.get_mut(&parent)?;
        let gone = dir.remove(name);
        if dir.names.is_empty() && !dir.is_complete && dir.listed_to.is_none() {
            self.dirs.remove(&parent);
        }
        let gone = gone?;
        self.count -= 1;
        self.forgotten = self.forgotten.max(gone.changed_at);
        let name = Bytes::copy_from_slice(name);
        Some(Gone { parent, name, fid: gone.fid, in_kernel: gone.kernel_until > self.now })
    }

    // ---- the ends of locks

    /// UPDATE of a directory has ended: names are left that are valid under LOOKUP of their inodes.
    pub(super) fn lost_update(&mut self, parent: Fid) -> Vec<Gone> {
        let Some(dir) = self.dirs.get_mut(&parent) else { return Vec::new() };
        dir.incomplete();
        dir.placed.clear();
        let (mut ended, mut unplaced) = (Vec::new(), 0);
        dir.names.for_each_mut(|name, entry| {
            entry.under.parent = false;
            if entry.under.is_none() {
                ended.push(name.clone());
            }
            entry.cookie = 0;
            unplaced += usize::from(entry.fid.is_some());
        });
        dir.unplaced = unplaced;
        if ended.is_empty() && dir.names.is_empty() {
            self.dirs.remove(&parent);
        }
        ended.iter().filter_map(|name| self.remove(parent, name)).collect()
    }
    /// LOOKUP of the inode that a name leads to has ended.
    pub(super) fn lost_lookup(&mut self, parent: Fid, name: &[u8], fid: Fid) -> Option<Gone> {
        let entry = self.dirs.get_mut(&parent)?.names.get_mut(name).filter(|entry| entry.fid == Some(fid))?;
        entry.under.child = false;
        if !entry.under.is_none() {
            return None;
        }
        self.remove(parent, name)
    }

    // ---- listings

    /// This mount has created the directory, so it is known to be empty.
    pub(super) fn created_dir(&mut self, dir: Fid) {
        self.dir_mut(dir).is_complete = true;
    }
    /// A page of a listing, from which `seen` is known, begins behind a cookie, with UPDATE of the directory granted by its
    /// reply.
    pub(super) fn page_begins(&mut self, dir: Fid, cookie: u64, seen: Transno) {
        if cookie <= name::COOKIE_DOTDOT {
            self.dir_mut(dir).listed_to.get_or_insert(name::COOKIE_DOTDOT);
        }
        if let Some(dir) = self.dirs.get_mut(&dir)
            && (dir.listed_to.is_none_or(|to| to < cookie) || seen < dir.named_at)
        {
            dir.listed_to = None;
        }
    }
    /// A name of that page has this cookie.
    pub(super) fn place(&mut self, dir: Fid, name: &[u8], cookie: u64, file_type: FileType) {
        if let Some(dir) = self.dirs.get_mut(&dir).filter(|dir| dir.listed_to.is_some()) {
            dir.place(name, cookie, file_type);
        }
    }
    /// The page has ended with a cookie, or with the end of the directory.
    pub(super) fn page_ends(&mut self, dir: Fid, cookie: u64, eof: bool) {
        let Some(known) = self.dirs.get_mut(&dir).filter(|dir| dir.listed_to.is_some()) else { return };
        known.listed_to = if eof { None } else { known.listed_to.max(Some(cookie)) };
        known.is_complete |= eof;
    }
    /// Whether the page behind a cookie would continue a listing that is kept here, or begin one.
    pub(super) fn would_keep(&self, dir: Fid, cookie: u64) -> bool {
        cookie <= name::COOKIE_DOTDOT
            || self.dirs.get(&dir).is_some_and(|dir| dir.listed_to.is_some_and(|to| cookie <= to))
    }

    // ---- the kernel

    /// The kernel may use a name until a time. False: the name is not known here, or too many that are not there are known; or
    /// it is not among the names of its inode ([`Under::child`]), or the permissions of that are not covered.
    pub(super) fn give_to_kernel(
        &mut self,
        parent: Fid,
        name: &[u8],
        until: Instant,
        covers_permissions: impl FnOnce(Fid) -> bool,
    ) -> bool {
        let Some(dir) = self.dirs.get_mut(&parent) else { return false };
        if let Some(entry) = dir.names.get_mut(name) {
            if entry.fid.is_some_and(|fid| !entry.under.child || !covers_permissions(fid)) {
                return false;
            }
            entry.kernel_until = entry.kernel_until.max(until);
            return true;
        }
        if !dir.is_complete {
            return false;
        }
        if !self.has_room(parent, name, None) {
            return false;
        }
        self.serials += 1;
        let (changed_at, serial) = (self.forgotten, self.serials);
        let under = Under { parent: true, child: false };
        let entry = NameEntry { fid: None, under, changed_at, cookie: 0, serial, kernel_until: until };
        let Some(dir) = self.dirs.get_mut(&parent) else { return false };
        dir.insert(Bytes::copy_from_slice(name), entry);
        self.count += 1;
        true
    }
    /// The kernel may not use a name any more. False: it could not before.
    pub(super) fn take_from_kernel(&mut self, parent: Fid, name: &[u8]) -> bool {
        let entry = self.dirs.get_mut(&parent).and_then(|dir| dir.names.get_mut(name));
        entry.is_some_and(|entry| core::mem::take(&mut entry.kernel_until) > self.now)
    }
    /// Until when the kernel may use a name. `None`: the name is not in the table.
    pub(super) fn kernel_until(&self, parent: Fid, name: &[u8]) -> Option<Instant> {
        self.entry(parent, name).map(|entry| entry.kernel_until)
    }
    /// The names that the kernel may use.
    pub(super) fn in_kernel(&self) -> Vec<(Fid, Bytes)> {
        let mut names = Vec::new();
        for (dir, known) in &self.dirs {
            let in_kernel = known.names.iter().filter(|(_, entry)| entry.kernel_until > self.now);
            names.extend(in_kernel.map(|(name, _)| (*dir, name.clone())));
        }
        names
    }
    /// An own rename has moved the entry that the kernel may use until a time to this name. False: it is not known here.
    pub(super) fn kernel_moves(&mut self, parent: Fid, name: &[u8], until: Instant) -> bool {
        let entry = self.dirs.get_mut(&parent).and_then(|dir| dir.names.get_mut(name));
        let Some(entry) = entry.filter(|entry| entry.fid.is_some()) else { return false };
        entry.kernel_until = until;
        true
    }
    /// Drops names that are not there and that the kernel does not use any more.
    fn drop_absent(&mut self, parent: Fid) {
        let Some(dir) = self.dirs.get_mut(&parent) else { return };
        if dir.searched.is_some_and(|at| self.now - at < ABSENT_LOOK) {
            return;
        }
        dir.searched = Some(self.now);
        let unused = |entry: &&NameEntry| entry.fid.is_none() && entry.kernel_until <= self.now;
        let names: Vec<Bytes> =
            dir.names.iter().filter(|(_, entry)| unused(entry)).map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| drop(self.remove(parent, name)));
    }
}
