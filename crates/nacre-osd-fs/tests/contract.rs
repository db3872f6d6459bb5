//! The store on a directory keeps the contract, also with few descriptors and with small chunk files.

use nacre_node::{Store, StoreDone, StoreError, StoreOp};
use nacre_osd_fs::{FsConfig, FsStore};
use tempfile::TempDir;

struct Temp {
    store: FsStore,
    _dir: TempDir,
}
impl Store for Temp {
    fn execute(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        self.store.execute(op)
    }
    fn try_execute(&self, op: StoreOp) -> Result<Result<StoreDone, StoreError>, StoreOp> {
        self.store.try_execute(op)
    }
}

fn make(config: &FsConfig) -> Box<dyn Store> {
    let dir = tempfile::tempdir().expect("a directory");
    let store = FsStore::format(dir.path(), config, false).expect("formats");
    Box::new(Temp { store, _dir: dir })
}

nacre_testkit::store_contract!(make(&FsConfig::default()));

mod few_descriptors {
    use super::*;
    nacre_testkit::store_contract!(make(&FsConfig { descriptors_max: 2, ..FsConfig::default() }));
}
mod small_chunks {
    use super::*;
    nacre_testkit::store_contract!(make(&FsConfig { chunk_bytes: 16384, descriptors_max: 3 }));
}
