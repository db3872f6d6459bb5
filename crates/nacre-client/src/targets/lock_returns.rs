//! The task that returns locks of inodes to an MDT, in the order of `cache/returns.rs`.

use crate::cache::kernel::Stale;
use crate::cache::returns::{AfterFlush, OF_HANDLES};
use crate::targets::mdt::Mdt;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;
use nacre_dlm::client::InodeCancel;
use nacre_types::{Fid, InodeBits};
use nacre_wire::Frame;
use nacre_wire::mdt::{self, CancelInodeLocks, FormerLocksEnded, INODE_LOCKS_MAX, RevokeAck};

/// How often the MDT is told that bytes under a revoked lock are still being written.
const FLUSHING_INTERVAL: Duration = Duration::from_secs(1);

impl Mdt {
    /// Processes a callback about locks of inodes.
    pub(crate) fn locks_revoked(self: &Rc<Self>, frame: &Frame) {
        self.cache().revoked(frame);
        self.return_locks();
    }
    /// The MDT was restarted, or has evicted this client.
    pub(crate) fn locks_ended(self: &Rc<Self>, restarted: bool) {
        self.cache().locks_ended(self.peer.with_import(|import| import.epoch()));
        let pages = self.cache().pages().all_ended(self.index());
        self.cache().returns().all_ended(restarted, pages);
        self.return_locks();
    }
    /// Returns what is due, in the background.
    pub(crate) fn return_locks(self: &Rc<Self>) {
        let after = self.cache().returns().take_after_flush();
        if !after.is_empty() {
            self.ctx().spawn(self.clone().return_after_flush(after));
        }
        let opens = self.cache().returns().take_opens();
        if !opens.is_empty() {
            self.ctx().spawn(self.clone().return_opens(opens));
        }
        if self.cache().returns().begin() {
            self.ctx().spawn(self.clone().return_in_order());
        }
    }
    /// Has the kernel forget something although no lock is returned.
    pub(crate) async fn kernel_forgets(&self, stale: Stale) {
        if let Some(kernel) = self.cache().kernel() {
            kernel.forget(alloc::vec![stale]).await;
        }
    }
    /// Returns locks under which bytes are kept, when the OSTs have them. The MDT is told meanwhile that this goes on.
    async fn return_after_flush(self: Rc<Self>, after: Vec<AfterFlush>) {
        let era = self.cache().era();
        let fids: Vec<Fid> = after.iter().map(AfterFlush::fid).collect();
        let acks: Vec<RevokeAck> = after.iter().filter_map(AfterFlush::acknowledgement).collect();
        loop {
            let at = self.ctx().now() + FLUSHING_INTERVAL;
            let flushed = self.ctx().timeout(at, self.cache().dirty_files().flushed(&fids)).await;
            if self.cache().era() != era {
                return; // the locks have ended
            }
            if flushed.is_some() {
                break;
            }
            let instance = self.instance();
            let numbers: Vec<u64> = acks.iter().map(|ack| ack.number).collect();
            for flushing in numbers.chunks(INODE_LOCKS_MAX) {
                let (acks, cancels) = (Vec::new(), Vec::new());
                let request = CancelInodeLocks { instance, acks, cancels, flushing: flushing.to_vec() };
                if let Err(error) = self.call(&request).await {
                    tracing::debug!(target_name = %self.name, %error, "the MDT could not be told that bytes are being written");
                }
            }
        }
        let cancels = after.iter().filter_map(AfterFlush::cancellation).collect();
        self.cache().returns().add(Vec::new(), acks, cancels);
        self.return_locks();
    }
    /// Returns the bit OPEN of inodes when their opens are reported.
    async fn return_opens(self: Rc<Self>, opens: Vec<(Fid, RevokeAck)>) {
        let instance = self.instance();
        let (fids, acks): (Vec<Fid>, Vec<RevokeAck>) = opens.into_iter().unzip();
        self.late_releases().ended(self.ctx(), &fids).await;
        self.report_opens(&fids).await;
        self.closed_before_return(&fids).await;
        self.send_returns(instance, acks, Vec::new()).await;
    }
    /// That of the MDT now: a resend reaches a later start, which must not take a return for one of its own locks.
    fn instance(&self) -> u64 {
        self.peer.with_import(|import| import.instance()).unwrap_or_default()
    }
    async fn return_in_order(self: Rc<Self>) {
        while let Some(due) = self.cache().returns().take() {
            let (stale, ended, former_locks_ended, acks, cancels) = due;
            let instance = self.instance();
            let kernel = self.cache().kernel();
            if let Some(kernel) = kernel.filter(|_| !stale.is_empty()) {
                kernel.forget(stale).await;
            }
            // Before opens are reported: it ends some of them. The access time does not depend on handles.
            let inodes: Vec<Fid> = with(InodeBits::ALL - InodeBits::ATIME, &ended).collect();
            self.late_releases().ended(self.ctx(), &inodes).await;
            let opens: Vec<Fid> = with(InodeBits::OPEN, &ended).collect();
            self.report_opens(&opens).await;
            let locked: Vec<Fid> = with(InodeBits::WRITE_BACK, &ended).collect();
            self.report_flocks(&locked).await;
            let closes: Vec<Fid> = with(OF_HANDLES, &ended).collect();
            self.closed_before_return(&closes).await;
            if former_locks_ended {
                self.report_all_opens().await;
                self.closed_before_return(&self.kept_closes().fids()).await;
            }
            if former_locks_ended && let Err(error) = self.call(&FormerLocksEnded { instance }).await {
                tracing::debug!(target_name = %self.name, %error, "the end of former locks could not be told");
            }
            self.send_returns(instance, acks, cancels).await;
        }
    }
    async fn send_returns(&self, instance: u64, acks: Vec<RevokeAck>, cancels: Vec<InodeCancel>) {
        let cancel = |c: InodeCancel| mdt::InodeCancel { fid: c.fid, bits: c.bits, number: c.number };
        let mut acks = acks.into_iter();
        let mut cancels = cancels.into_iter().map(cancel);
        loop {
            let request = CancelInodeLocks {
                instance,
                acks: acks.by_ref().take(INODE_LOCKS_MAX).collect(),
                cancels: cancels.by_ref().take(INODE_LOCKS_MAX).collect(),
                flushing: Vec::new(),
            };
            if request.acks.is_empty() && request.cancels.is_empty() {
                return;
            }
            if let Err(error) = self.call(&request).await {
                tracing::debug!(target_name = %self.name, %error, "locks could not be returned: they ended otherwise");
                return;
            }
        }
    }
}

/// The inodes of which a bit has ended.
fn with(bit: InodeBits, ended: &[(Fid, InodeBits)]) -> impl Iterator<Item = Fid> {
    ended.iter().filter(move |(_, bits)| bits.intersects(bit)).map(|(fid, _)| *fid)
}
