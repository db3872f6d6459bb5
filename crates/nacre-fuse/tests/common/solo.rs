//! Drives one file system on one thread: reads requests, runs the visit, sends the replies. The reader of the FUSE
//! queue is this thread alone, which makes it the strictest driver for everything about held-back requests.

use nacre_fuse::{Channel, Door, FuseEffect, Ops, Read};
use nacre_node::{Ctx, Effect, Event, Logic, visit};
use nacre_types::{Instant, Timestamp};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

type Call<O> = Box<dyn FnOnce(&O) + Send>;

struct Shared<O> {
    calls: Mutex<Vec<Call<O>>>,
    stopping: AtomicBool,
    wake: OwnedFd,
}

/// A served mount.
pub struct Solo<O> {
    shared: Arc<Shared<O>>,
    thread: JoinHandle<()>,
}

impl<O: Ops> Solo<O> {
    pub fn serve(channel: Arc<Channel>, make: impl FnOnce(&Rc<Ctx>) -> O + Send + 'static) -> Self {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let shared = Arc::new(Shared { calls: Mutex::default(), stopping: AtomicBool::new(false), wake });
        let inner = shared.clone();
        let thread = std::thread::Builder::new().name("solo".to_owned());
        let thread = thread.spawn(move || run(&channel, make, &inner)).unwrap();
        Self { shared, thread }
    }
    /// Runs `call` on the file system, on its thread, between two requests.
    pub fn call(&self, call: impl FnOnce(&O) + Send + 'static) {
        self.shared.calls.lock().unwrap().push(Box::new(call));
        rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes()).unwrap();
    }
    /// Waits until the kernel has let go of the mount.
    pub fn join(self) {
        self.thread.join().unwrap();
    }
    /// Ends it, after the unmount. Not left to the kernel: as long as a process has a mount name space that was copied
    /// while the mount was there, the file system lives on.
    pub fn stop(self) {
        self.shared.stopping.store(true, Ordering::Release);
        rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes()).unwrap();
        self.thread.join().unwrap();
    }
    /// Like `call`, and waits for its result.
    pub fn ask<R: Send + 'static>(&self, ask: impl FnOnce(&O) -> R + Send + 'static) -> R {
        let (tx, rx) = std::sync::mpsc::sync_channel(1);
        self.call(move |fs| tx.send(ask(fs)).unwrap());
        rx.recv().unwrap()
    }
}

struct SoloLogic<O: Ops> {
    ctx: Rc<Ctx>,
    door: Rc<Door<O>>,
}
impl<O: Ops> Logic for SoloLogic<O> {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        if let Event::Door(item) = event {
            self.door.event(item);
        }
    }
}

fn run<O: Ops>(channel: &Arc<Channel>, make: impl FnOnce(&Rc<Ctx>) -> O, shared: &Shared<O>) {
    let ctx = Ctx::new(1);
    let ops = Rc::new(make(&ctx));
    let mut logic = SoloLogic { ctx: ctx.clone(), door: Door::new(&ctx, ops.clone()) };
    while !shared.stopping.load(Ordering::Acquire) {
        match channel.read() {
            Ok(Read::Request(request)) => step(&mut logic, Event::Door(Box::new(request))),
            Ok(Read::Gone) => return,
            Ok(Read::Empty) => {
                let fd = channel.poll_fd().unwrap();
                let mut fds = [PollFd::new(&fd, PollFlags::IN), PollFd::new(&shared.wake, PollFlags::IN)];
                let _ = poll(&mut fds, None);
                let mut number = [0; 8];
                let _ = rustix::io::read(&shared.wake, &mut number);
                let calls = std::mem::take(&mut *shared.calls.lock().unwrap());
                for call in calls {
                    call(&ops);
                }
                step(&mut logic, Event::Timer);
            }
            Err(e) => panic!("reading /dev/fuse: {e}"),
        }
    }
}

fn step(logic: &mut dyn Logic, event: Event) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let now = Instant(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64);
    visit(logic, now, Timestamp { sec: wall.tv_sec, nsec: wall.tv_nsec as u32 }, event);
    for effect in logic.ctx().take_effects() {
        if let Effect::Door(item) = effect
            && let FuseEffect::Reply(reply) = *item.downcast::<FuseEffect>().unwrap()
        {
            reply.send();
        }
    }
}
