//! The mapping between ranges of a file and ranges of its objects, and the attributes of a file from those of its
//! objects.
//!
//! Pure arithmetic on a layout component. A contiguous range of a file is contiguous in each object that it
//! touches, so an operation has at most one range per object.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Component, Extent, Fid, Layout, ObjectId, OstIndex};
use nacre_wire::mdt::Written;
use nacre_wire::ost::ObjectState;

/// An object, and under which number its stripe was laid out: a plain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Laid {
    pub(crate) object: ObjectId,
    pub(crate) laid: u32,
}
impl Laid {
    pub(crate) fn new(component: &Component, fid: Fid, stripe: u32) -> Self {
        Self { object: ObjectId { fid, stripe }, laid: component.laid(stripe) }
    }
}

/// The part of one operation that falls into one object: a plain value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectRange {
    pub(crate) stripe: u32,
    pub(crate) ost: OstIndex,
    /// See [`Component::laid`].
    pub(crate) laid: u32,
    /// Where in the object.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Where its bytes lie in the operation's buffer: (offset, length), in object order.
    pub(crate) parts: Vec<(u64, u64)>,
}
impl ObjectRange {
    pub(crate) fn of(&self, fid: Fid) -> Laid {
        Laid { object: ObjectId { fid, stripe: self.stripe }, laid: self.laid }
    }
    pub(crate) fn extent(&self) -> Extent {
        Extent::new(self.offset, self.offset.saturating_add(self.len))
    }
}

/// The component that a file has today. A layout without stripes belongs to a newer version.
pub(crate) fn only_component(layout: &Layout) -> Option<&Component> {
    match layout.components.as_slice() {
        [one] if !one.stripes.is_empty() => Some(one),
        _ => None,
    }
}

/// Cuts a file range by object, in stripe order.
pub(crate) fn by_object(component: &Component, offset: u64, len: u64) -> Vec<ObjectRange> {
    let mut objects: BTreeMap<u32, ObjectRange> = BTreeMap::new();
    for piece in component.pieces(offset, len) {
        let object = objects.entry(piece.stripe).or_insert_with(|| ObjectRange {
            stripe: piece.stripe,
            ost: piece.ost,
            laid: component.laid(piece.stripe),
            offset: piece.object_offset,
            len: 0,
            parts: Vec::new(),
        });
        debug_assert_eq!(object.offset + object.len, piece.object_offset);
        object.len += piece.len;
        object.parts.push((piece.file_offset - offset, piece.len));
    }
    objects.into_values().collect()
}

/// The same for a range that may be as long as a file can be: one range per object, computed and not walked.
pub(crate) fn allocation(component: &Component, offset: u64, len: u64) -> Vec<ObjectRange> {
    let end = offset.saturating_add(len);
    let ranges = (0u32..).zip(&component.stripes).filter_map(|(stripe, &ost)| {
        let start = component.object_size(stripe, offset);
        let stop = component.object_size(stripe, end);
        (stop > start).then(|| ObjectRange {
            stripe,
            ost,
            laid: component.laid(stripe),
            offset: start,
            len: stop - start,
            parts: Vec::new(),
        })
    });
    ranges.collect()
}

/// Size, space and time of a file from the states of all its objects.
pub(crate) fn resolve(component: &Component, states: &[ObjectState]) -> Written {
    let mut written = Written { size: 0, blocks: 0, mtime: ObjectState::default().mtime };
    for (stripe, state) in (0u32..).zip(states) {
        written.size = written.size.max(component.file_size(stripe, state.size));
        written.blocks = written.blocks.saturating_add(state.blocks);
        written.mtime = written.mtime.max(state.mtime);
    }
    written
}

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Appends `len` zero bytes without allocating them.
fn push_zeros(out: &mut Vec<Bytes>, mut len: u64) {
    while len > 0 {
        let n = len.min(ZEROS.len() as u64);
        out.push(Bytes::from_static(&ZEROS[..n as usize]));
        len -= n;
    }
}

/// Appends `bytes[start..start + len]`, with zeros for what is not there.
fn push_slice(out: &mut Vec<Bytes>, bytes: &[Bytes], mut start: u64, mut len: u64) {
    for chunk in bytes {
        let chunk_len = chunk.len() as u64;
        if start >= chunk_len {
            start -= chunk_len;
            continue;
        }
        let n = len.min(chunk_len - start);
        if n == 0 {
            break;
        }
        out.push(chunk.slice(start as usize..(start + n) as usize));
        (start, len) = (0, len - n);
    }
    push_zeros(out, len);
}

/// Puts the bytes that were read from each object into file order, `len` bytes in all. Missing bytes of an object are a hole.
pub(crate) fn assemble(objects: &[ObjectRange], data: &[Vec<Bytes>], len: u64) -> Vec<Bytes> {
    let mut parts: Vec<(u64, u64, usize, u64)> = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        let mut at = 0;
        for &(offset, part_len) in &object.parts {
            parts.push((offset, part_len, index, at));
            at += part_len;
        }
    }
    parts.sort_unstable();
    let mut out = Vec::new();
    for (offset, part_len, index, at) in parts {
        let wanted = part_len.min(len.saturating_sub(offset));
        if let Some(bytes) = data.get(index) {
            push_slice(&mut out, bytes, at, wanted);
        }
    }
    out
}

