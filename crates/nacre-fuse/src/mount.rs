//! Mounting and unmounting: the mount point checked first, every refusal one sentence that says what to do.
//!
//! A mount point whose server died (`kill -9`) answers ENOTCONN to everybody; if it is one of ours it is cleared.
//! Unmounting may need our answers (dirty mapped pages are written): never call it on a thread that serves requests.

use crate::device::{BufferPool, Channel, open_device};
use crate::session::{self, Session, SessionConfig, SessionError};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::info;

/// What `mount` and `df` show as type.
pub const FS_TYPE: &str = "fuse.nacre";

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// First column of `df`: the address.
    pub source: String,
    pub read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    pub session: SessionConfig,
}

/// Why a mount or unmount failed. The text is for the user.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("mount point {0} does not exist\n  hint: mkdir -p {0}")]
    NoSuchDirectory(String),
    #[error("mount point {0} is not a directory\n  hint: name a directory")]
    NotADirectory(String),
    #[error("mount point {0} is not empty; its files would be hidden\n  hint: name an empty directory")]
    NotEmpty(String),
    #[error("{path} is a mount point already ({what})\n  hint: umount {path}, or name another directory")]
    AlreadyMounted { path: String, what: String },
    #[error("{path} is the mount point of a dead {what} file system\n  hint: umount -l {path}")]
    DeadMount { path: String, what: String },
    #[error(
        "there is no /dev/fuse: the kernel has no FUSE, or this container was not given the device\n  hint: modprobe fuse, or start the container with --device /dev/fuse --cap-add SYS_ADMIN"
    )]
    NoFuse,
    #[error("/dev/fuse may not be opened by this user\n  hint: run as root")]
    DeviceForbidden,
    #[error(
        "mounting is not permitted to this user\n  hint: run as root, or give the container --cap-add SYS_ADMIN"
    )]
    Forbidden,
    #[error("{0} is not a mounted nacre file system\n  hint: `mount -t {FS_TYPE}` lists them")]
    NotMounted(String),
    #[error("{path} is in use{by}\n  hint: close what uses it, or unmount lazily: umount -l {path}")]
    Busy { path: String, by: String },
    #[error("{what} {path} failed")]
    Os { what: &'static str, path: String, source: Errno },
    #[error(transparent)]
    Session(#[from] SessionError),
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A mount that is there: descriptor and agreement with the kernel. Dropping it does not unmount.
pub struct Mounted {
    pub path: PathBuf,
    pub channel: Arc<Channel>,
    pub session: Session,
}

/// Mounts on `path`. Accesses to it wait from now on until requests are served.
///
/// # Errors
/// A sentence for the user; nothing is left mounted then.
pub fn mount_fuse(path: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let path = check_mount_point(path)?;
    let device = device()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let fd = rustix::fd::AsRawFd::as_raw_fd(&device);
    let data = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},allow_other,default_permissions");
    let data = CString::new(data).expect("numbers and words have no NUL");
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.no_suid);
    flags.set(MountFlags::NODEV, options.no_dev);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    mount(options.source.as_str(), &path, FS_TYPE, flags, Some(data.as_c_str())).map_err(|e| match e {
        Errno::PERM | Errno::ACCESS => MountError::Forbidden,
        Errno::NODEV => MountError::NoFuse,
        source => MountError::Os { what: "mounting on", path: text(&path), source },
    })?;
    let channel = Arc::new(Channel::new(device, Arc::new(BufferPool::default())));
    match session::begin(&channel, options.session) {
        Ok(session) => {
            info!(path = %path.display(), minor = session.minor, flags = format_args!("{:#x}", session.flags), "mounted");
            Ok(Mounted { path, channel, session })
        }
        Err(e) => {
            let _ = unmount(&path, UnmountFlags::DETACH);
            Err(e.into())
        }
    }
}

fn device() -> Result<rustix::fd::OwnedFd, MountError> {
    open_device().map_err(|e| match e {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoFuse,
        Errno::ACCESS | Errno::PERM => MountError::DeviceForbidden,
        source => MountError::Os { what: "opening", path: "/dev/fuse".to_owned(), source },
    })
}

/// Whether this process may use FUSE at all.
///
/// # Errors
/// A sentence for the user.
pub fn check_device() -> Result<(), MountError> {
    device().map(drop)
}

