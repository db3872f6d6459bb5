//! What the kernel may use without asking, and no longer: the cases, a module per transport.

use crate::common::{self, served::Served};
use nacre_client::{Stale, Validity};
use nacre_fuse::abi::op;
use nacre_types::Fid;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Whether this module is the one for io_uring.
fn rings() -> bool {
    module_path!().ends_with("rings")
}

fn served() -> Option<Served> {
    Served::new(rings())
}

const LONG: Duration = Duration::from_secs(60);

/// A mount whose replies are valid for `validity`.
fn caching(validity: Duration) -> Option<Served> {
    let served = served()?;
    served.solo().ask(move |fs| fs.validity.set(Validity { entry: validity, attr: validity }));
    Some(served)
}

fn name(parent: Fid, name: &str) -> Stale {
    Stale::Name { parent, name: name.to_owned().into(), child: None }
}

#[test]
fn what_is_valid_is_asked_once() {
    let Some(m) = caching(LONG) else { return };
    std::fs::write(m.at("f"), "text").unwrap();
    std::os::unix::fs::symlink("target", m.at("s")).unwrap();
    let stat = || {
        assert_eq!(std::fs::metadata(m.at("f")).unwrap().len(), 4);
        assert!(std::fs::metadata(m.at("none")).is_err());
        assert_eq!(std::fs::read_link(m.at("s")).unwrap(), Path::new("target"));
    };
    stat();
    let (questions, links) = (m.questions(), m.solo().ask_door(|d| d.stats().requests(op::READLINK)));
    (0..1000).for_each(|_| stat());
    assert_eq!(m.questions(), questions);
    assert_eq!(m.solo().ask_door(|d| d.stats().requests(op::READLINK)), links);
    assert_eq!(m.counter("late"), 0);
}

#[test]
fn listings_with_attributes_are_valid_too() {
    let Some(m) = caching(LONG) else { return };
    std::fs::create_dir(m.at("d")).unwrap();
    let made: Vec<u64> = m.solo().ask(|fs| {
        let dir = fs.fid_of(b"d").unwrap();
        (0..300).map(|n| fs.replace_behind(dir, format!("f{n:03}").as_bytes()).ino()).collect()
    });
    // AUTO: the kernel goes on with attributes once it sees that they are used.
    let list = || std::fs::read_dir(m.at("d")).unwrap().map(|e| e.unwrap().metadata().unwrap().ino());
    assert_eq!(list().count(), 300);
    let looked_up = m.solo().ask_door(|d| d.stats().requests(op::LOOKUP));
    assert!(looked_up < 50, "{looked_up} LOOKUPs beside the listing");
    let mut seen: Vec<u64> = (0..300).map(|n| m.ino(&format!("d/f{n:03}"))).collect();
    seen.sort_unstable();
    assert_eq!(seen, made);
    assert_eq!(m.solo().ask_door(|d| d.stats().requests(op::LOOKUP)), looked_up);
}

#[test]
fn names_and_attributes_are_asked_again_once_they_are_forgotten() {
    let Some(m) = caching(LONG) else { return };
    std::fs::write(m.at("f"), "text").unwrap();
    let old = m.ino("f");
    let open = File::open(m.at("f")).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 4);
    m.solo().ask(|fs| fs.set_data(fs.fid_of(b"f").unwrap(), b"longer text"));
    assert_eq!(open.metadata().unwrap().len(), 4, "the kernel does not ask");
    m.forget(vec![Stale::Inode(Fid::from_ino(old))]);
    assert_eq!(open.metadata().unwrap().len(), 11);
    let new = m.replace("f");
    assert_eq!(m.ino("f"), old, "the kernel does not ask");
    m.forget(vec![name(Fid::ROOT, "f")]);
    assert_eq!(m.ino("f"), new);
    assert!(std::fs::metadata(m.at("none")).is_err());
    let there = m.replace("none");
    assert!(std::fs::metadata(m.at("none")).is_err(), "the kernel does not ask");
    m.forget(vec![name(Fid::ROOT, "none")]);
    assert_eq!(m.ino("none"), there);
    // On a busy machine an epoch may follow.
    assert_eq!((m.counter("inodes"), m.counter("epochs")), (1, m.counter("blocked")));
}

