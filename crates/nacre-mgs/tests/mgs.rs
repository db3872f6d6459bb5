//! An MGS in the simulator's world: registrations survive it, names are given once, versions travel with pings.

#[path = "../../nacre-target/tests/common/mod.rs"]
mod common;

use common::{Jobs, SEC, add_client, add_target, store};
use nacre_mgs::Mgs;
use nacre_node::{Origin, RpcError};
use nacre_sim::{NodeId, World};
use nacre_types::{ClientUuid, Failure, FsName, Identity, TargetKind, Transno};
use nacre_wire::mgs::{
    Admit, AdmitTarget, ListTargets, RegisterReply, RegisterTarget, SetPermanentParam, TargetList,
};
use nacre_wire::target::{GetParams, Role, SetParam};

fn mgs(seed: u64) -> (World, NodeId) {
    let mut w = World::new(seed);
    let store = store(&mut w, "MGS", &[]);
    let node = add_target::<Mgs>(&mut w, "MGS", store);
    w.start(node);
    (w, node)
}
/// The index that means the MDT here.
const MDT: u32 = 1 << 20;

fn demo() -> FsName {
    FsName::parse("demo").expect("a name")
}
/// A target that is started, registers itself, and is killed.
fn register(
    jobs: &mut Jobs,
    w: &mut World,
    index: u32,
    uuid: u8,
    address: &'static str,
) -> Result<RegisterReply, RpcError> {
    register_from(jobs, w, Origin::Network, index, uuid, address)
}
fn register_from(
    jobs: &mut Jobs,
    w: &mut World,
    origin: Origin,
    index: u32,
    uuid: u8,
    address: &'static str,
) -> Result<RegisterReply, RpcError> {
    let from = add_client(w, "MGS", uuid, Role::Target);
    w.set_origin(from, origin);
    let reply = jobs.run(w, from, async move |a| {
        let mut identity = Identity { uuid: ClientUuid([uuid; 16]), incarnations: vec![] };
        identity.open(1, Transno(0));
        let request = RegisterTarget {
            fs: demo(),
            kind: if index == MDT { TargetKind::Mdt } else { TargetKind::Ost },
            index: index % MDT,
            identity,
            committed: Transno(5),
            replaced: 0,
            blank: true,
            addresses: vec![address.into()],
        };
        a.peer.call(&request).await
    });
    w.kill(from);
    reply
}
fn list(jobs: &mut Jobs, w: &mut World, from: NodeId, fs: &'static str) -> Result<TargetList, RpcError> {
    jobs.run(w, from, async move |a| {
        a.peer.call(&ListTargets { fs: FsName::parse(fs).expect("a name") }).await
    })
}

#[test]
fn registrations_and_the_hash_key_survive_a_kill() {
    let (mut w, node) = mgs(1);
    let c = add_client(&mut w, "MGS", 1, Role::Target);
    let mut jobs = Jobs::default();
    let first = register(&mut jobs, &mut w, 0, 10, "a").expect("registered");
    let second = register(&mut jobs, &mut w, 1, 11, "b").expect("registered");
    assert_eq!((first.config_version, second.config_version), (1, 2));
    assert_eq!(first.hash_key, second.hash_key);
    assert_ne!(first.hash_key, (0, 0));
    w.kill(node);
    w.start(node);
    let now = list(&mut jobs, &mut w, c, "demo").expect("known");
    assert_eq!((now.hash_key, now.config_version, now.targets.len()), (first.hash_key, 2, 2));
    let again = register(&mut jobs, &mut w, 0, 10, "a").expect("registered");
    assert_eq!(again, second, "nothing new");
    let moved = register(&mut jobs, &mut w, 0, 10, "elsewhere").expect("registered");
    assert_eq!(moved.config_version, 3);
}

#[test]
fn an_index_of_another_target_is_refused() {
    let (mut w, _) = mgs(2);
    let c = add_client(&mut w, "MGS", 1, Role::Target);
    let mut jobs = Jobs::default();
    register(&mut jobs, &mut w, 0, 10, "a").expect("registered");
    let refused = register(&mut jobs, &mut w, 0, 11, "b");
    let refused = refused.expect("the reply comes").refused;
    assert!(refused.contains("is another target") && refused.contains("nacre target replace"), "{refused}");
    assert_eq!(list(&mut jobs, &mut w, c, "other"), Err(RpcError::Failed(Failure::ENOENT)));
}

#[test]
fn a_new_version_of_the_list_travels_with_pings() {
    let (mut w, _) = mgs(3);
    let mount = add_client(&mut w, "MGS", 2, Role::Client);
    let mut jobs = Jobs::default();
    register(&mut jobs, &mut w, 0, 10, "a").expect("registered");
    let wait = jobs.start(&mut w, mount, async |a| {
        while a.peer.config_version() < 2 {
            a.peer.changed().await;
        }
    });
    w.run_for(4 * SEC);
    register(&mut jobs, &mut w, 1, 11, "b").expect("registered");
    w.run_for(4 * SEC);
    assert!(jobs.is_done(&mut w, wait));
}

