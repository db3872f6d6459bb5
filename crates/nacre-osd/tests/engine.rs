//! The engine over a store in memory: what handlers may rely on.
#![allow(clippy::unwrap_used, reason = "a test")]

use nacre_node::Store;
use nacre_osd::{Credits, OsdConfig, OsdError, RowKey, Table, table};
use nacre_osd_mem::MemStore;
use nacre_testkit::OsdDrive;
use nacre_types::{Owner, Transno};
use std::sync::Arc;

const T: Table = Table(40);

fn store() -> Arc<dyn Store> {
    Arc::new(MemStore::new(1 << 30))
}
fn config() -> OsdConfig {
    OsdConfig { ballast_bytes: 1 << 20, ..OsdConfig::default() }
}
fn credits() -> Credits {
    Credits { rows: 4, row_bytes: 1000, ..Credits::default() }
}
fn fresh() -> (Arc<dyn Store>, OsdDrive) {
    let store = store();
    OsdDrive::format(&store, &config(), false).unwrap();
    let drive = OsdDrive::open(&store, &config()).unwrap();
    (store, drive)
}
fn put(d: &mut OsdDrive, key: &'static [u8], value: &'static [u8]) -> Transno {
    d.run(move |osd| async move {
        let pins = osd.fetch(&[(T, key)]).await.unwrap();
        let room = osd.reserve(credits()).await.unwrap();
        let done = osd.transact(&pins, room, |tx| {
            tx.put(T, key, value.to_vec());
            Ok::<_, ()>(())
        });
        done.unwrap().0
    })
    .unwrap()
}
fn get(d: &mut OsdDrive, key: &'static [u8]) -> Option<Vec<u8>> {
    d.run(move |osd| async move { osd.get(T, key).await.unwrap().map(|v| v.to_vec()) }).unwrap()
}

#[test]
fn rows_survive_a_kill_without_any_sync() {
    let (store, mut d) = fresh();
    assert_eq!(put(&mut d, b"a", b"1"), Transno(1));
    assert_eq!(put(&mut d, b"b", b"2"), Transno(2));
    drop(d);
    let mut d = OsdDrive::open(&store, &config()).unwrap();
    assert_eq!(get(&mut d, b"a").as_deref(), Some(&b"1"[..]));
    assert_eq!(d.osd().last_transno(), Transno(2));
    assert_eq!((d.osd().last_committed(), d.osd().was_clean()), (Transno(2), false));
    assert_eq!(put(&mut d, b"c", b"3"), Transno(3));
    d.run(|osd| async move { osd.stop().await.unwrap() }).unwrap();
    let mut d = OsdDrive::open(&store, &config()).unwrap();
    assert_eq!(get(&mut d, b"c").as_deref(), Some(&b"3"[..]));
    assert_eq!((d.osd().was_clean(), d.osd().instance()), (true, 3));
}

/// Rows that come into a range after it was fetched: by another transaction, by this one, and back by a rollback.
#[test]
fn a_range_that_was_empty_when_it_was_fetched_shows_rows_that_have_come_since() {
    let (_store, mut d) = fresh();
    put(&mut d, b"other", b"x");
    d.run(move |osd| async move {
        let mut pins = osd.fetch(&[]).await.unwrap();
        osd.fetch_range(T, b"r", b"s", 100, &mut pins).await.unwrap();
        let room = osd.reserve(credits()).await.unwrap();
        let done = osd.transact(&pins, room, |tx| {
            let count = |tx: &nacre_osd::Tx<'_>| tx.range(T, b"r", b"s").count();
            assert_eq!(count(tx), 0);
            tx.put(T, b"r1", b"1".to_vec());
            assert_eq!(count(tx), 1);
            let save = tx.save();
            tx.delete_range(T, b"r", b"s");
            assert_eq!(count(tx), 0);
            tx.roll_back(save);
            assert_eq!(count(tx), 1);
            Ok::<_, ()>(())
        });
        done.unwrap();
        // The same pins, later.
        let room = osd.reserve(credits()).await.unwrap();
        let seen = osd.transact(&pins, room, |tx| Ok::<_, ()>(tx.range(T, b"r", b"s").count()));
        assert_eq!(seen.unwrap().1, 1);
    })
    .unwrap();
}

