//! Reading many rows in pages: memory stays bounded, and other tasks run while the next page is read.
//!
//! A page begins behind the last row of the previous page. Rows that are inserted or deleted during the walk may be
//! returned or not; each other row is returned exactly once. A damaged block affects the rows of its keys only: a
//! caller that can do without them continues behind it ([`Pages::next_or_damage`]).

use crate::engine::osd::Osd;
use crate::error::OsdError;
use crate::table::Table;
use crate::table::key::Key;
use alloc::vec::Vec;
use bytes::Bytes;

/// A scan in progress.
pub struct Pages<'a> {
    osd: &'a Osd,
    table: Table,
    from: Vec<u8>,
    to: Vec<u8>,
    rows_max: u32,
    /// Damage at the end of the table was reported; nothing is left.
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

/// The smallest key above this one.
pub fn key_after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl Osd {
    /// Walks the rows of a table, `rows_max` per page.
    pub fn pages(&self, table: Table, rows_max: u32) -> Pages<'_> {
        Pages { osd: self, table, from: Vec::new(), to: Vec::new(), rows_max, ended: false }
    }
}

impl Pages<'_> {
    /// Limits the walk to rows with `from <= key < to`.
    pub fn within(self, from: &[u8], to: &[u8]) -> Self {
        Self { from: from.to_vec(), to: to.to_vec(), ..self }
    }
    /// Returns the next page, in key order; `None` after the last.
    ///
    /// # Errors
    /// Those of [`Osd::scan`].
    pub async fn next(&mut self) -> Result<Option<Vec<(Bytes, Bytes)>>, OsdError> {
        let rows = self.osd.scan(self.table, &self.from, &self.to, self.rows_max).await?;
        let Some((last, _)) = rows.last() else { return Ok(None) };
        self.from = key_after(last);
        Ok(Some(rows))
    }
    /// Returns the next page, or the range of keys of a damaged block, and continues behind it. Rows of such a range
    /// that are in memory or in other runs are not returned either. `None` after the last.
    ///
    /// # Errors
    /// Those of [`Osd::scan`] other than the damage of one block.
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
        // The rows before the damaged block are intact.
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
    /// The key at which the next page begins.
    pub fn reached(&self) -> &[u8] {
        &self.from
    }
    /// Returns all remaining rows of a table that is small by nature.
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