#[test]
fn the_targets_of_a_file_system_are_a_parameter() {
    let (mut w, _) = mgs(4);
    let c = add_client(&mut w, "MGS", 1, Role::Tool);
    let mut jobs = Jobs::default();
    register(&mut jobs, &mut w, 0x1f, 10, "node:9988").expect("registered");
    let text = jobs.run(&mut w, c, async |a| {
        let list = a.peer.call(&GetParams { pattern: "mgs.MGS.live.*".into() }).await.expect("params");
        list.params[0].value.clone()
    });
    assert!(text.contains("demo-OST001f: { uuid: 0a0a0a0a") && text.contains("[node:9988]"), "{text}");
}

fn set_register(jobs: &mut Jobs, w: &mut World, value: &'static str) -> String {
    let tool = add_client(w, "MGS", 99, Role::Tool);
    let refused = jobs.run(w, tool, async move |a| {
        let set = SetParam { name: "mgs.MGS.register".into(), value: value.into() };
        a.peer.call(&set).await.expect("as the administrator").refused
    });
    w.kill(tool);
    refused
}
const CLOSED: Result<RegisterReply, RpcError> = Err(RpcError::Failed(Failure::EPERM));

#[test]
fn new_targets_are_taken_until_clients_have_mounted_and_then_when_the_administrator_says_so() {
    let (mut w, node) = mgs(5);
    let mut jobs = Jobs::default();
    let c = add_client(&mut w, "MGS", 1, Role::Client);
    register(&mut jobs, &mut w, MDT, 20, "a").expect("registered");
    list(&mut jobs, &mut w, c, "demo").expect("known");
    w.run_for(100 * SEC);
    register(&mut jobs, &mut w, 0, 10, "a").expect("nobody can mount without an OST");
    list(&mut jobs, &mut w, c, "demo").expect("known");
    w.run_for(30 * SEC);
    register(&mut jobs, &mut w, 1, 11, "b").expect("its servers may be started in any order");
    w.run_for(50 * SEC);
    register(&mut jobs, &mut w, 2, 12, "c").expect("a minute from the latest one");
    w.run_for(65 * SEC);
    assert_eq!(register(&mut jobs, &mut w, 3, 13, "d"), CLOSED);
    register(&mut jobs, &mut w, 0, 10, "moved").expect("it is known");
    register_from(&mut jobs, &mut w, Origin::Administrator, 4, 14, "e").expect("on the machine itself");
    w.kill(node);
    w.start(node);
    assert_eq!(register(&mut jobs, &mut w, 3, 13, "d"), CLOSED, "a restart knows it");
    assert_eq!(set_register(&mut jobs, &mut w, "open"), "");
    register(&mut jobs, &mut w, 3, 13, "d").expect("open");
    list(&mut jobs, &mut w, c, "demo").expect("known");
    w.kill(node);
    w.start(node);
    list(&mut jobs, &mut w, c, "demo").expect("known");
    w.run_for(100 * SEC);
    register(&mut jobs, &mut w, 5, 15, "f").expect("it stays open until it is closed again");
    assert_eq!(set_register(&mut jobs, &mut w, "known"), "");
    assert_eq!(register(&mut jobs, &mut w, 6, 16, "g"), CLOSED);
    assert!(set_register(&mut jobs, &mut w, "shut").contains("(open or known)"));
}

/// Over the network, or as another user of the machine, nobody changes what holds for everybody.
#[test]
fn only_the_administrator_keeps_parameters_and_admits_targets() {
    let (mut w, _) = mgs(7);
    let mut jobs = Jobs::default();
    register(&mut jobs, &mut w, 0, 10, "a").expect("registered");
    for (uuid, origin) in [(1, Origin::Network), (2, Origin::Host), (3, Origin::Administrator)] {
        let from = add_client(&mut w, "MGS", uuid, Role::Tool);
        w.set_origin(from, origin);
        let (kept, admitted) = jobs.run(&mut w, from, async |a| {
            let param =
                SetPermanentParam { name: "mdc.*.max_rpcs_in_flight".into(), value: Some("16".into()) };
            let kind = TargetKind::Ost;
            let other = AdmitTarget { fs: demo(), kind, index: 0, admit: Admit::Rollback, revoke: false };
            (a.peer.call(&param).await.map(drop), a.peer.call(&other).await.map(|reply| reply.refused))
        });
        let params = list(&mut jobs, &mut w, from, "demo").expect("known").params;
        if origin == Origin::Administrator {
            assert_eq!((kept, admitted, params.len()), (Ok(()), Ok(String::new()), 1));
        } else {
            let refused = RpcError::Failed(Failure::EPERM);
            assert_eq!((kept, admitted, params.len()), (Err(refused), Err(refused), 0), "{origin:?}");
        }
    }
}
