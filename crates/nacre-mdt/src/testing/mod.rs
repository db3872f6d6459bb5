//! Shared by the tests of several files: a metadata target with its rows in a map, without engine and network.

mod model_tests;
mod op_tests;

use crate::ops::{Context, Operation};
use crate::osts::allocator::{Allocator, OstRoom};
use crate::osts::free_space::FreeSpace;
use crate::rows::ancestry::AncestorWalks;
use crate::rows::check::{Check, Report};
use crate::rows::opens::Opens;
use crate::rows::read_set::ReadSet;
use crate::rows::row::{Inode, Row};
use crate::rows::state_change::StateChange;
use crate::rows::table::{self, INODE, META, SEQUENCE, meta};
use crate::rows::view::{Abort, Output, Rows, Step, View};
use nacre_osd::Table;
use nacre_types::name::HashKey;
use nacre_types::{
    Attr, Caller, ClientUuid, Codec as _, Errno, Fid, Generation, LayoutTemplate, MdtIndex, Name, Oid,
    OpenHandle, OstIndex, Owner, Seq, SetAttr, Timestamp, Transno, Writer,
};
use nacre_wire::Rpc;
use nacre_wire::mdt::{
    Close, Create, CreateReply, EntryReply, Link, Open, OpenHow, Rename, ReportSize, Setattr, Unlink, Written,
};
use nacre_wire::target::StatfsReply;
use std::collections::BTreeMap;
use std::vec::Vec;

pub(crate) const SEQ: Seq = Seq(0x100);
pub(crate) const CLIENT: ClientUuid = ClientUuid([7; 16]);
pub(crate) const EXPORT: Generation = Generation(1);
pub(crate) const HASH: HashKey = HashKey(11, 12);

pub(crate) fn name_of(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).unwrap()
}

/// Attributes of some inode.
pub(crate) fn attr(mode: u32, uid: u32, gid: u32) -> Attr {
    Attr { uid, gid, ..Attr::new(Fid::ROOT, mode, Timestamp::default()) }
}

type Map = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// A transaction over a map: sees only what was fetched, like the engine's.
struct MapTx<'a> {
    base: &'a Map,
    fetched: ReadSet,
    changes: BTreeMap<(Table, Vec<u8>), Option<Vec<u8>>>,
    objects: i64,
    transno: u64,
}
impl Rows for MapTx<'_> {
    fn transno(&self) -> Transno {
        Transno(self.transno)
    }
    fn get_known(&self, table: Table, key: &[u8]) -> Option<Option<&[u8]>> {
        let pinned = self.fetched.holds(table, key);
        let key = (table, key.to_vec());
        match self.changes.get(&key) {
            Some(change) => Some(change.as_deref()),
            None => pinned.then(|| self.base.get(&key).map(|v| &v[..])),
        }
    }
    fn each(&self, table: Table, from: &[u8], to: &[u8], row: &mut dyn FnMut(&[u8], &[u8])) -> bool {
        let range = (table, from.to_vec())..(table, to.to_vec());
        let mut rows: BTreeMap<_, _> = self.base.range(range.clone()).map(|(k, v)| (k, Some(v))).collect();
        rows.extend(self.changes.range(range).map(|(k, v)| (k, v.as_ref())));
        rows.into_iter().for_each(|((_, key), value)| value.into_iter().for_each(|value| row(key, value)));
        self.fetched.holds_range(table, from, to)
    }
    fn put(&mut self, table: Table, key: &[u8], encode: &dyn Fn(&mut Writer)) {
        let mut w = Writer::new();
        encode(&mut w);
        self.changes.insert((table, key.to_vec()), Some(w.buf));
    }
    fn delete(&mut self, table: Table, key: &[u8]) {
        self.changes.insert((table, key.to_vec()), None);
    }
    fn delete_range(&mut self, table: Table, from: &[u8], to: &[u8]) {
        let range = (table, from.to_vec())..(table, to.to_vec());
        let keys: Vec<_> = self.base.range(range).map(|(k, _)| k.clone()).collect();
        keys.into_iter().for_each(|k| drop(self.changes.insert(k, None)));
    }
    fn account(&mut self, _: Owner, _: i64, objects: i64) {
        self.objects += objects;
    }
}

/// A file system of rows.
pub(crate) struct Fs {
    rows: Map,
    pub(crate) opens: Opens,
    objects: i64,
    transno: u64,
    next: u32,
    pub(crate) time: i64,
    allocator: Allocator,
    pub(crate) state_changes: Vec<StateChange>,
    /// AncestorWalks up that were walked.
    pub(crate) walks: usize,
}

