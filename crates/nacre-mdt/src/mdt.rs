//! The metadata target as a service: state in memory, dispatch. The loop around an operation is in `attempt.rs`.
//!
//! Invariants: what is in memory (opens, file locks, rooms of OSTs) follows the rows, changed in the visit
//! of the transaction and never before it; a handler is a loop of fetch, reserve and one synchronous attempt.

use crate::locks::dir_holds::Dirs;
use crate::locks::flocks::Flocks;
use crate::locks::turns::Turns;
use crate::locks::uncommitted::Key;
use crate::ops::create;
use crate::ops::create::Maker;
use crate::ops::open;
use crate::ops::rename;
use crate::ops::set_layout;
use crate::ops::setattr;
use crate::ops::unlink;
use crate::ops::xattr;
use crate::osts::Osts;
use crate::osts::layout_choice::Choice;
use crate::rows::opens::Opens;
use crate::rows::table::{ENTRY, ENTRY_PREFIX, FLOCK, INODE, LINK, OPEN, XATTR};
use crate::rows::view::{Note, Step, View, Wants};
use crate::service::reconstruct;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use nacre_node::{Event, Gate, WaitList};
use nacre_osd::{Credits, OsdConfig};
use nacre_rpc::ReplyRecord;
use nacre_target::{ExportId, RECORD_BYTES, RECORD_ROWS, Reply, Request, Service, TargetCore, Uncommitted};
use nacre_types::name::{HashKey, XATTR_VALUE_MAX};
use nacre_types::{Codec, Errno, LayoutTemplate, STRIPES_MAX, Xid};
use nacre_wire::Opcode;
use nacre_wire::mdt::{
    Batch, Close, Create, CreateReply, EntryReply, Flock, FlockCancel, GrantSeq, Link, Open, Removexattr,
    Rename, ReportSize, SetLayout, Setattr, Setxattr, Unlink,
};
use nacre_wire::target::{Empty, Param, StatfsReply, features};

/// Upper bound of an inode's row: names, small attributes, a layout of [`nacre_types::STRIPES_MAX`] stripes.
const INODE_BYTES: u32 = 20 << 10;

/// Of a file that goes, for each OST that it is on: a key of CHOWN and a row of DESTROY.
const GONE_BYTES: u32 = 64;
// The end of an inode needs the room of two.
const _: () = assert!(STRIPES_MAX as u32 * GONE_BYTES + 1024 <= 2 * INODE_BYTES);

/// What an operation may write: `inodes` inode rows and as many other rows of a few hundred bytes.
pub(crate) fn credits(inodes: u32, frees: bool) -> Credits {
    Credits {
        rows: inodes * 4 + RECORD_ROWS,
        row_bytes: inodes * INODE_BYTES + RECORD_BYTES,
        object_bytes: 0,
        frees,
    }
}

/// A served metadata target.
pub struct Mdt {
    pub(crate) core: Rc<TargetCore>,
    pub(crate) hash: Cell<Option<HashKey>>,
    pub(crate) hash_known: WaitList,
    pub(crate) default: Cell<LayoutTemplate>,
    pub(crate) opens: RefCell<Opens>,
    pub(crate) flocks: RefCell<Flocks>,
    pub(crate) osts: Rc<Osts>,
    pub(crate) uncommitted: RefCell<Uncommitted<Key>>,
    /// Changes that wait for commits, in the order in which they came.
    pub(crate) turns: Turns,
    /// Directories that move to another parent, one at a time.
    pub(crate) moves: Gate,
    /// Acknowledged or not: what another client has changed is committed before it is built upon.
    pub(crate) commit_on_sharing: Cell<bool>,
    pub(crate) dirs: Dirs,
}

impl Mdt {
    /// Key of the name hash; a new file system gets it from the MGS at its first start.
    pub(crate) async fn hash(&self) -> HashKey {
        loop {
            if let Some(key) = self.hash.get() {
                return key;
            }
            self.hash_known.wait().await;
        }
    }

