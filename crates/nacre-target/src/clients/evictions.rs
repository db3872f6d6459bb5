//! Evictions: exports that are to be evicted, and the causes of past evictions for the clients that ask.

use crate::clients::rows::ExportId;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_node::{Ctx, WaitList};
use nacre_types::ClientUuid;

/// Past evictions that are remembered.
const CAUSES_MAX: usize = 256;

/// The evictions of one target.
pub(crate) struct Evictions {
    /// Exports to be evicted, with the cause.
    requested: RefCell<Vec<(ExportId, String)>>,
    /// The latest evictions, the oldest first.
    causes: RefCell<VecDeque<(ClientUuid, String)>>,
    /// Wakes the task that evicts.
    reaper: WaitList,
}

impl Evictions {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self { requested: RefCell::default(), causes: RefCell::default(), reaper: ctx.wait_list() }
    }
    /// Requests an eviction; the reaper carries it out.
    pub(crate) fn request(&self, export: ExportId, cause: String) {
        self.requested.borrow_mut().push((export, cause));
        self.reaper.wake_all();
    }
    /// Takes the requested evictions.
    pub(crate) fn take_requested(&self) -> Vec<(ExportId, String)> {
        core::mem::take(&mut self.requested.borrow_mut())
    }
    /// Wakes the reaper: a deadline may have become earlier.
    pub(crate) fn wake_reaper(&self) {
        self.reaper.wake_all();
    }
    /// Waits for an eviction request or an earlier deadline.
    pub(crate) async fn wait(&self) {
        self.reaper.wait().await;
    }
    /// Remembers an eviction.
    pub(crate) fn record(&self, client: ClientUuid, cause: &str) {
        let mut causes = self.causes.borrow_mut();
        if causes.len() >= CAUSES_MAX {
            causes.pop_front();
        }
        causes.push_back((client, String::from(cause)));
    }
    /// The cause of a client's latest eviction, if it is remembered.
    pub(crate) fn cause(&self, client: ClientUuid) -> String {
        let causes = self.causes.borrow();
        match causes.iter().rev().find(|(uuid, _)| *uuid == client) {
            Some((_, cause)) => cause.clone(),
            None => String::from("not known any more: the target was started again since"),
        }
    }
}
