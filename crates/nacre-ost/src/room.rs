//! Room for objects that do not exist yet: promised to an MDT, so that a create which succeeded does not fail later for
//! want of an object.
//!
//! One row counts the objects that exist, and those that are promised and do not exist yet. A grant raises the second
//! number; the first write of an object (or the destroy of one that was never written) lowers it. Existing objects do
//! not grow into the promised room. The bytes per object are an estimate: on a device that others fill too, a write may
//! fail with ENOSPC in spite of a promise.
//!
//! Beside it, room is granted to clients for bytes that they have in their memory: a kept write never meets ENOSPC later. A
//! grant lives in memory as long as its export; after a restart clients ask again. What clients do not use of it is asked back when
//! room is short (`recall.rs`). OSTs of one process on one device count their grants, and what they take of the free space
//! that the device has reported, together.
//!
//! Invariants: the row changes in the transaction of the object; memory equals the row after each of these. Promises
//! that a dead MDT never used cannot be distinguished from used ones, and each kill of an MDT leaves some. They are therefore
//! kept up to [`PROMISED_PART`] of the store and [`PROMISED_MAX`] objects, so that they never hide much free space, and forgotten
//! beyond that; as long as there is other space, more is granted.

use crate::recall::Recalls;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::{Cell, OnceCell, RefCell};
use core::time::Duration;
use nacre_node::StoreSpace;
use nacre_osd::{OsdError, Table, Tx, table};
use nacre_target::{DeviceShare, ExportId, Request, TargetCore};
use nacre_types::{Codec, Errno, Instant, codec_struct};

pub(crate) const TABLE: Table = Table(table::OST_FIRST + 1);
/// The one row.
pub(crate) const KEY: &[u8] = b"objects";
/// Space that the first write of an object needs: a block, and its rows.
pub(crate) const OBJECT_BYTES: u64 = 8192;
/// At most one such part of the store, and of its free space, is promised.
const PROMISED_PART: u64 = 16;
/// At most so many objects are promised: twice what an MDT reserves.
const PROMISED_MAX: u64 = 16_384;
/// One grant is at most such a part of the free space, so that several clients can have one.
const GRANTED_PART: u64 = 4;
/// How long the numbers of the device are used again.
const SPACE_VALID: Duration = Duration::from_secs(1);
/// How often, and at what interval, the device is asked before a change is refused for good.
const LOOKS: u32 = 4;
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long changes are refused at once after looks that found nothing, unless objects give space back meanwhile.
const IN_VAIN: Duration = Duration::from_secs(1);
/// They are used again only with so much free space beyond the promise.
const PLENTY_BYTES: u64 = 1 << 30;
/// Least interval of warnings about refused changes.
const WARN_INTERVAL: Duration = Duration::from_secs(60);
/// Grants distort a statfs if they are more than one such part of the free space.
const NOTABLE_PART: u64 = 16;

codec_struct! {
    /// Value of the row.
    #[derive(Copy, Default)]
    pub struct ObjectCount { pub existing: u64, pub promised: u64 }
}

/// The room of one OST.
pub(crate) struct Room {
    core: Rc<TargetCore>,
    count: Cell<ObjectCount>,
    space: Cell<StoreSpace>,
    /// Counts grants and bytes written of all OSTs on the device. Known with the first numbers of the device, which the start reads.
    share: OnceCell<DeviceShare>,
    /// Bytes written to the device when `space` was read.
    taken_then: Cell<u64>,
    /// When `space` was read.
    read_at: Cell<Option<Instant>>,
    grants: RefCell<BTreeMap<ExportId, u64>>,
    granted: Cell<u64>,
    recalls: Recalls,
    /// Unreserved room when the latest write was refused.
    free_when_refused: Cell<Option<u64>>,
    /// When room was last waited for without finding any.
    looked_in_vain: Cell<Option<Instant>>,
    /// When a refused change was last logged.
    warned: Cell<Option<Instant>>,
}

impl Room {
    pub(crate) async fn load(core: &Rc<TargetCore>) -> Result<Rc<Self>, OsdError> {
        let row = core.osd.get(TABLE, KEY).await?;
        let mut count = match row {
            None => ObjectCount::default(),
            Some(bytes) => ObjectCount::from_slice(&bytes)
                .map_err(|_| OsdError::Corrupt { what: "the row that counts the objects".into() })?,
        };
        count.promised = count.promised.min(PROMISED_MAX);
        Ok(Rc::new(Self {
            core: core.clone(),
            count: Cell::new(count),
            space: Cell::default(),
            share: OnceCell::new(),
            taken_then: Cell::new(0),
            read_at: Cell::new(None),
            grants: RefCell::default(),
            granted: Cell::new(0),
            recalls: Recalls::new(&core.ctx),
            free_when_refused: Cell::new(None),
            looked_in_vain: Cell::new(None),
            warned: Cell::new(None),
        }))
    }

