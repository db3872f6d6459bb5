//! A file system of fakes: an MGS, an MDT and OSTs that reply as little as a client needs, log what arrives, and hold
//! back replies when told to. What the real targets do is tried in `nacre-sim`; here the protocol is.

use bytes::Bytes;
use nacre_client::{Client, CreateArgs, MountConfig};
use nacre_node::{ConnId, Ctx, Effect, Event, Logic};
use nacre_sim::{Faults, Jobs, MountIsland, NodeId, World};
use nacre_types::*;
use nacre_wire::mdt::*;
use nacre_wire::mgs::{ListTargets, TargetEntry, TargetList};
use nacre_wire::ost::{self, ObjectState};
use nacre_wire::target::{Connect, ConnectReply, Empty, Param, ParamList, PingReply};
use nacre_wire::{Frame, Header, Kind, Opcode, Status, flags};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub const SECOND: u64 = 1_000_000_000;

/// What all fakes share: the log of requests, what is held back, the contents.
#[derive(Default)]
pub struct Shared {
    pub log: Vec<String>,
    /// Requests of these opcodes are executed; their replies are held back until released.
    pub hold: BTreeSet<Opcode>,
    held: Vec<(String, ConnId, Frame)>,
    /// Refused once each, in order.
    pub refuse: Vec<(Opcode, Failure)>,
    /// The reply to enqueues and waiting flocks is "waiting".
    pub contended: bool,
    pub objects: BTreeMap<ObjectId, Vec<u8>>,
    pub inodes: BTreeMap<Fid, EntryReply>,
    pub names: BTreeMap<Vec<u8>, Fid>,
    pub closed: Vec<Close>,
    pub reports: Vec<ReportSize>,
    /// Reply to FlockCancel.
    pub cancel_outcome: Option<FlockOutcome>,
    pub stripes: u32,
    /// Features that the targets do not know.
    pub lacks: u64,
    pub sequences: u64,
    /// Reads are granted locks. Without it, opens are granted PERM.
    pub grants: bool,
    /// Number of the latest grant of locks.
    pub last_grant: u64,
    /// What the latest locks were returned with.
    pub returned: Option<CancelInodeLocks>,
    /// Start of the targets.
    pub instance: u64,
}

impl Shared {
    fn refused(&mut self, opcode: Opcode) -> Option<Failure> {
        let at = self.refuse.iter().position(|(o, _)| *o == opcode)?;
        Some(self.refuse.remove(at).1)
    }
    fn close(&mut self, close: Close) -> Result<(), Failure> {
        let entry = self.inodes.get_mut(&close.fid).ok_or(Failure::ENOENT)?;
        entry.attr.size_state = SizeState::Exact;
        if let Some(written) = close.written {
            entry.attr.size = written.size;
        }
        self.closed.push(close);
        Ok(())
    }
}

type Reply = Result<(Vec<u8>, Vec<Bytes>), Failure>;

struct Fake {
    ctx: Rc<Ctx>,
    name: String,
    shared: Rc<RefCell<Shared>>,
    conns: Vec<ConnId>,
    callbacks: u64,
    epoch: ConnEpoch,
}

/// Tells a fake to send the replies that it holds back, or to send a callback.
enum Order {
    /// What it holds of these opcodes.
    Release(BTreeSet<Opcode>),
    Callback(Opcode, Vec<u8>),
    /// Its connections break.
    Drop,
}

fn body<'a>(value: &impl Codec<'a>) -> Reply {
    Ok((value.to_vec(), Vec::new()))
}
fn args<'a, T: Codec<'a>>(frame: &'a Frame) -> T {
    T::from_slice(&frame.body).unwrap()
}

