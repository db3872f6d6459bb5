//! The rules of the cache, with replies and callbacks made by hand.

use super::in_flight::Touches;
use super::kernel::Stale;
use super::metadata::{Changing, MetadataCache};
use super::tables::{Found, NameEffect};
use crate::files::dirty_files::DirtyFiles;
use alloc::rc::Rc;
use alloc::vec::Vec;
use nacre_node::Ctx;
use nacre_types::{
    Attr, Codec, ConnEpoch, Fid, FileType, InodeBits, InodeMode, Instant, Oid, Seq, Timestamp, Transno, mode,
};
use nacre_wire::mdt::{
    DirEntry, EntryReply, InodeGrant, InodeRevoke, LockTail, Readdir, ReaddirReply, RevokeInodeLocks,
};
use nacre_wire::{Frame, Header, Kind, Opcode, flags};

const DIR: Fid = Fid::ROOT;

fn fid(number: u32) -> Fid {
    Fid::new(Seq(0x100), Oid(number))
}
fn entry_of(fid: Fid, mode: u32, nlink: u32) -> EntryReply {
    EntryReply {
        attr: Attr { nlink, ..Attr::new(fid, mode, Timestamp::default()) },
        layout: None,
        kill_priv: false,
        has_xattrs: true,
        mtime_set_at: Timestamp::default(),
        yours: false,
        buffered: false,
    }
}
fn file(number: u32, nlink: u32) -> EntryReply {
    entry_of(fid(number), mode::REG | 0o644, nlink)
}
fn dir(nlink: u32) -> EntryReply {
    entry_of(DIR, mode::DIR | 0o755, nlink)
}
fn grant(fid: Fid, bits: InodeBits, number: u64) -> InodeGrant {
    InodeGrant { fid, mode: InodeMode::Pr, bits, number }
}
fn all(fid: Fid, number: u64) -> InodeGrant {
    grant(fid, InodeBits::ALL, number)
}
fn tail(seen: u64, granted: &[InodeGrant]) -> LockTail {
    LockTail { seen: Transno(seen), granted: granted.to_vec(), ..LockTail::default() }
}
/// A reply on connection `epoch` with the number of a change, or 0 for a read.
fn reply(epoch: u32, transno: u64, tail: &LockTail) -> Frame {
    let mut header = Header::new(Kind::Reply, Opcode::Lookup.number());
    header.flags = flags::LOCKS;
    header.epoch = ConnEpoch(epoch);
    header.transno = Transno(transno);
    let mut body = tail.to_vec();
    body.extend((body.len() as u32).to_le_bytes());
    Frame::new(header, body)
}
/// The same without a tail: what was executed is told from a record of it.
fn reconstructed(transno: u64) -> Frame {
    let mut header = Header::new(Kind::Reply, Opcode::Unlink.number());
    header.transno = Transno(transno);
    Frame::new(header, Vec::new())
}

/// A cache and its clock.
struct Bed {
    ctx: Rc<Ctx>,
    cache: Rc<MetadataCache>,
}

struct NoKernel;
impl super::kernel::KernelCache for NoKernel {
    fn forget(&self, _: Vec<Stale>) -> core::pin::Pin<alloc::boxed::Box<dyn Future<Output = ()>>> {
        alloc::boxed::Box::pin(core::future::ready(()))
    }
}

