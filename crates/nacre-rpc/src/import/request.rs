//! The inputs and outputs of an import: configuration, requests, effects.

use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{ClientUuid, ConnEpoch, Failure, Instant, Remembered, Secret, Transno};
use nacre_wire::target::Role;
use nacre_wire::{Class, Frame, Opcode};

use crate::state::ImportState;

/// Configuration of an import.
#[derive(Debug, Clone)]
pub struct ImportConfig {
    /// Identity of the client.
    pub client: ClientUuid,
    /// Whether the client mounts, serves a target or is a tool.
    pub role: Role,
    /// Proves to the target at each connect that this is the client of the export.
    pub secret: Secret,
    /// Name of the client in the server's logs, for people.
    pub name: String,
    /// Addresses of the target, tried in turn.
    pub addresses: Vec<String>,
    /// Modifying requests in flight; the target's own limit holds as well.
    pub max_mod_rpcs: u16,
    /// Requests in flight of the classes `Read`, `Import` and `Modify`.
    pub max_rpcs: u16,
    /// Identity of the expected target; `None` accepts any target.
    pub known: Option<Remembered>,
    /// How often another target was admitted in its place.
    pub replaced: u32,
    /// See [`nacre_wire::target::Connect::instance`].
    pub instance: u64,
    /// Seed of the random part of reconnect pauses.
    pub seed: u64,
}

/// A request before it has an xid.
#[derive(Clone, Debug)]
pub struct Request {
    /// Opcode of the message.
    pub opcode: Opcode,
    /// Decides about slot, bound and fate at an eviction.
    pub class: Class,
    /// Flags of the header, beside those that the import sets itself.
    pub flags: u32,
    /// The encoded message.
    pub body: Bytes,
    /// Bulk bytes that follow the message.
    pub bulk: Vec<Bytes>,
    /// Job of the caller, for statistics.
    pub job: u64,
    /// Latest time at which the target may begin the change, for messages with a deadline. `None`: a quarter of the lease
    /// after each copy was sent, or more after changes were rejected as late.
    pub deadline: Option<Instant>,
}

/// The reason why a call has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The target dropped this client's export while the request was under way: executed or not, its effect on locks and
    /// opens is gone.
    #[error("evicted by the target")]
    Evicted,
    /// The target dropped this client's export before the change was sent: it was not executed.
    #[error("evicted by the target before the change was sent")]
    EvictedUnsent,
    /// The import has ended.
    #[error("the import was stopped")]
    Stopped,
    /// See [`crate::Import::set_active`]. The request may have been executed.
    #[error("deactivated by the administrator")]
    Inactive,
    /// See [`crate::Import::mismatch`]. The request may have been executed.
    #[error("another target or an old copy of the target replies")]
    Mismatch,
}

/// The actions that the driver must carry out.
#[derive(Debug)]
pub enum ImportEffect<T> {
    /// Connect to this address; `handle_opened` or `handle_closed` follows with the epoch.
    Open {
        /// Epoch of the new connection.
        epoch: ConnEpoch,
        /// Address to connect to.
        address: String,
    },
    /// Send a frame on the connection of this epoch.
    Send {
        /// Epoch of the connection.
        epoch: ConnEpoch,
        /// The frame.
        frame: Frame,
    },
    /// Close the connection of this epoch.
    Close {
        /// Epoch of the connection.
        epoch: ConnEpoch,
    },
    /// A call has ended.
    Done {
        /// Token of the call.
        token: T,
        /// The reply, or the reason why there is none.
        result: Result<Frame, CallError>,
    },
    /// Deliver a callback to its handler, then call [`crate::Import::callback_done`].
    Callback {
        /// The callback.
        frame: Frame,
    },
    /// The import has entered a state.
    State {
        /// The new state.
        state: ImportState,
    },
    /// Locks and opens of this client at the target are gone.
    Evicted {
        /// The cause, as the target states it.
        cause: String,
    },
    /// The target has closed another connection of this client in favour of this one.
    ReplacedConnection {
        /// Host of the other connection.
        from: String,
    },
    /// The target admits no new client until its recovery is over.
    Recovering {
        /// Longest duration of the recovery.
        seconds: u32,
    },
    /// A ping has its reply, which renews the leases of the neighbours too, see [`crate::Import::handle_neighbour`].
    PingReplied {
        /// The server process, and how many leases had ended there.
        process: (u64, u64),
        /// When the ping was sent.
        sent: Instant,
    },
    /// The target was restarted since the last connection.
    Restarted {
        /// Number of the new instance.
        instance: u64,
    },
    /// A change that the target had lost could not be replayed; for the log.
    ReplayFailed {
        /// Transno of the change.
        transno: Transno,
        /// The error of the replay.
        error: Failure,
    },
    /// The target that replies is not the expected one; for the log.
    Mismatch {
        /// The reason, a sentence.
        why: String,
    },
    /// The connection was lost or refused; for the log.
    Lost {
        /// The reason.
        reason: String,
    },
    /// The import has ended; no effect follows.
    Stopped,
}
