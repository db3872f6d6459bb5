//! Files whose bytes are at their MDT (`Layout::dom_bytes`): small ones that one mount at a time writes.
//!
//! Rules: (1) The bytes go to the MDT as a whole, from a mount that keeps what it writes (`write_back.rs`): while any byte of
//! such a file is dirty, all of them are. The log of kept writes has all of them, too. (2) In every other case (a second
//! mount writes, the file grows too large, space is allocated or freed) the MDT moves the bytes to the objects first, and the
//! file is like any other from then on. (3) A mount may believe that the MDT has the bytes when they have moved already: the
//! MDT says so, and the objects are used. The opposite cannot happen, because no file returns from its objects.

use crate::api::WriteArgs;
use crate::cache::in_flight::Touches;
use crate::client::Client;
use crate::files::dirty_files::{DirtyFile, SentBytes};
use crate::files::ranges::{RangeGuard, Share};
use crate::files::state::FileState;
use crate::files::table::Open;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use nacre_types::{Component, Errno, Extent, Failure, Fid, ProtocolOutcome, Timestamp};
use nacre_wire::mdt::{Getattr, MoveData, ReadData, ReadDataReply, StoreData};

impl Client {
    /// Bytes of a file from its MDT, up to `end`, and the time of the last change. `None`: they are in objects.
    pub(crate) async fn read_from_mdt(
        &self,
        file: &FileState,
        offset: u64,
        end: u64,
    ) -> Result<Option<(Bytes, Timestamp)>, Failure> {
        let mdt = self.mount.mdt_of(file.fid).filter(|_| !file.has_writers());
        let found = match mdt.and_then(|mdt| mdt.cached_data(file.fid)) {
            Some(kept) => Some(kept),
            None => self.read_data(file).await?,
        };
        let Some((data, mtime)) = found else { return Ok(None) };
        let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(data.len());
        Ok(Some((data.slice(at(offset)..at(end)), mtime)))
    }
    async fn read_data(&self, file: &FileState) -> Result<Option<(Bytes, Timestamp)>, Failure> {
        let ReadDataReply { data, mtime } =
            self.mdt_of(file.fid).await?.call(&ReadData { fid: file.fid }).await?;
        if data.is_none() {
            file.data_has_moved();
        }
        Ok(data.map(|data| (data, mtime)))
    }

