//! Appending: the end of the file is found under locks on all of it, and the bytes are written there.
//!
//! An append over several objects must not be seen in parts, nor be executed twice. If locks are lost with an OST's
//! process in the middle, the next try completes the append at its place if no other client has appended since;
//! otherwise it turns the written pieces into a hole and writes the whole append at the new end. Not here: a call that
//! comes in several requests (`long_append`).

use crate::client::Client;
use crate::data::io::check_end;
use crate::data::long_append::AppendLocks;
use crate::data::stripes::{self, Laid, ObjectRange};
use crate::files::table::Open;
use crate::locks::extents::GrantedExtent;
use crate::locks::under_lease::Change;
use crate::targets::target::Target;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;
use nacre_node::join_all;
use nacre_types::{Component, Errno, Extent, Failure, Fid, ProtocolOutcome, Timestamp};
use nacre_wire::ost::{LockMode, ObjectState, Truncate};

/// One object's part of an append.
#[derive(Debug, Clone)]
struct Part {
    range: ObjectRange,
    /// The object's size before.
    before: u64,
    /// The part is written, and could not be truncated away.
    done: bool,
}

/// State of an append whose locks were lost half way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remains {
    /// Its pieces and its place are intact: the missing pieces can be written there.
    Place,
    /// Its pieces are intact, but others have written where the rest belongs.
    Pieces,
    /// Others have truncated its pieces, or overwritten them.
    Nothing,
}

/// The parts of an append of `data` behind the end of the file, which the locks show.
fn parts_at_end(component: &Component, data: &Bytes, locks: &AppendLocks) -> Result<Vec<Part>, Errno> {
    let states: Vec<ObjectState> = locks.iter().map(|(_, held)| held.state()).collect();
    let sizes = (0u32..).zip(&states).map(|(stripe, state)| component.file_size(stripe, state.size));
    let end = sizes.max().unwrap_or(0);
    let len = data.len() as u64;
    check_end(end, len)?;
    let ranges = stripes::by_object(component, end, len);
    let part = |range: ObjectRange| {
        let before = states.get(range.stripe as usize).map_or(0, |state| state.size);
        Part { range, before, done: false }
    };
    Ok(ranges.into_iter().map(part).collect())
}

impl Client {
    /// Appends under locks that the piece before has left, or under new ones. The stripes that were written, and the locks.
    /// With `goes_on` these survive a kill of an OST's process.
    pub(crate) async fn append(
        &self,
        open: &Open,
        component: &Component,
        data: &Bytes,
        locks: AppendLocks,
        goes_on: bool,
    ) -> Result<(Vec<u32>, AppendLocks), Failure> {
        let begun = RefCell::new(Vec::new());
        let left = RefCell::new(locks);
        self.retry_lost_locks(|first| {
            let (locks, begun) = (left.take(), &begun);
            async move {
                let locks = match locks.is_empty() {
                    true => self.lock_whole_file(open, component, goes_on, first).await?,
                    false => locks,
                };
                self.try_append(open, component, data, begun, locks).await
            }
        })
        .await
    }

    async fn lock_whole_file(
        &self,
        open: &Open,
        component: &Component,
        goes_on: bool,
        interruptible: bool,
    ) -> Result<AppendLocks, Failure> {
        let mut locks = Vec::with_capacity(component.stripes.len());
        // No other client gets the locks when an OST is killed: the pieces belong together.
        let persistent = goes_on || component.stripes.len() > 1;
        for (stripe, &ost) in (0u32..).zip(&component.stripes) {
            let ost = self.ost(ost).await?;
            let object = Laid::new(component, open.file.fid, stripe);
            let held =
                self.lock_extent(&ost, object, LockMode::Pw, Extent::ALL, persistent, interruptible).await?;
            locks.push((ost, held));
        }
        Ok(locks)
    }