#[test]
fn a_file_that_an_allocation_without_success_has_made_longer_is_seen_so() {
    use rustix::fs::{FallocateFlags, fallocate};
    let Some(m) = caching(LONG) else { return };
    let file = File::create(m.at("f")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    let max = common::memfs::ALLOCATE_MAX as u64;
    let failed = fallocate(&file, FallocateFlags::empty(), 0, 2 * max);
    assert_eq!(failed, Err(rustix::io::Errno::NOSPC));
    assert_eq!(file.metadata().unwrap().len(), max);
}

#[test]
fn everything_is_forgotten_at_once() {
    let Some(m) = caching(LONG) else { return };
    std::fs::write(m.at("f"), "text").unwrap();
    let open = File::open(m.at("f")).unwrap();
    assert_eq!((open.metadata().unwrap().len(), m.ino("f")), (4, open.metadata().unwrap().ino()));
    m.solo().ask(|fs| fs.set_data(fs.fid_of(b"f").unwrap(), b"longer text"));
    let new = m.replace("f");
    m.forget(vec![Stale::All]);
    assert_eq!((open.metadata().map(|a| a.len()).ok(), m.ino("f")), (Some(11), new));
    assert_eq!(m.counter("epochs"), 1);
}

#[test]
fn a_reply_that_was_decided_before_the_revoke_is_not_valid_after_it() {
    let Some(m) = caching(LONG) else { return };
    std::fs::write(m.at("f"), "text").unwrap();
    // LOOKUP of a name that the kernel knows, and of one that it does not know: the caller of the latter holds the
    // directory, so that INVAL_ENTRY waits, and an epoch follows.
    m.ino("f");
    m.forget(vec![name(Fid::ROOT, "f")]);
    let unknown = m.replace("g");
    let mut new = 0;
    for file in ["f", "g"] {
        let old = m.solo().ask(move |fs| fs.fid_of(file.as_bytes()).unwrap());
        assert!(file == "f" || old.ino() == unknown);
        let (path, withheld) = (m.at(file), m.counter("withheld"));
        let stat = m.held(&[op::LOOKUP], move || std::fs::metadata(path).unwrap().ino());
        new = m.replace(file);
        m.forget(vec![name(Fid::ROOT, file), Stale::Inode(old)]);
        m.solo().release_replies();
        assert_eq!(stat.join().unwrap(), old.ino(), "the call began before the change");
        assert_eq!(m.ino(file), new);
        assert!(m.counter("withheld") > withheld);
    }
    assert!(m.counter("blocked") >= 1);
    // GETATTR.
    let open = File::open(m.at("g")).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 0);
    m.forget(vec![Stale::Inode(Fid::from_ino(new))]);
    let also = open.try_clone().unwrap();
    let stat = m.held(&[op::GETATTR, op::STATX], move || also.metadata().unwrap().len());
    m.solo().ask(move |fs| fs.set_data(Fid::from_ino(new), b"written elsewhere"));
    m.forget(vec![Stale::Inode(Fid::from_ino(new))]);
    m.solo().release_replies();
    assert_eq!(stat.join().unwrap(), 0);
    assert_eq!(open.metadata().unwrap().len(), 17);
    // A name that was not there.
    let path = m.at("none");
    let stat = m.held(&[op::LOOKUP], move || std::fs::metadata(path).is_err());
    let there = m.replace("none");
    m.forget(vec![name(Fid::ROOT, "none")]);
    m.solo().release_replies();
    assert!(stat.join().unwrap());
    assert_eq!(m.ino("none"), there);
    // A listing: its caller holds the directory too.
    std::fs::create_dir(m.at("d")).unwrap();
    let dir = Fid::from_ino(m.ino("d"));
    let old = m.solo().ask(move |fs| fs.replace_behind(dir, b"x").ino());
    let open = File::open(m.at("d")).unwrap();
    let list =
        m.held(&[op::READDIRPLUS], move || rustix::fs::Dir::new(open).unwrap().filter(|e| e.is_ok()).count());
    let new = m.solo().ask(move |fs| fs.replace_behind(dir, b"x").ino());
    m.forget(vec![name(dir, "x"), Stale::Inode(Fid::from_ino(old))]);
    m.solo().release_replies();
    assert_eq!(list.join().unwrap(), 3);
    assert_eq!(m.ino("d/x"), new);
}

