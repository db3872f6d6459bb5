//! The values of parameters that are set while the target runs.

use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use nacre_wire::matches;
use nacre_wire::mgs::PermanentParam;

/// Parameter values of one target.
#[derive(Debug)]
pub(crate) struct ParamValues {
    max_mod_rpcs: Cell<u16>,
    /// Parameters that the MGS keeps, as they were last applied here.
    permanent: RefCell<Vec<PermanentParam>>,
}

impl ParamValues {
    pub(crate) fn new(max_mod_rpcs: u16) -> Self {
        Self { max_mod_rpcs: Cell::new(max_mod_rpcs), permanent: RefCell::default() }
    }
    /// Modifying requests that a client may have in flight; for new connections.
    pub(crate) fn max_mod_rpcs(&self) -> u16 {
        self.max_mod_rpcs.get()
    }
    pub(crate) fn set_max_mod_rpcs(&self, max: u16) {
        self.max_mod_rpcs.set(max);
    }
    /// Replaces the list of permanent parameters. Returns false if it is the same as before.
    pub(crate) fn replace_permanent(&self, list: &[PermanentParam]) -> bool {
        if *self.permanent.borrow() == list {
            return false;
        }
        *self.permanent.borrow_mut() = list.to_vec();
        true
    }
    /// The permanent value of a parameter, in the list that was applied last or else in `list`.
    pub(crate) fn permanent_value(&self, name: &str, list: &[PermanentParam]) -> Option<String> {
        let applied = self.permanent.borrow();
        let stored = list.iter().chain(applied.iter()).rfind(|stored| matches(&stored.name, name))?;
        Some(stored.value.clone())
    }
}
