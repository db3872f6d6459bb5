//! One OST on a store in memory, and clients that call it through real imports, in the simulator's world.

use bytes::Bytes;
use nacre_node::{Ctx, Peer, PeerConfig, Peers, WaitList};
use nacre_osd_mem::MemStore;
use nacre_ost::{Checked, Ost};
use nacre_sim::bed::Bed;
use nacre_sim::offline::with_engine;
use nacre_sim::{NodeId, World};
use nacre_types::*;
use nacre_wire::ost::*;
use nacre_wire::target::Role;
use nacre_wire::{Frame, Opcode};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;

pub(crate) use nacre_sim::bed::LEASE_MS;
const OST: &str = "demo-OST0000";

/// A client of the OST: an import, the grants that came by callback.
pub(crate) struct Client {
    pub(crate) ctx: Rc<Ctx>,
    pub(crate) peer: Rc<Peer>,
    /// What it says that it needs when its grant is asked back. `None`: it does not answer.
    pub(crate) needs: Cell<Option<u64>>,
    /// How often its grant was asked back.
    pub(crate) recalls: Cell<u32>,
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
                secret: nacre_types::Secret::new([3; 16]),
                name: format!("client {number}"),
                target: OST.into(),
                addresses: vec![World::address(OST)],
                max_mod_rpcs: 7,
                known: None,
                replaced: 0,
                instance: 0,
            },
        );
        let this = Rc::new(Self {
            ctx: ctx.clone(),
            peer,
            needs: Cell::default(),
            recalls: Cell::default(),
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
                Some(Opcode::ReturnGrant) => {
                    this.recalls.set(this.recalls.get() + 1);
                    if let Some(bytes) = this.needs.get() {
                        let client = this.clone();
                        this.ctx.spawn(async move { drop(client.peer.call(&Grant { bytes }).await) });
                    }
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
    ) -> Result<ObjectState, Failure> {
        loop {
            match self.write_under(object, offset, data, LockCookie(0)).await {
                Err(Failure::Outcome(ProtocolOutcome::DeadlinePassed)) => {} // it waited for a lock for longer than it may: it is made anew
                other => return other,
            }
        }
    }
    pub(crate) async fn write_under(
        &self,
        object: ObjectId,
        offset: u64,
        data: &[u8],
        lock: LockCookie,
    ) -> Result<ObjectState, Failure> {
        let request = Write { object, laid: 0, offset, owner: owner(), mtime: at(1), lock };
        let reply = self.peer.request(&request).bulk(vec![Bytes::copy_from_slice(data)]).send().await?.body;
        Ok(reply.state)
    }
    /// Writes in one request; the result of each.
    pub(crate) async fn write_many(
        &self,
        writes: &[(ObjectId, u64, Vec<u8>)],
    ) -> Result<Vec<ManyResult>, Failure> {
        let (request, bulk) = many(writes);
        Ok(self.peer.request(&request).bulk(bulk).send().await?.body.results)
    }
    pub(crate) async fn read(&self, object: ObjectId, offset: u64, len: u32) -> Result<Vec<u8>, Failure> {
        let request = Read { object, laid: 0, offset, len, lock: LockCookie(0) };
        let bulk = self.peer.request(&request).send().await?.frame.bulk;
        Ok(bulk.concat())
    }
    pub(crate) async fn truncate(&self, object: ObjectId, size: u64) -> Result<ObjectState, Failure> {
        let lock = LockCookie(0);
        let reply =
            self.peer.call(&Truncate { object, laid: 0, size, owner: owner(), mtime: at(2), lock }).await?;
        Ok(reply.state)
    }
    pub(crate) async fn glimpse(&self, object: ObjectId) -> Result<ObjectState, Failure> {
        Ok(self.peer.call(&Glimpse { object, laid: 0 }).await?)
    }
    pub(crate) async fn destroy(&self, object: ObjectId) -> Result<(), Failure> {
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
    ) -> Result<ObjectState, Failure> {
        let cookie = LockCookie(cookie);
        let reply =
            self.peer.call(&Enqueue { object, laid: 0, cookie, mode, extent, persistent: false }).await?;
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
    ) -> Result<ObjectState, Failure> {
        loop {
            let until = self.ctx.now() + std::time::Duration::from_secs(1);
            let request =
                Enqueue { object, laid: 0, cookie: LockCookie(cookie), mode, extent, persistent: false };
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
    pub(crate) async fn sleep(&self, seconds: u64) {
        self.ctx.sleep(std::time::Duration::from_secs(seconds)).await;
    }
    pub(crate) async fn cancel(&self, object: ObjectId, cookie: u64) -> Result<(), Failure> {
        self.peer.call(&Cancel { object, cookie: LockCookie(cookie) }).await?;
        Ok(())
    }
}

/// An OST and its clients.
pub(crate) struct Cluster {
    bed: Bed<Client>,
    pub(crate) ost: NodeId,
    store: Arc<MemStore>,
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
    pub(crate) fn new(seed: u64, clients: u8) -> Self {
        Self::with_capacity(seed, clients, 1 << 30)
    }
    pub(crate) fn with_capacity(seed: u64, clients: u8, bytes: u64) -> Self {
        let mut bed = Bed::new(seed);
        let (ost, store) = bed.add_target::<Ost>(OST, 0xee, bytes);
        for number in 1..=clients {
            bed.add_caller(move |ctx, peers| Client::new(ctx, peers, number));
        }
        Self { bed, ost, store }
    }
    /// kill -9 and a new start.
    pub(crate) fn restart(&mut self) {
        self.bed.world.kill(self.ost);
        self.bed.world.start(self.ost);
    }
    /// kill -9, then the rows are looked at with every sum.
    pub(crate) fn check(&mut self) -> Checked {
        self.bed.world.kill(self.ost);
        let found =
            with_engine(
                &*self.store,
                |ctx, osd| async move { nacre_ost::check(&ctx, &osd, true).await.unwrap() },
            );
        found.unwrap()
    }
}

/// A request with these writes, and its bulk.
pub(crate) fn many(writes: &[(ObjectId, u64, Vec<u8>)]) -> (WriteMany, Vec<Bytes>) {
    let write = |&(object, offset, ref data): &(ObjectId, u64, Vec<u8>)| ManyWrite {
        object,
        laid: 0,
        offset,
        len: data.len() as u32,
        owner: owner(),
        mtime: at(1),
    };
    let bulk = writes.iter().map(|(_, _, data)| Bytes::copy_from_slice(data));
    (WriteMany { writes: writes.iter().map(write).collect() }, bulk.collect())
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
