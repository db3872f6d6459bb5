//! FIDs of new inodes. A second sequence is requested in advance, so that only the first create waits for one.

use crate::client::Client;
use nacre_types::{Errno, Fid};
use nacre_wire::mdt::GrantSeq;

impl Client {
    /// A FID that was never used.
    pub(crate) async fn new_fid(&self) -> Result<Fid, Errno> {
        loop {
            let fid = self.fids.take();
            if self.fids.wants_more() {
                self.request_sequence();
            }
            match fid {
                Some(fid) => return Ok(fid),
                None => self.fids.request_ended().await?,
            }
        }
    }

    /// Requests the next sequence in the background.
    pub(crate) fn request_sequence(&self) {
        let generation = self.fids.begin_request();
        let client = self.me();
        self.ctx.spawn(async move {
            let granted = match client.mdt().await {
                Ok(mdt) => mdt.call(&GrantSeq {}).await,
                Err(e) => Err(e),
            };
            client.fids.end_request(generation, granted.map(|reply| reply.seq));
        });
    }
}
