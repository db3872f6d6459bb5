//! Scripts of events against an import: what it sends, and what its callers get.

use bytes::Bytes;
use core::time::Duration;
use nacre_rpc::{CallError, Import, ImportConfig, ImportEffect, ImportState, Request};
use nacre_types::{ClientUuid, Codec, ConnEpoch, Errno, Generation, Instant, ProtocolOutcome, Transno, Xid};
use nacre_wire::target::{ConnectReply, ExecutedChange, PingReply, Role, features};
use nacre_wire::{Class, Frame, Header, Kind, Opcode, Status, flags};

/// An import with a clock, and what it did since it was last asked, as short words.
struct Script {
    now: Instant,
    import: Import<u32>,
    log: Vec<String>,
    connect_xid: Xid,
    ping_xid: Xid,
    /// What the server says of its process.
    process: (u64, u64),
    /// It is the process of this client, too.
    local: bool,
    /// What the target has in its log: (xid, transno).
    executed: Vec<(u64, u64)>,
    /// The target's clock, as the reply to connect says.
    clock_ms: u32,
}

struct Server {
    generation: u32,
    instance: u64,
    evicted: bool,
    max_mod: u16,
    many: bool,
    last_committed: u64,
}
const SERVER: Server =
    Server { generation: 1, instance: 1, evicted: false, max_mod: 8, many: true, last_committed: 0 };

