//! One seed from start to end.
//!
//! A plan is made of tasks. Each task has its own tree and its own model and runs one operation at a time, on whichever
//! mount the seed says; tasks run side by side. Whatever happens to servers and connections, each operation
//! must give exactly what the model says. In some plans the tasks also meet on common files: appends of records,
//! exclusive creates, a counter under flock. At the end all mounts must show the models' trees, and nothing may be left.

use crate::check;
use crate::cluster::Cluster;
use crate::common::{self, Common};
use crate::model::{Kind, Model, Outcome};
use crate::mount::JobId;
use crate::offline;
use crate::ops::{Op, Session};
use crate::world::NodeId;
use nacre_node::store::Store;
use nacre_types::Errno;
use nacre_wire::mdt::FlockFamily;
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;
/// An operation that takes longer is stuck.
pub const STUCK_NS: u64 = 180 * SECOND;

/// What a seed tries.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub mounts: u32,
    pub osts: u32,
    pub tasks: u32,
    pub ops_per_task: u32,
    /// Files over several stripes.
    pub big: bool,
    /// Servers killed and started again.
    pub kills: u32,
    /// Connections lost.
    pub cuts: u32,
    /// The tasks meet on common files.
    pub common: bool,
    /// A further mount dies while it holds a lock and an open file.
    pub victim: bool,
    /// A mount is stopped for longer than its lease.
    pub pause: bool,
    /// The whole machine loses its power once, and that is all (see `power`).
    pub power: bool,
}

impl Plan {
    /// Everything follows from the seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = nacre_node::Rng::new(seed ^ 0x6e61_6372_6500);
        let mut pick = |n: u64| rng.below(n) as u32;
        let tasks = 1 + pick(3);
        Self {
            seed,
            mounts: 2 + pick(2),
            osts: 1 + pick(3),
            tasks,
            ops_per_task: (60 + pick(60)) / tasks,
            big: pick(3) == 0,
            kills: [0, 0, 1, 2, 3][pick(5) as usize],
            cuts: [0, 1, 3, 8][pick(4) as usize],
            common: pick(2) == 0,
            victim: pick(4) == 0,
            pause: pick(5) == 0,
            power: pick(6) == 0,
        }
    }
}

/// What a seed has shown.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub operations: u64,
    pub kills: u64,
    pub cuts: u64,
    pub evictions: u64,
    pub power_losses: u64,
    pub virtual_ms: u64,
}

/// Why a seed failed, with the last of what happened.
#[derive(Debug)]
pub struct Failure {
    pub what: String,
    pub trace: String,
}

/// A sequence of operations in one tree.
struct Task {
    base: String,
    model: Model,
    sessions: Vec<Session>,
    slot_owner: BTreeMap<u32, usize>,
    left: u32,
    running: Option<Running>,
}
struct Running {
    job: JobId,
    op: Op,
    mount: usize,
    since_ns: u64,
}

struct Run {
    plan: Plan,
    cluster: Cluster,
    tasks: Vec<Task>,
    common: Option<Common>,
    /// When servers die and connections break, in order of time.
    faults: Vec<(u64, Fault)>,
    report: Report,
    /// Tasks of each server when nothing happens.
    usual_tasks: Vec<usize>,
    /// Objects and inodes of each target when there are no files.
    usual_files: BTreeMap<String, u64>,
    /// A mount that gets nothing to do, and will be stopped once it has nothing left to do.
    pausing: Option<usize>,
}
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill(NodeId, u64),
    Cut(NodeId),
    /// A mount dies and does not come back.
    Die(NodeId),
    /// The mount of this number is stopped for a while.
    Pause(usize),
}

/// Runs a plan; a failure carries so many lines of trace.
pub fn run(plan: &Plan, trace_lines: usize) -> Result<Report, Failure> {
    if plan.power {
        return crate::power::run(plan, trace_lines);
    }
    let mut cluster = Cluster::new(plan.seed, plan.osts, plan.mounts, plan.victim);
    cluster.world.trace_max = trace_lines.max(1);
    let mut run = Run {
        plan: plan.clone(),
        cluster,
        tasks: Vec::new(),
        common: None,
        faults: Vec::new(),
        report: Report::default(),
        usual_tasks: Vec::new(),
        usual_files: BTreeMap::new(),
        pausing: None,
    };
    let result = run.all();
    let trace = |run: &Run| run.cluster.world.trace(trace_lines);
    match result {
        Ok(()) => Ok(Report { virtual_ms: run.cluster.world.now_ns() / 1_000_000, ..run.report }),
        Err(what) => Err(Failure { what, trace: trace(&run) }),
    }
}

