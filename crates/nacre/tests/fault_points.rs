//! `lctl set_param fail_loc=`: each fault point on servers that are processes, under a mount that works. Needs root and
//! /dev/fuse; without them the tests say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::cluster::Cluster;
use machine::daemon::Daemon;
use machine::{Machine, eventually};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const MDT: &str = "mdt.demo-MDT0000";
const OST: &str = "obdfilter.demo-OST0000";

/// A machine for builds that have fault points; of a release build the test sees that it refuses.
fn machine() -> Option<Machine> {
    let m = Machine::new()?;
    if cfg!(debug_assertions) {
        return Some(m);
    }
    let up = m.up();
    m.refused(&["lctl", "set_param", "fail_loc=reply_lost"], &["this is a release build", "hint:"]);
    up.stop();
    None
}
fn fail_loc(m: &Machine, target: &str) -> String {
    m.good(&["lctl", "get_param", "-n", &format!("{target}.fail_loc")]).trim().to_owned()
}
fn set(m: &Machine, target: &str, fault: &str, times: u32) {
    m.good(&[
        "lctl",
        "set_param",
        &format!("{target}.fail_val={times}"),
        &format!("{target}.fail_loc={fault}"),
    ]);
}

/// What a program does in round `i`: done twice, or not at all, each step fails or shows.
fn round(dir: &Path, log: &mut File, i: u32) -> std::io::Result<()> {
    let at = |name: &str| dir.join(format!("{name}{i}"));
    let mut file = OpenOptions::new().write(true).create_new(true).open(at("file"))?;
    writeln!(file, "round {i}")?;
    fs::hard_link(at("file"), at("link"))?;
    fs::create_dir(at("dir"))?;
    fs::rename(at("dir"), at("moved"))?;
    fs::remove_dir(at("moved"))?;
    fs::rename(at("link"), at("name"))?;
    writeln!(log, "line {i}")
}
fn check(dir: &Path, rounds: u32) {
    use std::os::unix::fs::MetadataExt as _;
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let mut expected: Vec<String> =
        (0..rounds).flat_map(|i| [format!("file{i}"), format!("name{i}")]).collect();
    expected.push("log".to_owned());
    expected.sort();
    assert_eq!(names, expected);
    for i in 0..rounds {
        let file = dir.join(format!("name{i}"));
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("round {i}\n"));
        assert_eq!(fs::metadata(&file).unwrap().nlink(), 2, "name{i}");
    }
    let lines: String = (0..rounds).map(|i| format!("line {i}\n")).collect();
    assert_eq!(fs::read_to_string(dir.join("log")).unwrap(), lines);
}

#[test]
fn every_change_happens_once_at_every_fault_point() {
    let Some(m) = machine() else { return };
    let c = Cluster::format(&m);
    let [_mgs, mut mdt, mut ost] = c.all();
    let (_a, _b) = (c.mount("a"), c.mount("b"));
    m.refused(&["lctl", "set_param", "fail_loc=lost"], &["no such fault point", "hint:", "reply_lost"]);
    m.refused(&["lctl", "set_param", "fail_val=0"], &["out of range (1 to 4294967295 times)"]);
    assert_eq!(m.good(&["lctl", "get_param", "-n", "fail_loc"]), "0\n0\n0\n");

    let dir = c.mnt("a").join("d");
    fs::create_dir(&dir).unwrap();
    let (over, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut log = OpenOptions::new().append(true).create_new(true).open(dir.join("log"))?;
            while !over.load(Ordering::Relaxed) {
                round(&dir, &mut log, rounds.load(Ordering::Relaxed))?;
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            std::io::Result::Ok(())
        });
        for target in [MDT, OST] {
            for fault in ["request_lost_before", "0x2", "reply_lost"] {
                set(&m, target, fault, 5);
                eventually(&format!("{fault} has struck {target}"), || fail_loc(&m, target) == "0");
            }
        }
        for (target, name, server) in [(MDT, "mdt", &mut mdt), (OST, "ost", &mut ost)] {
            m.good(&["lctl", "set_param", &format!("{target}.fail_val=1")]);
            // The server may die before it replies to this.
            let _set = m.nacre(&["lctl", "set_param", &format!("{target}.fail_loc=crash_after_commit")]);
            crashed(server);
            *server = c.serve(name);
        }
        let so_far = rounds.load(Ordering::Relaxed);
        eventually("the work goes on", || rounds.load(Ordering::Relaxed) > so_far || worker.is_finished());
        over.store(true, Ordering::Relaxed);
        worker.join().unwrap().unwrap();
    });
    eprintln!("{} rounds", rounds.load(Ordering::Relaxed));
    check(&c.mnt("b").join("d"), rounds.load(Ordering::Relaxed));
}

/// The server has ended at its fault point.
fn crashed(server: &mut Daemon) {
    eprintln!("{}", server.says(&["island ended", "fault point crash_after_commit"]));
    eventually("its process ends", || server.child.try_wait().unwrap().is_some());
}

fn make(dir: &Path, numbers: std::ops::Range<u32>) {
    numbers.for_each(|i| fs::create_dir(dir.join(format!("d{i:03}"))).unwrap());
}
/// How many directories there are; they are the first ones, or else it fails.
fn made(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let expected: Vec<String> = (0..names.len()).map(|i| format!("d{i:03}")).collect();
    assert_eq!(names, expected, "not a prefix");
    names.len()
}

#[test]
fn behind_a_barrier_a_kill_loses_what_a_lost_machine_would() {
    let Some(m) = machine() else { return };
    let c = Cluster::format(&m);
    let [_mgs, mut mdt, _ost] = c.all();
    let mut mount = c.mount("a");
    let dir = c.mnt("a");
    make(&dir, 0..40);
    File::open(&dir).unwrap().sync_all().unwrap();
    make(&dir, 40..60);
    set(&m, MDT, "barrier", 1);
    make(&dir, 60..100);
    assert_eq!(fail_loc(&m, MDT), "barrier");
    m.refused(&["lctl", "set_param", &format!("{MDT}.fail_loc=0")], &["until the target is started again"]);
    // Its client cannot help: what came before the barrier is there.
    mount.kill();
    mdt.kill();
    let mut mdt = c.serve("mdt");
    let mut mount = c.mount("b");
    let dir = c.mnt("b");
    let found = made(&dir);
    eprintln!("{found} of 100, 60 of them before the barrier, 40 synced");
    assert_eq!(found, 60);

    // Its client makes again what was acknowledged to it behind the barrier, and a sync says so only then.
    set(&m, MDT, "barrier", 1);
    make(&dir, 60..90);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| File::open(&dir).unwrap().sync_all().unwrap());
        mdt.kill();
        assert!(!sync.is_finished());
        mdt = c.serve("mdt");
        sync.join().unwrap();
    });
    assert_eq!(made(&dir), 90);
    mount.kill();
    mdt.kill();
    let _mdt = c.serve("mdt");
    let _mount = c.mount("c");
    assert_eq!(made(&c.mnt("c")), 90, "what was synced is there");
}
