//! Inode-bit locks of an MDT: random histories against a naive model, and the rules one by one.

mod support;

use nacre_dlm::policy::{HeldBits, InodeBits, InodeMode};
use nacre_dlm::server::{
    InodeClaim, InodeGrant, InodeLockEffect, InodeLockState, InodeLocks, InodeRevoke, PAUSE_MAX, PAUSE_MIN,
    RevokeAck, TICKETS_PER_HOLDER_MAX, Ticket, TicketError,
};
use nacre_types::{Fid, Generation, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use support::Rng;

const PR: InodeMode = InodeMode::Pr;
const EX: InodeMode = InodeMode::Ex;
const LOOKUP: InodeBits = InodeBits::LOOKUP;
const UPDATE: InodeBits = InodeBits::UPDATE;
const PERM: InodeBits = InodeBits::PERM;

fn fid(n: u64) -> Fid {
    Fid::from_ino((0x100 << 24) + 1 + n)
}
fn at(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}
fn bits(number: u64) -> InodeBits {
    InodeBits::from_number(number as u16).expect("eight bits")
}

impl Rng {
    fn mode(&mut self) -> InodeMode {
        if self.below(4) == 0 { EX } else { PR }
    }
    fn bits(&mut self) -> InodeBits {
        // Few bits most of the time, so that locks differ.
        let some = bits(self.below(256));
        if self.below(3) == 0 { some } else { some & bits(self.below(256)) }
    }
    fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.below(of.len() as u64) as usize])
    }
}

/// A claim in the model: the bits that no loss has touched since.
struct Claimed {
    claim: InodeClaim,
    holder: Generation,
    mode: InodeMode,
    intact: InodeBits,
    /// Whether the lock has lost any bit since.
    lost: bool,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    own: Option<Generation>,
    mode: InodeMode,
    wants: Vec<(Fid, InodeBits)>,
    ready: bool,
    contended: BTreeSet<(Fid, InodeBits)>,
}

/// Single bits of single holders.
#[derive(Default)]
struct Model {
    held: BTreeMap<(Fid, InodeBits, Generation), InodeMode>,
    revoking: BTreeMap<(Fid, InodeBits, Generation), u64>,
    callbacks: BTreeMap<(Generation, u64), InodeRevoke>,
    claims: Vec<Claimed>,
    granted: BTreeMap<(Fid, Generation), u64>,
    waiting: Vec<Waiting>,
    /// Until when a pause is certain, and until when one is possible.
    paused: BTreeMap<(Fid, InodeBits), (Instant, Instant)>,
    now: Instant,
}

impl Model {
    /// The single bits of others that conflict with a request.
    fn conflicts(&self, own: Option<Generation>, mode: InodeMode, fid: Fid, bits: InodeBits) -> InodeBits {
        let others = self.held.iter().filter(|((f, bit, holder), held)| {
            *f == fid && bits.contains(*bit) && Some(*holder) != own && !mode.is_compatible(**held)
        });
        others.map(|((_, bit, _), _)| *bit).collect()
    }
    fn is_blocked(&self, waiting: &Waiting) -> bool {
        waiting.wants.iter().any(|(f, b)| !self.conflicts(waiting.own, waiting.mode, *f, *b).is_empty())
    }
    fn lose(&mut self, holder: Generation, fid: Fid, bits: InodeBits, keep_pr: bool) {
        for bit in bits.iter() {
            let Some(mode) = self.held.get_mut(&(fid, bit, holder)) else { continue };
            if keep_pr && *mode == PR {
                continue;
            }
            if keep_pr {
                *mode = PR;
            } else {
                self.held.remove(&(fid, bit, holder));
            }
            for claimed in self.claims.iter_mut().filter(|c| c.holder == holder && c.claim.fid() == fid) {
                claimed.intact -= bit;
                claimed.lost = true;
            }
        }
        let stays = self.locks_of(holder).contains(&fid);
        if !stays {
            self.granted.remove(&(fid, holder));
        }
    }
    fn locks_of(&self, holder: Generation) -> BTreeSet<Fid> {
        let held = self.held.keys().filter(|(_, _, h)| *h == holder).map(|(f, ..)| *f);
        held.chain(self.revoking.keys().filter(|(_, _, h)| *h == holder).map(|(f, ..)| *f)).collect()
    }
    fn held_bits(&self, fid: Fid, holder: Generation) -> (HeldBits, InodeBits) {
        let mut held = HeldBits::default();
        for bit in InodeBits::ALL.iter() {
            self.held.get(&(fid, bit, holder)).into_iter().for_each(|mode| held.grant(*mode, bit));
        }
        let revoking = self.revoking.keys().filter(|(f, _, h)| *f == fid && *h == holder);
        (held, revoking.map(|(_, bit, _)| *bit).collect())
    }

