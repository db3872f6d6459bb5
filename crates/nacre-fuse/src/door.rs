//! The dispatcher: one task per request, one reply per task.
//!
//! Invariants: every request that wants a reply gets exactly one; a panic in one request is EIO for its caller and
//! a line in the log, the mount lives on; a request under way is known by its number until its reply has been
//! pushed, so that INTERRUPT finds it. Answers that need no file system are given without a task.
//! Not here: what an operation does (`handlers`), reading and writing the device (`device.rs`).

use crate::abi::op;
use crate::handlers::{attrs, data, dirs, locks, names, xattrs};
use crate::ops::Ops;
use crate::reply::{Body, FuseReply};
use crate::request::FuseRequest;
use crate::stats::OpStats;
use nacre_node::{Ctx, Effect};
use nacre_types::{Errno, LockCookie};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tracing::error;

/// What a handler answers.
pub(crate) type Answer = Result<Body, Errno>;

/// What a front end is told through [`Effect::Door`].
pub enum FuseEffect {
    /// To be sent at once by whoever leaves the island.
    Reply(FuseReply),
    /// The first connection to the servers is made, or never will be (a sentence for the user).
    Ready(Result<(), String>),
}

/// The requests of one mount under way, and the file system that serves them.
pub struct Door<O: Ops> {
    pub(crate) ctx: Rc<Ctx>,
    pub(crate) ops: Rc<O>,
    running: RefCell<BTreeMap<u64, Running>>,
    pub(crate) stats: OpStats,
}

/// A request under way.
struct Running {
    request: Rc<FuseRequest>,
    /// A lock request that waits.
    waiting: Option<LockCookie>,
}

impl<O: Ops> Door<O> {
    pub fn new(ctx: &Rc<Ctx>, ops: Rc<O>) -> Rc<Self> {
        let stats = OpStats::new(ctx.wall());
        Rc::new(Self { ctx: ctx.clone(), ops, running: RefCell::default(), stats })
    }
    pub fn file_system(&self) -> &Rc<O> {
        &self.ops
    }
    /// Requests that have not been answered.
    pub fn running(&self) -> usize {
        self.running.borrow().len()
    }
    pub fn stats(&self) -> &OpStats {
        &self.stats
    }

    /// Takes in a request. Its reply is pushed as [`FuseEffect::Reply`], in this visit or a later one.
    pub fn handle(self: &Rc<Self>, request: FuseRequest) {
        match request.opcode() {
            op::LOOKUP => self.run(request, names::lookup),
            op::GETATTR => self.run(request, attrs::getattr),
            op::STATX => self.run(request, attrs::statx),
            op::SETATTR => self.run(request, attrs::setattr),
            op::STATFS => self.run(request, attrs::statfs),
            op::READLINK => self.run(request, names::readlink),
            op::SYMLINK => self.run(request, names::symlink),
            op::MKNOD => self.run(request, names::mknod),
            op::MKDIR => self.run(request, names::mkdir),
            op::CREATE => self.run(request, names::create),
            op::LINK => self.run(request, names::link),
            op::UNLINK => self.run(request, names::unlink),
            op::RMDIR => self.run(request, names::rmdir),
            op::RENAME => self.run(request, names::rename),
            op::RENAME2 => self.run(request, names::rename2),
            op::OPEN => self.run(request, data::open),
            op::READ => self.run(request, data::read),
            op::WRITE => self.run(request, data::write),
            op::FLUSH => self.run(request, data::flush),
            op::RELEASE => self.run(request, data::release),
            op::FSYNC | op::FSYNCDIR => self.run(request, data::fsync),
            op::FALLOCATE => self.run(request, data::fallocate),
            op::READDIR => self.run(request, dirs::readdir),
            op::READDIRPLUS => self.run(request, dirs::readdirplus),
            op::GETXATTR => self.run(request, xattrs::getxattr),
            op::SETXATTR => self.run(request, xattrs::setxattr),
            op::LISTXATTR => self.run(request, xattrs::listxattr),
            op::REMOVEXATTR => self.run(request, xattrs::removexattr),
            op::GETLK => self.run(request, locks::getlk),
            op::SETLK => self.run(request, locks::setlk),
            op::SETLKW => self.run(request, locks::setlkw),
            op::INTERRUPT => self.interrupt(&request),
            // The kernel has looked at the directory just before, and keeps no state of ours.
            op::OPENDIR => self.reply(&request, dirs::opendir()),
            op::RELEASEDIR => self.reply(&request, Ok(Body::empty())),
            op::DESTROY => self.reply(&request, Ok(Body::empty())),
            // Node numbers need no table, so forgetting one is nothing. No reply.
            op::FORGET | op::BATCH_FORGET | op::NOTIFY_REPLY => {}
            op::IOCTL => self.reply(&request, Err(Errno::ENOTTY)),
            // The kernel does not ask again and does without: access by mode bits, copies by read and write,
            // O_TMPFILE refused with EOPNOTSUPP, SEEK_HOLE finds the end.
            op::ACCESS
            | op::LSEEK
            | op::COPY_FILE_RANGE
            | op::COPY_FILE_RANGE_64
            | op::TMPFILE
            | op::BMAP
            | op::POLL
            | op::SYNCFS => self.reply(&request, Err(Errno::ENOSYS)),
            _ => self.reply(&request, Err(Errno::ENOSYS)),
        }
    }

