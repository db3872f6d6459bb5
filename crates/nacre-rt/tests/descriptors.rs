//! What a node leaves behind when it has ended. Alone in its process, because it counts descriptors.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
use common::{Order, Puppet, Report, eventually, next, node, reports, tell};
use nacre_node::ConnId;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_node_that_has_ended_has_closed_everything() {
    let dir = tempfile::tempdir().unwrap();
    let before = descriptors();
    {
        let (server, _) = node(1);
        let (client, _) = node(1);
        server.add_island("echo", None, None, Puppet::make(true)).unwrap_or_else(|e| panic!("{e}"));
        let address = server.listen(&nacre_net::Address::Unix(dir.path().join("s"))).unwrap();
        let (sink, heard) = reports();
        let a = client.add_island("a", None, Some(sink), Puppet::make(false)).unwrap();
        tell(&a, Order::Open { conn: 1, address: address.to_string(), target: "echo".into() });
        assert_eq!(next(&heard), Report::Opened(ConnId(1)));
        assert!(descriptors() > before + 4, "two loops, two ends of a connection");
        client.shutdown();
        server.shutdown();
    }
    eventually("everything is closed", || descriptors() == before);
}
