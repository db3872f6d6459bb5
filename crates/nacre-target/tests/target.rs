//! A small target in the simulator's world: exactly once over broken connections and killed targets, leases,
//! evictions, callbacks, parameters, stop.

mod common;

use common::{Jobs, Ledger, SEC, SLOW, TARGET, add, add_client, config, ledger, store, target_config};
use nacre_node::{ConnId, Ctx, Effect, Event, Logic, RpcError};
use nacre_sim::World;
use nacre_target::{TargetConfig, TargetIsland};
use nacre_types::{ConnEpoch, Failure, Xid};
use nacre_wire::ost::{Glimpse, SyncObject};
use nacre_wire::target::{GetParams, Role, SetParam, Statfs, Sync};
use nacre_wire::{Frame, Header, Kind, Opcode};
use std::cell::Cell;
use std::rc::Rc;

fn param(jobs: &mut Jobs, world: &mut World, tool: nacre_sim::NodeId, pattern: &'static str) -> Vec<String> {
    jobs.run(world, tool, async move |a| {
        let list = a.peer.call(&GetParams { pattern: pattern.into() }).await.expect("params");
        list.params.into_iter().map(|p| p.value).collect::<Vec<_>>()
    })
}

#[test]
fn a_client_connects_changes_and_reads() {
    let (mut w, _) = ledger(1);
    let c = add_client(&mut w, TARGET, 1, Role::Client);
    let mut jobs = Jobs::default();
    assert_eq!(jobs.run(&mut w, c, |a| add(a, 5)), Ok(5));
    assert_eq!(jobs.run(&mut w, c, |a| add(a, 7)), Ok(12));
    assert_eq!(jobs.run(&mut w, c, |a| add(a, 0)), Err(RpcError::Failed(Failure::EINVAL)));
    let total = jobs.run(&mut w, c, async |a| {
        a.peer.call(&Sync {}).await.expect("sync");
        a.peer.call(&Statfs {}).await.expect("statfs").bytes_total
    });
    assert_eq!(total, 12);
}

#[test]
fn every_change_happens_once_while_connections_break_and_the_target_is_killed() {
    for seed in 1..=40 {
        let (mut w, target) = ledger(seed);
        let clients: Vec<_> = (1..=2).map(|n| add_client(&mut w, TARGET, n, Role::Client)).collect();
        let mut jobs = Jobs::default();
        let mut started = Vec::new();
        for round in 0..60u64 {
            for &c in &clients {
                started.push((c, 1 + round, jobs.start(&mut w, c, move |a| add(a, 1 + round))));
            }
            let pause = w.rng().below(20_000_000);
            w.run_for(pause);
            match w.rng().below(12) {
                0 | 1 => w.cut_some_link(target),
                2 => {
                    w.kill(target);
                    w.start_later(target, 300_000_000);
                }
                _ => {}
            }
        }
        let until = w.now_ns() + 60 * SEC;
        let all = w.run_until(until, |w| started.iter().all(|s| jobs.is_done(w, s.2)));
        assert!(all, "seed {seed}: a change is never acknowledged; {:?}\n{}", w.fatal, w.trace(80));
        let mut sums = Vec::new();
        for (_, n, job) in &started {
            let sum = jobs.take::<Result<u64, RpcError>>(*job).expect("done").expect("nothing fails");
            sums.push((sum, *n));
        }
        sums.sort_unstable();
        let mut sum = 0;
        for (got, n) in sums {
            sum += n;
            assert_eq!(got, sum, "seed {seed}: executed twice, not at all, or served from another's record");
        }
    }
}

