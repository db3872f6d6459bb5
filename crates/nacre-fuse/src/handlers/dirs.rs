//! Directory listings: OPENDIR, READDIR, READDIRPLUS, RELEASEDIR.
//!
//! The kernel's offset is the cookie of the last entry it has; cookies are stable, so no state is kept between two
//! requests, and a listing continues correctly while others change the directory. OPENDIR is an open of the
//! client: a directory that is removed while it is open exists, empty and without a name, until it is closed. The kernel
//! keeps the names of a listing and serves further ones from there, while the client's lock covers them
//! (`nacre_client`, `cache/pages.rs`) and what it was told of the inodes is valid (`kernel_cache/listings.rs`).

use crate::abi::{self, Dirent, EntryOut, Field, OutHeader, align8};
use crate::device::MAX_WRITE_BYTES;
use crate::door::{Door, Reply};
use crate::gate::Places;
use crate::kernel_cache::listings::Part;
use crate::ops::{OpenedFile, Ops};
use crate::reply::{Body, entry_out};
use crate::request::FuseRequest;
use nacre_client::{ListedEntry, ResolvedInode, Validity};
use nacre_types::OpenHandle;
use std::rc::Rc;

pub(crate) async fn opendir<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::OpenIn { flags, .. } = request.args().take()?;
    let dir = request.fid()?;
    let handle = door.ops.opendir(dir, flags, request.caller(0)).await?;
    if request.has_reply() {
        // No RELEASE follows for a handle that the caller never got. It fails only if the handle is already closed.
        let _ = door.ops.releasedir(handle).await;
    }
    // The kernel does not notice a change through another node of the directory.
    let has_other_node = request.has_stand_in() || door.moved().with_stand_ins().any(|fid| fid == dir);
    let fopen_flags = match has_other_node {
        true => 0,
        false => door.ops.listing_flags(handle, !door.listings().is_valid(dir, door.ctx.now())),
    };
    Ok(Body::opened(OpenedFile { handle, fopen_flags }))
}

pub(crate) async fn releasedir<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::ReleaseIn { fh, .. } = request.args().take()?;
    door.ops.releasedir(OpenHandle(fh)).await?;
    Ok(Body::empty())
}

/// Assumed bytes of a name when a page is requested: if names are longer or shorter on average, one more request is
/// needed; entries that do not fit are requested again.
const NAME_BYTES: usize = 16;
/// Entries in one page at most: one visit's slice on the server.
const ENTRIES_MAX: usize = 1024;

pub(crate) async fn readdir<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::ReadIn { fh, offset, size, .. } = request.args().take()?;
    let dir = request.fid()?;
    door.ops.listed_through(OpenHandle(fh));
    door.listings().has_gap(dir);
    let page = door.ops.readdir(dir, offset, fitting(size, 0), false).await?;
    let mut listing = Listing::new(size);
    for entry in &page.entries {
        if !listing.add(None, entry) {
            break;
        }
    }
    Ok(listing.body)
}

pub(crate) async fn readdirplus<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::ReadIn { fh, offset, size, .. } = request.args().take()?;
    let dir = request.fid()?;
    door.ops.listed_through(OpenHandle(fh));
    let page = door.ops.readdir(dir, offset, fitting(size, EntryOut::BYTES), true).await?;
    let mut listing = Listing::new(size);
    let (mut grant, mut places) = (door.grant(&request), Vec::new());
    let mut part = Part::new(offset, page.eof);
    let now = door.ctx.now();
    for entry in &page.entries {
        // Node number 0: only the name. Also used for "." and "..", which the kernel does not look up.
        let known = entry.entry.as_ref().filter(|_| entry.name != "." && entry.name != "..");
        if !listing.has_room(EntryOut::BYTES, entry) {
            part.stop();
            break;
        }
        part.reach(entry.cookie);
        // A directory that the kernel knows at another place is looked up when it is used.
        let at_its_place = |e: &&ResolvedInode| {
            !e.attr.is_dir() || door.moved().may_list(e.attr.fid, (request.node(), &entry.name))
        };
        let known = known.filter(at_its_place);
        let place = listing.next_place();
        let head = known.map_or_else(EntryOut::default, |e| {
            door.special_files().note(e);
            let validity = door.ops.validity(Some((dir, &entry.name)), e.attr.fid);
            let validity = grant.take(validity, e.attr.fid);
            part.add(validity, now);
            if validity != Validity::default() {
                places.push(place);
            }
            entry_out(e, validity)
        });
        listing.add(Some(head), entry);
    }
    door.listings().read(dir, part);
    Ok(listing.body.under(grant, Places::Entries(places)))
}

/// Entries that fit into `size` bytes when each has `head` bytes in front.
fn fitting(size: u32, head: usize) -> u32 {
    let each = head + Dirent::BYTES + NAME_BYTES;
    (size as usize / each).clamp(1, ENTRIES_MAX) as u32
}

struct Listing {
    body: Body,
    left: usize,
}
impl Listing {
    fn new(size: u32) -> Self {
        let left = size.min(MAX_WRITE_BYTES) as usize;
        Self { body: Body::with_room(left), left }
    }
    /// Where the next entry begins in the reply.
    fn next_place(&self) -> u32 {
        (OutHeader::BYTES + self.body.head_len()) as u32
    }
    fn has_room(&self, head_bytes: usize, entry: &ListedEntry) -> bool {
        align8(Dirent::BYTES + entry.name.len()) + head_bytes <= self.left
    }
    /// Appends one entry; false when it does not fit any more.
    fn add(&mut self, head: Option<EntryOut>, entry: &ListedEntry) -> bool {
        let record = Dirent::BYTES + entry.name.len();
        let bytes = align8(record) + head.map_or(0, |_| EntryOut::BYTES);
        if bytes > self.left {
            return false;
        }
        self.left -= bytes;
        let out = self.body.head_mut();
        if let Some(head) = head {
            head.put(out);
        }
        Dirent {
            ino: entry.fid.ino(),
            off: entry.cookie,
            namelen: entry.name.len() as u32,
            kind: u32::from(entry.file_type.number()),
        }
        .put(out);
        out.extend_from_slice(&entry.name);
        out.resize(out.len() + align8(record) - record, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use nacre_types::{Fid, FileType};

    fn entry(name: &'static str) -> ListedEntry {
        ListedEntry {
            cookie: 0x7777,
            name: Bytes::from_static(name.as_bytes()),
            fid: Fid::ROOT,
            file_type: FileType::Directory,
            entry: None,
        }
    }

    #[test]
    fn a_page_is_packed_to_eight_bytes_and_never_overflows() {
        let mut listing = Listing::new(100);
        assert!(listing.add(None, &entry("a")));
        assert_eq!(listing.body.head_len(), 32);
        assert!(listing.add(None, &entry("12345678")));
        assert_eq!(listing.body.head_len(), 64);
        assert!(!listing.add(None, &entry("123456789")), "40 bytes do not fit into 36");
        assert!(listing.add(None, &entry("x")));
        assert_eq!(listing.body.head_len(), 96);
        let mut listing = Listing::new(160);
        assert!(listing.add(Some(EntryOut::default()), &entry("12345678")));
        assert_eq!(listing.body.head_len(), 160);
    }
}