#[test]
fn a_directory_that_is_locked_by_a_pending_request_is_forgotten_by_an_epoch() {
    let Some(m) = caching(LONG) else { return };
    std::fs::create_dir(m.at("d")).unwrap();
    std::fs::write(m.at("d/f"), "text").unwrap();
    let (dir, old) = (Fid::from_ino(m.ino("d")), m.ino("d/f"));
    m.solo().ask(move |fs| fs.hold("mkdir", Some(dir)));
    let path = m.at("d/new");
    let mkdir = std::thread::spawn(move || std::fs::create_dir(path).unwrap());
    common::eventually("mkdir waits", || m.solo().ask(|fs| fs.waiting("mkdir")) == 1);
    let new = m.solo().ask(move |fs| fs.replace_behind(dir, b"f").ino());
    assert_eq!(m.ino("d/f"), old, "the kernel does not ask");
    m.forget(vec![name(dir, "f")]);
    assert_eq!((m.counter("epochs"), m.counter("names"), m.counter("blocked")), (1, 0, 0));
    m.solo().ask(|fs| fs.release_all());
    mkdir.join().unwrap();
    assert_eq!(m.ino("d/f"), new);
}

#[test]
fn notifications_that_wait_in_the_kernel_are_followed_by_an_epoch_and_the_queue_may_fill() {
    let Some(m) = caching(LONG) else { return };
    std::fs::create_dir(m.at("d")).unwrap();
    std::fs::write(m.at("d/f"), "text").unwrap();
    let dir = Fid::from_ino(m.ino("d"));
    // A change that has been decided, and whose caller holds the directory until it has the reply.
    let path = m.at("d/new");
    let mkdir = m.held(&[op::MKDIR], move || std::fs::create_dir(path).unwrap());
    let new = m.solo().ask(move |fs| fs.replace_behind(dir, b"f").ino());
    let more = 1200;
    m.solo().call(move |fs| (0..more).for_each(|_| fs.forget(vec![name(dir, "f")])));
    common::eventually("the kernel has forgotten", || m.forgotten() == more);
    assert_eq!((m.counter("blocked"), m.counter("epochs")), (u64::from(more), u64::from(more)));
    m.solo().release_replies();
    mkdir.join().unwrap();
    assert_eq!(m.ino("d/f"), new);
}

/// A call of stat(1), to which the reply is written, and which does not run before [`Self::result`].
struct Overtaken {
    stat: std::thread::JoinHandle<Vec<u8>>,
    /// A process with real-time priority on the CPU of the caller.
    spinning: Child,
}
impl Overtaken {
    /// Not without a second CPU or real-time priority, nor over io_uring: there the reply is written on the CPU of its
    /// caller, which therefore runs at once.
    fn is_possible() -> bool {
        let try_out = || Command::new("taskset").args(["-c", "1", "chrt", "-f", "1", "true"]).status();
        !rings() && try_out().is_ok_and(|status| status.success())
    }
    /// The reply to one of these `operations` is the one.
    fn begin(m: &Served, operations: &'static [u32], format: &str, file: &str) -> Self {
        let on_second_cpu = |command: &[&str]| {
            let mut child = Command::new("taskset");
            child.args(["-c", "1"]).args(command).stdout(Stdio::piped());
            child
        };
        let mut stat = on_second_cpu(&["stat", "-c", format]);
        stat.arg(m.at(file));
        let stat = m.held(operations, move || stat.output().unwrap().stdout);
        let spin = "import os\nos.write(1, b'.')\nwhile True: pass";
        let mut spinning = on_second_cpu(&["chrt", "-f", "1", "python3", "-c", spin]).spawn().unwrap();
        spinning.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        m.solo().release_replies();
        Self { stat, spinning }
    }
    fn result(mut self) -> u64 {
        self.spinning.kill().unwrap();
        self.spinning.wait().unwrap();
        let text = String::from_utf8(self.stat.join().unwrap()).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    }
}

#[test]
fn a_name_is_forgotten_although_a_caller_has_not_taken_over_its_reply() {
    let Some(m) = caching(Duration::ZERO).filter(|_| Overtaken::is_possible()) else { return };
    std::fs::write(m.at("f"), "text").unwrap();
    let old = m.ino("f");
    // The kernel knows the name, so it asks whether that is still right.
    m.solo().ask(|fs| fs.validity.set(Validity { entry: LONG, attr: LONG }));
    let stat = Overtaken::begin(&m, &[op::LOOKUP], "%i", "f");
    let new = m.replace("f");
    m.forget(vec![name(Fid::ROOT, "f")]);
    assert_eq!(stat.result(), old);
    assert_eq!(m.ino("f"), new);
}

