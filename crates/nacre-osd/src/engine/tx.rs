//! The open transaction: reads of pinned rows, and changes.

use crate::engine::state::{Save, State};
use crate::table::key::Key;
use crate::table::memtable::Slot;
use crate::table::pins::Pins;
use crate::table::{self, Table};
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Owner, Transno, Writer};

/// The longest key.
pub(crate) const KEY_BYTES_MAX: usize = 4096;

/// An open transaction: reads see the pinned rows and the changes so far. Synchronous; cannot fail for room.
pub struct Tx<'a> {
    state: &'a mut State,
    pins: &'a Pins,
    transno: Transno,
}

impl<'a> Tx<'a> {
    pub(crate) fn new(state: &'a mut State, pins: &'a Pins, transno: Transno) -> Self {
        Self { state, pins, transno }
    }
    /// The number this transaction gets if it commits.
    pub fn transno(&self) -> Transno {
        self.transno
    }
    /// The row, if the key may be looked at.
    fn look(&self, key: &Key) -> Option<Option<Slot>> {
        let Some(slot) = self.state.mem.slot(key) else { return self.pins.is_absent(key).then_some(None) };
        // A row that has been inserted since the fetch has been used since then.
        let pinned = self.pins.holds(self.state.mem.row(slot).touch()) || self.state.is_written_here(slot);
        pinned.then_some(Some(slot))
    }
    /// The row, or `None`.
    ///
    /// # Panics
    /// When the key was neither fetched into the pins nor written in this transaction: a bug.
    pub fn get(&self, table: Table, key: &[u8]) -> Option<&[u8]> {
        let key = Key::new(table, key);
        match self.look(&key) {
            Some(slot) => self.state.mem.row(slot?).value(),
            None => panic!("{key:?} was read in a transaction without a pin"),
        }
    }
    /// The row, or `None`; without it, `None`: nothing is known of the key, and the handler has to go back to `fetch`. A row in
    /// memory is current whether it was fetched or not; that there is none is known of fetched keys only.
    pub fn get_known(&self, table: Table, key: &[u8]) -> Option<Option<&[u8]>> {
        let key = Key::new(table, key);
        match self.state.mem.slot(&key) {
            Some(slot) => Some(self.state.mem.row(slot).value()),
            None => self.pins.is_absent(&key).then_some(None),
        }
    }
    /// Whether `get` may be called: false sends the handler back to `fetch` (its first read chose other keys).
    pub fn is_pinned(&self, table: Table, key: &[u8]) -> bool {
        self.look(&Key::new(table, key)).is_some()
    }
    /// Rows with `from <= key < to` in key order, changes of this transaction included. An empty `to` is the end
    /// of the table.
    ///
    /// # Panics
    /// When the range is not within one that `fetch_range` has pinned as a whole: a bug.
    pub fn range<'t>(
        &'t self,
        table: Table,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = (&'t [u8], &'t [u8])> + use<'t, 'a> {
        let rows = self.pinned_range(table, from, to);
        assert!(
            rows.is_some() || Key::new(table, from) >= Key::upper(table, to),
            "table {table:?}, {from:?} .. {to:?} was read in a transaction without a pin"
        );
        rows.into_iter().flatten()
    }
    /// The same; `None`: the range is not within one that `fetch_range` has pinned as a whole, and the handler has to go back
    /// to `fetch`.
    pub fn pinned_range<'t>(
        &'t self,
        table: Table,
        from: &[u8],
        to: &[u8],
    ) -> Option<impl Iterator<Item = (&'t [u8], &'t [u8])> + use<'t, 'a>> {
        let (from, to) = (Key::new(table, from), Key::upper(table, to));
        let mem = &self.state.mem;
        let pinned = self.pins.range(&from, &to)?;
        let rows = (!pinned.is_empty_after(mem.changes())).then(|| mem.range(&from, &to));
        Some(
            rows.into_iter()
                .flatten()
                .filter_map(|(key, slot)| Some((key.raw().get(1..)?, mem.row(slot).value()?))),
        )
    }
    fn write(&mut self, table: Table, key: &[u8], value: Option<Bytes>) {
        assert!(
            table.0 > table::ACCOUNTING.0,
            "the engine's own tables: usage changes through `account` only"
        );
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
        self.state.write_row(Key::new(table, key), value);
    }
    /// Writes a row.
    pub fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        // The buffer of an encoded value has grown beyond its length. Shrinking it in place would leave behind each row
        // a piece of memory that is too small for the next one; a copy of the right size frees the large buffer at
        // once, while it is in the CPU cache.
        let value = match value.capacity() == value.len() {
            true => Bytes::from(value),
            false => Bytes::copy_from_slice(&value),
        };
        self.write(table, key, Some(value));
    }
    /// Writes a row that `encode` appends to an empty buffer.
    pub fn put_encoded(&mut self, table: Table, key: &[u8], encode: impl FnOnce(&mut Writer)) {
        let mut w = Writer { buf: self.state.take_scratch() };
        encode(&mut w);
        self.write(table, key, Some(Bytes::copy_from_slice(&w.buf)));
        self.state.return_scratch(w.buf);
    }
    /// Deletes a row.
    pub fn delete(&mut self, table: Table, key: &[u8]) {
        self.write(table, key, None);
    }
    /// Deletes every row with `from <= key < to`. An empty `to` is the end of the table.
    pub fn delete_range(&mut self, table: Table, from: &[u8], to: &[u8]) {
        let (from, to) = (Key::new(table, from), Key::upper(table, to));
        if from >= to {
            return;
        }
        self.state.delete_rows(from, to);
    }
    /// Charges (or, negative, credits) an owner.
    pub fn account(&mut self, owner: Owner, bytes: i64, objects: i64) {
        self.state.charge(owner, bytes, objects);
    }
    /// The part of its `Credits` that this transaction has used so far: rows, and their bytes in the log. (The rows of
    /// accounts come at its end and are not the caller's to reserve.)
    pub fn written(&self) -> (u32, u32) {
        let (rows, bytes) = self.state.log.written();
        (rows, u32::try_from(bytes).unwrap_or(u32::MAX))
    }
    /// This point of the transaction, for [`Tx::roll_back`].
    pub fn save(&self) -> Save {
        self.state.save()
    }
    /// Takes back everything that was written since `save`.
    pub fn roll_back(&mut self, save: Save) {
        self.state.roll_back(save);
    }
    /// Runs a part of the transaction that may fail alone: an `Err` takes back what it has written.
    ///
    /// # Errors
    /// That of the part.
    pub fn attempt<T, E>(&mut self, part: impl FnOnce(&mut Tx<'_>) -> Result<T, E>) -> Result<T, E> {
        let save = self.state.save();
        let result = part(&mut Tx { state: self.state, pins: self.pins, transno: self.transno });
        if result.is_err() {
            self.state.roll_back(save);
        }
        result
    }
}
