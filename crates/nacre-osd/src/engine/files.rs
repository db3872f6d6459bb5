//! Listing and reading the few files of a store that are not blobs.

use crate::error::OsdError;
use alloc::format;
use alloc::vec::Vec;
use nacre_node::{Ctx, FileId, FileKind, StoreDone, StoreOp};

/// Bytes of one read.
const READ_BYTES: u32 = 1 << 20;

/// All files of a kind with their lengths. Only for logs and runs, which are few.
pub(crate) async fn list(ctx: &Ctx, kind: FileKind) -> Result<Vec<(FileId, u64)>, OsdError> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        match ctx.io(StoreOp::List { kind, after, limit: 1024 }).await? {
            StoreDone::List(files) => {
                let Some(last) = files.last() else { return Ok(all) };
                after = Some(*last);
                for file in files {
                    if let StoreDone::Len(Some(len)) = ctx.io(StoreOp::Len { file }).await? {
                        all.push((file, len));
                    }
                }
            }
            other => return Err(OsdError::Format(format!("the store returned {other:?} to List"))),
        }
    }
}

/// Reads a whole file, in pieces.
pub(crate) async fn read_all(ctx: &Ctx, file: FileId, len: u64) -> Result<Vec<u8>, OsdError> {
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    loop {
        let offset = bytes.len() as u64;
        let want = u32::try_from(len - offset.min(len)).unwrap_or(u32::MAX).min(READ_BYTES);
        if want == 0 {
            return Ok(bytes);
        }
        match ctx.io(StoreOp::Read { file, offset, len: want }).await? {
            StoreDone::Bytes(b) if b.is_empty() => return Ok(bytes),
            StoreDone::Bytes(b) => bytes.extend_from_slice(&b),
            other => return Err(OsdError::Format(format!("the store returned {other:?} to Read"))),
        }
    }
}