/// After SETXATTR and REMOVEXATTR the kernel drops its ctime, and takes over older attributes that come later.
#[test]
fn attributes_do_not_come_back_that_a_caller_takes_over_after_a_change_of_extended_attributes() {
    for removes in [false, true] {
        // A mount each: attributes that are being forgotten once more would be asked for before the change.
        let Some(m) = caching(LONG).filter(|_| Overtaken::is_possible()) else { return };
        std::fs::write(m.at("f"), "text").unwrap();
        let fid = Fid::from_ino(m.ino("f"));
        let set =
            || rustix::fs::setxattr(m.at("f"), "user.a", b"1", rustix::fs::XattrFlags::empty()).unwrap();
        m.solo().ask(move |fs| fs.set_data(fid, b"four"));
        m.forget(vec![Stale::Inode(fid)]);
        assert_eq!(std::fs::metadata(m.at("f")).unwrap().len(), 4);
        // A caller asks for the ctime, while permissions are known.
        set();
        let stat = Overtaken::begin(&m, &[op::GETATTR, op::STATX], "%s %Z", "f");
        m.solo().ask(move |fs| fs.set_data(fid, b"longer text"));
        if removes {
            rustix::fs::removexattr(m.at("f"), "user.a").unwrap();
        } else {
            set();
        }
        assert_eq!(stat.result(), 4);
        assert_eq!(std::fs::metadata(m.at("f")).unwrap().len(), 11, "removes: {removes}");
    }
}

#[test]
fn many_names_are_forgotten_by_one_epoch() {
    let Some(m) = caching(LONG) else { return };
    let names: Vec<String> = (0..65).map(|n| format!("f{n}")).collect();
    for file in &names {
        File::create(m.at(file)).unwrap();
    }
    let new = m.replace("f");
    m.forget(names.iter().map(|file| name(Fid::ROOT, file)).collect());
    assert_eq!((m.counter("epochs"), m.counter("names"), m.ino("f")), (1, 0, new));
}

#[test]
fn a_validity_does_not_begin_when_its_time_has_passed() {
    let short = Duration::from_millis(400);
    let Some(m) = caching(short) else { return };
    std::fs::write(m.at("f"), "text").unwrap();
    m.forget(vec![Stale::All]);
    let path = m.at("f");
    let stat = m.held(&[op::LOOKUP], move || std::fs::metadata(path).unwrap().len());
    // The process is stopped between the decision and the write.
    let start = Instant::now();
    common::eventually("half of the validity has passed", || start.elapsed() > short / 2);
    m.solo().release_replies();
    assert_eq!(stat.join().unwrap(), 4);
    assert!(m.counter("withheld") >= 1);
    let questions = m.questions();
    assert_eq!(std::fs::metadata(m.at("f")).unwrap().len(), 4);
    assert!(m.questions() > questions, "the kernel asks again");
}

/// The kernel looks it up within the rename, where it cannot move its own entry.
#[test]
fn a_directory_that_another_mount_has_moved_is_renamed_at_once() {
    for validity in [Duration::ZERO, LONG] {
        let Some(m) = caching(validity) else { return };
        for dir in ["x", "y", "z", "x/dir"] {
            std::fs::create_dir(m.at(dir)).unwrap();
        }
        let ino = m.ino("x/dir");
        let open = File::open(m.at("x/dir")).unwrap();
        let (x, y) = m.solo().ask(|fs| (fs.fid_of(b"x").unwrap(), fs.fid_of(b"y").unwrap()));
        let within =
            std::path::PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open)));
        assert!(!within.join("f").exists());
        for (from, to) in [("y/dir", "z/dir"), ("y/dir", "y/other"), ("y/dir", "x/dir")] {
            m.solo().ask(move |fs| fs.move_behind(x, b"dir", y));
            m.forget(vec![name(x, "dir"), Stale::Inode(Fid::from_ino(ino))]);
            open.metadata().unwrap();
            std::fs::rename(m.at(from), m.at(to)).unwrap();
            // The rename has changed the times of the directory.
            let asked = m.questions();
            assert_eq!(open.metadata().unwrap().ino(), ino);
            assert!(m.questions() > asked, "{to}");
            assert_eq!(m.ino(to), ino);
            // The handle shows changes that are made through the new name.
            let file = m.at(to).join("f");
            std::fs::write(&file, "text").unwrap();
            assert!(within.join("f").exists(), "{to}");
            assert_eq!(open.metadata().unwrap().ino(), ino);
            std::fs::remove_file(&file).unwrap();
            assert!(!within.join("f").exists(), "{to}");
            std::fs::rename(m.at(to), m.at("x/dir")).unwrap();
        }
    }
}

