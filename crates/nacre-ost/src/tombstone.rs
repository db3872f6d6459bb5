//! Tombstones: what was destroyed refuses late writes for as long as one can arrive.
//!
//! A destroy leaves a row; a write, truncate or allocate of that object finds it and fails with ENOENT. The
//! latest such request comes from a client whose lease still runs, so a row goes two leases after the destroy, or
//! two leases after the target's last start, whichever is later: the clock that counts is the one that no
//! operator can set.
//! Invariants: every row is also in memory, so that a write costs no look-up; the table is bounded, a destroy
//! waits while it is full.

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
/// Rows at most.
const MAX: usize = 1 << 18;
/// Rows that one transaction removes.
const SLICE: usize = 64;
codec_struct! {
    /// Value of a row: when, for people.
    pub struct Tombstone { pub destroyed: Timestamp }
}

#[derive(Default)]
struct Index {
    objects: BTreeSet<ObjectId>,
    /// In order of time.
    ends: VecDeque<(Instant, ObjectId)>,
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
        core.ctx.spawn(this.clone().collect());
        Ok(this)
    }

    /// Whether the object was destroyed lately.
    pub(crate) fn contains(&self, object: ObjectId) -> bool {
        self.index.borrow().objects.contains(&object)
    }

    /// # Errors
    /// `ENOENT` for an object that was destroyed.
    pub(crate) fn refuse(&self, object: ObjectId) -> Result<(), Errno> {
        if self.contains(object) { Err(Errno::ENOENT) } else { Ok(()) }
    }

    /// Waits until there is room for `count` more.
    pub(crate) async fn room(&self, count: usize) {
        while self.index.borrow().ends.len() + count > MAX {
            self.changed.wait().await;
        }
    }

    /// Puts the row into the transaction of the destroy. The caller calls [`Tombstones::add`] after it.
    pub(crate) fn put(&self, tx: &mut Tx<'_>, object: ObjectId) {
        let row = Tombstone { destroyed: self.core.ctx.wall() };
        tx.put(TABLE, &object_key(object), row.to_vec());
    }

    pub(crate) fn add(&self, object: ObjectId) {
        let mut index = self.index.borrow_mut();
        if index.objects.insert(object) {
            let kept = Duration::from_millis(u64::from(self.core.config.lease_ms) * 2);
            let end = self.core.ctx.now() + kept;
            index.ends.push_back((end, object));
        }
        drop(index);
        self.changed.wake_all();
    }

    pub(crate) fn count(&self) -> usize {
        self.index.borrow().objects.len()
    }

    /// Removes rows whose time has come, for as long as the target runs.
    async fn collect(self: Rc<Self>) {
        loop {
            let next = self.index.borrow().ends.front().map(|&(end, _)| end);
            let Some(end) = next else {
                self.changed.wait().await;
                continue;
            };
            self.core.ctx.sleep_until(end).await;
            match self.remove_ended().await {
                Ok(()) => {}
                Err(Errno::ESHUTDOWN) => return,
                Err(error) => {
                    tracing::warn!(target_name = %self.core.name, %error, "tombstones stay, trying again");
                    self.core.ctx.sleep(Duration::from_secs(5)).await;
                }
            }
        }
    }

    async fn remove_ended(&self) -> Result<(), Errno> {
        let now = self.core.ctx.now();
        let ended: Vec<ObjectId> = {
            let index = self.index.borrow();
            index.ends.iter().take_while(|&&(end, _)| end <= now).take(SLICE).map(|&(_, o)| o).collect()
        };
        let rows = u32::try_from(ended.len()).unwrap_or(u32::MAX);
        let credits = Credits { rows, row_bytes: rows * 32, frees: true, ..Credits::default() };
        let reservation = self.core.osd.reserve(credits).await?;
        self.core.transact_local(&Pins::default(), reservation, |tx| {
            for &object in &ended {
                tx.delete(TABLE, &object_key(object));
            }
            Ok(())
        })?;
        let mut index = self.index.borrow_mut();
        for object in ended {
            index.ends.pop_front();
            index.objects.remove(&object);
        }
        drop(index);
        self.changed.wake_all();
        Ok(())
    }
}
