//! Random transactions, reads, flushes, kills and reopenings against ordered maps.
#![allow(clippy::unwrap_used, reason = "a test")]

use nacre_node::{Rng, Store};
use nacre_osd::{Credits, Osd, OsdConfig, OsdStats, Pins, Table};
use nacre_osd_mem::MemStore;
use nacre_testkit::OsdDrive;
use nacre_types::Owner;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

const TABLES: [Table; 2] = [Table(40), Table(41)];

#[derive(Default, Clone)]
struct Model {
    tables: [Rows; 2],
    bytes: i64,
}

fn key(rng: &mut Rng) -> Vec<u8> {
    let dir = rng.below(6) as u8;
    let mut key = vec![dir; 12];
    key.extend((rng.below(60) * 16).to_be_bytes());
    if rng.below(10) == 0 {
        key.extend([1; 30]);
    }
    key
}
fn range(rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
    let (mut a, mut b) = (key(rng), key(rng));
    if rng.below(2) == 0 {
        b = a.clone();
        let last = b.len() - 1;
        b[last] = b[last].saturating_add(rng.below(40) as u8);
    }
    if a > b {
        std::mem::swap(&mut a, &mut b);
    }
    (a, b)
}
fn credits() -> Credits {
    Credits { rows: 8, row_bytes: 8 << 10, ..Credits::default() }
}

/// One transaction; half of the attempts inside fail, some as a whole.
async fn change(osd: &Osd, model: &mut Model, rng: &mut Rng) {
    let mut pins = Pins::default();
    let (from, to) = range(rng);
    let t = rng.below(2) as usize;
    osd.fetch_range(TABLES[t], &from, &to, 1000, &mut pins).await.unwrap();
    let keys: Vec<_> = (0..rng.below(5)).map(|_| (rng.below(2) as usize, key(rng))).collect();
    let wanted: Vec<_> = keys.iter().map(|(t, k)| (TABLES[*t], &k[..])).collect();
    pins.merge(osd.fetch(&wanted).await.unwrap());
    let room = osd.reserve(credits()).await.unwrap();
    let mut next = model.clone();
    let fails = rng.below(8) == 0;
    let done = osd.transact(&pins, room, |tx| {
        let got: Vec<_> = tx.range(TABLES[t], &from, &to).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        let want: Vec<_> = next.tables[t].range(from.clone()..to.clone()).collect();
        assert!(got.iter().map(|(k, v)| (k, v)).eq(want), "a pinned range differs");
        for (t, key) in &keys {
            assert_eq!(tx.get(TABLES[*t], key), next.tables[*t].get(key).map(|v| &v[..]));
            let save = next.clone();
            let part = tx.attempt(|tx| {
                for _ in 0..rng.below(3) {
                    match rng.below(5) {
                        0 => {
                            tx.delete(TABLES[*t], key);
                            next.tables[*t].remove(key);
                        }
                        1 => {
                            let (a, b) = range(rng);
                            tx.delete_range(TABLES[*t], &a, &b);
                            next.tables[*t].retain(|k, _| *k < a || *k >= b);
                        }
                        _ => {
                            let value = vec![rng.next_u64() as u8; rng.below(600) as usize];
                            tx.put(TABLES[*t], key, value.clone());
                            next.tables[*t].insert(key.clone(), value);
                        }
                    }
                }
                tx.account(Owner { uid: 5, gid: 6, projid: 7 }, 3, 0);
                next.bytes += 3;
                if rng.below(4) == 0 { Err(()) } else { Ok(()) }
            });
            if part.is_err() {
                next = save;
            }
            assert_eq!(tx.get(TABLES[*t], key), next.tables[*t].get(key).map(|v| &v[..]));
        }
        if fails { Err(()) } else { Ok(()) }
    });
    if done.is_ok() {
        *model = next;
    }
}

