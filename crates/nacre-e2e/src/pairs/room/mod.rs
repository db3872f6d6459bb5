//! The state that the names of a room must have: changed by the worker that holds the room, compared through any mount.
//!
//! Times that a change has touched are not known until somebody looks; they must not be earlier than before. Once seen,
//! they must stay as they are on every mount until the next change. Not compared: access times, blocks, sizes of
//! directories, and the attributes of directories that several rooms share.

mod changes;
mod looks;

pub(super) use changes::Change;
pub(super) use looks::Look;
use rustix::fs::{FileType, Stat};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

type Id = u64;
/// Directories of a room lie at most so deep below a shared one.
const DEPTH_MAX: usize = 2;

/// A directory in which a room has names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Dir {
    /// All rooms have names in it.
    Shared(usize),
    Own(Id),
}

/// A name that there may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    dir: Dir,
    name: String,
}

#[derive(Debug, Clone)]
enum Body {
    File(Vec<u8>),
    Symlink(String),
    Dir { names: BTreeMap<String, Id>, place: Place },
}

#[derive(Debug, Clone, Copy, Default)]
struct Time {
    /// Nanoseconds; `None` after a change.
    known: Option<i128>,
    at_least: i128,
}
impl Time {
    fn touch(&mut self) {
        self.at_least = self.known.take().unwrap_or(self.at_least);
    }
    fn set(&mut self, nanoseconds: i128) {
        *self = Self { known: Some(nanoseconds), at_least: nanoseconds };
    }
    fn see(&mut self, what: &str, seen: i128) -> Result<(), String> {
        match self.known {
            Some(known) if known != seen => {
                return Err(format!("{what} {seen}, must be {known} as seen before"));
            }
            None if seen < self.at_least => {
                return Err(format!("{what} {seen}, must not be before {}", self.at_least));
            }
            _ => {}
        }
        self.known = Some(seen);
        Ok(())
    }
}

#[derive(Debug, Clone)]
struct Node {
    body: Body,
    mode: u32,
    /// Names of a file; 0 for a removed inode that a handle keeps.
    links: u64,
    xattrs: BTreeMap<&'static str, Vec<u8>>,
    mtime: Time,
    ctime: Time,
    ino: Option<u64>,
}
impl Node {
    fn new(body: Body, mode: u32) -> Self {
        let (mtime, ctime) = Default::default();
        Self { body, mode, links: 1, xattrs: BTreeMap::new(), mtime, ctime, ino: None }
    }
    fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir { .. })
    }
    fn kind(&self) -> FileType {
        match self.body {
            Body::File(_) => FileType::RegularFile,
            Body::Symlink(_) => FileType::Symlink,
            Body::Dir { .. } => FileType::Directory,
        }
    }
    fn touch(&mut self, data: bool) {
        if data {
            self.mtime.touch();
        }
        self.ctime.touch();
    }
    /// Compares the number of the inode, and learns it.
    fn see_ino(&mut self, seen: u64) -> Result<(), String> {
        match self.ino.replace(seen) {
            Some(ino) if ino != seen => Err(format!("inode {seen:#x}, must be {ino:#x}")),
            _ => Ok(()),
        }
    }
}

/// A file or directory that stays open while the room changes hands.
struct Handle {
    file: File,
    mount: usize,
    id: Id,
    is_writable: bool,
}

/// A room and its open files.
pub(super) struct Names {
    room: Room,
    handles: Vec<Handle>,
}
impl Names {
    pub(super) fn new(number: usize, directories: usize) -> Self {
        Self { room: Room::new(number, directories), handles: Vec::new() }
    }
    pub(super) fn number(&self) -> usize {
        self.room.number
    }
}

/// Names that one worker at a time uses.
struct Room {
    number: usize,
    shared: Vec<BTreeMap<String, Id>>,
    nodes: BTreeMap<Id, Node>,
    next: Id,
}

impl Room {
    fn new(number: usize, directories: usize) -> Self {
        Self { number, shared: vec![BTreeMap::new(); directories], nodes: BTreeMap::new(), next: 1 }
    }

    // ---- names