    /// Finds the end of the file under `locks` on all of it, and writes there; or completes an append that was `begun` earlier.
    async fn try_append(
        &self,
        open: &Open,
        component: &Component,
        data: &Bytes,
        begun: &RefCell<Vec<Part>>,
        mut locks: AppendLocks,
    ) -> Result<(Vec<u32>, AppendLocks), Failure> {
        let file = &open.file;
        let mtime = self.now();
        let earlier = begun.borrow().clone();
        let left = match earlier.is_empty() {
            true => Remains::Nothing,
            false => Box::pin(self.remains_of_append(file.fid, &earlier, data, &locks)).await?,
        };
        if left == Remains::Pieces {
            Box::pin(self.erase(open, &earlier, data, &locks, mtime)).await?;
        }
        let parts = match left {
            Remains::Place => earlier,
            Remains::Pieces | Remains::Nothing => {
                begun.take();
                parts_at_end(component, data, &locks)?
            }
        };
        let writes = parts.iter().map(|part| async {
            let (ost, held) = locks.get(part.range.stripe as usize).ok_or(Failure::EIO)?;
            if part.done {
                return Ok(());
            }
            self.write_object(ost, open, &part.range, data, held.cookie(), mtime).await
        });
        let written = join_all(writes).await;
        let Some(&Err(error)) = written.iter().find(|w| w.is_err()) else {
            for part in &parts {
                if let Some((_, held)) = locks.get_mut(part.range.stripe as usize) {
                    held.written_to(part.range.offset + part.range.len);
                }
            }
            return Ok((parts.iter().map(|part| part.range.stripe).collect(), locks));
        };
        // The next appender must not find a piece of this append behind a hole: written parts are truncated away, unless
        // their lock is lost as well. Then the next try writes the missing parts. (Parts of an earlier try may have bytes of
        // others behind them, and are not truncated.)
        let undone = parts.iter().zip(&written).map(|(part, written)| async {
            let cut = match locks.get(part.range.stripe as usize) {
                Some((ost, held)) if written.is_ok() && left != Remains::Place => {
                    self.truncate_back(ost, open, part, held, mtime).await
                }
                _ => Ok(()),
            };
            let done = cut.is_err() || written.is_ok() && left == Remains::Place;
            Part { range: part.range.clone(), before: part.before, done }
        });
        let parts: Vec<Part> = join_all(undone).await;
        if parts.iter().any(|part| part.done) {
            if error != ProtocolOutcome::LockLost.into() {
                tracing::error!(fid = %file.fid, "a failed append could not be taken back: the file has a hole with a piece of it behind");
            }
            begun.replace(parts);
        }
        Err(error)
    }

    /// Reads the pieces that an earlier try of an append has written, and the place of the rest.
    async fn remains_of_append(
        &self,
        fid: Fid,
        parts: &[Part],
        data: &Bytes,
        locks: &[(Rc<Target>, GrantedExtent)],
    ) -> Result<Remains, Failure> {
        let mut left = Remains::Place;
        for part in parts {
            let (ost, held) = locks.get(part.range.stripe as usize).ok_or(Failure::EIO)?;
            let (found, _) = self.read_object(ost, fid, &part.range, held.cookie()).await?;
            let (found, ours) = (found.concat(), stripes::gather(&part.range, data));
            if part.done && found != ours {
                return Ok(Remains::Nothing);
            }
            if !part.done && found.iter().zip(&ours).any(|(found, ours)| *found != 0 && found != ours) {
                left = Remains::Pieces;
            }
        }
        Ok(left)
    }

    /// Turns the pieces into a hole: the append is written elsewhere, and must not be in the file twice.
    async fn erase(
        &self,
        open: &Open,
        parts: &[Part],
        data: &Bytes,
        locks: &[(Rc<Target>, GrantedExtent)],
        mtime: Timestamp,
    ) -> Result<(), Failure> {
        let zeros = Bytes::from(alloc::vec![0; data.len()]);
        tracing::warn!(
            fid = %open.file.fid,
            bytes = data.len(),
            "locks were lost under an append and others have appended since: it goes to the end, a hole is where it was begun"
        );
        for part in parts.iter().filter(|part| part.done) {
            let (ost, held) = locks.get(part.range.stripe as usize).ok_or(Failure::EIO)?;
            self.write_object(ost, open, &part.range, &zeros, held.cookie(), mtime).await?;
        }
        Ok(())
    }

    /// Sets an object back to the size it had before the append.
    async fn truncate_back(
        &self,
        ost: &Target,
        open: &Open,
        part: &Part,
        held: &GrantedExtent,
        mtime: Timestamp,
    ) -> Result<(), Failure> {
        let file = &open.file;
        let Laid { object, laid } = part.range.of(file.fid);
        file.note_uncertain(part.range.stripe);
        let (owner, lock) = (file.owner(), held.cookie());
        let request = Truncate { object, laid, size: part.before, owner, mtime, lock };
        self.change_object(ost, Change::through(open), held.cookie(), &request, Vec::new()).await.map(drop)
    }
}
