//! The owner's half: the buffers, and the loans that peers have not returned.

use super::kept::{self, Kept};
use super::mapping::Mapping;
use super::table::{self, PARTS_MAX};
use super::word::{self, Serial};
use super::{
    ALIGN, BUFFER_BYTES, BUFFERS, FILE_BYTES, FREE_MAX, FRONT_BYTES, IDLE, LEND_MIN_BYTES, LOANS_MAX, SEALS,
    TRIM_MAX, WORDS_BYTES,
};
use bytes::Bytes;
use nacre_types::KeptPlace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::process::{PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The shared memory of this process. Clones share it.
#[derive(Clone)]
pub struct SharedMemory(Arc<Inner>);

struct Inner {
    file: OwnedFd,
    mapping: Mapping,
    state: Mutex<State>,
    /// Loans that were out at the last look: nothing to look for while there are none.
    out: AtomicUsize,
    /// There may be loans to look for, or memory to give back. A mount that moves no bulk takes no lock to find out.
    was_used: AtomicBool,
    /// The file has a name (`kept.rs`).
    kept: Option<Kept>,
}

/// The buffers that nobody uses, and the loans.
struct State {
    /// Buffers whose pages are in memory, the last one used last.
    resident: Vec<usize>,
    last_use: Instant,
    /// Buffers without pages.
    empty: Vec<usize>,
    loans: BTreeMap<usize, Loan>,
    serial: Serial,
}

/// Parts that a peer may look at.
struct Loan {
    /// They keep their buffers.
    parts: Vec<Bytes>,
    serial: Serial,
    to: Arc<Peer>,
}

/// The process at the other end of a connection.
struct Peer {
    pidfd: OwnedFd,
}
impl Peer {
    fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
    }
}

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.0.lock();
        let free = state.resident.len() + state.empty.len();
        f.debug_struct("SharedMemory").field("free", &free).field("loans", &state.loans.len()).finish()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn free_buffer(&self) -> Option<usize> {
        let mut state = self.lock();
        state.last_use = Instant::now();
        let Some(kept) = &self.kept else { return state.resident.pop().or_else(|| state.empty.pop()) };
        if kept.is_paused() {
            return None;
        }
        let resident = state.resident.pop();
        let index = resident.or_else(|| state.empty.pop())?;
        drop(state);
        if resident.is_none()
            && let Err(error) = kept::allocate(&self.file, index)
        {
            tracing::debug!(%error, "no memory for a buffer of written bytes");
            self.lock().empty.push(index);
            return None;
        }
        kept::begin_use(&self.mapping, index);
        Some(index)
    }
    /// Gives memory of buffers back that have not been needed for a while.
    fn trim(&self) {
        let mut state = self.lock();
        if state.last_use.elapsed() < IDLE || self.kept.as_ref().is_some_and(Kept::is_paused) {
            return;
        }
        if state.resident.len() <= FREE_MAX {
            self.was_used.store(!state.loans.is_empty(), Ordering::Relaxed);
            return;
        }
        let count = (state.resident.len() - FREE_MAX).min(TRIM_MAX);
        let unused: Vec<_> = state.resident.drain(..count).collect();
        drop(state);
        // They are in no list: nobody takes them meanwhile.
        for index in &unused {
            if self.kept.is_some() {
                kept::begin_use(&self.mapping, *index); // a log may still name bytes in it
            }
            let offset = (WORDS_BYTES + index * BUFFER_BYTES) as u64;
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if let Err(error) = rustix::fs::fallocate(&self.file, hole, offset, BUFFER_BYTES as u64) {
                tracing::debug!(%error, "cannot give the memory of a buffer back");
            }
        }
        self.lock().empty.extend(unused);
    }
    /// Ends the loans that were returned, and those to peers of which `has_ended` is true.
    fn look_for_returns(&self, has_ended: impl Fn(&Peer) -> bool) {
        if self.out.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut ended = Vec::new();
        let mut state = self.lock();
        state.loans.retain(|number, loan| {
            let is_out = !word::is_returned(self.mapping.word(*number)) && !has_ended(&loan.to);
            if !is_out {
                ended.append(&mut loan.parts);
            }
            is_out
        });
        self.out.store(state.loans.len(), Ordering::Relaxed);
        drop(state);
        drop(ended); // which gives their buffers back, under the lock
    }
}

