//! The transno up to which the bytes of objects are on stable storage.
//!
//! Invariant: a number is reported only when the row that records it is committed, so that no restart reports a lower
//! number than before. The object layer advances the number (`maintenance/writeback.rs`).

use core::cell::Cell;
use nacre_types::Transno;

/// `None`: there is no object layer, and everything committed is stable.
#[derive(Default)]
pub(crate) struct StableMark {
    stable: Cell<Option<Transno>>,
    /// The transaction that records a higher number, and that number.
    pending: Cell<Option<(Transno, Transno)>>,
    is_frozen: Cell<bool>,
}

impl StableMark {
    /// The stable transno, when everything up to `committed` is committed.
    pub(crate) fn get(&self, committed: Transno) -> Transno {
        let Some(stable) = self.stable.get() else { return committed };
        match self.pending.get() {
            Some((row, next)) if row <= committed => {
                self.pending.set(None);
                self.stable.set(Some(next));
                next
            }
            _ => stable,
        }
    }
    pub(crate) fn begin(&self, stable: Transno) {
        self.stable.set(Some(stable));
        self.pending.set(None);
    }
    /// The transaction `row` records `stable`.
    pub(crate) fn record(&self, row: Transno, stable: Transno) {
        self.pending.set(Some((row, stable)));
    }
    /// The highest number that a transaction has recorded, committed or not.
    pub(crate) fn recorded(&self) -> Transno {
        let pending = self.pending.get().map(|(_, next)| next);
        pending.or(self.stable.get()).unwrap_or_default()
    }
    /// The transaction that records a higher number and is not committed.
    pub(crate) fn pending(&self, committed: Transno) -> Option<Transno> {
        self.get(committed);
        self.pending.get().map(|(row, _)| row)
    }
    pub(crate) fn freeze(&self, frozen: bool) {
        self.is_frozen.set(frozen);
    }
    pub(crate) fn is_frozen(&self) -> bool {
        self.is_frozen.get()
    }
}
