//! Islands of two nodes, connected by real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
use common::{Order, Puppet, Report, eventually, next, node, reports, request, tell};
use nacre_net::Address;
use nacre_node::ConnId;
use nacre_rt::{Config, IslandRef, Node, SharedMemory};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;

fn unix(dir: &tempfile::TempDir) -> Address {
    Address::Unix(dir.path().join("s"))
}
fn open(island: &IslandRef, heard: &Receiver<Report>, conn: u64, address: &Address, target: &str) {
    tell(island, Order::Open { conn, address: address.to_string(), target: target.into() });
    assert_eq!(next(heard), Report::Opened(ConnId(conn)));
}

fn ping_pong(address: &Address) {
    let (server, _) = node(1);
    let (client, ends) = node(1);
    server.add_island("echo", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    let address = server.listen(address).unwrap();
    let (sink, heard) = reports();
    let a = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    open(&a, &heard, 1, &address, "echo");
    for xid in 1..200u64 {
        let body = vec![xid as u8; xid as usize * 37];
        tell(&a, Order::Send(ConnId(1), request(xid, &body)));
        assert_eq!(next(&heard), Report::Frame(ConnId(1), xid, body));
    }
    // Far more than a socket takes at once, in both directions: blocked and resumed, nothing lost.
    for xid in 1..=40u64 {
        let mut frame = request(xid, b"bulky");
        frame.bulk = vec![vec![xid as u8; 700_000].into(), vec![1; 300_001].into()];
        tell(&a, Order::Send(ConnId(1), frame));
    }
    for xid in 1..=40 {
        assert_eq!(next(&heard), Report::Frame(ConnId(1), xid, b"bulky".to_vec()));
    }
    if let Address::Unix(_) = address {
        assert!(client.stats().sends_blocked() > 0, "a unix socket takes about 200 KiB");
    }
    assert!(ends.lock().unwrap().is_empty());
    server.shutdown();
    assert!(matches!(next(&heard), Report::Closed(ConnId(1), _)));
    client.shutdown();
}

#[test]
fn requests_and_replies_cross_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    ping_pong(&unix(&dir));
    assert!(!dir.path().join("s").exists(), "removed at the end");
}

#[test]
fn requests_and_replies_cross_tcp() {
    ping_pong(&"127.0.0.1:0".parse().unwrap());
}