    /// Takes the effects out and compares everything with the table.
    fn check(&mut self, table: &mut InodeLocks, holders: &[Generation], fids: &[Fid]) {
        let mut became_ready = Vec::new();
        while let Some(effect) = table.poll_effect() {
            match effect {
                InodeLockEffect::Ready(ticket) => became_ready.push(ticket),
                InodeLockEffect::Revoke(revoke) => self.begun(revoke),
            }
        }
        let blocked: Vec<bool> = self.waiting.iter().map(|w| self.is_blocked(w)).collect();
        let mut expected = Vec::new();
        for (waiting, blocked) in self.waiting.iter_mut().zip(blocked) {
            assert!(!(waiting.ready && blocked), "a ready change is blocked again: {waiting:?}");
            if !blocked && !waiting.ready {
                waiting.ready = true;
                expected.push(waiting.ticket);
            }
            assert_eq!(table.is_ready(waiting.ticket), waiting.ready);
        }
        let in_order = became_ready.is_sorted();
        became_ready.sort();
        expected.sort();
        assert_eq!(became_ready, expected, "wake-ups");
        assert!(in_order || fids.len() > 1, "of one inode, the earlier ticket first");
        for waiting in self.waiting.iter().filter(|w| !w.ready) {
            for ((f, bit, holder), mode) in &self.held {
                let wanted = waiting.wants.iter().any(|(fid, bits)| fid == f && bits.contains(*bit));
                if wanted && Some(*holder) != waiting.own && !waiting.mode.is_compatible(*mode) {
                    let open = self.revoking.contains_key(&(*f, *bit, *holder));
                    assert!(open, "{waiting:?} waits for {holder} without a callback");
                }
            }
        }
        for ((f, bit, holder), mode) in &self.held {
            for ((.., other), theirs) in
                self.held.range((*f, *bit, Generation(0))..=(*f, *bit, Generation(u32::MAX)))
            {
                assert!(holder == other || mode.is_compatible(*theirs), "two incompatible grants");
            }
        }
        let mut locks = 0;
        for holder in holders {
            let of_holder = self.locks_of(*holder);
            assert_eq!(table.held_by(*holder), of_holder.len());
            assert_eq!(table.of_holder(*holder).collect::<BTreeSet<_>>(), of_holder);
            locks += of_holder.len();
        }
        assert_eq!((table.len(), table.waiting()), (locks, self.waiting.len()));
        for fid in fids {
            let states = holders.iter().map(|holder| {
                let (held, revoking) = self.held_bits(*fid, *holder);
                InodeLockState { holder: *holder, held, revoking }
            });
            let states: Vec<_> = states.filter(|s| !s.held.is_empty() || !s.revoking.is_empty()).collect();
            assert_eq!(table.of_inode(*fid).collect::<Vec<_>>(), states);
        }
    }

    fn begun(&mut self, revoke: InodeRevoke) {
        let InodeRevoke { holder, fid, bits, wanted, number } = revoke;
        assert!(!bits.is_empty());
        for bit in bits.iter() {
            let held = self.held.get(&(fid, bit, holder)).expect("a callback for a bit that is held");
            assert!(!wanted.is_compatible(*held));
            assert_eq!(self.revoking.insert((fid, bit, holder), number), None, "one callback per bit");
        }
        self.callbacks.insert((holder, number), revoke);
    }
    fn acknowledged(&mut self, revoke: InodeRevoke, ack: RevokeAck) {
        self.callbacks.remove(&(revoke.holder, revoke.number));
        for bit in revoke.bits.iter() {
            self.revoking.remove(&(revoke.fid, bit, revoke.holder));
        }
        let keep_pr = ack == RevokeAck::Converted && revoke.wanted == PR;
        self.lose(revoke.holder, revoke.fid, revoke.bits, keep_pr);
    }

