//! The requests of an OST: take the lock, then one transaction, then reply.
//!
//! Invariants: bytes and size of an object change only under a lock that covers them, of the client or of the operation; a
//! destroyed object refuses every later change. mtime never moves back: a late resend cannot make a file look older.

use crate::locks::LockGuard;
use crate::service::Ost;
use crate::service::bulk_sizes::Bulk;
use crate::store::{By, FREE_TIMEOUT, OWN_CREDITS};
use alloc::vec::Vec;
use nacre_dlm::policy::Mode;
use nacre_node::WriteTo;
use nacre_osd::{Pins, Stamp};
use nacre_target::{Reply, Request};
use nacre_types::{Errno, Extent, Failure, LockCookie, ObjectId, Transno};
use nacre_wire::ost::{
    Allocate, Cancel, Destroy, Enqueue, EnqueueReply, FreeSpaceReply, Glimpse, Grant, GrantReply,
    ObjectState, Punch, Read, ReadReply, Reserve, ReserveReply, STREAMS_FROM, Seek, SeekReply, SetOwner,
    SyncObject, Truncate, Write, WriteReply,
};
use nacre_wire::target::Empty;
use nacre_wire::{MAX_BULK_BYTES, Opcode};

/// Objects that one Destroy may name.
const DESTROY_MAX: usize = 4096;
/// Largest offset that a file may have, as `loff_t` has it.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// The range of a request, checked against the limit of `loff_t`. The caller handles empty ranges.
pub(super) fn range(object: ObjectId, offset: u64, len: u64) -> Result<Extent, Errno> {
    check_fid(object)?;
    let end = offset.checked_add(len).filter(|&end| end <= OFFSET_MAX).ok_or(Errno::EFBIG)?;
    Ok(Extent::new(offset, end))
}

/// Refuses objects with a FID that no file can have.
fn check_fid(object: ObjectId) -> Result<(), Errno> {
    if object.fid.is_valid() { Ok(()) } else { Err(Errno::EPROTO) }
}

impl Ost {
    /// Refuses an object that is lost: one that is not here although its stripe was laid out on a target that has been
    /// replaced since, or on a later state than this one. It must not be read as a hole.
    pub(super) async fn check_not_lost(&self, object: ObjectId, laid: u32) -> Result<(), Errno> {
        if laid >= self.core.replaced() || self.store.exists(object).await? {
            return Ok(());
        }
        tracing::debug!(target_name = %self.core.name, %object, laid, "lost object: it was written before the target was replaced");
        Err(Errno::EIO)
    }

    async fn read(&self, request: &Request) -> Result<Reply, Failure> {
        let args: Read = request.args()?;
        if args.len > MAX_BULK_BYTES {
            return Err(Failure::EINVAL);
        }
        let extent = range(args.object, args.offset, u64::from(args.len))?;
        self.check_not_lost(args.object, args.laid).await?;
        if extent.is_empty() {
            let state = self.store.state(args.object).await?;
            return Ok(Reply::of(&ReadReply { state }));
        }
        let _guard = self.locks.lock(request.export, args.lock, args.object, Mode::Pr, extent).await?;
        let (bulk, state) = self.store.read(args.object, args.offset, args.len).await?;
        let bytes = bulk.iter().map(|b| b.len() as u64).sum();
        self.count_bulk(Bulk::Read, bytes);
        Ok(Reply { bulk, ..Reply::of(&ReadReply { state }) })
    }

    /// The lock under which a request changes bytes of an object that exists, or may be created.
    ///
    /// # Errors
    /// Those of [`Self::check_not_lost`] and of the lock; ENOENT if the object was destroyed.
    async fn lock_for_change(
        &self,
        request: &Request,
        cookie: LockCookie,
        object: ObjectId,
        laid: u32,
        extent: Extent,
    ) -> Result<LockGuard, Failure> {
        self.check_not_lost(object, laid).await?;
        let cookie = named_lock(request, cookie);
        let guard = self.locks.lock(request.export, cookie, object, Mode::Pw, extent).await?;
        self.store.tombstones().check_not_destroyed(object)?;
        Ok(guard)
    }