#[test]
fn bulk_is_seen_in_the_memory_of_the_sender_and_its_buffers_come_back() {
    const BUFFER: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let memory = SharedMemory::create().unwrap();
    let (server, _) = node(1);
    let config = Config { shared_memory: Some(memory.clone()), ..Config::default() };
    let client = Node::start(config, |_, _, _| {}).unwrap();
    server.add_island("echo", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    let address = server.listen(&unix(&dir)).unwrap();
    let (sink, heard) = reports();
    let a = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    open(&a, &heard, 1, &address, "echo");
    for xid in 1..=60u64 {
        let mut frame = request(xid, b"filled");
        let buffer = |_| {
            let mut buffer = memory.take(80, BUFFER).unwrap();
            buffer.space().fill(xid as u8);
            buffer.filled(80 + BUFFER).slice(80..)
        };
        frame.bulk = match xid % 3 {
            0 => (0..4).map(buffer).collect(),
            1 => vec![vec![xid as u8; 300_000].into()],
            _ => vec![vec![xid as u8; 30_000].into()],
        };
        tell(&a, Order::Send(ConnId(1), frame));
        assert_eq!(next(&heard), Report::Frame(ConnId(1), xid, b"filled".to_vec()));
    }
    assert_eq!(client.stats().frames_shared(), 40, "short bulk travels in the socket");
    assert_eq!(server.stats().frames_shared(), 0);
    let free = || {
        let mut taken = Vec::new();
        while let Some(buffer) = memory.take(80, BUFFER) {
            taken.push(buffer);
        }
        taken.len()
    };
    eventually("all buffers are back", || free() == SharedMemory::BUFFERS);
    // A frame for a connection that has ended keeps no buffer.
    let mut frame = request(61, b"filled");
    frame.bulk = vec![memory.take(0, BUFFER).unwrap().filled(BUFFER)];
    server.shutdown();
    assert!(matches!(next(&heard), Report::Closed(ConnId(1), _)));
    tell(&a, Order::Send(ConnId(1), frame));
    eventually("all buffers are back", || free() == SharedMemory::BUFFERS);
    client.shutdown();
}

#[test]
fn bulk_in_memory_that_was_never_passed_closes_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (server, ends) = node(1);
    server.add_island("b", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    server.listen(&unix(&dir)).unwrap();
    let mut raw = UnixStream::connect(dir.path().join("s")).unwrap();
    let hello = nacre_net::sharing(nacre_net::hello("b"));
    raw.write_all(&hello.encode_header(0, crc_fast::crc32_iscsi)).unwrap();
    raw.write_all(&hello.body).unwrap();
    let mut reply = [0; nacre_wire::HEADER_BYTES];
    raw.read_exact(&mut reply).unwrap();
    let (reply, _) = nacre_wire::Header::decode(&reply, crc_fast::crc32_iscsi).unwrap();
    assert!(!reply.has(nacre_wire::flags::SHARED_BULK), "no memory came with the Hello");
    let mut frame = nacre_net::sharing(request(1, b""));
    frame.bulk = vec![vec![0; 16].into()];
    raw.write_all(&frame.encode_header(0, crc_fast::crc32_iscsi)).unwrap();
    raw.write_all(&frame.bulk[0]).unwrap();
    assert_eq!(hear_to_the_end(&mut raw), 0);
    assert!(ends.lock().unwrap().is_empty());
    server.shutdown();
}

#[test]
fn the_order_of_visits_survives_the_socket_and_two_loops() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let ends: common::Ends = Default::default();
        let log = ends.clone();
        let config = Config { loops: 2, pin: true, ..Config::default() };
        let node = Node::start(config, move |_, i, r| {
            log.lock().unwrap().push((i.name().to_owned(), r.clone()));
        })
        .unwrap();
        (node, ends)
    };
    let ((server, server_ends), (client, _)) = (start(), start());
    let (far_sink, far) = reports();
    server.add_island("b", None, Some(far_sink), Puppet::make(false)).unwrap_or_else(|e| panic!("{e}"));
    let address = server.listen(&unix(&dir)).unwrap();
    let (sink, heard) = reports();
    let a = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    open(&a, &heard, 1, &address, "b");
    std::thread::scope(|scope| {
        for t in 0..3u64 {
            let a = &a;
            scope.spawn(move || {
                for n in 0..1000 {
                    tell(a, Order::Send(ConnId(1), request(t << 32 | n, b"ordered")));
                }
            });
        }
    });
    let frames = (0..3001).map(|_| next(&far)).filter(|r| matches!(r, Report::Frame(..))).count();
    assert_eq!((frames, server_ends.lock().unwrap().len()), (3000, 0));
    client.shutdown();
    server.shutdown();
}

#[test]
fn closing_ends_the_other_side_after_what_was_sent() {
    let dir = tempfile::tempdir().unwrap();
    let ((server, _), (client, _)) = (node(1), node(1));
    let (far_sink, far) = reports();
    server.add_island("b", None, Some(far_sink), Puppet::make(false)).unwrap_or_else(|e| panic!("{e}"));
    let address = server.listen(&unix(&dir)).unwrap();
    let (sink, heard) = reports();
    let a = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    open(&a, &heard, 1, &address, "b");
    let Report::Accepted(at_b) = next(&far) else { panic!("accepted") };
    tell(&a, Order::Send(ConnId(1), request(1, b"last words")));
    tell(&a, Order::Close(ConnId(1)));
    assert_eq!(next(&far), Report::Frame(at_b, 1, b"last words".to_vec()));
    let Report::Closed(conn, reason) = next(&far) else { panic!("closed") };
    assert!(conn == at_b && reason.contains("closed by the peer"), "{reason}");
    assert!(heard.try_recv().is_err(), "who closes is not told");
    client.shutdown();
    server.shutdown();
}

#[test]
fn what_cannot_be_reached_is_said_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let ((server, _), (client, _)) = (node(1), node(1));
    let (sink, heard) = reports();
    let a = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    let mut conn = 0;
    let mut refused = |address: &str, target: &str, part: &str| {
        conn += 1;
        tell(&a, Order::Open { conn, address: address.into(), target: target.into() });
        let Report::Closed(ConnId(closed), reason) = next(&heard) else { panic!("closed") };
        assert!(closed == conn && reason.contains(part), "{address} {target}: {reason}");
    };
    refused(&unix(&dir).to_string(), "b", "cannot connect to unix:");
    refused("nonsense address", "b", "hint:");
    refused("127.0.0.1:1", "b", "cannot connect to 127.0.0.1:1");
    server.add_island("b", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    let address = server.listen(&unix(&dir)).unwrap();
    refused(&address.to_string(), "c", "no target c is served here (there are: b)");
    assert!(client.listen(&unix(&dir)).unwrap_err().to_string().contains("in use"));
    client.shutdown();
    server.shutdown();
}

