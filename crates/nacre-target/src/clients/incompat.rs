//! Features that a server must support to serve a target (row `incompat`), and the clients that use them.
//!
//! Rules: the first client with several slots sets [`INCOMPAT_MULTI_RPCS`], in the transaction of its row; it is cleared
//! with the row of the last such client, during a recovery only at its end. So a target whose clients have disconnected can
//! be served by an older release again. A target with features that this build does not know is not served.

use crate::clients::rows::ExportId;
use crate::last_rcvd::{INCOMPAT_KNOWN, INCOMPAT_MULTI_RPCS};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use core::cell::{Cell, RefCell};
use nacre_osd::{Osd, Tx, table};
use nacre_types::{Codec, TargetName};
use nacre_wire::target::features;

/// Row of `TARGET` with the features that another server must know.
const INCOMPAT_KEY: &[u8] = b"incompat";

/// The features in use.
#[derive(Debug, Default)]
pub(crate) struct Incompat {
    flags: Cell<u32>,
    /// Clients with several slots that have a row.
    with_slots: RefCell<BTreeSet<ExportId>>,
}

impl Incompat {
    pub(crate) fn flags(&self) -> u32 {
        self.flags.get()
    }
    /// Reads the row.
    pub(crate) async fn load(&self, osd: &Osd, name: &TargetName) -> Result<(), String> {
        let row = osd.get(table::TARGET, INCOMPAT_KEY).await;
        let row = row.map_err(|e| format!("{name}: its features cannot be read: {e}"))?;
        let flags = row.map_or(Ok(0), |row| u32::from_slice(&row));
        let flags = flags.map_err(|e| format!("{name}: its features cannot be read: {e}"))?;
        let unknown = flags & !INCOMPAT_KNOWN;
        if unknown != 0 {
            return Err(format!(
                "{name} uses features {unknown:#x} that this build does not know\nhint: serve it with the release \
                 that wrote it, or a newer one"
            ));
        }
        self.flags.set(flags);
        Ok(())
    }
    /// Records a client whose row has these features.
    pub(crate) fn found(&self, id: ExportId, agreed: u64) {
        if agreed & features::MULTI_MOD_RPCS != 0 {
            self.with_slots.borrow_mut().insert(id);
        }
    }
    /// Whether the row of a client says that it has several slots.
    pub(crate) fn is_known(&self, id: ExportId) -> bool {
        self.with_slots.borrow().contains(&id)
    }
    /// The same, in the transaction that writes the row.
    pub(crate) fn came(&self, tx: &mut Tx<'_>, id: ExportId, agreed: u64) {
        self.found(id, agreed);
        if self.is_known(id) && self.flags.get() & INCOMPAT_MULTI_RPCS == 0 {
            self.store(tx, self.flags.get() | INCOMPAT_MULTI_RPCS);
        }
    }
    /// The row of a client is deleted in this transaction.
    pub(crate) fn left(&self, tx: &mut Tx<'_>, id: ExportId, in_recovery: bool) {
        self.with_slots.borrow_mut().remove(&id);
        if !in_recovery {
            self.clear_unused(tx);
        }
    }
    /// Clears features that no client uses; not during a recovery.
    pub(crate) fn clear_unused(&self, tx: &mut Tx<'_>) {
        if self.with_slots.borrow().is_empty() && self.flags.get() & INCOMPAT_MULTI_RPCS != 0 {
            self.store(tx, self.flags.get() & !INCOMPAT_MULTI_RPCS);
        }
    }
    fn store(&self, tx: &mut Tx<'_>, flags: u32) {
        self.flags.set(flags);
        tx.put(table::TARGET, INCOMPAT_KEY, flags.to_vec());
    }
}