impl Logic for Fake {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Accepted { conn, .. } => self.conns.push(conn),
            Event::Frame { conn, frame } if frame.header.kind == Kind::Request => self.request(conn, frame),
            Event::Door(order) => match *order.downcast::<Order>().unwrap() {
                Order::Release(opcodes) => {
                    let held = std::mem::take(&mut self.shared.borrow_mut().held);
                    for (name, conn, reply) in held {
                        let opcode = Opcode::from_number(reply.header.opcode).unwrap();
                        if name == self.name && opcodes.contains(&opcode) {
                            self.ctx.push(Effect::Send { conn, frame: reply });
                        } else {
                            self.shared.borrow_mut().held.push((name, conn, reply));
                        }
                    }
                }
                Order::Drop => {
                    for conn in self.conns.drain(..) {
                        self.ctx.push(Effect::Close { conn });
                    }
                }
                Order::Callback(opcode, body) => {
                    self.callbacks += 1;
                    let mut header = Header::new(Kind::Callback, opcode.number());
                    header.xid = Xid(self.callbacks);
                    header.epoch = self.epoch;
                    let conn = *self.conns.last().unwrap();
                    self.ctx.push(Effect::Send { conn, frame: Frame::new(header, body) });
                }
            },
            _ => {}
        }
    }
}

impl Fake {
    fn request(&mut self, conn: ConnId, frame: Frame) {
        let opcode = Opcode::from_number(frame.header.opcode).unwrap();
        let refused = self.shared.borrow_mut().refused(opcode);
        let reply = match refused {
            Some(errno) => {
                self.log(format!("{opcode:?} refused"));
                Err(errno)
            }
            None => self.reply_to(opcode, &frame),
        };
        let reply = reply.map(|(body, bulk)| (self.with_locks(opcode, &frame, body), bulk));
        let mut header = Header::new(Kind::Reply, frame.header.opcode);
        header.flags = if self.grants_to(opcode, &frame) { flags::LOCKS } else { 0 };
        header.xid = frame.header.xid;
        header.tag = frame.header.tag;
        header.epoch = frame.header.epoch;
        let (body, bulk) = match reply {
            Ok(reply) => reply,
            Err(errno) => {
                header.status = errno.into();
                (Vec::new(), Vec::new())
            }
        };
        let mut reply = Frame::new(header, body);
        reply.bulk = bulk;
        let mut shared = self.shared.borrow_mut();
        if shared.hold.contains(&opcode) {
            shared.held.push((self.name.clone(), conn, reply));
        } else {
            self.ctx.push(Effect::Send { conn, frame: reply });
        }
    }

