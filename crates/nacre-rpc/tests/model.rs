//! Random schedules of one import against one export, over connections that break, double messages and delay
//! them, and with a target that is killed and started anew. Checked: every modifying call is executed exactly
//! once, its reply has the result of that execution, every call ends, nothing is left behind at rest.

use bytes::Bytes;
use core::time::Duration;
use nacre_rpc::{Admission, Export, Import, ImportConfig, ImportEffect, PreVersions, ReplyRecord, Request};
use nacre_types::{ClientUuid, Codec, ConnEpoch, Fid, Generation, Instant, Transno, Xid};
use nacre_wire::target::{Connect, ConnectReply, Role, features};
use nacre_wire::{Class, Frame, Header, Kind, Opcode};
use std::collections::{BTreeMap, VecDeque};

struct Dice(u64);
impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A connection: an ordered stream each way, until it breaks.
#[derive(Default)]
struct Wire {
    up: VecDeque<Frame>,
    down: VecDeque<Frame>,
}

struct World {
    dice: Dice,
    now: Instant,
    import: Import<u32>,
    wires: BTreeMap<ConnEpoch, Wire>,
    // The target.
    export: Export,
    instance: u64,
    next_transno: u64,
    durable: BTreeMap<Xid, ReplyRecord>,
    running: Vec<Header>,
    /// Tasks of requests that were not carried out, not ended yet.
    abandoned: Vec<Header>,
    bodies: BTreeMap<Xid, Bytes>,
    // What happened.
    executed: BTreeMap<u32, Vec<u64>>,
    replied: BTreeMap<u32, u64>,
    calls: u32,
    callbacks_sent: u64,
    callbacks_seen: Vec<u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let now = Instant(1_000_000_000_000);
        let config = ImportConfig {
            client: ClientUuid([1; 16]),
            role: Role::Client,
            secret: nacre_types::Secret::new([3; 16]),
            name: "model".into(),
            addresses: vec!["a".into()],
            max_mod_rpcs: 1 + dice.below(9) as u16,
            max_rpcs: 4,
            known: None,
            replaced: 0,
            instance: 0,
            seed,
        };
        Self {
            dice,
            now,
            import: Import::new(now, config),
            wires: BTreeMap::new(),
            export: Export::new(Generation(1)),
            instance: 1,
            next_transno: 1,
            durable: BTreeMap::new(),
            running: Vec::new(),
            abandoned: Vec::new(),
            bodies: BTreeMap::new(),
            executed: BTreeMap::new(),
            replied: BTreeMap::new(),
            calls: 0,
            callbacks_sent: 0,
            callbacks_seen: Vec::new(),
        }
    }

    fn drain(&mut self) {
        while let Some(effect) = self.import.poll_effect() {
            match effect {
                ImportEffect::Open { epoch, .. } => {
                    self.wires.insert(epoch, Wire::default());
                    self.import.handle_opened(self.now, epoch);
                }
                ImportEffect::Send { epoch, frame } => {
                    if let Some(wire) = self.wires.get_mut(&epoch) {
                        wire.up.push_back(frame.clone());
                        if frame.header.opcode != Opcode::Connect.number() && self.dice.below(10) == 0 {
                            wire.up.push_back(frame);
                        }
                    }
                }
                // The server may still read what was sent: the wire stays until it breaks on that side too.
                ImportEffect::Close { .. } => {}
                ImportEffect::Done { token, result, .. } => {
                    let frame = result.expect("nothing is evicted or stopped here");
                    let old = self.replied.insert(token, frame.header.transno.0);
                    assert!(old.is_none(), "call {token} has two replies");
                }
                ImportEffect::Callback { frame } => {
                    self.callbacks_seen.push(u64::from_slice(&frame.body).expect("the script"));
                    self.import.callback_done(frame.header.xid);
                }
                ImportEffect::Restarted { .. } | ImportEffect::State { .. } | ImportEffect::Lost { .. } => {}
                ImportEffect::ReplacedConnection { .. }
                | ImportEffect::Recovering { .. }
                | ImportEffect::PingReplied { .. } => {}
                ImportEffect::Evicted { .. }
                | ImportEffect::Stopped
                | ImportEffect::Mismatch { .. }
                | ImportEffect::ReplayFailed { .. } => {
                    panic!("{effect:?}")
                }
            }
        }
    }

    fn call(&mut self) {
        self.calls += 1;
        let (opcode, class) = match self.dice.below(6) {
            0 => (Opcode::Lookup, Class::Read),
            1 => (Opcode::Close, Class::Close),
            2 => (Opcode::Cancel, Class::Callback),
            _ => (Opcode::Create, Class::Modify),
        };
        let body = Bytes::from(self.calls.to_vec());
        let request = Request { opcode, class, body, bulk: Vec::new(), flags: 0, job: 0, deadline: None };
        self.import.call(self.now, request, self.calls);
    }

    fn down(&mut self, epoch: ConnEpoch, mut frame: Frame) {
        frame.header.epoch = epoch;
        frame.header.last_committed = Transno(self.next_transno - 1); // the log is written before the reply
        if let Some(wire) = self.wires.get_mut(&epoch) {
            wire.down.push_back(frame.clone());
            if self.dice.below(10) == 0 {
                wire.down.push_back(frame);
            }
        }
    }
    fn reply(&mut self, epoch: ConnEpoch, request: &Header, transno: u64, body: Vec<u8>) {
        let mut header = Header::new(Kind::Reply, request.opcode);
        (header.xid, header.transno) = (request.xid, Transno(transno));
        self.down(epoch, Frame::new(header, body));
    }

    fn serve(&mut self, frame: Frame) {
        let h = &frame.header;
        match h.kind {
            Kind::CallbackAck => return self.export.handle_callback_ack(h.xid),
            Kind::Ack => return self.export.handle_last_xid(h.last_xid),
            _ => {}
        }
        let class = match Opcode::from_number(h.opcode).expect("the script") {
            Opcode::Connect => return self.serve_connect(&frame),
            Opcode::Ping => Class::Import,
            Opcode::Lookup => Class::Read,
            Opcode::Close => Class::Close,
            Opcode::Cancel => Class::Callback,
            _ => Class::Modify,
        };
        match self.export.admit(h, class) {
            Admission::Execute if class == Class::Import => self.reply(h.epoch, h, 0, vec![0; 8]),
            Admission::Execute => {
                self.bodies.insert(h.xid, frame.body.clone());
                self.running.push(frame.header);
            }
            Admission::Reply(record) => self.reply(h.epoch, h, record.transno.0, Vec::new()),
            Admission::Drop => {}
            Admission::Error(_) => {} // an obsolete double
        }
    }
    fn serve_connect(&mut self, frame: &Frame) {
        let connect = Connect::from_slice(&frame.body).expect("the script");
        if self.export.connect(frame.header.epoch, connect.max_mod_rpcs).is_err() {
            return;
        }
        let callbacks = self.export.callbacks();
        let reply = ConnectReply {
            target: ClientUuid([2; 16]),
            features: features::MULTI_MOD_RPCS,
            max_mod_rpcs: 8,
            lease_ms: 10_000,
            generation: Generation(1),
            instance: self.instance,
            ..ConnectReply::default()
        };
        self.reply(frame.header.epoch, &frame.header, 0, reply.to_vec());
        for callback in callbacks {
            self.down(frame.header.epoch, callback);
        }
    }
    /// Ends one running request, in any order.
    fn execute(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let n = self.dice.below(self.running.len() as u64) as usize;
        let h = self.running.swap_remove(n);
        if let Some(late) = self.abandoned.pop() {
            assert_eq!(self.export.finish(late.xid, late.epoch), None, "its next copy is on its own");
        }
        if !self.wires.contains_key(&self.export.epoch()) && self.dice.below(2) == 0 {
            self.export.abandon(h.xid);
            return self.abandoned.push(h);
        }
        let token = u32::from_slice(&self.bodies[&h.xid]).expect("the script");
        let mut transno = 0;
        if h.tag.0 != 0 {
            transno = self.next_transno;
            self.next_transno += 1;
            self.executed.entry(token).or_default().push(transno);
            let record = ReplyRecord {
                transno: Transno(transno),
                xid: h.xid,
                data: 0,
                result: 0,
                generation: Generation(1),
                tag: h.tag,
                pre_versions: PreVersions::default(),
                results: vec![],
                fid: Fid::ROOT,
            };
            self.durable.retain(|_, r| r.tag != h.tag);
            self.durable.insert(h.xid, record.clone());
            self.export.remember(record);
        }
        if let Some(epoch) = self.export.finish(h.xid, h.epoch) {
            self.reply(epoch, &h, transno, Vec::new());
        }
    }
    fn callback(&mut self) {
        self.callbacks_sent += 1;
        let frame = self
            .export
            .callback(Opcode::LockGranted, self.callbacks_sent.to_vec().into())
            .expect("the script");
        self.down(self.export.epoch(), frame);
    }
    fn restart(&mut self) {
        self.running.clear();
        self.abandoned.clear();
        self.wires.clear();
        self.instance += 1;
        self.export = Export::restore(Generation(1), Transno(0), self.durable.values().cloned());
        self.callbacks_sent = 0;
        self.callbacks_seen.clear();
        self.import.handle_closed(self.now, self.import.epoch(), "killed");
    }

    fn step(&mut self, faults: bool) {
        match self.dice.below(if faults { 100 } else { 90 }) {
            0..15 => self.execute(),
            15..50 => {
                let n = self.dice.below(self.wires.len().max(1) as u64) as usize;
                if let Some(frame) = self.wires.values_mut().nth(n).and_then(|w| w.up.pop_front()) {
                    self.serve(frame);
                }
            }
            50..85 => {
                let n = self.dice.below(self.wires.len().max(1) as u64) as usize;
                let found = self.wires.iter_mut().nth(n).and_then(|(e, w)| Some((*e, w.down.pop_front()?)));
                if let Some((epoch, frame)) = found {
                    self.import.handle_frame(self.now, epoch, frame);
                }
            }
            85..90 => {
                let d = self.dice.below(400_000_000);
                self.now = self.now + Duration::from_nanos(d);
                if self.import.poll_deadline().is_some_and(|at| at <= self.now) {
                    self.import.handle_timeout(self.now);
                }
            }
            90..96 => self.call(),
            96 => self.callback(),
            97 => self.import.handle_closed(self.now, self.import.epoch(), "reset"),
            98 => {
                let oldest = self.wires.keys().next().copied();
                if let Some(epoch) = oldest.filter(|e| *e < self.import.epoch()) {
                    self.wires.remove(&epoch); // what was under way there is lost
                }
            }
            _ => {
                if self.dice.below(10) == 0 {
                    self.restart();
                }
            }
        }
        self.drain();
    }
}

