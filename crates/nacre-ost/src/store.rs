//! Changes and reads of objects on behalf of requests: bytes and rows of `nacre_osd`, and the OST's own counts.
//!
//! Order of a change: room is checked, bytes are written in place (`prepare`), log room is reserved, then one transaction
//! writes the rows, the count of objects and the reply record. The caller holds the lock.

use crate::room::Room;
use crate::tombstone::Tombstones;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_node::WriteTo;
use nacre_osd::object_rows::object_key;
use nacre_osd::{
    Credits, ObjectRow, ObjectWrites, Objects, OsdError, Prepared, PreparedMany, Stamp, Tx, checksum, table,
};
use nacre_rpc::SubRecord;
use nacre_target::{Admitted, Request, TargetCore};
use nacre_types::{Errno, Extent, Failure, Fid, Instant, ObjectId, Owner, ProtocolOutcome, Transno};
use nacre_wire::Status;
use nacre_wire::flags;
use nacre_wire::ost::{EXTENT_TAX, ObjectState};

/// Bytes that one transaction allocates.
const ALLOCATE_SLICE_BYTES: u64 = 1 << 30;
/// How long a change that finds no room, and a request for the space of a full OST, wait for space to be freed.
pub(crate) const FREE_TIMEOUT: Duration = Duration::from_secs(2);
/// Credits of an operation beyond those of its object: the count, a tombstone, the reply record.
pub(crate) const OWN_CREDITS: Credits =
    Credits { rows: 4, row_bytes: 512, object_bytes: 0, frees: false, in_place: false };

/// The objects of one OST.
pub(crate) struct Store {
    core: Rc<TargetCore>,
    objects: Rc<Objects>,
    room: Rc<Room>,
    tombstones: Rc<Tombstones>,
}

/// One of several writes.
pub(crate) struct NewBytes {
    object: ObjectId,
    stamp: Stamp,
    offset: u64,
    data: Vec<Bytes>,
}
impl NewBytes {
    pub(crate) fn new(object: ObjectId, stamp: Stamp, offset: u64, data: Vec<Bytes>) -> Self {
        Self { object, stamp, offset, data }
    }
}
/// The writes of one object among several, and their places in the list of results.
struct OfObject {
    stamp: Stamp,
    places: Vec<usize>,
    writes: ObjectWrites,
}
/// Those that have not failed, by object.
fn by_object(writes: Vec<NewBytes>, results: &[Result<ObjectState, Failure>]) -> Vec<OfObject> {
    let mut objects: Vec<OfObject> = Vec::new();
    let valid = writes.into_iter().zip(results).enumerate().filter(|(_, (_, result))| result.is_ok());
    for (nth, (NewBytes { object, stamp, offset, data }, _)) in valid {
        match objects.last_mut() {
            Some(last) if last.writes.object == object => {
                last.stamp.mtime = last.stamp.mtime.max(stamp.mtime);
                last.places.push(nth);
                last.writes.writes.push((offset, data));
            }
            _ => {
                let writes = ObjectWrites { object, writes: alloc::vec![(offset, data)] };
                objects.push(OfObject { stamp, places: alloc::vec![nth], writes });
            }
        }
    }
    objects
}

/// On whose behalf a change is applied: of a request, with its record, or of the target, as a step towards it.
#[derive(Clone, Copy)]
pub(crate) enum By<'a> {
    Request(&'a Request),
    Target,
}

pub(crate) fn state_of(row: &ObjectRow) -> ObjectState {
    ObjectState { size: row.size, blocks: row.blocks, mtime: row.mtime }
}

/// Converts an error to the errno for the client, and logs errors that the client sees as EIO only.
fn log_errno(object: ObjectId, error: OsdError) -> Errno {
    let text = alloc::format!("{error}");
    let errno = Errno::from(error);
    if errno == Errno::EIO {
        tracing::error!(%object, error = %text, "object cannot be used");
    }
    errno
}

/// The reason why a change was not prepared.
enum Unprepared {
    Osd(OsdError),
    /// The request was not admitted.
    Rejected(ProtocolOutcome),
}
impl From<OsdError> for Unprepared {
    fn from(error: OsdError) -> Self {
        Self::Osd(error)
    }
}
impl From<ProtocolOutcome> for Unprepared {
    fn from(outcome: ProtocolOutcome) -> Self {
        Self::Rejected(outcome)
    }
}
impl Unprepared {
    fn into_failure(self, object: ObjectId) -> Failure {
        match self {
            Self::Osd(error) => log_errno(object, error).into(),
            Self::Rejected(outcome) => outcome.into(),
        }
    }
}

