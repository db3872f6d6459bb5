//! Byte objects against a model of plain byte vectors: random changes, restarts, crashes, concurrent writers.

use bytes::Bytes;
use nacre_node::{FileId, FileKind, Rng, Store, StoreDone, StoreError, StoreOp};
use nacre_osd::checksum::block_checksum;
use nacre_osd::object_rows::{BlockRow, block_key, region_of_key};
use nacre_osd::{
    BLOCK_BYTES, OBJECT_BYTES_MAX, ObjectRow, Objects, ObjectsConfig, Osd, OsdConfig, OsdError, Pins,
    Prepared, STABLE_KEY, Stamp, UNVERIFIED_KEY, table,
};
use nacre_testkit::{CrashDevice, Fault, FaultOp, OsdDrive};
use nacre_types::{Errno, Fid, ObjectId, Oid, Owner, Seq, Timestamp};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

fn object(n: u32) -> ObjectId {
    ObjectId { fid: Fid::new(Seq(0x100), Oid(n)), stripe: n % 2 }
}
fn owner(n: u32) -> Owner {
    Owner { uid: 1000 + n, gid: 100, projid: 0 }
}
fn stamp(n: u32) -> Stamp {
    Stamp { owner: owner(n), mtime: Timestamp::from_nanos(i128::from(n) * 1_000_000_000) }
}
/// These changes have no deadline.
fn at_any_time() -> Result<(), Errno> {
    Ok(())
}
fn config() -> OsdConfig {
    // A small log: it is read whole at each restart.
    OsdConfig { ballast_bytes: 1 << 16, log_bytes_max: 4 << 20, ..OsdConfig::default() }
}

/// One life of a target: engine and object layer.
struct Target {
    device: CrashDevice,
    store: Arc<dyn Store>,
    drive: OsdDrive,
    objects: Rc<Objects>,
}

impl Target {
    fn format(device: &CrashDevice) -> Self {
        Self::format_with(device, &config())
    }
    fn format_with(device: &CrashDevice, config: &OsdConfig) -> Self {
        OsdDrive::format(&device.store(), config, false).expect("formats");
        Self::open_with(device, config)
    }
    fn open(device: &CrashDevice) -> Self {
        Self::open_with(device, &config())
    }
    fn open_with(device: &CrashDevice, config: &OsdConfig) -> Self {
        Self::start(device, config, false)
    }
    /// `machine_was_lost`: what the target writes at such a start before the objects are looked at.
    fn start(device: &CrashDevice, config: &OsdConfig, machine_was_lost: bool) -> Self {
        let store = device.store();
        let mut drive = OsdDrive::open(&store, config).expect("opens");
        if machine_was_lost {
            drive.run(|osd| async move { note_loss(&osd).await }).expect("lives").expect("notes");
        }
        let objects = drive
            .run(
                |osd| async move { Objects::start(&osd.ctx().clone(), &osd, ObjectsConfig::default()).await },
            )
            .expect("lives")
            .expect("starts");
        Self { device: device.clone(), store, drive, objects }
    }
    fn run<T: 'static, F: Future<Output = T> + 'static>(&mut self, task: impl FnOnce(Rc<Objects>) -> F) -> T {
        let objects = self.objects.clone();
        self.drive.run(|_| task(objects)).expect("the island lives")
    }
    /// Lets background work come to its end.
    fn settle(&mut self) {
        while self.drive.drive.step() {}
    }
    /// The process dies and comes back.
    fn kill(self) -> Self {
        self.device.kill_process();
        Self::open(&self.device)
    }
    fn power_loss(self, rng: &mut Rng) -> Self {
        self.device.power_loss(rng);
        Self::start(&self.device, &config(), true)
    }
    /// The recovery is over: nobody puts bytes back any more.
    fn start_rechecksum(&mut self) {
        self.objects.start_rechecksum();
        self.settle();
    }
    fn damage(&self, op: StoreOp) {
        self.store.execute(op).expect("damages");
    }

