//! The loop around an operation: fetch, reserve, and one synchronous attempt; again with what was missing, or once it may
//! be made.
//!
//! Invariants: what an attempt finds out is found out in the visit of its transaction, not before it waited; nothing is
//! reserved or pinned while it waits. Attempts that find missing rows are bounded: each fetches at least one more. Waits
//! (for a commit, for holds, for earlier turns) are not: each ends with what it waits for, and `turns.rs` sees to it that
//! nobody is overtaken for ever.

use crate::locks::dir_holds::DirChange;
use crate::locks::turns::Turn;
use crate::locks::uncommitted::{First, Touched};
use crate::mdt::Mdt;
use crate::rows::view::{Halt, Note, Step, View, Wants};
use alloc::vec::Vec;
use core::mem;
use nacre_osd::{Credits, OsdError, Tx};
use nacre_rpc::PreVersions;
use nacre_target::Request;
use nacre_types::name::HashKey;
use nacre_types::{Errno, Transno};
use tracing::error;

/// Attempts of one operation in a row that find rows which are missing: each fetches at least one more.
const FETCHES_MAX: usize = 64;

/// What an attempt leaves beside its result.
#[derive(Default)]
pub(crate) struct Left {
    pub(crate) touched: Option<Touched>,
    pub(crate) notes: Vec<Note>,
    pub(crate) dirs: Vec<DirChange>,
    pub(crate) versions: PreVersions,
}

/// Why an attempt has come to nothing, and what is done about it.
enum Again {
    /// Rows were missing.
    Fetch,
    /// It writes more than was reserved: so much.
    Reserve(Credits),
    /// Others hold directories that it changes.
    EndHolds,
    /// Others come first.
    After(First),
}

impl Mdt {
    /// Runs an operation on behalf of a request.
    pub(crate) async fn change<T>(
        &self,
        request: &Request,
        wants: Wants,
        credits: Credits,
        op: impl FnMut(&mut View<'_>) -> Step<T>,
    ) -> Result<(Transno, T), Errno> {
        let attempt = self.single(request.replayed_versions(), op);
        self.attempts(Some(request), FETCHES_MAX, wants, credits, attempt).await
    }
    /// Runs a change of the target's own.
    pub(crate) async fn change_local<T>(
        &self,
        wants: Wants,
        credits: Credits,
        op: impl FnMut(&mut View<'_>) -> Step<T>,
    ) -> Result<(Transno, T), Errno> {
        self.attempts(None, FETCHES_MAX, wants, credits, self.single(None, op)).await
    }
    /// An attempt that consists of one operation.
    fn single<T>(
        &self,
        expected: Option<PreVersions>,
        mut op: impl FnMut(&mut View<'_>) -> Step<T>,
    ) -> impl FnMut(&mut Tx<'_>, &mut Wants, HashKey, &mut Left) -> Step<T> {
        move |tx, wants, hash, left| {
            let opens = self.opens.borrow();
            let mut view = View::new(tx, wants, hash, &opens);
            view.touched = left.touched.take();
            view.versions.expected = expected;
            let done = op(&mut view);
            (left.touched, left.notes, left.dirs) = (view.touched, view.notes, view.dirs);
            left.versions = view.versions.found;
            done
        }
    }

    /// Attempts until one can stand.
    pub(crate) async fn attempts<T>(
        &self,
        request: Option<&Request>,
        fetches_max: usize,
        mut wants: Wants,
        mut room: Credits,
        mut attempt: impl FnMut(&mut Tx<'_>, &mut Wants, HashKey, &mut Left) -> Step<T>,
    ) -> Result<(Transno, T), Errno> {
        let hash = self.hash().await;
        let (mut turn, mut fetches, mut freed) = (None, 0, false);
        while fetches < fetches_max {
            let alone = self.walk(&mut wants).await;
            let reservation = match self.core.osd.reserve(room).await {
                Err(OsdError::NoSpace { .. }) if request.is_some() && !mem::replace(&mut freed, true) => {
                    drop(alone);
                    self.free_own_device().await;
                    continue;
                }
                reserved => reserved?,
            };
            let pins = wants.fetch(&self.core.osd).await?;
            // Here and not before the waits: other clients may have come meanwhile.
            let tracks = request.is_some_and(|request| self.core.tracks_uncommitted(request));
            let number = turn.as_ref().map(Turn::number);
            let touched = tracks.then(|| Touched { turn: number, ..Touched::default() });
            let mut left = Left { touched, ..Left::default() };
            let mut again = None;
            let once = |tx: &mut Tx<'_>| {
                let done = attempt(tx, &mut wants, hash, &mut left);
                let first = || {
                    let (request, touched) = request.zip(left.touched.as_ref())?;
                    self.must_wait_for(request, touched)
                };
                again = match &done {
                    Ok(_) if self.is_held(request, &left.dirs) => Some(Again::EndHolds),
                    Ok(_) => first().map(Again::After),
                    Err(Halt::Wait) => Some(first().map_or(Again::Fetch, Again::After)),
                    Err(Halt::Retry) => Some(Again::Fetch),
                    Err(Halt::Reserve(needed)) => Some(Again::Reserve(*needed)),
                    Err(Halt::Errno(e)) => return Err(*e),
                };
                let done = done.ok().filter(|_| again.is_none()).ok_or(Errno::EAGAIN)?;
                if let Some(request) = request
                    && left.versions != PreVersions::default()
                {
                    self.core.set_record_versions(request, left.versions);
                }
                Ok(done)
            };
            let done = match request {
                Some(request) if let Err(gone) = self.core.still_wanted(request) => Err(gone),
                Some(request) => self.core.transact(request, &pins, reservation, once),
                None => self.core.transact_local(&pins, reservation, once),
            };
            drop((pins, alone));
            wants.ways.attempted();
            let again = match (done, again) {
                (Ok(done), _) => {
                    left.notes.into_iter().for_each(|note| self.learn(note));
                    self.dirs_changed(request, left.dirs);
                    if let (Some(request), Some(touched)) = (request, left.touched) {
                        self.record_uncommitted(request, done.0, touched);
                    }
                    return Ok(done);
                }
                (Err(e), None) => return Err(e),
                (Err(_), Some(again)) => again,
            };
            fetches = match again {
                Again::Fetch | Again::Reserve(_) => fetches + 1,
                Again::EndHolds | Again::After(_) => 0,
            };
            match again {
                Again::Fetch => {}
                Again::Reserve(needed) => room = needed,
                Again::EndHolds => self.end_holds(request, &left.dirs).await,
                Again::After(first) => {
                    if let (Some(request), Some(touched)) = (request, &left.touched) {
                        turn.get_or_insert_with(|| self.turns.enter(request.export)).touches(touched);
                    }
                    match first {
                        First::Turn(number) => self.turns.ended(number).await,
                        First::Commit(transno) => self.core.osd.commit(transno).await?,
                    }
                }
            }
        }
        error!(target_name = %self.core.name, ?request, "an operation found new rows to read for ever: a bug");
        Err(Errno::EIO)
    }
}
