//! A target on a device that crashes, random changes of its objects, and the model that they are compared with.

use bytes::Bytes;
use nacre_node::{FileId, Rng, Store, StoreDone, StoreOp, WriteTo};
use nacre_osd::checksum::block_checksum;
use nacre_osd::object_rows::{BlockRow, block_key, region_of_key};
use nacre_osd::{
    BLOCK_BYTES, Credits, ObjectRow, ObjectWrites, Objects, ObjectsConfig, Osd, OsdConfig, OsdError, Pins,
    Prepared, STABLE_KEY, Stamp, UNVERIFIED_KEY, table,
};
use nacre_testkit::{CrashDevice, OsdDrive};
use nacre_types::{Extent, Fid, ObjectId, Oid, Owner, Seq, Timestamp};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) fn object(n: u32) -> ObjectId {
    ObjectId { fid: Fid::new(Seq(0x100), Oid(n)), stripe: n % 2 }
}
pub(crate) fn owner(n: u32) -> Owner {
    Owner { uid: 1000 + n, gid: 100, projid: 0 }
}
pub(crate) fn stamp(n: u32) -> Stamp {
    Stamp { owner: owner(n), mtime: Timestamp::from_nanos(i128::from(n) * 1_000_000_000) }
}
/// These changes have no deadline.
pub(crate) fn at_any_time() -> Result<(), OsdError> {
    Ok(())
}
pub(crate) fn config() -> OsdConfig {
    // A small log: it is read whole at each restart.
    OsdConfig { ballast_bytes: 1 << 16, log_bytes_max: 4 << 20, ..OsdConfig::default() }
}

/// One life of a target: engine and object layer.
pub(crate) struct Target {
    pub(crate) device: CrashDevice,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) drive: OsdDrive,
    pub(crate) objects: Rc<Objects>,
}

