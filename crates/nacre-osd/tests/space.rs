//! Space of small devices: what log, tables and memory hold of removed rows comes back.

#![allow(clippy::unwrap_used, reason = "a test")]

use nacre_node::{FileId, Store, StoreDone, StoreOp};
use nacre_osd::{Credits, Osd, OsdConfig, OsdError, Table};
use nacre_osd_mem::MemStore;
use nacre_testkit::OsdDrive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const T: Table = Table(33);
const MIB: u64 = 1 << 20;
const LEN: usize = 400;

/// The bounds of a large machine on a small device.
fn config() -> OsdConfig {
    OsdConfig { ballast_bytes: MIB, ..OsdConfig::default() }
}
fn open(store: &Arc<dyn Store>) -> OsdDrive {
    OsdDrive::format(store, &config(), false).unwrap();
    OsdDrive::open(store, &config()).unwrap()
}
async fn put(osd: &Osd, n: u32) -> Result<(), OsdError> {
    let key = n.to_be_bytes();
    let pins = osd.fetch(&[(T, &key)]).await?;
    let room = osd.reserve(Credits { rows: 1, row_bytes: 100 + LEN as u32, ..Credits::default() }).await?;
    osd.transact(&pins, room, |tx| {
        tx.put(T, &key, vec![n as u8; LEN]);
        Ok::<_, OsdError>(())
    })
    .map(drop)
}
async fn delete(osd: &Osd, n: u32) -> Result<(), OsdError> {
    let key = n.to_be_bytes();
    let pins = osd.fetch(&[(T, &key)]).await?;
    let room = osd.reserve(Credits { rows: 1, row_bytes: 100, frees: true, ..Credits::default() }).await?;
    osd.transact(&pins, room, |tx| {
        tx.delete(T, &key);
        Ok::<_, OsdError>(())
    })
    .map(drop)
}
/// Puts rows until there is no room; returns their number.
async fn fill(osd: Rc<Osd>) -> u32 {
    for n in 0.. {
        match put(&osd, n).await {
            Ok(()) => {}
            Err(OsdError::NoSpace { .. }) => return n,
            Err(error) => panic!("row {n}: {error}"),
        }
    }
    0
}
/// Deletes so many rows.
async fn empty(osd: Rc<Osd>, rows: u32) {
    for n in 0..rows {
        delete(&osd, n).await.unwrap();
    }
}
/// Lets the tasks in the background end what removals have begun.
async fn settle(osd: Rc<Osd>) {
    osd.ctx().sleep(Duration::from_secs(10)).await;
}
async fn avail(osd: Rc<Osd>) -> u64 {
    osd.space().await.unwrap().bytes_avail
}

#[test]
fn a_device_that_is_emptied_is_as_good_as_new() {
    let store: Arc<dyn Store> = Arc::new(MemStore::new(40 * MIB));
    let mut d = open(&store);
    let new = d.run(avail).unwrap();
    let mut fitted = Vec::new();
    for cycle in 0..5 {
        let rows = d.run(fill).unwrap();
        fitted.push(rows);
        d.run(move |osd| empty(osd, rows)).unwrap();
        d.run(settle).unwrap();
        let now = d.run(avail).unwrap();
        assert!(
            now >= new - new / 10,
            "cycle {cycle}: {now} of {new} bytes, {fitted:?} {:?}",
            d.osd().stats()
        );
    }
    assert!(fitted[0] > 5000 && fitted.iter().all(|n| *n >= fitted[0] / 10 * 9), "{fitted:?}");
}

#[test]
fn the_logs_of_targets_on_one_device_leave_its_space_to_each_other() {
    let device = MemStore::new(64 * MIB);
    let stores: [Arc<dyn Store>; 3] =
        [Arc::new(device.beside()), Arc::new(device.beside()), Arc::new(device.beside())];
    let mut targets: Vec<OsdDrive> = stores.iter().map(open).collect();
    let mut fitted = Vec::new();
    for cycle in 0..6 {
        let d = &mut targets[cycle % 3];
        let rows = d.run(fill).unwrap();
        d.run(move |osd| empty(osd, rows)).unwrap();
        d.run(settle).unwrap();
        fitted.push(rows);
    }
    assert!(fitted[0] > 5000 && fitted.iter().all(|n| *n >= fitted[0] / 10 * 8), "{fitted:?}");
    let logs: u64 = targets.iter().map(|d| d.osd().stats().log_bytes).sum();
    assert!(logs <= 64 * MIB / 8, "{logs}");
}

