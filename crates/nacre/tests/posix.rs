//! Calls as POSIX and Linux describe them, on real mounts: signals, set-id bits, access times. Needs root and
//! /dev/fuse; without them the tests say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::{Machine, Running, eventually};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A file system in a process of its own, and a second mount of it in another one.
struct Two {
    m: Machine,
    up: Running,
    second: Running,
}

impl Two {
    fn new(options: &str) -> Option<Self> {
        let m = Machine::new()?;
        let up = m.up();
        let dir = m.path("b");
        let second = m.start(&["mount", &up.address(), dir.to_str().unwrap(), "-o", options], "next: ");
        Some(Self { m, up, second })
    }
    fn first(&self, name: &str) -> PathBuf {
        self.m.mount().join(name)
    }
    fn second(&self, name: &str) -> PathBuf {
        self.m.path("b").join(name)
    }
    fn servers_stand_still(&self) {
        self.up.signal(Signal::STOP);
        eventually("every thread has stopped", || machine::stands_still(self.up.pid()));
    }
    /// The mounts serve nothing from memory: each call is a request to a server.
    fn without_cache(&self) {
        self.m.good(&["lctl", "set_param", "llite.*.dir_attr_cache=0"]);
    }
    fn end(self) {
        self.second.stop();
        self.up.stop();
    }
}

/// Milliseconds for which a call of this process has waited for its reply.
fn waited_ms(m: &Machine, child: &Child) -> u64 {
    let said = m.nacre(&["lctl", "get_param", "-n", "llite.*.fuse_waiting"]).out;
    let pid = child.id().to_string();
    let mut lines = said.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines.find_map(|words| (words.get(1) == Some(&&*pid)).then(|| words[2].parse().unwrap())).unwrap_or(0)
}

