//! Loss of power of the whole machine: servers, mounts and everything that was not synced.
//!
//! Afterwards this must hold: the namespace is that of some moment between the last sync and the loss (each
//! target keeps a prefix of its own changes), and every file that was not changed after its last sync has its
//! bytes. Files that were changed later may have any mixture, and are not checked.

use crate::check::{self, Tree};
use crate::cluster::Cluster;
use crate::execute::Session;
use crate::model::{Kind, Model, Outcome};
use crate::offline;
use crate::ops::Op;
use crate::plan::{FailedSeed, Plan, Report};
use crate::run::{SECOND, STUCK_NS};
use nacre_client::Client;
use nacre_node::Rng;
use nacre_node::store::Store;
use nacre_types::Failure;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The state after each operation since the namespace was last durable.
struct History {
    /// After the operation of this number, from `first` on.
    snapshots: Vec<Model>,
    first: usize,
    /// The operation that made an inode's bytes durable.
    synced: BTreeMap<usize, usize>,
    synced_all: usize,
}

impl History {
    fn last(&self) -> usize {
        self.first + self.snapshots.len() - 1
    }
    /// The namespace is durable as it is now.
    fn sync_namespace(&mut self) {
        self.first = self.last();
        self.snapshots.drain(..self.snapshots.len() - 1);
    }
    /// Bytes of an inode that no operation has changed since they were synced.
    fn certain(&self, i: usize, bytes_before: &BTreeMap<usize, Vec<(usize, Vec<u8>)>>) -> Option<Vec<u8>> {
        let synced = self.synced.get(&i).copied().unwrap_or(0).max(self.synced_all);
        let changes = bytes_before.get(&i)?;
        match changes.last() {
            Some((at, bytes)) if *at <= synced => Some(bytes.clone()),
            _ => None,
        }
    }
}

/// Runs a plan up to the loss of power, and looks at what is left.
pub fn run(plan: &Plan, trace_lines: usize) -> Result<Report, FailedSeed> {
    let mut cluster = Cluster::of(plan);
    cluster.world.trace_max = trace_lines.max(1);
    let mut report = Report { machines: 1, ..Report::default() };
    match lose_power(plan, &mut cluster, &mut report) {
        Ok(()) => {
            report.virtual_ms = cluster.world.now_ns() / 1_000_000;
            Ok(report)
        }
        Err(what) => Err(FailedSeed { what, trace: cluster.world.trace(trace_lines) }),
    }
}

fn lose_power(plan: &Plan, cluster: &mut Cluster, report: &mut Report) -> Result<(), String> {
    cluster.ready(0)?;
    know_all(plan, cluster)?;
    let mut work = Work::new(cluster.mounts.len());
    let operations = 10 + cluster.world.rng().below(u64::from(plan.ops_per_task) * 2) as usize;
    for number in 1..=operations {
        work.operate(plan, cluster, number, number == operations)?;
        report.operations += 1;
    }
    cluster.lose_power()?;
    let fresh = cluster.mounts.len() - 1;
    cluster.ready(fresh)?;
    let job = cluster.jobs.start(&mut cluster.world, cluster.mounts[fresh], |client| async move {
        check::walk_what_is_left(&client, "").await
    });
    let seen: Result<Tree, Failure> = cluster
        .jobs
        .wait(&mut cluster.world, job, STUCK_NS)
        .ok_or("the tree cannot be walked after a loss of power")?;
    let seen = seen.map_err(|e| format!("the tree cannot be walked after a loss of power: {e}"))?;
    judge(&work.history, &work.bytes, &seen)?;
    check_stores(cluster, fresh)
}

/// The operations up to the loss, on all mounts in turn.
struct Work {
    model: Model,
    history: History,
    /// Every state of a file's bytes, with the number of the operation that led to it.
    bytes: BTreeMap<usize, Vec<(usize, Vec<u8>)>>,
    sessions: Vec<Session>,
    /// The mount that has the handle in a slot.
    slot_owner: BTreeMap<u32, usize>,
    /// The file that was written last.
    written: Option<String>,
}

