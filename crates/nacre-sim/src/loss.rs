//! Changes that may be lost when a client is gone for good, or for longer than its lease, together with the machine of a
//! server.
//!
//! Surviving clients replay their own lost changes; those of the lost client are not replayed. The MDT keeps a prefix of
//! its changes of names and attributes, so the lost client's changes are gone from some change on, none of them before a
//! sync. Under `commit_on_sharing` no change of another client depends on them: without them every change of a survivor has
//! the same result. Where the lost client has written since the file was synced, the bytes are those of any moment since,
//! or zeros; where a survivor has written later, they are the survivor's.

use crate::check::{self, Tree};
use crate::model::{Kind, Model};
use crate::ops::Op;
use nacre_client::AllocateMode;
use std::collections::BTreeMap;

/// Bound of the models that are kept after a loss. All of them fit what was seen, so further ones are dropped.
const ENDS_MAX: usize = 8;

/// The changes of a task that a loss may meet.
pub(crate) struct History {
    /// The durable state before the changes.
    start: Vec<Model>,
    log: Vec<Done>,
    /// Of so many of them names and attributes are durable.
    named: usize,
    latest: Option<(u64, usize)>,
}

/// A change whose reply was a success, or an fsync.
struct Done {
    op: Op,
    mount: usize,
    /// It has made an inode: a history in which it finds one is none.
    must_make: bool,
}

/// A loss: a client, and the machine of a server. A plain record.
#[derive(Debug, Clone)]
pub(crate) struct Lost {
    /// The client that was lost.
    pub(crate) mount: usize,
    /// The machine of the MDT was lost.
    pub(crate) names: bool,
}

/// The state of a task that is seen afterwards: a plain record.
pub(crate) struct Left {
    pub(crate) tree: Tree,
    /// Bytes that are read through open handles.
    pub(crate) handles: BTreeMap<u32, Vec<u8>>,
    /// Sizes that were not those of the bytes, before somebody truncated them. NOT YET in the product: an exact size at the
    /// MDT and bytes at an OST that do not belong together, when no client is left that knows the size.
    pub(crate) odd_sizes: BTreeMap<String, usize>,
}

/// Changes that `loss` has found lost: a plain record.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gone {
    pub(crate) anything: bool,
    /// Files whose create, or whose opening for writing, may be: the MDT does not know that they have objects. NOT YET in the
    /// product: an OST does not learn it.
    pub(crate) files: u64,
}

impl History {
    pub(crate) fn new(start: Vec<Model>) -> Self {
        Self { start, log: Vec::new(), named: 0, latest: None }
    }

    /// An operation has succeeded.
    pub(crate) fn add(&mut self, op: &Op, mount: usize, made_inode: bool, now_ns: u64) {
        match op {
            Op::Create { .. } if !made_inode => return,
            Op::Fsync(_) => self.named = self.log.len() + 1,
            _ if !op.is_change() => return,
            _ => {}
        }
        self.latest = Some((now_ns, mount));
        self.log.push(Done { op: op.clone(), mount, must_make: made_inode });
    }
    /// Time and mount of the latest change.
    pub(crate) fn latest(&self) -> Option<(u64, usize)> {
        self.latest
    }
    /// The same for an operation that was in flight: it took effect before the loss or after it.
    pub(crate) fn add_unsure(&mut self, op: &Op, mount: usize) {
        if op.is_change() {
            self.log.push(Done { op: op.clone(), mount, must_make: false });
        }
    }

    /// The models that agree with the visible state, and the changes that are gone. `unheard` may have been executed or
    /// not.
    pub(crate) fn settle(
        &self,
        lost: &Lost,
        unheard: Option<&Op>,
        base: &str,
        left: &Left,
    ) -> Result<(Vec<Model>, Gone), Vec<String>> {
        let mut nearest: Option<Vec<String>> = None;
        let (mut models, mut least) = (Vec::new(), Gone::default());
        for end in self.ends(lost, unheard) {
            let written = end.doubts.values().filter(|doubt| doubt.theirs && lost.names).count() as u64;
            match end.fit(base, left) {
                Ok((model, gone)) => {
                    if models.is_empty() {
                        least.anything = gone.anything;
                    }
                    least.files = least.files.max(gone.files + written);
                    models.push(model);
                }
                Err(why) if nearest.as_ref().is_none_or(|n| n.len() > why.len()) => nearest = Some(why),
                Err(_) => {}
            }
        }
        models.truncate(ENDS_MAX);
        if models.is_empty() { Err(nearest.unwrap_or_default()) } else { Ok((models, least)) }
    }

