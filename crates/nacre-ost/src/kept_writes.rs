//! Writes that a mount in the former process of this target had acknowledged and not yet sent. A start executes them before
//! any request, so no client sees the objects without them, and no one has changed these bytes since.
//!
//! Each log is followed once (`TargetCore::follow_kept_logs`). Not here: the log (`nacre_client`, `kept_log`).

use crate::store::Store;
use nacre_osd::Stamp;
use nacre_target::{KeptWrites, TargetCore};
use nacre_types::{Errno, Failure};

/// Executes the writes of logs that were not executed before.
///
/// # Errors
/// Those of the target's own rows. A write that cannot be executed is logged.
pub(crate) async fn execute(core: &TargetCore, store: &Store) -> Result<(), Errno> {
    core.follow_kept_logs(async |logs| {
        for kept in logs {
            execute_log(core, store, kept).await?;
        }
        Ok(())
    })
    .await
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