/// Makes a directory that the kernel knows as `x/dir`, and that another mount has moved to `y`.
fn moved_by_another_mount(m: &Served) -> File {
    for dir in ["x", "y", "x/dir"] {
        std::fs::create_dir(m.at(dir)).unwrap();
    }
    let known = File::open(m.at("x/dir")).unwrap();
    m.solo().ask(|fs| {
        let (x, y) = (fs.fid_of(b"x").unwrap(), fs.fid_of(b"y").unwrap());
        fs.move_behind(x, b"dir", y);
    });
    known
}

/// The kernel cannot move its own entry beside a change of the former directory, and does not walk again for a new name.
#[test]
fn a_name_under_which_another_mount_has_put_a_directory_is_taken() {
    let Some(m) = caching(Duration::ZERO) else { return };
    let _known = moved_by_another_mount(&m);
    m.solo().ask(|fs| fs.hold("mkdir", Some(fs.fid_of(b"x").unwrap())));
    let path = m.at("x/new");
    let change = std::thread::spawn(move || std::fs::create_dir(path));
    common::eventually("the former directory is being changed", || {
        m.solo().ask(|fs| fs.waiting("mkdir")) == 1
    });
    let is_taken =
        |made: std::io::Result<()>| made.is_err_and(|e| e.kind() == std::io::ErrorKind::AlreadyExists);
    assert!(is_taken(std::fs::create_dir(m.at("y/dir"))));
    assert!(is_taken(std::os::unix::fs::symlink("f", m.at("y/dir"))));
    m.solo().ask(|fs| fs.release_all());
    change.join().unwrap().unwrap();
}

/// The caller of a change holds the lock of the directory until it has the reply, which no request shows.
#[test]
fn such_a_name_is_taken_although_the_former_directory_is_still_locked_after_a_reply() {
    let Some(m) = caching(Duration::ZERO) else { return };
    let _known = moved_by_another_mount(&m);
    let path = m.at("x/new");
    let change = m.held(&[op::MKDIR], move || std::fs::create_dir(path));
    let made = std::os::unix::fs::symlink("f", m.at("y/dir"));
    m.solo().release_replies();
    change.join().unwrap().unwrap();
    assert_eq!(made.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
}

/// Of each of them the kernel has to move its own entry, and cannot within the rename.
#[test]
fn several_moved_directories_are_found_in_one_call() {
    let Some(m) = caching(Duration::ZERO) else { return };
    for dir in ["x", "y", "z", "x/one", "x/two", "x/three"] {
        std::fs::create_dir(m.at(dir)).unwrap();
    }
    let [one, three] = ["x/one", "x/three"].map(|dir| m.ino(dir));
    let _known = ["x/one", "x/two", "x/three"].map(|dir| File::open(m.at(dir)).unwrap());
    m.solo().ask(|fs| {
        let [x, y, z] = [&b"x"[..], b"y", b"z"].map(|name| fs.fid_of(name).unwrap());
        fs.move_behind(x, b"one", y);
        fs.move_behind(x, b"two", z);
        fs.move_behind(x, b"three", fs.fid_of(b"y").unwrap());
    });
    std::fs::rename(m.at("y/one"), m.at("z/two")).unwrap();
    std::fs::rename(m.at("y/three"), m.at("z/two/three")).unwrap();
    assert_eq!((m.ino("z/two"), m.ino("z/two/three")), (one, three));
}

#[test]
fn a_directory_that_is_now_below_a_former_child_is_found() {
    let Some(m) = caching(Duration::ZERO) else { return };
    std::fs::create_dir_all(m.at("a/b/c")).unwrap();
    let (a, c) = (m.ino("a"), m.ino("a/b/c"));
    let open = File::open(m.at("a/b/c")).unwrap();
    m.solo().ask(move |fs| {
        fs.move_behind(Fid::from_ino(a), b"b", Fid::ROOT);
        fs.move_behind(Fid::ROOT, b"a", Fid::from_ino(c));
    });
    // Through the handle: the kernel does not look the directories above it up.
    let within = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open)));
    assert_eq!(std::fs::metadata(within.join("a")).unwrap().ino(), a);
    assert_eq!((m.ino("b/c/a"), m.ino("b/c")), (a, c));
}