    /// Memory follows the rows.
    pub(crate) fn learn(&self, note: Note) {
        self.opens.borrow_mut().learn(&note);
        match note {
            Note::Opened { opened, .. } if opened.writes() => self.osts.disturb(opened.fid),
            Note::Opened { .. } | Note::Closed { .. } | Note::CutEnded { .. } | Note::Mixed(_) => {}
            Note::Cut { fid, .. } => self.osts.disturb(fid),
            Note::Unsettled(fid) => self.osts.ask_size(fid),
            Note::OstWork(ost) => self.osts.kick(ost),
            Note::Unused(ost) => self.osts.give_back(ost),
            Note::Removed(fid) => self.flocks.borrow_mut().forget(fid),
        }
    }

    async fn create(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Create<'_> = request.args()?;
        let regular = nacre_types::FileType::of_mode(args.mode) == Some(nacre_types::FileType::Regular);
        if !regular || request.replayed_transno().is_some() {
            return self.create_once(request, &args).await;
        }
        self.wait_for_room().await;
        match self.create_once(request, &args).await {
            Err(Errno::ENOSPC) if self.free_full_osts().await => self.create_once(request, &args).await,
            created => created,
        }
    }
    async fn create_once(&self, request: &Request, args: &Create<'_>) -> Result<Reply, Errno> {
        let hash = self.hash().await;
        let client = self.core.client_uuid(request.export).ok_or(Errno::ESTALE)?;
        let before = request.replayed_reply().and_then(|body| CreateReply::from_slice(body).ok());
        let before = before.and_then(|reply| reply.entry.layout);
        let choice = Choice::new(&self.osts, before);
        let mut choose = |template: &LayoutTemplate| choice.only(template);
        let mut maker =
            Maker { export: request.export, client, default: self.default.get(), layout: &mut choose };
        let (transno, reply) = self
            .change(request, create::wants(hash, args), credits(4, false), |view| {
                let reply = create::apply(view, &mut maker, args)?;
                self.core.set_record_data(request, u64::from(reply.created));
                self.core.set_record_fid(request, reply.entry.attr.fid);
                Ok(reply)
            })
            .await?;
        choice.keep();
        Ok(Reply::of(&reply).with_transno(transno))
    }

    async fn rename(&self, request: &Request) -> Result<Reply, Errno> {
        let args: Rename<'_> = request.args()?;
        let wants = rename::wants(self.hash().await, &args);
        self.run(request, wants, credits(8, true), |view| rename::apply(view, &args).map(|()| Empty {})).await
    }

