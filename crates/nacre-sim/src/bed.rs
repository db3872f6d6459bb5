//! A world with a few targets on stores in memory and callers of them: for the tests of one kind of target.
//!
//! A caller is an island of its own with imports of the targets; a job is a task on it. The operations of a caller are
//! the test's own type `C`.

use crate::offline::{self, osd_config};
use crate::world::{NodeId, World};
use nacre_node::{Ctx, Event, Logic, Peers};
use nacre_osd::Label;
use nacre_osd_mem::MemStore;
use nacre_target::{Service, TargetConfig, TargetIsland};
use nacre_types::ClientUuid;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;
/// Lease of the targets and clients of a bed, in virtual milliseconds.
pub const LEASE_MS: u32 = 10_000;

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Job<C> = Box<dyn FnOnce(Rc<C>) -> Task>;
type JobQueue<C> = Rc<RefCell<VecDeque<Job<C>>>>;

/// The value of a job, once it has ended.
pub type Pending<T> = Rc<RefCell<Option<T>>>;

struct CallerIsland<C> {
    ctx: Rc<Ctx>,
    peers: Rc<Peers>,
    caller: Rc<C>,
    jobs: JobQueue<C>,
}
impl<C: 'static> Logic for CallerIsland<C> {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        if let Some(Event::Door(_)) = self.peers.handle(event) {
            let jobs: Vec<Job<C>> = self.jobs.borrow_mut().drain(..).collect();
            for job in jobs {
                self.ctx.spawn(job(self.caller.clone()));
            }
        }
    }
}

/// Targets and callers.
pub struct Bed<C> {
    /// Owns the nodes; tests set its faults.
    pub world: World,
    callers: Vec<(NodeId, JobQueue<C>)>,
}

/// Makes the logic of a target.
pub type MakeTarget = fn(&Rc<Ctx>, TargetConfig) -> Box<dyn Logic>;

/// A target as it is.
pub fn target<S: Service>(ctx: &Rc<Ctx>, config: TargetConfig) -> Box<dyn Logic> {
    Box::new(TargetIsland::<S>::new(ctx, config, osd_config()))
}

impl<C: 'static> Bed<C> {
    /// A bed without nodes. The same seed and calls give the same run.
    pub fn new(seed: u64) -> Self {
        Self { world: World::new(seed), callers: Vec::new() }
    }
    /// Formats and starts a target; its uuid comes from name and number.
    pub fn add_target<S: Service>(&mut self, name: &str, number: u8, bytes: u64) -> (NodeId, Arc<MemStore>) {
        self.add_made(name, number, bytes, target::<S>)
    }
    /// The same with a logic of its own.
    pub fn add_made(
        &mut self,
        name: &str,
        number: u8,
        bytes: u64,
        make: MakeTarget,
    ) -> (NodeId, Arc<MemStore>) {
        let store = Arc::new(MemStore::new(bytes));
        let mgs_nodes = if name == "MGS" { vec![] } else { vec![World::address("MGS")] };
        let uuid = ClientUuid(core::array::from_fn(|i| name.as_bytes()[i % name.len()] ^ number));
        let format_version = nacre_osd::FORMAT_VERSION;
        let label = Label { uuid, name: name.into(), mgs_nodes: mgs_nodes.clone(), format_version };
        offline::format(&*store, label, &Ctx::new(1));
        let config = TargetConfig {
            addresses: vec![World::address(name)],
            mgs_nodes,
            lease_ms: LEASE_MS,
            max_mod_rpcs: 8,
            ack_or_commit: true,
            reply_records: true,
            fault_points: true,
            in_memory: false,
            root_owner: (0, 0),
            kept_writes: Vec::new(),
        };
        let start = move |ctx: &Rc<Ctx>| make(ctx, config.clone());
        let node = self.world.add(name, Some(store.clone()), Box::new(start));
        self.world.start(node);
        (node, store)
    }
    /// Adds and starts a caller.
    pub fn add_caller(&mut self, make: impl Fn(&Rc<Ctx>, &Rc<Peers>) -> Rc<C> + 'static) {
        let jobs = JobQueue::default();
        let queue = jobs.clone();
        let start = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
            let peers = Rc::new(Peers::default());
            let caller = make(ctx, &peers);
            Box::new(CallerIsland { ctx: ctx.clone(), peers, caller, jobs: queue.clone() })
        };
        let node = self.world.add(&format!("client{}", self.callers.len() + 1), None, Box::new(start));
        self.world.start(node);
        self.callers.push((node, jobs));
    }
    /// The node of the caller that was added as the `caller`th, from 0.
    pub fn client_node(&self, caller: usize) -> NodeId {
        self.callers[caller].0
    }
    /// Starts a job on a caller.
    pub fn start<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        caller: usize,
        job: impl FnOnce(Rc<C>) -> F + 'static,
    ) -> Pending<T> {
        let value = Pending::default();
        let slot = value.clone();
        let (node, jobs) = &self.callers[caller];
        jobs.borrow_mut().push_back(Box::new(move |caller| {
            Box::pin(async move {
                let got = job(caller).await;
                *slot.borrow_mut() = Some(got);
            })
        }));
        self.world.tell(*node, Event::Door(Box::new(())));
        value
    }
    /// Lets the world run until a job has ended.
    ///
    /// # Panics
    /// When it does not, or a target fails.
    pub fn wait<T>(&mut self, pending: &Pending<T>) -> T {
        let until = self.world.now_ns() + 120 * SECOND;
        self.world.run_until(until, |world| {
            assert!(world.fatal.is_empty(), "{:?}", world.fatal);
            pending.borrow().is_some()
        });
        let value = pending.borrow_mut().take();
        value.unwrap_or_else(|| panic!("the job does not end:\n{}", self.world.trace(60)))
    }
    /// Starts a job and waits for its end; see [`Self::wait`].
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        caller: usize,
        job: impl FnOnce(Rc<C>) -> F + 'static,
    ) -> T {
        let pending = self.start(caller, job);
        self.wait(&pending)
    }
    /// Lets `ms` virtual milliseconds pass; panics if an island stops with an error.
    pub fn run_ms(&mut self, ms: u64) {
        self.world.run_for(ms * 1_000_000);
        assert!(self.world.fatal.is_empty(), "{:?}", self.world.fatal);
    }
}