impl Work {
    fn new(mounts: usize) -> Self {
        let model = Model::default();
        Self {
            history: History {
                snapshots: vec![model.clone()],
                first: 0,
                synced: BTreeMap::new(),
                synced_all: 0,
            },
            model,
            bytes: BTreeMap::new(),
            sessions: (0..mounts).map(|_| Session::default()).collect(),
            slot_owner: BTreeMap::new(),
            written: None,
        }
    }

    fn draw(&mut self, plan: &Plan, rng: &mut Rng) -> Op {
        let op = match (rng.below(20), self.written.take()) {
            (0, _) => Op::SyncAll,
            // As an editor does: it writes a file and syncs it.
            (1..=6, Some(path)) => Op::Fsync(path),
            _ => Op::random(rng, "", plan.big),
        };
        if let Op::Write { path, .. } | Op::Append { path, .. } = &op {
            self.written = Some(path.clone());
        }
        op
    }

    /// One operation on a mount and on the model. The last one may be interrupted by the loss.
    fn operate(
        &mut self,
        plan: &Plan,
        cluster: &mut Cluster,
        number: usize,
        is_last: bool,
    ) -> Result<(), String> {
        let op = self.draw(plan, cluster.world.rng());
        let drawn = cluster.world.rng().below(self.sessions.len() as u64) as usize;
        let mount = op.slot().and_then(|slot| self.slot_owner.get(&slot)).copied().unwrap_or(drawn);
        let node = cluster.mounts[mount];
        cluster.world.note(node, || format!("operation {number}: {op:?}"));
        let (session, work) = (self.sessions[mount].clone(), op.clone());
        let job = cluster.jobs.start(&mut cluster.world, node, move |client| async move {
            work.execute(client, session).await
        });
        if is_last {
            // The power goes somewhere in the last one, or shortly after it.
            let until = cluster.world.now_ns() + cluster.world.rng().below(20_000_000);
            cluster.world.run_until(until, |_| false);
            cluster.jobs.collect(&mut cluster.world);
        }
        let got: Option<Outcome> = match is_last {
            true => cluster.jobs.take(job),
            false => cluster.jobs.wait(&mut cluster.world, job, STUCK_NS),
        };
        let want = op.apply(&mut self.model);
        match &got {
            Some(got) if !op.agrees(got, &want) => {
                return Err(format!("{op:?} gave {got:?}, expected {want:?}"));
            }
            None if !is_last => return Err(format!("{op:?} did not end")),
            _ => {}
        }
        if want.is_ok() {
            self.note_slot(&op, mount);
        }
        self.record(number, &op, got.is_some(), want.is_ok());
        Ok(())
    }

    fn note_slot(&mut self, op: &Op, mount: usize) {
        match op {
            Op::Open(slot, _) => drop(self.slot_owner.insert(*slot, mount)),
            Op::Close(slot) => drop(self.slot_owner.remove(slot)),
            _ => {}
        }
    }

    /// Records the state after an operation, and what a sync that has `ended` made durable.
    fn record(&mut self, number: usize, op: &Op, ended: bool, succeeded: bool) {
        for (i, inode) in self.model.inodes.iter().enumerate() {
            if let Kind::File(now) = &inode.kind {
                let states = self.bytes.entry(i).or_default();
                if states.last().is_none_or(|(_, last)| last != now) {
                    states.push((number, now.clone()));
                }
            }
        }
        self.history.snapshots.push(self.model.clone());
        match op {
            _ if !ended => {}
            Op::SyncAll => {
                self.history.sync_namespace();
                self.history.synced_all = number;
            }
            Op::Fsync(path) if succeeded => {
                self.history.sync_namespace();
                if let Ok(i) = self.model.resolve(path) {
                    self.history.synced.insert(i, number);
                }
            }
            _ => {}
        }
    }
}

