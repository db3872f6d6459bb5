//! The data directory of `nacre up`: its marker file, and a directory below it for each target.
//!
//! The marker file is written before the first target is formatted and again after the last one. From then on a missing
//! target directory is an error: it is lost and must not be formatted anew, unless the MGS has recorded that an
//! administrator admits an empty OST in its place.

use crate::output;
use crate::process::marker::{MARKER, Marker};
use crate::process::store;
use crate::process::target_dir::{self, Served};
use anyhow::{Context as _, Result, bail, ensure};
use nacre_osd_fs::DirLock;
use nacre_types::{FsName, TargetKind, TargetName};
use std::path::{Path, PathBuf};

pub(crate) const DEFAULT_MOUNT: &str = "/mnt/nacre";
/// Space that an empty target takes: the first segments of its log, and its ballast.
const TARGET_BYTES_MIN: u64 = 100 << 20;
/// The file of a target that a process which serves it has locked.
const LOCK: &str = "lock";
/// What a new file system of the host contains.
const LOST_AND_FOUND: &str = "lost+found";

/// A data directory with its marker file.
pub(crate) struct DataDir {
    path: PathBuf,
    marker: Marker,
    is_new: bool,
}

impl DataDir {
    /// Opens a data directory. A name or a number of OSTs that differs from the existing one is refused.
    pub(crate) fn open(path: &Path, wanted_name: Option<&FsName>, wanted_osts: Option<u32>) -> Result<Self> {
        let marker = Marker::read(path)?;
        let (fsname, osts) = (marker.name()?, marker.osts());
        let other_osts =
            wanted_osts.filter(|wanted| *wanted != osts).map(|wanted| format!("--osts {wanted}"));
        let other_name = wanted_name.filter(|wanted| **wanted != fsname);
        if let Some(option) = other_name.map(|wanted| format!("--fsname {wanted}")).or(other_osts) {
            bail!(
                "{option}: {} holds the file system {fsname} with {osts} OSTs already, and that cannot be changed\n\
                 hint: leave the option out; or make a new file system: another mount point, --dir with a new directory, or \
                 nacre destroy first",
                path.display()
            );
        }
        let is_new = !marker.is_complete();
        Ok(Self { path: path.to_path_buf(), marker, is_new })
    }

    /// Makes the data directory of a new file system. An existing directory must be empty.
    pub(crate) fn create(path: &Path, name: &FsName, osts: u32) -> Result<Self> {
        ensure!(
            path.is_dir() || path.symlink_metadata().is_err(),
            "{} is not a directory\nhint: --dir with a new directory",
            path.display()
        );
        std::fs::create_dir_all(path)
            .with_context(|| format!("cannot make {}\nhint: --dir DIR", path.display()))?;
        let empty = std::fs::read_dir(path)?.next().is_none();
        if let Some(lost) = Marker::loss_in(path) {
            bail!("{lost}");
        }
        ensure!(
            empty,
            "{} is not empty and was not made by `nacre up`\nhint: --dir with a new directory",
            path.display()
        );
        let targets = osts + 2;
        let needed = u64::from(targets) * TARGET_BYTES_MIN;
        let space = rustix::fs::statvfs(path)?;
        let available = space.f_bavail.saturating_mul(space.f_frsize);
        if available < needed {
            // Still empty.
            drop(std::fs::remove_dir(path));
            bail!(
                "{} has no space for a new file system: {} are available, {targets} targets need {}\nhint: --dir on a \
                 larger disk, or fewer --osts",
                path.display(),
                output::human_bytes(available),
                output::human_bytes(needed)
            );
        }
        let marker = Marker::new(name, osts, false);
        marker.write(path)?;
        Ok(Self { path: path.to_path_buf(), marker, is_new: true })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
    /// Whether it was made by this process, or by one that did not finish it.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }
    pub(crate) fn name(&self) -> Result<FsName> {
        self.marker.name()
    }
    pub(crate) fn osts(&self) -> u32 {
        self.marker.osts()
    }

    /// Records that every target was formatted.
    pub(crate) fn set_complete(&mut self) -> Result<()> {
        let complete = Marker::new(&self.name()?, self.osts(), true);
        if std::fs::read(self.path.join(MARKER)).ok().as_deref() == Some(&complete.to_json()?) {
            return Ok(());
        }
        self.marker = complete;
        self.marker.write(&self.path)
    }

    /// Opens the target in the subdirectory `sub`. It is formatted if the file system was never complete, or if
    /// `is_given_up` says that an administrator has admitted an empty target in its place.
    pub(crate) fn target(
        &self,
        sub: &str,
        name: &TargetName,
        mgs: &[String],
        is_given_up: impl FnOnce() -> Result<bool>,
    ) -> Result<Served> {
        let dir = self.path.join(sub);
        if !dir.join("super").exists() {
            if self.marker.is_complete() {
                ensure!(
                    is_given_up()?,
                    "{name} is missing: {} holds a part of the file system and is not there (or has lost its file `super`)\n\
                     hint: {}",
                    dir.display(),
                    ways_for_missing(&self.path, name)
                );
                output::note(&format!(
                    "{name}: formats an empty target in {}, in place of the lost one",
                    dir.display()
                ));
            }
            // New, or left half formatted by an `up` that was killed. A store that has only lost its label is refused.
            let store = store::format_dir(&dir, false)?;
            store::format(&store, name, mgs, false)?;
            return Ok(Served { name: name.clone(), store, mgs_nodes: mgs.to_vec(), place: Some(dir) });
        }
        let served = target_dir::open(&dir)?;
        if served.name != *name {
            bail!(
                "{} holds {}, not {name}\nhint: nacre status; is it the right --dir?",
                dir.display(),
                served.name
            );
        }
        Ok(served)
    }
}

/// An absolute path, computed without a system call on a file system that may not reply.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    Ok(std::path::absolute(path)?)
}

