//! Random openings, frames, closes and crashes from several threads, over sockets and within the process: every
//! connection opens at most once, its frames come in order and without a gap, it ends at most once and nothing
//! comes after, and in the end nothing is left behind.
#![allow(clippy::unwrap_used, reason = "tests")]

use nacre_node::{ConnId, Ctx, Effect, Event, Logic, Rng};
use nacre_rt::{Config, EndReason, IslandRef, Node};
use nacre_types::Xid;
use nacre_wire::{Frame, Header, Kind};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const CONNS_MAX: usize = 40;

#[derive(Debug, PartialEq, Eq)]
enum State {
    Opening,
    Open { sent: u64, received: u64 },
}

/// Does something random at each door event and checks whatever it hears.
struct Walker {
    ctx: Rc<Ctx>,
    rng: Rng,
    peers: Vec<(String, String)>,
    conns: BTreeMap<ConnId, State>,
    stopping: bool,
    open_conns: Arc<AtomicUsize>,
}
impl Walker {
    fn step(&mut self) {
        let random = self.rng.next_u64();
        let pick = self.conns.keys().nth((random >> 8) as usize % self.conns.len().max(1)).copied();
        match (random % 16, pick) {
            (0 | 1, _) | (_, None) if self.conns.len() < CONNS_MAX => {
                let conn = self.ctx.next_conn();
                let (address, target) = self.peers[(random >> 40) as usize % self.peers.len()].clone();
                self.ctx.push(Effect::Open { conn, address, target });
                self.conns.insert(conn, State::Opening);
            }
            (2, Some(conn)) => {
                self.ctx.push(Effect::Close { conn });
                self.conns.remove(&conn);
            }
            (_, Some(conn)) => {
                for _ in 0..=random >> 61 {
                    self.send(conn, (random >> 20) as usize % 5000);
                }
            }
            _ => {}
        }
    }
    fn send(&mut self, conn: ConnId, bytes: usize) {
        let Some(State::Open { sent, .. }) = self.conns.get_mut(&conn) else { return };
        *sent += 1;
        let mut header = Header::new(Kind::Request, 1);
        header.xid = Xid(*sent);
        let mut frame = Frame::new(header, vec![1; bytes / 2]);
        if bytes.is_multiple_of(7) {
            frame.bulk = vec![vec![2; bytes * 50].into()];
        }
        self.ctx.push(Effect::Send { conn, frame });
    }
}
impl Logic for Walker {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Accepted { conn, .. } => {
                let known = self.conns.insert(conn, State::Open { sent: 0, received: 0 });
                assert_eq!(known, None, "accepted twice");
                self.ctx.push(Effect::Admit { conn });
                if self.stopping {
                    self.conns.remove(&conn);
                    self.ctx.push(Effect::Close { conn });
                }
            }
            Event::Opened { conn } => {
                let before = self.conns.insert(conn, State::Open { sent: 0, received: 0 });
                assert_eq!(before, Some(State::Opening), "opened {conn:?}");
            }
            Event::Frame { conn, frame } => match self.conns.get_mut(&conn) {
                Some(State::Open { received, .. }) => {
                    *received += 1;
                    assert_eq!(frame.header.xid.0, *received, "{conn:?}");
                }
                other => panic!("a frame for {conn:?} {other:?}"),
            },
            Event::Closed { conn, reason, .. } => {
                assert!(self.conns.remove(&conn).is_some(), "{conn:?} closed again: {reason}");
            }
            Event::Door(_) if !self.stopping => self.step(),
            Event::Door(_) => {}
            Event::Stop => {
                self.stopping = true;
                for conn in std::mem::take(&mut self.conns).into_keys() {
                    self.ctx.push(Effect::Close { conn });
                }
            }
            Event::Start | Event::Timer | Event::IoDone { .. } => {}
        }
        self.open_conns.store(self.conns.len(), Ordering::SeqCst);
    }
}

/// Node, name, handle, and how many connections the island holds.
type Known = (Node, String, IslandRef, Arc<AtomicUsize>);

