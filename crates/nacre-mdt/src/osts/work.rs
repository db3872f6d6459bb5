//! Work that the OSTs owe this target's rows: destroy objects, charge them to a new owner, tell a file's size.
//!
//! Rules: a destroy or owner change is sent only after the commit of the change that asked for it, and its row goes
//! only after the OST has committed the answer; a size is stored only if nobody opened or cut the file since
//! it was asked. Everything is idempotent: after a crash the rows say what is left.

use crate::mdt::Mdt;
use crate::ops::WriteBound;
use crate::ops::size::store_size_of_objects;
use crate::osts::Ost;
use crate::rows::read_set::ReadSet;
use crate::rows::row::{Inode, Row, Stripes};
use crate::rows::table::{self, CHOWN, DESTROY, INODE, UNSETTLED};
use crate::service::bounds::credits_of;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;
use nacre_node::{Peer, RpcError, join_all};
use nacre_osd::{Credits, Table};
use nacre_types::{Errno, Fid, ObjectId, Owner, SizeState, Timestamp};
use nacre_wire::mdt::Written;
use nacre_wire::ost::{Destroy, Glimpse, ObjectState, SetOwner};
use nacre_wire::target::Sync;
use tracing::{debug, warn};

/// Rows of one round; a round ends with one commit of the OST.
const ROUND_ROWS: usize = 8192;
/// Rows read or deleted in one visit.
const SLICE: usize = 128;
/// Requests of one worker under way.
const IN_FLIGHT: usize = 16;
/// A worker looks at its rows this often even if nobody told it.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Pause after an error, and until files whose OSTs did not answer are asked for again.
const AGAIN: Duration = Duration::from_secs(5);
/// Files whose size is asked for at a time.
const ASKED_MAX: usize = 64;

impl Mdt {
    /// Works off the rows of one OST, as long as the service runs.
    pub(crate) async fn work_for(self: Rc<Self>, ost: Rc<Ost>) {
        while !self.osts().stopping.get() {
            ost.has_work.set(false);
            ost.in_hand.set(true);
            let round = self.round(&ost).await;
            ost.destroys_answered();
            let pause = match round {
                Ok(0) => LOOK_EVERY,
                Ok(_) => continue,
                Err(RpcError::Stopped) => return,
                Err(error) => {
                    warn!(target_name = %self.core().name, ost = ost.index.0, %error,
                        "destroys and owner changes wait: the OST refuses them, they are tried again");
                    ost.has_work.set(false);
                    AGAIN
                }
            };
            if !ost.has_work.get() {
                let until = self.core().ctx.now() + pause;
                let _work = self.core().ctx.timeout(until, ost.work.wait()).await;
            }
        }
    }

