//! The engine as a value: memtable, log, accounts, and the transaction that is open.
//!
//! Everything here is synchronous and does no I/O: bytes leave through [`State::log`] at the end of the visit, and
//! come back through [`State::replay`].

use crate::engine::tx::Tx;
use crate::log::segment::{LogWriter, RecordKind, RowOp};
use crate::table;
use crate::table::accounts::{AccountId, Accounts, Usage, account_key, account_value, ids_of, parse_account};
use crate::table::key::Key;
use crate::table::memtable::{Memtable, NO_SLOT, Undo};
use crate::table::pins::Pins;
use crate::table::run_set::RunSet;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Owner, Transno};

pub(crate) struct State {
    pub(crate) mem: Memtable,
    pub(crate) log: LogWriter,
    pub(crate) accounts: Accounts,
    pub(crate) runs: RunSet,
    pub(crate) last_transno: u64,
    /// Serial of the open transaction: rows it wrote carry it.
    pub(crate) serial: u64,
    pub(crate) undo: Vec<Undo>,
    pub(crate) charges: Vec<(Owner, i64, i64)>,
    /// Accounts and log position of the frozen generation.
    pub(crate) frozen_accounts: Vec<(AccountId, Usage)>,
    pub(crate) frozen_lsn: u64,
    /// Length of the latest record.
    pub(crate) last_record_bytes: u64,
}

/// A point in an open transaction.
pub struct Save {
    undo: usize,
    charges: usize,
    log: (usize, u32),
}

impl State {
    pub(crate) fn new(log: LogWriter) -> Self {
        Self {
            mem: Memtable::default(),
            log,
            accounts: Accounts::default(),
            runs: RunSet::default(),
            last_transno: 0,
            serial: 0,
            undo: Vec::new(),
            charges: Vec::new(),
            frozen_accounts: Vec::new(),
            frozen_lsn: 0,
            last_record_bytes: 0,
        }
    }
    /// Whether a run, or the one that is being written, may hold the key: then its deletion must be kept.
    pub(crate) fn below(&self, raw: &[u8]) -> bool {
        self.mem.is_frozen() || self.runs.may_hold(raw)
    }
    /// The same for any key of `from..to`.
    pub(crate) fn below_range(&self, from: &[u8], to: &[u8]) -> bool {
        self.mem.is_frozen() || self.runs.list().iter().any(|run| run.may_overlap(from, to))
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
                self.settle_charges();
                self.last_transno = self.last_transno.max(transno);
                self.last_record_bytes = self.log.end(RecordKind::Change, transno);
                self.undo.clear();
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
    fn settle_charges(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        let mut by_id: Vec<_> = Vec::with_capacity(self.charges.len() * 3);
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

    /// A record that is no transaction: the list of runs, used-up numbers.
    pub(crate) fn note(&mut self, kind: RecordKind, body: &[u8]) -> u64 {
        self.log.begin();
        self.log.body(body);
        self.log.end(kind, self.last_transno);
        self.log.last_lsn
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
                self.mem.write(Key::from_raw(key), NO_SLOT, value, below, &mut self.undo);
            }
            RowOp::Delete { key } => {
                self.mem.write(Key::from_raw(key), NO_SLOT, None, below, &mut self.undo);
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