impl Fs {
    pub(crate) fn new() -> Self {
        let mut allocator = Allocator::default();
        let mut space = FreeSpace::default();
        space.update(&StatfsReply {
            bytes_total: 1 << 40,
            bytes_avail: 1 << 40,
            files_free: 1 << 28,
            ..StatfsReply::default()
        });
        for n in 0..3 {
            let room = OstRoom { up: true, asked: true, space, objects: u64::MAX / 2, refused: false };
            allocator.set_room(OstIndex(n), room);
        }
        let mut fs = Self {
            rows: Map::new(),
            opens: Opens::default(),
            objects: 1,
            transno: 1,
            next: 1,
            time: 1000,
            allocator,
            state_changes: Vec::new(),
            walks: 0,
        };
        let root = Inode::root(fs.now());
        fs.rows.insert((INODE, Fid::ROOT.key().to_vec()), root.to_row());
        fs.rows.insert((SEQUENCE, table::sequence(SEQ).to_vec()), CLIENT.to_row());
        fs.rows.insert((META, meta::NEXT_SEQ.to_vec()), (SEQ.0 + 1).to_row());
        fs.rows.insert((META, meta::HASH_KEY.to_vec()), (HASH.0, HASH.1).to_row());
        fs
    }
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp { sec: self.time, nsec: 0 }
    }
    pub(crate) fn new_fid(&mut self) -> Fid {
        self.next += 1;
        Fid::new(SEQ, Oid(self.next))
    }
    /// Executes an operation as the service does, for a client, and decodes its reply.
    pub(crate) fn apply<R: Rpc + Operation>(
        &mut self,
        export: Generation,
        op: &R,
    ) -> Result<R::Reply, Errno> {
        let mut allocator = core::mem::take(&mut self.allocator);
        let mut choose = |t: &LayoutTemplate| allocator.layout(t, || 7).map_err(|e| Errno::from(e).into());
        let default = LayoutTemplate {
            stripe_count: 1,
            stripe_bytes: 1 << 20,
            first_ost: -1,
            ..LayoutTemplate::default()
        };
        let mut context = Context::new(export, &|| Some(CLIENT), default, &mut choose);
        let done = self.run(op.read_set(HASH, export), |view| op.apply(view, &mut context));
        self.allocator = allocator;
        done.map(|applied| R::Reply::from_slice(&applied.body).unwrap())
    }
    /// Executes a step of an operation: fetches the rows that are missing until it has all, and checks all rows afterwards.
    pub(crate) fn run<T>(
        &mut self,
        read_set: ReadSet,
        op: impl FnMut(&mut View<'_>) -> Step<T>,
    ) -> Result<T, Errno> {
        self.transact(read_set, op).inspect(|_| {
            let report = self.check();
            assert_eq!(report.sentences, Vec::<std::string::String>::new());
        })
    }
    /// The same without a check of all rows.
    pub(crate) fn transact<T>(
        &mut self,
        mut read_set: ReadSet,
        mut op: impl FnMut(&mut View<'_>) -> Step<T>,
    ) -> Result<T, Errno> {
        self.time += 1;
        for _ in 0..64 {
            let fetched = read_set.clone();
            let (base, changes) = (&self.rows, BTreeMap::new());
            let mut tx = MapTx { base, fetched, changes, objects: 0, transno: self.transno + 1 };
            let mut output = Output::default();
            let done = op(&mut View::new(&mut tx, &mut read_set, HASH, &self.opens, &mut output));
            let listed = output.state_changes.into_iter();
            let state_changes: Vec<_> = listed.map(|(change, _)| change).collect();
            match done {
                Err(Abort::MissingRows | Abort::MustWait | Abort::NeedsCredits(_)) => {
                    self.walk(read_set.walks_mut());
                }
                Err(Abort::Failed(failure)) => return Err(failure.for_caller()),
                Err(Abort::AfterRevoke(errno)) => return Err(errno),
                Ok(value) => {
                    let MapTx { changes, objects, transno, .. } = tx;
                    (self.transno, self.objects) = (transno, self.objects + objects);
                    for (key, change) in changes {
                        match change {
                            Some(row) => drop(self.rows.insert(key, row)),
                            None => drop(self.rows.remove(&key)),
                        }
                    }
                    state_changes.iter().for_each(|change| self.opens.apply(change));
                    self.state_changes.extend(state_changes);
                    return Ok(value);
                }
            }
        }
        panic!("an operation wanted new rows for ever");
    }
    /// Makes the walks that the next attempt needs.
    fn walk(&mut self, walks: &mut AncestorWalks) {
        walks.attempted();
        for number in 0..walks.count() {
            let mut walker = walks.start(number).unwrap();
            let end = loop {
                if let Some(end) = walker.end() {
                    break Ok(end);
                }
                let inode = self.inode(walker.at());
                if let Err(e) = walker.step(inode.as_ref()) {
                    break Err(e);
                }
            };
            walks.set_end(number, end);
            self.walks += 1;
        }
    }
    pub(crate) fn check(&self) -> Report {
        let mut check = Check::new(MdtIndex::ROOT);
        for ((table, key), value) in &self.rows {
            check.row(*table, key, value);
        }
        let report = check.finish();
        assert_eq!(report.inodes as i64, self.objects, "inodes and accounts differ");
        report
    }
    pub(crate) fn rows(&self, table: Table) -> Vec<(Vec<u8>, Vec<u8>)> {
        let all = self.rows.iter().filter(|((t, _), _)| *t == table);
        all.map(|((_, key), value)| (key.clone(), value.clone())).collect()
    }
    pub(crate) fn put_row<R: Row>(&mut self, table: Table, key: &[u8], row: &R) {
        self.rows.insert((table, key.to_vec()), row.to_row());
    }
    pub(crate) fn inode(&self, fid: Fid) -> Option<Inode> {
        self.rows.get(&(INODE, fid.key().to_vec())).map(|row| Inode::from_row(row).unwrap())
    }

    // ---- operations with the usual arguments

    pub(crate) fn create_args<'a>(&mut self, parent: Fid, name: &'a [u8], mode: u32) -> Create<'a> {
        Create {
            parent,
            name: Some(name_of(name)),
            fid: self.new_fid(),
            mode,
            rdev: 0,
            target: if mode & 0o170000 == 0o120000 { b"to" } else { b"" },
            layout: None,
            open: None,
            exclusive: true,
            caller: Caller::root(),
            time: self.now(),
        }
    }
    pub(crate) fn create_with(&mut self, args: &Create<'_>) -> Result<CreateReply, Errno> {
        self.apply(EXPORT, args)
    }
    pub(crate) fn create(&mut self, parent: Fid, name: &[u8], mode: u32) -> Result<Fid, Errno> {
        let args = self.create_args(parent, name, mode);
        self.create_with(&args).map(|reply| reply.entry.attr.fid)
    }
    pub(crate) fn unlink(&mut self, parent: Fid, name: &[u8], directory: bool) -> Result<(), Errno> {
        let args = Unlink {
            parent,
            name: name_of(name),
            directory,
            caller: Caller::root(),
            time: self.now(),
            reported: Fid::default(),
        };
        self.apply(EXPORT, &args).map(drop)
    }
    pub(crate) fn link(&mut self, fid: Fid, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        let args = Link { fid, parent, name: name_of(name), caller: Caller::root(), time: self.now() };
        self.apply(EXPORT, &args).map(drop)
    }
    pub(crate) fn rename_as(
        &mut self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        (new_parent, new_name): (Fid, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        let (caller, time) = (caller.clone(), self.now());
        let (name, new_name) = (name_of(name), name_of(new_name));
        let reported = Fid::default();
        let args =
            Rename { parent, name, new_parent, new_name, flags, caller, time, reported, whiteout: None };
        self.apply(EXPORT, &args).map(drop)
    }
    pub(crate) fn open(
        &mut self,
        export: Generation,
        fid: Fid,
        handle: u64,
        flags: u32,
    ) -> Result<EntryReply, Errno> {
        let how = OpenHow { handle: OpenHandle(handle), flags };
        let args = Open { fid, how, caller: Caller::root() };
        self.apply(export, &args)
    }
    pub(crate) fn close(
        &mut self,
        export: Generation,
        fid: Fid,
        handle: u64,
        dirty: bool,
        written: Option<Written>,
    ) -> Result<(), Errno> {
        let args = Close { fid, handle: OpenHandle(handle), dirty, written, atime: None, data: None };
        self.apply(export, &args).map(drop)
    }
    pub(crate) fn setattr_as(
        &mut self,
        export: Generation,
        uid: u32,
        fid: Fid,
        set: SetAttr,
    ) -> Result<Attr, Errno> {
        let caller = Caller { uid, ..Caller::root() };
        let args = Setattr { fid, set, caller, time: self.now() };
        self.apply(export, &args).map(|reply| reply.attr)
    }
    pub(crate) fn report(
        &mut self,
        export: Generation,
        fid: Fid,
        written: Written,
        truncate: bool,
    ) -> Result<Attr, Errno> {
        let args = ReportSize { fid, written, truncate };
        self.apply(export, &args).map(|reply| reply.attr)
    }
}
