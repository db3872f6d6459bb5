//! The key of the name hash. A new file system gets it from the MGS at its first start.

use alloc::rc::Rc;
use core::cell::Cell;
use nacre_node::{Ctx, WaitList};
use nacre_types::name::HashKey;

/// The key, once it is known.
pub(crate) struct NameHash {
    key: Cell<Option<HashKey>>,
    known: WaitList,
}

impl NameHash {
    pub(crate) fn new(ctx: &Rc<Ctx>, key: Option<HashKey>) -> Self {
        Self { key: Cell::new(key), known: ctx.wait_list() }
    }
    pub(crate) fn get(&self) -> Option<HashKey> {
        self.key.get()
    }
    pub(crate) fn set(&self, key: HashKey) {
        self.key.set(Some(key));
        self.known.wake_all();
    }
    /// Waits until the key is known.
    pub(crate) async fn wait(&self) -> HashKey {
        loop {
            if let Some(key) = self.key.get() {
                return key;
            }
            self.known.wait().await;
        }
    }
}
