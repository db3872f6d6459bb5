//! Descriptors of front ends on the event loops.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
use common::{Order, Puppet, Report, next, reports};
use nacre_node::{ConnId, Event};
use nacre_rt::{Config, IslandRef, Node, Source, SourceState};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Each byte is a request; the end of the stream is the end of the source.
struct Bytes {
    stream: UnixStream,
    per_loop: [AtomicU64; 2],
    island: IslandRef,
    busy: Duration,
}
impl Source for Bytes {
    fn fd(&self, _: usize) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }
    fn ready(&self, node: &Node, index: usize) -> SourceState {
        let mut byte = [0];
        match (&self.stream).read(&mut byte) {
            Ok(0) => SourceState::Ended,
            Ok(_) => {
                self.per_loop[index].fetch_add(1, Ordering::Relaxed);
                let until = Instant::now() + self.busy;
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                let frame = common::request(u64::from(byte[0]), b"");
                node.deliver(&self.island, Event::Door(Box::new(Order::Send(ConnId(1), frame))));
                SourceState::More
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => SourceState::More,
            Err(e) => panic!("{e}"),
        }
    }
}

fn run(loops: usize, busy: Duration, requests: usize) -> [u64; 2] {
    let config = Config { loops, ..Config::default() };
    let node = Node::start(config, |_, _, _| {}).unwrap();
    let (sink, heard) = reports();
    let a = node.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    node.add_island("b", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    common::tell(&a, Order::Open { conn: 1, address: "local".into(), target: "b".into() });
    assert_eq!(next(&heard), Report::Opened(ConnId(1)));
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let source = Arc::new(Bytes { stream: theirs, per_loop: Default::default(), island: a, busy });
    let id = node.add_source(source.clone()).unwrap();
    for n in 0..requests {
        ours.write_all(&[n as u8]).unwrap();
    }
    for _ in 0..requests {
        assert!(matches!(next(&heard), Report::Frame(..)));
    }
    drop(ours);
    node.remove_source(id);
    node.shutdown();
    source.per_loop.each_ref().map(|n| n.load(Ordering::Relaxed))
}

#[test]
fn requests_of_a_front_end_are_served_on_the_loop_that_read_them() {
    assert_eq!(run(1, Duration::ZERO, 500), [500, 0]);
}

#[test]
fn a_second_loop_helps_only_when_the_first_is_busy() {
    // On a busy machine, the second loop may get no CPU time in a whole run.
    let has_helped = (0..20).any(|_| {
        let shared = run(2, Duration::from_micros(300), 500);
        assert_eq!(shared.iter().sum::<u64>(), 500);
        shared[1] > 0
    });
    assert!(has_helped, "the second loop has never served a request");
}

/// One byte brings this many requests.
struct Burst {
    stream: UnixStream,
    requests: u64,
    island: IslandRef,
}
impl Source for Burst {
    fn fd(&self, _: usize) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }
    fn ready(&self, node: &Node, _: usize) -> SourceState {
        (&self.stream).read_exact(&mut [0]).unwrap();
        for n in 0..self.requests {
            let order = Order::Send(ConnId(1), common::request(n, b""));
            node.deliver(&self.island, Event::Door(Box::new(order)));
        }
        SourceState::More
    }
}

#[test]
fn requests_that_are_read_together_leave_together_a_few_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("s").display());
    let (server, client) = (common::node(1).0, common::node(1).0);
    server.add_island("b", None, None, Puppet::make(true)).unwrap();
    server.listen(&address.parse().unwrap()).unwrap();
    let (sink, heard) = reports();
    let a = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    common::tell(&a, Order::Open { conn: 1, address, target: "b".into() });
    assert_eq!(next(&heard), Report::Opened(ConnId(1)));
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let source = Arc::new(Burst { stream: theirs, requests: 20, island: a });
    let id = client.add_source(source).unwrap();
    let before = client.stats().sends();
    ours.write_all(b"!").unwrap();
    for n in 0..20 {
        assert_eq!(next(&heard), Report::Frame(ConnId(1), n, Vec::new()));
    }
    assert_eq!(client.stats().sends() - before, 3, "8, 8 and 4");
    client.remove_source(id);
    client.shutdown();
    server.shutdown();
}

/// Rests after every read.
struct Unhurried {
    stream: UnixStream,
    read: std::sync::mpsc::SyncSender<Option<usize>>,
}
impl Source for Unhurried {
    fn fd(&self, _: usize) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }
    fn ready(&self, _: &Node, _: usize) -> SourceState {
        let len = (&self.stream).read(&mut [0; 64]).unwrap();
        self.read.send((len > 0).then_some(len)).unwrap();
        if len > 0 { SourceState::Rests } else { SourceState::Ended }
    }
}

#[test]
fn a_source_that_rests_is_read_again_and_its_end_is_seen() {
    let node = common::node(1).0;
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (read, reads) = std::sync::mpsc::sync_channel(64);
    node.add_source(Arc::new(Unhurried { stream: theirs, read })).unwrap();
    let next = || reads.recv_timeout(common::LIMIT).unwrap();
    ours.write_all(b"a").unwrap();
    assert_eq!(next(), Some(1));
    for _ in 0..3 {
        ours.write_all(b"bc").unwrap();
        let mut len = 0;
        while len < 2 {
            len += next().unwrap();
        }
    }
    drop(ours);
    assert_eq!(next(), None);
    node.shutdown();
    assert!(reads.try_recv().is_err(), "it is read no more after its end");
}
