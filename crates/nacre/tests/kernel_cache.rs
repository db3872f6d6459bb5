//! Two mounts of one file system, whose kernels use names and attributes without asking: what one mount changes, the other
//! shows at once. Needs root and /dev/fuse; without them the tests say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::{Machine, Running, eventually};
use nacre_testkit::wait::{WAIT_TIMEOUT, holds_within};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::process::Signal;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A file system with two mounts: `a` in the process of the servers, `b` in one of its own.
struct Pair {
    m: Machine,
    up: Running,
    second: Running,
}
impl Pair {
    fn new() -> Option<Self> {
        Self::with(&[], &[])
    }
    /// With more options of `up` and of `mount`.
    fn with(up: &[&str], mount: &[&str]) -> Option<Self> {
        let m = Machine::new()?;
        let up = m.up_with(up);
        let (address, dir) = (up.address(), m.path("b"));
        let args: Vec<&str> =
            ["mount"].iter().chain(mount).copied().chain([&*address, dir.to_str().unwrap()]).collect();
        let second = m.start(&args, "next: ");
        Some(Self { m, up, second })
    }
    fn a(&self, name: &str) -> PathBuf {
        self.m.mount().join(name)
    }
    fn b(&self, name: &str) -> PathBuf {
        self.m.path("b").join(name)
    }
    /// A parameter of mount `b`.
    fn of_b(&self, param: &str) -> String {
        let mut text = [0; 200];
        let len = getxattr(self.m.path("b"), "nacre.mount", &mut text).unwrap();
        let name = format!("llite.{}.{param}", std::str::from_utf8(&text[..len]).unwrap());
        self.m.good(&["lctl", "get_param", "-n", &name])
    }
    /// Requests of the kernel of `b` that ask for names or attributes.
    fn questions(&self) -> u64 {
        let text = self.of_b("fuse_requests");
        let of = ["lookup", "getattr", "statx", "readdir", "readdirplus"];
        let count = |line: &str| {
            let mut words = line.split_whitespace();
            of.contains(&words.next()?).then(|| words.next()?.parse::<u64>().ok())?
        };
        text.lines().filter_map(count).sum()
    }
}

#[test]
fn a_warm_tree_costs_no_request() {
    let Some(p) = Pair::new() else { return };
    fs::create_dir(p.a("d")).unwrap();
    let files: Vec<String> = (0..20).map(|n| format!("d/f{n}")).collect();
    for file in &files {
        fs::write(p.a(file), "text").unwrap();
    }
    let stat_all = || {
        for file in &files {
            assert_eq!(fs::metadata(p.b(file)).unwrap().len(), 4);
        }
        assert!(!p.b("d/none").exists());
    };
    stat_all();
    stat_all();
    let before = p.questions();
    (0..100).for_each(|_| stat_all());
    let asked = p.questions() - before;
    // A validity that ends during the test costs a request for each name once.
    assert!(asked < 100, "{asked} requests for 2100 questions\n{}", p.of_b("fuse_requests"));
}

/// What a user may do with the directory of the mount, through its descriptor: its path leads through closed directories.
fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        let uid = rustix::fs::Uid::from_raw(uid);
        // Of this thread only.
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
    };
    std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            become_user();
            work()
        });
        user.join().unwrap()
    })
}

