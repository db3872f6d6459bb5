//! `nacre up`, `down`, `destroy` as a person uses them: on real mounts, with everything that is commonly done wrong.
//! Needs root and /dev/fuse; without them the tests say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::{Machine, eventually, said};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn data_is_kept_between_runs_and_the_banner_says_what_to_know() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    for word in
        ["capacity", "targets", "MGS, nacre-MDT0000", "data ", "log ", "no authentication yet", "next: "]
    {
        assert!(up.said.contains(word), "{word} is not in {}", up.said);
    }
    fs::write(m.mount().join("a"), "kept").unwrap();
    fs::create_dir(m.mount().join("d")).unwrap();
    assert!(up.stop().err.contains("data is kept"));
    assert_eq!(fs::read_dir(m.mount()).unwrap().count(), 0, "unmounted");

    let up = m.up();
    assert_eq!(fs::read_to_string(m.mount().join("a")).unwrap(), "kept");
    // The space of two targets on one device is that of the device.
    let (here, below) =
        (rustix::fs::statvfs(m.mount()).unwrap(), rustix::fs::statvfs(m.path("data")).unwrap());
    assert_eq!(here.f_blocks * here.f_frsize, below.f_blocks * below.f_frsize);
    up.stop();
}

#[test]
fn the_usual_limit_of_open_files_is_lifted() {
    let Some(m) = Machine::new() else { return };
    // Of this process and so of every child; each lifts it for itself.
    let limit = rustix::process::Resource::Nofile;
    let few = rustix::process::Rlimit { current: Some(256), ..rustix::process::getrlimit(limit) };
    rustix::process::setrlimit(limit, few).unwrap();
    let up = m.up();
    for i in 0..600 {
        fs::write(m.mount().join(format!("f{i}")), "x").unwrap();
    }
    up.stop();
}

#[test]
fn the_usual_limit_does_where_it_cannot_be_lifted() {
    let Some(m) = Machine::new() else { return };
    // Of this thread and so of every child: not even root may lift the upper limit then.
    let lift = rustix::thread::CapabilitySet::SYS_RESOURCE;
    rustix::thread::remove_capability_from_bounding_set(lift).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 1024 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_nacre")]);
    command.args(["up", m.mount().to_str().unwrap(), "--dir", m.path("data").to_str().unwrap()]);
    let up = m.start_command(command, "next: ");
    let limits = fs::read_to_string(format!("/proc/{}/limits", up.pid())).unwrap();
    let open_files = limits.lines().find(|l| l.starts_with("Max open files")).unwrap();
    assert_eq!(open_files.matches("1024").count(), 2, "{open_files}");
    // More files than descriptors, written, and read when their descriptors have been closed again.
    let path = |n: usize| m.mount().join(format!("f{n}"));
    (0..1500).for_each(|n| fs::write(path(n), n.to_string()).unwrap());
    let open = fs::read_dir(format!("/proc/{}/fd", up.pid())).unwrap().count();
    assert!(open < 800, "{open} descriptors are open");
    (0..1500).for_each(|n| assert_eq!(fs::read_to_string(path(n)).unwrap(), n.to_string()));
    up.stop();
}

