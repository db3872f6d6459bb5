//! A sparse file in memory: bytes where something was written, holes elsewhere, any length below 2^64.
//!
//! Pages are shared by copies of the file until one of them changes, so a snapshot of a file costs its page
//! table (the crash device takes one per sync). A page holds only the bytes up to the last one written.
//!
//! Space that was set aside takes no memory, but is used: a page uses the bytes up to the last one that was written or set
//! aside.

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
    /// Ranges that were set aside, start to end: they begin with a page, and do not touch each other.
    set_aside: BTreeMap<u64, u64>,
}

impl SparseFile {
    /// `len` zero bytes that take no memory.
    pub fn with_len(len: u64) -> Self {
        Self { len, ..Self::default() }
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
    /// Bytes of space that are used: those of pages, and those set aside.
    pub fn used_bytes(&self) -> u64 {
        self.set_aside.iter().map(|(start, end)| end - start).sum::<u64>() + self.beside(0, u64::MAX)
    }
    /// Bytes of these pages that were not set aside.
    fn beside(&self, first: u64, last: u64) -> u64 {
        let pages = self.pages.range(first..=last);
        pages.map(|(&number, page)| (page.len() as u64).saturating_sub(self.set_aside_of(number))).sum()
    }
    /// Bytes at the start of a page that were set aside.
    fn set_aside_of(&self, number: u64) -> u64 {
        let base = number * PAGE_BYTES;
        let before = self.set_aside.range(..=base).next_back();
        before.map_or(0, |(_, end)| end.saturating_sub(base).min(PAGE_BYTES))
    }

    /// Writes and extends.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let start = (at % PAGE_BYTES) as usize;
            let n = rest.len().min(PAGE_BYTES as usize - start);
            let (now, later) = rest.split_at(n);
            let page = Arc::make_mut(self.pages.entry(at / PAGE_BYTES).or_default());
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
    }

    /// By how many bytes the used space would grow if `len` bytes were written or set aside at `offset`.
    pub fn growth(&self, offset: u64, len: u64) -> u64 {
        let mut grown = 0;
        let mut at = offset;
        let end = offset.saturating_add(len);
        while at < end {
            // Long ranges that are set aside have no pages to look at.
            let aside = self.set_aside.range(..=at).next_back().map_or(0, |(_, end)| *end);
            if aside >= end {
                break;
            }
            if aside > at && aside.is_multiple_of(PAGE_BYTES) {
                at = aside;
                continue;
            }
            let stop = end.min((at / PAGE_BYTES + 1).saturating_mul(PAGE_BYTES));
            let written = self.pages.get(&(at / PAGE_BYTES)).map_or(0, |p| p.len() as u64);
            let have = written.max(self.set_aside_of(at / PAGE_BYTES));
            grown += (stop - at / PAGE_BYTES * PAGE_BYTES).saturating_sub(have);
            at = stop;
        }
        grown
    }

    /// Sets space aside for a range, whose bytes and the length stay as they are.
    pub fn allocate(&mut self, offset: u64, len: u64) {
        let mut start = offset / PAGE_BYTES * PAGE_BYTES;
        let mut end = offset.saturating_add(len);
        while let Some((&at, &until)) = self.set_aside.range(..=end).next_back()
            && until >= start
        {
            self.set_aside.remove(&at);
            (start, end) = (start.min(at), end.max(until));
        }
        if offset < end {
            self.set_aside.insert(start, end);
        }
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

    /// Cuts, or extends with a hole. Returns how many bytes of space were given back.
    pub fn truncate(&mut self, len: u64) -> u64 {
        let freed = if len < self.len { self.clear(len, u64::MAX) } else { 0 };
        self.len = len;
        freed
    }

    /// Makes a hole; the length stays. Returns how many bytes of space were given back.
    pub fn punch(&mut self, offset: u64, len: u64) -> u64 {
        self.clear(offset, offset.saturating_add(len))
    }
    /// Makes zeros of bytes; space and length stay.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        for (&number, shared) in self.pages.range_mut(offset / PAGE_BYTES..=end / PAGE_BYTES) {
            let base = number * PAGE_BYTES;
            let to = (end - base).min(shared.len() as u64) as usize;
            let from = (offset.saturating_sub(base) as usize).min(to);
            if from < to {
                Arc::make_mut(shared)[from..to].fill(0);
            }
        }
    }

    fn clear(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let (first, last) = (start / PAGE_BYTES, (end - 1) / PAGE_BYTES);
        let before = self.beside(first, last);
        let released = self.release(start, end);
        self.clear_pages(start, end);
        // Bytes that were written to space set aside are beside it now, if a part of their page stays.
        released + before - self.beside(first, last)
    }
    /// Forgets that a range was set aside, as far as no later part of its last page is; returns how many bytes.
    fn release(&mut self, start: u64, end: u64) -> u64 {
        let touched: Vec<(u64, u64)> =
            self.set_aside.range(..end).filter(|(_, until)| **until > start).map(|(&a, &b)| (a, b)).collect();
        let mut released = 0;
        for (from, until) in touched {
            self.set_aside.remove(&from);
            released += until - from;
            let kept_from = if until > end { (end / PAGE_BYTES * PAGE_BYTES).max(from) } else { until };
            let parts = match start.max(from) >= kept_from {
                true => [(from, until), (0, 0)],
                false => [(from, start.max(from)), (kept_from, until)],
            };
            for (from, until) in parts.into_iter().filter(|(from, until)| from < until) {
                self.set_aside.insert(from, until);
                released -= until - from;
            }
        }
        released
    }
    fn clear_pages(&mut self, start: u64, end: u64) {
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
            } else if from == 0 {
                self.pages.remove(&number);
            } else {
                Arc::make_mut(shared).truncate(from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_exabytes_takes_the_memory_of_its_bytes() {
        let mut f = SparseFile::default();
        let far = (1 << 62) + 17;
        let growth = f.growth(far, 5);
        f.write(far, b"hello");
        assert_eq!(f.used_bytes(), growth);
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
    fn space_set_aside_is_used_once_and_given_back_once() {
        let mut f = SparseFile::default();
        let mut rng = nacre_node::Rng::new(1);
        for _ in 0..20_000 {
            let (offset, len) = (rng.below(8 * PAGE_BYTES), rng.below(2 * PAGE_BYTES));
            let before = f.used_bytes();
            match rng.below(5) {
                0 => {
                    let growth = f.growth(offset, len);
                    f.allocate(offset, len);
                    assert_eq!(f.used_bytes(), before + growth);
                    assert_eq!(f.growth(offset, len), 0);
                }
                1 => {
                    let growth = f.growth(offset, len);
                    f.write(offset, &vec![1; len as usize]);
                    assert_eq!(f.used_bytes(), before + growth);
                }
                2 => {
                    f.zero(offset, len);
                    assert_eq!(f.used_bytes(), before);
                }
                3 => {
                    let freed = f.punch(offset, len);
                    assert_eq!(f.used_bytes() + freed, before);
                }
                _ => {
                    let freed = f.truncate(offset);
                    assert_eq!(f.used_bytes() + freed, before);
                }
            }
        }
        f.punch(0, u64::MAX);
        assert_eq!(f.used_bytes(), 0);
        f.allocate(0, 1 << 50);
        assert_eq!((f.used_bytes(), f.stored_bytes(), f.growth(5, 1 << 50)), (1 << 50, 0, 5));
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
