//! Mounts that cache under inode-bit locks, over a network that delays every message on its own.
//!
//! The server has a version for every bit of every inode. A read captures versions between its claim and its reply; a
//! mount serves from its cache what a lock covers. Nothing that it serves may be older than a change of another mount.

mod support;

use nacre_dlm::client::{EpochChange, GrantedInodeLocks, InodeCancel};
use nacre_dlm::policy::{InodeBits, InodeMode};
use nacre_dlm::server::{
    InodeClaim, InodeGrant, InodeLockEffect, InodeLocks, InodeRevoke, RevokeAck, Ticket,
};
use nacre_types::{ConnEpoch, Fid, Generation, Instant, SeededHash};
use std::collections::BTreeMap;
use std::time::Duration;
use support::Rng;

const PR: InodeMode = InodeMode::Pr;

fn fid(n: u64) -> Fid {
    Fid::from_ino((0x100 << 24) + 1 + n)
}

impl Rng {
    fn bits(&mut self) -> InodeBits {
        InodeBits::from_number((self.below(16) & self.below(16)) as u16).expect("eight bits")
    }
}

type Versions = BTreeMap<InodeBits, u64>;

/// A message on its way, on the connection epoch on which it was sent.
enum Message {
    Grant { fid: Fid, grant: InodeGrant, versions: Versions },
    Revoke(InodeRevoke),
    Ack { number: u64 },
    Cancel(InodeCancel),
}

/// A read between its claim and its reply.
struct Read {
    mount: usize,
    epoch: ConnEpoch,
    claim: InodeClaim,
    versions: Option<Versions>,
}

struct Change {
    mount: usize,
    fid: Fid,
    bits: InodeBits,
    ticket: Option<Ticket>,
}

struct Mount {
    epoch: ConnEpoch,
    locks: GrantedInodeLocks,
    cache: BTreeMap<(Fid, InodeBits), u64>,
    /// The versions that its own changes made: replies to reads from before do not replace them.
    own: BTreeMap<(Fid, InodeBits), u64>,
}

struct Cluster {
    rng: Rng,
    now: Instant,
    server: InodeLocks,
    versions: BTreeMap<(Fid, InodeBits), u64>,
    mounts: Vec<Mount>,
    /// Messages to and from each mount.
    network: Vec<(usize, ConnEpoch, Message)>,
    reads: Vec<Read>,
    changes: Vec<Change>,
    served: u64,
}

impl Cluster {
    fn new(seed: u64, mounts: usize, limit: usize) -> Self {
        let mount = |_| Mount {
            epoch: ConnEpoch::default(),
            locks: GrantedInodeLocks::new(limit, SeededHash::new(1)),
            cache: BTreeMap::new(),
            own: BTreeMap::new(),
        };
        Self {
            rng: Rng(seed),
            now: Instant(0),
            server: InodeLocks::new(1000),
            versions: BTreeMap::new(),
            mounts: (0..mounts).map(mount).collect(),
            network: Vec::new(),
            reads: Vec::new(),
            changes: Vec::new(),
            served: 0,
        }
    }
    fn export(mount: usize) -> Generation {
        Generation(mount as u32 + 1)
    }
    fn version(&self, fid: Fid, bit: InodeBits) -> u64 {
        self.versions.get(&(fid, bit)).copied().unwrap_or(0)
    }
    fn send(&mut self, mount: usize, message: Message) {
        self.network.push((mount, self.mounts[mount].epoch, message));
    }

    fn begin_read(&mut self, mount: usize, fid: Fid, bits: InodeBits) {
        let claim = self.server.claim(Self::export(mount), fid, PR, bits, self.now);
        let epoch = self.mounts[mount].epoch;
        self.reads.extend(claim.map(|claim| Read { mount, epoch, claim, versions: None }));
    }
    fn continue_read(&mut self, nth: usize) {
        let (fid, bits) = (self.reads[nth].claim.fid(), self.reads[nth].claim.bits());
        if self.reads[nth].versions.is_none() {
            let versions = bits.iter().map(|bit| (bit, self.version(fid, bit))).collect();
            self.reads[nth].versions = Some(versions);
            return;
        }
        let Read { mount, epoch, claim, versions } = self.reads.swap_remove(nth);
        if let (Some(grant), Some(versions)) = (self.server.stands(claim), versions) {
            self.network.push((mount, epoch, Message::Grant { fid, grant, versions }));
        }
    }