#[test]
fn a_file_that_is_replaced_between_its_lookup_and_the_open_is_opened() {
    let Some(m) = caching(Duration::ZERO) else { return };
    std::fs::write(m.at("f"), "text").unwrap();
    for times in 0..6 {
        m.solo().ask(move |fs| fs.replacing.set(times));
        let file = File::open(m.at("f")).unwrap_or_else(|e| panic!("replaced {times} times: {e}"));
        assert_eq!(m.ino("f"), file.metadata().unwrap().ino(), "replaced {times} times");
    }
}

#[test]
fn a_file_that_a_second_walk_has_found_has_the_attributes_of_its_lookup() {
    let Some(m) = caching(LONG) else { return };
    std::fs::write(m.at("f"), "text").unwrap();
    m.forget(vec![Stale::All]);
    m.solo().ask(|fs| {
        fs.replacing.set(1);
        // The kernel looks up twice in its second walk.
        fs.growing.set(2);
    });
    let file = File::open(m.at("f")).unwrap();
    // Not as by `metadata`, which asks for the birth time, too.
    let size = rustix::fs::fstat(&file).unwrap().st_size;
    assert_eq!(size, 2, "it has grown while it was kept open for the second walk");
}

#[test]
fn in_a_directory_that_another_mount_has_removed_there_are_no_names() {
    let Some(m) = caching(Duration::ZERO) else { return };
    std::fs::create_dir(m.at("dir")).unwrap();
    let open = File::open(m.at("dir")).unwrap();
    m.solo().ask(|fs| fs.remove_behind(Fid::ROOT, b"dir"));
    let within = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open)));
    let is_not_found = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    assert!(std::fs::metadata(within.join("f")).is_err_and(is_not_found));
    assert!(File::create(within.join("f")).is_err_and(is_not_found));
    assert!(std::fs::create_dir(within.join("f")).is_err_and(is_not_found));
}

/// The kernel does not walk again for the name of something new, if the LOOKUP of that name fails with ESTALE.
#[test]
fn nothing_is_made_in_a_directory_that_another_mount_has_removed() {
    let Some(m) = caching(LONG) else { return };
    std::fs::write(m.at("file"), "text").unwrap();
    std::fs::create_dir(m.at("dir")).unwrap();
    let open = File::open(m.at("dir")).unwrap();
    m.solo().ask(|fs| fs.remove_behind(Fid::ROOT, b"dir"));
    let within = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open)));
    let is_not_found = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    assert!(std::fs::create_dir(within.join("new directory")).is_err_and(is_not_found));
    assert!(std::os::unix::fs::symlink("f", within.join("new symlink")).is_err_and(is_not_found));
    assert!(std::fs::hard_link(m.at("file"), within.join("new link")).is_err_and(is_not_found));
}

/// It keeps the kernel's entries of its layers.
#[test]
fn an_overlayfs_with_layers_on_the_mount_stays() {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap();
    if !known.lines().any(|line| line.split_whitespace().last() == Some("overlay")) {
        return eprintln!("skipped: this kernel has no overlayfs");
    }
    let Some(m) = caching(LONG) else { return };
    for dir in ["one", "two"] {
        std::fs::create_dir(m.at(dir)).unwrap();
    }
    std::fs::write(m.at("one/f"), "text").unwrap();
    let merged = tempfile::tempdir().unwrap();
    let layers = format!("lowerdir={}:{}", m.at("one").display(), m.at("two").display());
    let (options, flags) = (std::ffi::CString::new(layers).unwrap(), rustix::mount::MountFlags::RDONLY);
    rustix::mount::mount("overlay", merged.path(), "overlay", flags, Some(options.as_c_str())).unwrap();
    let mounted = Neighbour(merged.path().to_owned());
    assert_eq!(std::fs::read(merged.path().join("f")).unwrap(), b"text");
    m.forget(vec![Stale::All]);
    assert_eq!(std::fs::read(merged.path().join("f")).unwrap(), b"text");
    drop(mounted);
}