impl Run {
    fn all(&mut self) -> Result<(), String> {
        self.set_up()?;
        self.plan_faults();
        while !self.is_done() {
            self.inject();
            self.collect()?;
            self.pause_mount()?;
            self.launch();
            self.check_alive()?;
            if !self.cluster.world.step() {
                return Err("nothing is left to happen, and operations have not ended".into());
            }
        }
        self.compare()?;
        self.remove_all()?;
        self.shut_down()?;
        // The MGS comes first, then the MDT, then the OSTs.
        let stores: Vec<&dyn Store> = self.cluster.stores.iter().map(|s| &**s).collect();
        match stores.as_slice() {
            [_, mdt, osts @ ..] => offline::check(*mdt, osts),
            _ => Err("a file system without an MDT".into()),
        }
    }

    fn set_up(&mut self) -> Result<(), String> {
        self.cluster.ready(0)?;
        self.cluster.world.run_for(5 * SECOND);
        self.usual_tasks = self.cluster.servers.iter().map(|&s| self.cluster.world.live_tasks(s)).collect();
        self.usual_files = self.files()?;
        for t in 0..self.plan.tasks {
            let base = format!("/t{t}");
            let made = self.one(0, Op::Mkdir(base.clone()))?;
            if made.is_err() {
                return Err(format!("mkdir {base}: {made:?}"));
            }
            let mut model = Model::default();
            model.make(&base, Kind::Directory(BTreeMap::new()), 0o755).expect("an empty model");
            self.tasks.push(Task {
                base,
                model,
                sessions: self.cluster.mounts.iter().map(|_| Session::default()).collect(),
                slot_owner: BTreeMap::new(),
                left: self.plan.ops_per_task,
                running: None,
            });
        }
        if self.plan.common {
            let family = [FlockFamily::Posix, FlockFamily::Flock][(self.plan.seed % 2) as usize];
            let mut common = Common::new(family, self.plan.kills > 0);
            for op in Common::set_up() {
                let made = self.one(0, op)?;
                if made.is_err() {
                    return Err(format!("common files: {made:?}"));
                }
            }
            if let Some(victim) = self.cluster.victim {
                let world = &mut self.cluster.world;
                world.run_until(STUCK_NS, |world| world.is_up(victim));
                self.cluster.jobs.start(world, victim, move |client| common::victim(client, family));
            }
            for mount in self.cluster.mounts.clone() {
                common.start(&mut self.cluster.world, &mut self.cluster.jobs, mount);
            }
            self.common = Some(common);
        }
        Ok(())
    }

    /// One operation, alone.
    fn one(&mut self, mount: usize, op: Op) -> Result<Outcome, String> {
        let cluster = &mut self.cluster;
        let text = format!("{op:?}");
        let run = move |client| async move { op.execute(client, Session::default()).await };
        let job = cluster.jobs.start(&mut cluster.world, cluster.mounts[mount], run);
        cluster.jobs.wait(&mut cluster.world, job, STUCK_NS).ok_or(format!("{text} did not end"))
    }

    fn plan_faults(&mut self) {
        let world = &mut self.cluster.world;
        // Operations take a few milliseconds of virtual time each.
        let span = u64::from(self.plan.ops_per_task) * 12_000_000;
        for _ in 0..self.plan.kills {
            let at = world.now_ns() + world.rng().below(span);
            let victim = self.cluster.servers[world.rng().below(self.cluster.servers.len() as u64) as usize];
            let down_ns = 1_000_000 + world.rng().below(2 * SECOND);
            self.faults.push((at, Fault::Kill(victim, down_ns)));
        }
        for _ in 0..self.plan.cuts {
            let at = world.now_ns() + world.rng().below(span);
            let victim = self.cluster.servers[world.rng().below(self.cluster.servers.len() as u64) as usize];
            self.faults.push((at, Fault::Cut(victim)));
        }
        if let Some(victim) = self.cluster.victim {
            self.faults.push((world.now_ns() + world.rng().below(span), Fault::Die(victim)));
        }
        if self.plan.pause {
            let mount = world.rng().below(self.cluster.mounts.len() as u64) as usize;
            self.faults.push((world.now_ns() + world.rng().below(span), Fault::Pause(mount)));
        }
        self.faults.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    }