#[test]
fn a_socket_file_left_by_a_killed_process_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap());
    let (server, _) = node(1);
    server.listen(&unix(&dir)).unwrap();
    server.shutdown();
}

/// What a raw peer hears before the connection ends.
fn hear_to_the_end(stream: &mut UnixStream) -> usize {
    stream.set_read_timeout(Some(common::LIMIT)).unwrap();
    let mut total = 0;
    let mut buffer = [0u8; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return total,
            Ok(n) => total += n,
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return total,
            Err(e) => panic!("not closed: {e}"),
        }
    }
}
fn hello_bytes(target: &str) -> Vec<u8> {
    let frame = nacre_net::hello(target);
    let mut bytes = frame.encode_header(0, crc_fast::crc32_iscsi).to_vec();
    bytes.extend_from_slice(&frame.body);
    bytes
}

#[test]
fn garbage_closes_its_connection_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let ((server, ends), (client, _)) = (node(1), node(1));
    let (far_sink, far) = reports();
    server.add_island("b", None, Some(far_sink), Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    let address = server.listen(&unix(&dir)).unwrap();
    let connect = || UnixStream::connect(dir.path().join("s")).unwrap();
    // At once, instead of Hello.
    let mut raw = connect();
    raw.write_all(&[0xa5; 200]).unwrap();
    assert_eq!(hear_to_the_end(&mut raw), 0);
    // A frame where Hello should be.
    let mut raw = connect();
    raw.write_all(&request(1, b"").encode_header(0, crc_fast::crc32_iscsi)).unwrap();
    assert_eq!(hear_to_the_end(&mut raw), 0);
    // A huge body where a name should be.
    let mut raw = connect();
    let mut huge = nacre_net::hello("b");
    huge.body = vec![b'x'; 1 << 20].into();
    raw.write_all(&huge.encode_header(0, crc_fast::crc32_iscsi)).unwrap();
    assert_eq!(hear_to_the_end(&mut raw), 0);
    // After Hello: the island hears of the end.
    let mut raw = connect();
    raw.write_all(&hello_bytes("b")).unwrap();
    assert!(matches!(next(&far), Report::Accepted(_)));
    raw.write_all(&[0x5a; 500]).unwrap();
    assert_eq!(hear_to_the_end(&mut raw), nacre_wire::HEADER_BYTES, "only the reply to Hello");
    let Report::Closed(_, reason) = next(&far) else { panic!("closed") };
    assert!(reason.contains("not a nacre frame"), "{reason}");
    // Others are served as before.
    let (sink, heard) = reports();
    let a = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    open(&a, &heard, 1, &address, "b");
    assert!(ends.lock().unwrap().is_empty());
    client.shutdown();
    server.shutdown();
}

/// Both sides get a sentence and not an error of some decoder: the one that was called replies in its own version.
#[test]
fn a_peer_of_another_release_learns_which_side_is_older() {
    fn of_version(version: u16, frame: &nacre_wire::Frame) -> Vec<u8> {
        let mut bytes = frame.encode_header(0, crc_fast::crc32_iscsi).to_vec();
        bytes[4..6].copy_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&frame.body);
        bytes
    }
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = node(1);
    server.listen(&unix(&dir)).unwrap();
    for (version, whom) in [(0, "upgrade the other side"), (99, "upgrade this side")] {
        let mut raw = UnixStream::connect(dir.path().join("s")).unwrap();
        raw.write_all(&of_version(version, &nacre_net::hello("b"))).unwrap();
        let mut reply = Vec::new();
        raw.read_to_end(&mut reply).unwrap();
        let header = reply.first_chunk().expect("a reply");
        let (header, _) = nacre_wire::Header::decode(header, crc_fast::crc32_iscsi).expect("in its version");
        assert_eq!(header.kind, nacre_wire::Kind::HelloReply);
        let sentence = String::from_utf8_lossy(&reply[nacre_wire::HEADER_BYTES..]);
        let version = format!("protocol version {version}, ");
        assert!(sentence.contains(&version) && sentence.contains(whom), "{sentence}");
    }
    server.shutdown();
    // The one that calls.
    let listener = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
    let (client, _) = node(1);
    let (sink, heard) = reports();
    let a = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    tell(&a, Order::Open { conn: 1, address: unix(&dir).to_string(), target: "b".into() });
    let (mut raw, _) = listener.accept().unwrap();
    raw.write_all(&of_version(99, &nacre_net::hello_refused(nacre_types::Errno::EPROTO, "what?"))).unwrap();
    let Report::Closed(_, reason) = next(&heard) else { panic!("closed") };
    assert!(reason.contains("protocol version 99, a newer one"), "{reason}");
    client.shutdown();
}