impl SharedMemory {
    /// Buffers that there are.
    pub const BUFFERS: usize = BUFFERS;

    /// Makes the memory; no page of it exists yet.
    ///
    /// # Errors
    /// Of the kernel. Bulk travels through sockets then.
    pub fn create() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("nacre bulk", flags)?;
        rustix::fs::ftruncate(&file, FILE_BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS | SealFlags::GROW | SealFlags::SEAL)?;
        Self::of(file, None)
    }
    fn of(file: OwnedFd, kept: Option<Kept>) -> io::Result<Self> {
        let mapping = Mapping::new(&file, FILE_BYTES, true)?;
        let empty = (0..BUFFERS).rev().collect();
        let state = State {
            resident: Vec::new(),
            last_use: Instant::now(),
            empty,
            loans: BTreeMap::new(),
            serial: Serial::first(),
        };
        Ok(Self(Arc::new(Inner {
            file,
            mapping,
            state: Mutex::new(state),
            out: AtomicUsize::new(0),
            was_used: AtomicBool::new(false),
            kept,
        })))
    }

    /// Memory in an empty file of a tmpfs, which is kept when this process ends.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn in_file(file: File) -> io::Result<Self> {
        let file = OwnedFd::from(file);
        rustix::fs::ftruncate(&file, FILE_BYTES as u64)?;
        kept::allocate_words(&file)?;
        Self::of(file, Some(Kept::default()))
    }
    /// The place of bytes that are in one of the buffers. `None`: they are not, or this memory has no name.
    pub fn place_of(&self, bytes: &[u8]) -> Option<KeptPlace> {
        self.0.kept.as_ref()?;
        kept::place(&self.0.mapping, self.0.mapping.offset_of(bytes)?, bytes.len())
    }
    /// No buffer of memory with a name is given away while it is paused: somebody wants to read what is in them.
    pub fn pause(&self, paused: bool) {
        if let Some(kept) = &self.0.kept {
            kept.pause(paused);
        }
    }

    /// To be passed to peers.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// A buffer for a request whose payload is preceded by `front` bytes. `None` if all are in use, or if it is too small.
    pub fn take(&self, front: usize, payload: usize) -> Option<SharedBuffer> {
        if front > FRONT_BYTES || payload > BUFFER_BYTES - FRONT_BYTES {
            return None;
        }
        self.0.look_for_returns(|_| false);
        let index = self.0.free_buffer().or_else(|| {
            self.0.look_for_returns(Peer::has_ended);
            self.0.free_buffer()
        })?;
        let offset = WORDS_BYTES + index * BUFFER_BYTES + FRONT_BYTES - front;
        Some(SharedBuffer { memory: self.0.clone(), index, offset, len: front + payload })
    }

    /// Gives the buffers free that peers have returned, and memory back that was not needed for a while. To be called now and
    /// then.
    pub fn look_for_returns(&self) {
        if !self.0.was_used.load(Ordering::Relaxed) {
            return;
        }
        let is_idle = self.0.lock().last_use.elapsed() >= IDLE;
        self.0.look_for_returns(|peer| is_idle && peer.has_ended());
        self.0.trim();
    }

    /// The lender of a connection to another process; `None` if that process cannot be watched.
    pub fn lender(&self, connection: impl AsFd) -> Option<Lender> {
        let pid = rustix::net::sockopt::socket_peercred(connection).ok()?.pid;
        // A process outside this pid name space has the pid 0.
        self.lender_to(rustix::process::Pid::from_raw(pid.as_raw_nonzero().get())?)
    }
    pub(super) fn lender_to(&self, pid: rustix::process::Pid) -> Option<Lender> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Lender { memory: self.clone(), peer: Arc::new(Peer { pidfd }) })
    }
    #[cfg(test)]
    pub(super) fn is_idle_for(&self, time: std::time::Duration) {
        let mut state = self.0.lock();
        state.last_use = state.last_use.checked_sub(time).unwrap_or(state.last_use);
    }
    #[cfg(test)]
    pub(super) fn loans(&self) -> usize {
        self.0.lock().loans.len()
    }
}

/// Lends parts of frames to the process at the other end of one connection.
pub struct Lender {
    memory: SharedMemory,
    peer: Arc<Peer>,
}

impl std::fmt::Debug for Lender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.memory.fmt(f)
    }
}

