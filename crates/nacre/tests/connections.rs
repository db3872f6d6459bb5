//! Bounds of connections, as an operator sees them. Needs root and /dev/fuse; without them the tests say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::{Machine, eventually};
use std::fs;
use std::net::{TcpListener, TcpStream};

fn sockets(pid: u32) -> usize {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

/// A host opens connections for ever: it gets its number, the log says so, everybody else works, and so does it again
/// when it has closed them.
#[test]
fn a_host_with_too_many_connections_is_refused_and_nobody_else() {
    let Some(m) = Machine::new() else { return };
    let (mount, data) = (m.mount(), m.path("data"));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let to = free.to_string();
    let args = ["up", mount.to_str().unwrap(), "--dir", data.to_str().unwrap()];
    let limits = ["--listen", &to, "--max-connections-per-host", "20"];
    let up = m.start(&[&args[..], &limits[..]].concat(), "next: ");
    let before = sockets(up.pid());
    let many: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&to).unwrap()).collect();
    let refusals = || {
        let log = fs::read_to_string(data.join("nacre.log")).unwrap_or_default();
        log.lines()
            .filter(|l| l.contains("20 connections of that host"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    eventually("the log says so", || !refusals().is_empty());
    eprintln!("{}", refusals()[0]);
    assert!(refusals()[0].contains("peer=\"127.0.0.1:"), "{:?}", refusals());
    let during = sockets(up.pid());
    assert!(during <= before + 20 + 5, "{before} sockets, then {during}");
    // The mount and the tools of this machine come another way.
    fs::write(mount.join("f"), "as before").unwrap();
    assert_eq!(m.good(&["lctl", "get_param", "-n", "mdt.*.num_exports"]).lines().count(), 1);
    drop(many);
    eventually("the places are free", || sockets(up.pid()) <= before);
    let other = m.made("other");
    let second = m.start(&["mount", &format!("{to}:/nacre"), other.to_str().unwrap()], "next: ");
    assert_eq!(fs::read_to_string(other.join("f")).unwrap(), "as before");
    drop(second);
    up.stop();
}
