//! Checksums of object blocks, and the one implementation of `StoreOp::WriteChecksummed` that all stores share.
//!
//! The checksum of a block is crc32c over its whole 4 KiB, where bytes at or beyond the object's size count as zeros.
//! So it protects the bytes below the size, and does not change when the object grows over a hole: two writers of one
//! object need not know each other's size.
//!
//! Not here: which bytes of partly written blocks are kept (`object/prepare.rs`), and where checksums are stored (block
//! rows).

use alloc::vec::Vec;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use nacre_node::{FileId, Keep, StoreDone, StoreError};

/// Unit of checksums and allocation.
pub const BLOCK_BYTES: u64 = 4096;
const BLOCK: usize = BLOCK_BYTES as usize;

/// Zeros to hand out by reference.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// `len` zero bytes, not copied.
pub fn zeros(len: u64) -> Vec<Bytes> {
    let mut out = Vec::new();
    let mut left = len;
    while left > 0 {
        let n = left.min(ZEROS.len() as u64);
        out.push(Bytes::from_static(&ZEROS).slice(..n as usize));
        left -= n;
    }
    out
}

/// crc32c of a buffer.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Checksum of one block of an object: `bytes` (at most a block), then zeros up to the block's end.
///
/// # Panics
/// When `bytes` is longer than a block.
pub fn block_checksum(bytes: &[u8]) -> u32 {
    assert!(bytes.len() <= BLOCK, "a block has {BLOCK} bytes, not {}", bytes.len());
    let mut sum = BlockChecksum::new();
    sum.add(bytes);
    sum.finish()
}

/// The reply to a `StoreOp::ReadWritten`.
pub fn checksummed(bytes: Bytes) -> StoreDone {
    let sums = bytes.chunks(BLOCK).map(block_checksum).collect();
    StoreDone::Checksummed(bytes, sums)
}

/// The arguments of a `StoreOp::WriteChecksummed` without its file.
#[derive(Debug, Clone, Copy)]
pub struct ChecksummedWrite<'a> {
    /// Of the first byte of `data` in the file.
    pub offset: u64,
    /// The new bytes, as parts that follow one another.
    pub data: &'a [Bytes],
    /// Bytes before `offset` in its block: kept, or zeros.
    pub keep_head: Keep,
    /// Bytes behind `data` in its last block, likewise.
    pub keep_tail: Keep,
    /// Of the object after the write: bytes behind it count as zeros.
    pub size: u64,
    /// See `StoreOp::WriteChecksummed`.
    pub written_to: Option<u64>,
}

impl ChecksummedWrite<'_> {
    /// How long the file must be so that the write leaves no hole behind bytes that were written; 0: it may not exist.
    pub fn must_reach(&self) -> u64 {
        self.written_to.unwrap_or(0).min(self.offset / BLOCK_BYTES * BLOCK_BYTES)
    }
}