/// A program that handles SIGALRM, without SA_RESTART and once a second, opens a file, says so, waits for a line on stdin, makes one call, and
/// ends with its errno.
fn perl(path: &Path, call: &str) -> Child {
    let script = format!(
        r#"use POSIX ();
           $| = 1;
           open(my $f, "+<", $ARGV[0]) or exit 99;
           POSIX::sigaction(POSIX::SIGALRM, POSIX::SigAction->new(sub {{ alarm 1 }}));
           print "ready\n"; <STDIN>;
           alarm 1;
           my $done = {call};
           exit(defined $done ? 0 : $! + 0);"#
    );
    let mut command = Command::new("perl");
    command.args(["-e", &script]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}
fn go(child: &mut Child) {
    child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
}
fn ended(mut child: Child) -> Option<i32> {
    eventually("it ends", || child.try_wait().unwrap().is_some());
    child.wait().unwrap().code()
}

const EINTR: i32 = 4;
const CALLS: [&str; 5] = [
    "sysseek($f, 0, 2)",
    "(stat $f)[7]",
    "(stat $ARGV[0])[7]",
    "sysread($f, my $text, 100)",
    // fsync(2).
    "do { require IO::Handle; $f->sync }",
];

#[test]
fn signals_with_handlers_end_no_call_that_waits_for_a_server() {
    let Some(t) = Two::new("rw") else { return };
    t.without_cache();
    // A file each: the kernel orders some of these calls by a lock of the inode.
    let caller = |n: usize, call: &str| {
        let path = t.second(&n.to_string());
        fs::write(&path, "bytes").unwrap();
        perl(&path, call)
    };
    let mut callers: Vec<Child> = CALLS.iter().enumerate().map(|(n, call)| caller(n, call)).collect();
    // It dumps core by default: the kernel leaves the signal pending while the call waits.
    let mut aborts = caller(CALLS.len(), "(stat $f)[7]");
    t.up.kill();
    callers.iter_mut().for_each(go);
    go(&mut aborts);
    for caller in &callers {
        eventually("several signals have come", || waited_ms(&t.m, caller) > 3500);
    }
    kill_process(Pid::from_child(&aborts), Signal::ABORT).unwrap();
    eventually("a signal without a handler ends its process", || aborts.try_wait().unwrap().is_some());
    assert_eq!(aborts.wait().unwrap().signal(), Some(6));
    assert!(callers.iter_mut().all(|caller| caller.try_wait().unwrap().is_none()));
    let up = t.m.up();
    for (call, caller) in CALLS.iter().zip(callers) {
        assert_eq!(ended(caller), Some(0), "{call}");
    }
    t.second.stop();
    up.stop();
}

#[test]
fn with_intr_a_handled_signal_ends_a_call_that_changes_nothing() {
    let Some(t) = Two::new("intr") else { return };
    t.without_cache();
    fs::write(t.second("f"), "bytes").unwrap();
    let mut asks = perl(&t.second("f"), "(stat $f)[7]");
    let mut changes = perl(&t.second("f"), "truncate($f, 2)");
    t.servers_stand_still();
    go(&mut asks);
    go(&mut changes);
    // Perl's stat ends; perl calls the handler and gives the error on.
    assert_eq!(ended(asks), Some(EINTR));
    assert!(changes.try_wait().unwrap().is_none());
    t.up.signal(Signal::CONT);
    assert_eq!(ended(changes), Some(0));
    t.end();
}

#[test]
fn any_handled_signal_ends_a_wait_for_a_file_lock() {
    let Some(t) = Two::new("rw") else { return };
    fs::write(t.first("f"), "").unwrap();
    let holder = File::open(t.first("f")).unwrap();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mut waits = perl(&t.second("f"), "flock($f, 2) || undef");
    go(&mut waits);
    assert_eq!(ended(waits), Some(EINTR));
    drop(holder);
    t.end();
}

/// The kernel names the owner of a lock by the address of the open file, and the next open file often gets the same one, while
/// the mount still sends what was written through the closed one.
#[test]
fn open_files_one_after_the_other_do_not_share_their_locks() {
    use rustix::fs::{FlockOperation, flock};
    use std::sync::atomic::{AtomicBool, Ordering};
    const ROUNDS: usize = 150;
    let Some(t) = Two::new("rw") else { return };
    for name in [t.first("first"), t.second("second")] {
        fs::write(&name, "").unwrap();
        let open = || File::options().write(true).open(&name).unwrap();
        let is_held = AtomicBool::new(false);
        let lock_and_write = |byte: u8| {
            for round in 0..ROUNDS {
                let mut file = open();
                flock(&file, FlockOperation::LockExclusive).unwrap();
                assert!(!is_held.swap(true, Ordering::SeqCst), "{name:?}, round {round}: two holders");
                file.write_all(&vec![byte; 300_000]).unwrap();
                assert!(is_held.swap(false, Ordering::SeqCst));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| lock_and_write(1));
            scope.spawn(|| lock_and_write(2));
        });
        for _ in 0..ROUNDS {
            let mut file = open();
            // The kernel sends the RELEASE of the former holder after its close(2), perhaps on another CPU.
            eventually("the lock of the former holder, which has closed the file, is gone", || {
                flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            });
            file.write_all(&vec![3; 300_000]).unwrap();
        }
    }
    t.end();
}

/// The kernel ignores a size that it asked for before the older reply to another thread which it takes over late. Programs that
/// look at the file must not make it use such a size for the next record of another one.
#[test]
fn records_at_the_end_of_a_locked_file_stay_beside_programs_that_look_at_it() {
    use rustix::fs::{FlockOperation, flock};
    use std::io::{Seek as _, SeekFrom};
    use std::sync::atomic::{AtomicBool, Ordering};
    const RECORDS: usize = 600;
    let Some(t) = Two::new("rw") else { return };
    fs::write(t.first("f"), "").unwrap();
    let ends = AtomicBool::new(false);
    let append = |path: PathBuf| {
        let mut file = File::options().write(true).open(path).unwrap();
        for _ in 0..RECORDS {
            flock(&file, FlockOperation::LockExclusive).unwrap();
            file.seek(SeekFrom::End(0)).unwrap();
            file.write_all(b"a record").unwrap();
            flock(&file, FlockOperation::Unlock).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let file = File::open(t.second("f")).unwrap();
                while !ends.load(Ordering::Relaxed) {
                    file.metadata().unwrap();
                }
            });
        }
        let writers = [t.first("f"), t.second("f")].map(|path| scope.spawn(|| append(path)));
        let ended = writers.map(|writer| writer.join().is_ok());
        ends.store(true, Ordering::Relaxed);
        assert_eq!(ended, [true; 2]);
    });
    assert_eq!(fs::metadata(t.first("f")).unwrap().len(), (2 * RECORDS * "a record".len()) as u64);
    t.end();
}

