//! Several operations in one transaction: in order, each sees those before it.
//!
//! Rules: one transno, one reply record with a result for each operation. An operation that fails leaves nothing
//! behind, neither in rows nor in memory. Later operations see the opens and truncates of earlier ones at once; an
//! attempt that does not stand takes these back in the same visit. File locks and sequences are not metadata operations:
//! EOPNOTSUPP.

use crate::mdt::Mdt;
use crate::ops::{AnyOperation, Applied, Context, Recorded};
use crate::osts::layout_choice::LayoutChoice;
use crate::rows::opens::Opens;
use crate::rows::read_set::ReadSet;
use crate::rows::versions::Digest;
use crate::rows::view::{Abort, Output, Step, View};
use crate::service::bounds::{credits_in_batch, credits_of_record};
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::Cell;
use nacre_osd::{Credits, Tx};
use nacre_rpc::{PreVersions, ReplyRecord, SubRecord};
use nacre_target::{Reply, Request};
use nacre_types::name::HashKey;
use nacre_types::{Codec, Errno, Failure, Fid, LayoutTemplate, ProtocolOutcome};
use nacre_wire::Opcode;
use nacre_wire::Status;
use nacre_wire::mdt::{BATCH_MAX, Batch, BatchReply, SubOperation, SubResult};
use tracing::warn;

/// Attempts of one batch in a row that find missing rows: each fetches at least one more.
const FETCHES_MAX: usize = 16 * BATCH_MAX;

/// An OST may connect soon: no operation of the batch can stand.
const TRY_LATER: Abort = Abort::Failed(Failure::Outcome(ProtocolOutcome::TryLater));

/// `None`: an opcode that cannot be part of a batch.
fn decode(op: &SubOperation) -> Result<Option<AnyOperation<'_>>, Errno> {
    Opcode::from_number(op.opcode).map_or(Ok(None), |opcode| AnyOperation::decode(opcode, &op.body))
}

/// A batch between its attempts.
struct BatchRun<'a> {
    mdt: &'a Mdt,
    request: &'a Request,
    operations: Vec<Option<AnyOperation<'a>>>,
    stop_at_error: bool,
    /// Reserved, and needed for the record.
    credits: Credits,
    record_credits: Credits,
    choice: &'a LayoutChoice<'a>,
    /// The operation that is executed, for the choice of its layout.
    current: &'a Cell<usize>,
}

/// The results of one attempt so far.
struct Progress {
    results: Vec<SubResult>,
    records: Vec<SubRecord>,
    digest: Digest,
    stopped: bool,
    /// The attempt cannot stand.
    abort: Option<Abort>,
}

impl Progress {
    fn new() -> Self {
        Self { results: Vec::new(), records: Vec::new(), digest: Digest::new(), stopped: false, abort: None }
    }
    fn succeeded(&mut self, applied: Applied, versions: &PreVersions) {
        let Recorded { data, fid } = applied.record;
        let record = SubRecord { result: 0, data, fid };
        self.digest.add(versions, &record);
        self.records.push(record);
        self.results.push(SubResult { status: Status::Success, body: Bytes::from(applied.body) });
    }
    fn failed(&mut self, failure: Failure) {
        let status = Status::from(failure);
        let record = SubRecord { result: status.number() as u16, data: 0, fid: Fid::default() };
        if !self.stopped {
            self.digest.add(&PreVersions::default(), &record);
        }
        self.records.push(record);
        self.results.push(SubResult { status, body: Bytes::new() });
    }
}

impl BatchRun<'_> {
    /// One attempt of the whole batch.
    fn attempt(
        &mut self,
        tx: &mut Tx<'_>,
        read_set: &mut ReadSet,
        hash: HashKey,
        context: &mut Context<'_>,
        output: &mut Output,
    ) -> Step<Vec<SubResult>> {
        let mdt = self.mdt;
        let mut opens = mdt.opens().borrow_mut();
        let mut progress = Progress::new();
        self.choice.give_back(0);
        for number in 0..self.operations.len() {
            self.current.set(number);
            if progress.stopped {
                progress.failed(Failure::ECANCELED);
                continue;
            }
            self.step(number, tx, read_set, hash, context, &mut opens, &mut progress, output);
            // An OST may connect soon: the client sends the whole batch again.
            if progress.abort == Some(TRY_LATER) {
                break;
            }
        }
        if let Some(abort) = progress.abort {
            return Err(abort);
        }
        self.check_credits(tx)?;
        output.versions = progress.digest.versions();
        if self.request.replayed_versions().is_some_and(|expected| expected != output.versions) {
            warn!(target_name = %mdt.core().name,
                "replay of a batch refused: a change that it builds on is lost");
            return Err(ProtocolOutcome::VersionMismatch.into());
        }
        self.request.set_record_results(progress.records);
        Ok(progress.results)
    }

    /// One operation of an attempt.
    #[allow(
        clippy::too_many_arguments,
        reason = "the parts of one attempt, which borrow from different owners"
    )]
    fn step(
        &self,
        number: usize,
        tx: &mut Tx<'_>,
        read_set: &mut ReadSet,
        hash: HashKey,
        context: &mut Context<'_>,
        opens: &mut Opens,
        progress: &mut Progress,
        output: &mut Output,
    ) {
        let mdt = self.mdt;
        let (save, taken) = (tx.save(), self.choice.count());
        let placed = output.placed_dirs.len();
        let mut own = Output {
            accesses: output.accesses.take(),
            placed_dirs: core::mem::take(&mut output.placed_dirs),
            ..Output::default()
        };
        let holders = mdt.lock_holders(Some(self.request));
        let mut view = View::new(&mut *tx, read_set, hash, opens, &mut own).noting_locks(&holders);
        let result = match &self.operations[number] {
            Some(op) => op.get().apply(&mut view, context),
            None => Err(Errno::EOPNOTSUPP.into()),
        };
        (output.accesses, output.placed_dirs) = (own.accesses, own.placed_dirs);
        let failed = match result {
            Ok(applied) => {
                output.locks.extend(own.locks);
                for (change, _) in own.state_changes {
                    let undo = opens.undo_of(&change);
                    opens.apply(&change);
                    output.state_changes.push((change, Some(Box::new(undo))));
                }
                return progress.succeeded(applied, &own.versions);
            }
            Err(failed) => failed,
        };
        output.placed_dirs.truncate(placed);
        let needs_revoke = matches!(failed, Abort::AfterRevoke(_))
            && mdt.has_broken_locks(Some(self.request), opens, &own.locks);
        match failed {
            TRY_LATER => progress.abort = Some(failed),
            Abort::AfterRevoke(_) if needs_revoke => {
                output.locks.extend(own.locks);
                progress.abort = Some(failed);
            }
            Abort::AfterRevoke(errno) => {
                progress.failed(errno.into());
                progress.stopped = self.stop_at_error;
            }
            Abort::Failed(failure) => {
                progress.failed(failure);
                progress.stopped = self.stop_at_error;
            }
            // The other operations continue only to add their missing rows, so that one more fetch suffices for all.
            Abort::MissingRows | Abort::MustWait | Abort::NeedsCredits(_) => progress.abort = Some(failed),
        }
        tx.roll_back(save);
        self.choice.give_back(taken);
    }

    /// Asks for more credits if the batch and its record need more than was reserved.
    fn check_credits(&mut self, tx: &Tx<'_>) -> Step<()> {
        let (rows, row_bytes) = tx.written();
        let rows = rows + self.record_credits.rows;
        let row_bytes = row_bytes + self.record_credits.row_bytes;
        let room = &mut self.credits;
        if rows > room.rows || row_bytes > room.row_bytes {
            (room.rows, room.row_bytes) = (rows.max(room.rows), row_bytes.max(room.row_bytes));
            return Err(Abort::NeedsCredits(*room));
        }
        Ok(())
    }
}

