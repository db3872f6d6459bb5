//! Programs on a mounted in-memory file system. A module of `mount.rs` per transport.

use crate::common::served::{Served, options};
use crate::common::{self, memfs::MemFs};
use nacre_fuse::{MountError, Unmount, check_mount_point, mount_fuse, unmount_fuse};
use rustix::fs::{self, AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Whether this module is the one for io_uring.
fn rings() -> bool {
    module_path!().ends_with("rings")
}

fn served() -> Option<Served> {
    Served::new(rings())
}

#[test]
fn files_are_written_read_appended_cut_and_mapped() {
    let Some(m) = served() else { return };
    let big: Vec<u8> = (0..5_000_000u32).map(|n| (n / 7) as u8).collect();
    std::fs::write(m.at("big"), &big).unwrap();
    assert_eq!(std::fs::read(m.at("big")).unwrap(), big);
    let a = OpenOptions::new().append(true).create(true).open(m.at("log")).unwrap();
    let b = OpenOptions::new().append(true).open(m.at("log")).unwrap();
    for i in 0..10 {
        (&a).write_all(format!("a{i}").as_bytes()).unwrap();
        (&b).write_all(format!("b{i}").as_bytes()).unwrap();
    }
    assert_eq!(std::fs::metadata(m.at("log")).unwrap().len(), 40);
    a.set_len(3).unwrap();
    assert_eq!(std::fs::read(m.at("log")).unwrap(), b"a0b");
    File::create(m.at("log")).unwrap();
    assert_eq!(std::fs::metadata(m.at("log")).unwrap().len(), 0);
    let f = File::options().read(true).write(true).open(m.at("big")).unwrap();
    fs::fallocate(&f, FallocateFlags::empty(), 0, 6_000_000).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 6_000_000);
    fs::fallocate(&f, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 100, 4000).unwrap();
    let mut hole = [1; 4002];
    f.read_exact_at(&mut hole, 99).unwrap();
    assert_eq!((hole[0], hole[4001]), (big[99], big[4100]));
    assert!(hole[1..4001].iter().all(|byte| *byte == 0));
    assert_eq!(fs::fallocate(&f, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    f.write_all_at(b"direct", 4096).unwrap();
    f.sync_all().unwrap();
    let mut text = [0; 6];
    f.read_exact_at(&mut text, 4096).unwrap();
    assert_eq!(&text, b"direct");
}

#[test]
fn names_are_made_linked_renamed_and_removed() {
    let Some(m) = served() else { return };
    std::fs::create_dir(m.at("d")).unwrap();
    std::fs::write(m.at("d/f"), "1").unwrap();
    std::fs::hard_link(m.at("d/f"), m.at("d/g")).unwrap();
    assert_eq!(std::fs::metadata(m.at("d/g")).unwrap().nlink(), 2);
    std::os::unix::fs::symlink("d/f", m.at("s")).unwrap();
    assert_eq!(std::fs::read_link(m.at("s")).unwrap(), Path::new("d/f"));
    assert_eq!(std::fs::read(m.at("s")).unwrap(), b"1");
    std::fs::rename(m.at("d/f"), m.at("h")).unwrap();
    let cwd = fs::CWD;
    let exchange = |flags| fs::renameat_with(cwd, m.at("h"), cwd, m.at("s"), flags);
    assert_eq!(exchange(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(exchange(RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Err(Errno::INVAL));
    exchange(RenameFlags::EXCHANGE).unwrap();
    assert!(std::fs::symlink_metadata(m.at("h")).unwrap().is_symlink());
    assert_eq!(std::fs::remove_dir(m.at("d")).unwrap_err().raw_os_error(), Some(39));
    let open = File::open(m.at("d/g")).unwrap();
    std::fs::remove_file(m.at("d/g")).unwrap();
    std::fs::remove_dir(m.at("d")).unwrap();
    std::fs::remove_file(m.at("s")).unwrap();
    let mut text = String::new();
    (&open).read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), open.metadata().unwrap().nlink()), ("1", 0));
    let long = "n".repeat(256);
    assert_eq!(std::fs::write(m.at(&long), "").unwrap_err().raw_os_error(), Some(36));
    std::fs::write(m.at(&long[..255]), "").unwrap();
    let fifo = (fs::FileType::Fifo, Mode::from(0o600), 0);
    fs::mknodat(cwd, m.at("p"), fifo.0, fifo.1, fifo.2).unwrap();
    assert_eq!(std::fs::metadata(m.at("p")).unwrap().mode() & 0o170000, 0o010000);
}

#[test]
fn modes_owners_times_and_space_are_as_set() {
    let Some(m) = served() else { return };
    let old = rustix::process::umask(Mode::from(0o027));
    let f = OpenOptions::new().write(true).create_new(true).mode(0o666).open(m.at("f")).unwrap();
    rustix::process::umask(old);
    assert_eq!(f.metadata().unwrap().mode(), 0o100640);
    std::fs::set_permissions(m.at("f"), std::fs::Permissions::from_mode(0o4711)).unwrap();
    assert_eq!(f.metadata().unwrap().mode(), 0o104711);
    std::os::unix::fs::chown(m.at("f"), Some(7), Some(8)).unwrap();
    let stat = f.metadata().unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode()), (7, 8, 0o100711), "chown takes set-uid away");
    let times = std::fs::FileTimes::new()
        .set_accessed(std::time::UNIX_EPOCH - std::time::Duration::from_secs(5))
        .set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(9, 123_456_789));
    f.set_times(times).unwrap();
    let stat = std::fs::metadata(m.at("f")).unwrap();
    assert_eq!((stat.atime(), stat.mtime(), stat.mtime_nsec()), (-5, 9, 123_456_789));
    assert!(stat.created().is_ok(), "statx knows the time of birth");
    let space = fs::statvfs(&m.path).unwrap();
    assert_eq!((space.f_blocks * space.f_frsize, space.f_ffree, space.f_namemax), (1 << 30, 1000, 255));
}

