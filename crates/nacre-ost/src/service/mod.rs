//! An object target as a service.
//!
//! - `requests.rs`: the requests; `write_many.rs`: one that has many writes; `params.rs`: parameters; `bulk_sizes.rs`: sizes of bulk transfers.
//!
//! Invariant: a change, its reply record and its transno are one transaction.
//! Not here: the layout of bytes on the device (`nacre_osd`), admission of clients and requests (`nacre_target`).

mod bulk_sizes;
mod params;
mod requests;
mod write_many;

use crate::kept_writes;
use crate::locks::{Locks, PERSISTENT_LOCKS};
use crate::room::{OBJECT_BYTES, Room};
use crate::store::Store;
use crate::tombstone::Tombstones;
use crate::uncommitted::UncommittedBytes;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use bulk_sizes::BulkSizes;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::StoreSpace;
use nacre_osd::{Objects, ObjectsConfig, OsdError, STABLE_KEY, UNVERIFIED_KEY, table};
use nacre_rpc::ReplyRecord;
use nacre_target::{ExportId, PersistentLocks, Registration, Reply, Request, Service, StartRow, TargetCore};
use nacre_types::{Codec, Errno, Failure, Transno};
use nacre_wire::Opcode;
use nacre_wire::ost::{Allocate, Enqueue, Punch, ReserveReply, Truncate, Write};
use nacre_wire::params::{BoundParam, OstParam};
use nacre_wire::target::{Empty, StatfsReply};

/// A stop waits for the MGS no longer than this.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The size of a new object is estimated with at most so much.
const AVERAGE_BYTES_MAX: u64 = 64 << 10;

/// An object target.
pub struct Ost {
    core: Rc<TargetCore>,
    locks: Rc<Locks>,
    store: Rc<Store>,
    uncommitted: UncommittedBytes,
    /// An object is synced when a client cancels a lock under which it may have written.
    sync_on_cancel: Cell<bool>,
    /// Written bytes of all clients go to the cache of the store.
    writethrough_cache: Cell<bool>,
    scrub_rate_mb: Cell<u64>,
    bulk_sizes: RefCell<BulkSizes>,
    registration: Option<Rc<Registration>>,
    statfs: RefCell<StatfsReply>,
}
fn opening(e: &OsdError) -> String {
    format!("the OST's own rows cannot be read: {e}")
}

impl Ost {
    /// The number of new objects that still fit: the device's own number if it has one, otherwise an estimate from the average
    /// size of this target's objects (others may use the device too).
    fn files_free(&self, space: &StoreSpace) -> u64 {
        let usage = self.core.osd.usage_total();
        let average = usage.bytes.checked_div(usage.objects).unwrap_or(0);
        // A few large objects are no reason to take no small ones.
        let average = average.clamp(OBJECT_BYTES, AVERAGE_BYTES_MAX);
        match self.store.room().files_unpromised(space) {
            Some(files) => files.min(space.bytes_avail / OBJECT_BYTES),
            None => space.bytes_avail / average,
        }
    }
}

impl Service for Ost {
    async fn start(core: &Rc<TargetCore>) -> Result<Rc<Self>, String> {
        let tombstones = Tombstones::load(core).await.map_err(|e| opening(&e))?;
        let room = Room::load(core).await.map_err(|e| opening(&e))?;
        let objects = Objects::start(&core.ctx, &core.osd, ObjectsConfig::default());
        let objects = objects.await.map_err(|e| opening(&e))?;
        let store = Store::new(core, objects, room, tombstones);
        kept_writes::execute(core, &store)
            .await
            .map_err(|e| format!("the writes of a killed process cannot be executed: {e}"))?;
        let persistent = PersistentLocks::load(core, PERSISTENT_LOCKS, |lock: &Enqueue| lock.cookie)
            .await
            .map_err(|e| opening(&e))?;
        let this = Rc::new(Self {
            core: core.clone(),
            locks: Locks::new(core, &store, persistent),
            uncommitted: UncommittedBytes::new(core, &store),
            store,
            sync_on_cancel: Cell::new(OstParam::SyncOnCancel.row().default_switch()),
            writethrough_cache: Cell::new(OstParam::WritethroughCacheEnable.row().default_switch()),
            scrub_rate_mb: Cell::default(),
            bulk_sizes: RefCell::new(BulkSizes::new(core.ctx.wall())),
            registration: Registration::start(core),
            statfs: RefCell::default(),
        });
        this.set_scrub_rate_mb(OstParam::ScrubRateMb.row().default_u32().into());
        this.clone()
            .statfs()
            .await
            .map_err(|e| format!("the store does not say how much space it has: {e}"))?;
        Ok(this)
    }