/// Requests delete rows that most objects do not have.
#[test]
fn a_deletion_of_what_is_nowhere_is_not_logged() {
    let (store, mut d) = fresh();
    put(&mut d, b"a", b"1");
    put(&mut d, b"r1", b"x");
    d.run(move |osd| async move {
        let pins = osd.fetch(&[(T, b"a"), (T, b"b")]).await.unwrap();
        let room = osd.reserve(credits()).await.unwrap();
        osd.transact(&pins, room, |tx| {
            tx.delete(T, b"b");
            tx.delete(T, b"never fetched");
            tx.delete_range(T, b"b", b"r");
            assert_eq!(tx.written().0, 0);
            assert_eq!(tx.get(T, b"b"), None);
            tx.delete(T, b"a");
            tx.delete_range(T, b"r", b"s");
            assert_eq!(tx.written().0, 2);
            // This transaction has put and deleted it.
            tx.put(T, b"b", b"2".to_vec());
            tx.delete(T, b"b");
            assert_eq!((tx.written().0, tx.get(T, b"b")), (4, None));
            Ok::<_, ()>(())
        })
        .unwrap();
    })
    .unwrap();
    drop(d);
    let mut d = OsdDrive::open(&store, &config()).unwrap();
    assert_eq!((get(&mut d, b"a"), get(&mut d, b"b"), get(&mut d, b"r1")), (None, None, None));
    // Rows that only a run has, and nobody has read.
    put(&mut d, b"a", b"1");
    put(&mut d, b"r1", b"x");
    d.run(|osd| async move { osd.checkpoint().await.unwrap() }).unwrap();
    drop(d);
    let mut d = OsdDrive::open(&store, &config()).unwrap();
    assert_eq!(d.osd().stats().rows_in_memory, 0);
    d.run(move |osd| async move {
        let pins = osd.fetch(&[]).await.unwrap();
        let room = osd.reserve(credits()).await.unwrap();
        let deleted = osd.transact(&pins, room, |tx| {
            tx.delete(T, b"a");
            tx.delete_range(T, b"r", b"s");
            Ok::<_, ()>(tx.written().0)
        });
        assert_eq!(deleted.unwrap().1, 2);
    })
    .unwrap();
    assert_eq!((get(&mut d, b"a"), get(&mut d, b"r1")), (None, None));
}

#[test]
fn a_failed_change_leaves_nothing_and_a_failed_part_only_its_own() {
    let (store, mut d) = fresh();
    put(&mut d, b"a", b"1");
    put(&mut d, b"r1", b"x");
    let owner = Owner { uid: 1, gid: 2, projid: 3 };
    d.run(move |osd| async move {
        let mut pins = osd.fetch(&[(T, b"a"), (T, b"b")]).await.unwrap();
        osd.fetch_range(T, b"r", b"s", 100, &mut pins).await.unwrap();
        let room = osd.reserve(credits()).await.unwrap();
        let r: Result<(Transno, ()), u8> = osd.transact(&pins, room, |tx| {
            tx.put(T, b"a", b"changed".to_vec());
            tx.put(T, b"b", b"new".to_vec());
            tx.delete_range(T, b"r", b"s");
            tx.account(owner, 5, 5);
            assert_eq!(tx.get(T, b"a"), Some(&b"changed"[..]));
            assert_eq!(tx.range(T, b"r", b"s").count(), 0);
            Err(9)
        });
        assert_eq!(r, Err(9));
        let room = osd.reserve(credits()).await.unwrap();
        osd.transact(&pins, room, |tx| {
            assert_eq!(tx.get(T, b"a"), Some(&b"1"[..]));
            assert_eq!(tx.get(T, b"b"), None);
            assert_eq!(tx.range(T, b"r", b"s").collect::<Vec<_>>(), [(&b"r1"[..], &b"x"[..])]);
            assert!(!tx.is_pinned(T, b"q"));
            assert!(tx.is_pinned(T, b"r5"));
            tx.account(owner, 100, 1);
            let part = tx.attempt(|tx| {
                tx.put(T, b"q", b"gone".to_vec());
                tx.delete(T, b"a");
                tx.account(owner, 7, 7);
                Err::<(), _>("no")
            });
            assert_eq!(part, Err("no"));
            assert_eq!(tx.get(T, b"a"), Some(&b"1"[..]));
            tx.put(T, b"b", b"2".to_vec());
            Ok::<_, ()>(())
        })
        .unwrap();
    })
    .unwrap();
    assert_eq!(d.osd().last_transno(), Transno(3));
    drop(d);
    let mut d = OsdDrive::open(&store, &config()).unwrap();
    let rows = d.run(|osd| async move { osd.scan(T, b"", b"", 100).await.unwrap() }).unwrap();
    let keys: Vec<_> = rows.iter().map(|(k, _)| k.to_vec()).collect();
    assert_eq!(keys, [b"a".to_vec(), b"b".to_vec(), b"r1".to_vec()]);
    let usage = d.run(|osd| async move { osd.usage(1, 2).await.unwrap() }).unwrap();
    assert_eq!(usage, (100, 1));
    let rows = d.run(|osd| async move { osd.scan(table::ACCOUNTING, b"", b"", 9).await.unwrap() }).unwrap();
    assert_eq!(rows.len(), 3);
}

