//! Clients that know of several slots and those that do not, and the feature that other servers must know because of the
//! former, as `lr_reader` shows it.

mod common;

use common::{Jobs, Ledger, SEC, TARGET, add, add_client, config, store, target_config};
use nacre_node::{ConnId, Ctx, Effect, Event, Logic};
use nacre_sim::{NodeId, World};
use nacre_target::TargetIsland;
use nacre_target::last_rcvd::{LastRcvd, render};
use nacre_types::{ClientUuid, Codec, ConnEpoch, Generation, Tag, Xid};
use nacre_wire::ost::Reserve;
use nacre_wire::target::{Connect, ConnectReply, RecoveryRows, Role, features};
use nacre_wire::{Frame, Header, Kind, Opcode};
use std::rc::Rc;

/// Connects with the given features, then uses one tag after the other.
struct Raw {
    ctx: Rc<Ctx>,
    features: u64,
    tags: Vec<u16>,
}
impl Raw {
    fn send(&self, opcode: Opcode, xid: u64, tag: u16, body: Vec<u8>) {
        let mut header = Header::new(Kind::Request, opcode.number());
        (header.xid, header.epoch, header.tag) = (Xid(xid), ConnEpoch(1), Tag(tag));
        self.ctx.push(Effect::Send { conn: ConnId(1), frame: Frame::new(header, body) });
    }
}
impl Logic for Raw {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        let say = |what: String| self.ctx.push(Effect::Door(Box::new(what)));
        match event {
            Event::Start => {
                let (address, target) = (World::address(TARGET), TARGET.to_string());
                self.ctx.push(Effect::Open { conn: ConnId(1), address, target });
            }
            Event::Opened { .. } => {
                let connect = Connect {
                    client: ClientUuid([3; 16]),
                    role: Role::Client,
                    secret: nacre_types::Secret::new([3; 16]),
                    name: "raw".into(),
                    features: self.features,
                    max_mod_rpcs: 7,
                    generation: Generation(0),
                    known: None,
                    replaced: 0,
                    instance: 0,
                };
                self.send(Opcode::Connect, 1, 0, connect.to_vec());
            }
            Event::Frame { frame, .. } if frame.header.opcode == Opcode::Connect.number() => {
                let reply = ConnectReply::from_slice(&frame.body).expect("a reply");
                say(format!("slots {}, features {}", reply.max_mod_rpcs, reply.features));
                for (xid, tag) in (2..).zip(self.tags.clone()) {
                    self.send(Opcode::Reserve, xid, tag, Reserve { objects: 1 }.to_vec());
                }
            }
            Event::Frame { frame, .. } => {
                say(format!("tag {}: {}", frame.header.tag.0, frame.header.status.number()))
            }
            Event::Closed { .. } => say("closed".into()),
            _ => {}
        }
    }
}

fn add_raw(w: &mut World, features: u64, tags: Vec<u16>) -> NodeId {
    let make = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
        Box::new(Raw { ctx: ctx.clone(), features, tags: tags.clone() })
    };
    let node = w.add("raw", None, Box::new(make));
    w.start(node);
    node
}
fn heard(w: &mut World) -> Vec<String> {
    core::iter::from_fn(|| w.hear()).map(|(_, said)| *said.downcast::<String>().expect("text")).collect()
}

#[test]
fn a_client_without_the_feature_has_one_slot_and_two_in_reserve() {
    let cases: [(u64, Vec<u16>, &[&str]); 3] = [
        (0, vec![1, 2, 3], &["slots 1, features 0", "tag 1: 0", "tag 2: 0", "tag 3: 0"]),
        (0, vec![4], &["slots 1, features 0", "tag 4: 71", "closed"]),
        (features::MULTI_MOD_RPCS, vec![10, 11], &["slots 8, features 1", "tag 11: 71", "closed"]),
    ];
    for (known, tags, expected) in cases {
        let (mut w, _) = common::ledger(20);
        w.run_for(SEC);
        add_raw(&mut w, known, tags);
        w.run_for(SEC);
        let mut heard = heard(&mut w);
        // Refusals go before what is being executed.
        heard.retain(|line| line != "tag 10: 0");
        // What is executed side by side ends in any order.
        heard.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(heard, expected);
    }
}

