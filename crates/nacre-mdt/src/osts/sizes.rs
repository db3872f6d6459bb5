//! The sizes of files that no client has open for writing any more: they are asked from the OSTs.
//!
//! Rule: a size is stored only if no client opened or truncated the file since its OSTs were asked.

use crate::mdt::Mdt;
use crate::ops::WriteBound;
use crate::ops::size::store_size_of_objects;
use crate::rows::read_set::ReadSet;
use crate::rows::row::Inode;
use crate::rows::table::{INODE, UNSETTLED};
use crate::service::bounds::credits_of;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;
use nacre_node::{Peer, RpcError, join_all};
use nacre_types::{Failure, Fid, ObjectId, SizeState, Timestamp};
use nacre_wire::mdt::Written;
use nacre_wire::ost::{Glimpse, ObjectState};
use tracing::debug;

/// Pause before the sizes of files whose OSTs did not reply are requested again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

impl Mdt {
    /// Asks the OSTs for the sizes of files, as long as the service runs.
    pub(crate) async fn settle_sizes(self: Rc<Self>) {
        while !self.osts().stopping.get() {
            for fid in self.osts().sizes().take_next() {
                self.core().ctx.spawn(self.clone().settle(fid));
            }
            self.osts().sizes().wait(self.core().ctx.now() + RETRY_PAUSE).await;
        }
    }

    async fn settle(self: Rc<Self>, fid: Fid) {
        let settled = self.try_settle(fid).await.unwrap_or_else(|error| {
            debug!(target_name = %self.core().name, %fid, %error, "the size of a file is not known yet");
            false
        });
        self.osts().sizes().finished(fid, settled);
    }

    /// False: the file was changed meanwhile, or an OST is not connected; the OSTs have to be asked again.
    async fn try_settle(&self, fid: Fid) -> Result<bool, Failure> {
        let busy = {
            let opens = self.opens().borrow();
            opens.writers(fid) > 0 || opens.is_being_truncated(fid)
        };
        if busy {
            // Its last close, or the report of the truncate, brings it here again.
            return Ok(true);
        }
        let inode: Option<Inode> = self.read_row(INODE, &fid.key()).await?;
        let written = match inode {
            Some(inode) if inode.attr.size_state == SizeState::Open => {
                match self.ask_objects(&inode).await? {
                    Some(written) => Some(written),
                    None => return Ok(false),
                }
            }
            _ => None,
        };
        let mut read_set = ReadSet::default();
        read_set.inode(fid);
        read_set.key(UNSETTLED, &fid.key());
        let (_, done) = self
            .execute_local(read_set, credits_of(WriteBound::inodes(1).freeing()), |view| {
                if !self.osts().sizes().is_undisturbed(fid) {
                    return Ok(false);
                }
                match written {
                    Some(w) => store_size_of_objects(view, fid, &w)?,
                    None => view.delete(UNSETTLED, &fid.key()),
                }
                Ok(true)
            })
            .await?;
        Ok(done)
    }

    /// Size, space and time of a file by its objects; `None`: an OST is not connected.
    async fn ask_objects(&self, inode: &Inode) -> Result<Option<Written>, Failure> {
        let fid = inode.attr.fid;
        let nothing = Written { size: 0, blocks: 0, mtime: Timestamp::default() };
        let Some(component) = inode.layout.as_ref().and_then(|l| l.components.first()) else {
            return Ok(Some(nothing));
        };
        let peers: Option<Vec<Rc<Peer>>> =
            component.stripes.iter().map(|&ost| self.osts().connected(ost)).collect();
        let Some(peers) = peers else { return Ok(None) };
        let calls = (0u32..).zip(&peers).map(|(stripe, peer)| async move {
            let laid = component.laid(stripe);
            match peer.call(&Glimpse { object: ObjectId { fid, stripe }, laid }).await {
                Err(RpcError::Failed(Failure::ENOENT)) => Ok(ObjectState::default()),
                other => other,
            }
        });
        let states: Vec<ObjectState> = join_all(calls).await.into_iter().collect::<Result<_, _>>()?;
        let merge = |w: Written, (stripe, state): (u32, ObjectState)| Written {
            size: w.size.max(component.file_size(stripe, state.size)),
            blocks: w.blocks.saturating_add(state.blocks),
            mtime: w.mtime.max(state.mtime),
        };
        Ok(Some((0u32..).zip(states).fold(nothing, merge)))
    }
}