/// The bytes of an operation's buffer that go into one object, in object order. An operation over several objects is
/// copied: each object server reports in its own time that its part is stable, and until then a part that is a view of
/// the operation's buffer would keep the whole of it in memory.
pub(crate) fn gather(object: &ObjectRange, data: &Bytes) -> Bytes {
    if object.len == data.len() as u64 {
        return data.clone();
    }
    let mut own = Vec::with_capacity(object.len as usize);
    for &(offset, len) in &object.parts {
        own.extend_from_slice(&data[offset as usize..(offset + len) as usize]);
    }
    Bytes::from(own)
}

/// The same of an operation whose bytes lie in several buffers; copied, too.
pub(crate) fn gather_parts(object: &ObjectRange, data: &[Bytes]) -> Vec<Bytes> {
    let mut parts = Vec::new();
    for &(offset, len) in &object.parts {
        push_slice(&mut parts, data, offset, len);
    }
    alloc::vec![Bytes::from(parts.concat())]
}

/// Splits off the first `len` bytes of a list of buffers.
pub(crate) fn split_front(buffers: &mut Vec<Bytes>, mut len: usize) -> Vec<Bytes> {
    let mut front = Vec::new();
    while len > 0 && !buffers.is_empty() {
        if buffers[0].len() <= len {
            len -= buffers[0].len();
            front.push(buffers.remove(0));
        } else {
            front.push(buffers[0].split_to(len));
            len = 0;
        }
    }
    front
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn component(stripe_bytes: u32, count: u32) -> Component {
        Component {
            extent: Extent::ALL,
            stripe_bytes,
            stripes: (0..count).map(OstIndex).collect(),
            laid: vec![],
        }
    }

    #[test]
    fn what_is_scattered_over_objects_is_assembled_again_for_every_range() {
        let file: Vec<u8> = (0..60).collect();
        for count in 1..4u32 {
            let c = component(4, count);
            // The whole file as objects.
            let mut objects = vec![Vec::new(); count as usize];
            for p in c.pieces(0, file.len() as u64) {
                objects[p.stripe as usize]
                    .extend_from_slice(&file[p.file_offset as usize..(p.file_offset + p.len) as usize]);
            }
            for offset in 0..file.len() {
                for len in 1..=file.len() - offset {
                    let ranges = by_object(&c, offset as u64, len as u64);
                    let data: Vec<Vec<Bytes>> = ranges
                        .iter()
                        .map(|r| {
                            let object = &objects[r.stripe as usize];
                            vec![Bytes::copy_from_slice(
                                &object[r.offset as usize..(r.offset + r.len) as usize],
                            )]
                        })
                        .collect();
                    let whole = assemble(&ranges, &data, len as u64).concat();
                    assert_eq!(whole, file[offset..offset + len]);
                    let buffer = Bytes::copy_from_slice(&whole);
                    for (range, bytes) in ranges.iter().zip(&data) {
                        let gathered = gather(range, &buffer);
                        assert_eq!(gathered, bytes.concat());
                        assert!(ranges.len() == 1 || gathered.is_unique(), "a part holds its own bytes only");
                    }
                }
            }
        }
    }

    #[test]
    fn an_allocation_covers_what_a_write_of_the_range_would_touch() {
        for count in 1..4u32 {
            let c = component(4, count);
            for offset in 0..30 {
                for len in 1..30 {
                    let mut written = by_object(&c, offset, len);
                    written.iter_mut().for_each(|r| r.parts.clear());
                    assert_eq!(allocation(&c, offset, len), written, "{count} {offset} {len}");
                }
            }
        }
    }

    #[test]
    fn short_objects_are_holes_up_to_the_length() {
        let ranges = by_object(&component(4, 2), 2, 10);
        let data = [vec![Bytes::from_static(b"ab")], vec![]];
        assert_eq!(assemble(&ranges, &data, 7).concat(), b"ab\0\0\0\0\0");
    }

    #[test]
    fn the_front_of_a_list_is_split_off_exactly() {
        let mut list = vec![Bytes::from_static(b"abc"), Bytes::from_static(b"defg")];
        assert_eq!(split_front(&mut list, 5).concat(), b"abcde");
        assert_eq!(list.concat(), b"fg");
        assert_eq!(split_front(&mut list, 9).concat(), b"fg");
    }

    #[test]
    fn a_file_is_as_long_as_its_farthest_object_says() {
        let c = component(4, 2);
        let state = |size, blocks| ObjectState { size, blocks, ..ObjectState::default() };
        let w = resolve(&c, &[state(4, 1), state(5, 2)]);
        assert_eq!((w.size, w.blocks), (13, 3));
        assert_eq!(resolve(&c, &[state(0, 0), state(0, 0)]).size, 0);
    }
}
