//! The async face of the engine.

use crate::error::OsdError;
use crate::tx::{Credits, Pins, Table, Tx};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::{Ctx, StoreOp};
use nacre_types::{ClientUuid, Owner, TargetName, Transno, codec_struct};

/// Bounds and intervals of one target's engine.
#[derive(Debug, Clone)]
pub struct OsdConfig {
    /// Unwritten changes in memory, bytes; writers are slowed from half of it on.
    pub dirty_bytes_max: u64,
    /// Clean rows kept, bytes.
    pub cache_bytes_max: u64,
    /// Bound of the log, and so of recovery time.
    pub log_bytes_max: u64,
    /// Age of the oldest unsynced change, milliseconds.
    pub commit_interval_ms: u32,
    /// Ballast file, bytes.
    pub ballast_bytes: u64,
}
impl Default for OsdConfig {
    fn default() -> Self {
        Self {
            dirty_bytes_max: 256 << 20,
            cache_bytes_max: 256 << 20,
            log_bytes_max: 256 << 20,
            commit_interval_ms: 1000,
            ballast_bytes: 64 << 20,
        }
    }
}

codec_struct! {
    /// What a store says of itself: written by mkfs, never changed except for `mgs_nodes`.
    pub struct Label {
        pub uuid: ClientUuid,
        /// `MGS`, `demo-OST0001`.
        pub name: String,
        /// Addresses of the MGS; empty for the MGS itself.
        pub mgs_nodes: Vec<String>,
        /// Fast identity of the format: see docs/disk-format.md.
        pub format_version: u32,
    }
}
impl Label {
    pub fn target(&self) -> Option<TargetName> {
        TargetName::parse(&self.name)
    }
}

/// Room for one transaction; given back when dropped unused.
pub struct Reservation {
    _credits: Credits,
}

/// One target's storage. Lives on the target's island.
pub struct Osd {
    _ctx: Rc<Ctx>,
}

impl Osd {
    /// Writes label and empty log into an empty store.
    ///
    /// # Errors
    /// `Format` when the store holds a target already (unless `overwrite`).
    pub async fn format(
        ctx: &Rc<Ctx>,
        label: &Label,
        config: &OsdConfig,
        overwrite: bool,
    ) -> Result<(), OsdError> {
        let _ = (ctx, label, config, overwrite);
        Err(OsdError::Format(String::from("not built")))
    }
    /// Opens a formatted store: replays the log, starts the background tasks.
    pub async fn open(ctx: &Rc<Ctx>, config: OsdConfig) -> Result<Rc<Osd>, OsdError> {
        let _ = (ctx, config);
        Err(OsdError::Format(String::from("not built")))
    }
    pub fn label(&self) -> &Label {
        unreachable!("not built")
    }
    /// Reads rows (present or not) so that a transaction can look at them. Cold ones are read from runs.
    pub async fn fetch(&self, keys: &[(Table, &[u8])]) -> Result<Pins, OsdError> {
        let _ = keys;
        Ok(Pins::default())
    }
    /// Like `fetch` for every row with `from <= key < to`, at most `limit`; absent keys of the range count as
    /// pinned if the whole range was read.
    pub async fn fetch_range(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
        limit: u32,
        pins: &mut Pins,
    ) -> Result<(), OsdError> {
        let _ = (table, from, to, limit, pins);
        Ok(())
    }
    /// One row, outside a transaction.
    pub async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        let _ = (table, key);
        Ok(None)
    }
    /// Rows with `from <= key < to` in key order, at most `limit`.
    pub async fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
        limit: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        let _ = (table, from, to, limit);
        Ok(Vec::new())
    }
    /// Waits for memory and log room, checks space on the device.
    ///
    /// # Errors
    /// `NoSpace`, `Stopped`.
    pub async fn reserve(&self, credits: Credits) -> Result<Reservation, OsdError> {
        Ok(Reservation { _credits: credits })
    }
    /// One change. `Err` of the closure leaves nothing behind and uses no transno.
    pub fn transact<T, E>(
        &self,
        pins: &Pins,
        reservation: Reservation,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<(Transno, T), E> {
        let _ = (pins, reservation, change);
        unreachable!("not built")
    }
    /// Waits until everything up to `transno` is durable; starts a group commit at once.
    pub async fn commit(&self, transno: Transno) -> Result<(), OsdError> {
        let _ = transno;
        Ok(())
    }
    pub fn last_transno(&self) -> Transno {
        Transno(0)
    }
    pub fn last_committed(&self) -> Transno {
        Transno(0)
    }
    /// The bytes of writes up to this are stable.
    pub fn last_stable(&self) -> Transno {
        Transno(0)
    }
    /// Bytes of objects written by transactions from `oldest` on are not stable yet (`None`: all are):
    /// `last_stable` stays below it. Called by the object layer whenever it changes.
    pub fn hold_stable(&self, oldest: Option<Transno>) {
        let _ = oldest;
    }
    /// Waits until everything up to `transno` is durable without hurrying the commit.
    pub async fn committed(&self, transno: Transno) -> Result<(), OsdError> {
        let _ = transno;
        Ok(())
    }
    /// Usage of an owner kind by id: (bytes, objects). `kind`: 0 user, 1 group, 2 project.
    pub async fn usage(&self, kind: u8, id: u32) -> Result<(u64, u64), OsdError> {
        let _ = (kind, id, Owner::default());
        Ok((0, 0))
    }
    /// The log bytes of this visit (see `nacre_node::Logic::log_writes`).
    pub fn log_writes(&self, out: &mut Vec<StoreOp>) {
        let _ = out;
    }
    /// A log write failed: the engine refuses everything from now on.
    pub fn log_failed(&self, reason: &str) {
        let _ = reason;
    }
    /// Honest numbers: device space less ballast and reservations, rows' estimate of files.
    pub async fn space(&self) -> Result<nacre_node::StoreSpace, OsdError> {
        Err(OsdError::Stopped(String::from("not built")))
    }
    /// Commits, writes the clean mark, stops the background tasks.
    pub async fn stop(&self) -> Result<(), OsdError> {
        Ok(())
    }
}
