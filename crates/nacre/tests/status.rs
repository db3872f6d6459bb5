//! `nacre status`: processes, targets and mounts that run, stand still, or have ended without a planned stop.
//! Tests that mount need root and /dev/fuse; without them they say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::cluster::Cluster;
use machine::{Machine, eventually};
use rustix::process::Signal;
use std::fs;
use std::process::Command;

#[test]
fn what_dead_processes_have_left_confuses_nobody() {
    let Some(m) = Machine::new() else { return };
    let run = m.made("run");
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let entry = |pid: u32| {
        let entry = serde_json::json!({
            "pid": pid, "start_time": 1, "kind": "up", "socket": run.join(format!("{pid}.sock")),
            "islands": ["MGS"], "mounts": [m.mount()], "fs": "nacre", "targets": [m.path("data/mgs")],
        });
        fs::write(run.join(format!("{pid}.json")), entry.to_string()).unwrap();
        drop(std::os::unix::net::UnixListener::bind(run.join(format!("{pid}.sock"))).unwrap());
    };
    // One is gone, one has given its pid to another process, one was killed while it registered.
    let (gone, other) = (gone.id(), std::process::id());
    entry(gone);
    entry(other);
    fs::write(run.join(format!("{gone}.tmp")), "{").unwrap();
    fs::write(run.join("nonsense.json"), "{").unwrap();
    for n in 0..40 {
        fs::write(run.join(format!("{}.log", 100_000_000 + n)), "").unwrap();
    }
    assert_eq!(m.good(&["status", "--json"]), "[]\n");
    m.refused(&["down"], &["no `nacre up` runs"]);
    let up = m.up();
    assert!(m.good(&["status"]).contains(&up.pid().to_string()));
    let left: Vec<String> =
        fs::read_dir(&run).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    let is_left = |name: String| left.contains(&name);
    for end in ["json", "sock", "tmp"] {
        assert!(!is_left(format!("{gone}.{end}")), "{left:?}");
    }
    assert!(!is_left(format!("{other}.json")), "{left:?}");
    assert!(is_left(format!("{other}.sock")), "it may be the other's: {left:?}");
    assert_eq!(left.iter().filter(|name| name.ends_with(".log")).count(), 16, "{left:?}");
    m.good(&["down"]);
    assert!(up.ended().ok);
}

#[test]
fn what_does_not_reply_hides_nothing_of_the_others() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let [_mgs, mut mdt, _ost] = c.all();
    let mount = c.mount("a");
    let (a, b) = (c.mnt("a"), m.path("b"));
    let up = m.start(&["up", b.to_str().unwrap(), "--ephemeral"], "next: ");
    assert!(m.good(&["status"]).contains("demo-MDT0000"));
    let df = || m.nacre(&["lfs", "df", "--timeout", "2"]);
    eventually("all are there", || df().ok && df().out.matches("_UUID").count() == 5);
    // Its MDT is down: what the mount knows is shown, the MDT is named.
    mdt.kill();
    eventually("the mount has noticed", || {
        let said = df();
        let line = said.out.lines().find(|line| line.starts_with("demo-MDT0000_UUID")).unwrap_or_default();
        said.ok && !line.contains('%') && said.out.contains(&format!("{}[OST:0]", a.display()))
    });
    assert!(df().out.contains("nacre-OST0001_UUID"));
    let file = a.join("f");
    let asked = m.nacre(&["lfs", "getstripe", "--timeout", "1", file.to_str().unwrap()]);
    assert!(!asked.ok && asked.err.contains("no reply within 1 s"), "{}{}", asked.out, asked.err);
    assert!(asked.err.contains(file.to_str().unwrap()) && asked.err.contains("hint:"), "{}", asked.err);
    let status = m.nacre(&["status"]);
    assert_eq!(status.code, Some(3), "{}", status.out);
    assert!(status.out.contains("has no connection to demo-MDT0000"), "{}", status.out);
    // The process of the mount stands still: the other mount is shown.
    mount.signal(Signal::STOP);
    eventually("every thread has stopped", || machine::stands_still(mount.child.id()));
    let said = m.nacre(&["lfs", "df", "--timeout", "1"]);
    assert!(!said.ok && said.out.contains(&format!("{}[OST:1]", b.display())), "{}{}", said.out, said.err);
    assert!(said.err.contains(&format!("{}: no reply within 1 s", a.display())), "{}", said.err);
    let json = m.nacre(&["lfs", "df", "--json", "--timeout", "1"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.as_array().unwrap().iter().filter(|fs| fs["error"].is_string()).count(), 1, "{json}");
    mount.signal(Signal::CONT);
    let _mdt = c.serve("mdt");
    eventually("it is back", || m.nacre(&["status"]).code == Some(0));
    m.good(&["umount", a.to_str().unwrap()]);
    up.stop();
}

