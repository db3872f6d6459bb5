//! The memtable: changed rows that no run holds yet, and a cache of rows that runs hold.
//!
//! A row carries the number of the flush generation that changed it. Generations up to `clean_gen` are in runs; their
//! rows are *clean* and may be evicted. `current_gen` receives changes. While a flush runs, the generation between them
//! is *frozen*: it is being written, and no row is added to it. If a row of the frozen generation changes again, it
//! moves to the current generation and is omitted from that run: its old value is not needed, because the log segments
//! that are kept until the next flush contain the new one.
//!
//! Invariants: a row without a value hides the rows of runs under its key; a key that is neither here nor covered by a
//! range tombstone has the value that it has in the runs; a row used since the oldest live pin is never evicted.

use crate::table::index::Index;
use crate::table::interval::{IntervalSet, IntervalUndo};
use crate::table::key::Key;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;

/// Memory of a row besides its bytes: share of a tree node, slab entry, allocator overhead.
const ROW_OVERHEAD_BYTES: usize = 144;
const CHUNK_ROWS: usize = 1024;
/// Rows that an insertion of clean rows examines for eviction: normally, and far beyond the limit (where the flusher
/// does most of the work).
const EVICT_STEPS: usize = 8;
const EVICT_STEPS_FAR: usize = 256;
/// Deleted rows that are remembered while a pin may need them; more than these wait for the ordinary eviction.
const GONE_MAX: usize = 64 << 10;
/// Of these, the number that is examined after a transaction: more than a request deletes.
const GONE_STEPS: usize = 16;
/// Rows in the sample that determines which rows are old.
const SAMPLE_ROWS: usize = 512;

/// Index of a row in the slab; valid while the row is pinned.
pub(crate) type Slot = u32;
/// A pinned key without a row: absent, unless it has been written since.
pub(crate) const NO_SLOT: Slot = u32::MAX;

#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    /// `None`: deleted or known to be absent.
    value: Option<Bytes>,
    /// Serial of the latest fetch or transaction that used the row.
    touch: u64,
    generation: u32,
}
impl Row {
    /// `None`: deleted or known to be absent.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }
    pub(crate) fn value_bytes(&self) -> Option<&Bytes> {
        self.value.as_ref()
    }
    /// Serial of the latest fetch or transaction that used the row.
    pub(crate) fn touch(&self) -> u64 {
        self.touch
    }
}

/// The serials that live pins hold.
#[derive(Default)]
pub(crate) struct LivePins {
    window: RefCell<Window>,
}
#[derive(Default)]
struct Window {
    first: u64,
    counts: VecDeque<u32>,
}
/// Holds one serial until it is dropped.
pub(crate) struct Ticket {
    live: Rc<LivePins>,
    serial: u64,
}
impl Ticket {
    pub(crate) fn new(live: &Rc<LivePins>, serial: u64) -> Self {
        let mut w = live.window.borrow_mut();
        if w.counts.is_empty() {
            w.first = serial;
        }
        let at = serial.saturating_sub(w.first) as usize;
        if w.counts.len() <= at {
            w.counts.resize(at + 1, 0);
        }
        if let Some(n) = w.counts.get_mut(at) {
            *n += 1;
        }
        drop(w);
        Self { live: live.clone(), serial }
    }
    pub(crate) fn is_older_than(&self, other: &Self) -> bool {
        self.serial < other.serial
    }
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }
}
impl Drop for Ticket {
    fn drop(&mut self) {
        let mut w = self.live.window.borrow_mut();
        let at = self.serial.saturating_sub(w.first) as usize;
        if let Some(n) = w.counts.get_mut(at) {
            *n = n.saturating_sub(1);
        }
        while w.counts.front() == Some(&0) {
            w.counts.pop_front();
            w.first += 1;
        }
    }
}
impl LivePins {
    /// The oldest serial that is held.
    pub(crate) fn oldest(&self) -> u64 {
        let w = self.window.borrow();
        if w.counts.is_empty() { u64::MAX } else { w.first }
    }
}

/// Undoes one change.
pub(crate) enum Undo {
    /// The previous state of a row.
    Row {
        slot: Slot,
        old: Row,
        bytes: usize,
    },
    /// A row that the change created.
    New {
        slot: Slot,
        key: Key,
    },
    Range(IntervalUndo),
}