#[derive(Clone)]
struct World {
    islands: Arc<Mutex<Vec<Known>>>,
    bugs: Arc<Mutex<Vec<String>>>,
    peers: Vec<(String, String)>,
    seed: Arc<AtomicUsize>,
}
impl World {
    fn add(&self, node: &Node, name: &str) {
        let open_conns = Arc::new(AtomicUsize::new(0));
        let (peers, count) = (self.peers.clone(), open_conns.clone());
        let seed = self.seed.fetch_add(1, Ordering::SeqCst) as u64;
        let make = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
            Box::new(Walker {
                ctx: ctx.clone(),
                rng: Rng::new(seed),
                peers,
                conns: BTreeMap::new(),
                stopping: false,
                open_conns: count,
            })
        };
        // Refused while the node stops.
        if let Ok(island) = node.add_island(name, None, None, make) {
            let mut islands = self.islands.lock().unwrap();
            islands.retain(|(_, n, _, _)| n != name);
            islands.push((node.clone(), name.to_owned(), island, open_conns));
        }
    }
    fn node(&self, loops: usize) -> Node {
        let world = self.clone();
        let config = Config { loops, ..Config::default() };
        Node::start(config, move |node, island, reason| {
            if let EndReason::Panicked(text) | EndReason::Fatal(text) = reason {
                world.bugs.lock().unwrap().push(format!("{}: {text}", island.name()));
            }
            world.add(node, island.name());
        })
        .unwrap()
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn connections_keep_their_promises_under_random_loads_and_crashes() {
    let before = descriptors();
    let dir = tempfile::tempdir().unwrap();
    let address = |n: u32| format!("unix:{}", dir.path().join(n.to_string()).display());
    let world = World {
        islands: Arc::default(),
        bugs: Arc::default(),
        peers: vec![
            (address(1), "one-a".into()),
            (address(1), "one-b".into()),
            (address(2), "two".into()),
            ("local".into(), "one-b".into()),
            (address(2), "nobody".into()),
        ],
        seed: Arc::new(AtomicUsize::new(1)),
    };
    let nodes = [world.node(2), world.node(1)];
    for (node, n) in nodes.iter().zip(1..) {
        node.listen(&address(n).parse().unwrap()).unwrap();
    }
    world.add(&nodes[0], "one-a");
    world.add(&nodes[0], "one-b");
    world.add(&nodes[1], "two");
    let end = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for t in 0..3u64 {
            let world = world.clone();
            scope.spawn(move || {
                let mut rng = nacre_node::Rng::new(t);
                while Instant::now() < end {
                    let (node, _, island, _) = {
                        let islands = world.islands.lock().unwrap();
                        islands[rng.below(islands.len() as u64) as usize].clone()
                    };
                    match rng.below(5000) {
                        0 => node.kill_island(&island),
                        _ => island.deliver(Event::Door(Box::new(()))),
                    }
                }
            });
        }
    });
    assert_eq!(*world.bugs.lock().unwrap(), Vec::<String>::new());
    // Everybody lets go; what is still under way ends too.
    let islands = world.islands.lock().unwrap().clone();
    for (_, _, island, _) in &islands {
        island.deliver(Event::Stop);
    }
    let visits: u64 = islands.iter().map(|(_, _, i, _)| i.stats().visits()).sum();
    let frames: u64 = nodes.iter().map(|n| n.stats().frames_received()).sum();
    let deadline = Instant::now() + Duration::from_secs(10);
    let held = || islands.iter().map(|(_, _, _, n)| n.load(Ordering::SeqCst)).sum::<usize>();
    while held() > 0 || nodes.iter().any(|n| n.sockets() > 0) {
        assert!(
            Instant::now() < deadline,
            "left behind: {} connections, {:?} sockets",
            held(),
            nodes.each_ref().map(Node::sockets)
        );
        std::thread::yield_now();
    }
    assert!(visits > 1000 && frames > 100, "{visits} visits, {frames} frames over sockets");
    assert_eq!(*world.bugs.lock().unwrap(), Vec::<String>::new());
    drop(islands);
    world.islands.lock().unwrap().clear();
    for node in &nodes {
        node.shutdown();
    }
    drop(nodes);
    drop(world);
    assert_eq!(descriptors(), before, "descriptors were leaked");
}
