//! An inode without its transaction: the rules about its type, its times, its owner and its objects.

use crate::rows::row::{Inode, InodeRow, RowError};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::name::CAPABILITY;
use nacre_types::{
    Attr, Caller, Encoded, Errno, Fid, FileType, Layout, OstIndex, Owner, SizeState, Timestamp, mode,
};
use nacre_wire::mdt::{EntryReply, EntryReplyWith};

/// The size that `stat` shows for a directory.
pub(crate) const DIR_BYTES: u64 = 4096;

impl Inode {
    /// An inode without names, owner and contents.
    pub(crate) fn blank(fid: Fid, mode: u32, time: Timestamp) -> Self {
        Self {
            attr: Attr::new(fid, mode, time),
            mtime_order: time,
            layout: None,
            may_have_objects: false,
            target: Bytes::new(),
            template: None,
            entries: 0,
            links: Vec::new(),
            links_beyond: 0,
            xattrs: Vec::new(),
        }
    }
    /// The root directory of a new file system.
    pub(crate) fn root(time: Timestamp) -> Self {
        let mut inode = Self::blank(Fid::ROOT, mode::DIR | 0o755, time);
        inode.attr.nlink = 2;
        inode.attr.size = DIR_BYTES;
        inode
    }
    pub(crate) fn is_regular(&self) -> bool {
        self.attr.file_type() == FileType::Regular
    }
    /// Whether a write by an ordinary user has to remove set-id bits or capabilities first.
    pub(crate) fn has_privileges(&self) -> bool {
        has_privileges(&self.attr, || self.xattrs.iter().any(|x| x.name == CAPABILITY))
    }
    /// The description of the inode in replies.
    pub(crate) fn reply(&self) -> EntryReply {
        self.reply_with(self.layout.clone())
    }
    /// The same of an inode that is not needed any more.
    pub(crate) fn into_reply(mut self) -> EntryReply {
        let layout = self.layout.take();
        self.reply_with(layout)
    }
    fn reply_with(&self, layout: Option<Layout>) -> EntryReply {
        EntryReply {
            attr: self.attr,
            layout,
            kill_priv: self.has_privileges(),
            has_xattrs: !self.xattrs.is_empty(),
            mtime_set_at: self.mtime_order,
            yours: false,
            buffered: may_be_buffered(&self.attr),
        }
    }
    /// The most bytes that the target may keep of this file; 0: they are in objects.
    pub(crate) fn dom_bytes(&self) -> u32 {
        self.layout.as_ref().map_or(0, |layout| layout.dom_bytes)
    }
    pub(crate) fn owner(&self) -> Owner {
        Owner { uid: self.attr.uid, gid: self.attr.gid, projid: self.attr.projid }
    }
    /// ctime only grows.
    pub(crate) fn changed_at(&mut self, time: Timestamp) {
        self.attr.ctime = self.attr.ctime.max(time);
    }
    /// Entries of a directory were changed, or a file was truncated: mtime follows unless it was set later than that.
    pub(crate) fn modified_at(&mut self, time: Timestamp) {
        if time >= self.mtime_order {
            self.attr.mtime = time;
            self.mtime_order = time;
        }
        self.changed_at(time);
    }
    /// Bytes were written at `time` and are reported now: mtime follows if it was not set explicitly since.
    pub(crate) fn written_at(&mut self, time: Timestamp) {
        if time > self.mtime_order {
            self.attr.mtime = time;
            self.mtime_order = time;
            self.changed_at(time);
        }
    }
    /// Stripes of the file by OST.
    pub(crate) fn objects(&self) -> BTreeMap<OstIndex, Vec<u32>> {
        stripes_by_ost(self.layout.as_ref())
    }
}

/// See [`Inode::has_privileges`].
fn has_privileges(attr: &Attr, has_capabilities: impl FnOnce() -> bool) -> bool {
    attr.file_type() == FileType::Regular
        && (attr.mode & mode::SUID != 0
            || attr.mode & (mode::SGID | mode::XGRP) == mode::SGID | mode::XGRP
            || has_capabilities())
}

impl<'a> InodeRow<'a> {
    /// The description of the inode in replies to reads.
    pub(crate) fn reply(&self) -> Result<EntryReplyWith<Encoded<'a, Option<Layout>>>, RowError> {
        let has_xattrs = !self.xattrs.is_empty();
        let xattrs = if has_xattrs { self.xattrs.value()? } else { Vec::new() };
        Ok(EntryReplyWith {
            attr: self.attr,
            layout: self.layout.clone(),
            kill_priv: has_privileges(&self.attr, || xattrs.iter().any(|x| x.name == CAPABILITY)),
            has_xattrs,
            mtime_set_at: self.mtime_order,
            yours: false,
            buffered: may_be_buffered(&self.attr),
        })
    }
}

/// Whether another client may have bytes of a file that the OSTs do not have. A reply to a change does not know; reads do
/// (`service/read.rs`).
fn may_be_buffered(attr: &Attr) -> bool {
    attr.file_type() == FileType::Regular && attr.size_state == SizeState::Open
}

/// The description of an inode that has been removed, of which only this is known.
pub(crate) fn entry_of_removed(fid: Fid, mode: u32) -> EntryReply {
    let mut reply = Inode::blank(fid, mode, Timestamp::default()).reply();
    reply.attr.nlink = 0;
    reply
}

/// Stripe numbers of a layout by OST.
pub(crate) fn stripes_by_ost(layout: Option<&Layout>) -> BTreeMap<OstIndex, Vec<u32>> {
    let mut by_ost: BTreeMap<OstIndex, Vec<u32>> = BTreeMap::new();
    // Component 0 only: later components will number their stripes behind it.
    if let Some(component) = layout.and_then(|l| l.components.first()) {
        for (number, &ost) in (0u32..).zip(&component.stripes) {
            by_ost.entry(ost).or_default().push(number);
        }
    }
    by_ost
}

/// In a sticky directory only its owner, the owner of the child and root may remove a name.
pub(crate) fn check_sticky(dir: &Inode, child: &Inode, caller: &Caller) -> Result<(), Errno> {
    let free = dir.attr.mode & mode::VTX == 0;
    if free || caller.uid == 0 || caller.uid == dir.attr.uid || caller.uid == child.attr.uid {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}