#[test]
fn a_silent_client_is_evicted_after_its_lease_and_what_it_held_goes() {
    let (mut w, _) = ledger(3);
    let c = add_client(&mut w, TARGET, 1, Role::Client);
    let tool = add_client(&mut w, TARGET, 9, Role::Tool);
    let mut jobs = Jobs::default();
    assert_eq!(jobs.run(&mut w, c, |a| add(a, 5)), Ok(5));
    w.run_for(60 * SEC);
    let state = param(&mut jobs, &mut w, tool, "obdfilter.*.num_exports");
    assert_eq!(state, ["1"], "pings keep it");
    w.kill(c);
    w.run_for(9 * SEC);
    assert_eq!(param(&mut jobs, &mut w, tool, "obdfilter.*.num_exports"), ["1"]);
    w.run_for(4 * SEC);
    assert_eq!(param(&mut jobs, &mut w, tool, "obdfilter.*.num_exports"), ["0"]);
    let gone = jobs.run(&mut w, tool, async |a| a.peer.call(&Statfs {}).await.expect("statfs").files_used);
    assert_eq!(gone, 1);
}

#[test]
fn after_a_restart_clients_come_back_and_who_does_not_is_evicted() {
    let (mut w, target) = ledger(4);
    let stays = add_client(&mut w, TARGET, 1, Role::Client);
    let leaves = add_client(&mut w, TARGET, 2, Role::Client);
    let mut jobs = Jobs::default();
    for c in [stays, leaves] {
        jobs.run(&mut w, c, |a| add(a, 5)).expect("added");
    }
    w.kill(leaves);
    w.kill(target);
    w.run_for(5 * SEC);
    w.start(target);
    w.run_for(8 * SEC);
    let tool = add_client(&mut w, TARGET, 9, Role::Tool);
    assert_eq!(param(&mut jobs, &mut w, tool, "*.*.num_exports"), ["2"], "a full lease from the start on");
    assert_eq!(param(&mut jobs, &mut w, tool, "*.*.instance"), ["2"]);
    assert_eq!(
        jobs.run(&mut w, stays, |a| add(a, 5)),
        Ok(15),
        "once it is known that nothing of the other is lost"
    );
    let evictions = jobs.run(&mut w, stays, async |a| a.evictions.get());
    assert_eq!(evictions, 0);
    assert_eq!(param(&mut jobs, &mut w, tool, "*.*.num_exports"), ["1"]);
}

/// A client goes on believing in the lease that it was told of, whatever the target is started with.
#[test]
fn after_a_restart_with_a_shorter_lease_the_longer_one_is_waited_for() {
    let mut w = World::new(4);
    let store = store(&mut w, TARGET, &[]);
    let lease_ms = Rc::new(Cell::new(20_000));
    let told = lease_ms.clone();
    let start = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
        Box::new(TargetIsland::<Ledger>::new(ctx, target_config(told.get()), config()))
    };
    let target = w.add(TARGET, Some(store), Box::new(start));
    w.start(target);
    let mut jobs = Jobs::default();
    let again = |w: &mut World, wait: u64| {
        w.kill(target);
        w.start(target);
        w.run_for(wait);
    };
    let comes_and_dies = |w: &mut World, jobs: &mut Jobs, uuid: u8| {
        let client = add_client(w, TARGET, uuid, Role::Client);
        jobs.run(w, client, |a| add(a, 5)).expect("added");
        w.kill(client);
    };
    let tool = add_client(&mut w, TARGET, 9, Role::Tool);
    let known = |w: &mut World, jobs: &mut Jobs| param(jobs, w, tool, "*.*.num_exports").concat();
    comes_and_dies(&mut w, &mut jobs, 1);
    lease_ms.set(5_000);
    again(&mut w, 18 * SEC);
    assert_eq!(known(&mut w, &mut jobs), "1");
    // It may still believe, and this start has to know as well.
    again(&mut w, 18 * SEC);
    assert_eq!(known(&mut w, &mut jobs), "1");
    w.run_for(4 * SEC);
    assert_eq!(known(&mut w, &mut jobs), "0");
    // From now on there is nobody who was told of the longer one.
    comes_and_dies(&mut w, &mut jobs, 2);
    again(&mut w, 4 * SEC);
    assert_eq!(known(&mut w, &mut jobs), "1");
    w.run_for(4 * SEC);
    assert_eq!(known(&mut w, &mut jobs), "0");
}

