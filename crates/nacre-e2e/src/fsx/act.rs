//! Operations on the real file, through the mounts, and the comparison of what they return with the model.

use super::mapping::{Mapping, PAGE};
use super::model::{Kind, Model, Via, byte};
use super::plan::{Action, Operation, Replace, Style};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, copy_file_range, fallocate, fsync, seek};
use rustix::io::{Errno, preadv, pwritev};
use std::fs::{self, File, OpenOptions};
use std::io::{Error, IoSlice, IoSliceMut, Read as _, Result, Seek as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The same directory through each mount, and the handles that are kept.
pub(super) struct Mounts {
    dirs: Vec<PathBuf>,
    kept: Vec<Vec<Option<Handle>>>,
}
struct Handle {
    file: File,
    mapping: Option<Mapping>,
}

/// What an operation has seen of the file.
pub(super) enum Seen {
    Nothing,
    Size(u64),
    /// From an offset on. `size`: what fstat has returned before.
    Bytes {
        offset: usize,
        len: usize,
        bytes: Vec<u8>,
        size: Option<u64>,
    },
    /// Ranges of data, up to the end.
    Data(Vec<Range<u64>>),
}

impl Seen {
    /// Whether fstat has shown this size.
    pub(super) fn has_size_of(&self, len: usize) -> bool {
        matches!(self, Self::Bytes { size: Some(size), .. } if *size == len as u64)
    }
}

impl Mounts {
    pub(super) fn new(dirs: Vec<PathBuf>, slots: usize) -> Self {
        let kept = dirs.iter().map(|_| (0..slots).map(|_| None).collect()).collect();
        Self { dirs, kept }
    }
    /// Both mounts show the same attributes.
    ///
    /// # Errors
    /// What differs.
    pub(super) fn agree(&self, model: &Model) -> std::result::Result<(), String> {
        let times = |dir: &PathBuf| {
            let found = fs::metadata(dir.join(model.name())).map_err(|error| error.to_string())?;
            Ok((found.len(), found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()))
        };
        let all = self.dirs.iter().map(times).collect::<std::result::Result<Vec<_>, String>>()?;
        match all.iter().all(|found| Some(found) == all.first()) {
            true => Ok(()),
            false => Err(format!("size, mtime and ctime of the mounts differ: {all:?}")),
        }
    }
    /// Closes all handles of a mount.
    pub(super) fn forget(&mut self, mount: usize) {
        self.kept[mount].iter_mut().for_each(|handle| *handle = None);
    }

    /// Carries an operation out; `model` is that of before it.
    ///
    /// # Errors
    /// What the file system says, or a result that no file system may give.
    pub(super) fn perform(&mut self, operation: &Operation, model: &Model) -> Result<Seen> {
        let (mount, path) = (operation.mount(), self.dirs[operation.mount()].join(model.name()));
        match operation.action() {
            Action::Open { at, kind } => {
                // The old handle is closed first.
                self.kept[mount][*at] = None;
                self.kept[mount][*at] = Some(Handle { file: open(&path, *kind)?, mapping: None });
                return Ok(Seen::Nothing);
            }
            Action::Close { at } => {
                self.kept[mount][*at] = None;
                return Ok(Seen::Nothing);
            }
            Action::Truncate { size: 0 } => {
                OpenOptions::new().write(true).truncate(true).open(path)?;
                return Ok(Seen::Nothing);
            }
            Action::Truncate { size } => return truncate(&path, *size).map(|()| Seen::Nothing),
            Action::Rename => {
                fs::rename(&path, self.dirs[mount].join(model.other_name()))?;
                return Ok(Seen::Nothing);
            }
            Action::Replace(how) => return replace(&path, *how).map(|()| Seen::Nothing),
            Action::Stat if matches!(operation.via(), Via::New(_)) => {
                return Ok(Seen::Size(fs::metadata(path)?.len()));
            }
            _ => {}
        }
        let kind = model.kind(mount, operation.via());
        match operation.via() {
            Via::Kept(at) => {
                let handle = self.kept[mount][at].as_mut().expect("the model has it open");
                with_handle(operation, handle, kind)
            }
            Via::New(_) => {
                with_handle(operation, &mut Handle { file: open(&path, kind)?, mapping: None }, kind)
            }
        }
    }
}

fn with_handle(operation: &Operation, handle: &mut Handle, kind: Kind) -> Result<Seen> {
    let file = &handle.file;
    let allocate = |mode, range: &Range<usize>| {
        fallocate(file, mode, range.start as u64, range.len() as u64)?;
        Ok(Seen::Nothing)
    };
    let keep = |keep_size| if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
    match operation.action() {
        Action::Write { offset, len, style, aligned, .. } => {
            write(file, *offset, &operation.data(*offset, *len), *style, *aligned)?;
            Ok(Seen::Nothing)
        }
        Action::Read { range, style, aligned } => {
            let bytes = read(file, range, *style, *aligned)?;
            Ok(Seen::Bytes { offset: range.start, len: range.len(), bytes, size: None })
        }
        Action::MappedRead { range, kept } => mapped_read(handle, range, *kept, kind),
        Action::MappedWrite { range, kept, sync } => {
            let data = operation.data(range.start, range.len());
            store(handle, range.start, &data, *kept, *sync)
        }
        Action::MappedTail { end, len } => store(handle, *end, &operation.data(*end, *len), false, true),
        Action::Ftruncate { size } => file.set_len(*size as u64).map(|()| Seen::Nothing),
        Action::Punch(range) => allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, range),
        Action::Zero { range, keep_size } => allocate(FallocateFlags::ZERO_RANGE | keep(*keep_size), range),
        Action::Allocate { range, keep_size } => allocate(keep(*keep_size), range),
        Action::Copy { from, to, len } => {
            // The kernel compares the range with the size that it knows, and asks nobody.
            file.metadata()?;
            copy(file, *from as u64, *to as u64, *len)
        }
        Action::Seek => segments(file),
        Action::Sync { data: true } => file.sync_data().map(|()| Seen::Nothing),
        Action::Sync { data: false } => Ok(fsync(file).map(|()| Seen::Nothing)?),
        Action::Stat => Ok(Seen::Size(file.metadata()?.len())),
        Action::Truncate { .. }
        | Action::Open { .. }
        | Action::Close { .. }
        | Action::Rename
        | Action::Replace(_) => unreachable!("no handle is needed"),
    }
}

