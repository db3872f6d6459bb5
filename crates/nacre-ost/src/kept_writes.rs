//! Writes that a mount in the former process of this target had acknowledged and not yet sent. A start executes them before
//! any request, so no client sees the objects without them, and no one has changed these bytes since.
//!
//! A row names the logs whose writes were executed: they are not executed again when a later start is given them once more,
//! because clients may have changed the objects by then. Not here: the log (`nacre_client`, `kept_log`).

use crate::store::Store;
use alloc::vec::Vec;
use nacre_osd::{Credits, Pins, Stamp, table};
use nacre_target::{KeptWrites, TargetCore};
use nacre_types::{Codec, Errno, Failure};

/// Row of `TARGET`: the identities of the logs.
const EXECUTED_KEY: &[u8] = b"kept_logs";
/// Logs that the row names at most. A process leaves one, and they are given to each start until all OSTs have executed them.
const LOGS_MAX: usize = 64;

/// Executes the writes of logs that were not executed before.
///
/// # Errors
/// Those of the target's own rows. A write that cannot be executed is logged.
pub(crate) async fn execute(core: &TargetCore, store: &Store) -> Result<(), Errno> {
    let given = &core.config.kept_writes;
    if given.is_empty() {
        return Ok(());
    }
    let executed: Vec<u64> = match core.osd.get(table::TARGET, EXECUTED_KEY).await? {
        Some(row) => Vec::from_slice(&row)?,
        None => Vec::new(),
    };
    for kept in given.iter().filter(|kept| !executed.contains(&kept.log)) {
        execute_log(core, store, kept).await?;
    }
    let known = executed.into_iter().filter(|log| given.iter().all(|kept| kept.log != *log));
    let mut logs: Vec<u64> = given.iter().map(|kept| kept.log).chain(known).collect();
    logs.truncate(LOGS_MAX);
    // A full device must not keep the target from starting: without it nobody could remove files.
    let credits = Credits { rows: 1, row_bytes: 1024, object_bytes: 0, frees: true };
    let room = core.osd.reserve(credits).await?;
    let (transno, ()) = core.transact_local(&Pins::default(), room, |tx| {
        tx.put(table::TARGET, EXECUTED_KEY, logs.to_vec());
        Ok(())
    })?;
    Ok(core.osd.commit(transno).await?)
}

async fn execute_log(core: &TargetCore, store: &Store, kept: &KeptWrites) -> Result<(), Errno> {
    let (mut done, mut bytes) = (0usize, 0u64);
    for (write, data) in &kept.writes {
        let (object, offset) = (write.object, write.offset);
        if store.tombstones().contains(object) {
            continue; // the file was removed
        }
        let stamp = Stamp { owner: write.owner, mtime: write.mtime };
        match store.write_kept(object, stamp, offset, data.clone()).await {
            Ok(()) => {
                done += 1;
                bytes += data.iter().map(|part| part.len() as u64).sum::<u64>();
            }
            Err(Failure::Errno(Errno::ESHUTDOWN)) => return Err(Errno::ESHUTDOWN),
            Err(error) => tracing::error!(target_name = %core.name, %object, offset, %error,
                "a write that a killed process had acknowledged cannot be stored: it is lost"),
        }
    }
    if done > 0 {
        tracing::info!(target_name = %core.name, writes = done, bytes,
            "writes that a killed process had acknowledged were stored");
    }
    Ok(())
}