    fn claim(
        &mut self,
        table: &mut InodeLocks,
        holder: Generation,
        fid: Fid,
        mode: InodeMode,
        wanted: InodeBits,
    ) {
        let (held, revoking) = self.held_bits(fid, holder);
        let claim = table.claim(holder, fid, mode, wanted, self.now);
        let granted = claim.map_or(InodeBits::NONE, |claim| claim.bits());
        let free = |bit: &InodeBits| {
            let has = held.covering(mode).contains(*bit);
            let asked = |w: &Waiting| {
                !w.mode.is_compatible(mode) && w.wants.iter().any(|(f, b)| *f == fid && b.contains(*bit))
            };
            let waited_for = self.waiting.iter().any(asked);
            !revoking.contains(*bit)
                && (has || !waited_for && self.conflicts(Some(holder), mode, fid, *bit).is_empty())
        };
        let free: InodeBits = wanted.iter().filter(free).collect();
        let paused = |until: fn(&(Instant, Instant)) -> Instant| -> InodeBits {
            let paused = self.paused.iter().filter(|((f, _), ends)| *f == fid && self.now < until(ends));
            paused.map(|((_, bits), _)| *bits).collect::<InodeBits>() - held.covering(mode)
        };
        assert!(free.contains(granted), "{granted} of {wanted} granted, {free} free");
        assert!(!granted.intersects(paused(|ends| ends.0)), "granted in a pause");
        assert!(granted.contains(free - paused(|ends| ends.1)), "{granted} of {wanted} granted, {free} free");
        let Some(claim) = claim else { return };
        for bit in granted.iter() {
            let entry = self.held.entry((fid, bit, holder)).or_insert(mode);
            if mode == EX {
                *entry = EX;
            }
        }
        self.claims.push(Claimed { claim, holder, mode, intact: granted, lost: false });
    }
    fn stands(&mut self, table: &mut InodeLocks, claimed: Claimed) {
        let Claimed { claim, holder, mode, intact, lost } = claimed;
        let grant = table.stands(claim);
        let granted = grant.map_or(InodeBits::NONE, |g| g.bits);
        let (held, revoking) = self.held_bits(claim.fid(), holder);
        let intact = (intact & held.covering(mode)) - revoking;
        assert!(intact.contains(granted), "{granted} stand, {intact} are intact");
        assert!(lost || granted == intact, "{granted} stand, {intact} are intact");
        if let Some(InodeGrant { number, .. }) = grant {
            self.granted.insert((claim.fid(), holder), number);
        }
    }
    fn set_wants(&mut self, table: &mut InodeLocks, nth: usize, wants: Vec<(Fid, InodeBits)>) {
        let blocked: Vec<_> = {
            let Waiting { own, mode, .. } = self.waiting[nth];
            wants
                .iter()
                .map(|(f, b)| (*f, self.conflicts(own, mode, *f, *b)))
                .filter(|(_, b)| !b.is_empty())
                .collect()
        };
        assert_eq!(table.set_wants(self.waiting[nth].ticket, &wants), Ok(blocked.is_empty()));
        let waiting = &mut self.waiting[nth];
        (waiting.wants, waiting.ready) = (wants, blocked.is_empty());
        waiting.contended.extend(blocked);
    }
}

