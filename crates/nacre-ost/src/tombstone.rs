//! Tombstones: destroyed objects refuse late writes for as long as one can arrive.
//!
//! A destroy leaves a row; a write, truncate or allocate of that object finds it and fails with ENOENT. The latest such
//! request comes from a client whose lease has not run out, so a row is removed two leases after the destroy, or two leases
//! after the target's last start, whichever is later, by the monotonic clock, which no operator can set.
//! Invariants: every row is also in memory, so that a write costs no lookup; the table is bounded, and a destroy waits while
//! it is full.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;
use nacre_node::WaitList;
use nacre_osd::object_rows::{object_key, object_of_key};
use nacre_osd::{Credits, OsdError, Pins, Table, Tx, table};
use nacre_target::TargetCore;
use nacre_types::{Codec, Errno, Instant, ObjectId, Timestamp, codec_struct};

pub(crate) const TABLE: Table = Table(table::OST_FIRST);
/// Upper bound of rows.
const TOMBSTONES_MAX: usize = 1 << 18;
/// Rows that one transaction removes.
const SLICE: usize = 64;
codec_struct! {
    /// Value of a row.
    pub struct Tombstone {
        /// When the object was destroyed, for people.
        pub destroyed: Timestamp,
    }
}

#[derive(Default)]
struct Index {
    objects: BTreeSet<ObjectId>,
    /// In order of their deadlines.
    deadlines: VecDeque<(Instant, ObjectId)>,
}

/// The tombstones of one OST.
pub(crate) struct Tombstones {
    core: Rc<TargetCore>,
    index: RefCell<Index>,
    changed: WaitList,
}

impl Tombstones {
    /// Reads the rows and starts the task that removes old ones.
    pub(crate) async fn load(core: &Rc<TargetCore>) -> Result<Rc<Self>, OsdError> {
        let changed = core.ctx.wait_list();
        let this = Rc::new(Self { core: core.clone(), index: RefCell::default(), changed });
        let mut pages = core.osd.pages(TABLE, 1024);
        while let Some(rows) = pages.next().await? {
            for object in rows.iter().filter_map(|(key, _)| object_of_key(key)) {
                this.add(object);
            }
        }
        core.ctx.spawn(this.clone().remove_expired_rows());
        Ok(this)
    }

    /// Whether the object was destroyed recently.
    pub(crate) fn contains(&self, object: ObjectId) -> bool {
        self.index.borrow().objects.contains(&object)
    }

    /// Refuses changes of destroyed objects.
    ///
    /// # Errors
    /// ENOENT for an object that was destroyed.
    pub(crate) fn check_not_destroyed(&self, object: ObjectId) -> Result<(), Errno> {
        if self.contains(object) { Err(Errno::ENOENT) } else { Ok(()) }
    }

    /// Waits until there is room for `count` more.
    pub(crate) async fn wait_for_room(&self, count: usize) {
        while self.index.borrow().deadlines.len() + count > TOMBSTONES_MAX {
            self.changed.wait().await;
        }
    }

    /// Writes the row in the transaction of the destroy. Call [`Tombstones::add`] after it.
    pub(crate) fn put(&self, tx: &mut Tx<'_>, object: ObjectId) {
        let row = Tombstone { destroyed: self.core.ctx.wall() };
        tx.put(TABLE, &object_key(object), row.to_vec());
    }

    pub(crate) fn add(&self, object: ObjectId) {
        let mut index = self.index.borrow_mut();
        if index.objects.insert(object) {
            let kept = Duration::from_millis(u64::from(self.core.config.lease_ms) * 2);
            let end = self.core.ctx.now() + kept;
            index.deadlines.push_back((end, object));
        }
        drop(index);
        self.changed.wake_all();
    }

    pub(crate) fn count(&self) -> usize {
        self.index.borrow().objects.len()
    }

    /// Removes rows after their deadline, for as long as the target runs.
    async fn remove_expired_rows(self: Rc<Self>) {
        loop {
            let next = self.index.borrow().deadlines.front().map(|&(end, _)| end);
            let Some(end) = next else {
                self.changed.wait().await;
                continue;
            };
            self.core.ctx.sleep_until(end).await;
            match self.remove_expired().await {
                Ok(()) => {}
                Err(Errno::ESHUTDOWN) => return,
                Err(error) => {
                    tracing::warn!(target_name = %self.core.name, %error, "tombstones cannot be removed, trying again");
                    self.core.ctx.sleep(Duration::from_secs(5)).await;
                }
            }
        }
    }

    async fn remove_expired(&self) -> Result<(), Errno> {
        let now = self.core.ctx.now();
        let expired: Vec<ObjectId> = {
            let index = self.index.borrow();
            index.deadlines.iter().take_while(|&&(end, _)| end <= now).take(SLICE).map(|&(_, o)| o).collect()
        };
        let rows = u32::try_from(expired.len()).unwrap_or(u32::MAX);
        let credits = Credits { rows, row_bytes: rows * 32, frees: true, ..Credits::default() };
        let reservation = self.core.osd.reserve(credits).await?;
        self.core.transact_local(&Pins::default(), reservation, |tx| {
            for &object in &expired {
                tx.delete(TABLE, &object_key(object));
            }
            Ok(())
        })?;
        let mut index = self.index.borrow_mut();
        for object in expired {
            index.deadlines.pop_front();
            index.objects.remove(&object);
        }
        drop(index);
        self.changed.wake_all();
        Ok(())
    }
}