impl Script {
    fn new(max_mod_rpcs: u16) -> Self {
        let config = ImportConfig {
            client: ClientUuid([1; 16]),
            role: Role::Client,
            secret: nacre_types::Secret::new([3; 16]),
            name: "test".into(),
            addresses: vec!["a".into(), "b".into()],
            max_mod_rpcs,
            max_rpcs: 8,
            known: None,
            replaced: 0,
            instance: 0,
            seed: 7,
        };
        let now = Instant(1_000_000_000_000);
        let import = Import::new(now, config);
        let (log, executed) = (Vec::new(), Vec::new());
        Self {
            now,
            import,
            log,
            connect_xid: Xid(0),
            ping_xid: Xid(0),
            process: (0, 0),
            local: false,
            executed,
            clock_ms: 0,
        }
    }
    fn connected(max_mod_rpcs: u16) -> Self {
        let mut s = Self::new(max_mod_rpcs);
        s.connect(SERVER);
        s.take();
        s
    }
    fn drain(&mut self) {
        while let Some(effect) = self.import.poll_effect() {
            let word = match effect {
                ImportEffect::Open { address, .. } => format!("open {address}"),
                ImportEffect::Send { epoch, frame } => {
                    assert_eq!(epoch, frame.header.epoch);
                    self.sent(&frame.header)
                }
                ImportEffect::Close { .. } => "close".into(),
                ImportEffect::Done { token, result, .. } => match result {
                    Ok(frame) => format!("{token} done {}", frame.header.status.number()),
                    Err(CallError::Evicted) => format!("{token} evicted"),
                    Err(CallError::EvictedUnsent) => format!("{token} evicted unsent"),
                    Err(CallError::Stopped) => format!("{token} stopped"),
                    Err(CallError::Mismatch) => format!("{token} mismatch"),
                    Err(CallError::Inactive) => format!("{token} inactive"),
                },
                ImportEffect::Callback { frame } => {
                    self.import.callback_done(frame.header.xid);
                    format!("callback {}", frame.header.xid)
                }
                ImportEffect::State { .. } | ImportEffect::Lost { .. } => continue,
                ImportEffect::Evicted { .. } => "EVICTED".into(),
                ImportEffect::Restarted { .. } => "RESTARTED".into(),
                ImportEffect::ReplacedConnection { from } => format!("took over from {from}"),
                ImportEffect::Recovering { seconds } => format!("recovering {seconds}"),
                ImportEffect::PingReplied { .. } => "neighbours".into(),
                ImportEffect::ReplayFailed { transno, .. } => format!("lost {transno}"),
                ImportEffect::Mismatch { why } => format!("mismatch: {why}"),
                ImportEffect::Stopped => "end".into(),
            };
            self.log.push(word);
        }
    }
    fn sent(&mut self, h: &Header) -> String {
        if h.kind == Kind::CallbackAck {
            return format!("ack {}", h.xid);
        }
        let op = Opcode::from_number(h.opcode).expect("the script");
        match op {
            Opcode::Connect => {
                self.connect_xid = h.xid;
                "connect".into()
            }
            Opcode::Ping => {
                self.ping_xid = h.xid;
                "ping".into()
            }
            Opcode::Disconnect => "disconnect".into(),
            _ => {
                let mark = if h.has(flags::RESENT) { "*" } else { "" };
                let replay =
                    if h.has(flags::REPLAY) { format!(" replay {}", h.transno) } else { String::new() };
                let until = if h.clock_ms > 0 { format!(" until {}", h.clock_ms) } else { String::new() };
                format!("{op:?}{mark} x{} t{} l{}{replay}{until}", h.xid, h.tag, h.last_xid)
            }
        }
    }
    /// What happened since the last call.
    fn take(&mut self) -> Vec<String> {
        self.drain();
        std::mem::take(&mut self.log)
    }
    fn call(&mut self, token: u32, opcode: Opcode, class: Class) {
        self.call_before(token, opcode, class, None);
    }
    fn call_before(&mut self, token: u32, opcode: Opcode, class: Class, deadline: Option<Instant>) {
        let request =
            Request { opcode, class, body: Bytes::new(), bulk: Vec::new(), flags: 0, job: 0, deadline };
        self.import.call(self.now, request, token);
    }
    fn change(&mut self, token: u32) {
        self.call(token, Opcode::Create, Class::Modify);
    }
    fn read(&mut self, token: u32) {
        self.call(token, Opcode::Lookup, Class::Read);
    }
    fn header(&self, kind: Kind, xid: u64) -> Header {
        let mut h = Header::new(kind, Opcode::Create.number());
        h.xid = Xid(xid);
        h.epoch = self.import.epoch();
        h
    }
    fn reply_with(&mut self, xid: u64, status: i32, transno: u64, last_committed: u64) {
        let mut h = self.header(Kind::Reply, xid);
        h.status = Status::from_number(status);
        h.transno = Transno(transno);
        h.last_committed = Transno(last_committed);
        h.clock_ms = self.clock_ms;
        let epoch = h.epoch;
        self.import.handle_frame(self.now, epoch, Frame::new(h, Vec::new()));
    }
    fn replayed(&mut self, xid: u64, transno: u64) {
        let mut h = self.header(Kind::Reply, xid);
        h.transno = Transno(transno);
        h.flags = flags::REPLAY;
        let epoch = h.epoch;
        self.import.handle_frame(self.now, epoch, Frame::new(h, Vec::new()));
    }
    fn reply(&mut self, xid: u64) {
        self.reply_with(xid, 0, 0, 0);
    }
    fn pong(&mut self) {
        self.drain();
        let h = self.header(Kind::Reply, self.ping_xid.0);
        let epoch = h.epoch;
        let (process, ended) = self.process;
        let body = PingReply { config_version: 9, recovery_ms: 0, process, ended }.to_vec();
        self.import.handle_frame(self.now, epoch, Frame::new(h, body));
    }
    fn callback(&mut self, xid: u64) {
        let h = self.header(Kind::Callback, xid);
        let epoch = h.epoch;
        self.import.handle_frame(self.now, epoch, Frame::new(h, Vec::new()));
    }
    fn close(&mut self) {
        self.import.handle_closed(self.now, self.import.epoch(), "reset");
    }
    /// Opens (after the pause, if there is one) and replies to the connect.
    fn connect(&mut self, server: Server) {
        if self.import.state() == ImportState::Disconnected {
            self.pass(self.import.poll_deadline().expect("the script") - self.now);
        }
        self.import.handle_opened(self.now, self.import.epoch());
        self.drain();
        let reply = ConnectReply {
            target: ClientUuid([2; 16]),
            features: if server.many { features::MULTI_MOD_RPCS } else { 0 },
            max_mod_rpcs: server.max_mod,
            lease_ms: 10_000,
            generation: Generation(server.generation),
            evicted: server.evicted,
            instance: server.instance,
            process: self.process.0,
            ended: self.process.1,
            local: self.local,
            executed: self
                .executed
                .iter()
                .map(|&(xid, at)| ExecutedChange { xid: Xid(xid), transno: Transno(at) })
                .collect(),
            ..ConnectReply::default()
        };
        let mut h = self.header(Kind::Reply, self.connect_xid.0);
        h.last_committed = Transno(server.last_committed);
        h.clock_ms = self.clock_ms;
        let epoch = h.epoch;
        self.import.handle_frame(self.now, epoch, Frame::new(h, reply.to_vec()));
    }
    fn pass(&mut self, d: Duration) {
        self.now = self.now + d;
        self.import.handle_timeout(self.now);
    }
    fn states(&self) -> Vec<String> {
        self.import.history().iter().map(|(_, s)| s.to_string()).collect()
    }
}

