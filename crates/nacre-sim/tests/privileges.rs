//! Set-id bits and capabilities go with a write, although another mount has set them since the file was opened.

mod support;

use bytes::Bytes;
use nacre_client::{Client, WriteArgs};
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;
use nacre_types::{Caller, Failure, Fid, OpenHandle, SetAttr};
use std::rc::Rc;
use support::{SEC, caller, new, on_devices, run, sent_to, xattr};

const CAPABILITY: &[u8] = b"security.capability";
const SET_UID: u32 = 0o4000;

async fn write(client: Rc<Client>, handle: OpenHandle, by: Option<Caller>) -> Result<(), Failure> {
    let data = Bytes::from_static(b"other");
    let args =
        WriteArgs { handle, offset: 0, append: false, call_bytes: 0, data, kill_suidgid: by, sync: false };
    client.write(args).await.map(drop)
}

/// Two mounts, and a file that the first one has open.
fn scene(seed: u64) -> (Cluster, Fid, OpenHandle) {
    let mut c = on_devices(seed, 2);
    let first = c.mounts[0];
    let made = run(&mut c, first, async |client| {
        let (entry, handle) = client.create(new(Fid::ROOT, "f", 0o100_666), 2).await?;
        write(client, handle, None).await?;
        Ok::<_, Failure>((entry.attr.fid, handle))
    });
    let (fid, handle) = made.expect("made");
    (c, fid, handle)
}
fn asked(c: &mut Cluster, mount: NodeId) -> u64 {
    sent_to(c, mount, "mdc.", "mds_getattr")
}

#[test]
fn a_write_by_a_user_takes_set_id_bits_away_that_another_mount_has_set() {
    for seed in 0..6 {
        let (mut c, fid, handle) = scene(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        for mode in [0o4755, 0o6755] {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            run(&mut c, second, async move |client| client.setattr(fid, set, caller()).await).expect("set");
            let user = Caller { uid: 1002, gid: 1002, ..caller() };
            let may_lose = run(&mut c, first, {
                let user = user.clone();
                async move |client| client.may_lose_privileges(handle, &user)
            });
            assert!(may_lose, "seed {seed}: its groups are looked up");
            run(&mut c, first, async move |client| write(client, handle, Some(user)).await).expect("written");
            let entry = run(&mut c, second, async move |client| client.getattr(fid).await).expect("there");
            assert_eq!(entry.attr.mode & SET_UID, 0, "seed {seed}: {:o}", entry.attr.mode);
        }
    }
}

#[test]
fn any_write_takes_a_capability_away_that_another_mount_has_set() {
    for seed in 0..6 {
        let (mut c, fid, handle) = scene(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        for by in [None, Some(Caller { uid: 1002, gid: 1002, ..caller() })] {
            // The first mount loses XATTR already, and keeps PERM.
            let set = async move |client: Rc<Client>| client.setxattr(xattr(fid, b"user.a", b"1")).await;
            run(&mut c, second, set).expect("set");
            run(&mut c, first, async move |client| write(client, handle, None).await).expect("written");
            let set = async move |client: Rc<Client>| client.setxattr(xattr(fid, CAPABILITY, b"all")).await;
            run(&mut c, second, set).expect("set");
            run(&mut c, first, async move |client| write(client, handle, by).await).expect("written");
            let left = run(&mut c, second, async move |client| client.getxattr(fid, CAPABILITY).await);
            assert_eq!(left, Err(Failure::ENODATA), "seed {seed}");
        }
    }
}

#[test]
fn privileges_are_asked_for_only_after_another_mount_may_have_changed_them() {
    let (mut c, fid, handle) = scene(1);
    let (first, second) = (c.mounts[0], c.mounts[1]);
    let writes = async move |client: Rc<Client>| {
        for _ in 0..10 {
            write(client.clone(), handle, None).await?;
        }
        Ok::<_, Failure>(())
    };
    assert_eq!(asked(&mut c, first), 0, "the reply to the create has told them");
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    run(&mut c, second, async move |client| client.setattr(fid, set, caller()).await).expect("set");
    c.world.run_for(2 * SEC); // Locks of a change are granted when it is committed.
    run(&mut c, first, writes).expect("written");
    assert!(asked(&mut c, first) <= 2, "{} requests", asked(&mut c, first));
}
