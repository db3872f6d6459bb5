//! Strangers who can reach a target: in a client's name, with long names, in floods; and what nobody is told who does not
//! come as the administrator of the target's machine.

mod common;

use common::{Jobs, SEC, TARGET, add, add_client, ledger};
use nacre_node::{ConnId, Ctx, Effect, Event, Logic, Origin, RpcError};
use nacre_sim::{NodeId, World};
use nacre_target::ClientRow;
use nacre_types::{ClientUuid, Codec, ConnEpoch, Errno, Failure, Generation, Secret, Xid};
use nacre_wire::target::{Connect, Disconnect, GetParams, RecoveryRows, Role, SetParam};
use nacre_wire::{Frame, Header, Kind, Opcode};
use std::any::Any;
use std::io::Write;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Lines of the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);
impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no test panics here").extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
impl Log {
    fn begin(&self) -> impl Sized + use<> {
        let log = self.clone();
        let lines = tracing_subscriber::fmt().with_ansi(false).with_target(false).without_time();
        lines.with_writer(move || log.clone()).set_default()
    }
    fn lines(&self, with: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().expect("no test panics here").clone()).expect("text");
        text.lines().filter(|line| line.contains(with)).map(str::to_owned).collect()
    }
}

/// Sends frames as they are, one connection for each list, and tells the status of each reply.
struct Raw {
    ctx: Rc<Ctx>,
    frames: Vec<Vec<Frame>>,
}
impl Logic for Raw {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        let said = match event {
            Event::Start => {
                for number in (1..).take(self.frames.len()) {
                    let (conn, target) = (ConnId(number), TARGET.to_owned());
                    self.ctx.push(Effect::Open { conn, address: World::address(TARGET), target });
                }
                return;
            }
            Event::Opened { conn } => {
                for frame in self.frames[conn.0 as usize - 1].drain(..) {
                    self.ctx.push(Effect::Send { conn, frame });
                }
                return;
            }
            Event::Frame { frame, .. } => format!("status {}", frame.header.status.number()),
            Event::Closed { .. } => "closed".to_owned(),
            _ => return,
        };
        // As a job's value, so that whoever waits for one may pass over it.
        self.ctx.push(Effect::Door(Box::new((0_u64, Box::new(said) as Box<dyn Any + Send>))));
    }
}

fn connect(client: u8, secret: Secret, name: &str) -> Frame {
    let body = Connect {
        client: ClientUuid([client; 16]),
        role: Role::Client,
        secret,
        name: name.into(),
        features: 1,
        max_mod_rpcs: 1,
        generation: Generation(0),
        known: None,
        replaced: 0,
        instance: 0,
    };
    let mut header = Header::new(Kind::Request, Opcode::Connect.number());
    (header.xid, header.epoch) = (Xid(1), ConnEpoch(5));
    Frame::new(header, body.to_vec())
}
fn disconnect() -> Frame {
    let mut header = Header::new(Kind::Request, Opcode::Disconnect.number());
    (header.xid, header.epoch) = (Xid(2), ConnEpoch(5));
    Frame::new(header, Disconnect {}.to_vec())
}
/// What a stranger with these frames hears within two seconds.
fn hears(w: &mut World, frames: Vec<Vec<Frame>>) -> Vec<String> {
    let raw =
        move |ctx: &Rc<Ctx>| Box::new(Raw { ctx: ctx.clone(), frames: frames.clone() }) as Box<dyn Logic>;
    let node = w.add("stranger", None, Box::new(raw));
    w.set_origin(node, Origin::Network);
    w.start(node);
    w.run_for(2 * SEC);
    let mut said = Vec::new();
    while let Some((_, what)) = w.hear() {
        let (_, what) = *what.downcast::<(u64, Box<dyn Any + Send>)>().expect("a value");
        said.push(*what.downcast::<String>().expect("text"));
    }
    said
}

fn impostor_is_refused(w: &mut World) {
    let said = hears(w, vec![vec![connect(1, Secret::new([66; 16]), "evil"), disconnect()]]);
    assert_eq!(said, [format!("status {}", Errno::EACCES.number()), "closed".into()]);
}

#[test]
fn a_connect_in_a_clients_name_without_its_secret_is_refused_and_disturbs_nobody() {
    let log = Log::default();
    let _lines = log.begin();
    let (mut w, target) = ledger(1);
    let mut jobs = Jobs::default();
    let c = add_client(&mut w, TARGET, 1, Role::Client);
    assert_eq!(jobs.run(&mut w, c, |a| add(a, 5)), Ok(5));
    impostor_is_refused(&mut w);
    assert_eq!(jobs.run(&mut w, c, |a| add(a, 5)), Ok(10));
    // The secret is in the client's row.
    w.kill(target);
    w.start(target);
    impostor_is_refused(&mut w);
    assert_eq!(jobs.run(&mut w, c, |a| add(a, 5)), Ok(15));
    assert_eq!(jobs.run(&mut w, c, async |a| a.evictions.get()), 0);
    let lines = log.lines("known with another secret");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("from=\"stranger\""), "{lines:?}");
}