    fn write(&mut self, object: ObjectId, offset: u64, data: Vec<u8>) -> Result<ObjectRow, OsdError> {
        self.run(move |o| async move {
            let prepared = o.prepare_write(object, offset, vec![Bytes::from(data)], &at_any_time).await?;
            commit(&o, prepared, stamp(object.fid.oid.0)).await
        })
    }
    fn truncate(&mut self, object: ObjectId, size: u64) -> Result<ObjectRow, OsdError> {
        self.run(move |o| async move {
            let prepared = o.prepare_truncate(object, size).await?;
            commit(&o, prepared, stamp(object.fid.oid.0)).await
        })
    }
    fn allocate(
        &mut self,
        object: ObjectId,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<ObjectRow, OsdError> {
        self.run(move |o| async move {
            let stamp = stamp(object.fid.oid.0);
            let prepared = o.prepare_allocate(object, offset, len, keep_size, &stamp, &at_any_time).await?;
            commit(&o, prepared, stamp).await
        })
    }
    fn destroy(&mut self, object: ObjectId) -> Result<ObjectRow, OsdError> {
        self.run(move |o| async move {
            let prepared = o.prepare_destroy(object).await?;
            commit(&o, prepared, Stamp::default()).await
        })
    }
    fn sync(&mut self, object: ObjectId) -> Result<(), OsdError> {
        self.run(move |o| async move { o.sync(object).await })
    }
    fn read(&mut self, object: ObjectId, offset: u64, len: u32) -> Result<(ObjectRow, Vec<u8>), OsdError> {
        self.run(move |o| async move {
            let (row, bytes) = o.read(object, offset, len).await?;
            Ok((row, bytes.concat()))
        })
    }
    fn usage(&mut self, n: u32) -> (u64, u64) {
        self.drive.run(move |osd| async move { osd.usage(0, 1000 + n).await.expect("usage") }).expect("lives")
    }
    fn blob_len(&self, object: ObjectId) -> Option<u64> {
        match self.store.execute(StoreOp::Len { file: FileId::Blob(object) }) {
            Ok(StoreDone::Len(len)) => len,
            other => panic!("{other:?}"),
        }
    }

    /// Block rows: allocated blocks, and every sum that does not fit its bytes.
    fn check_rows(&mut self, object: ObjectId) -> (u64, Vec<u64>) {
        let rows = self
            .drive
            .run(move |osd| async move {
                let (from, to) = (block_key(object, 0), block_key(object, u64::MAX));
                osd.scan(table::BLOCK, &from, &to, u32::MAX).await.expect("rows")
            })
            .expect("lives");
        let mut allocated = 0;
        let mut wrong = Vec::new();
        for (key, value) in rows {
            let region = region_of_key(&key).expect("a key");
            let row = BlockRow::decode(&value).expect("a row");
            assert_ne!(row.allocated, 0, "an empty row stays behind");
            allocated += u64::from(row.allocated.count_ones());
            for i in 0..64 {
                let block = region * 64 + i;
                if row.is_written(block) {
                    let (_, bytes) = self.read(object, block * BLOCK_BYTES, 4096).expect("reads");
                    if block_checksum(&bytes) != row.sums[i as usize] {
                        wrong.push(block);
                    }
                }
            }
        }
        (allocated, wrong)
    }
}

async fn note_loss(osd: &Rc<Osd>) -> Result<(), OsdError> {
    if osd.was_clean() || osd.get(table::TARGET, UNVERIFIED_KEY).await?.is_some() {
        return Ok(());
    }
    let stable = osd.get(table::TARGET, STABLE_KEY).await?.map_or_else(|| vec![0; 8], |row| row.to_vec());
    let room = osd.reserve(Objects::small_credits(true)).await?;
    osd.transact(&Pins::default(), room, |tx| {
        tx.put(table::TARGET, UNVERIFIED_KEY, stable);
        Ok(())
    })
    .map(drop)
}
async fn commit(o: &Rc<Objects>, mut prepared: Prepared, stamp: Stamp) -> Result<ObjectRow, OsdError> {
    let pins = prepared.take_pins();
    let room = osd_of(o).reserve(prepared.credits()).await?;
    let (_, row) = osd_of(o).transact(&pins, room, |tx| prepared.apply(tx, &stamp))?;
    Ok(row)
}
fn osd_of(o: &Rc<Objects>) -> &Rc<nacre_osd::Osd> {
    o.osd()
}

/// What an object should be.
#[derive(Clone, Default)]
struct Model {
    bytes: Vec<u8>,
    /// Allocated blocks.
    blocks: std::collections::BTreeSet<u64>,
}
impl Model {
    fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset as usize..end].copy_from_slice(data);
        self.blocks.extend(offset / BLOCK_BYTES..(end as u64).div_ceil(BLOCK_BYTES));
    }
    fn truncate(&mut self, size: u64) {
        // Like the kernel's file systems: growing keeps what was allocated beyond the size.
        if size as usize <= self.bytes.len() {
            self.blocks.retain(|&b| b < size.div_ceil(BLOCK_BYTES));
        }
        self.bytes.resize(size as usize, 0);
    }
    fn allocate(&mut self, offset: u64, len: u64, keep_size: bool) {
        self.blocks.extend(offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES));
        if !keep_size && self.bytes.len() < (offset + len) as usize {
            self.bytes.resize((offset + len) as usize, 0);
        }
    }
}

/// A random place: mostly near the size and borders of blocks, sometimes beyond a region.
fn place(rng: &mut Rng, size: u64) -> u64 {
    match rng.below(6) {
        0 => size,
        1 => size.saturating_sub(rng.below(5000)),
        2 => rng.below(40) * BLOCK_BYTES,
        3 => rng.below(400_000),
        4 => (256 << 10) - 3000 + rng.below(6000),
        _ => rng.below(30_000),
    }
}
fn data(rng: &mut Rng, step: u64) -> Vec<u8> {
    let n = match rng.below(4) {
        0 => 1 + rng.below(100),
        1 => 4096 * (1 + rng.below(4)),
        2 => 1 + rng.below(80_000),
        _ => 1 + rng.below(5000),
    };
    (0..n).map(|i| (step * 31 + i % 7 + 1) as u8).collect()
}

/// One random change of target and model.
fn change(t: &mut Target, models: &mut BTreeMap<ObjectId, Model>, rng: &mut Rng, step: u64) -> ObjectId {
    let id = object(rng.below(3) as u32);
    let model = models.entry(id).or_default();
    let size = model.bytes.len() as u64;
    let row = match rng.below(10) {
        0..=4 => {
            let (offset, data) = (place(rng, size), data(rng, step));
            model.write(offset, &data);
            t.write(id, offset, data)
        }
        5..=7 => {
            let size = place(rng, size);
            model.truncate(size);
            t.truncate(id, size)
        }
        8 => {
            let (offset, len, keep) = (place(rng, size), 1 + rng.below(50_000), rng.below(2) == 0);
            model.allocate(offset, len, keep);
            t.allocate(id, offset, len, keep)
        }
        _ => {
            *model = Model::default();
            t.destroy(id).map(|_| ObjectRow::default())
        }
    };
    let row = row.expect("changes");
    assert_eq!(row.size, model.bytes.len() as u64, "step {step}");
    assert_eq!(row.blocks, model.blocks.len() as u64 * 8, "step {step}");
    id
}

fn compare(t: &mut Target, id: ObjectId, model: &Model, what: &str) {
    let (row, bytes) = t.read(id, 0, 2 << 20).expect("reads");
    assert_eq!((row.size, bytes.len()), (model.bytes.len() as u64, model.bytes.len()), "{what}");
    let differ = bytes.iter().zip(&model.bytes).position(|(a, b)| a != b);
    assert_eq!(differ, None, "{what}: first wrong byte");
    let (allocated, wrong) = t.check_rows(id);
    assert_eq!((allocated, row.blocks), (model.blocks.len() as u64, allocated * 8), "{what}");
    assert_eq!(wrong, [], "{what}: sums");
}