impl Mdt {
    pub(crate) async fn batch(&self, request: &Request) -> Result<Reply, Failure> {
        let args: Batch = request.args()?;
        if args.operations.is_empty() || args.operations.len() > BATCH_MAX {
            return Err(Failure::EINVAL);
        }
        let operations = args.operations.iter().map(decode).collect::<Result<Vec<_>, Errno>>()?;
        operations.iter().flatten().for_each(|op| op.get().count(request));
        let hash = self.name_hash().wait().await;
        let client = || self.core().client_uuid(request.export);
        let record_credits = credits_of_record(operations.len());
        let (mut read_set, mut credits) = (ReadSet::default(), record_credits);
        for op in operations.iter().flatten().map(AnyOperation::get) {
            read_set.merge(op.read_set(hash, request.export));
            let more = credits_in_batch(op.bound());
            credits.rows += more.rows;
            credits.row_bytes += more.row_bytes;
            credits.frees &= more.frees;
            if op.needs_ost() && request.replayed_transno().is_none() {
                self.wait_for_room().await;
            }
        }
        // Layouts of a replay come out as they did when the batch was executed first.
        let replayed = request.replayed_reply().and_then(|body| BatchReply::from_slice(body).ok());
        let replayed = replayed.map_or(Vec::new(), |reply| reply.results);
        let layouts: Vec<_> = operations
            .iter()
            .zip(replayed)
            .map(|(op, result)| op.as_ref().and_then(|op| op.get().replayed_layout(&result.body)))
            .collect();
        let current = Cell::new(0);
        let choice = LayoutChoice::new(self.osts(), None);
        let (mdt, stop_at_error) = (self, args.stop_at_error);
        let mut run = BatchRun {
            mdt,
            request,
            operations,
            stop_at_error,
            credits,
            record_credits,
            choice: &choice,
            current: &current,
        };
        let mut choose = |template: &LayoutTemplate| match layouts.get(current.get()) {
            Some(Some(layout)) => Ok(layout.clone()),
            _ => choice.another(template),
        };
        let mut context = Context::new(request.export, &client, self.default_layout(), &mut choose);
        let attempt = |tx: &mut Tx<'_>, read_set: &mut ReadSet, hash, output: &mut Output| {
            run.attempt(tx, read_set, hash, &mut context, output)
        };
        let (transno, results) =
            self.attempts(Some(request), FETCHES_MAX, read_set, credits, attempt).await?;
        choice.keep();
        Ok(Reply::of(&BatchReply { results }).with_transno(transno))
    }

    /// Reconstructs the body of the reply of a batch that was executed before.
    pub(crate) async fn reconstruct_batch(
        &self,
        request: &Request,
        record: &ReplyRecord,
    ) -> Result<Vec<u8>, Errno> {
        let args: Batch = request.args()?;
        if args.operations.len() != record.results.len() {
            return Err(Errno::EPROTO);
        }
        let mut results = Vec::new();
        for (operation, record) in args.operations.iter().zip(&record.results) {
            let (mut status, mut body) = (Status::from_number(record.result.into()), Vec::new());
            if status == Status::Success {
                let op = decode(operation)?.ok_or(Errno::EPROTO)?;
                op.get().count(request);
                let recorded = Recorded { data: record.data, fid: record.fid };
                match self.reconstruct_operation(op.get(), recorded).await {
                    Ok(reply) => body = reply,
                    Err(Errno::EPROTO) => return Err(Errno::EPROTO),
                    Err(e) => status = e.into(),
                }
            }
            results.push(SubResult { status, body: Bytes::from(body) });
        }
        Ok(BatchReply { results }.to_vec())
    }
}
