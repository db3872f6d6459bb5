//! Targets that are not what they were: made anew, put back from an old copy, copied and diverged. Nobody uses them until an
//! administrator says so, and then nothing that is lost reads as zeros (docs/targets.md).

mod support;

use bytes::Bytes;
use nacre_client::{Client, CreateArgs, WriteArgs};
use nacre_node::{Ctx, Effect, Event, Logic, Origin, Peer, PeerConfig, Peers};
use nacre_sim::cluster::Cluster;
use nacre_sim::{NodeId, World};
use nacre_types::{ClientUuid, Failure, Fid, FsName, LayoutTemplate, OstIndex, Secret, SetAttr, TargetKind};
use nacre_wire::mgs::{Admit, AdmitReply, AdmitTarget};
use nacre_wire::target::Role;
use std::rc::Rc;
use support::{FILE, MDT, MS, SEC, caller, new};

const MGS: usize = 0;
const OST1: usize = 3;

/// A cluster whose targets stop one by one, ready, with two OSTs.
fn cluster(seed: u64) -> Cluster {
    let mut c = support::cluster(2 * seed + 1, 2, 1);
    c.world.run_for(3 * SEC); // the MDT has met its OSTs and kept that
    c
}
/// A job on the first mount, which must end soon: nobody may wait in silence for a target that is refused.
fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
    c: &mut Cluster,
    job: impl FnOnce(Rc<Client>) -> F + Send + 'static,
) -> T {
    let mount = c.mounts[0];
    let id = c.jobs.start(&mut c.world, mount, job);
    let done = c.jobs.wait(&mut c.world, id, 30 * SEC);
    done.unwrap_or_else(|| panic!("the job never ends\n{}", c.world.trace(60)))
}
fn args(name: &str, ost: i32) -> CreateArgs<'_> {
    let layout =
        LayoutTemplate { stripe_count: 1, stripe_bytes: 0, first_ost: ost, ..LayoutTemplate::default() };
    CreateArgs { layout: Some(layout), ..new(Fid::ROOT, name, FILE) }
}
/// A file on an OST, durable there and at the MDT.
async fn write(client: &Client, name: &str, ost: i32, data: &'static [u8]) -> Result<Fid, Failure> {
    let (entry, handle) = client.create(args(name, ost), 2).await?;
    let data = Bytes::from_static(data);
    let write =
        WriteArgs { handle, offset: 0, append: false, call_bytes: 0, data, kill_suidgid: None, sync: true };
    client.write(write).await?;
    client.release(handle, None).await.map(|()| entry.attr.fid)
}
fn made(c: &mut Cluster, name: &'static str, ost: i32, data: &'static [u8]) -> Fid {
    run(c, async move |client| write(&client, name, ost, data).await).expect("it is written")
}
fn read(c: &mut Cluster, fid: Fid) -> Result<Vec<u8>, Failure> {
    run(c, async move |client| {
        let (_, handle) = client.open(fid, 0, caller()).await?;
        let bytes = client.read(handle, 0, 100).await;
        client.release(handle, None).await?;
        Ok(bytes?.concat())
    })
}
fn overwrite(c: &mut Cluster, fid: Fid) -> Result<u32, Failure> {
    run(c, async move |client| {
        let (_, handle) = client.open(fid, 2, caller()).await?;
        let data = Bytes::from_static(b"x");
        let write = WriteArgs {
            handle,
            offset: 2,
            append: false,
            call_bytes: 0,
            data,
            kill_suidgid: None,
            sync: false,
        };
        let written = client.write(write).await;
        client.release(handle, None).await?;
        written
    })
}
fn truncate(c: &mut Cluster, fid: Fid) -> Result<(), Failure> {
    run(c, async move |client| {
        let set = SetAttr { size: Some(1), ..SetAttr::default() };
        client.setattr(fid, set, caller()).await.map(drop)
    })
}

