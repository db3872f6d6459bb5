//! An MGS in the simulator's world: registrations survive it, names are given once, versions travel with pings.

#[path = "../../nacre-target/tests/common/mod.rs"]
mod common;

use common::{Jobs, SEC, add_client, add_target, store};
use nacre_mgs::Mgs;
use nacre_node::RpcError;
use nacre_sim::{NodeId, World};
use nacre_types::{ClientUuid, Errno, FsName, TargetKind};
use nacre_wire::mgs::{ListTargets, RegisterReply, RegisterTarget, TargetList};
use nacre_wire::target::{GetParams, Role};

fn mgs(seed: u64) -> (World, NodeId) {
    let mut w = World::new(seed);
    let store = store(&mut w, "MGS", &[]);
    let node = add_target::<Mgs>(&mut w, "MGS", store);
    w.start(node);
    (w, node)
}
fn demo() -> FsName {
    FsName::parse("demo").expect("a name")
}
fn register(
    jobs: &mut Jobs,
    w: &mut World,
    from: NodeId,
    index: u32,
    uuid: u8,
    address: &'static str,
) -> Result<RegisterReply, RpcError> {
    jobs.run(w, from, async move |a| {
        let request = RegisterTarget {
            fs: demo(),
            kind: TargetKind::Ost,
            index,
            uuid: ClientUuid([uuid; 16]),
            addresses: vec![address.into()],
        };
        a.peer.call(&request).await
    })
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
    let first = register(&mut jobs, &mut w, c, 0, 10, "a").expect("registered");
    let second = register(&mut jobs, &mut w, c, 1, 11, "b").expect("registered");
    assert_eq!((first.config_version, second.config_version), (1, 2));
    assert_eq!(first.hash_key, second.hash_key);
    assert_ne!(first.hash_key, (0, 0));
    w.kill(node);
    w.start(node);
    let now = list(&mut jobs, &mut w, c, "demo").expect("known");
    assert_eq!((now.hash_key, now.config_version, now.targets.len()), (first.hash_key, 2, 2));
    let again = register(&mut jobs, &mut w, c, 0, 10, "a").expect("registered");
    assert_eq!(again, second, "nothing new");
    let moved = register(&mut jobs, &mut w, c, 0, 10, "elsewhere").expect("registered");
    assert_eq!(moved.config_version, 3);
}

#[test]
fn an_index_of_another_target_is_refused() {
    let (mut w, _) = mgs(2);
    let c = add_client(&mut w, "MGS", 1, Role::Target);
    let mut jobs = Jobs::default();
    register(&mut jobs, &mut w, c, 0, 10, "a").expect("registered");
    let refused = register(&mut jobs, &mut w, c, 0, 11, "b");
    assert_eq!(refused, Err(RpcError::Errno(Errno::EEXIST)));
    assert_eq!(list(&mut jobs, &mut w, c, "other"), Err(RpcError::Errno(Errno::ENOENT)));
}

#[test]
fn a_new_version_of_the_list_travels_with_pings() {
    let (mut w, _) = mgs(3);
    let (target, mount) =
        (add_client(&mut w, "MGS", 1, Role::Target), add_client(&mut w, "MGS", 2, Role::Client));
    let mut jobs = Jobs::default();
    register(&mut jobs, &mut w, target, 0, 10, "a").expect("registered");
    let wait = jobs.start(&mut w, mount, async |a| {
        while a.peer.config_version() < 2 {
            a.peer.changed().await;
        }
    });
    w.run_for(4 * SEC);
    register(&mut jobs, &mut w, target, 1, 11, "b").expect("registered");
    w.run_for(4 * SEC);
    assert!(jobs.is_done(&mut w, wait));
}

#[test]
fn the_targets_of_a_file_system_are_a_parameter() {
    let (mut w, _) = mgs(4);
    let c = add_client(&mut w, "MGS", 1, Role::Tool);
    let mut jobs = Jobs::default();
    register(&mut jobs, &mut w, c, 0x1f, 10, "node:9988").expect("registered");
    let text = jobs.run(&mut w, c, async |a| {
        let list = a.peer.call(&GetParams { pattern: "mgs.MGS.live.*".into() }).await.expect("params");
        list.params[0].value.clone()
    });
    assert!(text.contains("demo-OST001f: { uuid: 0a0a0a0a") && text.contains("[node:9988]"), "{text}");
}
