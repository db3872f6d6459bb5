//! The rows of one transaction as the operations see them, and the way back to fetch what is missing.
//!
//! An operation is a synchronous function over a [`View`]. It reads what it needs; a row that is not in memory is
//! put on the list of [`Wants`] and ends the attempt with [`Halt::Retry`]: nothing was changed, the handler fetches
//! the list and runs the operation again. So an operation checks everything inside its transaction, and no
//! handler has to know beforehand which rows it will look at. (Cached client locks come in before the loop of
//! `Mdt::change`: the locks are taken for the keys of the attempt that succeeds.)
//!
//! Invariants: an operation that returns an error has left nothing behind; the number of attempts is bounded.

use crate::locks::dir_holds::DirChange;
use crate::locks::uncommitted::{Key, Touched};
use crate::rows::ancestry::Ways;
use crate::rows::opens::{Before, Opens};
use crate::rows::row::{Entry, Inode, Opened, Row, RowError};
use crate::rows::table::{self, ENTRY, INODE};
use crate::rows::versions::Versions;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use nacre_osd::{Credits, Osd, OsdError, Pins, Table, Tx};
use nacre_types::name::{DISCRIMINATORS, HashKey, cookie_base};
use nacre_types::{Errno, Fid, Generation, Name, OpenHandle, OstIndex, Owner, Timestamp, Transno};
use tracing::error;

/// Why an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Halt {
    Errno(Errno),
    /// Rows are missing in memory: fetch and run again.
    Retry,
    /// It has to wait for others first (found before anything in memory was changed).
    Wait,
    /// It writes more than was reserved: so much.
    Reserve(Credits),
}
impl From<Errno> for Halt {
    fn from(e: Errno) -> Self {
        Halt::Errno(e)
    }
}
/// Result of a step of an operation.
pub(crate) type Step<T> = Result<T, Halt>;

/// What an operation needs of a transaction. The engine's in a target; a map in model tests.
pub(crate) trait Rows {
    fn transno(&self) -> Transno;
    fn is_pinned(&self, table: Table, key: &[u8]) -> bool;
    fn get(&self, table: Table, key: &[u8]) -> Option<&[u8]>;
    /// Gives keys and values of `from..to` in order; `false`: the range is not pinned as a whole.
    fn each(&self, table: Table, from: &[u8], to: &[u8], row: &mut dyn FnMut(&[u8], &[u8])) -> bool;
    fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>);
    fn delete(&mut self, table: Table, key: &[u8]);
    fn delete_range(&mut self, table: Table, from: &[u8], to: &[u8]);
    fn account(&mut self, owner: Owner, bytes: i64, objects: i64);
}
impl Rows for Tx<'_> {
    fn transno(&self) -> Transno {
        Tx::transno(self)
    }
    fn is_pinned(&self, table: Table, key: &[u8]) -> bool {
        Tx::is_pinned(self, table, key)
    }
    fn get(&self, table: Table, key: &[u8]) -> Option<&[u8]> {
        Tx::get(self, table, key)
    }
    fn each(&self, table: Table, from: &[u8], to: &[u8], row: &mut dyn FnMut(&[u8], &[u8])) -> bool {
        let pinned = self.is_range_pinned(table, from, to);
        if pinned {
            self.range(table, from, to).for_each(|(key, value)| row(key, value));
        }
        pinned
    }
    fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        Tx::put(self, table, key, value);
    }
    fn delete(&mut self, table: Table, key: &[u8]) {
        Tx::delete(self, table, key);
    }
    fn delete_range(&mut self, table: Table, from: &[u8], to: &[u8]) {
        Tx::delete_range(self, table, from, to);
    }
    fn account(&mut self, owner: Owner, bytes: i64, objects: i64) {
        Tx::account(self, owner, bytes, objects);
    }
}

