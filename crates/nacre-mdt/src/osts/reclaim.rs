//! Space that only waits for this target: destroys that it still owes an OST.
//!
//! The objects of a removed file are destroyed after the commit of the removal, up to a second later. A client whose
//! write has met ENOSPC, and a create that finds every OST full or the only one that it may use, have that commit hurried and the destroys sent; then the
//! OST is asked for its space, so that the next choice is made by its present figures. Bound: [`PATIENCE`] for each OST.

use crate::mdt::Mdt;
use crate::osts::Ost;
use crate::rows::table::{self, DESTROY};
use alloc::rc::Rc;
use core::time::Duration;
use nacre_target::{Reply, Request};
use nacre_types::Errno;
use nacre_wire::mdt::{Reclaim, ReclaimReply};

/// How long an OST may take to destroy what it is owed, and to tell its space.
const PATIENCE: Duration = Duration::from_secs(5);

impl Mdt {
    pub(crate) async fn reclaim(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Reclaim = request.args()?;
        let ost = self.osts.get(args.ost).ok_or(Errno::ENXIO)?;
        let destroyed = self.destroy_now(&ost).await?;
        Ok(Reply::of(&ReclaimReply { destroyed }))
    }

    /// Before a new file is placed: waits for OSTs that may soon be able to take it, and has space freed when all are full.
    pub(crate) async fn wait_for_room(&self) {
        self.osts.wait_usable().await;
        if !self.osts.any_usable() {
            self.free_full_osts().await;
        }
    }

    /// A new file was refused because the OST that it has to lie on is full. True: one that was full has room again.
    pub(crate) async fn free_full_osts(&self) -> bool {
        let mut freed = false;
        for ost in self.osts.full() {
            if let Err(error) = self.destroy_now(&ost).await {
                tracing::debug!(target_name = %self.core.name, ost = ost.index.0, %error, "no space was freed");
            }
            freed |= !self.osts.is_full(ost.index);
        }
        freed
    }

    /// Sends an OST the destroys that it is owed, and asks it for its space. False: there were none.
    async fn destroy_now(&self, ost: &Rc<Ost>) -> Result<bool, Errno> {
        if !ost.peer.is_connected() {
            return Ok(false);
        }
        let until = self.core.ctx.now() + PATIENCE;
        let (from, to) = table::range_of(&ost.index.0.to_be_bytes());
        let owed = !self.core.osd.scan(DESTROY, &from, &to, 1).await?.is_empty();
        if owed {
            self.core.osd.want_commit();
            while ost.owes_destroys() && self.core.ctx.now() < until {
                let _sent = self.core.ctx.timeout(until, ost.destroyed.wait()).await;
            }
        }
        let (promise, answer) = self.core.ctx.promise();
        let (osts, asked) = (self.osts.clone(), ost.clone());
        self.core.ctx.spawn(async move { promise.fulfil(osts.ask_space(&asked).await.is_ok()) });
        let _told = self.core.ctx.timeout(until, answer).await;
        Ok(owed)
    }
}