    /// One round; how many rows it has worked off.
    async fn round(&self, ost: &Ost) -> Result<usize, RpcError> {
        let before = self.core().osd.last_transno();
        let destroys = self.rows_of(DESTROY, ost).await?;
        let chowns = self.rows_of(CHOWN, ost).await?;
        let count = destroys.len() + chowns.len();
        if count == 0 {
            return Ok(0);
        }
        let written = self.core().osd.last_transno();
        self.core().osd.committed(written).await.map_err(|e| RpcError::Errno(e.into()))?;
        for some in destroys.chunks(IN_FLIGHT) {
            let calls = some.iter().map(|(fid, row)| async move {
                ost.peer.call(&Destroy { fid: *fid, stripes: row.stripes.clone() }).await
            });
            join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        if destroys.len() < ROUND_ROWS {
            ost.destroyed_to.set(before);
        }
        ost.destroys_answered();
        let mut charged = Vec::with_capacity(chowns.len());
        for some in chowns.chunks(IN_FLIGHT) {
            let calls = some.iter().map(|(fid, row)| self.charge(ost, *fid, row));
            for (done, (fid, _)) in join_all(calls).await.into_iter().zip(some) {
                charged.push((*fid, done?));
            }
        }
        ost.peer.call(&Sync {}).await?;
        for some in destroys.chunks(SLICE) {
            self.delete_rows(ost, some).await?;
            self.core().ctx.yield_now().await;
        }
        for (fid, owner) in charged {
            self.charged(ost, fid, owner).await?;
        }
        debug!(target_name = %self.core().name, ost = ost.index.0, count, "destroys and owner changes are done");
        Ok(count)
    }

    async fn rows_of(&self, table: Table, ost: &Ost) -> Result<Vec<(Fid, Stripes)>, RpcError> {
        let (from, to) = table::range_of(&ost.index.0.to_be_bytes());
        let mut pages = self.core().osd.pages(table, SLICE as u32).within(&from, &to);
        let mut found = Vec::new();
        while found.len() < ROUND_ROWS
            && let Some(rows) = pages.next().await.map_err(|e| RpcError::Errno(e.into()))?
        {
            for (key, value) in &rows {
                match (key.get(4..).and_then(Fid::from_key), Stripes::from_row(value)) {
                    (Some(fid), Ok(row)) => found.push((fid, row)),
                    (_, row) => {
                        warn!(target_name = %self.core().name, table = table.0, ?key, error = ?row.err(),
                        "a row cannot be read and is left alone: run nacre check on this target")
                    }
                }
            }
            self.core().ctx.yield_now().await;
        }
        Ok(found)
    }

    async fn delete_rows(&self, ost: &Ost, rows: &[(Fid, Stripes)]) -> Result<(), RpcError> {
        let room = Credits {
            rows: rows.len() as u32,
            row_bytes: 64 * rows.len() as u32,
            object_bytes: 0,
            frees: true,
        };
        let done = self.execute_local(ReadSet::default(), room, |view| {
            rows.iter().for_each(|(fid, _)| view.delete(DESTROY, &table::of_ost(ost.index, *fid)));
            Ok(())
        });
        done.await.map(|_| ()).map_err(RpcError::Errno)
    }

    /// Charges the objects of a file on one OST to the file's owner; `None`: there is no such file any more.
    async fn charge(&self, ost: &Ost, fid: Fid, row: &Stripes) -> Result<Option<Owner>, RpcError> {
        let inode: Option<Inode> = self.read_row(INODE, &fid.key()).await.map_err(RpcError::Errno)?;
        let Some(owner) = inode.map(|inode| inode.owner()) else { return Ok(None) };
        for stripe in &row.stripes {
            let object = ObjectId { fid, stripe: *stripe };
            match ost.peer.call(&SetOwner { object, owner }).await {
                // Destroyed since, or never written: nothing to charge.
                Ok(_) | Err(RpcError::Errno(Errno::ENOENT)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Some(owner))
    }
    /// The row goes unless the owner changed again.
    async fn charged(&self, ost: &Ost, fid: Fid, owner: Option<Owner>) -> Result<(), RpcError> {
        let read_set = ReadSet::of_inode(fid);
        let done = self.execute_local(read_set, credits_of(WriteBound::inodes(1).freeing()), |view| {
            let now = view.inode(fid)?.map(|inode| inode.owner());
            if now.is_none() || now == owner {
                view.delete(CHOWN, &table::of_ost(ost.index, fid));
            }
            Ok(())
        });
        done.await.map(|_| ()).map_err(RpcError::Errno)
    }

    // ---- sizes

    /// Asks the OSTs for the sizes of files that nobody has open for writing any more.
    pub(crate) async fn settle_sizes(self: Rc<Self>) {
        while !self.osts().stopping.get() {
            let room = ASKED_MAX.saturating_sub(self.osts().asking.borrow().len());
            // A file that is being asked about waits for its turn: what was disturbed must stay disturbed.
            let next: Vec<Fid> = {
                let asking = self.osts().asking.borrow();
                let unsettled = self.osts().unsettled.borrow();
                unsettled.iter().filter(|fid| !asking.contains_key(fid)).take(room).copied().collect()
            };
            for fid in next {
                self.osts().unsettled.borrow_mut().remove(&fid);
                self.osts().asking.borrow_mut().insert(fid, false);
                self.core().ctx.spawn(self.clone().settle(fid));
            }
            let until = self.core().ctx.now() + AGAIN;
            if self.core().ctx.timeout(until, self.osts().ask.wait()).await.is_none() {
                let mut later = core::mem::take(&mut *self.osts().later.borrow_mut());
                self.osts().unsettled.borrow_mut().append(&mut later);
            }
        }
    }

    async fn settle(self: Rc<Self>, fid: Fid) {
        let result = self.try_settle(fid).await;
        self.osts().asking.borrow_mut().remove(&fid);
        match result {
            Ok(true) => {}
            Ok(false) => {
                self.osts().later.borrow_mut().insert(fid);
            }
            Err(error) => {
                debug!(target_name = %self.core().name, %fid, %error, "the size of a file is not known yet");
                self.osts().later.borrow_mut().insert(fid);
            }
        }
        self.osts().ask.wake_all();
    }

    /// False: somebody came between, or an OST is away; to be asked again.
    async fn try_settle(&self, fid: Fid) -> Result<bool, Errno> {
        let busy = {
            let opens = self.opens().borrow();
            opens.writers(fid) > 0 || opens.is_being_truncated(fid)
        };
        if busy {
            // Its last close or report brings it here again.
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
                if self.osts().asking.borrow().get(&fid) != Some(&false) {
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

    /// Size, space and time by the objects; `None` when an OST is away.
    async fn ask_objects(&self, inode: &Inode) -> Result<Option<Written>, Errno> {
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
                Err(RpcError::Errno(Errno::ENOENT)) => Ok(ObjectState::default()),
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
