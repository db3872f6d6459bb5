//! Processes that stop, die and come back, as servers and mounts see them. Needs root and /dev/fuse; without them the
//! tests say so and pass. `NACRE_TEST_LEASE` is the lease in seconds (2), stops are three times as long.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::cluster::{Cluster, lease};
use machine::{Machine, eventually};
use rustix::fs::FlockOperation;
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn wait(seconds: f64) {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    eventually("time passes", || Instant::now() >= until);
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}
fn read_all(file: &mut File) -> std::io::Result<String> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// The mount is stopped for three leases; another takes its locks and changes its files.
#[test]
fn a_mount_that_was_stopped_loses_what_it_had_locked_and_nothing_else() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let [_mgs, mdt, ost] = c.all();
    let (sleeper, _other) = (c.mount("a"), c.mount("b"));
    let (a, b) = (c.mnt("a"), c.mnt("b"));
    for name in ["locked", "flocked", "plain", "appended", "moved"] {
        fs::write(a.join(name), "by a\n").unwrap();
    }
    let mut locked = open(&a.join("locked"));
    rustix::fs::fcntl_lock(&locked, FlockOperation::LockExclusive).unwrap();
    let mut flocked = open(&a.join("flocked"));
    rustix::fs::flock(&flocked, FlockOperation::LockExclusive).unwrap();
    let (mut plain, mut moved) = (open(&a.join("plain")), open(&a.join("moved")));
    let mut appended = OpenOptions::new().append(true).open(a.join("appended")).unwrap();

    sleeper.signal(Signal::STOP);
    let stopped = Instant::now();
    let mut theirs = open(&b.join("locked"));
    rustix::fs::fcntl_lock(&theirs, FlockOperation::LockExclusive).unwrap();
    let waited = stopped.elapsed().as_secs_f64();
    assert!(waited >= lease() * 0.6, "the lock was given away after {waited} s");
    theirs.write_all(b"by b\n").unwrap();
    rustix::fs::flock(open(&b.join("flocked")), FlockOperation::LockExclusive).unwrap();
    fs::write(b.join("plain"), "by b\n").unwrap();
    fs::write(b.join("appended"), "by b\n").unwrap();
    fs::rename(b.join("moved"), b.join("elsewhere")).unwrap();
    wait((lease() * 3.0 - stopped.elapsed().as_secs_f64()).max(0.0));
    sleeper.signal(Signal::CONT);

    // What was locked fails, reading and writing, as long as the handle is open; whatever its lock was.
    for file in [&mut locked, &mut flocked] {
        assert_eq!(file.write(b"late").unwrap_err().raw_os_error(), Some(5));
        assert_eq!(read_all(file).unwrap_err().raw_os_error(), Some(5));
    }
    assert_eq!(fs::read_to_string(b.join("locked")).unwrap(), "by b\n");
    // Everything else can be read, and shows what has happened meanwhile; but this process changes nothing.
    assert_eq!(read_all(&mut plain).unwrap(), "by b\n");
    assert_eq!(read_all(&mut moved).unwrap(), "by a\n");
    assert_eq!(plain.write(b"late").unwrap_err().raw_os_error(), Some(5));
    assert_eq!(fs::remove_file(a.join("plain")).unwrap_err().raw_os_error(), Some(5));
    drop((locked, flocked));
    // The kernel releases handles in the background.
    eventually("the handles are closed", || plain.write(b"and a\n").is_ok());
    appended.write_all(b"and a\n").unwrap();
    assert_eq!(fs::read_to_string(b.join("plain")).unwrap(), "by b\nand a\n");
    assert_eq!(fs::read_to_string(b.join("appended")).unwrap(), "by b\nand a\n");
    assert!(!a.join("moved").exists() && a.join("elsewhere").exists());
    let mut again = open(&a.join("flocked"));
    rustix::fs::flock(&again, FlockOperation::LockExclusive).unwrap();
    again.write_all(b"a is back").unwrap();

    // The cause is the silence, or at the MDT a revoke that was not acknowledged meanwhile.
    let ms = " ms";
    let name = format!("{}", a.display());
    for server in [&mdt, &ost] {
        eprintln!("server: {}", server.says(&["client evicted", &name, ms]));
    }
    eprintln!("mount: {}", sleeper.says(&["evicted by the target", "demo-MDT0000", ms]));
    sleeper.says(&["evicted by the target", "demo-OST0000", ms]);
    eprintln!("mount: {}", sleeper.says(&["handles of files with file locks fail with EIO"]));
    eprintln!("mount: {}", sleeper.says(&["all its changes fail with EIO", "process="]));
    drop(theirs);
}

