//! Several changes in one transaction: sub-operations in order, each sees those before it.
//!
//! Rules: one transno, one reply record with a result per sub-operation; a sub-operation that fails leaves nothing
//! behind, neither in rows nor in memory; opens and truncates of earlier ones count for later ones at once and are
//! taken back at the end of the attempt. Not here: file locks and sequences, which are no changes of the
//! namespace; they are answered EOPNOTSUPP.

use crate::mdt::{Mdt, credits};
use crate::ops::create;
use crate::ops::create::Maker;
use crate::ops::open;
use crate::ops::rename;
use crate::ops::set_layout;
use crate::ops::setattr;
use crate::ops::unlink;
use crate::ops::xattr;
use crate::osts::layout_choice::Choice;
use crate::rows::versions::Digest;
use crate::rows::view::{Halt, Step, View, Wants};
use crate::service::attempt::Left;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::Cell;
use nacre_osd::{Credits, Tx};
use nacre_rpc::{PreVersions, SubRecord};
use nacre_target::{Reply, Request};
use nacre_types::name::{HashKey, XATTR_VALUE_MAX};
use nacre_types::{ClientUuid, Codec, Errno, Fid, FileType, Generation, Layout, LayoutTemplate};
use nacre_wire::Opcode;
use nacre_wire::mdt::{
    BATCH_MAX, Batch, BatchReply, Close, Create, CreateReply, EntryReply, Link, Open, Removexattr, Rename,
    ReportSize, SetLayout, Setattr, Setxattr, SubOperation, SubResult, Unlink,
};
use nacre_wire::target::Empty;
use tracing::warn;

/// Attempts of one batch in a row that find rows which are missing: each fetches at least one more.
const FETCHES_MAX: usize = 16 * BATCH_MAX;
/// Bytes of an inode's row in the middle. What is written beyond that (orphans over hundreds of OSTs that are closed
/// together) is reserved when it is known.
const INODE_BYTES: u32 = 2 << 10;
/// What a result adds to the reply record.
const RESULT_BYTES: u32 = SubRecord::BYTES as u32;