    /// Starts the task of a request.
    fn run<F>(self: &Rc<Self>, request: FuseRequest, handler: impl FnOnce(Rc<Self>, Rc<FuseRequest>) -> F)
    where
        F: Future<Output = Answer> + 'static,
    {
        let request = Rc::new(request);
        let running = Running { request: request.clone(), waiting: None };
        self.running.borrow_mut().insert(request.unique(), running);
        let work = handler(self.clone(), request.clone());
        let door = self.clone();
        let start = self.ctx.now();
        self.ctx.spawn(async move {
            let answer = catching(work, &request).await;
            door.stats.count(request.opcode(), door.ctx.now() - start, &answer);
            door.reply(&request, answer);
        });
    }

    fn reply(&self, request: &FuseRequest, answer: Answer) {
        self.running.borrow_mut().remove(&request.unique());
        self.ctx.push(Effect::Door(Box::new(FuseEffect::Reply(request.reply(answer)))));
    }

    /// The island ends without a stop: what was decided is still sent, the rest is answered EIO. Tasks are not
    /// dropped (they and the context hold each other), so this cannot be left to them.
    pub fn abandon(&self) {
        for effect in self.ctx.take_effects() {
            if let Effect::Door(item) = effect
                && let Ok(effect) = item.downcast::<FuseEffect>()
                && let FuseEffect::Reply(reply) = *effect
            {
                reply.send();
            }
        }
        // A panic may have come while it was borrowed.
        let running = self.running.try_borrow_mut().map(|mut running| std::mem::take(&mut *running));
        for running in running.unwrap_or_default().into_values() {
            running.request.abandon();
        }
    }

    /// A signal for the caller of a request. Only a waiting lock can end early; the kernel waits for the others.
    fn interrupt(&self, request: &FuseRequest) {
        let Ok(args) = request.args().take::<crate::abi::InterruptIn>() else { return };
        let waiting = self.running.borrow().get(&args.unique).map(|running| running.waiting);
        match waiting {
            Some(Some(cookie)) => self.ops.flock_interrupt(cookie),
            Some(None) => {}
            // Read by another loop but not here yet (the kernel sends the interrupt again), or answered already
            // (the kernel knows and drops it).
            None => self.reply(request, Err(Errno::EAGAIN)),
        }
    }

    /// Says that a request waits for a lock: INTERRUPT ends it by this cookie.
    pub(crate) fn waits(&self, request: &FuseRequest, cookie: LockCookie) {
        if let Some(running) = self.running.borrow_mut().get_mut(&request.unique()) {
            running.waiting = Some(cookie);
        }
    }
}

/// A handler's future, and EIO instead of its panic.
async fn catching(work: impl Future<Output = Answer>, request: &FuseRequest) -> Answer {
    let mut work = Box::pin(work);
    std::future::poll_fn(move |cx| poll_catching(work.as_mut(), cx, request)).await
}

fn poll_catching(
    work: Pin<&mut impl Future<Output = Answer>>,
    cx: &mut Context<'_>,
    request: &FuseRequest,
) -> Poll<Answer> {
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
