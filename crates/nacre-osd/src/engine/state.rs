//! The synchronous state of the engine: memtable, log, accounts, runs, and the open transaction.
//!
//! Nothing here does I/O: log bytes leave through [`State::log`] at the end of the visit, and return through
//! [`State::replay`].

use crate::engine::superblock::DamagedCopy;
use crate::engine::tx::Tx;
use crate::log::segment::{LogWriter, RecordKind, RowOp};
use crate::table;
use crate::table::accounts::{AccountId, Accounts, Usage, account_key, account_value, ids_of, parse_account};
use crate::table::key::Key;
use crate::table::memtable::{Memtable, Slot, Undo};
use crate::table::pins::Pins;
use crate::table::run::Run;
use crate::table::run_set::RunSet;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Owner, Transno};
use smallvec::SmallVec;

pub(crate) struct State {
    // The parts have private state of their own; operations borrow several of them at once.
    pub(crate) mem: Memtable,
    pub(crate) log: LogWriter,
    pub(crate) accounts: Accounts,
    pub(crate) runs: RunSet,
    damaged_copies: Vec<(u64, u64)>,
    damaged_superblock: Option<DamagedCopy>,
    last_transno: u64,
    /// Serial of the open transaction: rows it wrote carry it.
    serial: u64,
    undo: Vec<Undo>,
    charges: Vec<(Owner, i64, i64)>,
    /// Accounts and log position of the frozen generation.
    frozen_accounts: Vec<(AccountId, Usage)>,
    frozen_lsn: u64,
    /// Rows and ranges that were deleted since the latest flush began, and the part of them below which runs may hold
    /// rows. (Those that were rolled back or written again are counted too.)
    removed: Removed,
    /// Length of the latest record.
    last_record_bytes: u64,
    /// An empty buffer in which rows are encoded, so that each row costs one allocation, of its own length.
    scratch: Vec<u8>,
}

/// The largest buffer that is kept for the next row.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

/// Deletions in memory: a plain value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    all: u64,
    below: u64,
}
impl Removed {
    fn add(&mut self, below: bool) {
        self.all += 1;
        self.below += u64::from(below);
    }
    pub(crate) fn count(self) -> u64 {
        self.all
    }
    /// Those that may hide rows of runs.
    pub(crate) fn hiding(self) -> u64 {
        self.below
    }
}

/// A point in an open transaction.
pub struct Save {
    undo: usize,
    charges: usize,
    log: (usize, u32),
}

