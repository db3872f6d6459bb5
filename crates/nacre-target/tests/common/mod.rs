//! A small target and its clients as islands of the simulator's world.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use nacre_node::{Ctx, Effect, Event, Logic, Peer, PeerConfig, Peers, RpcError};
use nacre_osd::{Credits, Label, Osd, OsdConfig, Table};
use nacre_osd_mem::MemStore;
use nacre_rpc::ReplyRecord;
use nacre_sim::{NodeId, World};
use nacre_target::{
    ExportId, RECORD_BYTES, RECORD_ROWS, Reply, Request, Service, TargetConfig, TargetCore, TargetIsland,
};
use nacre_types::{ClientUuid, Codec, Errno, Failure, LockCookie, Secret};
use nacre_wire::Opcode;
use nacre_wire::ost::{Glimpse, LockBlocking, ObjectState, Reserve, ReserveReply, SyncObject};
use nacre_wire::params::{Arm, BoundParam, Row};
use nacre_wire::target::{Empty, Role, StatfsReply};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub const TARGET: &str = "demo-OST0000";
const ROWS: Table = Table(200);
const GONE: Table = Table(201);
/// Reserving so much takes two seconds.
pub const SLOW: u64 = 1_000_000;

/// Adds numbers up: every `Reserve` is a change, its reply the sum so far. A `Glimpse` calls its client back, a
/// `SyncObject` evicts the export that the stripe index names.
pub struct Ledger {
    core: Rc<TargetCore>,
    callbacks: Cell<u64>,
}
impl Ledger {
    async fn add(&self, request: &Request) -> Result<Reply, Failure> {
        let Reserve { objects } = request.args()?;
        if objects == 0 {
            return Err(Failure::EINVAL);
        }
        if objects >= SLOW {
            self.core.ctx.sleep(Duration::from_secs(2)).await;
        }
        let pins = self.core.osd.fetch(&[(ROWS, b"sum")]).await?;
        let credits = Credits { rows: 1 + RECORD_ROWS, row_bytes: 64 + RECORD_BYTES, ..Credits::default() };
        let reservation = self.core.osd.reserve(credits).await?;
        let admitted = self.core.admit_change(request)?;
        let (transno, sum) = self.core.transact(admitted, &pins, reservation, |tx| {
            let old = tx.get(ROWS, b"sum").map_or(Ok(0), u64::from_slice)?;
            let sum = old + objects;
            tx.put(ROWS, b"sum", sum.to_vec());
            request.set_record_data(sum);
            Ok(sum)
        })?;
        Ok(Reply::of(&ReserveReply { objects: sum }).with_transno(transno))
    }
}
impl Service for Ledger {
    async fn start(core: &Rc<TargetCore>) -> Result<Rc<Self>, String> {
        Ok(Rc::new(Self { core: core.clone(), callbacks: Cell::new(0) }))
    }
    async fn handle(self: Rc<Self>, request: Rc<Request>) -> Result<Reply, Failure> {
        match request.opcode {
            Opcode::Reserve => self.add(&request).await,
            Opcode::Glimpse => {
                let _args: Glimpse = request.args()?;
                self.callbacks.set(self.callbacks.get() + 1);
                let cookie = LockCookie(self.callbacks.get());
                self.core.callback(request.export, Opcode::LockBlocking, &LockBlocking { cookie });
                Ok(Reply::of(&ObjectState::default()))
            }
            Opcode::SyncObject => {
                let generation = request.args::<SyncObject>()?.object.stripe;
                self.core.evict(nacre_types::Generation(generation), "a test wants it".into());
                Ok(Reply::of(&Empty {}))
            }
            Opcode::Cancel => Ok(Reply::of(&Empty {})),
            _ => Err(Failure::EOPNOTSUPP),
        }
    }
    async fn reconstruct(self: Rc<Self>, _: Rc<Request>, record: ReplyRecord) -> Result<Reply, Errno> {
        Ok(Reply::of(&ReserveReply { objects: record.data }))
    }
    async fn export_gone(self: Rc<Self>, export: ExportId) -> Result<(), Errno> {
        let credits = Credits { rows: 1, row_bytes: 64, frees: true, ..Credits::default() };
        let reservation = self.core.osd.reserve(credits).await.expect("room");
        let done = self.core.transact_local(&nacre_osd::Pins::default(), reservation, |tx| {
            tx.put(GONE, &export.to_vec(), vec![1]);
            Ok(())
        });
        done.map(drop)
    }
    async fn statfs(self: Rc<Self>) -> Result<StatfsReply, Errno> {
        let sum = self.core.osd.get(ROWS, b"sum").await?;
        let gone = self.core.osd.scan(GONE, &[], &[0xff; 8], 1000).await?.len() as u64;
        let total = sum.map_or(Ok(0), |row| u64::from_slice(&row))?;
        Ok(StatfsReply { bytes_total: total, files_used: gone, ..StatfsReply::default() })
    }
    fn params(&self) -> Vec<BoundParam<'_>> {
        const COLOUR: Row = Row::words("colour", &["blue", "red"], "blue", "For tests.");
        let arm = Arm::word("blue", |_| Ok(()));
        BoundParam::new(&COLOUR, &self.core.param_prefix(), "", arm).into_iter().collect()
    }
}

