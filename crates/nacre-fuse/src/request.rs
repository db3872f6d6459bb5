//! A request as it was read from the kernel: its header, its fixed arguments, names and payload as views.
//!
//! Invariants: the bytes are one request exactly as long as its header says; no view reaches past them; a malformed
//! request is EINVAL, never a panic. The payload of a WRITE is a slice of the buffer it was read into. A request that
//! is dropped without a reply (its island has ended) gets EIO, so that its caller does not hang.

use crate::abi::{self, Field, InHeader, Short, op};
use crate::caller;
use crate::device::Channel;
use crate::left_names::{LeftNames, is_stand_in_of_file};
use crate::moved::Moved;
use crate::reply::{Body, FuseReply};
use crate::uring::hub::Ticket;
use crate::virtual_xattr::VirtualName;
use bytes::Bytes;
use nacre_types::{Caller, Errno, Fid};
use std::cell::Cell;
use std::sync::Arc;

/// The origin of a request, to which its reply must go: the kernel accepts the reply nowhere else.
#[derive(Clone)]
pub enum Origin {
    Device(Arc<Channel>),
    Ring(Ticket),
}
impl From<Arc<Channel>> for Origin {
    fn from(channel: Arc<Channel>) -> Self {
        Self::Device(channel)
    }
}
impl From<Ticket> for Origin {
    fn from(ticket: Ticket) -> Self {
        Self::Ring(ticket)
    }
}

/// One request, through whichever transport it came. The header is open to the crate: it is as the kernel sent it, and handlers
/// only read it.
pub struct FuseRequest {
    pub(crate) header: InHeader,
    /// The node by which the kernel knows the inode: the number of the header, or a stand-in (`moved.rs`).
    node: u64,
    /// A stand-in is concerned.
    has_stand_in: bool,
    /// The directory to which a rename moves a name, by its own number.
    target: Option<u64>,
    data: Bytes,
    origin: Origin,
    acknowledged: Cell<bool>,
    /// Supplementary groups of the caller, where they decide the result and the kernel does not send them.
    groups: Vec<u32>,
}