    fn inject(&mut self) {
        let world = &mut self.cluster.world;
        while let Some(&(at, fault)) = self.faults.last() {
            if at > world.now_ns() {
                return;
            }
            self.faults.pop();
            match fault {
                Fault::Kill(node, down_ns) if world.is_up(node) => {
                    self.report.kills += 1;
                    world.kill(node);
                    world.start_later(node, down_ns);
                }
                Fault::Kill(..) => {}
                Fault::Cut(node) => {
                    self.report.cuts += 1;
                    world.cut_some_link(node);
                }
                Fault::Die(mount) => {
                    self.report.evictions += 1;
                    world.kill(mount);
                }
                Fault::Pause(mount) => self.pausing = Some(mount),
            }
        }
    }

    /// Stops the mount that is to be stopped, once nothing runs on it, for longer than a lease: it is evicted, and
    /// its open handles are opened again behind its back. Those of removed files are lost, so all are closed.
    fn pause_mount(&mut self) -> Result<(), String> {
        let Some(mount) = self.pausing else { return Ok(()) };
        let is_busy = self.tasks.iter().any(|t| t.running.as_ref().is_some_and(|r| r.mount == mount));
        if is_busy || self.common.as_ref().is_some_and(|c| !c.is_done(&self.cluster.jobs)) {
            return Ok(());
        }
        self.report.evictions += 1;
        let node = self.cluster.mounts[mount];
        self.cluster.world.pause(node, true);
        let until = self.cluster.world.now_ns() + 16 * SECOND;
        self.cluster.world.run_until(until, |_| false);
        self.cluster.world.pause(node, false);
        for t in 0..self.tasks.len() {
            let slots: Vec<u32> =
                self.tasks[t].slot_owner.iter().filter(|s| *s.1 == mount).map(|s| *s.0).collect();
            for slot in slots {
                self.tasks[t].slot_owner.remove(&slot);
                let inode = self.tasks[t].model.open.remove(&slot);
                let session = self.tasks[t].sessions[mount].clone();
                let run = move |client: std::rc::Rc<nacre_client::Client>| async move {
                    let read = Op::ReadSlot { slot, offset: 0, len: 100 }
                        .execute(client.clone(), session.clone())
                        .await;
                    (read, Op::Close(slot).execute(client, session).await)
                };
                let (read, _): (Outcome, Outcome) = self.call(mount, run)?;
                let task = &mut self.tasks[t];
                if let Some(i) = inode
                    && task.model.inode(i).nlink > 0
                {
                    let want = task.model.read(i, 0, 100);
                    if read != want {
                        return Err(format!(
                            "after an eviction an open file on mount{mount} gave {}, expected {}",
                            short(&read),
                            short(&want)
                        ));
                    }
                }
            }
        }
        self.pausing = None;
        Ok(())
    }

    fn is_done(&self) -> bool {
        let tasks = self.tasks.iter().all(|t| t.left == 0 && t.running.is_none());
        tasks && self.common.as_ref().is_none_or(|c| c.is_done(&self.cluster.jobs))
    }

    /// Starts the next operation of every task that has none.
    fn launch(&mut self) {
        for (number, task) in self.tasks.iter_mut().enumerate() {
            if task.running.is_some() || task.left == 0 {
                continue;
            }
            let world = &mut self.cluster.world;
            let mount_count = self.cluster.mounts.len();
            let op = Op::random(world.rng(), &task.base, self.plan.big);
            let mut mount = world.rng().below(mount_count as u64) as usize;
            if let Some(owner) = op.slot().and_then(|slot| task.slot_owner.get(&slot)) {
                mount = *owner;
            }
            if self.pausing == Some(mount) {
                continue;
            }
            task.left -= 1;
            world.note(self.cluster.mounts[mount], || format!("task {number}: {op:?}"));
            let (session, work) = (task.sessions[mount].clone(), op.clone());
            let run = move |client| async move { work.execute(client, session).await };
            let job = self.cluster.jobs.start(world, self.cluster.mounts[mount], run);
            task.running = Some(Running { job, op, mount, since_ns: world.now_ns() });
        }
    }