    /// Has the MDT move the bytes of a file to its objects, if it has them. The caller holds all of the file exclusively, if
    /// this mount may have dirty bytes of it.
    pub(crate) async fn move_data(&self, file: &FileState) -> Result<(), Failure> {
        if file.dom_bytes() > 0 {
            self.move_data_of(file.fid).await?;
            file.data_has_moved();
        }
        Ok(())
    }
    /// EIO: the administrator has set the OST inactive here, for which the MDT may wait for ever. The request goes on then.
    pub(crate) async fn move_data_of(&self, fid: Fid) -> Result<(), Failure> {
        let Some(ost) = self.first_ost_of(fid).await? else { return self.request_move(fid).await };
        let is_active = || ost.peer.with_import(|import| import.is_active());
        if !is_active() {
            return Err(Failure::EIO);
        }
        let (promise, moved) = self.ctx.promise();
        let client = self.me();
        self.ctx.spawn(async move { promise.fulfil(client.request_move(fid).await) });
        let mut moved = pin!(moved);
        while is_active() {
            let mut changed = pin!(ost.peer.changed());
            let done = poll_fn(|cx| match moved.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Some(done.unwrap_or(Err(Failure::EIO)))),
                Poll::Pending => changed.as_mut().poll(cx).map(|()| None),
            });
            if let Some(done) = done.await {
                return done;
            }
        }
        Err(Failure::EIO)
    }
    async fn first_ost_of(&self, fid: Fid) -> Result<Option<Rc<Target>>, Failure> {
        let Some(file) = self.files.used(fid) else { return Ok(None) };
        if file.known_component().is_none() {
            // A truncate by name of a file that this mount does not use otherwise.
            file.learn(&self.mdt_of(fid).await?.read_inode(&Getattr { fid }).await?);
        }
        let first = file.known_component().and_then(|component| component.stripes.first().copied());
        Ok(first.and_then(|ost| self.mount.known_ost(ost)))
    }
    async fn request_move(&self, fid: Fid) -> Result<(), Failure> {
        let moved = self.mdt_of(fid).await?.change_inode(Touches::inode(fid), &MoveData { fid }).await?;
        if let Some(file) = self.files.used(fid) {
            file.learn(&moved);
        }
        Ok(())
    }

    // ---- writes

    /// Keeps the bytes of a write, if this mount may; returns whether it does. Otherwise they go to objects, and so do first
    /// those that the MDT has.
    pub(crate) async fn keep_write(
        &self,
        open: &Rc<Open>,
        component: &Component,
        args: &WriteArgs,
        may_keep: bool,
    ) -> Result<bool, Failure> {
        let kept = may_keep && self.write_back(open, component, args).await?;
        if kept || open.file.dom_bytes() == 0 {
            return Ok(kept);
        }
        self.move_data(&open.file).await?;
        Ok(may_keep && self.write_back(open, component, args).await?)
    }
    /// The bytes that the MDT has of a file, before a write that needs them.
    pub(crate) async fn data_before_write(
        &self,
        file: &FileState,
        args: &WriteArgs,
    ) -> Result<Option<Bytes>, Failure> {
        let is_dirty = self.mount.dirty_files().has(file.fid);
        if file.dom_bytes() == 0 || is_dirty || !file.may_know_objects() {
            return Ok(None);
        }
        let known = file.size_of_data();
        if let Some(size) = known {
            let offset = if args.append { size } else { args.offset };
            let end = offset.saturating_add(args.data.len() as u64);
            let is_overwritten = size == 0 || offset == 0 && size <= end;
            if is_overwritten || end > u64::from(file.dom_bytes()) {
                return Ok(None);
            }
        }
        let Some((data, _mtime)) = self.read_data(file).await? else { return Ok(None) };
        if known.is_none() {
            // No time of a write: the MDT's may have been set, perhaps to the future, which the next write replaces.
            let states = file.states_of_data(data.len() as u64, Timestamp::default());
            (0u32..).zip(states).for_each(|(stripe, state)| file.note_glimpsed(stripe, state));
        }
        Ok(Some(data))
    }
    /// What becomes dirty beside a write, with its place: bytes of the MDT that nobody has changed since, and zeros up to the
    /// beginning of the write. `None`: these bytes are not known.
    pub(crate) fn data_beside(
        &self,
        file: &FileState,
        found: Option<Bytes>,
        write: Extent,
        size: u64,
    ) -> Option<Vec<(u64, Bytes)>> {
        let mut beside = Vec::new();
        let is_overwritten = size == 0 || write.start == 0 && size <= write.end;
        if !self.mount.dirty_files().has(file.fid) && !is_overwritten {
            let data = found.filter(|data| data.len() as u64 == size)?;
            beside.push((0, data));
        }
        if write.start > size {
            beside.push((size, Bytes::from(vec![0; usize::try_from(write.start - size).ok()?])));
        }
        Some(beside)
    }

    // ---- the way of dirty bytes to the MDT

    /// Takes the dirty bytes of a file for its MDT, and a place among the operations of the file. `None`: there are none, or
    /// they have to go to objects.
    pub(crate) async fn take_data(&self, file: &FileState) -> Option<(RangeGuard, Rc<DirtyFile>, SentBytes)> {
        let dirty_files = self.mount.dirty_files();
        if file.dom_bytes() == 0 || !dirty_files.has(file.fid) {
            return None;
        }
        let order = file.ranges.acquire(&self.ctx, Extent::ALL, Share::Exclusive).await;
        let dirty = dirty_files.get(file.fid).filter(|_| file.dom_bytes() > 0)?;
        let sent = dirty_files.begin(&dirty, Extent::ALL)?;
        Some((order, dirty, sent))
    }
    /// Stores the bytes, or sends them to the objects if the MDT does not take them.
    pub(crate) async fn store_data(&self, dirty: &DirtyFile, sent: SentBytes) {
        let (open, mtime) = dirty.last_write();
        let (fid, bytes) = (open.file.fid, sent.all_bytes());
        let request = StoreData { fid, handle: open.handle, data: &bytes, mtime };
        let stored =
            async { self.mdt_of(fid).await?.change_inode(Touches::attrs(fid), &request).await.map(drop) };
        match stored.await {
            Ok(()) => self.stored(dirty, &sent),
            Err(failure) => drop(self.not_stored(failure, dirty, sent).await),
        }
    }
    /// The MDT has the bytes.
    pub(crate) fn stored(&self, dirty: &DirtyFile, sent: &SentBytes) {
        self.mount.dirty_files().left(sent.runs().len(), sent.len());
        self.mount.dirty_files().sent(dirty, sent.charged());
    }
    /// The MDT has refused the bytes. Returns whether they are lost; otherwise they are in the objects now.
    pub(crate) async fn not_stored(&self, failure: Failure, dirty: &DirtyFile, sent: SentBytes) -> bool {
        let (open, _) = dirty.last_write();
        let file = &open.file;
        let refused = match failure {
            Failure::Outcome(ProtocolOutcome::InObjects) => {
                file.data_has_moved();
                Ok(())
            }
            // The OSTs have granted room for the bytes.
            Failure::ENOSPC => self.move_data(file).await,
            failure => Err(failure),
        };
        let Err(failure) = refused else {
            self.send_to_objects(dirty, sent).await;
            return false;
        };
        let error = match failure {
            Failure::EBADF | Failure::Outcome(_) => Errno::EIO, // an eviction
            Failure::Errno(errno) => errno,
        };
        tracing::error!(fid = %file.fid, bytes = sent.len(), %error,
            "bytes that a program has written could not be stored at the MDT: they are lost, and fsync or close reports it");
        (0u32..).zip(file.known_states()).for_each(|(stripe, _)| file.note_uncertain(stripe));
        file.write_failed(error.into());
        self.stored(dirty, &sent);
        true
    }
}
