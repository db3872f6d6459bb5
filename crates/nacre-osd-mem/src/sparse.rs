//! A sparse file in memory: bytes where something was written, holes elsewhere, any length below 2^64.
//!
//! Pages are shared by copies of the file until one of them changes, so a snapshot of a file costs its page
//! table (the crash device takes one per sync). A page holds only the bytes up to the last one written.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a page of the table.
pub const PAGE_BYTES: u64 = 64 << 10;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct SparseFile {
    len: u64,
    pages: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl SparseFile {
    /// `len` zero bytes that take no memory.
    pub fn with_len(len: u64) -> Self {
        Self { len, pages: BTreeMap::new() }
    }
    /// Bytes, holes included.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Bytes held in memory.
    pub fn stored_bytes(&self) -> u64 {
        self.pages.values().map(|p| p.len() as u64).sum()
    }

    /// Writes and extends. Returns by how many bytes the memory grew.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> u64 {
        let mut grown = 0;
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let start = (at % PAGE_BYTES) as usize;
            let n = rest.len().min(PAGE_BYTES as usize - start);
            let (now, later) = rest.split_at(n);
            let page = Arc::make_mut(self.pages.entry(at / PAGE_BYTES).or_default());
            grown += (start + n).saturating_sub(page.len()) as u64;
            if page.len() <= start {
                page.resize(start, 0);
                page.extend_from_slice(now);
            } else {
                page.resize(page.len().max(start + n), 0);
                page[start..start + n].copy_from_slice(now);
            }
            at += n as u64;
            rest = later;
        }
        self.len = self.len.max(at);
        grown
    }

    /// By how many bytes the memory would grow if `len` bytes were written at `offset`.
    pub fn growth(&self, offset: u64, len: u64) -> u64 {
        let mut grown = 0;
        let mut at = offset;
        let end = offset.saturating_add(len);
        while at < end {
            let stop = end.min((at / PAGE_BYTES + 1).saturating_mul(PAGE_BYTES));
            let have = self.pages.get(&(at / PAGE_BYTES)).map_or(0, |p| p.len() as u64);
            grown += (stop - at / PAGE_BYTES * PAGE_BYTES).saturating_sub(have);
            at = stop;
        }
        grown
    }

    /// Fills the buffer from `offset` on; returns how many bytes lie before the end of the file.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let n = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut done = 0;
        while done < n {
            let at = offset + done as u64;
            let start = (at % PAGE_BYTES) as usize;
            let step = (n - done).min(PAGE_BYTES as usize - start);
            let out = &mut buf[done..done + step];
            let have = match self.pages.get(&(at / PAGE_BYTES)).and_then(|p| p.get(start..)) {
                Some(bytes) => {
                    let have = bytes.len().min(step);
                    out[..have].copy_from_slice(&bytes[..have]);
                    have
                }
                None => 0,
            };
            out[have..].fill(0);
            done += step;
        }
        n
    }

    /// Reads at most `len` bytes.
    pub fn read_bytes(&self, offset: u64, len: u32) -> Bytes {
        let n = self.len.saturating_sub(offset).min(u64::from(len)) as usize;
        let mut buf = vec![0; n];
        self.read(offset, &mut buf);
        Bytes::from(buf)
    }

    /// Cuts, or extends with a hole. Returns how many bytes of memory were given back.
    pub fn truncate(&mut self, len: u64) -> u64 {
        let freed = if len < self.len { self.clear(len, u64::MAX) } else { 0 };
        self.len = len;
        freed
    }

    /// Makes a hole; the length stays. Returns how many bytes of memory were given back.
    pub fn punch(&mut self, offset: u64, len: u64) -> u64 {
        self.clear(offset, offset.saturating_add(len))
    }

    fn clear(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let mut freed = 0;
        let (first, last) = (start / PAGE_BYTES, (end - 1) / PAGE_BYTES);
        let touched: Vec<u64> = self.pages.range(first..=last).map(|(&n, _)| n).collect();
        for number in touched {
            let base = number * PAGE_BYTES;
            let from = start.saturating_sub(base).min(PAGE_BYTES) as usize;
            let to = (end - base).min(PAGE_BYTES) as usize;
            let Some(shared) = self.pages.get_mut(&number) else { continue };
            if from >= shared.len() {
                continue;
            }
            if to < shared.len() {
                Arc::make_mut(shared)[from..to].fill(0);
            } else {
                freed += (shared.len() - from) as u64;
                if from == 0 {
                    self.pages.remove(&number);
                } else {
                    Arc::make_mut(shared).truncate(from);
                }
            }
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_exabytes_takes_the_memory_of_its_bytes() {
        let mut f = SparseFile::default();
        let far = (1 << 62) + 17;
        assert_eq!(f.growth(far, 5), f.clone().write(far, b"hello"));
        f.write(far, b"hello");
        assert_eq!(f.len(), far + 5);
        assert!(f.stored_bytes() <= PAGE_BYTES);
        assert_eq!(&f.read_bytes(far - 2, 100)[..], b"\0\0hello");
        assert!(f.read_bytes(1 << 40, 10).iter().all(|&b| b == 0));
        f.truncate(far + 1);
        f.truncate(far + 3);
        assert_eq!(&f.read_bytes(far, 100)[..], b"h\0\0");
        f.punch(0, u64::MAX);
        assert_eq!((f.stored_bytes(), f.len()), (0, far + 3));
    }

    #[test]
    fn a_copy_does_not_see_later_writes() {
        let mut f = SparseFile::default();
        f.write(0, &[1; 100]);
        let copy = f.clone();
        f.write(50, &[2; 100]);
        assert_eq!(&copy.read_bytes(0, 1000)[..], &[1; 100]);
        assert_eq!(f.len(), 150);
    }
}