/// The kernel compares a caller with the owner that it remembers; another mount has changed the owner.
#[test]
fn a_file_belongs_to_its_new_owner_on_every_mount_at_once() {
    use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, chmodat, unlinkat, utimensat};
    use rustix::io::Errno;
    const USER: u32 = 1001;
    let Some(p) = Pair::new() else { return };
    let sticky = p.a("sticky");
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, Permissions::from_mode(0o1777)).unwrap();
    let dir = File::open(p.b("sticky")).unwrap();
    let set_mode = || chmodat(&dir, "f", Mode::from_raw_mode(0o600), AtFlags::empty());
    let set_times = || {
        let old = Timespec { tv_sec: 1, tv_nsec: 0 };
        utimensat(&dir, "f", &Timestamps { last_access: old, last_modification: old }, AtFlags::empty())
    };
    let (a, b) = (sticky.join("f"), p.b("sticky/f"));
    for round in 0..10 {
        fs::write(&a, "text").unwrap();
        assert_eq!(fs::metadata(&b).unwrap().uid(), 0);
        std::os::unix::fs::chown(&a, Some(USER), None).unwrap();
        assert_eq!(as_user(USER, set_mode), Ok(()), "round {round}");
        std::os::unix::fs::chown(&a, Some(0), None).unwrap();
        assert_eq!(as_user(USER, set_times), Err(Errno::PERM), "round {round}");
        assert_eq!(as_user(USER, || unlinkat(&dir, "f", AtFlags::empty())), Err(Errno::PERM));
        std::os::unix::fs::chown(&a, Some(USER), None).unwrap();
        assert_eq!(as_user(USER, set_times), Ok(()), "round {round}");
        assert_eq!(as_user(USER, || unlinkat(&dir, "f", AtFlags::empty())), Ok(()));
    }
    // A program that works in a directory whose mode changes is not cut off from it.
    let mut shell = Command::new("sh");
    shell.args(["-c", "read line; pwd -P"]).current_dir(p.b("sticky"));
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    fs::set_permissions(&sticky, Permissions::from_mode(0o755)).unwrap();
    shell.stdin.take().unwrap().write_all(b"\n").unwrap();
    let said = shell.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim_end(), p.b("sticky").to_str().unwrap());
}

/// The kernel keeps access control lists of an inode, and uses them for each of its names.
#[test]
fn an_access_control_list_counts_for_every_name_on_every_mount_at_once() {
    use rustix::fs::{Mode, OFlags, openat};
    use rustix::io::Errno;
    const USER: u32 = 1002;
    let Some(p) = Pair::new() else { return };
    let dir = File::open(p.m.path("b")).unwrap();
    let opens = |name: &str| as_user(USER, || openat(&dir, name, OFlags::WRONLY, Mode::empty()).map(drop));
    for file in 0..10 {
        let names = [format!("f{file}"), format!("l{file}")];
        fs::write(p.a(&names[0]), "").unwrap();
        fs::hard_link(p.a(&names[0]), p.a(&names[1])).unwrap();
        for round in 0..6 {
            for (step, (rights, result)) in
                [("rwx", Ok(())), ("---", Err(Errno::ACCESS))].into_iter().enumerate()
            {
                let mut set = Command::new("setfacl");
                set.args(["-m", &format!("u:{USER}:{rights}")]).arg(p.a(&names[1]));
                assert!(set.status().unwrap().success());
                let name = &names[(file + round / 2 + step) % 2];
                assert_eq!(opens(name), result, "{name}, round {round}, u:{USER}:{rights}");
            }
        }
    }
}

/// The kernel serves a listing that it has, while what it was told of the inodes is valid; both mounts change it in between.
/// The kernel does nothing, with success, if it finds one inode under both names of a rename.
#[test]
fn one_of_two_mounts_that_rename_a_file_to_the_same_name_succeeds() {
    const ROUNDS: usize = 400;
    let Some(p) = Pair::new() else { return };
    for dir in ["new", "taken"] {
        fs::create_dir(p.a(dir)).unwrap();
    }
    for round in 0..ROUNDS {
        let (from, to) = (format!("new/{round}"), format!("taken/{round}"));
        let makers = [p.a(&from), p.b(&from)];
        fs::write(&makers[round % 2], from.as_bytes()).unwrap();
        let begin = std::sync::Barrier::new(2);
        let take = |from: PathBuf, to: PathBuf| {
            begin.wait();
            fs::rename(from, to).map_err(|error| error.kind())
        };
        let results = std::thread::scope(|scope| {
            let a = scope.spawn(|| take(p.a(&from), p.a(&to)));
            let b = scope.spawn(|| take(p.b(&from), p.b(&to)));
            [a.join().unwrap(), b.join().unwrap()]
        });
        let missed = results.iter().find_map(|result| result.err());
        assert!(results.iter().any(Result::is_ok), "round {round}: {results:?}");
        assert_eq!(missed, Some(std::io::ErrorKind::NotFound), "round {round}");
        for to in [p.a(&to), p.b(&to)] {
            assert_eq!(fs::read(&to).unwrap(), from.as_bytes());
        }
        fs::set_permissions([p.a(&to), p.b(&to)][round % 2].as_path(), Permissions::from_mode(0o640))
            .unwrap();
        assert_eq!(fs::metadata(p.a(&to)).unwrap().mode() & 0o777, 0o640);
        fs::remove_file([p.a(&to), p.b(&to)][round / 2 % 2].as_path()).unwrap();
    }
}