/// The kernel keeps a mount whose process is gone; everything below it fails.
#[test]
fn status_shows_a_mount_whose_process_was_killed() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let second = m.path("second");
    let second = second.to_str().unwrap();
    m.good(&["mount", &up.address(), second, "--detach"]);
    let status: serde_json::Value = serde_json::from_str(&m.good(&["status", "--json"])).unwrap();
    let is_second = |p: &&serde_json::Value| p["mounts"][0] == second;
    let pid = status.as_array().unwrap().iter().find(is_second).unwrap()["pid"].as_i64().unwrap();
    let process = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    eventually("the process is gone", || fs::read_dir(second).is_err());
    for _ in 0..2 {
        let status = m.nacre(&["status"]);
        assert_eq!(status.code, Some(3), "{}{}", status.out, status.err);
        let row = |line: &str| line.starts_with(&pid.to_string()) && line.contains(" down ");
        assert!(status.out.lines().any(row), "{}", status.out);
        let again = format!("hint: nacre mount {} {second}; or nacre umount --lazy {second}", up.address());
        assert!(status.out.contains(&again), "{}", status.out);
    }
    m.good(&["umount", "--lazy", second]);
    assert!(!m.good(&["status"]).contains(" down "));
    up.stop();
    assert_eq!(m.good(&["status", "--json"]), "[]\n");
}

/// Every row that is down: pid and name.
fn down(m: &Machine) -> Vec<(u32, String)> {
    let status: serde_json::Value = serde_json::from_str(&m.nacre(&["status", "--json"]).out).unwrap();
    let of = |process: &serde_json::Value| {
        let pid = u32::try_from(process["pid"].as_u64().unwrap()).unwrap();
        let islands = process["state"].as_array().unwrap().iter().filter(|island| island["state"] == "down");
        islands.map(|island| (pid, island["name"].as_str().unwrap().to_owned())).collect::<Vec<_>>()
    };
    status.as_array().unwrap().iter().flat_map(of).collect()
}

#[test]
fn a_crash_is_over_when_a_later_process_has_stopped_as_planned() {
    let m = Machine::without_mounts();
    let (mgs, ost) = (m.path("mgs"), m.path("ost"));
    let (mgs, ost) = (mgs.to_str().unwrap(), ost.to_str().unwrap());
    let address = format!("unix:{mgs}/nacre.sock");
    m.good(&["mkfs", "--mgs", mgs]);
    m.good(&["mkfs", "--ost", "--index", "0", "--fsname", "demo", "--mgsnode", &address, ost]);
    let both = || m.start(&["serve", mgs, ost], "mount with:");
    // No status is asked while a successor serves: it would find the crash over then.
    both().kill();
    both().stop();
    assert_eq!(m.good(&["status", "--json"]), "[]\n");
    both().kill();
    let second = both();
    let pid = second.pid();
    second.kill();
    assert_eq!(down(&m), [(pid, "MGS".to_owned()), (pid, "demo-OST0000".to_owned())], "each once");
    // What does not come up has ended no crash.
    fs::create_dir(m.path("plain")).unwrap();
    m.refused(&["serve", mgs, m.path("plain").to_str().unwrap()], &["is not a nacre store"]);
    assert_eq!(down(&m).len(), 2);
    // Of two targets one has been served since.
    m.start(&["serve", ost], "registering").stop();
    assert_eq!(down(&m), [(pid, "MGS".to_owned())]);
    m.start(&["serve", mgs], "mount with:").stop();
    assert_eq!(m.good(&["status", "--json"]), "[]\n");
}

#[test]
fn status_names_the_command_that_starts_a_killed_up_again() {
    let Some(m) = Machine::new() else { return };
    m.up().kill();
    let (mount, data) = (m.mount(), m.path("data"));
    let (mount, data) = (mount.display(), data.display());
    let hinted = |hint: &str| {
        let status = m.nacre(&["status"]);
        assert_eq!(status.code, Some(4), "{}", status.out);
        assert!(status.out.lines().any(|line| line == hint), "{hint} is not in {}", status.out);
    };
    hinted(&format!("hint: nacre up {mount} --dir {data}; or nacre umount --lazy {mount}"));
    m.good(&["umount", "--lazy", &mount.to_string()]);
    hinted(&format!("hint: nacre up MOUNT --dir {data}"));
    m.up().kill();
    m.up().stop();
    assert_eq!(m.good(&["status", "--json"]), "[]\n");
}