const SEC: Duration = Duration::from_secs(1);

#[test]
fn calls_wait_for_the_connection_and_then_go_in_order() {
    let mut s = Script::new(7);
    s.change(1);
    s.read(2);
    assert_eq!(s.take(), ["open a"]);
    s.connect(SERVER);
    assert_eq!(s.take(), ["connect", "Create x2 t1 l1", "Lookup x3 t0 l1"]);
    s.reply(3);
    s.reply(2);
    assert_eq!(s.take(), ["2 done 0", "1 done 0"]);
    s.change(3);
    assert_eq!(s.take(), ["Create x4 t1 l3"], "everything below has its reply");
    assert_eq!(s.states(), ["DISCONN", "CONNECTING", "RECOVER", "FULL"]);
}

#[test]
fn a_change_of_an_object_says_until_when_it_may_be_begun() {
    let mut s = Script::new(7);
    s.clock_ms = 500_000;
    s.connect(SERVER);
    s.take();
    let until = s.now + SEC * 6;
    s.pass(SEC);
    s.call_before(1, Opcode::Write, Class::Modify, Some(until));
    s.call(2, Opcode::Write, Class::Modify);
    s.change(3);
    let sent = ["Write x2 t1 l1 until 506000", "Write x3 t2 l1 until 503500", "Create x4 t3 l1"];
    assert_eq!(s.take(), sent, "a quarter of the lease from now on, unless its caller says it");
    // The next server has another clock, and is reached too late for one of them.
    s.close();
    s.clock_ms = u32::MAX - 999;
    s.pass(SEC * 7);
    s.take();
    s.connect(SERVER);
    let over = s.now - until;
    let late = (u32::MAX - 999).wrapping_sub(over.as_millis() as u32);
    let again = [format!("Write* x2 t1 l1 until {late}"), "Write* x3 t2 l1 until 1500".into()];
    assert_eq!(s.take().get(1..3), Some(&again[..]), "what its caller said holds, the other gets new time");
}

#[test]
fn changes_of_objects_that_are_slow_get_more_time_until_they_are_fast_again() {
    let mut s = Script::new(7);
    s.clock_ms = 500_000;
    s.connect(SERVER);
    s.call(1, Opcode::Write, Class::Modify);
    s.pass(SEC * 4);
    s.reply_with(2, ProtocolOutcome::DeadlinePassed as i32, 0, 0);
    s.take();
    s.call(2, Opcode::Write, Class::Modify);
    let sent = s.take();
    assert_eq!(sent, ["Write x4 t1 l3 until 508000"], "twice the time that was too long");
    s.pass(SEC * 4);
    s.reply(4);
    s.take();
    s.call(3, Opcode::Write, Class::Modify);
    assert_eq!(s.take(), ["Write x5 t1 l4 until 508000"], "it takes that long still");
    for xid in 5..=13 {
        s.reply(xid);
        s.call(4, Opcode::Write, Class::Modify);
    }
    assert_eq!(s.take().last().map(String::as_str), Some("Write x14 t1 l13 until 502500"));
}

#[test]
fn the_xid_comes_after_the_slot_so_that_xids_of_a_tag_increase() {
    let mut s = Script::connected(2);
    (1..=4).for_each(|n| s.change(n));
    s.read(5);
    assert_eq!(s.take(), ["Create x2 t1 l1", "Create x3 t2 l1", "Lookup x4 t0 l1"]);
    s.reply(3);
    assert_eq!(s.take(), ["2 done 0", "Create x5 t2 l1"]);
    s.reply_with(2, Errno::EEXIST.number(), 0, 0);
    assert_eq!(s.take(), ["1 done 17", "Create x6 t1 l3"], "a slot comes back with an error too");
}

#[test]
fn one_close_passes_the_limit_and_serves_the_first_waiting_one() {
    let mut s = Script::connected(1);
    s.change(1);
    s.change(2);
    s.call(3, Opcode::Close, Class::Close);
    s.call(4, Opcode::Close, Class::Close);
    s.call(5, Opcode::Cancel, Class::Callback);
    assert_eq!(s.take(), ["Create x2 t1 l1", "Close x3 t2 l1", "Cancel x4 t0 l1"]);
    s.reply(3);
    assert_eq!(s.take(), ["3 done 0", "Close x5 t2 l1"]);
    s.reply(2);
    assert_eq!(s.take(), ["1 done 0"], "the close is still in the only slot");
    s.reply(5);
    assert_eq!(s.take(), ["4 done 0", "Create x6 t1 l3"]);
    assert_eq!(s.import.slots().histogram().counts(), [0, 2, 2]);
}