    /// Runs an operation and encodes what it answers.
    async fn run<'a, T: Codec<'a>>(
        &self,
        request: &Request,
        wants: Wants,
        credits: Credits,
        op: impl FnMut(&mut View<'_>) -> Step<T>,
    ) -> Result<Reply, Errno> {
        let (transno, reply) = self.change(request, wants, credits, op).await?;
        Ok(Reply::of(&reply).with_transno(transno))
    }

    /// The same of an operation that tells of an inode, whose type the record keeps: it may have gone when the reply is
    /// made again.
    async fn run_on(
        &self,
        request: &Request,
        wants: Wants,
        credits: Credits,
        mut op: impl FnMut(&mut View<'_>) -> Step<EntryReply>,
    ) -> Result<Reply, Errno> {
        let op = |view: &mut View<'_>| {
            let reply = op(view)?;
            self.core.set_record_data(request, u64::from(reconstruct::type_number(&reply)));
            Ok(reply)
        };
        self.run(request, wants, credits, op).await
    }

    async fn dispatch(self: &Rc<Self>, request: &Request) -> Result<Reply, Errno> {
        match request.opcode {
            Opcode::Lookup => self.lookup(request, &request.args()?).await,
            Opcode::Getattr => self.getattr(request, &request.args()?).await,
            // In a box: the task of a lookup would be as large as the largest of them.
            _ => Box::pin(self.dispatch_other(request)).await,
        }
    }
    async fn dispatch_other(self: &Rc<Self>, request: &Request) -> Result<Reply, Errno> {
        let export = request.export;
        match request.opcode {
            Opcode::Readdir => self.readdir(&request.args()?).await,
            Opcode::Readlink => self.readlink(&request.args()?).await,
            Opcode::Getxattr => self.getxattr(&request.args()?).await,
            Opcode::Listxattr => self.listxattr(&request.args()?).await,
            Opcode::GetLayout => self.get_layout(&request.args()?).await,
            Opcode::FidLinks => self.fid_links(&request.args()?).await,
            Opcode::FlockTest => self.flock_test(request).await,
            Opcode::Reclaim => self.reclaim(request).await,
            Opcode::GrantSeq => {
                let _args: GrantSeq = request.args()?;
                self.grant_seq(request).await
            }
            Opcode::Create => self.create(request).await,
            Opcode::Open => {
                let args: Open = request.args()?;
                let wants = open::wants_open(args.fid);
                // Its row is small and goes with the close; who cannot open a directory cannot empty it.
                self.run(request, wants, credits(1, true), |v| open::apply_open(v, export, &args)).await
            }
            Opcode::Close => {
                let args: Close = request.args()?;
                let wants = open::wants_close(export, &args);
                let op = |v: &mut View<'_>| open::apply_close(v, export, &args).map(|()| Empty {});
                self.run(request, wants, credits(2, true), op).await
            }
            Opcode::Link => {
                let args: Link<'_> = request.args()?;
                let wants = unlink::wants_link(self.hash().await, &args);
                self.run_on(request, wants, credits(2, false), |v| unlink::apply_link(v, &args)).await
            }
            Opcode::Unlink => {
                let args: Unlink<'_> = request.args()?;
                let wants = unlink::wants_unlink(self.hash().await, &args);
                let op = |v: &mut View<'_>| unlink::apply_unlink(v, &args).map(|()| Empty {});
                self.run(request, wants, credits(3, true), op).await
            }
            Opcode::Rename => self.rename(request).await,
            Opcode::Setattr => {
                let args: Setattr = request.args()?;
                let wants = setattr::wants_setattr(&args);
                // A truncate frees space in the end; chmod and chown may be what makes an unlink possible.
                self.run_on(request, wants, credits(3, true), |v| setattr::apply_setattr(v, export, &args))
                    .await
            }
            Opcode::ReportSize => {
                let args: ReportSize = request.args()?;
                let wants = setattr::wants_report(&args);
                self.run_on(request, wants, credits(2, true), |v| setattr::apply_report(v, export, &args))
                    .await
            }
            Opcode::Setxattr => {
                let args: Setxattr<'_> = request.args()?;
                let mut room = credits(2, false);
                room.row_bytes += args.value.len().min(XATTR_VALUE_MAX) as u32;
                self.run_on(request, xattr::wants_set(&args), room, |v| xattr::apply_set(v, &args)).await
            }
            Opcode::Removexattr => {
                let args: Removexattr<'_> = request.args()?;
                let wants = xattr::wants_remove(&args);
                self.run_on(request, wants, credits(1, true), |v| xattr::apply_remove(v, &args)).await
            }
            Opcode::SetLayout => {
                let args: SetLayout = request.args()?;
                let default = self.default.get();
                let before = request.replayed_reply().and_then(|body| EntryReply::from_slice(body).ok());
                let before = before.and_then(|reply| reply.layout);
                let choice = Choice::new(&self.osts, before);
                let mut choose = |template: &LayoutTemplate| choice.only(template);
                let op = |v: &mut View<'_>| set_layout::apply(v, default, &mut choose, &args);
                let done = self.run_on(request, set_layout::wants(&args), credits(1, false), op).await?;
                choice.keep();
                Ok(done)
            }
            Opcode::Flock => {
                let args: Flock = request.args()?;
                self.flock(request, &args).await
            }
            Opcode::FlockCancel => {
                let args: FlockCancel = request.args()?;
                self.flock_cancel(request, &args).await
            }
            Opcode::Batch => self.batch(request).await,
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// What the counters call an operation, in the field's words.
fn counter(opcode: Opcode, body: &[u8]) -> Option<&'static str> {
    Some(match opcode {
        Opcode::Lookup | Opcode::Getattr => "getattr",
        Opcode::Readdir => "readpage",
        Opcode::Readlink => "readlink",
        Opcode::Getxattr | Opcode::Listxattr => "getxattr",
        Opcode::Setxattr | Opcode::Removexattr => "setxattr",
        Opcode::Create => {
            let args = Create::from_slice(body).ok()?;
            match nacre_types::FileType::of_mode(args.mode) {
                Some(nacre_types::FileType::Directory) => "mkdir",
                _ => "mknod",
            }
        }
        Opcode::Open => "open",
        Opcode::Close => "close",
        Opcode::Link => "link",
        Opcode::Unlink => {
            let args = Unlink::from_slice(body).ok()?;
            if args.directory { "rmdir" } else { "unlink" }
        }
        Opcode::Rename => "rename",
        Opcode::Setattr | Opcode::ReportSize => "setattr",
        Opcode::Statfs => "statfs",
        Opcode::Reclaim => "reclaim",
        _ => return None,
    })
}

impl Service for Mdt {
    /// Holds of directories have no rows.
    const VOLATILE_LOCK_FEATURES: u64 = features::DIR_HOLDS;

    fn tune(osd: &mut OsdConfig) {
        // A name is looked for by the keys of its hash, which differ in the last byte only.
        osd.bloom_prefixes.push((ENTRY, ENTRY_PREFIX));
        // What hangs on an inode goes with it, as a range.
        osd.bloom_prefixes.extend([LINK, XATTR, FLOCK].map(|table| (table, 12)));
        // New ones are numbered upwards: 256 in a row ask for the same bits, which the processor's caches then hold.
        osd.bloom_prefixes.extend([INODE, OPEN].map(|table| (table, 11)));
    }
    async fn start(core: &Rc<TargetCore>) -> Result<Rc<Self>, String> {
        crate::service::start::start(core).await
    }
    async fn handle(self: Rc<Self>, request: Rc<Request>) -> Result<Reply, Errno> {
        self.dispatch(&request).await
    }
    /// Those of a batch under their own names.
    fn count_operations(&self, request: &Request, count: &mut dyn FnMut(&'static str)) {
        if request.opcode != Opcode::Batch {
            return counter(request.opcode, &request.body).into_iter().for_each(count);
        }
        let Ok(Batch { operations, .. }) = request.args() else { return };
        let known = operations.iter().filter_map(|op| Opcode::from_number(op.opcode).zip(Some(&op.body)));
        known.filter_map(|(opcode, body)| counter(opcode, body)).for_each(count);
    }
    async fn refill(self: Rc<Self>, request: Rc<Request>, record: ReplyRecord) -> Result<Reply, Errno> {
        reconstruct::refill(&self, &request, &record).await
    }
    async fn admitted(self: Rc<Self>) -> Result<(), Errno> {
        self.skip_sequences().await
    }
    async fn export_gone(self: Rc<Self>, export: ExportId) -> Result<(), Errno> {
        self.dirs.drop_export(export);
        self.drop_export(export).await
    }
    fn connected(&self, export: ExportId) {
        self.dirs.connected(export);
    }
    fn acknowledged(&self, export: ExportId, callback: Xid) {
        self.dirs.acknowledged(export, callback);
    }
    fn handle_event(&self, event: Event) -> Option<Event> {
        Some(event)
    }
    async fn statfs(self: Rc<Self>) -> Result<StatfsReply, Errno> {
        self.free_for_statfs().await;
        self.space().await
    }
    fn params(&self) -> Vec<Param> {
        crate::service::params::list(self)
    }
    fn set_param(&self, name: &str, value: &str) -> Result<(), String> {
        crate::service::params::set(self, name, value)
    }
    async fn stop(self: Rc<Self>) {
        if self.core.config.in_memory {
            self.core.tell_end().await;
        }
        self.osts.stop().await;
    }
}
