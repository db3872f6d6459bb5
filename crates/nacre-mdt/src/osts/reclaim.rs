//! Space of removed files for callers that need it at once: a write or a create that failed with ENOSPC, and statfs.
//!
//! The objects of a removed file are destroyed after the commit of the removal, and their OST frees the space after a
//! commit of its own, up to a few seconds later. This file hurries both commits: the pending destroys are sent to the
//! OSTs, then the OSTs free the space of the objects that they have removed. OSTs that share a device share its space,
//! so all OSTs on a device are asked when one of them is full, at the same time. Log and tables of each target on the
//! device, this one included, give back what they do not need, and so do clients with grants. Bounds: [`RECLAIM_TIMEOUT`] and
//! [`STATFS_TIMEOUT`], however many OSTs are asked.

use crate::mdt::Mdt;
use crate::osts::Ost;
use crate::rows::table::{self, DESTROY};
use alloc::rc::Rc;
use core::time::Duration;
use nacre_node::join_all;
use nacre_target::{Reply, Request};
use nacre_types::{Errno, Instant};
use nacre_wire::mdt::{Reclaim, ReclaimReply};
use nacre_wire::ost::{FreeSpace, FreeSpaceReply};

/// Time in which the OSTs have to execute the destroys, free the space, and report it.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two lines of the log about a full target.
const FULL_INTERVAL: Duration = Duration::from_secs(60);
/// The same limit before the reply to a statfs: `df` shows the space that is free by then.
const STATFS_TIMEOUT: Duration = Duration::from_secs(1);

impl Mdt {
    pub(crate) async fn reclaim(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Reclaim = request.args()?;
        let ost = self.osts().get(args.ost).ok_or(Errno::ENXIO)?;
        let freed = self.free_devices_of(&[ost]).await;
        Ok(Reply::of(&ReclaimReply { freed }))
    }

    /// Before a new file is placed: waits for OSTs that may soon be able to take it, and has space freed when all are full.
    pub(crate) async fn wait_for_room(&self) {
        self.osts().wait_usable().await;
        if !self.osts().any_usable() {
            self.free_full_osts().await;
        }
    }

    /// A new file was refused because the OST that it has to lie on is full. True: one that was full has room again.
    pub(crate) async fn free_full_osts(&self) -> bool {
        let full = self.osts().full();
        self.free_devices_of(&full).await;
        full.iter().any(|ost| !self.osts().is_full(ost.index))
    }

    /// A change of rows has met ENOSPC: objects on this target's own device may be about to be destroyed.
    pub(crate) async fn free_own_device(&self) {
        if let Ok(space) = self.core().osd.space().await {
            let until = self.core().ctx.now() + RECLAIM_TIMEOUT;
            self.free(&self.osts().on_device(space.device), until).await;
        }
    }

    /// A change has failed with ENOSPC. Says so, but not again for a while: programs try it again.
    pub(crate) fn say_full(&self) {
        let now = self.core().ctx.now();
        if self.said_full_at().is_some_and(|said| now.saturating_since(said) < FULL_INTERVAL) {
            return;
        }
        self.set_said_full_at(now);
        tracing::warn!(target_name = %self.core().name,
            "the metadata target is full: whatever needs more of its space fails with ENOSPC until files are removed or its device \
             grows; `nacre lfs df` and `df -i` show it");
    }

    /// Frees the space of files that were removed before a statfs.
    pub(crate) async fn free_for_statfs(&self) {
        let until = self.core().ctx.now() + STATFS_TIMEOUT;
        self.free(&self.osts().all(), until).await;
        self.give_back_own(until).await;
    }

    /// Has log and tables of this target give back space if its device has little. True: they gave some.
    async fn give_back_own(&self, until: Instant) -> bool {
        self.core().osd.give_back_if_short(until).await.unwrap_or_else(|error| {
            tracing::debug!(target_name = %self.core().name, %error, "log and tables give no space back");
            false
        })
    }
    /// Whether one of these OSTs is on this target's own device.
    async fn is_beside(&self, osts: &[Rc<Ost>]) -> bool {
        let Ok(space) = self.core().osd.space().await else { return false };
        let beside = self.osts().on_device(space.device);
        osts.iter().any(|ost| beside.iter().any(|other| other.index == ost.index))
    }

    /// Frees the space on the devices of these OSTs, and asks these for it. True: there was some to free.
    async fn free_devices_of(&self, osts: &[Rc<Ost>]) -> bool {
        let until = self.core().ctx.now() + RECLAIM_TIMEOUT;
        let freed = self.free(&self.osts().on_devices_of(osts), until).await;
        // Whatever the OSTs have freed: most of the space may be held here, by log and tables with small files.
        let given = self.is_beside(osts).await && self.give_back_own(until).await;
        let asked = osts.iter().filter(|ost| ost.peer.is_connected()).map(|ost| async move {
            let (promise, reply) = self.core().ctx.promise();
            let (osts, ost) = (self.osts().clone(), ost.clone());
            self.core().ctx.spawn(async move { promise.fulfil(osts.ask_room(&ost).await.is_ok()) });
            self.core().ctx.timeout(until, reply).await
        });
        join_all(asked).await;
        freed || given
    }

    /// Has OSTs free the space of objects that were removed before. True: there was some.
    async fn free(&self, osts: &[Rc<Ost>], until: Instant) -> bool {
        let each = osts.iter().filter(|ost| ost.peer.is_connected()).map(|ost| async move {
            let owed = self.destroy_owed(ost, until).await.unwrap_or_else(|error| {
                tracing::debug!(target_name = %self.core().name, ost = ost.index.0, %error, "no destroys were sent");
                false
            });
            let (promise, reply) = self.core().ctx.promise();
            let peer = ost.peer.clone();
            self.core().ctx.spawn(async move { promise.fulfil(peer.call(&FreeSpace {}).await) });
            let reply = self.core().ctx.timeout(until, reply).await.flatten();
            owed || matches!(reply, Some(Ok(FreeSpaceReply { freed: true })))
        });
        join_all(each).await.contains(&true)
    }

    /// Waits until an OST has executed the destroys that it is owed now. False: there are none.
    async fn destroy_owed(&self, ost: &Ost, until: Instant) -> Result<bool, Errno> {
        let asked = self.core().osd.last_transno();
        let (from, to) = table::range_of(&ost.index.0.to_be_bytes());
        if self.core().osd.scan(DESTROY, &from, &to, 1).await?.is_empty() {
            return Ok(false);
        }
        // This commit is for a round of destroys that waits already; later rounds see the counter of waiting callers.
        self.core().osd.request_commit();
        let _hurrying = Hurrying::new(ost);
        while ost.destroyed_to.get() < asked && ost.owes_destroys() && self.core().ctx.now() < until {
            let _executed = self.core().ctx.timeout(until, ost.destroyed.wait()).await;
        }
        Ok(true)
    }
}

/// A caller waits for the destroys of an OST, as long as this value exists; the caller may end in the middle of the wait.
struct Hurrying<'a>(&'a Ost);
impl<'a> Hurrying<'a> {
    fn new(ost: &'a Ost) -> Self {
        ost.hurrying.set(ost.hurrying.get() + 1);
        ost.hurry.wake_all();
        Self(ost)
    }
}
impl Drop for Hurrying<'_> {
    fn drop(&mut self) {
        self.0.hurrying.set(self.0.hurrying.get() - 1);
    }
}
