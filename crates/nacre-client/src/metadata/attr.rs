//! Attributes: the target from which the size of a file is taken.
//!
//! While the MDT reports the size as `Open`, the objects have size, space and write times, and all of them are asked in
//! parallel. An object's time counts only if it is later than the last explicit change of the file's time. Not here: the
//! change of the size (`truncate.rs`).

use crate::api::ResolvedInode;
use crate::cache::in_flight::Touches;
use crate::client::Client;
use crate::data::stripes::{self, Laid};
use crate::files::open::is_regular;
use crate::files::state::OwnChanges;
use alloc::boxed::Box;
use alloc::vec::Vec;
use nacre_node::join_all;
use nacre_types::{Caller, Component, Failure, Fid, OpenHandle, OstIndex, SetAttr, SizeState};
use nacre_wire::mdt::{EntryReply, Getattr, Setattr, Settle, Written};
use nacre_wire::ost::{Glimpse, ObjectState};

/// Entries of a listing whose sizes are asked for at a time.
const ENTRIES_AT_A_TIME: usize = 64;

impl ResolvedInode {
    /// An entry whose size needs no asking.
    pub(crate) fn of(reply: &EntryReply) -> Self {
        Self { attr: reply.attr, kill_priv: reply.kill_priv }
    }
    /// Replaces size, space and times by those of the objects.
    pub(crate) fn with(reply: &EntryReply, objects: Written) -> Self {
        let mut entry = Self::of(reply);
        let attr = &mut entry.attr;
        attr.size = objects.size;
        attr.blocks = objects.blocks;
        if objects.mtime > reply.mtime_set_at {
            // As the MDT does when it learns of the write: also if an earlier change has set a time in the future.
            attr.mtime = objects.mtime;
            attr.ctime = attr.ctime.max(objects.mtime);
        }
        entry
    }
}

impl Client {
    /// Attributes of an inode, with its size.
    pub async fn getattr(&self, fid: Fid) -> Result<ResolvedInode, Failure> {
        let _timing = self.stats.time("getattr");
        self.attributes(fid).await
    }
    pub(crate) async fn attributes(&self, fid: Fid) -> Result<ResolvedInode, Failure> {
        let mdt = self.mdt_of(fid).await?;
        match mdt.cached_inode(fid) {
            Some(entry) => self.resolve_settled(entry).await,
            None => match mdt.read_inode(&Getattr { fid }).await {
                Err(Failure::ESTALE) => {
                    let removed = mdt.removed_inode(fid).ok_or(Failure::ESTALE)?;
                    Ok(ResolvedInode { attr: removed, kill_priv: false })
                }
                reply => self.resolve(reply?).await,
            },
        }
    }

