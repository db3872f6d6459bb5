//! Islands, virtual time, and the faults that kill or stop islands. The network between them is in `net`.
//!
//! Invariants: one thing happens at a time, in the order of (time, serial); each island has clocks of its own; the log
//! writes of a visit are executed before its effects leave; store operations that are pending when their island is killed
//! are never executed. Every choice comes from the seed.

pub mod net;

use crate::clock::Clock;
use nacre_node::store::Store;
use nacre_node::{ConnId, Ctx, Effect, Event, IoTicket, Logic, Origin, Rng, StoreOp, visit};
use nacre_types::{Instant, Timestamp};
use net::{End, Link, LinkId, Noise};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

/// An island of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// How unkind the world is.
#[derive(Debug, Clone)]
pub struct Faults {
    /// A frame takes this long, at least and at most, in microseconds.
    pub delay_us: (u64, u64),
    /// One frame in so many takes up to `slow_us`; 0 = none.
    pub slow_one_in: u64,
    /// Most microseconds of a slow frame.
    pub slow_us: u64,
    /// Frames from and to this island take `far_us`.
    pub far: Option<NodeId>,
    /// Microseconds.
    pub far_us: u64,
    /// A store operation takes this long, at least and at most, in microseconds; a sync ten times as long.
    pub io_us: (u64, u64),
    /// Faults of frames on their way.
    pub noise: Noise,
    /// Clocks of islands that are added run faster or slower by up to so many parts per million.
    pub drift_ppm: u64,
    /// Frames for one island that come within so many microseconds, with nothing else between, are taken in at one entry.
    pub joined_us: u64,
}
impl Default for Faults {
    fn default() -> Self {
        Self {
            delay_us: (20, 200),
            slow_one_in: 20,
            slow_us: 20_000,
            far: None,
            far_us: 0,
            io_us: (5, 300),
            noise: Noise::default(),
            drift_ppm: 0,
            joined_us: 0,
        }
    }
}

/// Where in a visit an island dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DieAt {
    /// Before the log write of the visit.
    BeforeLog,
    /// In the log write: the kernel has written a part of it.
    InLog,
    /// After the log write, before any effect leaves: the changes are in the log, their replies are not sent.
    AfterLog,
}

/// Makes the logic of an island; called at each of its starts.
pub type Start = Box<dyn Fn(&Rc<Ctx>) -> Box<dyn Logic>>;

pub(crate) struct Node {
    name: String,
    /// The target that replies at its address; its name, unless it is a copy of another one.
    serves: String,
    start: Start,
    store: Option<Arc<dyn Store>>,
    logic: Option<(Box<dyn Logic>, Rc<Ctx>)>,
    /// Counts the starts: events for an earlier start are dropped.
    life: u64,
    links: BTreeMap<ConnId, LinkId>,
    next_inbound: u64,
    /// Earliest timer event that is queued.
    timer: Option<u64>,
    /// SIGSTOP: what comes waits.
    paused: bool,
    waiting: Vec<Event>,
    clock: Clock,
    /// The next visit that writes the log is its last; it is started again after so many nanoseconds.
    dying: Option<(DieAt, u64)>,
    /// How others see its connections.
    origin: Origin,
    /// Its work is done in [`counted_visit`].
    is_counted: bool,
}

pub(crate) enum Action {
    Visit { node: NodeId, life: u64, event: Event },
    Timer { node: NodeId, life: u64 },
    Connect { from: End, address: String, target: String },
    Deliver { link: LinkId, to: usize, event: Event },
    Execute { node: NodeId, life: u64, ticket: IoTicket, op: StoreOp },
    Start { node: NodeId },
    Resume { node: NodeId },
    Heal { from: NodeId, to: NodeId },
    Lose { link: LinkId },
}

/// A message of an island to its front end.
pub type Said = Box<dyn Any + Send>;

/// One visit of an island whose work a profiler counts: everything that the island does is below this function.
#[inline(never)]
fn counted_visit(
    logic: &mut dyn Logic,
    (now, wall): (Instant, Timestamp),
    event: Event,
    writes: &mut Vec<StoreOp>,
) {
    visit(logic, now, wall, event);
    logic.log_writes(writes);
}

