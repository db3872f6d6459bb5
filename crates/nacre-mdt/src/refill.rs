//! Replies of requests that were executed before: from the record and the rows of today.
//!
//! Rules: nothing is executed; what a record cannot say (attributes) is read by FID. Since the client has not had the
//! answer, it holds whatever it opened, so that inode is still there; what it made without opening it may be gone.

use crate::flocks::REFUSED;
use crate::mdt::Mdt;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_rpc::ReplyRecord;
use nacre_target::{Reply, Request};
use nacre_types::{Codec, Errno, Fid, Seq};
use nacre_wire::Opcode;
use nacre_wire::mdt::{
    Batch, BatchReply, Create, CreateReply, FlockOutcome, FlockReply, GrantSeqReply, Link, Open, Removexattr,
    ReportSize, SetLayout, Setattr, Setxattr, SubResult,
};
use nacre_wire::target::Empty;

pub(crate) async fn refill(mdt: &Mdt, request: &Request, record: &ReplyRecord) -> Result<Reply, Errno> {
    if record.result != 0 {
        return Err(Errno(record.result));
    }
    let body = match request.opcode {
        Opcode::Batch => batch(mdt, request, record).await?,
        Opcode::GrantSeq => {
            mdt.core.osd.commit(record.transno).await?;
            GrantSeqReply { seq: Seq(record.data) }.to_vec()
        }
        Opcode::Flock | Opcode::FlockCancel => {
            if let Some(errno) = record.data.checked_sub(REFUSED) {
                return Err(Errno(i32::try_from(errno).map_err(|_| Errno::EPROTO)?));
            }
            let number = u8::try_from(record.data).map_err(|_| Errno::EPROTO)?;
            let outcome = FlockOutcome::from_number(number).ok_or(Errno::EPROTO)?;
            FlockReply { outcome }.to_vec()
        }
        opcode => one(mdt, opcode, &request.body, record.data != 0, record.fid).await?,
    };
    Ok(Reply { body, ..Reply::default() }.with_transno(record.transno))
}

/// The reply of one change of the namespace.
async fn one(mdt: &Mdt, opcode: Opcode, body: &[u8], created: bool, fid: Fid) -> Result<Vec<u8>, Errno> {
    let fid = match opcode {
        Opcode::Create => {
            let entry = match mdt.read_inode(fid).await {
                // Made, and removed since: by another program, or later in the same batch.
                Err(Errno::ESTALE) => {
                    let args = Create::from_slice(body)?;
                    crate::create::gone(fid, args.mode, args.time).reply()
                }
                inode => inode?.reply(),
            };
            return Ok(CreateReply { entry, created }.to_vec());
        }
        Opcode::Close | Opcode::Unlink | Opcode::Rename => return Ok(Empty {}.to_vec()),
        Opcode::Open => Open::from_slice(body)?.fid,
        Opcode::Link => Link::from_slice(body)?.fid,
        Opcode::Setattr => Setattr::from_slice(body)?.fid,
        Opcode::ReportSize => ReportSize::from_slice(body)?.fid,
        Opcode::Setxattr => Setxattr::from_slice(body)?.fid,
        Opcode::Removexattr => Removexattr::from_slice(body)?.fid,
        Opcode::SetLayout => SetLayout::from_slice(body)?.fid,
        _ => return Err(Errno::EPROTO),
    };
    Ok(mdt.read_inode(fid).await?.reply().to_vec())
}

async fn batch(mdt: &Mdt, request: &Request, record: &ReplyRecord) -> Result<Vec<u8>, Errno> {
    let args: Batch = request.args()?;
    if args.operations.len() != record.results.len() {
        return Err(Errno::EPROTO);
    }
    let mut results = Vec::new();
    for (operation, record) in args.operations.iter().zip(&record.results) {
        let (mut status, mut body) = (i32::from(record.result), Vec::new());
        if status == 0 {
            let opcode = Opcode::from_number(operation.opcode).ok_or(Errno::EPROTO)?;
            match one(mdt, opcode, &operation.body, record.data != 0, record.fid).await {
                Ok(reply) => body = reply,
                Err(Errno::EPROTO) => return Err(Errno::EPROTO),
                Err(e) => status = e.0,
            }
        }
        results.push(SubResult { status, body: Bytes::from(body) });
    }
    Ok(BatchReply { results }.to_vec())
}
