//! Operations one by one over rows in a map: rules of POSIX that the model test does not reach.

use crate::ops::size::{check_written, forget_truncates, store_size_of_objects};
use crate::rows::acl;
use crate::rows::read_set::ReadSet;
use crate::rows::row::{Row, Stripes, Unsettled};
use crate::rows::state_change::StateChange;
use crate::rows::table::{DESTROY, LINK, UNSETTLED, XATTR};
use crate::testing::{EXPORT, Fs};
use nacre_types::{Caller, Errno, Fid, Generation, SetAttr, SizeState, Timestamp, mode};
use nacre_wire::mdt::{Removexattr, Setxattr, Written};
use std::format;
use std::vec::Vec;

const REG: u32 = mode::REG | 0o666;
const DIR: u32 = mode::DIR | 0o777;
const OTHER: Generation = Generation(2);
const ROOT: Fid = Fid::ROOT;

fn user(uid: u32, umask: u32) -> Caller {
    Caller { uid, gid: uid, umask, ..Caller::root() }
}
fn at(sec: i64) -> Timestamp {
    Timestamp { sec, nsec: 0 }
}
fn written(size: u64, sec: i64) -> Option<Written> {
    Some(Written { size, blocks: size.div_ceil(512), mtime: at(sec) })
}
fn set_xattr(fs: &mut Fs, fid: Fid, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
    let args = Setxattr { fid, name, value, flags, kill_sgid: false, caller: Caller::root(), time: fs.now() };
    fs.apply(EXPORT, &args).map(drop)
}
fn remove_xattr(fs: &mut Fs, fid: Fid, name: &[u8]) -> Result<(), Errno> {
    let args = Removexattr { fid, name, time: fs.now() };
    fs.apply(EXPORT, &args).map(drop)
}
fn get_xattr(fs: &mut Fs, fid: Fid, name: &[u8]) -> Option<Vec<u8>> {
    fs.run(ReadSet::of_inode(fid), |v| {
        let inode = v.file(fid)?;
        v.xattr(&inode, name)
    })
    .unwrap()
    .map(|b| b.to_vec())
}
fn acl_bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

#[test]
fn a_set_gid_directory_hands_down_its_group_and_the_umask_applies() {
    let mut fs = Fs::new();
    let dir = fs.create(ROOT, b"d", DIR).unwrap();
    let set = SetAttr { gid: Some(50), ..SetAttr::default() };
    fs.setattr_as(EXPORT, 0, dir, set).unwrap();
    fs.setattr_as(EXPORT, 0, dir, SetAttr { mode: Some(0o2777), ..SetAttr::default() }).unwrap();
    let args = fs.create_args(dir, b"sub", DIR);
    let sub = fs.create_with(&nacre_wire::mdt::Create { caller: user(7, 0o022), ..args }).unwrap().entry.attr;
    assert_eq!((sub.mode, sub.uid, sub.gid), (mode::DIR | 0o2755, 7, 50));
    let args = fs.create_args(dir, b"f", mode::REG | 0o2777);
    let f = fs.create_with(&nacre_wire::mdt::Create { caller: user(7, 0o007), ..args }).unwrap().entry.attr;
    assert_eq!((f.mode, f.gid), (mode::REG | 0o770, 50), "set-gid goes: the caller is not of the group");
    let args = fs.create_args(ROOT, b"l", mode::LNK | 0o755);
    let l = fs.create_with(&nacre_wire::mdt::Create { caller: user(7, 0o077), ..args }).unwrap().entry.attr;
    assert_eq!((l.mode, l.size), (mode::LNK | 0o777, 2));
}