#[test]
fn allocating_and_writing_as_an_ordinary_user_takes_set_id_bits_away() {
    let Some(t) = Two::new("rw") else { return };
    // The kernel of the mount that writes must not go on with what it has in its cache, too.
    // stat(1) asks for nothing but the mode: for other attributes the kernel makes a request after a write.
    let mode_of = |name: &str| {
        [t.first(name), t.second(name)].map(|path| {
            let said = Command::new("stat").args(["-c", "%a"]).arg(path).output().unwrap().stdout;
            u32::from_str_radix(String::from_utf8(said).unwrap().trim(), 8).unwrap()
        })
    };
    let run = |args: &[&str], name: &str| {
        let mut command = Command::new(args[0]);
        assert!(command.args(&args[1..]).arg(t.second(name)).status().unwrap().success(), "{args:?}");
    };
    let user =
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "fallocate", "-l", "70000"];
    let keep_size = [&user[..], &["--keep-size"]].concat();
    let member =
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--groups", "0", "fallocate", "-l", "70000"];
    for (name, allocates, mode, left) in [
        ("by-user", &user[..], 0o6777, 0o777),
        ("by-user-keeping-size", &keep_size, 0o6777, 0o777),
        ("by-root", &user[6..], 0o6777, 0o6777),
        // Without group execute permission, members of the group keep the set-group-id bit.
        ("by-user-without-x", &user, 0o6666, 0o666),
        ("by-user-set-gid-only", &user, 0o2666, 0o666),
        ("by-member-without-x", &member, 0o6666, 0o2666),
        ("by-member-with-x", &member, 0o6676, 0o676),
        ("by-root-without-x", &user[6..], 0o6666, 0o6666),
    ] {
        fs::write(t.first(name), "x").unwrap();
        fs::set_permissions(t.first(name), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(mode_of(name), [mode; 2], "{name}");
        run(allocates, name);
        assert_eq!(mode_of(name), [left; 2], "{name}");
    }
    let dd = ["dd", "if=/dev/zero", "bs=1", "count=1", "status=none"];
    for (name, set, left) in [("w-user", &user[..6], 0o666), ("w-member", &member[..7], 0o2666)] {
        for conv in ["notrunc", "fsync"] {
            // A file that only the second mount has changed: its kernel has the attributes in its cache.
            let name = &format!("{name}-{conv}");
            fs::write(t.second(name), "x").unwrap();
            fs::set_permissions(t.second(name), fs::Permissions::from_mode(0o6666)).unwrap();
            assert_eq!(mode_of(name), [0o6666; 2], "{name}");
            let (of, conv) = (format!("of={}", t.second(name).display()), format!("conv={conv}"));
            let args: Vec<&str> = set[1..].iter().chain(&dd).copied().chain([&*of, &*conv]).collect();
            assert!(Command::new(set[0]).args(args).status().unwrap().success());
            assert_eq!(mode_of(name), [left; 2], "{name}");
        }
    }
    capabilities_end_with_a_write_by_root(&t);
    a_new_group_ends_the_set_gid_bit_of_strangers(&t);
    t.end();
}

