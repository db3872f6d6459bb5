//! A request that a service handles, and its reply.

use crate::clients::rows::ExportId;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell, RefMut};
use nacre_rpc::{PreVersions, SubRecord};
use nacre_types::{Codec, Errno, Fid, Transno};
use nacre_wire::{Frame, Header, Opcode, flags};

/// An admitted request, and one execution of it: a later copy is another value. Arguments are views into `body`.
#[derive(Debug)]
pub struct Request {
    /// The client.
    pub export: ExportId,
    /// The operation.
    pub opcode: Opcode,
    /// The header as it came.
    pub header: Header,
    /// The encoded arguments.
    pub body: Bytes,
    /// Bulk data, in order.
    pub bulk: Vec<Bytes>,
    note: RefCell<RecordNote>,
    operation: Cell<Option<&'static str>>,
    more_operations: RefCell<Vec<&'static str>>,
}

/// The contents of the reply record of a request. The handler sets them one by one, the transaction reads them.
#[derive(Debug, Default)]
pub(crate) struct RecordNote {
    // Fields open to the crate: the setters of `Request` are the only writers, and a getter for each would add nothing.
    pub(crate) data: u64,
    pub(crate) fid: Fid,
    pub(crate) results: Vec<SubRecord>,
    pub(crate) versions: PreVersions,
    /// An addition to the reply, not to the record.
    pub(crate) tail: Option<ReplyTail>,
    /// The reply waits for the commit of the change, so it is in order by itself.
    pub(crate) reply_waits_for_commit: bool,
}

impl Request {
    pub(crate) fn new(export: ExportId, opcode: Opcode, frame: Frame) -> Self {
        let Frame { header, body, bulk } = frame;
        Self {
            export,
            opcode,
            header,
            body,
            bulk,
            note: RefCell::default(),
            operation: Cell::default(),
            more_operations: RefCell::default(),
        }
    }
    /// Decodes the arguments.
    ///
    /// # Errors
    /// EPROTO if the body cannot be decoded; the connection is closed then.
    pub fn args<'a, T: Codec<'a>>(&'a self) -> Result<T, Errno> {
        Ok(T::from_slice(&self.body)?)
    }
    /// The transno that a replayed change had when it was first executed, and gets again.
    pub fn replayed_transno(&self) -> Option<Transno> {
        self.header.has(flags::REPLAY).then_some(self.header.transno)
    }
    /// The reply to a replayed change when it was first executed: its result must be the same. Not for writes of data.
    pub fn replayed_reply(&self) -> Option<&Bytes> {
        self.replayed_transno()?;
        self.bulk.first().filter(|_| !self.opcode.has_data())
    }
    /// The versions that a replayed change depended on when it was first executed. If one differs now, a change which
    /// this one builds on is lost.
    pub fn replayed_versions(&self) -> Option<PreVersions> {
        let reply = self.replayed_reply().filter(|_| self.header.has(flags::VERSIONS))?;
        let versions = reply.len().checked_sub(PreVersions::BYTES).and_then(|at| reply.get(at..))?;
        PreVersions::from_slice(versions).ok()
    }

    // ---- counters

    /// Counts an operation of this request under its name in Lustre's `stats`. The handler calls it when it has decoded the
    /// operation; the target counts it with its duration when the request ends.
    pub fn count_operation(&self, name: &'static str) {
        if let Some(first) = self.operation.replace(Some(name)) {
            self.more_operations.borrow_mut().push(first);
        }
    }
    /// The operations that were counted.
    pub(crate) fn operations(&self) -> impl Iterator<Item = &'static str> {
        self.operation.take().into_iter().chain(self.more_operations.take())
    }

    // ---- the reply record

    pub(crate) fn note(&self) -> RefMut<'_, RecordNote> {
        self.note.borrow_mut()
    }
    /// Sets the `data` of the record of this request (a disposition). Before or inside the closure of
    /// [`TargetCore::transact`](crate::TargetCore::transact).
    pub fn set_record_data(&self, data: u64) {
        self.note().data = data;
    }
    /// Sets the FID of the record of this request (of the opened or created file). Same time as `set_record_data`.
    pub fn set_record_fid(&self, fid: Fid) {
        self.note().fid = fid;
    }
    /// Sets the results of a batch in the record of this request. Same time as `set_record_data`.
    pub fn set_record_results(&self, results: Vec<SubRecord>) {
        self.note().results = results;
    }
    /// Sets the versions that the change depends on, as they were before it: for the record and the reply. Same time as
    /// `set_record_data`.
    pub fn set_record_versions(&self, versions: PreVersions) {
        self.note().versions = versions;
    }
    /// Sets an addition to the reply of this request, after its change.
    pub fn set_reply_tail(&self, tail: ReplyTail) {
        self.note().tail = Some(tail);
    }
    /// Call before the change of a request if its handler commits the change before the reply. Then replies to other
    /// changes of the client do not wait for this one: no change of the client can build on it before the reply.
    pub fn reply_waits_for_commit(&self) {
        self.note().reply_waits_for_commit = true;
    }
}

/// A successful reply. Errors are the `Err` of the handler.
#[derive(Debug, Default)]
pub struct Reply {
    /// The encoded results.
    pub body: Vec<u8>,
    /// Bulk data, in order.
    pub bulk: Vec<Bytes>,
    /// The number of the change; 0 if nothing was changed.
    pub transno: Transno,
    /// Filled in by the target: see [`Request::set_record_versions`].
    pub versions: PreVersions,
    /// An addition after the body.
    pub tail: Option<ReplyTail>,
}
impl Reply {
    /// A reply with these results.
    pub fn of<'a, T: Codec<'a>>(body: &T) -> Self {
        Self { body: body.to_vec(), ..Self::default() }
    }
    /// The same reply with the number of its change.
    pub fn with_transno(mut self, transno: Transno) -> Self {
        self.transno = transno;
        self
    }
}

/// An addition after the body of a reply, which a flag of the header announces.
#[derive(Debug, Clone)]
pub struct ReplyTail {
    /// The flag of the header.
    pub flag: u32,
    /// The encoded addition.
    pub bytes: Vec<u8>,
}
