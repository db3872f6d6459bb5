//! The interface of a kind of target (MGS, MDT, OST).

use crate::clients::rows::ExportId;
use crate::request::{Reply, Request};
use crate::rivals::Whereabouts;
use crate::target_core::TargetCore;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::future::Future;
use nacre_node::Event;
use nacre_osd::OsdConfig;
use nacre_rpc::ReplyRecord;
use nacre_types::{ClientUuid, Errno, Failure, Xid};
use nacre_wire::Opcode;
use nacre_wire::params::BoundParam;
use nacre_wire::target::StatfsReply;

/// Key and value of a row of the table `TARGET`.
pub type StartRow = (&'static [u8], Vec<u8>);

/// A kind of target. Handlers that have to wait run as tasks of the island; many are under way at a time.
pub trait Service: Sized + 'static {
    /// Every change is committed before its reply, so that no store can lose a change that a client relies on: after an
    /// unclean start there is nothing to replay, and all clients are served at once.
    const COMMITS_BEFORE_REPLY: bool = false;

    /// Features of clients that may be granted locks which no row restores. The row of such a client says so before
    /// the reply to its connect, see `locks/restart_wait.rs`.
    const VOLATILE_LOCK_FEATURES: u64 = 0;

    /// Settings of the engine for this kind of target, beyond those of the operator.
    fn tune(osd: &mut OsdConfig) {
        let _ = osd;
    }
    /// Reads the rows that it needs; called once the engine is open, before any request.
    fn start(core: &Rc<TargetCore>) -> impl Future<Output = Result<Rc<Self>, String>>;

    /// Rows of the table `TARGET` that are written with the number of this start, before any request.
    fn start_rows(core: &Rc<TargetCore>) -> impl Future<Output = Result<Vec<StartRow>, Errno>> {
        let _ = core;
        async { Ok(Vec::new()) }
    }

    /// Handles an admitted request that was not executed before.
    fn handle(self: Rc<Self>, request: Rc<Request>) -> impl Future<Output = Result<Reply, Failure>>;

    /// Handles such a request at once, if that need not wait for anything: it saves the task. `None`: nothing was changed or
    /// counted, and [`Service::handle`] gets the request.
    fn handle_now(&self, request: &Request) -> Option<Result<Reply, Failure>> {
        let _ = request;
        None
    }

    /// Reconstructs the reply of a request that was executed before, from its record and the present rows.
    fn reconstruct(
        self: Rc<Self>,
        request: Rc<Request>,
        record: ReplyRecord,
    ) -> impl Future<Output = Result<Reply, Errno>>;

    /// The name in Lustre's `stats` that every request of this opcode is counted under. A handler whose operation depends
    /// on more than the opcode counts it with [`Request::count_operation`].
    fn counter(_opcode: Opcode) -> Option<&'static str> {
        None
    }

    /// An export has ended (disconnect or eviction): drops its locks, opens and orphans. Idempotent: it is repeated after
    /// a crash in the middle.
    ///
    /// # Errors
    /// Something is left, and has been logged: the client's record stays, so that the next start repeats it.
    fn export_gone(self: Rc<Self>, export: ExportId) -> impl Future<Output = Result<(), Errno>>;

    /// A client has acknowledged the callback of this number.
    fn acknowledged(&self, _export: ExportId, _callback: Xid) {}

    /// The target has started and serves all clients: no recovery was due, or it is over.
    fn recovered(self: Rc<Self>) {}

    /// An administrator has admitted this target in the place of another one, or as an old copy of itself: this target
    /// lacks state that its clients and targets have recorded of the former one.
    fn admitted(self: Rc<Self>) -> impl Future<Output = Result<(), Errno>> {
        async { Ok(()) }
    }

    /// Handles events of the service's own outbound connections; returns all others.
    fn handle_event(&self, event: Event) -> Option<Event> {
        Some(event)
    }
    /// Where a target with this uuid has registered, if this service knows.
    fn whereabouts(&self, _target: ClientUuid) -> Option<Whereabouts> {
        None
    }
    /// Space of the store, and the number of inodes or objects, for `Statfs` requests.
    fn statfs(self: Rc<Self>) -> impl Future<Output = Result<StatfsReply, Errno>>;
    /// Makes data durable that the service stores beside its rows (bytes of objects); the rows are committed afterwards.
    fn sync(self: Rc<Self>) -> impl Future<Output = Result<(), Errno>> {
        async { Ok(()) }
    }
    /// The parameters of this kind of target.
    fn params(&self) -> Vec<BoundParam<'_>> {
        Vec::new()
    }
    /// Version of the list of targets, sent in every ping reply; 0 if this is not the MGS.
    fn config_version(&self) -> u64 {
        0
    }
    /// Planned stop: finishes background work. The engine is stopped afterwards.
    fn stop(self: Rc<Self>) -> impl Future<Output = ()> {
        async {}
    }
}
