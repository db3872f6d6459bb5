//! Unmounting, and the processes that prevent it. This code never accesses the mount itself: its servers may be away.
//!
//! A mount name space that was copied while the mount was there (`unshare -m`, a container) keeps the file system
//! alive; unmounting here does not affect that copy. Unmounting may need replies of this process (dirty mapped pages
//! are written): never call it on a thread that serves requests.

use crate::fusermount;
use crate::mount::MountError;
use crate::table;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Only if it is not in use.
    Idle,
    /// The mount point is removed at once, the file system when its last file is closed.
    Lazy,
    /// Waiting calls fail, open files are revoked, the mount point is removed: always succeeds.
    Force,
}

/// Unmounts the file system on `path`.
///
/// # Errors
/// `Busy` names the users, as far as /proc shows them.
pub fn unmount_fuse(path: &Path, how: Unmount) -> Result<(), MountError> {
    let flags = match how {
        Unmount::Idle => UnmountFlags::empty(),
        Unmount::Lazy => UnmountFlags::DETACH,
        Unmount::Force => UnmountFlags::FORCE,
    };
    let attempt = |flags: UnmountFlags| {
        if !fusermount::is_used() {
            return unmount(path, flags | UnmountFlags::NOFOLLOW);
        }
        if how == Unmount::Force
            && let Ok(abort) = crate::abort::open_abort_file(path)
        {
            // Fails if the connection is gone, as it should be.
            let _ = rustix::io::write(&abort, b"1");
        }
        fusermount::unmount(path, how != Unmount::Idle)
    };
    let result = match (attempt(flags), how) {
        // Its connection is aborted; open files keep it until they are closed.
        (Err(Errno::BUSY), Unmount::Force) => attempt(UnmountFlags::DETACH),
        (Err(Errno::BUSY), Unmount::Idle) => return wait_for_nobody(path, || attempt(flags)),
        (result, _) => result,
    };
    result.map_err(|e| refused(path, e))
}

/// In use, but perhaps by an ending process: one that has just exited, or a child before its exec (which has its
/// parent's descriptors).
fn wait_for_nobody(path: &Path, attempt: impl Fn() -> rustix::io::Result<()>) -> Result<(), MountError> {
    const LOOKS: u32 = 20;
    const PAUSE: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    for _ in 0..LOOKS {
        let _ = rustix::event::poll(&mut [], Some(&PAUSE));
        match attempt() {
            Err(Errno::BUSY) => {}
            other => return other.map_err(|e| refused(path, e)),
        }
    }
    match users(path) {
        nobody if nobody.is_empty() => Err(refused(path, Errno::BUSY)),
        by => Err(MountError::Busy { path: path.display().to_string(), by: format!(" by {by}") }),
    }
}

fn refused(path: &Path, error: Errno) -> MountError {
    let path = path.display().to_string();
    match error {
        Errno::BUSY => MountError::Busy { path, by: " by somebody who is not seen in /proc".to_owned() },
        Errno::INVAL | Errno::NOENT => MountError::NotMounted(path),
        Errno::PERM => MountError::UnmountForbidden { path },
        source => MountError::Os { what: "unmounting", path, source },
    }
}

/// A process that uses a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// In the PID namespace of this process.
    pub pid: u32,
    /// Name of the executable, as in `/proc/PID/comm`.
    pub command: String,
}
impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {})", self.command, self.pid)
    }
}

/// The users of a mount, as text; empty if none are visible. A call that waits for its server uses the mount but is not
/// visible.
pub fn users(path: &Path) -> String {
    let below: Vec<String> = mounts_below(path).iter().map(|p| p.display().to_string()).collect();
    if !below.is_empty() {
        return format!("what is mounted below it: {}", shortened(&below));
    }
    let holders: Vec<String> = holders(path).iter().map(ToString::to_string).collect();
    shortened(&holders)
}

/// A list for a sentence.
pub fn shortened(list: &[String]) -> String {
    const NAMED_MAX: usize = 5;
    let more = list.len().saturating_sub(NAMED_MAX);
    let named = list.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

/// Processes that have a file or directory below `path` open, or run from it.
pub fn holders(path: &Path) -> Vec<Holder> {
    processes(|dir| {
        let fixed = ["cwd", "root", "exe"].map(|name| dir.join(name));
        let fds = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten().map(|e| e.path());
        let maps = std::fs::read_dir(dir.join("map_files")).into_iter().flatten().flatten().map(|e| e.path());
        let mut links = fixed.into_iter().chain(fds).chain(maps);
        links.any(|link| std::fs::read_link(link).is_ok_and(|target| target.starts_with(path)))
    })
}

/// A process of each foreign mount name space in which the file system on `path` is mounted, too.
pub fn elsewhere(path: &Path) -> Vec<Holder> {
    let Some(here) = table::own().and_then(|own| table::mount_on(&own, path)) else { return Vec::new() };
    let name_space = |dir: &Path| std::fs::read_link(dir.join("ns/mnt")).ok();
    let mut seen: BTreeSet<PathBuf> = name_space(Path::new("/proc/self")).into_iter().collect();
    processes(|dir| {
        name_space(dir).is_some_and(|space| seen.insert(space))
            && dir
                .file_name()
                .and_then(table::of)
                .is_some_and(|table| table.iter().any(|line| line.device == here.device))
    })
}

fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let points = table::own().unwrap_or_default().into_iter().map(|line| line.point);
    points.filter(|point| point != path && point.starts_with(path)).collect()
}

/// Processes whose directory below /proc satisfies `is`, by number.
fn processes(mut is: impl FnMut(&Path) -> bool) -> Vec<Holder> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let holder = |pid: u32| {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        is(&dir).then(|| {
            let command = std::fs::read(dir.join("comm")).unwrap_or_default();
            Holder { pid, command: String::from_utf8_lossy(&command).trim_end().to_owned() }
        })
    };
    pids.into_iter().filter_map(holder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert_eq!(holders(&path), vec![]);
        let _held = std::fs::File::create(path.join("f")).unwrap();
        let own = format!("(pid {})", std::process::id());
        assert!(users(&path).contains(&own), "{}", users(&path));
    }

    #[test]
    fn of_many_the_first_are_named_and_the_rest_counted() {
        let list: Vec<String> = (0..7).map(|n| n.to_string()).collect();
        assert_eq!(shortened(&list), "0, 1, 2, 3, 4 and 2 more");
        assert_eq!(shortened(&list[..2]), "0, 1");
    }
}
