//! A store that keeps changes in memory and never writes them: tools open a stopped target with it without changing it.
//!
//! Small files (superblock, mark, log) are copied at the first access; runs and blobs are read where they are. Changes go
//! to memory and end with the value.

use nacre_node::store::{FileId, FileKind, Store, StoreDone, StoreError, StoreOp};
use nacre_osd_mem::MemStore;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most bytes that an opening may write: a flush of what the log held.
const TOP_BYTES: u64 = 1 << 30;
const PIECE_BYTES: u32 = 1 << 20;

pub(crate) struct Overlay {
    base: Arc<dyn Store>,
    top: MemStore,
    /// Files of the base that are read there.
    below: BTreeMap<FileId, u64>,
}

impl Overlay {
    /// # Errors
    /// Those of reading the base.
    pub(crate) fn new(base: Arc<dyn Store>) -> Result<Self, StoreError> {
        let top = MemStore::new(TOP_BYTES);
        for file in [FileId::Super, FileId::Mark] {
            if let StoreDone::Len(Some(len)) = base.execute(StoreOp::Len { file })? {
                let data = read_all(&*base, file, len)?;
                top.execute(StoreOp::Replace { file, data: data.into() })?;
            }
        }
        for (file, len) in list(&*base, FileKind::Log)? {
            top.execute(StoreOp::Create { file, len })?;
            let data = vec![read_all(&*base, file, len)?.into()];
            top.execute(StoreOp::Write { file, offset: 0, data })?;
        }
        let below = list(&*base, FileKind::Run)?.into_iter().collect();
        Ok(Self { base, top, below })
    }
}

fn list(store: &dyn Store, kind: FileKind) -> Result<Vec<(FileId, u64)>, StoreError> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        match store.execute(StoreOp::List { kind, after, limit: 1024 })? {
            StoreDone::List(files) if !files.is_empty() => {
                after = files.last().copied();
                for file in files {
                    if let StoreDone::Len(Some(len)) = store.execute(StoreOp::Len { file })? {
                        all.push((file, len));
                    }
                }
            }
            _ => return Ok(all),
        }
    }
}

fn read_all(store: &dyn Store, file: FileId, len: u64) -> Result<Vec<u8>, StoreError> {
    let mut data = Vec::new();
    while (data.len() as u64) < len {
        match store.execute(StoreOp::Read { file, offset: data.len() as u64, len: PIECE_BYTES })? {
            StoreDone::Bytes(bytes) if !bytes.is_empty() => data.extend_from_slice(&bytes),
            _ => break,
        }
    }
    Ok(data)
}

impl Store for Overlay {
    fn execute(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        match &op {
            StoreOp::Read { file, .. } | StoreOp::Len { file } if self.below.contains_key(file) => {
                self.base.execute(op)
            }
            StoreOp::List { kind: FileKind::Run, after, limit } => {
                let StoreDone::List(new) = self.top.execute(op.clone())? else {
                    return Err(StoreError::Stopped);
                };
                let all: BTreeSet<FileId> = self.below.keys().copied().chain(new).collect();
                let wanted = all.into_iter().filter(|file| after.is_none_or(|a| *file > a));
                Ok(StoreDone::List(wanted.take(*limit as usize).collect()))
            }
            StoreOp::Delete { file } if self.below.contains_key(file) => Ok(StoreDone::Unit),
            StoreOp::Space => self.base.execute(op),
            _ => self.top.execute(op),
        }
    }
}
