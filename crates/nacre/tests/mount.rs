//! The life of a mount: every way to end it, servers that are away, name spaces that have a copy. Needs root and
//! /dev/fuse; without them the tests say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::{Machine, Running, eventually};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process_group, test_kill_process_group,
};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A file system, and a second mount of it in a process of its own.
struct Second {
    m: Machine,
    up: Running,
    address: String,
}

impl Second {
    fn new() -> Option<Self> {
        let m = Machine::new()?;
        let up = m.up();
        let address = up.address();
        Some(Self { m, up, address })
    }
    fn dir(&self) -> PathBuf {
        self.m.path("b")
    }
    fn mount(&self) -> Running {
        self.m.start(&["mount", &self.address, self.dir().to_str().unwrap()], "next: ")
    }
    fn umount(&self, flags: &[&str]) -> machine::Said {
        let dir = self.dir();
        let args: Vec<&str> =
            ["umount"].iter().chain(flags).copied().chain([dir.to_str().unwrap()]).collect();
        let said = self.m.nacre(&args);
        assert!(said.ok, "{}", said.err);
        said
    }
    fn is_mounted(&self) -> bool {
        fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {} ", self.dir().display()))
    }
    fn open(&self) -> File {
        let file = File::create(self.dir().join("held")).unwrap();
        (&file).write_all(b"before").unwrap();
        file
    }
}

fn ended_well(mount: Running) {
    let said = mount.ended();
    assert!(said.ok, "{} {}", said.out, said.err);
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    eventually("a killed process ends", || child.try_wait().unwrap().is_some());
}

/// Waits until a process waits for the reply to a request of a mount.
fn is_waiting(child: &Child) {
    let wchan = format!("/proc/{}/wchan", child.id());
    eventually("it waits", || fs::read_to_string(&wchan).unwrap().contains("request_wait_answer"));
}

/// Whether this process, and what it starts, ignores SIGHUP.
fn is_hangup_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(mask, 16).unwrap() & 1 != 0
}

#[test]
fn every_signal_ends_an_idle_mount_and_leaves_nothing_behind() {
    let Some(s) = Second::new() else { return };
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        // The mounts of a test under nohup(1) ignore it, as they should.
        if signal == Signal::HUP && is_hangup_ignored() {
            s.up.stop();
            return;
        }
        let mount = s.mount();
        fs::write(s.dir().join("f"), "x").unwrap();
        mount.signal(signal);
        ended_well(mount);
        assert!(!s.is_mounted(), "{signal:?}");
    }
    // A terminal that goes away asks nobody: open files go on to their end.
    let mount = s.mount();
    let file = s.open();
    mount.signal(Signal::HUP);
    eventually("the name is gone", || !s.is_mounted());
    mount.signal(Signal::HUP);
    (&file).write_all(b"after").unwrap();
    drop(file);
    ended_well(mount);
    assert_eq!(fs::read(s.m.mount().join("held")).unwrap(), b"beforeafter");
    s.up.stop();
}

#[test]
fn the_second_ctrl_c_ends_a_mount_with_open_files_and_a_killed_one_is_mounted_over() {
    let Some(s) = Second::new() else { return };
    let mut mount = s.mount();
    let file = s.open();
    mount.signal(Signal::INT);
    let said = mount.complains("cannot unmount");
    assert!(said.contains(&format!("(pid {})", std::process::id())), "{said}");
    (&file).write_all(b"after").unwrap();
    mount.signal(Signal::INT);
    ended_well(mount);
    assert!(!s.is_mounted());
    assert!((&file).write_all(b"too late").is_err());
    drop(file);
    s.mount().kill();
    assert!(s.is_mounted());
    let mount = s.mount();
    assert_eq!(fs::read(s.dir().join("held")).unwrap(), b"beforeafter");
    assert!(Command::new("umount").arg(s.dir()).status().unwrap().success());
    ended_well(mount);
    s.up.stop();
}