#[test]
fn random_changes_and_restarts_match_a_model() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let mut models = BTreeMap::new();
        for step in 0..120 {
            let id = change(&mut t, &mut models, &mut rng, step);
            match rng.below(12) {
                0 => t = t.kill(),
                1 => t.settle(),
                2 => t.sync(id).expect("syncs"),
                _ => {}
            }
            let what = format!("seed {seed}, step {step}, {id}");
            if rng.below(3) == 0 {
                compare(&mut t, id, &models[&id], &what);
            }
            let model = &models[&id];
            let (from, n) = (place(&mut rng, model.bytes.len() as u64), rng.below(20_000));
            let (_, got) = t.read(id, from, n as u32).expect("reads");
            let expected = model.bytes.iter().skip(from as usize).take(n as usize);
            assert!(got.iter().eq(expected), "{what}: read of {n} at {from}");
        }
        for (id, model) in &models {
            compare(&mut t, *id, model, &format!("seed {seed}, end, {id}"));
        }
        for n in 0..3 {
            let model = models.get(&object(n));
            let bytes = model.map_or(0, |m| m.blocks.len() as u64 * BLOCK_BYTES);
            assert_eq!(t.usage(n).0, bytes, "seed {seed}: account of {n}");
        }
        t.settle();
        let reclaim = t.drive.run(|osd| async move { osd.scan(table::RECLAIM, &[], &[], 10).await.unwrap() });
        assert_eq!(reclaim.unwrap().len(), 0, "nothing is left to cut");
        for n in 0..3 {
            let end = models.get(&object(n)).and_then(|m| m.blocks.last().map(|b| (b + 1) * BLOCK_BYTES));
            let size = models.get(&object(n)).map_or(0, |m| m.bytes.len() as u64);
            assert!(
                t.blob_len(object(n)).unwrap_or(0) <= end.unwrap_or(0).max(size),
                "seed {seed}: {n} is cut"
            );
        }
    }
}

#[test]
fn what_was_synced_survives_the_machine_and_the_rest_is_some_version() {
    for seed in 0..30 {
        let mut rng = Rng::new(1000 + seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let mut models: BTreeMap<ObjectId, Model> = BTreeMap::new();
        // Every version ever: where bytes of a write that is in the log were lost, older ones may show.
        let mut history: BTreeMap<ObjectId, Vec<Vec<u8>>> = BTreeMap::new();
        for round in 0..4 {
            // Every version since the last sync of each object, and which blocks were written since.
            let mut versions: BTreeMap<ObjectId, Vec<Vec<u8>>> = BTreeMap::new();
            for n in 0..3 {
                t.sync(object(n)).expect("syncs");
                let model = models.entry(object(n)).or_default();
                versions.insert(object(n), vec![model.bytes.clone()]);
            }
            for step in 0..rng.below(12) {
                let id = change(&mut t, &mut models, &mut rng, step + round * 50);
                let list = versions.get_mut(&id).expect("all are there");
                if rng.below(5) == 0 {
                    t.sync(id).expect("syncs");
                    // The log was synced for all, but the bytes of this object only.
                    list.clear();
                }
                list.push(models[&id].bytes.clone());
                history.entry(id).or_default().push(models[&id].bytes.clone());
                if rng.below(6) == 0 {
                    t.settle();
                }
            }
            t = t.power_loss(&mut rng);
            if round % 2 == 0 {
                t.start_rechecksum();
            }
            for n in 0..3 {
                let id = object(n);
                let (row, got) = t.read(id, 0, 2 << 20).expect("reads");
                let list = &versions[&id];
                let what = format!("seed {seed}, round {round}, {id}");
                assert!(list.iter().any(|v| v.len() as u64 == row.size), "{what}: size {}", row.size);
                let old = history.entry(id).or_default();
                for (i, byte) in got.iter().enumerate() {
                    let at = |v: &Vec<u8>| v.get(i).copied().unwrap_or(0);
                    if list.iter().any(|v| at(v) == *byte) {
                        continue;
                    }
                    let changed = list.iter().any(|v| v.get(i) != list[0].get(i));
                    let is_old = *byte == 0 || old.iter().any(|v| at(v) == *byte);
                    assert!(changed && is_old, "{what}: byte {i} is {byte}");
                }
                old.push(got.clone());
                // Go on from what there is.
                let model = models.entry(id).or_default();
                model.bytes = got;
                let rows = t.drive.run(move |osd| async move {
                    let (from, to) = (block_key(id, 0), block_key(id, u64::MAX));
                    osd.scan(table::BLOCK, &from, &to, u32::MAX).await.unwrap()
                });
                model.blocks.clear();
                for (key, value) in rows.expect("lives") {
                    let region = region_of_key(&key).expect("a key");
                    let row = BlockRow::decode(&value).expect("a row");
                    model
                        .blocks
                        .extend((0..64).filter(|i| row.allocated & (1 << i) != 0).map(|i| region * 64 + i));
                }
            }
        }
    }
}

#[test]
fn concurrent_writers_of_one_object_end_in_the_order_of_their_transnos() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.drive.drive.shuffle = Some(Rng::new(seed + 7));
        let id = object(1);
        let log = Rc::new(std::cell::RefCell::new(BTreeMap::new()));
        let mut model = Model::default();
        for round in 0..5 {
            for i in 0..8 {
                let (o, log) = (t.objects.clone(), log.clone());
                let size = model.bytes.len() as u64;
                let (offset, bytes, is_cut) =
                    (place(&mut rng, size), data(&mut rng, round * 8 + i), rng.below(5) == 0);
                let gives_up = rng.below(8) == 0;
                t.drive.start(move |osd| async move {
                    let mut prepared = if is_cut {
                        o.prepare_truncate(id, offset).await.expect("prepares")
                    } else {
                        o.prepare_write(id, offset, vec![Bytes::from(bytes.clone())], &at_any_time)
                            .await
                            .expect("prepares")
                    };
                    if gives_up && is_cut {
                        return;
                    }
                    let pins = prepared.take_pins();
                    let room = osd.reserve(prepared.credits()).await.expect("room");
                    let (transno, _) =
                        osd.transact(&pins, room, |tx| prepared.apply(tx, &stamp(1))).expect("applies");
                    log.borrow_mut().insert(transno, (offset, bytes, is_cut));
                });
            }
            t.settle();
            for (_, (offset, bytes, is_cut)) in log.take() {
                if is_cut {
                    model.truncate(offset);
                } else {
                    model.write(offset, &bytes);
                }
            }
            compare(&mut t, id, &model, &format!("seed {seed}, round {round}"));
        }
    }
}

