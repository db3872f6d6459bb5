//! What a node leaves behind when it has ended. Alone in its process, because it counts descriptors.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
use common::{eventually, node};
use std::os::unix::net::UnixStream;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_node_that_has_ended_has_closed_everything() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let before = descriptors();
    {
        let (server, _) = node(1);
        server.listen(&nacre_net::Address::Unix(path.clone())).unwrap();
        let listens = descriptors();
        // Nobody closes a peer that has not said what it wants.
        let _silent = UnixStream::connect(&path).unwrap();
        eventually("it is let in", || descriptors() == listens + 2);
        server.shutdown();
    }
    eventually("everything is closed", || descriptors() == before);
}
