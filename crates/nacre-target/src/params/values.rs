//! The values of parameters that are set while the target runs.

use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use nacre_wire::matches;
use nacre_wire::mgs::KeptParam;

/// Parameter values of one target.
#[derive(Debug)]
pub(crate) struct ParamValues {
    max_mod_rpcs: Cell<u16>,
    /// Parameters that the MGS keeps, as they were last applied here.
    kept: RefCell<Vec<KeptParam>>,
}

impl ParamValues {
    pub(crate) fn new(max_mod_rpcs: u16) -> Self {
        Self { max_mod_rpcs: Cell::new(max_mod_rpcs), kept: RefCell::default() }
    }
    /// Modifying requests that a client may have in flight; for new connections.
    pub(crate) fn max_mod_rpcs(&self) -> u16 {
        self.max_mod_rpcs.get()
    }
    pub(crate) fn set_max_mod_rpcs(&self, max: u16) {
        self.max_mod_rpcs.set(max);
    }
    /// Replaces the list of kept parameters. Returns false if it is the same as before.
    pub(crate) fn replace_kept(&self, list: &[KeptParam]) -> bool {
        if *self.kept.borrow() == list {
            return false;
        }
        *self.kept.borrow_mut() = list.to_vec();
        true
    }
    /// The kept value of a parameter, in the list that was applied last or else in `list`.
    pub(crate) fn kept_value(&self, name: &str, list: &[KeptParam]) -> Option<String> {
        let applied = self.kept.borrow();
        let kept = list.iter().chain(applied.iter()).rfind(|kept| matches(&kept.name, name))?;
        Some(kept.value.clone())
    }
}