/// Everything.
pub struct World {
    now_ns: u64,
    serial: u64,
    rng: Rng,
    /// May be changed while the world runs.
    pub faults: Faults,
    queue: BTreeMap<(u64, u64), Action>,
    nodes: Vec<Node>,
    links: BTreeMap<LinkId, Link>,
    next_link: LinkId,
    /// Frames from the first to the second node are held back.
    blocked: BTreeSet<(NodeId, NodeId)>,
    /// Frames that are held back, in order.
    held: Vec<(NodeId, NodeId, Action)>,
    /// Closed before they stood.
    given_up: BTreeSet<(NodeId, ConnId)>,
    /// When a process last died, started, went on, or was reached again.
    pub last_fault_ns: u64,
    said: VecDeque<(NodeId, Said)>,
    stopped: Vec<NodeId>,
    /// An island that could not go on: its name and why.
    pub fatal: Vec<String>,
    trace: VecDeque<(u64, String)>,
    /// Records events for failures; it costs time.
    pub tracing: bool,
    /// Lines of the trace that are kept.
    pub trace_max: usize,
}

impl Node {
    /// Whether it replies as this target at this address.
    pub(crate) fn serves(&self, target: &str, address: &str) -> bool {
        self.serves == target && World::address(&self.name) == address
    }
    /// The island is gone, and everything that its tasks hold.
    fn end(&mut self) {
        if let Some((logic, ctx)) = self.logic.take() {
            drop(logic);
            ctx.abandon();
            let held = Rc::strong_count(&ctx) - 1;
            assert!(held == 0 || std::thread::panicking(), "{}: {held} cycles keep a dead island", self.name);
        }
    }
}
impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

impl World {
    /// A world without nodes at one second after its start.
    pub fn new(seed: u64) -> Self {
        Self {
            now_ns: 1_000_000_000,
            serial: 0,
            rng: Rng::new(seed),
            faults: Faults::default(),
            queue: BTreeMap::new(),
            nodes: Vec::new(),
            links: BTreeMap::new(),
            next_link: 1,
            blocked: BTreeSet::new(),
            held: Vec::new(),
            given_up: BTreeSet::new(),
            last_fault_ns: 0,
            said: VecDeque::new(),
            stopped: Vec::new(),
            fatal: Vec::new(),
            trace: VecDeque::new(),
            tracing: true,
            trace_max: 400,
        }
    }

    // ---- making and breaking

