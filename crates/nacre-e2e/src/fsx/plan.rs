//! Operations and looks, chosen by a seed: the same seed gives the same operations, whatever the mounts reply.

use super::model::{Kind, Model, Via, pattern};
use crate::crash::Rng;
use std::ops::Range;

/// A kind of operation, for `--operations`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sort {
    Write,
    Append,
    Read,
    MappedRead,
    MappedWrite,
    /// Stores beyond the end of the file in its last page, which nobody may ever see
    MappedTail,
    Truncate,
    Ftruncate,
    Punch,
    Zero,
    Allocate,
    Copy,
    Seek,
    Sync,
    Open,
    Close,
    Stat,
    Rename,
    Replace,
}
/// How often each is chosen.
const WEIGHTS: [(Sort, u64); 19] = [
    (Sort::Write, 24),
    (Sort::Append, 6),
    (Sort::Read, 5),
    (Sort::MappedRead, 5),
    (Sort::MappedWrite, 8),
    (Sort::MappedTail, 1),
    (Sort::Truncate, 5),
    (Sort::Ftruncate, 4),
    (Sort::Punch, 6),
    (Sort::Zero, 4),
    (Sort::Allocate, 3),
    (Sort::Copy, 4),
    (Sort::Seek, 4),
    (Sort::Sync, 4),
    (Sort::Open, 10),
    (Sort::Close, 4),
    (Sort::Stat, 3),
    (Sort::Rename, 1),
    (Sort::Replace, 1),
];

/// How bytes are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// pread, pwrite
    At,
    /// lseek, then read or write
    Seek,
    /// preadv, pwritev with so many segments
    Vectors(usize),
}
/// How a new file gets the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replace {
    UnlinkAndCreate,
    RenameOver,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// At the end, if the handle appends.
    Write {
        offset: usize,
        len: usize,
        style: Style,
        /// Zeros, not the bytes of the operation.
        zeros: bool,
        /// The memory begins at a page.
        aligned: bool,
    },
    Read {
        range: Range<usize>,
        style: Style,
        aligned: bool,
    },
    /// `kept`: through the mapping that the handle has, if it is long enough.
    MappedRead {
        range: Range<usize>,
        kept: bool,
    },
    /// `sync`: completed by msync, and otherwise by the end of the mapping.
    MappedWrite {
        range: Range<usize>,
        kept: bool,
        sync: bool,
    },
    /// Stores from the end of the file on, in its last page, and msync.
    MappedTail {
        end: usize,
        len: usize,
    },
    Truncate {
        size: usize,
    },
    Ftruncate {
        size: usize,
    },
    Punch(Range<usize>),
    Zero {
        range: Range<usize>,
        keep_size: bool,
    },
    Allocate {
        range: Range<usize>,
        keep_size: bool,
    },
    Copy {
        from: usize,
        to: usize,
        len: usize,
    },
    Seek,
    Sync {
        data: bool,
    },
    /// Opens the kept handle of this number again.
    Open {
        at: usize,
        kind: Kind,
    },
    Close {
        at: usize,
    },
    Stat,
    Rename,
    Replace(Replace),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Operation {
    number: u32,
    mount: usize,
    via: Via,
    action: Action,
}

/// Which handles are open for some time.
#[derive(Debug, Clone, Copy)]
enum Habit {
    /// All kinds.
    Any,
    /// None: each operation opens the file and closes it.
    Nothing,
    /// Those for reading only: the kernel may use its pages while nobody writes.
    Readers,
}
const HABIT_OPERATIONS: u64 = 120;
/// Choices until one is possible.
const TRIES_MAX: usize = 1000;

pub(super) struct Planner {
    rng: Rng,
    bytes_max: u64,
    weights: Vec<(Sort, u64)>,
    habit: Habit,
    next: u32,
}

