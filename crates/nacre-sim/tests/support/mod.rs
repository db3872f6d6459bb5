//! Shared parts of the scripts over whole clusters.
#![allow(dead_code, reason = "each script uses its part")]

use nacre_client::{Client, CreateArgs, SetxattrArgs, WriteArgs};
use nacre_sim::cluster::Cluster;
use nacre_sim::{JobId, NodeId};
use nacre_types::{Caller, Failure, Fid, OpenHandle};
use std::rc::Rc;

pub(crate) const SEC: u64 = 1_000_000_000;
pub(crate) const MS: u64 = SEC / 1000;
/// Places of the MDT and of the first OST among the servers of a cluster.
pub(crate) const MDT: usize = 1;
pub(crate) const OST: usize = 2;
pub(crate) const DIR: u32 = 0o040755;
pub(crate) const FILE: u32 = 0o100644;

pub(crate) fn caller() -> Caller {
    Caller { uid: 0, gid: 0, pid: 1, umask: 0o22, groups: vec![] }
}
/// Arguments of a new inode that must not be there yet.
pub(crate) fn new<'a>(parent: Fid, name: &'a (impl AsRef<[u8]> + ?Sized), mode: u32) -> CreateArgs<'a> {
    CreateArgs::new(parent, name.as_ref(), mode, caller())
}
/// Arguments of an extended attribute that may exist.
pub(crate) fn xattr<'a>(fid: Fid, name: &'a [u8], value: &'a [u8]) -> SetxattrArgs<'a> {
    SetxattrArgs { fid, name, value, flags: 0, kill_sgid: false, caller: caller() }
}
pub(crate) async fn make(client: &Client, parent: Fid, name: &str, mode: u32) -> Result<Fid, Failure> {
    client.make(new(parent, name, mode)).await.map(|entry| entry.attr.fid)
}
/// Does a job on a mount and waits for it.
pub(crate) fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
    c: &mut Cluster,
    mount: NodeId,
    job: impl FnOnce(Rc<Client>) -> F + Send + 'static,
) -> T {
    let id = c.jobs.start(&mut c.world, mount, job);
    wait(c, id)
}
/// Waits for a job that was started.
pub(crate) fn wait<T: 'static>(c: &mut Cluster, job: JobId) -> T {
    let done = c.jobs.wait(&mut c.world, job, 120 * SEC);
    done.unwrap_or_else(|| panic!("the job never ends; {:?}\n{}", c.world.fatal, c.world.trace(60)))
}
/// A cluster on devices that lose what was not synced, ready.
pub(crate) fn cluster(seed: u64, osts: u32, mounts: u32) -> Cluster {
    let mut c = Cluster::on_devices(seed, osts, mounts);
    ready(&mut c);
    c
}
/// Waits until all mounts of a new cluster have started.
pub(crate) fn ready(c: &mut Cluster) {
    c.world.run_for(SEC);
    for mount in c.mounts.clone() {
        run(c, mount, async |client| client.ready().await).expect("it starts");
    }
}
/// The same with one OST.
pub(crate) fn on_devices(seed: u64, mounts: u32) -> Cluster {
    cluster(seed, 1, mounts)
}

/// The mounts cache no names and attributes from now on: no change waits for a lock of a mount that does not hear the MDT.
pub(crate) fn without_cache(c: &mut Cluster) {
    for mount in c.mounts.clone() {
        run(c, mount, async |client| {
            let name = format!("llite.{}.dir_attr_cache", client.mount_name());
            client.set_param(&name, "0").expect("a mount has it");
        });
    }
    c.world.run_for(SEC);
}

/// Mounts keep from now on what they write to files that no other mount has open.
pub(crate) fn write_back(c: &mut Cluster) {
    c.write_back().expect("every mount has the parameter");
}

/// A new file in the root directory, open for writing.
pub(crate) async fn create(client: &Client, name: &str) -> Result<(Fid, OpenHandle), Failure> {
    let (entry, handle) = client.create(new(Fid::ROOT, name, FILE), 2).await?;
    Ok((entry.attr.fid, handle))
}
pub(crate) async fn write(
    client: &Client,
    handle: OpenHandle,
    offset: u64,
    data: Vec<u8>,
) -> Result<u32, Failure> {
    client.write(args(handle, offset, data)).await
}
pub(crate) async fn append(client: &Client, handle: OpenHandle, data: Vec<u8>) -> Result<u32, Failure> {
    client.write(WriteArgs { append: true, ..args(handle, 0, data) }).await
}
fn args(handle: OpenHandle, offset: u64, data: Vec<u8>) -> WriteArgs {
    WriteArgs {
        handle,
        offset,
        append: false,
        call_bytes: 0,
        data: data.into(),
        kill_suidgid: None,
        sync: false,
    }
}
/// The bytes of a file, as a mount sees them that opens it now.
pub(crate) fn read(c: &mut Cluster, mount: NodeId, fid: Fid) -> Result<Vec<u8>, Failure> {
    run(c, mount, async move |client| {
        let (_, handle) = client.open(fid, 0, caller()).await?;
        Ok(client.read(handle, 0, 2 << 20).await?.concat())
    })
}

/// Requests of a kind that a mount has sent to all targets of a type (`mdc.`, `osc.`).
pub(crate) fn sent_to(c: &mut Cluster, mount: NodeId, targets: &'static str, kind: &'static str) -> u64 {
    run(c, mount, async move |client| {
        let params = client.params().into_iter();
        let stats: Vec<String> = params
            .filter(|p| p.name.starts_with(targets) && p.name.ends_with(".stats"))
            .map(|p| p.value)
            .collect();
        assert!(!stats.is_empty(), "a mount has them");
        let lines = stats.iter().flat_map(|text| text.lines());
        let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
        let counts = words.filter(|words| words.first() == Some(&kind));
        counts.map(|words| words.get(1).and_then(|n| n.parse::<u64>().ok()).expect("a number")).sum()
    })
}
/// A parameter of the MDT, by the end of its name.
pub(crate) fn of_mdt(c: &mut Cluster, param: &'static str) -> String {
    c.params(|p| p.ends_with(param)).pop().expect("the MDT has it").2
}
/// Handles that are open to the MDT.
pub(crate) fn open_files(c: &mut Cluster) -> String {
    of_mdt(c, ".open_files")
}