#[test]
fn a_warm_listing_costs_no_request_for_names() {
    let Some(p) = Pair::new() else { return };
    fs::create_dir(p.a("d")).unwrap();
    for n in 0..50 {
        fs::write(p.a(&format!("d/f{n}")), "text").unwrap();
    }
    let listed = || {
        let count = |text: &str| {
            let of = text.lines().filter(|line| line.starts_with("readdir"));
            of.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>()
        };
        count(&p.of_b("fuse_requests"))
    };
    // As ls -l does.
    let list = || {
        let entries = fs::read_dir(p.b("d")).unwrap().map(Result::unwrap);
        entries.inspect(|entry| assert_eq!(entry.metadata().unwrap().len(), 4)).count()
    };
    (0..4).for_each(|_| assert_eq!(list(), 50));
    let before = listed();
    (0..200).for_each(|_| assert_eq!(list(), 50));
    let asked = listed() - before;
    assert!(asked < 100, "{asked} requests for 200 listings\n{}", p.of_b("fuse_requests"));
    for round in 0..20 {
        let (here, there) =
            if round % 2 == 0 { (p.a("d/new"), p.b("d/new")) } else { (p.b("d/new"), p.a("d/new")) };
        fs::write(here, "text").unwrap();
        assert_eq!((list(), list()), (51, 51), "round {round}");
        fs::remove_file(there).unwrap();
        assert_eq!((list(), list()), (50, 50), "round {round}");
    }
}

