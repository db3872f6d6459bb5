//! Work that is left to do at the OSTs: objects to be destroyed, and objects to be charged to a new owner.
//!
//! Rules: a destroy or owner change is sent only after the commit of the change that caused it, and its row is deleted only
//! after the OST has committed it. Both are idempotent, so that after a crash the work in the rows is simply sent
//! again.

use crate::mdt::Mdt;
use crate::ops::WriteBound;
use crate::osts::Ost;
use crate::rows::read_set::ReadSet;
use crate::rows::row::{Inode, Row, Stripes};
use crate::rows::table::{self, CHOWN, DESTROY, INODE};
use crate::service::bounds::credits_of;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;
use nacre_node::{RpcError, join_all};
use nacre_osd::{Credits, Table};
use nacre_types::{Errno, Failure, Fid, ObjectId, Owner};
use nacre_wire::ost::{Destroy, SetOwner};
use nacre_wire::target::Commit;
use tracing::{debug, warn};

/// Rows of one round; a round ends with one commit of the OST.
const ROUND_ROWS: usize = 8192;
/// Rows read or deleted in one visit.
const SLICE: usize = 128;
/// Requests of one worker under way.
const IN_FLIGHT: usize = 16;
/// A worker looks at its rows this often even if it was not woken.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How long a round that nobody waits for leaves the commit of the OST to syncs of clients, and collects further rows.
const COMMIT_PAUSE: Duration = Duration::from_millis(200);
/// Pause after an error.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

impl Mdt {
    /// Executes the rows of one OST, as long as the service runs.
    pub(crate) async fn work_for(self: Rc<Self>, ost: Rc<Ost>) {
        while !self.osts().stopping.get() {
            ost.has_work.set(false);
            ost.in_hand.set(true);
            let round = self.round(&ost).await;
            ost.destroys_acknowledged();
            let pause = match round {
                Ok(0) => LOOK_EVERY,
                Ok(_) => continue,
                Err(RpcError::Stopped) => return,
                Err(error) => {
                    warn!(target_name = %self.core().name, ost = ost.index.0, %error,
                        "destroys and owner changes wait: the OST refuses them, they are tried again");
                    ost.has_work.set(false);
                    RETRY_PAUSE
                }
            };
            if !ost.has_work.get() {
                let until = self.core().ctx.now() + pause;
                let _work = self.core().ctx.timeout(until, ost.work.wait()).await;
            }
        }
    }

    /// One round; returns the number of rows that it has executed.
    async fn round(&self, ost: &Ost) -> Result<usize, RpcError> {
        let before = self.core().osd.last_transno();
        let destroys = self.rows_of(DESTROY, ost).await?;
        let chowns = self.rows_of(CHOWN, ost).await?;
        let count = destroys.len() + chowns.len();
        if count == 0 {
            return Ok(0);
        }
        let written = self.core().osd.last_transno();
        if ost.hurrying.get() > 0 {
            self.core().osd.request_commit();
        }
        self.core().osd.committed(written).await.map_err(Errno::from)?;
        for some in destroys.chunks(IN_FLIGHT) {
            let calls = some.iter().map(|(fid, row)| async move {
                ost.peer.call(&Destroy { fid: *fid, stripes: row.stripes.clone() }).await
            });
            join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        if destroys.len() < ROUND_ROWS {
            ost.destroyed_to.set(before);
        }
        ost.destroys_acknowledged();
        let mut charged = Vec::with_capacity(chowns.len());
        for some in chowns.chunks(IN_FLIGHT) {
            let calls = some.iter().map(|(fid, row)| self.charge(ost, *fid, row));
            for (done, (fid, _)) in join_all(calls).await.into_iter().zip(some) {
                charged.push((*fid, done?));
            }
        }
        // A program that makes and removes files, each with an fsync, would pay for a sync of the log and of a directory per
        // file here, beside its own.
        let until = self.core().ctx.now() + COMMIT_PAUSE;
        while ost.hurrying.get() == 0
            && !ost.full.get()
            && !self.osts().stopping.get()
            && self.core().ctx.now() < until
        {
            let _hurry = self.core().ctx.timeout(until, ost.hurry.wait()).await;
        }
        ost.peer.call(&Commit {}).await?;
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
            && let Some(rows) = pages.next().await.map_err(Errno::from)?
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
            frees: true,
            ..Credits::default()
        };
        let done = self.execute_local(ReadSet::default(), room, |view| {
            rows.iter().for_each(|(fid, _)| view.delete(DESTROY, &table::of_ost(ost.index, *fid)));
            Ok(())
        });
        Ok(done.await.map(|_| ())?)
    }

    /// Charges the objects of a file on one OST to the file's owner; `None`: there is no such file any more.
    async fn charge(&self, ost: &Ost, fid: Fid, row: &Stripes) -> Result<Option<Owner>, RpcError> {
        let inode: Option<Inode> = self.read_row(INODE, &fid.key()).await?;
        let Some(owner) = inode.map(|inode| inode.owner()) else { return Ok(None) };
        for stripe in &row.stripes {
            let object = ObjectId { fid, stripe: *stripe };
            match ost.peer.call(&SetOwner { object, owner }).await {
                // Destroyed since, or never written: nothing to charge.
                Ok(_) | Err(RpcError::Failed(Failure::ENOENT)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Some(owner))
    }
    /// Deletes the row unless the owner changed again.
    async fn charged(&self, ost: &Ost, fid: Fid, owner: Option<Owner>) -> Result<(), RpcError> {
        let read_set = ReadSet::of_inode(fid);
        let done = self.execute_local(read_set, credits_of(WriteBound::inodes(1).freeing()), |view| {
            let now = view.inode(fid)?.map(|inode| inode.owner());
            if now.is_none() || now == owner {
                view.delete(CHOWN, &table::of_ost(ost.index, fid));
            }
            Ok(())
        });
        Ok(done.await.map(|_| ())?)
    }
}
