//! The crash device keeps the contract of a store.

use nacre_node::{Store, StoreDone, StoreError, StoreOp};
use nacre_testkit::CrashDevice;
use std::sync::Arc;

struct Whole(Arc<dyn Store>);
impl Store for Whole {
    fn execute(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        self.0.execute(op)
    }
}

nacre_testkit::store_contract!(Whole(CrashDevice::new(u64::MAX).store()).boxed());

impl Whole {
    fn boxed(self) -> Box<dyn Store> {
        Box::new(self)
    }
}