    /// Changes attributes; a size change cuts the objects.
    pub async fn setattr(&self, fid: Fid, set: SetAttr, caller: Caller) -> Result<ResolvedInode, Failure> {
        let _timing = self.stats.time("setattr");
        self.check_writable()?;
        if let Some(size) = set.size {
            return self.truncate(fid, size, set, caller, None).await;
        }
        let atime_is_set = set.atime.is_some();
        let request = Setattr { fid, set, caller, time: self.now() };
        let reply = self.mdt_of(fid).await?.change_inode(Touches::inode(fid), &request).await?;
        if let Some(file) = self.files.used(fid) {
            if atime_is_set {
                file.accessed.forget();
            }
            file.learn(&reply);
            self.learned_privileges(&file);
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
    ) -> Result<ResolvedInode, Failure> {
        let open = self.handle_under_lease(handle).await?;
        let entry = match set.size {
            Some(size) => self.truncate(fid, size, set, caller, Some(&open)).await?,
            None => self.setattr(fid, set, caller).await?,
        };
        self.check_lease(&open).await?;
        Ok(entry)
    }

    /// The attributes of a reply, or newer ones from the cache: a later reply may have been processed before this one.
    pub(crate) fn settled(&self, reply: EntryReply) -> EntryReply {
        let fid = reply.attr.fid;
        self.mount.mdt_of(fid).and_then(|mdt| mdt.known_inode(fid)).unwrap_or(reply)
    }
    /// The same for an inode that this mount has just made: the MDT knows its size.
    pub(crate) fn settled_new(&self, reply: &EntryReply) -> ResolvedInode {
        let fid = reply.attr.fid;
        let known = self.mount.mdt_of(fid).and_then(|mdt| mdt.known_with(fid, ResolvedInode::of));
        known.unwrap_or_else(|| ResolvedInode::of(reply))
    }
    /// Completes a reply of the MDT: asks the OSTs when the MDT does not know the size. When it returns, nothing later is
    /// known of the inode.
    pub(crate) async fn resolve(&self, reply: EntryReply) -> Result<ResolvedInode, Failure> {
        self.resolve_settled(self.settled(reply)).await
    }
    /// The same for an entry that the cache has given in this visit, or that is newer.
    pub(crate) async fn resolve_settled(&self, reply: EntryReply) -> Result<ResolvedInode, Failure> {
        match self.resolved(&reply) {
            Some(entry) => Ok(entry),
            // In a box, as it is rare and large: every lookup and create has room for it otherwise.
            None => Box::pin(self.resolve_at_osts(reply)).await,
        }
    }
    /// Completes a reply with what is known here. `None`: the OSTs have to be asked for the size.
    fn resolved(&self, reply: &EntryReply) -> Option<ResolvedInode> {
        self.note_time(reply.mtime_set_at.max(reply.attr.ctime));
        let mut entry = ResolvedInode::of(reply);
        self.files.show_atime(&mut entry.attr);
        if !is_regular(&reply.attr) || reply.attr.size_state == SizeState::Exact {
            return Some(entry);
        }
        let Some(component) = reply.layout.as_ref().and_then(stripes::only_component) else {
            return Some(entry);
        };
        if !reply.yours {
            let has_dirty = self.mount.dirty_files().has(reply.attr.fid);
            return (is_complete(reply) && !has_dirty).then_some(entry);
        }
        // The writers that the MDT speaks of are those of this moment: the replies to opens and closes come on the
        // connection of the reply, and what the cache knows follows each of them.
        let fid = reply.attr.fid;
        let own_changes = match self.files.used(fid).filter(|file| file.has_writers()) {
            Some(file) if file.fills_holes() && self.mount.dirty_files().has(fid) => return None,
            Some(file) => file.own_changes()?,
            None if self.closes_unchanged_later(fid) => OwnChanges::None,
            None => return None,
        };
        match own_changes {
            OwnChanges::None => Some(entry),
            OwnChanges::States(states) => Some(self.with_objects(reply, component, &states)),
        }
    }
    /// Whether the MDT takes this mount for the writer of a file only because it has not sent the close yet.
    fn closes_unchanged_later(&self, fid: Fid) -> bool {
        self.mount.mdt_of(fid).is_some_and(|mdt| mdt.kept_closes().are_of_unchanged(fid))
    }
    async fn resolve_at_osts(&self, mut reply: EntryReply) -> Result<ResolvedInode, Failure> {
        let fid = reply.attr.fid;
        self.flush_file(fid).await;
        if reply.buffered && !reply.yours {
            reply = self.mdt_of(fid).await?.read_settled(&Settle { fid }).await?;
            reply = self.settled(reply);
            if let Some(entry) = self.resolved(&reply) {
                return Ok(entry);
            }
        }
        if has_data(&reply) {
            // This mount may have stored bytes since the reply.
            reply = self.mdt_of(fid).await?.read_inode(&Getattr { fid }).await?;
            reply = self.settled(reply);
            if has_data(&reply) {
                return Ok(self.resolved(&reply).unwrap_or_else(|| ResolvedInode::of(&reply)));
            }
        }
        let Some(component) = reply.layout.as_ref().and_then(stripes::only_component).cloned() else {
            return Ok(ResolvedInode::of(&reply));
        };
        let all: Vec<u32> = (0u32..).take(component.stripes.len()).collect();
        let states = self.glimpse(fid, &component, &all).await?;
        let asked = reply.clone();
        reply = self.settled(reply);
        let later = if reply == asked { None } else { self.resolved(&reply) };
        Ok(later.unwrap_or_else(|| self.with_objects(&asked, &component, &states)))
    }
    pub(crate) fn with_objects(
        &self,
        reply: &EntryReply,
        component: &Component,
        states: &[ObjectState],
    ) -> ResolvedInode {
        let mut entry = ResolvedInode::with(reply, stripes::resolve(component, states));
        self.files.show_atime(&mut entry.attr);
        entry
    }

    /// `resolve` for a listing, in order. `None` also for an inode that has gone since its name was read, or whose size an OST
    /// does not tell: one inode does not hide the names of its directory, and a request for it fails.
    pub(crate) async fn resolve_all(
        &self,
        mut replies: Vec<Option<EntryReply>>,
    ) -> Result<Vec<Option<ResolvedInode>>, Failure> {
        let mut resolved = Vec::with_capacity(replies.len());
        for reply in &replies {
            resolved.push(reply.as_ref().and_then(|reply| self.resolved(reply)));
        }
        let missing: Vec<usize> =
            (0..replies.len()).filter(|&nth| replies[nth].is_some() && resolved[nth].is_none()).collect();
        for some in missing.chunks(ENTRIES_AT_A_TIME) {
            let asked =
                join_all(some.iter().filter_map(|&nth| replies[nth].clone()).map(|r| self.resolve(r)));
            for (&nth, entry) in some.iter().zip(asked.await) {
                match entry {
                    Ok(entry) => resolved[nth] = Some(entry),
                    Err(Failure::ESTALE | Failure::EIO) => replies[nth] = None,
                    Err(error) => return Err(error),
                }
            }
        }
        // The present state of the cache is later than a reply from before the OSTs were asked.
        for (entry, reply) in resolved.iter_mut().zip(replies) {
            if let Some(reply) = reply {
                let later = self.settled(reply);
                *entry = self.resolved(&later).or(entry.take());
            }
        }
        Ok(resolved)
    }

    /// States of some objects of a file, in the order of `wanted`, asked in parallel.
    pub(crate) async fn glimpse(
        &self,
        fid: Fid,
        component: &Component,
        wanted: &[u32],
    ) -> Result<Vec<ObjectState>, Failure> {
        let one = |stripe: u32| async move {
            let ost = component.stripes.get(stripe as usize).copied().unwrap_or(OstIndex(u32::MAX));
            let Laid { object, laid } = Laid::new(component, fid, stripe);
            match self.ost(ost).await?.call(&Glimpse { object, laid }).await {
                // Removed in the meantime: as empty as one that was never written.
                Err(Failure::ENOENT) => Ok(ObjectState::default()),
                other => other,
            }
        };
        if let [stripe] = *wanted {
            return Ok(alloc::vec![one(stripe).await?]);
        }
        join_all(wanted.iter().map(|&stripe| one(stripe))).await.into_iter().collect()
    }
}

/// Whether the MDT has the bytes of the file.
fn has_data(reply: &EntryReply) -> bool {
    reply.layout.as_ref().is_some_and(|layout| layout.dom_bytes > 0)
}
/// Whether the MDT knows the size of a file that clients have open for writing: it has all bytes.
fn is_complete(reply: &EntryReply) -> bool {
    has_data(reply) && !reply.buffered
}