/// Unmounts, stops the servers and verifies their stores.
fn check_stores(cluster: &mut Cluster, fresh: usize) -> Result<(), String> {
    // The mounts that died are evicted, and what they had open goes with them.
    cluster.world.run_for(30 * SECOND);
    let job = cluster
        .jobs
        .start(&mut cluster.world, cluster.mounts[fresh], |client| async move { client.unmount().await });
    cluster
        .jobs
        .wait::<()>(&mut cluster.world, job, STUCK_NS)
        .ok_or("the mount does not end after a loss of power")?;
    cluster.world.run_for(SECOND);
    cluster.stop_servers()?;
    let stores: Vec<&dyn Store> = cluster.stores.iter().map(|s| &**s).collect();
    match stores.as_slice() {
        // An overwrite that was cut off before its rows were there leaves a sum that differs: a note, no problem.
        [_, mdt, osts @ ..] => offline::check(*mdt, osts, false),
        _ => Err("a file system without an MDT".into()),
    }
}

/// Waits until every mount knows every OST: a sync of everything on one mount is then one of everybody's changes.
fn know_all(plan: &Plan, cluster: &mut Cluster) -> Result<(), String> {
    for &mount in &cluster.mounts {
        let until = cluster.world.now_ns() + STUCK_NS;
        loop {
            let ask = |client: Rc<Client>| async move {
                client.statfs_targets().await.map_or(0, |targets| targets.len())
            };
            let job = cluster.jobs.start(&mut cluster.world, mount, ask);
            if cluster.jobs.wait(&mut cluster.world, job, STUCK_NS) == Some(plan.osts as usize + 1) {
                break;
            }
            if cluster.world.now_ns() > until {
                return Err("a mount does not learn of all OSTs".into());
            }
            cluster.world.run_for(SECOND / 10);
        }
    }
    Ok(())
}

/// Finds a moment whose namespace is seen, with the bytes that are certain. (Several may have the same names: of two files
/// that were exchanged only the bytes tell.)
fn judge(
    history: &History,
    bytes: &BTreeMap<usize, Vec<(usize, Vec<u8>)>>,
    seen: &Tree,
) -> Result<(), String> {
    let shown = names_only(seen);
    let (mut nearest, mut wrong): (Option<Vec<String>>, _) = (None, Ok(()));
    for model in history.snapshots.iter().rev() {
        let expected = check::expected(model, "");
        let differences = check::differences(&names_only(&expected), &shown);
        if differences.is_empty() {
            match judge_bytes(history, bytes, model, seen) {
                Ok(()) => return Ok(()),
                latest if wrong.is_ok() => wrong = latest,
                Err(_) => {}
            }
        }
        if nearest.as_ref().is_none_or(|n| n.len() > differences.len()) {
            nearest = Some(differences);
        }
    }
    wrong?;
    Err(format!(
        "after a loss of power the names are those of no moment since operation {} (of {}); the nearest differs by\n  {}",
        history.first,
        history.last(),
        nearest.unwrap_or_default().join("\n  ")
    ))
}

fn judge_bytes(
    history: &History,
    bytes: &BTreeMap<usize, Vec<(usize, Vec<u8>)>>,
    model: &Model,
    seen: &Tree,
) -> Result<(), String> {
    for (path, got) in seen {
        let Ok(i) = model.resolve(path) else { continue };
        let (Kind::File(_), Some(want)) = (&model.inode(i).kind, history.certain(i, bytes)) else { continue };
        if got.bytes != want || got.stat.size != want.len() as u64 {
            let at = got.bytes.iter().zip(&want).position(|(a, b)| a != b);
            return Err(format!(
                "after a loss of power {path}, unchanged since it was synced, has {} bytes, says {}, expected {}; differs at {at:?}",
                got.bytes.len(),
                got.stat.size,
                want.len()
            ));
        }
    }
    Ok(())
}

/// The tree without sizes and bytes of files.
fn names_only(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    for seen in tree.values_mut() {
        if seen.stat.kind == 'f' {
            seen.stat.size = 0;
            seen.bytes.clear();
        }
    }
    tree
}