#[test]
fn listings_are_complete_and_offsets_stay() {
    let Some(m) = served() else { return };
    std::fs::create_dir(m.at("d")).unwrap();
    let names: Vec<String> = (0..3000).map(|n| format!("file-{n:04}{}", "x".repeat(n % 200))).collect();
    for name in &names {
        File::create(m.at("d").join(name)).unwrap();
    }
    let mut seen: Vec<String> = std::fs::read_dir(m.at("d"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    seen.sort();
    assert_eq!(seen, names);
    let mut dir = fs::Dir::new(File::open(m.at("d")).unwrap()).unwrap();
    let all: Vec<_> = (&mut dir).map(|e| e.unwrap()).collect();
    assert_eq!(all.len(), 3002);
    // Change the directory, then go on from the middle.
    std::fs::remove_file(m.at("d").join(all[2000].file_name().to_str().unwrap())).unwrap();
    dir.seek(all[1000].offset()).unwrap();
    let rest: Vec<_> = (&mut dir).map(|e| e.unwrap().file_name().to_owned()).collect();
    assert_eq!(rest.len(), 3002 - 1001 - 1);
    assert_eq!(rest[0], all[1001].file_name().to_owned());
}

#[test]
fn extended_attributes_follow_the_size_rules() {
    let Some(m) = served() else { return };
    std::fs::write(m.at("f"), "").unwrap();
    let f = m.at("f");
    fs::setxattr(&f, "user.a", b"value", XattrFlags::CREATE).unwrap();
    assert_eq!(fs::setxattr(&f, "user.a", b"v", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(fs::getxattr_query(&f, "user.a"), Ok(5));
    assert_eq!(fs::getxattr(&f, "user.a", &mut [0; 4]), Err(Errno::RANGE));
    assert_eq!(fs::getxattr(&f, "user.b", &mut [0; 4]), Err(Errno::NODATA));
    let mut names = [0; 64];
    assert_eq!(fs::listxattr(&f, &mut names), Ok(7));
    let mut text = [0; 64];
    let len = fs::getxattr(&f, "nacre.fid", &mut text).unwrap();
    assert!(text[..len].starts_with(b"[0x100:0x"), "{:?}", &text[..len]);
    let fid = String::from_utf8(text[..len].to_vec()).unwrap();
    let len = fs::getxattr(&m.path, format!("nacre.path.{fid}"), &mut text).unwrap();
    assert_eq!(&text[..len], b"f");
    assert_eq!(fs::setxattr(&f, "nacre.fid", b"", XattrFlags::empty()), Err(Errno::PERM));
    assert_eq!(fs::setxattr(&f, "nacre.x", b"", XattrFlags::empty()), Err(Errno::NODATA));
    fs::setxattr(&m.path, "nacre.sync", b"", XattrFlags::empty()).unwrap();
    fs::removexattr(&f, "user.a").unwrap();
    assert_eq!(fs::listxattr_query(&f), Ok(0));
}

#[test]
fn a_waiting_lock_is_granted_at_unlock_and_ends_at_a_signal() {
    let Some(m) = served() else { return };
    let open =
        || File::options().read(true).write(true).create(true).truncate(false).open(m.at("f")).unwrap();
    let (a, b) = (open(), open());
    fs::flock(&a, FlockOperation::LockExclusive).unwrap();
    assert_eq!(fs::flock(&b, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK));
    let waiter = std::thread::spawn(move || {
        fs::flock(&b, FlockOperation::LockShared).unwrap();
        b
    });
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert!(!waiter.is_finished());
    fs::flock(&a, FlockOperation::Unlock).unwrap();
    let b = waiter.join().unwrap();
    // Its close drops the lock, as soon as no child that is being started has the descriptor.
    drop(b);
    common::eventually("the lock is free", || {
        fs::flock(&a, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
    // A killed waiter is gone at once.
    let mut child =
        std::process::Command::new("flock").args([m.at("f").to_str().unwrap(), "true"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_handle_of_an_inode_opens_it_again() {
    let Some(m) = served() else { return };
    std::fs::create_dir(m.at("d")).unwrap();
    std::fs::write(m.at("d/f"), "by handle").unwrap();
    let script = r"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class H(ctypes.Structure):
    _fields_ = [('n', ctypes.c_uint), ('t', ctypes.c_int), ('b', ctypes.c_ubyte * 128)]
h = H(n=128); mid = ctypes.c_int()
mnt, path = sys.argv[1].encode(), sys.argv[2].encode()
assert libc.name_to_handle_at(-100, path, ctypes.byref(h), ctypes.byref(mid), 0) == 0, ctypes.get_errno()
with open('/proc/sys/vm/drop_caches', 'w') as f: f.write('2')
root = os.open(mnt, os.O_RDONLY)
fd = libc.open_by_handle_at(root, ctypes.byref(h), os.O_RDONLY)
assert fd >= 0, ctypes.get_errno()
assert os.read(fd, 100) == b'by handle'
";
    let done = std::process::Command::new("python3")
        .args(["-c", script, m.path.to_str().unwrap(), m.at("d/f").to_str().unwrap()])
        .output();
    match done {
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
        Err(_) => eprintln!("skipped: no python3"),
    }
}

#[test]
fn a_bug_in_one_request_is_an_error_for_its_caller_only() {
    let Some(m) = served() else { return };
    assert_eq!(std::fs::metadata(m.at("panic")).unwrap_err().raw_os_error(), Some(5));
    std::fs::write(m.at("f"), "alive").unwrap();
    assert_eq!(std::fs::read(m.at("f")).unwrap(), b"alive");
}

#[test]
fn a_shared_mapping_of_a_direct_file_reaches_the_file_at_close() {
    let Some(m) = served() else { return };
    std::fs::write(m.at("f"), vec![b'a'; 10_000]).unwrap();
    let script = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
with mmap.mmap(fd, 10000, mmap.MAP_SHARED) as map:
    assert map[0:3] == b'aaa'
    map[5000:5003] = b'xyz'
os.close(fd)
";
    match std::process::Command::new("python3").args(["-c", script, m.at("f").to_str().unwrap()]).output() {
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
        Err(_) => return,
    }
    assert_eq!(&std::fs::read(m.at("f")).unwrap()[4999..5004], b"axyza");
}

#[test]
fn a_busy_mount_names_who_uses_it() {
    let Some(m) = served() else { return };
    let held = File::create(m.at("f")).unwrap();
    let error = unmount_fuse(&m.path, Unmount::Idle).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, MountError::Busy { .. }), "{text}");
    assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
    drop(held);
}

#[test]
fn a_mount_whose_server_died_stays_until_the_next_one_takes_its_place() {
    if served().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mounted = mount_fuse(dir.path(), &options(rings())).unwrap();
    // Nobody serves it: looking at it would hang.
    let error = mount_fuse(dir.path(), &options(rings())).err().unwrap().to_string();
    assert!(error.contains("a mount point already (fuse.nacre, its server does not reply)"), "{error}");
    // The last descriptor goes: as after kill -9.
    drop(mounted);
    // A child that is being started may have it for a moment longer; whoever asks until then is told of an abort.
    let is_dead = || std::fs::metadata(dir.path()).is_err_and(|e| e.raw_os_error() == Some(107));
    common::eventually("it is dead", is_dead);
    check_mount_point(dir.path()).unwrap();
    assert!(is_dead());
    let again = mount_fuse(dir.path(), &options(rings())).unwrap();
    let mounts = nacre_fuse::mount_points();
    assert_eq!(mounts.iter().filter(|point| *point == dir.path()).count(), 1, "{mounts:?}");
    unmount_fuse(dir.path(), Unmount::Lazy).unwrap();
    drop(again);
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
}

#[test]
fn requests_held_back_do_not_keep_others_waiting() {
    let Some(m) = served() else { return };
    std::fs::write(m.at("f"), "data").unwrap();
    m.solo().call(|fs| fs.hold("read", None));
    let path = m.at("f");
    let reader = std::thread::spawn(move || {
        let mut f = File::open(path).unwrap();
        f.seek(SeekFrom::Start(1)).unwrap();
        let mut text = String::new();
        f.read_to_string(&mut text).unwrap();
        text
    });
    while m.solo().ask(|fs| fs.waiting("read")) == 0 {
        std::thread::yield_now();
    }
    std::fs::create_dir(m.at("d")).unwrap();
    fs::accessat(fs::CWD, m.at("d"), fs::Access::EXISTS, AtFlags::empty()).unwrap();
    drop(fs::open(m.at("d"), OFlags::DIRECTORY, Mode::empty()).unwrap());
    m.solo().call(MemFs::release_all);
    assert_eq!(reader.join().unwrap(), "ata");
}

/// Binds the calling thread to the first CPU.
fn on_one_cpu() {
    nacre_rt::bind(0).unwrap();
}

#[test]
fn a_crowd_that_waits_for_a_lock_on_one_cpu_leaves_room_for_the_unlock() {
    const CROWD: usize = 100;
    let Some(m) = served() else { return };
    let open = || File::options().write(true).create(true).truncate(false).open(m.at("f")).unwrap();
    let holder = open();
    fs::flock(&holder, FlockOperation::LockExclusive).unwrap();
    let start = std::sync::Arc::new(std::sync::Barrier::new(CROWD + 1));
    let crowd: Vec<_> = (0..CROWD)
        .map(|_| {
            let (start, file) = (start.clone(), open());
            std::thread::spawn(move || {
                on_one_cpu();
                start.wait();
                fs::flock(&file, FlockOperation::LockExclusive).unwrap();
                file.write_all_at(b"mine", 0).unwrap();
                fs::flock(&file, FlockOperation::Unlock).unwrap();
            })
        })
        .collect();
    let path = m.at("f");
    let holder = std::thread::spawn(move || {
        on_one_cpu();
        start.wait();
        // The last of the crowd may come after this; most wait by then.
        for _ in 0..CROWD {
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        }
        fs::flock(&holder, FlockOperation::Unlock).unwrap();
    });
    common::eventually("the holder has unlocked", || holder.is_finished());
    holder.join().unwrap();
    for waiter in crowd {
        common::eventually("a waiter has had the lock", || waiter.is_finished());
        waiter.join().unwrap();
    }
    assert_eq!(std::fs::read(m.at("f")).unwrap(), b"mine");
}

#[test]
fn a_crowd_that_overtakes_the_server_is_served_from_the_first_to_the_last() {
    let Some(m) = served() else { return };
    // With a priority above the server's, on its CPU: all of them ask before it has seen the first.
    let script = r"
import fcntl, os, sys, time
os.sched_setaffinity(0, {0})
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except PermissionError:
    sys.exit(0)
holder = open(sys.argv[1], 'w')
fcntl.flock(holder, fcntl.LOCK_EX)
ready, go = os.pipe()
done, tell = os.pipe()
for n in range(60):
    if os.fork() == 0:
        f = open(sys.argv[1], 'a')
        os.close(go)
        os.read(ready, 1)
        fcntl.flock(f, fcntl.LOCK_EX)
        os.write(tell, b'x')
        os._exit(0)
time.sleep(0.1)
os.close(go)
time.sleep(0.1)
fcntl.flock(holder, fcntl.LOCK_UN)
for n in range(60):
    os.wait()
assert len(os.read(done, 100)) == 60
";
    let path = m.at("f");
    let Ok(mut child) = std::process::Command::new("python3").args(["-c", script]).arg(&path).spawn() else {
        eprintln!("skipped: no python3");
        return;
    };
    common::eventually("everybody has had the lock", || child.try_wait().unwrap().is_some());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_signal_at_any_moment_ends_a_waiting_lock() {
    let Some(m) = served() else { return };
    let holder = File::create(m.at("f")).unwrap();
    fs::flock(&holder, FlockOperation::LockExclusive).unwrap();
    // The child signals itself, so that the signal is often pending when the wait begins.
    let script = r"
import fcntl, os, signal, sys, threading, time
f = open(sys.argv[1], 'w')
class Over(Exception): pass
def over(*_): raise Over
signal.signal(signal.SIGALRM, over)
for n in range(100):
    try:
        # Again after a while: the first may come before the call, and end nothing.
        signal.setitimer(signal.ITIMER_REAL, 0.00001 + n * 0.000002, 0.3)
        fcntl.flock(f, fcntl.LOCK_EX)
        sys.exit('granted')
    except Over:
        signal.setitimer(signal.ITIMER_REAL, 0)
";
    let path = m.at("f");
    let Ok(mut child) = std::process::Command::new("python3").args(["-c", script]).arg(&path).spawn() else {
        eprintln!("skipped: no python3");
        return;
    };
    common::eventually("every wait has ended", || child.try_wait().unwrap().is_some());
    assert!(child.wait().unwrap().success());
}

#[test]
fn large_requests_in_crowds_keep_their_bytes() {
    let Some(m) = served() else { return };
    let threads: Vec<_> = (0..24u8)
        .map(|t| {
            let path = m.at(&format!("f{t}"));
            std::thread::spawn(move || {
                on_one_cpu();
                let data: Vec<u8> = (0..3_000_000u32).map(|n| (n >> 9) as u8 ^ t).collect();
                for _ in 0..3 {
                    std::fs::write(&path, &data).unwrap();
                    assert!(std::fs::read(&path).unwrap() == data);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
