//! A peer on a test island against a scripted server: futures, callbacks, timers and effects meet.
#![allow(clippy::unwrap_used, reason = "tests")]

use core::cell::RefCell;
use core::time::Duration;
use nacre_node::{ConnId, Ctx, Effect, Event, Logic, Peer, PeerConfig, Peers, RpcError, visit};
use nacre_types::{ClientUuid, Codec, Errno, Failure, Generation, Instant, LockCookie, Timestamp};
use nacre_wire::target::{ConnectReply, Role, Statfs, StatfsReply, features};
use nacre_wire::{Frame, Header, Kind, Opcode, Status, flags};
use std::io::Write;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use tracing_subscriber::util::SubscriberInitExt as _;

struct Island {
    ctx: Rc<Ctx>,
    peers: Rc<Peers>,
}
impl Logic for Island {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        assert!(self.peers.handle(event).is_none(), "only connections of the peer here");
    }
}

struct Test {
    island: Island,
    peer: Rc<Peer>,
    now: Instant,
    conn: ConnId,
    epoch: nacre_types::ConnEpoch,
    /// Requests that the server has got, without a reply so far.
    requests: Vec<Frame>,
    opened: u32,
    instance: u64,
    generation: u32,
    evicted: bool,
    /// Nobody listens at the address.
    refuses: bool,
    connect: Duration,
}

/// Lines of the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);
impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
impl Log {
    fn begin(&self) -> impl Sized + use<> {
        let log = self.clone();
        let lines = tracing_subscriber::fmt().with_ansi(false).with_target(false).without_time();
        lines.with_writer(move || log.clone()).set_default()
    }
    /// What has come since the last call.
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl Test {
    fn new() -> Self {
        Self::connected_in(Duration::ZERO)
    }
    /// The reply to the connect takes so long.
    fn connected_in(connect: Duration) -> Self {
        let ctx = Ctx::new(1);
        let peers = Rc::new(Peers::default());
        let now = Instant(5_000_000_000);
        ctx.set_time(now, Timestamp { sec: 100, nsec: 0 });
        let config = PeerConfig {
            client: ClientUuid([1; 16]),
            role: Role::Client,
            secret: nacre_types::Secret::new([3; 16]),
            name: "test".into(),
            target: "demo-MDT0000".into(),
            addresses: vec!["unix:/a".into()],
            max_mod_rpcs: 7,
            known: None,
            replaced: 0,
            instance: 0,
        };
        let peer = Peer::new(&ctx, &peers, config);
        let mut test = Self {
            island: Island { ctx, peers },
            peer,
            now,
            conn: ConnId(0),
            epoch: nacre_types::ConnEpoch(0),
            requests: Vec::new(),
            opened: 0,
            instance: 1,
            generation: 1,
            evicted: false,
            refuses: false,
            connect,
        };
        test.visit(Event::Timer);
        test
    }
    fn visit(&mut self, event: Event) {
        let wall = Timestamp::from_nanos(100_000_000_000 + i128::from(self.now.0 - 5_000_000_000));
        visit(&mut self.island, self.now, wall, event);
        let mut replies = Vec::new();
        for effect in self.island.ctx.take_effects() {
            match effect {
                Effect::Open { conn, target, .. } => {
                    assert_eq!(target, "demo-MDT0000");
                    self.conn = conn;
                    self.opened += 1;
                    replies.push(match self.refuses {
                        true => Event::Closed { conn, reason: "Connection refused".into(), absent: true },
                        false => Event::Opened { conn },
                    });
                }
                Effect::Send { conn, frame } => {
                    assert_eq!(conn, self.conn);
                    self.epoch = frame.header.epoch;
                    if frame.header.opcode == Opcode::Connect.number() {
                        self.now = self.now + self.connect;
                        replies.push(self.connect_reply(&frame.header));
                    } else {
                        self.requests.push(frame);
                    }
                }
                Effect::Close { .. } => {}
                _ => panic!("unexpected effect"),
            }
        }
        for reply in replies {
            self.visit(reply);
        }
    }
    fn connect_reply(&self, request: &Header) -> Event {
        let body = ConnectReply {
            target: ClientUuid([2; 16]),
            features: features::MULTI_MOD_RPCS,
            max_mod_rpcs: 8,
            lease_ms: 10_000,
            generation: Generation(self.generation),
            evicted: self.evicted,
            instance: self.instance,
            server_time: Timestamp { sec: 107, nsec: 0 },
            ..ConnectReply::default()
        };
        self.reply_event(request, 0, body.to_vec())
    }
    fn reply_event(&self, request: &Header, status: i32, body: Vec<u8>) -> Event {
        let mut h = Header::new(Kind::Reply, request.opcode);
        (h.xid, h.epoch, h.status) = (request.xid, self.epoch, Status::from_number(status));
        Event::Frame { conn: self.conn, frame: Frame::new(h, body) }
    }
    /// The server replies to the oldest request.
    fn reply(&mut self, status: i32, body: Vec<u8>) {
        let request = self.requests.remove(0);
        let event = self.reply_event(&request.header, status, body);
        self.visit(event);
    }
    fn callback(&mut self, xid: u64) {
        let mut h = Header::new(Kind::Callback, Opcode::LockGranted.number());
        (h.xid, h.epoch) = (nacre_types::Xid(xid), self.epoch);
        self.visit(Event::Frame { conn: self.conn, frame: Frame::new(h, LockCookie(xid).to_vec()) });
    }
    fn pass(&mut self, d: Duration) {
        let end = self.now + d;
        while let Some(at) = self.island.ctx.deadline().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.visit(Event::Timer);
        }
        self.now = end;
    }
    /// Starts a statfs; the cell gets its result.
    fn statfs(&mut self) -> Rc<RefCell<Option<Result<u64, RpcError>>>> {
        let result = Rc::new(RefCell::new(None));
        let (r, peer) = (result.clone(), self.peer.clone());
        self.island.ctx.spawn(async move {
            let reply = peer.call(&Statfs {}).await;
            *r.borrow_mut() = Some(reply.map(|s| s.bytes_total));
        });
        self.visit(Event::Timer);
        result
    }
}
fn space(total: u64) -> Vec<u8> {
    StatfsReply { bytes_total: total, ..StatfsReply::default() }.to_vec()
}

