//! The loop around an operation: fetch rows, reserve room, and one synchronous attempt. It is repeated if the attempt
//! misses rows or must wait.
//!
//! Invariants: the conditions of an attempt are checked in the visit of its transaction, after every wait; nothing is
//! reserved or pinned while it waits. Attempts that find missing rows are bounded: each fetches at least one more row.
//! Waits (for a commit, for locks, for earlier turns) are not bounded: each ends with its event, and `locks/turns.rs`
//! ensures that no request is overtaken for ever.

use crate::locks::change_order::WaitFor;
use crate::locks::inode_locks::{SLOT_TIMEOUT, Waiting};
use crate::locks::turns::Turn;
use crate::mdt::Mdt;
use crate::rows::access::AccessSet;
use crate::rows::read_set::ReadSet;
use crate::rows::state_change::StateChange;
use crate::rows::view::{Abort, Output, Step, View};
use crate::service::inode_locks::conflicts_with_former_locks;
use alloc::vec::Vec;
use core::mem;
use nacre_osd::{Credits, OsdError, Pins, Reservation, Tx};
use nacre_rpc::PreVersions;
use nacre_target::Request;
use nacre_types::name::HashKey;
use nacre_types::{Errno, Failure, Fid, InodeBits, ProtocolOutcome, Transno};
use nacre_wire::Opcode;
use tracing::error;

/// Attempts of one operation in a row that find missing rows: each fetches at least one more.
const FETCHES_MAX: usize = 64;

/// The reason why an attempt has to be repeated.
enum RetryReason {
    /// Rows were missing.
    MissingRows,
    /// The operation writes more than was reserved: it needs these credits.
    NeedsCredits(Credits),
    /// Other clients have locks of inodes that it changes.
    InodeLocks,
    /// The sender may have opens that it has not reported, of inodes that lose their last name.
    Reports,
    /// A conflicting change comes first.
    WaitFor(WaitFor),
}

/// The end of an attempt that left no change.
enum Unchanged {
    Failed(Failure),
    Retry(RetryReason),
}

/// The state of a request, or of a change of the target's own, between its attempts.
struct Attempts<'a> {
    request: Option<&'a Request>,
    hash: HashKey,
    read_set: ReadSet,
    credits: Credits,
    turn: Option<Turn<'a>>,
    /// Its place among the changes that wait for locks of inodes.
    waiting: Option<Waiting<'a>>,
    /// Its place before the OPEN bits of its own client.
    waiting_for_reports: Option<Waiting<'a>>,
}

impl<'a> Attempts<'a> {
    fn new(request: Option<&'a Request>, hash: HashKey, read_set: ReadSet, credits: Credits) -> Self {
        Self { request, hash, read_set, credits, turn: None, waiting: None, waiting_for_reports: None }
    }
}

