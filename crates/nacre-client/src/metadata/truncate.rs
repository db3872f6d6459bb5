//! Truncates.
//!
//! A truncate sets the size of every object, so that the sizes of objects are always right. While this mount has the file
//! open for writing, the MDT says of it that the OSTs know its size, and takes the size from this mount's close: then a
//! truncate is a change of objects like a write, and the MDT is not told of it. Otherwise it is told before, and afterwards
//! gets a report while the locks are held, so that reports arrive in the order of the changes. Locks are needed where the
//! file has several objects: other mounts see all of the truncate or nothing of it. Not here: how the MDT uses a report.

use crate::api::ResolvedInode;
use crate::cache::in_flight::Touches;
use crate::client::Client;
use crate::data::io::{TRIES, check_end};
use crate::data::stripes::{self, Laid};
use crate::files::open::is_regular;
use crate::files::state::FileState;
use crate::files::table::Open;
use crate::locks::extents::GrantedExtent;
use crate::locks::under_lease::{Change, NO_LOCK};
use crate::targets::mdt::Mdt;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use nacre_node::join_all;
use nacre_types::{Caller, Component, Extent, Failure, Fid, ObjectId, ProtocolOutcome, SetAttr, Timestamp};
use nacre_wire::mdt::{Getattr, ReportSize, Setattr, Written};
use nacre_wire::ost::{LockMode, ObjectState, Truncate};

impl Client {
    /// Sets the size, through this handle if there is one.
    pub(crate) async fn truncate(
        &self,
        fid: Fid,
        size: u64,
        set: SetAttr,
        caller: Caller,
        open: Option<&Rc<Open>>,
    ) -> Result<ResolvedInode, Failure> {
        let _timing = self.stats.time("truncate");
        // Other attributes are the MDT's.
        let kill_suidgid = set.kill_suidgid;
        let is_at_mdt = self.files.used(fid).is_some_and(|file| file.dom_bytes() > 0);
        if !is_at_mdt
            && set == (SetAttr { size: set.size, kill_suidgid, ..SetAttr::default() })
            && let Some(open) = self.writer(fid, open)
        {
            let kill = kill_suidgid.then_some(&caller);
            if let Some(entry) = Box::pin(self.truncate_written(&open, size, kill)).await? {
                return Ok(entry);
            }
        }
        Box::pin(self.truncate_at_mdt(fid, size, set, caller, open.map(Rc::as_ref))).await
    }
    /// A handle that is open for writing: the one that the caller uses, or, for a truncate by name, another of this mount
    /// that does not lose the right to write with its file locks.
    fn writer(&self, fid: Fid, open: Option<&Rc<Open>>) -> Option<Rc<Open>> {
        if let Some(open) = open {
            return open.is_writer().then(|| open.clone());
        }
        self.files.used(fid).filter(|file| file.has_writers())?;
        let is_free = |open: &Rc<Open>| {
            open.is_writer() && open.usable().is_ok() && !open.file.flocks().covers(open.handle)
        };
        self.files.of_file(fid).into_iter().find(is_free)
    }

    /// Sets the size of a file that this mount has open for writing. `kill`: a caller who takes set-id bits away. `None`: the
    /// handle has been closed meanwhile.
    async fn truncate_written(
        &self,
        open: &Rc<Open>,
        size: u64,
        kill: Option<&Caller>,
    ) -> Result<Option<ResolvedInode>, Failure> {
        let file = &open.file;
        check_end(size, 0)?;
        let mdt = self.mdt_of(file.fid).await?;
        let reply = match mdt.cached_inode(file.fid) {
            Some(reply) => reply,
            None => mdt.read_inode(&Getattr { fid: file.fid }).await?,
        };
        let reply = self.settled(reply);
        file.learn(&reply);
        if let Some(caller) = kill {
            self.kill_known_privileges(open, caller).await?;
        }
        file.long_append.end();
        // Kept bytes are sent first, also those that will be cut off: none may be executed after the truncate, after a kill
        // of this process neither (`kept_log`).
        let _alone = self.exclusive(file, Extent::ALL).await;
        // Its close waits for this range from now on.
        if !self.files.contains(open.handle) {
            return Ok(None);
        }
        let component = file.component()?;
        let mtime = self.now();
        let is_locked = component.stripes.len() > 1;
        let change = Change::through(open);
        let cut = || self.truncate_objects(change, file, &component, size, mtime, is_locked);
        let (mut states, _locks) = match self.retry_lost_locks(|_| cut()).await {
            Ok(done) => done,
            Err(error) => {
                (0u32..).take(component.stripes.len()).for_each(|stripe| file.note_uncertain(stripe));
                return Err(error);
            }
        };
        // Empty objects stay as they are, and yet the file was truncated now. If all are empty, other mounts learn it from the
        // MDT.
        let no_object_tells = size == 0 && states.iter().all(|state| state.mtime < mtime);
        states.iter_mut().for_each(|state| state.mtime = state.mtime.max(mtime));
        file.note_truncated(&states);
        file.accessed.changed(mtime);
        let reply = match no_object_tells {
            true => {
                let set = SetAttr { mtime: Some(mtime), ..SetAttr::default() };
                let request = Setattr { fid: file.fid, set, caller: Caller::root(), time: mtime };
                mdt.change_inode(Touches::inode(file.fid), &request).await?
            }
            false => self.settled(reply),
        };
        Ok(Some(self.with_objects(&reply, &component, &states)))
    }

