//! The rows of one transaction as the operations see them, and the way back to fetch the rows that are missing.
//!
//! An operation is a synchronous function over a [`View`]. If it reads a row that is not in memory, the row is added to
//! the [`ReadSet`] and the attempt ends with [`Abort::MissingRows`]: nothing was changed, the service fetches the set
//! and runs the operation again. So an operation checks everything inside its transaction, and its caller need not know
//! beforehand which rows it will read.
//!
//! Invariants: an operation that returns an error has left nothing behind; the number of attempts is bounded.

use crate::rows::access::{AccessKey, AccessSet};
use crate::rows::lock_changes::{LockChanges, LockHolders, changed_bits};
use crate::rows::opens::{Opens, Undo};
use crate::rows::read_set::ReadSet;
use crate::rows::row::{BorrowedEntry, EntryRow, Inode, InodeRow, Row, RowError};
use crate::rows::state_change::StateChange;
use crate::rows::table::{self, ENTRY, INODE};
use alloc::boxed::Box;
use alloc::vec::Vec;
use nacre_osd::{Credits, Table, Tx};
use nacre_rpc::PreVersions;
use nacre_types::name::{DISCRIMINATORS, HashKey, cookie_base};
use nacre_types::{Errno, Failure, Fid, InodeBits, Name, Owner, Transno, Writer};
use smallvec::SmallVec;
use tracing::error;

/// The reason why an attempt ended without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abort {
    /// The operation fails.
    Failed(Failure),
    /// The operation fails, unless other clients have locks that it breaks: they are returned first, and with them may end what
    /// it fails of.
    AfterRevoke(Errno),
    /// Rows are missing in memory: fetch the read set and run the operation again.
    MissingRows,
    /// A conflicting change comes first. Found before anything in memory was changed.
    MustWait,
    /// The operation writes more than was reserved: it needs these credits.
    NeedsCredits(Credits),
}
impl<F: Into<Failure>> From<F> for Abort {
    fn from(failure: F) -> Self {
        Abort::Failed(failure.into())
    }
}
/// Result of a step of an operation.
pub(crate) type Step<T> = Result<T, Abort>;

/// The transaction that an operation runs in: the engine's in a target, a map in model tests.
pub(crate) trait Rows {
    fn transno(&self) -> Transno;
    /// The row, or `None`; without it, `None`: nothing is known of the key.
    fn get_known(&self, table: Table, key: &[u8]) -> Option<Option<&[u8]>>;
    /// Passes the rows of `from..to` to `row` in the order of their keys; `false`: the range is not pinned as a whole.
    fn each(&self, table: Table, from: &[u8], to: &[u8], row: &mut dyn FnMut(&[u8], &[u8])) -> bool;
    /// Writes the row that `encode` appends to an empty buffer.
    fn put(&mut self, table: Table, key: &[u8], encode: &dyn Fn(&mut Writer));
    fn delete(&mut self, table: Table, key: &[u8]);
    fn delete_range(&mut self, table: Table, from: &[u8], to: &[u8]);
    fn account(&mut self, owner: Owner, bytes: i64, objects: i64);
}
impl Rows for Tx<'_> {
    fn transno(&self) -> Transno {
        Tx::transno(self)
    }
    fn get_known(&self, table: Table, key: &[u8]) -> Option<Option<&[u8]>> {
        Tx::get_known(self, table, key)
    }
    fn each(&self, table: Table, from: &[u8], to: &[u8], row: &mut dyn FnMut(&[u8], &[u8])) -> bool {
        let rows = self.pinned_range(table, from, to);
        rows.map(|rows| rows.for_each(|(key, value)| row(key, value))).is_some()
    }
    fn put(&mut self, table: Table, key: &[u8], encode: &dyn Fn(&mut Writer)) {
        Tx::put_encoded(self, table, key, encode);
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

/// The place of a name in its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    Taken {
        cookie: u64,
        entry: EntryRow,
    },
    /// The lowest free cookie of the hash.
    Free {
        cookie: u64,
    },
    /// Sixteen other names have the same hash.
    Full,
}
impl Slot {
    pub(crate) fn taken(self) -> Option<(u64, EntryRow)> {
        match self {
            Slot::Taken { cookie, entry } => Some((cookie, entry)),
            Slot::Free { .. } | Slot::Full => None,
        }
    }
}