#[test]
fn a_peer_that_does_not_read_loses_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { send_queue_bytes_max: 1 << 20, ..Config::default() };
    let server = Node::start(config, |_, _, _| {}).unwrap();
    let (far_sink, far) = reports();
    let b = server.add_island("b", None, Some(far_sink), Puppet::make(true)).unwrap();
    server.listen(&unix(&dir)).unwrap();
    let mut raw = UnixStream::connect(dir.path().join("s")).unwrap();
    raw.write_all(&hello_bytes("b")).unwrap();
    let Report::Accepted(conn) = next(&far) else { panic!("accepted") };
    for xid in 0..100 {
        let mut frame = request(xid, b"");
        frame.bulk = vec![vec![0; 200_000].into()];
        tell(&b, Order::Send(conn, frame));
    }
    let Report::Closed(closed, reason) = next(&far) else { panic!("closed") };
    assert!(closed == conn && reason.contains("does not keep up"), "{reason}");
    hear_to_the_end(&mut raw);
    server.shutdown();
}

/// A raw connection to `b` that was let in.
fn greeted(dir: &tempfile::TempDir) -> UnixStream {
    let mut raw = UnixStream::connect(dir.path().join("s")).unwrap();
    raw.write_all(&hello_bytes("b")).unwrap();
    raw.read_exact(&mut [0; nacre_wire::HEADER_BYTES]).unwrap();
    raw
}
/// Sends requests with 1 MiB each, and does not look at the replies.
fn ask_with_bulk(raw: &UnixStream, requests: u64) -> std::thread::JoinHandle<()> {
    let mut half = raw.try_clone().unwrap();
    let asks = move || {
        for xid in 0..requests {
            let mut frame = request(xid, b"");
            frame.bulk = vec![vec![xid as u8; 1 << 20].into()];
            half.write_all(&frame.encode_header(0, crc_fast::crc32_iscsi)).unwrap();
            half.write_all(&frame.bulk[0]).unwrap();
        }
    };
    std::thread::Builder::new().name("asks".to_owned()).spawn(asks).unwrap()
}

/// A peer that asks for more than it reads is not closed: its requests are read when it has taken its replies.
#[test]
fn who_asks_for_more_than_it_reads_is_read_later_and_not_closed() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        Config { send_queue_bytes_max: 8 << 20, send_queue_pause_bytes: 1 << 20, ..Config::default() };
    let server = Node::start(config, |_, _, _| {}).unwrap();
    server.add_island("b", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    server.listen(&unix(&dir)).unwrap();
    let mut raw = greeted(&dir);
    let asks = ask_with_bulk(&raw, 40);
    eventually("it is not read", || server.stats().reads_paused() > 0);
    // The socket's own buffers and a frame under way come on top.
    assert!(server.bulk_bytes() <= 4 << 20, "{}", server.bulk_bytes());
    let (mut bytes, mut all) = (vec![0; 1 << 20], 0);
    while all < 40 << 20 {
        all += raw.read(&mut bytes).unwrap();
    }
    asks.join().unwrap();
    server.shutdown();
}

