//! The log of kept writes of an `up`: a file in its data directory (`nacre_client`, `kept_log`).
//!
//! Not here: the memory in which it names the places of long writes (`kept_memory.rs`).
//!
//! The file of a process that was killed stays. The next `up` reads it before it serves its OSTs, which execute what is left
//! in it, and deletes it when they are up. Its space is allocated when it is made, so that no write to it can fail for want
//! of space; where that does not help, there is no log, and writes are not kept. It is never synced: after a loss of the
//! machine its content is ignored.

use crate::process::kept_memory::{self, Memory};
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use nacre_client::{KeptLogConfig, KeptMemory, SEGMENT_BYTES, SEGMENTS, kept_writes};
use nacre_node::{FileId, Store, StoreDone, StoreError, StoreOp};
use nacre_rt::{SharedMemory, kept_bytes};
use nacre_target::KeptWrites;
use nacre_types::{Boot, KeptPlace, OstIndex, TargetKind, TargetName};
use nacre_wire::ost::{STREAMS_FROM, Write};
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of the files: `kept-<number>.log`.
pub(super) const PREFIX: &str = "kept-";
pub(super) const SUFFIX: &str = ".log";
const MODE: u32 = 0o600;
/// File systems on which an overwrite may fail for want of space: btrfs, ZFS, bcachefs.
const COPY_ON_WRITE: [u64; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];
/// A segment begins with its first record: without it, the rest is not read.
const FIRST_BYTES: usize = 4096;

/// The present start of this machine.
pub(crate) fn boot() -> Result<Boot> {
    const ID: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(ID).with_context(|| format!("cannot read {ID}"))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).with_context(|| format!("{ID} has no number"))?;
    Ok(Boot { high: (number >> 64) as u64, low: number as u64 })
}

/// The files that former processes have left in a data directory, with the writes that are left in them.
pub(crate) struct LeftLogs {
    files: Vec<PathBuf>,
    for_mdts: Vec<KeptWrites>,
    writes: BTreeMap<OstIndex, Vec<KeptWrites>>,
}

impl LeftLogs {
    /// Reads the files. The caller has the stores of all targets, so that no other process writes them.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let boot = boot()?;
        let mut left = Self { files: Vec::new(), for_mdts: Vec::new(), writes: BTreeMap::new() };
        for path in paths(dir)? {
            let kept = left_in(&path, boot).with_context(|| format!("cannot read {}", path.display()))?;
            left.files.extend(kept_memory::path_of(&path));
            left.files.push(path);
            let Some(kept) = kept else { continue };
            let mut of_osts: BTreeMap<OstIndex, Vec<_>> = BTreeMap::new();
            for (ost, write, data) in kept.writes {
                of_osts.entry(ost).or_default().push((write, data));
            }
            for (ost, writes) in of_osts {
                let kept = KeptWrites { log: kept.log, writes };
                left.for_mdts.push(kept.clone());
                left.writes.entry(ost).or_default().push(kept);
            }
        }
        Ok(left)
    }
    /// Takes the writes to a target. An MDT is given all: it stores those of small files whose bytes it has.
    pub(crate) fn take(&mut self, target: &TargetName) -> Vec<KeptWrites> {
        match target {
            TargetName::Of { kind: TargetKind::Ost, index, .. } => {
                self.writes.remove(&OstIndex(*index)).unwrap_or_default()
            }
            TargetName::Of { kind: TargetKind::Mdt, .. } => self.for_mdts.clone(),
            _ => Vec::new(),
        }
    }
    /// All OSTs of this process have executed their writes.
    pub(crate) fn delete(self) {
        for (ost, kept) in self.writes {
            let writes: usize = kept.iter().map(|kept| kept.writes.len()).sum();
            tracing::error!(
                ost = ost.0,
                writes,
                "writes that a killed process had acknowledged are lost, except those of small files that the MDT has: \
                 their OST is served by another process"
            );
        }
        for path in self.files {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "cannot delete a log whose writes were executed");
                }
                _ => {}
            }
        }
    }
}

/// Whether a process has left writes in this data directory that its OSTs may not have.
pub(crate) fn has_left_writes(dir: &Path) -> Result<bool> {
    Ok(!LeftLogs::read(dir)?.writes.is_empty())
}

fn paths(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", dir.display()))?;
        let name = entry.file_name();
        let is_log = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        paths.extend(is_log.then(|| entry.path()));
    }
    paths.sort();
    Ok(paths)
}

fn segments(path: &Path) -> std::io::Result<Vec<Bytes>> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let segment = |number: u64| {
        let start = number * SEGMENT_BYTES;
        let mut bytes = vec![0; SEGMENT_BYTES.min(len.saturating_sub(start)) as usize];
        file.read_exact_at(&mut bytes, start)?;
        Ok(Bytes::from(bytes))
    };
    (0..SEGMENTS).map(segment).collect()
}

