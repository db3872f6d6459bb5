//! `WriteMany`: small writes of several objects, in one transaction.
//!
//! Invariants: each write has the lock, the space and the checks of a single write, and its own result; one that fails does
//! not hold the others up. The locks of all are held from before the first byte until the reply, and all are admitted
//! together: so the writes that succeed are one change, with one transno and one reply record. The record has the results
//! if a write has failed, because its bytes must not be restored.
//!
//! Locks are taken in the order of objects, which every client follows as well (`docs/wire.md`, file data); those of one
//! object are requested at once, since a lock that waits between two of them would wait for the first and be waited for by
//! the second.

use crate::locks::LockGuard;
use crate::service::Ost;
use crate::service::bulk_sizes::Bulk;
use crate::service::requests::range;
use crate::store::NewBytes;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_dlm::policy::Mode;
use nacre_osd::Stamp;
use nacre_rpc::SubRecord;
use nacre_target::{Reply, Request};
use nacre_types::{Codec, Errno, Extent, Failure, Transno};
use nacre_wire::Status;
use nacre_wire::ost::{
    ManyResult, ManyWrite, ObjectState, WRITE_MANY_BYTES_MAX, WRITES_MAX, WriteMany, WriteManyReply,
};

/// A request, checked against the rules of the protocol.
struct Checked {
    writes: Vec<ManyWrite>,
    extents: Vec<Extent>,
    data: Vec<Vec<Bytes>>,
    /// Of a replay: the results before the loss, if its client has them.
    former: Option<Vec<Status>>,
}

/// Refuses a request: the debug log has the reason.
fn refused(request: &Request, reason: &'static str) -> Failure {
    tracing::debug!(xid = %request.header.xid, reason, "a WriteMany is refused");
    Failure::EINVAL
}

fn check(request: &Request) -> Result<Checked, Failure> {
    let WriteMany { writes } = request.args()?;
    if writes.is_empty() || writes.len() > WRITES_MAX {
        return Err(refused(request, "it has no writes, or too many"));
    }
    let mut extents: Vec<Extent> = Vec::with_capacity(writes.len());
    for (nth, write) in writes.iter().enumerate() {
        let extent = range(write.object, write.offset, write.len.into())?;
        let is_behind = |(before, last): (&ManyWrite, &Extent)| {
            before.object < write.object || before.object == write.object && last.end <= extent.start
        };
        let before = nth.checked_sub(1).and_then(|nth| writes.get(nth)).zip(extents.last());
        if extent.is_empty() || !before.is_none_or(is_behind) {
            return Err(refused(
                request,
                "a write is empty, or overlaps the one before it, or is not in order",
            ));
        }
        extents.push(extent);
    }
    let bytes: u64 = writes.iter().map(|write| u64::from(write.len)).sum();
    let mut bulk = BulkReader::new(&request.bulk);
    if bytes > WRITE_MANY_BYTES_MAX || bulk.left < bytes {
        return Err(refused(request, "it has more bytes than it may, or than its bulk"));
    }
    let data = writes.iter().map(|write| bulk.take(write.len.into())).collect();
    let mut former = None;
    if bulk.left > 0 {
        if request.replayed_transno().is_none() {
            return Err(refused(request, "its bulk has more bytes than its writes"));
        }
        // The reply before the loss follows the bytes.
        let WriteManyReply { results } =
            WriteManyReply::from_slice(&bulk.take(bulk.left).concat()).map_err(Errno::from)?;
        if results.len() != writes.len() {
            return Err(refused(request, "a replay has another number of results than of writes"));
        }
        former = Some(results.iter().map(|result| result.status).collect());
    }
    Ok(Checked { writes, extents, data, former })
}

/// Takes the bulk of a request apart, without a copy.
struct BulkReader {
    parts: Vec<Bytes>,
    left: u64,
}
impl BulkReader {
    fn new(bulk: &[Bytes]) -> Self {
        let left = bulk.iter().map(|part| part.len() as u64).sum();
        Self { parts: bulk.iter().rev().cloned().collect(), left }
    }
    /// The next bytes, which are there.
    fn take(&mut self, mut bytes: u64) -> Vec<Bytes> {
        let mut taken = Vec::with_capacity(1);
        self.left -= bytes;
        while bytes > 0
            && let Some(part) = self.parts.last_mut()
        {
            let now = part.split_to(part.len().min(usize::try_from(bytes).unwrap_or(usize::MAX)));
            bytes -= now.len() as u64;
            if part.is_empty() {
                self.parts.pop();
            }
            taken.push(now);
        }
        taken.retain(|part| !part.is_empty());
        taken
    }
}

fn result_of(result: &Result<ObjectState, Failure>) -> ManyResult {
    match *result {
        Ok(state) => ManyResult { status: Status::Success, state },
        Err(failure) => ManyResult { status: failure.into(), state: ObjectState::default() },
    }
}

