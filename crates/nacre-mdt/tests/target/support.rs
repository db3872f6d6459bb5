//! MGS, OSTs and one MDT on stores in memory, and clients that call the MDT through real imports, in the
//! simulator's world.

use bytes::Bytes;
use nacre_mdt::Mdt;
use nacre_mdt::table::INODE;
use nacre_mgs::Mgs;
use nacre_node::{Ctx, Event, FileId, Peer, PeerConfig, Peers, Store as _, StoreOp, WaitList};
use nacre_osd::{Credits, Osd, OsdError, Pins, Tx};
use nacre_osd_mem::MemStore;
use nacre_ost::{Checked, Ost};
use nacre_sim::bed::Bed;
use nacre_sim::offline::with_engine;
use nacre_sim::{NodeId, World};
use nacre_types::*;
use nacre_wire::mdt::*;
use nacre_wire::ost::{ObjectState, Truncate as CutObject, Write};
use nacre_wire::target::{GetParams, Role};
use nacre_wire::{Frame, Opcode, Rpc};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;

/// Of each OST and of the MGS; of the MDT, which is filled in a test.
const STORE_BYTES: u64 = 1 << 30;
const MDT_BYTES: u64 = 128 << 20;
pub(crate) const REG: u32 = mode::REG | 0o644;
pub(crate) const DIR: u32 = mode::DIR | 0o755;
pub(crate) const O_RDONLY: u32 = 0;
pub(crate) const O_RDWR: u32 = 2;

pub(crate) fn name_of(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).unwrap()
}

/// A client: an import of the MDT, imports of the OSTs, the lock callbacks.
pub(crate) struct Client {
    ctx: Rc<Ctx>,
    mdt: Rc<Peer>,
    pub(crate) mgs: Rc<Peer>,
    osts: Vec<Rc<Peer>>,
    granted: RefCell<BTreeMap<LockCookie, FlockOutcome>>,
    changed: WaitList,
    /// It says to no start of the MDT that it keeps no locks of earlier ones.
    keeps_locks: Cell<bool>,
    seq: Cell<Option<Seq>>,
    next: Cell<u32>,
}

