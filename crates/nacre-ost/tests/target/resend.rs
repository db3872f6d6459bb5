//! A resent write is served from its record and does not undo another client's later write.

use crate::support::{Cluster, at, many, object, owner};
use bytes::Bytes;
use nacre_node::{ConnId, Ctx, Effect, Event, Logic};
use nacre_sim::{NodeId, World};
use nacre_types::*;
use nacre_wire::ost::{Write, WriteManyReply};
use nacre_wire::target::{Connect, Role, features};
use nacre_wire::{Frame, Header, Kind, Opcode, Status, flags};
use std::cell::RefCell;
use std::rc::Rc;

/// A client that sends what it is told to.
struct Raw {
    ctx: Rc<Ctx>,
    got: Rc<RefCell<Vec<Frame>>>,
}
enum Order {
    Open(ConnId),
    Send(ConnId, Frame),
    Close(ConnId),
}
impl Logic for Raw {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Door(order) => self.ctx.push(match *order.downcast::<Order>().unwrap() {
                Order::Open(conn) => {
                    let target = "demo-OST0000";
                    Effect::Open { conn, address: World::address(target), target: target.into() }
                }
                Order::Send(conn, frame) => Effect::Send { conn, frame },
                Order::Close(conn) => Effect::Close { conn },
            }),
            Event::Frame { frame, .. } => self.got.borrow_mut().push(frame),
            _ => {}
        }
    }
}

struct Hand {
    node: NodeId,
    got: Rc<RefCell<Vec<Frame>>>,
}
impl Hand {
    fn order(&self, c: &mut Cluster, order: Order) {
        c.world.tell(self.node, Event::Door(Box::new(order)));
        c.run_ms(100);
    }
    fn connect(&self, c: &mut Cluster, epoch: u32, generation: Generation) {
        let mut header = Header::new(Kind::Request, Opcode::Connect.number());
        (header.xid, header.epoch) = (Xid(u64::from(epoch)), ConnEpoch(epoch));
        let connect = Connect {
            client: ClientUuid([9; 16]),
            role: Role::Client,
            secret: nacre_types::Secret::new([3; 16]),
            name: "raw".into(),
            features: features::ALL,
            max_mod_rpcs: 7,
            generation,
            known: None,
            replaced: 0,
            instance: 0,
        };
        let conn = ConnId(u64::from(epoch));
        self.order(c, Order::Open(conn));
        self.order(c, Order::Send(conn, Frame::new(header, connect.to_vec())));
    }
    fn reply(&self, xid: u64) -> Frame {
        let got = self.got.borrow();
        got.iter().rev().find(|f| f.header.xid == Xid(xid) && f.header.kind == Kind::Reply).cloned().unwrap()
    }
}

/// A write, alone or between others, one of which fails.
fn write(epoch: u32, resent: bool, is_many: bool, data: &'static [u8]) -> Frame {
    let opcode = if is_many { Opcode::WriteMany } else { Opcode::Write };
    let mut header = Header::new(Kind::Request, opcode.number());
    (header.xid, header.tag, header.epoch) = (Xid(50), Tag(1), ConnEpoch(epoch));
    header.last_xid = Xid(49);
    if resent {
        header.flags |= flags::RESENT;
    }
    if is_many {
        let others = vec![3; 5000];
        let writes = [(object(1), 0, data.to_vec()), (object(1), 9000, others), (object(2), 0, vec![4; 9])];
        let (args, bulk) = many(&writes);
        return Frame { bulk, ..Frame::new(header, args.to_vec()) };
    }
    let args =
        Write { object: object(1), laid: 0, offset: 0, owner: owner(), mtime: at(5), lock: LockCookie(0) };
    let mut frame = Frame::new(header, args.to_vec());
    frame.bulk.push(Bytes::from_static(data));
    frame
}

#[test]
fn a_resent_write_does_not_undo_a_later_one() {
    for (restart, is_many) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut c = Cluster::new(21, 1);
        c.run(0, |c| async move { c.destroy(object(2)).await }).unwrap();
        let got = Rc::new(RefCell::new(Vec::new()));
        let inner = got.clone();
        let start =
            move |ctx: &Rc<Ctx>| -> Box<dyn Logic> { Box::new(Raw { ctx: ctx.clone(), got: inner.clone() }) };
        let node = c.world.add("raw", None, Box::new(start));
        c.world.start(node);
        let hand = Hand { node, got };
        hand.connect(&mut c, 1, Generation(0));
        let generation = {
            let reply = hand.reply(1);
            nacre_wire::target::ConnectReply::from_slice(&reply.body).unwrap().generation
        };
        hand.order(&mut c, Order::Send(ConnId(1), write(1, false, is_many, b"first")));
        let first = hand.reply(50);
        assert_eq!(first.header.status, Status::Success);
        assert_ne!(first.header.transno, Transno(0));

        // As if the reply had been lost: another client writes, then the first sends its request again.
        c.run(0, |c| async move { c.write(object(1), 0, b"later").await }).unwrap();
        if restart {
            c.restart();
            c.run_ms(100);
        } else {
            hand.order(&mut c, Order::Close(ConnId(1)));
        }
        hand.connect(&mut c, 2, generation);
        if restart {
            let mut done = Header::new(Kind::Request, Opcode::Ping.number());
            (done.xid, done.epoch) = (Xid(60), ConnEpoch(2));
            done.flags |= flags::REPLAY_DONE;
            hand.order(&mut c, Order::Send(ConnId(2), Frame::new(done, Vec::new())));
            c.run_ms(500);
        }
        hand.order(&mut c, Order::Send(ConnId(2), write(2, true, is_many, b"first")));
        let again = hand.reply(50);
        assert_eq!((again.header.status, again.header.transno), (Status::Success, first.header.transno));
        assert!(again.header.has(flags::RECONSTRUCTED));
        if is_many {
            for reply in [&first, &again] {
                let results = WriteManyReply::from_slice(&reply.body).unwrap().results;
                let statuses: Vec<Status> = results.iter().map(|result| result.status).collect();
                assert_eq!(statuses, [Status::Success, Status::Success, Errno::ENOENT.into()]);
            }
        }
        let bytes = c.run(0, |c| async move { c.read(object(1), 0, 10).await }).unwrap();
        assert!(bytes.starts_with(b"later"), "the resent write was executed again (restart: {restart})");
    }
}