/// Rows that the next attempt will need.
#[derive(Debug, Default, Clone)]
pub(crate) struct Wants {
    keys: BTreeSet<(Table, Vec<u8>)>,
    ranges: BTreeSet<(Table, Vec<u8>, Vec<u8>)>,
    pub(crate) ways: Ways,
}
impl Wants {
    pub(crate) fn key(&mut self, table: Table, key: &[u8]) {
        self.keys.insert((table, key.to_vec()));
    }
    pub(crate) fn inode(&mut self, fid: Fid) {
        self.key(INODE, &fid.key());
    }
    /// Everything that `other` wants too.
    pub(crate) fn merge(&mut self, other: Wants) {
        self.keys.extend(other.keys);
        self.ranges.extend(other.ranges);
        self.ways.merge(other.ways);
    }
    /// The rows that `name` may have in `dir`.
    pub(crate) fn name(&mut self, hash: HashKey, dir: Fid, name: Name<'_>) {
        let (from, to) = table::entries_of_hash(dir, cookie_base(hash, name.as_bytes()));
        self.ranges.insert((ENTRY, from.to_vec(), to.to_vec()));
    }
    /// Reads everything on the list.
    pub(crate) async fn fetch(&self, osd: &Osd) -> Result<Pins, OsdError> {
        let keys: Vec<(Table, &[u8])> = self.keys.iter().map(|(t, k)| (*t, &k[..])).collect();
        let mut pins = osd.fetch(&keys).await?;
        for (table, from, to) in &self.ranges {
            osd.fetch_range(*table, from, to, DISCRIMINATORS as u32 + 1, &mut pins).await?;
        }
        Ok(pins)
    }
    #[cfg(test)]
    pub(crate) fn holds(&self, table: Table, key: &[u8]) -> bool {
        self.keys.iter().any(|(t, k)| *t == table && k == key)
            || self.ranges.iter().any(|(t, from, to)| *t == table && from[..] <= *key && *key < to[..])
    }
    #[cfg(test)]
    pub(crate) fn holds_range(&self, table: Table, from: &[u8], to: &[u8]) -> bool {
        self.ranges.iter().any(|(t, f, end)| *t == table && f[..] <= *from && *to <= end[..])
    }
}

/// What a name's place in a directory looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    Taken {
        cookie: u64,
        entry: Entry,
    },
    /// The lowest free cookie of the hash.
    Free {
        cookie: u64,
    },
    /// Sixteen other names have the same hash.
    Full,
}
impl Slot {
    pub(crate) fn taken(self) -> Option<(u64, Entry)> {
        match self {
            Slot::Taken { cookie, entry } => Some((cookie, entry)),
            Slot::Free { .. } | Slot::Full => None,
        }
    }
}

/// What memory must learn when the transaction has succeeded, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    Opened {
        export: Generation,
        handle: OpenHandle,
        opened: Opened,
        before: Before,
    },
    Closed {
        export: Generation,
        handle: OpenHandle,
    },
    /// A client starts to cut the file.
    Cut {
        export: Generation,
        fid: Fid,
    },
    /// It has reported; `last`: it will report no other one (its export is gone).
    CutEnded {
        export: Generation,
        fid: Fid,
        last: bool,
    },
    /// Somebody who wrote cannot be asked any more.
    Mixed(Fid),
    /// The background must ask the OSTs for the size.
    Unsettled(Fid),
    /// Rows of [`table::DESTROY`] or [`table::CHOWN`] were written for this OST.
    OstWork(OstIndex),
    /// The file never used what it had reserved on this OST.
    Unused(OstIndex),
    /// The inode is gone, and with it its file locks.
    Removed(Fid),
}

/// An open transaction of the metadata target.
pub(crate) struct View<'a> {
    rows: &'a mut dyn Rows,
    pub(crate) wants: &'a mut Wants,
    hash: HashKey,
    /// Opens as they were before this transaction.
    pub(crate) opens: &'a Opens,
    pub(crate) notes: Vec<Note>,
    /// Directories that are changed or removed, in order.
    pub(crate) dirs: Vec<DirChange>,
    /// What is looked at and changed, if somebody wants to know.
    pub(crate) touched: Option<Touched>,
    pub(crate) versions: Versions,
    /// Directories that this transaction has made or moved, and where they are now, in order.
    pub(crate) placed: Vec<(Fid, Fid)>,
}

/// A damaged row: named in the log by whoever stops at it.
fn damaged(table: Table, key: &[u8], e: RowError) -> Halt {
    error!(table = table.0, key = ?key, error = %e, "a row cannot be read: run nacre check on this target");
    Halt::Errno(Errno::EIO)
}

