//! flock(2), fcntl(2) and OFD locks: held at the MDT, waited for here.
//!
//! Invariants: (1) a waiting request is answered at once and completed by a callback, so it holds no slot; (2) a cookie is
//! known here before its request leaves; (3) an interrupted wait ends with the MDT's word on who was first, the grant or
//! the signal; (4) a callback says that it is time to ask again: only a grant that answers a request of this client is one
//! that it can make again when the MDT's machine is lost; (5) what a handle has locked is remembered until the MDT has
//! been told to drop it.

use crate::client::Client;
use crate::file::Open;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::{Ctx, Peer, WaitList};
use nacre_types::{Codec, Errno, Fid, LockCookie, OpenHandle};
use nacre_wire::mdt::{
    FileLock, Flock, FlockCancel, FlockFamily, FlockGranted, FlockOutcome, FlockTest, FlockType,
};
use nacre_wire::{Frame, Opcode};

/// A waiting request is repeated this often, whatever happens. (A server that was restarted has forgotten who waits:
/// it is asked again at once.)
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// One waiting `flock` call.
struct Waiting {
    outcome: Cell<Option<Result<FlockOutcome, Errno>>>,
    interrupted: Cell<bool>,
    /// The MDT has forgotten who waits.
    forgotten: Cell<bool>,
    changed: WaitList,
}

type Table = RefCell<BTreeMap<LockCookie, Rc<Waiting>>>;

/// The calls that wait. Bounded by the callers that wait in them.
#[derive(Default)]
pub(crate) struct Flocks {
    waiting: Rc<Table>,
}

impl Flocks {
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.borrow().is_empty()
    }
    /// Takes the callbacks of the MDT.
    pub(crate) fn listen(&self, peer: &Peer) {
        let waiting = self.waiting.clone();
        peer.on_restarted(Box::new(move || {
            for waiting in waiting.borrow().values() {
                waiting.forgotten.set(true);
                waiting.changed.wake_all();
            }
        }));
    }
    /// What takes the callbacks of file locks.
    pub(crate) fn callbacks(&self) -> impl Fn(&Frame) + 'static {
        let waiting = self.waiting.clone();
        move |frame| granted(&waiting, frame)
    }
    /// The MDT has forgotten every request.
    pub(crate) fn evicted(&self) {
        for waiting in self.waiting.borrow().values() {
            waiting.outcome.set(Some(Err(Errno::EIO)));
            waiting.changed.wake_all();
        }
    }
    fn register(&self, ctx: &Ctx, cookie: LockCookie) -> Registered {
        let waiting = Rc::new(Waiting {
            outcome: Cell::new(None),
            interrupted: Cell::new(false),
            forgotten: Cell::new(false),
            changed: ctx.wait_list(),
        });
        self.waiting.borrow_mut().insert(cookie, waiting.clone());
        Registered { table: self.waiting.clone(), cookie, waiting }
    }
}

fn granted(waiting: &Table, frame: &Frame) {
    if frame.header.opcode != Opcode::FlockGranted.number() {
        return;
    }
    match FlockGranted::from_slice(&frame.body) {
        Ok(grant) => {
            if let Some(waiting) = waiting.borrow().get(&grant.cookie) {
                waiting.outcome.set(Some(Ok(grant.outcome)));
                waiting.changed.wake_all();
            }
        }
        Err(error) => tracing::error!(%error, "a lock callback of the MDT cannot be read, it is ignored"),
    }
}

/// A place in the table of waiting calls.
struct Registered {
    table: Rc<Table>,
    cookie: LockCookie,
    waiting: Rc<Waiting>,
}
impl Drop for Registered {
    fn drop(&mut self) {
        self.table.borrow_mut().remove(&self.cookie);
    }
}

