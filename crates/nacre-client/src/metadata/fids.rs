//! FIDs of new inodes. A second sequence is requested in advance, so that only the first create waits for one.

use crate::targets::mdt::Mdt;
use alloc::rc::Rc;
use nacre_types::{Errno, Failure, Fid, Seq};
use nacre_wire::mdt::GrantSeq;

impl Mdt {
    /// A FID for a new inode of this MDT, never used before.
    pub(crate) async fn new_fid(self: &Rc<Self>) -> Result<Fid, Failure> {
        loop {
            let fid = self.fids().take();
            if self.fids().wants_more() {
                self.request_sequence();
            }
            match fid {
                Some(fid) => return Ok(fid),
                None => self.fids().request_ended().await?,
            }
        }
    }

    /// Requests the next sequence in the background.
    pub(crate) fn request_sequence(self: &Rc<Self>) {
        let generation = self.fids().begin_request();
        let mdt = self.clone();
        self.ctx().spawn(async move {
            let granted = async { Ok(mdt.check_granted(mdt.call(&GrantSeq {}).await?.seq)?) };
            let granted = granted.await;
            mdt.fids().end_request(generation, granted);
        });
    }

    /// Requests about FIDs of another MDT's range would go to that MDT.
    fn check_granted(&self, seq: Seq) -> Result<Seq, Errno> {
        if seq.is_grantable_by(self.index()) {
            return Ok(seq);
        }
        tracing::error!(target_name = %self.name, seq = seq.0,
            "the MDT has granted a sequence of FIDs that is not in its range: it is not used\nhint: nacre check on the MDT");
        Err(Errno::EPROTO)
    }
}
