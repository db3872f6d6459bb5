//! Requests to OSTs for space grants.

use crate::targets::target::Target;
use alloc::rc::Rc;
use core::time::Duration;
use nacre_node::Ctx;
use nacre_wire::ost::Grant;

/// An OST that had less room than was wanted is asked again after that time.
const RETRY: Duration = Duration::from_secs(1);

impl Target {
    /// The part of the grant that is not used.
    pub(crate) fn granted_room(&self) -> u64 {
        self.grant().room(self.peer.with_import(|import| import.instance()).unwrap_or_default())
    }
    /// Asks for a grant of `bytes` beyond what is used, unless the OST has just had no room; waits for the reply.
    pub(crate) async fn renew_grant(&self, ctx: &Ctx, bytes: u64) {
        let grant = self.grant();
        if !grant.begin(ctx.now()) {
            grant.replied().await;
            return;
        }
        let wanted = grant.bytes().1 + bytes;
        let reply = self.call(&Grant { bytes: wanted }).await;
        self.granted_room(); // a later start of the OST may have replied
        let granted = match reply {
            Ok(reply) => Some(reply.bytes),
            Err(error) => {
                tracing::debug!(target_name = %self.name, %error, "an OST has granted no space");
                None
            }
        };
        let is_enough = granted.is_some_and(|granted| granted >= wanted);
        grant.end(granted, (!is_enough).then(|| ctx.now() + RETRY));
    }
    /// Returns a grant that was not used since the last call.
    pub(crate) async fn return_idle_grant(self: Rc<Self>) {
        if self.grant().take_idle() {
            self.return_unused_grant().await;
        }
    }
    /// Returns what bytes in memory do not need of the grant: its OST has little other room.
    pub(crate) async fn return_unused_grant(self: Rc<Self>) {
        let grant = self.grant();
        let kept = loop {
            match grant.begin_return() {
                Some(kept) => break kept,
                None => grant.replied().await,
            }
        };
        let reply = self.call(&Grant { bytes: kept }).await;
        self.granted_room(); // a later start of the OST may have replied
        if let Err(error) = &reply {
            tracing::debug!(target_name = %self.name, %error, "a grant could not be returned: it ends with the export");
        }
        grant.end(reply.ok().map(|reply| reply.bytes), None);
    }
}