/// The kernel does not say so with such a write: it leaves set-id bits alone.
fn capabilities_end_with_a_write_by_root(t: &Two) {
    const NAME: &str = "security.capability";
    let net_bind = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let is_left = |name: &str| {
        [t.first(name), t.second(name)].map(|path| match rustix::fs::getxattr(path, NAME, &mut [0; 64]) {
            Ok(_) => true,
            Err(Errno::NODATA) => false,
            Err(error) => panic!("{error}"),
        })
    };
    for (name, len) in [("small", 10), ("large", 100_000)] {
        fs::write(t.first(name), vec![b'x'; len]).unwrap();
        fs::set_permissions(t.first(name), fs::Permissions::from_mode(0o4755)).unwrap();
        for path in [t.first(name), t.second(name)] {
            rustix::fs::setxattr(&path, NAME, &net_bind, rustix::fs::XattrFlags::empty()).unwrap();
            assert_eq!(is_left(name), [true; 2], "{name}");
            let file = fs::OpenOptions::new().append(true).open(&path).unwrap();
            (&file).write_all(b"y").unwrap();
            assert_eq!(is_left(name), [false; 2], "{name}");
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o4755);
        }
    }
}

/// What counts is the group of the file so far.
fn a_new_group_ends_the_set_gid_bit_of_strangers(t: &Two) {
    for (groups, left) in [("1000", 0o745), ("1000,100", 0o2745)] {
        fs::write(t.first("group"), "x").unwrap();
        std::os::unix::fs::chown(t.first("group"), Some(65534), Some(100)).unwrap();
        fs::set_permissions(t.first("group"), fs::Permissions::from_mode(0o2745)).unwrap();
        let mut chgrp = Command::new("setpriv");
        chgrp.args(["--reuid", "65534", "--regid", "65534", "--groups", groups, "chgrp", "1000"]);
        assert!(chgrp.arg(t.second("group")).status().unwrap().success());
        let mode = fs::metadata(t.first("group")).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, left, "groups {groups}");
    }
}

/// Access, modification and change time.
fn times(path: &Path) -> [(i64, i64); 3] {
    let stat = fs::metadata(path).unwrap();
    [(stat.atime(), stat.atime_nsec()), (stat.mtime(), stat.mtime_nsec()), (stat.ctime(), stat.ctime_nsec())]
}
/// Reads a file or lists a directory; which of the three times that has changed.
fn read(path: &Path) -> [bool; 3] {
    let before = times(path);
    if path.is_dir() {
        assert!(fs::read_dir(path).unwrap().count() > 0);
    } else {
        assert!(!fs::read(path).unwrap().is_empty());
    }
    let after = times(path);
    std::array::from_fn(|i| before[i] != after[i])
}
const NOTHING: [bool; 3] = [false; 3];
const ATIME: [bool; 3] = [true, false, false];