    /// All states that are possible now, those with the smallest loss first.
    fn ends(&self, lost: &Lost, unheard: Option<&Op>) -> Vec<End> {
        let mut ends = Vec::new();
        let earliest = if lost.names { self.named } else { self.log.len() };
        for kept in (earliest..=self.log.len()).rev() {
            let is_theirs = |done: &Done| done.mount == lost.mount && is_of_names(&done.op);
            if self.log.get(kept).is_some_and(|done| !is_theirs(done)) {
                continue; // the same as with one more
            }
            for end in self.start.iter().filter_map(|start| self.replay(start, kept, lost.mount)) {
                let mut made = end.clone();
                if unheard.is_some_and(|op| op.apply(&mut made.model).is_ok()) {
                    ends.push(made);
                }
                ends.push(end);
            }
        }
        ends
    }

    /// With the changes of `gone` from `kept` on left out; `None` when a survivor has built on them.
    fn replay(&self, start: &Model, kept: usize, gone: usize) -> Option<End> {
        let mut end = End { model: start.clone(), doubts: BTreeMap::new(), gone: Gone::default() };
        for (number, Done { op, mount, must_make }) in self.log.iter().enumerate() {
            let theirs = *mount == gone;
            if theirs && number >= kept && is_of_names(op) {
                end.gone.anything = true;
                end.gone.files += u64::from(matches!(op, Op::Create { .. }));
                continue;
            }
            let inodes = end.model.inodes.len();
            let before = file_of(op, &end.model).map(|i| (i, end.model.content(i).to_vec()));
            match op.apply(&mut end.model) {
                Ok(_) if *must_make && end.model.inodes.len() == inodes => return None,
                Ok(_) => {}
                Err(_) if theirs => continue,
                Err(_) => return None,
            }
            if let Some((i, before)) = before {
                end.weigh(op, i, before, theirs);
            }
        }
        Some(end)
    }
}

/// Whether the MDT alone makes it.
fn is_of_names(op: &Op) -> bool {
    let is_of_handles = matches!(op, Op::Open(..) | Op::Close(_) | Op::Fsync(_));
    !is_of_handles && !is_of_bytes(op)
}
fn is_of_bytes(op: &Op) -> bool {
    matches!(
        op,
        Op::Write { .. }
            | Op::Append { .. }
            | Op::Truncate(..)
            | Op::Allocate { .. }
            | Op::WriteSlot { .. }
            | Op::TruncateSlot { .. }
    )
}
/// The file whose bytes it changes or makes durable.
fn file_of(op: &Op, model: &Model) -> Option<usize> {
    match op {
        Op::Write { path, .. } | Op::Append { path, .. } | Op::Allocate { path, .. } => model.file(path).ok(),
        Op::Truncate(path, _) | Op::Fsync(path) => model.file(path).ok(),
        Op::WriteSlot { slot, .. } | Op::TruncateSlot { slot, .. } => model.open.get(slot).copied(),
        _ => None,
    }
}

/// A state after the loss, with the files that are not certain.
#[derive(Clone)]
struct End {
    model: Model,
    doubts: BTreeMap<usize, Doubt>,
    gone: Gone,
}

/// Permitted contents of a file.
#[derive(Clone)]
struct Doubt {
    /// Its contents at each moment since it was synced.
    states: Vec<Vec<u8>>,
    /// The mount that has gone is among those who have written since.
    theirs: bool,
    /// Bytes whose latest writer has gone.
    doubtful: Vec<bool>,
    sizes: (usize, usize),
}