/// Deletes the memory of the logs in a data directory that is being destroyed.
pub(crate) fn delete_memory_in(dir: &Path) -> Result<()> {
    for memory in paths(dir)?.iter().filter_map(|log| kept_memory::path_of(log)) {
        match std::fs::remove_file(&memory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", memory.display()));
            }
            _ => {}
        }
    }
    Ok(())
}
/// What is left in a log.
fn left_in(log: &Path, boot: Boot) -> Result<Option<nacre_client::KeptWrites>> {
    let memory = kept_memory::open(log);
    let mut lost = 0u64;
    let mut placed =
        |place: KeptPlace, len: u64| match memory.as_ref().map(|file| kept_bytes(file, place, len)) {
            Some(Ok(bytes)) => bytes,
            Some(Err(_)) | None => {
                lost += 1;
                None
            }
        };
    let kept = kept_writes(&segments(log)?, boot, &mut placed);
    if lost > 0 {
        tracing::error!(log = %log.display(), writes = lost,
            "writes that a killed process had acknowledged may be lost: the memory in which their bytes were cannot be read");
    }
    Ok(kept)
}

/// A new log.
pub(crate) struct LogFile {
    file: File,
    path: PathBuf,
    memory: Option<Arc<Memory>>,
}

impl LogFile {
    /// Makes a file and allocates its space.
    pub(crate) fn create(dir: &Path) -> Result<Arc<Self>> {
        let path = dir.join(format!("{PREFIX}{:016x}{SUFFIX}", nacre_rt::random()));
        // It has bytes of files, which not every user of this machine may read.
        let file = File::options().read(true).write(true).create_new(true).mode(MODE).open(&path)?;
        let mut log = Self { file, path, memory: None };
        if COPY_ON_WRITE.contains(&(rustix::fs::fstatfs(&log.file)?.f_type as u64)) {
            log.delete();
            bail!("the file system of {} may need space for each overwrite", dir.display());
        }
        match fallocate(&log.file, FallocateFlags::empty(), 0, SEGMENTS * SEGMENT_BYTES) {
            Ok(()) => {
                log.memory = Memory::create(&log.path)
                    .inspect_err(|error| {
                        tracing::info!("long writes are not kept: no memory for them: {error:#}")
                    })
                    .ok()
                    .map(Arc::new);
                Ok(Arc::new(log))
            }
            Err(error) => {
                log.delete();
                Err(error.into())
            }
        }
    }
    /// The writes that are left in it.
    pub(crate) fn left_writes(&self) -> Result<Vec<(OstIndex, Write, Vec<Bytes>)>> {
        let left = left_in(&self.path, boot()?)?;
        if let Some(memory) = &self.memory {
            memory.was_read();
        }
        Ok(left.map(|kept| kept.writes).unwrap_or_default())
    }
    /// What the mount needs to know of it.
    pub(crate) fn config(&self) -> Result<KeptLogConfig> {
        let memory = self.memory.clone().map(|memory| memory as Arc<dyn KeptMemory>);
        Ok(KeptLogConfig { boot: boot()?, memory, streams_from: STREAMS_FROM })
    }
    /// The memory in which requests are to be received.
    pub(crate) fn memory(&self) -> Option<SharedMemory> {
        self.memory.as_ref().map(|memory| memory.shared())
    }
    /// The mount has ended, and everything is at the OSTs.
    pub(crate) fn delete(&self) {
        for path in self.memory.iter().map(|memory| memory.path()).chain([self.path.as_path()]) {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "cannot delete the log of kept writes");
            }
        }
    }
    fn write(&self, file: FileId, offset: u64, data: &[Bytes]) -> Result<StoreDone, StoreError> {
        let FileId::Log(segment) = file else { return Err(StoreError::Unsupported) };
        nacre_osd_fs::write_all(self.file.as_fd(), segment * SEGMENT_BYTES + offset, data)
            .map_err(|error| StoreError::Device(format!("writing {}: {error}", self.path.display())))?;
        Ok(StoreDone::Unit)
    }
}

impl Store for LogFile {
    fn execute(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        match op {
            StoreOp::Create { file, .. } => self.write(file, 0, &[Bytes::from_static(&[0; FIRST_BYTES])]),
            StoreOp::Write { file, offset, data } => self.write(file, offset, &data),
            _ => Err(StoreError::Unsupported),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_new_log_is_empty_and_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogFile::create(dir.path()).unwrap();
        let found = std::fs::metadata(&log.path).unwrap();
        assert_eq!((found.permissions().mode() & 0o777, found.len()), (MODE, SEGMENTS * SEGMENT_BYTES));
        assert_eq!(log.left_writes().unwrap(), []);
        assert!(!has_left_writes(dir.path()).unwrap());
        LeftLogs::read(dir.path()).unwrap().delete();
        assert_eq!(paths(dir.path()).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_segment_lies_behind_the_one_before_and_is_emptied_by_its_first_block() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogFile::create(dir.path()).unwrap();
        let write = |segment, offset, byte: &'static [u8]| {
            let data = vec![Bytes::from_static(byte), Bytes::from_static(b"!")];
            log.execute(StoreOp::Write { file: FileId::Log(segment), offset, data })
        };
        assert_eq!(write(1, 0, b"one"), Ok(StoreDone::Unit));
        assert_eq!(write(3, 5, b"three"), Ok(StoreDone::Unit));
        let found = segments(&log.path).unwrap();
        assert_eq!((&found[1][..5], &found[3][..12]), (&b"one!\0"[..], &b"\0\0\0\0\0three!\0"[..]));
        let create = StoreOp::Create { file: FileId::Log(1), len: SEGMENT_BYTES };
        assert_eq!(log.execute(create), Ok(StoreDone::Unit));
        assert_eq!(&segments(&log.path).unwrap()[1][..5], [0; 5]);
        assert_eq!(log.execute(StoreOp::Space), Err(StoreError::Unsupported));
    }
}