#[test]
fn what_is_kept_of_small_writes_takes_little_more_memory_than_their_bytes() {
    const BLOCK_BYTES: usize = 9 << 10;
    const BLOCKS: usize = 900;
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let resident_kib = || {
        let status = fs::read_to_string(format!("/proc/{}/status", up.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    let before = resident_kib();
    let mut file = fs::File::create(m.mount().join("f")).unwrap();
    (0..BLOCKS).for_each(|n| file.write_all(&[n as u8; BLOCK_BYTES]).unwrap());
    let grown = resident_kib().saturating_sub(before);
    // A buffer that holds the largest request for each of them would be 950 MiB.
    assert!(grown < 128 << 10, "{grown} KiB more for {} KiB", BLOCKS * BLOCK_BYTES / 1024);
    drop(file);
    up.stop();
}

#[test]
fn a_second_mount_through_the_printed_address_sees_the_same_files() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let (second, third) = (m.path("second"), m.path("third"));
    let address = up.address();
    let mount = m.start(&["mount", &address, second.to_str().unwrap()], "next: ");
    fs::write(m.mount().join("a"), "one").unwrap();
    assert_eq!(fs::read_to_string(second.join("a")).unwrap(), "one");
    fs::write(second.join("a"), "two!").unwrap();
    assert_eq!(fs::read_to_string(m.mount().join("a")).unwrap(), "two!");

    // The same server, another file system.
    let other = address.replace(":/nacre", ":/other");
    m.refused(
        &["mount", &other, m.path("none").to_str().unwrap()],
        &["does not know a file system `other`", "it knows: nacre", "hint: check the name"],
    );

    // A mount that only reads.
    m.good(&["mount", &address, third.to_str().unwrap(), "-o", "ro", "--detach"]);
    assert_eq!(fs::read_to_string(third.join("a")).unwrap(), "two!");
    let refused = fs::write(third.join("b"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    m.good(&["umount", third.to_str().unwrap()]);

    m.good(&["sync", second.to_str().unwrap()]);
    m.good(&["umount", second.to_str().unwrap()]);
    assert!(mount.ended().ok);
    up.stop();
}

#[test]
fn wrong_mount_points_are_refused_with_a_sentence_and_leave_nothing() {
    let Some(m) = Machine::new() else { return };
    let up = |mount: &str| {
        let (mount, data) = (m.path(mount), m.path("data"));
        m.nacre(&["up", mount.to_str().unwrap(), "--dir", data.to_str().unwrap()])
    };
    let refused = |mount: &str, words: &[&str]| {
        let said = up(mount);
        assert_eq!(said.code, Some(1), "{}", said.err);
        words.iter().for_each(|w| assert!(said.err.contains(w), "{w:?} is not in: {}", said.err));
        assert!(!m.path("data").exists(), "nothing was made");
    };
    fs::write(m.path("file"), "").unwrap();
    refused("file", &["is not a directory", "hint:"]);
    refused("file/below", &["is not a directory", "hint:"]);
    fs::write(m.made("full").join("x"), "").unwrap();
    refused("full", &["is not empty", "hint:"]);
    m.refused(
        &["up", "/proc", "--dir", m.path("data").to_str().unwrap()],
        &["is a mount point already", "hint:"],
    );
    m.refused(
        &["up", "/proc/none", "--dir", m.path("data").to_str().unwrap()],
        &["cannot make the mount point"],
    );
    fs::write(m.made("foreign").join("x"), "").unwrap();
    m.refused(
        &["up", m.mount().to_str().unwrap(), "--dir", m.path("foreign").to_str().unwrap()],
        &["is not empty and was not made by `nacre up`", "hint: --dir"],
    );
    m.refused(
        &["up", m.mount().to_str().unwrap(), "--dir", m.path("file").to_str().unwrap()],
        &["file is not a directory", "hint: --dir"],
    );
    let mut nowhere = m.command();
    nowhere.env("NACRE_RUN_DIR", m.path("file/run"));
    let (mount, data) = (m.path("new"), m.path("data"));
    nowhere.args(["up", mount.to_str().unwrap(), "--dir", data.to_str().unwrap()]);
    let refused = said(nowhere.output().unwrap());
    assert!(!refused.ok && refused.err.contains("NACRE_RUN_DIR"), "{}", refused.err);
    assert!(!mount.exists() && !data.exists(), "nothing was made");
}

#[test]
fn a_second_up_on_the_same_mount_or_data_names_the_first_and_others_run_beside_it() {
    let Some(m) = Machine::new() else { return };
    let first = m.up();
    let pid = first.pid().to_string();
    let (data, mount, other) = (m.path("data"), m.mount(), m.path("other"));
    m.refused(
        &["up", mount.to_str().unwrap(), "--dir", m.path("data2").to_str().unwrap()],
        &["is mounted already, by process", &pid, "hint: nacre down"],
    );
    let no_such_flag = m.refused(
        &["up", other.to_str().unwrap(), "--dir", data.to_str().unwrap()],
        &["is in use by process", &pid],
    );
    assert!(!no_such_flag.contains("--takeover"), "{no_such_flag}");
    assert!(!other.exists(), "a mount point that is not used is not left");
    let ost = data.join("ost0");
    for takeover in [&[][..], &["--takeover"]] {
        let args = [&["serve", ost.to_str().unwrap()], takeover].concat();
        m.refused(&args, &["is in use by process", &pid, "stop it with nacre down"]);
    }
    m.refused(
        &["destroy", "--dir", data.to_str().unwrap(), "--yes"],
        &["is in use by pid", &pid, "nacre down"],
    );
    let then = format!("then nacre destroy --dir {}", data.display());
    m.refused(
        &["destroy", mount.to_str().unwrap(), "--yes"],
        &["is in use by pid", &pid, "nacre down", &then],
    );
    m.refused(&["check", data.to_str().unwrap()], &["in use by process", &pid]);

    // Two at once, the second in memory.
    let second = m.start(&["up", other.to_str().unwrap(), "--ephemeral"], "next: ");
    fs::write(other.join("x"), "in memory").unwrap();
    assert!(!mount.join("x").exists());
    m.refused(&["down"], &["several run", "hint: nacre down MOUNT"]);
    let status = m.good(&["status"]);
    assert!(status.contains("nacre-MDT0000") && status.contains("other-MDT0000"), "{status}");
    assert!(m.good(&["down", other.to_str().unwrap()]).contains("in memory only"));
    assert!(second.ended().err.contains("it was in memory only and is gone"));
    let said = m.good(&["down"]);
    assert!(said.contains(&format!("the data is kept in {}", data.display())), "{said}");
    assert!(first.ended().ok);
    assert!(m.good(&["status"]).contains("nothing runs"));
    m.refused(&["down"], &["no `nacre up` runs"]);
}

#[test]
fn a_wish_that_data_does_not_fit_is_refused() {
    let Some(m) = Machine::new() else { return };
    m.up().stop();
    let (mount, data) = (m.mount(), m.path("data"));
    let up = ["up", mount.to_str().unwrap(), "--dir", data.to_str().unwrap()];
    for (wish, other) in [(["--osts", "5"], "--osts 5"), (["--fsname", "other"], "--fsname other")] {
        m.refused(
            &[&up[..], &wish].concat(),
            &[other, "holds the file system nacre with 2 OSTs already", "hint: leave the option out"],
        );
    }
    let same = m.up_with(&["--osts", "2", "--fsname", "nacre"]);
    // Another data directory beside it, and one elsewhere: names of their own, which they keep.
    let (second, beside) = (m.path("second"), m.path("beside"));
    let args = ["up", second.to_str().unwrap(), "--dir", beside.to_str().unwrap()];
    let said = m.start(&args, "next: ");
    assert!(said.said.contains("file system beside is mounted on"), "{}", said.said);
    said.stop();
    same.stop();
    assert!(m.start(&args, "next: ").said.contains("file system beside is mounted on"));
    let third = m.made("elsewhere").join("data");
    let alone = m.start(&["up", second.to_str().unwrap(), "--dir", third.to_str().unwrap()], "next: ");
    assert!(alone.said.contains("file system nacre is mounted on"), "{}", alone.said);
    alone.stop();
}

#[test]
fn down_names_the_mounts_that_lose_or_wait() {
    let Some(m) = Machine::new() else { return };
    let (mount, other) = (m.mount(), m.path("other"));
    let other = other.to_str().unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = format!("{host}:{other}");
    let memory = m.start(&["up", mount.to_str().unwrap(), "--ephemeral"], "next: ");
    m.good(&["mount", &memory.address(), other, "--detach"]);
    m.refused(&["down"], &["in memory only; other mounts lose it", &name, "hint:", "--force"]);
    fs::write(m.mount().join("f"), "x").unwrap();
    assert_eq!(fs::read_to_string(m.path("other/f")).unwrap(), "x", "both go on");
    // A call that waits when it ends: for a lock that the other mount has.
    let held = fs::File::options().write(true).open(m.path("other/f")).unwrap();
    let waits = fs::File::open(m.path("other/f")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let waiter = std::thread::spawn(move || {
        rustix::fs::flock(&waits, rustix::fs::FlockOperation::LockExclusive).map_err(Into::into)
    });
    eventually("the lock is waited for", || {
        m.good(&["lctl", "get_param", "-n", "llite.*.fuse_waiting"]).contains("setlk")
    });
    let down = m.nacre(&["down", "--force"]);
    assert!(down.ok && down.err.contains(&name), "{}{}", down.out, down.err);
    assert!(memory.ended().ok);
    // There is nothing to wait for: the other mount was told, and an ordinary umount ends it.
    let eio = |result: std::io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(5));
    eio(fs::read_dir(m.path("other")).map(drop));
    eio(fs::read(m.path("other/f")).map(drop));
    eio(fs::write(m.path("other/new"), "x"));
    eio(waiter.join().unwrap());
    drop(held);
    m.good(&["umount", other]);

    let kept = m.up();
    m.good(&["mount", &kept.address(), other, "--detach"]);
    let down = m.nacre(&["down"]);
    assert!(down.ok && down.err.contains(&format!("wait until it is up again: {name}")), "{}", down.err);
    assert!(kept.ended().ok);
    let again = m.up();
    assert!(m.path("other").is_dir(), "it is connected again");
    m.good(&["umount", other]);
    let down = m.nacre(&["down"]);
    assert!(down.ok && down.err.is_empty(), "{}", down.err);
    assert!(again.ended().ok);
}

#[test]
fn a_dead_mount_stays_until_the_next_up_and_nothing_acknowledged_is_lost() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let file = fs::File::create(m.mount().join("a")).unwrap();
    file.write_all_at(b"acknowledged", 0).unwrap();
    up.kill();
    drop(file);
    let dead = fs::metadata(m.mount()).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    for command in [&["sync"][..], &["lfs", "df"], &["lfs", "getstripe"]] {
        let refused = m.nacre(&[command, &[m.mount().to_str().unwrap()]].concat());
        assert!(
            !refused.ok && refused.err.contains("hint:") && refused.err.contains("nacre status"),
            "{}",
            refused.err
        );
    }
    // A program that goes on writing must not write into the directory below.
    let ended = Arc::new(AtomicBool::new(false));
    let program = std::thread::spawn({
        let (file, ended) = (m.mount().join("below"), ended.clone());
        move || {
            while !ended.load(Ordering::Relaxed) {
                let _dead = fs::write(&file, "x");
            }
        }
    });
    let (ost, away) = (m.path("data/ost0"), m.path("ost0"));
    fs::rename(&ost, &away).unwrap();
    let failed = m.nacre(&["up", m.mount().to_str().unwrap(), "--dir", m.path("data").to_str().unwrap()]);
    assert!(!failed.ok && failed.err.contains("ost0"), "{}", failed.err);
    let dead = fs::metadata(m.mount()).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()), "it stays");
    fs::rename(&away, &ost).unwrap();
    // By a symbolic link to it, which must not be followed onto the dead mount.
    let link = m.path("link");
    std::os::unix::fs::symlink("mnt", &link).unwrap();
    let data = m.path("data");
    m.good(&["up", link.to_str().unwrap(), "--dir", data.to_str().unwrap(), "--detach"]);
    assert_eq!(fs::read_to_string(m.mount().join("a")).unwrap(), "acknowledged");
    ended.store(true, Ordering::Relaxed);
    program.join().unwrap();
    m.good(&["down", m.mount().to_str().unwrap()]);
    assert_eq!(fs::read_dir(m.mount()).unwrap().count(), 0, "nothing is in the directory below");
    m.good(&["check", m.path("data").to_str().unwrap()]);
}

/// The mount keeps the writes of a stream in memory that survives its process, and names their places in its log.
#[test]
fn nothing_acknowledged_of_a_stream_of_long_writes_is_lost_by_a_kill() {
    const BLOCK: u64 = 1 << 20;
    const BLOCKS: u64 = 64;
    let Some(m) = Machine::new() else { return };
    let block = |round: u64, number: u64| -> Vec<u8> {
        (0..BLOCK / 8).flat_map(|at| (at * 0x9e37_79b9 + round * 1000 + number).to_le_bytes()).collect()
    };
    let log_and_memory = || {
        let log = fs::read_dir(m.path("data")).unwrap().map(|entry| entry.unwrap().path());
        let log = log.filter(|path| path.to_string_lossy().contains("/kept-")).collect::<Vec<_>>().remove(0);
        let (number, inode) = (log.file_stem().unwrap().to_str().unwrap(), log.metadata().unwrap().ino());
        let memory = std::path::Path::new("/dev/shm").join(format!("nacre-{number}-{inode:x}"));
        (log, memory)
    };
    // Whatever the speed of this machine's device.
    let start = || {
        let mut command = m.command();
        command.env("NACRE_KEEP_STREAMS", "yes");
        command.args([
            OsStr::new("up"),
            m.mount().as_os_str(),
            OsStr::new("--dir"),
            m.path("data").as_os_str(),
        ]);
        m.start_command(command, "next: ")
    };
    for round in 0..3 {
        let up = start();
        let (log, memory) = log_and_memory();
        assert!(memory.exists());
        let mut file = fs::File::options();
        let file = file.read(true).write(true).create_new(true);
        // Nothing is kept of a file that the killed mount may have open.
        let path = m.mount().join(format!("stream{round}"));
        let file = file.open(&path).unwrap();
        let mut expected = Vec::new();
        for number in 0..BLOCKS {
            let block = block(round, number);
            file.write_all_at(&block, number * BLOCK).unwrap();
            expected.extend(block);
        }
        let logged = fs::read(&log).unwrap().iter().filter(|byte| **byte != 0).count();
        assert!((500..1_000_000).contains(&logged), "{logged} bytes: the places of thirty writes");
        // Their last parts are written over.
        for number in [35, BLOCKS - 3, BLOCKS - 1] {
            let at = number * BLOCK + 100_000;
            file.write_all_at(&[7; 5000], at).unwrap();
            expected[at as usize..at as usize + 5000].fill(7);
        }
        up.kill();
        drop(file);
        let up = start();
        assert!(fs::read(&path).unwrap() == expected, "round {round}");
        assert!(!memory.exists(), "it was read");
        up.stop();
        let left = |entry: fs::DirEntry| entry.file_name().to_string_lossy().contains("kept-");
        assert!(!fs::read_dir(m.path("data")).unwrap().any(|entry| left(entry.unwrap())));
    }
    // Killed again, and not started again.
    start().kill();
    let memory = log_and_memory().1;
    assert!(memory.exists());
    m.good(&["destroy", "--yes", "--dir", m.path("data").to_str().unwrap()]);
    assert!(!memory.exists());
}

#[test]
fn the_next_up_waits_for_one_that_was_unmounted_and_stops() {
    let Some(m) = Machine::new() else { return };
    let (mount, data) = (m.mount(), m.path("data"));
    let first = m.up();
    fs::write(mount.join("a"), "kept").unwrap();
    // It has no chance to stop before the next one comes.
    first.signal(Signal::STOP);
    rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH).unwrap();
    let mut next = m.command();
    next.args(["up", mount.to_str().unwrap(), "--dir", data.to_str().unwrap()]);
    let mut next = next.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(next.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(&format!("waiting for process {}", first.pid())), "{line}");
    first.signal(Signal::CONT);
    assert!(first.ended().ok);
    eventually("it is mounted", || fs::read_to_string(mount.join("a")).is_ok_and(|text| text == "kept"));
    // It may have been mounted a moment before it was listed, so that `umount` does not know its process yet.
    m.good(&["umount", mount.to_str().unwrap()]);
    eventually("it ends", || next.try_wait().unwrap().is_some_and(|status| status.success()));
}