    /// A client in the process of the target waits for each write, so the cache is faster for it; but it keeps those of a
    /// stream. Others keep most, and send several requests at a time.
    fn write_to(&self, request: &Request, offset: u64) -> WriteTo {
        let is_waited_for = self.core.is_local(request.export) && offset < STREAMS_FROM;
        let caches = self.writethrough_cache.get() || is_waited_for;
        if caches { WriteTo::Cache } else { WriteTo::PastCache }
    }

    async fn write(&self, request: &Request) -> Result<Reply, Failure> {
        let args: Write = request.args()?;
        let len = request.bulk.iter().map(|b| b.len() as u64).sum();
        let extent = range(args.object, args.offset, len)?;
        if extent.is_empty() {
            return Err(Failure::EINVAL);
        }
        if let Some(written) = request.replayed_transno().filter(|t| self.core.may_have_lost_bytes(*t)) {
            return Ok(self.restore(request, written).await?);
        }
        let _guard = self.lock_for_change(request, args.lock, args.object, args.laid, extent).await?;
        let stamp = Stamp { owner: args.owner, mtime: args.mtime };
        let data = request.bulk.clone();
        self.uncommitted.wait(request, args.object, extent).await;
        let to = self.write_to(request, args.offset);
        let (transno, state) = self.store.write(request, args.object, stamp, args.offset, data, to).await?;
        self.uncommitted.record(request, args.object, extent, transno);
        self.count_bulk(Bulk::Write, len);
        Ok(Reply::of(&WriteReply { state }).with_transno(transno))
    }

    /// Replay of a write whose rows are in the log although its bytes may be lost. It needs no lock: the client's is gone,
    /// and locks of others do not matter for bytes that rows describe already.
    pub(super) async fn restore(&self, request: &Request, written: Transno) -> Result<Reply, Errno> {
        let args: Write = request.args()?;
        let len = request.bulk.iter().map(|b| b.len() as u64).sum();
        range(args.object, args.offset, len)?;
        self.store.restore(args.object, args.offset, &request.bulk).await?;
        Ok(self.reconstructed_state(args.object).await?.with_transno(written))
    }

    async fn truncate(&self, request: &Request) -> Result<Reply, Failure> {
        let args: Truncate = request.args()?;
        range(args.object, args.size, 0)?;
        let extent = Extent::new(args.size, u64::MAX);
        if let Some(applied) = request.replayed_transno().filter(|t| self.core.may_have_lost_bytes(*t)) {
            self.store.restore_truncate(args.object, args.size).await?;
            return Ok(self.reconstructed_state(args.object).await?.with_transno(applied));
        }
        let _guard = self.lock_for_change(request, args.lock, args.object, args.laid, extent).await?;
        let stamp = Stamp { owner: args.owner, mtime: args.mtime };
        self.uncommitted.wait(request, args.object, extent).await;
        let (transno, state) = self.store.truncate(request, args.object, stamp, args.size).await?;
        self.uncommitted.record(request, args.object, extent, transno);
        Ok(Reply::of(&WriteReply { state }).with_transno(transno))
    }

    async fn allocate(&self, request: &Request) -> Result<Reply, Failure> {
        let args: Allocate = request.args()?;
        let extent = range(args.object, args.offset, args.len)?;
        if extent.is_empty() {
            return Err(Failure::EINVAL);
        }
        let _guard = self.lock_for_change(request, args.lock, args.object, args.laid, extent).await?;
        let stamp = Stamp { owner: args.owner, mtime: args.mtime };
        let range = (extent.start, extent.end);
        let (transno, state) =
            self.store.allocate(request, args.object, stamp, range, args.keep_size).await?;
        Ok(Reply::of(&WriteReply { state }).with_transno(transno))
    }

    async fn punch(&self, request: &Request) -> Result<Reply, Failure> {
        let args: Punch = request.args()?;
        let extent = range(args.object, args.offset, args.len)?;
        if extent.is_empty() {
            return Err(Failure::EINVAL);
        }
        if let Some(applied) = request.replayed_transno().filter(|t| self.core.may_have_lost_bytes(*t)) {
            return Ok(self.restore_punch(request, applied).await?);
        }
        let _guard = self.lock_for_change(request, args.lock, args.object, args.laid, extent).await?;
        let stamp = Stamp { owner: args.owner, mtime: args.mtime };
        self.uncommitted.wait(request, args.object, extent).await;
        let (transno, state) = self.store.punch(request, args.object, stamp, extent, args.frees).await?;
        self.uncommitted.record(request, args.object, extent, transno);
        Ok(Reply::of(&WriteReply { state }).with_transno(transno))
    }
    /// Replay of a punch whose rows are in the log: only zeros that it wrote beside whole blocks may be lost.
    pub(super) async fn restore_punch(&self, request: &Request, applied: Transno) -> Result<Reply, Errno> {
        let args: Punch = request.args()?;
        let extent = range(args.object, args.offset, args.len)?;
        self.store.restore_zeros(args.object, extent).await?;
        Ok(self.reconstructed_state(args.object).await?.with_transno(applied))
    }