    /// Objects that exist, and objects that were promised.
    pub(crate) fn count(&self) -> ObjectCount {
        self.count.get()
    }

    /// The present numbers of the device.
    pub(crate) async fn space(&self) -> Result<StoreSpace, OsdError> {
        let taken = self.share.get().map(DeviceShare::taken_by_all);
        let space = self.core.osd.space().await?;
        self.space.set(space);
        self.taken_then.set(taken.unwrap_or_else(|| self.share().taken_by_all()));
        self.read_at.set(Some(self.core.ctx.now()));
        Ok(space)
    }

    fn share(&self) -> &DeviceShare {
        self.share.get_or_init(|| self.core.share_device(self.space.get().device))
    }

    /// How many of `wanted` objects can be promised now.
    pub(crate) async fn grantable(&self, wanted: u64) -> Result<u64, Errno> {
        let space = self.space().await?;
        let unpromised = space.bytes_avail.saturating_sub(self.reserved_bytes());
        let by_space = unpromised / PROMISED_PART / OBJECT_BYTES;
        let by_files = self.files_unpromised(&space).map_or(u64::MAX, |files| files / PROMISED_PART);
        Ok(wanted.min(by_space).min(by_files))
    }

    /// Reserves room for `bytes` more in existing objects.
    ///
    /// # Errors
    /// ENOSPC if only promised room is left.
    pub(crate) async fn grow(&self, bytes: u64) -> Result<(), Errno> {
        if !self.surely_fits(bytes) {
            let space = self.space().await?;
            if space.bytes_avail < bytes.saturating_add(self.reserved_bytes()) {
                self.free_when_refused.set(Some(self.unreserved(&space)));
                return Err(Errno::ENOSPC);
            }
        }
        self.share().take(bytes);
        Ok(())
    }

    /// Whether writes to blocks that an object has need no room.
    pub(crate) fn overwrites_in_place(&self) -> bool {
        self.space.get().overwrites_in_place
    }

    /// Whether there is more room than when the latest write was refused. Then repeating it makes sense, even if there is nothing
    /// left to free: it may have been freed just after the refusal.
    pub(crate) async fn has_grown_since_refusal(&self) -> Result<bool, OsdError> {
        let Some(then) = self.free_when_refused.get() else { return Ok(false) };
        let space = self.space().await?;
        Ok(self.unreserved(&space) > then)
    }
    /// Waits a moment for space that the file system below frees with delay, as XFS and ext4 do after a removal. Call without
    /// a lock, when every other way to get room was tried. False: there is no more than when the latest change was refused.
    pub(crate) async fn grows_soon(&self) -> Result<bool, OsdError> {
        let Some(then) = self.free_when_refused.get() else { return Ok(false) };
        let now = self.core.ctx.now();
        if self.looked_in_vain.get().is_some_and(|at| now - at < IN_VAIN) {
            return Ok(false);
        }
        for _ in 0..LOOKS {
            self.core.ctx.sleep(LOOK_INTERVAL).await;
            if self.unreserved(&self.space().await?) > then {
                return Ok(true);
            }
        }
        self.looked_in_vain.set(Some(self.core.ctx.now()));
        Ok(false)
    }
    /// A change is refused for good with ENOSPC: logs why, at most once in [`WARN_INTERVAL`].
    pub(crate) fn warn_of_refusal(&self, refused: &Request) {
        let now = self.core.ctx.now();
        if self.warned.get().is_some_and(|at| now - at < WARN_INTERVAL) {
            return;
        }
        self.warned.set(Some(now));
        let space = self.space.get();
        tracing::warn!(
            target_name = %self.core.name,
            opcode = ?refused.opcode,
            free_bytes = space.bytes_avail,
            granted_bytes = self.share().granted_by_all(),
            promised_bytes = self.promised_bytes(),
            "no space left for a change of an object: remove files or add an OST",
        );
    }
    /// An object gives space back, which the file system below may free later.
    pub(crate) fn gives_back(&self) {
        self.looked_in_vain.set(None);
    }
    fn unreserved(&self, space: &StoreSpace) -> u64 {
        space.bytes_avail.saturating_sub(self.reserved_bytes())
    }

    /// The room that is kept for promised objects; it is not reported as free.
    pub(crate) fn promised_bytes(&self) -> u64 {
        self.count
            .get()
            .promised
            .saturating_mul(OBJECT_BYTES)
            .min(self.space.get().bytes_total / PROMISED_PART)
    }

    /// The inodes that are not kept for promised objects. `None`: the device makes them as it needs them.
    pub(crate) fn files_unpromised(&self, space: &StoreSpace) -> Option<u64> {
        let count = self.count.get();
        let files = space.files_free?;
        let kept = count.promised.min(count.existing.saturating_add(files) / PROMISED_PART);
        Some(files.saturating_sub(kept))
    }

