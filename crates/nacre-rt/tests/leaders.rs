//! Threads of front ends that serve the sockets while they wait for replies.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
use common::{Order, Puppet, Report, next, node, reports, request, tell};
use nacre_node::ConnId;
use nacre_rt::{Config, IslandRef, Leader, Node};
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// A client with a connection to an island that sends every request back.
struct Pair {
    client: Node,
    server: Node,
    island: IslandRef,
    heard: Receiver<Report>,
    _dir: tempfile::TempDir,
}
impl Pair {
    fn new(servers_lead: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (server, _) = node(1);
        let client = Node::start(Config { servers_lead, ..Config::default() }, |_, _, _| {}).unwrap();
        server.add_island("echo", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
        let address = server.listen(&nacre_net::Address::Unix(dir.path().join("s"))).unwrap();
        let (sink, heard) = reports();
        let island = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
        tell(&island, Order::Open { conn: 1, address: address.to_string(), target: "echo".into() });
        assert_eq!(next(&heard), Report::Opened(ConnId(1)));
        Self { client, server, island, heard, _dir: dir }
    }
    fn send(&self, xid: u64) {
        tell(&self.island, Order::Send(ConnId(1), request(xid, b"ordered")));
    }
    fn end(&self) {
        self.client.shutdown();
        self.server.shutdown();
    }
}

/// Waits a while for the descriptor of a leader, and serves what is ready. Another thread may serve it first. Returns whether
/// it was ready.
fn serve(leader: &mut Leader<'_>) -> bool {
    let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let fd = leader.fd().unwrap();
    let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap();
    leader.watched(ready > 0, true);
    ready > 0
}

#[test]
fn a_thread_that_waits_for_replies_serves_the_sockets_until_it_is_idle() {
    const REQUESTS: u64 = 300;
    let pair = Pair::new(true);
    let mut leader = Leader::new(&pair.client);
    assert!(!leader.before_sleep(true), "no request has come");
    let (start, turns) = (Instant::now(), pair.client.stats().loop_turns());
    let mut served = 0;
    for xid in 0..REQUESTS {
        leader.came();
        pair.send(xid);
        let mut watches = leader.before_sleep(true);
        assert!(watches && leader.bound(Duration::MAX) < Duration::MAX);
        let mut turns_ready = 0;
        let report = loop {
            assert!(std::mem::replace(&mut watches, false) || leader.before_sleep(true));
            turns_ready += u64::from(serve(&mut leader));
            if let Ok(report) = pair.heard.try_recv() {
                served += u64::from(turns_ready == 1);
                break report;
            }
        };
        assert_eq!(report, Report::Frame(ConnId(1), xid, b"ordered".to_vec()));
    }
    let led = pair.client.stats().turns_led();
    assert!(led >= served && served >= REQUESTS / 2, "{served} replies in {led} turns");
    // The loop only looks from time to time.
    let looks = u64::try_from(start.elapsed().as_millis()).unwrap() / 10;
    let turns = pair.client.stats().loop_turns() - turns;
    assert!(turns <= REQUESTS / 2 + 2 * looks, "{turns} turns of the loop in {:?}", start.elapsed());
    // It sleeps without a request for as long as it may: the loop watches again.
    assert!(leader.before_sleep(false) && leader.was_idle());
    leader.watched(false, false);
    assert!(!leader.before_sleep(false) && leader.bound(Duration::MAX) == Duration::MAX);
    pair.send(REQUESTS);
    assert_eq!(next(&pair.heard), Report::Frame(ConnId(1), REQUESTS, b"ordered".to_vec()));
    // It sleeps when there is nothing to do.
    let turns = pair.client.stats().loop_turns();
    assert!(pair.heard.recv_timeout(Duration::from_millis(300)).is_err());
    assert!(pair.client.stats().loop_turns() - turns <= 5);
    pair.end();
}

#[test]
fn what_a_leader_leaves_is_served_by_the_loop() {
    let pair = Pair::new(true);
    let mut leader = Leader::new(&pair.client);
    for xid in 0..20 {
        leader.came();
        pair.send(xid);
        let _watches = leader.before_sleep(true);
        assert_eq!(next(&pair.heard), Report::Frame(ConnId(1), xid, b"ordered".to_vec()));
    }
    drop(leader);
    pair.send(20);
    assert_eq!(next(&pair.heard), Report::Frame(ConnId(1), 20, b"ordered".to_vec()));
    assert_eq!(pair.client.stats().turns_led(), 0);
    pair.end();
}

#[test]
fn nobody_leads_where_other_processes_wait_for_the_sockets() {
    let pair = Pair::new(false);
    let mut leader = Leader::new(&pair.client);
    leader.came();
    assert!(!leader.before_sleep(true) && leader.bound(Duration::MAX) == Duration::MAX);
    pair.end();
}

#[test]
fn a_kernel_that_cannot_watch_the_descriptor_is_not_asked_again() {
    let pair = Pair::new(true);
    let mut leader = Leader::new(&pair.client);
    leader.came();
    assert!(leader.before_sleep(true));
    leader.refused();
    leader.watched(false, true);
    leader.came();
    assert!(!leader.before_sleep(true) && leader.bound(Duration::MAX) == Duration::MAX);
    pair.send(0);
    assert_eq!(next(&pair.heard), Report::Frame(ConnId(1), 0, b"ordered".to_vec()));
    pair.end();
}

#[test]
fn frames_stay_in_order_while_several_threads_lead() {
    const THREADS: u64 = 3;
    const REQUESTS: u64 = 2000;
    let pair = Pair::new(true);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, island) = (&pair.client, &pair.island);
            scope.spawn(move || {
                let mut leader = Leader::new(client);
                for n in 0..REQUESTS {
                    leader.came();
                    tell(island, Order::Send(ConnId(1), request(thread << 32 | n, b"ordered")));
                    if leader.before_sleep(true) {
                        serve(&mut leader);
                    }
                }
            });
        }
        // The island checks the order of each thread's frames.
        for _ in 0..THREADS * REQUESTS {
            assert!(matches!(next(&pair.heard), Report::Frame(..)));
        }
    });
    assert!(pair.client.stats().turns_led() > 0);
    pair.end();
}