/// Changes made by one mount, and what the other must show directly afterwards.
fn changes_are_seen_at_once(p: &Pair, here: impl Fn(&str) -> PathBuf, there: impl Fn(&str) -> PathBuf) {
    const ROUNDS: u32 = 20;
    fs::create_dir(here("d")).unwrap();
    fs::write(here("d/f"), "").unwrap();
    let names = || {
        let mut names: Vec<String> = fs::read_dir(there("d"))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    for round in 1..=ROUNDS {
        let shown = || fs::metadata(there("d/f")).unwrap();
        assert_eq!(shown().nlink(), 1);
        fs::set_permissions(here("d/f"), Permissions::from_mode(0o600 + round % 8)).unwrap();
        assert_eq!(shown().mode() & 0o777, 0o600 + round % 8, "chmod, round {round}");
        File::options().append(true).open(here("d/f")).unwrap().write_all(b"more").unwrap();
        assert_eq!(shown().len(), u64::from(round) * 4, "append, round {round}");
        setxattr(here("d/f"), "user.round", round.to_string().as_bytes(), XattrFlags::empty()).unwrap();
        let mut text = [0; 20];
        let len = getxattr(there("d/f"), "user.round", &mut text).unwrap();
        assert_eq!(&text[..len], round.to_string().as_bytes(), "xattr, round {round}");
        assert!(!there("d/new").exists());
        fs::hard_link(here("d/f"), here("d/new")).unwrap();
        assert_eq!(fs::metadata(there("d/new")).unwrap().nlink(), 2, "link, round {round}");
        assert_eq!((shown().nlink(), names()), (2, vec!["f".to_owned(), "new".to_owned()]));
        fs::remove_file(here("d/new")).unwrap();
        assert!(!there("d/new").exists(), "unlink, round {round}");
        assert_eq!((shown().nlink(), names().len()), (1, 1));
        fs::create_dir(here("d/sub")).unwrap();
        assert_eq!(fs::metadata(there("d")).unwrap().nlink(), 3, "mkdir, round {round}");
        assert!(fs::metadata(there("d/sub")).unwrap().is_dir());
        assert!(!there("d/sub/moved").exists());
        fs::rename(here("d/f"), here("d/sub/moved")).unwrap();
        assert!(!there("d/f").exists(), "rename, round {round}");
        assert_eq!(fs::metadata(there("d/sub/moved")).unwrap().len(), u64::from(round) * 4);
        fs::rename(here("d/sub"), here("d/other")).unwrap();
        assert!(
            !there("d/sub/moved").exists() && there("d/other/moved").exists(),
            "directory, round {round}"
        );
        fs::rename(here("d/other/moved"), here("d/f")).unwrap();
        assert!(there("d/f").exists() && !there("d/other/moved").exists());
        fs::remove_dir(here("d/other")).unwrap();
        assert_eq!((there("d/other").exists(), fs::metadata(there("d")).unwrap().nlink()), (false, 2));
        // The kernel moves its entry of a name that it may use to the new name.
        assert!(fs::metadata(there("d/f")).unwrap().is_file());
        fs::rename(there("d/f"), there("d/moved")).unwrap();
        fs::rename(here("d/moved"), here("d/f")).unwrap();
        assert!(!there("d/moved").exists() && there("d/f").exists(), "rename by both, round {round}");
        symlink(format!("target-{round}"), here("d/s")).unwrap();
        assert_eq!(fs::read_link(there("d/s")).unwrap(), Path::new(&format!("target-{round}")));
        fs::remove_file(here("d/s")).unwrap();
        assert!(fs::read_link(there("d/s")).is_err());
    }
    fs::remove_dir_all(here("d")).unwrap();
    assert!(!there("d/f").exists() && !there("d").exists());
    eprintln!("{}", p.of_b("kernel_cache"));
}

#[test]
fn changes_of_one_mount_are_seen_by_the_other_at_once() {
    let Some(p) = Pair::new() else { return };
    changes_are_seen_at_once(&p, |name| p.a(name), |name| p.b(name));
    changes_are_seen_at_once(&p, |name| p.b(name), |name| p.a(name));
}

#[test]
fn changes_are_seen_at_once_without_io_uring() {
    let Some(p) = Pair::with(&["--no-uring"], &["-o", "nouring"]) else { return };
    changes_are_seen_at_once(&p, |name| p.a(name), |name| p.b(name));
    changes_are_seen_at_once(&p, |name| p.b(name), |name| p.a(name));
}

#[test]
fn the_kernel_of_a_stopped_mount_shows_nothing_that_was_changed_since() {
    let Some(p) = Pair::new() else { return };
    fs::write(p.a("f"), "old").unwrap();
    let shown = p.b("f");
    assert_eq!(fs::metadata(&shown).unwrap().len(), 3);
    p.second.signal(Signal::STOP);
    // Waits until the mount is evicted.
    fs::write(p.a("f"), "changed").unwrap();
    let stat = std::thread::spawn(move || fs::metadata(shown).unwrap().len());
    p.second.signal(Signal::CONT);
    assert_eq!(stat.join().unwrap(), 7);
    eventually("the mount replies again", || fs::metadata(p.b("f")).is_ok_and(|f| f.len() == 7));
}

/// Reads of `b` that came as requests.
fn reads(p: &Pair) -> u64 {
    let text = p.of_b("fuse_requests");
    let line = text.lines().find_map(|line| line.strip_prefix("read "));
    line.map_or(0, |rest| rest.split_whitespace().next().unwrap().parse().unwrap())
}
fn first_byte(file: &File) -> u8 {
    let mut bytes = [0; 5000];
    assert_eq!(file.read_at(&mut bytes, 3000).unwrap(), 5000);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one write, not halves of two");
    bytes[0]
}

/// A handle of mount `b` whose pages its kernel keeps. Close(2) does not wait for the kernel's release, so that a writer's
/// file may still be open for a moment; a handle of that moment goes without pages.
fn cached(p: &Pair, name: &str) -> File {
    let mut kept = None;
    eventually("a handle with pages", || {
        let file = File::open(p.b(name)).unwrap();
        first_byte(&file);
        let before = reads(p);
        first_byte(&file);
        kept = (reads(p) == before).then_some(file);
        kept.is_some()
    });
    kept.unwrap()
}

#[test]
fn pages_are_kept_while_nobody_writes_and_dropped_before_somebody_does() {
    let Some(p) = Pair::new() else { return };
    fs::write(p.a("f"), [1; 10_000]).unwrap();
    let early = cached(&p, "f");
    let before = reads(&p);
    for _ in 0..3 {
        assert_eq!((first_byte(&early), first_byte(&File::open(p.b("f")).unwrap())), (1, 1));
    }
    assert_eq!(reads(&p), before, "the pages are there");
    for mount in [p.a("f"), p.b("f")] {
        let writer = File::options().write(true).open(mount).unwrap();
        for byte in 2..50 {
            writer.write_all_at(&[byte; 10_000], 0).unwrap();
            assert_eq!((first_byte(&early), first_byte(&File::open(p.b("f")).unwrap())), (byte, byte));
            assert_eq!(
                fs::metadata(p.b("f")).unwrap().modified().unwrap(),
                early.metadata().unwrap().modified().unwrap()
            );
        }
        drop(writer);
        fs::write(p.a("f"), [50; 20_000]).unwrap();
        assert_eq!((first_byte(&early), early.metadata().unwrap().len()), (50, 20_000));
        File::options().write(true).open(p.a("f")).unwrap().set_len(8000).unwrap();
        assert_eq!((first_byte(&early), fs::read(p.b("f")).unwrap().len()), (50, 8000));
        fs::write(p.a("f"), [1; 10_000]).unwrap();
        assert_eq!(first_byte(&early), 1);
    }
    drop(early);
    eventually("the file is cached again", || {
        let before = reads(&p);
        (0..2).for_each(|_| assert_eq!(first_byte(&File::open(p.b("f")).unwrap()), 1));
        reads(&p) == before
    });
}

/// The kernel copies from its pages, and does not ask before it uses them, as it does for a read.
#[test]
fn a_copy_by_the_kernel_has_what_another_mount_has_written() {
    let Some(p) = Pair::new() else { return };
    fs::write(p.a("f"), [1; 10_000]).unwrap();
    let early = cached(&p, "f");
    let copy = File::options().read(true).write(true).create(true).truncate(true).open(p.b("copy")).unwrap();
    let writer = File::options().write(true).open(p.a("f")).unwrap();
    // This one is direct, but the kernel copies through pages all the same.
    let late = File::open(p.b("f")).unwrap();
    let copies_are_new = |source: &File| {
        for byte in 2..50 {
            writer.write_all_at(&[byte; 10_000], 0).unwrap();
            let copied = rustix::fs::copy_file_range(source, Some(&mut 0), &copy, Some(&mut 0), 10_000);
            assert_eq!((copied, first_byte(&copy)), (Ok(10_000), byte));
        }
    };
    copies_are_new(&early);
    copies_are_new(&late);
    drop(early);
    copies_are_new(&late);
    // Within one file.
    let copied = rustix::fs::copy_file_range(&copy, Some(&mut 0), &copy, Some(&mut 20_000), 10_000);
    assert_eq!((copied, copy.metadata().unwrap().len()), (Ok(10_000), 30_000));
}

/// The kernel asks when the validity of the attributes has ended, which is before the lease of the mount ends.
#[test]
fn a_stopped_mount_shows_no_page_that_is_older_than_another_mounts_write() {
    let Some(p) = Pair::new() else { return };
    fs::write(p.a("f"), [1; 10_000]).unwrap();
    let file = cached(&p, "f");
    assert_eq!(first_byte(&file), 1);
    let (start, written) = (Instant::now(), std::sync::OnceLock::new());
    p.second.signal(Signal::STOP);
    let (early, late) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut early = 0;
            loop {
                let begun = start.elapsed();
                if first_byte(&file) != 1 {
                    return (early, written.get().is_some());
                }
                assert!(written.get().is_none_or(|written| begun < *written), "an old page after the write");
                early += 1;
            }
        });
        fs::write(p.a("f"), [2; 10_000]).unwrap();
        written.set(start.elapsed()).unwrap();
        let until = Instant::now() + Duration::from_secs(1);
        eventually("the reader had its time", || Instant::now() >= until);
        p.second.signal(Signal::CONT);
        reader.join().unwrap()
    });
    assert!(early > 0 && late, "{early} reads needed no request of the stopped mount");
}