fn run(seed: u64, holders: u32, inodes: u64, steps: u64) {
    let mut rng = Rng(seed);
    let holders: Vec<Generation> = (1..=holders).map(Generation).collect();
    let fids: Vec<Fid> = (0..inodes).map(fid).collect();
    let (mut table, mut model) = (InodeLocks::new(usize::MAX), Model::default());
    for _ in 0..steps {
        let holder = rng.pick(&holders).expect("there are some");
        let fid = rng.pick(&fids).expect("there are some");
        match rng.below(24) {
            0..=7 => {
                let (mode, bits) = (rng.mode(), rng.bits());
                model.claim(&mut table, holder, fid, mode, bits);
            }
            8..=10 if !model.claims.is_empty() => {
                let nth = rng.below(model.claims.len() as u64) as usize;
                let claimed = model.claims.swap_remove(nth);
                model.stands(&mut table, claimed);
            }
            11..=12 if model.waiting.len() < 6 => {
                let own = (rng.below(5) > 0).then_some(holder);
                let mode = if rng.below(4) == 0 { PR } else { EX };
                let ticket = table.enter(own, mode, model.now).expect("few changes wait");
                let contended = BTreeSet::new();
                model.waiting.push(Waiting { ticket, own, mode, wants: Vec::new(), ready: true, contended });
                let wants = (0..=rng.below(3))
                    .map(|_| (rng.pick(&fids).expect("there are some"), rng.bits()))
                    .collect();
                let last = model.waiting.len() - 1;
                model.set_wants(&mut table, last, wants);
            }
            13 if !model.waiting.is_empty() => {
                let nth = rng.below(model.waiting.len() as u64) as usize;
                let wants = (0..=rng.below(3))
                    .map(|_| (rng.pick(&fids).expect("there are some"), rng.bits()))
                    .collect();
                model.set_wants(&mut table, nth, wants);
            }
            14 if !model.waiting.is_empty() => {
                let nth = rng.below(model.waiting.len() as u64) as usize;
                let waiting = model.waiting.remove(nth);
                table.leave(waiting.ticket, model.now);
                for (f, bits) in waiting.contended {
                    // A pause that is prolonged may be cut by half its length, and prolongs that of other bits.
                    model.paused.entry((f, bits)).or_default().0 = model.now + PAUSE_MIN / 2;
                    let of_inode = model.paused.iter_mut().filter(|((other, _), _)| *other == f);
                    of_inode.for_each(|(_, ends)| ends.1 = model.now + PAUSE_MAX);
                }
            }
            15..=18 => {
                let open: Vec<InodeRevoke> = model.callbacks.values().copied().collect();
                if let Some(revoke) = rng.pick(&open) {
                    let ack = if rng.below(3) == 0 { RevokeAck::Converted } else { RevokeAck::Dropped };
                    assert!(table.acknowledged(revoke.holder, revoke.number, ack));
                    model.acknowledged(revoke, ack);
                    assert!(!table.acknowledged(revoke.holder, revoke.number, ack), "acknowledged once");
                }
            }
            19 => {
                let granted = model.granted.get(&(fid, holder)).copied().unwrap_or(0);
                let has_lock = model.locks_of(holder).contains(&fid);
                let bits = rng.bits();
                if granted > 0 {
                    assert!(!table.cancelled(holder, fid, bits, granted - 1), "from before the latest grant");
                }
                assert_eq!(table.cancelled(holder, fid, bits, granted), has_lock);
                model.lose(holder, fid, bits, false);
            }
            20 => {
                let bits = rng.bits();
                let mode = rng.mode();
                if let Some(revoke) = table.begin_revoke(holder, fid, mode, bits) {
                    model.begun(revoke);
                }
                assert_eq!(table.begin_revoke(holder, fid, mode, bits), None, "the callback is under way");
            }
            21 => {
                let own = (rng.below(5) > 0).then_some(holder);
                let (mode, bits) = (rng.mode(), rng.bits());
                let expected = !model.conflicts(own, mode, fid, bits).is_empty();
                assert_eq!(table.conflicts_in(own, mode, &[(fid, bits)]), expected);
            }
            22 if rng.below(4) == 0 => {
                table.forget_inode(holder, fid);
                model.lose(holder, fid, InodeBits::ALL, false);
            }
            22 if rng.below(4) == 0 => {
                let mut of_holder: Vec<InodeRevoke> = model.callbacks.values().copied().collect();
                of_holder.retain(|revoke| revoke.holder == holder);
                while !table.drop_holder(holder, 2) {
                    assert_eq!(table.claim(holder, fid, PR, InodeBits::ALL, model.now), None, "it is going");
                }
                of_holder.into_iter().for_each(|revoke| model.acknowledged(revoke, RevokeAck::Dropped));
                fids.iter().for_each(|fid| model.lose(holder, *fid, InodeBits::ALL, false));
            }
            _ => {
                let magnitude = rng.below(12);
                model.now = model.now + Duration::from_millis(rng.below(1 << magnitude));
            }
        }
        model.check(&mut table, &holders, &fids);
    }
    // Once every callback is acknowledged, every change is ready; once every client has gone, nothing is left.
    while let Some(revoke) = model.callbacks.values().next().copied() {
        assert!(table.acknowledged(revoke.holder, revoke.number, RevokeAck::Dropped));
        model.acknowledged(revoke, RevokeAck::Dropped);
        model.check(&mut table, &holders, &fids);
    }
    assert!(model.waiting.iter().all(|waiting| waiting.ready));
    for waiting in core::mem::take(&mut model.waiting) {
        table.leave(waiting.ticket, model.now);
    }
    assert!(holders.iter().all(|holder| table.drop_holder(*holder, usize::MAX)));
    assert_eq!((table.len(), table.waiting(), table.poll_effect()), (0, 0, None));
}