/// Files with locks are open when a mount is taken away whose MDT stands still: its log says so, not once for each.
#[test]
fn a_mount_that_ends_without_its_mdt_complains_in_a_few_lines() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let [_mgs, mdt, _ost] = c.all();
    let mut mount = c.mount("a");
    let a = c.mnt("a");
    let files: Vec<File> = (0..20).map(|i| open(&a.join(format!("f{i}")))).collect();
    for file in &files {
        rustix::fs::fcntl_lock(file, FlockOperation::LockExclusive).unwrap();
        // The close has to say so, and is not sent later.
        std::os::unix::fs::FileExt::write_all_at(file, b"written", 0).unwrap();
    }
    mdt.signal(Signal::STOP);
    mount.signal(Signal::TERM);
    eventually("it says that files are open", || mount.log().contains("press Ctrl-C again"));
    mount.signal(Signal::TERM);
    mount.child.wait().unwrap();
    mdt.signal(Signal::CONT);
    let log = mount.log();
    assert!(log.contains("open files could not be closed at the MDT handles=20"), "{log}");
    assert!(log.matches(" WARN ").count() <= 4, "{log}");
}

/// A call waits for servers that are gone or stand still; the log of its mount says for which, and when they are back.
#[test]
fn a_mount_says_which_server_its_calls_wait_for() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let [_mgs, mut mdt, ost] = c.all();
    let mount = c.mount("a");
    let a = c.mnt("a");
    fs::write(a.join("f"), "before").unwrap();
    ost.signal(Signal::STOP);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            eprintln!("{}", mount.says(&["WARN", "waiting for demo-OST0000 (", " wait"]));
            ost.signal(Signal::CONT);
        });
        assert_eq!(fs::read_to_string(a.join("f")).unwrap(), "before");
    });
    eprintln!("{}", mount.says(&["INFO", "demo-OST0000", "connected again after"]));
    mdt.kill();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fs::write(a.join("g"), "after"));
        eprintln!("{}", mount.says(&["WARN", "waiting for demo-MDT0000 (", " wait"]));
        mdt = c.serve("mdt");
        writer.join().unwrap().unwrap();
    });
    eprintln!("{}", mount.says(&["INFO", "demo-MDT0000", "connected again after"]));
    assert!(mount.log().matches(" WARN waiting for").count() <= 3, "{}", mount.log());
}

/// Servers that are stopped for a lease and a little: their clients waited, and lose nothing.
#[test]
fn a_server_that_was_stopped_evicts_nobody() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let [_mgs, mdt, ost] = c.all();
    let mount = c.mount("a");
    let mut file = open(&c.mnt("a").join("locked"));
    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    for round in 0..4 {
        mdt.signal(Signal::STOP);
        ost.signal(Signal::STOP);
        wait(lease() * (0.9 + 0.1 * f64::from(round)));
        mdt.signal(Signal::CONT);
        ost.signal(Signal::CONT);
        writeln!(file, "round {round}").unwrap();
    }
    assert_eq!(read_all(&mut file).unwrap().lines().count(), 4);
    assert!(!mount.log().contains("evicted"), "{}", mount.log());
    // The MDT itself was silent at the MGS for longer than a lease: that is another matter.
    for log in [mdt.log(), ost.log()] {
        assert!(!log.contains("client evicted"), "{log}");
    }
}

#[test]
fn a_new_mount_is_told_of_a_recovery_and_waits_for_the_lease_of_who_is_absent() {
    let Some(m) = Machine::new() else { return };
    // Long enough for a mount to start on a busy machine.
    let c = Cluster { lease: lease().max(8.0), ..Cluster::format(&m) };
    let [_mgs, mut mdt, _ost] = c.all();
    let (_stays, mut leaves) = (c.mount("a"), c.mount("b"));
    fs::write(c.mnt("a").join("f"), "before").unwrap();
    leaves.kill();
    mdt.kill();
    let mdt = c.serve("mdt");
    let param = ["lctl", "get_param", "-n", "mdt.demo-MDT0000.recovery_status"];
    let (mut during, mut after) = (String::new(), String::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually("the recovery is over", || {
                let status = m.nacre(&param).out;
                let into = if status.contains("COMPLETE") { &mut after } else { &mut during };
                into.push_str(&status);
                !after.is_empty()
            });
        });
        let new = c.mount_begins("c");
        eprintln!("{}", new.says(&["waiting: the target is in recovery", "seconds="]));
        c.wait_mounted("c");
        assert_eq!(fs::read_to_string(c.mnt("c").join("f")).unwrap(), "before");
    });
    assert!(during.contains("status: RECOVERING") && during.contains("time_remaining:"), "{during}");
    mdt.says(&["not stopped as planned: in recovery"]);
    mdt.says(&["new client waits for the end of the recovery"]);
    assert_eq!(fs::read_to_string(c.mnt("a").join("f")).unwrap(), "before");
    assert!(after.contains("status: COMPLETE") && after.contains("evicted_clients: 1"), "{after}");
    mdt.says(&["client evicted", "not seen for"]);
}