/// Whatever the length of the stop: the client's messages wait in the target's sockets and count.
#[test]
fn a_target_that_stood_still_evicts_nobody() {
    for ms in (7_000..14_000).step_by(100) {
        let (mut w, target) = ledger(ms);
        let c = add_client(&mut w, TARGET, 1, Role::Client);
        let mut jobs = Jobs::default();
        assert_eq!(jobs.run(&mut w, c, |a| add(a, 5)), Ok(5));
        let idle = w.rng().below(5 * SEC);
        w.run_for(idle);
        w.pause(target, true);
        w.run_for(ms * 1_000_000);
        w.pause(target, false);
        w.run_for(15 * SEC);
        assert_eq!(jobs.run(&mut w, c, |a| add(a, 5)), Ok(10));
        assert_eq!(jobs.run(&mut w, c, async |a| a.evictions.get()), 0, "{ms} ms\n{}", w.trace(40));
    }
}

/// A callback is under way when it stops: the acknowledgement waits in its sockets, behind what others have sent.
#[test]
fn a_target_that_stood_still_after_a_callback_evicts_nobody() {
    for step in 0..30 {
        let (mut w, target) = ledger(step);
        let c = add_client(&mut w, TARGET, 1, Role::Client);
        let other = add_client(&mut w, TARGET, 2, Role::Client);
        let mut jobs = Jobs::default();
        for client in [c, other] {
            assert!(jobs.run(&mut w, client, |a| add(a, 5)).is_ok());
        }
        let object = nacre_types::ObjectId { fid: nacre_types::Fid::ROOT, stripe: 0 };
        let called =
            jobs.start(&mut w, c, async move |a| a.peer.call(&Glimpse { object, laid: 0 }).await.is_ok());
        w.run_for(step * 20_000);
        w.pause(target, true);
        jobs.start(&mut w, other, |a| add(a, 5));
        w.run_for(10_200_000_000 + step * SEC / 10);
        w.pause(target, false);
        w.run_for(30 * SEC);
        assert!(jobs.is_done(&mut w, called));
        assert_eq!(jobs.run(&mut w, c, async |a| a.evictions.get()), 0, "step {step}\n{}", w.trace(40));
    }
}

#[test]
fn an_evicted_client_learns_it_and_goes_on() {
    let (mut w, _) = ledger(5);
    let c = add_client(&mut w, TARGET, 1, Role::Client);
    let tool = add_client(&mut w, TARGET, 9, Role::Tool);
    let mut jobs = Jobs::default();
    jobs.run(&mut w, c, |a| add(a, 5)).expect("added");
    let slow = jobs.start(&mut w, c, |a| add(a, SLOW));
    w.run_for(SEC / 10);
    let object = nacre_types::ObjectId { fid: nacre_types::Fid::ROOT, stripe: 1 };
    jobs.run(&mut w, tool, async move |a| {
        a.peer.call(&SyncObject { object, laid: 0 }).await.expect("evicted")
    });
    assert_eq!(jobs.run(&mut w, c, |a| add(a, 7)), Err(RpcError::Evicted), "called before it is known");
    assert_eq!(jobs.run(&mut w, c, |a| add(a, 7)), Ok(12));
    assert_eq!(jobs.run(&mut w, c, async |a| a.evictions.get()), 1);
    assert!(jobs.is_done(&mut w, slow));
    assert_eq!(jobs.take::<Result<u64, RpcError>>(slow), Some(Err(RpcError::Evicted)));
    w.run_for(5 * SEC);
    let total = jobs.run(&mut w, c, async |a| a.peer.call(&Statfs {}).await.expect("statfs").bytes_total);
    assert_eq!(total, 12, "a task of an evicted export that still waited never commits");
}