impl Lender {
    /// Lends the bulk of a frame. The table travels instead of it. `None` if the bulk must travel itself.
    pub(crate) fn lend(&self, bulk: &[Bytes]) -> Option<Bytes> {
        let total: usize = bulk.iter().map(Bytes::len).sum();
        if total < LEND_MIN_BYTES || bulk.len() > PARTS_MAX {
            return None;
        }
        let memory = &self.memory.0;
        let parts = self.aligned(bulk, total)?;
        let place = |part: &Bytes| {
            let offset = u32::try_from(memory.mapping.offset_of(part)?).ok()?;
            Some((offset, u32::try_from(part.len()).ok()?))
        };
        let places = parts.iter().map(place).collect::<Option<Vec<_>>>()?;
        memory.look_for_returns(|_| false);
        let mut state = memory.lock();
        let Some(number) = (0..LOANS_MAX).find(|number| !state.loans.contains_key(number)) else {
            drop(state);
            memory.look_for_returns(Peer::has_ended);
            return None; // the next one may be lent
        };
        let serial = state.serial;
        state.serial = serial.next();
        word::offer(memory.mapping.word(number), serial);
        state.loans.insert(number, Loan { parts, serial, to: self.peer.clone() });
        memory.out.store(state.loans.len(), Ordering::Relaxed);
        memory.was_used.store(true, Ordering::Relaxed);
        Some(Bytes::from(table::encode(&(number as u32, serial, places))))
    }

    /// The same bytes in parts that a store can pass to a device as they are. Usually that is what they are; but the kernel
    /// splits a write of 1 MiB whose memory begins within a page into a long request and a short one, which is not in a buffer.
    /// These are copied, once instead of twice through a socket. `None` if there are not enough buffers.
    fn aligned(&self, bulk: &[Bytes], total: usize) -> Option<Vec<Bytes>> {
        let mapping = &self.memory.0.mapping;
        let is_aligned = |(index, part): (usize, &Bytes)| {
            let begins_at_page = mapping.offset_of(part).is_some_and(|offset| offset.is_multiple_of(ALIGN));
            begins_at_page && (part.len().is_multiple_of(ALIGN) || index + 1 == bulk.len())
        };
        if bulk.iter().enumerate().all(is_aligned) {
            return Some(bulk.to_vec());
        }
        let mut rest = bulk.iter().map(|part| &part[..]);
        let mut piece: &[u8] = &[];
        let mut copies = Vec::new();
        let mut left = total;
        while left > 0 {
            let len = left.min(BUFFER_BYTES - FRONT_BYTES);
            let mut buffer = self.memory.take(0, len)?;
            let mut space = buffer.space();
            while !space.is_empty() {
                if piece.is_empty() {
                    piece = rest.next()?;
                }
                let count = piece.len().min(space.len());
                let (filled, empty) = space.split_at_mut(count);
                let (copied, behind) = piece.split_at(count);
                filled.copy_from_slice(copied);
                (space, piece) = (empty, behind);
            }
            copies.push(buffer.filled(len));
            left -= len;
        }
        Some(copies)
    }
}

impl Drop for Lender {
    /// The connection has ended: frames that the peer has not received will never be.
    fn drop(&mut self) {
        let memory = &self.memory.0;
        let state = memory.lock();
        for (number, loan) in state.loans.iter().filter(|(_, loan)| Arc::ptr_eq(&loan.to, &self.peer)) {
            word::revoke(memory.mapping.word(*number), loan.serial);
        }
    }
}

/// A buffer of the shared memory, which belongs to its holder alone.
pub struct SharedBuffer {
    memory: Arc<Inner>,
    index: usize,
    offset: usize,
    len: usize,
}

impl SharedBuffer {
    /// All of it; the payload begins at a page boundary.
    pub fn space(&mut self) -> &mut [u8] {
        self.memory.mapping.slice_mut(self.offset, self.len)
    }
    /// The first `len` bytes, which were written.
    pub fn filled(mut self, len: usize) -> Bytes {
        self.len = len.min(self.len);
        Bytes::from_owner(self)
    }
}
impl AsRef<[u8]> for SharedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.memory.mapping.slice(self.offset, self.len)
    }
}
impl Drop for SharedBuffer {
    fn drop(&mut self) {
        self.memory.lock().resident.push(self.index);
        self.memory.was_used.store(true, Ordering::Relaxed);
    }
}