#[test]
fn a_write_that_is_given_up_leaves_sums_that_fit() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(object(1), 0, vec![1; 10_000]).expect("writes");
    for id in [object(1), object(2)] {
        t.run(move |o| async move {
            let mut prepared = o
                .prepare_write(id, 5000, vec![Bytes::from(vec![2; 9000])], &at_any_time)
                .await
                .expect("prepares");
            drop(prepared.take_pins());
            drop(prepared);
        });
    }
    t.settle();
    let (row, bytes) = t.read(object(1), 0, 100_000).expect("reads");
    assert_eq!((row.size, row.blocks), (10_000, 24), "it never was");
    assert!(bytes[..5000].iter().all(|&b| b == 1));
    assert!(t.blob_len(object(1)).expect("is there") <= 12_288, "new blocks are given back");
    t.truncate(object(1), 14_000).expect("truncates");
    assert_eq!(
        t.read(object(1), 10_000, 4000).expect("reads").1,
        [0; 4000],
        "its bytes do not come to light"
    );
    assert_eq!(t.check_rows(object(1)).1, []);
    // Nobody knew whose the other one was: it does not exist, and neither do its bytes.
    assert_eq!(t.read(object(2), 0, 100).expect("reads").0, ObjectRow::default());
    assert_eq!(t.blob_len(object(2)), None);
}

#[test]
fn a_truncate_or_destroy_touches_the_blob_only_when_it_is_durable() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    for n in 0..2 {
        t.write(object(n), 0, vec![5; 50_000]).expect("writes");
        t.sync(object(n)).expect("syncs");
    }
    // Whatever is in the log from now on is lost.
    t.device.barrier();
    t.truncate(object(0), 100).expect("truncates");
    t.destroy(object(1)).expect("destroys");
    assert_eq!(t.usage(1), (0, 0));
    assert_eq!((t.blob_len(object(0)), t.blob_len(object(1))), (Some(53_248), Some(53_248)));
    let mut lost = t.kill();
    assert_eq!(lost.read(object(0), 0, 100_000).expect("reads").1, vec![5; 50_000]);
    assert_eq!(lost.read(object(1), 0, 100_000).expect("reads").1, vec![5; 50_000]);
    lost.truncate(object(0), 100).expect("truncates");
    lost.destroy(object(1)).expect("destroys");
    lost.settle();
    assert_eq!(lost.blob_len(object(1)), None);
    assert!(lost.blob_len(object(0)).expect("is there") <= BLOCK_BYTES);
    // A late write makes it anew.
    lost.write(object(1), 10, vec![9; 5]).expect("writes");
    assert_eq!(lost.read(object(1), 0, 100).expect("reads").1, [[0; 10].as_slice(), &[9; 5]].concat());
}

#[test]
fn sizes_up_to_the_last_byte_of_an_offset_work() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    let id = object(1);
    let row = t.write(id, OBJECT_BYTES_MAX - 3, vec![7; 3]).expect("writes");
    assert_eq!((row.size, row.blocks), (OBJECT_BYTES_MAX, 8));
    assert_eq!(t.read(id, OBJECT_BYTES_MAX - 5, 100).expect("reads").1, [0, 0, 7, 7, 7]);
    assert_eq!(t.read(id, u64::MAX - 1, 100).expect("reads").1, []);
    assert_eq!(t.write(id, OBJECT_BYTES_MAX - 3, vec![7; 4]), Err(OsdError::TooLarge(id)));
    assert_eq!(t.write(id, u64::MAX - 1, vec![7; 4]), Err(OsdError::TooLarge(id)));
    assert_eq!(t.truncate(id, OBJECT_BYTES_MAX + 1), Err(OsdError::TooLarge(id)));
    t.write(id, 16 << 40, vec![1; 5000]).expect("writes");
    assert_eq!(t.truncate(id, (16 << 40) + 10).expect("truncates").blocks, 8);
    assert_eq!(t.truncate(id, OBJECT_BYTES_MAX).expect("truncates").size, OBJECT_BYTES_MAX);
    assert_eq!(t.read(id, (16 << 40) + 8, 4).expect("reads").1, [1, 1, 0, 0]);
    assert_eq!(t.check_rows(id).1, []);
}

#[test]
fn a_long_allocation_takes_several_transactions_and_one_account() {
    let big_log = OsdConfig { log_bytes_max: 64 << 20, ..config() };
    let mut t = Target::format_with(&CrashDevice::new(u64::MAX), &big_log);
    let row = t.allocate(object(1), 100, 9 << 30, false).expect("allocates");
    assert_eq!((row.size, row.blocks), ((9 << 30) + 100, (9 << 21) + 8));
    assert_eq!(t.usage(1), ((9 << 30) + 4096, 1));
    let row = t.truncate(object(1), 5000).expect("truncates");
    assert_eq!(row.blocks, 16);
    assert_eq!(t.usage(1), (8192, 1));
}

#[test]
fn usage_follows_the_owner() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(object(1), 0, vec![1; 5000]).expect("writes");
    t.run(move |o| async move {
        let prepared = o.prepare_set_owner(object(1), owner(2)).await.expect("prepares");
        commit(&o, prepared, Stamp::default()).await.expect("applies");
        let prepared = o.prepare_set_owner(object(3), owner(2)).await.expect("prepares");
        commit(&o, prepared, Stamp::default()).await.expect("applies");
    });
    t.write(object(1), 8192, vec![1; 1]).expect("writes");
    assert_eq!((t.usage(1), t.usage(2)), ((0, 0), (3 * 4096, 1)));
    let mtime = t.read(object(1), 0, 1).expect("reads").0.mtime;
    assert_eq!(mtime, stamp(1).mtime, "a change of owner is no write");
}

