//! docs/wire.md is enough to write a client from: the Python client in `wire_client` has nothing else, reads its message
//! layouts out of the page, and works with real servers. Needs python3; the test with a mount needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::{Machine, said};
use std::net::TcpListener;
use std::process::Command;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wire.md");
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../nacre-wire/tests/golden.txt");

/// Runs a program of `wire_client` (`-B`: it leaves no files in the tree); it must succeed.
fn python(program: &str, args: &[&str]) {
    let path = format!("{}/tests/wire_client/{program}", env!("CARGO_MANIFEST_DIR"));
    let said = said(Command::new("python3").args(["-B", &path]).args(args).output().unwrap());
    assert!(said.ok, "{program} {args:?}\n{}{}", said.out, said.err);
    eprint!("{}", said.out);
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn the_page_describes_the_golden_bytes_of_every_message() {
    python("check_page.py", &[PAGE, GOLDEN]);
}

/// Over TCP, so with checksums of bodies.
#[test]
fn a_client_written_from_the_page_works_with_served_targets() {
    let m = Machine::without_mounts();
    let mgs = free_address();
    let targets = ["mgs", "mdt", "ost0", "ost1"].map(|name| m.path(name).to_str().unwrap().to_owned());
    m.good(&["mkfs", "--mgs", &targets[0]]);
    for (kind, index, target) in [("--mdt", "0", 1), ("--ost", "0", 2), ("--ost", "1", 3)] {
        let args = ["mkfs", kind, "--fsname", "demo", "--index", index, "--mgsnode", &mgs];
        m.good(&[&args[..], &[&targets[target]]].concat());
    }
    let mut args = vec!["serve", "--listen", &mgs];
    args.extend(targets.iter().map(String::as_str));
    let servers = m.start(&args, "mount with: ");
    python("session.py", &[PAGE, &mgs, "demo"]);
    servers.stop();
}

/// Over the unix socket of `nacre up`; its mount sees the files of the client, and the client those of the mount.
#[test]
fn a_client_written_from_the_page_and_a_mount_see_the_same_files() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let address = up.address();
    let (mgs, fs) = address.rsplit_once(":/").unwrap();
    python("session.py", &[PAGE, mgs, fs, m.mount().to_str().unwrap()]);
    up.stop();
}
