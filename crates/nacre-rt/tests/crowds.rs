//! Many connections at once: bounds of a listener and of a host, and peers that come and go.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
use common::{Order, Puppet, Report, eventually, next, reports, request, tell};
use nacre_net::Address;
use nacre_node::ConnId;
use nacre_rt::{Config, Node};
use nacre_wire::{Frame, Header, Kind, Opcode};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connection from 127.0.0.`host`.
fn from(host: u8, to: SocketAddr) -> TcpStream {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)), 0)).unwrap();
    connect(&fd, &to).unwrap();
    TcpStream::from(fd)
}
/// Whether a peer that greets gets a reply.
fn is_let_in(mut stream: impl Read + Write) -> bool {
    let frame = nacre_net::hello("echo");
    let mut bytes = frame.encode_header(0, crc_fast::crc32_iscsi).to_vec();
    bytes.extend_from_slice(&frame.body);
    // One that was refused may be gone already.
    stream.write_all(&bytes).is_ok() && matches!(stream.read(&mut [0; 16]), Ok(1..))
}
fn sockets_of_this_process() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn who_comes_beyond_a_bound_is_refused_and_disturbs_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { connections_max: 7, connections_per_host_max: 3, ..Config::default() };
    let server = Node::start(config, |_, _, _| {}).unwrap();
    server.add_island("echo", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    server.listen(&Address::Unix(dir.path().join("s"))).unwrap();
    let bound = server.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let to: SocketAddr = bound.to_string().parse().unwrap();

    let mut inside: Vec<TcpStream> = (0..3).map(|_| from(1, to)).collect();
    assert!(inside.iter().all(is_let_in));
    for _ in 0..20 {
        assert!(!is_let_in(from(1, to)), "a fourth of one host");
    }
    inside.extend((0..3).map(|_| from(2, to)));
    inside.push(from(3, to));
    assert!(inside[3..].iter().all(is_let_in));
    assert!(!is_let_in(from(4, to)), "an eighth of all");
    assert_eq!(server.stats().connections_refused(), 21);
    assert_eq!(server.sockets(), 7);
    // Another listener is not concerned: the operator's tools.
    assert!(is_let_in(UnixStream::connect(dir.path().join("s")).unwrap()));
    // Whoever goes leaves a place.
    inside.remove(0);
    eventually("there is a place again", || is_let_in(from(1, to)));
    server.shutdown();
}

/// Who takes places and says nothing has them no longer than a handshake may take.
#[test]
fn places_that_silent_peers_take_come_back() {
    let handshake_max = Duration::from_millis(300);
    let config = Config { connections_per_host_max: 20, handshake_max, ..Config::default() };
    let server = Node::start(config, |_, _, _| {}).unwrap();
    server.add_island("echo", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    let bound = server.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let to: SocketAddr = bound.to_string().parse().unwrap();
    let silent: Vec<TcpStream> = (0..60).map(|_| from(1, to)).collect();
    eventually("40 are refused", || server.stats().connections_refused() >= 40);
    eventually("another is let in", || is_let_in(from(1, to)));
    drop(silent);
    server.shutdown();
}

/// Peers that connect, say all, half or nothing, and vanish, with a reset too: one that works beside them does not
/// notice, and nothing is left of them.
#[test]
fn a_storm_of_reconnects_leaves_nothing_behind() {
    let server = Node::start(Config { loops: 2, ..Config::default() }, |_, _, _| {}).unwrap();
    server.add_island("echo", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    let bound = server.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let to: SocketAddr = bound.to_string().parse().unwrap();
    let client = Node::start(Config::default(), |_, _, _| {}).unwrap();
    let (sink, heard) = reports();
    let a = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    tell(&a, Order::Open { conn: 1, address: bound.to_string(), target: "echo".into() });
    assert_eq!(next(&heard), Report::Opened(ConnId(1)));
    let before = sockets_of_this_process();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                for i in 0..300 {
                    let mut stream = from(1 + thread % 2, to);
                    match i % 4 {
                        0 => drop(is_let_in(&stream)),
                        1 => stream.write_all(&[b'n'; 40]).unwrap(),
                        2 => stream.shutdown(Shutdown::Write).unwrap(),
                        // Unread bytes at the close: a reset.
                        _ => {
                            let frame = nacre_net::hello("nobody");
                            drop(stream.write_all(&frame.encode_header(0, crc_fast::crc32_iscsi)));
                            drop(stream.write_all(&frame.body));
                        }
                    }
                }
            });
        }
        for xid in 1..300u64 {
            tell(&a, Order::Send(ConnId(1), request(xid, b"still here")));
            assert_eq!(next(&heard), Report::Frame(ConnId(1), xid, b"still here".to_vec()));
        }
    });
    eventually("one connection is left", || server.sockets() == 1);
    eventually("and its sockets", || sockets_of_this_process() <= before);
    client.shutdown();
    server.shutdown();
}

/// Nothing is kept of what comes before a peer is a client, but a Connect of a few KiB.
#[test]
fn before_it_is_a_client_nobody_may_send_more_than_a_connect() {
    let server = Node::start(Config::default(), |_, _, _| {}).unwrap();
    let (sink, heard) = reports();
    server.add_island("echo", None, Some(sink), Puppet::strict()).unwrap_or_else(|e| panic!("{e}"));
    let bound = server.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let to: SocketAddr = bound.to_string().parse().unwrap();
    let sends = |opcode: Opcode, bytes: usize, sent: usize| {
        let mut stream = from(1, to);
        assert!(is_let_in(&stream));
        let frame = Frame::new(Header::new(Kind::Request, opcode.number()), vec![7; bytes]);
        stream.write_all(&frame.encode_header(0, crc_fast::crc32_iscsi)).unwrap();
        stream.write_all(&frame.body[..sent]).unwrap();
        let Report::Accepted(conn) = next(&heard) else { panic!("not accepted") };
        (stream, conn)
    };
    // Of a large one not even the rest of its body is waited for.
    for (opcode, bytes) in [(Opcode::Connect, 4097), (Opcode::Connect, 1 << 20), (Opcode::Write, 10)] {
        let (stream, conn) = sends(opcode, bytes, 10);
        assert!(matches!(next(&heard), Report::Closed(closed, _) if closed == conn), "{opcode:?} {bytes}");
        drop(stream);
    }
    let (_stream, conn) = sends(Opcode::Connect, 4096, 4096);
    assert_eq!(next(&heard), Report::Frame(conn, 0, vec![7; 4096]));
    server.shutdown();
}