fn open(path: &Path, kind: Kind) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(kind.is_writable()).append(kind == Kind::Append);
    if matches!(kind, Kind::Direct | Kind::DirectReadOnly) {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    options.open(path)
}

fn replace(path: &Path, how: Replace) -> Result<()> {
    match how {
        Replace::UnlinkAndCreate => {
            fs::remove_file(path)?;
            File::create_new(path)?;
        }
        Replace::RenameOver => {
            let new = path.with_extension("new");
            File::create_new(&new)?;
            fs::rename(new, path)?;
        }
    }
    Ok(())
}

#[allow(unsafe_code, reason = "docs/unsafe.md")]
fn truncate(path: &Path, size: usize) -> Result<()> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a NUL and outlives the call.
    match unsafe { libc::truncate(path.as_ptr(), size as libc::off_t) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Memory whose part from the returned index on begins at a page, or one byte behind.
fn memory(len: usize, aligned: bool) -> (Vec<u8>, usize) {
    let memory = vec![0xee; len + 2 * PAGE];
    let start = memory.as_ptr().align_offset(PAGE) + usize::from(!aligned);
    (memory, start)
}

fn write(file: &File, offset: usize, data: &[u8], style: Style, aligned: bool) -> Result<()> {
    let (mut memory, start) = memory(data.len(), aligned);
    memory[start..start + data.len()].copy_from_slice(data);
    let data = &memory[start..start + data.len()];
    let written = match style {
        Style::At => file.write_at(data, offset as u64)?,
        Style::Seek => {
            let mut file = file;
            file.seek(std::io::SeekFrom::Start(offset as u64))?;
            file.write(data)?
        }
        Style::Vectors(parts) => {
            let parts: Vec<IoSlice<'_>> = data.chunks(data.len().div_ceil(parts)).map(IoSlice::new).collect();
            pwritev(file, &parts, offset as u64)?
        }
    };
    if written != data.len() {
        return Err(Error::other(format!("only {written} bytes are written")));
    }
    Ok(())
}

fn read(file: &File, range: &Range<usize>, style: Style, aligned: bool) -> Result<Vec<u8>> {
    let (mut memory, start) = memory(range.len(), aligned);
    let into = &mut memory[start..start + range.len()];
    let len = match style {
        Style::At => file.read_at(into, range.start as u64)?,
        Style::Seek => {
            let mut file = file;
            file.seek(std::io::SeekFrom::Start(range.start as u64))?;
            file.read(into)?
        }
        Style::Vectors(parts) => {
            let part = into.len().div_ceil(parts).max(1);
            let mut parts: Vec<IoSliceMut<'_>> = into.chunks_mut(part).map(IoSliceMut::new).collect();
            preadv(file, &mut parts, range.start as u64)?
        }
    };
    Ok(memory[start..start + len].to_vec())
}

/// The mapping of a handle, which is at least so long: made again unless the one that is there is to be used.
fn mapping(handle: &mut Handle, len: usize, kept: bool, is_writable: bool) -> Result<&Mapping> {
    let suits = |mapping: &Mapping| mapping.len() >= len && (mapping.is_writable() || !is_writable);
    if !kept || !handle.mapping.as_ref().is_some_and(suits) {
        handle.mapping = None;
        handle.mapping = Some(Mapping::new(&handle.file, len, is_writable)?);
    }
    handle.mapping.as_ref().ok_or_else(|| Error::other("just mapped"))
}

/// Loads from the part of a range that the file has: fstat says which, and makes loads exact.
fn mapped_read(handle: &mut Handle, range: &Range<usize>, kept: bool, kind: Kind) -> Result<Seen> {
    let size = handle.file.metadata()?.len();
    let end = range.end.min(size as usize);
    let bytes = match range.start < end {
        true => mapping(handle, end, kept, kind.is_writable())?.load(range.start..end),
        false => Vec::new(),
    };
    Ok(Seen::Bytes { offset: range.start, len: range.len(), bytes, size: Some(size) })
}

fn store(handle: &mut Handle, offset: usize, data: &[u8], kept: bool, sync: bool) -> Result<Seen> {
    let size = handle.file.metadata()?.len();
    if offset > size as usize {
        return Ok(Seen::Size(size));
    }
    let mapping = mapping(handle, offset + data.len(), kept, true)?;
    mapping.store(offset, data);
    match sync {
        true => mapping.sync(offset..offset + data.len())?,
        false => handle.mapping = None,
    }
    Ok(Seen::Nothing)
}

fn copy(file: &File, mut from: u64, mut to: u64, mut len: usize) -> Result<Seen> {
    while len > 0 {
        let copied = copy_file_range(file, Some(&mut from), file, Some(&mut to), len)?;
        if copied == 0 {
            return Err(Error::other(format!("{len} bytes are not copied")));
        }
        len -= copied;
    }
    Ok(Seen::Nothing)
}

fn segments(file: &File) -> Result<Seen> {
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(Seen::Data(data)),
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?;
        if start < at || end <= start {
            return Err(Error::other(format!("data from {at} on: {start}..{end}")));
        }
        data.push(start..end);
        at = end;
    }
}