/// Everything that an attempt leaves beside its result.
///
/// The fields are open to the crate because this is a record without rules of its own: the view fills it, the loop around
/// the operation takes it apart.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// The rows that were read and written, if conflicts with other clients are possible.
    pub(crate) accesses: Option<AccessSet>,
    /// Changes of the memory, in order. A batch has changed the opens already, because its later operations see those of
    /// earlier ones; with how to undo it.
    pub(crate) state_changes: Vec<(StateChange, Option<Box<Undo>>)>,
    /// The changes of inodes of which clients have locks.
    pub(crate) locks: LockChanges,
    /// The versions that the operation depends on.
    pub(crate) versions: PreVersions,
    /// Directories that the transaction has made or moved, and their parents, in order.
    pub(crate) placed_dirs: SmallVec<[(Fid, Fid); 1]>,
}

/// An open transaction of the metadata target.
pub(crate) struct View<'a> {
    rows: &'a mut dyn Rows,
    read_set: &'a mut ReadSet,
    hash: HashKey,
    opens: &'a Opens,
    holders: Option<&'a dyn LockHolders>,
    expected: Option<PreVersions>,
    output: &'a mut Output,
}

/// A damaged row, which is named in the log.
fn damaged(table: Table, key: &[u8], e: RowError) -> Abort {
    error!(table = table.0, key = ?key, error = %e, "a row cannot be read: run nacre check on this target");
    Errno::EIO.into()
}

