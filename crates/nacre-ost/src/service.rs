//! What a request to an object target means: the lock it needs, then one transaction, then the reply.
//!
//! Invariants: bytes and size of an object change only under a lock that covers them, the client's or one of this
//! operation's; a change, its reply record and its transno are one transaction; a destroyed object refuses every
//! later change. mtime never moves back: a late resend cannot make a file look older.
//! Not here: how bytes lie on the device (`nacre_osd`), who may ask (`nacre_target`).

use crate::bulk_sizes::{Bulk, BulkSizes};
use crate::locks::{Locks, PERSISTENT_LOCKS};
use crate::object::{By, FREED_WITHIN, OWN_CREDITS, Store};
use crate::room::{OBJECT_BYTES, Room};
use crate::tombstone::Tombstones;
use crate::uncommitted::Bytes;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_dlm::policy::Mode;
use nacre_osd::{Objects, ObjectsConfig, OsdError, Pins, STABLE_KEY, Stamp, UNSUMMED_KEY, table};
use nacre_rpc::ReplyRecord;
use nacre_target::{
    ExportId, PersistentLocks, Registration, Reply, Request, Service, StartRow, TargetCore, Uncommitted,
};
use nacre_types::{Codec, Errno, Extent, LockCookie, ObjectId, Transno};
use nacre_wire::ost::{
    Allocate, Cancel, Destroy, Enqueue, EnqueueReply, FreeSpaceReply, Glimpse, ObjectState, Read, ReadReply,
    Reserve, ReserveReply, SetOwner, SyncObject, Truncate, Write, WriteReply,
};
use nacre_wire::settings::{parse_clear, parse_switch};
use nacre_wire::target::{Empty, Param, StatfsReply};
use nacre_wire::{MAX_BULK_BYTES, Opcode};

/// A stop waits for the MGS no longer than this.
const GOODBYE: Duration = Duration::from_secs(1);
/// Objects that one Destroy may name.
const DESTROY_MAX: usize = 4096;
/// Largest offset that a file may have, as `loff_t` has it.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// An object target.
pub struct Ost {
    pub(crate) core: Rc<TargetCore>,
    locks: Rc<Locks>,
    pub(crate) store: Rc<Store>,
    pub(crate) uncommitted: RefCell<Uncommitted<Bytes>>,
    /// What was written under a client's lock goes to the device when the lock is given back.
    sync_on_cancel: Cell<bool>,
    bulk_sizes: RefCell<BulkSizes>,
    registration: Option<Rc<Registration>>,
    statfs: RefCell<StatfsReply>,
}

/// A range that exists for `loff_t`; empty ones are the caller's to handle.
fn range(object: ObjectId, offset: u64, len: u64) -> Result<Extent, Errno> {
    valid(object)?;
    let end = offset.checked_add(len).filter(|&end| end <= OFFSET_MAX).ok_or(Errno::EFBIG)?;
    Ok(Extent::new(offset, end))
}

/// A foreign FID from the wire goes no further than this.
fn valid(object: ObjectId) -> Result<(), Errno> {
    if object.fid.is_valid() { Ok(()) } else { Err(Errno::EPROTO) }
}

impl Ost {
    /// An object whose stripe was laid out on a target that has been replaced since, or on a later state than this one, and
    /// that is not here, is lost: nobody may take it for a hole.
    async fn not_lost(&self, object: ObjectId, laid: u32) -> Result<(), Errno> {
        if laid >= self.core.replaced() || self.store.exists(object).await? {
            return Ok(());
        }
        tracing::debug!(target_name = %self.core.name, %object, laid, "an object of before the target was replaced is lost");
        Err(Errno::EIO)
    }

    async fn read(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Read = request.args()?;
        if args.len > MAX_BULK_BYTES {
            return Err(Errno::EINVAL);
        }
        let extent = range(args.object, args.offset, u64::from(args.len))?;
        self.not_lost(args.object, args.laid).await?;
        if extent.is_empty() {
            let state = self.store.state(args.object).await?;
            return Ok(Reply::of(&ReadReply { state }));
        }
        let _held = self.locks.hold(request.export, args.lock, args.object, Mode::Pr, extent).await?;
        let (bulk, state) = self.store.read(args.object, args.offset, args.len).await?;
        let bytes = bulk.iter().map(|b| b.len() as u64).sum();
        self.count_bulk(Bulk::Read, bytes);
        Ok(Reply { bulk, ..Reply::of(&ReadReply { state }) })
    }

