//! Bytes of one file that were written and that no OST has yet: which they are, and where they lie.
//!
//! Invariants: pieces do not overlap; a byte is in at most one piece, with its latest value. Small writes that continue a
//! piece are copied into it, so that a piece does not keep the kernel's buffers; large ones are kept as they are. Pure: not
//! here is when they are sent, and by whom (`data/write_back.rs`). Bounded by the caller.

use crate::kept_log::{KeptMemory, PLACED_BYTES_MIN};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::Extent;

/// Writes of this size are kept without a copy: they fill most of their buffer.
const KEPT_WHOLE: usize = PLACED_BYTES_MIN;
/// The open end of a piece is closed at this size.
const TAIL_BYTES_MAX: usize = 1 << 20;

/// Bytes that follow each other in the file.
#[derive(Debug, Default)]
struct Piece {
    closed: VecDeque<Bytes>,
    /// Bytes after those, to which more can be appended.
    tail: Vec<u8>,
    len: u64,
}

impl Piece {
    fn of(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let closed: VecDeque<Bytes> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let len = closed.iter().map(|part| part.len() as u64).sum();
        Self { closed, tail: Vec::new(), len }
    }
    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.closed.push_back(Bytes::from(core::mem::take(&mut self.tail)));
        }
    }
    fn append(&mut self, data: &Bytes) {
        self.len += data.len() as u64;
        if data.len() >= KEPT_WHOLE {
            self.close_tail();
            self.closed.push_back(data.clone());
            return;
        }
        if self.tail.len() + data.len() > TAIL_BYTES_MAX {
            self.close_tail();
        }
        self.tail.extend_from_slice(data);
    }
    /// Overwrites bytes of the open end. False: they do not lie there.
    fn overwrite_tail(&mut self, at: u64, data: &[u8]) -> bool {
        let closed = self.len - self.tail.len() as u64;
        let Some(start) = at.checked_sub(closed).and_then(|start| usize::try_from(start).ok()) else {
            return false;
        };
        let Some(old) = self.tail.get_mut(start..start.saturating_add(data.len())) else { return false };
        old.copy_from_slice(data);
        true
    }
    fn into_parts(mut self) -> VecDeque<Bytes> {
        self.close_tail();
        self.closed
    }
    /// The bytes before and from `at` on. A part that was divided is copied unless it is large: it would keep all of its buffer.
    /// Not if the log of kept writes names their place (`memory`): they must stay there.
    fn split(self, at: u64, memory: Option<&dyn KeptMemory>) -> (Self, Self) {
        let (mut front, mut back, mut left) = (Vec::new(), Vec::new(), at);
        for mut part in self.into_parts() {
            let in_front = part.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let first = part.split_to(in_front);
            let is_divided = !first.is_empty() && !part.is_empty();
            let kept = |part: Bytes| match is_divided && part.len() < KEPT_WHOLE {
                true if memory.is_none_or(|memory| memory.place_of(&part).is_none()) => {
                    Bytes::copy_from_slice(&part)
                }
                _ => part,
            };
            front.push(kept(first));
            back.push(kept(part));
            left -= in_front as u64;
        }
        (Self::of(front), Self::of(back))
    }
    /// Copies the bytes from `skip` on into `out`, as far as it goes.
    fn copy_to(&self, mut skip: u64, mut out: &mut [u8]) {
        for part in self.closed.iter().map(|part| &part[..]).chain([&self.tail[..]]) {
            let from = usize::try_from(skip).unwrap_or(usize::MAX).min(part.len());
            let len = (part.len() - from).min(out.len());
            let (now, later) = out.split_at_mut(len);
            now.copy_from_slice(&part[from..from + len]);
            out = later;
            skip -= from as u64;
        }
    }
}

/// The dirty bytes of one file.
#[derive(Debug)]
pub(crate) struct DirtyBytes {
    /// A piece does not grow beyond this: it is sent in one request to each object.
    piece_bytes_max: u64,
    /// By their first byte.
    pieces: BTreeMap<u64, Piece>,
    bytes: u64,
    memory: Option<Arc<dyn KeptMemory>>,
}

