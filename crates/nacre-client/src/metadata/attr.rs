//! Attributes: the target from which the size of a file is taken.
//!
//! While the MDT reports the size as `Open`, the objects have size, space and write times, and all of them are asked in
//! parallel. An object's time counts only if it is later than the last explicit change of the file's time. A truncate
//! sets the size of every object, so that the sizes of objects are always right; it reports to the MDT while it holds
//! the locks, so that reports arrive in the order of the changes. Not here: how the MDT uses a report.

use crate::api::ResolvedInode;
use crate::cache::dirs::Touches;
use crate::client::Client;
use crate::data::stripes::{self, Laid};
use crate::files::open::is_regular;
use crate::files::ranges::Share;
use crate::files::state::{FileState, OwnChanges};
use crate::files::table::Open;
use crate::locks::extents::GrantedExtent;
use alloc::boxed::Box;
use alloc::vec::Vec;
use nacre_node::join_all;
use nacre_types::{
    Caller, Component, Errno, Extent, Fid, ObjectId, OpenHandle, OstIndex, SetAttr, SizeState, Timestamp,
};
use nacre_wire::mdt::{EntryReply, Getattr, ReportSize, Setattr, Written};
use nacre_wire::ost::{Glimpse, LockMode, ObjectState, Truncate};

/// Entries of a listing whose sizes are asked for at a time.
const ENTRIES_AT_A_TIME: usize = 64;

impl ResolvedInode {
    /// An entry whose size needs no asking.
    pub(crate) fn of(reply: &EntryReply) -> Self {
        Self { attr: reply.attr, kill_priv: reply.kill_priv }
    }
    /// Replaces size, space and times by what the objects say.
    fn with(reply: &EntryReply, objects: Written) -> Self {
        let mut entry = Self::of(reply);
        let attr = &mut entry.attr;
        attr.size = objects.size;
        attr.blocks = objects.blocks;
        if objects.mtime > reply.mtime_set_at {
            attr.mtime = attr.mtime.max(objects.mtime);
            attr.ctime = attr.ctime.max(objects.mtime);
        }
        entry
    }
}

impl Client {
    /// Attributes of an inode, with its size.
    pub async fn getattr(&self, fid: Fid) -> Result<ResolvedInode, Errno> {
        let _timing = self.stats.time("getattr");
        let mdt = self.mdt_of(fid).await?;
        if let Some(mut entry) = mdt.held_dir(fid) {
            self.stats.event("dir_attr_cached");
            self.files.show_atime(&mut entry.attr);
            return Ok(entry);
        }
        let reply = mdt.read_inode(&Getattr { fid }).await?;
        self.resolve(reply).await
    }

    /// Changes attributes; a size change cuts the objects.
    pub async fn setattr(&self, fid: Fid, set: SetAttr, caller: Caller) -> Result<ResolvedInode, Errno> {
        let _timing = self.stats.time("setattr");
        self.check_writable()?;
        if let Some(size) = set.size {
            return self.truncate(fid, size, set, caller, None).await;
        }
        let atime_is_set = set.atime.is_some();
        let request = Setattr { fid, set, caller, time: self.now() };
        let reply = self.mdt_of(fid).await?.change_dirs(Touches::dir(fid), &request).await?;
        if let Some(file) = self.files.used(fid) {
            if atime_is_set {
                file.accessed.forget();
            }
            file.learn(&reply);
        }
        self.resolve(reply).await
    }

    /// The same through a handle, and no more than a write beyond the lease of its file locks.
    pub async fn setattr_through(
        &self,
        handle: OpenHandle,
        fid: Fid,
        set: SetAttr,
        caller: Caller,
    ) -> Result<ResolvedInode, Errno> {
        let open = self.handle_under_lease(handle).await?;
        let entry = match set.size {
            Some(size) => self.truncate(fid, size, set, caller, Some(&open)).await?,
            None => self.setattr(fid, set, caller).await?,
        };
        self.check_lease(&open).await?;
        Ok(entry)
    }

    /// Completes a reply of the MDT: asks the OSTs when the MDT does not know the size.
    pub(crate) async fn resolve(&self, mut reply: EntryReply) -> Result<ResolvedInode, Errno> {
        self.files.show_atime(&mut reply.attr);
        if !is_regular(&reply.attr) || reply.attr.size_state == SizeState::Exact {
            return Ok(ResolvedInode::of(&reply));
        }
        let Some(component) = reply.layout.as_ref().and_then(stripes::only_component) else {
            return Ok(ResolvedInode::of(&reply));
        };
        if reply.yours
            && let Some(own) = self.files.used(reply.attr.fid).and_then(|file| file.own_changes())
        {
            // No await since the reply came: the writers that the MDT speaks of are those of this moment, because
            // the replies to opens and closes come on the same connection.
            return Ok(match own {
                OwnChanges::None => ResolvedInode::of(&reply),
                OwnChanges::States(states) => {
                    ResolvedInode::with(&reply, stripes::resolve(component, &states))
                }
            });
        }
        let all: Vec<u32> = (0u32..).take(component.stripes.len()).collect();
        // In a box, as it is rare and large: every lookup and create has room for it otherwise.
        let states = Box::pin(self.glimpse(reply.attr.fid, component, &all)).await?;
        Ok(ResolvedInode::with(&reply, stripes::resolve(component, &states)))
    }

