//! Reading many rows in pages: memory stays bounded, and other tasks run while the next page is read.
//!
//! A page begins behind the last row of the page before. Rows that are inserted or deleted meanwhile may be seen or not;
//! no other row is missed or seen twice. A damaged block hides the rows of its keys only: a caller that can do without
//! them continues behind it ([`Pages::next_or_damage`]).

use crate::engine::osd::Osd;
use crate::error::OsdError;
use crate::table::Table;
use crate::table::key::Key;
use alloc::vec::Vec;
use bytes::Bytes;

/// The rest of a scan.
pub struct Pages<'a> {
    osd: &'a Osd,
    table: Table,
    from: Vec<u8>,
    to: Vec<u8>,
    rows_max: u32,
    /// The rest of the table was damaged.
    ended: bool,
}

/// See [`Pages::next_or_damage`].
#[derive(Debug)]
pub enum Page {
    Rows(Vec<(Bytes, Bytes)>),
    /// Rows with `from <= key < to` cannot be listed. An empty `to` is the end of the table.
    Damaged {
        from: Vec<u8>,
        to: Vec<u8>,
    },
}

/// The key behind this one, with none between them.
pub fn key_after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl Osd {
    /// The rows of a table, `rows_max` at a time.
    pub fn pages(&self, table: Table, rows_max: u32) -> Pages<'_> {
        Pages { osd: self, table, from: Vec::new(), to: Vec::new(), rows_max, ended: false }
    }
}

impl Pages<'_> {
    /// Only rows with `from <= key < to`.
    pub fn within(self, from: &[u8], to: &[u8]) -> Self {
        Self { from: from.to_vec(), to: to.to_vec(), ..self }
    }
    /// The next page, in key order; `None` behind the last.
    ///
    /// # Errors
    /// Those of [`Osd::scan`].
    pub async fn next(&mut self) -> Result<Option<Vec<(Bytes, Bytes)>>, OsdError> {
        let rows = self.osd.scan(self.table, &self.from, &self.to, self.rows_max).await?;
        let Some((last, _)) = rows.last() else { return Ok(None) };
        self.from = key_after(last);
        Ok(Some(rows))
    }
    /// The next page or the next range of keys that lies in a damaged block; goes on behind it. Rows of such a range that
    /// are in memory, or in other runs, are not given either. `None` behind the last.
    ///
    /// # Errors
    /// Those of [`Osd::scan`] that are not the damage of one block.
    pub async fn next_or_damage(&mut self) -> Result<Option<Page>, OsdError> {
        if self.ended {
            return Ok(None);
        }
        let error = match self.next().await {
            Ok(rows) => return Ok(rows.map(Page::Rows)),
            Err(error @ OsdError::Corrupt { .. }) => error,
            Err(error) => return Err(error),
        };
        let (from, end) = (Key::new(self.table, &self.from), Key::upper(self.table, &self.to));
        let damage = self.osd.state().runs.damage_within(&from, &end);
        let Some((first, behind)) = damage else { return Err(error) };
        let tail = |key: &Key| key.raw().get(1..).unwrap_or_default().to_vec();
        // What lies before it is whole.
        if first > from {
            let rows = self.osd.scan(self.table, &self.from, &tail(&first), self.rows_max).await?;
            if let Some((last, _)) = rows.last() {
                self.from = key_after(last);
                return Ok(Some(Page::Rows(rows)));
            }
        }
        self.ended = behind >= end;
        self.from = tail(&behind);
        let to = if self.ended { self.to.clone() } else { self.from.clone() };
        Ok(Some(Page::Damaged { from: tail(&first), to }))
    }
    /// Where the next page begins.
    pub fn reached(&self) -> &[u8] {
        &self.from
    }
    /// All that is left, of a table that is small by nature.
    ///
    /// # Errors
    /// Those of [`Osd::scan`].
    pub async fn all(mut self) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        let mut all = Vec::new();
        while let Some(rows) = self.next().await? {
            all.extend(rows);
        }
        Ok(all)
    }
}
