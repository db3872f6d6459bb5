//! The files whose bytes are on their way to objects: each of them once. Not here: the way (`move_data.rs`).

use alloc::collections::BTreeSet;
use core::cell::RefCell;
use nacre_node::{Ctx, WaitList};
use nacre_types::Fid;

/// The files whose bytes are on their way. Bounded by the requests under way.
pub(crate) struct DataMoves {
    under_way: RefCell<BTreeSet<Fid>>,
    ended: WaitList,
}
impl DataMoves {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self { under_way: RefCell::default(), ended: ctx.wait_list() }
    }
    /// Waits until no other request moves the bytes of this file.
    pub(crate) async fn begin(&self, fid: Fid) -> DataMove<'_> {
        while !self.under_way.borrow_mut().insert(fid) {
            self.ended.wait().await;
        }
        DataMove { moves: self, fid }
    }
}
/// The move of a file's bytes; it ends when this is dropped.
pub(crate) struct DataMove<'a> {
    moves: &'a DataMoves,
    fid: Fid,
}
impl Drop for DataMove<'_> {
    fn drop(&mut self) {
        self.moves.under_way.borrow_mut().remove(&self.fid);
        self.moves.ended.wake_all();
    }
}