/// Compares what was seen with the model; the error says what differs.
pub(super) fn check(model: &Model, file: u64, seen: &Seen) -> std::result::Result<(), String> {
    let right = model.contents(file);
    let size_is = |size: u64| match size == right.len() as u64 {
        true => Ok(()),
        false => Err(format!("the size is {size}, must be {}", right.len())),
    };
    match seen {
        Seen::Nothing => Ok(()),
        Seen::Size(size) => size_is(*size),
        Seen::Bytes { offset, len, bytes, size } => {
            size.map_or(Ok(()), size_is)?;
            let end = (offset + len).min(right.len()).max(*offset);
            let expected = right.bytes().get(*offset..end).unwrap_or_default();
            if bytes.len() != expected.len() {
                let (found, expected) = (bytes.len(), expected.len());
                return Err(format!(
                    "{found} bytes at {offset}, must be {expected}; the size is {}",
                    right.len()
                ));
            }
            // Whole slices first: that is fast without optimization, too.
            if bytes == expected {
                return Ok(());
            }
            let differs = |(found, expected): (&u8, &u8)| found != expected;
            let first = bytes.iter().zip(expected).position(differs).unwrap_or(0);
            Err(describe(model, file, *offset, bytes, first))
        }
        Seen::Data(data) => {
            if data.last().is_some_and(|range| range.end > right.len() as u64) {
                return Err(format!("data beyond the size {}: {data:?}", right.len()));
            }
            let mut at = 0;
            for range in data.iter().chain([&(right.len() as u64..right.len() as u64)]) {
                let hole = at as usize..range.start as usize;
                let bytes = right.bytes().get(hole.clone()).unwrap_or_default();
                if bytes != vec![0; bytes.len()] {
                    let first = hole.start + bytes.iter().position(|byte| *byte != 0).unwrap_or(0);
                    return Err(format!(
                        "a hole {hole:?} has data at {first}, of operation {}; data: {data:?}",
                        right.writers()[first]
                    ));
                }
                at = range.end;
            }
            Ok(())
        }
    }
}