#[test]
fn lazily_detached_or_copied_a_mount_lives_until_its_last_user_and_umount_says_so() {
    let Some(s) = Second::new() else { return };
    let mount = s.mount();
    let file = s.open();
    let said = s.umount(&["--lazy"]);
    assert!(said.err.contains(&format!("(pid {})", std::process::id())), "{}", said.err);
    assert!(!s.is_mounted());
    (&file).write_all(b"after").unwrap();
    drop(file);
    ended_well(mount);

    let mut mount = s.mount();
    let copy = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sleep", "1000"])
        .spawn()
        .unwrap();
    let name_space = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
    let command = format!("/proc/{}/comm", copy.id());
    eventually("the name space is there", || {
        name_space(&copy.id().to_string()) != name_space("self")
            && fs::read_to_string(&command).unwrap() == "sleep\n"
    });
    let said = s.umount(&[]);
    assert!(said.err.contains(&format!("sleep (pid {})", copy.id())), "{}", said.err);
    assert!(!s.is_mounted());
    assert!(mount.is_running());
    kill(copy);
    ended_well(mount);
    s.up.stop();
}

#[test]
fn servers_that_are_away_keep_neither_processes_nor_the_mount() {
    let Some(s) = Second::new() else { return };
    let mount = s.mount();
    let _file = s.open();
    s.up.signal(Signal::STOP);
    eventually("every thread has stopped", || machine::stands_still(s.up.pid()));
    let run = |program: &str, name: &str| {
        let mut command = Command::new(program);
        command.arg(s.dir().join(name)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mkdir = run("mkdir", "d");
    is_waiting(&mkdir);
    kill(mkdir);
    let mut cat = run("cat", "held");
    is_waiting(&cat);
    let busy = s.m.refused(&["umount", s.dir().to_str().unwrap()], &["is in use by", "--force"]);
    assert!(busy.contains(&format!("(pid {})", std::process::id())), "{busy}");
    let said = s.umount(&["--force"]);
    assert!(!s.is_mounted(), "{}", said.err);
    assert!(!cat.wait().unwrap().success());
    ended_well(mount);
    s.up.signal(Signal::CONT);
    s.up.stop();
}

/// Over io_uring the kernel never reports a signal that came before it had copied the request to the mount.
#[test]
fn a_program_that_is_killed_before_its_request_has_reached_the_mount_ends() {
    let Some(s) = Second::new() else { return };
    let mount = s.mount();
    // Until all rings have started, the kernel makes callers wait before there is a request.
    assert!(!s.dir().join("none").exists());
    for process in [&s.up, &mount] {
        process.signal(Signal::STOP);
        eventually("every thread has stopped", || machine::stands_still(process.pid()));
    }
    let mut mkdir = Command::new("mkdir").arg(s.dir().join("d")).stderr(Stdio::null()).spawn().unwrap();
    is_waiting(&mkdir);
    mkdir.kill().unwrap();
    mount.signal(Signal::CONT);
    kill(mkdir);
    s.up.signal(Signal::CONT);
    s.umount(&[]);
    ended_well(mount);
    s.up.stop();
}

#[test]
fn without_its_servers_a_mount_is_unmounted_and_its_process_gives_up() {
    let Some(s) = Second::new() else { return };
    let mount = s.mount();
    fs::write(s.dir().join("f"), "acknowledged").unwrap();
    let file = s.open();
    let Second { m, up, address } = s;
    let dir = m.path("b");
    m.good(&["sync", dir.to_str().unwrap()]);
    up.kill();
    // Closing waits for nobody; the server hears of it later, or never.
    drop(file);
    let waiting = Command::new("cat").arg(dir.join("f")).spawn().unwrap();
    is_waiting(&waiting);
    // Only a call that waits is in the way: it has no descriptor that could be seen.
    m.refused(
        &["umount", dir.to_str().unwrap()],
        &["calls that wait for servers or for other mounts:", &format!("cat (pid {}) in ", waiting.id())],
    );
    kill(waiting);
    let said = m.nacre(&["umount", dir.to_str().unwrap()]);
    assert!(said.ok, "{}", said.err);
    let said = mount.ended();
    assert!(said.ok && said.err.contains("without_reply="), "{} {}", said.out, said.err);
    let up = m.up();
    assert_eq!(up.address(), address);
    assert_eq!(fs::read(m.mount().join("f")).unwrap(), b"acknowledged");
    up.stop();
}

/// `nacre mount` of servers that were never there, until it says so.
fn waiting_mount(m: &Machine, more: &[&str]) -> (Child, BufReader<std::process::ChildStderr>) {
    let source = format!("unix:{}:/demo", m.path("none.sock").display());
    let dir = m.path("b");
    let mut command = m.command();
    command.args(["mount", &source, dir.to_str().unwrap()]).args(more);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("waiting for the servers at") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended: {:?}", child.wait());
    }
    (child, stderr)
}

fn rest(stderr: BufReader<std::process::ChildStderr>) -> String {
    stderr.lines().map(|l| l.unwrap() + "\n").collect()
}

/// Not mounted; the command may have removed the directory again that it had made.
fn is_not_mounted(dir: &Path) {
    assert!(fs::read_dir(dir).is_ok_and(|mut names| names.next().is_none()) || !dir.exists());
}

#[test]
fn a_mount_whose_servers_are_not_there_says_so_and_is_given_up_by_ctrl_c() {
    let Some(m) = Machine::new() else { return };
    let (mut child, stderr) = waiting_mount(&m, &[]);
    let group = Pid::from_child(&child);
    kill_process_group(group, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(rest(stderr).contains("did not reply"));
    is_not_mounted(&m.path("b"));
    // In the background: the command waits and talks, and Ctrl-C reaches both, as does the end of the command alone.
    for alone in [false, true] {
        let (mut child, stderr) = waiting_mount(&m, &["--detach"]);
        let group = Pid::from_child(&child);
        if alone {
            child.kill().unwrap();
        } else {
            kill_process_group(group, Signal::INT).unwrap();
        }
        child.wait().unwrap();
        eventually("nobody is left", || test_kill_process_group(group).is_err());
        drop(stderr);
    }
    is_not_mounted(&m.path("b"));
}

/// A thread of the mount that cannot be killed, because it waits inside a notification, keeps the descriptors of its
/// process open; here the test does.
#[test]
fn callers_of_a_killed_mount_do_not_wait_for_a_connection_that_is_still_open() {
    let Some(s) = Second::new() else { return };
    let mount = s.mount();
    let pid = Pid::from_raw(mount.pid().cast_signed()).unwrap();
    let fuse =
        |entry: &fs::DirEntry| fs::read_link(entry.path()).unwrap_or_default() == Path::new("/dev/fuse");
    let mut fds = fs::read_dir(format!("/proc/{}/fd", mount.pid())).unwrap().map(Result::unwrap);
    let number = fds.find(fuse).unwrap().file_name().into_string().unwrap().parse().unwrap();
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let held = rustix::process::pidfd_getfd(process, number, PidfdGetfdFlags::empty()).unwrap();
    mount.kill();
    let mut caller = Command::new("cat").arg(s.dir().join("f")).stderr(Stdio::null()).spawn().unwrap();
    eventually("its call ends", || caller.try_wait().unwrap().is_some());
    drop(held);
    s.umount(&["--lazy"]);
}

/// `mount -o remount` through the helper, as mount(8) calls it, and `nacre mount -o remount`.
#[test]
fn a_remount_changes_what_the_mount_may_do_without_a_break() {
    use std::os::unix::fs::MetadataExt as _;
    let Some(s) = Second::new() else { return };
    let mount = s.mount();
    let (dir, file) = (s.dir(), s.dir().join("f"));
    let refused = |done: std::io::Result<()>| assert_eq!(done.unwrap_err().raw_os_error(), Some(30), "EROFS");
    let remount = |words: &str| {
        s.m.good(&["mount", &s.address, dir.to_str().unwrap(), "-o", &format!("remount,{words}")])
    };
    fs::write(&file, "one").unwrap();
    // A file that is open for writing keeps a mount writable, as everywhere.
    let writer = s.open();
    let busy = s.m.nacre(&["mount", &s.address, dir.to_str().unwrap(), "-o", "remount,ro"]);
    assert!(!busy.ok && busy.err.contains("open for writing"), "{}", busy.err);
    (&writer).write_all(b"more").unwrap();
    drop(writer);
    let reader = File::open(&file).unwrap();
    let out = remount("ro");
    assert!(out.contains("ro,"), "{out}");
    refused(fs::write(&file, "two"));
    refused(fs::create_dir(dir.join("d")));
    let setstripe = s.m.nacre(&["lfs", "setstripe", "-c", "1", dir.to_str().unwrap()]);
    assert!(!setstripe.ok && setstripe.err.contains("Read-only"), "{}", setstripe.err);
    assert_eq!(fs::read_to_string(&file).unwrap(), "one", "{:?}", reader.metadata());
    // A mount that was read-only from its start can become writable.
    drop(reader);
    s.umount(&[]);
    ended_well(mount);
    let mount = s.m.start(&["mount", &s.address, dir.to_str().unwrap(), "-o", "ro,nosuid,noatime"], "next: ");
    refused(fs::write(&file, "two"));
    // With the words that mount(8) takes from the table of mounts.
    let helper = s.m.path("mount.fuse.nacre");
    std::os::unix::fs::symlink(s.m.command().get_program(), &helper).unwrap();
    let words = "rw,nosuid,relatime,user_id=0,group_id=0,default_permissions,allow_other,strictatime,remount";
    let status = Command::new(&helper)
        .envs(s.m.command().get_envs().filter_map(|(k, v)| Some((k, v?))))
        .args([&s.address, dir.to_str().unwrap(), "-o", words])
        .status();
    assert!(status.unwrap().success());
    fs::write(&file, "two").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "two");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(dir.to_str().unwrap())).unwrap();
    assert!(line.contains("rw,nosuid") && !line.contains("atime"), "{line}");
    let before = fs::metadata(&file).unwrap();
    eventually("a read changes the access time at once, as strictatime says", || {
        fs::read(&file).unwrap();
        let now = fs::metadata(&file).unwrap();
        (now.atime(), now.atime_nsec()) > (before.atime(), before.atime_nsec())
    });
    let other = s.address.replace(":/nacre", ":/other");
    s.m.refused(
        &["mount", &other, dir.to_str().unwrap(), "-o", "remount,ro"],
        &["of the file system nacre", "not of other"],
    );
    for (words, why) in [
        ("intr", "cannot change intr"),
        ("write_through", "cannot change write_through"),
        ("blue", "unknown mount option"),
    ] {
        let said =
            s.m.nacre(&["mount", &s.address, dir.to_str().unwrap(), "-o", &format!("remount,{words}")]);
        assert!(!said.ok && said.err.contains(why), "{}", said.err);
    }
    s.m.refused(&["up", s.m.path("c").to_str().unwrap(), "-o", "remount,ro"], &["for a mount that exists"]);
    s.umount(&[]);
    ended_well(mount);
}

