//! Observations of a room, compared with the state that it must have.

use super::{Body, Dir, Handle, Names, Place, Room};
use crate::crash::Rng;
use crate::pairs::Shared;
use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{DirEntryExt as _, FileExt as _, FileTypeExt as _};
use std::path::Path;

#[derive(Debug, Clone)]
pub(in crate::pairs) enum Look {
    Stat(Place),
    Read(Place),
    Xattrs(Place),
    List(Dir),
    Handle(usize),
    All,
}

impl Names {
    pub(in crate::pairs) fn plan_look(&self, rng: &mut Rng) -> Look {
        plan(self, rng)
    }
    /// Compares; the number of comparisons.
    ///
    /// # Errors
    /// The difference.
    pub(in crate::pairs) fn look(
        &mut self,
        shared: &Shared,
        mount: usize,
        look: &Look,
    ) -> Result<u64, String> {
        perform(shared, self, mount, look)
    }
    /// Compares everything of the room, and what must not be there.
    ///
    /// # Errors
    /// The difference.
    pub(in crate::pairs) fn look_at_all(&mut self, root: &Path) -> Result<u64, String> {
        all(self, root)
    }
    /// Places as each mount sees them, for the report of a difference.
    pub(in crate::pairs) fn views(&self, shared: &Shared, concerned: &[Place]) -> String {
        views(shared, self, concerned)
    }
}

fn plan(names: &Names, rng: &mut Rng) -> Look {
    let at = super::changes::place(&names.room, rng);
    match rng.below(12) {
        0..=4 => Look::Stat(at),
        5 | 6 => Look::Read(at),
        7 => Look::Xattrs(at),
        8 | 9 => Look::List(at.dir),
        10 if !names.handles.is_empty() => Look::Handle(rng.below(names.handles.len() as u64) as usize),
        10 => Look::Stat(at),
        _ => Look::All,
    }
}

fn perform(shared: &Shared, names: &mut Names, mount: usize, look: &Look) -> Result<u64, String> {
    let root = &shared.mounts[mount];
    match look {
        Look::Stat(at) => stat(&mut names.room, root, at)?,
        Look::Read(at) => read(&mut names.room, root, at)?,
        Look::Xattrs(at) => xattrs(&names.room, root, at)?,
        Look::List(dir) => list(&mut names.room, root, *dir)?,
        Look::Handle(at) => handle(names, *at)?,
        Look::All => return all(names, root),
    }
    Ok(1)
}

fn all(names: &mut Names, root: &Path) -> Result<u64, String> {
    let mut checks = 0;
    for dir in names.room.dirs() {
        list(&mut names.room, root, dir)?;
        let all: Vec<String> = names.room.names(dir).keys().cloned().collect();
        for name in all {
            let at = Place { dir, name };
            stat(&mut names.room, root, &at)?;
            read(&mut names.room, root, &at)?;
            xattrs(&names.room, root, &at)?;
            checks += 3;
        }
        checks += 1;
    }
    for at in 0..names.handles.len() {
        handle(names, at)?;
        checks += 1;
    }
    Ok(checks)
}

fn show(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

fn stat(room: &mut Room, root: &Path, at: &Place) -> Result<(), String> {
    let path = room.path_of(root, at);
    let seen = rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW);
    match (seen, room.at(at)) {
        (Ok(seen), Some(id)) => {
            room.compare(id, &seen).map_err(|wrong| format!("stat {}: {wrong}", path.display()))
        }
        (Err(Errno::NOENT), None) => Ok(()),
        (Ok(seen), None) => {
            Err(format!("stat {}: inode {:#x} is there, must not be", path.display(), seen.st_ino))
        }
        (Err(errno), there) => Err(format!("stat {}: {}, must be {there:?}", path.display(), show(errno))),
    }
}

fn read(room: &mut Room, root: &Path, at: &Place) -> Result<(), String> {
    let path = room.path_of(root, at);
    match room.node(at).map(|node| &node.body) {
        Some(Body::File(expected)) => {
            let mut found = Vec::new();
            let done = File::open(&path).and_then(|mut file| file.read_to_end(&mut found));
            done.map_err(|e| format!("read {}: {e}", path.display()))?;
            same(&found, expected).map_err(|wrong| format!("read {}: {wrong}", path.display()))
        }
        Some(Body::Symlink(expected)) => {
            let found = fs::read_link(&path).map_err(|e| format!("readlink {}: {e}", path.display()))?;
            if found == Path::new(expected) {
                return Ok(());
            }
            Err(format!("readlink {}: {}, must be {expected}", path.display(), found.display()))
        }
        Some(Body::Dir { .. }) => list(room, root, Dir::Own(room.at(at).unwrap_or_default())),
        None => match File::open(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(format!("open {}: {e}, must not be there", path.display())),
            Ok(_) => Err(format!("open {}: is there, must not be", path.display())),
        },
    }
}

