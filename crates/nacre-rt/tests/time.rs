//! An island knows the time from its first moment.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
use common::{Puppet, Report, next, node, reports};
use nacre_node::{Ctx, Effect, Event, Logic, Peer, PeerConfig, Peers};
use nacre_types::ClientUuid;
use nacre_wire::target::Role;
use std::rc::Rc;

/// Connects as soon as it is built, and tells of it when it is asked.
struct Connecting {
    ctx: Rc<Ctx>,
    peers: Rc<Peers>,
    peer: Rc<Peer>,
}
impl Connecting {
    fn new(ctx: &Rc<Ctx>) -> Self {
        let peers = Rc::new(Peers::default());
        let config = PeerConfig {
            client: ClientUuid([1; 16]),
            role: Role::Client,
            secret: nacre_types::Secret::new([3; 16]),
            name: "test".into(),
            target: "silent".into(),
            addresses: vec!["local".into()],
            max_mod_rpcs: 1,
            known: None,
            replaced: 0,
            instance: 0,
        };
        Self { peer: Peer::new(ctx, &peers, config), ctx: ctx.clone(), peers }
    }
}
impl Logic for Connecting {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        if let Some(Event::Door(_)) = self.peers.handle(event) {
            let since = self.peer.with_import(|import| import.away_since()).map_or(0, |since| since.0);
            let text = format!("{since} {:?}", self.peer.last_error());
            self.ctx.push(Effect::Door(Box::new(Report::Text(text))));
        }
    }
}

#[test]
fn a_connection_that_is_begun_while_its_island_is_built_begins_then() {
    let (node, _) = node(1);
    let (sink, heard) = reports();
    node.add_island("silent", None, None, Puppet::make(false)).unwrap();
    let before = nacre_rt::now();
    let make = |ctx: &Rc<Ctx>| -> Box<dyn Logic> { Box::new(Connecting::new(ctx)) };
    let island = node.add_island("a", None, Some(sink), make).unwrap();
    island.deliver(Event::Door(Box::new(())));
    let Report::Text(text) = next(&heard) else { panic!("a text") };
    let (since, error) = text.split_once(' ').unwrap();
    // Counted from the boot of the machine, the attempt would be over before it is made.
    assert_eq!(error, "None");
    assert!(since.parse::<u64>().unwrap() >= before.0, "away since {since}, built after {}", before.0);
    node.shutdown();
}