/// Through fusermount3, on a directory of his own.
#[test]
fn an_ordinary_user_mounts_uses_and_unmounts_a_file_system_of_his_own() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    const USER: u32 = 65_534;
    let Some(m) = Machine::new() else { return };
    if Command::new("fusermount3").arg("--version").output().is_err() {
        eprintln!("skipped: needs fusermount3 of the package fuse3");
        return;
    }
    // As udev does it; containers may have it otherwise.
    fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
    let (home, run) = (m.made("home"), m.made("run"));
    [&home, &run].iter().for_each(|dir| chown(dir, Some(USER), Some(USER)).unwrap());
    let (mnt, data) = (home.join("mnt"), home.join("data"));
    let good = |args: &[&str]| {
        let said = m.nacre_as(USER, "", args);
        assert!(said.ok, "{args:?}: {} {}", said.out, said.err);
        said.out
    };
    let shell = |script: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-ec", script]);
        let said = command.current_dir(&home).output().unwrap();
        assert!(said.status.success(), "{script}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap()
    };
    let up = ["up", mnt.to_str().unwrap(), "--dir", data.to_str().unwrap(), "--detach"];
    good(&up);
    assert_eq!(
        shell("stat -c %u mnt; echo one > mnt/f; mkdir mnt/d; mv mnt/f mnt/d/g; cat mnt/d/g"),
        "65534\none\n"
    );
    assert!(good(&["status"]).contains("nacre-OST0001"));
    let busy = shell("exec 3< mnt/d/g; ! fusermount3 -u mnt 2>&1; echo still");
    assert!(busy.contains("busy") && busy.contains("still"), "{busy}");
    good(&["down"]);
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 0, "it is unmounted");
    assert_eq!(fs::metadata(&data).unwrap().uid(), USER);
    // A mount whose process was killed is cleared.
    good(&up);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(mnt.to_str().unwrap())).unwrap();
    assert!(
        line.contains("nosuid") && line.contains("user_id=65534") && line.contains("fuse.nacre"),
        "{line}"
    );
    let pids = Command::new("pgrep").args(["-u", "65534", "-f", mnt.to_str().unwrap()]).output().unwrap();
    for pid in String::from_utf8(pids.stdout).unwrap().split_whitespace() {
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    eventually("the mount is dead", || !shell("cat mnt/d/g 2>&1 || true").contains("one"));
    good(&up);
    assert_eq!(shell("cat mnt/d/g"), "one\n");
    good(&["umount", mnt.to_str().unwrap()]);
    // A directory of somebody else is none to mount on.
    let other = m.made("other");
    let said = m.nacre_as(USER, "", &["up", other.to_str().unwrap(), "--ephemeral", "--detach"]);
    assert!(!said.ok && said.err.contains("directory of his own"), "{} {}", said.out, said.err);
}