/// Dirty bytes that follow each other, taken to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    offset: u64,
    data: Vec<Bytes>,
}
impl Run {
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
    pub(crate) fn data(&self) -> &[Bytes] {
        &self.data
    }
    pub(crate) fn len(&self) -> u64 {
        self.data.iter().map(|part| part.len() as u64).sum()
    }
}

impl DirtyBytes {
    /// No bytes yet; pieces of at most `piece_bytes_max`. `memory`: where the log of kept writes has places.
    pub(crate) fn new(piece_bytes_max: u64, memory: Option<Arc<dyn KeptMemory>>) -> Self {
        Self { piece_bytes_max, pieces: BTreeMap::new(), bytes: 0, memory }
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
    /// Their number.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
    /// The number of pieces.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }
    fn before(&self, offset: u64) -> Option<(u64, &Piece)> {
        self.pieces.range(..=offset).next_back().map(|(start, piece)| (*start, piece))
    }
    /// The ranges of all pieces; pieces that touch are one range, up to the size of a request.
    pub(crate) fn ranges(&self) -> Vec<Extent> {
        let mut ranges: Vec<Extent> = Vec::new();
        for (&start, piece) in &self.pieces {
            let end = start + piece.len;
            match ranges.last_mut() {
                Some(last) if last.end == start && end - last.start <= self.piece_bytes_max => last.end = end,
                _ => ranges.push(Extent::new(start, end)),
            }
        }
        ranges
    }
    /// The range of the piece that has this byte, if it is too large to grow.
    pub(crate) fn full_piece(&self, offset: u64) -> Option<Extent> {
        let (start, piece) = self.before(offset)?;
        (piece.len >= self.piece_bytes_max).then(|| Extent::new(start, start + piece.len))
    }

    /// Writes bytes over what is there.
    pub(crate) fn write(&mut self, offset: u64, data: &Bytes) {
        let end = offset + data.len() as u64;
        if let Some((&start, piece)) = self.pieces.range_mut(..=offset).next_back()
            && piece.overwrite_tail(offset - start, data)
        {
            return;
        }
        self.remove(Extent::new(offset, end));
        self.bytes += data.len() as u64;
        if let Some((&start, piece)) = self.pieces.range_mut(..offset).next_back()
            && start + piece.len == offset
            && piece.len + data.len() as u64 <= self.piece_bytes_max
        {
            piece.append(data);
            return;
        }
        let mut piece = Piece::default();
        piece.append(data);
        self.pieces.insert(offset, piece);
    }
    /// Drops the bytes of a range.
    fn remove(&mut self, extent: Extent) {
        drop(self.take(extent));
    }
    /// Takes the bytes of a range, in runs that are not longer than a request.
    pub(crate) fn take(&mut self, extent: Extent) -> Vec<Run> {
        self.split_at(extent.start);
        self.split_at(extent.end);
        let taken: Vec<u64> =
            self.pieces.range(extent.start..extent.end).map(|(&offset, _)| offset).collect();
        let mut runs: Vec<Run> = Vec::new();
        for offset in taken {
            let Some(piece) = self.pieces.remove(&offset) else { continue };
            self.bytes -= piece.len;
            let len = piece.len;
            match runs.last_mut() {
                Some(last)
                    if last.offset + last.len() == offset && last.len() + len <= self.piece_bytes_max =>
                {
                    last.data.extend(piece.into_parts());
                }
                _ => runs.push(Run { offset, data: piece.into_parts().into() }),
            }
        }
        runs
    }
    fn split_at(&mut self, at: u64) {
        let Some((start, piece)) = self.before(at) else { return };
        if start < at
            && at < start + piece.len
            && let Some(piece) = self.pieces.remove(&start)
        {
            let (front, back) = piece.split(at - start, self.memory.as_deref());
            self.pieces.insert(start, front);
            self.pieces.insert(at, back);
        }
    }
    /// Whether every byte of a range is dirty.
    pub(crate) fn cover(&self, extent: Extent) -> bool {
        let mut at = extent.start;
        while at < extent.end {
            match self.before(at) {
                Some((start, piece)) if start + piece.len > at => at = start + piece.len,
                _ => return false,
            }
        }
        true
    }
    /// Copies the dirty bytes of a range that begins at `offset` over `out`.
    pub(crate) fn copy_over(&self, offset: u64, out: &mut [u8]) {
        let end = offset + out.len() as u64;
        let first = self.before(offset).map_or(offset, |(start, _)| start);
        for (&start, piece) in self.pieces.range(first..end) {
            let (from, to) = (start.max(offset), (start + piece.len).min(end));
            if from < to {
                piece.copy_to(from - start, &mut out[(from - offset) as usize..(to - offset) as usize]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const MIB: u64 = 1 << 20;

    /// Random writes and takes, beside a map of single bytes.
    #[test]
    fn it_behaves_like_a_map_of_single_bytes() {
        for seed in 0..300u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
            let mut random = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            let (mut dirty, mut model) = (DirtyBytes::new(MIB, None), BTreeMap::new());
            for step in 0..60u64 {
                let (offset, len) = (random(200), random(40) + 1);
                let extent = Extent::new(offset, offset + len);
                if random(4) > 0 {
                    let data: Vec<u8> = (0..len).map(|i| (step * 7 + i) as u8).collect();
                    model.extend((offset..).zip(data.iter().copied()));
                    dirty.write(offset, &Bytes::from(data));
                } else {
                    let mut taken = BTreeMap::new();
                    for run in dirty.take(extent) {
                        assert!(run.len() > 0);
                        taken.extend((run.offset..).zip(run.data.concat()));
                    }
                    let mut rest = model.split_off(&extent.start);
                    let mut later = rest.split_off(&extent.end);
                    model.append(&mut later);
                    assert_eq!(taken, rest);
                }
                assert_eq!(dirty.bytes(), model.len() as u64);
                let covered = (extent.start..extent.end).all(|at| model.contains_key(&at));
                assert_eq!(dirty.cover(extent), covered);
                let mut out = vec![0xee; len as usize];
                dirty.copy_over(offset, &mut out);
                let expected: Vec<u8> =
                    (extent.start..extent.end).map(|at| model.get(&at).copied().unwrap_or(0xee)).collect();
                assert_eq!(out, expected);
            }
            let all: u64 = dirty.ranges().iter().map(|range| range.end - range.start).sum();
            assert_eq!(all, dirty.bytes());
        }
    }

    #[test]
    fn small_writes_that_follow_each_other_become_one_piece_up_to_the_size_of_a_request() {
        for request in [MIB, 16 * MIB] {
            let mut dirty = DirtyBytes::new(request, None);
            let block = Bytes::from(vec![1u8; 64 << 10]);
            for at in (0..request).step_by(64 << 10) {
                assert_eq!(dirty.full_piece(0), None);
                dirty.write(at, &block);
            }
            assert_eq!((dirty.pieces(), dirty.full_piece(0)), (1, Some(Extent::new(0, request))));
            dirty.write(request, &block);
            assert_eq!(dirty.pieces(), 2);
            let runs = dirty.take(Extent::ALL);
            assert_eq!(runs.iter().map(Run::len).collect::<Vec<_>>(), [request, 64 << 10]);
            assert!(dirty.is_empty() && dirty.bytes() == 0);
        }
    }

    #[derive(Debug)]
    struct OneBuffer(core::ops::Range<usize>);
    impl KeptMemory for OneBuffer {
        fn place_of(&self, bytes: &Bytes) -> Option<nacre_types::KeptPlace> {
            let offset = bytes.as_ptr() as usize;
            self.0.contains(&offset).then_some(nacre_types::KeptPlace { offset: offset as u64, uses: 1 })
        }
        fn log_ended(&self) {}
    }

    #[test]
    fn a_small_part_of_a_divided_write_stays_where_the_log_of_kept_writes_says() {
        let (named, other) = (Bytes::from(vec![1u8; 300 << 10]), Bytes::from(vec![1u8; 300 << 10]));
        let memory = OneBuffer(named.as_ptr() as usize..named.as_ptr() as usize + named.len());
        let mut dirty = DirtyBytes::new(MIB, Some(Arc::new(memory)));
        for (data, offset) in [(&named, 0), (&other, 2 * MIB)] {
            dirty.write(offset, data);
            dirty.write(offset + 4096, &Bytes::from(vec![2u8; 295 << 10]));
            let runs = dirty.take(Extent::new(offset, offset + 4096));
            assert_eq!(runs[0].data[0].as_ptr() == data.as_ptr(), offset == 0);
            assert_eq!(runs[0].data[0], data[..4096]);
        }
    }
}
