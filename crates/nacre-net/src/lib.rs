//! Frames over sockets: addresses, the incremental decoder, the batching writer, the handshake of a connection.
//!
//! Everything here is non-blocking and owns no thread: `nacre-rt` reports when a socket is ready. On one host a unix
//! socket is used, between hosts TCP. There is no authentication and no encryption yet; TLS will be a wrapper around
//! the socket, not a variant of the protocol.

mod address;
mod bulk_buffers;
mod decoder;
mod hello;
mod shared_memory;
mod socket;
mod sum;
mod writer;

pub use address::{Address, AddressError, DEFAULT_PORT};
pub use bulk_buffers::BulkBuffers;
pub use decoder::{Decoder, Limits};
pub use hello::{
    HELLO_BODY_BYTES_MAX, hello, hello_refused, hello_reply, read_hello, read_hello_reply, sharing,
};
pub use shared_memory::{Lender, SharedBuffer, SharedMemory, kept_bytes};
pub use socket::{
    Accepted, Candidate, Received, Scratch, accept, candidates, connect, connect_result, listen,
    local_candidates, receive, receive_greeting, unlink,
};
pub use writer::{Sent, Writer};

use nacre_wire::FrameError;
use std::io;

/// The reason why a connection or a listening socket failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("{what}: {cause}")]
    Io { what: String, cause: io::Error },
    /// Another process replies at this address.
    #[error("{address} is in use by another process\nhint: stop it, or choose another address")]
    InUse { address: Address },
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("{0}")]
    Handshake(String),
    /// The process at the address does not have the requested island.
    #[error("{0}")]
    NoSuchIsland(String),
}
impl NetError {
    pub(crate) fn io(what: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), cause: cause.into() }
    }
    /// Whether the machine replied that the address or the island does not exist there. False if the host cannot be
    /// reached or does not reply.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Io { cause, .. } => {
                matches!(cause.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
            }
            Self::NoSuchIsland(_) => true,
            Self::InUse { .. } | Self::Frame(_) | Self::Address(_) | Self::Handshake(_) => false,
        }
    }
}
