//! Spike 1: what entering islands and routing between them costs.
//!
//! `spike_island [SECONDS]` runs and prints, in this order:
//! - local: two pinned event loops that each read requests from a front end (an eventfd that is always readable)
//!   and bring them to island `a`; `a` asks island `b` of the same process and replies to the door when that reply
//!   arrives. Three visits per request. Once with nothing to do inside, once with 3 µs inside each visit and 12 µs
//!   outside per request (an operation of a target and the system calls around it).
//! - unix: the same request over a unix socket to another process, at depth 1, 8 and 64.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that measures and prints")]

use nacre_node::{ConnId, Ctx, Effect, Event, Logic};
use nacre_rt::{Config, DoorSink, IslandRef, Node, Source, SourceState};
use nacre_types::Xid;
use nacre_wire::{Frame, Header, Kind};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::any::Any;
use std::io::Read;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const REQUESTS_PER_READY: u64 = 16;

fn work(d: Duration) {
    if !d.is_zero() {
        let start = Instant::now();
        while start.elapsed() < d {
            std::hint::spin_loop();
        }
    }
}

/// Asks `b` for each door event, replies to the door when the reply arrives.
struct Asker {
    ctx: Rc<Ctx>,
    inside: Duration,
    next: u64,
    address: String,
}
impl Asker {
    fn ask(&mut self) {
        self.next += 1;
        let mut header = Header::new(Kind::Request, 1);
        header.xid = Xid(self.next);
        self.ctx.push(Effect::Send { conn: ConnId(1), frame: Frame::new(header, vec![7; 100]) });
    }
}
impl Logic for Asker {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        work(self.inside);
        match event {
            Event::Start => {
                let address = self.address.clone();
                self.ctx.push(Effect::Open { conn: ConnId(1), address, target: "b".into() });
            }
            Event::Opened { .. } => self.ctx.push(Effect::Door(Box::new(true))),
            Event::Frame { .. } => self.ctx.push(Effect::Door(Box::new(false))),
            Event::Door(_) => self.ask(),
            Event::Closed { reason, .. } => panic!("{reason}"),
            _ => {}
        }
    }
}

/// Replies to every request.
struct Responder {
    ctx: Rc<Ctx>,
    inside: Duration,
}
impl Logic for Responder {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        work(self.inside);
        if let Event::Frame { conn, frame } = event {
            let mut header = frame.header;
            header.kind = Kind::Reply;
            self.ctx.push(Effect::Send { conn, frame: Frame { header, ..frame } });
        }
    }
}

#[derive(Default)]
struct Door {
    opened: AtomicBool,
    replies: AtomicU64,
    /// Over a socket: each reply is followed by the next request, until told to stop.
    again: std::sync::OnceLock<IslandRef>,
    stop: AtomicBool,
}
impl DoorSink for Door {
    fn door(&self, _: &IslandRef, item: Box<dyn Any + Send>) {
        if item.downcast_ref::<bool>() == Some(&true) {
            self.opened.store(true, Relaxed);
            return;
        }
        self.replies.fetch_add(1, Relaxed);
        if let Some(island) = self.again.get()
            && !self.stop.load(Relaxed)
        {
            island.deliver(Event::Door(Box::new(())));
        }
    }
}

struct Always {
    fds: [OwnedFd; 2],
    island: IslandRef,
    outside: Duration,
    running: AtomicBool,
}
impl Source for Always {
    fn fd(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.fds.get(index).map(AsFd::as_fd)
    }
    fn ready(&self, node: &Node, _: usize) -> SourceState {
        if !self.running.load(Relaxed) {
            return SourceState::Ended;
        }
        for _ in 0..REQUESTS_PER_READY {
            node.deliver(&self.island, Event::Door(Box::new(())));
            work(self.outside);
        }
        SourceState::More
    }
}

fn start(loops: usize) -> Node {
    let config = Config { loops, pin: true, ..Config::default() };
    Node::start(config, |_, _, _| {}).unwrap()
}
fn wait_for(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}
fn asker(node: &Node, door: &Arc<Door>, inside: Duration, address: String) -> IslandRef {
    let make = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
        Box::new(Asker { ctx: ctx.clone(), inside, next: 0, address })
    };
    node.add_island("a", None, Some(door.clone()), make).unwrap()
}
fn responder(node: &Node, inside: Duration) -> IslandRef {
    let make = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> { Box::new(Responder { ctx: ctx.clone(), inside }) };
    node.add_island("b", None, None, make).unwrap()
}
fn pause(d: Duration) {
    std::thread::park_timeout(d);
}

