//! Mounting: the mount point is checked first, and every refusal says what to do.
//!
//! A mount point whose server died (`kill -9`) fails every access with ENOTCONN; if it is a nacre mount it stays until the next
//! mount takes its place.

use crate::buffers::BufferPool;
use crate::device::{Channel, open_device};
use crate::fusermount::{self, Refusal};
use crate::kernel_options::KernelOptions;
use crate::read_window;
use crate::replace::replace_dead;
use crate::session::{self, Session, SessionConfig, SessionError};
use crate::table::FS_TYPE;
use crate::table::{mounted_type, mounts_on};
use crate::uring::{Rings, Transport, WhyDevice};
use nacre_rt::SharedMemory;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount, mount_remount, unmount};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::{debug, info};

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// First column of `df`: the address.
    pub source: String,
    /// The options that the kernel checks itself.
    pub kernel: KernelOptions,
    /// Offered to the kernel at FUSE_INIT.
    pub session: SessionConfig,
    /// Large requests are read into it, so that servers on this machine can look at written bytes where they are.
    pub shared_memory: Option<SharedMemory>,
}

/// The reason why a mount or unmount failed. The text is for the user.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("mount point {0} does not exist\n  hint: mkdir -p {0}")]
    NoSuchDirectory(String),
    #[error("mount point {0} is not a directory\n  hint: name a directory")]
    NotADirectory(String),
    #[error("mount point {0} is not empty; its files would be hidden\n  hint: name an empty directory")]
    NotEmpty(String),
    #[error("{path} is a mount point already ({what})\n  hint: {}", way_out(path, what))]
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
        "mounting is not permitted to this user\n  hint: install the package fuse3 (fusermount3), run as root, or give the \
         container --cap-add SYS_ADMIN"
    )]
    Forbidden,
    #[error("{0}\n  hint: an ordinary user can mount on a directory of his own")]
    Refused(String),
    #[error("unmounting {path} is not permitted to this user\n  hint: {}", who_may_unmount(path))]
    UnmountForbidden { path: String },
    #[error("{0} is not a mounted nacre file system\n  hint: `mount -t {FS_TYPE}` lists them")]
    NotMounted(String),
    #[error(
        "{path} is in use{by}\n  hint: close what uses it; or nacre umount --lazy {path} (gone when the last file is closed), \
         --force (open files and waiting calls fail)"
    )]
    Busy { path: String, by: String },
    #[error("only root may remount {path}\n  hint: nacre umount, then mount it with the new options")]
    RemountForbidden { path: String },
    #[error("files of {path} are open for writing\n  hint: close them, then remount it read-only")]
    OpenForWriting { path: String },
    #[error("{what} {path} failed")]
    Os { what: &'static str, path: String, source: Errno },
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Only nacre mounts may be unmounted: the user may have typed `/`.
fn way_out(path: &str, what: &str) -> String {
    match what.starts_with(FS_TYPE) {
        true => format!("nacre umount {path}, or name another directory"),
        false => "name an empty directory, or one that does not exist yet: /mnt/nacre".to_owned(),
    }
}
fn who_may_unmount(path: &str) -> String {
    match rustix::process::geteuid().is_root() {
        true => "it needs the capability SYS_ADMIN, which this container was not given".to_owned(),
        false => format!("sudo nacre umount {path}"),
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// An existing mount: its descriptor and the negotiated session. Dropping it does not unmount.
pub struct Mounted {
    /// The mount point, as given.
    pub path: PathBuf,
    /// Reads requests and writes replies.
    pub channel: Arc<Channel>,
    /// Agreed with the kernel.
    pub session: Session,
    /// Chosen at the start of the mount; it does not change.
    pub transport: Transport,
    /// To be started; requests wait for them.
    rings: Option<Rings>,
}
impl Mounted {
    pub(crate) fn take_rings(&mut self) -> Option<Rings> {
        self.rings.take()
    }
}

/// Mounts on `path`. Accesses to it wait from now on until requests are served.
///
/// # Errors
/// A sentence for the user; the file system is not mounted then.
pub fn mount_fuse(path: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let (path, device) = match one_layer(path)? {
        MountPoint::Empty(path) => (path.clone(), connect(&path, options)?),
        MountPoint::Dead(path) => (path.clone(), connect_instead(&path, options)?),
    };
    let channel = Arc::new(Channel::new(device, Arc::new(BufferPool::new(options.shared_memory.clone()))));
    let (rings, why) = match options.session.rings.then(|| Rings::prepare(&channel)) {
        Some(Ok(rings)) => (Some(rings), WhyDevice::Unknown),
        Some(Err(why)) => (None, why),
        None => (None, WhyDevice::NotWanted),
    };
    match session::begin(&channel, SessionConfig { rings: rings.is_some(), ..options.session }) {
        Ok(session) => {
            let rings = rings.filter(|_| session.has_rings());
            let transport = match &rings {
                Some(rings) => Transport::Rings { threads: rings.threads() },
                None => Transport::Device(why),
            };
            read_window::widen(&path);
            info!(path = %path.display(), minor = session.minor, flags = format_args!("{:#x}", session.flags), %transport, "mounted");
            Ok(Mounted { path, channel, session, transport, rings })
        }
        Err(e) => {
            let _ = detach(&path);
            Err(e.into())
        }
    }
}

fn connect(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    if !fusermount::is_used() {
        return mount_as_root(path, options);
    }
    fusermount::mount(path, &options.source, options.kernel).map_err(|e| match e {
        Refusal::NotInstalled => MountError::Forbidden,
        Refusal::Said(why) => MountError::Refused(why),
        Refusal::Os(source) => MountError::Os { what: "mounting on", path: text(path), source },
    })
}
/// The same where a dead mount is.
fn connect_instead(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    if !fusermount::is_used() {
        let device = device()?;
        match replace_dead(path, &device, &options.source, options.kernel) {
            Ok(()) => {
                info!(path = %path.display(), "mounted in the place of a dead mount, whose server was killed");
                return Ok(device);
            }
            Err(error) => debug!(path = %path.display(), %error, "cannot mount beneath the dead mount"),
        }
    }
    if let MountPoint::Dead(path) = look_at(path)? {
        clear_dead(&path)?;
    }
    connect(path, options)
}

fn mount_as_root(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = device()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let fd = rustix::fd::AsRawFd::as_raw_fd(&device);
    let data = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},allow_other,default_permissions");
    let data = CString::new(data).expect("numbers and words have no NUL");
    let flags = options.kernel.flags();
    mount(options.source.as_str(), path, FS_TYPE, flags, Some(data.as_c_str())).map_err(|e| match e {
        Errno::PERM | Errno::ACCESS => MountError::Forbidden,
        Errno::NODEV => MountError::NoFuse,
        source => MountError::Os { what: "mounting on", path: text(path), source },
    })?;
    Ok(device)
}

/// Removes a mount from its directory, although it may be in use.
fn detach(path: &Path) -> rustix::io::Result<()> {
    match fusermount::is_used() {
        true => fusermount::unmount(path, true),
        false => unmount(path, UnmountFlags::DETACH),
    }
}

/// Gives an existing nacre mount on `path` these options.
///
/// # Errors
/// A sentence for the user; the options are as they were.
pub fn remount(path: &Path, options: KernelOptions) -> Result<(), MountError> {
    mount_remount(path, options.flags(), "").map_err(|e| match e {
        Errno::PERM | Errno::ACCESS => MountError::RemountForbidden { path: text(path) },
        Errno::BUSY => MountError::OpenForWriting { path: text(path) },
        source => MountError::Os { what: "remounting", path: text(path), source },
    })
}

fn device() -> Result<OwnedFd, MountError> {
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
    drop(device()?);
    // The kernel refuses it, too, but only after everything else was made.
    if fusermount::is_used() && !fusermount::is_there() { Err(MountError::Forbidden) } else { Ok(()) }
}

/// Checks that `path` can be mounted on: it is an empty directory, or has a dead nacre mount, which stays.
///
/// # Errors
/// A sentence for the user.
pub fn check_mount_point(path: &Path) -> Result<(), MountError> {
    look_at(path).map(drop)
}

/// A place that can be mounted on, by its real path.
enum MountPoint {
    Empty(PathBuf),
    /// A nacre mount is there whose server has ended.
    Dead(PathBuf),
}

fn look_at(path: &Path) -> Result<MountPoint, MountError> {
    // Checks the mount table first: an access to a mount whose server hangs would hang.
    let place = place_of(path);
    let Some(what) = mounted_type(&place) else { return check_directory(path).map(MountPoint::Empty) };
    match root_state(&place) {
        RootState::Dead if what == FS_TYPE => Ok(MountPoint::Dead(place)),
        RootState::Dead => Err(MountError::DeadMount { path: text(path), what }),
        RootState::Replies => Err(MountError::AlreadyMounted { path: text(path), what }),
        RootState::Silent => {
            let what = format!("{what}, its server does not reply");
            Err(MountError::AlreadyMounted { path: text(path), what })
        }
    }
}
/// The same after dead mounts on top of another one have been removed.
fn one_layer(path: &Path) -> Result<MountPoint, MountError> {
    const LAYERS_MAX: u32 = 8;
    for _ in 0..LAYERS_MAX {
        match look_at(path)? {
            MountPoint::Dead(place) if mounts_on(&place) > 1 => clear_dead(&place)?,
            found => return Ok(found),
        }
    }
    Err(MountError::DeadMount { path: text(path), what: FS_TYPE.to_owned() })
}

/// Checks that it is an empty directory without a mount on it.
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

/// The real path of `path` without an access to a mount on it.
fn place_of(path: &Path) -> PathBuf {
    /// As many symbolic links as the kernel follows.
    const LINKS_MAX: u32 = 40;
    let mut place = in_real_directory(path);
    for _ in 0..LINKS_MAX {
        if mounted_type(&place).is_some() {
            break;
        }
        let Ok(to) = std::fs::read_link(&place) else { break };
        // A relative link starts at its own directory.
        place = in_real_directory(&place.parent().unwrap_or(&place).join(to));
    }
    place
}
/// The path with its last part as it is, and without symbolic links before that.
fn in_real_directory(path: &Path) -> PathBuf {
    let place = match (path.parent().filter(|p| !p.as_os_str().is_empty()), path.file_name()) {
        (Some(parent), Some(name)) => parent.canonicalize().map(|p| p.join(name)),
        (None, Some(name)) => std::env::current_dir().map(|p| p.join(name)),
        _ => Ok(path.to_owned()),
    };
    place.unwrap_or_else(|_| path.to_owned())
}

enum RootState {
    Replies,
    /// The server has ended, the mount is left.
    Dead,
    Silent,
}

/// Accesses the root of a mount, on a thread of its own, because the call may never return.
fn root_state(path: &Path) -> RootState {
    const REPLY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);
    let (tx, rx) = std::sync::mpsc::sync_channel(1);
    let asked = path.to_owned();
    let thread = std::thread::Builder::new().name("mount-check".to_owned()).spawn(move || {
        // The kernel may have the attributes in its cache: it must ask.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
        let stat = statx(CWD, &asked, flags, StatxFlags::BASIC_STATS);
        // There is no receiver after the timeout.
        let _ = tx.send(stat.map(drop));
    });
    if thread.is_err() {
        return RootState::Silent;
    }
    match rx.recv_timeout(REPLY_TIMEOUT) {
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)) => RootState::Dead,
        Ok(_) => RootState::Replies,
        Err(_) => RootState::Silent,
    }
}

/// Removes a nacre mount whose server has ended.
fn clear_dead(place: &Path) -> Result<(), MountError> {
    detach(place).map_err(|source| MountError::Os {
        what: "clearing the dead mount on",
        path: text(place),
        source,
    })?;
    info!(path = %place.display(), "cleared a mount point left by a server that was killed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        check_mount_point(dir.path()).unwrap();
    }
}
