//! Lookups of rows: in memory, and in runs for rows that are not in memory.
//!
//! A read of runs takes time, and other tasks change rows meanwhile. Its result is used only if the key is still not in
//! memory, no tombstone hides it, and the list of runs has not changed; otherwise the read is repeated. (A write that
//! came meanwhile is seen, because it stays in memory until the list of runs changes.)

use crate::engine::osd::Osd;
use crate::error::OsdError;
use crate::table::Table;
use crate::table::cursor::{Deleted, MergeCursor, ReadAhead};
use crate::table::key::Key;
use crate::table::memtable::Ticket;
use crate::table::pins::{PinnedRange, Pins};
use crate::table::run::BlockRows;
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::join_all;

/// Rows in one slice of a scan.
const SLICE_ROWS: usize = 256;
/// Bytes per read of scans that want many rows.
const SCAN_READ_BYTES: u32 = 64 << 10;
/// Rows of one fetch that are read from runs at the same time.
const COLD_READS_MAX: usize = 64;

/// The state of a key according to memory and filters.
enum Known {
    Row(u32),
    Absent,
    /// The runs must be read.
    Cold,
}

impl Osd {
    /// Pins rows (present or not) so that a transaction can read them. Rows that are not in memory are read from runs.
    ///
    /// # Errors
    /// `Corrupt`, `Stopped`, `Store`.
    pub async fn fetch(&self, keys: &[(Table, &[u8])]) -> Result<Pins, OsdError> {
        let mut pins = Pins::default();
        self.fetch_into(keys, &mut pins).await?;
        Ok(pins)
    }
    /// Like `fetch`, for rows and for whole ranges of at most `limit` rows each.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub async fn fetch_set(&self, keys: &[Key], ranges: &[(Key, Key)], limit: u32) -> Result<Pins, OsdError> {
        let mut pins = Pins::default();
        self.fetch_keys(keys.iter().cloned(), &mut pins).await?;
        for (from, to) in ranges {
            self.fetch_whole(from.clone(), to, limit, &mut pins).await?;
        }
        Ok(pins)
    }
    /// Like `fetch_set`, if memory and filters know everything. `None`: runs have to be read.
    ///
    /// # Errors
    /// `Stopped`.
    pub fn fetch_now(
        &self,
        keys: &[Key],
        ranges: &[(Key, Key)],
        limit: u32,
    ) -> Result<Option<Pins>, OsdError> {
        let mut pins = Pins::default();
        if !self.pin_known(keys.iter().cloned(), &mut pins)?.is_empty() {
            return Ok(None);
        }
        for (from, to) in ranges {
            let changes = self.state().mem.changes();
            match self.walk_memory(from, to, limit as usize, &mut Walk::Keep) {
                Some((rows, end)) if end == *to || rows == limit as usize => {
                    pins.push_range(PinnedRange::new(from.clone(), end, (rows == 0).then_some(changes)));
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(pins))
    }
    /// Like `fetch`, but adds to existing pins.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub async fn fetch_into(&self, keys: &[(Table, &[u8])], pins: &mut Pins) -> Result<(), OsdError> {
        self.fetch_keys(keys.iter().map(|(table, key)| Key::new(*table, key)), pins).await
    }
    async fn fetch_keys(&self, keys: impl Iterator<Item = Key>, pins: &mut Pins) -> Result<(), OsdError> {
        for keys in self.pin_known(keys, pins)?.chunks(COLD_READS_MAX) {
            for result in Box::pin(join_all(keys.iter().map(|key| self.load(key)))).await {
                result?;
            }
        }
        Ok(())
    }
    /// Pins the rows that memory and filters know. Returns the keys that have to be read from runs; what is read is pinned.
    fn pin_known(&self, keys: impl Iterator<Item = Key>, pins: &mut Pins) -> Result<Vec<Key>, OsdError> {
        self.check_alive()?;
        let mut cold = Vec::new();
        let mut state = self.state_mut();
        state.mem.evict_for(self.config().cache_bytes_max, 0);
        let serial = state.mem.next_serial();
        pins.hold(Ticket::new(state.mem.live(), serial));
        for key in keys {
            match self.known(&state, &key) {
                Known::Row(slot) => state.mem.touch(slot),
                Known::Absent => pins.push_absent(key),
                Known::Cold => cold.push(key),
            }
        }
        pins.sort();
        Ok(cold)
    }
    fn known(&self, state: &crate::engine::state::State, key: &Key) -> Known {
        match state.mem.slot(key) {
            Some(slot) => Known::Row(slot),
            None if !state.runs.may_hold(key.raw()) || state.mem.hides(key.raw()) => Known::Absent,
            None => Known::Cold,
        }
    }
    /// Caches the state of a key (present or absent) in the runs, unless it was inserted meanwhile.
    async fn load(&self, key: &Key) -> Result<(), OsdError> {
        loop {
            let (runs, generation) = {
                let state = self.state();
                (state.runs.list(), state.runs.generation())
            };
            let mut found = Ok(None);
            for run in runs.iter().rev() {
                if let Some(index) = run.block_for(key.raw()) {
                    match self.block(run, index).await {
                        Ok(mut rows) => {
                            if rows.seek(key.raw()) {
                                // Copied, so that the row does not keep its block in memory.
                                found = Ok(rows.value().map(Bytes::copy_from_slice));
                                break;
                            }
                        }
                        Err(e) => {
                            found = Err(e);
                            break;
                        }
                    }
                }
                if run.ranges.contains(key.raw()) {
                    break;
                }
            }
            let mut state = self.state_mut();
            if state.mem.slot(key).is_some() {
                return Ok(());
            }
            if state.runs.generation() != generation {
                continue;
            }
            let value = found?;
            let value = if state.mem.hides(key.raw()) { None } else { value };
            state.mem.evict_for(self.config().cache_bytes_max, 1);
            state.mem.insert_clean(key.clone(), value);
            return Ok(());
        }
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
        let (from, to) = (Key::new(table, from), Key::upper(table, to));
        self.check_alive()?;
        {
            let mut state = self.state_mut();
            state.mem.evict_for(self.config().cache_bytes_max, 0);
            let serial = state.mem.next_serial();
            pins.hold(Ticket::new(state.mem.live(), serial));
        }
        self.fetch_whole(from, &to, limit, pins).await
    }
    /// Pins rows of `from..to`, at most `limit`.
    async fn fetch_whole(&self, from: Key, to: &Key, limit: u32, pins: &mut Pins) -> Result<(), OsdError> {
        let changes = self.state().mem.changes();
        let (rows, end) = self.walk(&from, to, limit as usize, Walk::Keep).await?;
        pins.push_range(PinnedRange::new(from, end, (rows == 0).then_some(changes)));
        Ok(())
    }
    /// One row, outside a transaction.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        self.check_alive()?;
        let key = Key::new(table, key);
        loop {
            if let Some(row) = self.known_row(&key, |row| row.cloned()) {
                return Ok(row);
            }
            // This path is rare and its future is large: boxing it keeps the tasks of readers small.
            Box::pin(self.load(&key)).await?;
        }
    }
    /// Passes a row to `read`, if memory and filters know it. `None`: runs have to be read. The store is in use meanwhile:
    /// `read` only reads what it is given.
    ///
    /// # Errors
    /// `Stopped`.
    pub fn read_now<T>(
        &self,
        table: Table,
        key: &[u8],
        read: impl FnOnce(Option<&Bytes>) -> T,
    ) -> Result<Option<T>, OsdError> {
        self.check_alive()?;
        Ok(self.known_row(&Key::new(table, key), read))
    }
    fn known_row<T>(&self, key: &Key, read: impl FnOnce(Option<&Bytes>) -> T) -> Option<T> {
        let mut state = self.state_mut();
        match self.known(&state, key) {
            Known::Row(slot) => {
                state.mem.touch(slot);
                Some(read(state.mem.row(slot).value_bytes()))
            }
            Known::Absent => Some(read(None)),
            Known::Cold => None,
        }
    }
    pub(crate) async fn scan_rows(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
        limit: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        let mut rows = Vec::new();
        let mut collect = |key: &[u8], value: &Bytes| rows.push((Bytes::copy_from_slice(key), value.clone()));
        self.each_row(table, from, to, limit, &mut collect).await?;
        Ok(rows)
    }
    /// Passes rows with `from <= key < to` to `each` in key order, at most `limit`. An empty `to` is the end of the table.
    /// The store is in use meanwhile: `each` only reads what it is given.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub async fn each_row(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
        limit: u32,
        each: &mut dyn FnMut(&[u8], &Bytes),
    ) -> Result<(), OsdError> {
        self.check_alive()?;
        let (from, to) = (Key::new(table, from), Key::upper(table, to));
        self.walk(&from, &to, limit as usize, Walk::Pass(each)).await.map(drop)
    }
    /// Like `each_row` for a few rows, if memory and filters know them, or if `pins` has them all. `false`: runs have to be
    /// read, and some of the rows may have been passed.
    ///
    /// # Errors
    /// `Stopped`.
    pub fn each_row_now(
        &self,
        table: Table,
        (from, to): (&[u8], &[u8]),
        limit: u32,
        pins: &Pins,
        each: &mut dyn FnMut(&[u8], &Bytes),
    ) -> Result<bool, OsdError> {
        self.check_alive()?;
        let (from, to) = (Key::new(table, from), Key::upper(table, to));
        let (limit, mut walk) = (limit as usize, Walk::Pass(each));
        let walked = match pins.range(&from, &to) {
            Some(_) => Some(self.walk_slice(&from, &to, limit, Vec::new(), &mut walk)),
            None => self.walk_memory(&from, &to, limit, &mut walk),
        };
        Ok(walked.is_some_and(|(rows, end)| end == to || rows == limit))
    }
    pub(crate) fn scan_accounts(&self, from: &[u8], to: &[u8], limit: u32) -> Vec<(Bytes, Bytes)> {
        let state = self.state();
        let rows = state.accounts.iter().map(|(id, usage)| {
            let key = crate::table::accounts::account_key(id);
            (
                Bytes::copy_from_slice(&key[1..]),
                Bytes::copy_from_slice(&crate::table::accounts::account_value(usage)),
            )
        });
        rows.filter(|(key, _)| &key[..] >= from && (to.is_empty() || &key[..] < to))
            .take(limit as usize)
            .collect()
    }

    /// Walks the rows of `from..to`, at most `limit` of them. Returns their number, and the end of the part that was walked.
    async fn walk(
        &self,
        from: &Key,
        to: &Key,
        limit: usize,
        mut walk: Walk<'_>,
    ) -> Result<(usize, Key), OsdError> {
        let mut at = from.clone();
        let mut left = limit;
        'lists: while at < *to && left > 0 {
            if let Some((seen, next)) = self.walk_memory(&at, to, left, &mut walk) {
                (left, at) = (left - seen, next);
                if at < *to && left > 0 {
                    self.slice_end().await;
                }
                continue;
            }
            let (runs, generation) = {
                let state = self.state();
                (state.runs.list(), state.runs.generation())
            };
            let ahead = if left > 64 { ReadAhead::Bytes(SCAN_READ_BYTES) } else { ReadAhead::Cached };
            let mut cursor = MergeCursor::new(&runs, &at, to, ahead, Deleted::Drop);
            while at < *to && left > 0 {
                let mut rows = Vec::new();
                let keep = |row: &BlockRows| {
                    rows.extend(row.key().zip(row.value_bytes()).map(|(k, v)| (Key::from_raw(k), v)));
                };
                let read = Box::pin(cursor.rows(self, left.min(SLICE_ROWS), keep)).await;
                if self.state().runs.generation() != generation {
                    continue 'lists;
                }
                let more = read?;
                let end = match rows.last() {
                    Some((key, _)) if more => key.successor(),
                    _ => to.clone(),
                };
                let (seen, next) = self.walk_slice(&at, &end, left, rows, &mut walk);
                left -= seen;
                at = next;
                // Cursors cannot move back, so if a slice ended early, the walk starts again with new ones.
                if at < end {
                    if left > 0 {
                        self.slice_end().await;
                    }
                    continue 'lists;
                }
            }
        }
        Ok((limit - left, at))
    }
    /// The first slice of a walk, if no run can hold rows of `from..to`.
    fn walk_memory(&self, from: &Key, to: &Key, limit: usize, walk: &mut Walk<'_>) -> Option<(usize, Key)> {
        let runs = self.state().runs.may_overlap(from.raw(), to.raw());
        (!runs).then(|| self.walk_slice(from, to, limit, Vec::new(), walk))
    }
    /// Merges the rows in memory over those of runs in `from..end`. Returns the number of existing rows, and the end.
    fn walk_slice(
        &self,
        from: &Key,
        end: &Key,
        limit: usize,
        runs: Vec<(Key, Bytes)>,
        walk: &mut Walk<'_>,
    ) -> (usize, Key) {
        let mut state = self.state_mut();
        let mut load = Vec::new();
        let mut touch = Vec::new();
        let mut seen = 0;
        let mut ended = None;
        {
            let mut memory = state.mem.range(from, end).peekable();
            let mut runs = runs.into_iter().peekable();
            let slice_max = limit.min(SLICE_ROWS * 4);
            for step in 0.. {
                let from_runs = match (memory.peek(), runs.peek()) {
                    (None, None) => break,
                    (Some(_), None) => false,
                    (None, Some(_)) => true,
                    (Some((m, _)), Some((r, _))) => r < *m,
                };
                let next =
                    if from_runs { runs.peek().map(|(k, _)| k) } else { memory.peek().map(|(k, _)| *k) };
                if seen == slice_max || step == SLICE_ROWS * 16 {
                    ended = next.cloned();
                    break;
                }
                if from_runs {
                    let Some((key, value)) = runs.next() else { break };
                    if state.mem.hides(key.raw()) {
                        continue;
                    }
                    seen += 1;
                    match walk {
                        Walk::Pass(each) => each(tail(&key), &value),
                        Walk::Keep => load.push((key, value)),
                    }
                } else {
                    let Some((key, slot)) = memory.next() else { break };
                    if runs.peek().is_some_and(|(r, _)| r == key) {
                        runs.next();
                    }
                    touch.push(slot);
                    if let Some(value) = state.mem.row(slot).value_bytes() {
                        seen += 1;
                        if let Walk::Pass(each) = walk {
                            each(tail(key), value);
                        }
                    }
                }
            }
        }
        if matches!(walk, Walk::Keep) {
            for slot in touch {
                state.mem.touch(slot);
            }
            if !load.is_empty() {
                state.mem.evict_for(self.config().cache_bytes_max, load.len());
            }
            for (key, value) in load {
                state.mem.insert_clean(key, Some(Bytes::copy_from_slice(&value)));
            }
        }
        (seen, ended.unwrap_or_else(|| end.clone()))
    }
}

/// The purpose of a walk.
enum Walk<'a> {
    /// Rows are passed to a reader.
    Pass(&'a mut dyn FnMut(&[u8], &Bytes)),
    /// Rows are brought into memory.
    Keep,
}

/// Key bytes without the table number.
fn tail(key: &Key) -> &[u8] {
    key.raw().get(1..).unwrap_or(&[])
}