    /// Compares what has ended with the model.
    fn collect(&mut self) -> Result<(), String> {
        self.cluster.jobs.collect(&mut self.cluster.world);
        for (number, task) in self.tasks.iter_mut().enumerate() {
            let Some(Running { job, op, mount, .. }) =
                task.running.take_if(|r| self.cluster.jobs.is_done(r.job))
            else {
                continue;
            };
            let got: Outcome = self.cluster.jobs.take(job).expect("it is done");
            let want = op.apply(&mut task.model);
            let world = &mut self.cluster.world;
            world.note(self.cluster.mounts[mount], || format!("task {number}: done {}", short(&got)));
            self.report.operations += 1;
            if !op.agrees(&got, &want) {
                return Err(format!(
                    "task {number} on mount{mount}: {op:?}\n     gave {}\n expected {}{}",
                    short(&got),
                    short(&want),
                    first_difference(&got, &want)
                ));
            }
            match (&op, want.is_ok()) {
                (Op::Open(slot, _), true) => {
                    task.slot_owner.insert(*slot, mount);
                }
                (Op::Close(slot), true) => {
                    task.slot_owner.remove(slot);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_alive(&mut self) -> Result<(), String> {
        if let Some(fatal) = self.cluster.world.fatal.first() {
            return Err(format!("an island gave up: {fatal}"));
        }
        let now = self.cluster.world.now_ns();
        for task in &self.tasks {
            if let Some(r) = &task.running
                && now - r.since_ns > STUCK_NS
            {
                return Err(format!("stuck on mount{}: {:?}", r.mount, r.op));
            }
        }
        if self.common.as_ref().is_some_and(|c| now - c.since_ns > STUCK_NS && !c.is_done(&self.cluster.jobs))
        {
            return Err("work on common files is stuck".into());
        }
        Ok(())
    }

    /// Every mount shows what the models say.
    fn compare(&mut self) -> Result<(), String> {
        // Whatever a fault has left runs out, and servers that were killed come back.
        if let Some(victim) = self.cluster.victim
            && self.cluster.world.is_up(victim)
        {
            self.cluster.world.kill(victim);
        }
        self.faults.clear();
        self.cluster.world.run_for(3 * SECOND);
        for slot in 0..crate::ops::SLOTS {
            for t in 0..self.tasks.len() {
                if let Some(owner) = self.tasks[t].slot_owner.remove(&slot) {
                    self.tasks[t].model.open.remove(&slot);
                    let session = self.tasks[t].sessions[owner].clone();
                    let run = move |client| async move { Op::Close(slot).execute(client, session).await };
                    let closed: Outcome = self.call(owner, run)?;
                    if closed.is_err() {
                        return Err(format!("the last close on mount{owner} gave {closed:?}"));
                    }
                }
            }
        }
        for mount in 0..self.cluster.mounts.len() {
            for t in 0..self.tasks.len() {
                let base = self.tasks[t].base.clone();
                let want = check::expected(&self.tasks[t].model, &base);
                let run = move |client: std::rc::Rc<nacre_client::Client>| async move {
                    check::walk(&client, &base).await
                };
                let seen: Result<_, Errno> = self.call(mount, run)?;
                let seen = seen.map_err(|e| format!("mount{mount} cannot be walked: {e}"))?;
                let differences = check::differences(&want, &seen);
                if !differences.is_empty() {
                    return Err(format!("mount{mount} shows another tree:\n  {}", differences.join("\n  ")));
                }
            }
        }
        if let Some(common) = self.common.take() {
            let reads = common.take(&mut self.cluster.jobs)?;
            for mount in 0..self.cluster.mounts.len() {
                let seen = self.call(mount, Common::read)?;
                reads.check(&seen.map_err(|e: Errno| format!("common files on mount{mount}: {e}"))?)?;
            }
        }
        Ok(())
    }

    /// Removes every file; then nothing of them may be left on any target.
    fn remove_all(&mut self) -> Result<(), String> {
        let removed: Result<(), Errno> =
            self.call(0, |client| async move { check::remove_all(&client).await })?;
        removed.map_err(|e| format!("the trees cannot be removed: {e}"))?;
        // An evicted mount's files go with its lease, objects after a commit.
        let mut last = BTreeMap::new();
        for _ in 0..40 {
            self.cluster.world.run_for(SECOND);
            last = self.files()?;
            if last == self.usual_files {
                return Ok(());
            }
        }
        Err(format!("something is left of removed files: {last:?}, before them {:?}", self.usual_files))
    }

    /// Objects or inodes in use, by target.
    fn files(&mut self) -> Result<BTreeMap<String, u64>, String> {
        let found = self.call(0, |client| async move { client.statfs_targets().await })?;
        let mut files = BTreeMap::new();
        for (name, answer) in found.map_err(|e| format!("statfs: {e}"))? {
            files.insert(name, answer.map_or(u64::MAX, |a| a.files_used));
        }
        Ok(files)
    }

    fn call<T: Send + 'static, F: Future<Output = T> + 'static>(
        &mut self,
        mount: usize,
        run: impl FnOnce(std::rc::Rc<nacre_client::Client>) -> F + Send + 'static,
    ) -> Result<T, String> {
        let cluster = &mut self.cluster;
        let job = cluster.jobs.start(&mut cluster.world, cluster.mounts[mount], run);
        let value = cluster.jobs.wait(&mut cluster.world, job, STUCK_NS);
        value.ok_or_else(|| format!("a call on mount{mount} did not end"))
    }

    /// No open, no lock, no wait, no unsettled size stays on a server without clients.
    fn nothing_left(&mut self) -> Result<(), String> {
        const LEAVES: [&str; 6] = [
            "open_files",
            "file_locks",
            "file_locks_waiting",
            "unsettled_files",
            "lock_count",
            "lock_waiting",
        ];
        let mut left = Vec::new();
        for _ in 0..30 {
            left = self
                .cluster
                .params(|name| name.rsplit('.').next().is_some_and(|leaf| LEAVES.contains(&leaf)));
            left.retain(|(_, _, value)| value.trim() != "0");
            if left.is_empty() {
                return Ok(());
            }
            self.cluster.world.run_for(SECOND);
        }
        Err(format!("left on servers without clients: {left:?}"))
    }

    /// Unmounts, stops, and looks at what is left.
    fn shut_down(&mut self) -> Result<(), String> {
        for mount in 0..self.cluster.mounts.len() {
            let idle = self.call(mount, |client| async move { client.is_idle() })?;
            if !idle {
                return Err(format!("mount{mount} has open handles, or locks that it waits for, at rest"));
            }
            self.call(mount, |client| async move { client.unmount().await })?;
        }
        let world = &mut self.cluster.world;
        world.run_for(SECOND);
        for &mount in &self.cluster.mounts {
            let tasks = world.live_tasks(mount);
            if tasks != 0 {
                return Err(format!("{} has {tasks} tasks after its unmount", world.name(mount)));
            }
        }
        for (&server, &usual) in self.cluster.servers.iter().zip(&self.usual_tasks) {
            // Work in the background may take its time; a leak stays.
            let until = world.now_ns() + 60 * SECOND;
            if !world.run_until(until, |world| world.live_tasks(server) <= usual) {
                let tasks = world.live_tasks(server);
                return Err(format!(
                    "{} has {tasks} tasks at rest, {usual} before the work",
                    world.name(server)
                ));
            }
        }
        self.nothing_left()?;
        let world = &mut self.cluster.world;
        let servers = self.cluster.servers.clone();
        for &server in servers.iter().rev() {
            world.tell(server, nacre_node::Event::Stop);
            let until = world.now_ns() + 60 * SECOND;
            let stopped = world.run_until(until, |world| world.take_stopped().contains(&server));
            if !stopped {
                return Err(format!("{} does not stop", world.name(server)));
            }
        }
        if let Some(fatal) = world.fatal.first() {
            return Err(format!("an island gave up: {fatal}"));
        }
        Ok(())
    }
}

fn short(outcome: &Outcome) -> String {
    let text = format!("{outcome:?}");
    if text.len() > 200 { format!("{}... ({} characters)", &text[..160], text.len()) } else { text }
}

fn first_difference(got: &Outcome, want: &Outcome) -> String {
    use crate::model::Value::Bytes;
    let (Ok(Bytes(got)), Ok(Bytes(want))) = (got, want) else { return String::new() };
    let at = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(got.len().min(want.len()));
    format!(
        "\n  from byte {at}: {:?}, expected {:?}; {} bytes, expected {}",
        got.get(at),
        want.get(at),
        got.len(),
        want.len()
    )
}