/// Bytes by state of their rows: a plain value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemBytes {
    pub(crate) active: u64,
    pub(crate) frozen: u64,
    pub(crate) clean: u64,
}

/// Rows by slot. It grows in chunks, so that no visit has to copy it.
#[derive(Default)]
struct Slab {
    chunks: Vec<Box<[Row]>>,
    free: Vec<Slot>,
}
impl Slab {
    fn row(&self, slot: Slot) -> &Row {
        &self.chunks[slot as usize / CHUNK_ROWS][slot as usize % CHUNK_ROWS]
    }
    fn row_mut(&mut self, slot: Slot) -> &mut Row {
        &mut self.chunks[slot as usize / CHUNK_ROWS][slot as usize % CHUNK_ROWS]
    }
    fn add(&mut self, row: Row) -> Slot {
        if self.free.is_empty() {
            let base = self.chunks.len() * CHUNK_ROWS;
            self.chunks.push((0..CHUNK_ROWS).map(|_| Row::default()).collect());
            self.free.extend((base..base + CHUNK_ROWS).rev().map(|s| s as Slot));
        }
        let slot = self.free.pop().expect("a chunk was just added");
        *self.row_mut(slot) = row;
        slot
    }
    fn take(&mut self, slot: Slot) -> Row {
        self.free.push(slot);
        core::mem::take(self.row_mut(slot))
    }
}

pub(crate) struct Memtable {
    index: Index,
    slab: Slab,
    /// Range tombstones of the current generation (`active_ranges`) and of the frozen one.
    active_ranges: IntervalSet,
    frozen_ranges: IntervalSet,
    current_gen: u32,
    clean_gen: u32,
    serial: u64,
    /// Writes of rows, and rows that came from runs or from an undo.
    changes: u64,
    live: Rc<LivePins>,
    bytes: MemBytes,
    /// Where eviction continues, and the use serial up to which rows are evicted in this round (computed at the first
    /// eviction of a round).
    sweep_at: Key,
    sweep_mark: Option<u64>,
    /// Keys of absent rows that are in no run or hidden by a range tombstone; they are dropped as soon as no pin needs them.
    gone: VecDeque<(u64, Key)>,
    /// Largest number of rows that one range deletion has affected.
    deleted_rows_max: u64,
}

impl Default for Memtable {
    fn default() -> Self {
        Self {
            index: Index::default(),
            slab: Slab::default(),
            active_ranges: IntervalSet::default(),
            frozen_ranges: IntervalSet::default(),
            current_gen: 1,
            clean_gen: 0,
            serial: 1,
            changes: 0,
            live: Rc::default(),
            bytes: MemBytes::default(),
            sweep_at: Key::from_raw(&[]),
            sweep_mark: None,
            gone: VecDeque::new(),
            deleted_rows_max: 0,
        }
    }
}

fn row_bytes(key: &[u8], value: Option<&Bytes>) -> usize {
    let heap_key = if key.len() > 30 { key.len() } else { 0 };
    ROW_OVERHEAD_BYTES + heap_key + value.map_or(0, Bytes::len)
}

