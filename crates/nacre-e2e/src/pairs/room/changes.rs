//! Changes that a worker makes in a room, each with the only outcome that it may have.

use super::{Body, Dir, Handle, Id, Names, Node, Place, Room};
use crate::crash::Rng;
use crate::pairs::Shared;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Names of a room in each directory.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const XATTRS: [&str; 2] = ["user.one", "user.two"];
const MODES: [u32; 5] = [0o600, 0o640, 0o644, 0o700, 0o755];
/// A file does not become longer.
const BYTES_MAX: u64 = 20_000;
const HANDLES_MAX: usize = 4;
pub(in crate::pairs) type Outcome = Result<(), Errno>;

#[derive(Debug, Clone)]
pub(in crate::pairs) enum Change {
    Create(Place, Vec<u8>),
    /// Kept open; whether for writing too.
    Open(Place, bool),
    Write(Place, u64, Vec<u8>),
    Append(Place, Vec<u8>),
    Truncate(Place, u64),
    Empty(Place),
    Rename(Place, Place, How),
    Link(Place, Place),
    Unlink(Place),
    Mkdir(Place, u32),
    Rmdir(Place),
    Symlink(Place, String),
    Chmod(Place, u32),
    Mtime(Place, i64),
    SetXattr(Place, &'static str, Vec<u8>),
    RemoveXattr(Place, &'static str),
    HandleWrite(usize, u64, Vec<u8>),
    HandleTruncate(usize, u64),
    HandleChmod(usize, u32),
    Close(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pairs) enum How {
    Replace,
    Keep,
    Exchange,
}

fn bytes(rng: &mut Rng) -> Vec<u8> {
    let length = if rng.below(8) == 0 { 1 + rng.below(6000) } else { 1 + rng.below(40) };
    let first = rng.below(26);
    (0..length).map(|at| b'a' + ((first + at) % 26) as u8).collect()
}

/// A name that there may be: two of three times one that there is.
pub(super) fn place(room: &Room, rng: &mut Rng) -> Place {
    let dirs = room.dirs();
    let dir = dirs[rng.below(dirs.len() as u64) as usize];
    let names = room.names(dir);
    if rng.below(3) > 0 && !names.is_empty() {
        let at = rng.below(names.len() as u64) as usize;
        return Place { dir, name: names.keys().nth(at).cloned().unwrap_or_default() };
    }
    let name = NAMES[rng.below(NAMES.len() as u64) as usize];
    let prefix = if matches!(dir, Dir::Shared(_)) { room.prefix() } else { String::new() };
    Place { dir, name: format!("{prefix}{name}") }
}

impl Names {
    /// Chooses a change; `None` if it does not fit.
    pub(in crate::pairs) fn plan_change(&self, rng: &mut Rng) -> Option<Change> {
        plan(&self.room, &self.handles, rng)
            .filter(|change| !too_deep(&self.room, change) && fits(&self.room, change))
    }
    /// The outcome that the state of the room requires.
    pub(in crate::pairs) fn expected(&self, change: &Change) -> Outcome {
        expected(&self.room, change)
    }
    /// Whether another error is right as well. A kernel that has just learned anew where a directory lies does not see that
    /// it is above the name that is to replace it, and the file system refuses the rename for another reason.
    pub(in crate::pairs) fn may_differ(&self, change: &Change, outcome: Outcome) -> bool {
        matches!(change, Change::Rename(..))
            && self.expected(change) == Err(Errno::NOTEMPTY)
            && outcome == Err(Errno::ISDIR)
    }
    /// Makes the change through a mount.
    pub(in crate::pairs) fn change(&mut self, shared: &Shared, mount: usize, change: &Change) -> Outcome {
        perform(shared, self, mount, change)
    }
    /// Applies a change that has succeeded.
    pub(in crate::pairs) fn apply(&mut self, change: &Change) {
        apply(self, change);
    }
}

fn plan(room: &Room, handles: &[Handle], rng: &mut Rng) -> Option<Change> {
    let at = place(room, rng);
    let is_symlink = room.node(&at).is_some_and(|node| node.kind() == FileType::Symlink);
    let handle = rng.below(handles.len() as u64) as usize;
    let of_file = handles.get(handle).is_some_and(|handle| handle.is_writable);
    let mode = MODES[rng.below(MODES.len() as u64) as usize];
    let xattr = XATTRS[rng.below(XATTRS.len() as u64) as usize];
    let change = match rng.below(22) {
        0 | 1 => Change::Create(at, bytes(rng)),
        2 if handles.len() < HANDLES_MAX => Change::Open(at, rng.below(2) == 0),
        3 => Change::Write(at, rng.below(9000), bytes(rng)),
        4 | 5 => Change::Append(at, bytes(rng)),
        6 => Change::Truncate(at, if rng.below(2) == 0 { rng.below(64) } else { rng.below(9000) }),
        7 => Change::Empty(at),
        8..=10 => {
            let how = match rng.below(6) {
                0 => How::Keep,
                1 => How::Exchange,
                _ => How::Replace,
            };
            Change::Rename(at, place(room, rng), how)
        }
        11 => Change::Link(at, place(room, rng)),
        12 | 13 => Change::Unlink(at),
        14 if room.has_room_below(at.dir) => Change::Mkdir(at, mode),
        15 => Change::Rmdir(at),
        16 => Change::Symlink(at, format!("to-{}", rng.below(100_000))),
        17 if !is_symlink => Change::Chmod(at, mode),
        18 => Change::Mtime(at, 1_000_000_000 + rng.below(1000).cast_signed()),
        19 if !is_symlink => Change::SetXattr(at, xattr, bytes(rng)),
        20 if !is_symlink => Change::RemoveXattr(at, xattr),
        21 if !handles.is_empty() => match rng.below(4) {
            0 => Change::Close(handle),
            1 if of_file => Change::HandleWrite(handle, rng.below(9000), bytes(rng)),
            2 if of_file => Change::HandleTruncate(handle, rng.below(9000)),
            _ => Change::HandleChmod(handle, mode),
        },
        _ => return None,
    };
    // An open would follow the link.
    let follows = matches!(
        change,
        Change::Open(..) | Change::Write(..) | Change::Append(..) | Change::Truncate(..) | Change::Empty(_)
    );
    if follows && is_symlink { None } else { Some(change) }
}

// ---- what must come of it

fn expected(room: &Room, change: &Change) -> Outcome {
    let there = |place: &Place| room.node(place).ok_or(Errno::NOENT);
    let vacant = |place: &Place| room.node(place).map_or(Ok(()), |_| Err(Errno::EXIST));
    let file = |place: &Place| if there(place)?.is_dir() { Err(Errno::ISDIR) } else { Ok(()) };
    match change {
        Change::Create(at, _) | Change::Mkdir(at, _) | Change::Symlink(at, _) => vacant(at),
        Change::Write(at, ..) | Change::Append(at, _) | Change::Truncate(at, _) | Change::Empty(at) => {
            file(at)
        }
        Change::Unlink(at) => file(at),
        Change::Open(at, _) | Change::Chmod(at, _) | Change::Mtime(at, _) | Change::SetXattr(at, ..) => {
            there(at).map(drop)
        }
        Change::Rmdir(at) => match &there(at)?.body {
            Body::Dir { names, .. } if names.is_empty() => Ok(()),
            Body::Dir { .. } => Err(Errno::NOTEMPTY),
            _ => Err(Errno::NOTDIR),
        },
        Change::RemoveXattr(at, name) => there(at)?.xattrs.get(name).map(drop).ok_or(Errno::NODATA),
        Change::Link(from, to) => {
            let from = there(from)?;
            vacant(to)?;
            if from.is_dir() { Err(Errno::PERM) } else { Ok(()) }
        }
        Change::Rename(from, to, how) => rename_outcome(room, from, to, *how),
        Change::HandleWrite(..) | Change::HandleTruncate(..) | Change::HandleChmod(..) | Change::Close(_) => {
            Ok(())
        }
    }
}

/// In the order of the kernel's checks.
fn rename_outcome(room: &Room, from: &Place, to: &Place, how: How) -> Outcome {
    let old = room.at(from).ok_or(Errno::NOENT)?;
    let new = room.at(to);
    match how {
        How::Keep if new.is_some() => return Err(Errno::EXIST),
        How::Exchange if new.is_none() => return Err(Errno::NOENT),
        _ => {}
    }
    let is_above = |id: Id, dir: Dir| room.above(dir).contains(&Dir::Own(id));
    if is_above(old, to.dir) {
        return Err(Errno::INVAL);
    }
    if let Some(new) = new {
        if is_above(new, from.dir) {
            return Err(if how == How::Exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if old == new || how == How::Exchange {
            return Ok(());
        }
        let (old, new) = (&room.nodes[&old], &room.nodes[&new]);
        match (&old.body, &new.body) {
            (Body::Dir { .. }, Body::Dir { names, .. }) if !names.is_empty() => return Err(Errno::NOTEMPTY),
            (Body::Dir { .. }, Body::Dir { .. }) => {}
            (Body::Dir { .. }, _) => return Err(Errno::NOTDIR),
            (_, Body::Dir { .. }) => return Err(Errno::ISDIR),
            _ => {}
        }
    }
    Ok(())
}

/// Whether directories would come to lie too deep.
fn too_deep(room: &Room, change: &Change) -> bool {
    let Change::Rename(from, to, how) = change else { return false };
    let is_dir = |place: &Place| room.node(place).is_some_and(Node::is_dir);
    // Directories move only where they have no directories below them.
    let flat = |place: &Place| {
        let Some(id) = room.at(place).filter(|_| is_dir(place)) else { return true };
        room.names(Dir::Own(id)).values().all(|id| !room.nodes[id].is_dir())
    };
    let fits = |what: &Place, into: Dir| !is_dir(what) || (room.has_room_below(into) && flat(what));
    !(fits(from, to.dir) && (*how != How::Exchange || fits(to, from.dir)))
}

// ---- the call

fn open(path: &std::path::Path, flags: OFlags) -> Result<File, Errno> {
    Ok(File::from(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))?))
}
fn write(file: &File, offset: Option<u64>, data: &[u8]) -> Outcome {
    let done = match offset {
        Some(offset) => file.write_all_at(data, offset),
        None => std::io::Write::write_all(&mut &*file, data),
    };
    done.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

fn perform(shared: &Shared, names: &mut Names, mount: usize, change: &Change) -> Outcome {
    let root = shared.mounts[mount].clone();
    let room = &names.room;
    let path = |place: &Place| room.path_of(&root, place);
    match change {
        Change::Create(at, data) => {
            write(&open(&path(at), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?, Some(0), data)
        }
        Change::Open(at, writable) => {
            let is_writable = *writable && !room.node(at).is_some_and(Node::is_dir);
            let file = open(&path(at), if is_writable { OFlags::RDWR } else { OFlags::RDONLY })?;
            let id = room.at(at).ok_or(Errno::EXIST)?;
            names.handles.push(Handle { file, mount, id, is_writable });
            Ok(())
        }
        Change::Write(at, offset, data) => write(&open(&path(at), OFlags::WRONLY)?, Some(*offset), data),
        Change::Append(at, data) => write(&open(&path(at), OFlags::WRONLY | OFlags::APPEND)?, None, data),
        Change::Truncate(at, length) => rustix::fs::ftruncate(open(&path(at), OFlags::WRONLY)?, *length),
        Change::Empty(at) => open(&path(at), OFlags::WRONLY | OFlags::TRUNC).map(drop),
        Change::Rename(from, to, how) => {
            let flags = match how {
                How::Replace => RenameFlags::empty(),
                How::Keep => RenameFlags::NOREPLACE,
                How::Exchange => RenameFlags::EXCHANGE,
            };
            rustix::fs::renameat_with(CWD, path(from), CWD, path(to), flags)
        }
        Change::Link(from, to) => rustix::fs::linkat(CWD, path(from), CWD, path(to), AtFlags::empty()),
        Change::Unlink(at) => rustix::fs::unlink(path(at)),
        Change::Mkdir(at, mode) => rustix::fs::mkdir(path(at), Mode::from_raw_mode(*mode)),
        Change::Rmdir(at) => rustix::fs::rmdir(path(at)),
        Change::Symlink(at, target) => rustix::fs::symlink(target.as_str(), path(at)),
        Change::Chmod(at, mode) => rustix::fs::chmod(path(at), Mode::from_raw_mode(*mode)),
        Change::Mtime(at, seconds) => {
            let time = Timespec { tv_sec: *seconds, tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(CWD, path(at), &times, AtFlags::SYMLINK_NOFOLLOW)
        }
        Change::SetXattr(at, name, value) => {
            rustix::fs::lsetxattr(path(at), *name, value, XattrFlags::empty())
        }
        Change::RemoveXattr(at, name) => rustix::fs::lremovexattr(path(at), *name),
        Change::HandleWrite(at, offset, data) => write(&names.handles[*at].file, Some(*offset), data),
        Change::HandleTruncate(at, length) => rustix::fs::ftruncate(&names.handles[*at].file, *length),
        Change::HandleChmod(at, mode) => {
            rustix::fs::fchmod(&names.handles[*at].file, Mode::from_raw_mode(*mode))
        }
        // Closed by `apply`.
        Change::Close(_) => Ok(()),
    }
}

// ---- the state after it

fn splice(node: &mut Node, offset: Option<u64>, data: &[u8]) {
    if let Body::File(content) = &mut node.body {
        let offset = offset.map_or(content.len(), |o| o as usize);
        content.resize(content.len().max(offset + data.len()), 0);
        content[offset..offset + data.len()].copy_from_slice(data);
    }
    node.touch(true);
}
fn resize(node: &mut Node, length: u64) {
    if let Body::File(content) = &mut node.body {
        content.resize(length as usize, 0);
    }
    node.touch(true);
}
/// Whether a file stays within its bound.
fn fits(room: &Room, change: &Change) -> bool {
    let Change::Append(at, data) = change else { return true };
    room.node(at).is_none_or(|node| match &node.body {
        Body::File(content) => (content.len() + data.len()) as u64 <= BYTES_MAX,
        _ => true,
    })
}

fn apply(names: &mut Names, change: &Change) {
    let room = &mut names.room;
    let find = |room: &Room, at: &Place| room.at(at).expect("the outcome was checked");
    match change {
        Change::Create(at, data) => drop(room.add(at, Node::new(Body::File(data.clone()), 0o644))),
        Change::Mkdir(at, mode) => {
            let body = Body::Dir { names: Default::default(), place: at.clone() };
            room.add(at, Node::new(body, *mode));
        }
        Change::Symlink(at, target) => drop(room.add(at, Node::new(Body::Symlink(target.clone()), 0o777))),
        Change::Write(at, offset, data) => splice(room.node_mut(find(room, at)), Some(*offset), data),
        Change::Append(at, data) => splice(room.node_mut(find(room, at)), None, data),
        Change::Truncate(at, length) => resize(room.node_mut(find(room, at)), *length),
        Change::Empty(at) => resize(room.node_mut(find(room, at)), 0),
        Change::Rename(from, to, how) => rename(room, from, to, *how),
        Change::Link(from, to) => {
            let id = find(room, from);
            room.put(to, id);
            room.node_mut(id).links += 1;
            room.node_mut(id).touch(false);
        }
        Change::Unlink(at) | Change::Rmdir(at) => {
            if let Some(id) = room.take(at) {
                room.unlinked(id);
            }
        }
        Change::Chmod(at, mode) => {
            let node = room.node_mut(find(room, at));
            node.mode = *mode;
            node.touch(false);
        }
        Change::Mtime(at, seconds) => {
            let node = room.node_mut(find(room, at));
            node.touch(false);
            node.mtime.set(i128::from(*seconds) * 1_000_000_000);
        }
        Change::SetXattr(at, name, value) => {
            let node = room.node_mut(find(room, at));
            node.xattrs.insert(name, value.clone());
            node.touch(false);
        }
        Change::RemoveXattr(at, name) => {
            let node = room.node_mut(find(room, at));
            node.xattrs.remove(name);
            node.touch(false);
        }
        Change::HandleWrite(at, offset, data) => {
            splice(room.node_mut(names.handles[*at].id), Some(*offset), data);
        }
        Change::HandleTruncate(at, length) => resize(room.node_mut(names.handles[*at].id), *length),
        Change::HandleChmod(at, mode) => {
            let node = room.node_mut(names.handles[*at].id);
            node.mode = *mode;
            node.touch(false);
        }
        Change::Open(..) => {}
        Change::Close(at) => drop(names.handles.swap_remove(*at)),
    }
    let kept: Vec<Id> = names.handles.iter().map(|handle| handle.id).collect();
    names.room.prune(&kept);
}

fn rename(room: &mut Room, from: &Place, to: &Place, how: How) {
    let (old, new) = (room.at(from), room.at(to));
    if old == new {
        return;
    }
    room.take(from);
    room.take(to);
    if let Some(new) = new {
        if how == How::Exchange {
            room.put(from, new);
            room.node_mut(new).touch(false);
        } else {
            room.unlinked(new);
        }
    }
    if let Some(old) = old {
        room.put(to, old);
        room.node_mut(old).touch(false);
    }
}
