//! MGS, OSTs and one MDT on stores in memory, and clients that call the MDT through real imports, in the
//! simulator's world.

use bytes::Bytes;
use nacre_mdt::Mdt;
use nacre_mgs::Mgs;
use nacre_node::store::Store;
use nacre_node::{Ctx, Event, Logic, Peer, PeerConfig, Peers, WaitList};
use nacre_osd::{Label, Osd, OsdConfig};
use nacre_osd_mem::MemStore;
use nacre_ost::{Checked, Ost};
use nacre_sim::{NodeId, World};
use nacre_target::{Service, TargetConfig, TargetIsland};
use nacre_types::*;
use nacre_wire::mdt::*;
use nacre_wire::ost::{ObjectState, Truncate as CutObject, Write};
use nacre_wire::target::Role;
use nacre_wire::{Frame, Opcode, Rpc};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const SECOND: u64 = 1_000_000_000;
const LEASE_MS: u32 = 10_000;
const MDT: &str = "demo-MDT0000";
pub(crate) const REG: u32 = mode::REG | 0o644;
pub(crate) const DIR: u32 = mode::DIR | 0o755;
pub(crate) const O_RDONLY: u32 = 0;
pub(crate) const O_RDWR: u32 = 2;

/// Runs a future of a context that talks to nobody but its store.
fn block_on<T: 'static>(
    ctx: &Rc<Ctx>,
    store: &dyn Store,
    log: impl Fn(&mut Vec<nacre_node::StoreOp>),
    future: impl Future<Output = T> + 'static,
) -> T {
    use nacre_node::Effect;
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

/// A client: an import of the MDT, imports of the OSTs, the lock callbacks.
pub(crate) struct Client {
    ctx: Rc<Ctx>,
    mdt: Rc<Peer>,
    osts: Vec<Rc<Peer>>,
    granted: RefCell<BTreeMap<LockCookie, FlockOutcome>>,
    changed: WaitList,
    seq: Cell<Option<Seq>>,
    next: Cell<u32>,
}

impl Client {
    fn new(ctx: &Rc<Ctx>, peers: &Rc<Peers>, number: u8, osts: u32) -> Rc<Self> {
        let peer = |target: &str| {
            let config = PeerConfig {
                client: ClientUuid([number; 16]),
                role: Role::Client,
                name: format!("client {number}"),
                target: target.into(),
                addresses: vec![World::address(target)],
                max_mod_rpcs: 7,
            };
            Peer::new(ctx, peers, config)
        };
        let this = Rc::new(Self {
            ctx: ctx.clone(),
            mdt: peer(MDT),
            osts: (0..osts).map(|n| peer(&ost_name(n))).collect(),
            granted: RefCell::default(),
            changed: ctx.wait_list(),
            seq: Cell::new(None),
            next: Cell::new(1),
        });
        let weak = Rc::downgrade(&this);
        this.mdt.on_callback(Box::new(move |frame: &Frame| {
            let Some(this) = weak.upgrade() else { return };
            assert_eq!(Opcode::from_number(frame.header.opcode), Some(Opcode::FlockGranted));
            let grant = FlockGranted::from_slice(&frame.body).unwrap();
            this.granted.borrow_mut().insert(grant.cookie, grant.outcome);
            this.changed.wake_all();
        }));
        this
    }
    pub(crate) fn now(&self) -> Timestamp {
        self.ctx.wall()
    }
    pub(crate) async fn call<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Result<R::Reply, Errno> {
        Ok(self.mdt.call(request).await?)
    }
    pub(crate) async fn new_fid(&self) -> Fid {
        let seq = match self.seq.get() {
            Some(seq) => seq,
            None => {
                let seq = self.call(&GrantSeq {}).await.unwrap().seq;
                self.seq.set(Some(seq));
                seq
            }
        };
        self.next.set(self.next.get() + 1);
        Fid::new(seq, Oid(self.next.get()))
    }
    pub(crate) async fn make(&self, parent: Fid, name: &[u8], mode: u32) -> Result<Fid, Errno> {
        self.make_open(parent, name, mode, None, true).await.map(|r| r.entry.attr.fid)
    }
    pub(crate) async fn make_open(
        &self,
        parent: Fid,
        name: &[u8],
        mode: u32,
        open: Option<(u64, u32)>,
        exclusive: bool,
    ) -> Result<CreateReply, Errno> {
        let request = Create {
            parent,
            name,
            fid: self.new_fid().await,
            mode,
            rdev: 0,
            target: if mode & mode::FMT == mode::LNK { b"there" } else { b"" },
            layout: None,
            open: open.map(|(handle, flags)| OpenHow { handle: OpenHandle(handle), flags }),
            exclusive,
            caller: Caller::root(),
            time: self.now(),
        };
        self.call(&request).await
    }
    pub(crate) async fn open(&self, fid: Fid, handle: u64, flags: u32) -> Result<EntryReply, Errno> {
        let how = OpenHow { handle: OpenHandle(handle), flags };
        self.call(&Open { fid, how, caller: Caller::root() }).await
    }
    pub(crate) async fn close(
        &self,
        fid: Fid,
        handle: u64,
        dirty: bool,
        written: Option<Written>,
    ) -> Result<(), Errno> {
        self.call(&Close { fid, handle: OpenHandle(handle), dirty, written }).await.map(|_| ())
    }
    pub(crate) async fn unlink(&self, parent: Fid, name: &[u8], directory: bool) -> Result<(), Errno> {
        let request = Unlink { parent, name, directory, caller: Caller::root(), time: self.now() };
        self.call(&request).await.map(|_| ())
    }
    pub(crate) async fn rename(&self, a: (Fid, &[u8]), b: (Fid, &[u8]), flags: u32) -> Result<(), Errno> {
        let request = Rename {
            parent: a.0,
            name: a.1,
            new_parent: b.0,
            new_name: b.1,
            flags,
            caller: Caller::root(),
            time: self.now(),
        };
        self.call(&request).await.map(|_| ())
    }
    pub(crate) async fn lookup(&self, parent: Fid, name: &[u8]) -> Result<Attr, Errno> {
        self.call(&Lookup { parent, name }).await.map(|r| r.attr)
    }
    pub(crate) async fn getattr(&self, fid: Fid) -> Result<Attr, Errno> {
        self.call(&Getattr { fid }).await.map(|r| r.attr)
    }
    pub(crate) async fn readdir(&self, dir: Fid, cookie: u64, entries_max: u32) -> ReaddirReply {
        self.call(&Readdir { dir, cookie, entries_max, with_attrs: false }).await.unwrap()
    }
    pub(crate) async fn setattr(&self, fid: Fid, set: SetAttr) -> Result<Attr, Errno> {
        let request = Setattr { fid, set, caller: Caller::root(), time: self.now() };
        self.call(&request).await.map(|r| r.attr)
    }
    pub(crate) async fn flock(
        &self,
        fid: Fid,
        kind: FlockType,
        range: (u64, u64),
        wait: Option<u64>,
    ) -> Result<FlockOutcome, Errno> {
        let lock =
            FileLock { family: FlockFamily::Posix, kind, start: range.0, end: range.1, owner: 9, pid: 77 };
        let cookie = LockCookie(wait.unwrap_or(0));
        self.call(&Flock { fid, lock, wait: wait.is_some(), cookie }).await.map(|r| r.outcome)
    }
    /// The callback of a waiting lock.
    pub(crate) async fn granted(&self, cookie: u64) -> FlockOutcome {
        loop {
            if let Some(outcome) = self.granted.borrow_mut().remove(&LockCookie(cookie)) {
                return outcome;
            }
            self.changed.wait().await;
        }
    }
    /// Writes into the object of a one-stripe file.
    pub(crate) async fn write(&self, entry: &EntryReply, offset: u64, bytes: usize) -> ObjectState {
        let (ost, object) = object(entry);
        let owner = Owner { uid: entry.attr.uid, gid: entry.attr.gid, projid: 0 };
        let request = Write { object, offset, owner, mtime: self.now(), lock: LockCookie(0) };
        let data = vec![Bytes::from(vec![1u8; bytes])];
        self.osts[ost].call_bulk(&request, data).await.unwrap().0.state
    }
    pub(crate) async fn cut(&self, entry: &EntryReply, size: u64) -> ObjectState {
        let (ost, object) = object(entry);
        let owner = Owner { uid: entry.attr.uid, gid: entry.attr.gid, projid: 0 };
        let request = CutObject { object, size, owner, mtime: self.now(), lock: LockCookie(0) };
        self.osts[ost].call(&request).await.unwrap().state
    }
    pub(crate) async fn sleep_ms(&self, ms: u64) {
        self.ctx.sleep(std::time::Duration::from_millis(ms)).await;
    }
}

fn object(entry: &EntryReply) -> (usize, ObjectId) {
    let ost = entry.layout.as_ref().unwrap().components[0].stripes[0];
    (ost.0 as usize, ObjectId { fid: entry.attr.fid, stripe: 0 })
}
pub(crate) fn written(state: &ObjectState) -> Option<Written> {
    Some(Written { size: state.size, blocks: state.blocks, mtime: state.mtime })
}
pub(crate) fn ost_name(n: u32) -> String {
    format!("demo-OST{n:04x}")
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

/// A file system and its clients.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) mdt: NodeId,
    mdt_store: Arc<MemStore>,
    osts: Vec<(NodeId, Arc<MemStore>)>,
    clients: Vec<(NodeId, JobQueue)>,
}

fn add_target<S: Service>(world: &mut World, name: &str, number: u8) -> (NodeId, Arc<MemStore>) {
    let store = Arc::new(MemStore::new(1 << 30));
    let ctx = Ctx::new(1);
    let mgs_nodes = if name == "MGS" { vec![] } else { vec![World::address("MGS")] };
    let label = Label { uuid: ClientUuid([number; 16]), name: name.into(), mgs_nodes, format_version: 1 };
    let (format_ctx, format_label) = (ctx.clone(), label.clone());
    block_on(&ctx, &*store, |_| (), async move {
        Osd::format(&format_ctx, &format_label, &osd_config(), false).await.unwrap();
    });
    let config = TargetConfig {
        addresses: vec![World::address(name)],
        mgs_nodes: label.mgs_nodes,
        lease_ms: LEASE_MS,
        max_mod_rpcs: 8,
        boot: [1; 16],
        ack_or_commit: true,
    };
    let start = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
        Box::new(TargetIsland::<S>::new(ctx, config.clone(), osd_config()))
    };
    let node = world.add(name, Some(store.clone()), Box::new(start));
    world.start(node);
    (node, store)
}

