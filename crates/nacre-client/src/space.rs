//! Space of the file system: the sum of its OSTs, and what the MDT says of inodes.
//!
//! A target that does not answer is left out of the sum (`df` must not hang because one OST is away).

use crate::client::Client;
use crate::target::Target;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use nacre_node::join_all;
use nacre_types::Errno;
use nacre_wire::target::{Statfs, StatfsReply};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

impl Client {
    pub async fn statfs(&self) -> Result<StatfsReply, Errno> {
        let _timing = self.stats.time("statfs");
        let mdt = self.mdt().await?.call(&Statfs {}).await?;
        let mut sum = StatfsReply { files_used: mdt.files_used, ..StatfsReply::default() };
        let mut objects_free = 0u64;
        for (_, answer) in self.statfs_of(self.mount.osts()).await {
            if let Ok(ost) = answer {
                sum.bytes_total = sum.bytes_total.saturating_add(ost.bytes_total);
                sum.bytes_free = sum.bytes_free.saturating_add(ost.bytes_free);
                sum.bytes_avail = sum.bytes_avail.saturating_add(ost.bytes_avail);
                objects_free = objects_free.saturating_add(ost.files_free);
            }
        }
        sum.files_free = mdt.files_free.min(objects_free);
        Ok(sum)
    }

    /// Space per target, for `lfs df`: (target name, kind is in the name, numbers or why not).
    pub async fn statfs_targets(&self) -> Result<Vec<(String, Result<StatfsReply, Errno>)>, Errno> {
        let mut targets = alloc::vec![self.mdt().await?];
        targets.extend(self.mount.osts());
        Ok(self.statfs_of(targets).await)
    }

    async fn statfs_of(&self, targets: Vec<Rc<Target>>) -> Vec<(String, Result<StatfsReply, Errno>)> {
        let ask = |target: Rc<Target>| async move {
            if !target.peer.is_connected() {
                return (target.name.clone(), Err(Errno::ENOTCONN));
            }
            let (promise, answer) = self.ctx.promise();
            let asked = target.clone();
            self.ctx.spawn(async move { promise.fulfil(asked.call(&Statfs {}).await) });
            let answer = self.ctx.timeout(self.ctx.now() + PATIENCE, answer).await;
            (target.name.clone(), answer.flatten().unwrap_or(Err(Errno::ETIMEDOUT)))
        };
        join_all(targets.into_iter().map(ask)).await
    }
}