#[test]
fn a_default_acl_replaces_the_umask_and_is_handed_down() {
    let mut fs = Fs::new();
    let dir = fs.create(ROOT, b"d", DIR).unwrap();
    let default = acl_bytes(&[(1, 7, 0), (2, 6, 1000), (4, 5, 0), (0x10, 7, 0), (0x20, 1, 0)]);
    set_xattr(&mut fs, dir, acl::DEFAULT, &default, 0).unwrap();
    let args = fs.create_args(dir, b"f", mode::REG | 0o664);
    let f = fs.create_with(&nacre_wire::mdt::Create { caller: user(7, 0o077), ..args }).unwrap().entry.attr;
    assert_eq!(f.mode & 0o777, 0o660, "mask 6 from the mode, other 1 & 4 = 0; no umask");
    let access = acl_bytes(&[(1, 6, 0), (2, 6, 1000), (4, 5, 0), (0x10, 6, 0), (0x20, 0, 0)]);
    assert_eq!(get_xattr(&mut fs, f.fid, acl::ACCESS), Some(access));
    assert_eq!(get_xattr(&mut fs, f.fid, acl::DEFAULT), None);
    let sub = fs.create(dir, b"sub", DIR).unwrap();
    assert_eq!(get_xattr(&mut fs, sub, acl::DEFAULT), Some(default));
    // chmod moves the mask, an ACL that the mode says too is not kept.
    fs.setattr_as(EXPORT, 0, f.fid, SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    let access = acl_bytes(&[(1, 6, 0), (2, 6, 1000), (4, 5, 0), (0x10, 4, 0), (0x20, 0, 0)]);
    assert_eq!(get_xattr(&mut fs, f.fid, acl::ACCESS), Some(access));
    let plain = acl_bytes(&[(1, 7, 0), (4, 0, 0), (0x20, 0, 0)]);
    set_xattr(&mut fs, f.fid, acl::ACCESS, &plain, 0).unwrap();
    assert_eq!(get_xattr(&mut fs, f.fid, acl::ACCESS), None);
    assert_eq!(fs.inode(f.fid).unwrap().attr.mode, mode::REG | 0o700);
    assert_eq!(set_xattr(&mut fs, f.fid, acl::DEFAULT, &plain, 0), Err(Errno::EACCES));
    assert_eq!(set_xattr(&mut fs, f.fid, acl::ACCESS, b"\x02\0\0\0\x01", 0), Err(Errno::EINVAL));
    assert_eq!(remove_xattr(&mut fs, f.fid, acl::ACCESS), Ok(()));
}

#[test]
fn small_and_large_attributes_come_back_and_go_with_the_inode() {
    let mut fs = Fs::new();
    let f = fs.create(ROOT, b"f", REG).unwrap();
    let large = std::vec![7; 60_000];
    for n in 0..8 {
        set_xattr(&mut fs, f, format!("user.small{n}").as_bytes(), &[n; 200], 0).unwrap();
    }
    set_xattr(&mut fs, f, b"user.large", &large, 1).unwrap();
    assert_eq!(fs.rows(XATTR).len(), 4, "1 KiB of values lies in the inode's row");
    assert_eq!(get_xattr(&mut fs, f, b"user.large"), Some(large));
    assert_eq!(get_xattr(&mut fs, f, b"user.small7"), Some(std::vec![7; 200]));
    assert_eq!(set_xattr(&mut fs, f, b"user.large", b"", 1), Err(Errno::EEXIST));
    assert_eq!(set_xattr(&mut fs, f, b"user.none", b"", 2), Err(Errno::ENODATA));
    set_xattr(&mut fs, f, b"user.large", b"short", 2).unwrap();
    assert_eq!(fs.rows(XATTR).len(), 3);
    assert_eq!(remove_xattr(&mut fs, f, b"user.none"), Err(Errno::ENODATA));
    assert_eq!(remove_xattr(&mut fs, f, b"user.large"), Ok(()));
    assert_eq!(set_xattr(&mut fs, f, b"other.x", b"", 0), Err(Errno::EOPNOTSUPP));
    assert_eq!(set_xattr(&mut fs, f, b"user.", b"", 0), Err(Errno::EINVAL));
    assert_eq!(set_xattr(&mut fs, f, b"user.x", &[0; (64 << 10) + 1], 0), Err(Errno::E2BIG));
    let fifo = fs.create(ROOT, b"p", mode::FIFO | 0o644).unwrap();
    assert_eq!(set_xattr(&mut fs, fifo, b"user.x", b"", 0), Err(Errno::EPERM));
    let full = (0..).map(|n| set_xattr(&mut fs, f, format!("user.{n:0>100}").as_bytes(), b"", 0));
    assert_eq!(full.take(200).find(|r| r.is_err()), Some(Err(Errno::ENOSPC)));
    fs.unlink(ROOT, b"f", false).unwrap();
    assert!(fs.rows(XATTR).is_empty());
}

#[test]
fn set_id_bits_and_capabilities_go_with_chown_and_kill() {
    let mut fs = Fs::new();
    let f = fs.create(ROOT, b"f", mode::REG | 0o6775).unwrap();
    set_xattr(&mut fs, f, b"security.capability", b"caps", 0).unwrap();
    assert!(fs.inode(f).unwrap().reply().kill_priv);
    let killed = fs.setattr_as(EXPORT, 9, f, SetAttr { kill_suidgid: true, ..SetAttr::default() }).unwrap();
    assert_eq!(killed.mode, mode::REG | 0o775);
    assert!(!fs.inode(f).unwrap().reply().kill_priv);
    fs.setattr_as(EXPORT, 0, f, SetAttr { mode: Some(0o6745), ..SetAttr::default() }).unwrap();
    fs.setattr_as(EXPORT, 0, f, SetAttr { gid: Some(5), ..SetAttr::default() }).unwrap();
    fs.setattr_as(EXPORT, 0, f, SetAttr { mode: Some(0o6745), ..SetAttr::default() }).unwrap();
    let killed = fs.setattr_as(EXPORT, 9, f, SetAttr { kill_suidgid: true, ..SetAttr::default() }).unwrap();
    assert_eq!(killed.mode, mode::REG | 0o745, "the caller is not in the group");
    fs.setattr_as(EXPORT, 0, f, SetAttr { mode: Some(0o6745), ..SetAttr::default() }).unwrap();
    let chowned =
        fs.setattr_as(EXPORT, 0, f, SetAttr { uid: Some(3), gid: Some(3), ..SetAttr::default() }).unwrap();
    assert_eq!(
        (chowned.mode, chowned.uid),
        (mode::REG | 0o2745, 3),
        "set-gid without group x is a lock mark"
    );
    let set = |set: SetAttr| set;
    for (uid, change, result) in [
        (3, set(SetAttr { uid: Some(4), ..SetAttr::default() }), Err(Errno::EPERM)),
        (4, set(SetAttr { mode: Some(0o777), ..SetAttr::default() }), Err(Errno::EPERM)),
        (4, set(SetAttr { gid: Some(4), ..SetAttr::default() }), Err(Errno::EPERM)),
        (3, set(SetAttr { gid: Some(4), ..SetAttr::default() }), Ok(())),
        (3, set(SetAttr { mode: Some(0o600), ..SetAttr::default() }), Ok(())),
    ] {
        assert_eq!(fs.setattr_as(EXPORT, uid, f, change).map(|_| ()), result);
    }
}

#[test]
fn in_a_sticky_directory_only_owners_take_names_away() {
    let mut fs = Fs::new();
    let dir = fs.create(ROOT, b"tmp", mode::DIR | 0o1777).unwrap();
    let args = fs.create_args(dir, b"f", REG);
    fs.create_with(&nacre_wire::mdt::Create { caller: user(7, 0), ..args }).unwrap();
    let args = fs.create_args(ROOT, b"g", REG);
    fs.create_with(&nacre_wire::mdt::Create { caller: user(8, 0), ..args }).unwrap();
    assert_eq!(fs.rename_as(&user(8, 0), (dir, b"f"), (ROOT, b"x"), 0), Err(Errno::EPERM));
    assert_eq!(fs.rename_as(&user(8, 0), (ROOT, b"g"), (dir, b"f"), 0), Err(Errno::EPERM));
    assert_eq!(fs.rename_as(&user(7, 0), (dir, b"f"), (dir, b"mine"), 0), Ok(()));
    assert_eq!(fs.rename_as(&Caller::root(), (dir, b"mine"), (ROOT, b"x"), 0), Ok(()));
}

#[test]
fn many_links_are_kept_in_rows_and_the_last_one_ends_the_file() {
    let mut fs = Fs::new();
    let f = fs.create(ROOT, b"f", REG).unwrap();
    let dir = fs.create(ROOT, b"d", DIR).unwrap();
    for n in 0..30 {
        fs.link(f, dir, format!("l{n}").as_bytes()).unwrap();
    }
    assert_eq!(fs.rows(LINK).len(), 23);
    assert_eq!(fs.link(dir, ROOT, b"x"), Err(Errno::EPERM));
    fs.unlink(ROOT, b"f", false).unwrap();
    for n in (0..30).rev() {
        fs.rename_as(&Caller::root(), (dir, format!("l{n}").as_bytes()), (ROOT, b"m"), 0).unwrap();
        fs.unlink(ROOT, b"m", false).unwrap();
    }
    assert!(fs.inode(f).is_none() && fs.rows(LINK).is_empty());
}

#[test]
fn objects_are_destroyed_only_if_there_may_be_any() {
    let mut fs = Fs::new();
    let f = fs.create(ROOT, b"never", REG).unwrap();
    fs.open(EXPORT, f, 1, 2).unwrap();
    fs.close(EXPORT, f, 1, false, None).unwrap();
    fs.state_changes.clear();
    fs.unlink(ROOT, b"never", false).unwrap();
    assert!(fs.rows(DESTROY).is_empty());
    assert!(
        fs.state_changes.iter().any(|n| matches!(n, StateChange::UnusedReservation(_))),
        "the reservation comes back"
    );
    let f = fs.create(ROOT, b"written", REG).unwrap();
    fs.open(EXPORT, f, 1, 1).unwrap();
    fs.close(EXPORT, f, 1, true, written(10, 5000)).unwrap();
    fs.unlink(ROOT, b"written", false).unwrap();
    let rows = fs.rows(DESTROY);
    assert_eq!(rows.len(), 1);
    assert_eq!(Stripes::from_row(&rows[0].1).unwrap().stripes, [0]);
}

#[test]
fn a_lone_writer_is_believed_and_nobody_else() {
    let mut fs = Fs::new();
    let f = fs.create(ROOT, b"f", REG).unwrap();
    let state = |fs: &Fs| fs.inode(f).map(|i| (i.attr.size, i.attr.size_state)).unwrap();
    // Two handles of one client, a truncate in between: it still knows.
    fs.open(EXPORT, f, 1, 1).unwrap();
    fs.open(EXPORT, f, 2, 2).unwrap();
    fs.setattr_as(EXPORT, 0, f, SetAttr { size: Some(3), ..SetAttr::default() }).unwrap();
    fs.report(EXPORT, f, written(3, 2000).unwrap(), true).unwrap();
    assert_eq!(state(&fs), (3, SizeState::Open));
    fs.close(EXPORT, f, 1, true, written(30, 2001)).unwrap();
    assert_eq!(state(&fs), (30, SizeState::Open));
    fs.close(EXPORT, f, 2, true, written(20, 2002)).unwrap();
    assert_eq!(state(&fs), (20, SizeState::Exact), "what it says last is the size");
    // The other one writes too.
    fs.open(EXPORT, f, 1, 1).unwrap();
    fs.open(OTHER, f, 1, 1).unwrap();
    fs.close(EXPORT, f, 1, true, written(100, 2003)).unwrap();
    fs.close(OTHER, f, 1, true, written(50, 2004)).unwrap();
    assert_eq!(state(&fs).1, SizeState::Open);
    assert_eq!(fs.rows(UNSETTLED).len(), 1);
    // A reader does not matter; the replies of the OSTs end it.
    fs.open(OTHER, f, 2, 0).unwrap();
    let found = written(100, 2005).unwrap();
    fs.run(ReadSet::of_inode(f), |v| store_size_of_objects(v, f, &found)).unwrap();
    assert_eq!(state(&fs), (100, SizeState::Exact));
    assert!(fs.rows(UNSETTLED).is_empty());
    fs.close(OTHER, f, 2, false, None).unwrap();
    // It does not say what it wrote.
    fs.open(OTHER, f, 3, 1).unwrap();
    fs.close(OTHER, f, 3, true, None).unwrap();
    assert_eq!(state(&fs).1, SizeState::Open);
}

#[test]
fn a_truncate_without_a_report_keeps_the_size_open() {
    let mut fs = Fs::new();
    let f = fs.create(ROOT, b"f", REG).unwrap();
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    let exact = |fs: &Fs| fs.inode(f).unwrap().attr.size_state == SizeState::Exact;
    assert_eq!(fs.report(EXPORT, f, written(0, 1).unwrap(), true), Err(Errno::EINVAL), "never asked for");
    fs.setattr_as(EXPORT, 0, f, cut.clone()).unwrap();
    fs.open(OTHER, f, 1, 1).unwrap();
    fs.close(OTHER, f, 1, false, None).unwrap();
    assert!(!exact(&fs), "the report decides");
    fs.report(EXPORT, f, written(0, 3000).unwrap(), true).unwrap();
    assert!(exact(&fs), "the other one wrote nothing");
    fs.setattr_as(EXPORT, 0, f, cut.clone()).unwrap();
    fs.open(OTHER, f, 1, 1).unwrap();
    fs.close(OTHER, f, 1, true, written(9, 3000)).unwrap();
    fs.report(EXPORT, f, written(0, 3000).unwrap(), true).unwrap();
    assert!(!exact(&fs), "somebody wrote meanwhile: the OSTs decide");
    let nothing = written(0, 1).unwrap();
    fs.run(ReadSet::of_inode(f), |v| store_size_of_objects(v, f, &nothing)).unwrap();
    assert!(exact(&fs));
    // Two at a time: only the OSTs know who was last.
    fs.setattr_as(EXPORT, 0, f, cut.clone()).unwrap();
    fs.setattr_as(OTHER, 0, f, cut.clone()).unwrap();
    fs.report(OTHER, f, written(5, 3001).unwrap(), true).unwrap();
    fs.report(EXPORT, f, written(0, 3002).unwrap(), true).unwrap();
    assert!(!exact(&fs));
    // One whose client is gone.
    fs.setattr_as(OTHER, 0, f, cut).unwrap();
    fs.run(ReadSet::of_key(UNSETTLED, &f.key()), |v| forget_truncates(v, OTHER, f)).unwrap();
    let row = Unsettled::from_row(&fs.rows(UNSETTLED)[0].1).unwrap();
    assert!(row.pending.is_empty() && row.tainted);
    let dir = fs.create(ROOT, b"d", DIR).unwrap();
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(fs.setattr_as(EXPORT, 0, dir, cut), Err(Errno::EISDIR));
}

#[test]
fn an_explicit_time_outlives_writes_that_came_before_it() {
    let mut fs = Fs::new();
    let f = fs.create(ROOT, b"f", REG).unwrap();
    fs.open(EXPORT, f, 1, 1).unwrap();
    let wrote_at = fs.time;
    fs.time += 10;
    let set = SetAttr { mtime: Some(at(77)), atime: Some(at(78)), ..SetAttr::default() };
    fs.setattr_as(EXPORT, 0, f, set).unwrap();
    fs.close(EXPORT, f, 1, true, written(10, wrote_at)).unwrap();
    let attr = fs.inode(f).unwrap().attr;
    assert_eq!((attr.mtime, attr.atime, attr.size), (at(77), at(78), 10));
    assert!(attr.ctime > at(wrote_at));
    // A later write moves it again.
    fs.open(EXPORT, f, 2, 1).unwrap();
    let now = fs.time + 50;
    fs.close(EXPORT, f, 2, true, written(11, now)).unwrap();
    assert_eq!(fs.inode(f).unwrap().attr.mtime, at(now));
}

/// A client sends the close of a handle that changed nothing after that of one that did.
#[test]
fn a_late_close_that_reports_no_change_does_not_hide_the_objects_of_an_earlier_report() {
    let mut fs = Fs::new();
    let f = fs.create(ROOT, b"f", REG).unwrap();
    fs.open(EXPORT, f, 1, 2).unwrap();
    fs.open(EXPORT, f, 2, 2).unwrap();
    let now = fs.time;
    fs.close(EXPORT, f, 2, true, written(10, now)).unwrap();
    fs.close(EXPORT, f, 1, false, None).unwrap();
    let inode = fs.inode(f).unwrap();
    assert_eq!((inode.attr.size, inode.attr.size_state), (10, SizeState::Exact));
    fs.unlink(ROOT, b"f", false).unwrap();
    assert!(!fs.rows(DESTROY).is_empty(), "its objects are destroyed");
}

#[test]
fn an_orphan_lives_until_its_last_close_also_for_a_directory() {
    let mut fs = Fs::new();
    for (name, mode, flags) in [(&b"f"[..], REG, 2), (b"d", DIR, 0)] {
        let fid = fs.create(ROOT, name, mode).unwrap();
        fs.open(EXPORT, fid, 1, flags).unwrap();
        fs.open(OTHER, fid, 1, 0).unwrap();
        fs.unlink(ROOT, name, mode == DIR).unwrap();
        assert!(fs.create(fid, b"x", REG).is_err());
        fs.close(EXPORT, fid, 1, false, None).unwrap();
        assert_eq!(fs.inode(fid).unwrap().attr.nlink, 0);
        fs.close(OTHER, fid, 1, false, None).unwrap();
        assert!(fs.inode(fid).is_none());
    }
    assert_eq!(fs.open(EXPORT, ROOT, 5, 1), Err(Errno::EISDIR).map(|_: ()| unreachable!()));
}

/// The kernel saw no name and has checked nothing; another mount has made the file meanwhile.
#[test]
fn a_create_that_finds_a_file_opens_and_cuts_it_only_with_permission() {
    const O_TRUNC: u32 = 0o1000;
    let mut fs = Fs::new();
    let args = fs.create_args(ROOT, b"f", mode::REG | 0o640);
    fs.create_with(&nacre_wire::mdt::Create { caller: user(7, 0), ..args }).unwrap();
    let mut handle = 0;
    let mut open = |uid: u32, flags: u32| {
        handle += 1;
        let how = nacre_wire::mdt::OpenHow { handle: nacre_types::OpenHandle(handle), flags };
        let args = fs.create_args(ROOT, b"f", REG);
        let caller = Caller { uid, gid: 7, ..user(uid, 0) };
        let args = nacre_wire::mdt::Create { open: Some(how), exclusive: false, caller, ..args };
        let done = fs.create_with(&args).map(|reply| reply.created);
        let flags = fs.opens.get(EXPORT, nacre_types::OpenHandle(handle)).map(|o| o.flags);
        (done, flags)
    };
    // The owner, one of the group, somebody else. ESTALE: the kernel looks again, and decides.
    assert_eq!(open(7, 2 | O_TRUNC), (Ok(false), Some(2)));
    assert_eq!(open(8, 0), (Ok(false), Some(0)));
    for flags in [1, 2, O_TRUNC, 1 | O_TRUNC] {
        assert_eq!(open(8, flags), (Err(Errno::ESTALE), None), "{flags:o}");
    }
    assert_eq!(open(0, O_TRUNC), (Ok(false), Some(0)));
}

#[test]
fn only_directories_that_change_their_parent_are_walked_up_from() {
    let mut fs = Fs::new();
    let (a, b) = (fs.create(ROOT, b"a", DIR).unwrap(), fs.create(ROOT, b"b", DIR).unwrap());
    fs.create(a, b"file", REG).unwrap();
    fs.create(a, b"dir", DIR).unwrap();
    fs.create(b, b"full", DIR).and_then(|full| fs.create(full, b"x", REG)).unwrap();
    let root = Caller::root();
    let mut walks = |from: (Fid, &[u8]), to: (Fid, &[u8]), flags, expected| {
        let before = fs.walks;
        assert_eq!(fs.rename_as(&root, from, to, flags), expected);
        u32::from(fs.walks > before)
    };
    assert_eq!(walks((a, b"file"), (b, b"file"), 0, Ok(())), 0, "a file");
    assert_eq!(walks((b, b"file"), (b, b"full"), 0, Err(Errno::EISDIR)), 0, "onto a directory");
    assert_eq!(walks((a, b"dir"), (a, b"moved"), 0, Ok(())), 0, "within its parent");
    assert_eq!(walks((a, b"moved"), (b, b"dir"), 0, Ok(())), 1);
    assert_eq!(walks((b, b"dir"), (ROOT, b"dir"), 0, Ok(())), 1);
    assert_eq!(walks((ROOT, b"dir"), (b, b"full"), 0, Err(Errno::ENOTEMPTY)), 1);
    assert_eq!(walks((b, b"file"), (ROOT, b"dir"), 2, Ok(())), 1, "the other one is a directory");
    assert_eq!(walks((ROOT, b"b"), (b, b"b"), 0, Err(Errno::EINVAL)), 0, "into itself");
}

#[test]
fn sizes_that_no_file_can_have_and_symlinks_with_a_nul_are_refused() {
    let mut fs = Fs::new();
    let f = fs.create(ROOT, b"f", REG).unwrap();
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(fs.setattr_as(EXPORT, 0, f, size(1 << 63)).unwrap_err(), Errno::EFBIG);
    fs.setattr_as(EXPORT, 0, f, size(i64::MAX as u64)).unwrap();
    for (size, blocks, refused) in [(1 << 63, 0, true), (0, 1 << 55, true), (1 << 62, 1 << 53, false)] {
        let written = Written { size, blocks, mtime: at(1) };
        assert_eq!(check_written(&written).is_err(), refused, "{written:?}");
    }
    let link = fs.create_args(ROOT, b"l", mode::LNK | 0o777);
    let nul = nacre_wire::mdt::Create { target: b"a\0b", ..link };
    assert_eq!(fs.create_with(&nul).unwrap_err(), Errno::EINVAL);
}