    async fn seek(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Seek = request.args()?;
        range(args.object, args.offset, 0)?;
        self.check_not_lost(args.object, args.laid).await?;
        let found = self.store.seek(args.object, args.offset, args.is_data).await?;
        let state = self.store.state(args.object).await?;
        Ok(Reply::of(&SeekReply { found, state }))
    }

    async fn glimpse(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Glimpse = request.args()?;
        check_fid(args.object)?;
        self.check_not_lost(args.object, args.laid).await?;
        Ok(Reply::of(&self.store.state(args.object).await?))
    }

    async fn set_owner(&self, request: &Request) -> Result<Reply, Failure> {
        let args: SetOwner = request.args()?;
        check_fid(args.object)?;
        let transno = self.store.set_owner(request, args.object, args.owner).await?;
        Ok(Reply::of(&Empty {}).with_transno(transno))
    }

    /// One transaction for each object: a file may have thousands of stripes. The last one has the reply record.
    async fn destroy(&self, request: &Request) -> Result<Reply, Failure> {
        let args: Destroy = request.args()?;
        if args.stripes.len() > DESTROY_MAX {
            return Err(Failure::E2BIG);
        }
        let objects: Vec<ObjectId> =
            args.stripes.iter().map(|&stripe| ObjectId { fid: args.fid, stripe }).collect();
        let mut transno = Default::default();
        for (at, &object) in objects.iter().enumerate() {
            check_fid(object)?;
            let _guard = self.locks.lock_for_operation(object, Mode::Pw, Extent::ALL).await?;
            let last = at + 1 == objects.len();
            let by = if last { By::Request(request) } else { By::Target };
            transno = self.store.destroy(by, object).await?;
        }
        Ok(Reply::of(&Empty {}).with_transno(transno))
    }

    async fn sync_object(&self, request: &Request) -> Result<Reply, Errno> {
        let args: SyncObject = request.args()?;
        check_fid(args.object)?;
        self.check_not_lost(args.object, args.laid).await?;
        self.store.sync(args.object).await?;
        Ok(Reply::of(&Empty {}))
    }

    async fn enqueue(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Enqueue = request.args()?;
        check_fid(args.object)?;
        self.check_not_lost(args.object, args.laid).await?;
        let granted = self.locks.enqueue(request.export, &args).await?;
        if !granted {
            return Ok(Reply::of(&EnqueueReply { granted, state: ObjectState::default() }));
        }
        match self.store.state(args.object).await {
            Ok(state) => Ok(Reply::of(&EnqueueReply { granted, state })),
            Err(errno) => {
                self.locks.cancel(request.export, args.cookie).await?;
                Err(errno)
            }
        }
    }

    async fn cancel(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Cancel = request.args()?;
        let written = self.locks.written_under(request.export, args.cookie);
        self.locks.cancel(request.export, args.cookie).await?;
        if let Some(object) = written.filter(|_| self.sync_on_cancel.get()) {
            let store = self.store.clone();
            // The reply does not wait for it.
            self.core.ctx.spawn(async move {
                if let Err(error) = store.sync(object).await {
                    tracing::warn!(%object, %error, "an object could not be synced after the cancel of its lock");
                }
            });
        }
        Ok(Reply::of(&Empty {}))
    }