#[test]
fn every_change_is_executed_exactly_once_and_every_call_gets_its_reply() {
    for seed in 1..=400 {
        let mut w = World::new(seed);
        for _ in 0..1500 {
            w.step(true);
        }
        let mut left = 100_000;
        while left > 0
            && (w.import.in_flight() + w.import.waiting() > 0 || w.export.unacknowledged_callbacks() > 0)
        {
            w.step(false);
            left -= 1;
        }
        assert!(left > 0, "seed {seed}: {} calls never end", w.import.in_flight() + w.import.waiting());
        assert_eq!(w.replied.len(), w.calls as usize, "seed {seed}");
        for (token, transnos) in &w.executed {
            assert_eq!(transnos.len(), 1, "seed {seed}: call {token} was executed as {transnos:?}");
            assert_eq!(w.replied[token], transnos[0], "seed {seed}: call {token} has the reply of another");
        }
        assert!(w.callbacks_seen.is_sorted_by(|a, b| a < b), "seed {seed}: callbacks {:?}", w.callbacks_seen);
        assert_eq!(w.callbacks_seen.len() as u64, w.callbacks_sent, "seed {seed}");
        assert_eq!((w.import.in_flight(), w.import.slots().in_flight()), (0, 0), "seed {seed}");
    }
}
