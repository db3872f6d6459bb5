//! One sample of every message, and its decoder: what the tests of this directory and the fuzz target go through.

use bytes::Bytes;
use nacre_types::*;
use nacre_wire::mdt::*;
use nacre_wire::mgs::*;
use nacre_wire::ost::*;
use nacre_wire::target::*;
use nacre_wire::{Opcode, Rpc, Status, ost};

/// A message type with one value of it.
pub(crate) struct Message {
    pub(crate) name: &'static str,
    /// Opcode of a request.
    pub(crate) opcode: Option<Opcode>,
    /// An encoded value with every optional part present.
    pub(crate) sample: Vec<u8>,
    /// Decodes and encodes again; `None` when refused.
    pub(crate) decode: fn(&[u8]) -> Option<Vec<u8>>,
}

fn fid(oid: u32) -> Fid {
    Fid::new(Seq(0x1234), Oid(oid))
}
fn time(sec: i64) -> Timestamp {
    Timestamp { sec, nsec: 999_999_999 }
}
fn object() -> ObjectId {
    ObjectId { fid: fid(7), stripe: 3 }
}
fn owner() -> Owner {
    Owner { uid: 1000, gid: 100, projid: 5 }
}
fn uuid() -> ClientUuid {
    ClientUuid(*b"0123456789abcdef")
}
fn fs() -> FsName {
    FsName::parse("demo").expect("a good name")
}
fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).expect("a good name")
}
fn caller() -> Caller {
    Caller { uid: 1000, gid: 100, pid: 4242, umask: 0o22, groups: vec![100, 4] }
}
fn attr() -> Attr {
    Attr {
        fid: fid(7),
        mode: 0o100644,
        uid: 1000,
        gid: 100,
        projid: 5,
        nlink: 2,
        rdev: 0x801,
        size: 1 << 40,
        blocks: 8,
        atime: time(1),
        mtime: time(-2),
        ctime: time(3),
        btime: time(4),
        size_state: SizeState::Open,
        version: 77,
    }
}
fn layout() -> Layout {
    let stripes = vec![OstIndex(0), OstIndex(31)];
    Layout {
        generation: 1,
        dom_bytes: 8192,
        components: vec![Component { extent: Extent::ALL, stripe_bytes: 1 << 20, stripes, laid: vec![0, 2] }],
    }
}
fn template() -> LayoutTemplate {
    LayoutTemplate { stripe_count: -1, stripe_bytes: 65536, first_ost: 2, dom_bytes: Some(65536) }
}
fn inode_grant() -> InodeGrant {
    InodeGrant { fid: fid(1), mode: InodeMode::Pr, bits: InodeBits::ATTRS, number: 3 }
}
fn entry() -> EntryReply {
    let (layout, mtime_set_at) = (Some(layout()), time(5));
    EntryReply {
        attr: attr(),
        layout,
        kill_priv: true,
        has_xattrs: true,
        mtime_set_at,
        yours: true,
        buffered: true,
    }
}
fn how() -> OpenHow {
    OpenHow { handle: OpenHandle(9), flags: 0o1002 }
}
fn written() -> Written {
    Written { size: 4097, blocks: 16, mtime: time(6) }
}
fn file_lock() -> FileLock {
    let (family, kind) = (FlockFamily::Posix, FlockType::Write);
    FileLock { family, kind, start: 1, end: u64::MAX, owner: 11, pid: 12 }
}
fn state() -> ObjectState {
    ObjectState { size: 1 << 44, blocks: 16, mtime: time(8) }
}
fn set() -> SetAttr {
    SetAttr {
        mode: Some(0o600),
        uid: Some(1),
        gid: Some(2),
        size: Some(3),
        atime: Some(time(4)),
        mtime: Some(time(5)),
        ctime: Some(time(6)),
        kill_suidgid: true,
    }
}
fn incarnation() -> Incarnation {
    Incarnation { number: 5, id: 0x1122_3344, began: Transno(70) }
}
fn remembered() -> Remembered {
    Remembered { uuid: uuid(), incarnation: incarnation(), committed: Transno(80) }
}
fn target_entry() -> TargetEntry {
    let addresses = vec!["unix:/run/x".into(), "h:9988".into()];
    TargetEntry { kind: TargetKind::Ost, index: 31, known: remembered(), replaced: 2, addresses }
}

