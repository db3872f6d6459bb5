//! One seed from start to end.
//!
//! A plan consists of tasks. Each task has its own tree and its own model and runs one operation at a time, each on a mount
//! that is drawn from the seed; tasks run side by side. Each operation must have exactly the result of the model, whatever
//! happens to servers, mounts and connections. In some plans the tasks also use common files: appends of records,
//! exclusive creates, a counter under flock. At the end all mounts must show the models' trees, and the targets must have
//! no opens, locks or objects left (`rest`).

mod lose_both;
mod rest;

use crate::cluster::Cluster;
use crate::common::{self, Common};
use crate::execute::Session;
use crate::faults::{Fault, Faults};
use crate::model::Outcome;
use crate::ops::Op;
use crate::plan::{FailedSeed, Plan, Report};
use crate::task::{Running, Task, short};
use nacre_types::Failure;
use nacre_wire::mdt::FlockFamily;
use std::collections::BTreeMap;

pub(crate) const SECOND: u64 = 1_000_000_000;
/// An operation that takes longer without any fault is stuck.
pub const STUCK_NS: u64 = 40 * SECOND;
/// A recovery ends with the leases of those who do not come.
pub(crate) const RECOVERY_NS: u64 = 16 * SECOND;
/// Longer than a lease.
pub(crate) const SLEEP_NS: u64 = 16 * SECOND;

pub(crate) struct Run {
    plan: Plan,
    cluster: Cluster,
    tasks: Vec<Task>,
    common: Option<Common>,
    faults: Faults,
    report: Report,
    /// Tasks of each server when nothing happens.
    usual_tasks: Vec<usize>,
    /// Objects and inodes of each target when there are no files.
    usual_files: BTreeMap<String, u64>,
    /// Exports of each server when all mounts are there.
    usual_exports: BTreeMap<String, u64>,
    mounts_at_start: u64,
    /// A mount that gets nothing to do, and will go once it does nothing by halves.
    going: Option<(usize, Fault)>,
    /// Files of which the MDT may not know that they have objects, see `loss`.
    files_gone: u64,
    next_look_ns: u64,
}

/// Runs a plan; a failure carries so many lines of trace.
pub fn run(plan: &Plan, trace_lines: usize) -> Result<Report, FailedSeed> {
    if plan.power {
        return crate::power::run(plan, trace_lines);
    }
    let mut cluster = Cluster::of(plan);
    cluster.world.trace_max = trace_lines.max(1);
    let mut run = Run {
        plan: plan.clone(),
        cluster,
        tasks: Vec::new(),
        common: None,
        faults: Faults::default(),
        report: Report::default(),
        usual_tasks: Vec::new(),
        usual_files: BTreeMap::new(),
        usual_exports: BTreeMap::new(),
        mounts_at_start: u64::from(plan.mounts + u32::from(plan.victim)),
        going: None,
        files_gone: 0,
        next_look_ns: 0,
    };
    match run.all() {
        Ok(()) => Ok(Report { virtual_ms: run.cluster.world.now_ns() / 1_000_000, ..run.report }),
        Err(what) => Err(FailedSeed { what, trace: run.cluster.world.trace(trace_lines) }),
    }
}

impl Run {
    fn all(&mut self) -> Result<(), String> {
        self.set_up()?;
        self.faults = Faults::of(&self.plan, &mut self.cluster);
        while !self.is_done() {
            let fault = self.faults.inject(&mut self.cluster, &mut self.report);
            if let Some(fault @ (Fault::Sleep(mount) | Fault::Replace(mount))) = fault {
                let latest = self.tasks.iter().filter_map(Task::latest_changer).max();
                self.going = Some((latest.map_or(mount, |(_, latest)| latest), fault));
            }
            self.collect()?;
            self.let_mount_go()?;
            self.launch();
            self.check_alive()?;
            if !self.cluster.world.step() {
                return Err("nothing is left to happen, and operations have not ended".into());
            }
        }
        self.end()
    }

