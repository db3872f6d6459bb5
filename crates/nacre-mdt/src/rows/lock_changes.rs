//! Which parts of inodes a transaction changes, for the locks of clients.
//!
//! The parts follow from the rows, in the one place where an inode is written, so that no operation can forget one. They are
//! determined only for inodes of which other clients have locks.

use crate::rows::row::Inode;
use alloc::vec::Vec;
use nacre_types::{Fid, InodeBits};
use nacre_wire::mdt::EntryReply;
use smallvec::SmallVec;

/// The holders of locks, as far as a transaction has to know them.
pub(crate) trait LockHolders {
    /// Whether clients other than the sender have, or may have, a lock of the inode.
    fn others(&self, fid: Fid) -> bool;
    /// Whether the sender has a lock of the inode, so that the reply carries its new state.
    fn sender(&self, fid: Fid) -> bool;
    /// Whether the sender may have opens of the inode that it has not reported.
    fn sender_opens(&self, fid: Fid) -> bool;
}

/// The effect of a transaction on locks.
#[derive(Debug, Default)]
pub(crate) struct LockChanges {
    broken: Vec<(Fid, InodeBits)>,
    changed: Vec<EntryReply>,
    removed: Vec<Fid>,
    described: SmallVec<[Fid; 2]>,
    unreported: Vec<Fid>,
    accessed: SmallVec<[Fid; 1]>,
}

impl LockChanges {
    /// Bits of other clients' locks that the transaction conflicts with.
    pub(crate) fn broken(&self) -> &[(Fid, InodeBits)] {
        &self.broken
    }
    /// The inodes of the sender's locks as the transaction leaves them, and those that it removes.
    pub(crate) fn take_states(&mut self) -> (Vec<EntryReply>, Vec<Fid>) {
        (core::mem::take(&mut self.changed), core::mem::take(&mut self.removed))
    }
    /// The inodes that the reply describes: the sender may be granted locks of them.
    pub(crate) fn described(&self) -> &[Fid] {
        &self.described
    }
    /// Inodes without names, of which the sender has to report its opens first.
    pub(crate) fn unreported(&self) -> &[Fid] {
        &self.unreported
    }
    pub(crate) fn add_unreported(&mut self, fid: Fid) {
        self.unreported.push(fid);
    }
    /// Inodes with a new access time: other clients are told, but not waited for.
    pub(crate) fn accessed(&self) -> &[Fid] {
        &self.accessed
    }
    pub(crate) fn add_accessed(&mut self, fid: Fid) {
        self.accessed.push(fid);
    }
    pub(crate) fn add_broken(&mut self, fid: Fid, bits: InodeBits) {
        self.broken.push((fid, bits));
    }
    pub(crate) fn add_described(&mut self, fid: Fid) {
        self.described.push(fid);
    }
    /// Adds those of a later operation of a batch.
    pub(crate) fn extend(&mut self, later: Self) {
        for state in later.changed {
            self.set_changed(state);
        }
        for fid in later.removed {
            self.set_removed(fid);
        }
        self.broken.extend(later.broken);
        self.described.extend(later.described);
        self.unreported.extend(later.unreported);
        self.accessed.extend(later.accessed);
    }
    pub(crate) fn set_changed(&mut self, state: EntryReply) {
        self.changed.retain(|earlier| earlier.attr.fid != state.attr.fid);
        self.changed.push(state);
    }
    pub(crate) fn set_removed(&mut self, fid: Fid) {
        self.changed.retain(|earlier| earlier.attr.fid != fid);
        self.described.retain(|described| *described != fid);
        self.removed.push(fid);
    }
}

/// The parts in which two states of an inode differ. Access times are not coherent.
pub(crate) fn changed_bits(old: &Inode, new: &Inode) -> InodeBits {
    let (a, b) = (&old.attr, &new.attr);
    let when = |differs: bool, bits: InodeBits| if differs { bits } else { InodeBits::NONE };
    // Size and modification time of a file have a bit of their own, which one writer can have. Bytes that a client keeps were
    // written before they change.
    let contents = if new.is_regular() { InodeBits::SIZE | InodeBits::WRITE_BACK } else { InodeBits::UPDATE };
    // So that a name which another client gives to a file never shows it without them, even if their client is lost.
    let names = if new.is_regular() { InodeBits::LOOKUP | InodeBits::WRITE_BACK } else { InodeBits::LOOKUP };
    when(new.attr.nlink == 0, InodeBits::ALL)
        | when(
            (a.mode, a.uid, a.gid) != (b.mode, b.uid, b.gid)
                || old.has_privileges() != new.has_privileges()
                || xattrs(old, true) != xattrs(new, true),
            InodeBits::PERM,
        )
        | when(old.links != new.links || old.links_beyond != new.links_beyond, names)
        | when(
            (a.nlink, a.ctime, a.projid, a.rdev) != (b.nlink, b.ctime, b.projid, b.rdev)
                || old.entries != new.entries
                || old.xattrs.is_empty() != new.xattrs.is_empty(),
            InodeBits::UPDATE,
        )
        | when(
            (a.size, a.size_state, a.blocks, a.mtime, old.mtime_order)
                != (b.size, b.size_state, b.blocks, b.mtime, new.mtime_order),
            contents,
        )
        | when((&old.layout, &old.template) != (&new.layout, &new.template), InodeBits::LAYOUT)
        | when(xattrs(old, false) != xattrs(new, false), InodeBits::XATTR)
}

/// Names and values of its extended attributes, either the access control lists or all others. A value in a row of its
/// own is not compared; `View::set_xattr` notes its change.
fn xattrs(inode: &Inode, acls: bool) -> Vec<(&[u8], Option<&[u8]>)> {
    let wanted = inode.xattrs.iter().filter(|x| x.name.starts_with(b"system.posix_acl_") == acls);
    wanted.map(|x| (&x.name[..], x.value.as_deref())).collect()
}