macro_rules! messages {
    (requests { $($req:ty = $req_value:expr;)* } others { $($other:ty = $other_value:expr;)* }) => {
        /// Every message, requests first.
        pub(crate) fn all() -> Vec<Message> {
            vec![
                $({
                    let value: $req = $req_value;
                    Message {
                        name: stringify!($req),
                        opcode: Some(<$req as Rpc>::OPCODE),
                        sample: value.to_vec(),
                        decode: |bytes| <$req>::from_slice(bytes).ok().map(|v| v.to_vec()),
                    }
                },)*
                $({
                    let value: $other = $other_value;
                    Message {
                        name: stringify!($other),
                        opcode: None,
                        sample: value.to_vec(),
                        decode: |bytes| <$other>::from_slice(bytes).ok().map(|v| v.to_vec()),
                    }
                },)*
            ]
        }
        /// Decodes a body as the reply to its opcode; `None` for an opcode without one, or when refused.
        pub(crate) fn decode_reply(opcode: Opcode, body: &[u8]) -> Option<Vec<u8>> {
            $(if opcode == <$req as Rpc>::OPCODE {
                return <$req as Rpc>::Reply::from_slice(body).ok().map(|v| v.to_vec());
            })*
            None
        }
    };
}

messages! {
    requests {
        Connect = Connect {
            client: uuid(), role: Role::Client, secret: Secret::new([9; 16]), name: "h:/mnt".into(), features: 1, max_mod_rpcs: 7,
            generation: Generation(3), known: Some(remembered()), replaced: 2, instance: 5,
        };
        Disconnect = Disconnect {};
        Ping = Ping {};
        GetParams = GetParams { pattern: "osc.*.stats".into() };
        SetParam = SetParam { name: "a.b".into(), value: "1".into() };
        Statfs = Statfs {};
        Sync = Sync {};
        Commit = Commit {};
        RegisterTarget = RegisterTarget {
            fs: fs(), kind: TargetKind::Mdt, index: 0,
            identity: Identity { uuid: uuid(), incarnations: vec![incarnation()] },
            committed: Transno(80), replaced: 2, blank: true, addresses: vec!["unix:/x".into()],
        };
        ListTargets = ListTargets { fs: fs() };
        RecoveryRows = RecoveryRows { replies: true, from: Bytes::from_static(b"k") };
        SetPermanentParam = SetPermanentParam { name: "a.*.b".into(), value: Some("7".into()) };
        AdmitTarget = AdmitTarget {
            fs: fs(), kind: TargetKind::Ost, index: 1, admit: Admit::Rollback, revoke: true,
        };
        GrantSeq = GrantSeq {};
        Batch = Batch {
            stop_at_error: true,
            operations: vec![SubOperation { opcode: 0x27, body: Bytes::from_static(b"b") }],
        };
        CancelInodeLocks = CancelInodeLocks {
            instance: 3,
            acks: vec![RevokeAck { number: 4, converted: true }],
            cancels: vec![InodeCancel { fid: fid(1), bits: InodeBits::ALL, number: 7 }],
            flushing: vec![8],
        };
        FormerLocksEnded = FormerLocksEnded { instance: 3 };
        AwaitInodeLocks = AwaitInodeLocks { change: Xid(9) };
        ReportOpens = ReportOpens { opens: vec![ReportedOpen { fid: fid(1), how: how() }] };
        Lookup<'_> = Lookup { parent: Fid::ROOT, name: name(b"a\xff") };
        Getattr = Getattr { fid: fid(1) };
        Settle = Settle { fid: fid(1) };
        Readdir = Readdir { dir: Fid::ROOT, cookie: 1 << 62, entries_max: 1000, with_attrs: true };
        Create<'_> = Create {
            parent: Fid::ROOT, name: Some(name(b"n")), fid: fid(2), mode: 0o100644, rdev: 0, target: b"t",
            layout: Some(template()), open: Some(how()), exclusive: true, caller: caller(), time: time(1),
        };
        Open = Open { fid: fid(2), how: how(), caller: caller() };
        Close = Close {
            fid: fid(2), handle: OpenHandle(9), dirty: true, written: Some(written()), atime: Some(time(7)),
            data: Some(Bytes::from_static(b"all of it")),
        };
        Link<'_> = Link { fid: fid(2), parent: Fid::ROOT, name: name(b"l"), caller: caller(), time: time(1) };
        Unlink<'_> = Unlink { parent: Fid::ROOT, name: name(b"l"), directory: false, caller: caller(), time: time(1), reported: fid(2) };
        Rename<'_> = Rename {
            parent: Fid::ROOT, name: name(b"a"), new_parent: fid(3), new_name: name(b"b"), flags: rename_flags::EXCHANGE,
            caller: caller(), time: time(1), reported: fid(4), whiteout: Some(fid(5)),
        };
        Setattr = Setattr { fid: fid(2), set: set(), caller: caller(), time: time(1) };
        ReportSize = ReportSize { fid: fid(2), written: written(), truncate: true };
        ReadData = ReadData { fid: fid(2) };
        StoreData<'_> = StoreData { fid: fid(2), handle: OpenHandle(9), data: b"all of it", mtime: time(6) };
        MoveData = MoveData { fid: fid(2) };
        Readlink = Readlink { fid: fid(2) };
        Getxattr<'_> = Getxattr { fid: fid(2), name: b"user.a" };
        Setxattr<'_> = Setxattr {
            fid: fid(2), name: b"user.a", value: b"v", flags: 1, kill_sgid: true, caller: caller(), time: time(1),
        };
        Listxattr = Listxattr { fid: fid(2) };
        Removexattr<'_> = Removexattr { fid: fid(2), name: b"user.a", time: time(1) };
        Flock = Flock { fid: fid(2), lock: file_lock(), wait: true, cookie: LockCookie(4) };
        FlockTest = FlockTest { fid: fid(2), lock: file_lock() };
        FlockCancel = FlockCancel { fid: fid(2), cookie: LockCookie(4) };
        SetLayout = SetLayout { fid: fid(2), template: template(), caller: caller(), time: time(1) };
        GetLayout = GetLayout { fid: fid(2) };
        FidLinks = FidLinks { fid: fid(2), caller: caller() };
        Reclaim = Reclaim { ost: OstIndex(1) };
        ost::Read = ost::Read { object: object(), laid: 2, offset: 1 << 50, len: 1 << 20, lock: LockCookie(1) };
        ost::Write =
            ost::Write { object: object(), laid: 2, offset: 1 << 50, owner: owner(), mtime: time(1), lock: LockCookie(0) };
        WriteMany = WriteMany {
            writes: vec![
                ManyWrite { object: object(), laid: 2, offset: 7, len: 3, owner: owner(), mtime: time(1) };
                2
            ],
        };
        Truncate =
            Truncate { object: object(), laid: 2, size: 5, owner: owner(), mtime: time(1), lock: LockCookie(1) };
        Allocate = Allocate {
            object: object(), laid: 2, offset: 1, len: 2, keep_size: true, owner: owner(), mtime: time(1),
            lock: LockCookie(1),
        };
        Punch = Punch {
            object: object(), laid: 2, offset: 1, len: 2, frees: true, owner: owner(), mtime: time(1),
            lock: LockCookie(1),
        };
        Seek = Seek { object: object(), laid: 2, offset: 5, is_data: true };
        Glimpse = Glimpse { object: object(), laid: 2 };
        SetOwner = SetOwner { object: object(), owner: owner() };
        Destroy = Destroy { fid: fid(7), stripes: vec![0, 1, 2] };
        SyncObject = SyncObject { object: object(), laid: 2 };
        Enqueue = Enqueue {
            object: object(), laid: 2, cookie: LockCookie(1), mode: LockMode::Pw, extent: Extent::new(0, u64::MAX),
            persistent: true,
        };
        Cancel = Cancel { object: object(), cookie: LockCookie(1) };
        Reserve = Reserve { objects: 1000 };
        FreeSpace = FreeSpace {};
        Grant = Grant { bytes: 1 << 26 };
    }
    others {
        ConnectReply = ConnectReply {
            target: uuid(), features: 1, max_mod_rpcs: 8, lease_ms: 10_000, generation: Generation(3),
            evicted: false, instance: 2, server_time: time(1), recovery_ms: 0, replaced: "10.0.0.9:77".into(), cause: "c".into(), process: 5, ended: 6, local: true,
            executed: vec![ExecutedChange { xid: Xid(4), transno: Transno(5) }], incarnation: incarnation(), refused: "r".into(),
            mismatch: true,
        };
        PingReply = PingReply { config_version: 3, recovery_ms: 4, process: 5, ended: 6 };
        ParamList = ParamList {
            params: vec![Param { name: "a".into(), value: "1".into(), writable: true, help: "h".into() }],
        };
        SetParamReply = SetParamReply { matched: 1, refused: "no".into() };
        StatfsReply =
            StatfsReply { bytes_total: 5, bytes_free: 4, bytes_avail: 3, files_used: 2, files_free: 1, device: 9 };
        RecoveryRowsReply = RecoveryRowsReply {
            name: "demo-MDT0000".into(), incompat: 0x400, last_transaction: 9, target_index: 1, mount_count: 2,
            rows: vec![Bytes::from_static(b"r")], next: Some(Bytes::from_static(b"n")),
        };
        Empty = Empty {};
        RegisterReply =
            RegisterReply { config_version: 1, hash_key: (2, 3), replaced: 2, refused: "r".into() };
        AdmitReply = AdmitReply { known: remembered(), replaced: 2, refused: "r".into() };
        TargetList = TargetList { config_version: 1, hash_key: (2, 3), targets: vec![target_entry()],
            params: vec![PermanentParam { name: "a.*.b".into(), value: "7".into() }] };
        GrantSeqReply = GrantSeqReply { seq: Seq(0x1234) };
        EntryReply = entry();
        ReaddirReply = ReaddirReply {
            entries: vec![DirEntry {
                cookie: 1, name: Bytes::from_static(b"n"), fid: fid(1), file_type: FileType::Regular,
                entry: Some(entry()), granted: Some(inode_grant()),
            }],
            eof: true,
        };
        CreateReply = CreateReply { entry: entry(), created: true };
        BatchReply = BatchReply { results: vec![SubResult { status: Status::from_number(2), body: Bytes::from_static(b"r") }] };
        ReadDataReply = ReadDataReply { data: Some(Bytes::from_static(b"all of it")), mtime: time(6) };
        ReadlinkReply = ReadlinkReply { target: Bytes::from_static(b"t") };
        XattrReply = XattrReply { value: Bytes::from_static(b"v") };
        ListxattrReply = ListxattrReply { names: vec![Bytes::from_static(b"user.a")] };
        FlockReply = FlockReply { outcome: FlockOutcome::Waiting };
        FlockTestReply = FlockTestReply { conflict: Some(file_lock()) };
        FlockGranted = FlockGranted { cookie: LockCookie(4), outcome: FlockOutcome::Deadlock };
        LayoutReply =
            LayoutReply { layout: Some(layout()), template: Some(template()), default: template() };
        FidLinksReply = FidLinksReply { links: vec![(Fid::ROOT, Bytes::from_static(b"n"))] };
        ReadReply = ReadReply { state: state() };
        WriteReply = WriteReply { state: state() };
        WriteManyReply = WriteManyReply {
            results: vec![
                ManyResult { status: Status::Success, state: state() },
                ManyResult { status: Status::from_number(28), state: ObjectState::default() },
            ],
        };
        ObjectState = state();
        EnqueueReply = EnqueueReply { granted: true, state: state() };
        ReserveReply = ReserveReply { objects: 1000 };
        FreeSpaceReply = FreeSpaceReply { freed: true };
        GrantReply = GrantReply { bytes: 1 << 25 };
        LockGranted = LockGranted { cookie: LockCookie(1), state: state() };
        LockBlocking = LockBlocking { cookie: LockCookie(1) };
        ReturnGrant = ReturnGrant {};
        LookupReply = LookupReply { entry: Some(entry()) };
        LockTail = LockTail {
            seen: Transno(1 << 32), granted: vec![inode_grant()],
            changed: vec![entry()], removed: vec![fid(3)], yours: vec![fid(1)],
        };
        ReportOpensReply = ReportOpensReply { results: vec![Status::Success] };
        RevokeInodeLocks = RevokeInodeLocks {
            revokes: vec![InodeRevoke { fid: fid(1), bits: InodeBits::LOOKUP, wanted: InodeMode::Ex, number: 4 }],
        };
        Ended = Ended {};
    }
}
