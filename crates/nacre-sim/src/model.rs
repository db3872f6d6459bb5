//! The model of POSIX: a namespace with file contents, one operation at a time, as root sees it.
//!
//! Deliberately naive: every operation is a few lines on plain maps. Errors are checked in the kernel's order (parents
//! first, then the names, then types). Permissions, times and device numbers are not modelled.

use nacre_client::AllocateMode;
use nacre_types::{Errno, Failure};
use std::collections::BTreeMap;

/// Kind of an inode with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    File(Vec<u8>),
    Directory(BTreeMap<String, usize>),
    Symlink(String),
    Fifo,
}

/// An inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Type and content.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Number of names; of a directory 2 and one per subdirectory.
    pub nlink: u32,
    /// Values by full name.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// Attributes that stat returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// `f`, `d`, `l` or `p`.
    pub kind: char,
    /// Permission bits.
    pub mode: u32,
    /// Number of names, as in [`Inode`].
    pub nlink: u32,
    /// Bytes of a file or link target; 0 for others, whose size POSIX does not define.
    pub size: u64,
}

/// The value of an operation that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Unit,
    Bytes(Vec<u8>),
    Names(Vec<String>),
    Stat(Stat),
}

/// The result of an operation as POSIX requires it.
pub type Required = Result<Value, Errno>;
/// The result of an operation on a mount. One with an outcome of the protocol is no result that POSIX can require.
pub type Outcome = Result<Value, Failure>;

/// Index of the root directory.
pub const ROOT: usize = 0;

/// The whole tree. Inodes are never reused; those without names stay for their open handles.
#[derive(Debug, Clone)]
pub struct Model {
    /// By index; the index never changes.
    pub inodes: Vec<Inode>,
    /// Open handles by slot.
    pub open: BTreeMap<u32, usize>,
}

/// Parts of a path.
fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|p| !p.is_empty()).collect()
}

impl Default for Model {
    fn default() -> Self {
        let root =
            Inode { kind: Kind::Directory(BTreeMap::new()), mode: 0o755, nlink: 2, xattrs: BTreeMap::new() };
        Self { inodes: vec![root], open: BTreeMap::new() }
    }
}