async fn compare(osd: &Osd, model: &Model, rng: &mut Rng) {
    for (t, want) in model.tables.iter().enumerate() {
        let got = osd.scan(TABLES[t], b"", b"", u32::MAX).await.unwrap();
        assert!(
            got.iter().map(|(k, v)| (&k[..], &v[..])).eq(want.iter().map(|(k, v)| (&k[..], &v[..]))),
            "table {t}: {} rows, {} expected",
            got.len(),
            want.len()
        );
        let (from, to) = range(rng);
        let limit = rng.below(12) as u32;
        let got = osd.scan(TABLES[t], &from, &to, limit).await.unwrap();
        let some = want.range(from..to).take(limit as usize);
        assert!(got.iter().map(|(k, v)| (&k[..], &v[..])).eq(some.map(|(k, v)| (&k[..], &v[..]))));
    }
    for _ in 0..20 {
        let (t, k) = (rng.below(2) as usize, key(rng));
        assert_eq!(osd.get(TABLES[t], &k).await.unwrap().as_deref(), model.tables[t].get(&k).map(|v| &v[..]));
    }
    assert_eq!(osd.usage(0, 5).await.unwrap().0, model.bytes as u64);
}

fn add(total: &mut OsdStats, life: &OsdStats) {
    total.flushes += life.flushes;
    total.merges += life.merges;
    total.cold_reads += life.cold_reads;
}

fn run(seed: u64, config: &OsdConfig, steps: u32) -> OsdStats {
    let mut total = OsdStats::default();
    let store: Arc<dyn Store> = Arc::new(MemStore::new(1 << 30));
    OsdDrive::format(&store, config, false).unwrap();
    let mut drive = OsdDrive::open(&store, config).unwrap();
    drive.drive.shuffle = Some(Rng::new(seed));
    let mut rng = Rng::new(seed);
    let mut model = Model::default();
    for _ in 0..steps {
        let what = rng.below(12);
        let mut state = (std::mem::take(&mut model), rng.clone());
        state = drive
            .run(move |osd: Rc<Osd>| async move {
                let (mut model, mut rng) = state;
                match what {
                    0 => compare(&osd, &model, &mut rng).await,
                    1 => osd.checkpoint().await.unwrap(),
                    2 => osd.commit(osd.last_transno()).await.unwrap(),
                    _ => {
                        for _ in 0..rng.below(12) {
                            change(&osd, &mut model, &mut rng).await;
                        }
                    }
                }
                (model, rng)
            })
            .expect("the engine lives");
        (model, rng) = state;
        if rng.below(25) == 0 {
            add(&mut total, &drive.osd().stats());
            if rng.below(2) == 0 {
                drive.run(|osd| async move { osd.stop().await.unwrap() }).unwrap();
            }
            drop(drive);
            drive = OsdDrive::open(&store, config).unwrap();
            drive.drive.shuffle = Some(Rng::new(rng.next_u64()));
        }
    }
    let (want, mut rng2) = (model.clone(), rng.clone());
    drive.run(move |osd| async move { compare(&osd, &want, &mut rng2).await }).unwrap();
    let stats = drive.osd().stats();
    assert_eq!((stats.account_underflows, stats.corrupt_blocks), (0, 0));
    add(&mut total, &stats);
    total
}

#[test]
fn everything_in_memory_is_as_the_model_says() {
    for seed in 0..3 {
        run(seed, &OsdConfig { ballast_bytes: 1 << 20, ..OsdConfig::default() }, 150);
    }
}

#[test]
fn runs_merges_and_evictions_change_nothing() {
    for seed in 100..104 {
        let config = OsdConfig {
            ballast_bytes: 1 << 20,
            dirty_bytes_max: 60 << 10,
            cache_bytes_max: 20 << 10,
            log_bytes_max: 1 << 20,
            bloom_prefixes: vec![(Table(40), 19)],
            ..OsdConfig::default()
        };
        let stats = run(seed, &config, 300);
        assert!(stats.flushes > 10 && stats.merges > 0 && stats.cold_reads > 500, "{stats:?}");
    }
}
