//! Strangers at the port of a server while a mount works: garbage, damaged frames, floods of connections. Needs root
//! and /dev/fuse; without them the test says so and passes.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::daemon::Daemon;
use machine::{Machine, eventually};
use nacre_types::{ClientUuid, Codec, ConnEpoch, Fid, Generation, ObjectId, Secret, Tag, Xid};
use nacre_wire::target::{Connect, Role, features};
use nacre_wire::{Frame, HEADER_BYTES, Header, Kind, MAX_BODY_BYTES, MAX_BULK_BYTES, Opcode};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const TARGETS: [&str; 3] = ["MGS", "demo-MDT0000", "demo-OST0000"];
/// Requests that a stranger may send with any body: none of them can hit what it does not name.
const OPCODES: [Opcode; 16] = [
    Opcode::Ping,
    Opcode::Lookup,
    Opcode::Getattr,
    Opcode::Readdir,
    Opcode::Create,
    Opcode::Open,
    Opcode::Close,
    Opcode::Flock,
    Opcode::Batch,
    Opcode::Read,
    Opcode::Write,
    Opcode::Truncate,
    Opcode::Glimpse,
    Opcode::Enqueue,
    Opcode::GetParams,
    Opcode::RecoveryRows,
];
/// Rounds of each stranger.
const ROUNDS: u64 = 60;
const STRANGERS: u64 = 3;
/// Connections at once.
const STORM: usize = 200;

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n
    }
    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.below(most);
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn sum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}
fn encode(frame: &Frame) -> Vec<u8> {
    let mut bytes = frame.encode_header(0, sum).to_vec();
    bytes.extend_from_slice(&frame.body);
    frame.bulk.iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}
fn hello(target: &str) -> Vec<u8> {
    encode(&Frame::new(Header::new(Kind::Hello, 0), target.as_bytes().to_vec()))
}
fn connect(rng: &mut Rng) -> Vec<u8> {
    let mut client = [0; 16];
    client.iter_mut().for_each(|byte| *byte = rng.next() as u8);
    let role = [Role::Client, Role::Target, Role::Tool][rng.below(3)];
    let body = Connect {
        client: ClientUuid(client),
        role,
        secret: Secret::default(),
        name: "a stranger".into(),
        features: features::ALL,
        max_mod_rpcs: 8,
        generation: Generation(0),
        known: None,
        replaced: 0,
        instance: 0,
    };
    let mut header = Header::new(Kind::Request, Opcode::Connect.number());
    (header.xid, header.epoch) = (Xid(1), ConnEpoch(1));
    encode(&Frame::new(header, body.to_vec()))
}
/// A request with a good header; its body is garbage, or a good one with some bits flipped.
fn request(rng: &mut Rng, xid: u64) -> Vec<u8> {
    let opcode = OPCODES[rng.below(OPCODES.len())];
    let mut header = Header::new(Kind::Request, opcode.number());
    (header.xid, header.epoch, header.tag) = (Xid(xid), ConnEpoch(1), Tag(rng.below(10) as u16));
    let object = ObjectId { fid: Fid::ROOT, stripe: 7 };
    let mut body = match rng.below(3) {
        0 => rng.bytes(300),
        1 => nacre_wire::ost::Read {
            object,
            laid: 0,
            offset: 0,
            len: u32::MAX,
            lock: nacre_types::LockCookie(0),
        }
        .to_vec(),
        _ => nacre_wire::mdt::Getattr { fid: Fid::ROOT }.to_vec(),
    };
    for _ in 0..rng.below(4) {
        if !body.is_empty() {
            let at = rng.below(body.len());
            body[at] ^= 1 << rng.below(8);
        }
    }
    let mut frame = Frame::new(header, body);
    if rng.below(4) == 0 {
        frame.bulk = vec![rng.bytes(5000).into()];
    }
    encode(&frame)
}
/// A header with a good sum that announces more than anybody may send.
fn oversize() -> Vec<u8> {
    let mut bytes = encode(&Frame::new(Header::new(Kind::Request, Opcode::Write.number()), Vec::new()));
    bytes[20..24].copy_from_slice(&(MAX_BODY_BYTES + 1).to_le_bytes());
    bytes[80..84].copy_from_slice(&(MAX_BULK_BYTES + 1).to_le_bytes());
    let header = sum(&bytes[..HEADER_BYTES - 4]);
    bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&header.to_le_bytes());
    bytes
}

/// What a stranger says in one connection.
fn nonsense(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = hello(TARGETS[rng.below(TARGETS.len())]);
    match rng.below(7) {
        0 => bytes = rng.bytes(4000),
        1 => bytes.truncate(rng.below(bytes.len())),
        2 => bytes.extend(rng.bytes(4000)),
        3 => bytes.extend(oversize()),
        kind => {
            bytes.extend(connect(rng));
            for xid in 2..2 + rng.below(20) as u64 {
                bytes.extend(request(rng, xid));
            }
            if kind == 4 {
                for _ in 0..1 + rng.below(5) {
                    let at = rng.below(bytes.len());
                    bytes[at] ^= 1 << rng.below(8);
                }
            }
            if kind == 5 {
                bytes.truncate(rng.below(bytes.len()));
            }
        }
    }
    bytes
}

fn talk(address: SocketAddr, bytes: &[u8], listen: bool) {
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    // The server may have hung up in the middle: that is its right.
    let _sent = stream.write_all(bytes);
    if listen {
        let mut heard = [0; 4096];
        while stream.read(&mut heard).is_ok_and(|n| n > 0) {}
    }
}