/// Who has the secret is the client; both sides say that it is elsewhere now.
#[test]
fn a_take_over_from_another_host_is_logged_on_both_sides() {
    let log = Log::default();
    let _lines = log.begin();
    let (mut w, _) = ledger(2);
    let mut jobs = Jobs::default();
    let first = add_client(&mut w, TARGET, 1, Role::Client);
    assert_eq!(jobs.run(&mut w, first, |a| add(a, 5)), Ok(5));
    w.pause(first, true);
    let said = hears(&mut w, vec![vec![connect(1, Secret::new([1; 16]), "elsewhere")]]);
    assert_eq!(said, ["status 0"]);
    assert_eq!(log.lines("another host has taken over the connection of a client").len(), 1);
    w.pause(first, false);
    assert_eq!(jobs.run(&mut w, first, |a| add(a, 5)), Ok(10));
    let lines = log.lines("another host was connected with the identity of this client");
    assert!(lines.len() == 1 && lines[0].contains("from=\"stranger\""), "{lines:?}");
}

fn rows(jobs: &mut Jobs, w: &mut World, tool: NodeId) -> Result<Vec<ClientRow>, RpcError> {
    let page = jobs.run(w, tool, async |a| {
        a.peer.call(&RecoveryRows { replies: false, from: bytes::Bytes::new() }).await
    })?;
    Ok(page.rows.iter().map(|row| ClientRow::from_slice(row).expect("a row")).collect())
}

#[test]
fn only_the_administrator_on_the_machine_learns_who_the_clients_are_and_nobody_their_secrets() {
    let (mut w, _) = ledger(3);
    let mut jobs = Jobs::default();
    let c = add_client(&mut w, TARGET, 1, Role::Client);
    assert_eq!(jobs.run(&mut w, c, |a| add(a, 5)), Ok(5));
    let tool = add_client(&mut w, TARGET, 8, Role::Tool);
    let known = rows(&mut jobs, &mut w, tool).expect("readable");
    assert_eq!((known.len(), known[0].secret), (1, Secret::default()));
    assert_eq!(known[0].uuid, ClientUuid([1; 16]));
    let params = |jobs: &mut Jobs, w: &mut World, tool| {
        jobs.run(w, tool, async |a| {
            let all = a.peer.call(&GetParams { pattern: "**".into() }).await.expect("params");
            let of_clients = all.params.iter().filter(|p| p.name.contains(".exports.")).count();
            let set = SetParam { name: "*.*.colour".into(), value: "red".into() };
            (of_clients > 0, a.peer.call(&set).await.map(|reply| reply.matched))
        })
    };
    assert_eq!(params(&mut jobs, &mut w, tool), (true, Ok(1)));
    w.kill(tool);
    w.set_origin(tool, Origin::Network);
    w.start(tool);
    let refused = RpcError::Failed(Failure::EPERM);
    assert_eq!(rows(&mut jobs, &mut w, tool).expect_err("refused"), refused);
    assert_eq!(params(&mut jobs, &mut w, tool), (false, Err(refused)));
}

#[test]
fn a_name_beyond_its_bound_ends_the_connection_and_is_not_logged() {
    let log = Log::default();
    let _lines = log.begin();
    let (mut w, _) = ledger(5);
    let long = "x".repeat(256);
    assert_eq!(hears(&mut w, vec![vec![connect(1, Secret::new([1; 16]), &long)]]), ["closed"]);
    assert!(log.lines("xxxx").is_empty());
    assert_eq!(log.lines("name: 256 where at most 255 are allowed").len(), 1);
    assert_eq!(hears(&mut w, vec![vec![connect(1, Secret::new([1; 16]), &long[1..])]]), ["status 0"]);
}

#[test]
fn a_flood_of_clients_makes_ten_lines_a_second_of_each_kind() {
    let log = Log::default();
    let _lines = log.begin();
    let (mut w, _) = ledger(6);
    let flood = (1..=200).map(|n| vec![connect(n, Secret::new([n; 16]), "one of many"), disconnect()]);
    let said = hears(&mut w, flood.collect());
    assert!(said.len() >= 400);
    for kind in ["new client", "client disconnected"] {
        let lines = log.lines(kind);
        assert!((10..=30).contains(&lines.len()), "{kind}: {} lines", lines.len());
    }
    w.run_for(2 * SEC);
    hears(&mut w, vec![vec![connect(250, Secret::new([1; 16]), "the last")]]);
    let lines = log.lines("the last");
    assert!(lines.len() == 1 && lines[0].contains("left_out=1"), "how many were left out: {lines:?}");
}

#[test]
fn a_connection_that_does_not_become_a_client_is_closed_after_a_few_seconds() {
    let (mut w, _) = ledger(7);
    assert!(hears(&mut w, vec![Vec::new()]).is_empty());
    w.run_for(5 * SEC);
    let (_, what) = w.hear().expect("something");
    let (_, what) = *what.downcast::<(u64, Box<dyn Any + Send>)>().expect("a value");
    assert_eq!(*what.downcast::<String>().expect("text"), "closed");
}
