//! Room for objects that do not exist yet: what an MDT was promised, so that a create which succeeded does not
//! fail later for want of an object.
//!
//! One row counts the objects that exist and those that were promised and have not come into being. A grant raises
//! the latter, the first write of an object (or the destroy of one that was never written) lowers it. Writes that
//! make existing objects grow leave that room alone. Bytes of an object are an estimate; on a device that others fill too the promise is only
//! as good as the estimate, and ENOSPC says so.
//! Invariants: the row changes in the transaction of what changes it; memory equals the row after each of these.
//! What a dead MDT was promised and never used cannot be told from what it has used: so the promise is kept up to
//! [`KEPT_PART`] of the store and forgotten beyond, and as long as there is other space more is granted.

use alloc::rc::Rc;
use core::cell::Cell;
use core::time::Duration;
use nacre_node::StoreSpace;
use nacre_osd::{OsdError, Table, Tx, table};
use nacre_target::TargetCore;
use nacre_types::{Codec, Errno, Instant, codec_struct};

pub(crate) const TABLE: Table = Table(table::OST_FIRST + 1);
/// The one row.
pub(crate) const KEY: &[u8] = b"objects";
/// What the first write of an object needs beside its bytes: a block, and its rows.
pub(crate) const OBJECT_BYTES: u64 = 8192;
/// The part of the store, and of what is free, that is promised at most.
const KEPT_PART: u64 = 16;
/// How long the device's own numbers are believed, and with how much free space beyond the promise.
const FRESH: Duration = Duration::from_secs(1);
const PLENTY_BYTES: u64 = 1 << 30;

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
    /// Bytes written since `space` was asked.
    used_since: Cell<u64>,
    asked: Cell<Option<Instant>>,
}

impl Room {
    pub(crate) async fn load(core: &Rc<TargetCore>) -> Result<Rc<Self>, OsdError> {
        let row = core.osd.get(TABLE, KEY).await?;
        let count = match row {
            None => ObjectCount::default(),
            Some(bytes) => ObjectCount::from_slice(&bytes)
                .map_err(|_| OsdError::Corrupt { what: "the row that counts the objects".into() })?,
        };
        Ok(Rc::new(Self {
            core: core.clone(),
            count: Cell::new(count),
            space: Cell::default(),
            used_since: Cell::new(0),
            asked: Cell::new(None),
        }))
    }

    /// Objects that exist, and objects that were promised.
    pub(crate) fn count(&self) -> ObjectCount {
        self.count.get()
    }

    /// The device's own numbers, now.
    pub(crate) async fn space(&self) -> Result<StoreSpace, OsdError> {
        let space = self.core.osd.space().await?;
        self.space.set(space);
        self.used_since.set(0);
        self.asked.set(Some(self.core.ctx.now()));
        Ok(space)
    }

    /// How many of `wanted` objects can be promised now.
    pub(crate) async fn grantable(&self, wanted: u64) -> Result<u64, Errno> {
        let space = self.space().await?;
        let unpromised = space.bytes_avail.saturating_sub(self.kept_bytes());
        let by_space = unpromised / KEPT_PART / OBJECT_BYTES;
        let by_files = space.files_free.map_or(u64::MAX, |files| {
            let kept = self.count.get().promised.min(files / KEPT_PART);
            (files - kept) / KEPT_PART
        });
        Ok(wanted.min(by_space).min(by_files))
    }

    /// Lets `bytes` more be written to an existing object, or says ENOSPC: the promise is not touched.
    pub(crate) async fn grow(&self, bytes: u64) -> Result<(), Errno> {
        if !self.believed(bytes) {
            let space = self.space().await?;
            if space.bytes_avail < bytes.saturating_add(self.kept_bytes()) {
                return Err(Errno::ENOSPC);
            }
        }
        self.used_since.set(self.used_since.get().saturating_add(bytes));
        Ok(())
    }

    /// What is kept for promised objects: nothing that exists grows into it, so nobody is told that it is free.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.count.get().promised.saturating_mul(OBJECT_BYTES).min(self.space.get().bytes_total / KEPT_PART)
    }

    fn believed(&self, bytes: u64) -> bool {
        let fresh = self.asked.get().is_some_and(|at| self.core.ctx.now() - at < FRESH);
        let needed = bytes.saturating_add(self.kept_bytes()).saturating_add(self.used_since.get());
        let space = self.space.get();
        fresh && space.bytes_avail >= needed.saturating_add(PLENTY_BYTES.min(space.bytes_total / 8))
    }

    /// Puts the row after `objects` more were promised.
    pub(crate) fn promise(&self, tx: &mut Tx<'_>, objects: u64) {
        let c = self.count.get();
        let most = (self.space.get().bytes_total / KEPT_PART / OBJECT_BYTES).max(c.promised);
        self.put(tx, ObjectCount { promised: c.promised.saturating_add(objects).min(most), ..c });
    }

    /// Puts the row after an object has come into being.
    pub(crate) fn made(&self, tx: &mut Tx<'_>) {
        let c = self.count.get();
        self.put(tx, ObjectCount { existing: c.existing + 1, promised: c.promised.saturating_sub(1) });
    }

    /// Puts the row after an object was destroyed that existed, or that was only promised.
    pub(crate) fn gone(&self, tx: &mut Tx<'_>, existed: bool) {
        let c = self.count.get();
        if existed {
            self.put(tx, ObjectCount { existing: c.existing.saturating_sub(1), ..c });
        } else if c.promised > 0 {
            self.put(tx, ObjectCount { promised: c.promised - 1, ..c });
        }
    }

    /// Called last in a transaction, which cannot fail any more: memory may follow at once.
    fn put(&self, tx: &mut Tx<'_>, count: ObjectCount) {
        self.count.set(count);
        tx.put(TABLE, KEY, count.to_vec());
    }
}
