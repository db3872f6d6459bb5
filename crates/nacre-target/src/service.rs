//! What a kind of target must provide.

use crate::target_core::{ExportId, TargetCore};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::future::Future;
use nacre_node::Event;
use nacre_osd::OsdConfig;
use nacre_rpc::{PreVersions, ReplyRecord};
use nacre_types::{Codec, ConnEpoch, Errno, Transno, Xid};
use nacre_wire::target::{Param, StatfsReply};
use nacre_wire::{Header, Opcode, flags};

/// An admitted request. Arguments are views into `body`.
#[derive(Debug)]
pub struct Request {
    pub export: ExportId,
    pub opcode: Opcode,
    pub header: Header,
    pub body: Bytes,
    pub bulk: Vec<Bytes>,
}
impl Request {
    /// Decodes the arguments.
    pub fn args<'a, T: Codec<'a>>(&'a self) -> Result<T, Errno> {
        Ok(T::from_slice(&self.body)?)
    }
    /// What tells this execution from one of a later copy.
    pub(crate) fn execution(&self) -> (Xid, ConnEpoch) {
        (self.header.xid, self.header.epoch)
    }
    /// The number that a change had when it was made first, and gets again.
    pub fn replayed_transno(&self) -> Option<Transno> {
        self.header.has(flags::REPLAY).then_some(self.header.transno)
    }
    /// What was answered when the change was made first: it must come out the same. Not for writes of data.
    pub fn replayed_reply(&self) -> Option<&Bytes> {
        self.replayed_transno()?;
        self.bulk.first().filter(|_| self.opcode != Opcode::Write)
    }
    /// Versions of what the change depended on when it was made first: another one now means that a change which
    /// it builds on is lost.
    pub fn replayed_versions(&self) -> Option<PreVersions> {
        let reply = self.replayed_reply().filter(|_| self.header.has(flags::VERSIONS))?;
        let versions = reply.len().checked_sub(PreVersions::BYTES).and_then(|at| reply.get(at..))?;
        PreVersions::from_slice(versions).ok()
    }
}

/// What goes back. Errors are the `Err` of the handler.
#[derive(Debug, Default)]
pub struct Reply {
    pub body: Vec<u8>,
    pub bulk: Vec<Bytes>,
    /// 0: changed nothing.
    pub transno: Transno,
    /// Filled in by the target: see [`TargetCore::set_record_versions`].
    pub versions: PreVersions,
    /// An encoded `DirTail`, or nothing.
    pub tail: Vec<u8>,
}
impl Reply {
    pub fn of<'a, T: Codec<'a>>(body: &T) -> Self {
        Self { body: body.to_vec(), ..Self::default() }
    }
    pub fn with_transno(mut self, transno: Transno) -> Self {
        self.transno = transno;
        self
    }
}

/// A kind of target. Handlers run as tasks of the island; many are under way at a time.
pub trait Service: Sized + 'static {
    /// Every change is committed before it is answered, so that no store can lose one that a client knows of: after
    /// an unclean start there is nothing to replay, and everybody is served at once.
    const COMMITS_BEFORE_ANSWERS: bool = false;

    /// What this kind of target wants of its engine beyond the operator's settings.
    fn tune(osd: &mut OsdConfig) {
        let _ = osd;
    }
    /// Reads what it needs from its rows; called once the engine is open, before any request.
    fn start(core: &Rc<TargetCore>) -> impl Future<Output = Result<Rc<Self>, String>>;

    /// One admitted request, not seen before.
    fn handle(self: Rc<Self>, request: Rc<Request>) -> impl Future<Output = Result<Reply, Errno>>;

    /// The reply of a request that was executed before: from its record and today's rows.
    fn refill(
        self: Rc<Self>,
        request: Rc<Request>,
        record: ReplyRecord,
    ) -> impl Future<Output = Result<Reply, Errno>>;

    /// Counts the operations of a request, in the field's words.
    fn count_operations(&self, _request: &Request, _count: &mut dyn FnMut(&'static str)) {}

    /// An export has gone (disconnect or eviction): drop its locks, opens and orphans. Idempotent: it runs again
    /// after a crash in the middle.
    ///
    /// # Errors
    /// Something is left, and has been logged: the client's record stays, so that the next start does it again.
    fn export_gone(self: Rc<Self>, export: ExportId) -> impl Future<Output = Result<(), Errno>>;

    /// A client has connected on a new epoch: what it took as granted on earlier ones has ended with them.
    fn connected(&self, _export: ExportId) {}
    /// A client has taken in the callback of this number.
    fn acknowledged(&self, _export: ExportId, _callback: Xid) {}

    /// The target has started and serves everybody: no recovery was due, or it is over.
    fn recovered(self: Rc<Self>) {}

    /// An administrator has admitted this target in the place of another one, or as an old copy of itself: what others know
    /// of the former is not known here.
    fn admitted(self: Rc<Self>) -> impl Future<Output = Result<(), Errno>> {
        async { Ok(()) }
    }

    /// Events of outbound connections of the service itself; gives back what is not its own.
    fn handle_event(&self, event: Event) -> Option<Event> {
        Some(event)
    }
    fn statfs(self: Rc<Self>) -> impl Future<Output = Result<StatfsReply, Errno>>;
    /// Makes durable what the service keeps beside its rows (bytes of objects); the rows are committed after it.
    fn sync(self: Rc<Self>) -> impl Future<Output = Result<(), Errno>> {
        async { Ok(()) }
    }
    /// Parameters under their full names (`mdt.demo-MDT0000.…`).
    fn params(&self) -> Vec<Param> {
        Vec::new()
    }
    /// Sets one parameter; `Err` is the sentence for the user.
    fn set_param(&self, name: &str, value: &str) -> Result<(), String> {
        Err(alloc::format!("{name} cannot be set (value {value})"))
    }
    /// Version of the list of targets, told in every ping reply; 0 = not the MGS.
    fn config_version(&self) -> u64 {
        0
    }
    /// Planned stop: finish background work. The engine is stopped afterwards.
    fn stop(self: Rc<Self>) -> impl Future<Output = ()> {
        async {}
    }
}