#[test]
fn a_failed_sync_takes_the_object_out_of_use_and_nothing_else() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    for n in 0..2 {
        t.write(object(n), 0, vec![1; 5000]).expect("writes");
    }
    let error = StoreError::Device("EIO".into());
    t.device.fail(Fault { op: FaultOp::Sync, on: Some(FileKind::Blob), nth: 1, error });
    assert_eq!(t.sync(object(0)), Err(OsdError::Quarantined(object(0))));
    assert_eq!(t.sync(object(1)), Ok(()));
    let mut t = t.kill();
    assert_eq!(t.read(object(0), 0, 10), Err(OsdError::Quarantined(object(0))));
    assert_eq!(t.write(object(0), 0, vec![1]), Err(OsdError::Quarantined(object(0))));
    assert_eq!(t.read(object(1), 0, 3).expect("reads").1, [1; 3]);
    t.destroy(object(0)).expect("destroys");
    assert_eq!(t.read(object(0), 0, 10).expect("reads").0, ObjectRow::default());
}

#[test]
fn a_full_device_refuses_the_write_and_keeps_what_was_there() {
    let device = CrashDevice::new(u64::MAX);
    let mut t = Target::format(&device);
    t.write(object(1), 0, vec![1; 5000]).expect("writes");
    t.settle();
    device.fail(Fault { op: FaultOp::Write, on: Some(FileKind::Blob), nth: 1, error: StoreError::NoSpace });
    assert_eq!(t.write(object(1), 4000, vec![2; 90_000]), Err(OsdError::NoSpace { needed_bytes: 90_000 }));
    let (row, bytes) = t.read(object(1), 0, 1 << 20).expect("reads");
    assert_eq!((row.size, bytes), (5000, vec![1; 5000]));
    assert_eq!(t.check_rows(object(1)).1, []);
    t.write(object(1), 4000, vec![2; 90_000]).expect("there is room again");
    assert_eq!(t.check_rows(object(1)), (23, vec![]));
}

#[test]
fn background_write_back_moves_the_stable_number() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    let row = t.write(object(1), 0, vec![1; 5000]).expect("writes");
    assert_eq!(t.objects.oldest_unstable().map(|t| t.0), Some(row.version));
    t.settle();
    assert_eq!(t.objects.oldest_unstable(), None);
    assert!(t.drive.osd().last_stable().0 >= row.version);
    let mut t = t.power_loss(&mut Rng::new(3));
    assert_eq!(t.read(object(1), 0, 1 << 20).expect("reads").1, vec![1; 5000]);
    t.write(object(1), 0, vec![2; 5000]).expect("writes");
    t.run(|o| async move {
        o.stop().await;
        o.osd().stop().await.expect("stops");
    });
    let mut t = t.power_loss(&mut Rng::new(4));
    assert_eq!(t.read(object(1), 0, 1 << 20).expect("reads").1, vec![2; 5000]);
}

/// Bytes and rows.
fn make_durable(t: &mut Target) {
    t.run(|o| async move {
        o.sync_all().await.expect("syncs");
        o.osd().commit(o.osd().last_transno()).await.expect("commits");
    });
}

/// What lay beyond a size is overwritten before it becomes part of the object, and that is synced like any write.
#[test]
fn bytes_that_were_cut_off_do_not_come_back_with_a_lost_machine() {
    for seed in 0..20 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 3000]).expect("writes");
        t.sync(object(1)).expect("syncs");
        t.truncate(object(1), 700).expect("cuts");
        t.truncate(object(1), 2500).expect("grows");
        make_durable(&mut t);
        let mut t = t.power_loss(&mut Rng::new(seed));
        let (row, bytes) = t.read(object(1), 0, 1 << 20).expect("reads");
        assert_eq!((row.size, &bytes[..700]), (2500, &[1; 700][..]));
        assert!(bytes.len() == 2500 && bytes[700..].iter().all(|b| *b == 0), "seed {seed}");
    }
}

/// The same of a write beyond the size whose client makes it again.
#[test]
fn a_write_that_is_put_back_has_its_zeros_before_it() {
    for seed in 0..20 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 3000]).expect("writes");
        t.truncate(object(1), 700).expect("cuts");
        make_durable(&mut t);
        t.write(object(1), 1000, vec![2; 100]).expect("writes");
        t.run(|o| async move { o.osd().commit(o.osd().last_transno()).await.expect("commits") });
        let mut t = t.power_loss(&mut Rng::new(seed));
        t.run(|o| async move {
            o.restore(object(1), 1000, &[Bytes::from(vec![2; 100])]).await.expect("puts back");
        });
        let (row, bytes) = t.read(object(1), 0, 1 << 20).expect("reads");
        assert_eq!((row.size, &bytes[..700]), (1100, &[1; 700][..]), "seed {seed}");
        assert!(bytes[700..1000].iter().all(|b| *b == 0), "seed {seed}");
        assert_eq!(bytes[1000..], [2; 100], "seed {seed}");
    }
}

/// The same of an overwrite that a kill has cut off: its bytes lie beyond the size, and no row tells of them.
#[test]
fn bytes_of_a_write_that_a_kill_has_cut_off_do_not_come_back_with_a_lost_machine() {
    for seed in 0..20 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 700]).expect("writes");
        t.settle();
        t.run(|o| async move {
            let cut_off =
                o.prepare_write(object(1), 700, vec![Bytes::from(vec![2; 2300])], &at_any_time).await;
            core::mem::forget(cut_off.expect("prepares"));
        });
        let mut t = t.kill();
        t.truncate(object(1), 2500).expect("grows");
        make_durable(&mut t);
        let mut t = t.power_loss(&mut Rng::new(seed));
        let (row, bytes) = t.read(object(1), 0, 1 << 20).expect("reads");
        assert_eq!((row.size, &bytes[..700]), (2500, &[1; 700][..]), "seed {seed}");
        assert!(bytes.len() == 2500 && bytes[700..].iter().all(|b| *b == 0), "seed {seed}");
    }
}