impl Planner {
    pub(super) fn new(seed: u64, bytes_max: u64, only: &[Sort]) -> Self {
        let wanted = |sort: &Sort| only.is_empty() || only.contains(sort);
        let weights = WEIGHTS.into_iter().filter(|(sort, _)| wanted(sort)).collect();
        let rng = Rng::new(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 1);
        Self { rng, bytes_max, weights, habit: Habit::Any, next: 0 }
    }
    /// Of all operations and looks so far.
    pub(super) fn count(&self) -> u32 {
        self.next
    }
    pub(super) fn chance(&mut self, one_in: u64) -> bool {
        self.rng.below(one_in) == 0
    }
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    /// The next operation.
    pub(super) fn operation(&mut self, model: &Model) -> Operation {
        self.next += 1;
        if self.chance(HABIT_OPERATIONS) {
            self.habit = [Habit::Any, Habit::Nothing, Habit::Readers, Habit::Readers][self.below(4)];
        }
        let mount = self.below(model.slots().len());
        // Of an empty file, some of the wanted operations are never possible.
        let chosen = (0..TRIES_MAX).find_map(|_| self.choose(model, mount));
        let (via, action) = chosen.unwrap_or((Via::New(Kind::ReadOnly), Action::Stat));
        Operation { number: self.next, mount, via, action }
    }

    /// `None`: there is no such operation now.
    fn choose(&mut self, model: &Model, mount: usize) -> Option<(Via, Action)> {
        let mut at = self.rng.below(self.weights.iter().map(|(_, weight)| weight).sum());
        let (sort, _) = self.weights.iter().find(|(_, weight)| {
            let found = at < *weight;
            at = at.saturating_sub(*weight);
            found
        })?;
        let sort = *sort;
        let writes = !matches!(
            sort,
            Sort::Read | Sort::MappedRead | Sort::Seek | Sort::Stat | Sort::Sync | Sort::Open | Sort::Close
        );
        let via = match sort {
            Sort::Append => self.via(model, mount, |kind| kind == Kind::Append)?,
            Sort::Copy => self.via(model, mount, |kind| kind.is_writable() && kind != Kind::Append)?,
            _ if writes => self.via(model, mount, Kind::is_writable)?,
            _ => self.via(model, mount, |_| true)?,
        };
        let size = model.contents(model.file_of(mount, via)).len();
        let action = match sort {
            Sort::Open | Sort::Close | Sort::Rename | Sort::Replace => self.of_names(sort, model, mount)?,
            _ => self.of_bytes(sort, model.kind(mount, via) == Kind::Append, size)?,
        };
        Some((via, action))
    }
    /// An operation on the bytes of a file of this size.
    fn of_bytes(&mut self, sort: Sort, is_append: bool, size: usize) -> Option<Action> {
        Some(match sort {
            Sort::Write | Sort::Append => {
                (!is_append || size < self.bytes_max as usize).then_some(())?;
                let range = self.range(size, is_append.then_some(size));
                let (zeros, aligned) = (self.chance(12), self.chance(2));
                Action::Write { offset: range.start, len: range.len(), style: self.style(), zeros, aligned }
            }
            Sort::Read => {
                Action::Read { range: self.range(size, None), style: self.style(), aligned: self.chance(2) }
            }
            Sort::MappedRead => Action::MappedRead { range: self.inside(size)?, kept: self.chance(2) },
            Sort::MappedWrite => {
                Action::MappedWrite { range: self.inside(size)?, kept: self.chance(2), sync: self.chance(2) }
            }
            Sort::MappedTail => {
                let room = size.next_multiple_of(super::mapping::PAGE) - size;
                (room > 0).then_some(())?;
                Action::MappedTail { end: size, len: 1 + self.below(room) }
            }
            Sort::Copy => {
                let from = self.inside(size)?;
                let to = self.place(size);
                let is_apart = to + from.len() <= from.start || from.end <= to;
                (is_apart && to + from.len() <= self.bytes_max as usize).then_some(())?;
                Action::Copy { from: from.start, to, len: from.len() }
            }
            Sort::Truncate if self.chance(4) => Action::Truncate { size: 0 },
            Sort::Truncate => Action::Truncate { size: self.place(size) },
            Sort::Ftruncate => Action::Ftruncate { size: self.place(size) },
            Sort::Punch => Action::Punch(self.range(size, None)),
            Sort::Zero => Action::Zero { range: self.range(size, None), keep_size: self.chance(2) },
            Sort::Allocate => Action::Allocate { range: self.range(size, None), keep_size: self.chance(2) },
            Sort::Seek => Action::Seek,
            Sort::Sync => Action::Sync { data: self.chance(2) },
            Sort::Stat => Action::Stat,
            Sort::Open | Sort::Close | Sort::Rename | Sort::Replace => return None,
        })
    }
    /// An operation on a name or a handle.
    fn of_names(&mut self, sort: Sort, model: &Model, mount: usize) -> Option<Action> {
        Some(match sort {
            Sort::Open => {
                let kind = match self.habit {
                    Habit::Any => Kind::ALL[self.below(Kind::ALL.len())],
                    Habit::Nothing => return None,
                    Habit::Readers => Kind::ReadOnly,
                };
                Action::Open { at: self.below(model.slots()[mount].len()), kind }
            }
            Sort::Close => {
                let at = self.below(model.slots()[mount].len());
                model.slots()[mount][at]?;
                Action::Close { at }
            }
            Sort::Rename => Action::Rename,
            Sort::Replace => Action::Replace([Replace::UnlinkAndCreate, Replace::RenameOver][self.below(2)]),
            _ => return None,
        })
    }