/// A connection that has greeted and sends the beginning of the largest frame there is, as far as it gets.
fn greet_and_send(address: SocketAddr, target: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut frame =
        Frame::new(Header::new(Kind::Request, Opcode::Write.number()), vec![0; MAX_BODY_BYTES as usize]);
    frame.bulk = vec![vec![0; MAX_BULK_BYTES as usize].into()];
    let mut bytes = hello(target);
    bytes.extend(encode(&frame));
    bytes.pop();
    let _sent = stream.write_all(&bytes);
    stream
}

/// Makes, reads and removes files until it is told to stop; how many.
fn work(dir: &Path, stop: &AtomicBool) -> u64 {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) || done == 0 {
        let path = dir.join(format!("f{}", done % 50));
        let content = format!("{done}:").repeat(200);
        fs::write(&path, &content).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
        if done % 3 == 0 {
            fs::remove_file(&path).unwrap();
        }
        done += 1;
    }
    done
}

fn status(pid: u32, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
}
fn sockets(pid: u32) -> usize {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    links
        .filter(|e| fs::read_link(e.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket")))
        .count()
}

#[test]
fn strangers_at_the_port_disturb_nobody() {
    let Some(m) = Machine::new() else { return };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (address, mnt) = (port.to_string(), m.made("mnt"));
    let dirs = ["mgs", "mdt", "ost"].map(|name| m.path(name).to_str().unwrap().to_owned());
    m.good(&["mkfs", "--mgs", &dirs[0]]);
    for (kind, dir) in [("--mdt", &dirs[1]), ("--ost", &dirs[2])] {
        m.good(&["mkfs", kind, "--index", "0", "--fsname", "demo", "--mgsnode", &address, dir]);
    }
    let mut serve = m.command();
    serve.arg("serve").args(&dirs).args(["--listen", &address, "--lease", "2"]);
    let mut server = Daemon::spawn(&mut serve, &m.path("server.log"));
    let mut mount = m.command();
    mount.arg("mount").arg(format!("{address}:/demo")).arg(&mnt);
    let mut mount = Daemon::spawn(&mut mount, &m.path("mount.log"));
    let mounted = format!(" {} fuse", mnt.display());
    eventually("it is mounted", || fs::read_to_string("/proc/mounts").unwrap().contains(&mounted));
    fs::write(mnt.join("first"), "x").unwrap();
    let pid = server.child.id();
    let (sockets_before, memory_before) = (sockets(pid), status(pid, "VmRSS"));

    let (stop, said) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&mnt, &stop));
        let strangers: Vec<_> = (0..STRANGERS)
            .map(|number| {
                let said = &said;
                scope.spawn(move || {
                    let mut rng = Rng(0x9e37_79b9 + number * 7919);
                    for _ in 0..ROUNDS {
                        let bytes = nonsense(&mut rng);
                        said.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        talk(port, &bytes, rng.below(2) == 0);
                    }
                })
            })
            .collect();
        strangers.into_iter().for_each(|stranger| stranger.join().unwrap());
        // A storm: all at once, some silent, some half way through their greeting; then all gone.
        let mut rng = Rng(77);
        let crowd: Vec<TcpStream> = (0..STORM)
            .map(|i| {
                let mut stream = TcpStream::connect(port).unwrap();
                let words = hello(TARGETS[i % 3]);
                let _sent = stream.write_all(&words[..rng.below(words.len() + 1)]);
                stream
            })
            .collect();
        fs::write(mnt.join("during the storm"), "x").unwrap();
        drop(crowd);
        // Greeted, and then as much as a client could send: nothing of it is kept.
        let crowd: Vec<TcpStream> = (0..40).map(|i| greet_and_send(port, TARGETS[i % 3])).collect();
        let kept = status(pid, "VmRSS").saturating_sub(memory_before);
        assert!(kept < 60_000, "40 strangers cost the server {kept} KiB");
        drop(crowd);
        // Come, greet, connect, go: again and again.
        for i in 0..STORM {
            let mut bytes = hello(TARGETS[i % 3]);
            bytes.extend(connect(&mut rng));
            talk(port, &bytes, false);
        }
        stop.store(true, Ordering::Relaxed);
        let done = worker.join().unwrap();
        eprintln!("{done} files made and read, {} bytes of nonsense", said.load(Ordering::Relaxed));
    });

    // Nobody is left: connections end with their peers, exports with their lease.
    eventually("their connections are gone", || sockets(pid) <= sockets_before);
    let exports = || m.good(&["lctl", "get_param", "-n", "mdt.demo-MDT0000.num_exports"]);
    eventually("their exports are gone", || exports().trim() == "1");
    let grown = status(pid, "VmRSS").saturating_sub(memory_before);
    assert!(grown < 100_000, "the server has grown by {grown} KiB");
    for daemon in [&mut server, &mut mount] {
        assert!(daemon.child.try_wait().unwrap().is_none(), "{}", daemon.log());
        for word in ["panicked", "a bug", "evicted by"] {
            assert!(!daemon.log().contains(word), "{}", daemon.log());
        }
    }
    eprintln!("the server has grown by {grown} KiB and said {} lines", server.log().lines().count());
    assert_eq!(fs::read_to_string(mnt.join("first")).unwrap(), "x");
}