/// Unmounted when dropped.
struct Neighbour(PathBuf);
impl Neighbour {
    fn on(path: PathBuf) -> Self {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", &path, "tmpfs", flags, None).unwrap();
        std::fs::write(path.join("inside"), "text").unwrap();
        Self(path)
    }
    fn is_there(&self) -> bool {
        std::fs::read(self.0.join("inside")).is_ok_and(|text| text == b"text")
    }
}
impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH); // it is mounted no more
    }
}

#[test]
fn a_file_system_that_is_mounted_on_a_directory_stays() {
    let Some(m) = caching(LONG) else { return };
    std::fs::create_dir(m.at("on")).unwrap();
    std::fs::write(m.at("f"), "text").unwrap();
    let old = m.ino("f");
    let neighbour = Neighbour::on(m.at("on"));
    assert_eq!(m.ino("f"), old);
    let new = m.replace("f");
    m.forget(vec![name(Fid::ROOT, "f"), name(Fid::ROOT, "on"), Stale::Inode(Fid::from_ino(old))]);
    assert_eq!(m.ino("f"), new);
    assert!(neighbour.is_there(), "the name on which it is mounted was forgotten");
    // These would be forgotten by an epoch.
    m.forget((0..100).map(|n| name(Fid::ROOT, &format!("n{n}"))).collect());
    m.forget(vec![Stale::All]);
    assert!(neighbour.is_there());
    assert_eq!(m.counter("epochs"), 0);
    // Names have no validity, attributes have.
    let asked = || m.solo().ask_door(|d| (d.stats().requests(op::LOOKUP), d.stats().requests(op::GETATTR)));
    let before = asked();
    (0..10).for_each(|_| assert_eq!(m.ino("f"), new));
    assert!(asked().0 >= before.0 + 10);
    drop(neighbour);
    // Another one may follow. So many questions that the end of this one is seen meanwhile.
    let before = asked();
    (0..500).for_each(|_| assert_eq!(m.ino("f"), new));
    assert!(asked().0 >= before.0 + 500);
}

/// The name of a file is gone, and the kernel has been told so. It would not ask whether a file that it still has there is a
/// directory.
fn has_forgotten(m: &Served, parent: Fid, file: &'static str, path: &str) {
    m.solo().ask(move |fs| fs.remove_behind(parent, file.as_bytes()));
    m.forget(vec![name(parent, file)]);
    let error = std::fs::remove_dir(m.at(path)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{path}");
}

/// The kernel's entry is valid, and moves to its new name between the look at the names that expire and the notification of
/// its former name.
#[test]
fn a_name_expires_that_a_rename_takes_away_while_a_neighbour_comes() {
    let Some(m) = caching(LONG) else { return };
    ["on", "d"].iter().for_each(|dir| std::fs::create_dir(m.at(dir)).unwrap());
    std::fs::write(m.at("old"), "text").unwrap();
    let dir = Fid::from_ino(m.ino("d"));
    m.solo().ask(|fs| fs.hold("rename", None));
    let (from, to) = (m.at("old"), m.at("d/new"));
    let rename = std::thread::spawn(move || std::fs::rename(from, to).unwrap());
    common::eventually("the rename waits", || m.solo().ask(|fs| fs.waiting("rename")) == 1);
    let before = m.counter("names");
    let neighbour = Neighbour::on(m.at("on"));
    common::eventually("names expire", || m.counter("names") > before);
    m.solo().ask(|fs| fs.release_all());
    rename.join().unwrap();
    // It waits until no name is valid.
    m.forget(vec![Stale::All]);
    has_forgotten(&m, dir, "new", "d/new");
    assert!(neighbour.is_there());
}

/// One of them has expired before, the other one expires afterwards: that is the same entry.
#[test]
fn both_names_expire_that_a_rename_exchanges_while_a_neighbour_comes() {
    let Some(m) = caching(LONG) else { return };
    // In the order in which their names expire, behind those of the root directory.
    ["on", "between", "d"].iter().for_each(|dir| std::fs::create_dir(m.at(dir)).unwrap());
    ["old", "between/f", "d/new"].iter().for_each(|file| std::fs::write(m.at(file), "text").unwrap());
    let (between, dir) = (Fid::from_ino(m.ino("between")), Fid::from_ino(m.ino("d")));
    m.solo().ask(move |fs| fs.hold("mkdir", Some(between)));
    let path = m.at("between/new");
    let mkdir = std::thread::spawn(move || std::fs::create_dir(path).unwrap());
    common::eventually("mkdir waits", || m.solo().ask(|fs| fs.waiting("mkdir")) == 1);
    let before = m.counter("names");
    let neighbour = Neighbour::on(m.at("on"));
    common::eventually("the four names of the root directory have expired", || {
        m.counter("names") == before + 5
    });
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, m.at("old"), CWD, m.at("d/new"), RenameFlags::EXCHANGE).unwrap();
    m.solo().ask(|fs| fs.release_all());
    mkdir.join().unwrap();
    // It waits until no name is valid.
    m.forget(vec![Stale::All]);
    has_forgotten(&m, Fid::ROOT, "old", "old");
    has_forgotten(&m, dir, "new", "d/new");
    assert!(neighbour.is_there());
}