#[test]
fn a_raised_limit_wakes_who_waits_and_all_requests_are_more_than_changes() {
    let limits = |s: &Script| {
        let config = s.import.config();
        (config.max_mod_rpcs, config.max_rpcs, s.import.slots().limit())
    };
    let mut s = Script::connected(2);
    (1..=9).for_each(|n| s.change(n));
    assert_eq!(s.take().len(), 2);
    s.import.set_max_mod_rpcs(s.now, 4);
    assert_eq!(s.take(), ["Create x4 t3 l1", "Create x5 t4 l1"]);
    s.import.set_max_mod_rpcs(s.now, 8);
    assert_eq!((s.take().len(), limits(&s)), (4, (8, 9, 8)));
    (10..=11).for_each(|n| s.read(n));
    assert_eq!(s.take(), ["Lookup x10 t0 l1"], "a read finds its way past the changes, one more does not");
    s.import.set_max_rpcs_in_flight(s.now, 12);
    assert_eq!(s.take(), ["Lookup x11 t0 l1"]);
    s.import.set_max_mod_rpcs(s.now, 20);
    assert_eq!((s.take().len(), limits(&s)), (0, (20, 21, 8)), "the server's limit holds too");
    s.import.set_max_rpcs_in_flight(s.now, 4);
    assert_eq!(limits(&s), (3, 4, 3));
    s.import.set_max_rpcs_in_flight(s.now, 1);
    assert_eq!(limits(&s), (1, 2, 1));
}

#[test]
fn a_server_without_the_feature_gives_one_slot() {
    let mut s = Script::new(7);
    s.connect(Server { many: false, ..SERVER });
    s.change(1);
    s.change(2);
    assert_eq!(s.take()[2..], ["Create x2 t1 l1"]);
}

#[test]
fn after_a_reconnect_calls_without_a_reply_are_resent_in_xid_order_before_new_ones() {
    let mut s = Script::connected(7);
    (1..=3).for_each(|n| s.change(n));
    s.reply(3);
    s.take();
    s.close();
    s.change(4);
    s.read(5);
    assert_eq!(s.take(), Vec::<String>::new());
    s.connect(SERVER);
    assert_eq!(
        s.take(),
        ["open a", "connect", "Create* x2 t1 l1", "Create* x4 t3 l1", "Create x6 t2 l1", "Lookup x7 t0 l1"]
    );
    let old = ConnEpoch(1);
    let mut h = s.header(Kind::Reply, 2);
    h.epoch = old;
    s.import.handle_frame(s.now, old, Frame::new(h, Vec::new()));
    assert_eq!(s.take(), Vec::<String>::new(), "a reply of the old epoch means nothing");
    s.reply(2);
    s.reply(2);
    assert_eq!(s.take(), ["1 done 0"], "once");
}

#[test]
fn what_a_deactivated_target_was_asked_fails_and_its_tags_are_free() {
    let mut s = Script::connected(2);
    (1..=4).for_each(|n| s.change(n));
    s.read(5);
    s.take();
    s.import.set_active(s.now, false);
    assert_eq!(s.take(), ["1 inactive", "2 inactive", "5 inactive", "3 inactive", "4 inactive"]);
    s.change(6);
    assert_eq!(s.take(), ["6 inactive"]);
    s.import.set_active(s.now, true);
    s.change(7);
    assert_eq!(s.take(), ["Create x5 t1 l4"], "nothing of what failed is waited for, or sent again");
    s.reply(1);
    assert_eq!(s.take(), Vec::<String>::new(), "a late reply means nothing");
    s.close();
    s.connect(SERVER);
    assert_eq!(s.take(), ["open a", "connect", "Create* x5 t1 l4"]);
}

