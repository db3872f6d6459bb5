//! Writes that a mount in the former process of this target had acknowledged and not yet sent, to files whose bytes this target
//! has. The log of kept writes has all bytes of such a file, so they replace the row before any request. The OSTs that are in
//! this process execute the writes as well (`nacre_ost`, `kept_writes.rs`): their objects are cut when the bytes move there.
//!
//! Each log is followed once (`TargetCore::follow_kept_logs`). Not here: the log (`nacre_client`, `kept_log`).

use crate::mdt::Mdt;
use crate::ops::WriteBound;
use crate::ops::data::restore;
use crate::rows::read_set::ReadSet;
use crate::service::bounds::credits_of;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use nacre_target::KeptWrites;
use nacre_types::{DOM_BYTES_MAX, Errno, Fid, Timestamp};

impl Mdt {
    /// Follows the logs that were not followed before.
    pub(crate) async fn follow_kept_writes(&self) -> Result<(), Errno> {
        self.core()
            .follow_kept_logs(async |logs| {
                for (fid, file) in files(logs.into_iter()) {
                    self.restore_data(fid, &file).await?;
                }
                Ok(())
            })
            .await
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
