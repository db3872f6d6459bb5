//! One io_uring: commands to the FUSE connection in, completions out. Used by one thread after [`Ring::enable`].
//!
//! A command names a queue of the connection (one per CPU) and a slot. REGISTER gives the kernel a new slot for a request;
//! COMMIT passes the reply in a slot to the kernel, which then puts the next request into the slot. Specification:
//! `<linux/fuse.h>`, `fuse_uring_cmd_req`. Not here: the content of a slot (`queue.rs`).

use super::slots::Slots;
use crate::abi::{Field, UringCommand, uring};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::io;
use std::time::Duration;

/// Commands that can wait to be submitted; a full queue is submitted early.
const SUBMISSIONS: u32 = 64;
/// Completions before the kernel has to keep them itself.
const COMPLETIONS: u32 = 256;
/// `user_data` of the poll of the eventfd; those of commands are slot numbers.
pub(super) const WAKE: u64 = u64::MAX;
/// That of the poll of the sockets' descriptor.
pub(super) const LEAD: u64 = u64::MAX - 1;
/// That of commands whose completion says nothing.
const NOTHING: u64 = u64::MAX - 2;
/// Of the threads that poll a descriptor with this flag, one is woken (`EPOLLEXCLUSIVE`).
const EXCLUSIVE: u32 = 1 << 28;
/// Place of the connection in the ring's table of files.
const CONNECTION: types::Fixed = types::Fixed(0);
/// The position of `len` in an SQE: the number of entries that `addr` points to.
const LEN_AT: usize = 24;

pub(super) struct Ring {
    /// First: closed before the slots are dropped.
    io: IoUring<squeue::Entry128, cqueue::Entry>,
    // The queue works in the slots; the ring keeps them for as long as the kernel may write to them.
    pub(super) slots: Slots,
}

/// A completion: a plain value.
pub(super) struct Completion {
    pub(super) user_data: u64,
    pub(super) result: i32,
    /// Of a poll: it continues.
    pub(super) more: bool,
}

impl Ring {
    /// Creates a disabled ring; any thread may do that.
    ///
    /// # Errors
    /// EPERM where io_uring is forbidden, ENOSYS and EINVAL where it is too old.
    pub(super) fn new() -> io::Result<Self> {
        let io = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_r_disabled()
            .setup_single_issuer()
            // Not DEFER_TASKRUN, with which only this thread passes requests on. Another thread of a killed process can be
            // inside a notification that waits for a directory's lock, and keeps the ring from being closed: a request
            // that was meant for the dead thread, and that has the lock, would never end. Now the kernel cancels it.
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .dontfork()
            .build(SUBMISSIONS)?;
        Ok(Self { io, slots: Slots::default() })
    }

    /// Binds the ring to the calling thread, and its commands to `connection`.
    pub(super) fn enable(&mut self, connection: BorrowedFd<'_>) -> io::Result<()> {
        self.io.submitter().register_enable_rings()?;
        self.io.submitter().register_files(&[connection.as_raw_fd()])
    }

    /// Reports every write to `wake`, until a completion says that the poll has ended.
    pub(super) fn watch(&mut self, wake: &impl AsFd) -> io::Result<()> {
        let events = rustix::event::PollFlags::IN.bits();
        let poll = opcode::PollAdd::new(types::Fd(wake.as_fd().as_raw_fd()), events.into()).multi(true);
        self.push(&poll.build().user_data(WAKE).into())
    }

    /// Reports once that `sockets` is readable, as [`LEAD`].
    pub(super) fn watch_sockets(&mut self, sockets: BorrowedFd<'_>) -> io::Result<()> {
        let events = u32::from(rustix::event::PollFlags::IN.bits()) | EXCLUSIVE;
        let poll = opcode::PollAdd::new(types::Fd(sockets.as_raw_fd()), events);
        self.push(&poll.build().user_data(LEAD).into())
    }
    /// Ends [`Self::watch_sockets`]; its completion comes with an error, unless it has come already.
    pub(super) fn unwatch_sockets(&mut self) -> io::Result<()> {
        self.push(&opcode::PollRemove::new(LEAD).build().user_data(NOTHING).into())
    }