/// The server's clock shows 107 s, that of the client 100 s when it connects.
#[test]
fn a_clock_is_corrected_by_what_the_time_of_a_connect_proves() {
    for (connect, offset) in [(0, 7), (5, 2), (7, 0), (30, 0)] {
        let t = Test::connected_in(Duration::from_secs(connect));
        assert_eq!(t.peer.wall_offset_ns(), offset * 1_000_000_000, "{connect} s");
    }
}

#[test]
fn a_call_becomes_a_request_and_its_reply_ends_the_future() {
    let mut t = Test::new();
    assert!(t.peer.is_connected());
    assert_eq!(t.peer.wall_offset_ns(), 7_000_000_000);
    let (a, b) = (t.statfs(), t.statfs());
    assert_eq!(t.requests.len(), 2);
    t.reply(0, space(5));
    t.reply(Errno::ENOSPC.number(), Vec::new());
    assert_eq!(*a.borrow(), Some(Ok(5)));
    assert_eq!(*b.borrow(), Some(Err(RpcError::Failed(Failure::ENOSPC))));
}

#[test]
fn a_reply_that_cannot_be_read_is_an_error_of_that_call_alone() {
    let mut t = Test::new();
    let a = t.statfs();
    t.reply(0, vec![1, 2, 3]);
    assert_eq!(*a.borrow(), Some(Err(RpcError::Failed(Failure::EPROTO))));
    assert!(t.peer.is_connected());
}

