//! The door: one reply per request, and a task for each request that waits.
//!
//! Invariants: every request that wants a reply gets exactly one; after a panic in one request its caller gets EIO, the
//! panic is logged, and the mount continues; a request in progress is indexed by its number until its reply has been
//! pushed, so that INTERRUPT finds it. Replies that need no file system are sent without a task.
//!
//! Not here: the choice of the handler of a request (`dispatch.rs`), the operations (`handlers`), signals
//! (`interrupt.rs`), reading and writing the device (`device.rs`).

use crate::abi::{InHeader, op};
use crate::holders::{Looks, changes};
use crate::kernel_cache::listings::Listings;
use crate::kernel_cache::{Grant, KernelDoor, KernelEvent, Order, Surroundings};
use crate::left_names::LeftNames;
use crate::lock_owners::LockOwners;
use crate::moved::Moved;
use crate::name_locks::NameLocks;
use crate::ops::Ops;
use crate::pages::{OtherTimes, Range};
use crate::removals::{Removal, Removals};
use crate::reply::{Body, FuseReply};
use crate::request::FuseRequest;
use crate::special_files::SpecialFiles;
use crate::stats::{OpStats, Served};
use crate::uring::hub::Ticket;
use crate::uring::transport::Transport;
use crate::walks::Replied;
use bytes::Bytes;
use nacre_client::{Attach, KernelCache as _, Stale};
use nacre_node::{Ctx, Effect, Promise, TaskId};
use nacre_types::{Errno, Fid, Instant, SeededHash, Timestamp};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use tracing::error;

/// Result of a handler.
pub(crate) type Reply = Result<Body, Errno>;

/// An effect for the front end, passed through [`Effect::Door`].
pub enum FuseEffect {
    /// Sent at once by the thread that leaves the island.
    Reply(FuseReply),
    /// Progress of the first connection to the servers.
    Attach(Attach),
    /// Asks for the reason of a caller's interrupt; [`crate::Interrupted`] comes back if its call is to end.
    LookAtCaller { unique: u64, pid: u32 },
    /// Asks for the process of a caller and those of these files that it has open; a `Looked` comes back.
    LookAtFiles { unique: u64, pid: u32, files: Vec<Fid> },
    /// Asks for the length of the call to which a request belongs; a `CallBytes` comes back.
    LookAtCall { unique: u64, pid: u32 },
    /// Notifications for the kernel, which the notifier writes.
    Notify(Order),
    /// A lock request from a ring may have to wait, and the kernel does not report a signal that came before it.
    LockWaits { ticket: Ticket, pid: u32 },
}

/// The result of [`FuseEffect::LookAtCall`]; delivered to the island as an [`Event::Door`](nacre_node::Event::Door). A plain
/// value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallBytes {
    pub(crate) unique: u64,
    /// `None`: not known.
    pub(crate) bytes: Option<u64>,
}

/// The requests of one mount in progress, and the file system that serves them. The handlers, which live by concern in the
/// files of this crate, reach both through these fields.
pub struct Door<O: Ops> {
    pub(crate) ctx: Rc<Ctx>,
    pub(crate) ops: Rc<O>,
    pub(crate) running: Rc<RefCell<BTreeMap<u64, Running>>>,
    /// The names and attributes that the kernel may use.
    kernel: KernelDoor,
    /// The directories that the kernel knows, and its walks to them.
    moved: RefCell<Moved>,
    name_locks: RefCell<NameLocks>,
    /// Tasks whose callers already have a reply.
    pub(crate) given_up: Cell<usize>,
    /// A task examines the callers of requests from rings (`interrupt.rs`).
    watches_callers: Cell<bool>,
    pub(crate) stats: OpStats,
    other_times: OtherTimes,
    /// The listings that the kernel may keep.
    listings: Listings,
    pub(crate) looks: Looks,
    lock_owners: LockOwners,
    special_files: RefCell<SpecialFiles>,
    removals: Removals,
    /// Requests that wait for the length of their calls.
    calls: RefCell<BTreeMap<u64, Promise<Option<u64>>>>,
    transport: RefCell<String>,
}

/// A request in progress: a plain record.
pub(crate) struct Running {
    pub(crate) request: Rc<FuseRequest>,
    pub(crate) start: Instant,
    pub(crate) task: TaskId,
}