impl Target {
    pub(crate) fn format(device: &CrashDevice) -> Self {
        Self::format_with(device, &config())
    }
    pub(crate) fn format_with(device: &CrashDevice, config: &OsdConfig) -> Self {
        OsdDrive::format(&device.store(), config, false).expect("formats");
        Self::open_with(device, config)
    }
    pub(crate) fn open(device: &CrashDevice) -> Self {
        Self::open_with(device, &config())
    }
    pub(crate) fn open_with(device: &CrashDevice, config: &OsdConfig) -> Self {
        Self::start(device, config, false)
    }
    /// `unclean`: with what the target writes after a kill or a loss of its machine before the objects are looked at.
    pub(crate) fn start(device: &CrashDevice, config: &OsdConfig, unclean: bool) -> Self {
        let store = device.store();
        let mut drive = OsdDrive::open(&store, config).expect("opens");
        if unclean {
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
    pub(crate) fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        task: impl FnOnce(Rc<Objects>) -> F,
    ) -> T {
        let objects = self.objects.clone();
        self.drive.run(|_| task(objects)).expect("the island lives")
    }
    /// Lets background work come to its end.
    pub(crate) fn settle(&mut self) {
        while self.drive.drive.step() {}
    }
    /// The process dies and comes back.
    pub(crate) fn kill(self) -> Self {
        self.device.kill_process();
        Self::start(&self.device, &config(), true)
    }
    pub(crate) fn power_loss(self, rng: &mut Rng) -> Self {
        self.device.power_loss(rng);
        Self::start(&self.device, &config(), true)
    }
    /// The recovery is over: nobody puts bytes back any more.
    pub(crate) fn start_rechecksum(&mut self) {
        self.objects.start_rechecksum();
        self.settle();
    }
    pub(crate) fn damage(&self, op: StoreOp) {
        self.store.execute(op).expect("damages");
    }

    pub(crate) fn write(
        &mut self,
        object: ObjectId,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<ObjectRow, OsdError> {
        self.run(move |o| async move {
            let write =
                o.prepare_write(object, offset, vec![Bytes::from(data)], WriteTo::Cache, &at_any_time);
            let (prepared, ()) = write.await?;
            commit(&o, prepared, stamp(object.fid.oid.0)).await
        })
    }
    /// Several writes of several objects in one transaction.
    pub(crate) fn write_many(&mut self, writes: Vec<ManyWrites>) -> Vec<Result<ObjectRow, OsdError>> {
        self.run(move |o| async move { write_many(&o, writes).await.expect("prepares") })
    }
    pub(crate) fn truncate(&mut self, object: ObjectId, size: u64) -> Result<ObjectRow, OsdError> {
        self.run(move |o| async move {
            let prepared = o.prepare_truncate(object, size).await?;
            commit(&o, prepared, stamp(object.fid.oid.0)).await
        })
    }
    pub(crate) fn allocate(
        &mut self,
        object: ObjectId,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<ObjectRow, OsdError> {
        self.run(move |o| async move {
            let stamp = stamp(object.fid.oid.0);
            let allocate = o.prepare_allocate(object, offset, len, keep_size, &stamp, &at_any_time);
            let (prepared, ()) = allocate.await?;
            commit(&o, prepared, stamp).await
        })
    }
    /// As a target does it: zeros in partly covered blocks, then whole blocks, then the time of the change.
    pub(crate) fn zero(
        &mut self,
        object: ObjectId,
        range: Extent,
        frees: bool,
    ) -> Result<ObjectRow, OsdError> {
        self.run(move |o| async move {
            let stamp = stamp(object.fid.oid.0);
            for part in o.partly_covered(object, range).await? {
                let zeros = vec![Bytes::from(vec![0; (part.end - part.start) as usize])];
                let (prepared, ()) =
                    o.prepare_write(object, part.start, zeros, WriteTo::Cache, &at_any_time).await?;
                commit(&o, prepared, stamp).await?;
            }
            o.zero_blocks(object, range, frees).await?;
            commit(&o, o.prepare_touch(object).await?, stamp).await
        })
    }
    pub(crate) fn seek(&mut self, object: ObjectId, offset: u64, is_data: bool) -> Option<u64> {
        self.run(move |o| async move { o.seek(object, offset, is_data).await.expect("seeks") })
    }
    pub(crate) fn destroy(&mut self, object: ObjectId) -> Result<ObjectRow, OsdError> {
        self.run(move |o| async move {
            let prepared = o.prepare_destroy(object).await?;
            commit(&o, prepared, Stamp::default()).await
        })
    }
    pub(crate) fn sync(&mut self, object: ObjectId) -> Result<(), OsdError> {
        self.run(move |o| async move { o.sync(object).await })
    }
    pub(crate) fn read(
        &mut self,
        object: ObjectId,
        offset: u64,
        len: u32,
    ) -> Result<(ObjectRow, Vec<u8>), OsdError> {
        self.run(move |o| async move {
            let (row, bytes) = o.read(object, offset, len).await?;
            Ok((row, bytes.concat()))
        })
    }
    pub(crate) fn usage(&mut self, n: u32) -> (u64, u64) {
        self.drive.run(move |osd| async move { osd.usage(0, 1000 + n).await.expect("usage") }).expect("lives")
    }
    pub(crate) fn blob_len(&self, object: ObjectId) -> Option<u64> {
        match self.store.execute(StoreOp::Len { file: FileId::Blob(object) }) {
            Ok(StoreDone::Len(len)) => len,
            other => panic!("{other:?}"),
        }
    }

    /// Block rows: allocated blocks, and every sum that does not fit its bytes.
    pub(crate) fn check_rows(&mut self, object: ObjectId) -> (u64, Vec<u64>) {
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

pub(crate) async fn note_loss(osd: &Rc<Osd>) -> Result<(), OsdError> {
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
/// An object, and offset and bytes of its writes in order.
pub(crate) type ManyWrites = (ObjectId, Vec<(u64, Vec<u8>)>);

pub(crate) async fn write_many(
    o: &Rc<Objects>,
    writes: Vec<ManyWrites>,
) -> Result<Vec<Result<ObjectRow, OsdError>>, OsdError> {
    let objects: Vec<ObjectId> = writes.iter().map(|(object, _)| *object).collect();
    let parts = |writes: Vec<(u64, Vec<u8>)>| {
        writes.into_iter().map(|(offset, data)| (offset, vec![Bytes::from(data)])).collect()
    };
    let writes =
        writes.into_iter().map(|(object, writes)| ObjectWrites { object, writes: parts(writes) }).collect();
    let many = o.prepare_many(writes, Credits::default(), &at_any_time).await?;
    let changes = many.changes.into_iter().zip(objects);
    let (_, rows) = osd_of(o).transact(&many.pins, many.reservation, |tx| {
        Ok::<_, OsdError>(
            changes.map(|(change, id)| change?.apply(tx, &stamp(id.fid.oid.0))).collect::<Vec<_>>(),
        )
    })?;
    Ok(rows)
}
pub(crate) async fn commit(
    o: &Rc<Objects>,
    mut prepared: Prepared,
    stamp: Stamp,
) -> Result<ObjectRow, OsdError> {
    let pins = prepared.take_pins();
    let room = osd_of(o).reserve(prepared.credits()).await?;
    let (_, row) = osd_of(o).transact(&pins, room, |tx| prepared.apply(tx, &stamp))?;
    Ok(row)
}
pub(crate) fn osd_of(o: &Rc<Objects>) -> &Rc<nacre_osd::Osd> {
    o.osd()
}

/// What an object should be.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) bytes: Vec<u8>,
    /// Allocated blocks.
    pub(crate) blocks: std::collections::BTreeSet<u64>,
    /// Those of them that were written.
    pub(crate) written: std::collections::BTreeSet<u64>,
    /// The end of freed blocks: the blob may be so long.
    pub(crate) freed_to: u64,
}
impl Model {
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset as usize..end].copy_from_slice(data);
        self.blocks.extend(offset / BLOCK_BYTES..(end as u64).div_ceil(BLOCK_BYTES));
        self.written.extend(offset / BLOCK_BYTES..(end as u64).div_ceil(BLOCK_BYTES));
    }
    pub(crate) fn zero(&mut self, range: Extent, frees: bool) {
        for at in range.start..range.end.min(self.bytes.len() as u64) {
            self.bytes[at as usize] = 0;
        }
        let whole = range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES;
        self.written.retain(|block| !whole.contains(block));
        if frees {
            self.freed_to = self.freed_to.max(self.blocks.last().map_or(0, |b| (b + 1) * BLOCK_BYTES));
            self.blocks.retain(|block| !whole.contains(block));
        }
    }
    pub(crate) fn seek(&self, offset: u64, is_data: bool) -> Option<u64> {
        let size = self.bytes.len() as u64;
        let found = (offset..size).find(|at| self.written.contains(&(at / BLOCK_BYTES)) == is_data);
        if is_data || offset >= size { found } else { Some(found.unwrap_or(size)) }
    }
    pub(crate) fn truncate(&mut self, size: u64) {
        // Like the kernel's file systems: growing keeps what was allocated beyond the size.
        if size as usize <= self.bytes.len() {
            self.blocks.retain(|&b| b < size.div_ceil(BLOCK_BYTES));
            self.written.retain(|&b| b < size.div_ceil(BLOCK_BYTES));
        }
        self.bytes.resize(size as usize, 0);
    }
    pub(crate) fn allocate(&mut self, offset: u64, len: u64, keep_size: bool) {
        self.blocks.extend(offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES));
        if !keep_size && self.bytes.len() < (offset + len) as usize {
            self.bytes.resize((offset + len) as usize, 0);
        }
    }
}

/// A random place: mostly near the size and borders of blocks, sometimes beyond a region.
pub(crate) fn place(rng: &mut Rng, size: u64) -> u64 {
    match rng.below(6) {
        0 => size,
        1 => size.saturating_sub(rng.below(5000)),
        2 => rng.below(40) * BLOCK_BYTES,
        3 => rng.below(400_000),
        4 => (256 << 10) - 3000 + rng.below(6000),
        _ => rng.below(30_000),
    }
}
pub(crate) fn data(rng: &mut Rng, step: u64) -> Vec<u8> {
    let n = match rng.below(4) {
        0 => 1 + rng.below(100),
        1 => 4096 * (1 + rng.below(4)),
        2 => 1 + rng.below(80_000),
        _ => 1 + rng.below(5000),
    };
    (0..n).map(|i| (step * 31 + i % 7 + 1) as u8).collect()
}

/// Random writes of one object, in order and without overlap; many of them share blocks.
pub(crate) fn many_writes(rng: &mut Rng, size: u64, step: u64) -> Vec<(u64, Vec<u8>)> {
    let mut at = place(rng, size);
    let gaps = [10, 3000, 9000, 300_000][rng.below(4) as usize];
    let mut writes = Vec::new();
    for nth in 0..1 + rng.below(20) {
        let mut data = data(rng, step + nth);
        data.truncate(1 + rng.below(9000) as usize);
        writes.push((at, data.clone()));
        at += data.len() as u64 + rng.below(gaps);
        if at > 1 << 20 {
            break; // the models stay small
        }
    }
    writes
}

/// One random change of target and model.
pub(crate) fn change(
    t: &mut Target,
    models: &mut BTreeMap<ObjectId, Model>,
    rng: &mut Rng,
    step: u64,
) -> ObjectId {
    let id = object(rng.below(3) as u32);
    let model = models.entry(id).or_default();
    let size = model.bytes.len() as u64;
    let row = match rng.below(16) {
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
        9..=11 => {
            let offset = place(rng, size);
            let len = if rng.below(3) == 0 { 4096 * rng.below(90) } else { rng.below(30_000) };
            let (range, frees) = (Extent::new(offset, offset + len), rng.below(3) != 0);
            model.zero(range, frees);
            t.zero(id, range, frees)
        }
        12..=14 => {
            let writes = many_writes(rng, size, step);
            writes.iter().for_each(|(offset, data)| model.write(*offset, data));
            t.write_many(vec![(id, writes)]).pop().expect("one object")
        }
        _ => {
            *model = Model::default();
            t.destroy(id).map(|_| ObjectRow::default())
        }
    };
    let row = row.expect("changes");
    assert_eq!(row.size, model.bytes.len() as u64, "step {step}");
    assert_eq!(row.blocks, model.blocks.len() as u64 * 8, "step {step}");
    for is_data in [false, true] {
        let from = place(rng, size);
        assert_eq!(t.seek(id, from, is_data), model.seek(from, is_data), "step {step}: seek from {from}");
    }
    id
}

pub(crate) fn compare(t: &mut Target, id: ObjectId, model: &Model, what: &str) {
    let (row, bytes) = t.read(id, 0, 2 << 20).expect("reads");
    assert_eq!((row.size, bytes.len()), (model.bytes.len() as u64, model.bytes.len()), "{what}");
    let differ = bytes.iter().zip(&model.bytes).position(|(a, b)| a != b);
    assert_eq!(differ, None, "{what}: first wrong byte");
    let (allocated, wrong) = t.check_rows(id);
    assert_eq!((allocated, row.blocks), (model.blocks.len() as u64, allocated * 8), "{what}");
    assert_eq!(wrong, [], "{what}: sums");
}

/// Bytes and rows.
pub(crate) fn make_durable(t: &mut Target) {
    t.run(|o| async move {
        o.sync_all().await.expect("syncs");
        o.osd().commit(o.osd().last_transno()).await.expect("commits");
    });
}