#[test]
fn addresses_are_tried_in_turn_with_growing_pauses() {
    let mut s = Script::new(7);
    let mut pauses = Vec::new();
    for _ in 0..162 {
        s.close();
        let pause = s.import.poll_deadline().expect("the script") - s.now;
        pauses.push(pause);
        s.pass(pause);
    }
    assert_eq!(s.take()[..4], ["open a", "open b", "open a", "open b"]);
    assert!(pauses[0] >= Duration::from_millis(10) && pauses[0] <= Duration::from_millis(20));
    let soon = Duration::from_millis(80)..=Duration::from_millis(160);
    assert!(pauses[15..150].iter().all(|p| soon.contains(p)), "a server that was restarted is found soon");
    assert!(pauses[161] >= Duration::from_millis(500) && pauses[161] <= Duration::from_secs(1));
}

#[test]
fn an_idle_import_pings_and_a_silent_connection_is_given_up() {
    let mut s = Script::connected(7);
    s.pass(3 * SEC);
    s.pong();
    assert_eq!(s.take(), ["ping"]);
    assert_eq!(s.import.config_version(), 9);
    s.pass(3 * SEC);
    s.pass(4 * SEC);
    assert_eq!(s.take(), ["ping", "close"]);
    assert_eq!(s.import.state(), ImportState::Disconnected);
}

#[test]
fn a_long_request_lives_while_pings_get_replies() {
    let mut s = Script::connected(7);
    s.change(1);
    for _ in 0..20 {
        s.pass(3 * SEC);
        s.pong();
    }
    s.reply(2);
    let log = s.take();
    assert!(!log.contains(&"close".to_string()) && log.contains(&"1 done 0".to_string()));
}

#[test]
fn the_lease_counts_from_sending_and_two_thirds_may_be_used() {
    let mut s = Script::connected(7);
    s.read(1);
    s.now = s.now + SEC;
    s.reply(2);
    assert!(s.import.lease_ok(s.now + 5 * SEC), "6 s after the request was sent");
    assert!(!s.import.lease_ok(s.now + 6 * SEC));
}

#[test]
fn the_reply_to_a_ping_of_a_neighbour_renews_an_idle_import_of_the_same_process() {
    let mut s = Script::new(7);
    s.process = (5, 1);
    s.connect(SERVER);
    s.take();
    for _ in 0..10 {
        s.pass(2 * SEC);
        s.import.handle_neighbour(s.now, (5, 1), s.now);
    }
    assert_eq!(s.take(), [""; 0], "no ping of its own, and no lost connection");
    assert!(s.import.lease_ok(s.now));
    // A lease has ended in that process, perhaps this one: only its own reply counts.
    s.pass(2 * SEC);
    s.import.handle_neighbour(s.now, (5, 2), s.now);
    s.pass(SEC);
    assert_eq!(s.take(), ["ping"]);
    s.process = (5, 2);
    s.pong();
    assert_eq!(s.take(), ["neighbours"], "and the others hear of it");
    s.import.handle_neighbour(s.now + 3 * SEC, (5, 2), s.now + 3 * SEC);
    assert!(s.import.lease_ok(s.now + 9 * SEC));
    s.import.handle_neighbour(s.now + 6 * SEC, (6, 2), s.now + 6 * SEC);
    assert!(!s.import.lease_ok(s.now + 10 * SEC), "another process");
}

#[test]
fn an_import_with_a_request_under_way_watches_its_own_connection() {
    let mut s = Script::new(7);
    s.process = (5, 1);
    s.connect(SERVER);
    s.take();
    s.read(1);
    s.take();
    for _ in 0..4 {
        s.pass(2 * SEC);
        s.import.handle_neighbour(s.now, (5, 1), s.now);
    }
    let log = s.take();
    assert!(log.contains(&"ping".into()) && log.contains(&"close".into()), "{log:?}");
}

#[test]
fn beyond_the_lease_new_calls_wait_for_the_reply_to_a_ping() {
    let mut s = Script::connected(7);
    s.now = s.now + Duration::from_millis(6_800); // stopped by a signal
    s.change(1);
    assert_eq!(s.take(), ["ping"]);
    s.pong();
    assert_eq!(s.take(), ["Create x3 t1 l2"]);
}

#[test]
fn an_eviction_ends_changes_and_repeats_reads() {
    let mut s = Script::connected(1);
    s.change(1);
    s.read(2);
    s.change(3);
    s.take();
    s.close();
    s.connect(Server { generation: 2, evicted: true, ..SERVER });
    assert_eq!(s.take()[2..], ["EVICTED", "1 evicted", "3 evicted unsent", "Lookup x5 t0 l4"]);
    assert_eq!(s.states()[4..], ["DISCONN", "CONNECTING", "EVICTED", "RECOVER", "FULL"]);
    assert_eq!(s.import.generation(), Generation(2));
}