impl FuseRequest {
    /// Checks the header of the bytes that one read returned.
    pub fn parse(data: Bytes, origin: impl Into<Origin>) -> Result<Self, Short> {
        let header = InHeader::take(&mut &data[..])?;
        if header.len as usize != data.len()
            || usize::from(header.total_extlen) * 8 > data.len() - InHeader::BYTES
        {
            return Err(Short);
        }
        // The kernel waits for no reply to these.
        let silent = [op::FORGET, op::BATCH_FORGET, op::INTERRUPT, op::NOTIFY_REPLY].contains(&header.opcode);
        let (node, acknowledged) = (header.nodeid, Cell::new(silent));
        let origin = origin.into();
        let (has_stand_in, target, groups) = (false, None, Vec::new());
        Ok(Self { header, node, has_stand_in, target, data, origin, acknowledged, groups })
    }
    /// Looks up the groups of a caller that asks for names ([`VirtualName::tells_names`]). It reads `/proc`, so it is
    /// called before the request enters its island.
    pub(crate) fn with_callers_groups(mut self) -> Self {
        let asks = || -> Result<bool, Errno> {
            let mut args = self.args();
            let abi::GetxattrIn { .. } = args.take()?;
            Ok(VirtualName::tells_names(args.name()?))
        };
        if self.header.opcode == op::GETXATTR && self.header.uid != 0 && asks() == Ok(true) {
            self.groups = caller::groups(self.header.pid);
        }
        self
    }
    /// The number of the operation, see [`abi::op`].
    pub fn opcode(&self) -> u32 {
        self.header.opcode
    }
    /// Replaces the number of a stand-in by that of the inode. A file that has one can only be asked about.
    pub(crate) fn resolve(&mut self, moved: &Moved, left: &LeftNames) {
        if is_stand_in_of_file(self.header.nodeid)
            && op::only_asks(self.opcode())
            && let Some(fid) = left.inode(self.header.nodeid)
        {
            self.header.nodeid = fid.ino();
            self.has_stand_in = true;
        }
        if let Some(own) = moved.own_number(self.header.nodeid) {
            self.header.nodeid = own;
            self.has_stand_in = true;
        }
        let target = self.target_directory();
        let own = target.and_then(|node| moved.own_number(node));
        self.has_stand_in |= own.is_some();
        self.target = own.or(target);
    }
    /// Whether the kernel names the inode, or the other directory of a rename, by a stand-in.
    pub(crate) fn has_stand_in(&self) -> bool {
        self.has_stand_in
    }
    /// The node of the kernel.
    pub(crate) fn node(&self) -> u64 {
        self.node
    }
    /// The node of the directory to which a rename moves a name.
    fn target_directory(&self) -> Option<u64> {
        match self.opcode() {
            op::RENAME => self.args().take::<abi::RenameIn>().ok().map(|args| args.newdir),
            op::RENAME2 => self.args().take::<abi::Rename2In>().ok().map(|args| args.newdir),
            _ => None,
        }
    }
    /// The names that it makes, removes or moves.
    pub(crate) fn changed_names(&self) -> [Option<(Fid, &[u8])>; 2] {
        let mut args = self.args();
        let before = match self.opcode() {
            op::CREATE => args.take().map(|abi::CreateIn { .. }| ()),
            op::MKNOD => args.take().map(|abi::MknodIn { .. }| ()),
            op::MKDIR => args.take().map(|abi::MkdirIn { .. }| ()),
            op::LINK => args.take().map(|_: u64| ()),
            op::RENAME => args.take().map(|abi::RenameIn { .. }| ()),
            op::RENAME2 => args.take().map(|abi::Rename2In { .. }| ()),
            op::SYMLINK | op::UNLINK | op::RMDIR => Ok(()),
            _ => return [None, None],
        };
        if before.is_err() {
            return [None, None];
        }
        let mut named = |dir: u64| Some((fid_of(dir).ok()?, args.name().ok()?));
        [named(self.header.nodeid), self.target.and_then(named)]
    }
    /// The nodes that the kernel forgets, and how many replies that have shown each of them it forgets.
    pub(crate) fn forgotten(&self) -> Vec<(u64, u64)> {
        let mut args = self.args();
        if self.opcode() == op::FORGET {
            return args.take().map(|count: u64| vec![(self.node, count)]).unwrap_or_default();
        }
        let Ok(count) = args.take::<u64>() else { return Vec::new() };
        // The upper half is padding.
        let one = |_| Some((args.take().ok()?, args.take().ok()?));
        (0..count & u64::from(u32::MAX)).map_while(one).collect()
    }
    /// The number by which the kernel matches the reply, and by which INTERRUPT names the request.
    pub fn unique(&self) -> u64 {
        self.header.unique
    }
    /// Whether the kernel has dropped inodes, which it does not wait for.
    pub(crate) fn is_forget(&self) -> bool {
        matches!(self.opcode(), op::FORGET | op::BATCH_FORGET)
    }
    /// The inode of the request.
    ///
    /// # Errors
    /// ESTALE for a number that no FID has (a foreign handle passed to open_by_handle_at), and for the stand-in of a file.
    pub fn fid(&self) -> Result<Fid, Errno> {
        fid_of(self.header.nodeid)
    }
    /// Makes the reply, addressed to the origin of the request. Only the first call counts.
    pub fn reply(&self, reply: Result<Body, Errno>) -> FuseReply {
        self.acknowledged.set(true);
        FuseReply::new(self.origin.clone(), self.header.unique, reply)
    }
    /// Whether the kernel holds its lock of `dir` until the reply to this.
    pub(crate) fn locks_directory(&self, dir: Fid) -> bool {
        let target = match self.opcode() {
            op::RENAME => self.args().take::<abi::RenameIn>().map(|args| args.newdir),
            op::RENAME2 => self.args().take::<abi::Rename2In>().map(|args| args.newdir),
            op::LOOKUP | op::READDIR | op::READDIRPLUS => Ok(self.header.nodeid),
            opcode if op::changes_names(opcode) => Ok(self.header.nodeid),
            _ => return false,
        };
        self.header.nodeid == dir.ino() || target == Ok(dir.ino())
    }
    /// The range of the pages of `fid` that its reply fills.
    pub(crate) fn fills_pages_of(&self, fid: Fid) -> Option<(u64, u64)> {
        if self.opcode() != op::READ || self.header.nodeid != fid.ino() || self.has_reply() {
            return None;
        }
        let abi::ReadIn { offset, size, read_flags, .. } = self.args().take().ok()?;
        (read_flags & abi::read::LOCKOWNER == 0).then(|| (offset, offset.saturating_add(u64::from(size))))
    }
    /// Whether it is to change the entries of `dir`.
    pub(crate) fn changes_directory(&self, dir: Fid) -> bool {
        !matches!(self.opcode(), op::LOOKUP | op::READDIR | op::READDIRPLUS) && self.locks_directory(dir)
    }
    pub(crate) fn is_from_ring(&self) -> bool {
        matches!(self.origin, Origin::Ring(_))
    }
    /// Its place in a ring, if it came through one.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        match &self.origin {
            Origin::Ring(ticket) => Some(ticket.clone()),
            Origin::Device(_) => None,
        }
    }
    pub(crate) fn has_reply(&self) -> bool {
        self.acknowledged.get()
    }
    /// Replies at once if there was no reply: the island of the request has ended.
    pub(crate) fn abandon(&self) {
        if !self.acknowledged.get() {
            self.reply(Err(Errno::EIO)).send();
        }
    }
    /// Arguments after the header, without extensions.
    pub fn args(&self) -> Args<'_> {
        let end = self.data.len() - usize::from(self.header.total_extlen) * 8;
        Args { rest: self.data.get(InHeader::BYTES..end).unwrap_or_default(), end }
    }
    /// The caller of the request.
    pub fn caller(&self, umask: u32) -> Caller {
        let InHeader { uid, gid, pid, .. } = self.header;
        let mut groups = self.supplementary_groups().unwrap_or_default();
        groups.extend_from_slice(&self.groups);
        Caller { uid, gid, pid, umask, groups }
    }
    /// The `len` payload bytes at the end of `args`, shared, not copied.
    pub fn payload(&self, args: &Args<'_>, len: u32) -> Result<Bytes, Errno> {
        let start = args.end - args.rest.len();
        let end = start.checked_add(len as usize).filter(|&e| e <= args.end).ok_or(Errno::EINVAL)?;
        Ok(self.data.slice(start..end))
    }

    /// Groups of the extension that CREATE, MKDIR, MKNOD and SYMLINK carry: at most the parent's.
    fn supplementary_groups(&self) -> Result<Vec<u32>, Short> {
        let start = self.data.len() - usize::from(self.header.total_extlen) * 8;
        let mut rest = self.data.get(start..).unwrap_or_default();
        let mut groups = Vec::new();
        while !rest.is_empty() {
            let head = abi::ExtHeader::take(&mut { rest })?;
            let size = abi::align8(head.size as usize).max(abi::ExtHeader::BYTES);
            let (extension, after) = rest.split_at_checked(size).ok_or(Short)?;
            rest = after;
            if head.kind == abi::EXT_GROUPS {
                let mut body = extension.get(abi::ExtHeader::BYTES..).unwrap_or_default();
                for _ in 0..u32::take(&mut body)? {
                    groups.push(u32::take(&mut body)?);
                }
            }
        }
        Ok(groups)
    }
}

