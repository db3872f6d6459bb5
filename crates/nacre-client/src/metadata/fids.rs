//! FIDs of new inodes: from sequences that the MDT granted to this client.
//!
//! A second sequence is fetched in advance, so that a create never waits for one except the first. A FID is used once,
//! also when its create fails. After an eviction all sequences are gone: the MDT would refuse them.

use crate::client::Client;
use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, WaitList};
use nacre_types::{Errno, Fid, OIDS_PER_SEQ, Oid, Seq};
use nacre_wire::mdt::GrantSeq;

#[derive(Default)]
struct Held {
    /// The sequence in use and its next object id.
    current: Option<(Seq, u32)>,
    spare: Option<Seq>,
}

/// What is left to hand out.
pub(crate) struct Fids {
    held: RefCell<Held>,
    /// A grant is on its way.
    asking: Cell<bool>,
    /// Counts evictions: a grant that was asked before one is not used after it.
    generation: Cell<u64>,
    failed: Cell<Option<Errno>>,
    changed: WaitList,
}

impl Fids {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            held: RefCell::default(),
            asking: Cell::new(false),
            generation: Cell::new(0),
            failed: Cell::new(None),
            changed: ctx.wait_list(),
        }
    }
    /// The MDT has forgotten this client and its sequences.
    pub(crate) fn forget(&self) {
        self.generation.set(self.generation.get() + 1);
        *self.held.borrow_mut() = Held::default();
    }
    fn take(&self) -> Option<Fid> {
        let mut held = self.held.borrow_mut();
        if held.current.is_none_or(|(_, next)| next >= OIDS_PER_SEQ) {
            let spare = held.spare.take()?;
            held.current = Some((spare, 1));
        }
        let (seq, next) = held.current.as_mut()?;
        let fid = Fid::new(*seq, Oid(*next));
        *next += 1;
        Some(fid)
    }
    pub(crate) fn wants_more(&self) -> bool {
        let held = self.held.borrow();
        held.spare.is_none() && !self.asking.get()
    }
}

impl Client {
    /// A FID that was never used.
    pub(crate) async fn new_fid(&self) -> Result<Fid, Errno> {
        loop {
            let fid = self.fids.take();
            if self.fids.wants_more() {
                self.ask_for_sequence();
            }
            if let Some(fid) = fid {
                return Ok(fid);
            }
            self.fids.changed.wait().await;
            if let Some(e) = self.fids.failed.take() {
                return Err(e);
            }
        }
    }

    /// Fetches the next sequence in the background.
    pub(crate) fn ask_for_sequence(&self) {
        self.fids.asking.set(true);
        self.fids.failed.set(None);
        let client = self.me();
        self.ctx.spawn(async move {
            let fids = &client.fids;
            let generation = fids.generation.get();
            let granted = match client.mdt().await {
                Ok(mdt) => mdt.call(&GrantSeq {}).await,
                Err(e) => Err(e),
            };
            fids.asking.set(false);
            match granted {
                Ok(reply) if generation == fids.generation.get() => {
                    fids.held.borrow_mut().spare = Some(reply.seq);
                }
                Ok(_) => {}
                Err(e) if generation == fids.generation.get() => fids.failed.set(Some(e)),
                Err(_) => {}
            }
            fids.changed.wake_all();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fids_run_through_a_sequence_and_go_on_in_the_spare_one() {
        let fids = Fids::new(&Ctx::new(1));
        assert_eq!(fids.take(), None);
        fids.held.borrow_mut().spare = Some(Seq(0x100));
        assert_eq!(fids.take(), Some(Fid::new(Seq(0x100), Oid(1))));
        assert!(fids.wants_more());
        fids.held.borrow_mut().spare = Some(Seq(0x200));
        fids.held.borrow_mut().current = Some((Seq(0x100), OIDS_PER_SEQ - 1));
        assert_eq!(fids.take(), Some(Fid::new(Seq(0x100), Oid(OIDS_PER_SEQ - 1))));
        assert_eq!(fids.take(), Some(Fid::new(Seq(0x200), Oid(1))));
        fids.forget();
        assert_eq!(fids.take(), None);
    }
}