fn ledger(seed: u64) -> (World, NodeId) {
    let mut world = World::new(seed);
    let store = store(&mut world, TARGET, &[]);
    let start = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
        Box::new(TargetIsland::<Ledger>::new(ctx, target_config(10_000), config()))
    };
    let target = world.add(TARGET, Some(store), Box::new(start));
    world.start(target);
    (world, target)
}

/// The line of `lr_reader` about what another server must know.
fn incompat(w: &mut World, jobs: &mut Jobs, tool: NodeId) -> String {
    let page = jobs.run(w, tool, async |a| {
        let from = bytes::Bytes::new();
        a.peer.call(&RecoveryRows { replies: false, from }).await.expect("readable")
    });
    let header = LastRcvd {
        name: page.name,
        incompat: page.incompat,
        last_transaction: page.last_transaction,
        target_index: page.target_index,
        mount_count: page.mount_count,
    };
    let text = render(&header, None, None);
    let line = text.lines().find(|l| l.contains("feature_incompat")).expect("the line");
    line.trim().to_string()
}
const CLEAR: &str = "feature_incompat: 0x0";
const SET: &str = "feature_incompat: 0x400";

#[test]
fn the_feature_comes_with_the_first_client_of_several_slots_and_goes_with_the_last() {
    let (mut w, target) = ledger(21);
    let mut jobs = Jobs::default();
    let tool = add_client(&mut w, TARGET, 9, Role::Tool);
    assert_eq!(incompat(&mut w, &mut jobs, tool), CLEAR);
    let raw = add_raw(&mut w, 0, vec![1]);
    w.run_for(SEC);
    assert_eq!(heard(&mut w), ["slots 1, features 0", "tag 1: 0"]);
    assert_eq!(incompat(&mut w, &mut jobs, tool), CLEAR, "one slot is what every release knows");
    w.kill(raw);
    let clients = [1, 2].map(|n| add_client(&mut w, TARGET, n, Role::Client));
    for client in clients {
        jobs.run(&mut w, client, |a| add(a, 5)).expect("added");
    }
    assert_eq!(incompat(&mut w, &mut jobs, tool), SET);
    w.kill(clients[0]);
    w.run_for(15 * SEC);
    assert_eq!(incompat(&mut w, &mut jobs, tool), SET, "there is one left");
    w.kill(target);
    w.start(target);
    assert_eq!(incompat(&mut w, &mut jobs, tool), SET, "its records are read with several slots");
    w.kill(clients[1]);
    w.run_for(15 * SEC);
    assert_eq!(incompat(&mut w, &mut jobs, tool), CLEAR);
    w.kill(target);
    w.start(target);
    assert_eq!(incompat(&mut w, &mut jobs, tool), CLEAR, "it is the row that is cleared");
}

#[test]
fn during_a_recovery_the_feature_stays() {
    let (mut w, target) = ledger(22);
    let mut jobs = Jobs::default();
    let client = add_client(&mut w, TARGET, 1, Role::Client);
    jobs.run(&mut w, client, |a| add(a, 5)).expect("added");
    w.run_for(2 * SEC);
    w.kill(client);
    w.kill(target);
    w.start(target);
    let tool = add_client(&mut w, TARGET, 9, Role::Tool);
    w.run_for(5 * SEC);
    assert_eq!(incompat(&mut w, &mut jobs, tool), SET, "it is in recovery: the client may come");
    w.run_for(10 * SEC);
    assert_eq!(incompat(&mut w, &mut jobs, tool), CLEAR);
}
