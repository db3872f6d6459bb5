//! The network between islands: connections that promise order or their end, and the faults of these connections.
//!
//! Invariants: frames of one direction of a connection arrive in order or not at all, as long as there is no [`Noise`];
//! two connections have no order between them; messages in transit are lost when their connection breaks. In the direction
//! of a partition neither frames nor the end of a connection arrive; when the partition ends, the waiting frames arrive in
//! order, unless their connection has broken meanwhile.

use crate::world::{Action, NodeId, World};
use nacre_node::{ConnId, Event};
use nacre_wire::Frame;

pub(crate) type LinkId = u64;

/// Faults of single frames, as a proxy or a broken network causes them: one in so many, 0 = none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Noise {
    /// It never arrives; its connection ends some time later, others may still come through until then.
    pub drop_one_in: u64,
    /// A copy comes later, behind what was sent after it.
    pub double_one_in: u64,
    /// It comes later, behind what was sent after it.
    pub swap_one_in: u64,
}

/// One end of a connection: a plain value.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) node: NodeId,
    pub(crate) life: u64,
    pub(crate) conn: ConnId,
}

pub(crate) struct Link {
    ends: [End; 2],
    /// When the last thing sent to each end arrives.
    busy_until: [u64; 2],
    cut: bool,
}

impl World {
    // ---- faults