    fn set_up(&mut self) -> Result<(), String> {
        self.cluster.ready(0)?;
        if self.plan.one_slot {
            self.cluster.limit_slots(1);
        }
        if self.plan.write_back {
            self.cluster.write_back()?;
        }
        self.cluster.keep_data_at_mdt(self.plan.dom_bytes)?;
        self.cluster.world.run_for(5 * SECOND);
        self.usual_tasks = self.cluster.servers.iter().map(|&s| self.cluster.world.live_tasks(s)).collect();
        self.usual_files = self.files()?;
        self.usual_exports = self.cluster.exports();
        for t in 0..self.plan.tasks {
            let base = format!("/t{t}");
            let made = self.one(0, Op::Mkdir(base.clone()))?;
            if made.is_err() {
                return Err(format!("mkdir {base}: {made:?}"));
            }
            let lose_both = self.plan.lose_both > 0;
            self.tasks.push(Task::new(base, self.cluster.mounts.len(), self.plan.ops_per_task, lose_both));
        }
        if self.plan.lose_both > 0 {
            let synced = self.one(0, Op::SyncAll)?;
            synced.map_err(|e| format!("what is there at the start cannot be synced: {e}"))?;
        }
        if self.plan.common {
            let family = [FlockFamily::Posix, FlockFamily::Flock][(self.plan.seed % 2) as usize];
            let mut common = Common::new(family, self.plan.kills + self.plan.machines > 0);
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
    pub(crate) fn one(&mut self, mount: usize, op: Op) -> Result<Outcome, String> {
        let cluster = &mut self.cluster;
        let text = format!("{op:?}");
        let run = move |client| async move { op.execute(client, Session::default()).await };
        let job = cluster.jobs.start(&mut cluster.world, cluster.mounts[mount], run);
        cluster.jobs.wait(&mut cluster.world, job, STUCK_NS).ok_or(format!("{text} did not end"))
    }

    /// Lets the mount go that is to go, once nothing runs on it that could be made by halves.
    fn let_mount_go(&mut self) -> Result<(), String> {
        let Some((mount, fault)) = self.going else { return Ok(()) };
        if self.tasks.iter().any(|t| t.is_divisible_on(mount))
            || self.common.as_ref().is_some_and(|c| !c.is_done(&self.cluster.jobs))
        {
            return Ok(());
        }
        self.report.evictions += 1;
        match fault {
            fault if self.plan.lose_both > 0 => self.lose_both(mount, fault)?,
            Fault::Replace(_) => self.replace_mount(mount)?,
            _ => self.let_mount_sleep(mount)?,
        }
        self.going = None;
        Ok(())
    }

    /// kill -9 of a mount: what was under way may have been made; once its exports are gone it will not be any more.
    fn replace_mount(&mut self, mount: usize) -> Result<(), String> {
        let node = self.cluster.mounts[mount];
        self.cluster.world.kill(node);
        for task in &mut self.tasks {
            if let Some(Running { op, .. }) = task.running.take_if(|r| r.mount == mount) {
                task.lost(&op);
                self.report.operations += 1;
            }
            task.mount_gone(mount);
        }
        self.cluster.replace_mount(mount)?;
        self.exports_go()
    }
    /// Those of mounts that are gone.
    pub(crate) fn exports_go(&mut self) -> Result<(), String> {
        let mut last = BTreeMap::new();
        for _ in 0..60 {
            self.cluster.world.run_for(SECOND);
            last = self.cluster.exports();
            // The victim may have gone as well.
            if last.len() == self.usual_exports.len()
                && last.iter().all(|(server, n)| *n <= self.usual_exports[server])
            {
                return Ok(());
            }
        }
        Err(format!("the exports of a mount that died do not go: {last:?}, before {:?}", self.usual_exports))
    }

    /// Longer than its lease: it is evicted, and its open handles are opened again behind its back. Those of removed
    /// files are lost, so all are closed.
    fn let_mount_sleep(&mut self, mount: usize) -> Result<(), String> {
        let node = self.cluster.mounts[mount];
        self.cluster.world.pause(node, true);
        self.cluster.world.run_for(SLEEP_NS);
        self.collect()?; // what other mounts have changed meanwhile
        self.cluster.world.pause(node, false);
        for t in 0..self.tasks.len() {
            if let Some(running) = self.tasks[t].running.as_mut().filter(|r| r.mount == mount) {
                running.may_fail = true;
            }
            for slot in self.tasks[t].slots_of(mount) {
                let wanted = self.tasks[t].forget_slot(slot);
                let elsewhere = self.tasks[t].running.as_ref().is_some_and(|r| r.mount != mount);
                let wanted = wanted.filter(|_| !elsewhere); // it may change that file just now
                let session = self.tasks[t].sessions[mount].clone();
                let run = move |client: std::rc::Rc<nacre_client::Client>| async move {
                    let read = Op::ReadSlot { slot, offset: 0, len: 100 }
                        .execute(client.clone(), session.clone())
                        .await;
                    (read, Op::Close(slot).execute(client, session).await)
                };
                let (read, _): (Outcome, Outcome) = self.call(mount, run)?;
                if wanted.as_ref().is_some_and(|wanted| !wanted.contains(&read)) {
                    return Err(format!(
                        "after an eviction an open file on mount{mount} gave {}, expected {wanted:?}",
                        short(&read)
                    ));
                }
            }
        }
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
            if self.going.is_some_and(|(going, _)| going == mount) {
                continue;
            }
            task.left -= 1;
            world.note(self.cluster.mounts[mount], || format!("task {number}: {op:?}"));
            let (session, work) = (task.sessions[mount].clone(), op.clone());
            let run = move |client| async move { work.execute(client, session).await };
            let job = self.cluster.jobs.start(world, self.cluster.mounts[mount], run);
            task.running =
                Some(Running { job, op, mount, since_ns: world.now_ns(), may_fail: false, unsure: None });
        }
    }

    /// Compares what has ended with the models.
    pub(crate) fn collect(&mut self) -> Result<(), String> {
        self.cluster.jobs.collect(&mut self.cluster.world);
        for (number, task) in self.tasks.iter_mut().enumerate() {
            let Some(Running { job, op, mount, may_fail, unsure, .. }) =
                task.running.take_if(|r| self.cluster.jobs.is_done(r.job))
            else {
                continue;
            };
            let got: Outcome = self.cluster.jobs.take(job).expect("it is done");
            let world = &mut self.cluster.world;
            world.note(self.cluster.mounts[mount], || format!("task {number}: done {}", short(&got)));
            self.report.operations += 1;
            let in_task = |what: String| format!("task {number} on mount{mount}: {op:?}\n     {what}");
            if let Some(gone) = unsure {
                task.ended_unsure(&op, mount, &got, gone).map_err(in_task)?;
                continue;
            }
            if may_fail && got == Err(Failure::EIO) {
                task.lost(&op);
                continue;
            }
            task.ended(&op, mount, &got, self.cluster.world.now_ns()).map_err(in_task)?;
        }
        Ok(())
    }

    /// Nothing waits for longer than the latest fault explains.
    fn check_alive(&mut self) -> Result<(), String> {
        if let Some(fatal) = self.cluster.world.fatal.first() {
            return Err(format!("an island gave up: {fatal}"));
        }
        let now = self.cluster.world.now_ns();
        let since = self.cluster.world.last_fault_ns;
        let is_old = |began: u64| now.saturating_sub(began.max(since)) > STUCK_NS;
        for task in &self.tasks {
            if let Some(r) = &task.running
                && is_old(r.since_ns)
            {
                return Err(format!("stuck on mount{}: {:?}", r.mount, r.op));
            }
        }
        if self.common.as_ref().is_some_and(|c| is_old(c.since_ns) && !c.is_done(&self.cluster.jobs)) {
            return Err("work on common files is stuck".into());
        }
        if now >= self.next_look_ns {
            self.next_look_ns = now + SECOND;
            if now.saturating_sub(since) > RECOVERY_NS {
                self.recoveries_are_over()?;
            }
        }
        Ok(())
    }

    pub(crate) fn recoveries_are_over(&mut self) -> Result<(), String> {
        let mut open = self.cluster.params(|name| name.ends_with(".recovery_status"));
        open.retain(|(_, _, text)| text.contains("RECOVERING") || text.contains("WAITING"));
        match open.first() {
            Some((server, _, text)) => Err(format!("the recovery of {server} does not end: {text}")),
            None => Ok(()),
        }
    }

    pub(crate) fn call<T: Send + 'static, F: Future<Output = T> + 'static>(
        &mut self,
        mount: usize,
        run: impl FnOnce(std::rc::Rc<nacre_client::Client>) -> F + Send + 'static,
    ) -> Result<T, String> {
        let cluster = &mut self.cluster;
        let job = cluster.jobs.start(&mut cluster.world, cluster.mounts[mount], run);
        let value = cluster.jobs.wait(&mut cluster.world, job, 3 * STUCK_NS);
        value.ok_or_else(|| format!("a call on mount{mount} did not end"))
    }
}