    /// A new island under a name that is also its address (`NAME.sim`). It starts with [`World::start`].
    pub fn add(&mut self, name: &str, store: Option<Arc<dyn Store>>, start: Start) -> NodeId {
        let clock = Clock::random(&mut self.rng, self.now_ns, self.faults.drift_ppm);
        self.nodes.push(Node {
            name: name.to_string(),
            serves: name.to_string(),
            start,
            store,
            logic: None,
            life: 0,
            links: BTreeMap::new(),
            next_inbound: 1,
            timer: None,
            paused: false,
            waiting: Vec::new(),
            clock,
            dying: None,
            origin: Origin::Administrator,
            is_counted: false,
        });
        NodeId(self.nodes.len() - 1)
    }
    /// The store of an island that is down: its device has lost something.
    pub fn set_store(&mut self, id: NodeId, store: Arc<dyn Store>) {
        let node = &mut self.nodes[id.0];
        assert!(node.logic.is_none(), "{} runs", node.name);
        node.store = Some(store);
    }
    /// Where others see it when it connects to them; at first on their machine, under the administrator.
    pub fn set_origin(&mut self, id: NodeId, origin: Origin) {
        self.nodes[id.0].origin = origin;
    }
    /// It serves the target of another island, at its own address.
    pub fn set_serves(&mut self, id: NodeId, target: &str) {
        self.nodes[id.0].serves = target.to_string();
    }
    /// Both are on one machine: they have its clocks.
    pub fn share_clock(&mut self, id: NodeId, with: NodeId) {
        self.nodes[id.0].clock = self.nodes[with.0].clock;
    }
    /// A profiler counts the work of this island from now on: it is done within the function `counted_visit`.
    pub fn count_work(&mut self, id: NodeId) {
        self.nodes[id.0].is_counted = true;
    }
    /// The address at which a node is reached in the simulated network.
    pub fn address(name: &str) -> String {
        format!("{name}.sim")
    }
    /// Starts an island now.
    pub fn start(&mut self, id: NodeId) {
        let seed = self.rng.next_u64();
        let node = &mut self.nodes[id.0];
        assert!(node.logic.is_none(), "{} runs already", node.name);
        node.life += 1;
        node.timer = None;
        node.paused = false;
        node.waiting.clear();
        let ctx = Ctx::new(seed);
        let (now, wall) = node.clock.read(self.now_ns);
        ctx.set_time(now, wall);
        self.last_fault_ns = self.now_ns;
        let logic = (self.nodes[id.0].start)(&ctx);
        self.nodes[id.0].logic = Some((logic, ctx));
        self.note(id, || "start".into());
        self.enter(id, Event::Start);
    }
    /// Starts an island after a while.
    pub fn start_later(&mut self, id: NodeId, after_ns: u64) {
        self.push_action(self.now_ns + after_ns, Action::Start { node: id });
    }
    /// kill -9: the island is gone between two visits; what its store has executed stays.
    pub fn kill(&mut self, id: NodeId) {
        self.note(id, || "killed".into());
        self.last_fault_ns = self.now_ns;
        self.nodes[id.0].dying = None;
        self.nodes[id.0].end();
        self.cut_all(id, "peer died");
        self.nodes[id.0].links.clear();
    }
    /// kill -9 within the next visit that writes the log; it starts again after a while.
    pub fn kill_in_visit(&mut self, id: NodeId, at: DieAt, down_ns: u64) {
        self.nodes[id.0].dying = Some((at, down_ns));
    }
    /// SIGSTOP and SIGCONT: events of a stopped island wait, its timers too.
    pub fn pause(&mut self, id: NodeId, paused: bool) {
        self.note(id, || if paused { "stopped by SIGSTOP" } else { "goes on after SIGSTOP" }.into());
        self.last_fault_ns = self.now_ns;
        self.nodes[id.0].paused = paused;
        if !paused {
            for event in std::mem::take(&mut self.nodes[id.0].waiting) {
                self.enter(id, event);
            }
            self.enter(id, Event::Timer);
        }
    }
    /// SIGSTOP, and SIGCONT after a while.
    pub fn pause_for(&mut self, id: NodeId, ns: u64) {
        if self.is_up(id) && !self.nodes[id.0].paused {
            self.pause(id, true);
            self.push_action(self.now_ns + ns, Action::Resume { node: id });
        }
    }
    /// Stopped as by SIGSTOP: it gets no events until it continues.
    pub fn is_paused(&self, id: NodeId) -> bool {
        self.nodes[id.0].paused
    }
    /// An operator sets the clock: the wall clock jumps, the monotonic one does not.
    pub fn set_wall(&mut self, id: NodeId, by_ns: i64) {
        self.note(id, || format!("its wall clock is set by {} s", by_ns / 1_000_000_000));
        self.nodes[id.0].clock.jump(by_ns);
    }
    /// Cancels faults that are to come; stopped and cut-off processes continue.
    pub fn end_faults(&mut self) {
        self.faults.noise = Noise::default();
        for id in (0..self.nodes.len()).map(NodeId) {
            self.nodes[id.0].dying = None;
            if self.nodes[id.0].paused {
                self.pause(id, false);
            }
        }
        for (from, to) in self.blocked.clone() {
            self.heal(from, to);
        }
    }
    /// Whether the island runs; a paused one does.
    pub fn is_up(&self, id: NodeId) -> bool {
        self.nodes[id.0].logic.is_some()
    }

    // ---- running

