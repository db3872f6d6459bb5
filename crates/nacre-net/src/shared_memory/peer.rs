//! The receiver's half: the memory of the process at the other end of a connection.

use super::mapping::Mapping;
use super::table;
use super::word::{self, Serial};
use super::{LOANS_MAX, SEALS, WORDS_BYTES};
use bytes::Bytes;
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;

/// Largest file that is mapped for a peer.
const PEER_BYTES_MAX: u64 = 1 << 30;

/// The shared memory of a peer.
pub(crate) struct PeerMemory {
    /// The first page, writable.
    words: Mapping,
    /// All of it, read-only.
    all: Mapping,
}

/// A loan; it is returned when the last part has been dropped.
struct Loan {
    memory: Arc<PeerMemory>,
    number: usize,
    serial: Serial,
}
impl Drop for Loan {
    fn drop(&mut self) {
        word::give_back(self.memory.words.word(self.number), self.serial);
    }
}

struct Part {
    loan: Arc<Loan>,
    offset: usize,
    len: usize,
}
impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        self.loan.memory.all.slice(self.offset, self.len)
    }
}

impl PeerMemory {
    /// Maps the memory behind a descriptor that a peer has passed.
    ///
    /// # Errors
    /// It is not memory that can be shared: its size is wrong, or it may shrink.
    pub(crate) fn open(fd: &OwnedFd) -> io::Result<Arc<Self>> {
        let refused = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        if !rustix::fs::fcntl_get_seals(fd)?.contains(SEALS) {
            return Err(refused("the memory may shrink"));
        }
        let bytes = u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
        if bytes <= WORDS_BYTES as u64 || bytes > PEER_BYTES_MAX {
            return Err(refused("the memory has a wrong size"));
        }
        let words = Mapping::new(fd, WORDS_BYTES, true)?;
        let all = Mapping::new(fd, bytes as usize, false)?;
        Ok(Arc::new(Self { words, all }))
    }

    /// The parts that a table names, of at most `bytes_max` bytes; `None` if they do not exist, or were revoked.
    pub(crate) fn parts(self: &Arc<Self>, table: &[u8], bytes_max: u32) -> Option<Vec<Bytes>> {
        let (number, serial, parts) = table::decode(table)?;
        let number = number as usize;
        let total: u64 = parts.iter().map(|(_, len)| u64::from(*len)).sum();
        if number >= LOANS_MAX || total > u64::from(bytes_max) || !word::take(self.words.word(number), serial)
        {
            return None;
        }
        let loan = Arc::new(Loan { memory: self.clone(), number, serial });
        let part = |(offset, len): &(u32, u32)| {
            let (offset, len) = (*offset as usize, *len as usize);
            let inside = offset >= WORDS_BYTES && offset.checked_add(len)? <= self.all.len();
            inside.then(|| Bytes::from_owner(Part { loan: loan.clone(), offset, len }))
        };
        parts.iter().map(part).collect()
    }
}
