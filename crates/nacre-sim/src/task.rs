//! A sequence of operations in one tree, and the states that they may have left.
//!
//! An operation whose mount died was applied entirely or not at all: from then on there are two models, and a model is
//! dropped when a later result contradicts it. At least one must be left.

use crate::check;
use crate::execute::Session;
use crate::loss::{Gone, History, Left, Lost};
use crate::model::{Kind, Model, Outcome};
use crate::mount::JobId;
use crate::ops::Op;
use nacre_types::Failure;
use std::collections::BTreeMap;

/// Mounts that go away are few.
const MODELS_MAX: usize = 64;

// The fields are open to the crate: the run changes them between operations, and only `models` and `history` have rules.
pub(crate) struct Task {
    pub(crate) base: String,
    models: Vec<Model>,
    /// By mount.
    pub(crate) sessions: Vec<Session>,
    /// The mount of each open handle.
    pub(crate) slot_owner: BTreeMap<u32, usize>,
    pub(crate) left: u32,
    pub(crate) running: Option<Running>,
    /// When a machine may be lost with a mount.
    history: Option<History>,
    /// The operation in flight when both were lost; it may have been applied or not.
    unheard: Option<Op>,
}

/// An operation in progress: a plain record.
pub(crate) struct Running {
    pub(crate) job: JobId,
    pub(crate) op: Op,
    pub(crate) mount: usize,
    pub(crate) since_ns: u64,
    /// Its mount has slept: it may have failed although it was made.
    pub(crate) may_fail: bool,
    /// This mount and a machine were lost meanwhile: earlier changes may be gone or not.
    pub(crate) unsure: Option<usize>,
}

impl Task {
    pub(crate) fn new(base: String, mounts: usize, operations: u32, lose_both: bool) -> Self {
        let mut model = Model::default();
        model.make(&base, Kind::Directory(BTreeMap::new()), 0o755).expect("an empty model");
        Self {
            base,
            history: lose_both.then(|| History::new(vec![model.clone()])),
            unheard: None,
            models: vec![model],
            sessions: (0..mounts).map(|_| Session::default()).collect(),
            slot_owner: BTreeMap::new(),
            left: operations,
            running: None,
        }
    }

    /// Whether it runs something on this mount that could be made by halves.
    pub(crate) fn is_divisible_on(&self, mount: usize) -> bool {
        self.running.as_ref().is_some_and(|r| r.mount == mount && !r.op.is_one_change())
    }

    /// Takes in the outcome of an operation.
    pub(crate) fn ended(&mut self, op: &Op, mount: usize, got: &Outcome, now_ns: u64) -> Result<(), String> {
        let (mut wanted, mut made_inode) = (None, false);
        self.models.retain_mut(|model| {
            let inodes = model.inodes.len();
            let want = op.apply(model);
            let agrees = op.agrees(got, &want);
            wanted.get_or_insert(want);
            made_inode |= agrees && model.inodes.len() > inodes;
            agrees
        });
        if got.is_ok() {
            self.handles_after(op, mount);
            if let Some(history) = &mut self.history {
                history.add(op, mount, made_inode, now_ns);
            }
        }
        match wanted {
            Some(want) if self.models.is_empty() => Err(format!(
                "gave {}\n expected {}{}",
                short(got),
                short(&want),
                first_difference(got, &want)
            )),
            _ => Ok(()),
        }
    }

    /// When a mount has changed something last, and which.
    pub(crate) fn latest_changer(&self) -> Option<(u64, usize)> {
        self.history.as_ref()?.latest()
    }

    fn handles_after(&mut self, op: &Op, mount: usize) {
        match op {
            Op::Open(slot, _) => {
                self.slot_owner.insert(*slot, mount);
            }
            Op::Close(slot) => {
                self.slot_owner.remove(slot);
            }
            _ => {}
        }
    }

    /// The same for an operation during which a mount and a machine were lost; [`Task::settle`] determines its outcome.
    pub(crate) fn ended_unsure(
        &mut self,
        op: &Op,
        mount: usize,
        got: &Outcome,
        gone: usize,
    ) -> Result<(), String> {
        // It has found a file, which may be lost by now, or has made one after that.
        let found = match op {
            Op::Create { path, exclusive: false, .. } => self.models.iter().any(|m| m.file(path).is_ok()),
            _ => false,
        };
        if mount == gone || (found && got.is_ok()) {
            self.unheard = Some(op.clone());
            return Ok(());
        }
        match (got, &mut self.history) {
            (Ok(_), Some(history)) => history.add_unsure(op, mount),
            (Err(Failure::EIO), _) => return Err("a survivor's operation failed with EIO".into()),
            _ => {}
        }
        if got.is_ok() {
            self.handles_after(op, mount);
        }
        Ok(())
    }
    /// After the loss of a mount and a machine: which models what is seen belongs to. They go on from it.
    pub(crate) fn settle(&mut self, lost: &Lost, left: &Left) -> Result<Gone, Vec<String>> {
        let history = self.history.as_ref().expect("it is kept where a mount and a machine go");
        let unheard = self.unheard.take();
        let (models, gone) = history.settle(lost, unheard.as_ref(), &self.base, left)?;
        self.models = models;
        self.history = Some(History::new(self.models.clone()));
        Ok(gone)
    }

    /// An operation whose caller is gone and whose outcome is unknown.
    pub(crate) fn lost(&mut self, op: &Op) {
        for i in 0..self.models.len() {
            let mut made = self.models[i].clone();
            if op.apply(&mut made).is_ok() && op.is_change() {
                self.models.push(made);
            }
        }
        assert!(self.models.len() <= MODELS_MAX, "mounts go away all the time");
    }

    /// Handles of a mount that is gone are closed.
    pub(crate) fn mount_gone(&mut self, mount: usize) {
        for slot in self.slots_of(mount) {
            self.forget_slot(slot);
        }
        self.sessions[mount] = Session::default();
    }
    pub(crate) fn slots_of(&self, mount: usize) -> Vec<u32> {
        self.slot_owner.iter().filter(|s| *s.1 == mount).map(|s| *s.0).collect()
    }
    /// A handle is closed; what reading it may have given just before, unless its file has no name.
    pub(crate) fn forget_slot(&mut self, slot: u32) -> Option<Vec<Outcome>> {
        self.slot_owner.remove(&slot);
        let mut reads = Some(Vec::new());
        for model in &mut self.models {
            let Some(i) = model.open.remove(&slot) else { continue };
            match &mut reads {
                Some(reads) if model.inode(i).nlink > 0 => {
                    reads.push(model.read(i, 0, 100).map_err(Failure::from))
                }
                _ => reads = None,
            }
        }
        reads
    }

    /// Compares a tree as a mount shows it.
    pub(crate) fn compare(&mut self, seen: &check::Tree) -> Result<(), Vec<String>> {
        let base = self.base.clone();
        let mut fewest: Option<Vec<String>> = None;
        self.models.retain(|model| {
            let differences = check::differences(&check::expected(model, &base), seen);
            let same = differences.is_empty();
            if fewest.as_ref().is_none_or(|f| f.len() > differences.len()) {
                fewest = Some(differences);
            }
            same
        });
        if self.models.is_empty() { Err(fewest.unwrap_or_default()) } else { Ok(()) }
    }
}

pub(crate) fn short(outcome: &Outcome) -> String {
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
