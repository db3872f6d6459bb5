//! The task that returns locks to a target, in the order of `cache/returns.rs`.

use crate::cache::kernel::KernelCache;
use crate::cache::returns::Returns;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec::Vec;
use nacre_dlm::client::InodeCancel;
use nacre_node::Ctx;
use nacre_types::{Errno, Fid};
use nacre_wire::mdt::{self, CancelInodeLocks, FormerLocksEnded, INODE_LOCKS_MAX, RevokeAnswer};

/// The locks that a target has granted to this mount, as far as their return is concerned.
pub(crate) trait LocksOfTarget {
    fn ctx(&self) -> &Rc<Ctx>;
    fn target(&self) -> &Rc<Target>;
    fn returns(&self) -> &Returns;
    /// Reports opens that were made under these locks: those of some inodes, or all.
    fn report(&self, opens: &[Fid], all: bool) -> impl Future<Output = ()>;
    /// The kernel that has to forget first.
    fn kernel(&self) -> Option<Rc<dyn KernelCache>>;
}

/// Returns what is due, in the background.
pub(crate) fn return_locks<L: LocksOfTarget + 'static>(locks: &Rc<L>) {
    if locks.returns().begin() {
        locks.ctx().spawn(return_in_order(locks.clone()));
    }
}

async fn return_in_order(locks: Rc<impl LocksOfTarget>) {
    let target = locks.target();
    while let Some(((stale, guards), opens, former_locks_ended, answers, cancels)) = locks.returns().take() {
        // A resend reaches a later start of the target, which must not take it for its own locks.
        let instance = target.peer.with_import(|import| import.instance()).unwrap_or_default();
        if let Some(kernel) = locks.kernel().filter(|_| !stale.is_empty()) {
            kernel.forget(stale).await;
        }
        drop(guards);
        locks.report(&opens, former_locks_ended).await;
        if former_locks_ended && let Err(error) = target.call(&FormerLocksEnded { instance }).await {
            tracing::debug!(target_name = %target.name, %error, "the end of former locks could not be told");
        }
        if let Err(error) = send_returns(target, instance, answers, cancels).await {
            tracing::debug!(target_name = %target.name, %error, "locks could not be returned: they ended otherwise");
        }
    }
}

async fn send_returns(
    target: &Target,
    instance: u64,
    answers: Vec<RevokeAnswer>,
    cancels: Vec<InodeCancel>,
) -> Result<(), Errno> {
    let cancel = |c: InodeCancel| mdt::InodeCancel { fid: c.fid, bits: c.bits, number: c.number };
    let mut answers = answers.into_iter();
    let mut cancels = cancels.into_iter().map(cancel);
    loop {
        let request = CancelInodeLocks {
            instance,
            answers: answers.by_ref().take(INODE_LOCKS_MAX).collect(),
            cancels: cancels.by_ref().take(INODE_LOCKS_MAX).collect(),
        };
        if request.answers.is_empty() && request.cancels.is_empty() {
            return Ok(());
        }
        target.call(&request).await?;
    }
}
