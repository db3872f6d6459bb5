//! Writes of a start or stop that must succeed on a full device.

use crate::engine::superblock::Super;
use crate::error::OsdError;
use alloc::vec;
use bytes::Bytes;
use nacre_node::{Ctx, FileId, StoreError, StoreOp};

/// Writes the superblock. On a full device the room of unused log segments, and then of the ballast, is freed for it:
/// a target that cannot start cannot be emptied.
pub(crate) async fn write_superblock(superblock: &Super, unused: &[u64], ctx: &Ctx) -> Result<(), OsdError> {
    let full = |written: &Result<(), OsdError>| *written == Err(OsdError::Store(StoreError::NoSpace));
    let mut written = superblock.write(ctx).await;
    if full(&written) && !unused.is_empty() {
        // Emptied, not deleted: until a new superblock says otherwise, their numbers are in use.
        for number in unused {
            ctx.io(StoreOp::Truncate { file: FileId::Log(*number), len: 0 }).await?;
        }
        written = superblock.write(ctx).await;
    }
    if full(&written) {
        release_ballast(ctx, superblock).await?;
        written = superblock.write(ctx).await;
    }
    if full(&written) { Err(OsdError::NoRoomToStart) } else { written }
}

/// Writes to a log segment in place. A file system that copies on write may need room for that.
pub(crate) async fn write_log(
    ctx: &Ctx,
    superblock: &Super,
    file: FileId,
    offset: u64,
    bytes: &Bytes,
) -> Result<(), OsdError> {
    let write = || StoreOp::Write { file, offset, data: vec![bytes.clone()] };
    match ctx.io(write()).await {
        Err(StoreError::NoSpace) => {
            release_ballast(ctx, superblock).await?;
            match ctx.io(write()).await {
                Err(StoreError::NoSpace) => Err(OsdError::NoRoomToStart),
                other => Ok(other.map(drop)?),
            }
        }
        other => Ok(other.map(drop)?),
    }
}

async fn release_ballast(ctx: &Ctx, superblock: &Super) -> Result<(), OsdError> {
    tracing::warn!(target_name = %superblock.label.name, "the device is full: the ballast is released so that files can be deleted");
    ctx.io(StoreOp::Delete { file: FileId::Ballast }).await?;
    Ok(())
}
