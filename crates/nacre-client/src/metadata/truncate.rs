//! Truncates.
//!
//! A truncate sets the size of every object, so that the sizes of objects are always right; it reports to the MDT while it
//! holds the locks, so that reports arrive in the order of the changes. Not here: how the MDT uses a report.

use crate::api::ResolvedInode;
use crate::cache::in_flight::Touches;
use crate::client::Client;
use crate::data::io::TRIES;
use crate::data::stripes::{self, Laid};
use crate::files::open::is_regular;
use crate::files::state::FileState;
use crate::files::table::Open;
use crate::locks::extents::GrantedExtent;
use crate::locks::under_lease::Change;
use crate::targets::mdt::Mdt;
use alloc::rc::Rc;
use alloc::vec::Vec;
use nacre_node::join_all;
use nacre_types::{Caller, Component, Extent, Failure, Fid, ObjectId, ProtocolOutcome, SetAttr, Timestamp};
use nacre_wire::mdt::{ReportSize, Setattr, Written};
use nacre_wire::ost::{LockMode, ObjectState, Truncate};

impl Client {
    /// Sets the size: the MDT first (it says `Open` from then on), then every object, then the report.
    pub(crate) async fn truncate(
        &self,
        fid: Fid,
        size: u64,
        set: SetAttr,
        caller: Caller,
        open: Option<&Open>,
    ) -> Result<ResolvedInode, Failure> {
        let _timing = self.stats.time("truncate");
        let file = self.files.of(fid);
        // Until the MDT has the new size, what it says of the file is not kept.
        let mdt = self.mdt_of(fid).await?;
        let _changing = mdt.cache().begin(Touches::inode(fid));
        mdt.nothing_is_released_later(fid).await;
        self.mount.pages().ended(fid);
        file.long_append.end();
        let _alone = self.exclusive(&file, Extent::ALL).await;
        let mtime = self.now();
        // Other attributes are not set again: another client may have changed them since.
        let only_size = SetAttr { size: set.size, ..SetAttr::default() };
        let again = Setattr { fid, set: only_size, caller: caller.clone(), time: mtime };
        let evictions = mdt.evictions();
        let reply = mdt.change_inode(Touches::inode(fid), &Setattr { fid, set, caller, time: mtime }).await?;
        file.learn(&reply);
        if !is_regular(&reply.attr) {
            return Err(Failure::EINVAL);
        }
        let component = file.component()?;
        let cut = self.truncate_announced((&mdt, evictions), &file, open, (size, mtime), &again);
        let (states, locks) = match cut.await {
            Ok(done) => done,
            Err(e) => {
                self.report_truth(&file, &component, &again).await;
                return Err(e);
            }
        };
        file.note_truncated(&states);
        let mut written = stripes::resolve(&component, &states);
        written.size = size;
        written.mtime = mtime;
        let report = ReportSize { fid, written, truncate: true };
        let reply = match mdt.change_inode(Touches::attrs(fid), &report).await {
            // The MDT has evicted this mount and asked for the size, which may have been before the truncate.
            Err(Failure::EIO | Failure::EINVAL) => {
                let reply = mdt.change_inode(Touches::inode(fid), &again).await?;
                self.report_truth(&file, &component, &again).await;
                reply
            }
            reply => reply?,
        };
        drop(locks);
        file.learn(&reply);
        Ok(ResolvedInode::with(&reply, stripes::resolve(&component, &states)))
    }

    /// Truncates the objects of a file, of which the MDT was told when it had evicted this mount so often. It is told
    /// again after another eviction: until then other clients may cache the bytes.
    async fn truncate_announced(
        &self,
        (mdt, mut evictions): (&Rc<Mdt>, u64),
        file: &FileState,
        open: Option<&Open>,
        (size, mtime): (u64, Timestamp),
        again: &Setattr,
    ) -> Result<(Vec<ObjectState>, Vec<GrantedExtent>), Failure> {
        let component = file.component()?;
        for _ in 1..TRIES {
            let change = Change::announced(file.fid, open, evictions);
            let cut = || self.truncate_objects(change, file, &component, size, mtime);
            match self.retry_lost_locks(|_| cut()).await {
                Err(Failure::Outcome(ProtocolOutcome::DeadlinePassed)) => {
                    evictions = mdt.evictions();
                    mdt.change_inode(Touches::inode(file.fid), again).await?;
                }
                done => return done,
            }
        }
        Err(Failure::EIO)
    }

    /// Reports the present sizes of the objects: the MDT waits for a report, or has evicted this mount and asked the
    /// OSTs too early.
    async fn report_truth(&self, file: &FileState, component: &Component, again: &Setattr) {
        let all: Vec<u32> = (0u32..).take(component.stripes.len()).collect();
        all.iter().for_each(|&stripe| file.note_uncertain(stripe));
        let report = async || {
            let states = self.glimpse(file.fid, component, &all).await?;
            let written = Written { mtime: again.time, ..stripes::resolve(component, &states) };
            self.mdt_of(file.fid)
                .await?
                .change_inode(
                    Touches::attrs(file.fid),
                    &ReportSize { fid: file.fid, written, truncate: true },
                )
                .await
                .map(drop)
        };
        let again_sent =
            async || self.mdt_of(file.fid).await?.change_inode(Touches::inode(file.fid), again).await;
        let reported = match report().await {
            Err(Failure::EIO | Failure::EINVAL) => match again_sent().await {
                Ok(_) => report().await,
                Err(error) => Err(error),
            },
            reported => reported,
        };
        if let Err(error) = reported {
            tracing::error!(fid = %file.fid, %error,
                "a truncate failed half way and its OSTs do not reply: they are asked for the file's size until this mount ends");
        }
    }

    /// Truncates or extends every object. Returns their states, and the locks under which it was done.
    async fn truncate_objects(
        &self,
        change: Change<'_>,
        file: &FileState,
        component: &Component,
        size: u64,
        mtime: Timestamp,
    ) -> Result<(Vec<ObjectState>, Vec<GrantedExtent>), Failure> {
        let fid = file.fid;
        let mut osts = Vec::with_capacity(component.stripes.len());
        let mut locks = Vec::with_capacity(component.stripes.len());
        for (stripe, &ost) in (0u32..).zip(&component.stripes) {
            let extent = Extent::new(component.object_size(stripe, size), u64::MAX);
            let ost = self.ost(ost).await?;
            // The MDT waits for what becomes of it.
            let object = Laid::new(component, fid, stripe);
            locks.push(self.lock_extent(&ost, object, LockMode::Pw, extent, false, false).await?);
            osts.push(ost);
        }
        let owner = file.owner();
        let cuts = (0u32..).zip(osts.iter().zip(&locks)).map(|(stripe, (ost, held))| {
            let request = Truncate {
                object: ObjectId { fid, stripe },
                laid: component.laid(stripe),
                size: component.object_size(stripe, size),
                owner,
                mtime,
                lock: held.cookie(),
            };
            async move {
                self.change_object(ost, change, held.cookie(), &request, Vec::new())
                    .await
                    .map(|reply| reply.state)
            }
        });
        let mut states = Vec::with_capacity(locks.len());
        for state in join_all(cuts).await {
            states.push(state?);
        }
        Ok((states, locks))
    }
}
