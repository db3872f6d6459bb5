//! Islands, virtual time and the network between them.
//!
//! Invariants: one thing happens at a time, in the order of (time, serial); frames of one direction of a connection
//! arrive in order or not at all; nothing is ordered between two connections; the log writes of a visit are
//! executed before its effects leave; what a store was asked and has not executed when its island is killed is
//! never executed. Every choice comes from the seed.

use nacre_node::store::Store;
use nacre_node::{ConnId, Ctx, Effect, Event, IoTicket, Logic, Rng, StoreOp, visit};
use nacre_types::{Instant, Timestamp};
use nacre_wire::Frame;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
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
    pub slow_us: u64,
    /// A store operation takes this long, at least and at most, in microseconds; a sync ten times as long.
    pub io_us: (u64, u64),
}
impl Default for Faults {
    fn default() -> Self {
        Self { delay_us: (20, 200), slow_one_in: 20, slow_us: 20_000, io_us: (5, 300) }
    }
}

type LinkId = u64;

/// Makes the logic of an island; called at each of its starts.
pub type Start = Box<dyn Fn(&Rc<Ctx>) -> Box<dyn Logic>>;

struct Node {
    name: String,
    start: Start,
    store: Option<Arc<dyn Store>>,
    logic: Option<(Box<dyn Logic>, Rc<Ctx>)>,
    /// Counts the starts: what was meant for an earlier life is dropped.
    life: u64,
    links: BTreeMap<ConnId, LinkId>,
    next_inbound: u64,
    /// Earliest timer event that is queued.
    timer: Option<u64>,
    /// SIGSTOP: what comes waits.
    paused: bool,
    /// Frames to it are lost.
    deaf: bool,
    waiting: Vec<Event>,
    /// Wall clock less virtual time.
    wall_offset_ns: i128,
}

/// One end of a connection.
#[derive(Clone, Copy)]
struct End {
    node: NodeId,
    life: u64,
    conn: ConnId,
}

struct Link {
    ends: [End; 2],
    /// When the last thing sent to each end arrives.
    busy_until: [u64; 2],
    cut: bool,
}

enum Action {
    Visit { node: NodeId, life: u64, event: Event },
    Timer { node: NodeId, life: u64 },
    Connect { from: End, address: String, target: String },
    Deliver { link: LinkId, to: usize, event: Event },
    Execute { node: NodeId, life: u64, ticket: IoTicket, op: StoreOp },
    Start { node: NodeId },
}

/// What an island said to its front end.
pub type Said = Box<dyn Any + Send>;

/// Everything.
pub struct World {
    now_ns: u64,
    serial: u64,
    rng: Rng,
    pub faults: Faults,
    queue: BTreeMap<(u64, u64), Action>,
    nodes: Vec<Node>,
    links: BTreeMap<LinkId, Link>,
    next_link: LinkId,
    said: VecDeque<(NodeId, Said)>,
    stopped: Vec<NodeId>,
    /// An island that could not go on: its name and why.
    pub fatal: Vec<String>,
    trace: VecDeque<(u64, String)>,
    pub tracing: bool,
    /// Lines of the trace that are kept.
    pub trace_max: usize,
}

impl Node {
    /// The island is gone, and everything that its tasks hold.
    fn end(&mut self) {
        if let Some((logic, ctx)) = self.logic.take() {
            drop(logic);
            ctx.abandon();
        }
    }
}
impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

