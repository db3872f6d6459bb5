//! Replies of requests that were executed before: from the record and the rows of today.
//!
//! Rules: nothing is executed; what a record cannot say (attributes) is read by FID. Since the client has not had the
//! answer, it holds whatever it opened, so the inode is still there.

use crate::mdt::Mdt;
use nacre_rpc::ReplyRecord;
use nacre_target::{Reply, Request};
use nacre_types::{Errno, Fid, Seq};
use nacre_wire::Opcode;
use nacre_wire::mdt::{
    Create, CreateReply, FlockOutcome, FlockReply, GrantSeqReply, Link, Open, Removexattr, ReportSize,
    SetLayout, Setattr, Setxattr,
};
use nacre_wire::target::Empty;

pub(crate) async fn refill(mdt: &Mdt, request: &Request, record: &ReplyRecord) -> Result<Reply, Errno> {
    if record.result != 0 {
        return Err(Errno(record.result));
    }
    let reply = match request.opcode {
        Opcode::Create => {
            let _args: Create<'_> = request.args()?;
            let entry = mdt.read_inode(record.fid).await?.reply();
            Reply::of(&CreateReply { entry, created: record.data != 0 })
        }
        Opcode::Open => attributes(mdt, request.args::<Open>()?.fid).await?,
        Opcode::Link => attributes(mdt, request.args::<Link<'_>>()?.fid).await?,
        Opcode::Setattr => attributes(mdt, request.args::<Setattr>()?.fid).await?,
        Opcode::ReportSize => attributes(mdt, request.args::<ReportSize>()?.fid).await?,
        Opcode::Setxattr => attributes(mdt, request.args::<Setxattr<'_>>()?.fid).await?,
        Opcode::Removexattr => attributes(mdt, request.args::<Removexattr<'_>>()?.fid).await?,
        Opcode::SetLayout => attributes(mdt, request.args::<SetLayout>()?.fid).await?,
        Opcode::Close | Opcode::Unlink | Opcode::Rename => Reply::of(&Empty {}),
        Opcode::GrantSeq => {
            mdt.core.osd.commit(record.transno).await?;
            Reply::of(&GrantSeqReply { seq: Seq(record.data) })
        }
        Opcode::Flock | Opcode::FlockCancel => {
            let number = u8::try_from(record.data).map_err(|_| Errno::EPROTO)?;
            let outcome = FlockOutcome::from_number(number).ok_or(Errno::EPROTO)?;
            Reply::of(&FlockReply { outcome })
        }
        _ => return Err(Errno::EPROTO),
    };
    Ok(reply.with_transno(record.transno))
}

async fn attributes(mdt: &Mdt, fid: Fid) -> Result<Reply, Errno> {
    Ok(Reply::of(&mdt.read_inode(fid).await?.reply()))
}
