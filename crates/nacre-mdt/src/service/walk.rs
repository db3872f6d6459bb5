//! The walks towards the root that renames of directories need (`rows/ancestry.rs`).

use crate::mdt::Mdt;
use crate::rows::ancestry::Walker;
use crate::rows::read_set::ReadSet;
use crate::rows::row::Inode;
use crate::rows::table::INODE;
use nacre_node::Inside;
use nacre_types::{Errno, Fid};

/// Rows that are read in one visit.
const SLICE: u64 = 64;

impl Mdt {
    /// Makes the walks that an operation needs. No directory moves to another parent until the result is dropped.
    pub(crate) async fn walk(&self, read_set: &mut ReadSet) -> Option<Inside<'_>> {
        let walks = read_set.walks_mut();
        if walks.is_empty() {
            return None;
        }
        let alone = self.moves().enter().await;
        for number in 0..walks.count() {
            let Some(walker) = walks.start(number) else { break };
            let end = self.walk_to_end(walker).await;
            walks.set_end(number, end);
        }
        Some(alone)
    }

    async fn walk_to_end(&self, mut walker: Walker<'_>) -> Result<Fid, Errno> {
        loop {
            if let Some(end) = walker.end() {
                return Ok(end);
            }
            let inode: Option<Inode> = self.read_row(INODE, &walker.at().key()).await?;
            walker.step(inode.as_ref())?;
            if walker.steps().is_multiple_of(SLICE) {
                self.core().ctx.next_visit().await;
            }
        }
    }
}