impl World {
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
            said: VecDeque::new(),
            stopped: Vec::new(),
            fatal: Vec::new(),
            trace: VecDeque::new(),
            tracing: true,
            trace_max: 400,
        }
    }

    // ---- making and breaking

    /// A new island under a name that is also its address (`sim:NAME`). It starts with [`World::start`].
    pub fn add(&mut self, name: &str, store: Option<Arc<dyn Store>>, start: Start) -> NodeId {
        let skew_ns = i128::from(self.rng.below(4_000_000_000)) - 2_000_000_000;
        self.nodes.push(Node {
            name: name.to_string(),
            start,
            store,
            logic: None,
            life: 0,
            links: BTreeMap::new(),
            next_inbound: 1,
            timer: None,
            paused: false,
            deaf: false,
            waiting: Vec::new(),
            wall_offset_ns: 1_800_000_000_000_000_000 + skew_ns,
        });
        NodeId(self.nodes.len() - 1)
    }
    /// The store of an island that is down: its device has lost something.
    pub fn set_store(&mut self, id: NodeId, store: Arc<dyn Store>) {
        let node = &mut self.nodes[id.0];
        assert!(node.logic.is_none(), "{} runs", node.name);
        node.store = Some(store);
    }
    pub fn address(name: &str) -> String {
        format!("sim:{name}")
    }
    /// Starts an island now.
    pub fn start(&mut self, id: NodeId) {
        let seed = self.rng.next_u64();
        let node = &mut self.nodes[id.0];
        assert!(node.logic.is_none(), "{} runs already", node.name);
        node.life += 1;
        node.timer = None;
        let ctx = Ctx::new(seed);
        let (now, wall) = self.clocks(id);
        ctx.set_time(now, wall);
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
        self.nodes[id.0].end();
        let links: Vec<LinkId> = self.nodes[id.0].links.values().copied().collect();
        for link in links {
            self.cut(link, "peer died");
        }
        self.nodes[id.0].links.clear();
    }
    /// SIGSTOP and SIGCONT: events of a stopped island wait, its timers too.
    pub fn pause(&mut self, id: NodeId, paused: bool) {
        self.note(id, || if paused { "stopped by SIGSTOP" } else { "goes on after SIGSTOP" }.into());
        self.nodes[id.0].paused = paused;
        if !paused {
            for event in std::mem::take(&mut self.nodes[id.0].waiting) {
                self.enter(id, event);
            }
            self.enter(id, Event::Timer);
        }
    }
    /// One-way partition: frames to this island are lost, what it sends arrives. Its connections must end before it
    /// hears again.
    pub fn deafen(&mut self, id: NodeId, deaf: bool) {
        self.note(id, || if deaf { "hears nothing from now on" } else { "hears again" }.into());
        self.nodes[id.0].deaf = deaf;
    }
    pub fn is_up(&self, id: NodeId) -> bool {
        self.nodes[id.0].logic.is_some()
    }
    /// Breaks one of an island's connections; both ends notice some time later.
    pub fn cut_some_link(&mut self, id: NodeId) {
        let links: Vec<LinkId> = self.nodes[id.0].links.values().copied().collect();
        if !links.is_empty() {
            let chosen = links[self.rng.below(links.len() as u64) as usize];
            self.note(id, || "connection lost".into());
            self.cut(chosen, "connection reset");
        }
    }
    fn cut(&mut self, id: LinkId, reason: &str) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if std::mem::replace(&mut link.cut, true) {
            return;
        }
        let ends = link.ends;
        for (side, _) in ends.iter().enumerate() {
            let at = self.now_ns + self.delay_ns();
            let event = Event::Closed { conn: ends[side].conn, reason: reason.to_string() };
            self.push_action(at, Action::Deliver { link: id, to: side, event });
        }
    }

    // ---- running

    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
    /// Gives an event of a front end to an island, now.
    pub fn tell(&mut self, id: NodeId, event: Event) {
        self.enter(id, event);
    }
    /// The next thing that an island said to its front end.
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
            Action::Connect { from, address, target } => self.connect(from, &address, &target),
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

    fn clocks(&self, id: NodeId) -> (Instant, Timestamp) {
        let wall = i128::from(self.now_ns) + self.nodes[id.0].wall_offset_ns;
        (Instant(self.now_ns), Timestamp::from_nanos(wall))
    }

    /// One visit, its log writes, its effects.
    fn enter(&mut self, id: NodeId, event: Event) {
        let (now, wall) = self.clocks(id);
        let node = &mut self.nodes[id.0];
        if node.paused {
            node.waiting.push(event);
            return;
        }
        let Some((mut logic, ctx)) = node.logic.take() else { return };
        visit(logic.as_mut(), now, wall, event);
        let mut writes = Vec::new();
        logic.log_writes(&mut writes);
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
        if let Some(Instant(at)) = deadline
            && node.timer.is_none_or(|timer| at < timer)
        {
            node.timer = Some(at);
            let life = node.life;
            self.push_action(at.max(self.now_ns), Action::Timer { node: id, life });
        }
        for effect in effects {
            self.carry_out(id, effect);
        }
    }

    fn carry_out(&mut self, id: NodeId, effect: Effect) {
        let life = self.nodes[id.0].life;
        match effect {
            Effect::Open { conn, address, target } => {
                let at = self.now_ns + self.delay_ns();
                self.push_action(at, Action::Connect { from: End { node: id, life, conn }, address, target });
            }
            Effect::Send { conn, frame } => self.send(id, conn, frame),
            Effect::Close { conn } => self.close(id, conn),
            Effect::Io { ticket, op } => {
                let (least, most) = self.faults.io_us;
                let factor = if matches!(op, StoreOp::Sync { .. }) { 10 } else { 1 };
                let at = self.now_ns + 1000 * factor * (least + self.rng.below(most.saturating_sub(least)));
                self.push_action(at, Action::Execute { node: id, life, ticket, op });
            }
            Effect::Door(said) => self.said.push_back((id, said)),
            Effect::Stopped => {
                self.note(id, || "stopped".into());
                self.stopped.push(id);
            }
            Effect::Fatal(why) => {
                let name = self.nodes[id.0].name.clone();
                self.fatal.push(format!("{name}: {why}"));
            }
            #[allow(unreachable_patterns, reason = "effects that only real drivers carry out")]
            _ => {}
        }
    }

    fn send(&mut self, id: NodeId, conn: ConnId, frame: Frame) {
        let Some(&link_id) = self.nodes[id.0].links.get(&conn) else { return };
        let delay = self.delay_ns();
        let (now, tracing) = (self.now_ns, self.tracing);
        let Some(link) = self.links.get_mut(&link_id) else { return };
        let to = usize::from(link.ends[0].node == id && link.ends[0].conn == conn);
        let at = link.busy_until[to].max(now + delay);
        link.busy_until[to] = at;
        let end = link.ends[to];
        if tracing {
            let what = crate::describe::frame(&frame);
            let to = self.nodes[end.node.0].name.clone();
            self.note(id, move || {
                format!("-> {to}: {what} (arrives {:.3} ms)", (at - 1_000_000_000) as f64 / 1e6)
            });
        }
        let event = Event::Frame { conn: end.conn, frame };
        self.push_action(at, Action::Deliver { link: link_id, to, event });
    }

    fn close(&mut self, id: NodeId, conn: ConnId) {
        let Some(link_id) = self.nodes[id.0].links.remove(&conn) else { return };
        let delay = self.delay_ns();
        let now = self.now_ns;
        let Some(link) = self.links.get_mut(&link_id) else { return };
        let to = usize::from(link.ends[0].node == id && link.ends[0].conn == conn);
        let at = link.busy_until[to].max(now + delay);
        link.busy_until[to] = at;
        let event = Event::Closed { conn: link.ends[to].conn, reason: "closed by peer".into() };
        self.push_action(at, Action::Deliver { link: link_id, to, event });
    }

    fn connect(&mut self, from: End, address: &str, target: &str) {
        if self.nodes[from.node.0].life != from.life {
            return;
        }
        let found = self
            .nodes
            .iter()
            .position(|n| n.logic.is_some() && n.name == target && Self::address(&n.name) == address);
        let Some(found) = found else {
            let reason = format!("{address}: connection refused");
            self.enter(from.node, Event::Closed { conn: from.conn, reason });
            return;
        };
        let to = NodeId(found);
        let from_name = self.nodes[from.node.0].name.clone();
        let node = &mut self.nodes[found];
        let conn = ConnId(ConnId::INBOUND | node.next_inbound);
        node.next_inbound += 1;
        let far = End { node: to, life: node.life, conn };
        let id = self.next_link;
        self.next_link += 1;
        let opened = self.now_ns + self.delay_ns();
        self.links.insert(id, Link { ends: [from, far], busy_until: [opened, self.now_ns], cut: false });
        self.nodes[found].links.insert(conn, id);
        self.nodes[from.node.0].links.insert(from.conn, id);
        self.enter(to, Event::Accepted { conn, from: from_name });
        self.push_action(
            opened,
            Action::Deliver { link: id, to: 0, event: Event::Opened { conn: from.conn } },
        );
    }

    fn deliver(&mut self, id: LinkId, to: usize, event: Event) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let is_end = matches!(event, Event::Closed { .. });
        // What was under way when the connection broke is lost.
        if link.cut && !is_end {
            return;
        }
        let end = link.ends[to];
        let node = &mut self.nodes[end.node.0];
        if node.life != end.life || !node.links.contains_key(&end.conn) {
            return;
        }
        if node.deaf && !is_end {
            return;
        }
        if is_end {
            node.links.remove(&end.conn);
        }
        self.enter(end.node, event);
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

    fn delay_ns(&mut self) -> u64 {
        let (least, most) = self.faults.delay_us;
        let slow = self.faults.slow_one_in > 0 && self.rng.below(self.faults.slow_one_in) == 0;
        let most = if slow { self.faults.slow_us.max(most) } else { most };
        1000 * (least + self.rng.below(most.saturating_sub(least).max(1)))
    }

    fn push_action(&mut self, at_ns: u64, action: Action) {
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