fn stop(c: &mut Cluster, server: usize) {
    let node = c.servers[server];
    c.world.tell(node, Event::Stop);
    let until = c.world.now_ns() + 60 * SEC;
    assert!(c.world.run_until(until, |world| world.take_stopped().contains(&node)), "it does not stop");
    c.world.kill(node);
}
/// Starts a server and gives its clients time to find it, and to hear of an admission.
fn start(c: &mut Cluster, server: usize) {
    let node = c.servers[server];
    c.world.start(node);
    c.world.run_for(4 * SEC);
}
/// The target ends itself, and says why.
fn refused(c: &mut Cluster, server: usize) -> String {
    let until = c.world.now_ns() + 60 * SEC;
    assert!(c.world.run_until(until, |world| !world.fatal.is_empty()), "it goes on\n{}", c.world.trace(60));
    let node = c.servers[server];
    c.world.kill(node);
    let why = c.world.fatal.remove(0);
    assert!(why.starts_with(c.world.name(node)), "{why}");
    why
}

struct Admin {
    ctx: Rc<Ctx>,
    peers: Rc<Peers>,
}
impl Logic for Admin {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        drop(self.peers.handle(event));
    }
}
/// `nacre target replace` and `accept-rollback`: a tool asks the MGS.
fn admit(c: &mut Cluster, kind: TargetKind, index: u32, admit: Admit) -> AdmitReply {
    let start = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
        let peers = Rc::new(Peers::default());
        let config = PeerConfig {
            client: ClientUuid([9; 16]),
            role: Role::Tool,
            name: "admin".into(),
            target: "MGS".into(),
            addresses: vec![World::address("MGS")],
            max_mod_rpcs: 1,
            secret: Secret::new([9; 16]),
            known: None,
            replaced: 0,
            instance: 0,
        };
        let peer = Peer::new(ctx, &peers, config);
        let (island, fs) = (ctx.clone(), FsName::parse("demo").expect("a name"));
        ctx.spawn(async move {
            let asked = AdmitTarget { fs, kind, index, admit, revoke: false };
            let reply = peer.call(&asked).await.expect("the reply comes");
            island.push(Effect::Door(Box::new(reply)));
        });
        Box::new(Admin { ctx: ctx.clone(), peers })
    };
    let node: NodeId = c.world.add("admin", None, Box::new(start));
    c.world.set_origin(node, Origin::Administrator);
    c.world.start(node);
    for _ in 0..1000 {
        c.world.run_for(10 * MS);
        while let Some((from, said)) = c.world.hear() {
            if from == node {
                c.world.kill(node);
                return *said.downcast::<AdmitReply>().expect("the reply");
            }
        }
    }
    panic!("the MGS does not reply");
}

/// Reads and writes on the OST fail, in finite time; others work; new files go elsewhere.
fn nobody_uses_it(c: &mut Cluster, there: Fid, elsewhere: Fid) {
    assert_eq!(read(c, there), Err(Failure::EIO));
    assert_eq!(overwrite(c, there), Err(Failure::EIO));
    assert_eq!(truncate(c, there), Err(Failure::EIO));
    assert_eq!(read(c, elsewhere), Ok(b"zero".to_vec()));
    let wanted = run(c, async |client| client.make(args("there", 1)).await.map(drop));
    assert_eq!(wanted, Err(Failure::ENXIO));
    let on = run(c, async |client| {
        client.make(args("any", -1)).await?;
        client.unlink(Fid::ROOT, b"any", false, caller()).await
    });
    assert_eq!(on, Ok(()));
}

