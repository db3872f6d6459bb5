//! The way of a file's bytes from this target to its objects.
//!
//! Rules: (1) One task at a time moves the bytes of a file, so no earlier copy of them arrives after later writes of clients.
//! (2) The inode says that there may be objects, durably, before the first of them is written: a removal destroys them.
//! (3) The objects are durable before the row of the bytes goes: it may have been synced. (4) If the file was changed
//! meanwhile, the bytes are written again. (5) An object that an earlier attempt may have written is cut to the size of the
//! file first: the file may have become shorter since.

use crate::mdt::Mdt;
use crate::ops::data::move_to_objects;
use crate::ops::{Operation as _, WriteBound};
use crate::osts::data_moves::DataMove;
use crate::rows::read_set::ReadSet;
use crate::rows::table::DATA;
use crate::service::bounds::credits_of;
use alloc::rc::Rc;
use alloc::vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_node::RpcError;
use nacre_target::{Reply, Request};
use nacre_types::{
    Component, Errno, Failure, Fid, LockCookie, ObjectId, Owner, ProtocolOutcome, Timestamp, Transno,
};
use nacre_wire::mdt::{MoveData, StoreData};
use nacre_wire::ost::{SyncObject, Truncate, Write};
use tracing::debug;

/// A request waits for a move that began no longer ago.
const SLOT_TIMEOUT: Duration = Duration::from_secs(1);
/// Times that the bytes of a file are written because it was changed meanwhile. Then other requests of its client come first.
const ROUNDS_MAX: usize = 8;

/// The bytes of a file as they were at a version.
struct Found {
    version: Transno,
    data: Bytes,
    /// An earlier attempt may have written the object.
    may_have_object: bool,
    component: Component,
    owner: Owner,
    mtime: Timestamp,
}

impl Mdt {
    /// Moves the bytes of a file to its objects, if this target has any. The request waits for a moment only: it keeps a slot of
    /// its client, and the OST may be silent for long.
    pub(crate) async fn move_data(
        self: &Rc<Self>,
        request: &Request,
        args: &MoveData,
    ) -> Result<Reply, Failure> {
        args.count(request);
        loop {
            if let Some(under_way) = self.data_moves().of(args.fid) {
                let at = under_way.began() + SLOT_TIMEOUT;
                let ended = self.core().ctx.timeout(at, under_way.ended()).await;
                ended.unwrap_or(Err(ProtocolOutcome::TryLater.into()))?;
            }
            let done = self.operation(request, args).await;
            if done.is_ok() {
                self.data_moves().committed(args.fid).await;
            }
            if !matches!(done, Err(Failure::EAGAIN)) {
                return done;
            }
            if self.data_moves().of(args.fid).is_none() {
                let new = self.data_moves().begin(args.fid).ok_or(ProtocolOutcome::TryLater)?;
                self.core().ctx.spawn(self.clone().carry_out(args.fid, new));
            }
        }
    }
    /// Stores the bytes of a file that does not have to move first.
    pub(crate) async fn store_data(&self, request: &Request) -> Result<Reply, Failure> {
        let fid = request.args::<StoreData<'_>>()?.fid;
        self.data_moves().give_way(fid).await;
        let done = self.dispatch_operation(request).await;
        if matches!(done, Err(Failure::Outcome(ProtocolOutcome::InObjects))) {
            self.data_moves().committed(fid).await;
        }
        done
    }
    async fn carry_out(self: Rc<Self>, fid: Fid, this: Rc<DataMove>) {
        let result = self.try_move(fid, &this).await;
        self.data_moves().end(&this, result);
    }
    /// The end of the bytes here is committed before anybody hears of it: who writes to the objects then does not repeat it.
    async fn try_move(&self, fid: Fid, this: &DataMove) -> Result<(), Failure> {
        for _ in 0..ROUNDS_MAX {
            let version = self.write_objects(fid).await?;
            let credits = credits_of(WriteBound::inodes(1).freeing());
            let moved = self
                .execute_local(ReadSet::of_inode(fid), credits, |view| {
                    move_to_objects(view, fid, Some(version)).map(drop)
                })
                .await;
            match moved {
                Ok((transno, ())) => {
                    return Ok(self.core().osd.commit(transno).await.map_err(Errno::from)?);
                }
                Err(Errno::EAGAIN) => self.data_moves().begins_again(this), // it was changed meanwhile
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(ProtocolOutcome::TryLater.into())
    }

    /// Writes the bytes to the objects; returns the version of the file that they have then.
    async fn write_objects(&self, fid: Fid) -> Result<Transno, Failure> {
        let mut read_set = ReadSet::of_inode(fid);
        read_set.key(DATA, &fid.key());
        let credits = credits_of(WriteBound::inodes(1).freeing());
        let (marked, found) = self
            .execute_local(read_set, credits, |view| {
                let mut inode = view.file(fid)?;
                if inode.dom_bytes() == 0 {
                    return Ok(None); // clients may have written the object
                }
                let data = view.bytes(DATA, &fid.key())?.map(Bytes::copy_from_slice).unwrap_or_default();
                let component = inode.layout.as_ref().and_then(|layout| layout.components.first());
                let component = component.cloned().ok_or(Errno::EIO)?;
                // Not the modification time: that may be one that was set, and the object keeps the latest.
                let (owner, mtime) = (inode.owner(), inode.mtime_order);
                let version = Transno(inode.attr.version);
                let may_have_object = inode.may_have_objects;
                if !may_have_object {
                    inode.may_have_objects = true;
                    // No client sees the mark. A change of an inode without names would revoke the locks of the sender, too, and
                    // it cannot return them before this move has ended.
                    view.put_unnoticed(&inode);
                }
                Ok(Some(Found { version, data, may_have_object, component, owner, mtime }))
            })
            .await?;
        let Some(found) = found else { return Ok(Transno::default()) };
        if !found.data.is_empty() || found.may_have_object {
            self.core().osd.commit(marked).await.map_err(Errno::from)?;
            let written = self.write_first_object(fid, &found).await;
            written.map_err(|error| match error {
                RpcError::Failed(Failure::Errno(errno)) => Failure::Errno(errno),
                // An outcome is between this target and the OST.
                error => {
                    debug!(target_name = %self.core().name, %fid, %error, "bytes cannot move to their object yet");
                    ProtocolOutcome::TryLater.into()
                }
            })?;
        }
        Ok(found.version)
    }

    /// All bytes lie in the first chunk.
    async fn write_first_object(&self, fid: Fid, found: &Found) -> Result<(), RpcError> {
        let Found { component, owner, mtime, data, may_have_object, .. } = found;
        let (object, laid) = (ObjectId { fid, stripe: 0 }, component.laid(0));
        let ost = component.stripes.first().and_then(|ost| self.osts().connected(*ost));
        let Some(peer) = ost else { return Err(RpcError::Failed(ProtocolOutcome::TryLater.into())) };
        let (offset, owner, mtime, lock) = (0, *owner, *mtime, LockCookie(0));
        if *may_have_object {
            let size = data.len() as u64;
            peer.call(&Truncate { object, laid, size, owner, mtime, lock }).await?;
        }
        if !data.is_empty() {
            let write = Write { object, laid, offset, owner, mtime, lock };
            peer.request(&write).bulk(vec![data.clone()]).send().await?;
        }
        peer.call(&SyncObject { object, laid }).await.map(drop)
    }
}