#[test]
fn a_lost_connection_is_opened_again_and_the_call_goes_on() {
    let mut t = Test::new();
    let a = t.statfs();
    let first = t.requests.remove(0);
    t.visit(Event::Closed { conn: t.conn, reason: "reset by peer".into(), absent: false });
    assert_eq!(t.peer.last_error().as_deref(), Some("reset by peer"));
    t.pass(Duration::from_millis(100));
    assert_eq!((t.opened, t.requests.len()), (2, 1));
    assert!(t.requests[0].header.has(flags::RESENT));
    assert_eq!(t.requests[0].header.xid, first.header.xid);
    t.reply(0, space(9));
    assert_eq!((*a.borrow(), t.peer.last_error()), (Some(Ok(9)), None));
}

#[test]
fn an_idle_peer_pings_every_three_seconds_and_a_dead_server_is_noticed() {
    let mut t = Test::new();
    for _ in 0..5 {
        t.pass(Duration::from_secs(3));
        assert_eq!(t.requests.len(), 1);
        t.reply(0, 0u64.to_vec());
    }
    assert_eq!(t.opened, 1);
    t.pass(Duration::from_secs(8));
    assert_eq!(t.opened, 2, "no reply for seven seconds");
}

#[test]
fn callbacks_reach_the_handler_once_and_are_acknowledged() {
    let mut t = Test::new();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let s = seen.clone();
    t.peer.on_callback(Box::new(move |frame| s.borrow_mut().push(frame.header.xid.0)));
    t.callback(1);
    t.callback(2);
    t.callback(2);
    assert_eq!(*seen.borrow(), [1, 2]);
    let acks: Vec<_> = t.requests.iter().map(|f| (f.header.kind, f.header.xid.0)).collect();
    assert_eq!(acks, [(Kind::CallbackAck, 1), (Kind::CallbackAck, 2), (Kind::CallbackAck, 2)]);
}

#[test]
fn the_eviction_handler_runs_before_anything_on_the_new_export() {
    let mut t = Test::new();
    let order = Rc::new(RefCell::new(Vec::new()));
    let (o, ctx) = (order.clone(), t.island.ctx.clone());
    t.peer.on_evicted(Box::new(move || o.borrow_mut().push(ctx.now())));
    t.visit(Event::Closed { conn: t.conn, reason: "evicted".into(), absent: false });
    let a = t.statfs();
    (t.generation, t.evicted) = (2, true);
    t.pass(Duration::from_millis(100));
    assert_eq!(order.borrow().len(), 1);
    t.reply(0, space(1));
    assert_eq!(*a.borrow(), Some(Ok(1)), "it had not been sent before");
}

#[test]
fn disconnect_ends_calls_tells_the_server_and_leaves_no_task() {
    let mut t = Test::new();
    let a = t.statfs();
    t.requests.clear();
    let peer = t.peer.clone();
    t.island.ctx.spawn(async move { peer.disconnect().await });
    t.visit(Event::Timer);
    assert_eq!(*a.borrow(), Some(Err(RpcError::Stopped)));
    assert_eq!(t.requests[0].header.opcode, Opcode::Disconnect.number());
    t.reply(0, Vec::new());
    assert_eq!((t.island.ctx.live_tasks(), t.island.ctx.deadline()), (0, None));
}

#[test]
fn events_of_other_connections_are_given_back() {
    let t = Test::new();
    let inbound = ConnId(ConnId::INBOUND | 1);
    assert!(
        t.island
            .peers
            .handle(Event::Accepted { conn: inbound, from: "x".into(), origin: nacre_node::Origin::Network })
            .is_some()
    );
    assert!(t.island.peers.handle(Event::Opened { conn: inbound }).is_some());
    assert!(t.island.peers.handle(Event::Opened { conn: ConnId(999) }).is_some());
    assert!(t.peer.is_connected());
}

#[test]
fn a_dropped_sleep_leaves_no_timer() {
    let t = Test::new();
    let ctx = t.island.ctx.clone();
    let before = ctx.deadline();
    let (promise, reply) = ctx.promise::<u32>();
    let inner = ctx.clone();
    ctx.spawn(async move {
        let at = inner.now() + Duration::from_millis(1);
        assert_eq!(inner.timeout(at, reply).await, Some(Some(3)));
    });
    ctx.run();
    assert_ne!(ctx.deadline(), before);
    promise.fulfil(3);
    ctx.run();
    assert_eq!(ctx.deadline(), before);
}