impl Client {
    /// Sets or drops a file lock; with `wait` ends when it is granted, cancelled (EINTR) or refused.
    pub async fn flock(
        &self,
        handle: OpenHandle,
        lock: FileLock,
        wait: Option<LockCookie>,
    ) -> Result<FlockOutcome, Errno> {
        let _timing = self.stats.time("flock");
        let open = self.files.handle(handle)?;
        if lock.kind != FlockType::Unlock {
            // Before the request: a handle that is released meanwhile must know what to drop.
            open.lock_owners.borrow_mut().insert((lock.family, lock.owner));
            open.file.was_locked.set(true);
        }
        let cookie = wait.unwrap_or_else(|| self.new_cookie());
        let registered = self.flocks.register(&self.ctx, cookie);
        let request = Flock { fid: open.file.fid, lock, wait: wait.is_some(), cookie };
        loop {
            let mdt = self.mdt().await?;
            registered.waiting.forgotten.set(false);
            match mdt.call(&request).await?.outcome {
                FlockOutcome::Waiting => {}
                outcome => return Ok(outcome),
            }
            match self.wait_for_grant(&registered.waiting).await {
                Some(Ok(FlockOutcome::Granted)) => continue,
                Some(Ok(outcome)) => return Ok(outcome),
                Some(Err(error)) => {
                    self.withdraw(&request).await;
                    return Err(error);
                }
                None => {}
            }
            if registered.waiting.interrupted.get() {
                let cancel = FlockCancel { fid: open.file.fid, cookie };
                return match mdt.call(&cancel).await?.outcome {
                    FlockOutcome::Granted => Ok(FlockOutcome::Granted),
                    _ => Err(Errno::EINTR),
                };
            }
        }
    }

    /// Ends a wait whose caller has gone. It may have come to the MDT after the eviction that ended it here.
    async fn withdraw(&self, request: &Flock) {
        let withdrawn = async {
            let mdt = self.mdt().await?;
            let cancel = FlockCancel { fid: request.fid, cookie: request.cookie };
            if mdt.call(&cancel).await?.outcome == FlockOutcome::Granted {
                let lock = FileLock { kind: FlockType::Unlock, ..request.lock };
                mdt.call(&Flock { fid: request.fid, lock, wait: false, cookie: self.new_cookie() }).await?;
            }
            Ok::<_, Errno>(())
        };
        if let Err(error) = withdrawn.await {
            tracing::warn!(fid = %request.fid, %error, "a wait for a file lock could not be withdrawn");
        }
    }

    /// The outcome; `None` for a signal, or when it is time to ask again.
    async fn wait_for_grant(&self, waiting: &Waiting) -> Option<Result<FlockOutcome, Errno>> {
        let ask_again = self.ctx.now() + ASK_AGAIN;
        loop {
            if let Some(outcome) = waiting.outcome.take() {
                return Some(outcome);
            }
            if waiting.interrupted.get() || waiting.forgotten.get() || self.ctx.now() >= ask_again {
                return None;
            }
            let _ = self.ctx.timeout(ask_again, waiting.changed.wait()).await;
        }
    }

    /// A signal: the waiting `flock` call with this cookie ends with EINTR (or its grant, if that was first).
    pub fn flock_interrupt(&self, cookie: LockCookie) {
        if let Some(waiting) = self.flocks.waiting.borrow().get(&cookie) {
            waiting.interrupted.set(true);
            waiting.changed.wake_all();
        }
    }

    pub async fn flock_test(&self, fid: Fid, lock: FileLock) -> Result<Option<FileLock>, Errno> {
        Ok(self.mdt().await?.call(&FlockTest { fid, lock }).await?.conflict)
    }

    /// close(2) of one descriptor: reports write errors, drops the owner's POSIX locks.
    ///
    /// Writes go straight to the OSTs, so there is no error left to report here.
    pub async fn flush(&self, handle: OpenHandle, lock_owner: u64) -> Result<(), Errno> {
        let open = self.files.handle(handle)?;
        if !open.file.was_locked.get() {
            return Ok(()); // every close comes here
        }
        let key = (FlockFamily::Posix, lock_owner);
        // Any descriptor of the file, closed by the owner, drops all its locks on the file.
        let mut had_locks = false;
        for other in self.files.of_file(open.file.fid) {
            had_locks |= other.lock_owners.borrow_mut().remove(&key);
        }
        if had_locks {
            self.unlock_all(open.file.fid, key.0, key.1).await?;
        }
        Ok(())
    }

    /// The last close of a handle: its locks go, whatever their family.
    pub(crate) async fn drop_locks_of(&self, open: &Open) {
        let owners = core::mem::take(&mut *open.lock_owners.borrow_mut());
        for (family, owner) in owners {
            if let Err(error) = self.unlock_all(open.file.fid, family, owner).await
                && error != Errno::ESHUTDOWN
            {
                tracing::warn!(fid = %open.file.fid, %error, "the MDT could not drop the locks of a closed file");
            }
        }
    }

    async fn unlock_all(&self, fid: Fid, family: FlockFamily, owner: u64) -> Result<(), Errno> {
        let lock = FileLock { family, kind: FlockType::Unlock, start: 0, end: u64::MAX, owner, pid: 0 };
        let request = Flock { fid, lock, wait: false, cookie: self.new_cookie() };
        self.mdt().await?.call(&request).await.map(|_| ())
    }
}