/// Threads of another process, stopped until it ends.
struct Stopped(Vec<Pid>);
impl Stopped {
    fn new(threads: Vec<Pid>) -> Self {
        for thread in &threads {
            ptrace::seize(*thread, ptrace::Options::empty()).unwrap();
            ptrace::interrupt(*thread).unwrap();
            waitpid(*thread, Some(WaitPidFlag::__WALL)).unwrap();
        }
        Self(threads)
    }
    /// To be called until the process has ended: its parent does not see the end before.
    fn reap(&self) {
        for thread in &self.0 {
            let _ended = waitpid(*thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
        }
    }
}
impl Drop for Stopped {
    fn drop(&mut self) {
        for thread in &self.0 {
            let _gone = ptrace::detach(*thread, None);
        }
    }
}

/// The threads of a process whose names begin with `name`.
fn threads(pid: u32, name: &str) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    // A thread may end meanwhile.
    let named =
        tasks.filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name)));
    named.map(|task| Pid::from_raw(task.file_name().unwrap().to_str().unwrap().parse().unwrap())).collect()
}
fn waits_in(task: &str) -> String {
    fs::read_to_string(format!("/proc/{task}/wchan")).unwrap_or_default()
}

/// A thread that waits for a lock inside the kernel keeps the files and the memory of its killed process, its rings among
/// them; a request that the kernel had meant for a ring must end nevertheless, because it may be the one with the lock.
/// Only with io_uring.
#[test]
fn a_killed_process_ends_although_its_notification_waits_behind_a_request_that_it_never_saw() {
    let Some(mut p) = Pair::new() else { return };
    let pid = p.up.pid();
    if threads(pid, "ring-").is_empty() {
        eprintln!("skipped: needs io_uring for FUSE");
        return;
    }
    fs::create_dir(p.a("d")).unwrap();
    File::create(p.a("d/f")).unwrap();
    for path in [p.a("d/f"), p.b("d/f"), p.a("d/f")] {
        fs::metadata(path).unwrap();
    }
    let sleeps = |thread: &Pid| waits_in(&format!("{pid}/task/{thread}")).contains("cqring_wait");
    // One that is stopped in the middle of its work could have a lock of the process.
    eventually("the rings are idle", || threads(pid, "ring-").iter().all(sleeps));
    // Nobody takes the requests of `a`: this one has the kernel's lock of the directory.
    let rings = Stopped::new(threads(pid, "ring-"));
    let mut mkdir = Command::new("mkdir").arg(p.a("d/new")).spawn().unwrap();
    eventually("the request waits", || waits_in(&mkdir.id().to_string()).contains("request_wait"));
    let mut rm = Command::new("rm").arg(p.b("d/f")).spawn().unwrap();
    let waits = |thread: &Pid| waits_in(&format!("{pid}/task/{thread}")).contains("inval_entry");
    eventually("the notification waits for the lock", || threads(pid, "fuse-notify-").iter().any(waits));
    p.up.signal(Signal::KILL);
    let has_ended = holds_within(WAIT_TIMEOUT, || {
        rings.reap();
        !p.up.is_running()
    });
    if !has_ended {
        // Dropping it would wait for the process.
        std::mem::forget(p);
        panic!("the killed process does not end");
    }
    assert!(!mkdir.wait().unwrap().success());
    let again = p.m.up();
    assert!(rm.wait().unwrap().success());
    assert!(!p.a("d/f").exists());
    again.stop();
}