    /// A new slot for queue `queue`.
    pub(super) fn register(&mut self, queue: u16, slot: u32) -> io::Result<()> {
        let entry = self.command(uring::REGISTER, queue, slot, 0);
        let parts = self.slots.parts_address(slot);
        self.slots.give(slot);
        self.push(&with_parts(entry, parts))
    }
    /// Commits the reply to request `commit_id` in `slot`, which then takes the next request.
    pub(super) fn commit(&mut self, queue: u16, slot: u32, commit_id: u64) -> io::Result<()> {
        let entry = self.command(uring::COMMIT_AND_FETCH, queue, slot, commit_id);
        self.slots.give(slot);
        self.push(&entry)
    }
    /// A REGISTER that the kernel refuses: it then falls back to /dev/fuse, and releases requests that have waited for
    /// the rings.
    pub(super) fn refuse(&mut self) -> io::Result<()> {
        let entry = self.command(uring::REGISTER, u16::MAX, 0, 0);
        self.push(&entry)?;
        self.enter(Some(Duration::MAX)).map(drop)
    }

    fn command(&self, command: u32, queue: u16, slot: u32, commit_id: u64) -> squeue::Entry128 {
        let mut argument = [0; 80];
        let command_of_fuse = UringCommand { commit_id, qid: queue, ..UringCommand::default() };
        command_of_fuse.put(&mut &mut argument[..]);
        opcode::UringCmd80::new(CONNECTION, command).cmd(argument).build().user_data(u64::from(slot))
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        if self.io.submission().is_full() {
            self.io.submit()?;
        }
        // SAFETY: the memory that the entry names is the connection's slot, which is not freed or looked at before
        // its completion has been seen (`Slots`), or a descriptor, which holds no memory of ours.
        #[allow(unsafe_code, reason = "docs/unsafe.md")]
        let pushed = unsafe { self.io.submission().push(entry) };
        pushed.map_err(|_| io::Error::other("the submission queue of a ring stays full"))
    }

    /// Submits the commands that were pushed; with `wait`, blocks until there is a completion, at most for so long. False: it
    /// has waited for so long.
    pub(super) fn enter(&mut self, wait: Option<Duration>) -> io::Result<bool> {
        let entered = match wait {
            Some(limit) if limit < Duration::MAX => {
                let limit = types::Timespec::from(limit);
                self.io.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&limit))
            }
            wait => self.io.submit_and_wait(usize::from(wait.is_some())),
        };
        match entered {
            Ok(_) => Ok(true),
            // A signal; completions first.
            Err(e) if matches!(e.raw_os_error(), Some(4 | 16)) => Ok(true),
            // The limit.
            Err(e) if e.raw_os_error() == Some(62) => Ok(false),
            Err(e) => Err(e),
        }
    }
    pub(super) fn completion(&mut self) -> Option<Completion> {
        let entry = self.io.completion().next()?;
        let more = cqueue::more(entry.flags());
        Some(Completion { user_data: entry.user_data(), result: entry.result(), more })
    }
}

/// Sets `addr` and `len` to the two parts of a slot; the crate can set only the first.
fn with_parts(entry: squeue::Entry128, address: u64) -> squeue::Entry128 {
    const _: () = assert!(size_of::<squeue::Entry128>() == 128);
    // SAFETY: Entry128 is a C structure of 128 bytes without padding (the kernel's submission entry).
    #[allow(unsafe_code, reason = "docs/unsafe.md")]
    let mut bytes: [u8; 128] = unsafe { std::mem::transmute(entry) };
    for (to, from) in
        bytes.iter_mut().skip(LEN_AT - 8).zip(address.to_le_bytes().into_iter().chain(2u32.to_le_bytes()))
    {
        *to = from;
    }
    // SAFETY: as above; every pattern of bytes is a submission entry.
    #[allow(unsafe_code, reason = "docs/unsafe.md")]
    unsafe {
        std::mem::transmute(bytes)
    }
}