impl Store {
    pub(crate) fn new(
        core: &Rc<TargetCore>,
        objects: Rc<Objects>,
        room: Rc<Room>,
        tombstones: Rc<Tombstones>,
    ) -> Rc<Self> {
        Rc::new(Self { core: core.clone(), objects, room, tombstones })
    }

    pub(crate) fn objects(&self) -> &Rc<Objects> {
        &self.objects
    }
    pub(crate) fn room(&self) -> &Rc<Room> {
        &self.room
    }
    pub(crate) fn tombstones(&self) -> &Rc<Tombstones> {
        &self.tombstones
    }

    pub(crate) async fn state(&self, object: ObjectId) -> Result<ObjectState, Errno> {
        let row = self.objects.state(object).await.map_err(|e| log_errno(object, e))?;
        Ok(state_of(&row))
    }

    pub(crate) async fn exists(&self, object: ObjectId) -> Result<bool, Errno> {
        Ok(self.objects.state(object).await.map_err(|e| log_errno(object, e))?.version != 0)
    }

    pub(crate) async fn read(
        &self,
        object: ObjectId,
        offset: u64,
        len: u32,
    ) -> Result<(Vec<Bytes>, ObjectState), Errno> {
        let (row, bulk) = self.objects.read(object, offset, len).await.map_err(|e| log_errno(object, e))?;
        Ok((bulk, state_of(&row)))
    }

    pub(crate) async fn sync(&self, object: ObjectId) -> Result<(), Errno> {
        self.objects.sync(object).await.map_err(|e| log_errno(object, e))
    }

    /// See [`Objects::make_stable`].
    pub(crate) async fn make_stable(&self, change: Transno) -> Result<bool, OsdError> {
        self.objects.make_stable(change).await
    }

    pub(crate) async fn write(
        &self,
        request: &Request,
        object: ObjectId,
        stamp: Stamp,
        offset: u64,
        data: Vec<Bytes>,
        to: WriteTo,
    ) -> Result<(Transno, ObjectState), Failure> {
        let len: u64 = data.iter().map(|b| b.len() as u64).sum();
        let deadline = self.core.ctx.now() + FREE_TIMEOUT;
        let range = Extent::new(offset, offset.saturating_add(len));
        let used = self.room_for_write(request, object, range, deadline).await?;
        let written = async {
            let admit = || Ok(self.core.admit_change(request)?);
            let (prepared, admitted) = self
                .objects
                .prepare_write(object, offset, data, to, &admit)
                .await
                .map_err(|e: Unprepared| e.into_failure(object))?;
            self.change(object, stamp, prepared, || Ok(Some(admitted))).await
        };
        let result = written.await;
        if result.is_err() {
            self.room.give_back(request.export, used);
        }
        result
    }

    /// A write of a killed process of this machine; it was acknowledged, so there was room for it.
    pub(crate) async fn write_kept(
        &self,
        object: ObjectId,
        stamp: Stamp,
        offset: u64,
        data: Vec<Bytes>,
    ) -> Result<(), Failure> {
        let prepared = self.objects.prepare_write(object, offset, data, WriteTo::Cache, &|| Ok(()));
        let (prepared, ()) = prepared.await.map_err(|e| log_errno(object, e))?;
        self.change(object, stamp, prepared, || Ok(None)).await.map(drop)
    }

    pub(crate) async fn restore(&self, object: ObjectId, offset: u64, data: &[Bytes]) -> Result<(), Errno> {
        self.objects.restore(object, offset, data).await.map_err(|e| log_errno(object, e))
    }
    pub(crate) async fn restore_truncate(&self, object: ObjectId, size: u64) -> Result<(), Errno> {
        self.objects.restore_truncate(object, size).await.map_err(|e| log_errno(object, e))
    }

    pub(crate) async fn truncate(
        &self,
        request: &Request,
        object: ObjectId,
        stamp: Stamp,
        size: u64,
    ) -> Result<(Transno, ObjectState), Failure> {
        self.room.gives_back();
        let prepared = self.objects.prepare_truncate(object, size).await.map_err(|e| log_errno(object, e))?;
        // A truncate has no effect before its transaction.
        self.change(object, stamp, prepared, || self.core.admit_change(request).map(Some)).await
    }

