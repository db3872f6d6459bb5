//! Replies of requests that were executed before: from the record and the rows of today.
//!
//! Rules: nothing is executed; what a record cannot say (attributes) is read by FID. Since the client has not had the
//! answer, it holds whatever it opened, so that inode is still there; another one may have been removed by others, and
//! the reply then says what the request and the record know of it.

use crate::locks::flocks::REFUSED;
use crate::mdt::Mdt;
use crate::ops::create;
use crate::rows::row::Inode;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_rpc::ReplyRecord;
use nacre_target::{Reply, Request};
use nacre_types::{Codec, Errno, Fid, Seq, Timestamp, mode};
use nacre_wire::Opcode;
use nacre_wire::mdt::{
    Batch, BatchReply, Create, CreateReply, EntryReply, FlockOutcome, FlockReply, GrantSeqReply, Link, Open,
    Removexattr, ReportSize, SetLayout, Setattr, Setxattr, SubResult,
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
        opcode => one(mdt, opcode, &request.body, record.data, record.fid).await?,
    };
    Ok(Reply { body, ..Reply::default() }.with_transno(record.transno))
}

/// The reply of one change of the namespace. `data`: what the record has kept of it.
async fn one(mdt: &Mdt, opcode: Opcode, body: &[u8], data: u64, fid: Fid) -> Result<Vec<u8>, Errno> {
    let (fid, set) = match opcode {
        Opcode::Create => {
            let args = Create::from_slice(body)?;
            let entry = match mdt.read_inode(fid).await {
                Err(Errno::ESTALE) => without_names(&create::gone(fid, &args)),
                found => found?.reply(),
            };
            return Ok(CreateReply { entry, created: data != 0 }.to_vec());
        }
        Opcode::Close | Opcode::Unlink | Opcode::Rename => return Ok(Empty {}.to_vec()),
        Opcode::Open => (Open::from_slice(body)?.fid, None),
        Opcode::Link => (Link::from_slice(body)?.fid, None),
        Opcode::Setattr => {
            let Setattr { fid, set, .. } = Setattr::from_slice(body)?;
            (fid, Some(set))
        }
        Opcode::ReportSize => (ReportSize::from_slice(body)?.fid, None),
        Opcode::Setxattr => (Setxattr::from_slice(body)?.fid, None),
        Opcode::Removexattr => (Removexattr::from_slice(body)?.fid, None),
        Opcode::SetLayout => (SetLayout::from_slice(body)?.fid, None),
        _ => return Err(Errno::EPROTO),
    };
    let reply = match mdt.read_inode(fid).await {
        // A truncate goes on with the objects, which have gone as well.
        Err(Errno::ESTALE) if data != 0 && set.as_ref().is_none_or(|set| set.size.is_none()) => {
            let type_bits = u32::try_from(data).map_err(|_| Errno::EPROTO)? << TYPE_SHIFT;
            let permissions = set.and_then(|set| set.mode).unwrap_or(0) & mode::PERM;
            without_names(&create::blank(fid, type_bits | permissions, Timestamp::default()))
        }
        found => found?.reply(),
    };
    Ok(reply.to_vec())
}

const TYPE_SHIFT: u32 = mode::FMT.trailing_zeros();

/// What a record keeps of an inode that was changed; never 0.
pub(crate) fn type_number(reply: &EntryReply) -> u8 {
    ((reply.attr.mode & mode::FMT) >> TYPE_SHIFT) as u8
}

/// The change was made, and others have removed the inode since: its client learns what is known of it. An error
/// (ESTALE) would make the kernel start the operation again, and execute it twice.
fn without_names(inode: &Inode) -> EntryReply {
    let mut reply = inode.reply();
    reply.attr.nlink = 0;
    reply
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
            match one(mdt, opcode, &operation.body, u64::from(record.data), record.fid).await {
                Ok(reply) => body = reply,
                Err(Errno::EPROTO) => return Err(Errno::EPROTO),
                Err(e) => status = e.0,
            }
        }
        results.push(SubResult { status, body: Bytes::from(body) });
    }
    Ok(BatchReply { results }.to_vec())
}