/// Checks that `path` can be mounted on, clears it if a dead mount of ours is there. Gives back its real path.
///
/// # Errors
/// A sentence for the user.
pub fn check_mount_point(path: &Path) -> Result<PathBuf, MountError> {
    // A further dead mount may come to light below a cleared one.
    const LAYERS_MAX: u32 = 8;
    // The mount table first: looking at a mount whose server hangs would hang.
    let place = place_of(path);
    for _ in 0..LAYERS_MAX {
        let Some(what) = mounted_type(&place) else { return check_directory(path) };
        match root_state(&place) {
            RootState::Dead if what == FS_TYPE => clear_dead(&place)?,
            RootState::Dead => return Err(MountError::DeadMount { path: text(path), what }),
            RootState::Answers => return Err(MountError::AlreadyMounted { path: text(path), what }),
            RootState::Silent => {
                let what = format!("{what}, its server does not answer");
                return Err(MountError::AlreadyMounted { path: text(path), what });
            }
        }
    }
    Err(MountError::DeadMount { path: text(path), what: FS_TYPE.to_owned() })
}

/// An empty directory on which nothing is mounted, or a sentence.
fn check_directory(path: &Path) -> Result<PathBuf, MountError> {
    let os = |source| MountError::Os { what: "looking at", path: text(path), source };
    let io = |e: std::io::Error| os(Errno::from_io_error(&e).unwrap_or(Errno::IO));
    let stat = statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE).map_err(|e| match e {
        Errno::NOENT => MountError::NoSuchDirectory(text(path)),
        Errno::NOTDIR => MountError::NotADirectory(text(path)),
        e => os(e),
    })?;
    if u32::from(stat.stx_mode) & 0o170000 != 0o040000 {
        return Err(MountError::NotADirectory(text(path)));
    }
    let real = path.canonicalize().map_err(io)?;
    // By a symbolic link or as `.`.
    if let Some(what) = mounted_type(&real) {
        return Err(MountError::AlreadyMounted { path: text(&real), what });
    }
    if std::fs::read_dir(&real).map_err(io)?.next().is_some() {
        return Err(MountError::NotEmpty(text(&real)));
    }
    Ok(real)
}

/// The real path of `path` without looking at `path` itself.
fn place_of(path: &Path) -> PathBuf {
    let place = match (path.parent().filter(|p| !p.as_os_str().is_empty()), path.file_name()) {
        (Some(parent), Some(name)) => parent.canonicalize().map(|p| p.join(name)),
        (None, Some(name)) => std::env::current_dir().map(|p| p.join(name)),
        _ => Ok(path.to_owned()),
    };
    place.unwrap_or_else(|_| path.to_owned())
}

enum RootState {
    Answers,
    /// The server is gone, the mount is left.
    Dead,
    Silent,
}

/// Asks the root of a mount, on a thread of its own: it may never come back.
fn root_state(path: &Path) -> RootState {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);
    let (tx, rx) = std::sync::mpsc::sync_channel(1);
    let asked = path.to_owned();
    let thread = std::thread::Builder::new().name("mount-check".to_owned()).spawn(move || {
        let stat = statx(CWD, &asked, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
        // Nobody listens any more after the patience.
        let _ = tx.send(stat.map(drop));
    });
    if thread.is_err() {
        return RootState::Silent;
    }
    match rx.recv_timeout(PATIENCE) {
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)) => RootState::Dead,
        Ok(_) => RootState::Answers,
        Err(_) => RootState::Silent,
    }
}

/// Takes away a mount of ours whose server is gone.
fn clear_dead(place: &Path) -> Result<(), MountError> {
    unmount(place, UnmountFlags::DETACH).map_err(|source| MountError::Os {
        what: "clearing the dead mount on",
        path: text(place),
        source,
    })?;
    info!(path = %place.display(), "cleared a mount point left by a server that was killed");
    Ok(())
}

/// Type of the file system mounted on exactly `path` (the topmost one), if any.
pub fn mounted_type(path: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    type_in_table(&table, path)
}

fn type_in_table(table: &str, path: &Path) -> Option<String> {
    // ID parent major:minor root MOUNTPOINT options... - TYPE source options
    table.lines().rev().find_map(|line| {
        let point = line.split(' ').nth(4)?;
        if Path::new(&unescape(point)) != path {
            return None;
        }
        let (_, rest) = line.split_once(" - ")?;
        rest.split(' ').next().map(ToOwned::to_owned)
    })
}

/// The nacre mount that `path` (absolute, resolved) lies in: its mount point, and its source `ADDRESS:/FS`.
pub fn mount_of(path: &Path) -> Option<(PathBuf, String)> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mount_in_table(&table, path)
}