#[test]
fn a_blank_ost_is_used_by_nobody_until_it_is_admitted() {
    for seed in 0..8 {
        let mut c = cluster(seed);
        let (zero, one) = (made(&mut c, "zero", 0, b"zero"), made(&mut c, "one", 1, b"one"));
        // The MGS is away: nobody but those who know the OST can tell.
        let mgs = c.servers[MGS];
        c.world.kill(mgs);
        c.world.kill(c.servers[OST1]);
        let real = c.devices[OST1].clone();
        let blank = c.blank_device(OST1);
        c.set_device(OST1, blank.clone());
        start(&mut c, OST1);
        nobody_uses_it(&mut c, one, zero);
        // An MDT that has been started again remembers as well.
        stop(&mut c, MDT);
        start(&mut c, MDT);
        c.world.start(mgs);
        let why = refused(&mut c, OST1);
        assert!(
            why.contains("is another target") && why.contains("nacre target replace demo-OST0001"),
            "{why}"
        );
        // The real one is put back, as if nothing had been.
        c.set_device(OST1, real);
        start(&mut c, OST1);
        assert_eq!(read(&mut c, one), Ok(b"one".to_vec()), "seed {seed}");
        // It is lost for good.
        c.world.kill(c.servers[OST1]);
        let reply = admit(&mut c, TargetKind::Ost, 1, Admit::Replacement);
        assert_eq!((reply.refused.as_str(), reply.replaced), ("", 0));
        c.set_device(OST1, blank);
        start(&mut c, OST1);
        let two = made(&mut c, "two", 1, b"two");
        assert_eq!(read(&mut c, two), Ok(b"two".to_vec()), "seed {seed}");
        assert_eq!(read(&mut c, one), Err(Failure::EIO), "what was there is lost, and no hole: seed {seed}");
        assert_eq!((overwrite(&mut c, one), truncate(&mut c, one)), (Err(Failure::EIO), Err(Failure::EIO)));
        assert_eq!(read(&mut c, zero), Ok(b"zero".to_vec()));
        let gone = run(&mut c, async |client| client.unlink(Fid::ROOT, b"one", false, caller()).await);
        assert_eq!(gone, Ok(()), "the file can be removed");
        // The new one is the registered one now: a restart of everything changes nothing.
        for server in [OST1, MDT, MGS] {
            stop(&mut c, server);
            start(&mut c, server);
        }
        assert_eq!(read(&mut c, two), Ok(b"two".to_vec()), "seed {seed}");
        assert!(c.world.fatal.is_empty(), "{:?}", c.world.fatal);
    }
}

/// A new mount, and an MDT that was started again: only the rows of MGS and MDT remember.
#[test]
fn an_ost_from_an_old_copy_is_refused_by_those_who_were_not_there() {
    for seed in 0..8 {
        let mut c = cluster(seed);
        let (zero, one) = (made(&mut c, "zero", 0, b"zero"), made(&mut c, "one", 1, b"one"));
        stop(&mut c, OST1);
        let copy = c.devices[OST1].copy();
        start(&mut c, OST1);
        let two = made(&mut c, "two", 1, b"two");
        c.world.run_for(SEC);
        let mount = c.mounts[0];
        c.world.kill(mount);
        stop(&mut c, MDT);
        stop(&mut c, OST1);
        c.set_device(OST1, copy);
        start(&mut c, MDT);
        c.replace_mount(0).expect("it starts");
        let mgs = c.servers[MGS];
        c.world.run_for(2 * SEC);
        c.world.kill(mgs);
        start(&mut c, OST1);
        nobody_uses_it(&mut c, one, zero);
        assert_eq!(read(&mut c, two), Err(Failure::EIO), "seed {seed}");
        c.world.start(mgs);
        let why = refused(&mut c, OST1);
        assert!(why.contains("has gone back") && why.contains("accept-rollback demo-OST0001"), "{why}");
        // There is nothing better.
        assert_eq!(admit(&mut c, TargetKind::Ost, 1, Admit::Rollback).refused, "");
        start(&mut c, OST1);
        assert_eq!(read(&mut c, one), Ok(b"one".to_vec()), "seed {seed}");
        assert_eq!(read(&mut c, two), Err(Failure::EIO), "later than the copy: seed {seed}");
        let three = made(&mut c, "three", 1, b"three");
        assert_eq!(read(&mut c, three), Ok(b"three".to_vec()), "seed {seed}");
        assert_eq!(overwrite(&mut c, one), Ok(1));
        assert!(c.world.fatal.is_empty(), "{:?}", c.world.fatal);
    }
}

