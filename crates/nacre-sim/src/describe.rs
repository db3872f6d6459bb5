//! Frames in words, for traces.

use nacre_types::Codec;
use nacre_wire::mdt::{self, EntryReply};
use nacre_wire::ost;
use nacre_wire::{Frame, Kind, Opcode, Status, flags};
use std::fmt::Debug;

/// One line: the kind of the frame, its contents, and the unusual fields of its header.
pub fn frame(frame: &Frame) -> String {
    let h = &frame.header;
    let Some(opcode) = Opcode::from_number(h.opcode) else {
        return format!("{:?} opcode {:#x}", h.kind, h.opcode);
    };
    let mut out = match h.kind {
        Kind::Request => format!("{opcode:?} {}", request(opcode, &frame.body)),
        Kind::Reply => match h.status {
            Status::Success => format!("{opcode:?} done {}", reply(opcode, &frame.body)),
            Status::Failed(failure) => format!("{opcode:?} refused: {failure}"),
        },
        Kind::Callback => format!("callback {opcode:?} {}", callback(opcode, &frame.body)),
        other => format!("{other:?}"),
    };
    out.push_str(&format!(" xid {}", h.xid));
    if h.tag.0 != 0 {
        out.push_str(&format!(" tag {}", h.tag));
    }
    if h.transno.0 != 0 {
        out.push_str(&format!(" transno {}", h.transno));
    }
    for (flag, name) in
        [(flags::RESENT, "RESENT"), (flags::REPLAY, "REPLAY"), (flags::RECONSTRUCTED, "RECONSTRUCTED")]
    {
        if h.has(flag) {
            out.push_str(&format!(" {name}"));
        }
    }
    if frame.bulk_len() > 0 {
        out.push_str(&format!(" +{} bytes", frame.bulk_len()));
    }
    out
}

fn show<'a, T: Codec<'a> + Debug>(body: &'a [u8]) -> String {
    match T::from_slice(body) {
        Ok(value) => format!("{value:?}"),
        Err(e) => format!("unreadable: {e}"),
    }
}

fn request(opcode: Opcode, body: &[u8]) -> String {
    match opcode {
        Opcode::Open => show::<mdt::Open>(body),
        Opcode::Close => show::<mdt::Close>(body),
        Opcode::ReportSize => show::<mdt::ReportSize>(body),
        Opcode::Getattr => show::<mdt::Getattr>(body),
        Opcode::Flock => show::<mdt::Flock>(body),
        Opcode::FlockCancel => show::<mdt::FlockCancel>(body),
        Opcode::Lookup => match mdt::Lookup::from_slice(body) {
            Ok(l) => format!("{} {:?}", l.parent, l.name),
            Err(e) => format!("unreadable: {e}"),
        },
        Opcode::Create => match mdt::Create::from_slice(body) {
            Ok(c) => format!("{} {:?} as {}", c.parent, c.name, c.fid),
            Err(e) => format!("unreadable: {e}"),
        },
        Opcode::Setattr => match mdt::Setattr::from_slice(body) {
            Ok(s) => format!("{} {:?}", s.fid, s.set),
            Err(e) => format!("unreadable: {e}"),
        },
        Opcode::CancelInodeLocks => show::<mdt::CancelInodeLocks>(body),
        Opcode::Read => show::<ost::Read>(body),
        Opcode::Write => show::<ost::Write>(body),
        Opcode::WriteMany => show::<ost::WriteMany>(body),
        Opcode::Truncate => show::<ost::Truncate>(body),
        Opcode::Glimpse => show::<ost::Glimpse>(body),
        Opcode::Enqueue => show::<ost::Enqueue>(body),
        Opcode::Cancel => show::<ost::Cancel>(body),
        Opcode::Destroy => show::<ost::Destroy>(body),
        _ => String::new(),
    }
}

fn reply(opcode: Opcode, body: &[u8]) -> String {
    match opcode {
        Opcode::Lookup => show::<mdt::LookupReply>(body),
        Opcode::Getattr | Opcode::Open | Opcode::Setattr | Opcode::ReportSize => {
            match EntryReply::from_slice(body) {
                Ok(e) => format!(
                    "{} mode {:o} nlink {} size {} {:?}",
                    e.attr.fid, e.attr.mode, e.attr.nlink, e.attr.size, e.attr.size_state
                ),
                Err(e) => format!("unreadable: {e}"),
            }
        }
        Opcode::Create => match mdt::CreateReply::from_slice(body) {
            Ok(c) => format!("{} created {}", c.entry.attr.fid, c.created),
            Err(e) => format!("unreadable: {e}"),
        },
        Opcode::Flock | Opcode::FlockCancel => show::<mdt::FlockReply>(body),
        Opcode::Glimpse => show::<ost::ObjectState>(body),
        Opcode::Enqueue => show::<ost::EnqueueReply>(body),
        Opcode::Read => show::<ost::ReadReply>(body),
        Opcode::WriteMany => show::<ost::WriteManyReply>(body),
        Opcode::Write | Opcode::Truncate => show::<ost::WriteReply>(body),
        _ => String::new(),
    }
}

fn callback(opcode: Opcode, body: &[u8]) -> String {
    match opcode {
        Opcode::LockGranted => show::<ost::LockGranted>(body),
        Opcode::LockBlocking => show::<ost::LockBlocking>(body),
        Opcode::ReturnGrant => show::<ost::ReturnGrant>(body),
        Opcode::FlockGranted => show::<mdt::FlockGranted>(body),
        Opcode::RevokeInodeLocks => show::<mdt::RevokeInodeLocks>(body),
        Opcode::Ended => show::<mdt::Ended>(body),
        _ => String::new(),
    }
}
