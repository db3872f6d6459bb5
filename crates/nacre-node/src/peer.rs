//! The async face of an import: one target as a client of it sees it.
//!
//! `Peer` owns the connection to a target, keeps it open, and turns calls into futures. The rules (slots, tags,
//! xids, resend, replay) are `nacre_rpc::Import`; this file only connects them to tasks and effects.

use crate::ctx::Ctx;
use crate::event::{ConnId, Event};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;
use nacre_types::{ClientUuid, Codec, Errno};
use nacre_wire::target::Role;
use nacre_wire::{Frame, Rpc};

/// Why a call has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The server answered with this error.
    #[error("{0}")]
    Errno(Errno),
    /// The target has evicted this client; the request was not executed, or its effect is gone with the export.
    #[error("evicted by the target")]
    Evicted,
    /// The import was stopped.
    #[error("stopped")]
    Stopped,
}
impl From<RpcError> for Errno {
    fn from(e: RpcError) -> Self {
        match e {
            RpcError::Errno(e) => e,
            RpcError::Evicted => Errno::EIO,
            RpcError::Stopped => Errno::ESHUTDOWN,
        }
    }
}

/// What a peer must know to connect.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    pub client: ClientUuid,
    pub role: Role,
    /// For people, in the server's logs.
    pub name: String,
    /// Name of the island: `MGS`, `demo-MDT0000`.
    pub target: String,
    /// Tried in turn.
    pub addresses: Vec<String>,
    pub max_mod_rpcs: u16,
}

type CallbackHandler = Box<dyn Fn(&Frame)>;

/// One import. Calls wait while the target is away and are resent when it is back.
pub struct Peer {
    _ctx: Rc<Ctx>,
}

impl Peer {
    /// Starts to connect at once; `peers` routes the events of its connections to it.
    pub fn new(ctx: &Rc<Ctx>, peers: &Rc<Peers>, config: PeerConfig) -> Rc<Peer> {
        let _ = (peers, config);
        Rc::new(Peer { _ctx: ctx.clone() })
    }
    /// Sends a request and waits for its reply, however long the target is away.
    ///
    /// # Errors
    /// See [`RpcError`]. An error says that the request was not executed, except `Evicted`.
    pub async fn call<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Result<R::Reply, RpcError> {
        self.call_bulk(request, Vec::new()).await.map(|(reply, _)| reply)
    }
    /// Like `call`, with bulk bytes in both directions.
    pub async fn call_bulk<'a, R: Rpc + Codec<'a>>(
        &self,
        request: &R,
        bulk: Vec<Bytes>,
    ) -> Result<(R::Reply, Vec<Bytes>), RpcError> {
        let _ = (request, bulk);
        Err(RpcError::Stopped)
    }
    /// Who takes callbacks. Each is given once, in order, and acknowledged when the handler has returned.
    pub fn on_callback(&self, handler: CallbackHandler) {
        let _ = handler;
    }
    /// Told each time the target says that this client was evicted, before any call on the new export.
    pub fn on_evicted(&self, handler: Box<dyn Fn()>) {
        let _ = handler;
    }
    /// Whether the import is usable now.
    pub fn is_connected(&self) -> bool {
        false
    }
    /// Ends when the import is usable, or was stopped.
    pub async fn connected(&self) {}
    /// Why the last attempt to connect failed, a sentence; `None` while connected.
    pub fn last_error(&self) -> Option<String> {
        None
    }
    /// The server's wall clock less this island's, as the last connect found it, in nanoseconds.
    pub fn wall_offset_ns(&self) -> i64 {
        0
    }
    /// The target may be elsewhere now.
    pub fn set_addresses(&self, addresses: Vec<String>) {
        let _ = addresses;
    }
    /// Ends: outstanding calls finish with `Stopped`, the server is told.
    pub async fn disconnect(&self) {}
}

/// The imports of an island, found by connection.
#[derive(Default)]
pub struct Peers {
    by_conn: RefCell<BTreeMap<ConnId, Rc<Peer>>>,
}
impl Peers {
    /// Routes an event of an outbound connection; gives it back if it belongs to nobody here.
    pub fn handle(&self, event: Event) -> Option<Event> {
        let _ = &self.by_conn;
        Some(event)
    }
}
