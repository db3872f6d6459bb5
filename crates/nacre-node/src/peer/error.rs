//! Why a call has no reply, as the caller of a peer sees it.

use nacre_rpc::CallError;
use nacre_types::{Errno, Failure};

/// The reason why a call has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The reply has this errno, or an outcome that the import leaves to its user.
    #[error("{0}")]
    Failed(Failure),
    /// The target has evicted this client; the request was not executed, or its effect is gone with the export.
    #[error("evicted by the target")]
    Evicted,
    /// The target has evicted this client before the change was sent: it was not executed.
    #[error("evicted by the target before the change was sent")]
    EvictedUnsent,
    /// The import was stopped.
    #[error("stopped")]
    Stopped,
    /// The administrator has deactivated the target on this client.
    #[error("deactivated by the administrator")]
    Inactive,
    /// Another target, or an old copy of this one, replies at its address.
    #[error("another target or an old copy of the target replies")]
    Mismatch,
}
impl From<RpcError> for Failure {
    fn from(e: RpcError) -> Self {
        match e {
            RpcError::Failed(failure) => failure,
            RpcError::Evicted | RpcError::EvictedUnsent | RpcError::Inactive | RpcError::Mismatch => {
                Failure::EIO
            }
            RpcError::Stopped => Failure::ESHUTDOWN,
        }
    }
}
impl From<Failure> for RpcError {
    fn from(failure: Failure) -> Self {
        RpcError::Failed(failure)
    }
}
impl From<Errno> for RpcError {
    fn from(errno: Errno) -> Self {
        RpcError::Failed(errno.into())
    }
}
impl From<CallError> for RpcError {
    fn from(e: CallError) -> Self {
        match e {
            CallError::Evicted => RpcError::Evicted,
            CallError::EvictedUnsent => RpcError::EvictedUnsent,
            CallError::Stopped => RpcError::Stopped,
            CallError::Inactive => RpcError::Inactive,
            CallError::Mismatch => RpcError::Mismatch,
        }
    }
}