/// Copies of a running target: one that is behind, and one that went on beside the original.
#[test]
fn a_clone_that_is_behind_or_has_diverged_is_refused() {
    for seed in 0..8 {
        let mut c = cluster(seed);
        let (zero, one) = (made(&mut c, "zero", 0, b"zero"), made(&mut c, "one", 1, b"one"));
        let (copy, mgs) = (c.devices[OST1].copy(), c.servers[MGS]);
        let two = made(&mut c, "two", 1, b"two");
        c.world.run_for(3 * SEC); // the MDT asks for the room every 2 s, and hears what is durable
        c.world.kill(mgs);
        c.world.kill(c.servers[OST1]);
        let real = c.devices[OST1].clone();
        c.set_device(OST1, copy.copy());
        start(&mut c, OST1);
        nobody_uses_it(&mut c, one, zero);
        c.world.kill(c.servers[OST1]);
        c.set_device(OST1, real.clone());
        start(&mut c, OST1);
        assert_eq!(read(&mut c, two), Ok(b"two".to_vec()), "seed {seed}");
        // It has everything that is durable, and another history.
        c.world.kill(c.servers[OST1]);
        let clone = real.copy();
        start(&mut c, OST1);
        assert_eq!(read(&mut c, two), Ok(b"two".to_vec()), "seed {seed}");
        c.world.kill(c.servers[OST1]);
        c.set_device(OST1, clone);
        start(&mut c, OST1);
        nobody_uses_it(&mut c, two, zero);
        c.world.kill(c.servers[OST1]);
        c.set_device(OST1, real);
        start(&mut c, OST1);
        c.world.start(mgs);
        assert_eq!(read(&mut c, two), Ok(b"two".to_vec()), "seed {seed}");
        assert!(c.world.fatal.is_empty(), "{:?}", c.world.fatal);
    }
}

/// The MGS has heard last what is durable when the target registered. A mount knows more, and does not give that up for
/// what the MGS has met since.
#[test]
fn a_copy_that_the_mgs_lets_in_is_refused_by_a_mount_that_knows_more() {
    for seed in 0..8 {
        let mut c = cluster(seed);
        let (zero, one) = (made(&mut c, "zero", 0, b"zero"), made(&mut c, "one", 1, b"one"));
        let copy = c.devices[OST1].copy();
        let two = made(&mut c, "two", 1, b"two");
        c.world.run_for(3 * SEC);
        c.world.kill(c.servers[OST1]);
        let real = c.devices[OST1].clone();
        c.set_device(OST1, copy);
        start(&mut c, OST1);
        nobody_uses_it(&mut c, one, zero);
        assert_eq!(read(&mut c, two), Err(Failure::EIO), "seed {seed}");
        // The MGS has met the copy: the administrator says that the original is right.
        c.world.kill(c.servers[OST1]);
        c.set_device(OST1, real);
        c.world.start(c.servers[OST1]);
        let why = refused(&mut c, OST1);
        assert!(why.contains("accept-rollback demo-OST0001"), "{why}");
        assert_eq!(admit(&mut c, TargetKind::Ost, 1, Admit::Rollback).refused, "");
        start(&mut c, OST1);
        assert_eq!(read(&mut c, two), Ok(b"two".to_vec()), "seed {seed}");
    }
}