#[test]
fn reads_change_access_times_as_the_mount_options_say() {
    let Some(mut t) = Two::new("relatime") else { return };
    let address = t.up.address();
    let mounted_with = |t: Two, options: &str| {
        t.second.stop();
        let dir = t.m.path("b");
        let second = t.m.start(&["mount", &address, dir.to_str().unwrap(), "-o", options], "next: ");
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table.lines().find(|l| l.contains(&*dir.to_string_lossy())).unwrap().to_owned();
        for word in options.split(',').filter(|w| *w != "strictatime") {
            assert!(line.contains(word), "{word} is not in {line}");
        }
        Two { second, ..t }
    };
    let (dir, file) = (t.second("d"), t.second("d/f"));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, "aaa").unwrap();

    // relatime: once after each change.
    assert_eq!((read(&file), read(&file)), (ATIME, NOTHING));
    assert_eq!((read(&dir), read(&dir)), (ATIME, NOTHING));
    fs::write(&file, "bbb").unwrap();
    assert_eq!((read(&file), read(&file)), (ATIME, NOTHING));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!((read(&file), read(&file)), (ATIME, NOTHING));
    fs::write(t.first("d/f"), "by another mount").unwrap();
    assert_eq!((read(&file), read(&file)), (ATIME, NOTHING));
    let set = ["touch", "-a", "-d", "2001-02-03"];
    assert!(Command::new(set[0]).args(&set[1..]).arg(&file).status().unwrap().success());
    assert_eq!(times(&file)[0].0 / 86400, 11356);
    assert_eq!(read(&file), ATIME);
    for path in [file.clone(), t.first("d/f")] {
        assert!(Command::new("touch").arg("-a").arg(&path).status().unwrap().success());
        let [atime, _, ctime] = times(&file);
        assert!(atime <= ctime, "{atime:?} {ctime:?}");
        assert_eq!((read(&file), read(&file)), (ATIME, NOTHING), "touch -a {}", path.display());
    }

    // The close tells the MDT, and a mount that ends forgets nothing.
    let (seen, seen_dir) = (times(&file)[0], times(&dir)[0]);
    eventually("the close has told the MDT", || times(&t.first("d/f"))[0] == seen);
    let mut held = File::open(&file).unwrap();
    fs::write(&file, "again").unwrap();
    held.read_to_string(&mut String::new()).unwrap();
    let seen_while_open = times(&file)[0];
    assert!(seen_while_open > seen);
    drop(held);
    t = mounted_with(t, "nodiratime");
    assert_eq!((times(&file)[0], times(&dir)[0]), (seen_while_open, seen_dir));

    fs::write(t.second("d/new"), "x").unwrap();
    assert_eq!((read(&t.second("d/new")), read(&dir)), (ATIME, NOTHING));
    t = mounted_with(t, "noatime");
    fs::write(&file, "ccc").unwrap();
    assert_eq!((read(&file), read(&dir)), (NOTHING, NOTHING));
    t = mounted_with(t, "strictatime,lazytime");
    assert_eq!((read(&file), read(&file), read(&dir), read(&dir)), (ATIME, ATIME, ATIME, ATIME));
    let quiet = "sysopen(G, $ARGV[0], 01000000) && sysread(G, my $text, 9)";
    let before = times(&file);
    let mut noatime = perl(&file, quiet);
    go(&mut noatime);
    assert_eq!((ended(noatime), times(&file)), (Some(0), before), "O_NOATIME");
    let before = times(&dir);
    let flags = OFlags::DIRECTORY | OFlags::NOATIME | OFlags::CLOEXEC;
    let listing = Dir::new(rustix::fs::open(&dir, flags, Mode::empty()).unwrap()).unwrap();
    assert!(listing.count() > 2);
    assert_eq!(times(&dir), before, "O_NOATIME");
    t = mounted_with(t, "ro,strictatime");
    assert_eq!((read(&file), read(&dir)), (NOTHING, NOTHING));
    t.end();
}

/// Appends calls of `bytes` bytes through two mounts at once, from buffers that begin in the middle of a page, or from several.
/// Counts the calls that are not in one piece.
fn torn(t: &Two, name: &str, bytes: usize, segments: usize) -> usize {
    const CALLS: usize = 15;
    fs::write(t.first(name), "").unwrap();
    std::thread::scope(|scope| {
        for (path, of) in [(t.first(name), 0u8), (t.second(name), 128)] {
            scope.spawn(move || {
                let mut file = File::options().append(true).open(path).unwrap();
                for call in 0..CALLS as u8 {
                    let buffer = vec![of + call; bytes + 4096];
                    let skipped = (4096 - buffer.as_ptr() as usize % 4096 + 100) % 4096;
                    let buffer = &buffer[skipped..][..bytes];
                    let parts: Vec<_> =
                        buffer.chunks(bytes.div_ceil(segments)).map(std::io::IoSlice::new).collect();
                    let written = match segments {
                        1 => file.write(buffer),
                        _ => file.write_vectored(&parts),
                    };
                    assert_eq!(written.unwrap(), bytes);
                }
            });
        }
    });
    let found = fs::read(t.first(name)).unwrap();
    assert_eq!(found.len(), 2 * CALLS * bytes);
    found.chunks(bytes).filter(|call| call.iter().any(|b| *b != call[0])).count()
}

