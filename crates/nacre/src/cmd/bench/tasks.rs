//! The tasks of a library load: the island, its orders, and the changes of a worker.
//!
//! Each worker is one task and has one call under way at a time, as a program has. A file is made as by mknod(2):
//! nothing is opened.

use super::worker::Phase;
use nacre_client::{Client, CreateArgs, MetadataChange, MountConfig, ResolvedInode};
use nacre_node::{Ctx, Effect, Event, Logic, join_all};
use nacre_types::{Caller, Failure, Fid, SetAttr};
use nacre_wire::target::Param;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tracing::warn;

/// The parameters of the load, given to the island when it starts: a plain record.
pub(super) struct Plan {
    /// Names from the root to the directory of the load.
    pub(super) below: Vec<Vec<u8>>,
    /// Of the directory that is made there; the round is added.
    pub(super) name: String,
    pub(super) workers: u32,
    pub(super) items: u32,
    pub(super) shared: bool,
    pub(super) batch: usize,
}

/// Orders of the main thread. Every order but `Batch` gets a reply.
pub(super) enum Order {
    Begin(u32),
    Run(Phase),
    End,
    Batch(usize),
    Params,
    Set(String, String),
}

pub(super) enum Outcome {
    Done,
    Ran { operations: u64, took: Duration },
    Params(Vec<Param>),
}

/// `Err` is a sentence for the user.
pub(super) type Reply = Result<Outcome, String>;

/// A client and its workers.
pub(super) struct BenchIsland {
    ctx: Rc<Ctx>,
    load: Rc<Load>,
}

struct Load {
    client: Rc<Client>,
    plan: Plan,
    batch: Cell<usize>,
    /// The directory that holds the load's, the load's, and its name, while a round runs.
    base: RefCell<Option<(Fid, Fid, Vec<u8>)>>,
    workers: RefCell<Vec<Rc<Worker>>>,
}

/// One task of the load.
struct Worker {
    rank: u32,
    dir: Fid,
    files: Items,
    dirs: Items,
}

/// The files or the directories of a worker.
#[derive(Default)]
struct Items {
    fids: RefCell<Vec<Fid>>,
    is_moved: Cell<bool>,
}

impl BenchIsland {
    pub(super) fn new(ctx: &Rc<Ctx>, config: MountConfig, plan: Plan) -> Self {
        let load = Rc::new(Load {
            client: Client::new(ctx, config),
            batch: Cell::new(plan.batch),
            plan,
            base: RefCell::default(),
            workers: RefCell::default(),
        });
        Self { ctx: ctx.clone(), load }
    }

    fn take(&self, order: Order) {
        let (ctx, load) = (self.ctx.clone(), self.load.clone());
        let reply = move |ctx: &Ctx, reply: Reply| ctx.push(Effect::Door(Box::new(reply)));
        match order {
            Order::Batch(batch) => load.batch.set(batch),
            Order::Params => reply(&ctx, Ok(Outcome::Params(load.client.params()))),
            Order::Set(name, value) => {
                reply(&ctx, load.client.set_param(&name, &value).map(|()| Outcome::Done));
            }
            Order::Begin(round) => drop(self.ctx.spawn(async move {
                let done = load.begin(round).await.map(|()| Outcome::Done);
                reply(&ctx, done);
            })),
            Order::End => drop(self.ctx.spawn(async move {
                let done = load.end().await.map(|()| Outcome::Done);
                reply(&ctx, done);
            })),
            Order::Run(phase) => drop(self.ctx.spawn(async move {
                let ran = load.run(&ctx, phase).await;
                reply(&ctx, ran);
            })),
        }
    }
}

impl Logic for BenchIsland {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        let (ctx, client) = (self.ctx.clone(), self.load.client.clone());
        match event {
            Event::Door(item) => match item.downcast::<Order>() {
                Ok(order) => self.take(*order),
                Err(_) => warn!("a bug: a load got an event that is not an order"),
            },
            Event::Start => drop(self.ctx.spawn(async move {
                client.attach(|news| ctx.push(Effect::Door(Box::new(news)))).await;
            })),
            Event::Stop => drop(self.ctx.spawn(async move {
                client.unmount().await;
                ctx.push(Effect::Stopped);
            })),
            other => drop(client.handle_event(other)),
        }
    }
}

impl Load {
    async fn begin(&self, round: u32) -> Result<(), String> {
        let mut parent = Fid::ROOT;
        for name in &self.plan.below {
            let entry = self.client.lookup(parent, name).await;
            parent = entry.map_err(|e| format!("{}: {e}", String::from_utf8_lossy(name)))?.attr.fid;
        }
        let name = format!("{}-{round}-{}", self.plan.name, self.batch.get()).into_bytes();
        let base = self.directory(parent, &name).await?;
        *self.base.borrow_mut() = Some((parent, base, name));
        for rank in 0..self.plan.workers {
            let dir = match self.plan.shared {
                true => base,
                false => self.directory(base, &own(rank)).await?,
            };
            let worker = Worker { rank, dir, files: Items::default(), dirs: Items::default() };
            self.workers.borrow_mut().push(Rc::new(worker));
        }
        Ok(())
    }

    async fn directory(&self, parent: Fid, name: &[u8]) -> Result<Fid, String> {
        let made = self.client.make(made(parent, name, Phase::DirCreate)).await;
        let shown = String::from_utf8_lossy(name);
        Ok(made.map_err(|e| format!("cannot make the directory {shown}: {e}"))?.attr.fid)
    }