    /// Virtual nanoseconds. Clocks of islands may drift from it.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }
    /// The world's random source. What is drawn changes all that follows.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
    /// Gives an event of a front end to an island, now.
    pub fn tell(&mut self, id: NodeId, event: Event) {
        self.enter(id, event);
    }
    /// The next message of an island to its front end.
    pub fn hear(&mut self) -> Option<(NodeId, Said)> {
        self.said.pop_front()
    }
    /// Islands that have ended a planned stop, with the context they had.
    pub fn take_stopped(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.stopped)
    }
    /// Tasks of an island that have not ended.
    pub fn live_tasks(&self, id: NodeId) -> usize {
        self.nodes[id.0].logic.as_ref().map_or(0, |(_, ctx)| ctx.live_tasks())
    }
    /// As given when the node was added.
    pub fn name(&self, id: NodeId) -> &str {
        &self.nodes[id.0].name
    }
    /// Lets the next thing happen; false when nothing is left to happen.
    pub fn step(&mut self) -> bool {
        let Some(((at, _), action)) = self.queue.pop_first() else { return false };
        self.now_ns = self.now_ns.max(at);
        match action {
            Action::Visit { node, life, event } => {
                if self.nodes[node.0].life == life {
                    self.enter(node, event);
                }
            }
            Action::Timer { node, life } => {
                if self.nodes[node.0].life == life {
                    self.nodes[node.0].timer = None;
                    self.enter(node, Event::Timer);
                }
            }
            Action::Start { node } => {
                if !self.is_up(node) {
                    self.start(node);
                }
            }
            Action::Resume { node } => {
                if self.nodes[node.0].paused {
                    self.pause(node, false);
                }
            }
            Action::Heal { from, to } => self.heal(from, to),
            Action::Lose { link } => self.cut(link, "connection reset"),
            Action::Connect { from, address, target } => self.connect(from, address, target),
            Action::Deliver { link, to, event } => self.deliver(link, to, event),
            Action::Execute { node, life, ticket, op } => self.execute(node, life, ticket, op),
        }
        true
    }
    /// Steps until `done` or until virtual time has passed `until_ns`; whether `done` was reached.
    pub fn run_until(&mut self, until_ns: u64, mut done: impl FnMut(&mut World) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            match self.queue.first_key_value() {
                Some((&(at, _), _)) if at <= until_ns => {
                    self.step();
                }
                _ => {
                    self.now_ns = self.now_ns.max(until_ns);
                    return false;
                }
            }
        }
    }
    /// Lets time pass.
    pub fn run_for(&mut self, ns: u64) {
        let until = self.now_ns + ns;
        self.run_until(until, |_| false);
    }

    /// One entry: a visit for the event and for frames that come soon, their log writes, their effects.
    pub(crate) fn enter(&mut self, id: NodeId, event: Event) {
        if self.nodes[id.0].paused {
            return self.nodes[id.0].waiting.push(event);
        }
        let mut events = VecDeque::from([event]);
        while !events.is_empty() {
            self.take_in(id, &mut events);
        }
    }

    /// Takes in events, and frames that come soon, as far as they may share the log write and the effects.
    fn take_in(&mut self, id: NodeId, events: &mut VecDeque<Event>) {
        let node = &mut self.nodes[id.0];
        let Some((mut logic, ctx)) = node.logic.take() else { return events.clear() };
        let mut writes = self.visits(id, logic.as_mut(), events);
        let node = &mut self.nodes[id.0];
        let dying = node.dying.take_if(|_| !writes.is_empty());
        match dying {
            Some((DieAt::BeforeLog, _)) => writes.clear(),
            Some((DieAt::InLog, _)) => cut_short(&mut writes, &mut self.rng),
            Some((DieAt::AfterLog, _)) | None => {}
        }
        if let Some(store) = &node.store {
            for op in writes {
                if let Err(error) = store.execute(op) {
                    logic.log_failed(&error);
                    self.fatal.push(format!("{}: log write failed: {error}", node.name));
                    return;
                }
            }
        }
        let effects = ctx.take_effects();
        let deadline = ctx.deadline();
        node.logic = Some((logic, ctx));
        if let Some((at, down_ns)) = dying {
            self.note(id, || format!("dies {at:?}"));
            self.kill(id);
            return self.start_later(id, down_ns);
        }
        let node = &mut self.nodes[id.0];
        if let Some(local) = deadline {
            let at = node.clock.when(local);
            if node.timer.is_none_or(|timer| at < timer) {
                node.timer = Some(at);
                let life = node.life;
                self.push_action(at.max(self.now_ns), Action::Timer { node: id, life });
            }
        }
        for effect in effects {
            self.carry_out(id, effect);
        }
    }

    /// The visits of one entry; returns their log writes.
    fn visits(&mut self, id: NodeId, logic: &mut dyn Logic, events: &mut VecDeque<Event>) -> Vec<StoreOp> {
        let (now, wall) = self.nodes[id.0].clock.read(self.now_ns);
        let (mut writes, mut taken) = (Vec::new(), 0);
        while let Some(event) = events.pop_front().or_else(|| self.next_frame(id, taken)) {
            taken += 1;
            let node = &self.nodes[id.0];
            if matches!(&event, Event::Frame { conn, .. } if !node.links.contains_key(conn)) {
                continue;
            }
            if node.is_counted {
                counted_visit(logic, (now, wall), event, &mut writes);
            } else {
                visit(logic, now, wall, event);
                logic.log_writes(&mut writes);
            }
            if logic.ctx().ends_something() {
                break;
            }
        }
        writes
    }

    fn carry_out(&mut self, id: NodeId, effect: Effect) {
        let life = self.nodes[id.0].life;
        match effect {
            Effect::Open { conn, address, target } => {
                let at = self.now_ns + self.delay_ns();
                self.push_action(at, Action::Connect { from: End { node: id, life, conn }, address, target });
            }
            Effect::Send { conn, frame } => self.send(id, conn, frame),
            Effect::Admit { .. } => {} // no frame of the simulator is too large for anybody
            Effect::Close { conn } => self.close(id, conn),
            Effect::Io { ticket, op } => {
                let (least, most) = self.faults.io_us;
                let syncs = matches!(
                    op,
                    StoreOp::Sync { .. }
                        | StoreOp::SyncWritten { .. }
                        | StoreOp::SyncAside { .. }
                        | StoreOp::SyncMany { .. }
                        | StoreOp::Refresh { .. }
                );
                let factor = if syncs { 10 } else { 1 };
                let at = self.now_ns + 1000 * factor * (least + self.rng.below(most.saturating_sub(least)));
                self.push_action(at, Action::Execute { node: id, life, ticket, op });
            }
            Effect::Door(said) => self.said.push_back((id, said)),
            Effect::Stopped => {
                self.note(id, || "stopped".into());
                self.stopped.push(id);
            }
            Effect::Fatal(why) | Effect::Refused(why) => {
                let name = self.nodes[id.0].name.clone();
                self.fatal.push(format!("{name}: {why}"));
            }
            #[allow(unreachable_patterns, reason = "effects that only real drivers carry out")]
            _ => {}
        }
    }

    fn execute(&mut self, id: NodeId, life: u64, ticket: IoTicket, op: StoreOp) {
        if self.nodes[id.0].life != life || self.nodes[id.0].logic.is_none() {
            return;
        }
        let Some(store) = self.nodes[id.0].store.clone() else { return };
        let result = store.execute(op);
        let (least, most) = self.faults.io_us;
        let at = self.now_ns + 1000 * self.rng.below(most.saturating_sub(least).max(1));
        self.push_action(at, Action::Visit { node: id, life, event: Event::IoDone { ticket, result } });
    }

    pub(crate) fn push_action(&mut self, at_ns: u64, action: Action) {
        self.serial += 1;
        self.queue.insert((at_ns, self.serial), action);
    }

    // ---- for people

    /// A line of the trace.
    pub fn note(&mut self, id: NodeId, text: impl FnOnce() -> String) {
        if self.tracing {
            if self.trace.len() >= self.trace_max {
                self.trace.pop_front();
            }
            let line = format!("{:<14} {}", self.nodes[id.0].name, text());
            self.trace.push_back((self.now_ns, line));
        }
    }
    /// The last lines of the trace.
    pub fn trace(&self, lines: usize) -> String {
        let skip = self.trace.len().saturating_sub(lines);
        let mut out = String::new();
        for (at, line) in self.trace.iter().skip(skip) {
            out.push_str(&format!("{:12.3} ms  {line}\n", (at - 1_000_000_000) as f64 / 1e6));
        }
        out
    }
}

/// The part of a log write that the kernel has completed when its process is killed: the first bytes. It ends within the
/// records, because the zeros that fill a page behind them are in the file already.
fn cut_short(writes: &mut Vec<StoreOp>, rng: &mut Rng) {
    let whole = rng.below(writes.len() as u64) as usize;
    writes.truncate(whole + 1);
    if let Some(StoreOp::Write { data, .. }) = writes.last_mut() {
        let records = data.first().map_or(0, |first| first.len() as u64);
        let mut left = rng.below(records) as usize;
        data.retain_mut(|bytes| {
            bytes.truncate(left);
            left -= bytes.len();
            !bytes.is_empty()
        });
    }
}