#[test]
fn random_histories_of_few_clients_end_as_the_naive_model_says() {
    (0..30).for_each(|seed| run(seed, 3, 3, 400));
    (0..20).for_each(|seed| run(1000 + seed, 4, 1, 400));
}

#[test]
fn random_histories_of_a_crowd_end_as_the_naive_model_says() {
    (0..4).for_each(|seed| run(2000 + seed, 40, 2, 800));
}

// ---- the rules one by one

const A: Generation = Generation(1);
const B: Generation = Generation(2);
const C: Generation = Generation(3);

fn table() -> InodeLocks {
    InodeLocks::new(1000)
}
fn grant(table: &mut InodeLocks, holder: Generation, f: Fid, wanted: InodeBits, now: Instant) -> InodeBits {
    let grant = table.claim(holder, f, PR, wanted, now).and_then(|claim| table.stands(claim));
    grant.map_or(InodeBits::NONE, |grant| grant.bits)
}
fn callbacks(table: &mut InodeLocks) -> Vec<InodeRevoke> {
    let effects = std::iter::from_fn(|| table.poll_effect());
    let revoke = |effect| match effect {
        InodeLockEffect::Revoke(revoke) => revoke,
        InodeLockEffect::Ready(ticket) => panic!("{ticket:?} is ready"),
    };
    effects.map(revoke).collect()
}
fn wait(table: &mut InodeLocks, own: Generation, f: Fid, changed: InodeBits, now: Instant) -> Ticket {
    let ticket = table.enter(Some(own), EX, now).expect("few changes wait");
    assert_eq!(table.set_wants(ticket, &[(f, changed)]), Ok(false), "nothing is in the way");
    ticket
}

#[test]
fn a_change_revokes_only_the_bits_that_it_breaks_and_the_others_stand() {
    let mut table = table();
    assert_eq!(grant(&mut table, A, fid(1), LOOKUP | UPDATE | PERM, at(0)), LOOKUP | UPDATE | PERM);
    assert!(!table.conflicts(Some(A), &[(fid(1), UPDATE)]), "an own lock");
    assert!(table.conflicts(Some(B), &[(fid(1), UPDATE)]) && table.conflicts(None, &[(fid(1), UPDATE)]));
    let first = wait(&mut table, B, fid(1), UPDATE, at(1));
    let revoke = callbacks(&mut table);
    assert_eq!((revoke.len(), revoke[0].holder, revoke[0].bits), (1, A, UPDATE));
    // Another change wants more: a callback for the rest only.
    let second = wait(&mut table, C, fid(1), UPDATE | PERM, at(1));
    let rest = callbacks(&mut table);
    assert_eq!((rest.len(), rest[0].bits), (1, PERM));
    assert!(table.acknowledged(A, revoke[0].number, RevokeAck::Dropped));
    assert_eq!(table.poll_effect(), Some(InodeLockEffect::Ready(first)));
    assert!(!table.is_ready(second));
    assert!(table.acknowledged(A, rest[0].number, RevokeAck::Dropped));
    assert_eq!(table.poll_effect(), Some(InodeLockEffect::Ready(second)));
    assert_eq!(table.held(A, fid(1)).all(), LOOKUP, "it stands without a gap");
}

