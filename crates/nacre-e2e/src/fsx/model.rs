//! The file as it must be: its bytes, with the operation that wrote each, and the handles of the mounts.
//!
//! A file that is unlinked or replaced lives on while a handle has it open. So there may be several files; new handles get
//! the current one.

use std::collections::BTreeMap;
use std::ops::Range;

/// Names that the file has in turn.
pub(super) const NAMES: [&str; 2] = ["file", "moved"];

/// How a handle is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    ReadOnly,
    ReadWrite,
    Append,
    Direct,
    DirectReadOnly,
}
impl Kind {
    pub(super) const ALL: [Self; 5] =
        [Self::ReadOnly, Self::ReadWrite, Self::Append, Self::Direct, Self::DirectReadOnly];
    pub(super) fn is_writable(self) -> bool {
        !matches!(self, Self::ReadOnly | Self::DirectReadOnly)
    }
}

/// The handle of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Via {
    /// One that the mount keeps open.
    Kept(usize),
    /// One of its own, closed afterwards.
    New(Kind),
}

/// A handle that a mount keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    kind: Kind,
    /// The number of its file.
    file: u64,
}
impl Slot {
    pub(super) fn kind(self) -> Kind {
        self.kind
    }
    pub(super) fn file(self) -> u64 {
        self.file
    }
}

/// Bytes, and the number of the operation that wrote each.
#[derive(Default)]
pub(super) struct Contents {
    bytes: Vec<u8>,
    writers: Vec<u32>,
}
impl Contents {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// The operation that wrote each byte.
    pub(super) fn writers(&self) -> &[u32] {
        &self.writers
    }
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
    pub(super) fn resize(&mut self, len: usize, writer: u32) {
        self.bytes.resize(len, 0);
        self.writers.resize(len, writer);
    }
    pub(super) fn write(&mut self, offset: usize, data: &[u8], writer: u32) {
        if self.len() < offset + data.len() {
            self.resize(offset + data.len(), writer);
        }
        self.bytes[offset..offset + data.len()].copy_from_slice(data);
        self.writers[offset..offset + data.len()].fill(writer);
    }
    /// Zeros in the part of a range that lies before the end.
    pub(super) fn zero(&mut self, range: Range<usize>, writer: u32) {
        let range = range.start.min(self.len())..range.end.min(self.len());
        self.bytes[range.clone()].fill(0);
        self.writers[range].fill(writer);
    }
}

pub(super) struct Model {
    files: BTreeMap<u64, Contents>,
    current: u64,
    name: usize,
    slots: Vec<Vec<Option<Slot>>>,
}

impl Model {
    /// An empty file, and no handle.
    pub(super) fn new(mounts: usize, slots: usize) -> Self {
        let files = BTreeMap::from([(0, Contents::default())]);
        Self { files, current: 0, name: 0, slots: vec![vec![None; slots]; mounts] }
    }
    /// The handles of each mount.
    pub(super) fn slots(&self) -> &[Vec<Option<Slot>>] {
        &self.slots
    }
    pub(super) fn current(&self) -> u64 {
        self.current
    }
    pub(super) fn name(&self) -> &'static str {
        NAMES[self.name]
    }
    pub(super) fn other_name(&self) -> &'static str {
        NAMES[1 - self.name]
    }
    pub(super) fn rename(&mut self) {
        self.name = 1 - self.name;
    }
    pub(super) fn contents(&self, file: u64) -> &Contents {
        &self.files[&file]
    }
    pub(super) fn contents_mut(&mut self, file: u64) -> &mut Contents {
        self.files.get_mut(&file).expect("a handle has it open, or it is the current one")
    }
    pub(super) fn kind(&self, mount: usize, via: Via) -> Kind {
        match via {
            Via::Kept(at) => self.slots[mount][at].expect("it is open").kind,
            Via::New(kind) => kind,
        }
    }
    /// The file that an operation through this handle concerns.
    pub(super) fn file_of(&self, mount: usize, via: Via) -> u64 {
        match via {
            Via::Kept(at) => self.slots[mount][at].expect("it is open").file,
            Via::New(_) => self.current,
        }
    }
    pub(super) fn open(&mut self, mount: usize, at: usize, kind: Kind) {
        self.slots[mount][at] = Some(Slot { kind, file: self.current });
        self.forget();
    }
    pub(super) fn close(&mut self, mount: usize, at: usize) {
        self.slots[mount][at] = None;
        self.forget();
    }
    /// A new, empty file has the name.
    pub(super) fn replace(&mut self) {
        self.current += 1;
        self.files.insert(self.current, Contents::default());
        self.forget();
    }
    /// Files that nothing refers to.
    fn forget(&mut self) {
        let (current, slots) = (self.current, &self.slots);
        let is_open = |file: u64| slots.iter().flatten().flatten().any(|slot| slot.file == file);
        self.files.retain(|file, _| *file == current || is_open(*file));
    }
}

/// The bytes that an operation writes at an offset: each operation others, none of them zero.
pub(super) fn pattern(number: u32, offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|at| byte(number, at)).collect()
}
pub(super) fn byte(number: u32, at: usize) -> u8 {
    let piece = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (at as u64 / 32).wrapping_mul(0xd134_2543_de82_ef95);
    ((piece >> 40).wrapping_add(at as u64 * 7) % 255) as u8 + 1
}
