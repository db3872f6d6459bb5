//! One OST on a store in memory, and clients that call it through real imports, in the simulator's world.

use bytes::Bytes;
use nacre_node::store::Store;
use nacre_node::{Ctx, Effect, Event, Logic, Peer, PeerConfig, Peers, WaitList};
use nacre_osd::{Label, Osd, OsdConfig};
use nacre_osd_mem::MemStore;
use nacre_ost::{Checked, Ost};
use nacre_sim::{NodeId, World};
use nacre_target::{TargetConfig, TargetIsland};
use nacre_types::*;
use nacre_wire::ost::*;
use nacre_wire::target::Role;
use nacre_wire::{Frame, Opcode};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const LEASE_MS: u32 = 10_000;
const OST: &str = "demo-OST0000";

/// Runs a future of a context that talks to nobody but its store.
pub(crate) fn block_on<T: 'static>(
    ctx: &Rc<Ctx>,
    store: &dyn Store,
    log: impl Fn(&mut Vec<nacre_node::StoreOp>),
    future: impl Future<Output = T> + 'static,
) -> T {
    let value = Rc::new(RefCell::new(None));
    let slot = value.clone();
    ctx.spawn(async move { *slot.borrow_mut() = Some(future.await) });
    loop {
        ctx.run();
        let mut writes = Vec::new();
        log(&mut writes);
        for op in writes {
            store.execute(op).expect("log writes of a test succeed");
        }
        if let Some(value) = value.borrow_mut().take() {
            return value;
        }
        let effects = ctx.take_effects();
        if effects.is_empty() {
            let at = ctx.deadline().expect("a future waits for a store or for a time");
            ctx.set_time(at, Timestamp { sec: 1_800_000_000, nsec: 0 });
        }
        for effect in effects {
            if let Effect::Io { ticket, op } = effect {
                ctx.complete_io(ticket, store.execute(op));
            }
        }
    }
}

fn osd_config() -> OsdConfig {
    OsdConfig {
        ballast_bytes: 1 << 20,
        log_bytes_max: 16 << 20,
        dirty_bytes_max: 16 << 20,
        ..OsdConfig::default()
    }
}

/// A client of the OST: an import, the grants that came by callback.
pub(crate) struct Client {
    ctx: Rc<Ctx>,
    pub(crate) peer: Rc<Peer>,
    grants: RefCell<BTreeMap<LockCookie, ObjectState>>,
    pub(crate) blocking: RefCell<BTreeSet<LockCookie>>,
    changed: WaitList,
}

impl Client {
    fn new(ctx: &Rc<Ctx>, peers: &Rc<Peers>, number: u8) -> Rc<Self> {
        let peer = Peer::new(
            ctx,
            peers,
            PeerConfig {
                client: ClientUuid([number; 16]),
                role: Role::Client,
                name: format!("client {number}"),
                target: OST.into(),
                addresses: vec![World::address(OST)],
                max_mod_rpcs: 7,
            },
        );
        let this = Rc::new(Self {
            ctx: ctx.clone(),
            peer,
            grants: RefCell::default(),
            blocking: RefCell::default(),
            changed: ctx.wait_list(),
        });
        let weak = Rc::downgrade(&this);
        this.peer.on_callback(Box::new(move |frame: &Frame| {
            let Some(this) = weak.upgrade() else { return };
            match Opcode::from_number(frame.header.opcode) {
                Some(Opcode::LockGranted) => {
                    let grant = LockGranted::from_slice(&frame.body).unwrap();
                    this.grants.borrow_mut().insert(grant.cookie, grant.state);
                }
                Some(Opcode::LockBlocking) => {
                    let cookie = LockBlocking::from_slice(&frame.body).unwrap().cookie;
                    this.blocking.borrow_mut().insert(cookie);
                }
                other => panic!("callback {other:?}"),
            }
            this.changed.wake_all();
        }));
        this
    }