impl Bed {
    fn new() -> Self {
        let ctx = Ctx::new(1);
        let cache = MetadataCache::new(&ctx, true, &Rc::default(), &DirtyFiles::new(&ctx, false, None));
        cache.set_kernel(Rc::new(NoKernel));
        Self { ctx, cache }
    }
    fn at(&self, seconds: u64) {
        self.ctx.set_time(Instant(seconds * 1_000_000_000), Timestamp::default());
    }
    /// A lookup that has found an inode, with locks of both.
    fn found(&self, name: &[u8], entry: &EntryReply, seen: u64, number: u64) {
        let tail = tail(seen, &[all(entry.attr.fid, number), all(DIR, number + 1)]);
        self.cache.read_name(&reply(0, 0, &tail), DIR, name, Some(entry));
    }
    fn not_found(&self, name: &[u8], seen: u64, number: u64) {
        self.cache.read_name(&reply(0, 0, &tail(seen, &[all(DIR, number)])), DIR, name, None);
    }
    fn got(&self, entry: &EntryReply, seen: u64, number: u64) {
        let tail = tail(seen, &[all(entry.attr.fid, number)]);
        self.cache.read_inode(&reply(0, 0, &tail), entry);
    }
    fn revoke(&self, fid: Fid, bits: InodeBits, number: u64) {
        let revokes = alloc::vec![InodeRevoke { fid, bits, wanted: InodeMode::Ex, number }];
        let header = Header::new(Kind::Callback, Opcode::RevokeInodeLocks.number());
        self.cache.revoked(&Frame::new(header, RevokeInodeLocks { revokes }.to_vec()));
    }
    /// What the kernel has to forget before locks are returned.
    fn stale(&self) -> Vec<Stale> {
        self.cache.returns().take_stale()
    }
    fn find(&self, name: &[u8]) -> Option<Option<Fid>> {
        self.cache.find(DIR, name).map(|found| match found {
            Found::Entry(entry) => Some(entry.attr.fid),
            Found::NotThere => None,
        })
    }
    fn nlink(&self, fid: Fid) -> Option<u32> {
        self.cache.inode(fid).map(|entry| entry.attr.nlink)
    }
    fn changing(&self, names: &[&[u8]]) -> Changing {
        let names: Vec<(Fid, &[u8])> = names.iter().map(|name| (DIR, *name)).collect();
        self.cache.begin(Touches::names(&names))
    }
    /// The reply to a change, with the states of inodes after it.
    fn changed(&self, changing: Changing, at: u64, effect: NameEffect, changed: Vec<EntryReply>) {
        let tail = LockTail { changed, ..tail(at, &[]) };
        changing.replied(&reply(0, at, &tail), effect, None, false);
    }
    fn list(&self, cookie: u64, eof: bool, names: &[(&'static [u8], u32)], seen: u64, number: u64) {
        let request = Readdir { dir: DIR, cookie, entries_max: 100, with_attrs: true };
        let entries = names.iter().map(|(name, nth)| DirEntry {
            cookie: 10 + u64::from(*nth),
            name: bytes::Bytes::from_static(name),
            fid: fid(*nth),
            file_type: FileType::Regular,
            entry: Some(file(*nth, 1)),
            granted: Some(all(fid(*nth), number + u64::from(*nth))),
        });
        let page = ReaddirReply { entries: entries.collect(), eof };
        self.cache.read_listing(&reply(0, 0, &tail(seen, &[all(DIR, number)])), &request, &page);
    }
    fn listed(&self, cookie: u64) -> Option<(Vec<Fid>, bool)> {
        let (names, eof) = self.cache.list(DIR, cookie, 100)?;
        Some((names.into_iter().map(|listed| listed.fid).collect(), eof))
    }
}

/// What the kernel is told of a name that led to `child`.
fn gone(name: &'static [u8], child: Option<Fid>) -> Stale {
    Stale::Name { parent: DIR, name: bytes::Bytes::from_static(name), child }
}

#[test]
fn names_and_attributes_are_served_until_a_callback_ends_their_bits() {
    let bed = Bed::new();
    bed.found(b"a", &file(1, 1), 5, 1);
    bed.not_found(b"b", 5, 3);
    assert_eq!(
        (bed.find(b"a"), bed.find(b"b"), bed.nlink(fid(1))),
        (Some(Some(fid(1))), Some(None), Some(1))
    );
    bed.revoke(DIR, InodeBits::UPDATE, 10);
    assert_eq!(bed.find(b"b"), None, "another mount may have made it");
    assert_eq!(bed.find(b"a"), Some(Some(fid(1))), "LOOKUP of the inode covers its name");
    bed.revoke(fid(1), InodeBits::LOOKUP, 11);
    assert_eq!((bed.find(b"a"), bed.nlink(fid(1))), (None, Some(1)));
    bed.revoke(fid(1), InodeBits::UPDATE, 12);
    assert_eq!(bed.nlink(fid(1)), None);
}

#[test]
fn a_name_stays_valid_under_its_directory_when_its_inode_is_not_locked_any_more() {
    let bed = Bed::new();
    bed.found(b"a", &file(1, 1), 5, 1);
    bed.revoke(fid(1), InodeBits::LOOKUP, 10);
    assert_eq!(bed.find(b"a"), Some(Some(fid(1))));
    bed.revoke(DIR, InodeBits::UPDATE, 11);
    assert_eq!(bed.find(b"a"), None);
}

#[test]
fn what_a_bit_has_protected_is_not_used_again_when_the_bit_is_granted_anew() {
    let bed = Bed::new();
    bed.got(&dir(2), 5, 1);
    bed.not_found(b"b", 5, 2);
    bed.revoke(DIR, InodeBits::UPDATE, 10);
    // A lookup of another name grants the bits of the directory, and tells nothing of its attributes.
    bed.not_found(b"c", 9, 11);
    assert_eq!((bed.nlink(DIR), bed.find(b"b"), bed.find(b"c")), (None, None, Some(None)));
}

#[test]
fn a_grant_that_a_callback_has_overtaken_is_not_taken() {
    let bed = Bed::new();
    bed.revoke(DIR, InodeBits::UPDATE, 10);
    bed.not_found(b"b", 5, 9);
    assert_eq!(bed.find(b"b"), None);
    bed.not_found(b"b", 8, 11);
    assert_eq!(bed.find(b"b"), Some(None));
}

#[test]
fn the_size_of_a_file_needs_the_size_bit() {
    let bed = Bed::new();
    let granted = grant(fid(1), InodeBits::ALL - InodeBits::SIZE, 1);
    bed.cache.read_inode(&reply(0, 0, &tail(5, &[granted])), &file(1, 1));
    assert_eq!(bed.nlink(fid(1)), None);
    bed.got(&file(1, 1), 5, 2);
    assert_eq!(bed.nlink(fid(1)), Some(1));
    bed.revoke(fid(1), InodeBits::SIZE, 3);
    assert_eq!(bed.nlink(fid(1)), None);
}

#[test]
fn older_attributes_never_replace_those_of_an_own_change() {
    let bed = Bed::new();
    bed.got(&dir(2), 5, 1);
    let changing = bed.changing(&[b"sub"]);
    bed.changed(changing, 10, NameEffect::Leads(Some(fid(7))), alloc::vec![dir(3)]);
    bed.got(&dir(2), 7, 2);
    assert_eq!(bed.nlink(DIR), Some(3), "the reply of the read was sent before the change");
    bed.got(&dir(3), 10, 3);
    assert_eq!(bed.nlink(DIR), Some(3));
    // The same for an inode that is not in the table when the reply to the change arrives.
    let changing = bed.cache.begin(Touches::inode(fid(1)));
    bed.changed(changing, 20, NameEffect::None, Vec::new());
    bed.cache.begin(Touches::inode(fid(1))).replied(&reconstructed(21), NameEffect::None, None, false);
    bed.got(&file(1, 1), 20, 4);
    assert_eq!(bed.nlink(fid(1)), None);
    bed.got(&file(1, 2), 21, 5);
    assert_eq!(bed.nlink(fid(1)), Some(2));
}

#[test]
fn an_own_change_that_is_acknowledged_after_the_bits_were_lost_and_granted_again_tells_nothing() {
    let bed = Bed::new();
    bed.not_found(b"a", 5, 1);
    let changing = bed.changing(&[b"a"]);
    bed.revoke(DIR, InodeBits::ALL, 2);
    // Another mount has removed the name meanwhile.
    bed.not_found(b"c", 12, 3);
    bed.changed(changing, 10, NameEffect::Leads(Some(fid(1))), alloc::vec![dir(3)]);
    assert_eq!((bed.find(b"a"), bed.nlink(DIR)), (None, None));
}

#[test]
fn a_change_without_a_reply_hides_its_names_and_inodes_and_no_others() {
    let bed = Bed::new();
    bed.got(&dir(2), 5, 1);
    bed.found(b"a", &file(1, 1), 5, 2);
    bed.found(b"b", &file(2, 1), 5, 4);
    bed.not_found(b"c", 5, 6);
    let changing = bed.changing(&[b"a"]);
    assert_eq!((bed.find(b"a"), bed.nlink(fid(1)), bed.nlink(DIR)), (None, None, None));
    assert_eq!((bed.find(b"b"), bed.find(b"c")), (Some(Some(fid(2))), Some(None)));
    drop(changing);
    assert_eq!(bed.find(b"a"), Some(Some(fid(1))));
    let blind = bed.changing(&[b"never seen"]);
    assert_eq!(bed.nlink(fid(2)), None, "it may be a name of this inode");
    drop(blind);
    assert_eq!(bed.nlink(fid(2)), Some(1));
    // A name that another mount may have given to another inode while it is changing.
    let changing = bed.changing(&[b"a"]);
    assert_eq!(bed.nlink(fid(2)), Some(1));
    bed.revoke(fid(1), InodeBits::ALL, 20);
    bed.revoke(DIR, InodeBits::ALL, 21);
    assert_eq!(bed.nlink(fid(2)), None);
    drop(changing);
    assert!(bed.cache.is_idle());
}

#[test]
fn own_changes_of_names_are_known_without_asking() {
    let bed = Bed::new();
    bed.found(b"a", &file(1, 1), 5, 1);
    bed.not_found(b"b", 5, 3);
    bed.changed(bed.changing(&[b"a", b"b"]), 6, NameEffect::Moved, alloc::vec![file(1, 1)]);
    assert_eq!((bed.find(b"a"), bed.find(b"b")), (Some(None), Some(Some(fid(1)))));
    bed.changed(bed.changing(&[b"b"]), 7, NameEffect::Leads(None), Vec::new());
    assert_eq!(bed.find(b"b"), Some(None));
    bed.found(b"x", &file(2, 1), 7, 5);
    bed.found(b"y", &file(3, 1), 7, 7);
    let changed = alloc::vec![file(2, 1), file(3, 1)];
    bed.changed(bed.changing(&[b"x", b"y"]), 8, NameEffect::Exchanged, changed);
    assert_eq!((bed.find(b"x"), bed.find(b"y")), (Some(Some(fid(3))), Some(Some(fid(2)))));
    // Two names of one inode: such a rename does nothing.
    bed.found(b"z", &file(3, 2), 8, 9);
    bed.changed(bed.changing(&[b"x", b"z"]), 9, NameEffect::Moved, alloc::vec![file(3, 2)]);
    assert_eq!((bed.find(b"x"), bed.find(b"z")), (Some(Some(fid(3))), Some(Some(fid(3)))));
    // The other name may be one of the same inode, if it has several.
    let changing = bed.changing(&[b"z", b"unknown"]);
    bed.changed(changing, 10, NameEffect::Moved, alloc::vec![file(3, 2)]);
    assert_eq!((bed.find(b"z"), bed.find(b"unknown")), (None, None));
    let changing = bed.changing(&[b"y", b"unknown"]);
    bed.changed(changing, 11, NameEffect::Moved, alloc::vec![file(2, 1)]);
    assert_eq!((bed.find(b"y"), bed.find(b"unknown")), (Some(None), Some(Some(fid(2)))));
}

#[test]
fn a_reply_without_a_tail_makes_the_touched_inodes_unknown() {
    let bed = Bed::new();
    bed.got(&dir(2), 5, 1);
    bed.found(b"a", &file(1, 2), 5, 2);
    bed.found(b"b", &file(2, 1), 5, 4);
    bed.changing(&[b"a"]).replied(&reconstructed(9), NameEffect::Leads(None), None, false);
    assert_eq!((bed.nlink(DIR), bed.nlink(fid(1)), bed.nlink(fid(2))), (None, None, Some(1)));
    assert_eq!(bed.find(b"a"), Some(None));
}

#[test]
fn a_directory_that_was_listed_whole_serves_every_name() {
    let bed = Bed::new();
    bed.list(0, false, &[(b"a", 1), (b"b", 2)], 5, 100);
    assert_eq!(bed.find(b"z"), None);
    assert_eq!(bed.listed(2), Some((alloc::vec![fid(1), fid(2)], false)), "the part that was read");
    bed.list(12, true, &[(b"c", 3)], 5, 200);
    assert_eq!(bed.find(b"z"), Some(None));
    assert_eq!(bed.listed(11), Some((alloc::vec![fid(2), fid(3)], true)));
    // A name of our own has no place in the order yet.
    let changing = bed.changing(&[b"d"]);
    assert_eq!(bed.listed(2), None);
    bed.changed(changing, 6, NameEffect::Leads(Some(fid(4))), Vec::new());
    assert_eq!((bed.listed(2), bed.find(b"z")), (None, Some(None)));
    bed.changed(bed.changing(&[b"d"]), 7, NameEffect::Leads(None), Vec::new());
    bed.changed(bed.changing(&[b"b"]), 8, NameEffect::Leads(None), Vec::new());
    assert_eq!(bed.listed(2), Some((alloc::vec![fid(1), fid(3)], true)));
    assert_eq!(bed.find(b"b"), Some(None));
    bed.revoke(DIR, InodeBits::UPDATE, 300);
    assert_eq!((bed.listed(2), bed.find(b"z"), bed.find(b"a")), (None, None, Some(Some(fid(1)))));
}

#[test]
fn a_listing_during_which_the_directory_was_changed_by_others_is_not_complete() {
    let bed = Bed::new();
    bed.list(0, false, &[(b"a", 1)], 5, 100);
    bed.revoke(DIR, InodeBits::UPDATE, 150);
    bed.list(11, true, &[(b"b", 2)], 6, 200);
    assert_eq!((bed.listed(2), bed.find(b"z")), (None, None));
    // An own removal is newer than a page that still has the name.
    bed.list(0, false, &[(b"a", 1)], 7, 300);
    bed.changed(bed.changing(&[b"b"]), 9, NameEffect::Leads(None), Vec::new());
    bed.list(11, true, &[(b"b", 2)], 8, 400);
    assert_eq!(bed.find(b"b"), Some(None));
}

#[test]
fn a_part_of_a_listing_is_not_served_after_a_name_was_added() {
    let bed = Bed::new();
    let make = |name: &'static [u8], nth: u32, at: u64| {
        bed.changed(bed.changing(&[name]), at, NameEffect::Leads(Some(fid(nth))), Vec::new());
    };
    let fids = |nths: &[u32]| nths.iter().map(|nth| fid(*nth)).collect::<Vec<_>>();
    bed.list(0, true, &[(b"a", 1), (b"c", 3), (b"e", 5)], 5, 100);
    // The first page has the place of the new name: everything is known, and the last page is never read.
    make(b"d", 4, 6);
    bed.list(0, false, &[(b"a", 1), (b"c", 3), (b"d", 4)], 6, 200);
    assert_eq!(bed.listed(2), Some((fids(&[1, 3, 4, 5]), true)));
    make(b"b", 2, 7);
    assert_eq!(bed.listed(2), None, "a later listing has to contain the name");
    // A page that the MDT has read before the change arrives after the reply to it.
    bed.list(0, false, &[(b"a", 1), (b"c", 3)], 6, 300);
    assert_eq!(bed.listed(2), None);
    bed.list(0, false, &[(b"a", 1), (b"b", 2)], 7, 400);
    assert_eq!(bed.listed(2), Some((fids(&[1, 2, 3, 4, 5]), true)));
}

#[test]
fn a_directory_that_this_mount_has_made_is_empty() {
    let bed = Bed::new();
    let made = entry_of(fid(9), mode::DIR | 0o755, 2);
    let tail = tail(6, &[all(fid(9), 1)]);
    let effect = NameEffect::Leads(Some(fid(9)));
    bed.changing(&[b"new"]).replied(&reply(0, 6, &tail), effect, Some(&made), true);
    assert_eq!(bed.cache.find(fid(9), b"x"), Some(Found::NotThere));
    assert_eq!(bed.cache.list(fid(9), 2, 10).map(|(names, eof)| (names.len(), eof)), Some((0, true)));
}

#[test]
fn extended_attributes_are_kept_as_long_as_nothing_was_lost_while_they_were_read() {
    let bed = Bed::new();
    let value = bytes::Bytes::from_static(b"v");
    bed.got(&file(1, 1), 5, 1);
    let xattr = |name: &[u8]| bed.cache.xattr(fid(1), name);
    let serial = bed.cache.xattr_serial(fid(1));
    bed.cache.keep_xattr(fid(1), serial, b"user.a", Some(&value));
    bed.cache.keep_xattr(fid(1), serial, b"security.capability", None);
    assert_eq!(xattr(b"user.a"), Some(Some(value.clone())));
    assert_eq!((xattr(b"security.capability"), xattr(b"user.b")), (Some(None), None));
    bed.cache.keep_xattr_names(fid(1), serial, &[bytes::Bytes::from_static(b"user.a")]);
    assert_eq!(xattr(b"user.b"), Some(None), "all names are known");
    let changing = bed.cache.begin(Touches::inode(fid(1)));
    assert_eq!(xattr(b"user.a"), None);
    bed.changed(changing, 6, NameEffect::None, alloc::vec![file(1, 1)]);
    assert_eq!(xattr(b"user.a"), None);
    let serial = bed.cache.xattr_serial(fid(1));
    bed.revoke(fid(1), InodeBits::XATTR, 2);
    bed.got(&file(1, 1), 8, 3);
    bed.cache.keep_xattr(fid(1), serial, b"user.a", Some(&value));
    assert_eq!(xattr(b"user.a"), None, "read before the bit was lost");
}

#[test]
fn attributes_that_say_so_are_enough_to_know_that_there_are_no_extended_attributes() {
    let bed = Bed::new();
    let bare = EntryReply { has_xattrs: false, ..file(1, 1) };
    bed.got(&bare, 5, 1);
    let known = || (bed.cache.xattr(fid(1), b"user.a"), bed.cache.xattr_names(fid(1)));
    assert_eq!(known(), (Some(None), Some(Vec::new())));
    let setting = bed.cache.begin(Touches::inode(fid(1)));
    assert_eq!(known(), (None, None), "one is being set");
    bed.changed(setting, 6, NameEffect::None, alloc::vec![file(1, 1)]);
    assert_eq!(known(), (None, None), "it has one now");
    bed.got(&bare, 7, 2);
    bed.revoke(fid(1), InodeBits::UPDATE, 3);
    assert_eq!(known(), (None, None), "the attributes are not known");
}

#[test]
fn what_the_kernel_was_given_and_may_still_use_is_told_when_its_lock_ends() {
    let bed = Bed::new();
    bed.at(100);
    let until = Instant(106_000_000_000);
    bed.found(b"a", &file(1, 1), 5, 1);
    bed.not_found(b"b", 5, 3);
    assert!(bed.cache.give_name(DIR, b"a", until) && bed.cache.give_attrs(fid(1), until));
    assert!(bed.cache.give_name(DIR, b"b", until) && !bed.cache.give_name(DIR, b"never seen", until));
    bed.revoke(DIR, InodeBits::UPDATE, 10);
    assert_eq!(bed.stale(), [gone(b"b", None)], "the other name is still valid under LOOKUP");
    bed.revoke(fid(1), InodeBits::ALL, 11);
    assert_eq!(bed.stale(), [Stale::Inode(fid(1)), gone(b"a", Some(fid(1)))]);
    bed.found(b"a", &file(1, 1), 9, 12);
    bed.cache.give_name(DIR, b"a", until);
    bed.cache.give_attrs(fid(1), until);
    bed.at(108);
    bed.revoke(fid(1), InodeBits::ALL, 20);
    bed.revoke(DIR, InodeBits::ALL, 21);
    let late = "it may have taken over the reply late";
    assert_eq!(bed.stale(), [Stale::Inode(fid(1)), gone(b"a", Some(fid(1)))], "{late}");
    bed.found(b"a", &file(1, 1), 12, 30);
    let until = Instant(114_000_000_000);
    assert!(bed.cache.give_name(DIR, b"a", until) && bed.cache.give_attrs(fid(1), until));
    bed.at(117);
    bed.revoke(fid(1), InodeBits::ALL, 40);
    bed.revoke(DIR, InodeBits::ALL, 41);
    assert_eq!(bed.stale(), [], "the time has passed");
}

#[test]
fn the_kernel_has_the_names_that_it_is_being_told_to_forget() {
    let bed = Bed::new();
    bed.at(100);
    let until = Instant(106_000_000_000);
    bed.found(b"a", &file(1, 1), 5, 1);
    assert!(bed.cache.give_name(DIR, b"a", until));
    let names = alloc::vec![(DIR, bytes::Bytes::from_static(b"a"))];
    assert_eq!(bed.cache.names_in_kernel(), Some(names.clone()));
    bed.revoke(fid(1), InodeBits::ALL, 10);
    bed.revoke(DIR, InodeBits::ALL, 11);
    assert_eq!(bed.cache.names_in_kernel(), Some(names.clone()));
    assert!(bed.cache.returns().begin() && bed.cache.returns().take().is_some());
    assert_eq!(bed.cache.names_in_kernel(), Some(names));
    assert!(bed.cache.returns().take().is_none());
    assert_eq!(bed.cache.names_in_kernel(), Some(Vec::new()));
    bed.cache.returns().all_ended(false, Vec::new());
    assert_eq!(bed.cache.names_in_kernel(), None);
    assert!(bed.cache.returns().take().is_some());
    assert_eq!(bed.cache.names_in_kernel(), None);
    assert!(bed.cache.returns().take().is_none());
    assert_eq!(bed.cache.names_in_kernel(), Some(Vec::new()));
}

/// A change of this mount may wait for it, and the kernel cannot forget a name before that change has ended.
#[test]
fn the_bit_open_alone_does_not_wait_until_the_kernel_has_forgotten_names() {
    let bed = Bed::new();
    bed.at(100);
    bed.found(b"a", &file(1, 1), 5, 1);
    bed.found(b"b", &file(2, 1), 6, 3);
    assert!(bed.cache.give_name(DIR, b"b", Instant(106_000_000_000)));
    bed.revoke(fid(2), InodeBits::ALL, 10);
    bed.revoke(DIR, InodeBits::ALL, 11);
    bed.revoke(fid(1), InodeBits::OPEN, 12);
    let ack = nacre_wire::mdt::RevokeAck { number: 12, converted: false };
    assert_eq!(bed.cache.returns().take_opens(), [(fid(1), ack)]);
    let (stale, ended, _, acks, _) = bed.cache.returns().take().unwrap();
    assert!(stale.contains(&gone(b"b", Some(fid(2)))));
    assert!(!ended.iter().any(|(of, _)| *of == fid(1)));
    assert_eq!(acks.len(), 2);
}

#[test]
fn the_new_name_of_a_whiteout_rename_is_known() {
    let bed = Bed::new();
    bed.found(b"a", &file(1, 1), 5, 1);
    bed.not_found(b"b", 5, 3);
    bed.changed(bed.changing(&[b"a", b"b"]), 6, NameEffect::MovedFromWhiteout, alloc::vec![file(1, 1)]);
    assert_eq!((bed.find(b"a"), bed.find(b"b")), (None, Some(Some(fid(1)))));
}

/// The kernel compares callers with the owner that it remembers.
#[test]
fn the_kernel_asks_for_a_name_again_when_the_permissions_of_its_inode_change() {
    let bed = Bed::new();
    bed.at(100);
    let until = Instant(106_000_000_000);
    let name = bytes::Bytes::from_static(b"a");
    bed.found(b"a", &file(1, 1), 5, 1);
    assert!(bed.cache.give_name(DIR, b"a", until));
    bed.revoke(fid(1), InodeBits::UPDATE, 10);
    assert_eq!(bed.stale(), [], "other attributes are not remembered without asking");
    bed.revoke(fid(1), InodeBits::PERM, 11);
    let permissions = Stale::Permissions { parent: DIR, name };
    assert!(bed.cache.returns().forgets(DIR, b"a"));
    assert_eq!(bed.stale(), [permissions]);
    // The next change would not be told to this mount.
    assert!(!bed.cache.give_name(DIR, b"a", until));
    let bits = InodeBits::PERM | InodeBits::LOOKUP;
    let tail = tail(12, &[grant(fid(1), bits, 13), all(DIR, 14)]);
    bed.cache.read_name(&reply(0, 0, &tail), DIR, b"a", Some(&file(1, 1)));
    assert!(bed.cache.give_name(DIR, b"a", until));
    // A name that is not listed with its inode could not be found then.
    let only_dir = self::tail(12, &[grant(fid(2), InodeBits::PERM, 15), all(DIR, 16)]);
    bed.cache.read_name(&reply(0, 0, &only_dir), DIR, b"b", Some(&file(2, 1)));
    assert!(!bed.cache.give_name(DIR, b"b", until));
}

/// It does not forget them with the validity of the attributes.
#[test]
fn the_kernel_is_told_of_other_access_control_lists_whenever_it_had_some() {
    let bed = Bed::new();
    bed.at(100);
    bed.found(b"a", &file(1, 1), 5, 1);
    bed.cache.give_acls(fid(1));
    bed.revoke(fid(1), InodeBits::UPDATE, 10);
    assert_eq!(bed.stale(), []);
    bed.revoke(fid(1), InodeBits::PERM, 11);
    assert_eq!(bed.stale(), [Stale::Acls(fid(1))]);
    bed.got(&file(1, 1), 12, 13);
    bed.revoke(fid(1), InodeBits::ALL, 14);
    assert_eq!(bed.stale(), [], "it has none any more");
}

#[test]
fn the_kernel_takes_the_validity_of_a_name_along_in_an_own_rename() {
    let bed = Bed::new();
    bed.at(100);
    let until = Instant(106_000_000_000);
    bed.found(b"a", &file(1, 1), 5, 1);
    bed.not_found(b"b", 5, 3);
    assert!(bed.cache.give_name(DIR, b"a", until));
    bed.changed(bed.changing(&[b"a", b"b"]), 6, NameEffect::Moved, alloc::vec![file(1, 1)]);
    assert_eq!(bed.stale(), []);
    bed.revoke(fid(1), InodeBits::ALL, 10);
    bed.revoke(DIR, InodeBits::ALL, 11);
    assert!(bed.stale().contains(&gone(b"b", Some(fid(1)))), "the kernel has it under the new name");
    // The new name is not known here.
    bed.found(b"x", &file(2, 2), 7, 12);
    assert!(bed.cache.give_name(DIR, b"x", until));
    bed.changed(bed.changing(&[b"x", b"unknown"]), 8, NameEffect::Moved, alloc::vec![file(2, 2)]);
    assert_eq!((bed.find(b"unknown"), bed.stale()), (None, alloc::vec![gone(b"unknown", None)]));
    // The kernel exchanges its entries too.
    bed.found(b"c", &file(3, 1), 8, 14);
    bed.found(b"d", &file(4, 1), 8, 16);
    assert!(bed.cache.give_name(DIR, b"d", until));
    let changed = alloc::vec![file(3, 1), file(4, 1)];
    bed.changed(bed.changing(&[b"c", b"d"]), 9, NameEffect::Exchanged, changed);
    assert_eq!(bed.stale(), []);
    bed.revoke(DIR, InodeBits::UPDATE, 20);
    bed.revoke(fid(3), InodeBits::ALL, 21);
    bed.revoke(fid(4), InodeBits::ALL, 22);
    assert!(bed.stale().contains(&gone(b"c", Some(fid(4)))));
}

#[test]
fn a_name_that_the_kernel_is_told_to_forget_may_still_move_in_an_own_rename() {
    let bed = Bed::new();
    bed.at(100);
    let given_and_lost = |number: u64| {
        bed.found(b"a", &file(1, 1), number, number);
        assert!(bed.cache.give_name(DIR, b"a", Instant(106_000_000_000)));
        bed.revoke(fid(1), InodeBits::ALL, number + 2);
        bed.revoke(DIR, InodeBits::ALL, number + 3);
        // It is read again, before the kernel has forgotten it.
        bed.found(b"a", &file(1, 1), number, number + 4);
        bed.not_found(b"b", number, number + 6);
    };
    let rename = |at: u64| {
        bed.changed(bed.changing(&[b"a", b"b"]), at, NameEffect::Moved, alloc::vec![file(1, 1)]);
    };
    given_and_lost(10);
    rename(20);
    assert!(bed.stale().contains(&gone(b"b", None)), "the notification is still to be sent");
    given_and_lost(30);
    assert!(bed.cache.returns().take().is_some());
    rename(40);
    assert_eq!(bed.stale(), [gone(b"b", None)], "it has been sent");
    given_and_lost(50);
    while bed.cache.returns().take().is_some() {}
    rename(60);
    assert_eq!(bed.stale(), [], "the kernel has forgotten it");
}

#[test]
fn names_that_are_not_there_are_bounded_per_directory() {
    let bed = Bed::new();
    bed.at(100);
    let until = Instant(106_000_000_000);
    bed.list(0, true, &[], 5, 1);
    let name = |n: u32| alloc::format!("n{n}").into_bytes();
    let given = (0..2000).filter(|n| bed.cache.give_name(DIR, &name(*n), until)).count();
    assert_eq!(given, 1024);
    assert_eq!(bed.find(b"n1999"), Some(None), "it is served, and the kernel asks again");
    bed.at(109);
    assert!(bed.cache.give_name(DIR, b"n1999", Instant(115_000_000_000)));
}

#[test]
fn a_directory_is_not_searched_for_every_name_that_is_not_there() {
    let bed = Bed::new();
    let at = |ms: u64| Instant(ms * 1_000_000);
    let come = |ms: u64| bed.ctx.set_time(at(ms), Timestamp::default());
    come(100_000);
    bed.list(0, true, &[], 5, 1);
    let name = |n: u32| alloc::format!("n{n}").into_bytes();
    let given = (0..1500).filter(|n| bed.cache.give_name(DIR, &name(*n), at(100_010))).count();
    assert_eq!(given, 1024);
    come(100_099);
    assert!(!bed.cache.give_name(DIR, b"new", at(106_000)), "it was searched less than 100 ms ago");
    come(100_100);
    assert!(bed.cache.give_name(DIR, b"new", at(106_000)));
}

#[test]
fn locks_survive_a_connection_and_end_with_the_start_of_the_mdt() {
    let bed = Bed::new();
    bed.found(b"a", &file(1, 1), 5, 1);
    let changing = bed.changing(&[b"a"]);
    bed.changed(changing, 6, NameEffect::Leads(None), Vec::new());
    let tail = tail(7, &[all(DIR, 3)]);
    bed.cache.read_name(&reply(1, 0, &tail), DIR, b"b", None);
    assert_eq!((bed.find(b"a"), bed.find(b"b")), (Some(None), Some(None)));
    bed.cache.locks_ended(ConnEpoch(2));
    assert_eq!((bed.find(b"a"), bed.nlink(fid(1)), bed.cache.counts().locks), (None, None, 0));
    bed.cache.read_name(&reply(1, 0, &tail), DIR, b"b", None);
    assert_eq!(bed.find(b"b"), None, "a reply of the former start");
    bed.cache.read_name(&reply(2, 0, &tail), DIR, b"b", None);
    assert_eq!(bed.find(b"b"), Some(None));
}

#[test]
fn locks_beyond_the_limit_are_returned() {
    let bed = Bed::new();
    bed.cache.set_limit(100);
    for n in 1..=500 {
        bed.got(&file(n, 1), 5, u64::from(n));
    }
    let counts = bed.cache.counts();
    assert!(counts.locks <= 100 + 64 && counts.cancels >= 336, "{counts:?}");
    assert_eq!(bed.nlink(fid(500)), Some(1));
    bed.cache.set_on(false);
    assert_eq!((bed.cache.counts().locks, bed.nlink(fid(500))), (0, None));
    bed.cache.set_on(true);
    bed.got(&file(500, 1), 5, 500);
    assert_eq!(bed.nlink(fid(500)), None, "a grant from before the return");
}
