//! Logs of writes that killed processes of this machine had acknowledged (`TargetConfig::kept_writes`): each is followed once.
//!
//! A row names the logs that were followed: when a later start is given them once more, clients may have changed the files.
//! Not here: what a target does with the writes (`kept_writes.rs` of the OST and of the MDT), and the log itself
//! (`nacre_client`, `kept_log`).

use crate::target_core::{KeptWrites, TargetCore};
use alloc::vec::Vec;
use nacre_osd::{Credits, Pins, table};
use nacre_types::{Codec as _, Errno};

/// Row of `TARGET`: the identities of the logs.
const FOLLOWED_KEY: &[u8] = b"kept_logs";
/// Logs that the row names at most. A process leaves one, and they are given to each start until all targets have followed
/// them.
const LOGS_MAX: usize = 64;

impl TargetCore {
    /// Has `follow` carry out the writes of the logs that were not followed before, and records these durably.
    ///
    /// # Errors
    /// Those of the row, and of `follow`: then the next start follows the same logs again.
    pub async fn follow_kept_logs<'a>(
        &'a self,
        follow: impl AsyncFnOnce(Vec<&'a KeptWrites>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let given = &self.config.kept_writes;
        if given.is_empty() {
            return Ok(());
        }
        let followed: Vec<u64> = match self.osd.get(table::TARGET, FOLLOWED_KEY).await? {
            Some(row) => Vec::from_slice(&row)?,
            None => Vec::new(),
        };
        follow(given.iter().filter(|kept| !followed.contains(&kept.log)).collect()).await?;
        // An MDT is given a log in one part for each OST.
        let mut logs: Vec<u64> = given.iter().map(|kept| kept.log).collect();
        logs.dedup();
        let earlier = followed.into_iter().filter(|log| given.iter().all(|kept| kept.log != *log));
        logs.extend(earlier);
        logs.truncate(LOGS_MAX);
        // A full device must not keep the target from starting: without it nobody could remove files.
        let credits = Credits { rows: 1, row_bytes: 1024, frees: true, ..Credits::default() };
        let room = self.osd.reserve(credits).await?;
        let (transno, ()) = self.transact_local(&Pins::default(), room, |tx| {
            tx.put(table::TARGET, FOLLOWED_KEY, logs.to_vec());
            Ok(())
        })?;
        Ok(self.osd.commit(transno).await?)
    }
}