/// A write soon after a cut puts zeros before its bytes: in the block that was cut, or in one that is a hole by now.
#[test]
fn a_write_beyond_a_cut_does_not_bring_back_what_was_cut_off() {
    for (seed, (written, size, at)) in (0..40).zip([(3000, 700, 1000), (12_288, 4096, 9000)].iter().cycle()) {
        let (size, at) = (*size, *at);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; *written]).expect("writes");
        t.sync(object(1)).expect("syncs");
        t.truncate(object(1), size as u64).expect("cuts");
        t.write(object(1), at as u64, vec![2; 100]).expect("writes");
        t.run(|o| async move { o.osd().commit(o.osd().last_transno()).await.expect("commits") });
        let mut t = t.power_loss(&mut Rng::new(seed));
        t.run(move |o| async move {
            o.restore(object(1), at as u64, &[Bytes::from(vec![2; 100])]).await.expect("puts back");
        });
        let (row, bytes) = t.read(object(1), 0, 1 << 20).expect("reads");
        assert_eq!((row.size as usize, &bytes[..size]), (at + 100, &vec![1; size][..]), "seed {seed}");
        assert!(bytes[size..at].iter().all(|b| *b == 0), "seed {seed}");
        assert_eq!(bytes[at..], [2; 100], "seed {seed}");
    }
}

/// A killed process leaves bytes in the kernel's cache: they are not called stable before they are synced.
#[test]
fn after_a_kill_nothing_is_called_stable_that_a_lost_machine_would_take() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let first = t.write(object(1), 0, vec![1; 5000]).expect("writes");
        t.settle();
        t.settle();
        assert!(t.drive.osd().last_stable().0 >= first.version);
        let second = t.write(object(2), 0, vec![2; 50_000]).expect("writes");
        let mut t = t.kill();
        let stable = t.drive.osd().last_stable().0;
        assert!((first.version..second.version).contains(&stable), "{stable}");
        assert!(t.objects.oldest_unstable().is_some_and(|oldest| oldest.0 <= second.version));
        // A sync of the whole target covers what the former process wrote.
        t.run(|o| async move {
            o.sync_all().await.expect("syncs");
            let osd = o.osd().clone();
            osd.commit(osd.last_transno()).await.expect("commits");
        });
        let mut t = t.power_loss(&mut rng);
        assert_eq!(t.read(object(2), 0, 1 << 20).expect("reads").1, vec![2; 50_000], "seed {seed}");
        t.settle();
        t.settle();
        assert!(t.drive.osd().last_stable().0 >= second.version);
    }
}

type Models = BTreeMap<ObjectId, Model>;

/// Runs a script of changes until the device stops; answers the states after each acknowledged change, the first
/// being the empty one, and the one that was under way.
fn run_script(t: &mut Target) -> (Vec<Models>, Option<Models>) {
    let mut states: Vec<Models> = vec![BTreeMap::new()];
    for step in 0..14u32 {
        let id = object(step % 2);
        let mut next = states.last().expect("one is there").clone();
        let model = next.entry(id).or_default();
        let byte = step as u8 + 1;
        let objects = t.objects.clone();
        let done = match step {
            4 | 9 => {
                model.truncate(5000);
                t.drive.run(|_| async move {
                    commit(&objects, objects.prepare_truncate(id, 5000).await?, stamp(0)).await.map(drop)
                })
            }
            6 => {
                model.allocate(300_000, 10_000, true);
                t.drive.run(|_| async move {
                    let prepared =
                        objects.prepare_allocate(id, 300_000, 10_000, true, &stamp(0), &at_any_time).await?;
                    commit(&objects, prepared, stamp(0)).await.map(drop)
                })
            }
            8 | 11 => t.drive.run(|_| async move { objects.sync(id).await }),
            12 => {
                next.remove(&id);
                t.drive.run(|_| async move {
                    commit(&objects, objects.prepare_destroy(id).await?, stamp(0)).await.map(drop)
                })
            }
            _ => {
                let offset = u64::from(step) * 3000;
                let data = vec![byte; 9000];
                model.write(offset, &data);
                t.drive.run(|_| async move {
                    let prepared =
                        objects.prepare_write(id, offset, vec![Bytes::from(data)], &at_any_time).await?;
                    commit(&objects, prepared, stamp(0)).await.map(drop)
                })
            }
        };
        // A reply leaves only after the log bytes of its visit were written.
        let is_alive = t.drive.drive.ended().is_none();
        match done {
            Some(Ok(())) if is_alive => states.push(next),
            _ => return (states, Some(next)),
        }
    }
    (states, None)
}

fn is_same(t: &mut Target, state: &BTreeMap<ObjectId, Model>) -> bool {
    (0..2).all(|n| {
        let model = state.get(&object(n)).cloned().unwrap_or_default();
        let (row, bytes) = t.read(object(n), 0, 1 << 20).expect("reads");
        bytes == model.bytes && row.blocks == model.blocks.len() as u64 * 8
    })
}

/// Like `is_same`, but bytes may be of either state.
fn is_between(t: &mut Target, a: &BTreeMap<ObjectId, Model>, b: &BTreeMap<ObjectId, Model>) -> bool {
    (0..2).all(|n| {
        let (a, b) = (a.get(&object(n)), b.get(&object(n)));
        let bytes = t.read(object(n), 0, 1 << 20).expect("reads").1;
        let size = |m: Option<&Model>| m.map_or(0, |m| m.bytes.len());
        let at = |m: Option<&Model>, i: usize| m.and_then(|m| m.bytes.get(i)).copied().unwrap_or(0);
        (bytes.len() == size(a) || bytes.len() == size(b))
            && bytes.iter().enumerate().all(|(i, byte)| *byte == at(a, i) || *byte == at(b, i))
    })
}