/// It has everything forgotten before its reply, which waits until no name is valid: also the one that it has changed, which
/// the directory has under its own number.
#[test]
fn a_change_through_a_stand_in_ends_when_a_neighbour_comes() {
    let Some(m) = caching(LONG) else { return };
    std::fs::create_dir(m.at("on")).unwrap();
    let known = moved_by_another_mount(&m);
    let dir = Fid::from_ino(known.metadata().unwrap().ino());
    let own = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&known))).join("f");
    std::fs::write(&own, "text").unwrap();
    m.solo().ask(|fs| fs.hold("mkdir", Some(fs.fid_of(b"x").unwrap())));
    let new = m.at("x/new");
    let mkdir = std::thread::spawn(move || std::fs::create_dir(new).unwrap());
    common::eventually("mkdir waits", || m.solo().ask(|fs| fs.waiting("mkdir")) == 1);
    m.solo().ask(|fs| fs.hold("unlink", None));
    let path = m.at("y/dir/f");
    let unlink = std::thread::spawn(move || std::fs::remove_file(path));
    common::eventually("unlink waits", || m.solo().ask(|fs| fs.waiting("unlink")) == 1);
    m.solo().ask(move |fs| fs.remove_behind(dir, b"f"));
    let before = m.counter("names");
    let neighbour = Neighbour::on(m.at("on"));
    common::eventually("names expire", || m.counter("names") > before);
    m.solo().ask(|fs| fs.release_all());
    mkdir.join().unwrap();
    common::eventually("the change has ended", || unlink.is_finished());
    assert!(unlink.join().unwrap().is_err());
    // It would not ask whether a file that it still has there is a directory.
    assert_eq!(std::fs::remove_dir(own).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert!(neighbour.is_there());
}

/// An epoch, which takes no lock, would detach the neighbour.
#[test]
fn a_call_that_waits_for_a_name_in_the_directory_that_it_holds_goes_on_when_the_name_has_run_out() {
    let Some(m) = caching(Duration::from_millis(400)) else { return };
    ["on", "d"].iter().for_each(|dir| std::fs::create_dir(m.at(dir)).unwrap());
    std::fs::write(m.at("d/f"), "text").unwrap();
    let dir = Fid::from_ino(m.ino("d"));
    m.solo().ask(move |fs| fs.hold("mkdir", Some(dir)));
    let path = m.at("d/new");
    let mkdir = std::thread::spawn(move || std::fs::create_dir(path).unwrap());
    common::eventually("mkdir waits", || m.solo().ask(|fs| fs.waiting("mkdir")) == 1);
    let neighbour = Neighbour::on(m.at("on"));
    let new = m.solo().ask(move |fs| fs.replace_behind(dir, b"f").ino());
    m.forget(vec![name(dir, "f")]);
    m.solo().ask(|fs| fs.release_all());
    mkdir.join().unwrap();
    assert_eq!(m.ino("d/f"), new);
    assert!(neighbour.is_there());
}