#[test]
fn commit_moves_the_committed_number_and_the_interval_does_it_alone() {
    let (_store, mut d) = fresh();
    let t = put(&mut d, b"a", b"1");
    assert!(d.osd().last_committed() < t);
    d.run(move |osd| async move { osd.commit(t).await.unwrap() }).unwrap();
    assert_eq!(d.osd().last_committed(), t);
    assert_eq!(d.osd().last_stable(), t);
    let t = put(&mut d, b"a", b"2");
    d.osd().begin_stable(Transno(t.0 - 1));
    let before = d.drive.now();
    while d.drive.step() {}
    assert_eq!(d.osd().last_committed(), t);
    assert_eq!(d.osd().last_stable(), Transno(t.0 - 1));
    let row = put(&mut d, b"stable", b"2");
    d.osd().note_stable(row, t);
    assert_eq!(d.osd().last_stable(), Transno(t.0 - 1), "not durable yet");
    while d.drive.step() {}
    assert_eq!(d.osd().last_stable(), t);
    assert!(d.drive.now() > before);
    let syncs = d.osd().stats().syncs;
    while d.drive.step() {}
    assert_eq!(d.osd().stats().syncs, syncs, "an idle engine does nothing");
    d.osd().raise_epoch();
    assert_eq!(put(&mut d, b"a", b"3"), Transno((1 << 32) + 1));
}

#[test]
fn a_held_store_is_not_formatted_again_unless_told() {
    let (store, d) = fresh();
    drop(d);
    let e = OsdDrive::format(&store, &config(), false).unwrap_err();
    assert!(matches!(&e, OsdError::Format(t) if t.contains("test-OST0000") && t.contains("--reformat")));
    OsdDrive::format(&store, &config(), true).unwrap();
    let mut d = OsdDrive::open(&store, &config()).unwrap();
    assert_eq!(get(&mut d, b"a"), None);
    let empty: Arc<dyn Store> = Arc::new(MemStore::new(1 << 30));
    assert!(matches!(OsdDrive::open(&empty, &config()), Err(OsdError::Format(t)) if t.contains("mkfs")));
}

/// A form that does not wait says that it would have to, and what has been fetched it finds.
#[test]
fn what_needs_no_read_is_there_at_once() {
    let store = store();
    let config = OsdConfig { dirty_bytes_max: 256 << 10, cache_bytes_max: 1, ..config() };
    OsdDrive::format(&store, &config, false).unwrap();
    let mut d = OsdDrive::open(&store, &config).unwrap();
    let key = |n: u32| [&n.to_be_bytes()[..], b"row"].concat();
    d.run(move |osd| async move {
        for n in 0..4000 {
            let pins = osd.fetch(&[(T, &key(n))]).await.unwrap();
            let room = osd.reserve(credits()).await.unwrap();
            let done = osd.transact(&pins, room, |tx| {
                tx.put(T, &key(n), vec![n as u8; 100]);
                Ok::<_, ()>(())
            });
            done.unwrap();
        }
    })
    .unwrap();
    d.run(move |osd| async move {
        let read = |n| osd.read_now(T, &key(n), |row| row.map(|row| row[0])).unwrap();
        let range = |n| {
            let mut rows = Vec::new();
            let pins = Default::default();
            let mut each = |_: &[u8], row: &bytes::Bytes| rows.push(row[0]);
            let all = osd.each_row_now(T, (&key(n), &key(n + 2)), 10, &pins, &mut each).unwrap();
            all.then_some(rows)
        };
        assert!(osd.stats().runs > 0);
        assert_eq!((read(1), range(1)), (None, None), "in a run only");
        assert_eq!((read(3999), read(70_000)), (Some(Some(3999u32 as u8)), Some(None)));
        let keys = [RowKey::new(T, &key(1))];
        let ranges = [(RowKey::new(T, &key(1)), RowKey::new(T, &key(3)))];
        assert!(osd.fetch_now(&keys, &[], 10).unwrap().is_none());
        assert!(osd.fetch_now(&[], &ranges, 10).unwrap().is_none());
        let pins = osd.fetch_set(&keys, &ranges, 10).await.unwrap();
        assert_eq!((read(1), read(2)), (Some(Some(1)), Some(Some(2))));
        assert!(osd.fetch_now(&keys, &[], 10).unwrap().is_some());
        let mut rows = Vec::new();
        let mut each = |_: &[u8], row: &bytes::Bytes| rows.push(row[0]);
        assert!(osd.each_row_now(T, (&key(1), &key(3)), 10, &pins, &mut each).unwrap());
        assert_eq!(rows, [1, 2]);
        let room = osd.reserve_now(credits()).expect("a little is used");
        assert!(osd.reserve_now(Credits { rows: 4000, ..credits() }).is_none(), "beyond half of the bound");
        drop(room);
    })
    .unwrap();
}
