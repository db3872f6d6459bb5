//! The table of mounts, as in /proc/PID/mountinfo. Names there are bytes, not text.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// The type that `mount` and `df` show.
pub const FS_TYPE: &str = "fuse.nacre";

/// One mount: a plain record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Numbers of the mount, and of the mount in which it lies.
    id: u64,
    parent: u64,
    pub(crate) point: PathBuf,
    /// Those of the mount, not of the file system: `rw,relatime`.
    options: String,
    /// `major:minor`: one for each file system, the same for every copy of its mount.
    pub(crate) device: String,
    pub(crate) fs_type: String,
    source: OsString,
    /// The directories of which an overlayfs is made.
    layers: Vec<PathBuf>,
}

/// Type of the file system mounted on exactly `path` (the topmost one), if any.
pub fn mounted_type(path: &Path) -> Option<String> {
    mount_on(&own()?, path).map(|line| line.fs_type)
}

/// How many mounts are on exactly `path`, one upon the other.
pub(crate) fn mounts_on(path: &Path) -> usize {
    own().unwrap_or_default().iter().filter(|line| line.point == path).count()
}

/// The options of the nacre mount on exactly `path` that the table shows: `rw,noatime`.
pub fn options_of(path: &Path) -> Option<String> {
    mount_on(&own()?, path).filter(|line| line.fs_type == FS_TYPE).map(|line| line.options)
}

/// Every nacre mount point of this process's name space.
pub fn mount_points() -> Vec<PathBuf> {
    let ours = own().unwrap_or_default().into_iter().filter(|line| line.fs_type == FS_TYPE);
    ours.map(|line| line.point).collect()
}

/// The nacre mount that `path` (absolute, resolved) lies in: its mount point, and its source `ADDRESS:/FS`.
pub fn mount_of(path: &Path) -> Option<(PathBuf, String)> {
    ours_above(&own()?, path)
}

/// Whether another file system is mounted on a directory of the mount on `path`, or an overlayfs has layers there.
pub(crate) fn has_neighbours(path: &Path) -> bool {
    own().is_some_and(|table| neighbours_of(&table, path))
}
fn neighbours_of(table: &[Line], path: &Path) -> bool {
    let Some(ours) = mount_on(table, path) else { return false };
    let copies: Vec<u64> = table.iter().filter(|l| l.device == ours.device).map(|line| line.id).collect();
    table.iter().any(|line| {
        copies.contains(&line.parent) || line.layers.iter().any(|layer| layer.starts_with(&ours.point))
    })
}

fn ours_above(table: &[Line], path: &Path) -> Option<(PathBuf, String)> {
    // The deepest mount point above the path contains it; of several at one place the latest.
    let above = table.iter().filter(|line| path.starts_with(&line.point));
    let line = above.max_by_key(|line| line.point.components().count()).filter(|l| l.fs_type == FS_TYPE)?;
    Some((line.point.clone(), line.source.clone().into_string().ok()?))
}

/// The mounts of this process's name space.
pub(crate) fn own() -> Option<Vec<Line>> {
    of("self".as_ref())
}

/// The mounts of the name space of another process, if it lives and may be examined.
pub(crate) fn of(pid: &OsStr) -> Option<Vec<Line>> {
    std::fs::read(Path::new("/proc").join(pid).join("mountinfo")).ok().map(|table| parse(&table))
}

/// The topmost mount on exactly `path`.
pub(crate) fn mount_on(table: &[Line], path: &Path) -> Option<Line> {
    table.iter().rev().find(|line| line.point == path).cloned()
}

pub(crate) fn parse(table: &[u8]) -> Vec<Line> {
    // ID parent major:minor root MOUNTPOINT options... - TYPE source options
    let line = |text: &[u8]| {
        let mut words = text.split(|&b| b == b' ');
        let mut number = || str::from_utf8(words.next()?).ok()?.parse().ok();
        let (id, parent) = (number()?, number()?);
        let device = String::from_utf8_lossy(words.next()?).into_owned();
        let point = unescape(words.nth(1)?).into();
        let options = String::from_utf8_lossy(words.next()?).into_owned();
        let mut words = words.skip_while(|w| *w != b"-").skip(1);
        let fs_type = String::from_utf8_lossy(words.next()?).into_owned();
        let source = unescape(words.next()?);
        let layers = if fs_type == "overlay" { layers(words.next().unwrap_or_default()) } else { Vec::new() };
        Some(Line { id, parent, point, options, device, fs_type, source, layers })
    };
    table.split(|&b| b == b'\n').filter_map(line).collect()
}

/// The layers among the options of an overlayfs. One that was given as a relative path is not found.
fn layers(options: &[u8]) -> Vec<PathBuf> {
    const KEYS: [&[u8]; 4] = [b"lowerdir", b"lowerdir+", b"datadir+", b"upperdir"];
    let values = options.split(|&b| b == b',').filter_map(|option| {
        let at = option.iter().position(|&b| b == b'=')?;
        KEYS.contains(&&option[..at]).then(|| &option[at + 1..])
    });
    let paths = values.flat_map(|value| value.split(|&b| b == b':'));
    paths.map(|path| unescape(path).into()).collect()
}

/// Mount tables write blank, tab, newline and backslash as three octal digits.
fn unescape(text: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let escape = after.get(..3).filter(|_| first == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        match escape.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;

    #[test]
    fn the_topmost_mount_of_a_path_counts_and_names_are_bytes() {
        let table = parse(
            b"22 1 0:20 / / rw - ext4 /dev/vda rw\n\
              30 22 0:31 / /mnt/a\\040b rw,nosuid shared:1 - fuse.nacre unix:/x rw\n\
              31 30 0:32 / /mnt/c rw - tmpfs tmpfs rw\n\
              32 31 0:33 / /mnt/c rw - fuse.nacre y rw\n\
              33 22 0:34 / /mnt/\xff rw - tmpfs t rw\n\
              34 22 0:35 / /mnt/e rw - fuse.nacre z rw\n\
              35 22 0:36 / /merged rw - overlay o rw,lowerdir=/lower:/mnt/e/low\\040er,upperdir=/u,workdir=/w\n",
        );
        let kind = |path: &str| mount_on(&table, Path::new(path)).map(|line| line.fs_type);
        assert_eq!(kind("/mnt/a b").as_deref(), Some("fuse.nacre"));
        assert_eq!(kind("/mnt/c").as_deref(), Some("fuse.nacre"));
        assert_eq!(kind("/mnt"), None);
        assert!(mount_on(&table, Path::new(OsStr::from_bytes(b"/mnt/\xff"))).is_some());
        assert_eq!(mount_on(&table, Path::new("/mnt/c")).unwrap().device, "0:33");
        let found = |path: &str| ours_above(&table, Path::new(path));
        assert_eq!(found("/mnt/a b/c/d"), Some(("/mnt/a b".into(), "unix:/x".into())));
        assert_eq!(found("/mnt/c"), Some(("/mnt/c".into(), "y".into())));
        assert_eq!(found("/mnt/d"), None, "another file system");
        let neighbours = |path: &str| neighbours_of(&table, Path::new(path));
        assert!(neighbours("/mnt/a b") && !neighbours("/mnt/c"), "31 lies in 30");
        assert!(neighbours("/mnt/e"), "a layer of an overlayfs");
    }
}
