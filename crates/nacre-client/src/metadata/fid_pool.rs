//! The FIDs that this mount may still assign: from sequences that the MDT has granted.
//!
//! A FID is assigned once, also when its create fails. After an eviction all sequences are gone: the MDT would refuse them.

use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, WaitList};
use nacre_types::{Failure, Fid, OIDS_PER_SEQ, Oid, Seq};

#[derive(Default)]
struct Sequences {
    /// The sequence in use and its next object id.
    current: Option<(Seq, u32)>,
    spare: Option<Seq>,
}

/// The FIDs that this mount may still assign.
pub(crate) struct FidPool {
    sequences: RefCell<Sequences>,
    /// A request for a sequence is under way.
    requesting: Cell<bool>,
    /// Counts evictions: a grant that was requested before an eviction is not used after it.
    generation: Cell<u64>,
    failed: Cell<Option<Failure>>,
    changed: WaitList,
}

impl FidPool {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            sequences: RefCell::default(),
            requesting: Cell::new(false),
            generation: Cell::new(0),
            failed: Cell::new(None),
            changed: ctx.wait_list(),
        }
    }
    /// The MDT has forgotten this client and its sequences.
    pub(crate) fn forget(&self) {
        self.generation.set(self.generation.get() + 1);
        *self.sequences.borrow_mut() = Sequences::default();
    }
    /// The next FID; `None` if every sequence is used up.
    pub(super) fn take(&self) -> Option<Fid> {
        let mut sequences = self.sequences.borrow_mut();
        if sequences.current.is_none_or(|(_, next)| next >= OIDS_PER_SEQ) {
            let spare = sequences.spare.take()?;
            sequences.current = Some((spare, 1));
        }
        let (seq, next) = sequences.current.as_mut()?;
        let fid = Fid::new(*seq, Oid(*next));
        *next += 1;
        Some(fid)
    }
    /// Whether the next sequence should be requested now.
    pub(crate) fn wants_more(&self) -> bool {
        let sequences = self.sequences.borrow();
        sequences.spare.is_none() && !self.requesting.get()
    }
    /// A request for a sequence begins; returns the generation to pass to [`FidPool::end_request`].
    pub(super) fn begin_request(&self) -> u64 {
        self.requesting.set(true);
        self.failed.set(None);
        self.generation.get()
    }
    /// The request has ended. An outcome of an earlier generation is discarded.
    pub(super) fn end_request(&self, generation: u64, outcome: Result<Seq, Failure>) {
        self.requesting.set(false);
        if generation == self.generation.get() {
            match outcome {
                Ok(seq) => self.sequences.borrow_mut().spare = Some(seq),
                Err(error) => self.failed.set(Some(error)),
            }
        }
        self.changed.wake_all();
    }
    /// Waits for the end of a request.
    pub(super) async fn request_ended(&self) -> Result<(), Failure> {
        self.changed.wait().await;
        self.failed.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fids_run_through_a_sequence_and_go_on_in_the_spare_one() {
        let fids = FidPool::new(&Ctx::new(1));
        assert_eq!(fids.take(), None);
        fids.sequences.borrow_mut().spare = Some(Seq(0x100));
        assert_eq!(fids.take(), Some(Fid::new(Seq(0x100), Oid(1))));
        assert!(fids.wants_more());
        fids.sequences.borrow_mut().spare = Some(Seq(0x200));
        fids.sequences.borrow_mut().current = Some((Seq(0x100), OIDS_PER_SEQ - 1));
        assert_eq!(fids.take(), Some(Fid::new(Seq(0x100), Oid(OIDS_PER_SEQ - 1))));
        assert_eq!(fids.take(), Some(Fid::new(Seq(0x200), Oid(1))));
        fids.forget();
        assert_eq!(fids.take(), None);
    }
}