#[test]
fn nobody_waits_for_a_mount_that_died_with_its_servers() {
    let Some(m) = Machine::new() else { return };
    let exports = || m.good(&["lctl", "get_param", "-n", "mdt.*.exports.*.export"]);
    let up = m.up();
    fs::create_dir(m.mount().join("d")).unwrap();
    assert!(m.mount().join("d").is_dir());
    assert!(exports().contains("ibits"));
    up.kill();
    let up = m.up();
    fs::create_dir(m.mount().join("d/e")).unwrap();
    // Of clients that may believe in a lock there is the new mount only.
    assert_eq!(exports().matches("ibits").count(), 1, "{}", exports());
    up.stop();
}

#[test]
fn ctrl_c_with_an_open_file_says_who_holds_it_and_the_second_detaches_lazily() {
    let Some(m) = Machine::new() else { return };
    let mut up = m.up();
    let mut holder = Command::new("sh")
        .args(["-c", "exec 3>\"$1\"; echo open; read wait", "holder"])
        .arg(m.mount().join("held"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut open = [0; 5];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut open).unwrap();
    let pid = holder.id().to_string();
    let busy = m.refused(&["down"], &["is in use by", "hint:"]);
    assert!(busy.contains(&pid), "{busy}");
    m.refused(&["umount", m.mount().to_str().unwrap()], &["is in use by", &pid, "--lazy"]);
    up.signal(Signal::INT);
    let said = up.complains("cannot unmount");
    assert!(said.contains(&pid), "{said}");
    assert!(m.mount().join("held").exists(), "it goes on");
    up.signal(Signal::INT);
    assert!(up.ended().ok);
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    holder.wait().unwrap();
}

#[test]
fn a_busy_port_is_named() {
    let Some(m) = Machine::new() else { return };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let up =
        ["up", m.mount().to_str().unwrap(), "--dir", m.path("data").to_str().unwrap(), "--listen", &address]
            .map(str::to_owned);
    m.refused(&up, &[&address, "is in use by another process", "hint:"]);
    let detached: Vec<_> = up.iter().cloned().chain(["--detach".to_owned()]).collect();
    let said = m.refused(&detached, &[&address, "is in use by another process", "hint:"]);
    assert_eq!(said.matches("nacre: ").count(), 1, "{said}");
    drop(taken);
    // Nothing of the refused ones is in the way.
    let said = m.good(&up.iter().map(String::as_str).chain(["--detach"]).collect::<Vec<_>>());
    assert!(said.contains(&format!("other hosts:   nacre mount {address}:/nacre DIR")), "{said}");
    m.good(&["down", m.mount().to_str().unwrap()]);
}

#[test]
fn without_dev_fuse_one_sentence_says_so() {
    let Some(m) = Machine::new() else { return };
    // A mount namespace whose /dev is empty but for what a shell needs.
    let script =
        "mount -t tmpfs none /dev && mknod /dev/null c 1 3 && mknod /dev/urandom c 1 9 && exec \"$@\"";
    let nacre = m.command();
    let run = said(
        Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
            .arg(nacre.get_program())
            .args(["up", m.mount().to_str().unwrap(), "--dir", m.path("data").to_str().unwrap()])
            .env("NACRE_RUN_DIR", m.path("run"))
            .output()
            .unwrap(),
    );
    assert_eq!(run.code, Some(1), "{}", run.err);
    assert!(
        run.err.contains("there is no /dev/fuse") && run.err.contains("hint: modprobe fuse"),
        "{}",
        run.err
    );
    assert!(!m.path("data").exists(), "nothing was made");
}

#[test]
fn a_full_disk_is_enospc_and_unlink_makes_room() {
    let Some(m) = Machine::new() else { return };
    let disk = m.made("disk");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &disk, "tmpfs", flags, Some(c"size=640m")).unwrap();
    let (mount, data) = (m.mount(), disk.join("data"));
    let up = m.start(&["up", mount.to_str().unwrap(), "--dir", data.to_str().unwrap()], "next: ");
    let piece = vec![7u8; 8 << 20];
    let mut written = 0;
    let full = (0..200).find_map(|n| match fs::write(mount.join(format!("f{n}")), &piece) {
        Ok(()) => {
            written += 1;
            None
        }
        Err(e) => Some(e),
    });
    assert_eq!(full.unwrap().raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    assert!(written > 4, "{written} files fitted");
    // Somebody else takes the rest: what is there can be listed and read, and after a crash it is served again.
    let mut rest = fs::File::create(disk.join("rest")).unwrap();
    while std::io::Write::write(&mut rest, &piece[..4096]).is_ok() {}
    // A segment of its log (16 MiB) may have been there already, so it takes large changes.
    // They stay: what is removed again is given back.
    let (target, mut links) = ("x".repeat(4000), 0..100_000);
    let make = |n| std::os::unix::fs::symlink(&target, mount.join(format!("link{n}")));
    let full = links.find_map(|n| make(n).err()).expect("the MDT is full");
    assert_eq!(full.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    let listed = || fs::read_dir(&mount).map(|d| d.filter_map(Result::ok).count());
    assert!(listed().unwrap() >= written);
    assert!(fs::read(mount.join("f0")).is_ok_and(|bytes| bytes == piece));
    let mut up = up;
    for _ in 0..8 {
        // However often: what a start takes for its logs, the next one gives back.
        up.kill();
        up = m.start(&["up", mount.to_str().unwrap(), "--dir", data.to_str().unwrap()], "next: ");
    }
    assert!(listed().unwrap() >= written);
    assert!(fs::read(mount.join("f0")).is_ok_and(|bytes| bytes == piece));
    // Half of it: the targets' own logs may take a segment (16 MiB) of what becomes free.
    for n in 0..written / 2 {
        fs::remove_file(mount.join(format!("f{n}"))).unwrap();
    }
    machine::eventually("there is room again", || fs::write(mount.join("again"), vec![1u8; 1 << 20]).is_ok());
    up.stop();
    // A disk that is full from the beginning.
    let small = m.made("small");
    rustix::mount::mount("none", &small, "tmpfs", flags, Some(c"size=1m")).unwrap();
    m.refused(
        &["up", mount.to_str().unwrap(), "--dir", small.join("data").to_str().unwrap()],
        &["no space", "hint:"],
    );
}

#[test]
fn a_planned_stop_leaves_no_client_behind() {
    let Some(m) = Machine::new() else { return };
    m.up().stop();
    m.up().stop();
    let log = fs::read_to_string(m.path("data/nacre.log")).unwrap();
    assert!(log.contains("target_name=nacre-MDT0000 instance=2 clients=0"), "{log}");
    assert!(!log.contains("not deleted"), "{log}");
}

#[test]
fn another_format_version_and_damage_of_the_label_are_refused() {
    let Some(m) = Machine::new() else { return };
    m.up().stop();
    let up =
        ["up", m.mount().to_str().unwrap(), "--dir", m.path("data").to_str().unwrap()].map(str::to_owned);
    let label = m.path("data/ost1/super");
    let good = fs::read(&label).unwrap();
    let with = |at: usize| {
        // It is stored twice.
        let mut bytes = good.clone();
        for copy in [0, good.len() / 2] {
            bytes[copy + at] ^= 0x40;
        }
        fs::write(&label, bytes).unwrap();
    };
    with(8);
    m.refused(
        &up,
        &["ost1", "format version 68", "this program knows version 4", "use the program that wrote it"],
    );
    with(0);
    m.refused(&up, &["ost1", "damaged", "do not format"]);
    with(24);
    m.refused(&up, &["ost1", "damaged"]);
    // A part that is gone is not made anew.
    fs::rename(m.path("data/ost1"), m.path("elsewhere")).unwrap();
    m.refused(&up, &["nacre-OST0001 is missing", "hint: put it back"]);
    fs::rename(m.path("elsewhere"), m.path("data/ost1")).unwrap();
    // Damage of one copy costs nothing.
    let mut one = good.clone();
    one[24] ^= 0x40;
    fs::write(&label, one).unwrap();
    m.up().stop();
}

#[test]
fn a_damaged_marker_file_is_made_again_from_the_targets() {
    let Some(m) = Machine::new() else { return };
    m.up().stop();
    let marker = m.path("data/nacre-up.json");
    let good = fs::read_to_string(&marker).unwrap();
    for damaged in [good.replace("\"osts\": 2", "\"osts\": 1"), good.replacen('"', "#", 1), String::new()] {
        assert_ne!(damaged, good);
        fs::write(&marker, damaged).unwrap();
        let up = m.up();
        assert!(up.said.contains("nacre-OST0001"), "{}", up.said);
        up.stop();
        assert_eq!(fs::read_to_string(&marker).unwrap(), good);
    }
    // An OST that is lost is missed all the same.
    fs::write(&marker, "").unwrap();
    fs::rename(m.path("data/ost0"), m.path("lost")).unwrap();
    let start =
        ["up", m.mount().to_str().unwrap(), "--dir", m.path("data").to_str().unwrap()].map(str::to_owned);
    m.refused(&start, &["nacre-OST0000 is missing", "hint: put it back"]);
    fs::rename(m.path("lost"), m.path("data/ost0")).unwrap();
    // Without its targets nobody knows.
    fs::write(&marker, "").unwrap();
    fs::rename(m.path("data/mdt0"), m.path("elsewhere")).unwrap();
    m.refused(&start, &["nacre-up.json is damaged", "hint: the file has the lines"]);
}

#[test]
fn destroy_spares_what_is_served_although_another_run_directory_knows_it() {
    let Some(m) = Machine::new() else { return };
    let data = m.path("data");
    let elsewhere = || {
        let mut command = m.command();
        command.env("NACRE_RUN_DIR", m.made("other-run"));
        said(command.args(["destroy", "--yes", "--dir", data.to_str().unwrap()]).output().unwrap())
    };
    let up = m.up();
    fs::write(m.mount().join("a"), "wanted").unwrap();
    let refused = elsewhere();
    assert_eq!(refused.code, Some(1), "{}", refused.out);
    let holder = format!("is in use by process {}", up.pid());
    assert!(refused.err.contains(&holder) && refused.err.contains("stop that first"), "{}", refused.err);
    assert_eq!(fs::read_to_string(m.mount().join("a")).unwrap(), "wanted");
    up.stop();
    // One target of it is enough.
    let ost = m.start(&["serve", data.join("ost1").to_str().unwrap()], "serving ");
    assert!(elsewhere().err.contains(&format!("is in use by process {}", ost.pid())));
    ost.kill();
    assert!(data.join("mdt0/super").exists() && data.join("ost1/super").exists());
    assert!(elsewhere().ok && !data.exists(), "nobody serves it now");
}

#[test]
fn destroy_removes_what_up_made_and_nothing_else() {
    let Some(m) = Machine::new() else { return };
    let (up, waits) = (m.up(), m.path("waits"));
    let second = m.start(&["mount", &up.address(), waits.to_str().unwrap()], "next: ");
    up.stop();
    fs::write(m.made("foreign").join("x"), "").unwrap();
    m.refused(
        &["destroy", "--yes", "--dir", m.path("foreign").to_str().unwrap()],
        &["was not made by `nacre up`"],
    );
    m.refused(&["destroy", "--yes", "--dir", m.path("none").to_str().unwrap()], &["nothing to destroy"]);
    let mount = m.mount();
    m.refused(&["destroy", "--yes", mount.to_str().unwrap()], &["nothing to destroy", "hint:", "--dir DIR"]);
    let waiting = ["not asked", "--yes", "wait for it", waits.to_str().unwrap(), "nacre umount"];
    m.refused(&["destroy", "--dir", m.path("data").to_str().unwrap()], &waiting);
    m.good(&["umount", waits.to_str().unwrap()]);
    second.ended();
    let (data, marker) = (m.path("data"), m.path("data").join("nacre-up.json"));
    fs::rename(&marker, m.path("lost")).unwrap();
    let lost = [
        "holds targets of the file system",
        "but not the file nacre-up.json",
        "hint: if `nacre up` made them",
    ];
    for command in [&["destroy", "--yes", "--dir"][..], &["check"], &["up", "other", "--detach", "--dir"]] {
        m.refused(&[command, &[data.to_str().unwrap()]].concat(), &lost);
    }
    // The line that the hint gives.
    let said = m.refused(&["check", data.to_str().unwrap()], &lost);
    fs::write(&marker, said.rsplit_once("nacre-up.json: ").unwrap().1).unwrap();
    m.good(&["check", data.to_str().unwrap()]);
    m.good(&["destroy", "--yes", "--dir", data.to_str().unwrap()]);
    assert!(!data.exists() && m.path("foreign/x").exists());
}