    /// Replies with the number of objects granted; fewer than requested on a device that fills up, ENOSPC for none.
    async fn reserve(&self, request: &Request) -> Result<Reply, Failure> {
        let args: Reserve = request.args()?;
        let reservation = self.core.osd.reserve(OWN_CREDITS).await?;
        let mut objects = self.store.room().grantable(args.objects).await?;
        if objects == 0 && args.objects > 0 && self.store.room().recall_grants().await {
            objects = self.store.room().grantable(args.objects).await?;
        }
        if objects == 0 && args.objects > 0 {
            self.core.osd.give_back(self.core.ctx.now() + FREE_TIMEOUT).await?;
            objects = self.store.room().grantable(args.objects).await?;
        }
        if objects == 0 && args.objects > 0 {
            return Err(Failure::ENOSPC);
        }
        request.set_record_data(objects);
        let admitted = self.core.admit_change(request)?;
        let (transno, ()) = self.core.transact(admitted, &Pins::default(), reservation, |tx| {
            self.store.room().promise(tx, objects);
            Ok(())
        })?;
        Ok(Reply::of(&ReserveReply { objects }).with_transno(transno))
    }

    async fn grant(&self, request: &Request) -> Result<Reply, Errno> {
        let Grant { bytes } = request.args()?;
        let bytes = self.store.room().grant(request.export, bytes).await?;
        Ok(Reply::of(&GrantReply { bytes }))
    }

    async fn free_space(&self) -> Result<Reply, Errno> {
        let deadline = self.core.ctx.now() + FREE_TIMEOUT;
        let freed = self.store.objects().free_pending(deadline).await?;
        let recalled = self.store.room().recall_notable_grants().await?;
        // Log and tables are asked only when no object has space to give: a caller with a deadline of its own waits.
        let freed = freed || self.core.osd.give_back_if_short(deadline).await?;
        let freed = freed || recalled || self.store.room().has_grown_since_refusal().await?;
        Ok(Reply::of(&FreeSpaceReply { freed }))
    }

    /// A change that is refused for want of room is made once more if there is more of it after a moment. Its lock has been
    /// released then, so that nobody waits for a change that will be refused.
    async fn change_with_room(&self, request: &Request) -> Result<Reply, Failure> {
        let refused = match self.change_bytes(request).await {
            Err(Failure::ENOSPC) => Err(Failure::ENOSPC),
            other => return other,
        };
        let result =
            if self.store.room().grows_soon().await? { self.change_bytes(request).await } else { refused };
        if let Err(Failure::ENOSPC) = result {
            self.store.room().warn_of_refusal(request);
        }
        result
    }
    async fn change_bytes(&self, request: &Request) -> Result<Reply, Failure> {
        match request.opcode {
            Opcode::Allocate => self.allocate(request).await,
            _ => self.write(request).await,
        }
    }

    pub(super) async fn dispatch(&self, request: &Request) -> Result<Reply, Failure> {
        match request.opcode {
            Opcode::Read => self.read(request).await,
            Opcode::Write | Opcode::Allocate => self.change_with_room(request).await,
            Opcode::WriteMany => self.write_many(request).await,
            Opcode::Truncate => self.truncate(request).await,
            Opcode::Punch => self.punch(request).await,
            Opcode::SetOwner => self.set_owner(request).await,
            Opcode::Destroy => self.destroy(request).await,
            Opcode::Reserve => self.reserve(request).await,
            _ => Ok(self.dispatch_other(request).await?),
        }
    }
    /// Requests about which the protocol has no outcome.
    async fn dispatch_other(&self, request: &Request) -> Result<Reply, Errno> {
        match request.opcode {
            Opcode::Seek => self.seek(request).await,
            Opcode::Glimpse => self.glimpse(request).await,
            Opcode::SyncObject => self.sync_object(request).await,
            Opcode::Enqueue => self.enqueue(request).await,
            Opcode::Cancel => self.cancel(request).await,
            Opcode::FreeSpace => self.free_space().await,
            Opcode::Grant => self.grant(request).await,
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    pub(super) fn count_bulk(&self, direction: Bulk, bytes: u64) {
        let name = if direction == Bulk::Read { "read_bytes" } else { "write_bytes" };
        self.core.stats.borrow_mut().count_bytes(name, bytes);
        self.bulk_sizes.borrow_mut().count(direction, bytes);
    }
    pub(super) async fn reconstructed_state(&self, object: ObjectId) -> Result<Reply, Errno> {
        let state = self.store.state(object).await?;
        Ok(Reply::of(&WriteReply { state }))
    }
}

/// The lock that a request names. In a replay the client's lock is gone, and the target takes one of its own.
fn named_lock(request: &Request, lock: LockCookie) -> LockCookie {
    if request.replayed_transno().is_some() { LockCookie(0) } else { lock }
}