#[test]
fn appends_of_any_length_stay_together_between_mounts() {
    let Some(t) = Two::new("rw") else { return };
    const MIB: usize = 1 << 20;
    assert_eq!(torn(&t, "one", MIB, 1), 0);
    assert_eq!(torn(&t, "four", 4 * MIB, 1), 0);
    assert_eq!(torn(&t, "odd", 3 * MIB + 777, 1), 0);
    assert_eq!(torn(&t, "vectors", 3 * MIB + 777, 5), 0);
    assert!(t.m.nacre(&["lfs", "setstripe", "-c", "2", "-S", "64K", t.first("wide").to_str().unwrap()]).ok);
    assert_eq!(torn(&t, "wide", 2 * MIB + 5, 1), 0);
    t.end();
}

/// Data, as `SEEK_DATA` and `SEEK_HOLE` show it.
fn extents(file: &File) -> Vec<std::ops::Range<u64>> {
    use rustix::fs::{SeekFrom, seek};
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        match seek(file, SeekFrom::Data(at)) {
            Ok(start) => {
                at = seek(file, SeekFrom::Hole(start)).unwrap();
                found.push(start..at);
            }
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::NXIO);
                return found;
            }
        }
    }
}

#[test]
fn holes_are_punched_found_and_freed_on_every_mount() {
    use rustix::fs::{FallocateFlags as Flags, fallocate};
    let Some(t) = Two::new("rw") else { return };
    const KIB: u64 = 1 << 10;
    for stripes in ["1", "2"] {
        let (name, bytes) = (format!("holes{stripes}"), 1000 * KIB);
        assert!(
            t.m.nacre(&["lfs", "setstripe", "-c", stripes, "-S", "64K", t.first(&name).to_str().unwrap()]).ok
        );
        let open = |path| File::options().read(true).write(true).open(path).unwrap();
        let (one, two) = (open(t.first(&name)), open(t.second(&name)));
        let mut model: Vec<u8> = (0..bytes).map(|at| (at / 1000 + 1) as u8).collect();
        std::os::unix::fs::FileExt::write_all_at(&one, &model, 0).unwrap();
        assert_eq!(extents(&two).first(), Some(&(0..bytes)));
        let blocks = two.metadata().unwrap().blocks();
        // From inside a block to inside a block, over several stripes.
        let hole = 100 * KIB + 5..500 * KIB + 7;
        let punch = Flags::PUNCH_HOLE | Flags::KEEP_SIZE;
        fallocate(&two, punch, hole.start, hole.end - hole.start).unwrap();
        model[hole.start as usize..hole.end as usize].fill(0);
        assert_eq!(fs::read(t.first(&name)).unwrap(), model);
        assert_eq!(extents(&one), [0..104 * KIB, 500 * KIB..bytes]);
        assert_eq!(blocks - one.metadata().unwrap().blocks(), (500 - 104) * 2, "its space is free");
        // Zeros keep their space, and may extend the file.
        fallocate(&one, Flags::ZERO_RANGE, 900 * KIB, 200 * KIB).unwrap();
        model.resize(1100 * KIB as usize, 0);
        model[900 * KIB as usize..].fill(0);
        assert_eq!(fs::read(t.second(&name)).unwrap(), model);
        assert_eq!(extents(&two), [0..104 * KIB, 500 * KIB..900 * KIB]);
        assert_eq!(two.metadata().unwrap().blocks(), (1100 - (500 - 104)) * 2);
        // All of it: nothing is left but the size.
        fallocate(&one, punch, 0, 2000 * KIB).unwrap();
        let left = two.metadata().unwrap();
        assert_eq!((extents(&two), left.len(), left.blocks()), (vec![], 1100 * KIB, 0));
        assert_eq!(fallocate(&one, Flags::COLLAPSE_RANGE, 0, 4096), Err(rustix::io::Errno::OPNOTSUPP));
        assert_eq!(fallocate(&one, punch, 0, 0), Err(rustix::io::Errno::INVAL));
        // A copy by programs that look for holes, and by copy_file_range(2).
        fs::write(t.first("source"), [vec![1; 70_000], vec![0; 300_000], vec![2; 5]].concat()).unwrap();
        fallocate(open(t.first("source")), punch, 70_000, 300_000).unwrap();
        let copied =
            Command::new("cp").args(["--sparse=auto", "source", "copy"]).current_dir(t.m.mount()).status();
        assert!(copied.unwrap().success());
        assert_eq!(fs::read(t.second("copy")).unwrap(), fs::read(t.first("source")).unwrap());
        assert!(fs::metadata(t.second("copy")).unwrap().blocks() < 200, "the hole is copied as a hole");
    }
    t.end();
}