#[test]
fn a_target_that_is_started_anew_gets_a_new_export() {
    let (mut w, _) = ledger(6);
    let c = add_client(&mut w, TARGET, 1, Role::Target);
    let mut jobs = Jobs::default();
    jobs.run(&mut w, c, |a| add(a, 5)).expect("added");
    w.kill(c);
    w.run_for(SEC);
    w.start(c);
    assert_eq!(
        jobs.run(&mut w, c, |a| add(a, 5)),
        Ok(10),
        "xids begin anew, and nothing is taken for a resend"
    );
    let gone = jobs.run(&mut w, c, async |a| a.peer.call(&Statfs {}).await.expect("statfs").files_used);
    assert_eq!(gone, 1);
}

#[test]
fn callbacks_arrive_once_and_in_order_over_broken_connections() {
    let (mut w, target) = ledger(7);
    let c = add_client(&mut w, TARGET, 1, Role::Client);
    let mut jobs = Jobs::default();
    for _ in 0..40 {
        let object = nacre_types::ObjectId { fid: nacre_types::Fid::ROOT, stripe: 0 };
        jobs.start(&mut w, c, async move |a| a.peer.call(&Glimpse { object, laid: 0 }).await.is_ok());
        w.run_for(2_000_000);
        if w.rng().below(4) == 0 {
            w.cut_some_link(target);
        }
    }
    w.run_for(5 * SEC);
    let seen = jobs.run(&mut w, c, async |a| a.callbacks.borrow().clone());
    assert!(seen.len() >= 40, "a glimpse that was resent calls back again: {seen:?}");
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    assert_eq!(*seen.last().expect("some"), seen.len() as u64, "none is missing: {seen:?}");
}

#[test]
fn parameters_are_found_by_pattern_and_set() {
    let (mut w, _) = ledger(8);
    let tool = add_client(&mut w, TARGET, 9, Role::Tool);
    let mut jobs = Jobs::default();
    assert_eq!(param(&mut jobs, &mut w, tool, "obdfilter.demo-OST*.colour"), ["blue"]);
    let mut set = |name: &'static str, value: &'static str| {
        jobs.run(&mut w, tool, async move |a| {
            let set = SetParam { name: name.into(), value: value.into() };
            let reply = a.peer.call(&set).await.expect("set");
            (reply.matched, reply.refused)
        })
    };
    assert_eq!(set("*.*.colour", "red"), (1, String::new()));
    assert!(set("*.*.colour", "green").1.contains("Invalid argument (blue or red)"));
    assert_eq!(set("*.*.max_mod_rpcs_in_flight", "16"), (1, String::new()));
    assert!(set("*.*.max_mod_rpcs_in_flight", "0").1.contains("out of range (1 to 512 requests)"));
    assert_eq!(set("*.*.nothing", "1").0, 0);
    assert_eq!(param(&mut jobs, &mut w, tool, "*.*.max_mod_rpcs_in_flight"), ["16"]);
}

#[test]
fn fault_points_are_set_by_name_or_number_and_never_in_a_release_build() {
    for fault_points in [true, false] {
        let mut w = World::new(12);
        let store = store(&mut w, TARGET, &[]);
        let start = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
            let config_of_build = TargetConfig { fault_points, ..target_config(10_000) };
            Box::new(TargetIsland::<Ledger>::new(ctx, config_of_build, config()))
        };
        let target = w.add(TARGET, Some(store), Box::new(start));
        w.start(target);
        let tool = add_client(&mut w, TARGET, 9, Role::Tool);
        let mut jobs = Jobs::default();
        let (mut refusals, mut seen) = (Vec::new(), Vec::new());
        for (name, value) in [
            ("fail_val", "2"),
            ("fail_loc", "0x3"),
            ("fail_loc", "crash"),
            ("fail_loc", "0"),
            ("fail_loc", "barrier"),
        ] {
            let set = SetParam { name: format!("*.*.{name}"), value: value.into() };
            let reply = jobs.run(&mut w, tool, async move |a| a.peer.call(&set).await.expect("acknowledged"));
            refusals.push(reply.refused);
            seen.extend(param(&mut jobs, &mut w, tool, "*.*.fail_loc"));
        }
        let listed = jobs.run(&mut w, tool, async |a| {
            a.peer.call(&GetParams { pattern: "*.*.fail_*".into() }).await.expect("params").params
        });
        assert_eq!(listed.iter().map(|p| p.writable).collect::<Vec<_>>(), [fault_points; 2]);
        if fault_points {
            assert_eq!(seen, ["0", "reply_lost", "reply_lost", "0", "barrier"]);
            assert_eq!(refusals.iter().filter(|r| r.is_empty()).count(), 4, "{refusals:?}");
            assert!(refusals[2].contains("no such fault point"), "{refusals:?}");
        } else {
            assert_eq!(seen, ["0"; 5]);
            assert!(refusals.iter().all(|r| r.contains("this is a release build")), "{refusals:?}");
        }
    }
}

