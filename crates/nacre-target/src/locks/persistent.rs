//! Persistent locks: locks of clients that a restart restores. Each has a row, from before its client learns of the grant
//! until the lock ends.
//!
//! Why: a write over several objects is atomic for other clients because it holds a lock on each, and an append finds the
//! end of the file under such locks. If one of them were lost with the process, others would read half of the write, or
//! append in its middle. (A lock of a read need not be restored: the read is refused without it, and repeated.)
//!
//! Rules: a lock is persistent because its client asked for that. Locks of in-process mounts are never persisted: those
//! mounts die with the server. A cancel may be lost with the tail of the log; then a restart restores a lock that its
//! client does not have any more, and the client cancels it again when the lock is revoked. If a grant is lost with the
//! tail of the log, the lock is not restored. Bounded like the locks themselves.

use crate::clients::rows::ExportId;
use crate::target_core::TargetCore;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_osd::{Credits, OsdError, Pins, Table};
use nacre_types::{Codec, Errno, Generation, LockCookie};

const KEY_BYTES: usize = 12;
/// Upper bound of key and value of a row.
const ROW_BYTES: u32 = 128;
/// Rows that one transaction removes.
const SLICE: usize = 64;

type Name = (ExportId, LockCookie);

/// Key: generation of the client, cookie.
fn key((export, cookie): Name) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..4].copy_from_slice(&export.0.to_be_bytes());
    key[4..].copy_from_slice(&cookie.0.to_be_bytes());
    key
}

/// Decodes the row of a persistent lock; `None` if it is damaged. `cookie_of`: the client's name of a requested lock.
pub fn parse_persistent_lock<R: for<'a> Codec<'a>>(
    key: &[u8],
    value: &[u8],
    cookie_of: fn(&R) -> LockCookie,
) -> Option<(ExportId, R)> {
    let (export, cookie) = key.split_first_chunk::<4>()?;
    let request = R::from_slice(value).ok()?;
    (cookie_of(&request).0.to_be_bytes() == *cookie)
        .then(|| (Generation(u32::from_be_bytes(*export)), request))
}

struct Lock<R> {
    request: R,
    in_row: bool,
}

/// The persistent locks of one target, in a table of their own.
pub struct PersistentLocks<R> {
    core: Rc<TargetCore>,
    table: Table,
    cookie_of: fn(&R) -> LockCookie,
    locks: RefCell<BTreeMap<Name, Lock<R>>>,
}

impl<R: Clone + for<'a> Codec<'a>> PersistentLocks<R> {
    /// Reads the rows. `cookie_of`: the client's name of a requested lock.
    ///
    /// # Errors
    /// Those of the engine. A damaged row is logged and ignored.
    pub async fn load(
        core: &Rc<TargetCore>,
        table: Table,
        cookie_of: fn(&R) -> LockCookie,
    ) -> Result<Self, OsdError> {
        let this = Self { core: core.clone(), table, cookie_of, locks: RefCell::default() };
        let mut pages = core.osd.pages(table, 1024);
        while let Some(rows) = pages.next().await? {
            for (key, value) in &rows {
                let Some((export, request)) = parse_persistent_lock(key, value, cookie_of) else {
                    tracing::error!(target_name = %core.name, ?key, "the row of a lock cannot be read, it is ignored");
                    continue;
                };
                let name = (export, cookie_of(&request));
                this.locks.borrow_mut().insert(name, Lock { request, in_row: true });
            }
        }
        Ok(this)
    }
    /// All persistent locks, in no particular order: they were held at the same time, so they do not conflict.
    pub fn all(&self) -> Vec<(ExportId, R)> {
        self.locks.borrow().iter().map(|((export, _), lock)| (*export, lock.request.clone())).collect()
    }

    /// Marks a requested lock as persistent: its row is written when it is granted. Without effect for in-process mounts.
    pub fn request(&self, export: ExportId, request: &R) {
        if !self.core.is_local(export) {
            let lock = || Lock { request: request.clone(), in_row: false };
            self.locks.borrow_mut().entry((export, (self.cookie_of)(request))).or_insert_with(lock);
        }
    }

    /// Call when a lock has been granted, before its client learns of it. Writes the row of a persistent lock.
    ///
    /// # Errors
    /// Those of the engine; the lock must then be cancelled.
    pub async fn granted(&self, export: ExportId, cookie: LockCookie) -> Result<(), Errno> {
        let name = (export, cookie);
        let due = |lock: &&mut Lock<R>| !lock.in_row;
        if self.locks.borrow_mut().get_mut(&name).as_ref().is_none_or(|lock| !due(lock)) {
            return Ok(());
        }
        let reservation = self.core.osd.reserve(credits(1)).await?;
        let mut locks = self.locks.borrow_mut();
        // It may have been cancelled meanwhile.
        let Some(lock) = locks.get_mut(&name).filter(due) else { return Ok(()) };
        self.core.transact_local(&Pins::default(), reservation, |tx| {
            tx.put(self.table, &key(name), lock.request.to_vec());
            Ok(())
        })?;
        lock.in_row = true;
        Ok(())
    }

    /// Ends a lock. The caller's next steps are in the same visit as the deletion of the row.
    ///
    /// # Errors
    /// Those of the engine, which has stopped then.
    pub async fn end(&self, export: ExportId, cookie: LockCookie) -> Result<(), OsdError> {
        self.delete(&[(export, cookie)]).await
    }
    /// Ends all locks of a client.
    ///
    /// # Errors
    /// Those of the engine, which has stopped then.
    pub async fn end_client(&self, export: ExportId) -> Result<(), OsdError> {
        loop {
            let of_client = (export, LockCookie(0))..=(export, LockCookie(u64::MAX));
            let names: Vec<Name> =
                self.locks.borrow().range(of_client).map(|(name, _)| *name).take(SLICE).collect();
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
                names.iter().filter(in_row).for_each(|name| tx.delete(self.table, &key(*name)));
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

/// `frees`: every row is deleted later, so a full device has room for them too.
fn credits(rows: usize) -> Credits {
    let rows = u32::try_from(rows).unwrap_or(u32::MAX);
    Credits { rows, row_bytes: rows * ROW_BYTES, frees: true, ..Credits::default() }
}