    /// Breaks one of an island's connections; both ends notice some time later.
    pub fn cut_some_link(&mut self, id: NodeId) {
        let links: Vec<LinkId> = self.nodes[id.0].links.values().copied().collect();
        if !links.is_empty() {
            let chosen = links[self.rng.below(links.len() as u64) as usize];
            self.note(id, || "connection lost".into());
            self.cut(chosen, "connection reset");
        }
    }
    /// Breaks the connections between two islands.
    pub fn cut_between(&mut self, a: NodeId, b: NodeId) {
        let of = |link: &Link| link.ends.map(|end| end.node);
        let found = self.links.iter().filter(|(_, link)| of(link) == [a, b] || of(link) == [b, a]);
        let links: Vec<LinkId> = found.map(|(id, _)| *id).collect();
        self.note(a, || "connection lost".into());
        links.into_iter().for_each(|link| self.cut(link, "connection reset"));
    }
    /// Blocks messages from one process to another.
    pub fn block(&mut self, from: NodeId, to: NodeId) {
        let name = self.name(to).to_string();
        self.note(from, || format!("its messages do not reach {name}"));
        self.blocked.insert((from, to));
        self.last_fault_ns = self.now_ns;
    }
    /// The same for a while.
    pub fn block_for(&mut self, from: NodeId, to: NodeId, ns: u64) {
        self.block(from, to);
        self.push_action(self.now_ns + ns, Action::Heal { from, to });
    }
    /// Lets messages pass again.
    pub fn heal(&mut self, from: NodeId, to: NodeId) {
        if !self.blocked.remove(&(from, to)) {
            return;
        }
        let name = self.name(to).to_string();
        self.note(from, || format!("its messages reach {name} again"));
        self.last_fault_ns = self.now_ns;
        let at = self.now_ns + self.delay_ns();
        let (free, held) =
            std::mem::take(&mut self.held).into_iter().partition(|(f, t, _)| (*f, *t) == (from, to));
        self.held = held;
        let free: Vec<(NodeId, NodeId, Action)> = free;
        for (_, _, action) in free {
            if let Action::Deliver { link, to, .. } = &action
                && let Some(link) = self.links.get_mut(link)
            {
                link.busy_until[*to] = link.busy_until[*to].max(at);
            }
            self.push_action(at, action);
        }
    }
    /// One-way partition: whatever is sent to this island waits; what it sends arrives.
    pub fn deafen(&mut self, id: NodeId, deaf: bool) {
        for other in (0..self.nodes.len()).map(NodeId).filter(|other| *other != id) {
            if deaf { self.block(other, id) } else { self.heal(other, id) }
        }
    }
    /// Ends every connection of an island.
    pub(crate) fn cut_all(&mut self, id: NodeId, reason: &str) {
        let links: Vec<LinkId> = self.nodes[id.0].links.values().copied().collect();
        for link in links {
            self.cut(link, reason);
        }
    }
    pub(crate) fn cut(&mut self, id: LinkId, reason: &str) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if std::mem::replace(&mut link.cut, true) {
            return;
        }
        let ends = link.ends;
        for (side, end) in ends.iter().enumerate() {
            let at = self.now_ns + self.delay_ns();
            let event = Event::Closed { conn: end.conn, reason: reason.to_string(), absent: false };
            self.push_action(at, Action::Deliver { link: id, to: side, event });
        }
    }

    // ---- effects of islands

    pub(crate) fn send(&mut self, id: NodeId, conn: ConnId, frame: Frame) {
        let Some(&link_id) = self.nodes[id.0].links.get(&conn) else { return };
        let (delay, noise, now) = (self.delay_ns(), self.faults.noise, self.now_ns);
        let mut strikes = |one_in: u64| one_in > 0 && self.rng.below(one_in) == 0;
        let (drop, double, swap) =
            (strikes(noise.drop_one_in), strikes(noise.double_one_in), strikes(noise.swap_one_in));
        let late = self.delay_ns() + self.rng.below(3_000_000);
        let Some(link) = self.links.get_mut(&link_id) else { return };
        let to = usize::from(link.ends[0].node == id && link.ends[0].conn == conn);
        let is_far = self.faults.far.is_some_and(|far| link.ends.iter().any(|end| end.node == far));
        let delay = if is_far { self.faults.far_us * 1000 } else { delay };
        let mut at = link.busy_until[to].max(now + delay);
        if swap {
            at += late;
        } else {
            link.busy_until[to] = at;
        }
        let end = link.ends[to];
        if self.tracing {
            let what = crate::describe::frame(&frame);
            let to = self.nodes[end.node.0].name.clone();
            let fate = match (drop, double, swap) {
                (true, _, _) => ", lost",
                (_, true, _) => ", doubled",
                (_, _, true) => ", overtaken",
                _ => "",
            };
            self.note(id, move || {
                format!("-> {to}: {what} (arrives {:.3} ms{fate})", (at - 1_000_000_000) as f64 / 1e6)
            });
        }
        if drop {
            return self.push_action(at + late, Action::Lose { link: link_id });
        }
        if double {
            let event = Event::Frame { conn: end.conn, frame: frame.clone() };
            self.push_action(at + late, Action::Deliver { link: link_id, to, event });
        }
        let event = Event::Frame { conn: end.conn, frame };
        self.push_action(at, Action::Deliver { link: link_id, to, event });
    }

    pub(crate) fn close(&mut self, id: NodeId, conn: ConnId) {
        let Some(link_id) = self.nodes[id.0].links.remove(&conn) else {
            self.given_up.insert((id, conn)); // it does not stand yet
            return;
        };
        let delay = self.delay_ns();
        let now = self.now_ns;
        let Some(link) = self.links.get_mut(&link_id) else { return };
        let to = usize::from(link.ends[0].node == id && link.ends[0].conn == conn);
        let at = link.busy_until[to].max(now + delay);
        link.busy_until[to] = at;
        let event =
            Event::Closed { conn: link.ends[to].conn, reason: "closed by peer".into(), absent: false };
        self.push_action(at, Action::Deliver { link: link_id, to, event });
    }

    pub(crate) fn connect(&mut self, from: End, address: String, target: String) {
        if self.nodes[from.node.0].life != from.life || self.given_up.remove(&(from.node, from.conn)) {
            return;
        }
        let machine = self.nodes.iter().position(|n| n.serves(&target, &address));
        if let Some(to) = machine.map(NodeId) {
            // It takes both ways.
            for way in [(from.node, to), (to, from.node)] {
                if self.blocked.contains(&way) {
                    return self.held.push((way.0, way.1, Action::Connect { from, address, target }));
                }
            }
        }
        let Some(found) = machine.filter(|&n| self.is_up(NodeId(n))) else {
            let reason = format!("{address}: connection refused");
            return self.enter(from.node, Event::Closed { conn: from.conn, reason, absent: true });
        };
        let to = NodeId(found);
        let (from_name, origin) = (self.nodes[from.node.0].name.clone(), self.nodes[from.node.0].origin);
        let node = &mut self.nodes[found];
        let conn = ConnId(ConnId::INBOUND | node.next_inbound);
        node.next_inbound += 1;
        let far = End { node: to, life: node.life, conn };
        let id = self.next_link;
        self.next_link += 1;
        let opened = self.now_ns + self.delay_ns();
        self.links.insert(id, Link { ends: [from, far], busy_until: [opened, self.now_ns], cut: false });
        self.nodes[found].links.insert(conn, id);
        self.nodes[from.node.0].links.insert(from.conn, id);
        self.enter(to, Event::Accepted { conn, from: from_name, origin });
        let event = Event::Opened { conn: from.conn };
        self.push_action(opened, Action::Deliver { link: id, to: 0, event });
    }

    pub(crate) fn deliver(&mut self, id: LinkId, to: usize, event: Event) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let is_end = matches!(event, Event::Closed { .. });
        // Frames in flight are lost when the connection breaks.
        if link.cut && !is_end {
            return;
        }
        let (end, from) = (link.ends[to], link.ends[1 - to].node);
        if self.blocked.contains(&(from, end.node)) {
            return self.held.push((from, end.node, Action::Deliver { link: id, to, event }));
        }
        let node = &mut self.nodes[end.node.0];
        if node.life != end.life || !node.links.contains_key(&end.conn) {
            return;
        }
        if is_end {
            node.links.remove(&end.conn);
        }
        self.enter(end.node, event);
    }

    /// The next frame for an island that has taken in `taken` events at this entry, if it is to be taken in as well.
    pub(super) fn next_frame(&mut self, id: NodeId, taken: usize) -> Option<Event> {
        /// As of the real driver.
        const TAKEN_MAX: usize = 4;
        let until = self.now_ns + 1000 * self.faults.joined_us;
        let (at, action) = self.queue.first_key_value().filter(|((at, _), _)| *at < until)?;
        let Action::Deliver { link, to, event: Event::Frame { .. } } = action else { return None };
        let is_for_it = self.links.get(link).is_some_and(|of| {
            let (end, from) = (of.ends[*to], of.ends[1 - *to].node);
            !of.cut
                && end.node == id
                && end.life == self.nodes[id.0].life
                && !self.blocked.contains(&(from, id))
        });
        if taken >= TAKEN_MAX || !is_for_it {
            return None;
        }
        let at = *at;
        match self.queue.remove(&at) {
            Some(Action::Deliver { event, .. }) => Some(event),
            _ => None,
        }
    }

    pub(crate) fn delay_ns(&mut self) -> u64 {
        let (least, most) = self.faults.delay_us;
        let slow = self.faults.slow_one_in > 0 && self.rng.below(self.faults.slow_one_in) == 0;
        let most = if slow { self.faults.slow_us.max(most) } else { most };
        1000 * (least + self.rng.below(most.saturating_sub(least).max(1)))
    }
}