impl State {
    pub(crate) fn set_damaged_copies(&mut self, found: Vec<(u64, u64)>) {
        self.damaged_copies = found;
    }
    /// Log segments in which the start found a damaged copy of a record: number and record.
    pub(crate) fn damaged_copies(&self) -> &[(u64, u64)] {
        &self.damaged_copies
    }
    pub(crate) fn set_damaged_superblock(&mut self, found: Option<DamagedCopy>) {
        self.damaged_superblock = found;
    }
    /// The copy of the superblock that the start found damaged.
    pub(crate) fn damaged_superblock(&self) -> Option<DamagedCopy> {
        self.damaged_superblock
    }
    pub(crate) fn new(log: LogWriter) -> Self {
        Self {
            mem: Memtable::default(),
            log,
            accounts: Accounts::default(),
            runs: RunSet::default(),
            damaged_copies: Vec::new(),
            damaged_superblock: None,
            last_transno: 0,
            serial: 0,
            undo: Vec::new(),
            charges: Vec::new(),
            frozen_accounts: Vec::new(),
            frozen_lsn: 0,
            removed: Removed::default(),
            last_record_bytes: 0,
            scratch: Vec::new(),
        }
    }
    pub(crate) fn last_transno(&self) -> u64 {
        self.last_transno
    }
    /// Continues after the last transno of a recovered log.
    pub(crate) fn continue_after(&mut self, transno: u64) {
        self.last_transno = transno;
    }
    /// The next transaction gets the first number of the next epoch.
    pub(crate) fn raise_epoch(&mut self) {
        self.last_transno = ((self.last_transno >> 32) + 1) << 32;
    }
    pub(crate) fn last_record_bytes(&self) -> u64 {
        self.last_record_bytes
    }

    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.scratch)
    }
    pub(crate) fn return_scratch(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= SCRATCH_BYTES_MAX {
            buffer.clear();
            self.scratch = buffer;
        }
    }

    // ---- flush

    /// Starts a new generation: everything so far is to be written to a run.
    pub(crate) fn freeze(&mut self) {
        self.mem.freeze();
        self.frozen_accounts = self.accounts.freeze();
        self.frozen_lsn = self.log.last_lsn();
        self.removed = Removed::default();
    }
    /// Bytes of log segments that a flush would make unnecessary.
    pub(crate) fn freeable_log_bytes(&self) -> u64 {
        if self.log.last_lsn() > self.runs.flushed_lsn() { self.log.full_bytes() } else { 0 }
    }
    pub(crate) fn removed(&self) -> Removed {
        self.removed
    }
    pub(crate) fn frozen_accounts(&self) -> &[(AccountId, Usage)] {
        &self.frozen_accounts
    }
    /// The frozen generation is in this run.
    pub(crate) fn flushed(&mut self, run: Run) {
        self.runs.push(Rc::new(run), self.frozen_lsn);
        self.mem.flushed();
        self.frozen_accounts.clear();
    }

    // ---- transactions

    /// Whether the open transaction has written the row.
    pub(crate) fn is_written_here(&self, slot: Slot) -> bool {
        self.mem.row(slot).touch() == self.serial
    }
    /// Writes or deletes a row in the open transaction.
    pub(crate) fn write_row(&mut self, key: Key, value: Option<Bytes>) {
        let below = value.is_some() || self.below(key.raw());
        match &value {
            Some(value) => self.log.put(key.raw(), value),
            // Requests delete rows that most objects do not have: this costs a lookup, and leaves no trace.
            None if !below && self.mem.slot(&key).is_none() => return,
            None => {
                self.log.delete(key.raw());
                self.removed.add(below);
            }
        }
        self.mem.write(key, value, below, &mut self.undo);
    }
    /// Deletes rows of a range in the open transaction.
    pub(crate) fn delete_rows(&mut self, from: Key, to: Key) {
        let below = self.below_range(from.raw(), to.raw());
        if !below && self.mem.range(&from, &to).next().is_none() {
            return;
        }
        self.log.delete_range(from.raw(), to.raw());
        self.removed.add(below);
        self.mem.delete_range(from, to, below, &mut self.undo);
    }
    /// Charges an owner when the open transaction commits.
    pub(crate) fn charge(&mut self, owner: Owner, bytes: i64, objects: i64) {
        self.charges.push((owner, bytes, objects));
    }

    /// Whether a run, or the one that is being written, may hold the key: then its deletion must be kept.
    fn below(&self, raw: &[u8]) -> bool {
        self.mem.is_frozen() || self.runs.may_hold(raw)
    }
    /// The same for any key of `from..to`.
    fn below_range(&self, from: &[u8], to: &[u8]) -> bool {
        self.mem.is_frozen() || self.runs.may_overlap(from, to)
    }

    pub(crate) fn save(&self) -> Save {
        Save { undo: self.undo.len(), charges: self.charges.len(), log: self.log.mark() }
    }
    pub(crate) fn roll_back(&mut self, save: Save) {
        self.mem.roll_back(&mut self.undo, save.undo);
        self.charges.truncate(save.charges);
        self.log.back_to(save.log);
    }

    /// One change, under an old number if it is made again; `Err` leaves nothing behind.
    pub(crate) fn transact<T, E>(
        &mut self,
        again: Option<Transno>,
        pins: &Pins,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<(Transno, T), E> {
        let transno = again.map_or(self.last_transno + 1, |old| old.0);
        self.serial = self.mem.next_serial();
        self.log.begin();
        match change(&mut Tx::new(self, pins, Transno(transno))) {
            Ok(value) => {
                self.write_charges();
                self.last_transno = self.last_transno.max(transno);
                self.last_record_bytes = self.log.end(RecordKind::Change, transno);
                self.undo.clear();
                self.mem.drop_gone();
                Ok((Transno(transno), value))
            }
            Err(e) => {
                self.mem.roll_back(&mut self.undo, 0);
                self.charges.clear();
                self.log.abandon();
                Err(e)
            }
        }
    }
    /// Writes the new values of the accounts that this transaction charged.
    fn write_charges(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        let mut by_id: SmallVec<[_; 6]> = SmallVec::new();
        for (owner, bytes, objects) in self.charges.drain(..) {
            by_id.extend(ids_of(owner).map(|id| (id, bytes, objects)));
        }
        by_id.sort_unstable_by_key(|(id, ..)| *id);
        let mut at = 0;
        while let Some((id, mut bytes, mut objects)) = by_id.get(at).copied() {
            at += 1;
            while let Some((next, b, o)) = by_id.get(at)
                && *next == id
            {
                bytes += b;
                objects += o;
                at += 1;
            }
            if bytes != 0 || objects != 0 {
                let usage = self.accounts.charge(id, bytes, objects);
                self.log.put(&account_key(id), &account_value(usage));
            }
        }
    }

    /// Appends a record outside a transaction: the list of runs.
    pub(crate) fn note(&mut self, kind: RecordKind, body: &[u8]) -> u64 {
        self.log.begin();
        self.log.body(body);
        self.log.end(kind, self.last_transno);
        self.log.last_lsn()
    }

    /// Applies a row change of the log.
    pub(crate) fn replay(&mut self, op: &RowOp<'_>) {
        // Runs may hold older values of anything in the log.
        let below = true;
        match op {
            RowOp::Put { key, value } if key.first() == Some(&table::ACCOUNTING.0) => {
                if let Some((id, usage)) = parse_account(key, value) {
                    self.accounts.set(id, usage);
                }
            }
            RowOp::Put { key, value } => {
                let value = Some(Bytes::copy_from_slice(value));
                self.mem.write(Key::from_raw(key), value, below, &mut self.undo);
            }
            RowOp::Delete { key } => {
                self.mem.write(Key::from_raw(key), None, below, &mut self.undo);
            }
            RowOp::DeleteRange { from, to } => {
                self.mem.delete_range(Key::from_raw(from), Key::from_raw(to), below, &mut self.undo);
            }
        }
        self.undo.clear();
    }

    pub(crate) fn usage(&self, kind: u8, id: u32) -> Usage {
        self.accounts.usage((kind, id))
    }
}