#[test]
fn an_mdt_from_an_old_copy_lets_nobody_in_until_it_is_admitted() {
    for seed in 0..8 {
        let mut c = cluster(seed);
        let one = made(&mut c, "one", 1, b"one");
        stop(&mut c, MDT);
        let copy = c.devices[MDT].copy();
        start(&mut c, MDT);
        // A mount that comes after the copy has FIDs that the copy does not know to be given out.
        let mount = c.mounts[0];
        c.world.kill(mount);
        c.replace_mount(0).expect("it starts");
        let two = made(&mut c, "two", 1, b"two");
        c.world.run_for(SEC);
        let (mdt, mgs) = (c.servers[MDT], c.servers[MGS]);
        c.world.kill(mgs);
        c.world.kill(mdt);
        c.set_device(MDT, copy);
        start(&mut c, MDT);
        let looked = |c: &mut Cluster, fid| run(c, async move |client| client.getattr(fid).await.map(drop));
        assert_eq!(looked(&mut c, one), Err(Failure::EIO), "seed {seed}");
        c.world.start(mgs);
        let why = refused(&mut c, MDT);
        assert!(why.contains("accept-rollback demo-MDT0000"), "{why}");
        let never = admit(&mut c, TargetKind::Mdt, 0, Admit::Replacement).refused;
        assert!(never.contains("empty MDT"), "{never}");
        assert_eq!(admit(&mut c, TargetKind::Mdt, 0, Admit::Rollback).refused, "");
        start(&mut c, MDT);
        assert_eq!(read(&mut c, one), Ok(b"one".to_vec()), "seed {seed}");
        assert_eq!(looked(&mut c, two), Err(Failure::ESTALE), "later than the copy: seed {seed}");
        // Objects of files that were made after the copy are there: no new file may get one of them.
        let fresh: Vec<Fid> = ["a", "b", "c", "d"].map(|name| made(&mut c, name, 1, b"n")).to_vec();
        assert!(!fresh.contains(&two), "seed {seed}: {fresh:?}");
        for fid in fresh {
            assert_eq!(read(&mut c, fid), Ok(b"n".to_vec()), "seed {seed}");
        }
        assert!(c.world.fatal.is_empty(), "{:?}", c.world.fatal);
    }
}

#[test]
fn layouts_say_under_which_number_a_stripe_was_laid_out() {
    let mut c = cluster(1);
    c.world.kill(c.servers[OST1]);
    let blank = c.blank_device(OST1);
    admit(&mut c, TargetKind::Ost, 1, Admit::Replacement);
    c.set_device(OST1, blank);
    start(&mut c, OST1);
    let fid = made(&mut c, "new", 1, b"new");
    let layout = run(&mut c, async move |client| client.layout(fid).await).expect("it has one");
    let component = layout.layout.expect("it has one").components.remove(0);
    assert_eq!((component.stripes.as_slice(), component.laid(0)), (&[OstIndex(1)][..], 1));
}

/// The number of the opening of the second OST's store that the MGS has registered.
fn registered_opening(c: &mut Cluster) -> u64 {
    let (_, _, live) = c.params(|name| name == "mgs.MGS.live.demo").remove(0);
    let line = live.lines().find(|line| line.starts_with("demo-OST0001")).expect("it has registered");
    let number = line.split("opening: ").nth(1).and_then(|rest| rest.split(',').next());
    number.expect("it says so").parse().expect("a number")
}
/// The address under which the MGS sends everybody to the second OST.
fn registered_at_the_copy(c: &mut Cluster) -> bool {
    let (_, _, live) = c.params(|name| name == "mgs.MGS.live.demo").remove(0);
    live.contains("copy-of-demo-OST0001.sim")
}
fn copy_is_refused(c: &mut Cluster, copy: NodeId) {
    let until = c.world.now_ns() + 20 * SEC;
    assert!(c.world.run_until(until, |world| !world.fatal.is_empty()), "it goes on\n{}", c.world.trace(60));
    c.world.kill(copy);
    let why = c.world.fatal.remove(0);
    assert!(
        why.starts_with("copy-of-demo-OST0001") && why.contains("is being served by another process"),
        "{why}"
    );
    assert!(!registered_at_the_copy(c));
}

