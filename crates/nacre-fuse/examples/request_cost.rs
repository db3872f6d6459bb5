//! The load of the rows about the mount of `cargo xtask cost`: N changes through the door of a mount, as the kernel sends
//! their requests, with targets in the simulator; the same at every run.
//!
//! `request_cost create|mkdir|unlink|rename|stat N`. What the island of the mount does for a request is within
//! `counted_visit` of the simulator, so that a profiler can count it alone: no targets, network, threads or kernel.
//! As in a process of nacre, memory comes from mimalloc.
#![allow(clippy::unwrap_used, reason = "a measurement")]

use nacre_client::{AtimePolicy, MountConfig};
use nacre_fuse::abi::{self, Field, op};
use nacre_fuse::{Channel, FuseEffect, FuseRequest, MountIsland, without_mount};
use nacre_node::{Ctx, Event, Logic};
use nacre_sim::cluster::Cluster;
use nacre_sim::world::{NodeId, World};
use nacre_types::{Fid, FsName};
use std::rc::Rc;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: nacre_rt::Allocator = nacre_rt::Allocator;

const SECOND_NS: u64 = 1_000_000_000;
/// Files that are there before the counted operations, of which some are removed or renamed: more than any N.
const READY: u64 = 3000;
/// Calling threads, in turn: those of `nacre bench md -j 2`.
const THREADS: u64 = 2;

/// A mount in a world, and the kernel in front of it.
struct Kernel {
    cluster: Cluster,
    mount: NodeId,
    channel: Arc<Channel>,
    unique: u64,
    pid: u32,
}

impl Kernel {
    fn new() -> Self {
        let mut cluster = Cluster::new(2, 1, 0);
        cluster.world.tracing = false;
        cluster.world.faults.delay_us = (5, 15);
        cluster.world.faults.slow_one_in = 0;
        let config = MountConfig {
            mgs_addresses: vec![World::address("MGS")],
            fs: FsName::parse("demo").unwrap(),
            name: "mount".to_owned(),
            instance: None,
            read_only: false,
            atime: AtimePolicy::default(),
            names_per_page: MountConfig::NAMES_PER_PAGE,
            write_back: true,
            kept_log: None,
            left_writes: Vec::new(),
        };
        let start = move |ctx: &Rc<Ctx>| Box::new(MountIsland::new(ctx, config.clone())) as Box<dyn Logic>;
        let mount = cluster.world.add("mount", None, Box::new(start));
        cluster.world.start(mount);
        cluster.world.run_for(5 * SECOND_NS);
        while cluster.world.hear().is_some() {}
        cluster.world.tell(mount, without_mount().unwrap());
        Self { cluster, mount, channel: Arc::new(Channel::detached()), unique: 0, pid: 0 }
    }