impl Cluster {
    pub(crate) fn new(seed: u64, osts: u32, clients: u8) -> Self {
        let mut world = World::new(seed);
        add_target::<Mgs>(&mut world, "MGS", 0xe0);
        let (mdt, mdt_store) = add_target::<Mdt>(&mut world, MDT, 0xe1);
        let osts: Vec<_> =
            (0..osts).map(|n| add_target::<Ost>(&mut world, &ost_name(n), 0xe8 + n as u8)).collect();
        let mut this = Self { world, mdt, mdt_store, osts, clients: Vec::new() };
        for number in 1..=clients {
            this.add_client(number);
        }
        this
    }
    fn add_client(&mut self, number: u8) {
        let jobs = JobQueue::default();
        let queue = jobs.clone();
        let osts = self.osts.len() as u32;
        let start = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
            let peers = Rc::new(Peers::default());
            let client = Client::new(ctx, &peers, number, osts);
            Box::new(ClientIsland { ctx: ctx.clone(), peers, client, jobs: queue.clone() })
        };
        let node = self.world.add(&format!("client{number}"), None, Box::new(start));
        self.world.start(node);
        self.clients.push((node, jobs));
    }
    pub(crate) fn client_node(&self, client: usize) -> NodeId {
        self.clients[client].0
    }
    pub(crate) fn ost_node(&self, ost: usize) -> NodeId {
        self.osts[ost].0
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
    /// kill -9 and a new start of the MDT.
    pub(crate) fn restart(&mut self) {
        self.world.kill(self.mdt);
        self.world.start(self.mdt);
    }
    /// kill -9 of everything; the rows of the MDT have no problem. Also gives what each OST holds.
    pub(crate) fn check(mut self) -> (nacre_mdt::check::Report, Vec<Checked>) {
        self.world.kill(self.mdt);
        let report =
            offline(&self.mdt_store, |ctx, osd| async move { nacre_mdt::check(&ctx, &osd).await.unwrap() });
        assert_eq!(report.sentences, Vec::<String>::new());
        let mut osts = Vec::new();
        for (node, store) in &self.osts {
            self.world.kill(*node);
            osts.push(offline(
                store,
                |ctx, osd| async move { nacre_ost::check(&ctx, &osd, true).await.unwrap() },
            ));
        }
        (report, osts)
    }
}

/// Runs something on an engine that no target serves.
fn offline<T: 'static, F: Future<Output = T> + 'static>(
    store: &Arc<MemStore>,
    run: impl FnOnce(Rc<Ctx>, Rc<Osd>) -> F + 'static,
) -> T {
    let ctx = Ctx::new(2);
    let osd: Rc<RefCell<Option<Rc<Osd>>>> = Rc::default();
    let (inner, slot) = (ctx.clone(), osd.clone());
    let log = |out: &mut Vec<nacre_node::StoreOp>| {
        if let Some(osd) = osd.borrow().as_ref() {
            osd.log_writes(out);
        }
    };
    block_on(&ctx, &**store, log, async move {
        let osd = Osd::open(&inner, osd_config()).await.unwrap();
        *slot.borrow_mut() = Some(osd.clone());
        run(inner, osd).await
    })
}