#[test]
fn a_planned_stop_completes_what_runs_and_the_rest_goes_to_the_next_instance() {
    let (mut w, target) = ledger(9);
    let c = add_client(&mut w, TARGET, 1, Role::Client);
    let mut jobs = Jobs::default();
    jobs.run(&mut w, c, |a| add(a, 1)).expect("added");
    let slow = jobs.start(&mut w, c, |a| add(a, SLOW));
    w.run_for(SEC / 2);
    w.tell(target, Event::Stop);
    let late = jobs.start(&mut w, c, |a| add(a, 3));
    let until = w.now_ns() + 10 * SEC;
    assert!(w.run_until(until, |w| !w.take_stopped().is_empty()));
    w.run_for(SEC / 10);
    assert!(jobs.is_done(&mut w, slow) && !jobs.is_done(&mut w, late));
    w.kill(target);
    w.start(target);
    w.run_for(5 * SEC);
    assert!(jobs.is_done(&mut w, late));
    assert_eq!(jobs.take::<Result<u64, RpcError>>(slow), Some(Ok(1 + SLOW)));
    assert_eq!(jobs.take::<Result<u64, RpcError>>(late), Some(Ok(4 + SLOW)));
}

/// Sends frames as they are and tells what comes back; acknowledges no callback.
struct Raw {
    ctx: Rc<Ctx>,
    frames: Vec<Frame>,
    /// Pings each second.
    lives: bool,
}
impl Logic for Raw {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Start => {
                let (conn, target) = (ConnId(1), TARGET.to_string());
                self.ctx.push(Effect::Open { conn, address: World::address(TARGET), target });
            }
            Event::Opened { conn } => {
                for frame in self.frames.drain(..) {
                    self.ctx.push(Effect::Send { conn, frame });
                }
                let ctx = self.ctx.clone();
                let pings = if self.lives { 60 } else { 0 };
                self.ctx.spawn(async move {
                    for second in 0..pings {
                        ctx.sleep(std::time::Duration::from_secs(1)).await;
                        let mut h = Header::new(Kind::Request, Opcode::Ping.number());
                        (h.xid, h.epoch) = (Xid(100 + second), ConnEpoch(1));
                        ctx.push(Effect::Send { conn, frame: Frame::new(h, Vec::new()) });
                    }
                });
            }
            Event::Frame { frame, .. } => {
                let ending = if frame.header.has(nacre_wire::flags::LEASE_ENDING) { " ending" } else { "" };
                let said = format!("status {}{ending}", frame.header.status.number());
                self.ctx.push(Effect::Door(Box::new(said)));
            }
            Event::Closed { .. } => self.ctx.push(Effect::Door(Box::new("closed".to_string()))),
            _ => {}
        }
    }
}

fn connect(role: Role) -> Frame {
    use nacre_types::Codec;
    let body = nacre_wire::target::Connect {
        client: nacre_types::ClientUuid([3; 16]),
        role,
        secret: nacre_types::Secret::new([3; 16]),
        name: "raw".into(),
        features: 1,
        max_mod_rpcs: 1,
        generation: nacre_types::Generation(0),
        known: None,
        replaced: 0,
        instance: 0,
    };
    let mut h = Header::new(Kind::Request, Opcode::Connect.number());
    (h.xid, h.epoch) = (Xid(1), ConnEpoch(1));
    Frame::new(h, body.to_vec())
}