    /// `resolve` for a listing, in order.
    pub(crate) async fn resolve_all(
        &self,
        replies: Vec<Option<EntryReply>>,
    ) -> Result<Vec<Option<ResolvedInode>>, Errno> {
        let mut entries = Vec::with_capacity(replies.len());
        let mut replies = replies.into_iter().peekable();
        while replies.peek().is_some() {
            let some: Vec<_> = replies.by_ref().take(ENTRIES_AT_A_TIME).collect();
            let asked = join_all(some.into_iter().map(|reply| async move {
                match reply {
                    Some(reply) => self.resolve(reply).await.map(Some),
                    None => Ok(None),
                }
            }));
            for entry in asked.await {
                entries.push(entry?);
            }
        }
        Ok(entries)
    }

    /// States of some objects of a file, in the order of `wanted`, asked in parallel.
    pub(crate) async fn glimpse(
        &self,
        fid: Fid,
        component: &Component,
        wanted: &[u32],
    ) -> Result<Vec<ObjectState>, Errno> {
        let one = |stripe: u32| async move {
            let ost = component.stripes.get(stripe as usize).copied().unwrap_or(OstIndex(u32::MAX));
            let Laid { object, laid } = Laid::new(component, fid, stripe);
            match self.ost(ost).await?.call(&Glimpse { object, laid }).await {
                // Removed in the meantime: as empty as one that was never written.
                Err(Errno::ENOENT) => Ok(ObjectState::default()),
                other => other,
            }
        };
        if let [stripe] = *wanted {
            return Ok(alloc::vec![one(stripe).await?]);
        }
        join_all(wanted.iter().map(|&stripe| one(stripe))).await.into_iter().collect()
    }

    /// Sets the size: the MDT first (it says `Open` from then on), then every object, then the report.
    pub(crate) async fn truncate(
        &self,
        fid: Fid,
        size: u64,
        set: SetAttr,
        caller: Caller,
        open: Option<&Open>,
    ) -> Result<ResolvedInode, Errno> {
        let _timing = self.stats.time("truncate");
        let file = self.files.of(fid);
        file.long_append.end();
        let _alone = file.ranges.acquire(&self.ctx, Extent::ALL, Share::Exclusive).await;
        let mtime = self.now();
        // What else is set is not set again: others may have set it since.
        let only_size = SetAttr { size: set.size, ..SetAttr::default() };
        let again = Setattr { fid, set: only_size, caller: caller.clone(), time: mtime };
        let mdt = self.mdt_of(fid).await?;
        let reply = mdt.change(&Setattr { fid, set, caller, time: mtime }).await?;
        file.learn(&reply);
        if !is_regular(&reply.attr) {
            return Err(Errno::EINVAL);
        }
        let component = file.component()?;
        let (states, locks) =
            match self.retry_lost_locks(|_| self.cut(&file, open, &component, size, mtime)).await {
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
        let reply = match mdt.change(&report).await {
            // The MDT has evicted this mount and asked for the size, which may have been before the cut.
            Err(Errno::EIO | Errno::EINVAL) => {
                let reply = mdt.change(&again).await?;
                self.report_truth(&file, &component, &again).await;
                reply
            }
            reply => reply?,
        };
        drop(locks);
        file.learn(&reply);
        Ok(ResolvedInode::with(&reply, stripes::resolve(&component, &states)))
    }

    /// The MDT waits for a report, or has evicted this mount and asked too early; the truth is what the objects say now.
    async fn report_truth(&self, file: &FileState, component: &Component, again: &Setattr) {
        let all: Vec<u32> = (0u32..).take(component.stripes.len()).collect();
        all.iter().for_each(|&stripe| file.note_uncertain(stripe));
        let report = async || {
            let states = self.glimpse(file.fid, component, &all).await?;
            let written = Written { mtime: again.time, ..stripes::resolve(component, &states) };
            self.mdt_of(file.fid)
                .await?
                .change(&ReportSize { fid: file.fid, written, truncate: true })
                .await
                .map(drop)
        };
        let again_sent = async || self.mdt_of(file.fid).await?.change(again).await;
        let reported = match report().await {
            Err(Errno::EIO | Errno::EINVAL) => match again_sent().await {
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

    /// Cuts or extends every object; their states, and the locks under which that was done.
    async fn cut(
        &self,
        file: &FileState,
        open: Option<&Open>,
        component: &Component,
        size: u64,
        mtime: Timestamp,
    ) -> Result<(Vec<ObjectState>, Vec<GrantedExtent>), Errno> {
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
                lock: held.cookie,
            };
            async move {
                self.change_object(ost, open, held.cookie, &request, Vec::new())
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