    pub(crate) async fn write(
        &self,
        object: ObjectId,
        offset: u64,
        data: &[u8],
    ) -> Result<ObjectState, Errno> {
        self.write_under(object, offset, data, LockCookie(0)).await
    }
    pub(crate) async fn write_under(
        &self,
        object: ObjectId,
        offset: u64,
        data: &[u8],
        lock: LockCookie,
    ) -> Result<ObjectState, Errno> {
        let request = Write { object, offset, owner: owner(), mtime: at(1), lock };
        let (reply, _) = self.peer.call_bulk(&request, vec![Bytes::copy_from_slice(data)]).await?;
        Ok(reply.state)
    }
    pub(crate) async fn read(&self, object: ObjectId, offset: u64, len: u32) -> Result<Vec<u8>, Errno> {
        let request = Read { object, offset, len, lock: LockCookie(0) };
        let (_, bulk) = self.peer.call_bulk(&request, Vec::new()).await?;
        Ok(bulk.concat())
    }
    pub(crate) async fn truncate(&self, object: ObjectId, size: u64) -> Result<ObjectState, Errno> {
        let lock = LockCookie(0);
        let reply = self.peer.call(&Truncate { object, size, owner: owner(), mtime: at(2), lock }).await?;
        Ok(reply.state)
    }
    pub(crate) async fn glimpse(&self, object: ObjectId) -> Result<ObjectState, Errno> {
        Ok(self.peer.call(&Glimpse { object }).await?)
    }
    pub(crate) async fn destroy(&self, object: ObjectId) -> Result<(), Errno> {
        self.peer.call(&Destroy { fid: object.fid, stripes: vec![object.stripe] }).await?;
        Ok(())
    }
    /// Takes a lock, waits for its turn.
    pub(crate) async fn lock(
        &self,
        object: ObjectId,
        cookie: u64,
        mode: LockMode,
        extent: Extent,
    ) -> Result<ObjectState, Errno> {
        let cookie = LockCookie(cookie);
        let reply = self.peer.call(&Enqueue { object, cookie, mode, extent }).await?;
        if reply.granted {
            return Ok(reply.state);
        }
        loop {
            if let Some(state) = self.grants.borrow_mut().remove(&cookie) {
                return Ok(state);
            }
            self.changed.wait().await;
        }
    }
    /// Like `lock`, asking again from time to time: a server that was restarted has forgotten who waits.
    pub(crate) async fn lock_again(
        &self,
        object: ObjectId,
        cookie: u64,
        mode: LockMode,
        extent: Extent,
    ) -> Result<ObjectState, Errno> {
        loop {
            let until = self.ctx.now() + std::time::Duration::from_secs(1);
            let request = Enqueue { object, cookie: LockCookie(cookie), mode, extent };
            let reply = self.peer.call(&request).await?;
            if reply.granted {
                return Ok(reply.state);
            }
            while self.ctx.now() < until {
                if let Some(state) = self.grants.borrow_mut().remove(&LockCookie(cookie)) {
                    return Ok(state);
                }
                let _woken = self.ctx.timeout(until, self.changed.wait()).await;
            }
        }
    }
    pub(crate) async fn cancel(&self, object: ObjectId, cookie: u64) -> Result<(), Errno> {
        self.peer.call(&Cancel { object, cookie: LockCookie(cookie) }).await?;
        Ok(())
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Job = Box<dyn FnOnce(Rc<Client>) -> Task>;
type JobQueue = Rc<RefCell<VecDeque<Job>>>;

struct ClientIsland {
    ctx: Rc<Ctx>,
    peers: Rc<Peers>,
    client: Rc<Client>,
    jobs: JobQueue,
}
impl Logic for ClientIsland {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        if let Some(Event::Door(_)) = self.peers.handle(event) {
            let jobs: Vec<Job> = self.jobs.borrow_mut().drain(..).collect();
            for job in jobs {
                self.ctx.spawn(job(self.client.clone()));
            }
        }
    }
}

/// The value of a job, once it has ended.
pub(crate) type Pending<T> = Rc<RefCell<Option<T>>>;

/// An OST and its clients.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) ost: NodeId,
    store: Arc<MemStore>,
    clients: Vec<(NodeId, JobQueue)>,
}