    /// Sends a request and waits for the reply, whose bytes after the header it returns; empty after an error.
    fn call(&mut self, opcode: u32, nodeid: u64, args: &[&[u8]]) -> Vec<u8> {
        self.unique += 2;
        let mut data = Vec::new();
        let len = abi::InHeader::BYTES + args.iter().map(|a| a.len()).sum::<usize>();
        let (len, unique, pid) = (u32::try_from(len).unwrap(), self.unique, self.pid);
        abi::InHeader { len, opcode, unique, nodeid, pid, ..Default::default() }.put(&mut data);
        args.iter().for_each(|bytes| data.extend_from_slice(bytes));
        let request = FuseRequest::parse(data.into(), self.channel.clone()).unwrap();
        let world = &mut self.cluster.world;
        world.tell(self.mount, Event::Door(Box::new(request)));
        let mut reply = None;
        let until = world.now_ns() + 10 * SECOND_NS;
        world.run_until(until, |world| {
            while let Some((_, said)) = world.hear() {
                match *said.downcast().unwrap() {
                    FuseEffect::Reply(said) => {
                        assert_eq!(said.unique(), unique);
                        reply = Some(said.body().to_vec());
                    }
                    FuseEffect::Notify(_) => panic!("the load causes no notifications"),
                    _ => {}
                }
            }
            reply.is_some()
        });
        reply.unwrap_or_else(|| panic!("no reply to {}", op::name(opcode)))
    }
    fn next_caller(&mut self, n: u64) {
        self.pid = 100 + u32::try_from(n % THREADS).unwrap();
    }
    fn lookup(&mut self, dir: u64, name: &[u8]) {
        self.call(op::LOOKUP, dir, &[name, b"\0"]);
    }
    fn getattr(&mut self, node: u64) {
        let args = bytes(&abi::GetattrIn { flags: 0, dummy: 0, fh: 0 });
        self.call(op::GETATTR, node, &[&args]);
    }
    fn mkdir(&mut self, dir: u64, name: &[u8]) -> u64 {
        let args = bytes(&abi::MkdirIn { mode: 0o755, umask: 0o022 });
        let made = self.call(op::MKDIR, dir, &[&args, name, b"\0"]);
        abi::EntryOut::take(&mut &made[..]).unwrap().nodeid
    }
    /// open(2) with O_CREAT of a new file, and close(2).
    fn create(&mut self, dir: u64, name: &[u8]) -> u64 {
        const FLAGS: u32 = 0o302; // O_CREAT | O_EXCL | O_RDWR
        self.lookup(dir, name);
        let args = bytes(&abi::CreateIn { flags: FLAGS, mode: 0o100_644, umask: 0o022, open_flags: 0 });
        let made = self.call(op::CREATE, dir, &[&args, name, b"\0"]);
        let made = &mut &made[..];
        let node = abi::EntryOut::take(made).unwrap().nodeid;
        let fh = abi::OpenOut::take(made).unwrap().fh;
        self.getattr(dir);
        self.call(op::FLUSH, node, &[&bytes(&abi::FlushIn { fh, lock_owner: 7, ..Default::default() })]);
        let release = abi::ReleaseIn { fh, flags: FLAGS, ..Default::default() };
        self.call(op::RELEASE, node, &[&bytes(&release)]);
        node
    }
}

fn bytes<T: Field>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.put(&mut bytes);
    bytes
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [operation, count] = &args[..] else { panic!("request_cost create|mkdir|unlink|rename|stat N") };
    let count = count.parse::<u64>().unwrap();
    let mut kernel = Kernel::new();
    let mut dirs = Vec::new();
    for n in 0..THREADS {
        kernel.next_caller(n);
        let dir = kernel.mkdir(Fid::ROOT.ino(), format!("dir{n}").as_bytes());
        // The thread has taken over the attributes in that reply.
        kernel.getattr(dir);
        dirs.push(dir);
    }
    let mut nodes = Vec::new();
    if matches!(operation.as_str(), "unlink" | "rename" | "stat") {
        for n in 0..READY {
            kernel.next_caller(n);
            nodes.push(kernel.create(dirs[(n % THREADS) as usize], format!("file.0.{n}").as_bytes()));
        }
    }
    kernel.cluster.world.count_work(kernel.mount);
    for n in 0..count {
        kernel.next_caller(n);
        let (dir, name) = (dirs[(n % THREADS) as usize], format!("file.0.{n}"));
        match operation.as_str() {
            "create" => drop(kernel.create(dir, name.as_bytes())),
            "mkdir" => {
                kernel.lookup(dir, name.as_bytes());
                kernel.mkdir(dir, name.as_bytes());
                kernel.getattr(dir);
            }
            "unlink" => drop(kernel.call(op::UNLINK, dir, &[name.as_bytes(), b"\0"])),
            "rename" => {
                let args = bytes(&abi::Rename2In { newdir: dir, flags: 0, padding: 0 });
                let new = format!("moved.0.{n}");
                kernel.lookup(dir, new.as_bytes());
                kernel.call(op::RENAME2, dir, &[&args, name.as_bytes(), b"\0", new.as_bytes(), b"\0"]);
            }
            "stat" => kernel.getattr(nodes[n as usize]),
            other => panic!("no operation {other}"),
        }
    }
}
