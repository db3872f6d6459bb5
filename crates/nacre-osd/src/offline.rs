//! An engine over a store that must not change, for `nacre check` and other tools.
//!
//! The writes of an opening (superblock, log segments) stay in memory. The tasks run on the caller's thread, one store
//! operation after the other. There is no clock: time jumps to the next deadline when no task can run.

use crate::engine::config::OsdConfig;
use crate::engine::osd::Osd;
use crate::error::OsdError;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;
use nacre_node::{Ctx, Effect, FileId, Store, StoreDone, StoreError, StoreOp};
use nacre_types::{Instant, Timestamp};

/// The files that the engine believes to have written. `None`: deleted.
#[derive(Default)]
struct Overlay {
    files: BTreeMap<FileId, Option<Vec<u8>>>,
}

impl Overlay {
    fn execute(&mut self, store: &dyn Store, op: StoreOp) -> Result<StoreDone, StoreError> {
        match op {
            StoreOp::Create { file, len } => {
                let len = usize::try_from(len).map_err(|_| StoreError::NoSpace)?;
                self.files.insert(file, Some(vec![0; len]));
                Ok(StoreDone::Unit)
            }
            StoreOp::Replace { file, data } => {
                self.files.insert(file, Some(Vec::from(&data[..])));
                Ok(StoreDone::Unit)
            }
            StoreOp::Delete { file } => {
                self.files.insert(file, None);
                Ok(StoreDone::Unit)
            }
            // The removed end of a log segment is never read.
            StoreOp::Sync { .. }
            | StoreOp::SyncWritten { .. }
            | StoreOp::SyncAside { .. }
            | StoreOp::SyncMany { .. }
            | StoreOp::StartWriteback { .. }
            | StoreOp::Refresh { .. }
            | StoreOp::Truncate { file: FileId::Log(_), .. }
            | StoreOp::Write { file: FileId::Mark, .. } => Ok(StoreDone::Unit),
            // The end of the log is written again in place of itself: the bytes are there.
            StoreOp::Write { file: file @ FileId::Log(_), .. } if !self.files.contains_key(&file) => {
                Ok(StoreDone::Unit)
            }
            StoreOp::Write { file, offset, data } => match self.files.get_mut(&file) {
                Some(Some(bytes)) => {
                    let mut at = usize::try_from(offset).map_err(|_| StoreError::NoSpace)?;
                    for piece in data {
                        let end = at + piece.len();
                        if bytes.len() < end {
                            bytes.resize(end, 0);
                        }
                        bytes[at..end].copy_from_slice(&piece);
                        at = end;
                    }
                    Ok(StoreDone::Unit)
                }
                _ => Err(refused()),
            },
            StoreOp::Read { file, offset, len } => match self.files.get(&file) {
                Some(Some(bytes)) => {
                    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                    let to = from.saturating_add(len as usize).min(bytes.len());
                    Ok(StoreDone::Bytes(Bytes::copy_from_slice(&bytes[from..to])))
                }
                Some(None) => Err(StoreError::NotFound { file }),
                None => store.execute(StoreOp::Read { file, offset, len }),
            },
            StoreOp::Len { file } => match self.files.get(&file) {
                Some(held) => Ok(StoreDone::Len(held.as_ref().map(|b| b.len() as u64))),
                None => store.execute(StoreOp::Len { file }),
            },
            op @ (StoreOp::ReadWritten { .. } | StoreOp::List { .. } | StoreOp::Space) => store.execute(op),
            StoreOp::WriteChecksummed { .. }
            | StoreOp::Truncate { .. }
            | StoreOp::Allocate { .. }
            | StoreOp::Punch { .. }
            | StoreOp::Zero { .. } => Err(refused()),
        }
    }
}
fn refused() -> StoreError {
    StoreError::Device(String::from("opened for reading only"))
}

/// Opens the engine of a stopped store, without changing the store, and runs `task` on it.
///
/// # Errors
/// Those of [`Osd::open`]; `Stopped` when the engine stopped before the task had ended.
pub fn offline<T: 'static>(
    store: &dyn Store,
    task: impl AsyncFnOnce(Rc<Osd>) -> T + 'static,
) -> Result<T, OsdError> {
    let ctx = Ctx::new(1);
    let mut overlay = Overlay::default();
    let result = Rc::new(RefCell::new(None));
    let place = result.clone();
    let c = ctx.clone();
    ctx.spawn(async move {
        // Nothing is flushed or merged.
        let config = OsdConfig {
            dirty_bytes_max: u64::MAX / 4,
            log_bytes_max: u64::MAX / 4,
            log_part: 0,
            old_segments_max: usize::MAX,
            merges_runs: false,
            ..OsdConfig::default()
        };
        let value = match Osd::open(&c, config).await {
            Ok(osd) => Ok(task(osd).await),
            Err(e) => Err(e),
        };
        *place.borrow_mut() = Some(value);
    });
    let mut now = Instant(1);
    loop {
        ctx.set_time(now, Timestamp::default());
        ctx.run();
        let effects = ctx.take_effects();
        let idle = effects.is_empty();
        for effect in effects {
            if let Effect::Io { ticket, op } = effect {
                let done = overlay.execute(store, op);
                ctx.complete_io(ticket, done);
            }
        }
        if let Some(value) = result.borrow_mut().take() {
            ctx.abandon();
            return value;
        }
        if idle {
            match ctx.deadline() {
                Some(at) => now = now.max(at),
                None => {
                    ctx.abandon();
                    return Err(OsdError::Stopped(String::from("the check cannot go on")));
                }
            }
        }
    }
}
