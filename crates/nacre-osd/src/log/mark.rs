//! The mark: a file beside the log that records how far the log is durable.
//!
//! A log record contains the position up to which the log was durable when it was written, and the superblock has it at
//! starts and planned stops. For the newest segment of a store that crashed, only the mark has it. Without the mark, a
//! segment whose content was lost looks like one to which nothing had been written.
//!
//! The mark is overwritten in place after the syncs of a commit; it is neither synced nor waited for. It may be out of
//! date, torn or missing (then it is ignored), but it never claims more than is durable.

use crate::crc::crc32c;
use crate::log::segment::{u32_at, u64_at};
use bytes::Bytes;
use nacre_node::{Ctx, FileId, StoreDone, StoreError, StoreOp};

const MAGIC: [u8; 8] = *b"NACREMRK";
const VERSION: u32 = 1;
pub(crate) const MARK_BYTES: usize = 44;

/// The content of the file: a plain record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Epoch of the log that the mark describes.
    pub(crate) epoch: u32,
    /// The log is durable up to this record.
    pub(crate) lsn: u64,
    pub(crate) store: [u8; 16],
}

impl Mark {
    pub(crate) fn to_bytes(self) -> [u8; MARK_BYTES] {
        let mut out = [0; MARK_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..24].copy_from_slice(&self.lsn.to_le_bytes());
        out[24..40].copy_from_slice(&self.store);
        let sum = crc32c(&out[..40]);
        out[40..].copy_from_slice(&sum.to_le_bytes());
        out
    }
    /// `None`: torn, damaged, never written, or of another version.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let b = bytes.get(..MARK_BYTES)?;
        if b[..8] != MAGIC || u32_at(b, 8)? != VERSION || u32_at(b, 40)? != crc32c(&b[..40]) {
            return None;
        }
        Some(Self { epoch: u32_at(b, 12)?, lsn: u64_at(b, 16)?, store: b.get(24..40)?.try_into().ok()? })
    }
    /// Returns the lsn up to which the log is durable according to the store's mark; 0 without a valid mark. Marks of
    /// epochs before `latest` are ignored, because the superblock records where those epochs ended.
    pub(crate) async fn read(ctx: &Ctx, store: [u8; 16], latest: u32) -> u64 {
        match ctx.io(StoreOp::Read { file: FileId::Mark, offset: 0, len: MARK_BYTES as u32 }).await {
            Ok(StoreDone::Bytes(bytes)) => Self::parse(&bytes)
                .filter(|mark| mark.store == store && mark.epoch >= latest)
                .map_or(0, |mark| mark.lsn),
            _ => 0,
        }
    }
    /// Creates the file, so that later writes need no space.
    pub(crate) async fn create(ctx: &Ctx) -> Result<(), StoreError> {
        ctx.io(StoreOp::Create { file: FileId::Mark, len: MARK_BYTES as u64 }).await.map(drop)
    }
    /// Creates the file if it is missing.
    pub(crate) async fn create_if_missing(ctx: &Ctx) {
        if let Ok(StoreDone::Len(None)) = ctx.io(StoreOp::Len { file: FileId::Mark }).await {
            // On a full device the store works without a mark.
            let _created = Self::create(ctx).await;
        }
    }
    pub(crate) fn write(self) -> StoreOp {
        let data = alloc::vec![Bytes::copy_from_slice(&self.to_bytes())];
        StoreOp::Write { file: FileId::Mark, offset: 0, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_back_and_nothing_else_is_one() {
        let mark = Mark { epoch: 3, lsn: 0x1_0000_0007, store: [9; 16] };
        let bytes = mark.to_bytes();
        assert_eq!(crc32c(&bytes[..40]), 0x825b_53cc, "golden bytes: {bytes:02x?}");
        assert_eq!(Mark::parse(&bytes), Some(mark));
        for n in 0..bytes.len() {
            assert_eq!(Mark::parse(&bytes[..n]), None);
            let mut bad = bytes;
            bad[n] ^= 1;
            assert_eq!(Mark::parse(&bad), None);
        }
        assert_eq!(Mark::parse(&[0; MARK_BYTES]), None);
    }
}