    /// Sets the size: the MDT first (it says `Open` from then on), then every object, then the report.
    async fn truncate_at_mdt(
        &self,
        fid: Fid,
        size: u64,
        set: SetAttr,
        caller: Caller,
        open: Option<&Open>,
    ) -> Result<ResolvedInode, Failure> {
        let file = self.files.of(fid);
        // Until the MDT has the new size, what it says of the file is not kept.
        let mdt = self.mdt_of(fid).await?;
        let _changing = mdt.cache().begin(Touches::inode(fid));
        mdt.no_close_is_kept(fid).await;
        self.mount.pages().ended(fid);
        file.long_append.end();
        let _alone = self.exclusive(&file, Extent::ALL).await;
        let mtime = self.now();
        // Other attributes are not set again: another client may have changed them since.
        let only_size = SetAttr { size: set.size, ..SetAttr::default() };
        let again = Setattr { fid, set: only_size, caller: caller.clone(), time: mtime };
        let evictions = mdt.evictions();
        let request = Setattr { fid, set, caller, time: mtime };
        let reply = match mdt.change_inode(Touches::inode(fid), &request).await {
            Err(Failure::Outcome(ProtocolOutcome::MoveDataFirst)) => {
                self.move_data_of(fid).await?;
                mdt.change_inode(Touches::inode(fid), &request).await?
            }
            reply => reply?,
        };
        file.learn(&reply);
        if !is_regular(&reply.attr) {
            return Err(Failure::EINVAL);
        }
        if reply.layout.as_ref().is_some_and(|layout| layout.dom_bytes > 0) {
            file.note_truncated(&file.states_of_data(size, mtime));
            return Ok(ResolvedInode::of(&reply));
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
            let cut = || self.truncate_objects(change, file, &component, size, mtime, true);
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

    /// Truncates or extends every object. Returns their states, and the locks under which it was done; without locks of this
    /// mount each OST locks for the time of its request.
    async fn truncate_objects(
        &self,
        change: Change<'_>,
        file: &FileState,
        component: &Component,
        size: u64,
        mtime: Timestamp,
        is_locked: bool,
    ) -> Result<(Vec<ObjectState>, Vec<GrantedExtent>), Failure> {
        let fid = file.fid;
        let mut osts = Vec::with_capacity(component.stripes.len());
        let mut locks = Vec::with_capacity(component.stripes.len());
        for (stripe, &ost) in (0u32..).zip(&component.stripes) {
            let extent = Extent::new(component.object_size(stripe, size), u64::MAX);
            let ost = self.ost(ost).await?;
            if is_locked {
                // The MDT waits for what becomes of it.
                let object = Laid::new(component, fid, stripe);
                locks.push(self.lock_extent(&ost, object, LockMode::Pw, extent, false, false).await?);
            }
            osts.push(ost);
        }
        let owner = file.owner();
        let cuts = (0u32..).zip(&osts).map(|(stripe, ost)| {
            let lock = locks.get(stripe as usize).map_or(NO_LOCK, GrantedExtent::cookie);
            let request = Truncate {
                object: ObjectId { fid, stripe },
                laid: component.laid(stripe),
                size: component.object_size(stripe, size),
                owner,
                mtime,
                lock,
            };
            async move {
                let _room = if lock == NO_LOCK { Some(ost.unlocked_write().await) } else { None };
                self.change_object(ost, change, lock, &request, Vec::new()).await.map(|reply| reply.state)
            }
        });
        let mut states = Vec::with_capacity(osts.len());
        for state in join_all(cuts).await {
            states.push(state?);
        }
        Ok((states, locks))
    }
}