impl Model {
    /// The inode at an index that an operation returned.
    pub fn inode(&self, i: usize) -> &Inode {
        &self.inodes[i]
    }
    fn is_dir(&self, i: usize) -> bool {
        matches!(self.inodes[i].kind, Kind::Directory(_))
    }
    /// Names and indexes of a directory's entries; `None` for other inodes.
    pub fn entries(&self, i: usize) -> Option<&BTreeMap<String, usize>> {
        match &self.inodes[i].kind {
            Kind::Directory(entries) => Some(entries),
            Kind::File(_) | Kind::Symlink(_) | Kind::Fifo => None,
        }
    }
    fn entries_mut(&mut self, i: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.inodes[i].kind {
            Kind::Directory(entries) => entries,
            Kind::File(_) | Kind::Symlink(_) | Kind::Fifo => unreachable!("checked to be a directory"),
        }
    }
    fn child(&self, dir: usize, name: &str) -> Result<usize, Errno> {
        self.entries(dir).ok_or(Errno::ENOTDIR)?.get(name).copied().ok_or(Errno::ENOENT)
    }
    /// Follows no symbolic links: one in the middle is ENOTDIR.
    pub fn resolve(&self, path: &str) -> Result<usize, Errno> {
        parts(path).into_iter().try_fold(ROOT, |at, name| self.child(at, name))
    }
    /// The directory of the last part, and the last part.
    fn parent<'a>(&self, path: &'a str) -> Result<(usize, &'a str), Errno> {
        let parts = parts(path);
        let (last, dirs) = parts.split_last().expect("operations name something below the root");
        let dir = dirs.iter().try_fold(ROOT, |at, name| self.child(at, name))?;
        if self.is_dir(dir) { Ok((dir, last)) } else { Err(Errno::ENOTDIR) }
    }
    fn add(&mut self, dir: usize, name: &str, kind: Kind, mode: u32) -> usize {
        let is_dir = matches!(kind, Kind::Directory(_));
        let nlink = if is_dir { 2 } else { 1 };
        self.inodes.push(Inode { kind, mode, nlink, xattrs: BTreeMap::new() });
        let i = self.inodes.len() - 1;
        self.entries_mut(dir).insert(name.to_string(), i);
        if is_dir {
            self.inodes[dir].nlink += 1;
        }
        i
    }
    /// Takes a name away; the directory's own link counts follow.
    fn drop_name(&mut self, dir: usize, name: &str) {
        let Some(i) = self.entries_mut(dir).remove(name) else { return };
        if self.is_dir(i) {
            self.inodes[i].nlink = 0;
            self.inodes[dir].nlink -= 1;
        } else {
            self.inodes[i].nlink -= 1;
        }
    }
    fn is_below(&self, dir: usize, above: usize) -> bool {
        if dir == above {
            return true;
        }
        self.entries(above).is_some_and(|entries| {
            entries.values().any(|&child| self.is_dir(child) && self.is_below(dir, child))
        })
    }

    // ---- operations

    /// mkdir, symlink or mkfifo: EEXIST if the name exists.
    pub fn make(&mut self, path: &str, kind: Kind, mode: u32) -> Required {
        let (dir, name) = self.parent(path)?;
        if self.child(dir, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.add(dir, name, kind, mode);
        Ok(Value::Unit)
    }
    /// open(O_CREAT | O_RDWR): the inode.
    pub fn create(&mut self, path: &str, exclusive: bool) -> Result<usize, Errno> {
        let (dir, name) = self.parent(path)?;
        match self.child(dir, name) {
            Ok(_) if exclusive => Err(Errno::EEXIST),
            Ok(i) => self.check_file(i),
            Err(_) => Ok(self.add(dir, name, Kind::File(Vec::new()), 0o644)),
        }
    }
    /// Only regular files are read and written here.
    fn check_file(&self, i: usize) -> Result<usize, Errno> {
        match self.inodes[i].kind {
            Kind::File(_) => Ok(i),
            Kind::Directory(_) => Err(Errno::EISDIR),
            Kind::Symlink(_) => Err(Errno::ELOOP),
            Kind::Fifo => Err(Errno::ENXIO),
        }
    }
    /// The regular file with this path; EISDIR, ELOOP or ENXIO for other types.
    pub fn file(&self, path: &str) -> Result<usize, Errno> {
        self.check_file(self.resolve(path)?)
    }
    /// Bytes of a regular file; panics for other types.
    pub fn content(&self, i: usize) -> &[u8] {
        match &self.inodes[i].kind {
            Kind::File(content) => content,
            Kind::Directory(_) | Kind::Symlink(_) | Kind::Fifo => unreachable!("checked to be a file"),
        }
    }
    fn content_mut(&mut self, i: usize) -> &mut Vec<u8> {
        match &mut self.inodes[i].kind {
            Kind::File(content) => content,
            Kind::Directory(_) | Kind::Symlink(_) | Kind::Fifo => unreachable!("checked to be a file"),
        }
    }
    /// Writes at `offset`, or appends if it is `None`; a gap is filled with zeros.
    pub fn write(&mut self, i: usize, offset: Option<u64>, data: &[u8]) -> Required {
        let content = self.content_mut(i);
        let start = offset.map_or(content.len(), |o| o as usize);
        let end = start + data.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[start..end].copy_from_slice(data);
        Ok(Value::Unit)
    }
    /// Up to `len` bytes, fewer at the end of the file.
    pub fn read(&self, i: usize, offset: u64, len: usize) -> Required {
        let content = self.content(i);
        let start = content.len().min(offset as usize);
        let end = content.len().min(start + len);
        Ok(Value::Bytes(content[start..end].to_vec()))
    }
    /// Truncates the file or extends it with zeros.
    pub fn truncate(&mut self, i: usize, size: u64) -> Required {
        self.content_mut(i).resize(size as usize, 0);
        Ok(Value::Unit)
    }
    /// fallocate(2).
    pub fn allocate(&mut self, i: usize, offset: u64, len: u64, mode: AllocateMode) -> Required {
        let (start, end) = (offset as usize, (offset + len) as usize);
        let content = self.content_mut(i);
        let grows = matches!(
            mode,
            AllocateMode::Space { keep_size: false } | AllocateMode::Zeros { keep_size: false }
        );
        if grows && content.len() < end {
            content.resize(end, 0);
        }
        if !matches!(mode, AllocateMode::Space { .. }) {
            let end = end.min(content.len());
            content[start.min(end)..end].fill(0);
        }
        Ok(Value::Unit)
    }
    /// Hard link; EPERM for a directory.
    pub fn link(&mut self, from: &str, to: &str) -> Required {
        let i = self.resolve(from)?;
        let (dir, name) = self.parent(to)?;
        if self.child(dir, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        if self.is_dir(i) {
            return Err(Errno::EPERM);
        }
        self.entries_mut(dir).insert(name.to_string(), i);
        self.inodes[i].nlink += 1;
        Ok(Value::Unit)
    }
    /// Removes a name of anything but a directory.
    pub fn unlink(&mut self, path: &str) -> Required {
        let (dir, name) = self.parent(path)?;
        let i = self.child(dir, name)?;
        if self.is_dir(i) {
            return Err(Errno::EISDIR);
        }
        self.drop_name(dir, name);
        Ok(Value::Unit)
    }
    /// Removes an empty directory.
    pub fn rmdir(&mut self, path: &str) -> Required {
        let (dir, name) = self.parent(path)?;
        let i = self.child(dir, name)?;
        match self.entries(i) {
            None => return Err(Errno::ENOTDIR),
            Some(entries) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
            Some(_) => {}
        }
        self.drop_name(dir, name);
        Ok(Value::Unit)
    }
    /// renameat2(2) with its two flags.
    pub fn rename(&mut self, from: &str, to: &str, no_replace: bool, exchange: bool) -> Required {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let source = self.child(from_dir, from_name)?;
        let target = self.child(to_dir, to_name).ok();
        if no_replace && target.is_some() {
            return Err(Errno::EEXIST);
        }
        if exchange && target.is_none() {
            return Err(Errno::ENOENT);
        }
        if self.is_dir(source) && self.is_below(to_dir, source) {
            return Err(Errno::EINVAL);
        }
        if let (Some(target), true) = (target, exchange)
            && self.is_dir(target)
            && self.is_below(from_dir, target)
        {
            return Err(Errno::EINVAL);
        }
        if target == Some(source) {
            return Ok(Value::Unit);
        }
        if let (Some(target), true) = (target, exchange) {
            self.entries_mut(from_dir).insert(from_name.to_string(), target);
            self.entries_mut(to_dir).insert(to_name.to_string(), source);
            let (source_is_dir, target_is_dir) = (self.is_dir(source), self.is_dir(target));
            self.inodes[from_dir].nlink =
                self.inodes[from_dir].nlink + u32::from(target_is_dir) - u32::from(source_is_dir);
            self.inodes[to_dir].nlink =
                self.inodes[to_dir].nlink + u32::from(source_is_dir) - u32::from(target_is_dir);
            return Ok(Value::Unit);
        }
        if let Some(target) = target {
            match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.entries(target).is_some_and(BTreeMap::is_empty) => {
                    return Err(Errno::ENOTEMPTY);
                }
                _ => {}
            }
            self.drop_name(to_dir, to_name);
        }
        self.entries_mut(from_dir).remove(from_name);
        self.entries_mut(to_dir).insert(to_name.to_string(), source);
        if self.is_dir(source) {
            self.inodes[from_dir].nlink -= 1;
            self.inodes[to_dir].nlink += 1;
        }
        Ok(Value::Unit)
    }
    /// Attributes of an inode, by index.
    pub fn stat_of(&self, i: usize) -> Stat {
        let inode = &self.inodes[i];
        let (kind, size) = match &inode.kind {
            Kind::File(content) => ('f', content.len() as u64),
            // The size of a directory is the MDT's business.
            Kind::Directory(_) => ('d', 0),
            Kind::Symlink(target) => ('l', target.len() as u64),
            Kind::Fifo => ('p', 0),
        };
        Stat { kind, mode: inode.mode, nlink: inode.nlink, size }
    }
    /// Attributes of an inode, by path.
    pub fn stat(&self, path: &str) -> Required {
        Ok(Value::Stat(self.stat_of(self.resolve(path)?)))
    }
    /// Names in the order of their bytes, without `.` and `..`.
    pub fn readdir(&self, path: &str) -> Required {
        let entries = self.entries(self.resolve(path)?).ok_or(Errno::ENOTDIR)?;
        Ok(Value::Names(entries.keys().cloned().collect()))
    }
    /// Target of a symbolic link; EINVAL for other types.
    pub fn readlink(&self, path: &str) -> Required {
        match &self.inodes[self.resolve(path)?].kind {
            Kind::Symlink(target) => Ok(Value::Bytes(target.clone().into_bytes())),
            Kind::File(_) | Kind::Directory(_) | Kind::Fifo => Err(Errno::EINVAL),
        }
    }
    /// Sets the permission bits; the type stays.
    pub fn chmod(&mut self, path: &str, mode: u32) -> Required {
        let i = self.resolve(path)?;
        self.inodes[i].mode = mode;
        Ok(Value::Unit)
    }
    /// `create`: 1 = must be new, 2 = must be there.
    pub fn setxattr(&mut self, path: &str, name: &str, value: &[u8], flags: u32) -> Required {
        let i = self.resolve(path)?;
        let xattrs = &mut self.inodes[i].xattrs;
        match (flags, xattrs.contains_key(name)) {
            (1, true) => return Err(Errno::EEXIST),
            (2, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        xattrs.insert(name.to_string(), value.to_vec());
        Ok(Value::Unit)
    }
    /// ENODATA if the attribute does not exist.
    pub fn getxattr(&self, path: &str, name: &str) -> Required {
        let i = self.resolve(path)?;
        self.inodes[i].xattrs.get(name).cloned().map(Value::Bytes).ok_or(Errno::ENODATA)
    }
    /// ENODATA if the attribute does not exist.
    pub fn removexattr(&mut self, path: &str, name: &str) -> Required {
        let i = self.resolve(path)?;
        self.inodes[i].xattrs.remove(name).map(|_| Value::Unit).ok_or(Errno::ENODATA)
    }
    /// Names in the order of their bytes.
    pub fn listxattr(&self, path: &str) -> Required {
        let i = self.resolve(path)?;
        Ok(Value::Names(self.inodes[i].xattrs.keys().cloned().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_count_their_links_through_renames() {
        let mut m = Model::default();
        for path in ["a", "b", "a/c"] {
            m.make(path, Kind::Directory(BTreeMap::new()), 0o755).unwrap();
        }
        assert_eq!(m.rename("a", "a/c/x", false, false), Err(Errno::EINVAL));
        assert_eq!(m.rename("a/c", "a", false, false), Err(Errno::ENOTEMPTY));
        m.rename("a/c", "b/c", false, false).unwrap();
        let nlink = |m: &Model, path: &str| m.inode(m.resolve(path).unwrap()).nlink;
        assert_eq!((nlink(&m, ""), nlink(&m, "a"), nlink(&m, "b")), (4, 2, 3));
        m.rename("a", "b/c", false, true).unwrap();
        assert_eq!((nlink(&m, ""), nlink(&m, "b")), (4, 3));
        assert_eq!(m.rmdir("b"), Err(Errno::ENOTEMPTY));
        m.rmdir("b/c").unwrap();
        assert_eq!(nlink(&m, "b"), 2);
    }
}