impl<O: Ops> Door<O> {
    /// A door without requests. Tells `ops` of the kernel's cache, which its locks protect from now on.
    pub fn new(ctx: &Rc<Ctx>, ops: Rc<O>) -> Rc<Self> {
        let stats = OpStats::new(ctx.wall());
        let running = Rc::<RefCell<BTreeMap<u64, Running>>>::default();
        let (ctx_of_kernel, of_kernel) = (ctx.clone(), Rc::downgrade(&ops));
        let around = AroundKernel { ctx: ctx_of_kernel, ops: of_kernel, running: running.clone() };
        let kernel = KernelDoor::new(ctx, around);
        ops.set_kernel_cache(Rc::new(kernel.clone()));
        Rc::new(Self {
            ctx: ctx.clone(),
            ops,
            running,
            kernel,
            moved: RefCell::new(Moved::new(SeededHash::new(ctx.random()))),
            name_locks: RefCell::default(),
            given_up: Cell::new(0),
            watches_callers: Cell::new(false),
            stats,
            other_times: OtherTimes::default(),
            listings: Listings::default(),
            looks: Looks::default(),
            lock_owners: LockOwners::new(ctx),
            special_files: RefCell::default(),
            removals: Removals::new(ctx),
            calls: RefCell::default(),
            transport: RefCell::default(),
        })
    }
    /// The file system behind the door.
    pub fn file_system(&self) -> &Rc<O> {
        &self.ops
    }
    pub(crate) fn special_files(&self) -> RefMut<'_, SpecialFiles> {
        self.special_files.borrow_mut()
    }
    pub(crate) fn removals(&self) -> &Removals {
        &self.removals
    }
    /// A name is about to be removed. A name without a validity, which the client may not know, was looked up for this call.
    pub(crate) fn removal_of(
        &self,
        request: &FuseRequest,
        (parent, name): (Fid, &[u8]),
    ) -> Option<Removal<'_>> {
        let file = self.ops.named(parent, name).or_else(|| self.left_names().latest(parent, name))?;
        Some(self.removals.begin(file, request.header.pid))
    }
    pub(crate) fn lock_owners(&self) -> &LockOwners {
        &self.lock_owners
    }
    /// Whether a task examines the callers of requests from rings.
    pub(crate) fn watches_callers(&self) -> &Cell<bool> {
        &self.watches_callers
    }
    /// Requests without a reply.
    pub fn running(&self) -> usize {
        self.running.borrow().len()
    }
    /// Whether the kernel may hold locks of names for other callers: for requests in progress, or, after a reply, that of
    /// the directory `dir` (`None`: any).
    pub(crate) fn others_lock_names(&self, request: &FuseRequest, dir: Option<u64>) -> bool {
        let running = self.running.borrow();
        let is_other = |unique: u64| unique != request.unique();
        running.iter().any(|(unique, r)| is_other(*unique) && locks_names(r.request.opcode()))
            || self.name_locks.borrow().may_be_locked(dir, request.header.pid, self.ctx.now())
    }
    /// Counters of the kernel's requests, by operation.
    pub fn stats(&self) -> &OpStats {
        &self.stats
    }
    pub(crate) fn listings(&self) -> &Listings {
        &self.listings
    }
    pub(crate) fn moved(&self) -> RefMut<'_, Moved> {
        self.moved.borrow_mut()
    }
    pub(crate) fn left_names(&self) -> RefMut<'_, LeftNames> {
        self.kernel.left_names()
    }
    /// A time of modification that makes the kernel drop the pages of a file.
    pub(crate) fn other_time(&self, real: Timestamp) -> Timestamp {
        self.other_times.instead_of(real)
    }
    /// Begins the grant of validities in the reply to a request.
    pub(crate) fn grant(&self, request: &FuseRequest) -> Grant<'_> {
        if request.has_stand_in() {
            return Grant::none();
        }
        let dir = request.fid().ok().filter(|dir| request.locks_directory(*dir));
        self.kernel.grant(request.header.pid, dir, request.opcode() == op::READDIRPLUS)
    }
    /// A request has changed the entries of a directory, or extended attributes; called before its reply. The kernel drops
    /// its attributes of the inode then, but takes over an older reply to another thread afterwards. (After other changes
    /// it does not: it compares the versions of attributes.)
    pub(crate) async fn changed(&self, request: &FuseRequest, fid: Fid) {
        if let Some(forgotten) = self.kernel.overlapped(fid, request.header.pid) {
            forgotten.await;
        }
    }
    /// A request gets a file lock; called before its reply.
    pub(crate) async fn locked(&self, request: &FuseRequest, fid: Fid) {
        let asks = |running: &FuseRequest| {
            matches!(running.opcode(), op::GETATTR | op::STATX)
                && running.node() == request.node()
                && running.header.pid != request.header.pid
        };
        let is_asked = self.running.borrow().values().any(|running| asks(&running.request));
        if let Some(overtaken) = self.kernel.locked(fid, is_asked) {
            overtaken.await;
        }
    }
    /// Has the kernel drop its pages of a file.
    pub(crate) async fn forget_pages(&self, fid: Fid) {
        self.kernel.forget(vec![Stale::Pages(fid)]).await;
    }
    /// Has the kernel drop its attributes of an inode.
    pub(crate) async fn forget_attributes(&self, fid: Fid) {
        self.kernel.forget(vec![Stale::Inode(fid)]).await;
    }
    /// A rename has succeeded: the kernel will move an entry to this name.
    pub(crate) fn kernel_moves(&self, node: u64, name: &[u8]) {
        self.kernel.moved(node, name);
    }
    /// Notifications to the kernel, withheld validities, requests served at once: a line for each counter.
    pub fn kernel_cache_text(&self) -> String {
        self.kernel.text() + &self.stats.hits_text()
    }
    /// The requests in progress, a line for each: operation, pid of the caller (0 = unknown), milliseconds so far.
    pub fn waiting_text(&self) -> String {
        const LINES_MAX: usize = 1000;
        let now = self.ctx.now();
        let line = |r: &Running| {
            let InHeader { opcode, pid, .. } = r.request.header;
            format!("{} {pid} {}\n", op::name(opcode).to_lowercase(), (now - r.start).as_millis())
        };
        self.running.borrow().values().take(LINES_MAX).map(line).collect()
    }

    /// Handles an event of the kernel's caches.
    pub(crate) fn kernel_event(&self, event: KernelEvent) {
        if let KernelEvent::Link(link) = &event {
            self.moved().set_forgotten(link.forgotten().clone());
        }
        self.kernel.event(event);
    }
    pub(crate) fn set_transport(&self, transport: &Transport) {
        *self.transport.borrow_mut() = transport.to_string();
    }
    /// The transport of requests, for people; empty before the mount.
    pub fn transport(&self) -> String {
        self.transport.borrow().clone()
    }

    /// Before a request is handled: its caller has got earlier replies, and its inode may have moved.
    pub(crate) fn accept(&self, request: &mut FuseRequest) {
        self.kernel.settle(request.header.pid);
        self.removals.settle(request.header.pid);
        let mut moved = self.moved.borrow_mut();
        moved.arrived(request.header.pid, request.node(), self.ctx.now());
        request.resolve(&moved, &self.left_names());
    }

    /// Handles a request: at once if nothing has to be waited for, else in a task.
    pub(crate) fn run<F>(
        self: &Rc<Self>,
        request: FuseRequest,
        handler: impl FnOnce(Rc<Self>, Rc<FuseRequest>) -> F,
    ) where
        F: Future<Output = Reply> + 'static,
    {
        let request = Rc::new(request);
        let start = self.ctx.now();
        let running = request.clone();
        // Made in its box: otherwise its kilobytes would be copied.
        let mut work = Box::into_pin(Box::write(Box::new_uninit(), handler(self.clone(), request.clone())));
        let begins = self.may_begin(&request);
        let stale = self.stale_after(&request);
        if begins && stale.is_empty() && !op::changes_names(request.opcode()) {
            // A request that the caches can serve completes here and needs no task. Another one is polled once more in
            // its task, which then waits; a change of names always does.
            let first = poll_catching(work.as_mut(), &mut Context::from_waker(Waker::noop()), &request);
            if let Poll::Ready(reply) = first {
                self.stats.count(request.opcode(), Served::AtOnce, &reply);
                return self.reply(&request, reply);
            }
        }
        let door = self.clone();
        let task = self.ctx.spawn(async move {
            let reply = match door.allowed(&request, begins).await {
                Ok(()) => catching(work, &request).await,
                Err(error) => Err(error),
            };
            if !stale.is_empty() {
                door.kernel.forget(stale).await;
            }
            door.stats.count(request.opcode(), Served::After(door.ctx.now() - start), &reply);
            if request.has_reply() {
                // Abandoned (`interrupt.rs`): the caller has a reply.
                door.given_up.set(door.given_up.get().saturating_sub(1));
            } else {
                door.reply(&request, reply);
            }
        });
        if running.is_from_ring() {
            self.watch_callers();
        }
        // It starts later in this visit.
        let running = Running { request: running, start, task };
        self.running.borrow_mut().insert(running.request.unique(), running);
    }

    /// The names and nodes that the kernel has to forget after a request whose change it has applied to a stand-in and
    /// not to the directory's own node.
    fn stale_after(&self, request: &FuseRequest) -> Vec<Stale> {
        match request.opcode() {
            opcode if request.has_stand_in() && changes(opcode) => vec![Stale::All],
            op::RENAME | op::RENAME2 | op::RMDIR => {
                let directories = self.moved().with_stand_ins().collect::<Vec<_>>();
                directories.into_iter().chain(self.files_with_stand_ins(request)).map(Stale::Inode).collect()
            }
            op::UNLINK => self.files_with_stand_ins(request).map(Stale::Inode).collect(),
            _ => Vec::new(),
        }
    }
    /// The files that the kernel has under the names of this request by other numbers (`left_names.rs`).
    fn files_with_stand_ins(&self, request: &FuseRequest) -> impl Iterator<Item = Fid> {
        let mut left = self.left_names();
        request
            .changed_names()
            .into_iter()
            .flatten()
            .filter_map(move |(parent, name)| left.changes(parent, name))
    }

    pub(crate) fn reply(&self, request: &FuseRequest, reply: Reply) {
        self.running.borrow_mut().remove(&request.unique());
        let (pid, opcode, error) = (request.header.pid, request.opcode(), reply.as_ref().err().copied());
        if locks_names(opcode) {
            let is_rename = matches!(opcode, op::RENAME | op::RENAME2);
            let dir = (!is_rename).then(|| request.node());
            self.name_locks.borrow_mut().replied(pid, dir, self.ctx.now());
        }
        let is_gone = {
            let mut moved = self.moved();
            // Only a walk that ends with ESTALE has to know. (The LOOKUP of a name never fails with it.)
            let by_path =
                error == Some(Errno::ESTALE) && opcode != op::LOOKUP && moved.is_directory(request.node());
            let shows = reply.as_ref().ok().filter(|_| opcode == op::LOOKUP).and_then(Body::shown);
            let replied = Replied::new(pid, (opcode, request.node()), by_path, shows);
            moved.walks().replied(replied, error, self.ctx.now())
        };
        let reply = if is_gone { Err(Errno::ENOENT) } else { reply };
        self.ctx.push(Effect::Door(Box::new(FuseEffect::Reply(request.reply(reply)))));
    }

    /// The island ends without a stop: decided replies are still sent, other requests get EIO. Tasks are not
    /// dropped (they and the context refer to each other), so they cannot do this.
    pub fn abandon(&self) {
        for effect in self.ctx.take_effects() {
            if let Effect::Door(item) = effect
                && let Ok(effect) = item.downcast::<FuseEffect>()
                && let FuseEffect::Reply(reply) = *effect
            {
                reply.send_without_validity();
            }
        }
        self.kernel.abandon(&self.ops.pages_in_kernel());
        // A panic may have occurred while it was borrowed.
        let running = self.running.try_borrow_mut().map(|mut running| std::mem::take(&mut *running));
        for running in running.unwrap_or_default().into_values() {
            running.request.abandon();
        }
    }

    /// Total bytes that the system call of a request's caller writes, if known.
    pub(crate) async fn call_bytes(&self, request: &FuseRequest) -> Option<u64> {
        let (unique, pid) = (request.unique(), request.header.pid);
        let (promise, reply) = self.ctx.promise();
        self.calls.borrow_mut().insert(unique, promise);
        self.ctx.push(Effect::Door(Box::new(FuseEffect::LookAtCall { unique, pid })));
        reply.await.flatten()
    }
    pub(crate) fn call_looked_at(&self, CallBytes { unique, bytes }: CallBytes) {
        let promise = self.calls.borrow_mut().remove(&unique);
        if let Some(promise) = promise {
            promise.fulfil(bytes);
        }
    }

    /// Reports that a request waits for a lock.
    pub(crate) fn waits(&self, request: &FuseRequest) {
        if let Some(ticket) = request.ticket() {
            let pid = request.header.pid;
            self.ctx.push(Effect::Door(Box::new(FuseEffect::LockWaits { ticket, pid })));
        }
    }
}