    /// One attempt of a change, as the MDT makes it: check, wait or apply.
    fn attempt(&mut self, nth: usize) {
        let Change { mount, fid, bits, ticket } = self.changes[nth];
        if ticket.is_some_and(|ticket| !self.server.is_ready(ticket)) {
            return;
        }
        let own = Some(Self::export(mount));
        if self.server.conflicts(own, &[(fid, bits)]) {
            let ticket = ticket.unwrap_or_else(|| {
                self.server.enter(own, InodeMode::Ex, self.now).expect("few changes wait")
            });
            self.changes[nth].ticket = Some(ticket);
            assert_eq!(self.server.set_wants(ticket, &[(fid, bits)]), Ok(false));
            return;
        }
        for bit in bits.iter() {
            let version = self.version(fid, bit) + 1;
            self.versions.insert((fid, bit), version);
            // The mount's own change: the reply has the new state, and its lock stands.
            self.mounts[mount].own.insert((fid, bit), version);
            if let Some(cached) = self.mounts[mount].cache.get_mut(&(fid, bit)) {
                *cached = version;
            }
        }
        ticket.into_iter().for_each(|ticket| self.server.leave(ticket, self.now));
        self.changes.swap_remove(nth);
    }

    fn deliver(&mut self, nth: usize) {
        let (mount, epoch, message) = self.network.swap_remove(nth);
        let export = Self::export(mount);
        let state = &mut self.mounts[mount];
        match message {
            Message::Grant { fid, grant, versions } => {
                if state.locks.enter(epoch) == EpochChange::Older {
                    return;
                }
                for bit in state.locks.granted(epoch, fid, grant).iter() {
                    let own_change = state.own.get(&(fid, bit)).copied().unwrap_or(0);
                    let cached = state.cache.get(&(fid, bit)).copied().unwrap_or(0);
                    state.cache.insert((fid, bit), versions[&bit].max(own_change).max(cached));
                }
            }
            Message::Revoke(InodeRevoke { fid, bits, wanted, number, .. }) => {
                for bit in state.locks.revoked(epoch, fid, wanted, bits, number).iter() {
                    state.cache.remove(&(fid, bit)).expect("locked bits are in the cache");
                }
                self.send(mount, Message::Ack { number });
            }
            Message::Ack { number } if epoch == state.epoch => {
                self.server.acknowledged(export, number, RevokeAck::Dropped);
                if self.rng.below(4) == 0 {
                    self.send(mount, Message::Ack { number }); // it is resent
                }
            }
            Message::Cancel(InodeCancel { fid, bits, number }) if epoch == state.epoch => {
                self.server.cancelled(export, fid, bits, number);
            }
            Message::Ack { .. } | Message::Cancel(_) => {}
        }
    }
    fn cancel(&mut self, mount: usize, cancels: Vec<InodeCancel>) {
        for cancel in cancels {
            for bit in cancel.bits.iter() {
                self.mounts[mount].cache.remove(&(cancel.fid, bit)).expect("locked bits are in the cache");
            }
            self.send(mount, Message::Cancel(cancel));
        }
    }
    fn reconnect(&mut self, mount: usize) {
        let state = &mut self.mounts[mount];
        state.epoch = ConnEpoch(state.epoch.0 + 1);
        assert_eq!(state.locks.enter(state.epoch), EpochChange::New);
        state.cache.clear();
        assert!(self.server.drop_holder(Self::export(mount), usize::MAX));
        // Pending callbacks of the old connection are delivered again on the new one.
        let epoch = state.epoch;
        for (to, sent_on, message) in &mut self.network {
            if *to == mount && matches!(message, Message::Revoke(_)) {
                *sent_on = epoch;
            }
        }
    }