impl<'a> View<'a> {
    pub(crate) fn new(rows: &'a mut dyn Rows, wants: &'a mut Wants, hash: HashKey, opens: &'a Opens) -> Self {
        Self {
            rows,
            wants,
            hash,
            opens,
            notes: Vec::new(),
            dirs: Vec::new(),
            touched: None,
            versions: Versions::default(),
            placed: Vec::new(),
        }
    }
    pub(crate) fn transno(&self) -> Transno {
        self.rows.transno()
    }
    pub(crate) fn row<R: Row>(&mut self, table: Table, key: &[u8]) -> Step<Option<R>> {
        if !self.rows.is_pinned(table, key) {
            self.wants.key(table, key);
            return Err(Halt::Retry);
        }
        match self.rows.get(table, key) {
            None => Ok(None),
            Some(bytes) => R::from_row(bytes).map(Some).map_err(|e| damaged(table, key, e)),
        }
    }
    /// A row without a version byte of ours (values of extended attributes).
    pub(crate) fn bytes(&mut self, table: Table, key: &[u8]) -> Step<Option<&[u8]>> {
        if !self.rows.is_pinned(table, key) {
            self.wants.key(table, key);
            return Err(Halt::Retry);
        }
        Ok(self.rows.get(table, key))
    }
    pub(crate) fn put<R: Row>(&mut self, table: Table, key: &[u8], row: &R) {
        self.rows.put(table, key, row.to_row());
    }
    pub(crate) fn put_bytes(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        self.rows.put(table, key, value);
    }
    pub(crate) fn delete(&mut self, table: Table, key: &[u8]) {
        self.rows.delete(table, key);
    }
    pub(crate) fn delete_prefix(&mut self, table: Table, prefix: &[u8]) {
        let (from, to) = table::range_of(prefix);
        self.rows.delete_range(table, &from, &to);
    }
    pub(crate) fn account(&mut self, owner: Owner, objects: i64) {
        self.rows.account(owner, 0, objects);
    }

    // ---- inodes

    pub(crate) fn inode(&mut self, fid: Fid) -> Step<Option<Inode>> {
        if let Some(touched) = &mut self.touched {
            touched.seen.push(Key::inode(fid));
        }
        self.row(INODE, &fid.key())
    }
    /// The inode that somebody names by FID; ESTALE sends the kernel back to its lookup.
    pub(crate) fn file(&mut self, fid: Fid) -> Step<Inode> {
        self.inode(fid)?.ok_or(Halt::Errno(Errno::ESTALE))
    }
    /// A directory in which names are looked up or changed.
    pub(crate) fn dir(&mut self, fid: Fid) -> Step<Inode> {
        let dir = self.inode(fid)?.ok_or(Halt::Errno(Errno::ENOENT))?;
        if !dir.attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if dir.attr.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        Ok(dir)
    }
    /// Stores an inode without a new version (entries of a directory changed, a writer has reported).
    pub(crate) fn put_inode(&mut self, inode: &Inode) {
        if inode.attr.version == self.transno().0
            && let Some(touched) = &mut self.touched
        {
            touched.made.push(Key::inode(inode.attr.fid));
        }
        if inode.attr.is_dir() {
            self.dirs.push(DirChange::of(inode));
        }
        self.put(INODE, &inode.attr.fid.key(), inode);
    }
    /// Stores an inode of which only the access time has changed. Clients that hold a directory keep the hold and see the old
    /// time: access times are not coherent, and a revoke at every listing would cost more than all the rest.
    pub(crate) fn put_accessed(&mut self, inode: &Inode) {
        self.put(INODE, &inode.attr.fid.key(), inode);
    }
    /// Stores an inode whose own attributes changed.
    pub(crate) fn put_changed(&mut self, inode: &mut Inode) {
        inode.attr.version = self.transno().0;
        self.put_inode(inode);
    }

    // ---- names