    async fn write(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Write = request.args()?;
        let len = request.bulk.iter().map(|b| b.len() as u64).sum();
        let extent = range(args.object, args.offset, len)?;
        if extent.is_empty() {
            return Err(Errno::EINVAL);
        }
        if let Some(written) = request.replayed_transno().filter(|t| self.core.may_have_lost_bytes(*t)) {
            return self.restore(request, written).await;
        }
        self.not_lost(args.object, args.laid).await?;
        let _held =
            self.locks.hold(request.export, cover(request, args.lock), args.object, Mode::Pw, extent).await?;
        self.store.tombstones.refuse(args.object)?;
        let stamp = Stamp { owner: args.owner, mtime: args.mtime };
        let data = request.bulk.clone();
        self.wait_for_uncommitted(request, args.object, extent).await?;
        let (transno, state) = self.store.write(request, args.object, stamp, args.offset, data).await?;
        self.record_uncommitted(request, args.object, extent, transno).await?;
        self.count_bulk(Bulk::Write, len);
        Ok(Reply::of(&WriteReply { state }).with_transno(transno))
    }

    /// After an unclean start: the rows of this write are there, its bytes perhaps not. No lock is waited for: its client's
    /// is gone, and the locks of others do not matter to bytes that the rows promise already.
    async fn restore(&self, request: &Request, written: Transno) -> Result<Reply, Errno> {
        let args: Write = request.args()?;
        let len = request.bulk.iter().map(|b| b.len() as u64).sum();
        range(args.object, args.offset, len)?;
        self.store.restore(args.object, args.offset, &request.bulk).await?;
        Ok(self.reconstructed_state(args.object).await?.with_transno(written))
    }

    async fn truncate(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Truncate = request.args()?;
        range(args.object, args.size, 0)?;
        let extent = Extent::new(args.size, u64::MAX);
        if let Some(cut) = request.replayed_transno().filter(|t| self.core.may_have_lost_bytes(*t)) {
            self.store.restore_cut(args.object, args.size).await?;
            return Ok(self.reconstructed_state(args.object).await?.with_transno(cut));
        }
        self.not_lost(args.object, args.laid).await?;
        let _held =
            self.locks.hold(request.export, cover(request, args.lock), args.object, Mode::Pw, extent).await?;
        self.store.tombstones.refuse(args.object)?;
        let stamp = Stamp { owner: args.owner, mtime: args.mtime };
        self.wait_for_uncommitted(request, args.object, extent).await?;
        let (transno, state) = self.store.truncate(request, args.object, stamp, args.size).await?;
        self.record_uncommitted(request, args.object, extent, transno).await?;
        Ok(Reply::of(&WriteReply { state }).with_transno(transno))
    }

    async fn allocate(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Allocate = request.args()?;
        let extent = range(args.object, args.offset, args.len)?;
        if extent.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.not_lost(args.object, args.laid).await?;
        let _held =
            self.locks.hold(request.export, cover(request, args.lock), args.object, Mode::Pw, extent).await?;
        self.store.tombstones.refuse(args.object)?;
        let stamp = Stamp { owner: args.owner, mtime: args.mtime };
        self.core.check_deadline(request)?;
        let range = (extent.start, extent.end);
        let (transno, state) =
            self.store.allocate(request, args.object, stamp, range, args.keep_size).await?;
        Ok(Reply::of(&WriteReply { state }).with_transno(transno))
    }

    async fn glimpse(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Glimpse = request.args()?;
        valid(args.object)?;
        self.not_lost(args.object, args.laid).await?;
        Ok(Reply::of(&self.store.state(args.object).await?))
    }

    async fn set_owner(&self, request: &Request) -> Result<Reply, Errno> {
        let args: SetOwner = request.args()?;
        valid(args.object)?;
        let transno = self.store.set_owner(request, args.object, args.owner).await?;
        Ok(Reply::of(&Empty {}).with_transno(transno))
    }