impl Cluster {
    pub(crate) fn new(seed: u64, clients: u8) -> Self {
        Self::with_capacity(seed, clients, 1 << 30)
    }
    pub(crate) fn with_capacity(seed: u64, clients: u8, bytes: u64) -> Self {
        let store = Arc::new(MemStore::new(bytes));
        let ctx = Ctx::new(1);
        let label = Label {
            uuid: ClientUuid([0xee; 16]),
            name: OST.into(),
            mgs_nodes: vec![World::address("MGS")],
            format_version: 1,
        };
        let format_ctx = ctx.clone();
        block_on(&ctx, &*store, |_| (), async move {
            Osd::format(&format_ctx, &label, &osd_config(), false).await.unwrap();
        });
        let mut world = World::new(seed);
        let config = TargetConfig {
            addresses: vec![World::address(OST)],
            mgs_nodes: vec![World::address("MGS")],
            lease_ms: LEASE_MS,
            max_mod_rpcs: 8,
            boot: [1; 16],
            ack_or_commit: true,
        };
        let start = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
            Box::new(TargetIsland::<Ost>::new(ctx, config.clone(), osd_config()))
        };
        let ost = world.add(OST, Some(store.clone()), Box::new(start));
        world.start(ost);
        let mut this = Self { world, ost, store, clients: Vec::new() };
        for number in 1..=clients {
            this.add_client(number);
        }
        this
    }
    fn add_client(&mut self, number: u8) {
        let jobs = JobQueue::default();
        let queue = jobs.clone();
        let start = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
            let peers = Rc::new(Peers::default());
            let client = Client::new(ctx, &peers, number);
            Box::new(ClientIsland { ctx: ctx.clone(), peers, client, jobs: queue.clone() })
        };
        let node = self.world.add(&format!("client{number}"), None, Box::new(start));
        self.world.start(node);
        self.clients.push((node, jobs));
    }
    pub(crate) fn client_node(&self, client: usize) -> NodeId {
        self.clients[client].0
    }

    /// Starts a job on a client.
    pub(crate) fn start<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        client: usize,
        job: impl FnOnce(Rc<Client>) -> F + 'static,
    ) -> Pending<T> {
        let value = Pending::default();
        let slot = value.clone();
        let (node, jobs) = &self.clients[client];
        jobs.borrow_mut().push_back(Box::new(move |client| {
            Box::pin(async move {
                let got = job(client).await;
                *slot.borrow_mut() = Some(got);
            })
        }));
        let node = *node;
        self.world.tell(node, Event::Door(Box::new(())));
        value
    }
    /// Lets the world run until a job has ended.
    pub(crate) fn wait<T>(&mut self, pending: &Pending<T>) -> T {
        let until = self.world.now_ns() + 120 * SECOND;
        let done = self.world.run_until(until, |world| {
            assert!(world.fatal.is_empty(), "{:?}", world.fatal);
            pending.borrow().is_some()
        });
        assert!(done, "the job does not end:\n{}", self.world.trace(60));
        pending.borrow_mut().take().unwrap()
    }
    pub(crate) fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        client: usize,
        job: impl FnOnce(Rc<Client>) -> F + 'static,
    ) -> T {
        let pending = self.start(client, job);
        self.wait(&pending)
    }
    pub(crate) fn run_ms(&mut self, ms: u64) {
        self.world.run_for(ms * 1_000_000);
        assert!(self.world.fatal.is_empty(), "{:?}", self.world.fatal);
    }
    /// kill -9 and a new start.
    pub(crate) fn restart(&mut self) {
        self.world.kill(self.ost);
        self.world.start(self.ost);
    }
    /// kill -9, then the rows are looked at with every sum.
    pub(crate) fn check(&mut self) -> Checked {
        self.world.kill(self.ost);
        let ctx = Ctx::new(2);
        let osd: Rc<RefCell<Option<Rc<Osd>>>> = Rc::default();
        let (inner, slot) = (ctx.clone(), osd.clone());
        let log = |out: &mut Vec<nacre_node::StoreOp>| {
            if let Some(osd) = osd.borrow().as_ref() {
                osd.log_writes(out);
            }
        };
        block_on(&ctx, &*self.store, log, async move {
            let osd = Osd::open(&inner, osd_config()).await.unwrap();
            *slot.borrow_mut() = Some(osd.clone());
            nacre_ost::check(&inner, &osd, true).await.unwrap()
        })
    }
}

pub(crate) fn object(oid: u32) -> ObjectId {
    ObjectId { fid: Fid::new(Seq(0x400), Oid(oid)), stripe: 0 }
}
pub(crate) fn owner() -> Owner {
    Owner { uid: 1000, gid: 100, projid: 0 }
}
pub(crate) fn at(sec: i64) -> Timestamp {
    Timestamp { sec, nsec: 0 }
}
