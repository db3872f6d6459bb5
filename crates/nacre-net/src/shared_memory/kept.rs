//! Shared memory with a name: what a process has put into its buffers is there after the process was killed, until the machine
//! starts again.
//!
//! The words of this memory are those of buffers: each counts how often its buffer was taken. Whoever notes a place notes that
//! count as well; a buffer that was taken again since then has other bytes. The memory of a buffer is allocated before it is
//! used, so that a full tmpfs is no SIGBUS.

use super::mapping::Mapping;
use super::{BUFFER_BYTES, BUFFERS, WORDS_BYTES};
use bytes::Bytes;
use nacre_types::KeptPlace;
use rustix::fd::AsFd;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// The part of such memory that others do not have.
#[derive(Debug, Default)]
pub(super) struct Kept {
    is_paused: AtomicBool,
}
impl Kept {
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }
    pub(super) fn pause(&self, paused: bool) {
        self.is_paused.store(paused, Ordering::Release);
    }
}

/// Allocates the words.
pub(super) fn allocate_words(file: impl AsFd) -> rustix::io::Result<()> {
    fallocate(file, FallocateFlags::KEEP_SIZE, 0, WORDS_BYTES as u64)
}
/// Allocates the memory of a buffer.
pub(super) fn allocate(file: impl AsFd, index: usize) -> rustix::io::Result<()> {
    let offset = WORDS_BYTES + index * BUFFER_BYTES;
    fallocate(file, FallocateFlags::KEEP_SIZE, offset as u64, BUFFER_BYTES as u64)
}
/// The bytes that were in a buffer are worth nothing from now on.
pub(super) fn begin_use(mapping: &Mapping, index: usize) {
    // Before any byte is stored: whoever reads after the end of this process sees both, in this order.
    mapping.word(index).fetch_add(1, Ordering::SeqCst);
}

/// The place of a range of the file. `None`: it is not within one buffer.
pub(super) fn place(mapping: &Mapping, offset: usize, len: usize) -> Option<KeptPlace> {
    let index = buffer_of(offset as u64, len as u64)?;
    Some(KeptPlace { offset: offset as u64, uses: mapping.word(index).load(Ordering::SeqCst) })
}
/// The buffer in which a range of the file lies.
fn buffer_of(offset: u64, len: u64) -> Option<usize> {
    let at = offset.checked_sub(WORDS_BYTES as u64)?;
    let index = at / BUFFER_BYTES as u64;
    let is_within = at % BUFFER_BYTES as u64 + len <= BUFFER_BYTES as u64 && index < BUFFERS as u64;
    is_within.then_some(index as usize)
}

/// Bytes that a process has left at a place. `None`: their buffer was taken for others since.
///
/// # Errors
/// Of the file.
pub fn kept_bytes(file: &File, place: KeptPlace, len: u64) -> io::Result<Option<Bytes>> {
    let Some(index) = buffer_of(place.offset, len) else { return Ok(None) };
    let mut uses = [0; 4];
    file.read_exact_at(&mut uses, index as u64 * 4)?;
    if u32::from_ne_bytes(uses) != place.uses {
        return Ok(None);
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, place.offset)?;
    Ok(Some(Bytes::from(bytes)))
}

#[cfg(test)]
mod tests {
    use super::super::{FILE_BYTES, SharedMemory};
    use super::*;

    #[test]
    fn bytes_stay_until_their_buffer_is_taken_again() {
        let file = tempfile::tempfile().unwrap();
        let memory = SharedMemory::in_file(file.try_clone().unwrap()).unwrap();
        let fill = |byte: u8| {
            let mut buffer = memory.take(100, 8192).unwrap();
            buffer.space().fill(byte);
            buffer.filled(8292)
        };
        let first = fill(1);
        let payload = first.slice(100..);
        let place = memory.place_of(&payload).unwrap();
        assert_eq!(payload.as_ptr().align_offset(4096), 0);
        let left = |place| kept_bytes(&file, place, 8192).unwrap();
        assert!(left(place).unwrap() == payload);
        // Others have other buffers; free ones keep their bytes.
        let second = fill(2);
        assert!(memory.place_of(&second).unwrap().offset != place.offset - 100);
        drop((first, payload));
        assert!(left(place).unwrap().iter().all(|byte| *byte == 1));
        memory.pause(true);
        assert!(memory.take(0, 1).is_none());
        memory.pause(false);
        let third = fill(3);
        assert_eq!(memory.place_of(&third[100..]).unwrap().offset, place.offset);
        assert_eq!(left(place), None);
        assert_eq!(memory.place_of(&[0; 10]), None);
        // Places that no process has noted.
        assert_eq!(left(KeptPlace { offset: 5, uses: 0 }), None);
        assert_eq!(left(KeptPlace { offset: FILE_BYTES as u64, uses: 0 }), None);
        assert_eq!(SharedMemory::create().unwrap().place_of(&[0; 10]), None);
    }

    #[test]
    fn bytes_that_were_given_back_to_the_system_are_not_read_as_zeros() {
        let file = tempfile::tempfile().unwrap();
        let memory = SharedMemory::in_file(file.try_clone().unwrap()).unwrap();
        let filled: Vec<_> = (0..40)
            .map(|_| {
                let mut buffer = memory.take(0, 8192).unwrap();
                buffer.space().fill(7);
                buffer.filled(8192)
            })
            .collect();
        let places: Vec<_> = filled.iter().map(|bytes| memory.place_of(bytes).unwrap()).collect();
        drop(filled);
        let left = || -> Vec<Bytes> {
            places.iter().filter_map(|place| kept_bytes(&file, *place, 8192).unwrap()).collect()
        };
        memory.is_idle_for(std::time::Duration::from_secs(10));
        // Somebody is about to read them.
        memory.pause(true);
        memory.look_for_returns();
        assert_eq!(left().len(), 40);
        memory.pause(false);
        memory.look_for_returns();
        let left = left();
        assert!(left.len() < 40 && left.iter().flatten().all(|byte| *byte == 7), "{}", left.len());
    }

    #[test]
    fn a_full_file_system_gives_no_buffer() {
        let dir = tempfile::tempdir().unwrap();
        let options = "size=20m";
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir.path())
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            return; // only root may
        }
        let file =
            File::options().read(true).write(true).create_new(true).open(dir.path().join("m")).unwrap();
        let memory = SharedMemory::in_file(file).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| memory.take(0, 1 << 20)).collect();
        let umounted = std::process::Command::new("umount").arg("-l").arg(dir.path()).status();
        assert!((16..20).contains(&taken.len()), "{}", taken.len());
        assert!(umounted.is_ok_and(|status| status.success()));
    }
}
