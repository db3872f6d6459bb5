//! Small islands for the tests of the driver.
#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unreachable_pub, reason = "shared between test binaries")]

use nacre_node::{ConnId, Ctx, Effect, Event, Logic, StoreOp};
use nacre_rt::{DoorSink, EndReason, IslandRef, Node};
pub use nacre_testkit::wait::eventually;
use nacre_types::Xid;
use nacre_wire::{Frame, Header, Kind};
use std::any::Any;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const LIMIT: Duration = Duration::from_secs(10);

/// What an island reports to the test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    Accepted(ConnId),
    Opened(ConnId),
    Frame(ConnId, u64, Vec<u8>),
    Closed(ConnId, String),
    Text(String),
}

pub struct Reports(SyncSender<Report>);
impl DoorSink for Reports {
    fn door(&self, _: &IslandRef, item: Box<dyn Any + Send>) {
        let report = *item.downcast::<Report>().expect("a report");
        self.0.try_send(report).expect("the test listens");
    }
}
pub fn reports() -> (Arc<Reports>, Receiver<Report>) {
    let (sender, receiver) = sync_channel(1 << 16);
    (Arc::new(Reports(sender)), receiver)
}

/// What a test tells an island to do, as a door event.
pub enum Order {
    Open {
        conn: u64,
        address: String,
        target: String,
    },
    Send(ConnId, Frame),
    Close(ConnId),
    Panic,
    Fatal,
    Io(Vec<StoreOp>),
    Sleep(Duration),
    /// Goes into the log of the visit, which also reports it.
    Log(StoreOp),
}

/// Does what it is told, reports what it hears, and replies to requests if it is an echo.
pub struct Puppet {
    ctx: Rc<Ctx>,
    echo: bool,
    /// Takes nobody as a client.
    strict: bool,
    log: Vec<StoreOp>,
    /// Next number of each sender of frames that say `ordered`.
    expected: BTreeMap<u64, u64>,
}
impl Puppet {
    pub fn make(echo: bool) -> impl FnOnce(&Rc<Ctx>) -> Box<dyn Logic> + Send {
        move |ctx| Box::new(Self::new(ctx, echo, false))
    }
    /// One that takes nobody as a client, and reports what it hears.
    pub fn strict() -> impl FnOnce(&Rc<Ctx>) -> Box<dyn Logic> + Send {
        move |ctx| Box::new(Self::new(ctx, false, true))
    }
    fn new(ctx: &Rc<Ctx>, echo: bool, strict: bool) -> Self {
        Self { ctx: ctx.clone(), echo, strict, log: Vec::new(), expected: BTreeMap::new() }
    }
    fn report(&self, report: Report) {
        self.ctx.push(Effect::Door(Box::new(report)));
    }
    fn order(&mut self, order: Order) {
        match order {
            Order::Open { conn, address, target } => {
                self.ctx.push(Effect::Open { conn: ConnId(conn), address, target });
            }
            Order::Send(conn, frame) => self.ctx.push(Effect::Send { conn, frame }),
            Order::Close(conn) => self.ctx.push(Effect::Close { conn }),
            Order::Panic => panic!("as ordered"),
            Order::Fatal => self.ctx.push(Effect::Fatal("as ordered".to_owned())),
            Order::Io(ops) => {
                for op in ops {
                    let ctx = self.ctx.clone();
                    self.ctx.spawn(async move {
                        let text = format!("{:?}", ctx.io(op).await);
                        ctx.push(Effect::Door(Box::new(Report::Text(text))));
                    });
                }
            }
            Order::Sleep(d) => {
                let ctx = self.ctx.clone();
                self.ctx.spawn(async move {
                    let before = ctx.now();
                    ctx.sleep(d).await;
                    assert!(ctx.now() - before >= d, "woken too early");
                    ctx.push(Effect::Door(Box::new(Report::Text("slept".to_owned()))));
                });
            }
            Order::Log(op) => {
                self.log.push(op);
                self.report(Report::Text("logged".to_owned()));
            }
        }
    }
}
impl Logic for Puppet {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Accepted { conn, .. } => {
                if !self.strict {
                    self.ctx.push(Effect::Admit { conn });
                }
                self.report(Report::Accepted(conn));
            }
            Event::Opened { conn } => self.report(Report::Opened(conn)),
            Event::Closed { conn, reason, .. } => self.report(Report::Closed(conn, reason)),
            Event::Frame { conn, frame } => {
                if &frame.body[..] == b"ordered" {
                    let (sender, n) = (frame.header.xid.0 >> 32, frame.header.xid.0 & 0xffff_ffff);
                    let expected = self.expected.entry(sender).or_default();
                    assert_eq!(n, *expected, "sender {sender}");
                    *expected += 1;
                }
                if &frame.body[..] == b"filled" {
                    let of = frame.header.xid.0 as u8;
                    assert!(frame.bulk.iter().flatten().all(|byte| *byte == of), "{of}: other bytes");
                }
                if self.echo && frame.header.kind == Kind::Request {
                    let mut header = frame.header;
                    header.kind = Kind::Reply;
                    self.ctx.push(Effect::Send { conn, frame: Frame { header, ..frame } });
                } else {
                    self.report(Report::Frame(conn, frame.header.xid.0, frame.body.to_vec()));
                }
            }
            Event::Door(order) => match order.downcast::<Order>() {
                Ok(order) => self.order(*order),
                Err(_) => panic!("not an order"),
            },
            Event::Stop => self.ctx.push(Effect::Stopped),
            Event::Start | Event::Timer | Event::IoDone { .. } => {}
        }
    }
    fn log_writes(&mut self, out: &mut Vec<StoreOp>) {
        out.append(&mut self.log);
    }
}

pub fn request(xid: u64, body: &[u8]) -> Frame {
    let mut header = Header::new(Kind::Request, 1);
    header.xid = Xid(xid);
    Frame::new(header, body.to_vec())
}
pub fn tell(island: &IslandRef, order: Order) {
    island.deliver(Event::Door(Box::new(order)));
}
pub fn next(reports: &Receiver<Report>) -> Report {
    reports.recv_timeout(LIMIT).expect("a report in time")
}

/// The names and reasons of islands that have ended.
pub type Ends = Arc<Mutex<Vec<(String, EndReason)>>>;
pub fn node(loops: usize) -> (Node, Ends) {
    let ends: Ends = Arc::default();
    let log = ends.clone();
    let config = nacre_rt::Config { loops, ..nacre_rt::Config::default() };
    let node = Node::start(config, move |_, island, reason| {
        log.lock().unwrap().push((island.name().to_owned(), reason.clone()));
    })
    .unwrap();
    (node, ends)
}