#[test]
fn a_planned_stop_leaves_nothing_to_replay() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let [_mgs, mut mdt, mut ost] = c.all();
    let _mount = c.mount("a");
    fs::write(c.mnt("a").join("f"), "before").unwrap();
    for (server, name) in [(&mut mdt, "mdt"), (&mut ost, "ost")] {
        server.signal(Signal::TERM);
        assert!(server.child.wait().unwrap().success());
        fs::write(c.dir(&format!("{name}.log")), "").unwrap();
    }
    let (mdt, ost) = (c.serve("mdt"), c.serve("ost"));
    assert_eq!(fs::read_to_string(c.mnt("a").join("f")).unwrap(), "before");
    fs::write(c.mnt("a").join("g"), "after").unwrap();
    for server in [&mdt, &ost] {
        server.says(&["target started"]);
        assert!(!server.log().contains("in recovery"), "{}", server.log());
    }
    let status = m.good(&["lctl", "get_param", "-n", "mdt.demo-MDT0000.recovery_status"]);
    assert_eq!(status, "status: INACTIVE\n");
}

#[test]
fn a_store_whose_server_was_just_killed_is_served_again_at_once() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let mut server = c.serve("mgs");
    server.says(&["target started"]);
    let second = c.serve_command("mgs", &[]).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && said.contains("is in use by process"), "{said}");
    for _ in 0..15 {
        fs::write(c.dir("mgs.log"), "").unwrap();
        // Nobody has waited for it: it may be on its way out still.
        server.signal(Signal::KILL);
        let next = c.serve("mgs");
        next.says(&["target started"]);
        server = next;
    }
}

/// Counts of a process in `/proc/PID/io`; they can be read until somebody has waited for it.
fn write_calls(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap();
    line.trim().parse().unwrap()
}
fn log_files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir.join("log")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(&path).unwrap_or_default())).collect()
}

#[test]
fn after_a_takeover_the_old_server_writes_nothing() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let [_mgs, mut old, _ost] = c.all();
    let _mount = c.mount("a");
    let dir = c.mnt("a").join("d");
    fs::create_dir(&dir).unwrap();
    let writer = std::thread::spawn(move || {
        for i in 0..200 {
            fs::write(dir.join(format!("f{i}")), format!("{i}")).unwrap();
        }
    });
    eventually("some files are there", || fs::read_dir(c.mnt("a").join("d")).unwrap().count() > 20);
    old.signal(Signal::STOP);
    eventually("every thread has stopped", || machine::stands_still(old.child.id()));
    let (before, files) = (write_calls(old.child.id()), log_files(&c.dir("mdt")));
    fs::rename(c.dir("mdt.log"), c.dir("old.log")).unwrap();
    let refused = c.serve_command("mdt", &[]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--takeover"));
    let new = c.serve_with("mdt", &["--takeover"]);
    new.says(&["took", "over from process"]);
    // It would go on now, if it were there.
    let _gone = rustix::process::kill_process(rustix::process::Pid::from_child(&old.child), Signal::CONT);
    writer.join().unwrap();
    let written = write_calls(old.child.id()) - before;
    assert_eq!(old.child.wait().unwrap().signal(), Some(9));
    // The new server cuts what is behind the last whole record, makes both copies alike, and removes segments that it has
    // flushed.
    let is_changed = |was: &[u8], now: &[u8]| !was.starts_with(&now[..now.len() / 2]);
    let changed =
        files.iter().filter(|(path, was)| fs::read(path).is_ok_and(|now| is_changed(was, &now))).count();
    eprintln!("{written} writes by the old server after the takeover, {changed} of its log files changed");
    assert_eq!((written, changed), (0, 0));
    for i in 0..200 {
        assert_eq!(fs::read_to_string(c.mnt("a").join(format!("d/f{i}"))).unwrap(), format!("{i}"));
    }
}

/// A server has them from its start: a client may be there before the MGS is.
#[test]
fn what_the_mgs_keeps_holds_on_a_running_server_and_before_the_first_client_after_a_kill() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let [_mgs, mut mdt, _ost] = c.all();
    let _mount = c.mount("a");
    let shown = |name: &str| m.good(&["lctl", "get_param", "-n", name]).trim().to_owned();
    m.good(&[
        "lctl",
        "set_param",
        "-P",
        "mdt.*.max_mod_rpcs_in_flight=64",
        "mdc.*.max_mod_rpcs_in_flight=32",
        "obdfilter.*.sync_on_cancel=1",
    ]);
    eventually("it holds on the MDT", || shown("mdt.*.max_mod_rpcs_in_flight") == "64");
    eventually("it holds on the OST", || shown("obdfilter.*.sync_on_cancel") == "1");
    eventually("it is what was agreed", || shown("mdc.*.max_mod_rpcs_in_flight") == "8");
    mdt.kill();
    let _mdt = c.serve("mdt");
    eventually("it is agreed", || shown("mdc.*.max_mod_rpcs_in_flight") == "32");
    assert_eq!(shown("mdc.*.max_rpcs_in_flight"), "33");
}