#[test]
fn an_outage_is_in_the_log_while_somebody_waits_in_a_few_lines() {
    let log = Log::default();
    let _lines = log.begin();
    let mut t = Test::new();
    log.take();
    // A restart: nobody needs to know more.
    let a = t.statfs();
    t.requests.clear();
    t.refuses = true;
    t.visit(Event::Closed { conn: t.conn, reason: "reset by peer".into(), absent: false });
    t.pass(Duration::from_millis(1900));
    assert_eq!(log.take(), "");
    // It lasts.
    t.pass(Duration::from_millis(200));
    let waiting = " WARN waiting for demo-MDT0000 (unix:/a): Connection refused, since 2 s, 1 request waits client=\"test\"\n";
    assert_eq!(log.take(), waiting);
    let _b = t.statfs();
    t.pass(Duration::from_secs(88));
    let again = log.take();
    assert!(again.contains("since 62 s, 2 requests wait"), "{again}");
    assert_eq!(again.lines().count(), 1, "{again}");
    t.pass(Duration::from_secs(3600));
    assert_eq!(log.take().lines().count(), 4, "ever more rarely");
    t.refuses = false;
    t.pass(Duration::from_secs(1));
    let back = log.take();
    assert!(back.starts_with(" INFO demo-MDT0000 (unix:/a): connected again after 369"), "{back}");
    assert_eq!(back.lines().count(), 1, "{back}");
    t.reply(0, space(1));
    assert_eq!(*a.borrow(), Some(Ok(1)));
    // The next one is another.
    t.refuses = true;
    t.visit(Event::Closed { conn: t.conn, reason: "reset by peer".into(), absent: false });
    t.pass(Duration::from_millis(2100));
    assert!(log.take().contains("since 2 s, 1 request waits"));
}

#[test]
fn the_end_of_a_client_is_no_connection_in_the_log() {
    let log = Log::default();
    let _lines = log.begin();
    let mut t = Test::new();
    log.take();
    let _a = t.statfs();
    t.refuses = true;
    t.visit(Event::Closed { conn: t.conn, reason: "reset by peer".into(), absent: false });
    t.pass(Duration::from_millis(2100));
    assert!(log.take().contains("waiting for demo-MDT0000"));
    let peer = t.peer.clone();
    t.island.ctx.spawn(async move { peer.disconnect().await });
    t.visit(Event::Timer);
    t.pass(Duration::from_secs(30));
    assert_eq!(log.take(), "");
}

#[test]
fn a_server_that_stands_still_is_in_the_log_before_its_connection_is_given_up() {
    let log = Log::default();
    let _lines = log.begin();
    let mut t = Test::new();
    log.take();
    let _a = t.statfs();
    t.pass(Duration::from_secs(6));
    let said = log.take();
    assert!(said.contains("waiting for demo-MDT0000 (unix:/a): it does not reply, since 2 s"), "{said}");
    assert_eq!((said.lines().count(), t.opened), (1, 1));
    t.requests.remove(0);
    t.reply(0, 0u64.to_vec());
    assert!(log.take().contains("connected again after 3 s"));
    t.pass(Duration::from_secs(1));
    assert_eq!(log.take(), "");
}

#[test]
fn a_target_that_nobody_waits_for_may_be_away_for_half_a_minute() {
    let log = Log::default();
    let _lines = log.begin();
    let mut t = Test::new();
    log.take();
    t.refuses = true;
    t.visit(Event::Closed { conn: t.conn, reason: "reset by peer".into(), absent: false });
    t.pass(Duration::from_secs(29));
    assert_eq!(log.take(), "");
    t.pass(Duration::from_secs(3));
    assert!(log.take().contains("no connection to demo-MDT0000 (unix:/a): Connection refused, since 30 s"));
}