#[test]
fn nothing_is_kept_for_a_target_that_ends_with_this_process() {
    let mut s = Script::new(7);
    s.local = true;
    s.connect(SERVER);
    s.change(1);
    s.reply_with(2, 0, 11, 0);
    assert_eq!(s.import.replay_list().len(), 0);
}

#[test]
fn changes_are_kept_until_committed_and_replayed_to_a_new_instance() {
    let mut s = Script::connected(7);
    (1..=4).for_each(|n| s.change(n));
    s.reply_with(3, 0, 12, 0);
    s.reply_with(2, 0, 11, 0);
    s.reply_with(4, 0, 10, 10);
    assert_eq!(s.import.replay_list().len(), 2);
    s.take();
    s.close();
    s.connect(Server { instance: 2, last_committed: 10, ..SERVER });
    assert_eq!(s.take()[2..], ["RESTARTED", "Create x2 t1 l0 replay 11"]);
    s.reply_with(2, 0, 11, 10);
    assert_eq!(s.take(), ["Create x3 t2 l0 replay 12"]);
    s.close(); // the replay begins again
    s.connect(Server { instance: 2, last_committed: 10, ..SERVER });
    assert_eq!(s.take()[2..], ["Create x2 t1 l0 replay 11"]);
    s.reply_with(2, 0, 11, 10);
    s.reply_with(3, Errno::ENOENT.number(), 0, 10);
    assert_eq!(s.take(), ["Create x3 t2 l0 replay 12", "lost 12", "ping"], "says that it has nothing more");
    s.pong();
    assert_eq!(s.take(), ["Create* x5 t4 l4"]);
    s.reply_with(5, 0, 13, 13);
    assert_eq!(s.import.replay_list().len(), 0);
    let replayed = ["REPLAY", "REPLAY_LOCKS", "REPLAY_WAIT", "RECOVER", "FULL"];
    assert!(s.states().ends_with(&replayed.map(String::from)));
}

#[test]
fn a_write_in_the_log_without_a_reply_has_its_turn_and_then_its_own_reply() {
    let mut s = Script::connected(7);
    s.call(1, Opcode::Write, Class::Modify);
    s.change(2);
    s.take();
    s.close();
    s.executed = vec![(1, 10), (2, 11), (3, 12)];
    s.connect(Server { instance: 2, ..SERVER });
    assert_eq!(
        s.take()[2..],
        ["RESTARTED", "Write x2 t1 l0 replay 11"],
        "a change without bytes is not lost"
    );
    s.replayed(2, 11);
    s.take();
    s.pong();
    assert_eq!(s.take(), ["Write* x2 t1 l1", "Create* x3 t2 l1"]);
    s.replayed(2, 11);
    assert_eq!(s.take(), [""; 0], "a second reply to the replay");
    s.reply_with(2, 0, 11, 0);
    assert_eq!(s.take(), ["1 done 0"]);
}

#[test]
fn in_progress_is_retried_with_a_new_xid() {
    let mut s = Script::connected(7);
    s.change(1);
    s.reply_with(2, ProtocolOutcome::TryLater as i32, 0, 0);
    s.pass(Duration::from_millis(100));
    assert_eq!(s.take(), ["Create x2 t1 l1"]);
    s.pass(Duration::from_millis(100));
    assert_eq!(s.take(), ["Create x3 t1 l2"]);
}

#[test]
fn a_callback_is_handed_over_once_and_acknowledged_each_time() {
    let mut s = Script::connected(7);
    s.callback(1);
    s.callback(2);
    s.callback(2);
    assert_eq!(s.take(), ["callback 1", "callback 2", "ack 2", "ack 1", "ack 2"]);
}

#[test]
fn stop_ends_every_call_and_tells_the_target() {
    let mut s = Script::connected(1);
    s.change(1);
    s.change(2);
    s.take();
    s.import.stop(s.now);
    s.change(3);
    assert_eq!(s.take(), ["1 stopped", "2 stopped", "disconnect", "3 stopped"]);
    s.pass(2 * SEC);
    assert_eq!(s.take(), ["close", "end"]);
    assert_eq!(s.import.poll_deadline(), None);
}

#[test]
fn a_callback_behind_a_missing_one_is_not_taken_in() {
    let mut s = Script::connected(7);
    s.callback(1);
    assert_eq!(s.take(), ["callback 1", "ack 1"]);
    s.callback(3);
    assert_eq!(s.take(), ["close"], "the missing one comes first on the next connection");
}