/// Writes the label into a store.
struct Formatter {
    ctx: Rc<Ctx>,
    label: Label,
}
impl Logic for Formatter {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        if let Event::Start = event {
            let (ctx, label) = (self.ctx.clone(), self.label.clone());
            self.ctx.spawn(async move {
                match Osd::format(&ctx, &label, &config(), false).await {
                    Ok(()) => ctx.push(Effect::Stopped),
                    Err(e) => ctx.push(Effect::Fatal(e.to_string())),
                }
            });
        }
    }
}
pub fn config() -> OsdConfig {
    OsdConfig { ballast_bytes: 1 << 20, log_bytes_max: 8 << 20, ..OsdConfig::default() }
}

/// A formatted store.
pub fn store(world: &mut World, name: &str, mgs: &[&str]) -> Arc<MemStore> {
    let store = Arc::new(MemStore::new(1 << 30));
    let mut uuid = [7; 16];
    uuid[15] = name.len() as u8;
    let label = Label {
        uuid: ClientUuid(uuid),
        name: name.into(),
        mgs_nodes: mgs.iter().map(|m| m.to_string()).collect(),
        format_version: 1,
    };
    let node = world.add(
        &format!("format {name}"),
        Some(store.clone()),
        Box::new(move |ctx| Box::new(Formatter { ctx: ctx.clone(), label: label.clone() })),
    );
    world.start(node);
    let until = world.now_ns() + 5_000_000_000;
    assert!(world.run_until(until, |w| !w.take_stopped().is_empty()), "formatted: {:?}", world.fatal);
    world.kill(node);
    store
}

pub fn target_config(lease_ms: u32) -> TargetConfig {
    TargetConfig {
        addresses: vec![World::address(TARGET)],
        mgs_nodes: vec![World::address("MGS")],
        lease_ms,
        max_mod_rpcs: 8,
        ack_or_commit: true,
        reply_records: true,
        fault_points: true,
        in_memory: false,
        root_owner: (0, 0),
        kept_writes: Vec::new(),
    }
}

/// A target on a formatted store; not started.
pub fn add_target<S: Service>(world: &mut World, name: &str, store: Arc<MemStore>) -> NodeId {
    world.add(
        name,
        Some(store),
        Box::new(|ctx| Box::new(TargetIsland::<S>::new(ctx, target_config(10_000), config()))),
    )
}

/// World with a started ledger.
pub fn ledger(seed: u64) -> (World, NodeId) {
    let mut world = World::new(seed);
    let store = store(&mut world, TARGET, &[]);
    let target = add_target::<Ledger>(&mut world, TARGET, store);
    world.start(target);
    (world, target)
}

type Value = Box<dyn Any + Send>;
type Run = Box<dyn FnOnce(Rc<Asker>) -> Pin<Box<dyn Future<Output = Value>>> + Send>;

/// What a job of a client can use.
pub struct Asker {
    pub ctx: Rc<Ctx>,
    pub peer: Rc<Peer>,
    pub callbacks: RefCell<Vec<u64>>,
    pub evictions: Cell<u32>,
}