    /// A kept handle that is suitable, or a new one. Kept handles against the habit are closed soon: see `stale`.
    fn via(&mut self, model: &Model, mount: usize, suits: impl Fn(Kind) -> bool) -> Option<Via> {
        let slots = &model.slots()[mount];
        let at = self.below(slots.len());
        if let Some(slot) = slots[at]
            && suits(slot.kind())
        {
            return Some(Via::Kept(at));
        }
        let kind = Kind::ALL[self.below(Kind::ALL.len())];
        suits(kind).then_some(Via::New(kind))
    }

    /// A kept handle that does not fit the habit, to be closed.
    pub(super) fn stale(&self, model: &Model) -> Option<(usize, usize)> {
        let is_stale = |kind: Kind| match self.habit {
            Habit::Any => false,
            Habit::Nothing => true,
            Habit::Readers => kind != Kind::ReadOnly,
        };
        model.slots().iter().enumerate().find_map(|(mount, slots)| {
            let at = slots.iter().position(|slot| slot.is_some_and(|slot| is_stale(slot.kind())))?;
            Some((mount, at))
        })
    }
    pub(super) fn close(&mut self, (mount, at): (usize, usize)) -> Operation {
        self.next += 1;
        Operation { number: self.next, mount, via: Via::Kept(at), action: Action::Close { at } }
    }