    fn grants_to(&self, opcode: Opcode, frame: &Frame) -> bool {
        let opens = matches!(opcode, Opcode::Create | Opcode::Open);
        frame.header.has(flags::MAY_LOCK) && (opens || self.shared.borrow().grants)
    }
    /// A body with the locks that the reply to a read grants: all bits of the inodes that it tells of; to an open, PERM.
    fn with_locks(&self, opcode: Opcode, frame: &Frame, mut body: Vec<u8>) -> Vec<u8> {
        if !self.grants_to(opcode, frame) {
            return body;
        }
        let mut shared = self.shared.borrow_mut();
        let fids = match opcode {
            Opcode::Getattr => vec![args::<Getattr>(frame).fid],
            Opcode::Lookup => {
                let r: Lookup<'_> = args(frame);
                [Some(r.parent), shared.names.get(r.name.as_bytes()).copied()].into_iter().flatten().collect()
            }
            Opcode::Create => vec![args::<Create<'_>>(frame).fid],
            Opcode::Open => vec![args::<Open>(frame).fid],
            _ => Vec::new(),
        };
        let opens = matches!(opcode, Opcode::Create | Opcode::Open);
        let bits = if opens { InodeBits::PERM } else { InodeBits::ALL };
        let granted = fids.into_iter().map(|fid| {
            shared.last_grant += 1;
            InodeGrant { fid, mode: InodeMode::Pr, bits, number: shared.last_grant }
        });
        let granted = granted.collect();
        let tail = LockTail { granted, ..LockTail::default() }.to_vec();
        body.extend(&tail);
        body.extend((tail.len() as u32).to_le_bytes());
        body
    }

    fn log(&self, line: String) {
        let target = self.name.rsplit('-').next().unwrap();
        self.shared.borrow_mut().log.push(format!("{target} {line}"));
    }

    fn reply_to(&mut self, opcode: Opcode, frame: &Frame) -> Reply {
        match opcode {
            Opcode::Connect => {
                let request: Connect = args(frame);
                self.epoch = frame.header.epoch;
                body(&ConnectReply {
                    target: ClientUuid([1; 16]),
                    features: request.features & !self.shared.borrow().lacks,
                    max_mod_rpcs: 8,
                    lease_ms: 10_000,
                    generation: Generation(1),
                    instance: 1 + self.shared.borrow().instance,
                    server_time: self.ctx.wall(),
                    ..ConnectReply::default()
                })
            }
            Opcode::Disconnect => body(&Empty {}),
            Opcode::Ping => body(&PingReply { config_version: 1, recovery_ms: 0, process: 0, ended: 0 }),
            Opcode::GetParams => {
                let live = Param {
                    name: "mgs.MGS.live.demo".into(),
                    value: String::new(),
                    writable: false,
                    help: String::new(),
                };
                body(&ParamList { params: vec![live] })
            }
            Opcode::ListTargets => self.targets(&args(frame)),
            _ if self.name.contains("OST") => self.ost(opcode, frame),
            _ => self.mdt(opcode, frame),
        }
    }

    fn targets(&self, request: &ListTargets) -> Reply {
        if request.fs.as_str() != "demo" {
            return Err(Failure::ENOENT);
        }
        let entry = |kind, index: u32, name: String| TargetEntry {
            kind,
            index,
            known: Remembered {
                uuid: ClientUuid([1; 16]),
                incarnation: Incarnation::default(),
                committed: Transno(0),
            },
            replaced: 0,
            addresses: vec![World::address(&name)],
        };
        let mut targets = vec![entry(TargetKind::Mdt, 0, "demo-MDT0000".into())];
        for index in 0..self.shared.borrow().stripes {
            targets.push(entry(TargetKind::Ost, index, format!("demo-OST{index:04x}")));
        }
        body(&TargetList { config_version: 1, hash_key: (1, 2), targets, params: vec![] })
    }

    fn state(&self, object: ObjectId) -> ObjectState {
        let size = self.shared.borrow().objects.get(&object).map_or(0, |o| o.len() as u64);
        ObjectState { size, blocks: size.div_ceil(512), mtime: Timestamp { sec: 7, nsec: 0 } }
    }

    fn ost(&mut self, opcode: Opcode, frame: &Frame) -> Reply {
        match opcode {
            Opcode::Glimpse => {
                let r: ost::Glimpse = args(frame);
                self.log(format!("Glimpse {}", r.object.stripe));
                body(&self.state(r.object))
            }
            Opcode::Enqueue => {
                let r: ost::Enqueue = args(frame);
                let end = if r.extent.end == u64::MAX { "inf".into() } else { r.extent.end.to_string() };
                self.log(format!("Enqueue {:?} {} [{}, {end})", r.mode, r.object.stripe, r.extent.start));
                let granted = !self.shared.borrow().contended;
                body(&ost::EnqueueReply { granted, state: self.state(r.object) })
            }
            Opcode::Cancel => {
                let r: ost::Cancel = args(frame);
                self.log(format!("Cancel {}", r.object.stripe));
                body(&Empty {})
            }
            Opcode::Write => {
                let r: ost::Write = args(frame);
                let data = frame.bulk.concat();
                let lock = if r.lock == LockCookie(0) { "" } else { " locked" };
                self.log(format!("Write {} {}+{}{lock}", r.object.stripe, r.offset, data.len()));
                let mut shared = self.shared.borrow_mut();
                let object = shared.objects.entry(r.object).or_default();
                let (start, end) = (r.offset as usize, r.offset as usize + data.len());
                if object.len() < end {
                    object.resize(end, 0);
                }
                object[start..end].copy_from_slice(&data);
                drop(shared);
                body(&ost::WriteReply { state: self.state(r.object) })
            }
            Opcode::Read => {
                let r: ost::Read = args(frame);
                let lock = if r.lock == LockCookie(0) { "" } else { " locked" };
                self.log(format!("Read {} {}+{}{lock}", r.object.stripe, r.offset, r.len));
                let shared = self.shared.borrow();
                let object = shared.objects.get(&r.object).cloned().unwrap_or_default();
                drop(shared);
                let start = object.len().min(r.offset as usize);
                let end = object.len().min(r.offset as usize + r.len as usize);
                let reply = ost::ReadReply { state: self.state(r.object) };
                Ok((reply.to_vec(), vec![Bytes::copy_from_slice(&object[start..end])]))
            }
            Opcode::Truncate => {
                let r: ost::Truncate = args(frame);
                self.log(format!("Truncate {} {}", r.object.stripe, r.size));
                self.shared.borrow_mut().objects.entry(r.object).or_default().resize(r.size as usize, 0);
                body(&ost::WriteReply { state: self.state(r.object) })
            }
            other => {
                self.log(format!("{other:?}"));
                body(&Empty {})
            }
        }
    }

    fn inode(&self, fid: Fid, mode: u32) -> EntryReply {
        let attr = Attr::new(fid, mode, Timestamp::default());
        let stripes = (0..self.shared.borrow().stripes).map(OstIndex).collect();
        let component = Component { extent: Extent::ALL, stripe_bytes: 4, stripes, laid: vec![] };
        let layout = Layout { generation: 1, dom_bytes: 0, components: vec![component] };
        EntryReply {
            attr,
            layout: Some(layout),
            kill_priv: false,
            has_xattrs: true,
            mtime_set_at: Timestamp::default(),
            yours: false,
            buffered: false,
        }
    }

    fn mdt(&mut self, opcode: Opcode, frame: &Frame) -> Reply {
        self.log(match opcode {
            Opcode::Flock => {
                let r: Flock = args(frame);
                format!("Flock {:?}{}", r.lock.kind, if r.wait { " wait" } else { "" })
            }
            Opcode::Batch => format!("Batch of {}", args::<Batch>(frame).operations.len()),
            other => format!("{other:?}"),
        });
        let mut shared = self.shared.borrow_mut();
        match opcode {
            Opcode::GrantSeq => {
                shared.sequences += 1;
                body(&GrantSeqReply { seq: Seq(0x100 + shared.sequences) })
            }
            Opcode::Create => {
                let r: Create<'_> = args(frame);
                let name = r.name.expect("named").as_bytes();
                if let Some(fid) = shared.names.get(name) {
                    return body(&CreateReply { entry: shared.inodes[fid].clone(), created: false });
                }
                drop(shared);
                let mut entry = self.inode(r.fid, r.mode);
                if r.open.is_some() {
                    entry.attr.size_state = SizeState::Open;
                }
                let mut shared = self.shared.borrow_mut();
                shared.names.insert(name.to_vec(), r.fid);
                shared.inodes.insert(r.fid, entry.clone());
                body(&CreateReply { entry, created: true })
            }
            Opcode::Open => {
                let r: Open = args(frame);
                let entry = shared.inodes.get_mut(&r.fid).ok_or(Failure::ENOENT)?;
                if r.how.flags & 3 != 0 {
                    entry.attr.size_state = SizeState::Open;
                }
                body(&*entry)
            }
            Opcode::Close => {
                shared.close(args(frame))?;
                body(&Empty {})
            }
            // Of closes.
            Opcode::Batch => {
                let batch: Batch = args(frame);
                let results = batch.operations.iter().map(|operation| {
                    let done = match shared.refused(Opcode::Close) {
                        Some(errno) => Err(errno),
                        None => shared.close(Close::from_slice(&operation.body).unwrap()),
                    };
                    SubResult {
                        status: done.err().map_or(Status::Success, Status::from),
                        body: Empty {}.to_vec().into(),
                    }
                });
                body(&BatchReply { results: results.collect() })
            }
            Opcode::Lookup => {
                let r: Lookup<'_> = args(frame);
                let entry = shared.names.get(r.name.as_bytes()).map(|fid| shared.inodes[fid].clone());
                body(&LookupReply { entry })
            }
            Opcode::CancelInodeLocks => {
                shared.returned = Some(args(frame));
                body(&Empty {})
            }
            Opcode::Getxattr => Err(Failure::ENODATA),
            Opcode::Getattr => {
                let r: Getattr = args(frame);
                body(shared.inodes.get(&r.fid).ok_or(Failure::ENOENT)?)
            }
            Opcode::Setattr => {
                let r: Setattr = args(frame);
                let entry = shared.inodes.get_mut(&r.fid).ok_or(Failure::ENOENT)?;
                if r.set.size.is_some() {
                    entry.attr.size_state = SizeState::Open;
                }
                entry.kill_priv &= !r.set.kill_suidgid;
                body(&*entry)
            }
            Opcode::ReportSize => {
                let r: ReportSize = args(frame);
                let entry = shared.inodes.get_mut(&r.fid).ok_or(Failure::ENOENT)?;
                entry.attr.size = r.written.size;
                entry.attr.size_state = SizeState::Exact;
                let reply = entry.clone();
                shared.reports.push(r);
                body(&reply)
            }
            Opcode::Flock => {
                let r: Flock = args(frame);
                let outcome =
                    if shared.contended && r.wait { FlockOutcome::Waiting } else { FlockOutcome::Granted };
                body(&FlockReply { outcome })
            }
            Opcode::FlockCancel => {
                body(&FlockReply { outcome: shared.cancel_outcome.unwrap_or(FlockOutcome::Conflict) })
            }
            _ => body(&Empty {}),
        }
    }
}

/// One client on a file system of fakes.
pub struct Bed {
    pub world: World,
    pub jobs: Jobs,
    pub mount: NodeId,
    pub shared: Rc<RefCell<Shared>>,
}

impl Bed {
    /// Files have `stripes` stripes of 4 bytes.
    pub fn new(stripes: u32) -> Self {
        Self::of_fs(stripes, "demo")
    }
    pub fn of_fs(stripes: u32, fs: &str) -> Self {
        let mut world = World::new(7);
        world.faults = Faults { delay_us: (50, 51), slow_one_in: 0, ..Faults::default() };
        let shared = Rc::new(RefCell::new(Shared { stripes, ..Shared::default() }));
        let mut names = vec!["MGS".to_string(), "demo-MDT0000".to_string()];
        names.extend((0..stripes).map(|i| format!("demo-OST{i:04x}")));
        for name in names {
            let (shared, fake) = (shared.clone(), name.clone());
            let start = move |ctx: &Rc<Ctx>| {
                let logic = Fake {
                    ctx: ctx.clone(),
                    name: fake.clone(),
                    shared: shared.clone(),
                    conns: Vec::new(),
                    callbacks: 0,
                    epoch: ConnEpoch(0),
                };
                Box::new(logic) as Box<dyn Logic>
            };
            let node = world.add(&name, None, Box::new(start));
            world.start(node);
        }
        let config = MountConfig {
            mgs_addresses: vec![World::address("MGS")],
            fs: FsName::parse(fs).unwrap(),
            name: "test".into(),
            instance: None,
            read_only: false,
            atime: nacre_client::AtimePolicy::default(),
            names_per_page: MountConfig::NAMES_PER_PAGE,
            write_back: false,
            kept_log: None,
            left_writes: Vec::new(),
        };
        let start = move |ctx: &Rc<Ctx>| Box::new(MountIsland::new(ctx, config.clone())) as Box<dyn Logic>;
        let mount = world.add("mount", None, Box::new(start));
        world.start(mount);
        Self { world, jobs: Jobs::default(), mount, shared }
    }
    /// Runs a call to its end.
    pub fn call<T: Send + 'static, F: Future<Output = T> + 'static>(
        &mut self,
        run: impl FnOnce(Rc<Client>) -> F + Send + 'static,
    ) -> T {
        let job = self.start(run);
        match self.jobs.wait(&mut self.world, job, 60 * SECOND) {
            Some(value) => value,
            None => panic!("the call did not end:\n{}", self.world.trace(60)),
        }
    }
    /// Starts a call.
    pub fn start<T: Send + 'static, F: Future<Output = T> + 'static>(
        &mut self,
        run: impl FnOnce(Rc<Client>) -> F + Send + 'static,
    ) -> nacre_sim::JobId {
        self.jobs.start(&mut self.world, self.mount, run)
    }
    /// Lets everything that can happen now happen.
    pub fn settle(&mut self) {
        self.world.run_for(SECOND / 100);
        self.jobs.collect(&mut self.world);
    }
    /// What has arrived since the last call, without sequence grants.
    pub fn log(&mut self) -> Vec<String> {
        self.settle();
        let log = std::mem::take(&mut self.shared.borrow_mut().log);
        log.into_iter().filter(|line| !line.contains("GrantSeq")).collect()
    }
    fn order(&mut self, name: &str, order: impl Fn() -> Order) {
        for node in 0.. {
            let id = NodeId(node);
            if self.world.name(id) == name {
                self.world.tell(id, Event::Door(Box::new(order())));
                return;
            }
        }
    }
    /// Sends the replies that are held back, and holds nothing back from now on.
    pub fn release(&mut self) {
        let held = std::mem::take(&mut self.shared.borrow_mut().hold);
        self.send_replies(held);
    }
    /// Sends the replies that are held back of an opcode; later ones are held back as before.
    pub fn reply_held(&mut self, opcode: Opcode) {
        self.send_replies(BTreeSet::from([opcode]));
    }
    fn send_replies(&mut self, opcodes: BTreeSet<Opcode>) {
        let names: BTreeSet<String> =
            self.shared.borrow().held.iter().map(|(name, _, _)| name.clone()).collect();
        for name in names {
            self.order(&name, || Order::Release(opcodes.clone()));
        }
    }
    pub fn callback<'a>(&mut self, target: &str, opcode: Opcode, body: &impl Codec<'a>) {
        let body = body.to_vec();
        self.order(target, || Order::Callback(opcode, body.clone()));
    }
    /// The target's process starts again.
    pub fn restart(&mut self, target: &str) {
        self.shared.borrow_mut().instance += 1;
        self.order(target, || Order::Drop);
    }
    /// A new file, open for reading and writing.
    pub fn create(&mut self, name: &'static str) -> (Fid, OpenHandle) {
        self.call(move |client| async move {
            let (entry, handle) = client.create(new(name.as_bytes()), 2).await.unwrap();
            (entry.attr.fid, handle)
        })
    }
}

pub fn write_args(handle: OpenHandle, offset: u64, data: &'static [u8]) -> nacre_client::WriteArgs {
    nacre_client::WriteArgs {
        handle,
        offset,
        append: false,
        call_bytes: 0,
        data: Bytes::from_static(data),
        kill_suidgid: None,
        sync: false,
    }
}

/// A file in the root directory that must not be there yet.
pub fn new(name: &[u8]) -> CreateArgs<'_> {
    CreateArgs::new(Fid::ROOT, name, mode::REG | 0o644, Caller::root())
}
