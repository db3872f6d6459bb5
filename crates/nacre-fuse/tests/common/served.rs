//! An in-memory file system that is mounted for a test.

use super::{eventually, memfs::MemFs, solo::Solo, unmount};
use nacre_client::Stale;
use nacre_fuse::abi::op;
use nacre_fuse::{MountOptions, SessionConfig, Transport, Unmount, mount_fuse, unmount_fuse};
use nacre_types::Fid;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// The mount. It is unmounted at the end.
pub struct Served {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
    solo: Option<Solo<MemFs>>,
}

pub fn options(rings: bool) -> MountOptions {
    MountOptions {
        source: "memory".to_owned(),
        kernel: nacre_fuse::KernelOptions::default(),
        shared_memory: None,
        session: SessionConfig { readdirplus: true, rings, ..SessionConfig::default() },
    }
}

impl Served {
    /// `rings`: over io_uring. `None`, and a line that says why: not possible on this machine.
    pub fn new(rings: bool) -> Option<Self> {
        if !rustix::process::getuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: needs root and /dev/fuse");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("fuse-layer-").tempdir().unwrap();
        let mut mounted = mount_fuse(dir.path(), &options(rings)).unwrap();
        let path = mounted.path.clone();
        let solo = Solo::serve(&mut mounted, MemFs::new);
        let served = Self { _dir: dir, path, solo: Some(solo) };
        if rings && !matches!(mounted.transport, Transport::Rings { .. }) {
            eprintln!("skipped: {}", mounted.transport);
            return None;
        }
        Some(served)
    }
    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
    pub fn solo(&self) -> &Solo<MemFs> {
        self.solo.as_ref().unwrap()
    }

    /// Requests so far that ask for names or attributes.
    pub fn questions(&self) -> u64 {
        let of = [op::LOOKUP, op::GETATTR, op::STATX, op::READDIR, op::READDIRPLUS];
        self.solo().ask_door(move |door| of.iter().map(|o| door.stats().requests(*o)).sum())
    }
    pub fn ino(&self, path: &str) -> u64 {
        std::fs::metadata(self.at(path)).unwrap().ino()
    }
    /// A call on another thread, whose reply is held back; returns when the reply has been decided.
    pub fn held<R: Send + 'static>(
        &self,
        operations: &'static [u32],
        call: impl FnOnce() -> R + Send + 'static,
    ) -> JoinHandle<R> {
        self.solo().hold_replies(operations);
        let before = self.solo().held_replies();
        let thread = std::thread::spawn(call);
        eventually("its reply is held back", || self.solo().held_replies() > before);
        thread
    }
    /// The kernel is told to forget; returns when that is complete.
    pub fn forget(&self, stale: Vec<Stale>) {
        let before = self.forgotten();
        self.solo().call(move |fs| fs.forget(stale));
        eventually("the kernel has forgotten", || self.forgotten() > before);
    }
    pub fn forgotten(&self) -> u32 {
        self.solo().ask(|fs| fs.forgotten.get())
    }
    pub fn replace(&self, file: &'static str) -> u64 {
        self.solo().ask(move |fs| fs.replace_behind(Fid::ROOT, file.as_bytes()).ino())
    }
    pub fn counter(&self, name: &str) -> u64 {
        let text = self.solo().ask_door(|door| door.kernel_cache_text());
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }
}
impl Drop for Served {
    fn drop(&mut self) {
        if let Some(solo) = self.solo.take() {
            if std::thread::panicking() {
                drop(unmount_fuse(&self.path, Unmount::Force));
            } else {
                unmount(&self.path);
            }
            solo.stop();
        }
    }
}
