//! How many bytes the system call of a waiting caller writes: `/proc/PID/syscall` has its number and arguments.
//!
//! The kernel splits a long write(2) into several requests without announcing the rest; an append needs the length, so
//! that its pieces stay together (`nacre-client/src/data/long_append.rs`). The length is unknown where it cannot be
//! read: asynchronous writes (io_uring, io_submit), callers in a pid name space that is not visible here, 32-bit
//! programs. A wrong length delays other mounts by a second or tears the append; only a caller that changes its own
//! arguments can cause it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Requests shorter than this are the last, or only, ones of their call: a buffer in one piece is split after 255 full pages, and
/// a vector of segments of at least a page each after 256 pages that are half full on average.
pub(crate) const SPLIT_BYTES_MIN: u32 = 512 << 10;
/// Maximum bytes that the kernel writes in one call.
const CALL_BYTES_MAX: u64 = 0x7fff_f000;
/// A caller that has sent its request but is not asleep yet is examined again.
const TRIES: u32 = 1000;
/// IOV_MAX.
const SEGMENTS_MAX: u64 = 1024;

/// Numbers of system calls.
#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const WRITE: [u64; 2] = [1, 18];
    pub(super) const WRITEV: [u64; 3] = [20, 296, 328];
}
/// Numbers of system calls.
#[cfg(not(target_arch = "x86_64"))]
mod number {
    pub(super) const WRITE: [u64; 2] = [64, 68];
    pub(super) const WRITEV: [u64; 3] = [66, 70, 287];
}

/// The system call of a caller.
#[derive(Debug, PartialEq, Eq)]
enum Doing {
    Running,
    Write {
        bytes: u64,
    },
    /// With the address and the number of its segments.
    Writev {
        address: u64,
        segments: u64,
    },
    Other,
}

impl Doing {
    fn of(text: &str) -> Self {
        if text.starts_with("running") {
            return Self::Running;
        }
        let mut words = text.split_ascii_whitespace();
        let Some(number) = words.next().and_then(|word| word.parse::<u64>().ok()) else { return Self::Other };
        let mut argument = |n: usize| {
            let word = words.nth(n)?.strip_prefix("0x")?;
            u64::from_str_radix(word, 16).ok()
        };
        // After the descriptor.
        let (Some(address), Some(count)) = (argument(1), argument(0)) else { return Self::Other };
        match number {
            _ if number::WRITE.contains(&number) => Self::Write { bytes: count },
            _ if number::WRITEV.contains(&number) => Self::Writev { address, segments: count },
            _ => Self::Other,
        }
    }
}

/// Total bytes that the call of this thread writes.
pub(crate) fn bytes(pid: u32) -> Option<u64> {
    if pid == 0 {
        return None;
    }
    for _ in 0..TRIES {
        let bytes = match Doing::of(&std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?) {
            Doing::Running => {
                std::thread::yield_now();
                continue;
            }
            Doing::Write { bytes } => bytes,
            Doing::Writev { address, segments } => segment_bytes(pid, address, segments)?,
            Doing::Other => return None,
        };
        return Some(bytes.min(CALL_BYTES_MAX));
    }
    None
}

/// The sum of the lengths of a `struct iovec` array of another process.
fn segment_bytes(pid: u32, address: u64, segments: u64) -> Option<u64> {
    const IOVEC_BYTES: usize = 16;
    let mut array = vec![0; IOVEC_BYTES * segments.min(SEGMENTS_MAX) as usize];
    File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut array, address).ok()?;
    let lengths = array.chunks_exact(IOVEC_BYTES).filter_map(|iovec| iovec.last_chunk().copied());
    Some(lengths.map(u64::from_le_bytes).fold(0, u64::saturating_add))
}

/// Text as `/proc` might have it, for the fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn look_at(text: &str) {
    let _ = Doing::of(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn the_text_of_the_kernel_is_understood() {
        let write = format!("{} 0x3 0x7f0001 0x400000 0x0 0x0 0x0 0x7ffe 0x7f\n", number::WRITE[0]);
        assert_eq!(Doing::of(&write), Doing::Write { bytes: 4 << 20 });
        let writev = format!("{} 0x3 0x7f10 0x5 0x0 0x0 0x0 0x7ffe 0x7f\n", number::WRITEV[0]);
        assert_eq!(Doing::of(&writev), Doing::Writev { address: 0x7f10, segments: 5 });
        assert_eq!(Doing::of("running\n"), Doing::Running);
        for text in ["", "-1 0x7ffe 0x7f", "1", "1 0x3 0x7f", "426 0x3 0x7f 0x1", "1 3 4 5"] {
            assert_eq!(Doing::of(text), Doing::Other, "{text}");
        }
    }

    /// Examines a thread of this process while it waits in a call.
    fn while_it_writes(call: impl FnOnce(&mut PipeWriter) + Send) -> Option<u64> {
        let (mut reader, mut writer): (PipeReader, PipeWriter) = std::io::pipe().unwrap();
        let tid = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tid.store(rustix::thread::gettid().as_raw_pid() as u32, Ordering::SeqCst);
                call(&mut writer);
                drop(writer);
            });
            let waits =
                |tid: u32| std::fs::read_to_string(format!("/proc/{tid}/wchan")).unwrap().contains("pipe");
            while tid.load(Ordering::SeqCst) == 0 || !waits(tid.load(Ordering::SeqCst)) {
                std::thread::yield_now();
            }
            let found = bytes(tid.load(Ordering::SeqCst));
            reader.read_to_end(&mut Vec::new()).unwrap();
            found
        })
    }

    #[test]
    fn the_length_of_a_call_is_that_of_its_caller() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        assert_eq!(while_it_writes(|pipe| pipe.write_all(&[0; 300_000]).unwrap()), Some(300_000));
        let vectored = |pipe: &mut PipeWriter| {
            let parts = [[1; 100_000], [2; 100_000], [3; 100_000]];
            let slices = parts.each_ref().map(|part| std::io::IoSlice::new(part));
            assert_eq!(pipe.write_vectored(&slices).unwrap(), 300_000);
        };
        assert_eq!(while_it_writes(vectored), Some(300_000));
        assert_eq!(bytes(0), None);
    }
}