    fn style(&mut self) -> Style {
        match self.rng.below(4) {
            0 => Style::Seek,
            1 => Style::Vectors(1 + self.below(5)),
            _ => Style::At,
        }
    }
    /// An offset: borders of pages and stripes and the end of the file are frequent.
    fn place(&mut self, size: usize) -> usize {
        const STRIPE: u64 = 64 << 10;
        let size = size as u64;
        let rng = &mut self.rng;
        let place = match rng.below(9) {
            0 => size,
            1 => size.saturating_sub(rng.below(5000)),
            2 => size + rng.below(20_000),
            3 => rng.below(self.bytes_max / 4096) * 4096,
            4 => (rng.below(self.bytes_max / 4096) * 4096 + rng.below(7)).saturating_sub(3),
            5 => (rng.below(self.bytes_max / STRIPE + 1) * STRIPE + rng.below(6000)).saturating_sub(3000),
            6 => rng.below(9000),
            _ => rng.below(self.bytes_max),
        };
        place.min(self.bytes_max - 1) as usize
    }
    /// Not empty, and within the bound of the file.
    fn range(&mut self, size: usize, start: Option<usize>) -> Range<usize> {
        let start = start.unwrap_or_else(|| self.place(size)).min(self.bytes_max as usize - 1);
        let rng = &mut self.rng;
        let len = match rng.below(7) {
            0 => 1,
            1 => 1 + rng.below(100),
            2 => 4096 * (1 + rng.below(8)),
            3 => 4096 * (1 + rng.below(8)) + rng.below(7) - 3,
            4 => 1 + rng.below(150_000),
            _ => 1 + rng.below(15_000),
        };
        start..(start + len as usize).min(self.bytes_max as usize)
    }
    /// Within a file that is not empty.
    fn inside(&mut self, size: usize) -> Option<Range<usize>> {
        let range = self.range(size, None);
        let range = range.start.min(size)..range.end.min(size);
        if !range.is_empty() {
            return Some(range);
        }
        let start = self.below(size);
        (size > 0).then(|| start..(start + 1 + self.below(5000)).min(size))
    }
    /// A look at what an operation has touched, or at anything, through a mount; `None` if it has no way to that file.
    pub(super) fn look(
        &mut self,
        model: &Model,
        (file, touched): (u64, &Range<usize>),
        mount: usize,
    ) -> Option<Operation> {
        let slots = &model.slots()[mount];
        let at = self.below(slots.len());
        let is_kept = slots[at].is_some_and(|slot| slot.file() == file);
        let via = match is_kept {
            true => Via::Kept(at),
            false if file == model.current() => Via::New(Kind::ALL[self.below(Kind::ALL.len())]),
            false => return None,
        };
        let size = model.contents(file).len();
        let range = match self.rng.below(8) {
            0 => 0..size + 1,
            1 => self.range(size, None),
            _ => self.around(touched),
        };
        let action = match self.rng.below(10) {
            0 => Action::Stat,
            1 => Action::Seek,
            2 | 3 => Action::MappedRead { range, kept: true },
            4 => Action::MappedRead { range, kept: false },
            _ => Action::Read { range, style: self.style(), aligned: self.chance(2) },
        };
        self.next += 1;
        Some(Operation { number: self.next, mount, via, action })
    }
    /// Everything, through every handle and a new one of each mount.
    pub(super) fn look_at_all(&mut self, model: &Model) -> Vec<Operation> {
        let mut looks = Vec::new();
        for (mount, slots) in model.slots().iter().enumerate() {
            let kept = slots.iter().enumerate().filter_map(|(at, slot)| slot.map(|slot| (at, slot.file())));
            let kept = kept.map(|(at, file)| (Via::Kept(at), file));
            for (via, file) in kept.chain([(Via::New(Kind::ReadOnly), model.current())]) {
                let range = 0..model.contents(file).len() + 1;
                let mapped = Action::MappedRead { range: range.clone(), kept: true };
                let actions = [
                    Action::Stat,
                    Action::Read { range, style: Style::At, aligned: true },
                    mapped,
                    Action::Seek,
                ];
                for action in actions {
                    self.next += 1;
                    looks.push(Operation { number: self.next, mount, via, action });
                }
            }
        }
        looks
    }
    /// A range and what is around it.
    fn around(&mut self, range: &Range<usize>) -> Range<usize> {
        range.start.saturating_sub(self.below(6000))..range.end + self.below(6000)
    }
}

impl Operation {
    /// A read of everything through a new handle, for a report.
    pub(super) fn read_all(mount: usize, kind: Kind, len: usize) -> Self {
        let action = Action::Read { range: 0..len + 1, style: Style::At, aligned: true };
        Self { number: 0, mount, via: Via::New(kind), action }
    }
    pub(super) fn number(&self) -> u32 {
        self.number
    }
    pub(super) fn mount(&self) -> usize {
        self.mount
    }
    pub(super) fn via(&self) -> Via {
        self.via
    }
    pub(super) fn action(&self) -> &Action {
        &self.action
    }
    /// Whether it only looks at the current file or a kept one.
    pub(super) fn is_look(&self) -> bool {
        matches!(self.action, Action::Read { .. } | Action::MappedRead { .. } | Action::Seek | Action::Stat)
    }
    /// The bytes that it writes at an offset.
    pub(super) fn data(&self, offset: usize, len: usize) -> Vec<u8> {
        match self.action {
            Action::Write { zeros: true, .. } => vec![0; len],
            _ => pattern(self.number, offset, len),
        }
    }

    /// Whether it may load bytes that have changed since: through a mapping of a handle that was opened before. The kernel
    /// drops pages when attributes show another size or time of modification, but mounts, whose clocks differ a little, may
    /// leave the time what it was.
    pub(super) fn may_be_stale(&self) -> bool {
        matches!((&self.action, self.via), (Action::MappedRead { .. }, Via::Kept(_)))
    }
    /// The same look through a handle that is opened for it.
    pub(super) fn through_new_handle(&self) -> Self {
        Self { via: Via::New(Kind::ReadOnly), ..self.clone() }
    }

