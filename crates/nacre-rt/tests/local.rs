//! Islands of one process: entry, order, ends.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
use common::{Order, Puppet, Report, next, node, reports, request, tell};
use nacre_node::{ConnId, Event};
use nacre_rt::EndReason;
use std::sync::Arc;

#[test]
fn a_message_within_the_process_is_a_call_on_the_same_thread() {
    let (node, _) = node(1);
    let (sink, heard) = reports();
    let a = node.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    node.add_island("b", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    let wakeups = node.stats().loop_wakeups();
    // `b` reports that it was connected to; nobody listens to it, which is logged and harmless.
    tell(&a, Order::Open { conn: 1, address: "local".into(), target: "b".into() });
    assert_eq!(heard.try_recv(), Ok(Report::Opened(ConnId(1))), "done when the call returns");
    for xid in 1..=100 {
        tell(&a, Order::Send(ConnId(1), request(xid, b"x")));
        assert_eq!(heard.try_recv(), Ok(Report::Frame(ConnId(1), xid, b"x".to_vec())));
    }
    assert_eq!(node.stats().loop_wakeups(), wakeups, "no loop was woken");
    node.shutdown();
}

#[test]
fn frames_of_several_threads_arrive_in_the_order_of_the_visits() {
    let (node, ends) = node(2);
    let (sink, heard) = reports();
    let (far_sink, far) = reports();
    let a = node.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    let _b = node.add_island("b", None, Some(far_sink), Puppet::make(false)).unwrap();
    tell(&a, Order::Open { conn: 1, address: "local".into(), target: "b".into() });
    assert!(matches!(next(&far), Report::Accepted(_)));
    assert_eq!(next(&heard), Report::Opened(ConnId(1)));
    // Each thread numbers its own frames; between threads the island decides.
    std::thread::scope(|scope| {
        for t in 0..3u64 {
            let a = &a;
            scope.spawn(move || {
                for n in 0..2000 {
                    tell(a, Order::Send(ConnId(1), request(t << 32 | n, b"ordered")));
                }
            });
        }
    });
    assert_eq!(a.stats().visits(), 6000 + 3);
    // The reports (effects for doors) of different visits are not ordered, the visits were: `b` has looked.
    let frames = (0..6000).map(|_| next(&far)).filter(|r| matches!(r, Report::Frame(..))).count();
    assert_eq!((frames, ends.lock().unwrap().len()), (6000, 0));
    node.shutdown();
}

#[test]
fn events_that_were_queued_together_are_taken_in_at_few_entries_and_in_order() {
    let (node, _) = node(1);
    let (far_sink, far) = reports();
    let a = node.add_island("a", None, Some(reports().0), Puppet::make(false)).unwrap();
    let b = node.add_island("b", None, Some(far_sink), Puppet::make(false)).unwrap();
    tell(&a, Order::Open { conn: 1, address: "local".into(), target: "b".into() });
    assert!(matches!(next(&far), Report::Accepted(_)));
    let before = [&a, &b].map(|island| island.stats().visits());
    for n in 0..6 {
        node.enqueue(&a, Event::Door(Box::new(Order::Send(ConnId(1), request(n, b"ordered")))));
    }
    assert!(far.try_recv().is_err(), "nothing is done before the work");
    assert!(node.work());
    let arrived: Vec<Report> = far.try_iter().collect();
    assert_eq!(arrived.len(), 6, "{arrived:?}");
    // Four and two.
    let entries = [&a, &b].map(|island| island.stats().visits());
    assert_eq!([entries[0] - before[0], entries[1] - before[1]], [2, 2]);
    node.shutdown();
}

#[test]
fn nothing_comes_from_a_connection_that_the_event_before_has_closed() {
    let (node, _) = node(1);
    let (sink, heard) = reports();
    let a = node.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    node.add_island("b", None, None, Puppet::make(false)).unwrap_or_else(|e| panic!("{e}"));
    tell(&a, Order::Open { conn: 1, address: "local".into(), target: "b".into() });
    assert_eq!(next(&heard), Report::Opened(ConnId(1)));
    let frame = |xid| Event::Frame { conn: ConnId(1), frame: request(xid, b"x") };
    node.enqueue(&a, frame(1));
    node.enqueue(&a, Event::Door(Box::new(Order::Close(ConnId(1)))));
    node.enqueue(&a, frame(2));
    assert!(node.work());
    let all: Vec<Report> = heard.try_iter().collect();
    assert_eq!(all, [Report::Frame(ConnId(1), 1, b"x".to_vec())]);
    node.shutdown();
}

#[test]
fn an_unknown_target_and_a_close_are_told_once() {
    let (node, _) = node(1);
    let (sink, heard) = reports();
    let (far_sink, far) = reports();
    let a = node.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    let b = node.add_island("b", None, Some(far_sink), Puppet::make(false)).unwrap();
    tell(&a, Order::Open { conn: 1, address: "local".into(), target: "nobody".into() });
    assert_eq!(next(&heard), Report::Closed(ConnId(1), "no target nobody is served here".into()));
    tell(&a, Order::Open { conn: 2, address: "local".into(), target: "b".into() });
    assert_eq!(next(&heard), Report::Opened(ConnId(2)));
    let Report::Accepted(at_b) = next(&far) else { panic!("accepted") };
    tell(&b, Order::Send(at_b, request(9, b"last words")));
    tell(&b, Order::Close(at_b));
    assert_eq!(next(&heard), Report::Frame(ConnId(2), 9, b"last words".to_vec()));
    assert_eq!(next(&heard), Report::Closed(ConnId(2), "closed by b".into()));
    tell(&a, Order::Send(ConnId(2), request(1, b"into the void")));
    tell(&a, Order::Close(ConnId(2)));
    assert!(heard.try_recv().is_err());
    assert!(far.try_recv().is_err());
    node.shutdown();
}

#[test]
fn a_panic_ends_its_island_only_and_it_can_be_reopened() {
    let (node, ends) = node(1);
    let (sink, heard) = reports();
    let a = node.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    let b = node.add_island("b", None, None, Puppet::make(true)).unwrap();
    tell(&a, Order::Open { conn: 1, address: "local".into(), target: "b".into() });
    assert_eq!(next(&heard), Report::Opened(ConnId(1)));
    tell(&b, Order::Panic);
    let Report::Closed(_, reason) = next(&heard) else { panic!("closed") };
    assert_eq!(reason, "b has ended: panicked: as ordered");
    assert_eq!(*ends.lock().unwrap(), [("b".to_owned(), EndReason::Panicked("as ordered".into()))]);
    assert!(!b.is_alive());
    b.deliver(Event::Timer); // goes nowhere
    node.add_island("b", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    tell(&a, Order::Open { conn: 2, address: "local".into(), target: "b".into() });
    assert_eq!(next(&heard), Report::Opened(ConnId(2)));
    node.shutdown();
}

#[test]
fn a_planned_stop_is_waited_for_and_a_fatal_island_is_gone() {
    let (node, ends) = node(1);
    let a = node.add_island("a", None, None, Puppet::make(false)).unwrap();
    assert_eq!(node.stop_island(&a, common::LIMIT).unwrap(), EndReason::Stopped);
    assert!(node.island("a").is_none());
    let b = node.add_island("b", None, None, Puppet::make(false)).unwrap();
    assert!(node.add_island("b", None, None, Puppet::make(false)).is_err(), "the name is taken");
    tell(&b, Order::Fatal);
    assert_eq!(ends.lock().unwrap().len(), 2);
    node.shutdown();
}

#[test]
fn timers_fire_also_when_a_nearer_deadline_comes_from_another_thread() {
    let (node, _) = node(1);
    let (sink, heard) = reports();
    let a = node.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
    tell(&a, Order::Sleep(std::time::Duration::from_secs(3600)));
    let before = std::time::Instant::now();
    tell(&a, Order::Sleep(std::time::Duration::from_millis(30)));
    assert_eq!(next(&heard), Report::Text("slept".into()));
    assert!(before.elapsed() < std::time::Duration::from_secs(3));
    node.shutdown();
}

/// A front end that replies from within its sink.
struct Replying(std::sync::mpsc::SyncSender<Report>);
impl nacre_rt::DoorSink for Replying {
    fn door(&self, island: &nacre_rt::IslandRef, item: Box<dyn std::any::Any + Send>) {
        let report = *item.downcast::<Report>().unwrap();
        if let Report::Frame(conn, 1, _) = &report {
            tell(island, Order::Send(*conn, request(2, b"from the sink")));
        }
        self.0.try_send(report).unwrap();
    }
}

#[test]
fn a_sink_may_deliver_and_its_event_comes_in_its_turn() {
    let (node, _) = node(1);
    let (sender, heard) = std::sync::mpsc::sync_channel(100);
    let a = node.add_island("a", None, Some(Arc::new(Replying(sender))), Puppet::make(false)).unwrap();
    node.add_island("b", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
    tell(&a, Order::Open { conn: 1, address: "local".into(), target: "b".into() });
    tell(&a, Order::Send(ConnId(1), request(1, b"")));
    let got: Vec<_> = heard.try_iter().collect();
    assert_eq!(got.len(), 3, "{got:?}");
    assert_eq!(got[2], Report::Frame(ConnId(1), 2, b"from the sink".to_vec()));
    node.shutdown();
}
