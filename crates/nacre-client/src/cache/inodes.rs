//! The known state of inodes on which this mount has locks.
//!
//! Rules: (1) an inode is in the table while this mount has a lock on it. State that a bit protects is dropped when the
//! bit ends, so that it is not used again when the bit is granted anew. (2) A reply to a read counts only for the bits
//! that it grants itself: other bits may have been lost and granted again since the read. (3) Replies to this mount's
//! own changes carry transnos. A reply is ignored if it was executed before the latest own change, or before the lock
//! was granted, because others may have changed the inode in between. (4) Other state
//! (extended attributes, the target of a symbolic link) is kept if it was read while the bits were held:
//! [`Inodes::serial`] shows whether they were lost meanwhile. The bytes of this state are bounded. (5) The bytes of a small
//! file are kept when this mount has closed it with them, beside the attributes that the same reply has given, and are dropped
//! with these: nobody changes a file while SIZE is held. The files that were closed first lose theirs first.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;
use hashbrown::HashMap;
use nacre_types::{Attr, Fid, InodeBits, Instant, SeededHash, Timestamp, Transno, mode};
use nacre_wire::mdt::EntryReply;

/// Bound of the bytes of extended attributes, their names, and targets of symbolic links.
const BYTES_MAX: usize = 64 << 20;
/// Bound of these for one inode.
const INODE_BYTES_MAX: usize = 128 << 10;
/// Bounds of the bytes of small files, and of their number.
const DATA_BYTES_MAX: usize = 32 << 20;
const DATA_FILES_MAX: usize = 16_384;
/// Names of an inode that are valid under its LOOKUP bit. Further ones are valid under their directories' bits only.
const NAMES_MAX: usize = 16;

/// The bits that the attributes of an inode need.
pub(super) fn attr_bits(attr: &Attr) -> InodeBits {
    let bits = InodeBits::PERM | InodeBits::UPDATE | InodeBits::ATIME;
    if attr.mode & mode::FMT == mode::REG { bits | InodeBits::SIZE } else { bits }
}
/// The bits that extended attributes need: access control lists are a part of the permissions.
pub(super) fn xattr_bits() -> InodeBits {
    InodeBits::XATTR | InodeBits::PERM
}

/// One inode.
#[derive(Debug, Default)]
pub(super) struct CachedInode {
    /// The attributes, while the bits that they need have been held since they were read.
    entry: Option<EntryReply>,
    /// The bytes of a file with these attributes.
    data: Option<Bytes>,
    /// The latest own change of it that has been noted.
    changed_at: Transno,
    /// Own changes up to this were made before a bit was granted.
    since: Transno,
    xattrs: BTreeMap<Bytes, Option<Bytes>>,
    xattr_names: Option<Vec<Bytes>>,
    target: Option<Bytes>,
    /// Bytes of the three above.
    bytes: usize,
    /// Names that are valid under the LOOKUP bit.
    names: Vec<(Fid, Bytes)>,
    /// Changes whenever something was lost.
    serial: u64,
    /// The kernel may use the attributes until then.
    kernel_until: Instant,
    /// The kernel may have its access control lists.
    acls_in_kernel: bool,
}

/// The table.
#[derive(Debug)]
pub(super) struct Inodes {
    /// Boxed, so that little is moved when the table grows.
    table: HashMap<Fid, Box<CachedInode>, SeededHash>,
    /// The latest own change of an inode that is not in the table: a read from before it may be under way.
    forgotten: Transno,
    bytes: usize,
    /// Bytes of files, and the files that may have some, in the order in which they were kept.
    data_bytes: usize,
    with_data: VecDeque<Fid>,
    serials: u64,
}

impl CachedInode {
    /// Replaces the attributes. `is_same`: the bytes of the file are what they were.
    fn set_entry(&mut self, entry: Option<EntryReply>, is_same: bool, data_bytes: &mut usize) {
        self.entry = entry;
        if !is_same && let Some(data) = self.data.take() {
            *data_bytes -= data.len();
        }
    }
}