/// A decoded sub-operation.
enum Change<'a> {
    Create(Create<'a>),
    Open(Open),
    Close(Close),
    Link(Link<'a>),
    Unlink(Unlink<'a>),
    Rename(Rename<'a>),
    Setattr(Setattr),
    ReportSize(ReportSize),
    Setxattr(Setxattr<'a>),
    Removexattr(Removexattr<'a>),
    SetLayout(SetLayout),
    Unsupported,
}

/// What a sub-operation answers, and what its record keeps.
struct Done {
    body: Vec<u8>,
    data: u8,
    fid: Fid,
}

fn done<'a>(reply: &impl Codec<'a>) -> Done {
    Done { body: reply.to_vec(), data: 0, fid: Fid::default() }
}

/// Of an inode that may have gone when the reply is made again.
fn told(reply: &EntryReply) -> Done {
    Done { data: crate::service::reconstruct::type_number(reply), ..done(reply) }
}

impl<'a> Change<'a> {
    fn decode(op: &'a SubOperation) -> Result<Self, Errno> {
        let body = &op.body[..];
        Ok(match Opcode::from_number(op.opcode) {
            Some(Opcode::Create) => Self::Create(Create::from_slice(body)?),
            Some(Opcode::Open) => Self::Open(Open::from_slice(body)?),
            Some(Opcode::Close) => Self::Close(Close::from_slice(body)?),
            Some(Opcode::Link) => Self::Link(Link::from_slice(body)?),
            Some(Opcode::Unlink) => Self::Unlink(Unlink::from_slice(body)?),
            Some(Opcode::Rename) => Self::Rename(Rename::from_slice(body)?),
            Some(Opcode::Setattr) => Self::Setattr(Setattr::from_slice(body)?),
            Some(Opcode::ReportSize) => Self::ReportSize(ReportSize::from_slice(body)?),
            Some(Opcode::Setxattr) => Self::Setxattr(Setxattr::from_slice(body)?),
            Some(Opcode::Removexattr) => Self::Removexattr(Removexattr::from_slice(body)?),
            Some(Opcode::SetLayout) => Self::SetLayout(SetLayout::from_slice(body)?),
            _ => Self::Unsupported,
        })
    }

    fn wants(&self, hash: HashKey, export: Generation) -> Wants {
        match self {
            Self::Create(args) => create::wants(hash, args),
            Self::Open(args) => open::wants_open(args.fid),
            Self::Close(args) => open::wants_close(export, args),
            Self::Link(args) => unlink::wants_link(hash, args),
            Self::Unlink(args) => unlink::wants_unlink(hash, args),
            Self::Rename(args) => rename::wants(hash, args),
            Self::Setattr(args) => setattr::wants_setattr(args),
            Self::ReportSize(args) => setattr::wants_report(args),
            Self::Setxattr(args) => xattr::wants_set(args),
            Self::Removexattr(args) => xattr::wants_remove(args),
            Self::SetLayout(args) => set_layout::wants(args),
            Self::Unsupported => Wants::default(),
        }
    }

    fn credits(&self) -> Credits {
        match self {
            Self::Create(_) => room(4, false),
            Self::SetLayout(_) => room(1, false),
            Self::Open(_) => room(1, true),
            Self::Link(_) => room(2, false),
            Self::Close(_) | Self::ReportSize(_) => room(2, true),
            Self::Unlink(_) | Self::Setattr(_) => room(3, true),
            Self::Rename(_) => room(8, true),
            Self::Setxattr(args) => {
                let mut room = room(2, false);
                room.row_bytes += args.value.len().min(XATTR_VALUE_MAX) as u32;
                room
            }
            Self::Removexattr(_) => room(1, true),
            Self::Unsupported => Credits { frees: true, ..Credits::default() },
        }
    }
}

/// What a sub-operation may write beside the record.
fn room(inodes: u32, frees: bool) -> Credits {
    Credits { rows: inodes * 4, row_bytes: inodes * INODE_BYTES, object_bytes: 0, frees }
}

/// The layout in a reply to a create or to a change of the layout.
fn layout_in(body: &[u8]) -> Option<Layout> {
    match CreateReply::from_slice(body) {
        Ok(reply) => reply.entry.layout,
        Err(_) => EntryReply::from_slice(body).ok()?.layout,
    }
}

/// Who asks, and what the target lends.
struct Lent<'a> {
    export: Generation,
    client: ClientUuid,
    default: LayoutTemplate,
    choose: &'a mut dyn FnMut(&LayoutTemplate) -> Result<Layout, Errno>,
}

fn apply(view: &mut View<'_>, lent: &mut Lent<'_>, change: &Change<'_>) -> Step<Done> {
    let export = lent.export;
    Ok(match change {
        Change::Create(args) => {
            let mut maker =
                Maker { export, client: lent.client, default: lent.default, layout: &mut *lent.choose };
            let reply = create::apply(view, &mut maker, args)?;
            Done { body: reply.to_vec(), data: u8::from(reply.created), fid: reply.entry.attr.fid }
        }
        Change::Open(args) => done(&open::apply_open(view, export, args)?),
        Change::Close(args) => {
            open::apply_close(view, export, args)?;
            done(&Empty {})
        }
        Change::Link(args) => told(&unlink::apply_link(view, args)?),
        Change::Unlink(args) => {
            unlink::apply_unlink(view, args)?;
            done(&Empty {})
        }
        Change::Rename(args) => {
            rename::apply(view, args)?;
            done(&Empty {})
        }
        Change::Setattr(args) => told(&setattr::apply_setattr(view, export, args)?),
        Change::ReportSize(args) => told(&setattr::apply_report(view, export, args)?),
        Change::Setxattr(args) => told(&xattr::apply_set(view, args)?),
        Change::Removexattr(args) => told(&xattr::apply_remove(view, args)?),
        Change::SetLayout(args) => told(&set_layout::apply(view, lent.default, &mut *lent.choose, args)?),
        Change::Unsupported => return Err(Errno::EOPNOTSUPP.into()),
    })
}

impl Mdt {
    pub(crate) async fn batch(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Batch = request.args()?;
        if args.operations.is_empty() || args.operations.len() > BATCH_MAX {
            return Err(Errno::EINVAL);
        }
        let changes = args.operations.iter().map(Change::decode).collect::<Result<Vec<_>, Errno>>()?;
        let hash = self.hash().await;
        let client = self.core.client_uuid(request.export).ok_or(Errno::ESTALE)?;
        let mut wants = Wants::default();
        // Of the record, which is written last.
        let mut own = credits(0, true);
        own.row_bytes += RESULT_BYTES * changes.len() as u32;
        let mut room = own;
        for change in &changes {
            wants.merge(change.wants(hash, request.export));
            let more = change.credits();
            room.rows += more.rows;
            room.row_bytes += more.row_bytes;
            room.frees &= more.frees;
            match change {
                Change::Create(args)
                    if request.replayed_transno().is_none()
                        && FileType::of_mode(args.mode) == Some(FileType::Regular) =>
                {
                    self.wait_for_room().await;
                }
                _ => {}
            }
        }
        // Layouts come out as they did when the batch was made first.
        let before = request.replayed_reply().and_then(|body| BatchReply::from_slice(body).ok());
        let before = before.map_or(Vec::new(), |reply| reply.results);
        let asked = room;
        let choice = Choice::new(&self.osts, None);
        let at = Cell::new(0);
        let mut choose =
            |template: &LayoutTemplate| match before.get(at.get()).and_then(|result| layout_in(&result.body))
            {
                Some(layout) => Ok(layout),
                None => choice.another(template),
            };
        let mut lent =
            Lent { export: request.export, client, default: self.default.get(), choose: &mut choose };
        let attempt = |tx: &mut Tx<'_>, wants: &mut Wants, hash, left: &mut Left| {
            let mut opens = self.opens.borrow_mut();
            let (mut undo, mut records, mut results) = (Vec::new(), Vec::new(), Vec::new());
            let (mut digest, mut placed) = (Digest::new(), Vec::new());
            let (mut stopped, mut halt) = (false, None);
            choice.give_back(0);
            for (number, change) in changes.iter().enumerate() {
                at.set(number);
                if stopped {
                    let record =
                        SubRecord { result: Errno::ECANCELED.0 as u16, data: 0, fid: Fid::default() };
                    records.push(record);
                    results.push(SubResult { status: Errno::ECANCELED.0, body: Bytes::new() });
                    continue;
                }
                let (save, taken) = (tx.save(), choice.count());
                let mut view = View::new(&mut *tx, wants, hash, &opens);
                view.touched = left.touched.take();
                let placed_before = placed.len();
                view.placed = placed;
                let step = apply(&mut view, &mut lent, change);
                placed = core::mem::take(&mut view.placed);
                if step.is_err() {
                    placed.truncate(placed_before);
                }
                let found = view.versions.found;
                left.touched = view.touched.take();
                let learnt = core::mem::take(&mut view.notes);
                let changed = core::mem::take(&mut view.dirs);
                match step {
                    Ok(Done { body, data, fid }) => {
                        left.dirs.extend(changed);
                        for note in learnt {
                            undo.push(opens.before(&note));
                            opens.learn(&note);
                            left.notes.push(note);
                        }
                        records.push(SubRecord { result: 0, data, fid });
                        digest.add(&found, &SubRecord { result: 0, data, fid });
                        results.push(SubResult { status: 0, body: Bytes::from(body) });
                    }
                    Err(Halt::Errno(Errno::EINPROGRESS)) => {
                        // An OST may come soon: the whole batch is sent again.
                        halt = Some(Halt::Errno(Errno::EINPROGRESS));
                        break;
                    }
                    Err(Halt::Errno(e)) => {
                        tx.roll_back(save);
                        choice.give_back(taken);
                        stopped = args.stop_at_error;
                        let record = SubRecord { result: e.0 as u16, data: 0, fid: Fid::default() };
                        records.push(record);
                        digest.add(&PreVersions::default(), &record);
                        results.push(SubResult { status: e.0, body: Bytes::new() });
                    }
                    Err(more) => {
                        // The others go on, only to say what they miss: one more fetch, not one for each.
                        halt = Some(more);
                        tx.roll_back(save);
                        choice.give_back(taken);
                    }
                }
            }
            // Later ones saw these; memory learns them when the batch stands.
            undo.into_iter().rev().for_each(|u| opens.restore(u));
            let (rows, row_bytes) = tx.written();
            let (rows, row_bytes) = (rows + own.rows, row_bytes + own.row_bytes);
            if let Some(halt) = halt {
                return Err(halt);
            } else if rows > room.rows || row_bytes > room.row_bytes {
                let (rows, row_bytes) = (rows.max(room.rows), row_bytes.max(room.row_bytes));
                room = Credits { rows, row_bytes, ..room };
                return Err(Halt::Reserve(room));
            }
            left.versions = digest.versions();
            if request.replayed_versions().is_some_and(|expected| expected != left.versions) {
                warn!(target_name = %self.core.name,
                    "replay of a batch refused: a change that it builds on is lost");
                return Err(Halt::Errno(Errno::EOVERFLOW));
            }
            self.core.set_record_results(request, records);
            Ok(results)
        };
        let (transno, results) = self.attempts(Some(request), FETCHES_MAX, wants, asked, attempt).await?;
        choice.keep();
        Ok(Reply::of(&BatchReply { results }).with_transno(transno))
    }
}