    /// Changes the model as a correct file system changes the file; returns the file, and the bytes that have changed or were
    /// looked at.
    pub(super) fn apply(&self, model: &mut Model) -> (u64, Range<usize>) {
        let (mount, number) = (self.mount, self.number);
        let file = match self.action {
            Action::Truncate { .. }
            | Action::Open { .. }
            | Action::Close { .. }
            | Action::Rename
            | Action::Replace(_) => model.current(),
            _ => model.file_of(mount, self.via),
        };
        let size = model.contents(file).len();
        let touched = match &self.action {
            Action::Write { offset, len, .. } => {
                model.contents_mut(file).write(*offset, &self.data(*offset, *len), number);
                size.min(*offset)..*offset + *len
            }
            Action::Read { range, .. } | Action::MappedRead { range, .. } => range.clone(),
            Action::MappedWrite { range, .. } => {
                model.contents_mut(file).write(range.start, &self.data(range.start, range.len()), number);
                range.clone()
            }
            Action::MappedTail { end, len } => *end..*end + *len,
            Action::Truncate { size: to } | Action::Ftruncate { size: to } => {
                model.contents_mut(file).resize(*to, number);
                size.min(*to)..size.max(*to)
            }
            Action::Punch(range) => {
                model.contents_mut(file).zero(range.clone(), number);
                range.clone()
            }
            Action::Zero { range, keep_size } | Action::Allocate { range, keep_size } => {
                let contents = model.contents_mut(file);
                if matches!(self.action, Action::Zero { .. }) {
                    contents.zero(range.clone(), number);
                }
                if !keep_size && range.end > size {
                    contents.resize(range.end, number);
                }
                range.clone()
            }
            Action::Copy { from, to, len } => {
                let data = model.contents(file).bytes()[*from..*from + *len].to_vec();
                model.contents_mut(file).write(*to, &data, number);
                size.min(*to)..*to + *len
            }
            Action::Seek | Action::Sync { .. } | Action::Stat => 0..0,
            Action::Open { at, kind } => {
                model.open(mount, *at, *kind);
                0..0
            }
            Action::Close { at } => {
                model.close(mount, *at);
                0..0
            }
            Action::Rename => {
                model.rename();
                0..0
            }
            Action::Replace(_) => {
                model.replace();
                return (model.current(), 0..0);
            }
        };
        (file, touched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operations(seed: u64, only: &[Sort]) -> Vec<Operation> {
        const BYTES_MAX: u64 = 100_001;
        let (mut model, mut planner) = (Model::new(2, 3), Planner::new(seed, BYTES_MAX, only));
        let plan = |_| {
            let operation = planner.operation(&model);
            let (file, touched) = operation.apply(&mut model);
            assert!(model.contents(model.current()).len() as u64 <= BYTES_MAX);
            let look = planner.look(&model, (file, &touched), 1);
            [Some(operation), look]
        };
        (0..600).flat_map(plan).flatten().collect()
    }

    #[test]
    fn a_seed_gives_the_same_operations_each_time_and_another_one_others() {
        assert!(operations(3, &[]) == operations(3, &[]));
        assert!(operations(3, &[]) != operations(4, &[]));
    }

    #[test]
    fn all_operations_occur_or_only_those_that_are_wanted() {
        use std::collections::BTreeSet;
        let kinds = |operations: &[Operation]| -> BTreeSet<String> {
            let name = |operation: &Operation| {
                format!("{:?}", operation.action).split([' ', '(', '{']).next().map(str::to_owned)
            };
            operations.iter().filter_map(name).collect()
        };
        let all = kinds(&operations(1, &[]));
        let expected = "Allocate Close Copy Ftruncate MappedRead MappedTail MappedWrite Open Punch Read Rename Replace Seek \
                        Stat Sync Truncate Write Zero";
        assert_eq!(all.into_iter().collect::<Vec<_>>().join(" "), expected);
        let some = kinds(&operations(1, &[Sort::Append, Sort::Stat]));
        // Looks read and seek.
        assert_eq!(some.into_iter().collect::<Vec<_>>().join(" "), "MappedRead Read Seek Stat Write");
    }
}