/// The wrong bytes from `first` on: where, what, and whose.
fn describe(model: &Model, file: u64, offset: usize, bytes: &[u8], first: usize) -> String {
    const SHOWN: usize = 16;
    let right = model.contents(file);
    let is_wrong = |at: &usize| bytes[*at] != right.bytes()[offset + at];
    let last = (first..bytes.len()).rev().find(is_wrong).unwrap_or(first);
    let count = (first..=last).filter(is_wrong).count();
    let at = offset + first;
    let found = &bytes[first..(first + SHOWN).min(bytes.len())];
    let expected = &right.bytes()[at..(at + SHOWN).min(right.len())];
    // The operation whose bytes these would be: the longest match says it.
    let matches = |number: u32| (first..=last).take_while(|i| bytes[*i] == byte(number, offset + i)).count();
    let newest = right.writers().iter().copied().max().unwrap_or(0);
    let origin = match bytes[first..=last].iter().position(|byte| *byte != 0) {
        None => "zeros".to_owned(),
        Some(_) => (0..=newest)
            .map(|number| (matches(number), number))
            .max()
            .filter(|(len, _)| *len > 3)
            .map_or("unknown".to_owned(), |(len, number)| format!("{len} bytes of operation {number}")),
    };
    format!(
        "{count} wrong bytes in {at}..{}: found {found:?}, must be {expected:?} of operation {}; found are {origin}; \
         the size is {}",
        offset + last + 1,
        right.writers()[at],
        right.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsx::model::pattern;

    fn model() -> Model {
        let mut model = Model::new(2, 1);
        let contents = model.contents_mut(0);
        contents.write(5000, &pattern(3, 5000, 4000), 3);
        contents.write(6000, &pattern(4, 6000, 100), 4);
        model
    }
    fn bytes(model: &Model, offset: usize, len: usize, change: impl Fn(&mut Vec<u8>)) -> Seen {
        let mut bytes = model.contents(0).bytes()[offset..(offset + len).min(9000)].to_vec();
        change(&mut bytes);
        Seen::Bytes { offset, len, bytes, size: None }
    }

    #[test]
    fn a_wrong_byte_is_found_and_described() {
        let model = model();
        assert_eq!(check(&model, 0, &bytes(&model, 4000, 7000, |_| {})), Ok(()));
        let lost = bytes(&model, 4000, 7000, |bytes| {
            bytes[2000..2100].copy_from_slice(&pattern(3, 6000, 100));
        });
        let wrong = check(&model, 0, &lost).unwrap_err();
        assert!(wrong.starts_with("100 wrong bytes in 6000..6100: "), "{wrong}");
        assert!(wrong.contains("of operation 4; found are 100 bytes of operation 3;"), "{wrong}");
        assert!(check(&model, 0, &bytes(&model, 0, 9000, |bytes| bytes.truncate(8999))).is_err());
        assert!(check(&model, 0, &Seen::Size(8999)).is_err());
    }

    #[test]
    fn data_must_not_be_in_a_hole_and_zeros_may_be_data() {
        let model = model();
        let look = |data: &[(u64, u64)]| {
            check(&model, 0, &Seen::Data(data.iter().map(|(start, end)| *start..*end).collect()))
        };
        for data in [&[(4096, 9000)][..], &[(0, 9000)], &[(5000, 6500), (6500, 9000)]] {
            assert_eq!(look(data), Ok(()));
        }
        for data in [&[][..], &[(5001, 9000)], &[(4096, 8192)], &[(4096, 9001)]] {
            assert!(look(data).is_err());
        }
    }
}
