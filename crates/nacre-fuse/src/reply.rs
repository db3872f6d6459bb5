//! Replies: header and structures in one buffer, followed by bulk bytes by reference.

use crate::abi::{self, EntryOut, Field, OutHeader};
use crate::gate::{Places, Terms};
use crate::kernel_cache::Grant;
use crate::ops::OpenedFile;
use crate::request::Origin;
use bytes::Bytes;
use nacre_client::{ResolvedInode, Validity};
use nacre_types::{Attr, Errno, Timestamp};
use std::time::Duration;

/// Result of a handler: the structure bytes (with room for the header in front), then bulk.
#[derive(Default)]
pub struct Body {
    head: Vec<u8>,
    bulk: Vec<Bytes>,
    /// Of the validities in `head`.
    terms: Option<Box<Terms>>,
}

/// The place of the first structure.
const FIRST: u32 = OutHeader::BYTES as u32;

impl Body {
    /// Success without data.
    pub fn empty() -> Self {
        Self::with_room(0)
    }
    /// Success with one structure of the kernel interface.
    pub fn of<T: Field>(value: &T) -> Self {
        Self::empty().and(value)
    }
    /// Room for `bytes` bytes of structures without growing.
    pub fn with_room(bytes: usize) -> Self {
        let mut head = Vec::with_capacity(OutHeader::BYTES + bytes.max(144));
        head.resize(OutHeader::BYTES, 0);
        Self { head, bulk: Vec::new(), terms: None }
    }
    /// Appends a structure.
    pub fn and<T: Field>(mut self, value: &T) -> Self {
        value.put(&mut self.head);
        self
    }
    /// Success with plain bytes: a link target, the value of an attribute, a listing.
    pub fn bytes(bytes: &[u8]) -> Self {
        let mut body = Self::with_room(bytes.len());
        body.head.extend_from_slice(bytes);
        body
    }
    /// Success with data that is not copied; the parts are written one behind the other.
    pub fn bulk(parts: Vec<Bytes>) -> Self {
        Self { bulk: parts, ..Self::empty() }
    }
    /// Bytes after the header, without bulk.
    pub fn head_len(&self) -> usize {
        self.head.len().saturating_sub(OutHeader::BYTES)
    }
    pub(crate) fn head_mut(&mut self) -> &mut Vec<u8> {
        &mut self.head
    }
    pub(crate) fn entry(entry: &ResolvedInode, validity: Validity, mut grant: Grant<'_>) -> Self {
        let validity = grant.take(validity, entry.attr.fid);
        Self::of(&entry_out(entry, validity)).under(grant, Places::Entry(FIRST))
    }
    /// A directory under a node number that is not its own, for one use.
    pub(crate) fn stand_in(entry: &ResolvedInode, nodeid: u64) -> Self {
        Self::of(&EntryOut { nodeid, ..entry_out(entry, Validity::default()) })
    }
    /// A name that is not there, which the kernel may remember.
    pub(crate) fn no_entry(validity: Duration, mut grant: Grant<'_>) -> Self {
        let entry = grant.take_negative(validity);
        let (entry_valid, entry_valid_nsec) = (entry.as_secs(), entry.subsec_nanos());
        let out = EntryOut { entry_valid, entry_valid_nsec, ..EntryOut::default() };
        Self::of(&out).under(grant, Places::Entry(FIRST))
    }
    pub(crate) fn attr(entry: &ResolvedInode, validity: Validity, mut grant: Grant<'_>) -> Self {
        let validity = grant.take(Validity { entry: Duration::ZERO, ..validity }, entry.attr.fid);
        let out = abi::AttrOut {
            attr_valid: validity.attr.as_secs(),
            attr_valid_nsec: validity.attr.subsec_nanos(),
            dummy: 0,
            attr: attr_out(&entry.attr),
        };
        Self::of(&out).under(grant, Places::Attr(FIRST))
    }
    /// Whether it is the reply to a LOOKUP whose name the kernel may use again.
    pub(crate) fn has_valid_name(&self) -> bool {
        self.head
            .get(OutHeader::BYTES..)
            .and_then(|mut out| EntryOut::take(&mut out).ok())
            .is_some_and(|out| out.entry_valid != 0 || out.entry_valid_nsec != 0)
    }
    /// Whether it is the reply to a LOOKUP that found nothing.
    pub(crate) fn is_no_entry(&self) -> bool {
        self.shown() == Some(0)
    }
    /// The node number in the reply to a LOOKUP.
    pub(crate) fn shown(&self) -> Option<u64> {
        let nodeid = self.head.get(OutHeader::BYTES..)?.first_chunk()?;
        Some(u64::from_le_bytes(*nodeid))
    }
    /// Sets the terms of the validities that were granted.
    pub(crate) fn under(mut self, grant: Grant<'_>, places: Places) -> Self {
        self.terms = grant.terms(places);
        self
    }
    /// The reply to OPEN or OPENDIR.
    pub fn opened(opened: OpenedFile) -> Self {
        Self::of(&open_out(opened))
    }
}