struct ClientIsland {
    ctx: Rc<Ctx>,
    peers: Rc<Peers>,
    asker: Rc<Asker>,
}
impl Logic for ClientIsland {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        let Some(Event::Door(job)) = self.peers.handle(event) else { return };
        let (id, run) = *job.downcast::<(u64, Run)>().expect("a job");
        let (ctx, asker) = (self.ctx.clone(), self.asker.clone());
        self.ctx.spawn(async move {
            let value = run(asker).await;
            ctx.push(Effect::Door(Box::new((id, value))));
        });
    }
}

/// A client of a target, as an island.
pub fn add_client(world: &mut World, target: &'static str, uuid: u8, role: Role) -> NodeId {
    let node = world.add(
        &format!("client {uuid}"),
        None,
        Box::new(move |ctx| {
            let peers = Rc::new(Peers::default());
            let peer = Peer::new(
                ctx,
                &peers,
                PeerConfig {
                    client: ClientUuid([uuid; 16]),
                    role,
                    secret: Secret::new([uuid; 16]),
                    name: format!("client {uuid}"),
                    target: target.into(),
                    addresses: vec![World::address(target)],
                    max_mod_rpcs: 7,
                    known: None,
                    replaced: 0,
                    instance: 0,
                },
            );
            let asker = Rc::new(Asker {
                ctx: ctx.clone(),
                peer,
                callbacks: RefCell::default(),
                evictions: Cell::new(0),
            });
            let a = Rc::downgrade(&asker);
            asker.peer.on_callback(Box::new(move |frame| {
                let body = LockBlocking::from_slice(&frame.body).expect("a callback");
                if let Some(a) = a.upgrade() {
                    a.callbacks.borrow_mut().push(body.cookie.0);
                }
            }));
            let a = Rc::downgrade(&asker);
            asker.peer.on_evicted(Box::new(move || {
                if let Some(a) = a.upgrade() {
                    a.evictions.set(a.evictions.get() + 1);
                }
            }));
            Box::new(ClientIsland { ctx: ctx.clone(), peers, asker })
        }),
    );
    world.start(node);
    node
}

/// Jobs under way and their values.
#[derive(Default)]
pub struct Jobs {
    last: u64,
    values: BTreeMap<u64, Value>,
}
impl Jobs {
    pub fn start<T: Send + 'static, F: Future<Output = T> + 'static>(
        &mut self,
        world: &mut World,
        client: NodeId,
        run: impl FnOnce(Rc<Asker>) -> F + Send + 'static,
    ) -> u64 {
        self.last += 1;
        let run: Run = Box::new(move |asker| {
            let job = run(asker);
            Box::pin(async move { Box::new(job.await) as Value })
        });
        world.tell(client, Event::Door(Box::new((self.last, run))));
        self.last
    }
    pub fn collect(&mut self, world: &mut World) {
        while let Some((_, value)) = world.hear() {
            let (id, value) = *value.downcast::<(u64, Value)>().expect("the value of a job");
            self.values.insert(id, value);
        }
    }
    pub fn is_done(&mut self, world: &mut World, job: u64) -> bool {
        self.collect(world);
        self.values.contains_key(&job)
    }
    pub fn take<T: 'static>(&mut self, job: u64) -> Option<T> {
        self.values.remove(&job).map(|v| *v.downcast::<T>().expect("the job's type"))
    }
    /// Runs a job to its end, a minute at most.
    pub fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
        &mut self,
        world: &mut World,
        client: NodeId,
        run: impl FnOnce(Rc<Asker>) -> F + Send + 'static,
    ) -> T {
        let job = self.start(world, client, run);
        let until = world.now_ns() + 60_000_000_000;
        let done = world.run_until(until, |w| self.is_done(w, job));
        assert!(done, "the job never ends; {:?}\n{}", world.fatal, world.trace(60));
        self.take(job).expect("it is done")
    }
}

pub async fn add(asker: Rc<Asker>, n: u64) -> Result<u64, RpcError> {
    asker.peer.call(&Reserve { objects: n }).await.map(|r| r.objects)
}
pub const SEC: u64 = 1_000_000_000;