#[test]
fn a_kill_at_any_change_of_the_device_loses_nothing_acknowledged_and_leaves_no_blob_behind() {
    let mut points = 0;
    loop {
        let device = CrashDevice::new(u64::MAX);
        let mut t = Target::format(&device);
        device.stop_after(points);
        let (states, under_way) = run_script(&mut t);
        let was_stopped = device.is_stopped();
        t = t.kill();
        t.settle();
        let acknowledged = states.last().expect("one is there");
        let what = format!("stopped after {points} changes, {} acknowledged", states.len() - 1);
        match &under_way {
            None => assert!(is_same(&mut t, acknowledged), "{what}"),
            Some(next) => assert!(is_between(&mut t, acknowledged, next), "{what}"),
        }
        let mut used = 0;
        for n in 0..2 {
            let (allocated, _) = t.check_rows(object(n));
            let row = t.read(object(n), 0, 0).expect("reads").0;
            assert_eq!(row.blocks, allocated * 8, "{what}");
            used += allocated * BLOCK_BYTES;
            let has_row = row.version != 0;
            assert!(has_row || t.blob_len(object(n)).is_none(), "{what}: blob {n} without a row");
        }
        assert_eq!(t.usage(0).0, used, "{what}: account");
        // Whatever was cut off, the target goes on.
        t.write(object(0), 123, vec![9; 100]).expect("writes");
        t.truncate(object(1), 1 << 20).expect("truncates");
        let (_, bytes) = t.read(object(1), 0, 2 << 20).expect("reads");
        let old = acknowledged.get(&object(1)).map_or(0, |m| m.bytes.len());
        let new = under_way.as_ref().and_then(|s| s.get(&object(1))).map_or(0, |m| m.bytes.len());
        assert!(bytes[old.max(new)..].iter().all(|&b| b == 0), "{what}: bytes beyond the size came to light");
        if !was_stopped {
            break;
        }
        points += 1;
    }
    assert!(points >= 30, "{points}");
}

// ---- bytes that are gone

/// Rows say that bytes were written, and their file was deleted or cut: those are never zeros, and nothing else suffers.
#[test]
fn a_deleted_or_cut_blob_is_an_error_and_never_zeros() {
    for (held, kill) in [(0, false), (0, true), (5000, false), (300_000, true)] {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let bytes: Vec<u8> = (0..400_000u32).map(|i| (i % 251) as u8 + 1).collect();
        for n in 1..3 {
            t.write(object(n), 0, bytes.clone()).expect("writes");
        }
        make_durable(&mut t);
        let file = FileId::Blob(object(1));
        t.damage(if held == 0 { StoreOp::Delete { file } } else { StoreOp::Truncate { file, len: held } });
        if kill {
            t = t.kill();
            t.settle();
        }
        let lost = |from: u64, to: u64| OsdError::Lost { object: object(1), from, to };
        // The blocks before the cut are there.
        let whole = held / BLOCK_BYTES * BLOCK_BYTES;
        assert_eq!(t.read(object(1), 0, whole as u32).expect("reads").1, bytes[..whole as usize]);
        let stop = ((held / (256 << 10)) + 1) * (256 << 10);
        assert_eq!(t.read(object(1), 0, 400_000), Err(lost(held, stop.min(400_000))));
        assert_eq!(t.read(object(1), 390_000, 10), Err(lost(390_000, 390_010)));
        assert_eq!(t.sync(object(1)), Err(lost(held, 400_000)), "a sync of bytes that are not there");
        // What needs the old bytes fails, and changes nothing.
        assert!(matches!(t.write(object(1), 350_000, vec![9; 10]), Err(OsdError::Lost { .. })));
        assert!(matches!(t.truncate(object(1), 350_000), Err(OsdError::Lost { .. })));
        assert!(matches!(t.truncate(object(1), 500_000), Err(OsdError::Lost { .. })), "the block of the end");
        // The others are well.
        assert_eq!(t.read(object(2), 0, 400_000).expect("reads").1, bytes);
        assert_eq!(t.sync(object(2)), Ok(()));
        // A write that makes the file longer again lays no hole over what is gone, in this life or the next.
        t.write(object(1), 97 * BLOCK_BYTES, vec![7; 8192]).expect("appends");
        let mut t = t.kill();
        assert_eq!(t.read(object(1), 97 * BLOCK_BYTES, 8192).expect("reads").1, vec![7; 8192]);
        assert!(matches!(t.read(object(1), held, 1), Err(OsdError::Lost { .. })));
        assert!(matches!(t.read(object(1), 96 * BLOCK_BYTES, 4097), Err(OsdError::Lost { .. })));
        // Whole blocks heal it, and so does a cut.
        t.write(object(1), whole, vec![8; (96 * BLOCK_BYTES - whole) as usize]).expect("overwrites");
        assert_eq!(t.read(object(1), whole, 10).expect("reads").1, [8; 10]);
        assert!(matches!(t.read(object(1), 0, 500_000), Err(OsdError::Lost { .. })), "one block is left");
        t.truncate(object(1), 96 * BLOCK_BYTES).expect("cuts");
        let (row, all) = t.read(object(1), 0, 500_000).expect("reads");
        assert_eq!((row.size, all.len() as u64), (96 * BLOCK_BYTES, 96 * BLOCK_BYTES));
        assert_eq!(t.sync(object(1)), Ok(()));
        assert_eq!(t.check_rows(object(1)), (96, vec![]));
    }
}

