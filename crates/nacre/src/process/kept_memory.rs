//! The memory of a log of kept writes: a file in /dev/shm, in which long writes are received from the kernel. The log, which has
//! the same number and whose inode is in the name, names only their places there (`nacre_net`, `shared_memory/kept.rs`).
//!
//! It has to survive the process, as the log does, so there is none where it might not: a session of an ordinary user takes such
//! files with it when it ends, and a container its /dev/shm. And there is none where writes past the page cache of the store
//! do not pay: then streams go through that cache, which survives the process, too.

use crate::process::kept_log::{PREFIX, SUFFIX};
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use nacre_client::KeptMemory;
use nacre_rt::SharedMemory;
use nacre_types::KeptPlace;
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const DIR: &str = "/dev/shm";
const TMPFS: u64 = 0x0102_1994;
const MODE: u32 = 0o600;
/// `yes` and `no` decide whether streams are kept; otherwise the speed of the device does.
const KEEP_STREAMS: &str = "NACRE_KEEP_STREAMS";
/// The first pid name space of a machine: its processes are in no container.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Where the memory of an existing log is. A copy of the log has another inode: it must not take the memory away.
pub(crate) fn path_of(log: &Path) -> Option<PathBuf> {
    let number = log.file_name()?.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let inode = log.metadata().ok()?.ino();
    Some(Path::new(DIR).join(format!("nacre-{PREFIX}{number}-{inode:x}")))
}
/// What a former process has left. `None`: there is none, or it belongs to another user, who may make files there, too.
pub(crate) fn open(log: &Path) -> Option<File> {
    let path = path_of(log)?;
    let file = File::options().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path).ok()?;
    let found = file.metadata().ok()?;
    (found.is_file() && found.uid() == rustix::process::geteuid().as_raw()).then_some(file)
}

/// The memory of a new log.
#[derive(Debug)]
pub(crate) struct Memory {
    shared: SharedMemory,
    path: PathBuf,
}

impl Memory {
    /// Makes it, if that is safe and pays.
    pub(crate) fn create(log: &Path) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "only root has memory that survives a session");
        let wanted = std::env::var_os(KEEP_STREAMS);
        match wanted.as_deref().and_then(OsStr::to_str) {
            Some("yes") => {}
            Some("no") => anyhow::bail!("{KEEP_STREAMS} is no"),
            _ => {
                let name_space = std::fs::read_link("/proc/self/ns/pid")?;
                ensure!(name_space == Path::new(FIRST_PID_NAMESPACE), "a container ends with its {DIR}");
                let store = log.parent().context("the log has no directory")?;
                ensure!(
                    nacre_osd_fs::pays_past_cache(store)?,
                    "writes past the page cache do not pay on this device"
                );
            }
        }
        ensure!(rustix::fs::statfs(DIR)?.f_type as u64 == TMPFS, "{DIR} is no tmpfs");
        let path = path_of(log).context("the log has no number")?;
        let file = File::options().read(true).write(true).create_new(true).mode(MODE).open(&path)?;
        match SharedMemory::in_file(file) {
            Ok(shared) => Ok(Self { shared, path }),
            Err(error) => {
                drop(std::fs::remove_file(&path));
                Err(error.into())
            }
        }
    }
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
    pub(crate) fn shared(&self) -> SharedMemory {
        self.shared.clone()
    }
    /// Nobody needs what was in it any more.
    pub(crate) fn was_read(&self) {
        self.shared.pause(false);
    }
}

impl KeptMemory for Memory {
    fn place_of(&self, bytes: &Bytes) -> Option<KeptPlace> {
        self.shared.place_of(bytes)
    }
    fn log_ended(&self) {
        self.shared.pause(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_only_if_this_user_has_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join(format!("{PREFIX}{:016x}{SUFFIX}", nacre_rt::random()));
        std::fs::write(&log, "").unwrap();
        let path = path_of(&log).unwrap();
        assert!(path.starts_with(DIR) && path_of(&dir.path().join("nacre.log")).is_none());
        // The log of a data directory that was copied, and of one that was moved.
        let (copied, moved) = (dir.path().join("copied"), dir.path().join("moved"));
        let name = log.file_name().unwrap();
        std::fs::create_dir(&copied).unwrap();
        std::fs::copy(&log, copied.join(name)).unwrap();
        assert_ne!(path_of(&copied.join(name)).unwrap(), path);
        std::fs::create_dir(&moved).unwrap();
        std::fs::rename(&log, moved.join(name)).unwrap();
        let log = moved.join(name);
        assert_eq!(path_of(&log).unwrap(), path);
        if !Path::new(DIR).is_dir() {
            return;
        }
        assert!(open(&log).is_none());
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(open(&log).is_none());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(open(&log).is_some());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
            assert!(open(&log).is_none());
        }
        std::fs::remove_file(&path).unwrap();
    }
}