#[test]
fn a_reader_gets_no_bit_for_which_a_change_waits() {
    let mut table = table();
    grant(&mut table, A, fid(1), UPDATE, at(0));
    let ticket = wait(&mut table, B, fid(1), UPDATE, at(0));
    let revoke = callbacks(&mut table)[0];
    assert_eq!(grant(&mut table, C, fid(1), LOOKUP | UPDATE, at(5000)), LOOKUP, "however long it takes");
    assert!(table.acknowledged(A, revoke.number, RevokeAck::Dropped));
    assert_eq!(grant(&mut table, C, fid(1), UPDATE, at(9000)), InodeBits::NONE, "until the change has left");
    table.leave(ticket, at(9000));
    assert_eq!(grant(&mut table, C, fid(1), UPDATE, at(9020)), UPDATE);
}

#[test]
fn a_read_from_before_a_revoke_is_not_granted_the_revoked_bits() {
    let mut table = table();
    let early = table.claim(A, fid(1), PR, UPDATE | PERM, at(0)).unwrap();
    let ticket = wait(&mut table, B, fid(1), UPDATE, at(0));
    let revoke = callbacks(&mut table)[0];
    let meanwhile = table.claim(A, fid(1), PR, UPDATE | PERM, at(0)).unwrap();
    assert_eq!(meanwhile.bits(), PERM);
    assert!(table.acknowledged(A, revoke.number, RevokeAck::Dropped));
    table.leave(ticket, at(0));
    // The bit is granted again; the early read is older than the change nevertheless.
    assert_eq!(grant(&mut table, A, fid(1), UPDATE, at(100)), UPDATE);
    assert_eq!(table.stands(early).map(|grant| grant.bits), Some(PERM));
    assert_eq!(table.stands(meanwhile).map(|grant| grant.bits), Some(PERM));
    // The lock ends and begins anew: nothing of the early read stands.
    table.forget_inode(A, fid(1));
    assert_eq!(grant(&mut table, A, fid(1), UPDATE | PERM, at(100)), UPDATE | PERM);
    assert_eq!(table.stands(early), None);
}

#[test]
fn bits_that_were_cancelled_while_their_callback_is_open_are_not_granted_before_it_is_acknowledged() {
    let mut table = table();
    let granted = table.claim(A, fid(1), PR, UPDATE, at(0)).and_then(|claim| table.stands(claim)).unwrap();
    let ticket = wait(&mut table, B, fid(1), UPDATE, at(0));
    let revoke = callbacks(&mut table)[0];
    assert!(table.cancelled(A, fid(1), UPDATE, granted.number), "the cancel has crossed the callback");
    assert_eq!(table.poll_effect(), Some(InodeLockEffect::Ready(ticket)), "the change need not wait longer");
    table.leave(ticket, at(0));
    assert_eq!(grant(&mut table, A, fid(1), UPDATE, at(5000)), InodeBits::NONE);
    assert_eq!(grant(&mut table, B, fid(1), UPDATE, at(5000)), UPDATE, "others need not wait");
    assert!(table.acknowledged(A, revoke.number, RevokeAck::Dropped));
    assert_eq!(grant(&mut table, A, fid(1), UPDATE, at(5000)), UPDATE);
}

#[test]
fn a_lock_that_was_converted_is_revoked_once_more_for_a_change() {
    let mut table = table();
    let claim = table.claim(A, fid(1), EX, UPDATE, at(0)).unwrap();
    assert_eq!(table.stands(claim).map(|grant| grant.mode), Some(EX));
    let reader = table.enter(Some(B), PR, at(0)).unwrap();
    assert_eq!(table.set_wants(reader, &[(fid(1), UPDATE)]), Ok(false));
    let revoke = callbacks(&mut table)[0];
    assert_eq!(revoke.wanted, PR);
    let change = wait(&mut table, C, fid(1), UPDATE, at(0));
    assert_eq!(callbacks(&mut table), [], "there is a callback under way");
    assert!(table.acknowledged(A, revoke.number, RevokeAck::Converted));
    assert_eq!(table.poll_effect(), Some(InodeLockEffect::Ready(reader)));
    let again = callbacks(&mut table)[0];
    assert_eq!((again.wanted, again.bits), (EX, UPDATE));
    // To this callback there is only one valid acknowledgement, whatever the client says.
    assert!(table.acknowledged(A, again.number, RevokeAck::Converted));
    assert_eq!(table.poll_effect(), Some(InodeLockEffect::Ready(change)));
}