impl Mdt {
    /// Executes an operation on behalf of a request.
    pub(crate) async fn execute<T>(
        &self,
        request: &Request,
        read_set: ReadSet,
        credits: Credits,
        op: impl FnMut(&mut View<'_>) -> Step<T>,
    ) -> Result<(Transno, T), Failure> {
        let attempt = self.single(Some(request), request.replayed_versions(), op);
        self.attempts(Some(request), FETCHES_MAX, read_set, credits, attempt).await
    }
    /// The same, if nothing has to be waited for. `None`: nothing was changed, and `execute` begins anew.
    pub(crate) fn execute_now<T>(
        &self,
        request: &Request,
        hash: HashKey,
        read_set: ReadSet,
        credits: Credits,
        op: impl FnMut(&mut View<'_>) -> Step<T>,
    ) -> Option<Result<(Transno, T), Failure>> {
        let mut attempt = self.single(Some(request), request.replayed_versions(), op);
        let mut state = Attempts::new(Some(request), hash, read_set, credits);
        for _ in 0..FETCHES_MAX {
            if !state.read_set.walks_mut().is_empty() {
                return None;
            }
            let reservation = self.core().osd.reserve_now(state.credits)?;
            let pins = state.read_set.fetch_now(&self.core().osd)?;
            let mut output = Output::default();
            match self.attempt_once(&mut state, &pins, reservation, &mut attempt, &mut output) {
                Ok(done) => return Some(Ok(done)),
                Err(Unchanged::Failed(failure)) => return Some(Err(failure)),
                Err(Unchanged::Retry(RetryReason::MissingRows)) => {}
                Err(Unchanged::Retry(RetryReason::NeedsCredits(needed))) => state.credits = needed,
                Err(Unchanged::Retry(_)) => return None,
            }
        }
        None
    }
    /// Executes a change of the target's own: there is no client whose protocol could handle an outcome.
    pub(crate) async fn execute_local<T>(
        &self,
        read_set: ReadSet,
        credits: Credits,
        op: impl FnMut(&mut View<'_>) -> Step<T>,
    ) -> Result<(Transno, T), Errno> {
        let attempt = self.single(None, None, op);
        let done = self.attempts(None, FETCHES_MAX, read_set, credits, attempt).await;
        done.map_err(Failure::for_caller)
    }
    /// An attempt that consists of one operation.
    fn single<'a, T>(
        &'a self,
        request: Option<&'a Request>,
        expected: Option<PreVersions>,
        mut op: impl FnMut(&mut View<'_>) -> Step<T>,
    ) -> impl FnMut(&mut Tx<'_>, &mut ReadSet, HashKey, &mut Output) -> Step<T> {
        move |tx, read_set, hash, output| {
            let opens = self.opens().borrow();
            let holders = self.lock_holders(request);
            let view = View::new(tx, read_set, hash, &opens, output).expecting(expected);
            op(&mut view.noting_locks(&holders))
        }
    }

    /// Repeats an attempt until it succeeds or fails for good.
    pub(crate) async fn attempts<T>(
        &self,
        request: Option<&Request>,
        fetches_max: usize,
        read_set: ReadSet,
        credits: Credits,
        mut attempt: impl FnMut(&mut Tx<'_>, &mut ReadSet, HashKey, &mut Output) -> Step<T>,
    ) -> Result<(Transno, T), Failure> {
        let hash = self.name_hash().wait().await;
        let mut state = Attempts::new(request, hash, read_set, credits);
        let (mut fetches, mut freed) = (0, false);
        while fetches < fetches_max {
            let alone = self.walk(&mut state.read_set).await;
            let reservation = match self.core().osd.reserve(state.credits).await {
                Err(OsdError::NoSpace { .. }) if request.is_some() && !mem::replace(&mut freed, true) => {
                    drop(alone);
                    self.free_own_device().await;
                    continue;
                }
                Err(error @ OsdError::NoSpace { .. }) => {
                    self.say_full();
                    return Err(error.into());
                }
                reserved => reserved?,
            };
            let pins = state.read_set.fetch(&self.core().osd).await?;
            let mut output = Output::default();
            let done = self.attempt_once(&mut state, &pins, reservation, &mut attempt, &mut output);
            drop((pins, alone));
            state.read_set.walks_mut().attempted();
            let reason = match done {
                Ok(done) => return Ok(done),
                Err(Unchanged::Failed(failure)) => return Err(failure),
                Err(Unchanged::Retry(reason)) => reason,
            };
            fetches = match reason {
                RetryReason::MissingRows | RetryReason::NeedsCredits(_) => fetches + 1,
                RetryReason::InodeLocks | RetryReason::Reports | RetryReason::WaitFor(_) => 0,
            };
            self.prepare_retry(&mut state, reason, &output).await?;
        }
        error!(target_name = %self.core().name, ?request, "an operation found new rows to read for ever: a bug");
        Err(Failure::EIO)
    }

    /// One attempt, in one transaction and one visit.
    fn attempt_once<T>(
        &self,
        state: &mut Attempts<'_>,
        pins: &Pins,
        reservation: Reservation,
        attempt: &mut impl FnMut(&mut Tx<'_>, &mut ReadSet, HashKey, &mut Output) -> Step<T>,
        output: &mut Output,
    ) -> Result<(Transno, T), Unchanged> {
        let Attempts { request, hash, read_set, turn, .. } = state;
        let request = *request;
        // Here and not before the waits: other clients may have connected meanwhile.
        let tracks = request.is_some_and(|request| self.tracks_accesses(request));
        let turn = turn.as_ref().map(Turn::number);
        let accesses = tracks.then(|| AccessSet::with_turn(turn));
        output.accesses = accesses;
        let mut retry = None;
        let once = |tx: &mut Tx<'_>| {
            let result = attempt(tx, read_set, *hash, output);
            retry = match &result {
                Ok(_) => self.must_retry(request, output),
                Err(Abort::MustWait) => {
                    let wait_for = self.must_wait_for(request, output.accesses.as_ref());
                    Some(wait_for.map_or(RetryReason::MissingRows, RetryReason::WaitFor))
                }
                Err(Abort::MissingRows) => Some(RetryReason::MissingRows),
                Err(Abort::NeedsCredits(needed)) => Some(RetryReason::NeedsCredits(*needed)),
                Err(Abort::AfterRevoke(_))
                    if self.has_broken_locks(request, &self.opens().borrow(), &output.locks) =>
                {
                    Some(RetryReason::InodeLocks)
                }
                Err(Abort::AfterRevoke(errno)) => return Err((*errno).into()),
                Err(Abort::Failed(failure)) => return Err(*failure),
            };
            let value = result.ok().filter(|_| retry.is_none()).ok_or(Failure::EAGAIN)?;
            if let Some(request) = request
                && output.versions != PreVersions::default()
            {
                request.set_record_versions(output.versions);
            }
            Ok(value)
        };
        let done = match request {
            Some(request) => {
                let admitted = self.core().admit_change(request).map_err(Failure::from);
                admitted.and_then(|admitted| self.core().transact(admitted, pins, reservation, once))
            }
            None => self.core().osd.transact(pins, reservation, once),
        };
        let unchanged = match (done, retry) {
            (Ok(done), _) => {
                self.applied(request, done.0, mem::take(output));
                return Ok(done);
            }
            (Err(failure), None) => Unchanged::Failed(failure),
            (Err(_), Some(reason)) => Unchanged::Retry(reason),
        };
        let mut opens = self.opens().borrow_mut();
        let done_already = output.state_changes.drain(..).rev().filter_map(|(_, undo)| undo);
        done_already.for_each(|undo| opens.undo(*undo));
        Err(unchanged)
    }
    /// Whether a change may have to wait for changes of other clients. The changes of others wait for a report of opens: it must
    /// not wait for their turns, and is committed before its reply.
    fn tracks_accesses(&self, request: &Request) -> bool {
        request.opcode != Opcode::ReportOpens && self.core().tracks_uncommitted(request)
    }
    /// The reason why an attempt that has succeeded must not stand.
    fn must_retry(&self, request: Option<&Request>, output: &Output) -> Option<RetryReason> {
        if self.has_broken_locks(request, &self.opens().borrow(), &output.locks) {
            return Some(RetryReason::InodeLocks);
        }
        if self.lacks_reports(request, &output.locks) {
            return Some(RetryReason::Reports);
        }
        self.must_wait_for(request, output.accesses.as_ref()).map(RetryReason::WaitFor)
    }
    fn must_wait_for(&self, request: Option<&Request>, accesses: Option<&AccessSet>) -> Option<WaitFor> {
        let (request, accesses) = request.zip(accesses)?;
        self.change_order().must_wait_for(self.core(), request, accesses)
    }
    /// The transaction has succeeded: the memory follows it, in the same visit.
    fn applied(&self, request: Option<&Request>, transno: Transno, output: Output) {
        let is_replay = request.is_some_and(|request| request.replayed_transno().is_some());
        for (change, undo) in output.state_changes {
            if undo.is_none() {
                self.opens().borrow_mut().apply(&change);
            }
            if let StateChange::Opened { export, opened, .. } = change
                && is_replay
            {
                self.opens().borrow_mut().note_former(export, opened);
            }
            self.follow_state_change(change);
        }
        let own = request.map(|request| request.export);
        self.inode_locks().revoke_access_times(self.core(), own, output.locks.accessed());
        self.set_lock_tail(request, transno, output.locks);
        if let Some(request) = request {
            self.inode_locks().change_applied(request.export);
        }
        if let (Some(request), Some(accesses)) = (request, output.accesses) {
            self.change_order().applied(request, transno, &accesses);
        }
    }
    /// Waits until others have returned locks; `after_restart`: also those of an earlier start. A change that waits for long
    /// gives its slot back if its client knows how to wait without one.
    async fn wait_for_locks<'a>(
        &'a self,
        request: Option<&Request>,
        waiting: Waiting<'a>,
        broken: &[(Fid, InodeBits)],
        after_restart: bool,
    ) -> Result<Waiting<'a>, Failure> {
        let free = async {
            if after_restart {
                if self.core().former_locks_deadline().is_some() {
                    // So that its client is told to come back if it is refused meanwhile.
                    waiting.until_free(self.core(), &[]).await?;
                }
                self.core().former_locks_ended().await;
                self.restore_write_back(request.map(|request| request.export), broken);
            }
            waiting.until_free(self.core(), broken).await
        };
        match request.filter(|request| self.may_be_parked(request)) {
            None => free.await?,
            Some(request) => {
                let ctx = &self.core().ctx;
                let Some(free) = ctx.timeout(ctx.now() + SLOT_TIMEOUT, free).await else {
                    self.inode_locks().park(request.export, request.header.xid, waiting);
                    return Err(ProtocolOutcome::LocksAwaited.into());
                };
                free?;
            }
        }
        Ok(waiting)
    }
    /// Does what the next attempt needs: waits, or reserves more.
    async fn prepare_retry<'a>(
        &'a self,
        state: &mut Attempts<'a>,
        reason: RetryReason,
        output: &Output,
    ) -> Result<(), Failure> {
        match reason {
            RetryReason::MissingRows => {}
            RetryReason::NeedsCredits(needed) => state.credits = needed,
            RetryReason::InodeLocks => {
                let waiting = match state.waiting.take() {
                    Some(waiting) => waiting,
                    None => self.inode_locks().enter(state.request.map(|request| request.export))?,
                };
                let broken = output.locks.broken();
                let former = conflicts_with_former_locks(state.request);
                state.waiting = Some(self.wait_for_locks(state.request, waiting, broken, former).await?);
            }
            RetryReason::Reports => {
                // The ticket belongs to no client, so that it conflicts with the lock of the sender, too.
                let waiting = self.inode_locks().enter(None)?;
                let opens: Vec<_> =
                    output.locks.unreported().iter().map(|fid| (*fid, InodeBits::OPEN)).collect();
                state.waiting_for_reports =
                    Some(self.wait_for_locks(state.request, waiting, &opens, false).await?);
            }
            RetryReason::WaitFor(event) => {
                let turns = self.change_order().turns();
                if let (Some(request), Some(accesses)) = (state.request, &output.accesses) {
                    state.turn.get_or_insert_with(|| turns.enter(request.export)).set_accesses(accesses);
                }
                match event {
                    WaitFor::Turn(number) => turns.ended(number).await,
                    WaitFor::Commit(transno) => self.core().osd.commit(transno).await?,
                }
            }
        }
        Ok(())
    }
}