    /// Long ranges take several transactions; all but the last keep the size, and the last has the record.
    pub(crate) async fn allocate(
        &self,
        request: &Request,
        object: ObjectId,
        stamp: Stamp,
        range: (u64, u64),
        keep_size: bool,
    ) -> Result<(Transno, ObjectState), Failure> {
        let (mut offset, end) = range;
        self.make_room(object, Extent::new(offset, end), self.core.ctx.now() + FREE_TIMEOUT).await?;
        let mut admitted = None;
        loop {
            let len = (end - offset).min(ALLOCATE_SLICE_BYTES);
            let last = offset + len == end;
            // The first blocks are the begin of the change.
            let admit = || match offset == range.0 {
                true => Ok(Some(self.core.admit_change(request)?)),
                false => Ok(None),
            };
            let (prepared, first) = self
                .objects
                .prepare_allocate(object, offset, len, keep_size || !last, &stamp, &admit)
                .await
                .map_err(|e: Unprepared| e.into_failure(object))?;
            admitted = first.or(admitted);
            let by = if last { admitted.take() } else { None };
            let done = self.change(object, stamp, prepared, || Ok(by)).await?;
            if last {
                return Ok(done);
            }
            offset += len;
        }
    }

    /// Zeros in `range`; takes several transactions, the last of which has the record.
    pub(crate) async fn punch(
        &self,
        request: &Request,
        object: ObjectId,
        stamp: Stamp,
        range: Extent,
        frees: bool,
    ) -> Result<(Transno, ObjectState), Failure> {
        self.room.gives_back();
        let as_errno = |e| log_errno(object, e);
        // The first zeros are the begin of the change.
        let admitted = self.core.admit_change(request)?;
        for part in self.objects.partly_covered(object, range).await.map_err(as_errno)? {
            let zeros = checksum::zeros(part.end - part.start);
            let write = self.objects.prepare_write(object, part.start, zeros, WriteTo::Cache, &|| Ok(()));
            let (prepared, ()) = write.await.map_err(as_errno)?;
            self.change(object, stamp, prepared, || Ok(None)).await?;
        }
        self.objects.zero_blocks(object, range, frees).await.map_err(as_errno)?;
        let prepared = self.objects.prepare_touch(object).await.map_err(as_errno)?;
        self.change(object, stamp, prepared, || Ok(Some(admitted))).await
    }
    pub(crate) async fn restore_zeros(&self, object: ObjectId, range: Extent) -> Result<(), Errno> {
        self.objects.restore_zeros(object, range).await.map_err(|e| log_errno(object, e))
    }
    pub(crate) async fn seek(
        &self,
        object: ObjectId,
        offset: u64,
        is_data: bool,
    ) -> Result<Option<u64>, Errno> {
        self.objects.seek(object, offset, is_data).await.map_err(|e| log_errno(object, e))
    }

    pub(crate) async fn set_owner(
        &self,
        request: &Request,
        object: ObjectId,
        owner: Owner,
    ) -> Result<Transno, Failure> {
        let prepared =
            self.objects.prepare_set_owner(object, owner).await.map_err(|e| log_errno(object, e))?;
        let admit = || self.core.admit_change(request).map(Some);
        let (transno, _) = self.change(object, Stamp::default(), prepared, admit).await?;
        Ok(transno)
    }