#[test]
fn files_are_made_without_a_name_and_named_later() {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
    let Some(t) = Two::new("rw") else { return };
    let dir = t.first("dir");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o2777)).unwrap();
    std::os::unix::fs::chown(&dir, None, Some(77)).unwrap();
    let listed = || fs::read_dir(t.second("dir")).unwrap().map(|entry| entry.unwrap().file_name());
    let unnamed = |flags| {
        let file = File::from(
            open(&dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::from(0o640)).unwrap(),
        );
        std::os::unix::fs::FileExt::write_all_at(&file, b"contents", 0).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((meta.nlink(), meta.len(), meta.mode() & 0o7777, meta.gid()), (0, 8, 0o640, 77));
        file
    };
    let link = |file: &File, name: &str| {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        linkat(CWD, path, CWD, dir.join(name), AtFlags::SYMLINK_FOLLOW)
    };
    let file = unnamed(OFlags::empty());
    assert_eq!(listed().count(), 0);
    link(&file, "named").unwrap();
    assert_eq!(fs::read(t.second("dir/named")).unwrap(), b"contents");
    assert_eq!((file.metadata().unwrap().nlink(), listed().collect()), (1, vec!["named".into()]));
    fs::remove_file(t.second("dir/named")).unwrap();
    assert_eq!(link(&file, "again"), Err(rustix::io::Errno::NOENT), "its only name was removed");
    assert_eq!(link(&unnamed(OFlags::EXCL), "never"), Err(rustix::io::Errno::NOENT));
    drop(file);
    fs::remove_dir(t.second("dir")).unwrap();
    t.end();
}

/// Containers keep their changes in an upper layer. The kernel demands O_TMPFILE and RENAME_WHITEOUT of a file system that
/// it cannot trust to be local.
#[test]
fn overlayfs_keeps_its_upper_layer_on_a_mount() {
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    if !known.lines().any(|line| line.split_whitespace().last() == Some("overlay")) {
        return eprintln!("skipped: this kernel has no overlayfs");
    }
    let Some(t) = Two::new("rw") else { return };
    for name in ["lower/dir", "upper", "work"] {
        fs::create_dir_all(t.first(name)).unwrap();
    }
    for name in ["moved", "removed", "dir/changed"] {
        fs::write(t.first("lower").join(name), name).unwrap();
    }
    let merged = t.m.made("merged");
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| t.first(name).display().to_string());
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let sh = |args: &[&str]| assert!(Command::new(args[0]).args(&args[1..]).status().unwrap().success());
    let mount = || sh(&["mount", "-t", "overlay", "overlay", "-o", &layers, merged.to_str().unwrap()]);
    mount();
    fs::rename(merged.join("moved"), merged.join("dir/new")).unwrap();
    fs::remove_file(merged.join("removed")).unwrap();
    File::options().append(true).open(merged.join("dir/changed")).unwrap().write_all(b" twice").unwrap();
    for _ in 0..2 {
        let names = fs::read_dir(&merged).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["dir"]);
        assert_eq!(fs::read(merged.join("dir/new")).unwrap(), b"moved");
        assert_eq!(fs::read(merged.join("dir/changed")).unwrap(), b"dir/changed twice");
        sh(&["umount", merged.to_str().unwrap()]);
        mount();
    }
    sh(&["umount", merged.to_str().unwrap()]);
    assert_eq!(fs::metadata(t.second("upper/moved")).unwrap().rdev(), 0);
    assert_eq!(fs::read(t.second("lower/moved")).unwrap(), b"moved");
    t.end();
}