/// The data directory that belongs to a mount point.
pub(crate) fn default_dir(mount: &Path) -> Result<PathBuf> {
    let base = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib/nacre")
    } else {
        let home = std::env::var_os("HOME").context("HOME is not set\nhint: --dir DIR")?;
        PathBuf::from(home).join(".local/share/nacre")
    };
    let name = absolute(mount)?.to_string_lossy().trim_matches('/').replace('/', "-");
    Ok(base.join(name))
}

pub(crate) fn is_data_dir(dir: &Path) -> bool {
    dir.join(MARKER).is_file()
}

/// A sentence about a directory that would be a data directory if the file that says so had not been lost.
pub(crate) fn lost_marker(dir: &Path) -> Option<String> {
    Marker::loss_in(dir)
}

/// The file system in a data directory.
pub(crate) fn name_of(dir: &Path) -> Result<FsName> {
    Marker::read(dir)?.name()
}

/// Every target of a data directory, with its directory.
pub(crate) fn target_dirs(dir: &Path) -> Result<Vec<(TargetName, PathBuf)>> {
    let marker = Marker::read(dir)?;
    let all = targets(&marker.name()?, marker.osts()).into_iter();
    Ok(all.map(|(name, sub)| (name, dir.join(sub))).collect())
}

/// Whether the directory of a target is absent or empty.
pub(crate) fn is_missing(target: &Path) -> bool {
    match std::fs::read_dir(target) {
        Ok(mut entries) => entries.all(|entry| entry.is_ok_and(|e| e.file_name() == LOST_AND_FOUND)),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// The hint for a target that is missing in the data directory `dir`.
pub(crate) fn ways_for_missing(dir: &Path, name: &TargetName) -> String {
    match name.kind() {
        TargetKind::Ost => format!(
            "put it back; or, if it is lost for good, give up what files have on it and start again with an empty one: \
             nacre target replace {name} --mgs {}",
            dir.display()
        ),
        TargetKind::Mgs | TargetKind::Mdt => "put it back; or begin anew with nacre destroy".to_owned(),
    }
}

/// Takes the lock of every target in a data directory: no process serves one of them, or starts to, until they are given
/// back. The targets are looked for, because the marker file may be damaged.
///
/// # Errors
/// The one that is served now, with the process that does.
pub(crate) fn lock_all(dir: &Path) -> Result<Vec<DirLock>> {
    let mut locks = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let target = entry?.path();
        if target.join(LOCK).is_file() {
            locks.push(store::lock_dir(&target)?);
        }
    }
    Ok(locks)
}

/// Every target of a file system: name and subdirectory of the data directory.
pub(crate) fn targets(fs: &FsName, osts: u32) -> Vec<(TargetName, String)> {
    let of = |kind, index| TargetName::Of { fs: fs.clone(), kind, index };
    let mut list = vec![(TargetName::Mgs, "mgs".to_owned()), (of(TargetKind::Mdt, 0), "mdt0".to_owned())];
    list.extend((0..osts).map(|i| (of(TargetKind::Ost, i), ost_dir(i))));
    list
}

/// The subdirectory of an OST.
pub(crate) fn ost_dir(index: u32) -> String {
    format!("ost{index}")
}
