//! Locks of clients that a restart brings back: a row each, from before the client knows of the grant until it ends.
//!
//! Why: a write over several objects is one for everybody because it has a lock of each, and an append finds the end of the
//! file under them. Were one gone with the process, others would read half of it, and append where the rest belongs.
//! (Who reads loses no more than time: without its lock it is refused and reads again.)
//!
//! Rules: a lock is kept because its client asked for that. Locks of mounts in this process are never persisted: those
//! mounts end with it. A cancel may be lost with the tail of the log, so that a start brings back a lock that its client
//! does not have any more: the client cancels it again when it is told that somebody waits for it. A grant that is lost
//! that way is gone. Bounded like the locks themselves.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_osd::{Credits, OsdError, Pins, Table, table};
use nacre_target::{ExportId, TargetCore};
use nacre_types::{Codec, Errno, Generation, LockCookie};
use nacre_wire::ost::Enqueue;

/// Key: generation of the client, cookie. Value: the request.
pub(crate) const TABLE: Table = Table(table::OST_FIRST + 2);
const KEY_BYTES: usize = 12;
/// Larger than key and value of a row.
const ROW_BYTES: u32 = 128;
/// Rows that one transaction removes.
const SLICE: usize = 64;

type Name = (ExportId, LockCookie);

pub(crate) fn key((export, cookie): Name) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..4].copy_from_slice(&export.0.to_be_bytes());
    key[4..].copy_from_slice(&cookie.0.to_be_bytes());
    key
}
pub(crate) fn parse(key: &[u8], value: &[u8]) -> Option<(ExportId, Enqueue)> {
    let (export, cookie) = key.split_first_chunk::<4>()?;
    let args = Enqueue::from_slice(value).ok()?;
    (args.cookie.0.to_be_bytes() == *cookie).then(|| (Generation(u32::from_be_bytes(*export)), args))
}

struct Lock {
    args: Enqueue,
    in_row: bool,
}

/// The kept locks of one OST.
pub(crate) struct Kept {
    core: Rc<TargetCore>,
    locks: RefCell<BTreeMap<Name, Lock>>,
}

impl Kept {
    /// Reads the rows.
    pub(crate) async fn load(core: &Rc<TargetCore>) -> Result<Self, OsdError> {
        let this = Self { core: core.clone(), locks: RefCell::default() };
        let mut pages = core.osd.pages(TABLE, 1024);
        while let Some(rows) = pages.next().await? {
            for (key, value) in &rows {
                let Some((export, args)) = parse(key, value) else {
                    tracing::error!(target_name = %core.name, ?key, "the row of a lock cannot be read, it is ignored");
                    continue;
                };
                this.locks.borrow_mut().insert((export, args.cookie), Lock { args, in_row: true });
            }
        }
        Ok(this)
    }
    /// What is kept, in no order: these locks were held together.
    pub(crate) fn all(&self) -> Vec<(ExportId, Enqueue)> {
        self.locks.borrow().iter().map(|((export, _), lock)| (*export, lock.args.clone())).collect()
    }

    /// The client wants this lock to be kept once it is granted.
    pub(crate) fn want(&self, export: ExportId, args: &Enqueue) {
        let lock = || Lock { args: args.clone(), in_row: false };
        self.locks.borrow_mut().entry((export, args.cookie)).or_insert_with(lock);
    }

    /// A lock was granted: its row is there before the client knows, if the lock is one to be kept.
    pub(crate) async fn granted(&self, export: ExportId, cookie: LockCookie) -> Result<(), Errno> {
        let name = (export, cookie);
        let due = |lock: &&mut Lock| !lock.in_row;
        if self.locks.borrow_mut().get_mut(&name).as_ref().is_none_or(|lock| !due(lock)) {
            return Ok(());
        }
        let reservation = self.core.osd.reserve(credits(1)).await?;
        let mut locks = self.locks.borrow_mut();
        // It may have been given back meanwhile.
        let Some(lock) = locks.get_mut(&name).filter(due) else { return Ok(()) };
        self.core.transact_local(&Pins::default(), reservation, |tx| {
            tx.put(TABLE, &key(name), lock.args.to_vec());
            Ok(())
        })?;
        lock.in_row = true;
        Ok(())
    }

    /// A lock ends. What the caller does next is in the same visit as the end of its row.
    pub(crate) async fn ended(&self, export: ExportId, cookie: LockCookie) -> Result<(), OsdError> {
        self.delete(&[(export, cookie)]).await
    }
    /// All locks of a client end.
    pub(crate) async fn owner_gone(&self, export: ExportId) -> Result<(), OsdError> {
        loop {
            let of_owner = (export, LockCookie(0))..=(export, LockCookie(u64::MAX));
            let names: Vec<Name> =
                self.locks.borrow().range(of_owner).map(|(name, _)| *name).take(SLICE).collect();
            if names.is_empty() {
                return Ok(());
            }
            self.delete(&names).await?;
        }
    }

    async fn delete(&self, names: &[Name]) -> Result<(), OsdError> {
        let in_row = |name: &&Name| self.locks.borrow().get(name).is_some_and(|lock| lock.in_row);
        if names.iter().any(|name| in_row(&name)) {
            let reservation = self.core.osd.reserve(credits(names.len())).await?;
            self.core.osd.transact(&Pins::default(), reservation, |tx| {
                names.iter().filter(in_row).for_each(|name| tx.delete(TABLE, &key(*name)));
                Ok::<_, OsdError>(())
            })?;
        }
        let mut locks = self.locks.borrow_mut();
        for name in names {
            locks.remove(name);
        }
        Ok(())
    }
}

/// Every row goes again, so that also a full device has room for them.
fn credits(rows: usize) -> Credits {
    let rows = u32::try_from(rows).unwrap_or(u32::MAX);
    Credits { rows, row_bytes: rows * ROW_BYTES, frees: true, ..Credits::default() }
}