#[test]
fn at_its_limit_a_client_loses_its_oldest_lock_once_it_has_stood_for_a_while() {
    let mut table = InodeLocks::new(2);
    assert_eq!(grant(&mut table, A, fid(1), LOOKUP, at(0)), LOOKUP);
    assert_eq!(grant(&mut table, A, fid(2), LOOKUP, at(20_000)), LOOKUP);
    assert_eq!(grant(&mut table, A, fid(3), LOOKUP, at(20_000)), InodeBits::NONE);
    assert_eq!(callbacks(&mut table), [], "the oldest has not stood for 30 s");
    assert_eq!(grant(&mut table, A, fid(2), LOOKUP | PERM, at(20_000)), LOOKUP | PERM, "no further lock");
    assert_eq!(grant(&mut table, B, fid(3), LOOKUP, at(20_000)), LOOKUP, "a limit of each client");
    assert_eq!(grant(&mut table, A, fid(3), LOOKUP, at(30_000)), InodeBits::NONE);
    let revoke = callbacks(&mut table);
    assert_eq!((revoke.len(), revoke[0].fid), (1, fid(1)));
    assert_eq!(grant(&mut table, A, fid(3), LOOKUP, at(30_000)), InodeBits::NONE);
    assert_eq!(callbacks(&mut table), [], "the second has not stood for 30 s");
    assert!(table.acknowledged(A, revoke[0].number, RevokeAck::Dropped));
    assert_eq!(grant(&mut table, A, fid(3), LOOKUP, at(30_000)), LOOKUP, "without a pause");
}

/// A client changes a directory every `changes_ms`, another one asks for it every `reads_ms`: the callbacks in `seconds`,
/// and the share of the reads that have the lock already.
fn use_in_turn(changes_ms: u64, reads_ms: u64, seconds: u64) -> (u64, u64) {
    let mut table = table();
    let (mut reads, mut cached) = (0, 0);
    for ms in 0..seconds * 1000 {
        if ms % reads_ms == 0 {
            reads += 1;
            if table.held(B, fid(1)).all() == UPDATE {
                cached += 1;
            } else {
                grant(&mut table, B, fid(1), UPDATE, at(ms));
            }
        }
        if ms % changes_ms == 0 && table.conflicts(Some(A), &[(fid(1), UPDATE)]) {
            let ticket = wait(&mut table, A, fid(1), UPDATE, at(ms));
            for revoke in callbacks(&mut table) {
                table.acknowledged(revoke.holder, revoke.number, RevokeAck::Dropped);
            }
            assert_eq!(table.poll_effect(), Some(InodeLockEffect::Ready(ticket)));
            table.leave(ticket, at(ms));
        }
    }
    (table.revokes(), 100 * cached / reads)
}

#[test]
fn a_pause_follows_the_use_of_the_inode() {
    // Changes in quick succession: hardly any of them needs a callback.
    let (revokes, _) = use_in_turn(1, 1, 60);
    assert!(revokes < 100, "{revokes} callbacks for 60 000 changes");
    // Rare changes: nearly every read is served from the cache.
    let (revokes, cached) = use_in_turn(500, 1, 60);
    assert!(cached > 90, "{cached} % cached, {revokes} callbacks");
    let (revokes, cached) = use_in_turn(5000, 1, 60);
    assert!(cached >= 99 && revokes >= 11, "{cached} % cached, {revokes} callbacks");
    // A pause that had become long is short again after a quiet time.
    let mut table = table();
    let revoke = |table: &mut InodeLocks, ms: u64| {
        assert_eq!(grant(table, B, fid(1), UPDATE, at(ms)), UPDATE, "at {ms} ms");
        let ticket = wait(table, A, fid(1), UPDATE, at(ms));
        callbacks(table).iter().for_each(|r| assert!(table.acknowledged(B, r.number, RevokeAck::Dropped)));
        assert!(table.poll_effect().is_some());
        table.leave(ticket, at(ms));
    };
    let mut ms = 0;
    for pause in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
        revoke(&mut table, ms);
        assert_eq!(grant(&mut table, B, fid(1), UPDATE, at(ms + pause - 1)), InodeBits::NONE, "{pause} ms");
        ms += pause;
    }
    revoke(&mut table, ms + 10_000);
    assert_eq!(grant(&mut table, B, fid(1), UPDATE, at(ms + 10_010)), UPDATE);
}

