//! Opening connections: within the process when the address is our own, else over a socket.

use crate::conn::{Conn, Link, Out};
use crate::driver::{self, Work};
use crate::island::IslandRef;
use crate::node::{Node, Shared};
use crate::socket;
use nacre_net::Address;
use nacre_node::Origin;
use std::sync::Arc;

/// Carries out [`nacre_node::Effect::Open`]; `conn` is known to the island and its outbox is held.
pub(crate) fn open(node: &Arc<Shared>, island: &IslandRef, conn: Arc<Conn>, address: &str, target: &str) {
    let parsed = match address.parse::<Address>() {
        Ok(parsed) => parsed,
        Err(error) => return driver::push_closed(island, conn.id, error.to_string()),
    };
    if parsed == Address::Local || node.listens_on(&parsed) {
        open_local(node, island, &conn, target);
    } else {
        socket::connect(node, island, conn, parsed, target);
    }
}

/// Two ends that name each other. The first item in the new end's outbox is the notification of the opener, so that it
/// comes before every frame.
fn open_local(node: &Arc<Shared>, opener: &IslandRef, near: &Arc<Conn>, target: &str) {
    let Some(peer) = Node::from(node.clone()).island(target).filter(IslandRef::is_alive) else {
        let reason = format!("no target {target} is served here");
        return driver::push_absent(opener, near.id, reason);
    };
    let back = Link::Local { island: opener.downgrade(), conn: near.id };
    let far = Conn::linked(node.inbound_id(), back, usize::MAX);
    let _fresh = far.push(Out::Opened);
    let linked = near.link.set(Link::Local { island: peer.downgrade(), conn: far.id });
    assert!(linked.is_ok(), "a connection is opened once");
    driver::push(Work::Accept {
        island: peer,
        conn: far.clone(),
        from: opener.name().to_owned(),
        origin: Origin::Process,
    });
    driver::push(Work::Drain(far));
    // After the notification of the peer; otherwise its first frame would come from an unknown connection.
    driver::push(Work::StartSending(near.clone()));
}
