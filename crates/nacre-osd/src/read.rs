//! Reading rows: from memory at once, cold ones from runs.

use crate::engine::Osd;
use crate::error::OsdError;
use crate::key::Key;
use crate::memtable::{NO_SLOT, Ticket};
use crate::tx::{Pins, Table};
use alloc::vec::Vec;
use bytes::Bytes;

impl Osd {
    /// Reads rows (present or not) so that a transaction can look at them. Cold ones are read from runs.
    ///
    /// # Errors
    /// `Corrupt`, `Stopped`, `Store`.
    pub async fn fetch(&self, keys: &[(Table, &[u8])]) -> Result<Pins, OsdError> {
        let mut pins = Pins::default();
        self.fetch_into(keys, &mut pins).await?;
        Ok(pins)
    }
    /// Like `fetch`, into pins that hold something already.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub async fn fetch_into(&self, keys: &[(Table, &[u8])], pins: &mut Pins) -> Result<(), OsdError> {
        self.check_alive()?;
        let mut state = self.state.borrow_mut();
        let serial = state.mem.next_serial();
        pins.hold(Ticket::new(state.mem.live(), serial));
        for (table, key) in keys {
            let key = Key::new(*table, key);
            let slot = match state.mem.slot(key.raw()) {
                Some(slot) => {
                    state.mem.touch(slot);
                    slot
                }
                None => NO_SLOT,
            };
            pins.push(key, slot);
        }
        pins.sort();
        Ok(())
    }
    /// Like `fetch` for every row with `from <= key < to`, at most `limit`; absent keys of the range count as
    /// pinned if the whole range was read. An empty `to` is the end of the table.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub async fn fetch_range(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
        limit: u32,
        pins: &mut Pins,
    ) -> Result<(), OsdError> {
        self.check_alive()?;
        let (from, to) = (Key::new(table, from), Key::upper(table, to));
        if from >= to {
            return Ok(());
        }
        let mut state = self.state.borrow_mut();
        let serial = state.mem.next_serial();
        pins.hold(Ticket::new(state.mem.live(), serial));
        let mut slots = Vec::new();
        let mut present = 0;
        let mut end = to.clone();
        for (key, slot) in state.mem.range(from.raw(), to.raw()) {
            if state.mem.row(slot).value.is_some() {
                if present == limit {
                    end = key.clone();
                    break;
                }
                present += 1;
            }
            slots.push(slot);
        }
        for slot in slots {
            state.mem.touch(slot);
        }
        pins.push_range(from, end);
        Ok(())
    }
    /// One row, outside a transaction.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        self.check_alive()?;
        let state = self.state.borrow();
        let key = Key::new(table, key);
        Ok(state.mem.slot(key.raw()).and_then(|slot| state.mem.row(slot).value.clone()))
    }
    pub(crate) async fn scan_rows(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
        limit: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        self.check_alive()?;
        let (from, to) = (Key::new(table, from), Key::upper(table, to));
        let state = self.state.borrow();
        let rows = state.mem.range(from.raw(), to.raw());
        let rows = rows.filter_map(|(key, slot)| {
            let value = state.mem.row(slot).value.clone()?;
            Some((Bytes::copy_from_slice(key.raw().get(1..)?), value))
        });
        Ok(rows.take(limit as usize).collect())
    }
    pub(crate) fn scan_accounts(&self, from: &[u8], to: &[u8], limit: u32) -> Vec<(Bytes, Bytes)> {
        let state = self.state.borrow();
        let rows = state.accounts.iter().map(|(id, usage)| {
            let key = crate::accounts::account_key(id);
            (
                Bytes::copy_from_slice(&key[1..]),
                Bytes::copy_from_slice(&crate::accounts::account_value(usage)),
            )
        });
        rows.filter(|(key, _)| &key[..] >= from && (to.is_empty() || &key[..] < to))
            .take(limit as usize)
            .collect()
    }
}
