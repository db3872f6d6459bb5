//! A mount as an island of the world: jobs go in through its door, their values come out.

use crate::kernel::Kernel;
use crate::world::{NodeId, World};
use nacre_client::{Client, MountConfig};
use nacre_node::{Ctx, Effect, Event, Logic, StoreOp, TaskId};
use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

type Value = Box<dyn Any + Send>;
type Run = Box<dyn FnOnce(Rc<Client>) -> Pin<Box<dyn Future<Output = Value>>> + Send>;

/// Something to do on a mount's island.
struct Job {
    id: u64,
    run: Run,
}

/// The caller of this job has ended.
struct GiveUp(u64);

/// The value of a job.
struct Done {
    id: u64,
    value: Value,
}

/// The island of a mount.
pub struct MountIsland {
    ctx: Rc<Ctx>,
    client: Rc<Client>,
    /// Found through the client.
    _kernel: Rc<Kernel>,
    jobs: BTreeMap<u64, TaskId>,
}
impl MountIsland {
    /// A client on the island of `ctx`; it connects when the island has started.
    pub fn new(ctx: &Rc<Ctx>, config: MountConfig) -> Self {
        let client = Client::new(ctx, config);
        let kernel = Kernel::attach(ctx, &client);
        Self { ctx: ctx.clone(), client, _kernel: kernel, jobs: BTreeMap::new() }
    }
}
impl Logic for MountIsland {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        let Some(event) = self.client.handle_event(event) else { return };
        let Event::Door(job) = event else { return };
        let job = match job.downcast::<GiveUp>() {
            Ok(job) => return self.jobs.get(&job.0).into_iter().for_each(|task| self.ctx.cancel(*task)),
            Err(job) => job,
        };
        let Job { id, run } = *job.downcast::<Job>().expect("only jobs come through this door");
        let (ctx, client) = (self.ctx.clone(), self.client.clone());
        let task = self.ctx.spawn(async move {
            let value = run(client).await;
            ctx.push(Effect::Door(Box::new(Done { id, value })));
        });
        self.jobs.insert(id, task);
    }
    fn log_writes(&mut self, out: &mut Vec<StoreOp>) {
        self.client.log_writes(out);
    }
}

/// Resources that an idle mount must not have: slots, requests, locks, handles.
pub fn left_at_rest(client: &Client) -> Vec<String> {
    let mut left = client.requests_left();
    if !client.is_idle() {
        left.push("open handles, or locks that it waits for".into());
    }
    left
}

/// A job under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u64);

/// Jobs of all mounts and the values that have come.
#[derive(Default)]
pub struct Jobs {
    last: u64,
    values: BTreeMap<u64, Value>,
}

impl Jobs {
    /// Gives a job to a mount.
    pub fn start<T, F>(
        &mut self,
        world: &mut World,
        mount: NodeId,
        run: impl FnOnce(Rc<Client>) -> F + Send + 'static,
    ) -> JobId
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.last += 1;
        let run: Run = Box::new(move |client| {
            let work = run(client);
            Box::pin(async move { Box::new(work.await) as Value })
        });
        world.tell(mount, Event::Door(Box::new(Job { id: self.last, run })));
        self.collect(world);
        JobId(self.last)
    }
    /// The caller of the job is killed.
    pub fn give_up(&mut self, world: &mut World, mount: NodeId, id: JobId) {
        world.tell(mount, Event::Door(Box::new(GiveUp(id.0))));
        self.collect(world);
    }
    /// Takes in the messages of mounts to their front ends.
    pub fn collect(&mut self, world: &mut World) {
        while let Some((_, said)) = world.hear() {
            let done = said.downcast::<Done>().expect("mounts say nothing but values of jobs");
            self.values.insert(done.id, done.value);
        }
    }
    /// Whether the job has ended and its value was not taken.
    pub fn is_done(&self, id: JobId) -> bool {
        self.values.contains_key(&id.0)
    }
    /// The value of a job that is done.
    pub fn take<T: 'static>(&mut self, id: JobId) -> Option<T> {
        let value = self.values.remove(&id.0)?;
        Some(*value.downcast::<T>().expect("a job's value has the type of its start"))
    }
    /// Runs the world until the job is done; `None` when virtual time `limit_ns` passes first.
    pub fn wait<T: 'static>(&mut self, world: &mut World, id: JobId, limit_ns: u64) -> Option<T> {
        let until = world.now_ns() + limit_ns;
        world.run_until(until, |world| {
            self.collect(world);
            self.is_done(id)
        });
        self.take(id)
    }
}
