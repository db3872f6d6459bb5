//! Space of the file system: the sum of its OSTs' devices, and the inodes of its MDTs.
//!
//! OSTs on one device share its space: it is counted once, with the numbers of the OST that reports the least free
//! space. An OST that does not reply is omitted from the sum (`df` must not hang because one OST is away), but a sum of
//! none is not reported: when every OST is away, their return is waited for. The MDTs are asked first, because they have
//! the OSTs free the space of removed files before they reply.

use crate::client::Client;
use crate::targets::target::Target;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::pin::pin;
use core::time::Duration;
use nacre_node::join_all;
use nacre_types::{Errno, Failure, Instant};
use nacre_wire::target::{Statfs, StatfsReply};

/// How long a reply is waited for: less than `lfs df` waits for all of them.
const STATFS_TIMEOUT: Duration = Duration::from_secs(4);
/// How often it is looked whether an OST has returned, when all are away.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long the OSTs are not asked because an MDT, which is asked before, has not replied: more than it takes to have
/// space freed.
const MDT_FIRST: Duration = Duration::from_millis(1500);

impl Client {
    /// Space of the file system.
    pub async fn statfs(&self) -> Result<StatfsReply, Failure> {
        let _timing = self.stats.time("statfs");
        self.root_mdt().await?;
        let mdts = self.mount.mdts();
        let inodes = join_all(mdts.iter().map(|mdt| mdt.call(&Statfs {}))).await;
        let deadline = self.ctx.now() + STATFS_TIMEOUT;
        let mut osts = self.statfs_of(self.mount.osts(), deadline).await;
        while are_away(&osts) {
            if self.ctx.now() >= deadline {
                return Err(Failure::ETIMEDOUT);
            }
            self.ctx.sleep(LOOK_INTERVAL).await;
            osts = self.statfs_of(self.mount.osts(), deadline).await;
        }
        let mut sum = sum_of(osts.iter().filter_map(|(_, reply)| reply.as_ref().ok()));
        let objects_free = core::mem::take(&mut sum.files_free);
        sum.files_used = 0;
        for mdt in inodes {
            let mdt = mdt?;
            sum.files_used = sum.files_used.saturating_add(mdt.files_used);
            sum.files_free = sum.files_free.saturating_add(mdt.files_free);
        }
        sum.files_free = sum.files_free.min(objects_free);
        Ok(sum)
    }

    /// Space per target, for `lfs df`: (target name, kind is in the name, numbers or why not). ENODATA: the administrator
    /// has set the target inactive here; ENOTCONN: it is down.
    pub async fn statfs_targets(&self) -> Result<Vec<(String, Result<StatfsReply, Failure>)>, Errno> {
        let mdts: Vec<_> = self.mount.mdts().iter().map(|mdt| mdt.target().clone()).collect();
        if mdts.is_empty() {
            return Err(Errno::ENOTCONN);
        }
        let deadline = self.ctx.now() + STATFS_TIMEOUT;
        let mut first = pin!(self.statfs_of(mdts, deadline));
        let replied = self.ctx.timeout(self.ctx.now() + MDT_FIRST, first.as_mut()).await;
        let osts = self.statfs_of(self.mount.osts(), deadline).await;
        let mut all = match replied {
            Some(replied) => replied,
            None => first.await,
        };
        all.extend(osts);
        Ok(all)
    }

    async fn statfs_of(
        &self,
        targets: Vec<Rc<Target>>,
        deadline: Instant,
    ) -> Vec<(String, Result<StatfsReply, Failure>)> {
        let ask = |target: Rc<Target>| async move {
            if !target.peer.with_import(|import| import.is_active()) {
                return (target.name.clone(), Err(Failure::ENODATA));
            }
            if !target.peer.is_connected() {
                return (target.name.clone(), Err(Failure::ENOTCONN));
            }
            let (promise, reply) = self.ctx.promise();
            let asked = target.clone();
            self.ctx.spawn(async move { promise.fulfil(asked.call(&Statfs {}).await) });
            let reply = self.ctx.timeout(deadline, reply).await;
            (target.name.clone(), reply.flatten().unwrap_or(Err(Failure::ETIMEDOUT)))
        };
        join_all(targets.into_iter().map(ask)).await
    }
}

/// Whether none of these targets has replied, and not because the administrator wants it so (ENODATA).
fn are_away(targets: &[(String, Result<StatfsReply, Failure>)]) -> bool {
    targets.iter().all(|(_, reply)| reply.is_err())
        && targets.iter().any(|(_, reply)| *reply != Err(Failure::ENODATA))
}

/// Adds up targets, each device once.
fn sum_of<'a>(targets: impl Iterator<Item = &'a StatfsReply>) -> StatfsReply {
    let mut devices: BTreeMap<u64, StatfsReply> = BTreeMap::new();
    let mut sum = StatfsReply::default();
    for t in targets {
        match devices.get_mut(&t.device).filter(|_| t.device != 0) {
            Some(d) => {
                d.bytes_total = d.bytes_total.max(t.bytes_total);
                d.bytes_free = d.bytes_free.min(t.bytes_free);
                d.bytes_avail = d.bytes_avail.min(t.bytes_avail);
                d.files_free = d.files_free.min(t.files_free);
            }
            None if t.device == 0 => add(&mut sum, t),
            None => drop(devices.insert(t.device, *t)),
        }
    }
    devices.values().for_each(|d| add(&mut sum, d));
    sum
}
fn add(sum: &mut StatfsReply, t: &StatfsReply) {
    sum.bytes_total = sum.bytes_total.saturating_add(t.bytes_total);
    sum.bytes_free = sum.bytes_free.saturating_add(t.bytes_free);
    sum.bytes_avail = sum.bytes_avail.saturating_add(t.bytes_avail);
    sum.files_free = sum.files_free.saturating_add(t.files_free);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_several_targets_is_counted_once() {
        let on = |device, avail| StatfsReply {
            bytes_total: 100,
            bytes_free: avail + 1,
            bytes_avail: avail,
            files_used: 0,
            files_free: avail,
            device,
        };
        let sum = |list: &[StatfsReply]| sum_of(list.iter());
        assert_eq!(sum(&[on(7, 40), on(7, 30)]), on(0, 30), "the same device");
        let two = sum(&[on(7, 40), on(8, 30), on(7, 50)]);
        assert_eq!((two.bytes_total, two.bytes_avail, two.files_free), (200, 70, 70), "two devices");
        let unknown = sum(&[on(0, 40), on(0, 30)]);
        assert_eq!((unknown.bytes_total, unknown.bytes_free), (200, 72), "devices of their own");
    }
}