fn mount_in_table(table: &str, path: &Path) -> Option<(PathBuf, String)> {
    // The deepest mount point above the path holds it; of several on one place the latest.
    let points = table.lines().filter_map(|line| {
        let point = PathBuf::from(unescape(line.split(' ').nth(4)?));
        let (_, rest) = line.split_once(" - ")?;
        path.starts_with(&point).then_some((point, rest))
    });
    let (point, rest) = points.max_by_key(|(point, _)| point.components().count())?;
    let mut words = rest.split(' ');
    let ours = words.next() == Some(FS_TYPE);
    let source = unescape(words.next().filter(|_| ours)?);
    Some((point, source.into_string().ok()?))
}

/// Mount tables write blank, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> std::ffi::OsString {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
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
    std::ffi::OsString::from_vec(bytes)
}

/// Unmounts; `lazy`: the name is gone at once, the file system when its last file is closed.
///
/// # Errors
/// `Busy` names the processes that use it, as far as /proc shows them.
pub fn unmount_fuse(path: &Path, lazy: bool) -> Result<(), MountError> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    unmount(path, flags | UnmountFlags::NOFOLLOW).map_err(|e| match e {
        Errno::BUSY => MountError::Busy { path: text(path), by: holders_text(&holders(path)) },
        Errno::INVAL | Errno::NOENT => MountError::NotMounted(text(path)),
        Errno::PERM => MountError::Forbidden,
        source => MountError::Os { what: "unmounting", path: text(path), source },
    })
}

/// A process that has something of a mount open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: u32,
    pub command: String,
}

/// Who has a file or directory below `path` open, or runs from it. Reads /proc only: asking the mount itself could
/// hang when its servers are away.
pub fn holders(path: &Path) -> Vec<Holder> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let dir = process.path();
        let fixed = ["cwd", "root", "exe"].map(|name| dir.join(name));
        let fds = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten().map(|e| e.path());
        let maps = std::fs::read_dir(dir.join("map_files")).into_iter().flatten().flatten().map(|e| e.path());
        let mut links = fixed.into_iter().chain(fds).chain(maps);
        if links.any(|link| std::fs::read_link(link).is_ok_and(|target| target.starts_with(path))) {
            let command = std::fs::read_to_string(dir.join("comm")).unwrap_or_default();
            found.push(Holder { pid, command: command.trim_end().to_owned() });
        }
    }
    found.sort_by_key(|h| h.pid);
    found
}

fn holders_text(holders: &[Holder]) -> String {
    const NAMED_MAX: usize = 5;
    if holders.is_empty() {
        return String::new();
    }
    let named: Vec<String> =
        holders.iter().take(NAMED_MAX).map(|h| format!("{} (pid {})", h.command, h.pid)).collect();
    let more = holders.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(" by {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_of_a_path_counts_and_blanks_are_read() {
        let table = "22 1 0:20 / / rw - ext4 /dev/vda rw\n\
                     30 22 0:31 / /mnt/a\\040b rw,nosuid shared:1 - fuse.nacre unix:/x rw\n\
                     31 30 0:32 / /mnt/c rw - tmpfs tmpfs rw\n\
                     32 31 0:33 / /mnt/c rw - fuse.nacre y rw\n";
        assert_eq!(type_in_table(table, Path::new("/mnt/a b")).as_deref(), Some("fuse.nacre"));
        assert_eq!(type_in_table(table, Path::new("/mnt/c")).as_deref(), Some("fuse.nacre"));
        assert_eq!(type_in_table(table, Path::new("/mnt")), None);
        let found = |path: &str| mount_in_table(table, Path::new(path));
        assert_eq!(found("/mnt/a b/c/d"), Some(("/mnt/a b".into(), "unix:/x".into())));
        assert_eq!(found("/mnt/c"), Some(("/mnt/c".into(), "y".into())));
        assert_eq!(found("/mnt/d"), None, "another file system");
    }

    #[test]
    fn wrong_mount_points_are_refused_in_one_sentence_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let check = |path: &Path| check_mount_point(path).unwrap_err().to_string();
        let missing = check(&dir.path().join("none"));
        assert!(missing.contains("does not exist") && missing.contains("hint: mkdir -p"), "{missing}");
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(check(&file).contains("is not a directory"));
        assert!(check(&file.join("below")).contains("is not a directory"));
        assert!(check(dir.path()).contains("is not empty"));
        assert!(check(Path::new("/proc")).contains("is a mount point already (proc)"));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(check_mount_point(dir.path()).unwrap(), dir.path().canonicalize().unwrap());
    }

    #[test]
    fn who_holds_a_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert_eq!(holders(&path), vec![]);
        let _held = std::fs::File::create(path.join("f")).unwrap();
        let found = holders(&path);
        assert!(found.iter().any(|h| h.pid == std::process::id()), "{found:?}");
        assert!(holders_text(&found).contains(&format!("pid {}", std::process::id())));
    }
}
