//! The time limit of an append that comes in several requests: its locks are released when no further piece arrives.

use crate::client::Client;
use crate::data::long_append::{AppendLocks, Piece};
use crate::files::ranges::RangeGuard;
use crate::files::state::FileState;
use alloc::rc::Rc;
use core::time::Duration;
use nacre_types::Fid;

/// The file stays locked that long without a further piece: longer than a busy machine keeps a caller from its CPU, and much
/// shorter than a lease.
const PIECE_TIMEOUT: Duration = Duration::from_secs(1);

impl Client {
    /// Keeps the file locked until the next piece.
    pub(crate) fn await_next_piece(
        &self,
        file: &FileState,
        piece: &Piece,
        locks: AppendLocks,
        order: RangeGuard,
    ) {
        if file.long_append.keep(piece, locks, order, self.ctx.now() + PIECE_TIMEOUT) {
            self.ctx.spawn(self.me().watch_long_append(file.fid));
        }
    }

    async fn watch_long_append(self: Rc<Self>, fid: Fid) {
        loop {
            // Looked up each time: a reference would keep the state of a file that is no longer in use.
            let Some(deadline) = self.files.used(fid).map(|file| file.long_append.deadline()) else { return };
            if deadline <= self.ctx.now() {
                break;
            }
            self.ctx.sleep_until(deadline).await;
        }
        if let Some(file) = self.files.used(fid)
            && file.long_append.expire()
        {
            tracing::debug!(%fid, "a long append has had no further piece for a second: its locks are released");
        }
    }
}