fn same(found: &[u8], expected: &[u8]) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len().min(expected.len()));
    let part = |bytes: &[u8]| {
        let end = bytes.len().min(at + 16);
        String::from_utf8_lossy(bytes.get(at..end).unwrap_or_default()).into_owned()
    };
    Err(format!(
        "{} bytes, must be {}; first difference at byte {at}: {:?}, must be {:?}",
        found.len(),
        expected.len(),
        part(found),
        part(expected)
    ))
}

fn xattrs(room: &Room, root: &Path, at: &Place) -> Result<(), String> {
    let path = room.path_of(root, at);
    let mut buffer = [0; 8192];
    let Some(node) = room.node(at) else {
        return match rustix::fs::llistxattr(&path, &mut buffer) {
            Err(Errno::NOENT) => Ok(()),
            other => Err(format!("listxattr {}: {other:?}, must not be there", path.display())),
        };
    };
    let length = rustix::fs::llistxattr(&path, &mut buffer)
        .map_err(|e| format!("listxattr {}: {}", path.display(), show(e)))?;
    let mut listed: Vec<String> = buffer[..length]
        .split(|byte| *byte == 0)
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .filter(|name| name.starts_with("user."))
        .collect();
    listed.sort_unstable();
    let expected: Vec<&str> = node.xattrs.keys().copied().collect();
    if listed != expected {
        return Err(format!("listxattr {}: {listed:?}, must be {expected:?}", path.display()));
    }
    for (name, expected) in &node.xattrs {
        let length = rustix::fs::lgetxattr(&path, *name, &mut buffer)
            .map_err(|e| format!("getxattr {name} {}: {}", path.display(), show(e)))?;
        same(&buffer[..length], expected)
            .map_err(|wrong| format!("getxattr {name} {}: {wrong}", path.display()))?;
    }
    Ok(())
}

fn list(room: &mut Room, root: &Path, dir: Dir) -> Result<(), String> {
    let path = room.path(root, dir);
    let wrong = |text: String| format!("listing of {}: {text}", path.display());
    let prefix = if matches!(dir, Dir::Shared(_)) { room.prefix() } else { String::new() };
    let mut seen = BTreeMap::new();
    for entry in fs::read_dir(&path).map_err(|e| wrong(e.to_string()))? {
        let entry = entry.map_err(|e| wrong(e.to_string()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(&prefix) {
            continue;
        }
        let kind = entry.file_type().map_err(|e| wrong(format!("{name}: {e}")))?;
        let kind = match (kind.is_dir(), kind.is_symlink(), kind.is_fifo()) {
            (true, ..) => FileType::Directory,
            (_, true, _) => FileType::Symlink,
            (_, _, true) => FileType::Fifo,
            _ => FileType::RegularFile,
        };
        if seen.insert(name.clone(), (kind, entry.ino())).is_some() {
            return Err(wrong(format!("{name} is there twice")));
        }
    }
    let expected = room.names(dir).clone();
    let names = (seen.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    if names.0 != names.1 {
        return Err(wrong(format!("{:?}, must be {:?}", names.0, names.1)));
    }
    for (name, id) in expected {
        let (kind, ino) = seen[&name];
        let node = room.node_mut(id);
        if kind != node.kind() {
            return Err(wrong(format!("{name} is a {kind:?}, must be a {:?}", node.kind())));
        }
        node.see_ino(ino).map_err(|text| wrong(format!("{name}: {text}")))?;
    }
    Ok(())
}

/// The open file, through the mount by which it was opened.
fn handle(names: &mut Names, at: usize) -> Result<(), String> {
    let Handle { file, mount, id, .. } = &names.handles[at];
    let wrong = |text: String| format!("handle {at} of mount {mount}, node {id}: {text}");
    let seen = rustix::fs::fstat(file).map_err(|e| wrong(format!("fstat: {}", show(e))))?;
    names.room.compare(*id, &seen).map_err(|text| wrong(format!("fstat: {text}")))?;
    if let Body::File(expected) = &names.room.nodes[id].body {
        let mut found = vec![0; expected.len() + 1];
        let length = file.read_at(&mut found, 0).map_err(|e| wrong(format!("read: {e}")))?;
        same(&found[..length], expected).map_err(|text| wrong(format!("read: {text}")))?;
    }
    Ok(())
}

fn views(shared: &Shared, names: &Names, concerned: &[Place]) -> String {
    let mut out = String::new();
    for place in concerned {
        for (at, root) in shared.mounts.iter().enumerate() {
            let path = names.room.path_of(root, place);
            let seen = match rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(seen) => format!(
                    "inode {:#x} mode {:o} links {} size {} mtime {}.{:09} ctime {}.{:09}",
                    seen.st_ino,
                    seen.st_mode,
                    seen.st_nlink,
                    seen.st_size,
                    seen.st_mtime,
                    seen.st_mtime_nsec,
                    seen.st_ctime,
                    seen.st_ctime_nsec
                ),
                Err(errno) => show(errno),
            };
            out.push_str(&format!("    mount {at} {}: {seen}\n", place.name));
        }
        out.push_str(&format!("    must be {:?}\n", names.room.node(place)));
    }
    out
}
