//! A target that fails under a running `nacre up`: its disk or its directory is gone. What programs, `status` and `down` are
//! told, and the next `up`. Needs root and /dev/fuse; without them the tests say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::{Machine, eventually, said};
use rustix::io::Errno;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// The server may make a file in it at the same time.
fn remove(dir: &Path) {
    eventually("the directory is removed", || fs::remove_dir_all(dir).is_ok() || !dir.exists());
}

#[test]
fn a_failed_up_leaves_its_mount_point_covered_and_says_why_until_the_next_up() {
    let Some(m) = Machine::new() else { return };
    let (mount, data) = (m.mount(), m.path("data"));
    let osts = [data.join("ost0"), data.join("ost1")];
    let up = m.up();
    fs::write(mount.join("a"), "kept").unwrap();
    m.good(&["sync", mount.to_str().unwrap()]);
    for ost in &osts {
        fs::rename(ost.join("objects"), ost.join("away")).unwrap();
    }
    // Acknowledged or not: no OST can make an object.
    drop(fs::write(mount.join("b"), vec![1; 1 << 20]));
    let said = up.ended();
    assert_eq!(said.code, Some(1), "{} {}", said.out, said.err);
    let point = mount.to_str().unwrap();
    for word in [&format!("{point} has failed"), "nacre-OST000", "files were removed from the store", "hint:"]
    {
        assert!(said.err.contains(word), "{word} is not in {}", said.err);
    }
    assert!(!said.err.contains("the data is kept"), "{}", said.err);
    // Nothing goes into the directory below.
    let write = fs::write(mount.join("c"), "misplaced").unwrap_err();
    assert_eq!(write.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
    let status = m.nacre(&["status"]);
    assert_eq!(status.code, Some(4), "{}", status.out);
    for word in ["nacre-MDT0000", " down ", "its process failed", "files were removed from the store", point]
    {
        assert!(status.out.contains(word), "{word} is not in {}", status.out);
    }
    // The cause is mended.
    for ost in &osts {
        fs::rename(ost.join("away"), ost.join("objects")).unwrap();
    }
    let up = m.up();
    assert_eq!(fs::read_to_string(mount.join("a")).unwrap(), "kept");
    assert!(!mount.join("c").exists());
    assert!(m.good(&["status"]).contains(" up "));
    up.stop();
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0, "unmounted, and nothing was written below");
    m.good(&["check", data.to_str().unwrap()]);
}

#[test]
fn a_file_system_whose_directory_was_removed_is_down_although_nobody_uses_it() {
    let Some(m) = Machine::new() else { return };
    let (mount, data) = (m.mount(), m.path("data"));
    let (point, dir) = (mount.to_str().unwrap(), data.to_str().unwrap());
    m.good(&["up", point, "--dir", dir, "--detach"]);
    fs::write(mount.join("a"), "lost").unwrap();
    m.good(&["sync", point]);
    // Its log goes on where it can be read.
    fs::hard_link(data.join("nacre.log"), m.path("log")).unwrap();
    remove(&data);
    // A process that is ending does not reply any more, a moment before its reason can be read.
    eventually("it has failed", || {
        let status = m.nacre(&["status"]);
        status.code == Some(4) && status.out.contains("files were removed from the store")
    });
    let status = m.nacre(&["status"]).out;
    for word in [" down ", point] {
        assert!(status.contains(word), "{word} is not in {status}");
    }
    let read = fs::read(mount.join("a")).unwrap_err();
    assert!(
        [Errno::NOTCONN, Errno::CONNABORTED].map(|e| Some(e.raw_os_error())).contains(&read.raw_os_error())
    );
    assert!(!m.nacre(&["sync", point]).ok);
    m.refused(&["down"], &["no `nacre up` runs"]);
    let log = fs::read_to_string(m.path("log")).unwrap();
    assert!(log.contains("the process ends") && log.contains("files were removed from the store"), "{log}");
    assert!(log.matches("cannot be created in advance").count() <= 1, "{log}");
    m.good(&["umount", "--lazy", point]);
    assert!(m.good(&["status"]).contains("nothing runs"));
}

#[test]
fn down_does_not_claim_that_removed_data_is_kept() {
    let Some(m) = Machine::new() else { return };
    let (mount, data) = (m.mount(), m.path("data"));
    let up = m.up();
    fs::write(mount.join("a"), "lost").unwrap();
    up.signal(Signal::STOP);
    fs::remove_dir_all(&data).unwrap();
    let mut down = m.command();
    let down = down.arg("down").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pending = || {
        let status = fs::read_to_string(format!("/proc/{}/status", up.pid())).unwrap();
        let set = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
        u64::from_str_radix(set.trim(), 16).unwrap() & (1 << (Signal::TERM.as_raw() - 1)) != 0
    };
    eventually("it is asked to stop", pending);
    up.signal(Signal::CONT);
    let said = said(down.wait_with_output().unwrap());
    assert_eq!(said.code, Some(1), "{} {}", said.out, said.err);
    assert!(!said.out.contains("the data is kept"), "{}", said.out);
    assert!(
        said.err.contains("not as planned") || said.err.contains("is not there any more"),
        "{}",
        said.err
    );
    let said = up.ended();
    assert!(said.code == Some(1) && !said.err.contains("the data is kept"), "{}", said.err);
}
