//! A request that a service handles, and its reply.

use crate::clients::rows::ExportId;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_rpc::PreVersions;
use nacre_types::{Codec, ConnEpoch, Errno, Transno, Xid};
use nacre_wire::{Header, Opcode, flags};

/// An admitted request. Arguments are views into `body`.
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
}
impl Request {
    /// Decodes the arguments.
    ///
    /// # Errors
    /// EPROTO if the body cannot be decoded; the connection is closed then.
    pub fn args<'a, T: Codec<'a>>(&'a self) -> Result<T, Errno> {
        Ok(T::from_slice(&self.body)?)
    }
    /// Distinguishes this execution from that of a later copy of the request.
    pub(crate) fn execution(&self) -> (Xid, ConnEpoch) {
        (self.header.xid, self.header.epoch)
    }
    /// The transno that a replayed change had when it was first executed, and gets again.
    pub fn replayed_transno(&self) -> Option<Transno> {
        self.header.has(flags::REPLAY).then_some(self.header.transno)
    }
    /// The reply to a replayed change when it was first executed: its result must be the same. Not for writes of data.
    pub fn replayed_reply(&self) -> Option<&Bytes> {
        self.replayed_transno()?;
        self.bulk.first().filter(|_| self.opcode != Opcode::Write)
    }
    /// The versions that a replayed change depended on when it was first executed. If one differs now, a change which
    /// this one builds on is lost.
    pub fn replayed_versions(&self) -> Option<PreVersions> {
        let reply = self.replayed_reply().filter(|_| self.header.has(flags::VERSIONS))?;
        let versions = reply.len().checked_sub(PreVersions::BYTES).and_then(|at| reply.get(at..))?;
        PreVersions::from_slice(versions).ok()
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
    /// Filled in by the target: see [`TargetCore::set_record_versions`](crate::TargetCore::set_record_versions).
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
