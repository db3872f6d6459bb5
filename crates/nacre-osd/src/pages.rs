//! Many rows in pages: memory stays bounded, and other tasks run while the next page is read.
//!
//! A page begins behind the last row of the one before. So rows that come and go meanwhile are seen or not, and none of
//! the others is missed or seen twice.

use crate::engine::Osd;
use crate::error::OsdError;
use crate::tx::Table;
use alloc::vec::Vec;
use bytes::Bytes;

/// The rest of a scan.
pub struct Pages<'a> {
    osd: &'a Osd,
    table: Table,
    from: Vec<u8>,
    to: Vec<u8>,
    rows_max: u32,
}

/// The key behind this one, with none between them.
pub fn key_after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl Osd {
    /// The rows of a table, `rows_max` at a time.
    pub fn pages(&self, table: Table, rows_max: u32) -> Pages<'_> {
        Pages { osd: self, table, from: Vec::new(), to: Vec::new(), rows_max }
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
