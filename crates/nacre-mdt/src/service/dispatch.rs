//! The metadata target as a [`Service`]: the handler of each request.

use crate::mdt::Mdt;
use crate::ops::AnyOperation;
use crate::rows::table::{ENTRY, ENTRY_PREFIX, FLOCK, INODE, LINK, OPEN, XATTR};
use crate::service::{params, start};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_node::Event;
use nacre_osd::OsdConfig;
use nacre_rpc::ReplyRecord;
use nacre_target::{ExportId, Reply, Request, Service, TargetCore};
use nacre_types::{Errno, Failure, Xid};
use nacre_wire::Opcode;
use nacre_wire::mdt::{Ended, GrantSeq};
use nacre_wire::params::BoundParam;
use nacre_wire::target::{StatfsReply, features};

impl Mdt {
    async fn dispatch(self: &Rc<Self>, request: &Request) -> Result<Reply, Failure> {
        match request.opcode {
            // In boxes: otherwise the task of a request would be as large as the largest of them.
            Opcode::Lookup => Box::pin(self.lookup(request, &request.args()?)).await,
            Opcode::Getattr => Box::pin(self.getattr(request, &request.args()?)).await,
            Opcode::ReadData => Box::pin(self.read_data(&request.args()?)).await,
            Opcode::Settle => Box::pin(self.getattr_settled(request, &request.args()?)).await,
            Opcode::MoveData => Box::pin(self.move_data(request, &request.args()?)).await,
            Opcode::StoreData => Box::pin(self.store_data(request)).await,
            Opcode::Batch => Box::pin(self.batch(request)).await,
            Opcode::GrantSeq => {
                let GrantSeq {} = request.args()?;
                Box::pin(self.grant_seq(request)).await
            }
            Opcode::Flock => Box::pin(self.flock(request, &request.args()?)).await,
            Opcode::FlockCancel => Box::pin(self.flock_cancel(request, &request.args()?)).await,
            opcode if AnyOperation::includes(opcode) => Box::pin(self.dispatch_operation(request)).await,
            _ => Ok(Box::pin(self.dispatch_other(request)).await?),
        }
    }
    /// Requests about which the protocol has no outcome.
    async fn dispatch_other(self: &Rc<Self>, request: &Request) -> Result<Reply, Errno> {
        match request.opcode {
            Opcode::Readdir => self.readdir(request, &request.args()?).await,
            Opcode::Readlink => self.readlink(&request.args()?).await,
            Opcode::Getxattr => self.getxattr(&request.args()?).await,
            Opcode::Listxattr => self.listxattr(&request.args()?).await,
            Opcode::GetLayout => self.get_layout(&request.args()?).await,
            Opcode::FidLinks => self.fid_links(&request.args()?).await,
            Opcode::FlockTest => self.flock_test(request).await,
            Opcode::Reclaim => self.reclaim(request).await,
            Opcode::CancelInodeLocks => self.cancel_inode_locks(request),
            Opcode::AwaitInodeLocks => self.await_inode_locks(request).await,
            Opcode::ReportOpens => self.report_opens(request).await,
            Opcode::FormerLocksEnded => self.former_locks_have_ended(request),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
    /// The requests that are answered at once most of the time.
    fn dispatch_now(&self, request: &Request) -> Option<Result<Reply, Failure>> {
        match request.opcode {
            Opcode::Lookup => self.lookup_now(request, &request.args().ok()?),
            Opcode::Getattr => self.getattr_now(request, &request.args().ok()?),
            Opcode::ReadData => self.read_data_now(&request.args().ok()?),
            Opcode::MoveData => None,
            Opcode::StoreData if !self.data_moves().is_empty() => None,
            opcode => {
                let op = AnyOperation::decode(opcode, &request.body).ok()??;
                let done = self.operation_now(request, op.get())?;
                op.get().count(request);
                Some(done)
            }
        }
    }
    pub(crate) async fn dispatch_operation(&self, request: &Request) -> Result<Reply, Failure> {
        let op = AnyOperation::decode(request.opcode, &request.body)?.ok_or(Errno::EOPNOTSUPP)?;
        op.get().count(request);
        self.operation(request, op.get()).await
    }
}

impl Service for Mdt {
    /// Locks of inodes have no rows.
    const VOLATILE_LOCK_FEATURES: u64 = features::INODE_LOCKS;

    fn tune(osd: &mut OsdConfig) {
        // The keys that a name may have differ in the last byte only.
        osd.bloom_prefixes.push((ENTRY, ENTRY_PREFIX));
        // The rows that belong to an inode are removed with it, as a range.
        osd.bloom_prefixes.extend([LINK, XATTR, FLOCK].map(|table| (table, 12)));
        // New inodes are numbered upwards: 256 in a row ask for the same bits, which the processor's caches then hold.
        osd.bloom_prefixes.extend([INODE, OPEN].map(|table| (table, 11)));
    }
    async fn start(core: &Rc<TargetCore>) -> Result<Rc<Self>, String> {
        start::start(core).await
    }
    async fn handle(self: Rc<Self>, request: Rc<Request>) -> Result<Reply, Failure> {
        self.dispatch(&request).await
    }
    fn handle_now(&self, request: &Request) -> Option<Result<Reply, Failure>> {
        self.dispatch_now(request)
    }
    /// Operations, single or in a batch, are counted under their own names when they are decoded.
    fn counter(opcode: Opcode) -> Option<&'static str> {
        Some(match opcode {
            Opcode::Lookup | Opcode::Getattr | Opcode::Settle => "getattr",
            Opcode::Readdir => "readpage",
            Opcode::Readlink => "readlink",
            Opcode::ReadData => "read_data",
            Opcode::Getxattr | Opcode::Listxattr => "getxattr",
            Opcode::Statfs => "statfs",
            Opcode::ReportOpens => "report_opens",
            Opcode::Reclaim => "reclaim",
            _ => return None,
        })
    }
    async fn reconstruct(self: Rc<Self>, request: Rc<Request>, record: ReplyRecord) -> Result<Reply, Errno> {
        self.reconstruct_reply(&request, &record).await
    }
    async fn admitted(self: Rc<Self>) -> Result<(), Errno> {
        self.skip_sequences().await
    }
    async fn export_gone(self: Rc<Self>, export: ExportId) -> Result<(), Errno> {
        self.inode_locks().drop_export(self.core(), export).await;
        self.drop_export(export).await
    }
    fn acknowledged(&self, export: ExportId, callback: Xid) {
        self.inode_locks().acknowledged(self.core(), export, callback);
    }
    fn handle_event(&self, event: Event) -> Option<Event> {
        Some(event)
    }
    async fn statfs(self: Rc<Self>) -> Result<StatfsReply, Errno> {
        self.free_for_statfs().await;
        self.space().await
    }
    fn params(&self) -> Vec<BoundParam<'_>> {
        params::list(self)
    }
    async fn stop(self: Rc<Self>) {
        if self.core().config.in_memory {
            let silent = self.core().callback_all(Opcode::Ended, &Ended {}).await;
            if silent > 0 {
                tracing::warn!(target_name = %self.core().name, silent,
                    "clients have not acknowledged that the file system has ended: their calls wait until they are unmounted");
            }
        }
        self.osts().stop().await;
    }
}