impl Ost {
    pub(super) async fn write_many(&self, request: &Request) -> Result<Reply, Failure> {
        let Checked { writes, extents, data, former } = check(request)?;
        if let Some(written) = request.replayed_transno().filter(|t| self.core.may_have_lost_bytes(*t)) {
            let former = former
                .or_else(|| self.core.recorded_results(request).map(|records| statuses(&records)))
                .unwrap_or_default();
            return Ok(self.restore_parts(&writes, &data, &former, written).await?);
        }
        let mut results: Vec<Result<ObjectState, Failure>> = vec![Ok(ObjectState::default()); writes.len()];
        for (result, status) in results.iter_mut().zip(former.iter().flatten()) {
            if let Some(failure) = status.failure() {
                *result = Err(failure); // the program was told so
            }
        }
        let expected = results.iter().filter(|result| result.is_ok()).count();
        let _guards = self.lock_many(&writes, &extents, &mut results).await?;
        for ((write, &extent), result) in writes.iter().zip(&extents).zip(&mut results) {
            if result.is_ok() {
                self.uncommitted.wait(request, write.object, extent).await;
            }
        }
        let new_bytes = writes.iter().zip(data).map(|(write, data)| {
            let stamp = Stamp { owner: write.owner, mtime: write.mtime };
            NewBytes::new(write.object, stamp, write.offset, data)
        });
        let transno = self.store.write_many(request, new_bytes.collect(), &mut results, expected).await?;
        if results.contains(&Err(Failure::ENOSPC)) {
            self.store.room().warn_of_refusal(request);
        }
        let mut bytes = 0;
        for ((write, &extent), result) in writes.iter().zip(&extents).zip(&mut results) {
            if result.is_err() {
                continue;
            }
            bytes += u64::from(write.len);
            self.uncommitted.record(request, write.object, extent, transno);
        }
        if bytes > 0 {
            self.count_bulk(Bulk::Write, bytes);
        }
        let results = results.iter().map(result_of).collect();
        Ok(Reply::of(&WriteManyReply { results }).with_transno(transno))
    }

    /// Locks the ranges of all writes, with the checks of a single write. Writes that fail have no lock.
    async fn lock_many(
        &self,
        writes: &[ManyWrite],
        extents: &[Extent],
        results: &mut [Result<ObjectState, Failure>],
    ) -> Result<Vec<LockGuard>, Errno> {
        for (write, result) in writes.iter().zip(results.iter_mut()).filter(|(_, result)| result.is_ok()) {
            if let Err(errno) = self.check_not_lost(write.object, write.laid).await {
                *result = Err(errno.into());
            }
        }
        let mut guards = Vec::with_capacity(writes.len());
        let mut next = 0;
        for of_object in writes.chunk_by(|a, b| a.object == b.object) {
            let places = next..next + of_object.len();
            next = places.end;
            let Some(object) = of_object.first().map(|write| write.object) else { continue };
            let (Some(extents), Some(results)) = (extents.get(places.clone()), results.get_mut(places))
            else {
                continue;
            };
            let wanted = extents.iter().zip(results.iter()).filter(|(_, result)| result.is_ok());
            let wanted: Vec<Extent> = wanted.map(|(extent, _)| *extent).collect();
            guards.extend(self.locks.lock_all_for_operation(object, Mode::Pw, &wanted).await?);
            if let Err(errno) = self.store.tombstones().check_not_destroyed(object) {
                results.iter_mut().filter(|result| result.is_ok()).for_each(|r| *r = Err(errno.into()));
            }
        }
        Ok(guards)
    }

    // ---- after a loss

    /// Reconstructs the reply of a request that was executed before; restores its bytes if they may be lost.
    pub(super) async fn reconstruct_many(
        &self,
        request: &Request,
        records: &[SubRecord],
        written: Transno,
    ) -> Result<Reply, Errno> {
        let Checked { writes, data, .. } = check(request).map_err(|_| Errno::EPROTO)?;
        let former = statuses(records);
        if self.core.may_have_lost_bytes(written) {
            return self.restore_parts(&writes, &data, &former, written).await;
        }
        self.repeated(&writes, &former, written).await
    }
    /// The reply to writes that were executed before. `former`: their results, or nothing if all have succeeded.
    async fn repeated(
        &self,
        writes: &[ManyWrite],
        former: &[Status],
        written: Transno,
    ) -> Result<Reply, Errno> {
        let mut results = Vec::with_capacity(writes.len());
        for (nth, write) in writes.iter().enumerate() {
            let status = former.get(nth).copied().unwrap_or(Status::Success);
            let state = match status {
                Status::Success => self.store.state(write.object).await?,
                Status::Failed(_) => ObjectState::default(),
            };
            results.push(ManyResult { status, state });
        }
        Ok(Reply::of(&WriteManyReply { results }).with_transno(written))
    }
    /// As for a single write: the rows are in the log, the bytes may be lost. Bytes of writes that had failed are not
    /// written: blocks that others have written there may have lost theirs.
    async fn restore_parts(
        &self,
        writes: &[ManyWrite],
        data: &[Vec<Bytes>],
        former: &[Status],
        written: Transno,
    ) -> Result<Reply, Errno> {
        for (nth, (write, data)) in writes.iter().zip(data).enumerate() {
            if former.get(nth).is_none_or(|status| *status == Status::Success) {
                self.store.restore(write.object, write.offset, data).await?;
            }
        }
        self.repeated(writes, former, written).await
    }
}

/// The results in a record; none if all writes have succeeded.
fn statuses(records: &[SubRecord]) -> Vec<Status> {
    records.iter().map(|record| Status::from_number(record.result.into())).collect()
}