/// Bulk of all connections is bounded together; who has none of it is served meanwhile, and who waits gets through
/// little by little also when nothing is given back.
#[test]
fn bulk_of_one_peer_fills_the_bound_of_the_process_and_holds_up_no_small_requests() {
    let dir = tempfile::tempdir().unwrap();
    let pause_max = std::time::Duration::from_millis(50);
    let config = Config { bulk_bytes_max: 2 << 20, pause_max, ..Config::default() };
    let server = Node::start(config, |_, _, _| {}).unwrap();
    server.add_island("b", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    server.listen(&unix(&dir)).unwrap();
    // It reads nothing, so its echoes stay in memory.
    let greedy = greeted(&dir);
    let asks = ask_with_bulk(&greedy, 12);
    eventually("it is not read", || server.stats().reads_paused() > 0 && server.bulk_bytes() > 2 << 20);
    let mut modest = greeted(&dir);
    let mut reply = vec![0; nacre_wire::HEADER_BYTES];
    for xid in 0..10 {
        modest.write_all(&request(xid, b"").encode_header(0, crc_fast::crc32_iscsi)).unwrap();
        modest.read_exact(&mut reply).unwrap();
    }
    // Nothing is given back, and all of them come in: nobody waits for ever.
    asks.join().unwrap();
    eventually("all have come", || server.stats().frames_received() >= 12 + 10 + 2);
    drop((greedy, modest));
    eventually("nothing is in use", || server.bulk_bytes() == 0);
    server.shutdown();
}

/// One peer begins a frame and drips bytes, one asks and reads nothing: both are given up, with the reason; a third
/// that is only quiet is not.
#[test]
fn who_drips_bytes_or_reads_nothing_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { stall_max: std::time::Duration::from_millis(300), ..Config::default() };
    let server = Node::start(config, |_, _, _| {}).unwrap();
    let (far_sink, far) = reports();
    let b = server.add_island("b", None, Some(far_sink), Puppet::make(false)).unwrap();
    server.listen(&unix(&dir)).unwrap();
    let connect = || {
        let mut raw = UnixStream::connect(dir.path().join("s")).unwrap();
        raw.write_all(&hello_bytes("b")).unwrap();
        let Report::Accepted(conn) = next(&far) else { panic!("accepted") };
        (raw, conn)
    };
    let ((mut drips, drip), (_mute, mute), (mut quiet, idle)) = (connect(), connect(), connect());
    let bytes = request(1, b"").encode_header(0, crc_fast::crc32_iscsi);
    let started = std::time::Instant::now();
    for byte in &bytes {
        if drips.write_all(&[*byte]).is_err() {
            break;
        }
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        rustix::event::poll(&mut [], Some(&moment)).unwrap();
    }
    let Report::Closed(conn, reason) = next(&far) else { panic!("closed") };
    assert!(conn == drip && reason.contains("began a frame and does not go on with it"), "{reason}");
    assert!(started.elapsed() < common::LIMIT);
    let mut frame = request(2, b"");
    frame.bulk = vec![vec![0; 8 << 20].into()]; // more than the socket holds
    tell(&b, Order::Send(mute, frame));
    let Report::Closed(conn, reason) = next(&far) else { panic!("closed") };
    assert!(conn == mute && reason.contains("does not read what it is sent"), "{reason}");
    quiet.write_all(&request(3, b"").encode_header(0, crc_fast::crc32_iscsi)).unwrap();
    assert_eq!(next(&far), Report::Frame(idle, 3, Vec::new()));
    server.shutdown();
}

#[test]
fn who_never_says_what_it_wants_or_never_replies_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let config = || Config { handshake_max: std::time::Duration::from_millis(50), ..Config::default() };
    let server = Node::start(config(), |_, _, _| {}).unwrap();
    server.listen(&unix(&dir)).unwrap();
    let mut raw = UnixStream::connect(dir.path().join("s")).unwrap();
    raw.write_all(&hello_bytes("b")[..50]).unwrap();
    assert_eq!(hear_to_the_end(&mut raw), 0);
    server.shutdown();
    // A listener that never replies.
    let _mute = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
    let client = Node::start(config(), |_, _, _| {}).unwrap();
    let (sink, heard) = reports();
    let a = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    tell(&a, Order::Open { conn: 1, address: unix(&dir).to_string(), target: "b".into() });
    let Report::Closed(_, reason) = next(&heard) else { panic!("closed") };
    assert!(reason.contains("no reply in time"), "{reason}");
    client.shutdown();
}

#[test]
fn an_address_of_this_process_needs_no_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (node, _) = node(1);
    node.add_island("b", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    let (sink, heard) = reports();
    let a = node.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    let bound = node.listen(&unix(&dir)).unwrap();
    let alias: Address = "mds1.example:4711".parse().unwrap();
    node.add_alias(alias.clone());
    for (conn, address) in [(1, bound), (2, alias)] {
        tell(&a, Order::Open { conn, address: address.to_string(), target: "b".into() });
        assert_eq!(heard.try_recv(), Ok(Report::Opened(ConnId(conn))), "{address}");
    }
    assert_eq!((node.sockets(), node.stats().connections_opened()), (0, 0));
    node.shutdown();
}