    fn settle(&mut self) {
        while let Some(effect) = self.server.poll_effect() {
            match effect {
                InodeLockEffect::Revoke(revoke) => {
                    self.send(revoke.holder.0 as usize - 1, Message::Revoke(revoke));
                }
                InodeLockEffect::Ready(ticket) => assert!(self.server.is_ready(ticket)),
            }
        }
        for mount in 0..self.mounts.len() {
            let epoch = self.mounts[mount].epoch;
            let cached: Vec<_> =
                self.mounts[mount].cache.iter().map(|(key, version)| (*key, *version)).collect();
            for ((fid, bit), version) in cached {
                assert!(self.mounts[mount].locks.held(fid).all().contains(bit), "cached without a lock");
                let current = self.version(fid, bit);
                assert_eq!(version, current, "mount {mount} serves {bit} of {fid} from an old cache");
                let known = self.server.held(Self::export(mount), fid).all();
                assert!(known.contains(bit), "mount {mount} has a lock that the server does not know");
                if self.rng.below(8) == 0 {
                    assert!(self.mounts[mount].locks.covers(Some(epoch), fid, PR, bit));
                    self.served += 1;
                }
            }
            self.served += self.mounts[mount].cache.len() as u64;
        }
    }

    fn step(&mut self, inodes: u64) {
        let mount = self.rng.below(self.mounts.len() as u64) as usize;
        let f = fid(self.rng.below(inodes));
        match self.rng.below(32) {
            0..=8 => {
                let bits = self.rng.bits();
                self.begin_read(mount, f, bits);
            }
            9..=15 if !self.reads.is_empty() => {
                let nth = self.rng.below(self.reads.len() as u64) as usize;
                self.continue_read(nth);
            }
            16..=17 if self.changes.len() < 4 => {
                let bits = self.rng.bits();
                self.changes.push(Change { mount, fid: f, bits, ticket: None });
            }
            18..=20 if !self.changes.is_empty() => {
                let nth = self.rng.below(self.changes.len() as u64) as usize;
                self.attempt(nth);
            }
            21..=28 if !self.network.is_empty() => {
                let nth = self.rng.below(self.network.len() as u64) as usize;
                self.deliver(nth);
            }
            29 => {
                let bits = self.rng.bits();
                let dropped = self.mounts[mount].locks.cancel(f, bits);
                self.cancel(mount, dropped.into_iter().collect());
                let surplus = self.mounts[mount].locks.cancel_surplus(|_| false);
                self.cancel(mount, surplus);
            }
            30 if self.rng.below(8) == 0 => self.reconnect(mount),
            _ => self.now = self.now + Duration::from_millis(self.rng.below(40)),
        }
        self.settle();
    }
}

#[test]
fn no_mount_serves_from_an_old_cache_in_whatever_order_messages_arrive() {
    let mut served = 0;
    for seed in 0..120 {
        let mut cluster = Cluster::new(seed, 3, if seed % 2 == 0 { 2 } else { 100 });
        (0..1500).for_each(|_| cluster.step(1 + seed % 4));
        // Every change is applied once the messages have arrived.
        while !cluster.changes.is_empty() {
            let is_ready = |c: &Change| c.ticket.is_none_or(|ticket| cluster.server.is_ready(ticket));
            let may_go_on = !cluster.network.is_empty() || cluster.changes.iter().any(is_ready);
            assert!(may_go_on, "a change waits for nothing");
            if !cluster.network.is_empty() {
                cluster.deliver(0);
            }
            let nth = cluster.rng.below(cluster.changes.len() as u64) as usize;
            cluster.attempt(nth);
            cluster.settle();
        }
        served += cluster.served;
    }
    assert!(served > 100_000, "the caches have served {served} times only");
}

fn grant(bits: InodeBits, number: u64) -> InodeGrant {
    InodeGrant { bits, mode: PR, number }
}