    /// Where `name` is, or would go.
    pub(crate) fn slot(&mut self, dir: Fid, name: Name<'_>) -> Step<Slot> {
        let base = cookie_base(self.hash, name.as_bytes());
        if let Some(touched) = &mut self.touched {
            touched.seen.push(Key::name(dir, base));
        }
        let (from, to) = table::entries_of_hash(dir, base);
        // Lowest cookie that no row has had so far, and the row with the name.
        let (mut free, mut taken) = (base, Ok(None));
        let pinned = self.rows.each(ENTRY, &from, &to, &mut |key, bytes| {
            let cookie = table::cookie_of(key).unwrap_or_default();
            free += u64::from(cookie == free);
            if let Ok(None) = taken {
                let entry = Entry::from_row(bytes).map_err(|e| damaged(ENTRY, key, e));
                taken = entry.map(|entry| (entry.name == name.as_bytes()).then_some((cookie, entry)));
            }
        });
        if !pinned {
            self.wants.name(self.hash, dir, name);
            return Err(Halt::Retry);
        }
        Ok(match taken? {
            Some((cookie, entry)) => Slot::Taken { cookie, entry },
            None if free < base + DISCRIMINATORS => Slot::Free { cookie: free },
            None => Slot::Full,
        })
    }
    pub(crate) fn put_entry(&mut self, dir: Fid, cookie: u64, entry: &Entry) {
        self.made_name(dir, cookie);
        self.put(ENTRY, &table::entry(dir, cookie), entry);
    }
    fn made_name(&mut self, dir: Fid, cookie: u64) {
        if let Some(touched) = &mut self.touched {
            touched.made.push(Key::name(dir, cookie));
        }
    }
    pub(crate) fn delete_entry(&mut self, dir: Fid, cookie: u64) {
        self.made_name(dir, cookie);
        self.delete(ENTRY, &table::entry(dir, cookie));
    }
}

impl Inode {
    pub(crate) fn owner(&self) -> Owner {
        Owner { uid: self.attr.uid, gid: self.attr.gid, projid: self.attr.projid }
    }
    /// ctime only grows.
    pub(crate) fn changed_at(&mut self, time: Timestamp) {
        self.attr.ctime = self.attr.ctime.max(time);
    }
    /// Entries of a directory were changed, or a file cut: mtime follows unless it was set later than that.
    pub(crate) fn modified_at(&mut self, time: Timestamp) {
        if time >= self.mtime_order {
            self.attr.mtime = time;
            self.mtime_order = time;
        }
        self.changed_at(time);
    }
    /// Bytes were written at `time`, reported later: they count only beyond what was set explicitly.
    pub(crate) fn written_at(&mut self, time: Timestamp) {
        if time > self.mtime_order {
            self.attr.mtime = time;
            self.mtime_order = time;
            self.changed_at(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fs, HASH};
    use bytes::Bytes;
    use nacre_types::FileType;

    #[test]
    fn a_name_goes_to_the_lowest_cookie_of_its_hash_that_no_other_has() {
        let mut fs = Fs::new();
        let base = cookie_base(HASH, b"x");
        let entry = |name: &'static [u8]| {
            let name = Bytes::from_static(name);
            Entry { name, fid: Fid::ROOT, file_type: FileType::Regular, version: 0 }
        };
        let slot = |fs: &mut Fs| {
            fs.transact(Wants::default(), |view| view.slot(Fid::ROOT, Name::new(b"x").unwrap())).unwrap()
        };
        let put =
            |fs: &mut Fs, cookie, name| fs.put_row(ENTRY, &table::entry(Fid::ROOT, cookie), &entry(name));
        // Those of the hashes before and behind it are others'.
        put(&mut fs, base - 1, b"x");
        put(&mut fs, base + DISCRIMINATORS, b"x");
        assert_eq!(slot(&mut fs), Slot::Free { cookie: base });
        for n in [1, 0, 3] {
            put(&mut fs, base + n, b"y");
        }
        assert_eq!(slot(&mut fs), Slot::Free { cookie: base + 2 });
        put(&mut fs, base + 5, b"x");
        assert_eq!(slot(&mut fs), Slot::Taken { cookie: base + 5, entry: entry(b"x") });
        for n in 0..DISCRIMINATORS {
            put(&mut fs, base + n, b"y");
        }
        assert_eq!(slot(&mut fs), Slot::Full);
    }
}
