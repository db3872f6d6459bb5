//! Changes of one inode within a transaction: its names, its extended attributes, its end.
//!
//! Invariants: `nlink` of a file is the number of its parent links (in its row and beyond); an inode without names is
//! either an orphan or gone; the objects of an inode that is gone are rows of the destroy table in the same transaction.

use crate::rows::acl::{self, Acl};
use crate::rows::row::{
    Inode, LINK_BYTES_INLINE_MAX, LINKS_INLINE_MAX, ParentLink, Row, Stripes, XATTR_INLINE_MAX,
    XATTR_NAMES_MAX, XATTRS_INLINE_MAX, Xattr,
};
use crate::rows::state_change::StateChange;
use crate::rows::table::{self, CHOWN, DATA, DESTROY, FLOCK, INODE, LINK, ORPHAN, UNSETTLED, XATTR};
use crate::rows::view::{Step, View};
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::name::CAPABILITY;
use nacre_types::{Errno, Fid, InodeBits, Name, mode};

impl View<'_> {
    // ---- names of an inode

    pub(crate) fn add_link(&mut self, inode: &mut Inode, parent: Fid, name: Name<'_>) {
        let bytes: usize = inode.links.iter().map(|l| l.name.len()).sum();
        if inode.links.len() < LINKS_INLINE_MAX && bytes + name.as_bytes().len() <= LINK_BYTES_INLINE_MAX {
            if inode.links.is_empty() {
                inode.links = Vec::with_capacity(1); // most inodes have one name
            }
            inode.links.push(ParentLink { parent, name: name.to_bytes() });
        } else {
            self.put_bytes(LINK, &table::link(inode.attr.fid, parent, name.as_bytes()), &[]);
            inode.links_beyond += 1;
        }
    }
    pub(crate) fn remove_link(&mut self, inode: &mut Inode, parent: Fid, name: Name<'_>) {
        match inode.links.iter().position(|l| l.parent == parent && l.name == name.as_bytes()) {
            Some(at) => {
                inode.links.remove(at);
            }
            None => {
                self.delete(LINK, &table::link(inode.attr.fid, parent, name.as_bytes()));
                inode.links_beyond = inode.links_beyond.saturating_sub(1);
            }
        }
    }

    /// Takes one name (already removed from its directory) from an inode; the last one ends it, or makes it an
    /// orphan while it is open. `reported`: the sender has reported its opens of the inode.
    pub(crate) fn drop_name(&mut self, inode: &mut Inode, parent: Fid, name: Name<'_>, reported: bool) {
        self.remove_link(inode, parent, name);
        inode.attr.nlink = if inode.attr.is_dir() { 0 } else { inode.attr.nlink.saturating_sub(1) };
        if inode.attr.nlink == 0 && !reported {
            self.needs_report(inode.attr.fid);
        }
        if inode.attr.nlink > 0 {
            self.put_changed(inode);
        } else if self.opens().count(inode.attr.fid) > 0 {
            self.put_bytes(ORPHAN, &inode.attr.fid.key(), &[]);
            self.put_changed(inode);
        } else {
            self.destroy(inode);
        }
    }

    /// Ends an inode that has no name and no open.
    pub(crate) fn destroy(&mut self, inode: &Inode) {
        let fid = inode.attr.fid;
        let key = fid.key();
        self.delete(INODE, &key);
        if inode.links_beyond > 0 {
            self.delete_prefix(LINK, &key);
        }
        if inode.xattrs.iter().any(|x| x.value.is_none()) {
            self.delete_prefix(XATTR, &key);
        }
        self.account(inode.owner(), -1);
        self.note_removed(fid);
        if !inode.is_regular() {
            return;
        }
        self.delete(UNSETTLED, &key);
        self.delete_prefix(FLOCK, &key);
        if inode.dom_bytes() > 0 && inode.attr.size > 0 {
            self.delete(DATA, &key);
        }
        self.state_change(StateChange::InodeRemoved(fid));
        for (ost, stripes) in inode.objects() {
            if inode.may_have_objects {
                self.delete(CHOWN, &table::of_ost(ost, fid));
                self.put(DESTROY, &table::of_ost(ost, fid), &Stripes { stripes });
                self.state_change(StateChange::OstWork(ost));
            } else {
                stripes.iter().for_each(|_| self.state_change(StateChange::UnusedReservation(ost)));
            }
        }
    }

    // ---- extended attributes

    pub(crate) fn xattr(&mut self, inode: &Inode, name: &[u8]) -> Step<Option<Bytes>> {
        let Some(found) = inode.xattrs.iter().find(|x| x.name == name) else { return Ok(None) };
        if let Some(value) = &found.value {
            return Ok(Some(value.clone()));
        }
        let value = self.bytes(XATTR, &table::xattr(inode.attr.fid, name))?;
        Ok(value.map(Bytes::copy_from_slice))
    }
    /// Sets or replaces; the caller stores the inode.
    pub(crate) fn set_xattr(&mut self, inode: &mut Inode, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        self.remove_xattr(inode, name);
        let names: usize = inode.xattrs.iter().map(|x| x.name.len() + 1).sum();
        if names + name.len() + 1 > XATTR_NAMES_MAX {
            return Err(Errno::ENOSPC);
        }
        let inline: usize = inode.xattrs.iter().filter_map(|x| x.value.as_ref()).map(Bytes::len).sum();
        let fits = value.len() <= XATTR_INLINE_MAX && inline + value.len() <= XATTRS_INLINE_MAX;
        if !fits {
            self.put_bytes(XATTR, &table::xattr(inode.attr.fid, name), value);
            self.breaks(inode.attr.fid, InodeBits::XATTR | InodeBits::PERM);
        }
        inode.xattrs.push(Xattr {
            name: Bytes::copy_from_slice(name),
            value: fits.then(|| Bytes::copy_from_slice(value)),
        });
        Ok(())
    }
    /// Whether it was there.
    pub(crate) fn remove_xattr(&mut self, inode: &mut Inode, name: &[u8]) -> bool {
        let Some(at) = inode.xattrs.iter().position(|x| x.name == name) else { return false };
        if inode.xattrs.remove(at).value.is_none() {
            self.delete(XATTR, &table::xattr(inode.attr.fid, name));
        }
        true
    }
    /// An ACL of the inode. A stored ACL was valid when it was set; a damaged one is EIO.
    pub(crate) fn acl(&mut self, inode: &Inode, name: &[u8]) -> Step<Option<Acl>> {
        match self.xattr(inode, name)? {
            None => Ok(None),
            Some(bytes) => Ok(Acl::parse(&bytes).map_err(|_| Errno::EIO)?),
        }
    }
    /// Stores an access ACL and the mode that goes with it; an ACL that is equivalent to the mode is not stored.
    pub(crate) fn set_access_acl(&mut self, inode: &mut Inode, acl: &Acl) -> Result<(), Errno> {
        inode.attr.mode = inode.attr.mode & !0o777 | acl.mode_bits();
        if acl.is_extended() {
            self.set_xattr(inode, acl::ACCESS, &acl.to_bytes())
        } else {
            self.remove_xattr(inode, acl::ACCESS);
            Ok(())
        }
    }
    /// Removes the set-id bits and capabilities that a write or chown by an ordinary user removes. Without group execute
    /// permission, the set-group-id bit is a mark that group members keep; `in_group`: the user is one.
    pub(crate) fn kill_privileges(&mut self, inode: &mut Inode, in_group: bool) {
        if inode.attr.is_dir() {
            return;
        }
        inode.attr.mode &= !mode::SUID;
        if inode.attr.mode & mode::XGRP != 0 || !in_group {
            inode.attr.mode &= !mode::SGID;
        }
        self.remove_xattr(inode, CAPABILITY);
    }

    // ---- rows that are not inodes

    /// Changes a row by its present content (for rows that are small and rare).
    pub(crate) fn update<R: Row>(
        &mut self,
        table: nacre_osd::Table,
        key: &[u8],
        change: impl FnOnce(Option<R>) -> Option<R>,
    ) -> Step<()> {
        let old = self.row::<R>(table, key)?;
        match change(old) {
            Some(row) => self.put(table, key, &row),
            None => self.delete(table, key),
        }
        Ok(())
    }
}
