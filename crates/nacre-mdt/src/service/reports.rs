//! Reports of opens that clients have made under OPEN bits of their locks.
//!
//! Changes, also those of the same client, wait until the bits are returned, and a client returns the bits only after the
//! report. Therefore a report takes no slot and waits for no turn. It is committed before its reply, so that no client
//! replays it, and it may be executed twice.

use crate::mdt::Mdt;
use crate::ops::WriteBound;
use crate::ops::opening::open_inode;
use crate::rows::opens::is_writer;
use crate::rows::read_set::ReadSet;
use crate::service::bounds::credits_of;
use alloc::vec::Vec;
use nacre_target::{Reply, Request};
use nacre_types::{Errno, Transno};
use nacre_wire::Status;
use nacre_wire::mdt::{REPORTED_OPENS_MAX, ReportOpens, ReportOpensReply, ReportedOpen};

impl Mdt {
    pub(crate) async fn report_opens(&self, request: &Request) -> Result<Reply, Errno> {
        let ReportOpens { opens } = request.args()?;
        if opens.len() > REPORTED_OPENS_MAX || opens.iter().any(|open| is_writer(open.how.flags)) {
            return Err(Errno::EINVAL);
        }
        let (mut results, mut last) = (Vec::with_capacity(opens.len()), Transno::default());
        for ReportedOpen { fid, how } in opens {
            let credits = credits_of(WriteBound::inodes(1).freeing());
            let opened = self
                .execute(request, ReadSet::of_inode(fid), credits, |view| {
                    let mut inode = view.file(fid)?;
                    open_inode(view, request.export, &mut inode, &how).map(drop)
                })
                .await;
            results.push(match opened {
                Ok((transno, ())) => {
                    last = transno;
                    Status::Success
                }
                Err(error) => error.into(),
            });
        }
        self.core().osd.commit(last).await?;
        Ok(Reply::of(&ReportOpensReply { results }))
    }
}