    /// In front of each of its names in shared directories.
    fn prefix(&self) -> String {
        format!("r{}.", self.number)
    }
    fn names(&self, dir: Dir) -> &BTreeMap<String, Id> {
        match dir {
            Dir::Shared(at) => &self.shared[at],
            Dir::Own(id) => match &self.nodes[&id].body {
                Body::Dir { names, .. } => names,
                _ => unreachable!("a directory stays one"),
            },
        }
    }
    fn names_mut(&mut self, dir: Dir) -> &mut BTreeMap<String, Id> {
        match dir {
            Dir::Shared(at) => &mut self.shared[at],
            Dir::Own(id) => match self.nodes.get_mut(&id).map(|node| &mut node.body) {
                Some(Body::Dir { names, .. }) => names,
                _ => unreachable!("a directory stays one"),
            },
        }
    }
    fn at(&self, place: &Place) -> Option<Id> {
        self.names(place.dir).get(&place.name).copied()
    }
    fn node(&self, place: &Place) -> Option<&Node> {
        self.at(place).and_then(|id| self.nodes.get(&id))
    }
    fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("names and handles name nodes that there are")
    }
    /// All directories that have names, the shared ones first.
    fn dirs(&self) -> Vec<Dir> {
        let own = self.nodes.iter().filter(|(_, node)| node.is_dir() && node.links > 0);
        (0..self.shared.len()).map(Dir::Shared).chain(own.map(|(id, _)| Dir::Own(*id))).collect()
    }
    /// The directories above, from the nearest on.
    fn above(&self, dir: Dir) -> Vec<Dir> {
        let mut all = vec![dir];
        while let Some(Dir::Own(id)) = all.last()
            && let Some(Body::Dir { place, .. }) = self.nodes.get(id).map(|node| &node.body)
        {
            all.push(place.dir);
        }
        all
    }
    fn has_room_below(&self, dir: Dir) -> bool {
        self.above(dir).len() <= DEPTH_MAX
    }
    /// The path below the mount point.
    fn path(&self, root: &Path, dir: Dir) -> PathBuf {
        match dir {
            Dir::Shared(at) => root.join(format!("d{at}")),
            Dir::Own(id) => match &self.nodes[&id].body {
                Body::Dir { place, .. } => self.path(root, place.dir).join(&place.name),
                _ => unreachable!("a directory stays one"),
            },
        }
    }
    fn path_of(&self, root: &Path, place: &Place) -> PathBuf {
        self.path(root, place.dir).join(&place.name)
    }

    // ---- changes

    fn touch_dir(&mut self, dir: Dir) {
        if let Dir::Own(id) = dir {
            self.node_mut(id).touch(true);
        }
    }
    fn add(&mut self, place: &Place, node: Node) -> Id {
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        self.put(place, id);
        id
    }
    /// Another or a new name of a node.
    fn put(&mut self, place: &Place, id: Id) {
        if let Body::Dir { place: own, .. } = &mut self.node_mut(id).body {
            *own = place.clone();
        }
        self.names_mut(place.dir).insert(place.name.clone(), id);
        self.touch_dir(place.dir);
    }
    /// Takes the name away, not the node.
    fn take(&mut self, place: &Place) -> Option<Id> {
        let id = self.names_mut(place.dir).remove(&place.name);
        self.touch_dir(place.dir);
        id
    }
    /// A node has one name less.
    fn unlinked(&mut self, id: Id) {
        let node = self.node_mut(id);
        node.links -= 1;
        node.touch(false);
    }
    /// Forgets removed nodes that no handle keeps.
    fn prune(&mut self, kept: &[Id]) {
        self.nodes.retain(|id, node| node.links > 0 || kept.contains(id));
    }

    // ---- comparison

    /// Compares attributes of a node with what was seen.
    fn compare(&mut self, id: Id, seen: &Stat) -> Result<(), String> {
        let below = |node: &Node, nodes: &BTreeMap<Id, Node>| match &node.body {
            Body::Dir { names, .. } => {
                names.values().filter(|id| nodes.get(id).is_some_and(Node::is_dir)).count() as u64
            }
            _ => 0,
        };
        let node = &self.nodes[&id];
        let links = if node.is_dir() && node.links > 0 { 2 + below(node, &self.nodes) } else { node.links };
        let size = match &node.body {
            Body::File(content) => Some(content.len()),
            Body::Symlink(target) => Some(target.len()),
            Body::Dir { .. } => None,
        };
        let node = self.node_mut(id);
        let kind = FileType::from_raw_mode(seen.st_mode);
        if kind != node.kind() {
            return Err(format!("{kind:?}, must be {:?}", node.kind()));
        }
        let mode = seen.st_mode & 0o7777;
        if mode != node.mode && kind != FileType::Symlink {
            return Err(format!("mode {mode:o}, must be {:o}", node.mode));
        }
        if seen.st_nlink != links {
            return Err(format!("{} links, must be {links}", seen.st_nlink));
        }
        if let Some(size) = size
            && seen.st_size != size as i64
        {
            return Err(format!("size {}, must be {size}", seen.st_size));
        }
        node.see_ino(seen.st_ino)?;
        let at =
            |seconds: i64, nanoseconds: u64| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        node.mtime.see("mtime", at(seen.st_mtime, seen.st_mtime_nsec))?;
        node.ctime.see("ctime", at(seen.st_ctime, seen.st_ctime_nsec))
    }
}