impl Client {
    fn new(ctx: &Rc<Ctx>, peers: &Rc<Peers>, number: u8, mdt: MdtIndex, osts: u32) -> Rc<Self> {
        let peer = |target: &str| {
            let config = PeerConfig {
                client: ClientUuid([number; 16]),
                role: Role::Client,
                secret: nacre_types::Secret::new([3; 16]),
                name: format!("client {number}"),
                target: target.into(),
                addresses: vec![World::address(target)],
                max_mod_rpcs: 7,
                known: None,
                replaced: 0,
                instance: 0,
            };
            Peer::new(ctx, peers, config)
        };
        let this = Rc::new(Self {
            ctx: ctx.clone(),
            mdt: peer(&mdt_name(mdt)),
            mgs: peer("MGS"),
            osts: (0..osts).map(|n| peer(&ost_name(n))).collect(),
            granted: RefCell::default(),
            changed: ctx.wait_list(),
            keeps_locks: Cell::new(false),
            seq: Cell::new(None),
            next: Cell::new(1),
        });
        // It keeps no locks, and says so to each start of the MDT.
        let weak = Rc::downgrade(&this);
        this.mdt.on_restarted(Box::new(move || {
            let Some(this) = weak.upgrade().filter(|this| !this.keeps_locks.get()) else { return };
            let ctx = this.ctx.clone();
            ctx.spawn(async move {
                let instance = this.mdt.with_import(|import| import.instance()).unwrap_or_default();
                let _ended = this.call(&FormerLocksEnded { instance }).await;
            });
        }));
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
    pub(crate) fn keep_locks(&self) {
        self.keeps_locks.set(true);
    }
    pub(crate) fn now(&self) -> Timestamp {
        self.ctx.wall()
    }
    pub(crate) async fn call<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Result<R::Reply, Failure> {
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
    pub(crate) async fn make(&self, parent: Fid, name: &[u8], mode: u32) -> Result<Fid, Failure> {
        self.make_open(parent, name, mode, None, true).await.map(|r| r.entry.attr.fid)
    }
    pub(crate) async fn make_open(
        &self,
        parent: Fid,
        name: &[u8],
        mode: u32,
        open: Option<(u64, u32)>,
        exclusive: bool,
    ) -> Result<CreateReply, Failure> {
        // These clients write to OSTs at once.
        let in_objects = LayoutTemplate { dom_bytes: Some(0), ..LayoutTemplate::default() };
        let request = Create {
            parent,
            name: Some(name_of(name)),
            fid: self.new_fid().await,
            mode,
            rdev: 0,
            target: if mode & mode::FMT == mode::LNK { b"there" } else { b"" },
            layout: (mode & mode::FMT == mode::REG).then_some(in_objects),
            open: open.map(|(handle, flags)| OpenHow { handle: OpenHandle(handle), flags }),
            exclusive,
            caller: Caller::root(),
            time: self.now(),
        };
        self.call(&request).await
    }
    pub(crate) async fn open(&self, fid: Fid, handle: u64, flags: u32) -> Result<EntryReply, Failure> {
        let how = OpenHow { handle: OpenHandle(handle), flags };
        self.call(&Open { fid, how, caller: Caller::root() }).await
    }
    pub(crate) async fn close(
        &self,
        fid: Fid,
        handle: u64,
        dirty: bool,
        written: Option<Written>,
    ) -> Result<(), Failure> {
        self.call(&Close { fid, handle: OpenHandle(handle), dirty, written, atime: None, data: None })
            .await
            .map(|_| ())
    }
    pub(crate) async fn unlink(&self, parent: Fid, name: &[u8], directory: bool) -> Result<(), Failure> {
        let name = name_of(name);
        let (caller, time) = (Caller::root(), self.now());
        let request = Unlink { parent, name, directory, caller, time, reported: Fid::default() };
        self.call(&request).await.map(|_| ())
    }
    pub(crate) async fn rename(&self, a: (Fid, &[u8]), b: (Fid, &[u8]), flags: u32) -> Result<(), Failure> {
        let request = Rename {
            parent: a.0,
            name: name_of(a.1),
            new_parent: b.0,
            new_name: name_of(b.1),
            flags,
            caller: Caller::root(),
            time: self.now(),
            reported: Fid::default(),
            whiteout: None,
        };
        self.call(&request).await.map(|_| ())
    }
    pub(crate) async fn lookup(&self, parent: Fid, name: &[u8]) -> Result<Attr, Failure> {
        let reply = self.call(&Lookup { parent, name: name_of(name) }).await?;
        reply.entry.map(|entry| entry.attr).ok_or(Failure::ENOENT)
    }
    pub(crate) async fn getattr(&self, fid: Fid) -> Result<Attr, Failure> {
        self.call(&Getattr { fid }).await.map(|r| r.attr)
    }
    pub(crate) async fn readdir(&self, dir: Fid, cookie: u64, entries_max: u32) -> ReaddirReply {
        self.call(&Readdir { dir, cookie, entries_max, with_attrs: false }).await.unwrap()
    }
    pub(crate) async fn setattr(&self, fid: Fid, set: SetAttr) -> Result<Attr, Failure> {
        let request = Setattr { fid, set, caller: Caller::root(), time: self.now() };
        self.call(&request).await.map(|r| r.attr)
    }
    pub(crate) async fn flock(
        &self,
        fid: Fid,
        kind: FlockType,
        range: (u64, u64),
        wait: Option<u64>,
    ) -> Result<FlockOutcome, Failure> {
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
        let request = Write { object, laid: 0, offset, owner, mtime: self.now(), lock: LockCookie(0) };
        let data = vec![Bytes::from(vec![1u8; bytes])];
        self.osts[ost].request(&request).bulk(data).send().await.unwrap().body.state
    }
    pub(crate) async fn truncate(&self, entry: &EntryReply, size: u64) -> ObjectState {
        let (ost, object) = object(entry);
        let owner = Owner { uid: entry.attr.uid, gid: entry.attr.gid, projid: 0 };
        let request = CutObject { object, laid: 0, size, owner, mtime: self.now(), lock: LockCookie(0) };
        self.osts[ost].call(&request).await.unwrap().state
    }
    pub(crate) async fn leave(&self) {
        self.mdt.disconnect().await;
    }
    pub(crate) async fn sleep_ms(&self, ms: u64) {
        self.ctx.sleep(std::time::Duration::from_millis(ms)).await;
    }
}

/// A part of a batch.
pub(crate) fn sub<'a, R: Rpc + Codec<'a>>(request: &R) -> SubOperation {
    SubOperation { opcode: R::OPCODE.number(), body: Bytes::from(request.to_vec()) }
}
/// Values of parameters of the MDT.
pub(crate) async fn param(c: &Client, pattern: &str) -> String {
    let list = c.call(&GetParams { pattern: pattern.into() }).await.unwrap().params;
    list.into_iter().map(|p| p.value).collect()
}

fn object(entry: &EntryReply) -> (usize, ObjectId) {
    let ost = entry.layout.as_ref().unwrap().components[0].stripes[0];
    (ost.0 as usize, ObjectId { fid: entry.attr.fid, stripe: 0 })
}
pub(crate) fn written(state: &ObjectState) -> Option<Written> {
    Some(Written { size: state.size, blocks: state.blocks, mtime: state.mtime })
}
fn mdt_name(index: MdtIndex) -> String {
    format!("demo-MDT{:04x}", index.0)
}
pub(crate) fn ost_name(n: u32) -> String {
    format!("demo-OST{n:04x}")
}

/// A file system and its clients.
pub(crate) struct Cluster {
    bed: Bed<Client>,
    mdt_index: MdtIndex,
    pub(crate) mdt: NodeId,
    mdt_store: Arc<MemStore>,
    osts: Vec<(NodeId, Arc<MemStore>)>,
}
impl Deref for Cluster {
    type Target = Bed<Client>;
    fn deref(&self) -> &Bed<Client> {
        &self.bed
    }
}
impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Bed<Client> {
        &mut self.bed
    }
}

impl Cluster {
    pub(crate) fn new(seed: u64, osts: u32, clients: u8) -> Self {
        Self::with_mdt(MdtIndex::ROOT, seed, osts, clients, nacre_sim::bed::target::<Mdt>)
    }
    /// The only MDT has this index and this logic.
    pub(crate) fn with_mdt(
        index: MdtIndex,
        seed: u64,
        osts: u32,
        clients: u8,
        make: nacre_sim::bed::MakeTarget,
    ) -> Self {
        let mut bed = Bed::new(seed);
        bed.add_target::<Mgs>("MGS", 0xe0, STORE_BYTES);
        let (mdt, mdt_store) = bed.add_made(&mdt_name(index), 0xe1, MDT_BYTES, make);
        let osts: Vec<_> = (0..osts)
            .map(|n| bed.add_target::<Ost>(&ost_name(n), 64u8.wrapping_add(n as u8), STORE_BYTES))
            .collect();
        let ost_count = osts.len() as u32;
        for number in 1..=clients {
            bed.add_caller(move |ctx, peers| Client::new(ctx, peers, number, index, ost_count));
        }
        Self { bed, mdt_index: index, mdt, mdt_store, osts }
    }
    pub(crate) fn ost_node(&self, ost: usize) -> NodeId {
        self.osts[ost].0
    }
    /// A planned stop of the MDT, which stays away.
    pub(crate) fn stop_mdt(&mut self) {
        let mdt = self.mdt;
        self.bed.world.tell(mdt, Event::Stop);
        self.bed.run_ms(5000);
        assert!(self.bed.world.take_stopped().contains(&mdt));
        self.bed.world.kill(mdt);
    }
    /// The row of an inode while the MDT does not run.
    pub(crate) fn inode_row(&self, fid: Fid) -> Vec<u8> {
        let read = move |_, osd: Rc<Osd>| async move {
            osd.get(INODE, &fid.key()).await.unwrap().unwrap()[..].to_vec()
        };
        with_engine(&*self.mdt_store, read).unwrap()
    }
    /// Puts rows of inodes while the MDT does not run.
    pub(crate) fn put_inode_rows(&self, rows: Vec<(Fid, Vec<u8>)>) {
        let write = move |_, osd: Rc<Osd>| async move {
            for rows in rows.chunks(400) {
                let room = Credits { rows: 400, row_bytes: 400 << 10, frees: true, ..Credits::default() };
                let room = osd.reserve(room).await.unwrap();
                let put = |tx: &mut Tx<'_>| {
                    rows.iter().for_each(|(fid, row)| tx.put(INODE, &fid.key(), row.clone()));
                    Ok::<_, OsdError>(())
                };
                let (transno, ()) = osd.transact(&Pins::default(), room, put).unwrap();
                osd.commit(transno).await.unwrap();
            }
        };
        with_engine(&*self.mdt_store, write).unwrap();
    }
    /// What a check of the MDT, which does not run, finds.
    pub(crate) fn report(&self) -> nacre_mdt::check::Report {
        let index = self.mdt_index;
        with_engine(&*self.mdt_store, async move |ctx, osd| {
            nacre_mdt::check(&ctx, index, &osd).await.unwrap()
        })
        .unwrap()
    }
    /// Others have filled the disk of the MDT.
    pub(crate) fn fill_disk_of_mdt(&self) {
        let file = FileId::Blob(ObjectId { fid: Fid::new(Seq(0x7777), Oid(7)), stripe: 0 });
        for piece in [1 << 20, 1 << 10] {
            let data = Bytes::from(vec![7; piece]);
            let write = |at| StoreOp::Write { file, offset: at, data: vec![data.clone()] };
            let mut at = (1 << 40) + (piece as u64) * (1 << 20);
            while self.mdt_store.execute(write(at)).is_ok() {
                at += piece as u64;
            }
        }
    }
    /// kill -9 and a new start of the MDT.
    pub(crate) fn restart(&mut self) {
        self.bed.world.kill(self.mdt);
        self.bed.world.start(self.mdt);
    }
    /// kill -9 of everything; the rows of the MDT have no problem. Also gives what each OST holds.
    pub(crate) fn check(mut self) -> (nacre_mdt::check::Report, Vec<Checked>) {
        self.bed.world.kill(self.mdt);
        let report = self.report();
        assert_eq!(report.sentences, Vec::<String>::new());
        let mut osts = Vec::new();
        for (node, store) in &self.osts {
            self.bed.world.kill(*node);
            let found =
                with_engine(
                    &**store,
                    |ctx, osd| async move { nacre_ost::check(&ctx, &osd, true).await.unwrap() },
                );
            osts.push(found.unwrap());
        }
        (report, osts)
    }
}
