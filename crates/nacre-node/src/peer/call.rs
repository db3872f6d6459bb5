//! One request to a target: the properties of a call beyond its message, and its way through the import.
//!
//! [`Peer::call`] is the plain case. [`Peer::request`] begins a [`Call`] that adds bulk bytes, flags, another class or a
//! deadline before it is sent. The body is encoded once, when the call begins.

use super::{Peer, RpcError};
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;
use core::marker::PhantomData;
use nacre_rpc::CallError;
use nacre_types::{Codec, Errno, Failure, Instant, ProtocolOutcome};
use nacre_wire::mdt::AwaitInodeLocks;
use nacre_wire::target::Sync;
use nacre_wire::{Class, Frame, KeptUntil, Rpc, Status};

/// A request that is not sent yet.
#[must_use = "the request leaves with `send`"]
pub struct Call<'p, R> {
    peer: &'p Peer,
    request: nacre_rpc::Request,
    message: PhantomData<fn() -> R>,
}

/// A decoded reply.
#[derive(Debug)]
pub struct Reply<T> {
    /// The message.
    pub body: T,
    /// The reply as it came: its header has transno and commit numbers, and the bulk bytes follow the message.
    pub frame: Frame,
}

impl<R: Rpc> Call<'_, R> {
    /// Sends bulk bytes with the request.
    pub fn bulk(mut self, bulk: Vec<Bytes>) -> Self {
        self.request.bulk = bulk;
        self
    }
    /// Sets flags of the request's header.
    pub fn flags(mut self, flags: u32) -> Self {
        self.request.flags = flags;
        self
    }
    /// Treats the request as one of another class than its message declares.
    pub fn class(mut self, class: Class) -> Self {
        self.request.class = class;
        self
    }
    /// Forbids the target to begin the change after `deadline`; the outcome is
    /// [`nacre_types::ProtocolOutcome::DeadlinePassed`] then. Only for messages with a deadline
    /// ([`nacre_wire::Opcode::has_deadline`]). `None`: the import sets one of its own.
    pub fn deadline(mut self, deadline: Option<Instant>) -> Self {
        self.request.deadline = deadline;
        self
    }
    /// The opcode of the message.
    pub fn opcode(&self) -> nacre_wire::Opcode {
        R::OPCODE
    }

    /// Sends the request and waits for its reply, however long the target is away.
    ///
    /// # Errors
    /// See [`RpcError`]. An error says that the request was not executed, except `Evicted`.
    pub async fn send(self) -> Result<Reply<R::Reply>, RpcError> {
        let frame = self.peer.send(self.request).await?;
        match R::Reply::from_slice(&frame.body) {
            Ok(body) => Ok(Reply { body, frame }),
            Err(error) => {
                let target_name = self.peer.target();
                tracing::warn!(target_name, opcode = ?R::OPCODE, %error, "reply cannot be read");
                Err(Errno::EPROTO.into())
            }
        }
    }
}

impl Peer {
    /// Sends a request and waits for its reply, however long the target is away.
    ///
    /// # Errors
    /// As for [`Call::send`].
    pub async fn call<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Result<R::Reply, RpcError> {
        self.request(request).send().await.map(|reply| reply.body)
    }
    /// Begins a call that needs more than its message.
    pub fn request<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Call<'_, R> {
        let request = nacre_rpc::Request {
            opcode: R::OPCODE,
            class: R::CLASS,
            flags: 0,
            body: Bytes::from(request.to_vec()),
            bulk: Vec::new(),
            job: 0,
            deadline: None,
        };
        Call { peer: self, request, message: PhantomData }
    }

    /// Sends an encoded request; gives the reply as it came. A change for which other clients have to return locks is sent
    /// again when they have; meanwhile it has no slot.
    async fn send(&self, request: nacre_rpc::Request) -> Result<Frame, RpcError> {
        let mut next = request;
        loop {
            // Changes of metadata: they have no bulk.
            let again = (matches!(next.class, Class::Modify | Class::Close) && next.bulk.is_empty())
                .then(|| next.clone());
            let frame = self.send_once(next).await?;
            match (frame.header.status, again) {
                (Status::Success, _) => return Ok(frame),
                (Status::Failed(Failure::Outcome(ProtocolOutcome::LocksAwaited)), Some(again)) => {
                    Box::pin(self.call(&AwaitInodeLocks { change: frame.header.xid })).await?;
                    next = again;
                }
                (Status::Failed(failure), _) => return Err(failure.into()),
            }
        }
    }
    async fn send_once(&self, request: nacre_rpc::Request) -> Result<Frame, RpcError> {
        if request.opcode.kept_until() == KeptUntil::Stable {
            self.data_room().await?;
        }
        while !self.import.borrow().has_room() && self.accepts_calls() {
            self.changed.wait().await;
        }
        let (promise, reply) = self.ctx.promise();
        self.import.borrow_mut().call(self.ctx.now(), request, promise);
        self.drain();
        Ok(reply.await.unwrap_or(Err(CallError::Stopped))?)
    }

    /// Written data is kept until it is stable. Writes wait here while the kept data fills its bound; once it fills half of
    /// the bound, the target is asked in the background to make it stable.
    ///
    /// # Errors
    /// That of the target's sync while there is no room.
    pub async fn data_room(&self) -> Result<(), Errno> {
        loop {
            self.sync_in_background();
            if self.import.borrow().has_data_room() || !self.accepts_calls() {
                return Ok(());
            }
            self.changed.wait().await;
            if let Some(errno) = self.sync_error.get() {
                return Err(errno);
            }
        }
    }
    fn sync_in_background(&self) {
        if !self.import.borrow().wants_stable() || self.syncing.replace(true) {
            return;
        }
        self.sync_error.set(None);
        let this = self.me.upgrade().expect("alive while it is called");
        self.ctx.spawn(async move {
            if let Err(RpcError::Failed(Failure::Errno(errno))) = Box::pin(this.call(&Sync {})).await {
                this.sync_error.set(Some(errno));
            }
            this.syncing.set(false);
            this.changed.wake_all();
        });
    }

    fn accepts_calls(&self) -> bool {
        let import = self.import.borrow();
        import.is_active() && import.mismatch().is_none()
    }
}