impl<'a> View<'a> {
    /// `opens`: as they were before this transaction. `output` is continued.
    pub(crate) fn new(
        rows: &'a mut dyn Rows,
        read_set: &'a mut ReadSet,
        hash: HashKey,
        opens: &'a Opens,
        output: &'a mut Output,
    ) -> Self {
        Self { rows, read_set, hash, opens, holders: None, expected: None, output }
    }
    /// Notes what the operation means for the locks of clients.
    pub(crate) fn noting_locks(mut self, holders: &'a dyn LockHolders) -> Self {
        self.holders = Some(holders);
        self
    }
    /// The operation is a replay, and depended on these versions when it was executed first.
    pub(crate) fn expecting(mut self, versions: Option<PreVersions>) -> Self {
        self.expected = versions;
        self
    }
    pub(crate) fn transno(&self) -> Transno {
        self.rows.transno()
    }
    /// Whether the operation was executed before, and the target has lost it.
    pub(crate) fn is_replay(&self) -> bool {
        self.expected.is_some()
    }
    pub(crate) fn opens(&self) -> &'a Opens {
        self.opens
    }
    /// The accesses so far, if they are tracked.
    pub(crate) fn accesses_mut(&mut self) -> Option<&mut AccessSet> {
        self.output.accesses.as_mut()
    }
    /// Notes a change of the memory, for the end of the transaction.
    pub(crate) fn state_change(&mut self, change: StateChange) {
        self.output.state_changes.push((change, None));
    }
    /// Notes the parent of a directory that this transaction has made or moved.
    pub(crate) fn dir_placed(&mut self, dir: Fid, parent: Fid) {
        self.output.placed_dirs.push((dir, parent));
    }
    /// Notes the version of something that the operation depends on, and returns the version that a replay expects.
    pub(crate) fn version_found(&mut self, place: usize, version: Transno) -> Option<Transno> {
        self.output.versions.0[place] = version;
        self.expected.map(|expected| expected.0[place])
    }

    // ---- rows

    pub(crate) fn row<R: Row>(&mut self, table: Table, key: &[u8]) -> Step<Option<R>> {
        match self.bytes(table, key)? {
            None => Ok(None),
            Some(bytes) => R::from_row(bytes).map(Some).map_err(|e| damaged(table, key, e)),
        }
    }
    /// A row without a version byte (a value of an extended attribute).
    pub(crate) fn bytes(&mut self, table: Table, key: &[u8]) -> Step<Option<&[u8]>> {
        let Some(row) = self.rows.get_known(table, key) else {
            self.read_set.key(table, key);
            return Err(Abort::MissingRows);
        };
        Ok(row)
    }
    pub(crate) fn put<R: Row>(&mut self, table: Table, key: &[u8], row: &R) {
        self.rows.put(table, key, &|w| row.encode_row(w));
    }
    pub(crate) fn put_bytes(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.rows.put(table, key, &|w| w.raw(value));
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
        if let Some(accesses) = &mut self.output.accesses {
            accesses.read(AccessKey::inode(fid));
        }
        self.row(INODE, &fid.key())
    }
    /// An inode that a client names by FID. ESTALE sends the kernel back to its lookup.
    pub(crate) fn file(&mut self, fid: Fid) -> Step<Inode> {
        self.inode(fid)?.ok_or(Errno::ESTALE.into())
    }
    /// Whether there is an inode with this FID.
    pub(crate) fn has_inode(&mut self, fid: Fid) -> Step<bool> {
        if let Some(accesses) = &mut self.output.accesses {
            accesses.read(AccessKey::inode(fid));
        }
        let key = fid.key();
        let Some(row) = self.bytes(INODE, &key)? else { return Ok(false) };
        InodeRow::of_row(row).map(|_| true).map_err(|e| damaged(INODE, &key, e))
    }
    /// A directory in which names are looked up or changed.
    pub(crate) fn dir(&mut self, fid: Fid) -> Step<Inode> {
        let dir = self.inode(fid)?.ok_or(Errno::ENOENT)?;
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
            && let Some(accesses) = &mut self.output.accesses
        {
            accesses.write(AccessKey::inode(inode.attr.fid));
        }
        self.note_written(inode);
        self.put(INODE, &inode.attr.fid.key(), inode);
    }
    /// Notes what the new state of an inode means for locks.
    fn note_written(&mut self, inode: &Inode) {
        let fid = inode.attr.fid;
        if self.others_hold(fid) {
            // A row that cannot be read has an error of its own where it is read.
            let old = self.rows.get_known(INODE, &fid.key()).flatten();
            let old = old.and_then(|row| Inode::from_row(row).ok());
            let bits = old.map_or(InodeBits::NONE, |old| changed_bits(&old, inode));
            self.breaks(fid, bits);
        }
        self.shows_to_sender(inode);
    }
    /// Whether clients other than the sender may have a lock of the inode. The sender may be among the former writers.
    fn others_hold(&self, fid: Fid) -> bool {
        self.holders.is_some_and(|holders| holders.others(fid) || self.opens.has_former_writers(None, fid))
    }
    /// The reply shows its sender the state of an inode of which it has locks.
    pub(crate) fn shows_to_sender(&mut self, inode: &Inode) {
        if self.holders.is_some_and(|holders| holders.sender(inode.attr.fid)) {
            self.output.locks.set_changed(inode.reply());
        }
    }
    /// Notes that an inode is gone.
    pub(crate) fn note_removed(&mut self, fid: Fid) {
        let Some(holders) = self.holders else { return };
        self.breaks(fid, InodeBits::ALL);
        if holders.sender(fid) {
            self.output.locks.set_removed(fid);
        }
    }
    /// Notes a change of parts of an inode that is not a change of its row.
    pub(crate) fn breaks(&mut self, fid: Fid, bits: InodeBits) {
        if !bits.is_empty() && self.others_hold(fid) {
            self.output.locks.add_broken(fid, bits);
        }
    }
    /// Notes a new access time, which other clients are to see.
    pub(crate) fn shows_access(&mut self, fid: Fid) {
        if self.others_hold(fid) {
            self.output.locks.add_accessed(fid);
        }
    }
    /// Notes that the last name of an inode goes, of which the sender may have opens that it has not reported.
    pub(crate) fn needs_report(&mut self, fid: Fid) {
        if self.holders.is_some_and(|holders| holders.sender_opens(fid)) {
            self.output.locks.add_unreported(fid);
        }
    }
    /// Notes that the reply describes an inode: its sender may be granted a lock, unless the inode is an orphan.
    pub(crate) fn describes(&mut self, inode: &Inode) {
        if self.holders.is_some() && inode.attr.nlink > 0 {
            self.output.locks.add_described(inode.attr.fid);
        }
    }
    /// Stores an inode whose change no other client has to notice, for example the close of a writer that changed nothing: no
    /// other client had SIZE meanwhile.
    pub(crate) fn put_unnoticed(&mut self, inode: &Inode) {
        self.shows_to_sender(inode);
        self.put(INODE, &inode.attr.fid.key(), inode);
    }
    /// Stores an inode whose data came to the target, or left it. Others wait for that, so it must not wait for locks of others,
    /// and need not: whoever has not got SIZE asks for all attributes, and who believes in an old layout is told.
    pub(crate) fn put_data_changed(&mut self, inode: &mut Inode) {
        inode.attr.version = self.transno().0;
        if let Some(accesses) = &mut self.output.accesses {
            accesses.write(AccessKey::inode(inode.attr.fid));
        }
        self.put_unnoticed(inode);
    }
    /// Stores an inode whose own attributes changed.
    pub(crate) fn put_changed(&mut self, inode: &mut Inode) {
        inode.attr.version = self.transno().0;
        self.put_inode(inode);
    }

    // ---- names

    /// The place of `name` in a directory.
    pub(crate) fn slot(&mut self, dir: Fid, name: Name<'_>) -> Step<Slot> {
        let base = cookie_base(self.hash, name.as_bytes());
        if let Some(accesses) = &mut self.output.accesses {
            accesses.read(AccessKey::name(dir, base));
        }
        let (from, to) = table::entries_of_hash(dir, base);
        // The lowest cookie that no row has had so far, and the row with the name.
        let (mut free, mut taken) = (base, Ok(None));
        let pinned = self.rows.each(ENTRY, &from, &to, &mut |key, bytes| {
            let cookie = table::cookie_of(key).unwrap_or_default();
            free += u64::from(cookie == free);
            if let Ok(None) = taken {
                let entry = BorrowedEntry::of_row(bytes).map_err(|e| damaged(ENTRY, key, e));
                let is_it = |entry: &BorrowedEntry<'_>| entry.name == name.as_bytes();
                taken = entry.map(|entry| is_it(&entry).then(|| (cookie, entry.to_entry())));
            }
        });
        if !pinned {
            if let Some(entry) = self.first_of_hash(&from, name)? {
                return Ok(Slot::Taken { cookie: base, entry });
            }
            self.read_set.name(self.hash, dir, name);
            return Err(Abort::MissingRows);
        }
        Ok(match taken? {
            Some((cookie, entry)) => Slot::Taken { cookie, entry },
            None if free < base + DISCRIMINATORS => Slot::Free { cookie: free },
            None => Slot::Full,
        })
    }
    /// The entry with the first cookie of the hash of a name, if it has that name: nearly every name that is there has it.
    fn first_of_hash(&mut self, key: &[u8], name: Name<'_>) -> Step<Option<EntryRow>> {
        let Some(row) = self.rows.get_known(ENTRY, key).flatten() else { return Ok(None) };
        let entry = BorrowedEntry::of_row(row).map_err(|e| damaged(ENTRY, key, e))?;
        Ok((entry.name == name.as_bytes()).then(|| entry.to_entry()))
    }
    /// Stores a name under its new version.
    pub(crate) fn put_name(&mut self, dir: Fid, cookie: u64, entry: EntryRow) {
        let version = self.transno().0;
        self.name_written(dir, cookie);
        // The attributes of the directory may stay as they are: its times only grow.
        self.breaks(dir, InodeBits::UPDATE);
        self.put(ENTRY, &table::entry(dir, cookie), &EntryRow { version, ..entry });
    }
    pub(crate) fn delete_name(&mut self, dir: Fid, cookie: u64) {
        self.name_written(dir, cookie);
        self.breaks(dir, InodeBits::UPDATE);
        self.delete(ENTRY, &table::entry(dir, cookie));
    }
    fn name_written(&mut self, dir: Fid, cookie: u64) {
        if let Some(accesses) = &mut self.output.accesses {
            accesses.write(AccessKey::name(dir, cookie));
        }
    }

    // ---- ancestors

    /// Whether `dir` is `fid` or lies below it.
    pub(crate) fn is_below(&mut self, dir: Fid, fid: Fid) -> Step<bool> {
        let placed = &self.output.placed_dirs;
        let mut at = dir;
        // Each step passes one directory that this transaction has made or moved.
        for _ in 0..=placed.len() {
            if at == fid {
                return Ok(true);
            }
            if let Some((_, parent)) = placed.iter().rev().find(|(dir, _)| *dir == at) {
                at = *parent;
                continue;
            }
            let mut stops: Vec<Fid> = placed.iter().map(|(dir, _)| *dir).chain([fid]).collect();
            stops.sort_unstable();
            stops.dedup();
            at = self.read_set.walks_mut().end(at, stops).ok_or(Abort::MissingRows)??;
            if at == Fid::ROOT {
                return Ok(fid == Fid::ROOT);
            }
        }
        Ok(at == fid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fs, HASH};
    use bytes::Bytes;
    use nacre_types::FileType;

    #[test]
    fn a_name_with_the_first_cookie_of_its_hash_is_found_by_its_own_row() {
        let mut fs = Fs::new();
        let (base, name) = (cookie_base(HASH, b"x"), Name::new(b"x").unwrap());
        let row = |name: &'static [u8]| {
            let name = Bytes::from_static(name);
            EntryRow { name, fid: Fid::ROOT, file_type: FileType::Regular, version: 0 }
        };
        let find = |fs: &mut Fs| {
            let (mut read_set, mut attempts) = (ReadSet::default(), 0);
            read_set.present_name(HASH, Fid::ROOT, name);
            let slot = fs.transact(read_set, |view| {
                attempts += 1;
                view.slot(Fid::ROOT, name)
            });
            (slot.unwrap(), attempts)
        };
        assert_eq!(find(&mut fs), (Slot::Free { cookie: base }, 2));
        fs.put_row(ENTRY, &table::entry(Fid::ROOT, base), &row(b"x"));
        assert_eq!(find(&mut fs), (Slot::Taken { cookie: base, entry: row(b"x") }, 1));
        fs.put_row(ENTRY, &table::entry(Fid::ROOT, base), &row(b"y"));
        fs.put_row(ENTRY, &table::entry(Fid::ROOT, base + 1), &row(b"x"));
        assert_eq!(find(&mut fs), (Slot::Taken { cookie: base + 1, entry: row(b"x") }, 2));
    }

    #[test]
    fn a_name_goes_to_the_lowest_cookie_of_its_hash_that_no_other_has() {
        let mut fs = Fs::new();
        let base = cookie_base(HASH, b"x");
        let entry = |name: &'static [u8]| {
            let name = Bytes::from_static(name);
            EntryRow { name, fid: Fid::ROOT, file_type: FileType::Regular, version: 0 }
        };
        let slot = |fs: &mut Fs| {
            fs.transact(ReadSet::default(), |view| view.slot(Fid::ROOT, Name::new(b"x").unwrap())).unwrap()
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