#[test]
fn tickets_and_their_inodes_are_bounded() {
    let mut table = table();
    let tickets: Vec<Ticket> =
        (0..TICKETS_PER_HOLDER_MAX).map(|_| table.enter(Some(A), EX, at(0)).unwrap()).collect();
    let held = TICKETS_PER_HOLDER_MAX;
    assert_eq!(table.enter(Some(A), EX, at(0)), Err(TicketError::TooManyTickets { held }));
    assert!(table.enter(Some(B), EX, at(0)).is_ok() && table.enter(None, EX, at(0)).is_ok());
    table.leave(tickets[0], at(0));
    let ticket = table.enter(Some(A), EX, at(0)).unwrap();
    let wants: Vec<(Fid, InodeBits)> = (0..1025).map(|n| (fid(n), UPDATE)).collect();
    assert_eq!(table.set_wants(ticket, &wants), Err(TicketError::TooManyInodes { found: 1025 }));
    assert_eq!(table.set_wants(ticket, &wants[..1024]), Ok(true));
}

#[test]
fn a_bit_of_an_earlier_start_is_restored_beyond_the_limit_and_has_to_be_returned() {
    let mut table = InodeLocks::new(0);
    table.restore(B, fid(1), PR, LOOKUP, at(0));
    table.restore(B, fid(1), PR, LOOKUP, at(0));
    table.restore(Generation(3), fid(1), PR, LOOKUP, at(0));
    assert_eq!((table.len(), grant(&mut table, B, fid(2), LOOKUP, at(0))), (2, InodeBits::NONE));
    let ticket = wait(&mut table, A, fid(1), LOOKUP, at(0));
    let revokes = callbacks(&mut table);
    assert_eq!(revokes.len(), 2);
    for revoke in &revokes {
        assert_eq!(table.poll_effect(), None, "the change waits for both");
        assert!(table.acknowledged(revoke.holder, revoke.number, RevokeAck::Dropped));
    }
    assert_eq!(table.poll_effect(), Some(InodeLockEffect::Ready(ticket)));
    assert!(table.is_empty());
    // One that is being removed is not restored.
    table.restore(B, fid(1), PR, LOOKUP, at(0));
    table.restore(B, fid(2), PR, LOOKUP, at(0));
    assert!(!table.drop_holder(B, 1));
    table.restore(B, fid(3), PR, LOOKUP, at(0));
    assert!(table.drop_holder(B, 2) && table.is_empty());
}

/// Ten thousand holders of one inode and a thousand changes that wait for them: seconds would mean that each
/// acknowledgement looks at every holder, or at every change.
#[test]
fn a_crowd_on_one_inode_costs_no_quadratic_search() {
    const N: u32 = 10_000;
    let mut table = table();
    for holder in 1..=N {
        assert_eq!(grant(&mut table, Generation(holder), fid(1), LOOKUP | UPDATE, at(0)), LOOKUP | UPDATE);
    }
    let tickets: Vec<Ticket> =
        (1..=1000).map(|own| wait(&mut table, Generation(own), fid(1), UPDATE, at(0))).collect();
    let revokes = callbacks(&mut table);
    assert_eq!(revokes.len(), N as usize, "one callback each, however many changes wait");
    for revoke in &revokes {
        assert!(table.conflicts(None, &[(fid(1), UPDATE)]));
        assert!(table.acknowledged(revoke.holder, revoke.number, RevokeAck::Dropped));
    }
    let ready: Vec<Ticket> = std::iter::from_fn(|| table.poll_effect())
        .map(|effect| match effect {
            InodeLockEffect::Ready(ticket) => ticket,
            InodeLockEffect::Revoke(revoke) => panic!("{revoke:?}"),
        })
        .collect();
    assert_eq!(ready, tickets, "in the order of their arrival");
    assert_eq!(table.len(), N as usize, "LOOKUP stands");
    assert!(!table.conflicts(Some(A), &[(fid(1), UPDATE)]) && table.conflicts(Some(A), &[(fid(1), LOOKUP)]));
}
