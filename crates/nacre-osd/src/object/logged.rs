//! Bytes of small syncs, in the log: a sync of an object with few changed blocks puts their content into rows, instead of
//! having the file of the object written back.
//!
//! The sync of a file that grows costs the file system below a commit of its journal, and that of a new file a sync of its
//! directory as well; the log has to be synced in any case. So the blocks that were changed since they were last durable
//! become rows of LOGGED, which the sync of the log makes durable. The write-back task syncs the file a moment later, and
//! then the rows are deleted. After an unclean start, a block whose bytes do not match their checksum gets what its row
//! holds (`restore.rs`), before anything reads or changes the object.
//!
//! Invariants: (1) a row holds what the file held under the exclusive lock of its block, so syncs of the same block put
//! their rows in the order of its contents. (2) Bytes that become durable in the file after their block was logged are
//! reported to nobody before the deletion of the row is durable, or would be lost with it: otherwise a start could put
//! back older bytes. (`last_stable` is a later row of the same log; [`Objects::sync`] waits for the deletion.) (3) Blocks
//! that are cut off, or become zeros, have no row afterwards. (4) A change of which these blocks are not known (of a former
//! process, an allocation, many blocks) is synced with the file. (5) While the bytes of a block are overwritten, its row
//! holds all changes before. (6) Each row is of an object that is written back later, which deletes it.
//!
//! The blocks themselves are kept by `object/logged_blocks.rs`.

use crate::engine::credits::Credits;
use crate::error::OsdError;
use crate::object::checksum::BLOCK_BYTES;
use crate::object::objects::{Objects, unexpected_result};
use crate::object::rows::{ObjectRow, block_key, object_of_key, region_of_key};
use crate::object::scan::is_stopped;
use crate::table;
use crate::table::pages::Page;
use crate::table::pins::Pins;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;
use core::ops::Range;
use core::time::Duration;
use nacre_node::{FileId, StoreDone, StoreOp, join_all};
use nacre_types::{Extent, ObjectId};

/// Rows of one page at a start, and objects that are restored at the same time.
const PAGE: u32 = 64;
const RESTORES_IN_FLIGHT: usize = 8;
/// Pause before a row that could not be deleted is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

impl Objects {
    /// Puts the dirty blocks of an object into rows, so that a commit makes them durable. `false`: the file has to be
    /// synced.
    ///
    /// # Errors
    /// Those of store and engine.
    pub(crate) async fn log_bytes(self: &Rc<Self>, object: ObjectId) -> Result<bool, OsdError> {
        if !self.writeback().knows_all() {
            return Ok(false);
        }
        let Some(blocks) = self.logged().few(object) else { return Ok(false) };
        let (Some(&first), Some(&last)) = (blocks.first(), blocks.last()) else { return Ok(false) };
        if !self.logged().has_room(blocks.len()) {
            self.writeback().wake();
            return Ok(false);
        }
        let range = Extent::new(first * BLOCK_BYTES, (last + 1).saturating_mul(BLOCK_BYTES));
        let _guard = self.locks().lock(object, range, true).await;
        let Some(row) = self.healthy_row(object).await? else { return Ok(true) };
        if !self.is_whole(object, &row).await? {
            return Ok(false);
        }
        let is_logged = self.put_content(object, &blocks, row.size).await?;
        if self.logged().is_half_full() {
            self.writeback().wake();
        }
        Ok(is_logged)
    }

    /// Called under the lock of blocks, before their bytes are overwritten: rows that hold less than the latest change of
    /// their block get its content. (A killed process leaves some bytes of the overwrite in the file. Then the row is
    /// written over the block, and would take away all changes since.)
    ///
    /// # Errors
    /// Those of store and engine.
    pub(crate) async fn renew_rows(
        self: &Rc<Self>,
        object: ObjectId,
        blocks: Range<u64>,
    ) -> Result<(), OsdError> {
        let stale = self.logged().stale(object, blocks.clone());
        if stale.is_empty() {
            return Ok(());
        }
        let size = self.row(object).await?.unwrap_or_default().size;
        match self.put_content(object, &stale, size).await? {
            true => Ok(()),
            false => self.unlog_before(object, blocks).await,
        }
    }

