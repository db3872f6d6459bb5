//! Replies of requests that were executed before, from their records and the present rows.

use crate::mdt::Mdt;
use crate::ops::{AnyOperation, Recorded};
use crate::service::flocks;
use nacre_rpc::ReplyRecord;
use nacre_target::{Reply, Request};
use nacre_types::{Codec, Errno, Seq};
use nacre_wire::Opcode;
use nacre_wire::mdt::GrantSeqReply;

impl Mdt {
    pub(crate) async fn reconstruct_reply(
        &self,
        request: &Request,
        record: &ReplyRecord,
    ) -> Result<Reply, Errno> {
        if record.result != 0 {
            return Err(Errno::from_number(record.result).unwrap_or(Errno::EIO));
        }
        let body = match request.opcode {
            Opcode::Batch => self.reconstruct_batch(request, record).await?,
            Opcode::GrantSeq => {
                self.core().osd.commit(record.transno).await?;
                GrantSeqReply { seq: Seq(record.data) }.to_vec()
            }
            Opcode::Flock | Opcode::FlockCancel => flocks::reconstruct(record)?,
            opcode => {
                let op = AnyOperation::decode(opcode, &request.body)?.ok_or(Errno::EPROTO)?;
                op.get().count(request);
                let data = u8::try_from(record.data).map_err(|_| Errno::EPROTO)?;
                self.reconstruct_operation(op.get(), Recorded { data, fid: record.fid }).await?
            }
        };
        Ok(Reply { body, ..Reply::default() }.with_transno(record.transno))
    }
}