impl Drop for FuseRequest {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Reads arguments one after the other.
pub struct Args<'a> {
    rest: &'a [u8],
    /// The end of the arguments within the request.
    end: usize,
}
impl<'a> Args<'a> {
    /// Takes one structure; EINVAL if the request is shorter.
    pub fn take<T: Field>(&mut self) -> Result<T, Errno> {
        T::take(&mut self.rest).map_err(|Short| Errno::EINVAL)
    }
    /// A name or text up to its NUL.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        let nul = self.rest.iter().position(|&b| b == 0).ok_or(Errno::EINVAL)?;
        let (name, rest) = self.rest.split_at(nul);
        self.rest = rest.get(1..).unwrap_or_default();
        Ok(name)
    }
    /// Takes `len` bytes; EINVAL if the request is shorter.
    pub fn bytes(&mut self, len: u32) -> Result<&'a [u8], Errno> {
        let (head, rest) = self.rest.split_at_checked(len as usize).ok_or(Errno::EINVAL)?;
        self.rest = rest;
        Ok(head)
    }
}

/// The FID behind a node number of the kernel.
pub(crate) fn fid_of(nodeid: u64) -> Result<Fid, Errno> {
    let fid = Fid::from_ino(nodeid);
    if fid.is_valid() && !is_stand_in_of_file(nodeid) { Ok(fid) } else { Err(Errno::ESTALE) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(opcode: u32, args: &[u8], extlen: u16) -> Result<FuseRequest, Short> {
        let mut data = Vec::new();
        let len = (InHeader::BYTES + args.len()) as u32;
        InHeader { len, opcode, nodeid: 1, total_extlen: extlen, ..InHeader::default() }.put(&mut data);
        data.extend_from_slice(args);
        FuseRequest::parse(data.into(), Arc::new(Channel::detached()))
    }

    #[test]
    fn names_payload_and_groups_are_views_of_the_request() {
        let mut args = Vec::new();
        abi::MkdirIn { mode: 0o755, umask: 0o22 }.put(&mut args);
        args.extend_from_slice(b"dir\0");
        abi::ExtHeader { size: 16, kind: abi::EXT_GROUPS }.put(&mut args);
        1u32.put(&mut args);
        77u32.put(&mut args);
        let r = request(abi::op::MKDIR, &args, 2).unwrap();
        let mut a = r.args();
        assert_eq!(a.take::<abi::MkdirIn>().unwrap().mode, 0o755);
        assert_eq!(a.name(), Ok(&b"dir"[..]));
        assert_eq!(a.name(), Err(Errno::EINVAL));
        assert_eq!(r.caller(0o22).groups, vec![77]);
        let w = request(abi::op::WRITE, b"12345678abc", 0).unwrap();
        let mut a = w.args();
        assert_eq!(a.take::<u64>().unwrap(), u64::from_le_bytes(*b"12345678"));
        assert_eq!(w.payload(&a, 3).unwrap(), Bytes::from_static(b"abc"));
        assert_eq!(w.payload(&a, 4), Err(Errno::EINVAL));
    }

    #[test]
    fn requests_that_hold_a_directory_in_the_kernel_are_known() {
        let mut args = Vec::new();
        abi::RenameIn { newdir: Fid::from_ino(9 << 24 | 1).ino() }.put(&mut args);
        let rename = request(abi::op::RENAME, &args, 0).unwrap();
        let (root, target) = (Fid::from_ino(1), Fid::from_ino(9 << 24 | 1));
        assert!(rename.locks_directory(root) && rename.locks_directory(target));
        let lookup = request(abi::op::LOOKUP, b"name\0", 0).unwrap();
        assert!(lookup.locks_directory(root) && !lookup.locks_directory(target));
        assert!(rename.changes_directory(target) && !lookup.changes_directory(root));
        assert!(!request(abi::op::GETATTR, &[0; 16], 0).unwrap().locks_directory(root));
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_refused_or_read_without_a_panic(
            args in proptest::collection::vec(any::<u8>(), 0..200), extlen in 0u16..30
        ) {
            if let Ok(r) = request(abi::op::SETXATTR, &args, extlen) {
                let mut a = r.args();
                let _ = (a.take::<abi::SetxattrIn>(), a.name().is_ok(), a.bytes(7).is_ok());
                assert!(r.payload(&a, u32::MAX).is_err());
                drop((r.caller(0), r.fid()));
            }
        }
    }
}