    /// One transaction for each object: a file may have thousands of stripes. The record goes with the last.
    async fn destroy(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Destroy = request.args()?;
        if args.stripes.len() > DESTROY_MAX {
            return Err(Errno::E2BIG);
        }
        let objects: Vec<ObjectId> =
            args.stripes.iter().map(|&stripe| ObjectId { fid: args.fid, stripe }).collect();
        let mut transno = Default::default();
        for (at, &object) in objects.iter().enumerate() {
            valid(object)?;
            let _held = self.locks.hold_own(object, Mode::Pw, Extent::ALL).await?;
            let last = at + 1 == objects.len();
            let by = if last { By::Request(request) } else { By::Target };
            transno = self.store.destroy(by, object).await?;
        }
        Ok(Reply::of(&Empty {}).with_transno(transno))
    }

    async fn sync_object(&self, request: &Request) -> Result<Reply, Errno> {
        let args: SyncObject = request.args()?;
        valid(args.object)?;
        self.not_lost(args.object, args.laid).await?;
        self.store.sync(args.object).await?;
        Ok(Reply::of(&Empty {}))
    }

    async fn enqueue(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Enqueue = request.args()?;
        valid(args.object)?;
        self.not_lost(args.object, args.laid).await?;
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
            // Begun, not waited for.
            self.core.ctx.spawn(async move {
                if let Err(error) = store.sync(object).await {
                    tracing::warn!(%object, %error, "not durable at the end of its lock");
                }
            });
        }
        Ok(Reply::of(&Empty {}))
    }

    /// Answers how many were granted now; fewer than asked on a device that fills up, ENOSPC for none.
    async fn reserve(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Reserve = request.args()?;
        let reservation = self.core.osd.reserve(OWN_CREDITS).await?;
        let objects = self.store.room.grantable(args.objects).await?;
        if objects == 0 && args.objects > 0 {
            return Err(Errno::ENOSPC);
        }
        self.core.set_record_data(request, objects);
        let (transno, ()) = self.core.transact(request, &Pins::default(), reservation, |tx| {
            self.store.room.promise(tx, objects);
            Ok(())
        })?;
        Ok(Reply::of(&ReserveReply { objects }).with_transno(transno))
    }

    async fn free_space(&self) -> Result<Reply, Errno> {
        let until = self.core.ctx.now() + FREED_WITHIN;
        let freed = self.store.objects.free_pending(until).await?;
        Ok(Reply::of(&FreeSpaceReply { freed }))
    }

    async fn dispatch(&self, request: &Request) -> Result<Reply, Errno> {
        match request.opcode {
            Opcode::Read => self.read(request).await,
            Opcode::Write => self.write(request).await,
            Opcode::Truncate => self.truncate(request).await,
            Opcode::Allocate => self.allocate(request).await,
            Opcode::Glimpse => self.glimpse(request).await,
            Opcode::SetOwner => self.set_owner(request).await,
            Opcode::Destroy => self.destroy(request).await,
            Opcode::SyncObject => self.sync_object(request).await,
            Opcode::Enqueue => self.enqueue(request).await,
            Opcode::Cancel => self.cancel(request).await,
            Opcode::Reserve => self.reserve(request).await,
            Opcode::FreeSpace => self.free_space().await,
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// The client's lock, which is gone when a change is made again: the target locks for it then.
fn cover(request: &Request, lock: LockCookie) -> LockCookie {
    if request.replayed_transno().is_some() { LockCookie(0) } else { lock }
}

/// The field's name of an operation in `stats`.
fn counter(opcode: Opcode) -> Option<&'static str> {
    Some(match opcode {
        Opcode::Read => "read",
        Opcode::Write => "write",
        Opcode::Truncate => "punch",
        Opcode::Allocate => "prealloc",
        Opcode::Glimpse => "getattr",
        Opcode::SetOwner => "setattr",
        Opcode::Destroy => "destroy",
        Opcode::SyncObject => "sync",
        Opcode::Reserve => "create",
        Opcode::Statfs => "statfs",
        _ => return None,
    })
}

fn opening(e: &OsdError) -> String {
    format!("the OST's own rows cannot be read: {e}")
}

impl Service for Ost {
    async fn start(core: &Rc<TargetCore>) -> Result<Rc<Self>, String> {
        let tombstones = Tombstones::load(core).await.map_err(|e| opening(&e))?;
        let room = Room::load(core).await.map_err(|e| opening(&e))?;
        let objects = Objects::start(&core.ctx, &core.osd, ObjectsConfig::default());
        let objects = objects.await.map_err(|e| opening(&e))?;
        let store = Store::new(core, objects, room, tombstones);
        let persistent = PersistentLocks::load(core, PERSISTENT_LOCKS, |lock: &Enqueue| lock.cookie)
            .await
            .map_err(|e| opening(&e))?;
        let this = Rc::new(Self {
            core: core.clone(),
            locks: Locks::new(core, &store, persistent),
            store,
            uncommitted: RefCell::default(),
            sync_on_cancel: Cell::new(false),
            bulk_sizes: RefCell::new(BulkSizes::new(core.ctx.wall())),
            registration: Registration::start(core),
            statfs: RefCell::default(),
        });
        this.clone()
            .statfs()
            .await
            .map_err(|e| format!("the store does not say how much space it has: {e}"))?;
        Ok(this)
    }

    /// After an unclean stop, bytes that were not stable then may not match the checksums in their rows.
    async fn start_rows(core: &Rc<TargetCore>) -> Result<Vec<StartRow>, Errno> {
        if core.osd.was_clean() || core.osd.get(table::TARGET, UNSUMMED_KEY).await?.is_some() {
            return Ok(Vec::new()); // all are stable, or an earlier start has written the row
        }
        let stable = core.osd.get(table::TARGET, STABLE_KEY).await?;
        let stable = stable.map_or_else(|| Transno(0).to_vec(), |row| row[..].to_vec());
        Ok(alloc::vec![(UNSUMMED_KEY, stable)])
    }

    async fn handle(self: Rc<Self>, request: Rc<Request>) -> Result<Reply, Errno> {
        self.dispatch(&request).await
    }
    fn count_operations(&self, request: &Request, count: &mut dyn FnMut(&'static str)) {
        counter(request.opcode).into_iter().for_each(count);
    }

    async fn reconstruct(self: Rc<Self>, request: Rc<Request>, record: ReplyRecord) -> Result<Reply, Errno> {
        let reply = match request.opcode {
            Opcode::Write if self.core.may_have_lost_bytes(record.transno) => {
                return self.restore(&request, record.transno).await;
            }
            Opcode::Write => self.reconstructed_state(request.args::<Write>()?.object).await?,
            Opcode::Truncate => self.reconstructed_state(request.args::<Truncate>()?.object).await?,
            Opcode::Allocate => self.reconstructed_state(request.args::<Allocate>()?.object).await?,
            Opcode::Reserve => Reply::of(&ReserveReply { objects: record.data }),
            _ => Reply::of(&Empty {}),
        };
        Ok(reply.with_transno(record.transno))
    }

    async fn export_gone(self: Rc<Self>, export: ExportId) -> Result<(), Errno> {
        self.locks.drop_owner(export).await;
        Ok(())
    }

    fn recovered(self: Rc<Self>) {
        self.locks.restore_persistent();
        self.store.objects.sum_lost();
    }

    async fn statfs(self: Rc<Self>) -> Result<StatfsReply, Errno> {
        let space = self.store.room.space().await?;
        let reply = StatfsReply {
            bytes_total: space.bytes_total,
            bytes_free: space.bytes_free,
            bytes_avail: space.bytes_avail.saturating_sub(self.store.room.kept_bytes()),
            files_used: self.store.room.count().existing,
            files_free: files_free(&space, self.core.osd.usage_total()),
            device: space.device,
        };
        *self.statfs.borrow_mut() = reply;
        Ok(reply)
    }

    async fn sync(self: Rc<Self>) -> Result<(), Errno> {
        Ok(self.store.objects.sync_all().await?)
    }

    fn params(&self) -> Vec<Param> {
        let now = self.core.ctx.wall();
        let s = *self.statfs.borrow();
        let (locks, waiting) = self.locks.counts();
        let stats = self.core.stats.borrow().render(now);
        let kb = |bytes: u64| (bytes / 1024).to_string();
        let row = |name: &str, value: String, writable: bool, help: &str| Param {
            name: format!("obdfilter.{}.{name}", self.core.name),
            value,
            writable,
            help: help.into(),
        };
        let mut rows = alloc::vec![
            row("stats", stats, true, "operations since the start; writing 0 clears them"),
            row(
                "brw_stats",
                self.bulk_sizes.borrow().render(now),
                true,
                "sizes of bulk transfers; writing 0 clears them"
            ),
            row("kbytestotal", kb(s.bytes_total), false, "size of the store, KiB"),
            row("kbytesfree", kb(s.bytes_free), false, "free on the device, KiB"),
            row("kbytesavail", kb(s.bytes_avail), false, "free for objects, KiB, at the last statfs"),
            row(
                "filestotal",
                (s.files_used + s.files_free).to_string(),
                false,
                "objects in use and estimated room"
            ),
            row("filesfree", s.files_free.to_string(), false, "estimated room for objects"),
            row(
                "promised_objects",
                self.store.room.count().promised.to_string(),
                false,
                "objects promised to MDTs, not yet written"
            ),
            row(
                "tombstones",
                self.store.tombstones.count().to_string(),
                false,
                "destroyed objects that refuse late writes"
            ),
            row(
                "sync_on_cancel",
                u8::from(self.sync_on_cancel.get()).to_string(),
                true,
                "1: when a client gives a lock for writing back, what it wrote goes to the device; nobody waits for it. 0: \
                 default"
            ),
            row("lock_count", locks.to_string(), false, "extent locks held or awaited"),
            row("lock_waiting", waiting.to_string(), false, "extent locks awaited"),
        ];
        if let Some(reply) = self.registration.as_ref().and_then(|r| r.reply()) {
            let version = reply.config_version.to_string();
            rows.push(row("config_version", version, false, "version of the target list at registration"));
        }
        rows
    }

    fn set_param(&self, name: &str, value: &str) -> Result<(), String> {
        let field = name.rsplit('.').next().unwrap_or(name);
        match (field, value.trim()) {
            ("stats" | "brw_stats", _) => {
                parse_clear(name, value)?;
                *self.bulk_sizes.borrow_mut() = BulkSizes::new(self.core.ctx.wall());
                self.core.clear_stats();
                Ok(())
            }
            ("sync_on_cancel", value) => {
                self.sync_on_cancel.set(parse_switch(name, value)?);
                Ok(())
            }
            _ => Err(format!("{name} cannot be set")),
        }
    }

    async fn stop(self: Rc<Self>) {
        if let Some(registration) = &self.registration {
            let deadline = self.core.ctx.now() + GOODBYE;
            if self.core.ctx.timeout(deadline, registration.mgs().disconnect()).await.is_none() {
                tracing::info!(target_name = %self.core.name, "stopping without a goodbye to the MGS");
            }
        }
        self.store.objects.stop().await;
    }
}

impl Ost {
    fn count_bulk(&self, direction: Bulk, bytes: u64) {
        let name = if direction == Bulk::Read { "read_bytes" } else { "write_bytes" };
        self.core.stats.borrow_mut().count_bytes(name, bytes);
        self.bulk_sizes.borrow_mut().count(direction, bytes);
    }
    async fn reconstructed_state(&self, object: ObjectId) -> Result<Reply, Errno> {
        let state = self.store.state(object).await?;
        Ok(Reply::of(&WriteReply { state }))
    }
}

/// How many more objects fit: the device's own number where it has one, else by the average object so far.
/// The average is of this target's own objects: others may use the device too.
fn files_free(space: &nacre_node::StoreSpace, usage: nacre_osd::Usage) -> u64 {
    let average = usage.bytes.checked_div(usage.objects).unwrap_or(0).max(OBJECT_BYTES);
    space.files_free.map_or(space.bytes_avail / average, |files| files.min(space.bytes_avail / OBJECT_BYTES))
}