/// Bytes of the objects that the page cache has; `None`: the file system of the store always has it, or nobody can ask.
fn cached_bytes(m: &Machine) -> Option<u64> {
    let data = m.path("data");
    if !matches!(rustix::fs::statfs(&data).unwrap().f_type, 0xef53 | 0x5846_5342) {
        return None;
    }
    let files = "find \"$0\" -path '*/objects/*' -type f -exec fincore -b -n -o RES {} +";
    let found = Command::new("sh").args(["-c", files]).arg(&data).output().unwrap();
    let lines = String::from_utf8(found.stdout).unwrap();
    found.status.success().then(|| lines.lines().map(|line| line.trim().parse::<u64>().unwrap()).sum())
}

/// A mount in the process of the targets writes into the page cache of the store, others past it if that is not turned off.
#[test]
fn write_back_of_other_processes_goes_past_the_page_cache_of_the_store() {
    let Some(second) = Second::new() else { return };
    let mount = second.mount();
    let m = &second.m;
    let Some(mut before) = cached_bytes(m) else { return };
    let mut grows_by = |dir: PathBuf, name: &str| {
        let file = File::create(dir.join(name)).unwrap();
        for part in 0..8 {
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![part; 1 << 20], u64::from(part) << 20)
                .unwrap();
        }
        file.sync_all().unwrap();
        let after = cached_bytes(m).unwrap();
        std::mem::replace(&mut before, after).abs_diff(after) >> 20
    };
    assert_eq!(grows_by(m.mount(), "local"), 8);
    assert_eq!(grows_by(second.dir(), "remote"), 0);
    m.good(&["lctl", "set_param", "obdfilter.*.writethrough_cache_enable=1"]);
    assert_eq!(grows_by(second.dir(), "cached"), 8);
    for name in ["local", "remote", "cached"] {
        let bytes = fs::read(m.mount().join(name)).unwrap();
        assert!(bytes.chunks(1 << 20).zip(0..).all(|(chunk, part)| *chunk == vec![part; 1 << 20]), "{name}");
    }
    assert!(second.umount(&[]).ok);
    ended_well(mount);
    second.up.stop();
}