/// Whether the kernel may hold the lock of the request's directory: for a LOOKUP it does if the name is that of something
/// new.
fn locks_names(opcode: u32) -> bool {
    opcode == op::LOOKUP || op::changes_names(opcode)
}

struct AroundKernel<O: Ops> {
    ctx: Rc<Ctx>,
    ops: Weak<O>,
    running: Rc<RefCell<BTreeMap<u64, Running>>>,
}
impl<O: Ops> AroundKernel<O> {
    fn any(&self, found: impl Fn(&FuseRequest) -> bool) -> bool {
        /// Requests that are searched; with more one is assumed.
        const SEARCHED_MAX: usize = 256;
        let running = self.running.borrow();
        running.len() > SEARCHED_MAX || running.values().any(|r| found(&r.request))
    }
}
impl<O: Ops> Surroundings for AroundKernel<O> {
    fn holds_request_of(&self, dir: Fid) -> bool {
        self.any(|request| request.locks_directory(dir))
    }
    fn changes(&self, dir: Fid) -> bool {
        self.any(|request| request.changes_directory(dir))
    }
    fn names_in_kernel(&self) -> Option<Vec<(Fid, Bytes)>> {
        let mut names = self.ops.upgrade()?.names_in_kernel()?;
        let running = self.running.borrow();
        let through_stand_ins = running.values().filter(|r| r.request.has_stand_in());
        let changed = through_stand_ins.flat_map(|r| r.request.changed_names()).flatten();
        names.extend(changed.map(|(dir, name)| (dir, Bytes::copy_from_slice(name))));
        Some(names)
    }
    fn reads_into_pages(&self, fid: Fid) -> Vec<Range> {
        let running = self.running.borrow();
        running.values().filter_map(|r| r.request.fills_pages_of(fid)).collect()
    }
    fn send(&self, order: Order) {
        self.ctx.push(Effect::Door(Box::new(FuseEffect::Notify(order))));
    }
}