/// After the loss of a machine: what was not stable may be gone and becomes zeros once nobody puts it back; what was
/// stable cannot be gone, and a file that lacks it is damaged.
#[test]
fn a_lost_machine_explains_missing_bytes_that_were_not_stable_and_no_others() {
    let mut zeros = 0;
    for seed in 0..20 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 300_000]).expect("writes");
        t.write(object(2), 0, vec![1; 1000]).expect("writes");
        make_durable(&mut t);
        t.write(object(1), 600_000, vec![2; 9000]).expect("writes");
        t.write(object(3), 0, vec![3; 9000]).expect("writes");
        t.run(|o| async move { o.osd().commit(o.osd().last_transno()).await.expect("commits") });
        let device = t.device.clone();
        device.power_loss(&mut Rng::new(seed));
        // What fsck may do.
        for n in 1..3 {
            device.store().execute(StoreOp::Delete { file: FileId::Blob(object(n)) }).expect("deletes");
        }
        let mut t = Target::start(&device, &config(), true);
        if seed % 2 == 0 {
            t.run(|o| async move {
                o.restore(object(1), 600_000, &[Bytes::from(vec![2; 9000])]).await.expect("puts back");
            });
        }
        t.start_rechecksum();
        assert!(matches!(t.read(object(1), 0, 10), Err(OsdError::Lost { .. })), "seed {seed}: it was stable");
        assert!(
            matches!(t.read(object(2), 0, 10), Err(OsdError::Lost { .. })),
            "seed {seed}: not changed since"
        );
        let got = t.read(object(1), 600_000, 9000).expect("reads").1;
        assert!(got.iter().all(|b| *b == if seed % 2 == 0 { 2 } else { 0 }), "seed {seed}");
        let got = t.read(object(3), 0, 9000).expect("reads").1;
        assert!(got.iter().all(|b| [0, 3].contains(b)), "seed {seed}");
        zeros += u32::from(got.contains(&0));
        assert_eq!((t.sync(object(1)), t.sync(object(3))), (Ok(()), Ok(())), "seed {seed}");
        assert!(matches!(t.sync(object(2)), Err(OsdError::Lost { .. })), "seed {seed}");
    }
    assert!(zeros > 3, "{zeros}");
}

/// A block of object rows is damaged: its objects answer an error, are counted and synced by their files, and nobody
/// waits for ever; not after a kill, not after the loss of a machine.
#[test]
fn a_damaged_block_of_object_rows_costs_its_objects_and_holds_up_nothing() {
    for machine_was_lost in [false, true] {
        let device = CrashDevice::new(u64::MAX);
        let mut t = Target::format(&device);
        for n in 0..300 {
            t.write(object(n), 0, vec![1; 100]).expect("writes");
        }
        t.truncate(object(299), 50).expect("cuts");
        t.run(|o| async move { o.osd().checkpoint().await.expect("writes a run") });
        let StoreDone::List(runs) =
            t.store.execute(StoreOp::List { kind: FileKind::Run, after: None, limit: 10 }).expect("lists")
        else {
            panic!("no list")
        };
        device.kill_process();
        device.flip(runs[0], 4 * 4096 + 2000);
        let mut t = Target::start(&device, &config(), machine_was_lost);
        if machine_was_lost {
            t.objects.start_rechecksum();
        }
        // Ends, and what is well goes on.
        make_durable(&mut t);
        t.settle();
        let damaged = (0..300).filter(|n| t.read(object(*n), 0, 100).is_err()).collect::<Vec<_>>();
        assert!((10..80).contains(&damaged.len()), "{damaged:?}");
        for n in 0..300 {
            let got = t.sync(object(n));
            assert_eq!(got.is_err(), damaged.contains(&n), "{n}: {got:?}");
        }
        assert_eq!(t.objects.oldest_unstable(), None);
        t.write(object(400), 0, vec![4; 100]).expect("writes");
        make_durable(&mut t);
        let unsummed =
            t.drive.run(|osd| async move { osd.get(table::TARGET, UNVERIFIED_KEY).await.expect("reads") });
        assert_eq!(unsummed, Some(None), "what cannot be read is not looked at again and again");
        // The files of all are on the device: those that cannot be read may be wanted by whoever repairs it.
        device.power_loss(&mut Rng::new(1));
        for n in 0..300 {
            let op = StoreOp::Len { file: FileId::Blob(object(n)) };
            assert!(matches!(device.store().execute(op), Ok(StoreDone::Len(Some(1..)))), "{n}");
        }
    }
}

/// Space that one object let go of cannot be freed because its rows are damaged; that of the others is.
#[test]
fn damaged_rows_of_one_object_hold_up_the_space_of_no_other() {
    let device = CrashDevice::new(u64::MAX);
    let mut t = Target::format(&device);
    for n in 0..300 {
        t.write(object(n), 0, vec![1; 10_000]).expect("writes");
    }
    t.run(|o| async move { o.osd().checkpoint().await.expect("writes a run") });
    let StoreDone::List(runs) =
        t.store.execute(StoreOp::List { kind: FileKind::Run, after: None, limit: 10 }).expect("lists")
    else {
        panic!("no list")
    };
    for n in 0..300 {
        t.truncate(object(n), 100).expect("cuts");
    }
    // The cuts are in the log, the rows of blocks before them in the run.
    device.kill_process();
    device.flip(runs[0], 12 * 4096);
    let mut t = Target::open(&device);
    make_durable(&mut t);
    t.run(|o| async move { o.osd().ctx().sleep(std::time::Duration::from_secs(60)).await });
    let damaged = (0..300).filter(|n| t.read(object(*n), 0, 100).is_err()).count();
    let cut = (0..300).filter(|n| t.blob_len(object(*n)) == Some(BLOCK_BYTES)).count();
    assert!((10..100).contains(&damaged) && cut >= 300 - damaged, "{cut} cut, {damaged} damaged");
}

/// An object with many regions is destroyed or cut: the visit that does it does not walk all of them.
#[test]
fn a_large_object_goes_without_a_long_visit() {
    let device = CrashDevice::new(u64::MAX);
    let mut t = Target::format_with(&device, &OsdConfig { log_bytes_max: 64 << 20, ..config() });
    for n in 0..2 {
        for region in 0..6000u64 {
            t.write(object(n), region * (256 << 10), vec![1; 4096]).expect("writes");
        }
    }
    assert!(t.drive.osd().stats().rows_in_memory > 12_000, "they are in memory");
    let row = t.truncate(object(0), 5 * (256 << 10)).expect("cuts");
    assert_eq!(row.blocks, 5 * 8);
    t.destroy(object(1)).expect("destroys");
    let met = t.drive.osd().stats().range_rows_max;
    assert!(met <= 4096, "{met} rows in one visit");
    assert_eq!((t.check_rows(object(0)), t.check_rows(object(1))), ((5, vec![]), (0, vec![])));
    assert_eq!((t.usage(0), t.usage(1)), ((5 * 4096, 1), (0, 0)));
}