    async fn run(self: &Rc<Self>, ctx: &Rc<Ctx>, phase: Phase) -> Reply {
        let start = ctx.now();
        let workers = self.workers.borrow().clone();
        let mut ends = Vec::with_capacity(workers.len());
        for worker in workers {
            let (done, end) = ctx.promise();
            let load = self.clone();
            ctx.spawn(async move { done.fulfil(worker.run(&load, phase).await) });
            ends.push(end);
        }
        for result in join_all(ends).await {
            result.unwrap_or(Err(Failure::ESHUTDOWN)).map_err(|e| format!("{}: {e}", phase.name()))?;
        }
        let operations = u64::from(self.plan.workers) * u64::from(self.plan.items);
        Ok(Outcome::Ran { operations, took: ctx.now() - start })
    }

    /// Removes what the phases left, and the directories.
    async fn end(&self) -> Result<(), String> {
        let (base, workers) = (self.base.take(), self.workers.take());
        let Some((parent, base, name)) = base else { return Ok(()) };
        let gone =
            |result: Result<(), Failure>| result.map_err(|e| format!("cannot remove the directory: {e}"));
        for worker in workers {
            for (items, phase) in [(&worker.files, Phase::FileRemove), (&worker.dirs, Phase::DirRemove)] {
                if !items.fids.borrow().is_empty() {
                    gone(worker.run(self, phase).await)?;
                }
            }
            if !self.plan.shared {
                gone(self.client.unlink(base, &own(worker.rank), true, Caller::root()).await)?;
            }
        }
        gone(self.client.unlink(parent, &name, true, Caller::root()).await)
    }

    /// Makes changes in one request, or each in its own.
    async fn apply(
        &self,
        changes: &[MetadataChange<'_>],
        step: u32,
    ) -> Result<Vec<Option<ResolvedInode>>, Failure> {
        let caller = Caller::root();
        if step > 1 {
            return self.client.batch(changes, &caller, false).await?.into_iter().collect();
        }
        let mut all = Vec::with_capacity(changes.len());
        for change in changes {
            all.push(self.client.apply(change, &caller).await?);
        }
        Ok(all)
    }
}

/// The directory of a worker.
fn own(rank: u32) -> Vec<u8> {
    format!("p{rank}").into_bytes()
}

fn made(parent: Fid, name: &[u8], phase: Phase) -> CreateArgs<'_> {
    let mode = if is_dir(phase) { 0o040_755 } else { 0o100_644 };
    let (layout, caller) = (None, Caller::root());
    CreateArgs { layout, ..CreateArgs::new(parent, name, mode, caller) }
}

fn is_dir(phase: Phase) -> bool {
    matches!(
        phase,
        Phase::DirCreate | Phase::DirStat | Phase::DirSetattr | Phase::DirRename | Phase::DirRemove
    )
}

impl Worker {
    /// Does a phase over all items; ends at the first error.
    async fn run(&self, load: &Load, phase: Phase) -> Result<(), Failure> {
        let items = if is_dir(phase) { &self.dirs } else { &self.files };
        let fids = items.fids.borrow().clone();
        let name = |moved: bool, item: u32| {
            let kind = if is_dir(phase) { "dir" } else { "file" };
            format!("{}{kind}.{}.{item}", if moved { "moved-" } else { "" }, self.rank).into_bytes()
        };
        let mut new = Vec::new();
        let step = u32::try_from(load.batch.get().max(1)).unwrap_or(1);
        for from in (0..load.plan.items).step_by(step as usize) {
            let range = from..(from + step).min(load.plan.items);
            let names: Vec<_> = range.clone().map(|item| name(items.is_moved.get(), item)).collect();
            let moved: Vec<_> = range.clone().map(|item| name(true, item)).collect();
            let changes: Vec<MetadataChange<'_>> = range
                .zip(names.iter().zip(&moved))
                .map(|(item, (name, moved))| {
                    self.change(phase, name, moved, fids.get(item as usize).copied())
                })
                .collect::<Result<_, _>>()?;
            for entry in load.apply(&changes, step).await? {
                new.extend(entry.map(|entry| entry.attr.fid));
            }
        }
        match phase {
            Phase::FileCreate | Phase::DirCreate => *items.fids.borrow_mut() = new,
            Phase::FileRemove | Phase::DirRemove => {
                items.fids.borrow_mut().clear();
                items.is_moved.set(false);
            }
            Phase::FileRename | Phase::DirRename => items.is_moved.set(true),
            _ => {}
        }
        Ok(())
    }

    /// The change of one item; `fid` of one that was made.
    fn change<'a>(
        &self,
        phase: Phase,
        name: &'a [u8],
        moved: &'a [u8],
        fid: Option<Fid>,
    ) -> Result<MetadataChange<'a>, Failure> {
        let parent = self.dir;
        Ok(match phase {
            Phase::FileCreate | Phase::DirCreate => MetadataChange::Make(made(parent, name, phase)),
            Phase::FileSetattr | Phase::DirSetattr => {
                let mode = Some(if is_dir(phase) { 0o700 } else { 0o600 });
                let set = SetAttr { mode, ..SetAttr::default() };
                MetadataChange::Setattr { fid: fid.ok_or(Failure::ENOENT)?, set }
            }
            Phase::FileRemove | Phase::DirRemove => {
                MetadataChange::Unlink { parent, name, directory: is_dir(phase) }
            }
            Phase::FileRename | Phase::DirRename => {
                MetadataChange::Rename { from: (parent, name), to: (parent, moved), flags: 0 }
            }
            // `is_in_library` says no to these.
            _ => return Err(Failure::EINVAL),
        })
    }
}