impl Memtable {
    pub(crate) fn bytes(&self) -> MemBytes {
        self.bytes
    }
    pub(crate) fn rows(&self) -> usize {
        self.index.len()
    }
    pub(crate) fn live(&self) -> &Rc<LivePins> {
        &self.live
    }
    pub(crate) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
    /// While this number stays the same, no key gets a row.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }
    pub(crate) fn row(&self, slot: Slot) -> &Row {
        self.slab.row(slot)
    }
    fn row_mut(&mut self, slot: Slot) -> &mut Row {
        self.slab.row_mut(slot)
    }
    pub(crate) fn slot(&self, key: &Key) -> Option<Slot> {
        self.index.get(key)
    }
    pub(crate) fn touch(&mut self, slot: Slot) {
        let serial = self.serial;
        self.row_mut(slot).touch = serial;
    }
    /// Whether a range tombstone in memory hides the rows of runs under this key.
    pub(crate) fn hides(&self, raw: &[u8]) -> bool {
        self.active_ranges.contains(raw) || self.frozen_ranges.contains(raw)
    }
    /// Rows in `from..to`, in order, including those that are known to be absent.
    pub(crate) fn range<'a>(
        &'a self,
        from: &Key,
        to: &Key,
    ) -> impl Iterator<Item = (&'a Key, Slot)> + use<'a> {
        self.index.range(from, to)
    }

    fn charge(&mut self, generation: u32, add: usize, sub: usize) {
        let counter = if generation <= self.clean_gen {
            &mut self.bytes.clean
        } else if generation == self.current_gen {
            &mut self.bytes.active
        } else {
            &mut self.bytes.frozen
        };
        *counter = (*counter + add as u64).saturating_sub(sub as u64);
    }
    /// Caches the state of a key in the runs, if the key is not in memory.
    pub(crate) fn insert_clean(&mut self, key: Key, value: Option<Bytes>) -> Slot {
        self.changes += 1;
        let bytes = row_bytes(key.raw(), value.as_ref());
        let slot = self.slab.add(Row { value, touch: self.serial, generation: 0 });
        self.bytes.clean += bytes as u64;
        let there = self.index.get_or_insert(&key, || slot);
        assert!(there == slot, "a cached row was inserted twice");
        slot
    }

    /// Writes or deletes a row in the current generation. `below` tells that runs (or the one being written) may contain
    /// the key.
    pub(crate) fn write(&mut self, key: Key, value: Option<Bytes>, below: bool, undo: &mut Vec<Undo>) {
        self.changes += 1;
        let bytes = row_bytes(key.raw(), value.as_ref());
        let generation = if value.is_none() && !below { 0 } else { self.current_gen };
        if generation == 0 {
            self.note_gone(&key);
        }
        let mut row = Some(Row { value, touch: self.serial, generation });
        self.charge(generation, bytes, 0);
        let slot = self.index.get_or_insert(&key, || self.slab.add(row.take().unwrap_or_default()));
        let Some(row) = row else {
            undo.push(Undo::New { slot, key });
            return;
        };
        let old = core::mem::replace(self.row_mut(slot), row);
        let old_bytes = row_bytes(key.raw(), old.value.as_ref());
        self.charge(old.generation, 0, old_bytes);
        undo.push(Undo::Row { slot, old, bytes });
    }

    /// Deletes every row of `from..to`: here, and in runs if they may contain any (`below`).
    pub(crate) fn delete_range(&mut self, from: Key, to: Key, below: bool, undo: &mut Vec<Undo>) {
        if from >= to {
            return;
        }
        let slots: Vec<(Key, Slot)> = self.range(&from, &to).map(|(k, s)| (k.clone(), s)).collect();
        self.deleted_rows_max = self.deleted_rows_max.max(slots.len() as u64);
        for (key, slot) in slots {
            self.note_gone(&key);
            // A clean row need not be kept, because the range tombstone hides it as well.
            let gone = Row { value: None, touch: self.serial, generation: 0 };
            let old = core::mem::replace(self.row_mut(slot), gone);
            let bytes = row_bytes(key.raw(), None);
            let old_bytes = bytes + old.value.as_ref().map_or(0, Bytes::len);
            self.charge(old.generation, 0, old_bytes);
            self.bytes.clean += bytes as u64;
            undo.push(Undo::Row { slot, old, bytes });
        }
        if below && let Some(change) = self.active_ranges.insert(from, to) {
            self.bytes.active += ROW_OVERHEAD_BYTES as u64;
            undo.push(Undo::Range(change));
        }
    }

    /// A clean row is absent now.
    fn note_gone(&mut self, key: &Key) {
        if self.gone.len() < GONE_MAX {
            self.gone.push_back((self.serial, key.clone()));
        }
    }
    /// Largest number of rows that one range deletion has affected, which is work of one visit.
    pub(crate) fn deleted_rows_max(&self) -> u64 {
        self.deleted_rows_max
    }
    /// Drops clean rows of a range and examines at most `steps` rows. Returns the key to continue from, if there is
    /// more, and the number of examined rows that had to stay.
    pub(crate) fn drop_clean(&mut self, from: &Key, to: &Key, steps: usize) -> (Option<Key>, usize) {
        self.drop_rows(from, to, steps, |_, _| true)
    }
    /// Drops clean rows that are known to be absent, and that no run has according to `may_hold`: a lookup finds that out
    /// again without a read. Returns the key to continue from, if there is more.
    pub(crate) fn drop_absent(
        &mut self,
        from: &Key,
        to: &Key,
        steps: usize,
        may_hold: impl Fn(&[u8]) -> bool,
    ) -> Option<Key> {
        self.drop_rows(from, to, steps, |key, row| row.value.is_none() && !may_hold(key.raw())).0
    }
    fn drop_rows(
        &mut self,
        from: &Key,
        to: &Key,
        steps: usize,
        may_go: impl Fn(&Key, &Row) -> bool,
    ) -> (Option<Key>, usize) {
        let (oldest, clean_gen, slab) = (self.live.oldest(), self.clean_gen, &self.slab);
        let mut end = None;
        let mut victims = Vec::new();
        let mut seen = 0;
        for (key, slot) in self.range(from, to) {
            if seen == steps {
                end = Some(key.clone());
                break;
            }
            seen += 1;
            let row = slab.row(slot);
            if row.generation <= clean_gen && row.touch < oldest && may_go(key, row) {
                victims.push(key.clone());
            }
        }
        let stay = seen - victims.len();
        for key in victims {
            let Some(slot) = self.index.remove(&key) else { continue };
            let row = self.slab.take(slot);
            let bytes = row_bytes(key.raw(), row.value.as_ref()) as u64;
            self.bytes.clean = self.bytes.clean.saturating_sub(bytes);
        }
        (end, stay)
    }

    /// Undoes the changes from `keep` on.
    pub(crate) fn roll_back(&mut self, undo: &mut Vec<Undo>, keep: usize) {
        while undo.len() > keep {
            match undo.pop().expect("longer than `keep`") {
                Undo::Row { slot, old, bytes } => {
                    self.changes += 1;
                    let now = self.row(slot);
                    let (generation, now_len) = (now.generation, now.value.as_ref().map_or(0, Bytes::len));
                    let old_bytes = bytes - now_len + old.value.as_ref().map_or(0, Bytes::len);
                    self.charge(generation, 0, bytes);
                    self.charge(old.generation, old_bytes, 0);
                    // This transaction has used the row, so older pins remain valid.
                    let touch = self.serial;
                    *self.row_mut(slot) = Row { touch, ..old };
                }
                Undo::New { slot, key } => {
                    let now = self.slab.take(slot);
                    self.charge(now.generation, 0, row_bytes(key.raw(), now.value.as_ref()));
                    self.index.remove(&key);
                }
                Undo::Range(change) => {
                    self.active_ranges.undo(change);
                    self.bytes.active = self.bytes.active.saturating_sub(ROW_OVERHEAD_BYTES as u64);
                }
            }
        }
    }

    // ---- flush

    pub(crate) fn is_frozen(&self) -> bool {
        self.current_gen - self.clean_gen == 2
    }
    pub(crate) fn has_changes(&self) -> bool {
        self.bytes.active > 0
    }
    /// Starts a new generation; the changes so far will be written to a run.
    pub(crate) fn freeze(&mut self) {
        assert!(!self.is_frozen(), "one flush at a time");
        self.current_gen += 1;
        self.bytes.frozen = core::mem::take(&mut self.bytes.active);
        self.frozen_ranges = core::mem::take(&mut self.active_ranges);
    }
    /// Range tombstones of the frozen generation.
    pub(crate) fn frozen_ranges(&self) -> &IntervalSet {
        &self.frozen_ranges
    }
    /// Passes frozen rows from `from` on to `each` and examines at most `limit` rows. Returns the key to continue from,
    /// if there is more.
    pub(crate) fn frozen_rows(
        &self,
        from: &[u8],
        limit: usize,
        mut each: impl FnMut(&Key, Option<&Bytes>),
    ) -> Option<Key> {
        let frozen = self.current_gen - 1;
        let rows = self.index.range_from(&Key::from_raw(from));
        for (n, (key, slot)) in rows.enumerate() {
            if n == limit {
                return Some(key.clone());
            }
            let row = self.row(slot);
            if row.generation == frozen {
                each(key, row.value.as_ref());
            }
        }
        None
    }
    /// Records that the frozen generation is in a run.
    pub(crate) fn flushed(&mut self) {
        assert!(self.is_frozen(), "a flush ended that had not begun");
        self.clean_gen += 1;
        self.bytes.clean += core::mem::take(&mut self.bytes.frozen);
        self.frozen_ranges = IntervalSet::default();
    }
    /// Drops rows that were deleted before they reached a run, or with their whole range, so that short-lived rows (opens)
    /// leave nothing that makes the tree deeper and has to be evicted. Call between transactions.
    pub(crate) fn drop_gone(&mut self) {
        let oldest = self.live.oldest();
        for _ in 0..GONE_STEPS {
            let Some((_, key)) = self.gone.pop_front_if(|(serial, _)| *serial < oldest) else { return };
            let bytes = row_bytes(key.raw(), None) as u64;
            // Not if the row was written again, or a live pin holds it.
            let may_go = |slot: Slot| {
                let row = self.slab.row(slot);
                row.value.is_none() && row.generation <= self.clean_gen && row.touch < oldest
            };
            let Some(slot) = self.index.remove_if(key, may_go) else { continue };
            self.slab.take(slot);
            self.bytes.clean = self.bytes.clean.saturating_sub(bytes);
        }
    }
    /// Evicts before clean rows are inserted: more rows the further the clean rows exceed `max` bytes.
    pub(crate) fn evict_for(&mut self, max: u64, rows: usize) {
        let far = self.bytes.clean > max + max / 8;
        let steps = if far { EVICT_STEPS_FAR } else { EVICT_STEPS };
        self.evict(max, steps.max(rows * 8));
    }
    /// Continues eviction at `from`, where the caller has just worked: rows in the processor's caches cost little.
    pub(crate) fn sweep_from(&mut self, from: &Key) {
        if from.raw().is_empty() {
            self.sweep_mark = None;
        }
        self.sweep_at = from.clone();
    }
    /// Evicts clean rows, least recently used first, until they are within `max` bytes. Examines at most `steps` rows.
    pub(crate) fn evict(&mut self, max: u64, steps: usize) {
        if self.bytes.clean <= max || steps == 0 {
            return;
        }
        let mut over = self.bytes.clean - max;
        let mark = match self.sweep_mark {
            Some(mark) => mark,
            None => self.mark_for(over.max(self.bytes.clean / 4)),
        };
        self.sweep_mark = Some(mark);
        let (oldest, clean_gen, slab) = (self.live.oldest(), self.clean_gen, &self.slab);
        let may_go = |slot: Slot| {
            let row = slab.row(slot);
            (row.generation <= clean_gen && row.touch < oldest && row.touch <= mark).then_some(row)
        };
        let (mut last, mut some) = (None, false);
        let mut rows = self.index.range_from(&self.sweep_at);
        for _ in 0..steps {
            let Some((key, slot)) = rows.next() else {
                last = None;
                break;
            };
            last = Some(key);
            if let Some(row) = may_go(slot) {
                some = true;
                over = over.saturating_sub(row_bytes(key.raw(), row.value.as_ref()) as u64);
                if over == 0 {
                    break;
                }
            }
        }
        let next = last.map(Key::successor);
        drop(rows);
        if some {
            let gone = self.index.extract(&self.sweep_at, next.as_ref(), |slot| may_go(slot).is_some());
            for (key, slot) in gone {
                let row = self.slab.take(slot);
                let bytes = row_bytes(key.raw(), row.value.as_ref()) as u64;
                self.bytes.clean = self.bytes.clean.saturating_sub(bytes);
            }
        }
        match next {
            Some(key) => self.sweep_at = key,
            None => {
                self.sweep_at = Key::from_raw(&[]);
                self.sweep_mark = None;
            }
        }
    }
    /// Returns the use serial at or below which about `bytes` of the clean rows were last used, estimated from a
    /// sample, so that one round of eviction with it frees them. (Marking rows for the next round was tried: it needed
    /// two or three rounds for each flush, and four times the cost of the flush itself.)
    fn mark_for(&self, bytes: u64) -> u64 {
        let slots = self.slab.chunks.len() * CHUNK_ROWS;
        // An odd stride, because the rows of similar requests form regular patterns.
        let stride = (slots / SAMPLE_ROWS) | 1;
        let sample = (0..slots).step_by(stride).map(|slot| self.row(slot as Slot));
        // Free slots were never used.
        let clean = sample.filter(|row| row.touch > 0 && row.generation <= self.clean_gen);
        let mut touches: Vec<u64> = clean.map(|row| row.touch).collect();
        touches.sort_unstable();
        let at = touches.len() as u64 * bytes / self.bytes.clean.max(1);
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(touches.len().saturating_sub(1));
        // There are so few clean rows that the sample has none: all may be evicted.
        touches.get(at).copied().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    fn filled(rows: u32) -> Memtable {
        let mut mem = Memtable::default();
        for n in 0..rows {
            mem.next_serial();
            // The order of keys differs from the order of age.
            let key = Key::new(Table(9), &n.wrapping_mul(0x9e37_79b1).to_be_bytes());
            mem.insert_clean(key, Some(Bytes::from(alloc::vec![1; 56])));
        }
        mem
    }

    #[test]
    fn one_round_frees_what_is_wanted_and_takes_what_was_not_used_for_longest() {
        let rows = 30_000u32;
        let mut mem = filled(rows);
        let bytes = mem.bytes().clean;
        mem.evict(bytes / 2, rows as usize);
        let left = mem.bytes().clean;
        assert!(left <= bytes * 11 / 20 && left >= bytes / 2 - 200, "{left} of {bytes}");
        let touches = |mem: &Memtable| -> Vec<u64> {
            let all = mem.range(&Key::from_raw(&[]), &Key::from_raw(&[255; 40]));
            all.map(|(_, slot)| mem.row(slot).touch).collect()
        };
        let young = touches(&mem).into_iter().filter(|t| *t > u64::from(rows) * 11 / 20).count();
        assert!(young >= rows as usize * 43 / 100, "{young} of {rows} young rows are left");
        // Many small rounds evict everything.
        for _ in 0..rows {
            mem.evict(0, 8);
        }
        assert_eq!((mem.rows(), mem.bytes().clean), (0, 0));
    }

    #[test]
    fn pinned_and_changed_rows_stay() {
        let mut mem = filled(100);
        let serial = mem.next_serial();
        let _pin = Ticket::new(mem.live(), serial);
        let keys: Vec<Key> =
            (0..100u32).map(|n| Key::new(Table(9), &n.wrapping_mul(0x9e37_79b1).to_be_bytes())).collect();
        for key in keys.iter().take(10) {
            let slot = mem.slot(key).unwrap();
            mem.touch(slot);
        }
        let mut undo = Vec::new();
        for key in keys.iter().skip(90) {
            mem.write(key.clone(), Some(Bytes::new()), true, &mut undo);
        }
        for _ in 0..20 {
            mem.evict(0, 100);
        }
        assert_eq!(mem.rows(), 20);
        assert!(keys.iter().enumerate().all(|(n, k)| mem.slot(k).is_none() == (10..90).contains(&n)));
    }

    #[test]
    fn what_was_deleted_and_is_in_no_run_leaves_nothing_behind() {
        let mut mem = Memtable::default();
        let mut undo = Vec::new();
        let keys: Vec<Key> = (0..30u8).map(|n| Key::new(Table(9), &[n])).collect();
        for key in &keys {
            mem.write(key.clone(), Some(Bytes::new()), true, &mut undo);
        }
        let serial = mem.next_serial();
        let pin = Ticket::new(mem.live(), serial);
        for (n, key) in keys.iter().enumerate() {
            // Runs may contain the first ten.
            mem.write(key.clone(), None, n < 10, &mut undo);
        }
        mem.drop_gone();
        assert_eq!(mem.rows(), 30, "a pin needs them");
        drop(pin);
        // A row that was written again stays.
        mem.write(keys[29].clone(), Some(Bytes::new()), true, &mut undo);
        for _ in 0..30 {
            mem.drop_gone();
        }
        assert!(keys.iter().enumerate().all(|(n, k)| mem.slot(k).is_none() == (10..29).contains(&n)));
        assert_eq!((mem.rows(), mem.bytes().clean), (11, 0));
    }
}