#[test]
fn a_callback_that_overtakes_a_grant_ends_it_and_no_other() {
    let mut locks = GrantedInodeLocks::new(100, SeededHash::new(1));
    let (epoch, lookup, update) = (ConnEpoch(1), InodeBits::LOOKUP, InodeBits::UPDATE);
    assert_eq!(locks.enter(epoch), EpochChange::New);
    assert_eq!(locks.revoked(epoch, fid(1), InodeMode::Ex, update, 7), InodeBits::NONE);
    assert_eq!(locks.granted(epoch, fid(1), grant(lookup | update, 6)), lookup);
    assert_eq!(locks.granted(epoch, fid(2), grant(update, 5)), update, "another inode");
    assert_eq!(locks.granted(epoch, fid(1), grant(update, 8)), update, "a later grant");
    // An end that is not remembered any more ends all grants from before.
    (0..300).for_each(|n| assert!(locks.revoked(epoch, fid(9), InodeMode::Ex, update, 10 + n).is_empty()));
    assert_eq!(locks.granted(epoch, fid(3), grant(update, 9)), InodeBits::NONE);
    assert_eq!(locks.granted(epoch, fid(3), grant(update, 309)), update);
    locks.distrust();
    assert!(locks.is_empty());
    assert_eq!(locks.granted(epoch, fid(3), grant(update, 400)), InodeBits::NONE);
    assert_eq!(locks.enter(ConnEpoch(2)), EpochChange::New);
    assert_eq!(locks.granted(epoch, fid(3), grant(update, 400)), InodeBits::NONE, "of the older epoch");
    assert_eq!(locks.granted(ConnEpoch(2), fid(3), grant(update, 400)), update);
}

#[test]
fn the_locks_that_were_not_used_are_cancelled_first_and_busy_ones_never() {
    let mut locks = GrantedInodeLocks::new(10, SeededHash::new(1));
    let (epoch, update) = (ConnEpoch::default(), InodeBits::UPDATE);
    for n in 0..20 {
        assert_eq!(locks.granted(epoch, fid(n), grant(update, n + 1)), update);
    }
    (0..5).for_each(|n| assert!(locks.covers(Some(epoch), fid(n), PR, update)));
    assert!(!locks.covers(None, fid(7), PR, update), "the lease does not permit it");
    let cancels = locks.cancel_surplus(|busy| busy == fid(6));
    let cancelled: Vec<Fid> = cancels.iter().map(|cancel| cancel.fid).collect();
    assert_eq!(cancelled, [5, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(fid));
    assert_eq!((cancels[0].bits, cancels[0].number), (update, 6));
    assert_eq!((locks.len(), locks.cancel_surplus(|_| false).len()), (10, 0));
    // The table has a bound even if nothing is ever cancelled.
    (100..1000).for_each(|n| _ = locks.granted(epoch, fid(n), grant(update, n)));
    assert_eq!(locks.len(), 74);
    assert_eq!(locks.cancel_surplus(|_| true).len(), 0);
    assert_eq!(locks.cancel_surplus(|_| false).len(), 64);
}

#[test]
fn a_large_table_returns_many_locks_at_a_time() {
    const LIMIT: usize = 1000;
    let mut locks = GrantedInodeLocks::new(LIMIT, SeededHash::new(1));
    let (epoch, update) = (ConnEpoch::default(), InodeBits::UPDATE);
    let (mut returns, mut returned) = (0, 0);
    for n in 0..20_000 {
        locks.granted(epoch, fid(n), grant(update, n + 1));
        assert!(locks.covers(Some(epoch), fid(n), PR, update));
        let cancels = locks.cancel_surplus(|_| false).len();
        returned += cancels;
        returns += usize::from(cancels > 0);
        assert!(locks.len() <= LIMIT + 64 && (n < 2000 || locks.len() >= LIMIT - 32), "{}", locks.len());
    }
    assert!(returned >= 18_900 && returns <= returned / 50, "{returned} locks in {returns} requests");
}
