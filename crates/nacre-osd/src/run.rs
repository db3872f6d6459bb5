//! Immutable sorted runs.

use alloc::rc::Rc;
use alloc::vec::Vec;

pub(crate) struct Run {}

#[derive(Default)]
pub(crate) struct RunSet {
    list: Vec<Rc<Run>>,
}
impl RunSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
    pub(crate) fn bytes(&self) -> u64 {
        0
    }
}
impl RunSet {
    pub(crate) fn flushed_lsn(&self) -> u64 {
        0
    }
    pub(crate) fn last_transno(&self) -> u64 {
        0
    }
}