fn local(loops: usize, inside: Duration, outside: Duration, time: Duration) {
    let node = start(loops);
    let door = Arc::new(Door::default());
    let b = responder(&node, inside);
    let a = asker(&node, &door, inside, "local".into());
    wait_for(|| door.opened.load(Relaxed));
    let fd = || eventfd(1, EventfdFlags::NONBLOCK).unwrap();
    let source =
        Arc::new(Always { fds: [fd(), fd()], island: a.clone(), outside, running: AtomicBool::new(true) });
    node.add_source(source.clone()).unwrap();
    pause(Duration::from_millis(50));
    let (began, replies, wakes) = (Instant::now(), door.replies.load(Relaxed), node.stats().loop_wakeups());
    let counts = || [&a, &b].map(|i| (i.stats().visits(), i.stats().spun(), i.stats().parked()));
    let before = counts();
    let cpu = cpu_seconds();
    pause(time);
    let cpu = cpu_seconds() - cpu;
    let seconds = began.elapsed().as_secs_f64();
    let requests = door.replies.load(Relaxed) - replies;
    let wakes = node.stats().loop_wakeups() - wakes;
    let sum = counts()
        .iter()
        .zip(before)
        .fold((0, 0, 0), |s, (n, o)| (s.0 + n.0 - o.0, s.1 + n.1 - o.1, s.2 + n.2 - o.2));
    source.running.store(false, Relaxed);
    println!(
        "local, {loops} loops, {:>2} µs inside, {:>2} µs outside: {:>7.0} requests/s, {:>7.0} visits/s, wait p50 {:?} p99 {:?} / {:?} p99.9 {:?}, \
         spun {:.3} %, parked {:.4} %, loop wake-ups {wakes} in {requests} requests, {:.2} CPUs",
        inside.as_micros(),
        outside.as_micros(),
        requests as f64 / seconds,
        sum.0 as f64 / seconds,
        a.stats().wait.quantile(0.5),
        a.stats().wait.quantile(0.99),
        b.stats().wait.quantile(0.99),
        a.stats().wait.quantile(0.999),
        100.0 * sum.1 as f64 / sum.0 as f64,
        100.0 * sum.2 as f64 / sum.0 as f64,
        cpu / seconds,
    );
    node.shutdown();
}

fn cpu_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn unix(depth: u64, path: &str, time: Duration) {
    let node = start(1);
    let door = Arc::new(Door::default());
    let a = asker(&node, &door, Duration::ZERO, format!("unix:{path}"));
    wait_for(|| door.opened.load(Relaxed));
    door.again.set(a.clone()).unwrap();
    for _ in 0..depth {
        a.deliver(Event::Door(Box::new(())));
    }
    pause(Duration::from_millis(50));
    let stats = || (node.stats().loop_turns(), node.stats().sends(), node.stats().loop_wakeups());
    let (began, replies, before, cpu) = (Instant::now(), door.replies.load(Relaxed), stats(), cpu_seconds());
    pause(time);
    let seconds = began.elapsed().as_secs_f64();
    let requests = (door.replies.load(Relaxed) - replies) as f64;
    let (after, cpu) = (stats(), cpu_seconds() - cpu);
    println!(
        "unix socket, another process, depth {depth:>2}: {:>7.0} requests/s, per request: {:.3} turns of the loop, \
         {:.3} sendmsg, {:.4} eventfd wake-ups, {:.2} µs CPU on the caller's side; wait p99 {:?}",
        requests / seconds,
        (after.0 - before.0) as f64 / requests,
        (after.1 - before.1) as f64 / requests,
        (after.2 - before.2) as f64 / requests,
        cpu * 1e6 / requests,
        a.stats().wait.quantile(0.99),
    );
    door.stop.store(true, Relaxed);
    pause(Duration::from_millis(20));
    node.kill_island(&a);
    node.shutdown();
}

/// The other process: serves `b` until its standard input ends.
fn serve(path: &str) {
    let config = Config { loops: 1, ..Config::default() };
    let node = Node::start(config, |_, _, _| {}).unwrap();
    responder(&node, Duration::ZERO);
    node.listen(&format!("unix:{path}").parse().unwrap()).unwrap();
    println!("ready");
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).unwrap();
    node.shutdown();
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, serve_word, path] = &args[..]
        && serve_word == "serve"
    {
        return serve(path);
    }
    let seconds = args.get(1).and_then(|a| a.parse().ok()).unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    let us = Duration::from_micros;
    local(1, us(0), us(0), time);
    local(2, us(0), us(0), time);
    local(1, us(3), us(12), time);
    local(2, us(3), us(12), time);
    if args.get(2).is_some_and(|a| a == "local") {
        return;
    }
    let path = std::env::temp_dir().join(format!("spike-{}.sock", std::process::id()));
    let path = path.to_str().unwrap();
    let mut server = Command::new(&args[0])
        .args(["serve", path])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0u8; 6];
    server.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    for depth in [1, 8, 64] {
        unix(depth, path, time);
    }
    drop(server.stdin.take());
    server.wait().unwrap();
}
