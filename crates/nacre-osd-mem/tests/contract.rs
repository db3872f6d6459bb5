//! The store in memory keeps the contract, and is full when it is full.

use bytes::Bytes;
use nacre_node::{FileId, Store, StoreDone, StoreError, StoreOp};
use nacre_osd_mem::MemStore;

fn make() -> Box<dyn Store> {
    Box::new(MemStore::new(1 << 30))
}
nacre_testkit::store_contract!(make());

#[test]
fn space_is_charged_and_given_back() {
    let store = MemStore::new(1 << 20);
    let free = |store: &MemStore| match store.execute(StoreOp::Space) {
        Ok(StoreDone::Space(space)) => space.bytes_free,
        other => panic!("{other:?}"),
    };
    let blob = nacre_testkit::contract::blob(1);
    let write = |offset, len| {
        let data = vec![Bytes::from(vec![1; len])];
        store.execute(StoreOp::Write { file: blob, offset, data })
    };
    store.execute(StoreOp::Create { file: FileId::Log(1), len: 512 << 10 }).unwrap();
    assert_eq!(free(&store), 512 << 10);
    write(0, 256 << 10).unwrap();
    assert_eq!(write(256 << 10, 512 << 10), Err(StoreError::NoSpace));
    // An overwrite takes nothing.
    write(0, 256 << 10).unwrap();
    assert_eq!(free(&store), 256 << 10);
    store.execute(StoreOp::Truncate { file: blob, len: 64 << 10 }).unwrap();
    assert_eq!(free(&store), (512 - 64) << 10);
    store.execute(StoreOp::Delete { file: blob }).unwrap();
    store.execute(StoreOp::Delete { file: FileId::Log(1) }).unwrap();
    assert_eq!(free(&store), 1 << 20);
}

#[test]
fn space_that_is_set_aside_is_there_when_the_store_is_full() {
    let store = MemStore::new(1 << 20);
    let (blob, other) = (nacre_testkit::contract::blob(1), nacre_testkit::contract::blob(2));
    let write = |file, offset, len| {
        let data = vec![Bytes::from(vec![1; len])];
        store.execute(StoreOp::Write { file, offset, data })
    };
    store.execute(StoreOp::Allocate { file: blob, offset: 0, len: 512 << 10 }).unwrap();
    assert_eq!(write(other, 0, (512 << 10) + 1), Err(StoreError::NoSpace));
    write(other, 0, 512 << 10).unwrap();
    write(blob, 100_000, 4096).unwrap();
    store.execute(StoreOp::Zero { file: blob, offset: 0, len: 512 << 10 }).unwrap();
    write(blob, 0, 512 << 10).unwrap();
    assert_eq!(write(blob, 512 << 10, 1), Err(StoreError::NoSpace));
    store.execute(StoreOp::Punch { file: blob, offset: 0, len: 128 << 10 }).unwrap();
    write(other, 512 << 10, 128 << 10).unwrap();
    assert_eq!(write(blob, 0, 1), Err(StoreError::NoSpace), "its space was given back");
}