impl End {
    fn weigh(&mut self, op: &Op, i: usize, before: Vec<u8>, theirs: bool) {
        if matches!(op, Op::Fsync(_)) {
            self.doubts.remove(&i);
            return;
        }
        let after = self.model.content(i).to_vec();
        let (old, new) = (before.len(), after.len());
        let first = Doubt { states: vec![before], doubtful: Vec::new(), sizes: (old, old), theirs: false };
        let doubt = self.doubts.entry(i).or_insert(first);
        doubt.theirs |= theirs;
        let (least, most) = doubt.sizes;
        let (start, end) = match op {
            Op::Write { offset, len, .. } | Op::WriteSlot { offset: Some(offset), len, .. } => {
                // A write beyond the end fills the hole before it with zeros.
                let start = *offset as usize;
                (if theirs { start.min(old) } else { start }, start + len)
            }
            Op::Truncate(_, size) | Op::TruncateSlot { size, .. } => (*size as usize, old.max(new).max(most)),
            // It may say a size, and writes nothing over what a lost truncate would have cut.
            Op::Allocate { mode: AllocateMode::Space { keep_size: true }, .. } if !theirs => (0, 0),
            Op::Allocate { offset, len, mode: AllocateMode::Space { .. }, .. } if !theirs => {
                ((offset + len) as usize, (offset + len) as usize)
            }
            Op::Allocate { offset, len, mode: AllocateMode::Hole | AllocateMode::Zeros { .. }, .. } => {
                let end = ((offset + len) as usize).min(new);
                let start = (*offset as usize).min(end);
                (if theirs { start.min(old) } else { start }, end)
            }
            _ => (old.min(new), new),
        };
        if doubt.doubtful.len() < end {
            doubt.doubtful.resize(end, false);
        }
        doubt.doubtful[start.min(end)..end].fill(theirs);
        doubt.sizes = match op {
            _ if !doubt.theirs => (new, new),
            _ if theirs => (least.min(new), most.max(new)),
            Op::Truncate(..) | Op::TruncateSlot { .. } => (new, new),
            // Zeros say nothing of the size.
            Op::Allocate { mode: AllocateMode::Hole | AllocateMode::Zeros { keep_size: true }, .. } => {
                (least, most.max(new))
            }
            _ => (least.max(end), most.max(new)),
        };
        doubt.states.push(after);
    }

    /// The model with what is seen where it was in doubt.
    fn fit(mut self, base: &str, left: &Left) -> Result<(Model, Gone), Vec<String>> {
        let Left { tree: seen, handles, odd_sizes } = left;
        self.model.open.retain(|slot, _| handles.contains_key(slot));
        let by_name = seen.iter().filter(|(_, seen)| seen.stat.kind == 'f');
        let mut found: Vec<(String, Option<usize>, &Vec<u8>)> =
            by_name.map(|(path, seen)| (path.clone(), self.model.file(path).ok(), &seen.bytes)).collect();
        found.extend(
            handles.iter().map(|(s, bytes)| (format!("handle {s}"), self.model.open.get(s).copied(), bytes)),
        );
        let mut wrong = Vec::new();
        for (path, &size) in odd_sizes {
            let doubt = self.model.file(path).ok().and_then(|i| self.doubts.get(&i)).filter(|d| d.theirs);
            if doubt.is_none_or(|d| size < d.sizes.0 || size > d.sizes.1) {
                wrong.push(format!("{path}: says {size} bytes and has others"));
            }
        }
        for (name, i, bytes) in found {
            let Some(i) = i else {
                wrong.push(format!("{name}: should not be there"));
                continue;
            };
            if let Some(doubt) = self.doubts.remove(&i).filter(|doubt| doubt.theirs) {
                wrong.extend(doubt.refute(self.model.content(i), bytes).map(|why| format!("{name}: {why}")));
                self.gone.anything |= self.model.content(i) != bytes.as_slice();
                self.model.inodes[i].kind = Kind::File(bytes.clone());
            }
            if self.model.content(i) != bytes.as_slice() {
                wrong.push(format!("{name}: contents differ"));
            }
        }
        wrong.extend(check::differences(&check::expected(&self.model, base), seen));
        if wrong.is_empty() { Ok((self.model, self.gone)) } else { Err(wrong) }
    }
}

