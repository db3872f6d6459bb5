//! The ends of the locks of an MDT, and their return.

use crate::cache::kernel::{KernelCache, Stale};
use crate::cache::returns::Returns;
use crate::targets::lock_returns::{LocksOfTarget, return_locks};
use crate::targets::mdt::Mdt;
use crate::targets::target::Target;
use alloc::rc::Rc;
use nacre_node::Ctx;
use nacre_types::Fid;
use nacre_wire::Frame;

impl LocksOfTarget for Mdt {
    fn ctx(&self) -> &Rc<Ctx> {
        Mdt::ctx(self)
    }
    fn target(&self) -> &Rc<Target> {
        Mdt::target(self)
    }
    async fn report(&self, opens: &[Fid], all: bool) {
        self.report_opens(opens).await;
        if all {
            self.report_all_opens().await;
        }
    }
    fn returns(&self) -> &Returns {
        self.cache().returns()
    }
    fn kernel(&self) -> Option<Rc<dyn KernelCache>> {
        self.cache().kernel()
    }
}

impl Mdt {
    /// Processes a callback about locks of inodes.
    pub(crate) fn locks_revoked(self: &Rc<Self>, frame: &Frame) {
        self.cache().revoked(frame);
        self.return_locks();
    }
    /// The MDT was restarted, or has evicted this client.
    pub(crate) fn locks_ended(self: &Rc<Self>, restarted: bool) {
        self.cache().locks_ended(self.peer.with_import(|import| import.epoch()));
        self.cache().returns().all_ended(alloc::vec![Stale::All], restarted);
        self.return_locks();
    }
    /// Returns what is due, in the background.
    pub(crate) fn return_locks(self: &Rc<Self>) {
        return_locks(self);
    }
    /// Has the kernel forget the attributes of an inode that this mount has changed without a request of the kernel.
    pub(crate) async fn kernel_forgets(&self, fid: Fid) {
        if let Some(kernel) = self.cache().kernel() {
            kernel.forget(alloc::vec![Stale::Inode(fid)]).await;
        }
    }
}