/// It lives and replies, and yet does not take in what it is told: its lease ends, it is told so, then it is evicted.
#[test]
fn a_client_that_does_not_acknowledge_a_callback_loses_its_lease() {
    use nacre_types::Codec;
    let (mut w, _) = ledger(12);
    w.run_for(SEC);
    let object = nacre_types::ObjectId { fid: nacre_types::Fid::ROOT, stripe: 0 };
    let mut h = Header::new(Kind::Request, Opcode::Glimpse.number());
    (h.xid, h.epoch) = (Xid(2), ConnEpoch(1));
    let frames = vec![connect(Role::Client), Frame::new(h, Glimpse { object, laid: 0 }.to_vec())];
    let start = w.now_ns();
    let raw = move |ctx: &Rc<Ctx>| {
        Box::new(Raw { ctx: ctx.clone(), frames: frames.clone(), lives: true }) as Box<dyn Logic>
    };
    let node = w.add("raw", None, Box::new(raw));
    w.start(node);
    let (mut ending, mut closed) = (None, None);
    while closed.is_none() && w.now_ns() < start + 60 * SEC {
        w.run_for(SEC / 10);
        while let Some((_, said)) = w.hear() {
            let said = *said.downcast::<String>().expect("text");
            let at = w.now_ns() - start;
            match said.as_str() {
                "status 0 ending" => ending = ending.or(Some(at)),
                "closed" => closed = Some(at),
                _ => {}
            }
        }
    }
    let (ending, closed) = (ending.expect("told"), closed.expect("evicted"));
    assert!((10 * SEC..22 * SEC).contains(&ending), "{ending}");
    assert!((ending + 8 * SEC..ending + 13 * SEC).contains(&closed), "{ending} {closed}");
}

#[test]
fn hostile_messages_are_refused_and_their_connection_closed() {
    let request = |opcode: u16, xid: u64, tag: u16, body: &[u8]| {
        let mut h = Header::new(Kind::Request, opcode);
        (h.xid, h.epoch, h.tag) = (Xid(xid), ConnEpoch(1), nacre_types::Tag(tag));
        Frame::new(h, body.to_vec())
    };
    let reserve = Opcode::Reserve.number();
    let cases: [(&str, Vec<Frame>, &[&str]); 6] = [
        ("before connect", vec![request(reserve, 2, 1, &[])], &["closed"]),
        ("a reply", vec![Frame::new(Header::new(Kind::Reply, 1), vec![])], &["closed"]),
        (
            "connect without a body",
            vec![{
                let mut f = connect(Role::Tool);
                f.body = Default::default();
                f
            }],
            &["closed"],
        ),
        ("unknown opcode", vec![connect(Role::Tool), request(0xfff, 2, 0, &[])], &["status 0", "status 95"]),
        (
            "no tag",
            vec![connect(Role::Tool), request(reserve, 2, 0, &[])],
            &["status 0", "status 71", "closed"],
        ),
        (
            "short body",
            vec![connect(Role::Tool), request(reserve, 2, 1, &[1])],
            &["status 0", "status 71", "closed"],
        ),
    ];
    for (what, frames, expected) in cases {
        let (mut w, target) = ledger(10);
        w.run_for(SEC);
        let node = w.add(
            "raw",
            None,
            Box::new(move |ctx| Box::new(Raw { ctx: ctx.clone(), frames: frames.clone(), lives: false })),
        );
        w.start(node);
        w.run_for(SEC);
        let mut heard = Vec::new();
        while let Some((_, said)) = w.hear() {
            heard.push(*said.downcast::<String>().expect("text"));
        }
        assert_eq!(heard, expected, "{what}");
        assert!(w.is_up(target));
        let _ledger: Option<Ledger> = None;
    }
}