    /// Removes the object and leaves its tombstone.
    pub(crate) async fn destroy(&self, by: By<'_>, object: ObjectId) -> Result<Transno, Failure> {
        self.room.gives_back();
        self.tombstones.wait_for_room(1).await;
        let mut prepared = self.objects.prepare_destroy(object).await.map_err(|e| log_errno(object, e))?;
        let pins = prepared.take_pins();
        let credits = Credits { frees: true, ..sum(prepared.credits(), OWN_CREDITS) };
        let reservation = self.core.osd.reserve(credits).await?;
        let again = self.tombstones.contains(object);
        let change = |tx: &mut Tx<'_>| {
            let existed = tx.get(table::OBJECT, &object_key(object)).is_some();
            prepared.apply(tx, &Stamp::default()).map_err(|e| log_errno(object, e))?;
            self.tombstones.put(tx, object);
            if existed || !again {
                self.room.object_destroyed(tx, existed);
            }
            Ok(())
        };
        let (transno, ()) = match by {
            By::Request(request) => {
                let admitted = self.core.admit_change(request)?;
                self.core.transact(admitted, &pins, reservation, |tx| Ok(change(tx)?))?
            }
            By::Target => self.core.transact_local(&pins, reservation, change)?,
        };
        self.tombstones.add(object);
        Ok(transno)
    }

    /// A write under a grant uses the space that was kept for its client; returns how much. Otherwise it waits for space until
    /// the deadline.
    async fn room_for_write(
        &self,
        request: &Request,
        object: ObjectId,
        range: Extent,
        deadline: Instant,
    ) -> Result<u64, Errno> {
        let needed = (range.end - range.start).saturating_add(EXTENT_TAX);
        if request.header.has(flags::GRANTED) && self.room.use_grant(request.export, needed) {
            return Ok(needed);
        }
        self.make_room(object, range, deadline).await.map(|()| 0)
    }
    /// An existing object may only grow into room that is not promised; a new one was promised its room.
    async fn make_room(&self, object: ObjectId, range: Extent, deadline: Instant) -> Result<(), Errno> {
        let bytes = range.end - range.start;
        let row = self.objects.state(object).await.map_err(|e| log_errno(object, e))?;
        let is_promised = row.version == 0 && bytes <= crate::room::OBJECT_BYTES;
        let fits = if is_promised { Ok(()) } else { self.room.grow(bytes).await };
        if fits != Err(Errno::ENOSPC) {
            return fits;
        }
        // Rows are looked up only for a change that would be refused.
        let needed = self.needed_space(object, range).await?;
        if needed == 0 { Ok(()) } else { self.grow(needed, deadline).await }
    }
    /// The space that a change of a range needs: blocks that have theirs are overwritten in place. The caller has the lock
    /// of the range, so that they stay.
    async fn needed_space(&self, object: ObjectId, range: Extent) -> Result<u64, Errno> {
        if !self.room.overwrites_in_place() {
            return Ok(range.end - range.start);
        }
        self.objects.unallocated_bytes(object, range).await.map_err(|e| log_errno(object, e))
    }
    /// Waits for space that is being freed, for that of grants, and for that of log and tables. The caller has locked no range
    /// of an object, so the freeing is not blocked.
    async fn grow(&self, bytes: u64, deadline: Instant) -> Result<(), Errno> {
        let (mut has_recalled, mut has_given) = (false, false);
        loop {
            match self.room.grow(bytes).await {
                Err(Errno::ENOSPC) if self.objects.wait_for_freed_space(deadline).await? => {}
                // Before log and tables are asked: that costs a flush and a merge, this a round trip.
                Err(Errno::ENOSPC) if !core::mem::replace(&mut has_recalled, true) => {
                    self.room.recall_grants().await;
                }
                // Objects may have been freed during this wait as well, and then a request to free them finds none.
                Err(Errno::ENOSPC) if !core::mem::replace(&mut has_given, true) => {
                    self.core.osd.give_back(deadline).await?;
                }
                other => return other,
            }
        }
    }

    /// Writes of several objects, in their order, in one transaction with one record. A write whose result is an error is left
    /// out, and one that fails gets its error; the others get the state of their object. Transno 0: none has succeeded.
    /// `expected`: a replay is complete, or nothing has changed.
    pub(crate) async fn write_many(
        &self,
        request: &Request,
        writes: Vec<NewBytes>,
        results: &mut [Result<ObjectState, Failure>],
        expected: usize,
    ) -> Result<Transno, Failure> {
        let mut used = vec![0; results.len()];
        let done = self.write_many_in(request, writes, results, expected, &mut used).await;
        // What has failed is counted by neither side.
        let failed = used.iter().zip(results.iter()).filter(|(_, result)| done.is_err() || result.is_err());
        self.room.give_back(request.export, failed.map(|(used, _)| *used).sum());
        done
    }
    /// `used`: how much of the grant each of them has used.
    async fn write_many_in(
        &self,
        request: &Request,
        writes: Vec<NewBytes>,
        results: &mut [Result<ObjectState, Failure>],
        expected: usize,
        used: &mut [u64],
    ) -> Result<Transno, Failure> {
        let deadline = self.core.ctx.now() + FREE_TIMEOUT;
        let all = writes.iter().zip(results.iter_mut()).zip(used);
        for ((write, result), used) in all.filter(|((_, result), _)| result.is_ok()) {
            let len: u64 = write.data.iter().map(|b| b.len() as u64).sum();
            let range = Extent::new(write.offset, write.offset.saturating_add(len));
            match self.room_for_write(request, write.object, range, deadline).await {
                Ok(bytes) => *used = bytes,
                Err(errno) => *result = Err(errno.into()),
            }
        }
        let objects = by_object(writes, results);
        if objects.is_empty() {
            return self.none_written(request);
        }
        let (places, parts): (Vec<_>, Vec<_>) =
            objects.into_iter().map(|of| ((of.writes.object, of.stamp, of.places), of.writes)).unzip();
        let records = u32::try_from(results.len() * SubRecord::BYTES).unwrap_or(u32::MAX);
        let own = Credits { row_bytes: OWN_CREDITS.row_bytes + records, ..OWN_CREDITS };
        let admit = || Ok(self.core.admit_change(request)?);
        let many = self.objects.prepare_many(parts, own, &admit).await.map_err(|e: Unprepared| match e {
            Unprepared::Osd(error) => Errno::from(error).into(),
            Unprepared::Rejected(outcome) => Failure::from(outcome),
        })?;
        let PreparedMany { changes, pins, reservation, admitted } = many;
        let mut prepared = Vec::with_capacity(changes.len());
        for (change, (object, stamp, places)) in changes.into_iter().zip(places) {
            match change {
                Ok(change) => prepared.push((object, change, stamp, places)),
                // A client makes single writes of it, which log what cannot be used.
                Err(error) => {
                    tracing::debug!(%object, %error, "an object is left out of a WriteMany");
                    set_all(results, &places, Err(Errno::from(error).into()));
                }
            }
        }
        if prepared.is_empty() {
            return self.none_written(request);
        }
        let is_replay = request.replayed_transno().is_some();
        if is_replay && results.iter().filter(|result| result.is_ok()).count() < expected {
            return Err(Failure::EIO); // a write that its client has the reply to would be missing
        }
        let (transno, ()) = self.core.transact(admitted, &pins, reservation, |tx| {
            for (object, change, stamp, places) in prepared {
                let applied = tx.attempt(|tx| {
                    let existed = tx.get(table::OBJECT, &object_key(object)).is_some();
                    let row = change.apply(tx, &stamp).map_err(|e| log_errno(object, e))?;
                    if !existed && row.version != 0 {
                        self.room.object_created(tx);
                    }
                    Ok::<_, Errno>(state_of(&row))
                });
                set_all(results, &places, applied.map_err(Failure::from));
            }
            if results.iter().any(Result::is_err) {
                request.set_record_results(results.iter().map(record_of).collect());
            }
            Ok(())
        })?;
        Ok(transno)
    }
    /// No write has succeeded: there is no change, and no record.
    fn none_written(&self, request: &Request) -> Result<Transno, Failure> {
        match request.replayed_transno() {
            Some(_) => Err(Failure::EIO),
            None => Ok(Transno(0)),
        }
    }

    /// Applies a change. Calls `admit` after every wait; without its result, the change is a step of the target.
    async fn change<'a>(
        &self,
        object: ObjectId,
        stamp: Stamp,
        mut prepared: Prepared,
        admit: impl FnOnce() -> Result<Option<Admitted<'a>>, ProtocolOutcome>,
    ) -> Result<(Transno, ObjectState), Failure> {
        let pins = prepared.take_pins();
        let reservation = self.core.osd.reserve(sum(prepared.credits(), OWN_CREDITS)).await?;
        let admitted = admit()?;
        let change = |tx: &mut Tx<'_>| {
            let existed = tx.get(table::OBJECT, &object_key(object)).is_some();
            let row = prepared.apply(tx, &stamp).map_err(|e| log_errno(object, e))?;
            if !existed && row.version != 0 {
                self.room.object_created(tx);
            }
            Ok(state_of(&row))
        };
        match admitted {
            Some(admitted) => self.core.transact(admitted, &pins, reservation, |tx| Ok(change(tx)?)),
            None => Ok(self.core.transact_local(&pins, reservation, change)?),
        }
    }
}

fn set_all(
    results: &mut [Result<ObjectState, Failure>],
    places: &[usize],
    outcome: Result<ObjectState, Failure>,
) {
    for &nth in places {
        if let Some(result) = results.get_mut(nth) {
            *result = outcome;
        }
    }
}
fn record_of(result: &Result<ObjectState, Failure>) -> SubRecord {
    let status = result.map_or_else(Status::from, |_| Status::Success);
    SubRecord { result: status.number() as u16, data: 0, fid: Fid::default() }
}

fn sum(a: Credits, b: Credits) -> Credits {
    Credits {
        rows: a.rows.saturating_add(b.rows),
        row_bytes: a.row_bytes.saturating_add(b.row_bytes),
        object_bytes: a.object_bytes.saturating_add(b.object_bytes),
        frees: a.frees || b.frees,
        in_place: a.in_place || b.in_place,
    }
}