    /// After an unclean stop, bytes that were not stable then may not match the checksums in their rows.
    async fn start_rows(core: &Rc<TargetCore>) -> Result<Vec<StartRow>, Errno> {
        if core.osd.was_clean() || core.osd.get(table::TARGET, UNVERIFIED_KEY).await?.is_some() {
            return Ok(Vec::new()); // all are stable, or an earlier start has written the row
        }
        let stable = core.osd.get(table::TARGET, STABLE_KEY).await?;
        let stable = stable.map_or_else(|| Transno(0).to_vec(), |row| row[..].to_vec());
        Ok(alloc::vec![(UNVERIFIED_KEY, stable)])
    }

    async fn handle(self: Rc<Self>, request: Rc<Request>) -> Result<Reply, Failure> {
        self.dispatch(&request).await
    }
    fn counter(opcode: Opcode) -> Option<&'static str> {
        Some(match opcode {
            Opcode::Read => "read",
            Opcode::Write | Opcode::WriteMany => "write",
            // The field counts truncates so, too: to an OST they are holes up to the end.
            Opcode::Truncate | Opcode::Punch => "punch",
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

    async fn reconstruct(self: Rc<Self>, request: Rc<Request>, record: ReplyRecord) -> Result<Reply, Errno> {
        let reply = match request.opcode {
            Opcode::Write if self.core.may_have_lost_bytes(record.transno) => {
                return self.restore(&request, record.transno).await;
            }
            Opcode::WriteMany => {
                return self.reconstruct_many(&request, &record.results, record.transno).await;
            }
            Opcode::Punch if self.core.may_have_lost_bytes(record.transno) => {
                return self.restore_punch(&request, record.transno).await;
            }
            Opcode::Punch => self.reconstructed_state(request.args::<Punch>()?.object).await?,
            Opcode::Write => self.reconstructed_state(request.args::<Write>()?.object).await?,
            Opcode::Truncate => self.reconstructed_state(request.args::<Truncate>()?.object).await?,
            Opcode::Allocate => self.reconstructed_state(request.args::<Allocate>()?.object).await?,
            Opcode::Reserve => Reply::of(&ReserveReply { objects: record.data }),
            _ => Reply::of(&Empty {}),
        };
        Ok(reply.with_transno(record.transno))
    }

    async fn export_gone(self: Rc<Self>, export: ExportId) -> Result<(), Errno> {
        self.store.room().end_grant(export);
        self.locks.remove_client(export).await;
        Ok(())
    }

    fn recovered(self: Rc<Self>) {
        self.locks.restore_persistent();
        self.store.objects().start_rechecksum();
    }

    async fn statfs(self: Rc<Self>) -> Result<StatfsReply, Errno> {
        let space = self.store.room().space().await?;
        let reply = StatfsReply {
            bytes_total: space.bytes_total,
            bytes_free: space.bytes_free,
            bytes_avail: space.bytes_avail.saturating_sub(self.store.room().reserved_bytes()),
            files_used: self.store.room().count().existing,
            files_free: self.files_free(&space),
            device: space.device,
        };
        *self.statfs.borrow_mut() = reply;
        Ok(reply)
    }

    async fn sync(self: Rc<Self>) -> Result<(), Errno> {
        Ok(self.store.objects().sync_all().await?)
    }

    fn params(&self) -> Vec<BoundParam<'_>> {
        self.list_params()
    }

    async fn stop(self: Rc<Self>) {
        if let Some(registration) = &self.registration {
            let deadline = self.core.ctx.now() + DISCONNECT_TIMEOUT;
            if self.core.ctx.timeout(deadline, registration.mgs().disconnect()).await.is_none() {
                tracing::info!(target_name = %self.core.name, "stopping: the MGS did not reply to the disconnect");
            }
        }
        self.store.objects().stop().await;
    }
}