    /// Puts the content of those of these blocks that are dirty into rows, under the lock of the blocks. `false`: the file
    /// has to be synced.
    async fn put_content(
        self: &Rc<Self>,
        object: ObjectId,
        blocks: &[u64],
        size: u64,
    ) -> Result<bool, OsdError> {
        let Some(mut rows) = self.content(object, blocks, size).await? else { return Ok(false) };
        let row_bytes = rows.iter().map(|(_, content)| 24 + content.len()).sum::<usize>();
        let credits = Credits {
            rows: u32::try_from(rows.len()).unwrap_or(u32::MAX),
            row_bytes: u32::try_from(row_bytes).unwrap_or(u32::MAX),
            ..Credits::default()
        };
        let room = match self.osd().reserve(credits).await {
            Ok(room) => room,
            Err(OsdError::NoSpace { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        // What was written back meanwhile gets no row: nobody would delete it.
        let Some(dirty) = self.logged().still_dirty(object, blocks) else { return Ok(false) };
        rows.retain(|(block, _)| dirty.binary_search(block).is_ok());
        let logged: Vec<u64> = rows.iter().map(|(block, _)| *block).collect();
        if !logged.is_empty() {
            self.osd().transact(&Pins::default(), room, |tx| {
                for (block, content) in rows {
                    tx.put(table::LOGGED, &block_key(object, block), content);
                }
                Ok::<(), OsdError>(())
            })?;
        }
        self.logged().are_logged(object, &dirty, &logged);
        Ok(true)
    }

    /// Whether the file has its name and its length. If not, the sync of the file reports it: the bytes beside the logged
    /// ones are lost.
    async fn is_whole(&self, object: ObjectId, row: &ObjectRow) -> Result<bool, OsdError> {
        let StoreDone::Len(len) = self.ctx().io(StoreOp::Len { file: FileId::Blob(object) }).await? else {
            return Err(unexpected_result("len"));
        };
        Ok(len.is_some_and(|len| len >= self.expected_length(Some(row))))
    }

    /// What the file holds of these blocks, without zeros at their ends; blocks beyond `size` are left out. `None`: the file
    /// is too short, which a sync of it reports.
    async fn content(
        &self,
        object: ObjectId,
        blocks: &[u64],
        size: u64,
    ) -> Result<Option<Vec<(u64, Vec<u8>)>>, OsdError> {
        let mut rows = Vec::with_capacity(blocks.len());
        for run in blocks.chunk_by(|a, b| a + 1 == *b) {
            let offset = run.first().map_or(0, |block| block * BLOCK_BYTES);
            let end = (offset + run.len() as u64 * BLOCK_BYTES).min(size);
            let Some(len) = end.checked_sub(offset).filter(|len| *len > 0) else { continue };
            let len = u32::try_from(len).expect("a few blocks");
            let op = StoreOp::Read { file: FileId::Blob(object), offset, len };
            let StoreDone::Bytes(bytes) = self.ctx().io(op).await? else {
                return Err(unexpected_result("read"));
            };
            if bytes.len() < len as usize {
                return Ok(None);
            }
            for (block, content) in run.iter().zip(bytes.chunks(BLOCK_BYTES as usize)) {
                let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                rows.push((*block, content[..used].to_vec()));
            }
        }
        Ok(Some(rows))
    }

    /// The file of an object was synced, with all changes up to `serial`: its rows go. They are gone durably when
    /// `Logged::deleted` is.
    ///
    /// # Errors
    /// The engine has stopped.
    pub(crate) async fn unlog(&self, object: ObjectId, serial: u64) -> Result<(), OsdError> {
        self.delete_rows(object, serial).await?;
        // Not before the rows are gone: a sync that finds nothing dirty relies on it. There was no wait since.
        self.logged().settle(object, serial);
        Ok(())
    }
    async fn delete_rows(&self, object: ObjectId, serial: u64) -> Result<(), OsdError> {
        loop {
            let rows = u32::try_from(self.logged().count_until(object, serial)).unwrap_or(u32::MAX);
            if rows == 0 {
                return Ok(());
            }
            let row_bytes = rows.saturating_add(1).saturating_mul(24);
            let credits = Credits { rows, row_bytes, frees: true, ..Credits::default() };
            match self.osd().reserve(credits).await {
                Ok(room) => {
                    let (blocks, is_all) = self.logged().take_rows(object, serial);
                    if blocks.is_empty() {
                        return Ok(());
                    }
                    let (transno, ()) = self.osd().transact(&Pins::default(), room, |tx| {
                        match is_all && blocks.len() > 1 {
                            true => tx.delete_range(
                                table::LOGGED,
                                &block_key(object, 0),
                                &block_key(object, u64::MAX),
                            ),
                            false => {
                                blocks.iter().for_each(|b| tx.delete(table::LOGGED, &block_key(object, *b)));
                            }
                        }
                        Ok::<(), OsdError>(())
                    })?;
                    self.logged().note_deleted(transno);
                    return Ok(());
                }
                Err(error) if is_stopped(&error) => return Err(error),
                // Until then no later write may be called stable.
                Err(error) => {
                    tracing::debug!(%object, %error, "logged bytes that are in the file stay in the log");
                    self.ctx().sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Called under the lock of the blocks, before they change in a way that their rows could undo: the file is synced, so
    /// that there are no rows.
    ///
    /// # Errors
    /// Those of the sync.
    pub(crate) async fn unlog_before(&self, object: ObjectId, blocks: Range<u64>) -> Result<(), OsdError> {
        if !self.logged().has_row(object, blocks) {
            return Ok(());
        }
        // The change comes after the deletion in the log.
        self.sync_bytes(object, false).await
    }

    /// At a start: reads the rows. After an unclean one, blocks that have lost their bytes get them from there.
    ///
    /// # Errors
    /// Those of the engine.
    pub(crate) async fn begin_logged(self: &Rc<Self>) -> Result<(), OsdError> {
        let mut found: BTreeMap<ObjectId, Vec<(u64, Bytes)>> = BTreeMap::new();
        let mut pages = self.osd().pages(table::LOGGED, PAGE);
        while let Some(page) = pages.next_or_damage().await? {
            let Page::Rows(rows) = page else {
                tracing::error!(target_name = %self.osd().label().name,
                    "bytes of a sync cannot be read from the log: objects may have lost their latest bytes");
                continue;
            };
            for (key, content) in rows {
                if let (Some(object), Some(block)) = (object_of_key(&key), region_of_key(&key)) {
                    found.entry(object).or_default().push((block, content));
                }
            }
        }
        for (object, rows) in &found {
            self.logged().have_rows(*object, rows.iter().map(|(block, _)| (*block, 0)));
        }
        let next = RefCell::new(found.into_iter());
        let workers = (0..RESTORES_IN_FLIGHT).map(|_| async {
            loop {
                let Some((object, rows)) = next.borrow_mut().next() else { return Ok(()) };
                match self.restore_logged(object, rows).await {
                    Err(error) if is_stopped(&error) => return Err(error),
                    Err(error) => tracing::error!(target_name = %self.osd().label().name, %object, %error,
                        "bytes of a sync cannot be written from the log to their object"),
                    Ok(()) => {}
                }
            }
        });
        join_all(workers).await.into_iter().collect()
    }
    async fn restore_logged(
        self: &Rc<Self>,
        object: ObjectId,
        rows: Vec<(u64, Bytes)>,
    ) -> Result<(), OsdError> {
        if self.row(object).await?.is_none() {
            return self.unlog(object, 0).await;
        }
        if self.osd().was_clean() {
            return Ok(());
        }
        for (block, content) in rows {
            let mut content = content.to_vec();
            content.resize(BLOCK_BYTES as usize, 0);
            self.restore(object, block * BLOCK_BYTES, &[Bytes::from(content)]).await?;
        }
        Ok(())
    }
}