    /// The room that nobody else may use: that of promised objects, and that of grants, also of other OSTs on the device.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.promised_bytes().saturating_add(self.share().granted_by_all())
    }

    // ---- grants

    /// The room that is granted to clients.
    pub(crate) fn granted_bytes(&self) -> u64 {
        self.granted.get()
    }
    /// Grants a client up to `wanted` bytes in all; returns what it has from now on.
    pub(crate) async fn grant(&self, export: ExportId, wanted: u64) -> Result<u64, Errno> {
        let space = self.space().await?;
        let has = self.grants.borrow().get(&export).copied().unwrap_or(0);
        let free = space.bytes_avail.saturating_sub(self.reserved_bytes());
        let has_then = wanted.min(has.saturating_add(free / GRANTED_PART));
        self.set_grant(export, has_then);
        // One for more has crossed the recall on its way.
        if wanted <= has {
            self.recalls.ended(export);
        }
        Ok(has_then)
    }
    /// A write uses part of the grant of its client. False: the grant is smaller, and stays as it is.
    pub(crate) fn use_grant(&self, export: ExportId, bytes: u64) -> bool {
        let has = self.grants.borrow().get(&export).copied().unwrap_or(0);
        let Some(left) = has.checked_sub(bytes) else { return false };
        self.set_grant(export, left);
        self.share().take(bytes);
        true
    }
    /// A write under the grant of its client has failed: the client does not count it either.
    pub(crate) fn give_back(&self, export: ExportId, bytes: u64) {
        let has = self.grants.borrow().get(&export).copied();
        // Unless the client is gone: nobody would end that grant.
        if let Some(has) = has {
            self.set_grant(export, has.saturating_add(bytes));
        }
    }
    /// The client is gone.
    pub(crate) fn end_grant(&self, export: ExportId) {
        self.set_grant(export, 0);
        self.grants.borrow_mut().remove(&export);
        self.recalls.ended(export);
    }
    /// Asks clients for what they do not need of their grants, and waits for the answers. True: they gave something back.
    pub(crate) async fn recall_grants(&self) -> bool {
        let before = self.granted_bytes();
        let clients =
            self.grants.borrow().iter().filter(|(_, bytes)| **bytes > 0).map(|(export, _)| *export).collect();
        self.recalls.ask(&self.core, clients).await;
        self.granted_bytes() < before
    }
    /// The same if grants are a notable part of the free space; otherwise nothing is done.
    pub(crate) async fn recall_notable_grants(&self) -> Result<bool, OsdError> {
        let free = self.space().await?.bytes_avail.saturating_sub(self.promised_bytes());
        let is_notable = self.granted_bytes() > free / NOTABLE_PART;
        Ok(is_notable && self.recall_grants().await)
    }
    fn set_grant(&self, export: ExportId, bytes: u64) {
        let old = self.grants.borrow_mut().insert(export, bytes);
        self.granted.set(self.granted.get() - old.unwrap_or(0) + bytes);
        self.share().set_granted(self.granted.get());
    }

    fn surely_fits(&self, bytes: u64) -> bool {
        let is_valid = self.read_at.get().is_some_and(|at| self.core.ctx.now() - at < SPACE_VALID);
        let used_since = self.share().taken_by_all().saturating_sub(self.taken_then.get());
        let needed = bytes.saturating_add(self.reserved_bytes()).saturating_add(used_since);
        let space = self.space.get();
        is_valid && space.bytes_avail >= needed.saturating_add(PLENTY_BYTES.min(space.bytes_total / 8))
    }

    /// Writes the row after `objects` more were promised.
    pub(crate) fn promise(&self, tx: &mut Tx<'_>, objects: u64) {
        let c = self.count.get();
        let most = self.space.get().bytes_total / PROMISED_PART / OBJECT_BYTES;
        let most = most.min(PROMISED_MAX).max(c.promised);
        self.put(tx, ObjectCount { promised: c.promised.saturating_add(objects).min(most), ..c });
    }

    /// Writes the row after an object was created.
    pub(crate) fn object_created(&self, tx: &mut Tx<'_>) {
        let c = self.count.get();
        self.put(tx, ObjectCount { existing: c.existing + 1, promised: c.promised.saturating_sub(1) });
    }

    /// Writes the row after an object was destroyed that existed, or that was only promised.
    pub(crate) fn object_destroyed(&self, tx: &mut Tx<'_>, existed: bool) {
        let c = self.count.get();
        if existed {
            self.put(tx, ObjectCount { existing: c.existing.saturating_sub(1), ..c });
        } else if c.promised > 0 {
            self.put(tx, ObjectCount { promised: c.promised - 1, ..c });
        }
    }

    /// Call last in a transaction: it cannot fail any more, so that memory may change at once.
    fn put(&self, tx: &mut Tx<'_>, count: ObjectCount) {
        self.count.set(count);
        tx.put(TABLE, KEY, count.to_vec());
    }
}