/// A handler's future, with EIO in place of a panic.
fn catching(
    mut work: Pin<Box<impl Future<Output = Reply>>>,
    request: &FuseRequest,
) -> impl Future<Output = Reply> {
    std::future::poll_fn(move |cx| poll_catching(work.as_mut(), cx, request))
}

fn poll_catching(
    work: Pin<&mut impl Future<Output = Reply>>,
    cx: &mut Context<'_>,
    request: &FuseRequest,
) -> Poll<Reply> {
    catch_unwind(AssertUnwindSafe(|| work.poll(cx))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let (operation, nodeid) = (op::name(request.opcode()), request.header.nodeid);
        error!(
            operation,
            nodeid,
            panic = text,
            "a request stopped on a bug; its caller gets an input/output error"
        );
        Poll::Ready(Err(Errno::EIO))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{self, Field, InterruptIn};
    use crate::caller::Look;
    use crate::caller::Reason::{self, Asked, Ends};
    use crate::device::Channel;
    use crate::holders::Looked;
    use crate::interrupt::Interrupted;
    use bytes::Bytes;
    use nacre_client::{ReaddirPage, ResolvedInode};
    use nacre_node::{WaitList, visit};
    use nacre_types::{Attr, Caller, Fid, OpenHandle, Timestamp};
    use nacre_wire::mdt::{FileLock, FlockOutcome, FlockType};
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::time::Duration;

    /// Completes nothing until it is woken: then ENOENT, and opens succeed.
    struct Away {
        ctx: Rc<Ctx>,
        back: WaitList,
        opened: Cell<i32>,
        locked: Cell<i32>,
        /// Of these files locks were lost.
        lost: RefCell<Vec<Fid>>,
    }
    impl Ops for Away {
        async fn lookup(&self, _: Fid, _: &[u8]) -> Result<ResolvedInode, Errno> {
            self.back.wait().await;
            Err(Errno::ENOENT)
        }
        async fn make(&self, _: nacre_client::CreateArgs<'_>) -> Result<ResolvedInode, Errno> {
            self.back.wait().await;
            Err(Errno::ENOENT)
        }
        async fn open(&self, fid: Fid, _: u32, _: Caller) -> Result<(ResolvedInode, OpenHandle), Errno> {
            self.back.wait().await;
            self.opened.set(self.opened.get() + 1);
            Ok((ResolvedInode { attr: Attr { fid, ..no_attr() }, kill_priv: false }, OpenHandle(5)))
        }
        async fn release(&self, handle: OpenHandle, _: Option<u64>) -> Result<(), Errno> {
            self.opened.set(self.opened.get() - i32::from(handle == OpenHandle(5)));
            Ok(())
        }
        async fn flock(&self, _: OpenHandle, lock: FileLock, wait: bool) -> Result<FlockOutcome, Errno> {
            if wait {
                self.back.wait().await;
            }
            self.locked.set(self.locked.get() + if lock.kind == FlockType::Unlock { -1 } else { 1 });
            Ok(FlockOutcome::Granted)
        }
        async fn read(&self, _: OpenHandle, _: u64, _: u32) -> Result<Vec<Bytes>, Errno> {
            let back = self.ctx.while_wanted(self.back.wait()).await;
            back.map(|()| Vec::new()).ok_or(Errno::EINTR)
        }
        async fn flush(&self, _: OpenHandle, _: u64) -> Result<(), Errno> {
            self.back.wait().await;
            Ok(())
        }
        fn files_with_lost_locks(&self) -> Vec<Fid> {
            self.lost.borrow().clone()
        }
        fn may_change(&self, _: u32, open: Option<&[Fid]>) -> Result<(), Errno> {
            if open == Some(&[]) { Ok(()) } else { Err(Errno::EIO) }
        }
        async fn parent(&self, _: Fid) -> Result<ResolvedInode, Errno> {
            Err(Errno::ENOENT)
        }
        async fn getattr(&self, fid: Fid) -> Result<ResolvedInode, Errno> {
            Ok(ResolvedInode { attr: Attr { fid, ..no_attr() }, kill_priv: false })
        }
        fn named(&self, _: Fid, name: &[u8]) -> Option<Fid> {
            (name == b"root").then_some(Fid::ROOT)
        }
        async fn unlink(&self, _: Fid, _: &[u8], _: bool, _: Caller) -> Result<(), Errno> {
            self.back.wait().await;
            Ok(())
        }
        async fn readdir(&self, _: Fid, _: u64, _: u32, _: bool) -> Result<ReaddirPage, Errno> {
            Ok(ReaddirPage { entries: Vec::new(), eof: true })
        }
    }

    fn no_attr() -> Attr {
        Attr::new(Fid::ROOT, 0o100644, Timestamp::default())
    }

    struct World {
        ctx: Rc<Ctx>,
        door: Rc<Door<Away>>,
        now: u64,
        /// Callers that the front end was asked about.
        asked: Vec<(u64, u32)>,
    }
    struct At<'a>(&'a World, Option<FuseRequest>);
    impl nacre_node::Logic for At<'_> {
        fn ctx(&self) -> &Rc<Ctx> {
            &self.0.ctx
        }
        fn handle(&mut self, _: nacre_node::Event) {
            if let Some(request) = self.1.take() {
                self.0.door.handle(request);
            }
        }
    }
    impl World {
        fn new() -> Self {
            let ctx = Ctx::new(1);
            let away = Away {
                ctx: ctx.clone(),
                back: ctx.wait_list(),
                opened: Cell::new(0),
                locked: Cell::new(0),
                lost: RefCell::default(),
            };
            let door = Door::new(&ctx, Rc::new(away));
            Self { ctx, door, now: 0, asked: Vec::new() }
        }
        /// The servers reply.
        fn back(&self) {
            self.door.file_system().back.wake_all();
        }
        /// A visit; gives back (unique, error) of the replies.
        fn visit(&mut self, request: Option<FuseRequest>, after: Duration) -> Vec<(u64, i32)> {
            self.now += after.as_nanos() as u64;
            visit(&mut At(self, request), Instant(self.now), Timestamp::default(), nacre_node::Event::Start);
            let effects = self.ctx.take_effects().into_iter();
            let replies = effects.filter_map(|effect| match effect {
                Effect::Door(item) => match *item.downcast::<FuseEffect>().ok()? {
                    FuseEffect::Reply(reply) => Some(reply.unique_and_error()),
                    FuseEffect::Attach(_)
                    | FuseEffect::LookAtCall { .. }
                    | FuseEffect::Notify(_)
                    | FuseEffect::LockWaits { .. } => None,
                    FuseEffect::LookAtCaller { unique, pid } => {
                        self.asked.push((unique, pid));
                        None
                    }
                    FuseEffect::LookAtFiles { unique, pid, .. } => {
                        self.asked.push((unique, pid));
                        None
                    }
                },
                _ => None,
            });
            replies.collect()
        }
    }

    fn request(opcode: u32, unique: u64, args: &[u8]) -> Option<FuseRequest> {
        request_of(77, opcode, unique, args)
    }
    fn request_of(pid: u32, opcode: u32, unique: u64, args: &[u8]) -> Option<FuseRequest> {
        let len = (InHeader::BYTES + args.len()) as u32;
        let mut data = Vec::new();
        InHeader { len, opcode, unique, nodeid: 1, pid, ..InHeader::default() }.put(&mut data);
        data.extend_from_slice(args);
        FuseRequest::parse(data.into(), Arc::new(Channel::detached())).ok()
    }
    fn for_this(unique: u64, reason: Reason) -> Interrupted {
        Interrupted { unique, reason }
    }
    fn interrupt(unique: u64) -> Option<FuseRequest> {
        let mut args = Vec::new();
        InterruptIn { unique }.put(&mut args);
        request(op::INTERRUPT, unique | 1, &args)
    }

    #[test]
    fn a_caller_with_a_handle_that_has_lost_its_locks_changes_nothing() {
        let now = Duration::ZERO;
        let mut args = Vec::new();
        abi::MkdirIn { mode: 0o755, umask: 0 }.put(&mut args);
        args.extend_from_slice(b"dir\0");
        let mut world = World::new();
        assert_eq!(world.visit(request(op::MKDIR, 10, &args), now), []);
        assert!(world.asked.is_empty(), "while no locks are lost no process is examined");
        world.back();
        assert_eq!(world.visit(None, now), [(10, -Errno::ENOENT.number())]);
        world.door.file_system().lost.borrow_mut().push(Fid::ROOT);
        for (unique, open, reply) in
            [(12, Some(vec![Fid::ROOT]), Errno::EIO), (14, Some(vec![]), Errno::ENOENT)]
        {
            assert_eq!(world.visit(request(op::MKDIR, unique, &args), now), []);
            assert_eq!(world.asked.pop(), Some((unique, 77)));
            world.door.event(Box::new(Looked::new(unique, Look::new(77, open, vec![]))));
            let mut replies = world.visit(None, now);
            world.back();
            replies.extend(world.visit(None, now));
            assert_eq!(replies, [(unique, -reply.number())]);
        }
        // Reading continues.
        assert_eq!(world.visit(request(op::LOOKUP, 16, b"name\0"), now), []);
        assert!(world.asked.is_empty());
    }

    #[test]
    fn attributes_of_a_file_wait_for_the_removal_of_one_of_its_names() {
        let ms = Duration::from_millis;
        let mut args = Vec::new();
        abi::GetattrIn::default().put(&mut args);
        let mut world = World::new();
        assert_eq!(world.visit(request(op::UNLINK, 10, b"other\0"), ms(0)), []);
        assert_eq!(world.visit(request(op::GETATTR, 12, &args), ms(0)), [(12, 0)], "a name of another file");
        assert_eq!(world.visit(request(op::UNLINK, 14, b"root\0"), ms(0)), []);
        assert_eq!(world.visit(request(op::GETATTR, 16, &args), ms(0)), []);
        world.back();
        assert_eq!(world.visit(None, ms(1)), [(10, 0), (14, 0)]);
        assert_eq!(world.visit(None, ms(1)), [], "the caller of the removal may not have run");
        assert_eq!(world.visit(None, ms(1)), [(16, 0)], "it has had the time");
        assert_eq!(world.visit(request(op::UNLINK, 22, b"root\0"), ms(0)), []);
        let by_other = |unique| request_of(78, op::GETATTR, unique, &args);
        assert_eq!(world.visit(by_other(24), ms(0)), []);
        world.back();
        assert_eq!(world.visit(None, ms(0)), [(22, 0)]);
        assert_eq!(world.visit(request(op::GETATTR, 26, &args), ms(0)), [(26, 0), (24, 0)], "it has run");
        // A removal that waits for a mount which is away has not taken effect.
        assert_eq!(world.visit(request(op::UNLINK, 18, b"root\0"), ms(0)), []);
        assert_eq!(world.visit(request(op::GETATTR, 20, &args), ms(0)), []);
        assert_eq!(world.visit(None, ms(99)), []);
        assert_eq!(world.visit(None, ms(1)), [(20, 0)]);
        world.back();
        assert_eq!(world.visit(None, ms(1)), [(18, 0)]);
        assert_eq!((world.door.running(), world.ctx.live_tasks()), (0, 0));
    }

    #[test]
    fn a_signal_gives_up_a_lookup_only_when_the_servers_stay_away() {
        let ms = Duration::from_millis;
        let mut world = World::new();
        assert_eq!(world.visit(request(op::LOOKUP, 10, b"name\0"), ms(0)), []);
        assert_eq!(world.visit(interrupt(10), ms(500)), []);
        assert_eq!(world.visit(None, ms(1000)), []);
        assert_eq!(world.asked, [], "servers that reply in time are not hurried");
        assert_eq!(world.visit(None, ms(600)), [], "an interrupt alone may mean nothing");
        assert_eq!(world.asked, [(10, 77)]);
        world.door.interrupted(for_this(10, Asked));
        assert_eq!(world.visit(None, ms(0)), [(10, -Errno::EINTR.number())]);
        // The task continues; its result is discarded.
        world.back();
        assert_eq!(world.visit(None, ms(500)), []);
        assert_eq!((world.door.running(), world.ctx.live_tasks()), (0, 0));
        // Servers that reply in time: the call does not fail.
        assert_eq!(world.visit(request(op::LOOKUP, 12, b"name\0"), ms(0)), []);
        assert_eq!(world.visit(interrupt(12), ms(500)), []);
        world.back();
        assert_eq!(world.visit(None, ms(1)), [(12, -Errno::ENOENT.number())]);
        assert_eq!(world.visit(None, ms(9000)), []);
        // And those that were interrupted by nothing.
        assert_eq!(world.visit(request(op::LOOKUP, 14, b"name\0"), ms(0)), []);
        assert_eq!(world.visit(interrupt(14), ms(0)), []);
        assert_eq!(world.visit(None, ms(9000)), []);
        world.back();
        assert_eq!(world.visit(None, ms(1)), [(14, -Errno::ENOENT.number())]);
        assert_eq!(world.visit(None, ms(9000)), []);
        assert_eq!(
            world.visit(interrupt(99), ms(0)),
            [(99, -Errno::EAGAIN.number())],
            "not here: sent again"
        );
        assert_eq!(world.ctx.live_tasks(), 0);
    }

    /// Requests that a signal alone does not end, as their callers end.
    fn given_up(opcode: u32, args: &[u8]) -> World {
        let mut world = World::new();
        assert_eq!(world.visit(request(opcode, 20, args), Duration::ZERO), []);
        assert_eq!(world.visit(interrupt(20), Duration::ZERO), []);
        assert_eq!(world.visit(None, Duration::from_secs(1)), []);
        assert_eq!(world.door.waiting_text(), format!("{} 77 1000\n", op::name(opcode).to_lowercase()));
        assert_eq!(world.asked, [], "servers that reply in time are not hurried");
        assert_eq!(world.visit(None, Duration::from_secs(2)), []);
        assert_eq!(world.visit(None, Duration::from_secs(1)), []);
        assert_eq!(world.asked, [(20, 77), (20, 77)], "asked again and again");
        world.door.interrupted(for_this(20, Asked));
        assert_eq!(world.visit(None, Duration::ZERO), [], "a handler that waits does not end a change");
        world.door.interrupted(for_this(21, Ends));
        world.door.interrupted(for_this(20, Ends));
        world.door.interrupted(for_this(20, Ends));
        assert_eq!(world.visit(None, Duration::ZERO), [(20, -Errno::EINTR.number())]);
        world.back();
        assert_eq!(world.visit(None, Duration::from_secs(1)), []);
        assert_eq!((world.door.running(), world.door.given_up.get(), world.ctx.live_tasks()), (0, 0, 0));
        world
    }

    #[test]
    fn a_change_is_given_up_only_for_a_caller_that_ends() {
        let mut args = Vec::new();
        abi::MkdirIn { mode: 0o755, umask: 0 }.put(&mut args);
        args.extend_from_slice(b"d\0");
        given_up(op::MKDIR, &args);
        args.clear();
        abi::LkIn {
            fh: 5,
            lk: abi::FileLock { end: 9, kind: 1, ..Default::default() },
            ..Default::default()
        }
        .put(&mut args);
        let world = given_up(op::SETLKW, &args);
        assert_eq!(world.door.file_system().locked.get(), 0, "a lock whose caller has ended is dropped");
    }

    /// The kernel gives the address of a closed file to the next one before it sends the RELEASE.
    #[test]
    fn a_lock_waits_for_the_release_of_the_file_that_had_its_owner() {
        let secs = Duration::from_secs;
        let lock = |unique: u64, fh: u64| {
            let (mut args, lk) = (Vec::new(), abi::FileLock { end: 9, kind: 1, ..Default::default() });
            abi::LkIn { fh, owner: 0xf11e, lk, ..Default::default() }.put(&mut args);
            request(op::SETLK, unique, &args)
        };
        let mut world = World::new();
        assert_eq!(world.visit(lock(2, 5), secs(0)), [(2, 0)]);
        let mut args = Vec::new();
        abi::FlushIn { fh: 5, lock_owner: 0x9a, ..Default::default() }.put(&mut args);
        assert_eq!(world.visit(request(op::FLUSH, 4, &args), secs(0)), []);
        world.back();
        assert_eq!(world.visit(None, secs(0)), [(4, 0)]);
        assert_eq!(world.visit(lock(6, 6), secs(0)), []);
        args.clear();
        abi::ReleaseIn { fh: 5, ..Default::default() }.put(&mut args);
        let mut replies = world.visit(request(op::RELEASE, 8, &args), secs(0));
        replies.extend(world.visit(None, secs(0)));
        replies.sort_unstable();
        assert_eq!(replies, [(6, 0), (8, 0)]);
        assert_eq!((world.door.running(), world.ctx.live_tasks()), (0, 0));
    }

    #[test]
    fn the_task_of_a_read_that_is_given_up_hears_of_it() {
        let secs = Duration::from_secs;
        let mut args = Vec::new();
        abi::ReadIn { fh: 5, size: 10, ..Default::default() }.put(&mut args);
        let mut world = World::new();
        assert_eq!(world.visit(request(op::READ, 50, &args), secs(0)), []);
        assert_eq!(world.visit(interrupt(50), secs(0)), []);
        assert_eq!(world.ctx.live_tasks(), 2);
        assert_eq!(world.visit(None, secs(3)), []);
        world.door.interrupted(for_this(50, Asked));
        assert_eq!(world.visit(None, secs(0)), [(50, -Errno::EINTR.number())]);
        assert_eq!(world.ctx.live_tasks(), 1, "the one that looked at the caller");
        assert_eq!(world.visit(None, secs(1)), []);
        assert_eq!((world.door.running(), world.door.given_up.get(), world.ctx.live_tasks()), (0, 0, 0));
    }

    #[test]
    fn an_exiting_process_is_not_kept_by_its_close_and_an_open_given_up_is_closed() {
        let secs = Duration::from_secs;
        let mut args = Vec::new();
        abi::FlushIn { fh: 5, ..Default::default() }.put(&mut args);
        let mut world = World::new();
        assert_eq!(world.visit(request(op::FLUSH, 30, &args), secs(0)), []);
        assert_eq!(world.visit(None, secs(3)), []);
        assert_eq!(world.asked, [(30, 77)], "without an interrupt");
        world.door.interrupted(for_this(30, Ends));
        assert_eq!(world.visit(None, secs(0)), [(30, -Errno::EINTR.number())]);
        args.clear();
        abi::OpenIn { flags: 2, open_flags: 0 }.put(&mut args);
        assert_eq!(world.visit(request(op::OPEN, 40, &args), secs(0)), []);
        assert_eq!(world.visit(interrupt(40), secs(0)), []);
        assert_eq!(world.visit(None, secs(3)), []);
        world.door.interrupted(for_this(40, Asked));
        assert_eq!(world.visit(None, secs(0)), [(40, -Errno::EINTR.number())]);
        world.back();
        assert_eq!(world.visit(None, secs(1)), []);
        assert_eq!(world.door.file_system().opened.get(), 0);
        assert_eq!((world.door.running(), world.door.given_up.get(), world.ctx.live_tasks()), (0, 0, 0));
    }

    /// Delivers a request, and replies to the questions about its caller.
    fn check_one_reply(opcode: u32, args: &[u8]) -> Result<(), TestCaseError> {
        let mut world = World::new();
        let mut replies = world.visit(request(opcode, 6, args), Duration::ZERO);
        for (unique, pid) in world.asked.split_off(0) {
            world.door.event(Box::new(Looked::new(unique, Look::new(pid, Some(vec![]), vec![]))));
            replies.extend(world.visit(None, Duration::ZERO));
        }
        world.back();
        replies.extend(world.visit(None, Duration::ZERO));
        let silent = [op::FORGET, op::BATCH_FORGET, op::NOTIFY_REPLY, op::INTERRUPT].contains(&opcode);
        prop_assert!(replies.len() == 1 || silent, "{} replies to {}", replies.len(), op::name(opcode));
        let stopped_on_a_bug = replies.iter().any(|(_, error)| *error == -Errno::EIO.number());
        prop_assert!(!stopped_on_a_bug);
        prop_assert_eq!((world.door.running(), world.ctx.live_tasks()), (0, 0));
        Ok(())
    }

    #[test]
    fn a_change_that_needs_the_groups_of_its_caller_gets_one_reply() {
        let mut args = Vec::new();
        abi::SetattrIn { valid: abi::fattr::KILL_SUIDGID, ..Default::default() }.put(&mut args);
        check_one_reply(op::SETATTR, &args).unwrap();
    }

    proptest! {
        #[test]
        fn every_request_gets_one_reply_whatever_its_bytes(
            opcode in 0u32..60, args in proptest::collection::vec(any::<u8>(), 0..120)
        ) {
            check_one_reply(opcode, &args)?;
        }
    }
}