/// Carries out a checksummed write with a store's own `read` (fills the buffer from an offset on, returns how many
/// bytes there were before the end of the file) and `write` (all of it or an error).
///
/// Nothing is written before everything that must be kept has been read and verified. That the file reaches
/// [`ChecksummedWrite::must_reach`] is for the store to check before.
///
/// # Errors
/// `Missing` when bytes to keep are not there and `written_to` is given, `Mismatch` when they do not match their
/// checksum; those of `read` and `write`.
///
/// # Panics
/// When the range passes 2^64: the caller bounds object sizes.
pub fn write_checksummed<E: From<StoreError>>(
    file: FileId,
    args: ChecksummedWrite<'_>,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
    write: impl FnOnce(u64, &[Bytes]) -> Result<(), E>,
) -> Result<Vec<u32>, E> {
    let len: u64 = args.data.iter().map(|b| b.len() as u64).sum();
    if len == 0 {
        return Ok(Vec::new());
    }
    let end = args.offset.checked_add(len).expect("object sizes are below 2^63");
    let head = (args.offset % BLOCK_BYTES) as usize;
    let tail = ((BLOCK_BYTES - end % BLOCK_BYTES) % BLOCK_BYTES) as usize;

    let mut kept_head = [0u8; BLOCK];
    let mut kept_tail = [0u8; BLOCK];
    let mut fill = |offset: u64, buf: &mut [u8]| -> Result<(), E> {
        let got = read(offset, buf)?.min(buf.len());
        if got < buf.len() && args.written_to.is_some() {
            let (from, to) = (offset + got as u64, offset + buf.len() as u64);
            return Err(StoreError::Missing { file, from, to }.into());
        }
        buf[got..].fill(0);
        Ok(())
    };
    // The kept bytes `from..to` of the block at `start`.
    let mut keep = |keep: Keep, start: u64, from: usize, to: usize, out: &mut [u8]| -> Result<(), E> {
        match keep {
            Keep::Nothing => Ok(()),
            Keep::Bytes => fill(start + from as u64, &mut out[..to - from]),
            Keep::Verified { sum, len } => {
                let len = (len as usize).min(BLOCK);
                let mut block = [0u8; BLOCK];
                fill(start, &mut block[..len])?;
                if block_checksum(&block[..len]) != sum {
                    return Err(StoreError::Mismatch { file, offset: start }.into());
                }
                out[..to - from].copy_from_slice(&block[from..to]);
                Ok(())
            }
        }
    };
    if head > 0 {
        keep(args.keep_head, args.offset - head as u64, 0, head, &mut kept_head)?;
    }
    if tail > 0 {
        // Bytes beyond the size are not data.
        let data = args.size.saturating_sub(end).min(tail as u64) as usize;
        let from = BLOCK - tail;
        keep(args.keep_tail, end - from as u64, from, from + data, &mut kept_tail)?;
    }

    let sums = sums_of(&kept_head[..head], args.data, &kept_tail[..tail]);

    let pad_head = if args.keep_head.is_any() { 0 } else { head };
    let pad_tail = if args.keep_tail.is_any() { 0 } else { tail };
    if pad_head == 0 && pad_tail == 0 {
        write(args.offset, args.data)?;
    } else {
        let mut padded = zeros(pad_head as u64);
        padded.extend(args.data.iter().cloned());
        padded.extend(zeros(pad_tail as u64));
        write(args.offset - pad_head as u64, &padded)?;
    }
    Ok(sums)
}

/// Sums of the blocks of head, data and tail put together; their total length is a multiple of a block.
fn sums_of(head: &[u8], data: &[Bytes], tail: &[u8]) -> Vec<u32> {
    let mut sums = Vec::new();
    let mut block = BlockChecksum::new();
    let pieces = core::iter::once(head).chain(data.iter().map(|b| &b[..])).chain(core::iter::once(tail));
    for mut piece in pieces {
        while !piece.is_empty() {
            let (now, later) = piece.split_at(piece.len().min(block.room()));
            block.add(now);
            piece = later;
            if block.room() == 0 {
                sums.push(core::mem::replace(&mut block, BlockChecksum::new()).finish());
            }
        }
    }
    debug_assert!(block.is_empty(), "head and tail fill the outer blocks");
    sums
}

/// A checksum under way. A block that comes in one piece takes the short way.
struct BlockChecksum {
    digest: Option<Digest>,
    whole: Option<u32>,
    len: usize,
}

