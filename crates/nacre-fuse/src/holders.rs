//! Callers with handles whose file locks were lost with an eviction: they cannot change anything until these are closed
//! (`nacre-client/src/files/lost.rs` has the reason and the decision; this file identifies the callers).
//!
//! The kernel names the calling thread. `/proc` shows its process and open files (`caller.rs`), inherited and passed
//! handles included. The lookup runs outside the island, and only while such a handle is open; otherwise a change costs
//! one check in the client.

use crate::abi::op;
use crate::caller::Look;
use crate::door::{Door, FuseEffect};
use crate::ops::Ops;
use crate::request::FuseRequest;
use nacre_node::{Effect, Promise};
use nacre_types::{Caller, Errno, Fid, OpenHandle};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The state of the caller of request `unique`; delivered to the island as [`nacre_node::Event::Door`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Looked {
    unique: u64,
    look: Look,
}
impl Looked {
    pub(crate) fn new(unique: u64, look: Look) -> Self {
        Self { unique, look }
    }
}

/// Requests whose callers are being examined.
#[derive(Default)]
pub(crate) struct Looks(RefCell<BTreeMap<u64, Promise<Look>>>);

impl<O: Ops> Door<O> {
    /// Whether a request may begin before its caller is looked at.
    pub(crate) fn may_begin(&self, request: &FuseRequest) -> bool {
        !changes(request.opcode()) || self.ops.files_with_lost_locks().is_empty()
    }
    /// Whether the caller of a request may make the change. `begun`: it was found to need no look.
    pub(crate) async fn allowed(&self, request: &FuseRequest, begun: bool) -> Result<(), Errno> {
        if begun {
            return Ok(());
        }
        let files = self.ops.files_with_lost_locks();
        if files.is_empty() {
            return Ok(());
        }
        let looked = self.look(request, files).await?;
        self.ops.may_change(looked.process(), looked.open())
    }

    /// A caller has opened a file: the new handle is not one of those that lost their locks.
    pub(crate) async fn note_opener(&self, request: &FuseRequest, fid: Fid, handle: OpenHandle) {
        if self.ops.files_with_lost_locks().contains(&fid)
            && let Ok(looked) = self.look(request, Vec::new()).await
        {
            self.ops.opened_by(handle, fid, looked.process());
        }
    }

    /// The caller of a request with its supplementary groups.
    pub(crate) async fn caller_in_groups(&self, request: &FuseRequest) -> Result<Caller, Errno> {
        let groups = self.look(request, Vec::new()).await?.into_groups();
        Ok(Caller { groups, ..request.caller(0) })
    }

    async fn look(&self, request: &FuseRequest, files: Vec<Fid>) -> Result<Look, Errno> {
        let (unique, pid) = (request.unique(), request.header.pid);
        let (promise, looked) = self.ctx.promise();
        self.looks.0.borrow_mut().insert(unique, promise);
        self.ctx.push(Effect::Door(Box::new(FuseEffect::LookAtFiles { unique, pid, files })));
        looked.await.ok_or(Errno::EIO)
    }
    pub(crate) fn looked(&self, looked: Looked) {
        let promise = self.looks.0.borrow_mut().remove(&looked.unique);
        if let Some(promise) = promise {
            promise.fulfil(looked.look);
        }
    }
}

/// Whether a request may change state that is visible to others.
pub(crate) fn changes(opcode: u32) -> bool {
    let changes_inode =
        matches!(opcode, op::SETATTR | op::SETXATTR | op::REMOVEXATTR | op::WRITE | op::FALLOCATE);
    changes_inode || op::changes_names(opcode)
}