impl Doubt {
    /// Why these bytes cannot be.
    fn refute(&self, latest: &[u8], seen: &[u8]) -> Option<String> {
        let (least, most) = self.sizes;
        if seen.len() < least || seen.len() > most {
            return Some(format!("has {} bytes, expected {least} to {most}", seen.len()));
        }
        let byte = |state: &[u8], at: usize| state.get(at).copied().unwrap_or(0);
        let at = (0..seen.len()).find(|&at| match self.doubtful.get(at) {
            Some(true) => seen[at] != 0 && self.states.iter().all(|state| byte(state, at) != seen[at]),
            _ => seen[at] != byte(latest, at),
        })?;
        Some(format!(
            "byte {at} is {}, of the latest state {}; its latest writer {}",
            seen[at],
            byte(latest, at),
            if self.doubtful.get(at) == Some(&true) { "has gone" } else { "is there" }
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter;

    const GOES: usize = 0;
    const STAYS: usize = 1;

    fn start() -> Model {
        let mut model = Model::default();
        model.make("/t", Kind::Directory(BTreeMap::new()), 0o755).expect("an empty model");
        model
    }
    fn create(path: &str) -> Op {
        Op::Create { path: path.into(), exclusive: true, stripes: 0 }
    }
    fn write(offset: u64, len: usize, byte: u8) -> Op {
        Op::Write { path: "/t/f".into(), offset, len, byte, sync: false }
    }
    fn history(log: &[(usize, Op)]) -> History {
        let (mut history, mut model) = (History::new(vec![start()]), start());
        for (mount, op) in log {
            let inodes = model.inodes.len();
            op.apply(&mut model).expect("succeeds");
            history.add(op, *mount, model.inodes.len() > inodes, 0);
        }
        history
    }
    /// The state after exactly these operations.
    fn found<'a>(ops: impl IntoIterator<Item = &'a Op>) -> Left {
        let mut model = start();
        ops.into_iter().for_each(|op| drop(op.apply(&mut model).expect("succeeds")));
        Left { tree: check::expected(&model, "/t"), handles: BTreeMap::new(), odd_sizes: BTreeMap::new() }
    }
    /// Whether that may be, and something is gone.
    fn gone(history: &History, names: bool, left: &Left) -> Option<bool> {
        let settled = history.settle(&Lost { mount: GOES, names }, None, "/t", left);
        settled.ok().map(|(_, gone)| gone.anything)
    }

    #[test]
    fn only_names_of_the_mount_that_went_may_be_gone_and_none_before_a_sync() {
        let (theirs, ours) = (create("/t/a"), create("/t/b"));
        let mut log = vec![(GOES, theirs.clone()), (STAYS, ours.clone())];
        let h = history(&log);
        assert_eq!(gone(&h, true, &found([&theirs, &ours])), Some(false));
        assert_eq!(gone(&h, true, &found([&ours])), Some(true));
        assert_eq!(gone(&h, false, &found([&ours])), None, "the MDT has lost nothing");
        assert_eq!(gone(&h, true, &found([&theirs])), None, "a survivor makes its own again");
        assert_eq!(gone(&h, true, &found([])), None);
        assert_eq!(gone(&h, true, &found([&theirs, &ours, &create("/t/c")])), None, "nobody has made it");
        log.push((STAYS, Op::Fsync("/t/b".into())));
        assert_eq!(
            gone(&history(&log), true, &found([&ours])),
            None,
            "a sync of the MDT is one of everything"
        );
        let built_on = Op::Rename { from: "/t/a".into(), to: "/t/c".into(), flags: 0 };
        let h = history(&[(GOES, theirs.clone()), (STAYS, built_on)]);
        assert_eq!(gone(&h, true, &found([])), None, "a survivor has built on it");
    }

    #[test]
    fn bytes_are_the_survivors_or_those_of_any_moment_or_zeros() {
        let (old, theirs, ours) = (write(0, 60, 1), write(0, 100, 2), write(50, 10, 3));
        let made = [(STAYS, create("/t/f")), (STAYS, old), (STAYS, Op::Fsync("/t/f".into()))];
        let h = history(&made.into_iter().chain([(GOES, theirs), (STAYS, ours)]).collect::<Vec<_>>());
        let may_be = |bytes: &[(usize, u8)]| {
            let mut left = found([&create("/t/f")]);
            let file = left.tree.get_mut("/t/f").expect("made");
            file.bytes = bytes.iter().flat_map(|(len, byte)| iter::repeat_n(*byte, *len)).collect();
            file.stat.size = file.bytes.len() as u64;
            gone(&h, false, &left)
        };
        assert_eq!(may_be(&[(50, 2), (10, 3), (40, 2)]), Some(false), "all are there");
        assert_eq!(may_be(&[(50, 1), (10, 3)]), Some(true), "the older bytes, and their size");
        assert_eq!(may_be(&[(20, 0), (30, 2), (10, 3), (30, 0)]), Some(true), "some, and zeros");
        assert_eq!(may_be(&[(50, 2), (10, 2), (40, 2)]), None, "the survivor's are gone");
        assert_eq!(may_be(&[(50, 4), (10, 3), (40, 2)]), None, "nobody has written these");
        assert_eq!(may_be(&[(50, 2), (9, 3)]), None, "too short for the survivor's");
        assert_eq!(may_be(&[(50, 2), (10, 3), (41, 2)]), None, "too long");
        assert_eq!(may_be(&[(50, 2), (10, 3), (39, 2), (1, 1)]), None, "never there");
    }
}