/// Takes what is free on the device, except so many bytes.
fn take(store: &Arc<dyn Store>, except: u64) -> FileId {
    let file = FileId::Blob(nacre_types::ObjectId { fid: nacre_types::Fid::ROOT, stripe: 0 });
    let piece = vec![vec![1; 4096].into()];
    for at in (0..).step_by(4096) {
        let StoreDone::Space(space) = store.execute(StoreOp::Space).unwrap() else { panic!() };
        if space.bytes_avail < except + 4096 {
            break;
        }
        store.execute(StoreOp::Write { file, offset: at, data: piece.clone() }).unwrap();
    }
    file
}

#[test]
fn a_change_is_not_refused_while_the_log_holds_the_space() {
    let device = MemStore::new(64 * MIB);
    let (store, other): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(device.beside()), Arc::new(device));
    let mut d = open(&store);
    take(&other, 9 * MIB);
    let written = d
        .run(|osd| async move {
            for n in 0..50_000 {
                put(&osd, n % 100).await?;
            }
            Ok::<_, OsdError>(())
        })
        .unwrap();
    assert_eq!(written, Ok(()), "{:?}", d.osd().stats());
    let ballast = store.execute(StoreOp::Len { file: FileId::Ballast });
    assert_eq!(ballast, Ok(StoreDone::Len(Some(MIB))), "nothing had to be released");
}

#[test]
fn a_target_is_emptied_although_others_have_filled_the_device() {
    let device = MemStore::new(64 * MIB);
    let (store, other): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(device.beside()), Arc::new(device));
    let mut d = open(&store);
    let rows = d
        .run(|osd| async move {
            for n in 0..8000 {
                put(&osd, n).await.unwrap();
            }
            osd.checkpoint().await.unwrap();
            8000
        })
        .unwrap();
    let blob = take(&other, 0);
    d.run(move |osd| empty(osd, rows)).unwrap();
    d.run(settle).unwrap();
    let s = d.osd().stats();
    assert!(s.run_bytes + s.log_bytes < 4 * MIB, "{s:?}");
    other.execute(StoreOp::Delete { file: blob }).unwrap();
    d.run(settle).unwrap();
    assert!(d.run(avail).unwrap() > 40 * MIB);
}

#[test]
fn rows_that_were_removed_leave_memory() {
    const ROWS: u32 = 20_000;
    let store: Arc<dyn Store> = Arc::new(MemStore::new(256 * MIB));
    let mut d = open(&store);
    let (flushed, left) = d
        .run(|osd| async move {
            for n in 0..ROWS {
                put(&osd, n).await.unwrap();
            }
            osd.checkpoint().await.unwrap();
            empty(osd.clone(), ROWS).await;
            osd.checkpoint().await.unwrap();
            settle(osd.clone()).await;
            let flushed = osd.stats();
            // These never reach a run: neither one by one nor as a range.
            for n in 0..ROWS {
                put(&osd, n).await.unwrap();
            }
            empty(osd.clone(), ROWS / 2).await;
            let mut pins = nacre_osd::Pins::default();
            osd.fetch_range(T, &[], &[], ROWS, &mut pins).await.unwrap();
            let room = osd.reserve(Credits { rows: 1, row_bytes: 100, ..Credits::default() }).await.unwrap();
            osd.transact(&pins, room, |tx| {
                tx.delete_range(T, &[], &[]);
                Ok::<_, OsdError>(())
            })
            .unwrap();
            drop(pins);
            for n in 0..ROWS / 10 {
                put(&osd, n % 100).await.unwrap();
            }
            (flushed, osd.stats())
        })
        .unwrap();
    assert!(flushed.rows_in_memory < 100 && flushed.runs <= 1, "{flushed:?}");
    assert!(left.rows_in_memory < 300, "{left:?}");
}