impl BlockChecksum {
    fn new() -> Self {
        Self { digest: None, whole: None, len: 0 }
    }
    fn room(&self) -> usize {
        BLOCK - self.len
    }
    fn is_empty(&self) -> bool {
        self.len == 0
    }
    fn add(&mut self, bytes: &[u8]) {
        if self.len == 0 && bytes.len() == BLOCK {
            self.whole = Some(crc32c(bytes));
        } else {
            self.digest.get_or_insert_with(|| Digest::new(CrcAlgorithm::Crc32Iscsi)).update(bytes);
        }
        self.len += bytes.len();
    }
    fn finish(mut self) -> u32 {
        if let Some(sum) = self.whole {
            return sum;
        }
        let rest = self.room();
        self.add(&ZEROS[..rest]);
        match (self.whole, self.digest) {
            (Some(sum), _) => sum,
            (None, Some(digest)) => digest.finalize() as u32,
            (None, None) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use core::cell::RefCell;
    use nacre_types::{Fid, ObjectId, Oid, Seq};

    /// Writes into a byte vector and returns the checksums.
    fn run(file: &RefCell<Vec<u8>>, args: ChecksummedWrite<'_>) -> Vec<u32> {
        let file_id = FileId::Blob(ObjectId { fid: Fid::new(Seq(0x100), Oid(1)), stripe: 0 });
        write_checksummed::<StoreError>(
            file_id,
            args,
            |offset, buf| {
                let file = file.borrow();
                let from = file.get(offset as usize..).unwrap_or_default();
                let n = from.len().min(buf.len());
                buf[..n].copy_from_slice(&from[..n]);
                Ok(n)
            },
            |offset, data| {
                let mut file = file.borrow_mut();
                let flat = data.concat();
                let end = offset as usize + flat.len();
                if file.len() < end {
                    file.resize(end, 0xee);
                }
                file[offset as usize..end].copy_from_slice(&flat);
                Ok(())
            },
        )
        .unwrap()
    }

    #[test]
    fn crc32c_is_the_castagnoli_one() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut padded = vec![7u8; 5];
        padded.resize(BLOCK, 0);
        assert_eq!(block_checksum(&[7; 5]), crc32c(&padded));
        assert_eq!(block_checksum(&[]), crc32c(&[0; BLOCK]));
    }

    #[test]
    fn what_is_not_kept_becomes_zeros_and_sums_match_the_file() {
        let file = RefCell::new(vec![0xaa; 3 * BLOCK]);
        let data = [Bytes::from(vec![1; 1000]), Bytes::from(vec![2; 5000])];
        let args = ChecksummedWrite {
            offset: 100,
            data: &data,
            keep_head: Keep::Nothing,
            keep_tail: Keep::Bytes,
            size: 3 * 4096,
            written_to: None,
        };
        let sums = run(&file, args);
        let file = file.borrow();
        assert!(file[..100].iter().all(|&b| b == 0));
        assert!(file[6100..].iter().all(|&b| b == 0xaa));
        assert_eq!(sums, vec![crc32c(&file[..4096]), crc32c(&file[4096..8192])]);
    }

    #[test]
    fn bytes_beyond_the_size_count_as_zeros_but_stay() {
        let file = RefCell::new(vec![0xaa; BLOCK]);
        let data = [Bytes::from_static(b"abc")];
        let args = ChecksummedWrite {
            offset: 10,
            data: &data,
            keep_head: Keep::Bytes,
            keep_tail: Keep::Bytes,
            size: 20,
            written_to: None,
        };
        let sums = run(&file, args);
        let file = file.borrow();
        assert_eq!(file[20], 0xaa);
        assert_eq!(sums, vec![block_checksum(&file[..20])]);
    }

    #[test]
    fn pieces_may_be_cut_anywhere() {
        let whole: Vec<u8> = (0..20_000u32).map(|i| (i * 7) as u8).collect();
        let one = RefCell::new(Vec::new());
        let many = RefCell::new(Vec::new());
        let flat = [Bytes::from(whole.clone())];
        let cut: Vec<Bytes> = whole.chunks(777).map(Bytes::copy_from_slice).collect();
        let args = ChecksummedWrite {
            offset: 50,
            data: &flat,
            keep_head: Keep::Nothing,
            keep_tail: Keep::Nothing,
            size: 20_050,
            written_to: None,
        };
        let a = run(&one, args);
        let b = run(&many, ChecksummedWrite { data: &cut, ..args });
        assert_eq!((a, one), (b, many));
    }
}