/// The copy has everything that is durable: its history alone does not tell it from a restart of the original.
#[test]
fn a_copy_beside_the_living_original_is_refused_and_the_original_goes_on() {
    for seed in 0..8 {
        let mut c = cluster(seed);
        let one = made(&mut c, "one", 1, b"one");
        c.world.run_for(3 * SEC);
        let device = c.devices[OST1].copy();
        let copy = c.add_copy(OST1, device);
        c.world.start(copy);
        copy_is_refused(&mut c, copy);
        let two = made(&mut c, "two", 1, b"two");
        assert_eq!((read(&mut c, one), read(&mut c, two)), (Ok(b"one".to_vec()), Ok(b"two".to_vec())));
        // The original is the registered one at its next start as well.
        stop(&mut c, OST1);
        start(&mut c, OST1);
        assert_eq!(read(&mut c, two), Ok(b"two".to_vec()), "seed {seed}");
        assert!(c.world.fatal.is_empty(), "seed {seed}: {:?}", c.world.fatal);
    }
}

/// An MGS that was started anew has no connection to anybody: it asks at the registered address.
#[test]
fn a_copy_that_comes_first_to_a_new_mgs_is_refused_while_the_original_replies() {
    for seed in 0..8 {
        let mut c = cluster(seed);
        let one = made(&mut c, "one", 1, b"one");
        let mgs = c.servers[MGS];
        c.world.kill(mgs);
        let device = c.devices[OST1].copy();
        let copy = c.add_copy(OST1, device);
        c.world.run_for(30 * SEC); // the original tries only once a second by now, so the copy is first
        c.world.start(copy);
        c.world.start(mgs);
        copy_is_refused(&mut c, copy);
        c.world.run_for(3 * SEC);
        assert_eq!(read(&mut c, one), Ok(b"one".to_vec()), "seed {seed}");
        assert!(c.world.fatal.is_empty(), "seed {seed}: {:?}", c.world.fatal);
    }
}

#[test]
fn a_target_that_was_killed_is_registered_again_without_waiting_for_its_lease() {
    for seed in 0..8 {
        let mut c = cluster(seed);
        made(&mut c, "one", 1, b"one");
        for both in [false, true] {
            let before = registered_opening(&mut c);
            let killed = if both { vec![MGS, OST1] } else { vec![OST1] };
            killed.iter().for_each(|&server| c.world.kill(c.servers[server]));
            killed.iter().for_each(|&server| c.world.start(c.servers[server]));
            c.world.run_for(2 * SEC);
            assert_eq!(registered_opening(&mut c), before + 1, "seed {seed}, {both}\n{}", c.world.trace(60));
        }
        assert!(c.world.fatal.is_empty(), "seed {seed}: {:?}", c.world.fatal);
    }
}

/// A target that stands still may go on at any time: it counts as alive until its lease has run out.
#[test]
fn a_copy_of_a_target_that_stands_still_waits_for_the_end_of_its_lease() {
    for seed in 0..8 {
        let mut c = cluster(seed);
        made(&mut c, "one", 1, b"one");
        c.world.run_for(3 * SEC);
        let ost = c.servers[OST1];
        c.world.pause(ost, true);
        let device = c.devices[OST1].copy();
        let copy = c.add_copy(OST1, device);
        c.world.start(copy);
        c.world.run_for(6 * SEC);
        assert!(!registered_at_the_copy(&mut c), "seed {seed}: the lease has not run out");
        c.world.run_for(9 * SEC);
        assert!(registered_at_the_copy(&mut c), "seed {seed}\n{}", c.world.trace(60));
        // It goes on, and the other one has its place.
        c.world.pause(ost, false);
        let why = refused(&mut c, OST1);
        assert!(why.contains("is being served by another process"), "seed {seed}: {why}");
        assert!(c.world.fatal.is_empty(), "seed {seed}: {:?}", c.world.fatal);
    }
}
