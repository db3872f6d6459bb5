//! Small things that every test of a cluster does.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use nacre_client::{Client, CreateArgs, WriteArgs};
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;
use nacre_types::{Caller, Errno, Fid, OpenHandle};
use std::rc::Rc;

pub const SEC: u64 = 1_000_000_000;

pub fn caller() -> Caller {
    Caller { uid: 0, gid: 0, pid: 1, umask: 0o22, groups: vec![] }
}
pub fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
    c: &mut Cluster,
    mount: NodeId,
    job: impl FnOnce(Rc<Client>) -> F + Send + 'static,
) -> T {
    let id = c.jobs.start(&mut c.world, mount, job);
    let done = c.jobs.wait(&mut c.world, id, 120 * SEC);
    done.unwrap_or_else(|| panic!("the job never ends; {:?}\n{}", c.world.fatal, c.world.trace(60)))
}
pub fn cluster(seed: u64, osts: u32, mounts: u32) -> Cluster {
    let mut c = Cluster::on_devices(seed, osts, mounts);
    c.world.run_for(SEC);
    for mount in c.mounts.clone() {
        run(&mut c, mount, async |client| client.ready().await).expect("it starts");
    }
    c
}

/// A new file in the root directory, open for writing.
pub async fn create(client: &Client, name: &str) -> Result<(Fid, OpenHandle), Errno> {
    let args = CreateArgs {
        parent: Fid::ROOT,
        name: name.as_bytes(),
        mode: 0o100644,
        rdev: 0,
        target: b"",
        layout: None,
        exclusive: true,
        caller: caller(),
    };
    client.create(args, 2).await.map(|(entry, handle)| (entry.attr.fid, handle))
}
pub async fn write(client: &Client, handle: OpenHandle, offset: u64, data: Vec<u8>) -> Result<u32, Errno> {
    let data = bytes::Bytes::from(data);
    client.write(WriteArgs { handle, offset, append: false, data, kill_suidgid: false, sync: false }).await
}
