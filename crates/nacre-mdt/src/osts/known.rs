//! The identity and the latest known change of each OST that this MDT has connected to, kept over a restart. So an OST that
//! has lost changes, or was formatted anew, is refused even if no other target or client remembers it (docs/targets.md).
//!
//! Invariants: the stored state may be older than the true one, never newer; when the MGS reports the admission of another
//! target, the state of the former one is forgotten.

use crate::osts::Ost;
use crate::rows::row::{KnownOst, Row};
use crate::rows::table::{self, KNOWN};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_osd::{Credits, OsdError, Pins};
use nacre_target::TargetCore;
use nacre_types::{Errno, Instant, OstIndex};
use nacre_wire::mgs::TargetEntry;

/// How old the kept number of an OST may be while it is asked for its room.
const KEEP_EVERY: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Default)]
pub(crate) struct KnownOsts {
    rows: RefCell<BTreeMap<OstIndex, KnownOst>>,
    kept_at: Cell<Instant>,
}

impl KnownOsts {
    pub(crate) async fn load(&self, core: &TargetCore) -> Result<(), OsdError> {
        for (key, value) in core.osd.scan(KNOWN, &[], &[], u32::MAX).await? {
            let index = key.get(..4).and_then(|k| k.try_into().ok()).map(u32::from_be_bytes);
            match (index, KnownOst::from_row(&value)) {
                (Some(index), Ok(row)) => drop(self.rows.borrow_mut().insert(OstIndex(index), row)),
                (_, row) => tracing::error!(target_name = %core.name, ?key, error = ?row.err(),
                    "the stored identity of an OST cannot be read: only the MGS verifies this OST until it connects"),
            }
        }
        Ok(())
    }

    /// The OST that an entry of the list stands for. True: another OST was admitted in its place since the stored row.
    pub(crate) fn meant(&self, entry: &TargetEntry) -> (KnownOst, bool) {
        let listed = KnownOst { known: entry.known, replaced: entry.replaced };
        let mut rows = self.rows.borrow_mut();
        match rows.get_mut(&OstIndex(entry.index)) {
            Some(row) if row.replaced >= listed.replaced => {
                if row.replaced == listed.replaced {
                    row.known.learn(&listed.known);
                }
                (*row, false)
            }
            Some(row) => {
                *row = listed;
                (listed, true)
            }
            None => {
                rows.insert(OstIndex(entry.index), listed);
                (listed, false)
            }
        }
    }

    /// How often another target was admitted under this index: stripes are laid out under this number.
    pub(crate) fn replaced(&self, index: OstIndex) -> u32 {
        self.rows.borrow().get(&index).map_or(0, |row| row.replaced)
    }

    /// Stores the identities and durable changes that the imports have learnt; unless `now`, only from time to time.
    pub(crate) async fn keep<'a>(
        &self,
        core: &TargetCore,
        osts: impl Iterator<Item = &'a Ost>,
        now: bool,
    ) -> Result<(), Errno> {
        let mut changed = Vec::new();
        let due = now || core.ctx.now() >= self.kept_at.get() + KEEP_EVERY;
        for ost in osts {
            let Some(met) = ost.peer.remembered() else { continue };
            let mut rows = self.rows.borrow_mut();
            let Some(row) = rows.get_mut(&ost.index) else { continue };
            let started = met.incarnation != row.known.incarnation;
            if met.uuid == row.known.uuid && (started || (due && met.committed > row.known.committed)) {
                row.known.learn(&met);
                changed.push((ost.index, *row));
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        self.kept_at.set(core.ctx.now());
        let rows = changed.len() as u32;
        let credits = Credits { rows, row_bytes: 128 * rows, frees: true, ..Credits::default() };
        let reservation = core.osd.reserve(credits).await?;
        core.transact_local(&Pins::default(), reservation, |tx| {
            changed.iter().for_each(|(index, row)| tx.put(KNOWN, &table::reserved(*index), row.to_row()));
            Ok(())
        })
        .map(drop)
    }
}
