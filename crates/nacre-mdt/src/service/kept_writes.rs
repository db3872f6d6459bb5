//! Writes that a mount in the former process of this target had acknowledged and not yet sent, to files whose bytes this target
//! has. The log of kept writes has all bytes of such a file, so they replace the row before any request. The OSTs that are in
//! this process execute the writes as well (`nacre_ost`, `kept_writes.rs`): their objects are cut when the bytes move there.
//!
//! A row names the logs that were followed: they are not followed again when a later start is given them once more, because
//! clients may have changed the files by then. Not here: the log (`nacre_client`, `kept_log`).

use crate::mdt::Mdt;
use crate::ops::WriteBound;
use crate::ops::data::restore;
use crate::rows::read_set::ReadSet;
use crate::service::bounds::credits_of;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use nacre_osd::{Credits, Pins, table};
use nacre_target::KeptWrites;
use nacre_types::{Codec as _, DOM_BYTES_MAX, Errno, Fid, Timestamp};

/// Row of `TARGET`: the identities of the logs.
const FOLLOWED_KEY: &[u8] = b"kept_logs";
/// Logs that the row names at most. A process leaves one, and they are given to each start until all targets are up.
const LOGS_MAX: usize = 64;

impl Mdt {
    /// Follows the logs that were not followed before.
    pub(crate) async fn follow_kept_writes(&self) -> Result<(), Errno> {
        let core = self.core();
        let given = &core.config.kept_writes;
        if given.is_empty() {
            return Ok(());
        }
        let followed: Vec<u64> = match core.osd.get(table::TARGET, FOLLOWED_KEY).await? {
            Some(row) => Vec::from_slice(&row)?,
            None => Vec::new(),
        };
        for (fid, file) in files(given.iter().filter(|kept| !followed.contains(&kept.log))) {
            self.restore_data(fid, &file).await?;
        }
        // Each OST has its part of a log.
        let mut logs: Vec<u64> = given.iter().map(|kept| kept.log).collect();
        logs.dedup();
        let earlier = followed.into_iter().filter(|log| given.iter().all(|kept| kept.log != *log));
        logs.extend(earlier);
        logs.truncate(LOGS_MAX);
        // A full device must not keep the target from starting.
        let credits = Credits { rows: 1, row_bytes: 1024, frees: true, ..Credits::default() };
        let room = core.osd.reserve(credits).await?;
        let (transno, ()) = core.transact_local(&Pins::default(), room, |tx| {
            tx.put(table::TARGET, FOLLOWED_KEY, logs.to_vec());
            Ok(())
        })?;
        Ok(core.osd.commit(transno).await?)
    }

    async fn restore_data(&self, fid: Fid, file: &Left) -> Result<(), Errno> {
        let data = file.all_bytes();
        let size = data.as_ref().map_or(0, Vec::len) as u32;
        let credits = credits_of(WriteBound::inodes(1).with_value(size).freeing());
        let restored = self
            .execute_local(ReadSet::of_inode(fid), credits, |view| {
                restore(view, fid, data.as_deref(), file.mtime)
            })
            .await;
        match restored.map(|(_, restored)| restored) {
            Ok(true) => Ok(()),
            Err(Errno::ESHUTDOWN) => Err(Errno::ESHUTDOWN),
            failed => {
                let error = failed.err();
                tracing::error!(target_name = %self.core().name, %fid, size, ?error,
                    "bytes of a small file that a killed process had acknowledged cannot be stored: they are lost");
                Ok(())
            }
        }
    }
}

/// What the logs have of a file.
#[derive(Default)]
struct Left {
    /// Of the first object, where all bytes lie that a target may have: parts by their offsets.
    parts: BTreeMap<u64, Vec<u8>>,
    mtime: Timestamp,
    is_beyond: bool,
}
impl Left {
    /// `None`: they are not those of a file that the target may have.
    fn all_bytes(&self) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        for (offset, part) in &self.parts {
            if *offset != all.len() as u64 {
                return None;
            }
            all.extend(part);
        }
        (!self.is_beyond).then_some(all)
    }
}

fn files<'a>(logs: impl Iterator<Item = &'a KeptWrites>) -> BTreeMap<Fid, Left> {
    let mut files: BTreeMap<Fid, Left> = BTreeMap::new();
    for (write, data) in logs.flat_map(|kept| &kept.writes) {
        let file = files.entry(write.object.fid).or_default();
        file.mtime = file.mtime.max(write.mtime);
        let len: u64 = data.iter().map(|part| part.len() as u64).sum();
        // Large files need not be copied.
        file.is_beyond |= write.object.stripe > 0 || write.offset + len > u64::from(DOM_BYTES_MAX);
        if !file.is_beyond {
            file.parts.insert(write.offset, data.concat());
        }
    }
    files
}