impl Inodes {
    pub(super) fn new(hash: SeededHash) -> Self {
        Self {
            table: HashMap::with_hasher(hash),
            forgotten: Transno::default(),
            bytes: 0,
            data_bytes: 0,
            with_data: VecDeque::new(),
            serials: 0,
        }
    }
    pub(super) fn fids(&self) -> Vec<Fid> {
        let mut fids: Vec<Fid> = self.table.keys().copied().collect();
        fids.sort_unstable();
        fids
    }
    /// The bytes that are kept beside the attributes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.data_bytes
    }
    pub(super) fn clear(&mut self) {
        *self = Self { serials: self.serials, ..Self::new(*self.table.hasher()) };
    }

    /// Bits of an inode have been granted. `is_more`: some of them are new. `seen`: own changes up to this came before.
    pub(super) fn granted(&mut self, fid: Fid, is_more: bool, seen: Transno) {
        let forgotten = self.forgotten;
        self.serials += 1;
        let serial = self.serials;
        let new = || Box::new(CachedInode { changed_at: forgotten, serial, ..CachedInode::default() });
        let inode = self.table.entry(fid).or_insert_with(new);
        if is_more {
            inode.since = inode.since.max(seen);
        }
    }
    /// Records attributes that a read has given, with the bits that its reply has granted.
    pub(super) fn read(&mut self, entry: &EntryReply, seen: Transno, granted: InodeBits) {
        let fid = entry.attr.fid;
        if let Some(inode) = self.table.get_mut(&fid)
            && granted.contains(attr_bits(&entry.attr))
            && seen >= inode.changed_at
        {
            let version = |entry: &EntryReply| (entry.attr.size, entry.attr.mtime, entry.attr.ctime);
            let is_same = inode.entry.as_ref().is_some_and(|old| version(old) == version(entry));
            inode.set_entry(Some(entry.clone()), is_same, &mut self.data_bytes);
        }
    }
    /// Records the state of an inode after the own change `at`. `held`: the bits that are held now.
    pub(super) fn changed(&mut self, entry: EntryReply, at: Transno, held: InodeBits) {
        match self.table.get_mut(&entry.attr.fid) {
            Some(inode) if at >= inode.changed_at && at >= inode.since => {
                inode.changed_at = at;
                let known = held.contains(attr_bits(&entry.attr)).then_some(entry);
                inode.set_entry(known, false, &mut self.data_bytes);
            }
            Some(_) => {}
            None => self.forgotten = self.forgotten.max(at),
        }
    }
    /// The state of an inode after the own change `at` is not known.
    pub(super) fn unknown(&mut self, fid: Fid, at: Transno) {
        match self.table.get_mut(&fid) {
            Some(inode) if at >= inode.changed_at && at >= inode.since => {
                inode.changed_at = at;
                inode.set_entry(None, false, &mut self.data_bytes);
            }
            Some(_) => {}
            None => self.forgotten = self.forgotten.max(at),
        }
    }
    /// The own change `at` has changed inodes that are not known.
    pub(super) fn all_unknown(&mut self, at: Transno) {
        self.forgotten = self.forgotten.max(at);
        for inode in self.table.values_mut().filter(|inode| at >= inode.changed_at) {
            inode.changed_at = at;
            inode.set_entry(None, false, &mut self.data_bytes);
        }
    }
    /// An own change up to `at` concerns an inode that will not be in the table.
    pub(super) fn note_forgotten(&mut self, at: Transno) {
        self.forgotten = self.forgotten.max(at);
    }
    /// Extended attributes are changing, or have changed.
    pub(super) fn drop_xattrs(&mut self, fid: Fid) {
        self.serials += 1;
        let Some(inode) = self.table.get_mut(&fid) else { return };
        inode.serial = self.serials;
        let kept = inode.target.as_ref().map_or(0, Bytes::len);
        self.bytes -= inode.bytes - kept;
        inode.bytes = kept;
        inode.xattrs.clear();
        inode.xattr_names = None;
    }

    /// Bits have ended and `left` are left. Returns the names that were valid under LOOKUP, and whether the kernel may use
    /// the attributes at `now`.
    pub(super) fn lost(
        &mut self,
        fid: Fid,
        ended: InodeBits,
        left: InodeBits,
        now: Instant,
    ) -> (Vec<(Fid, Bytes)>, bool) {
        let Some(inode) = self.table.get_mut(&fid) else { return (Vec::new(), false) };
        let mut names = Vec::new();
        let mut used_by_kernel = false;
        if ended.intersects(InodeBits::ATTRS) {
            inode.set_entry(None, false, &mut self.data_bytes);
            used_by_kernel = core::mem::take(&mut inode.kernel_until) > now;
        }
        if ended.intersects(InodeBits::LOOKUP) {
            names = core::mem::take(&mut inode.names);
        }
        if ended.intersects(xattr_bits()) {
            self.drop_xattrs(fid);
        }
        if left.is_empty()
            && let Some(gone) = self.table.remove(&fid)
        {
            self.forgotten = self.forgotten.max(gone.changed_at);
            self.bytes -= gone.bytes;
            self.data_bytes -= gone.data.map_or(0, |data| data.len());
        }
        (names, used_by_kernel)
    }

    // ---- names under LOOKUP

    /// Adds a name that is valid under LOOKUP from now on; false: it is not, because there are too many.
    pub(super) fn add_name(&mut self, fid: Fid, parent: Fid, name: &Bytes) -> bool {
        let Some(inode) = self.table.get_mut(&fid) else { return false };
        if inode.names.iter().any(|(dir, known)| *dir == parent && known == name) {
            return true;
        }
        if inode.names.len() >= NAMES_MAX {
            return false;
        }
        inode.names.push((parent, name.clone()));
        true
    }
    pub(super) fn remove_name(&mut self, fid: Fid, parent: Fid, name: &[u8]) {
        if let Some(inode) = self.table.get_mut(&fid) {
            inode.names.retain(|(dir, known)| *dir != parent || known != name);
        }
    }
    /// The names that are valid under LOOKUP.
    pub(super) fn names(&self, fid: Fid) -> &[(Fid, Bytes)] {
        self.table.get(&fid).map_or(&[], |inode| &inode.names)
    }
    /// A directory in which the inode has a name.
    pub(super) fn parent(&self, fid: Fid) -> Option<Fid> {
        self.table.get(&fid)?.names.first().map(|(parent, _)| *parent)
    }
    /// Whether an own change `at` came after the grants of the bits.
    pub(super) fn is_after_grant(&self, fid: Fid, at: Transno) -> bool {
        self.table.get(&fid).is_some_and(|inode| at >= inode.since)
    }

    // ---- what is known

    pub(super) fn entry(&self, fid: Fid) -> Option<&EntryReply> {
        self.table.get(&fid)?.entry.as_ref()
    }
    /// The MDT has recorded an access time that this mount has sent.
    pub(super) fn accessed(&mut self, fid: Fid, atime: Timestamp) {
        if let Some(entry) = self.table.get_mut(&fid).and_then(|inode| inode.entry.as_mut()) {
            entry.attr.atime = entry.attr.atime.max(atime);
        }
    }
    /// The kernel may use the attributes until a time.
    pub(super) fn give_to_kernel(&mut self, fid: Fid, until: Instant) {
        if let Some(inode) = self.table.get_mut(&fid) {
            inode.kernel_until = inode.kernel_until.max(until);
        }
    }
    /// The kernel may have the access control lists from now on.
    pub(super) fn give_acls(&mut self, fid: Fid) {
        if let Some(inode) = self.table.get_mut(&fid) {
            inode.acls_in_kernel = true;
        }
    }
    /// Bits are ending; whether the kernel has access control lists that depend on them.
    pub(super) fn take_acls(&mut self, fid: Fid, ended: InodeBits) -> bool {
        let inode = self.table.get_mut(&fid).filter(|_| ended.intersects(InodeBits::PERM));
        inode.is_some_and(|inode| core::mem::take(&mut inode.acls_in_kernel))
    }
    /// A number that changes when bits or extended attributes of the inode are lost.
    pub(super) fn serial(&self, fid: Fid) -> Option<u64> {
        self.table.get(&fid).map(|inode| inode.serial)
    }
    /// The value of an extended attribute; `Some(None)`: there is no such attribute.
    pub(super) fn xattr(&self, fid: Fid, name: &[u8]) -> Option<Option<Bytes>> {
        let inode = self.table.get(&fid)?;
        if let Some(value) = inode.xattrs.get(name) {
            return Some(value.clone());
        }
        let names = inode.xattr_names.as_ref()?;
        (!names.iter().any(|known| known == name)).then_some(None)
    }
    pub(super) fn xattr_names(&self, fid: Fid) -> Option<Vec<Bytes>> {
        self.table.get(&fid)?.xattr_names.clone()
    }
    pub(super) fn target(&self, fid: Fid) -> Option<Bytes> {
        self.table.get(&fid)?.target.clone()
    }

    /// The bytes of a file.
    pub(super) fn data(&self, fid: Fid) -> Option<&Bytes> {
        self.table.get(&fid)?.data.as_ref()
    }
    /// Keeps the bytes that a file has since the own change `at`, if the attributes that it had then are known still.
    pub(super) fn set_data(&mut self, fid: Fid, at: Transno, data: &Bytes) {
        let Some(inode) = self.table.get_mut(&fid).filter(|inode| inode.changed_at == at) else { return };
        if inode.entry.as_ref().is_none_or(|entry| entry.attr.size != data.len() as u64) {
            return;
        }
        self.data_bytes += data.len();
        self.data_bytes -= inode.data.replace(data.clone()).map_or(0, |old| old.len());
        self.with_data.push_back(fid);
        while self.data_bytes > DATA_BYTES_MAX || self.with_data.len() > DATA_FILES_MAX {
            let Some(first) = self.with_data.pop_front() else { break };
            let dropped = self.table.get_mut(&first).and_then(|inode| inode.data.take());
            self.data_bytes -= dropped.map_or(0, |data| data.len());
        }
    }

    fn room(&mut self, fid: Fid, more: usize) -> Option<&mut CachedInode> {
        let inode = self.table.get_mut(&fid)?;
        if self.bytes + more > BYTES_MAX || inode.bytes + more > INODE_BYTES_MAX {
            return None;
        }
        self.bytes += more;
        inode.bytes += more;
        Some(inode)
    }
    pub(super) fn set_xattr(&mut self, fid: Fid, serial: u64, name: &[u8], value: Option<&Bytes>) {
        if self.serial(fid) != Some(serial) || self.xattr(fid, name).is_some() {
            return;
        }
        let more = name.len() + value.map_or(0, Bytes::len);
        if let Some(inode) = self.room(fid, more) {
            let value = value.map(|value| Bytes::copy_from_slice(value));
            inode.xattrs.insert(Bytes::copy_from_slice(name), value);
        }
    }
    pub(super) fn set_xattr_names(&mut self, fid: Fid, serial: u64, names: &[Bytes]) {
        if self.serial(fid) != Some(serial) || self.xattr_names(fid).is_some() {
            return;
        }
        let more = names.iter().map(Bytes::len).sum();
        if let Some(inode) = self.room(fid, more) {
            inode.xattr_names = Some(names.iter().map(|name| Bytes::copy_from_slice(name)).collect());
        }
    }
    /// The target of a symbolic link never changes.
    pub(super) fn set_target(&mut self, fid: Fid, target: &[u8]) {
        if self.target(fid).is_none()
            && let Some(inode) = self.room(fid, target.len())
        {
            inode.target = Some(Bytes::copy_from_slice(target));
        }
    }
}