pub(crate) fn open_out(opened: OpenedFile) -> abi::OpenOut {
    abi::OpenOut { fh: opened.handle.0, open_flags: opened.fopen_flags, backing_id: 0 }
}

pub(crate) fn entry_out(entry: &ResolvedInode, validity: Validity) -> EntryOut {
    EntryOut {
        nodeid: entry.attr.fid.ino(),
        // The node number is the FID and never used again: it needs no generation.
        generation: 0,
        entry_valid: validity.entry.as_secs(),
        attr_valid: validity.attr.as_secs(),
        entry_valid_nsec: validity.entry.subsec_nanos(),
        attr_valid_nsec: validity.attr.subsec_nanos(),
        attr: attr_out(&entry.attr),
    }
}

/// st_blksize: the buffer size that stdio and Python use. With every write a request, 4 KiB would cost 16 times as many
/// requests; a megabyte would be allocated by every `fopen`.
const BLOCK_BYTES: u32 = 64 << 10;

fn attr_out(attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: attr.fid.ino(),
        size: attr.size,
        blocks: attr.blocks,
        // Seconds before 1970 are encoded as two's complement.
        atime: attr.atime.sec.cast_unsigned(),
        mtime: attr.mtime.sec.cast_unsigned(),
        ctime: attr.ctime.sec.cast_unsigned(),
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// The reply to STATX: like an attribute reply, with the time of birth.
pub(crate) fn statx_out(entry: &ResolvedInode, validity: Validity, mut grant: Grant<'_>) -> Body {
    let validity = grant.take(Validity { entry: Duration::ZERO, ..validity }, entry.attr.fid);
    let a = &entry.attr;
    let time = |t: Timestamp| abi::SxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
    // The kernel's 32-bit encoding: 8 low bits of the minor, 12 of the major, the rest of the minor.
    let (major, minor) = ((a.rdev >> 8) & 0xfff, (a.rdev & 0xff) | ((a.rdev >> 12) & 0xf_ff00));
    let out = abi::StatxOut {
        attr_valid: validity.attr.as_secs(),
        attr_valid_nsec: validity.attr.subsec_nanos(),
        mask: abi::statx::BASIC_STATS | abi::statx::BTIME,
        blksize: BLOCK_BYTES,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        mode: (a.mode & 0xffff) as u16,
        ino: a.fid.ino(),
        size: a.size,
        blocks: a.blocks,
        atime: time(a.atime),
        btime: time(a.btime),
        ctime: time(a.ctime),
        mtime: time(a.mtime),
        rdev_major: major,
        rdev_minor: minor,
        ..abi::StatxOut::default()
    };
    let mut body = Body::with_room(288).and(&out);
    let len = body.head.len() + abi::StatxOut::SPARE_BYTES;
    body.head.resize(len, 0);
    body.under(grant, Places::Attr(FIRST))
}

/// A complete reply, to be sent by the thread that leaves the island.
pub struct FuseReply {
    origin: Origin,
    head: Vec<u8>,
    bulk: Vec<Bytes>,
    terms: Option<Box<Terms>>,
}

/// More parts than this are copied together: writev takes at most 1 024.
const PARTS_MAX: usize = 1000;

impl FuseReply {
    pub(crate) fn new(origin: impl Into<Origin>, unique: u64, result: Result<Body, Errno>) -> Self {
        let (error, mut body) = match result {
            Ok(body) => (0, body),
            Err(errno) => (-errno.number(), Body::empty()),
        };
        if body.bulk.len() > PARTS_MAX {
            for part in body.bulk.drain(..) {
                body.head.extend_from_slice(&part);
            }
        }
        let len = body.head.len() + body.bulk.iter().map(Bytes::len).sum::<usize>();
        let len = u32::try_from(len).expect("a reply is at most max_write and a header long");
        OutHeader { len, error, unique }.put_in_front(&mut body.head);
        Self { origin: origin.into(), head: body.head, bulk: body.bulk, terms: body.terms }
    }
    /// The number of its request.
    pub fn unique(&self) -> u64 {
        OutHeader::take(&mut &self.head[..]).map_or(0, |header| header.unique)
    }
    /// The structures behind the header.
    pub fn body(&self) -> &[u8] {
        self.head.get(OutHeader::BYTES..).unwrap_or_default()
    }
    #[cfg(any(test, fuzzing))]
    pub(crate) fn unique_and_error(&self) -> (u64, i32) {
        let header = OutHeader::take(&mut &self.head[..]).expect("a reply begins with its header");
        (header.unique, header.error)
    }
    /// Sends it to the kernel: one system call on the descriptor of the request, or through the thread of its ring.
    pub fn send(self) {
        let Self { origin, mut head, bulk, terms } = self;
        match (origin, terms) {
            (Origin::Device(channel), None) => channel.write_reply(&head, &bulk),
            (Origin::Device(channel), Some(terms)) => {
                let pass = terms.gate().pass();
                terms.apply(&pass, &mut head, nacre_rt::now());
                channel.write_reply(&head, &bulk);
                drop(pass);
                terms.check(nacre_rt::now());
            }
            (Origin::Ring(ticket), terms) => ticket.reply(head, bulk, terms),
        }
    }
    /// Sends it without validity: the island of its locks has ended.
    pub(crate) fn send_without_validity(mut self) {
        if let Some(terms) = self.terms.take() {
            terms.withhold(&mut self.head);
        }
        self.send();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Channel;
    use nacre_types::{Fid, Oid, Seq};
    use std::sync::Arc;

    fn entry() -> ResolvedInode {
        let t = Timestamp { sec: -2, nsec: 5 };
        let attr = Attr {
            gid: 2,
            uid: 1,
            rdev: (259 << 8) | 7 | (1 << 20),
            size: 9,
            blocks: 8,
            ..Attr::new(Fid::new(Seq(0x100), Oid(3)), 0o100644, t)
        };
        ResolvedInode { attr, kill_priv: false }
    }

    #[test]
    fn an_entry_reply_is_header_and_structure_and_nothing_else() {
        let body = Body::of(&entry_out(&entry(), Validity::default()));
        let reply = FuseReply::new(Arc::new(Channel::detached()), 42, Ok(body));
        assert_eq!(reply.head.len(), OutHeader::BYTES + EntryOut::BYTES);
        let mut rest = &reply.head[..];
        assert_eq!(OutHeader::take(&mut rest), Ok(OutHeader { len: 144, error: 0, unique: 42 }));
        let out = EntryOut::take(&mut rest).unwrap();
        assert_eq!((out.nodeid, out.attr.mtime.cast_signed()), (0x100 << 24 | 3, -2));
        let error = FuseReply::new(Arc::new(Channel::detached()), 1, Err(Errno::ENOENT));
        assert_eq!(OutHeader::take(&mut &error.head[..]), Ok(OutHeader { len: 16, error: -2, unique: 1 }));
    }

    #[test]
    fn a_statx_reply_has_the_kernels_length_and_device_numbers() {
        let body = statx_out(&entry(), Validity::default(), Grant::none());
        assert_eq!(body.head_len(), 288);
        let out = abi::StatxOut::take(&mut &body.head[OutHeader::BYTES..]).unwrap();
        assert_eq!((out.rdev_major, out.rdev_minor), (259, 0x107));
    }
}
