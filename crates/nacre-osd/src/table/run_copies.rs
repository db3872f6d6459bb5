//! The two copies of a run. A part that is damaged in the first copy is read from the second; if both are damaged at
//! different places, it is put together from both. Then the intact bytes are written over the damaged ones.

use crate::combine::combine;
use crate::error::OsdError;
use crate::table::run::{COPIES, FOOTER_BYTES, Footer, Run, RunMeta};
use alloc::format;
use alloc::vec;
use bytes::Bytes;
use nacre_node::{Ctx, FileId, StoreDone, StoreError, StoreOp};

/// Reads a part of one copy.
pub(crate) async fn read_copy(
    ctx: &Ctx,
    meta: RunMeta,
    copy: u64,
    offset: u64,
    len: u64,
) -> Result<Bytes, OsdError> {
    let file = FileId::Run(meta.id);
    let len = u32::try_from(len)
        .map_err(|_| OsdError::Corrupt { what: format!("run {}: an index of {len} bytes", meta.id) })?;
    match ctx.io(StoreOp::Read { file, offset: meta.copy_at(copy).saturating_add(offset), len }).await {
        Ok(StoreDone::Bytes(bytes)) => Ok(bytes),
        Ok(_) => Ok(Bytes::new()),
        Err(StoreError::NotFound { .. }) => {
            Err(OsdError::Corrupt { what: format!("run {}: the file is missing", meta.id) })
        }
        Err(e) => Err(e.into()),
    }
}

/// Reads a part of a run whose first copy may be damaged. The bytes are returned as well if they must be written over the
/// damaged ones.
///
/// # Errors
/// That of the first copy, if the part cannot be read.
pub(crate) async fn read_either<T>(
    ctx: &Ctx,
    meta: RunMeta,
    offset: u64,
    len: u64,
    parse: impl Fn(&Bytes) -> Result<T, OsdError>,
) -> Result<(T, Option<Bytes>), OsdError> {
    let first = read_copy(ctx, meta, 0, offset, len).await;
    let error = match first.as_ref().map_err(Clone::clone).and_then(&parse) {
        Ok(parsed) => return Ok((parsed, None)),
        Err(error) => error,
    };
    let Ok(second) = read_copy(ctx, meta, 1, offset, len).await else { return Err(error) };
    let whole = |bytes: &[u8]| parse(&Bytes::copy_from_slice(bytes)).is_ok();
    let Some(bytes) = combine(&first.unwrap_or_default(), &second, whole) else { return Err(error) };
    tracing::warn!(run = meta.id, offset, %error, "a copy of a part of this table run is damaged: it is repaired from the other one");
    let bytes = Bytes::from(bytes);
    Ok((parse(&bytes)?, Some(bytes)))
}

/// Returns the bytes that must be written over a part of which one copy is damaged, or both at different places. What is lost
/// in both is left to its readers.
pub(crate) async fn damaged_part<T>(
    ctx: &Ctx,
    meta: RunMeta,
    offset: u64,
    len: u64,
    parse: impl Fn(&Bytes) -> Result<T, OsdError>,
) -> Option<Bytes> {
    let one = read_copy(ctx, meta, 0, offset, len).await.unwrap_or_default();
    let two = read_copy(ctx, meta, 1, offset, len).await.unwrap_or_default();
    if parse(&one).is_ok() && parse(&two).is_ok() {
        return None;
    }
    let bytes = combine(&one, &two, |bytes| parse(&Bytes::copy_from_slice(bytes)).is_ok())?;
    tracing::warn!(
        run = meta.id,
        offset,
        "a copy of a part of this table run is damaged: it is repaired from the other one"
    );
    Some(bytes.into())
}

/// Writes a part of a run over both of its copies.
pub(crate) async fn repair(ctx: &Ctx, meta: RunMeta, offset: u64, bytes: &Bytes) {
    for copy in 0..COPIES {
        let offset = meta.copy_at(copy) + offset;
        let write = StoreOp::Write { file: FileId::Run(meta.id), offset, data: vec![bytes.clone()] };
        if let Err(error) = ctx.io(write).await {
            tracing::debug!(run = meta.id, offset, %error, "a damaged part of a table run cannot be written");
        }
    }
}

/// Reads footer and tail of a run.
pub(crate) async fn load_run(ctx: &Ctx, meta: RunMeta) -> Result<Run, OsdError> {
    let at = Footer::place(meta.copy_bytes());
    let (footer, damaged) =
        read_either(ctx, meta, at, FOOTER_BYTES, |bytes| Footer::parse(meta.id, bytes)).await?;
    if let Some(bytes) = damaged {
        repair(ctx, meta, at, &bytes).await;
    }
    let (at, len) = footer.tail();
    let parse = |tail: &Bytes| Run::parse(meta, &footer, tail);
    let (run, damaged) = read_either(ctx, meta, at, len.min(meta.bytes), parse).await?;
    if let Some(bytes) = damaged {
        repair(ctx, meta, at, &bytes).await;
    }
    Ok(run)
}

/// Reads footer and tail from one copy.
///
/// # Errors
/// `Corrupt`, and those of the store.
pub(crate) async fn check_copy(ctx: &Ctx, meta: RunMeta, copy: u64) -> Result<(), OsdError> {
    let at = Footer::place(meta.copy_bytes());
    let footer = Footer::parse(meta.id, &read_copy(ctx, meta, copy, at, FOOTER_BYTES).await?)?;
    let (at, len) = footer.tail();
    let tail = read_copy(ctx, meta, copy, at, len.min(meta.bytes)).await?;
    Run::parse(meta, &footer, &tail).map(drop)
}
