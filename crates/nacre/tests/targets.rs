//! Targets that were made anew or put back from an old copy, as servers, mounts and tools see them (docs/targets.md). Needs
//! root and /dev/fuse; without them the tests say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::cluster::Cluster;
use machine::{Machine, Running, eventually};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const EIO: Option<i32> = Some(5);

/// Makes a file on one OST.
fn put(m: &Machine, mount: &Path, name: &str, ost: u32, data: &[u8]) -> PathBuf {
    let file = mount.join(name);
    let ost = ost.to_string();
    m.good(&["lfs", "setstripe", "-L", "raid0", "-c", "1", "-i", &ost, file.to_str().unwrap()]);
    fs::write(&file, data).unwrap();
    file
}
/// What a file holds, or why it cannot be read. Never less than what was written.
fn whole(file: &Path, data: &[u8]) -> Result<(), Option<i32>> {
    match fs::read(file) {
        Ok(found) => {
            assert!(found == data, "{}: {} bytes of {} are right", file.display(), found.len(), data.len());
            Ok(())
        }
        Err(error) => Err(io::Error::raw_os_error(&error)),
    }
}
fn reformat(m: &Machine, dir: &Path, fs_name: &str, index: &str, mgs: &str) {
    let dir = dir.to_str().unwrap();
    let args = ["mkfs", "--ost", "--reformat", "--fsname", fs_name, "--index", index, "--mgsnode", mgs, dir];
    m.good(&args);
}
fn copy(from: &Path, to: &Path) {
    drop(fs::remove_dir_all(to));
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn a_blank_ost_under_serve_is_refused_and_gives_no_zeros() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let ost1 = m.path("ost1");
    let (index, mgs_at) = ("1", c.mgs());
    reformat(&m, &ost1, "demo", index, &mgs_at);
    let [mgs, _mdt, _ost] = c.all();
    let second = c.serve("ost1");
    let _mount = c.mount("a");
    let a = c.mnt("a");
    for (index, name) in ["0", "1"].into_iter().zip(["first", "second"]) {
        eventually("the OST takes files", || {
            m.nacre(&["lfs", "setstripe", "-c", "1", "-i", index, a.join(name).to_str().unwrap()]).ok
        });
    }
    let (zero, one) = (put(&m, &a, "zero", 0, b"on the first"), put(&m, &a, "one", 1, &[7; 300_000]));
    m.good(&["sync", a.to_str().unwrap()]);
    drop(mgs);
    drop(second);
    reformat(&m, &ost1, "demo", index, &mgs_at);
    // Without an MGS the mount itself must tell.
    let blank = c.serve("ost1");
    eventually("the mount refuses it", || whole(&one, &[7; 300_000]) == Err(EIO));
    let sum = Command::new("md5sum").arg(&one).output().unwrap();
    assert!(!sum.status.success() && sum.stdout.is_empty(), "{sum:?}");
    assert_eq!(
        fs::OpenOptions::new().write(true).open(&one).and_then(|f| f.set_len(5)).unwrap_err().raw_os_error(),
        EIO
    );
    assert_eq!(whole(&zero, b"on the first"), Ok(()));
    let df = m.good(&["lfs", "df", a.to_str().unwrap()]);
    assert!(df.contains("is another target"), "{df}");
    let _mgs = c.serve("mgs");
    let mut blank = blank;
    let mut status = None;
    eventually("the blank one ends", || {
        status = blank.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.and_then(|s| s.code()), Some(1));
    let log = fs::read_to_string(m.path("ost1.log")).unwrap();
    for word in
        ["demo-OST0001 is another target", "registered at the MGS", "nacre target replace demo-OST0001"]
    {
        assert!(log.contains(word), "{word:?} is not in {log}");
    }
    // It is lost for good.
    eventually("the MGS replies", || m.nacre(&["target", "list", "demo"]).ok);
    let said = m.good(&["target", "replace", "demo-OST0001", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["target"], &said["replaced"]), (&"demo-OST0001".into(), &0.into()));
    let _blank = c.serve("ost1");
    let fresh = a.join("fresh");
    eventually("new files lie on it", || {
        m.nacre(&["lfs", "setstripe", "-c", "1", "-i", "1", fresh.to_str().unwrap()]).ok
    });
    fs::write(&fresh, "new").unwrap();
    assert_eq!(whole(&fresh, b"new"), Ok(()));
    assert_eq!(whole(&one, &[7; 300_000]), Err(EIO), "lost, and no hole");
    assert_eq!(whole(&zero, b"on the first"), Ok(()));
    let _later = c.mount("b");
    assert_eq!(whole(&c.mnt("b").join("one"), &[7; 300_000]), Err(EIO), "for a new mount, too");
    assert_eq!(whole(&c.mnt("b").join("fresh"), b"new"), Ok(()));
    fs::remove_file(&one).unwrap();
    let list = m.good(&["target", "list", "demo"]);
    assert!(list.lines().any(|l| l.starts_with("demo-OST0001") && l.contains("  1  ")), "{list}");
}

/// What a copy is served as must never be taken for the original while that lives; the original is not disturbed.
#[test]
fn a_copy_beside_the_living_original_ends_with_an_error() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let [mgs, _mdt, ost] = c.all();
    let _mount = c.mount("a");
    let file = c.mnt("a").join("file");
    eventually("the OST takes files", || fs::write(&file, b"kept").is_ok());
    m.good(&["sync", c.mnt("a").to_str().unwrap()]);
    let is_refused = |when: &str| {
        copy(&c.dir("ost"), &c.dir("copy"));
        let mut started = c.serve("copy");
        let mut status = None;
        eventually(when, || {
            status = started.child.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.and_then(|s| s.code()), Some(1), "{when}");
        let log = fs::read_to_string(c.dir("copy.log")).unwrap();
        assert!(log.contains("demo-OST0000 is being served by another process"), "{when}: {log}");
        assert!(log.contains("hint: stop the other process first"), "{when}: {log}");
        assert_eq!(whole(&file, b"kept"), Ok(()), "{when}");
    };
    is_refused("the copy of a target that is connected to the MGS ends");
    drop(mgs);
    let _mgs = c.serve("mgs");
    is_refused("the copy ends that comes while the MGS starts");
    // Both live as before.
    fs::write(&file, b"more").unwrap();
    let list = m.good(&["target", "list", "demo"]);
    assert!(!list.contains("copy"), "{list}");
    // The original has ended: there is nobody whose place the copy would take.
    drop(ost);
    copy(&c.dir("ost"), &c.dir("copy"));
    let _copy = c.serve("copy");
    eventually("the copy is registered", || m.good(&["target", "list", "demo"]).contains("copy"));
    assert_eq!(whole(&file, b"more"), Ok(()));
}

const UP: [&str; 4] = ["--fsname", "demo", "--osts", "2"];
fn up(m: &Machine) -> Running {
    m.up_with(&UP)
}
fn up_is_refused(m: &Machine, words: &[&str]) {
    let (mount, data) = (m.mount(), m.path("data"));
    let args = [&["up", mount.to_str().unwrap(), "--dir", data.to_str().unwrap()], &UP[..]].concat();
    m.refused(&args, words);
    assert!(fs::read_dir(&mount).unwrap().next().is_none(), "nothing is mounted");
}

#[test]
fn an_up_with_a_blank_ost_does_not_start() {
    let Some(m) = Machine::new() else { return };
    let (mount, data) = (m.mount(), m.path("data"));
    let running = up(&m);
    let (zero, one) = (put(&m, &mount, "zero", 0, b"first"), put(&m, &mount, "one", 1, b"second"));
    running.stop();
    let mgs_at = format!("unix:{}", data.join("nacre.sock").display());
    reformat(&m, &data.join("ost1"), "demo", "1", &mgs_at);
    let words = ["demo-OST0001 is another target", "nacre target replace demo-OST0001", "--mgs DIR"];
    up_is_refused(&m, &words);
    up_is_refused(&m, &words);
    let said = m.good(&["target", "replace", "demo-OST0001", "--mgs", data.to_str().unwrap()]);
    assert!(said.contains("an empty target is admitted at its next start"), "{said}");
    let running = up(&m);
    assert_eq!((whole(&zero, b"first"), whole(&one, b"second")), (Ok(()), Err(EIO)));
    let fresh = put(&m, &mount, "fresh", 1, b"third");
    assert_eq!(whole(&fresh, b"third"), Ok(()));
    running.stop();
    // Offline: which files are hit.
    let said = m.nacre(&["check", data.to_str().unwrap()]);
    assert_eq!(said.code, Some(1), "{} {}", said.out, said.err);
    assert!(said.out.contains("/one: ") && said.out.contains("demo-OST0001"), "{}", said.out);
    assert!(!said.out.contains("/zero") && !said.out.contains("/fresh"), "{}", said.out);
}

#[test]
fn an_up_replaces_a_lost_ost_after_the_command_that_its_refusal_names() {
    let Some(m) = Machine::new() else { return };
    let (mount, data) = (m.mount(), m.path("data"));
    let (ost1, data_text) = (data.join("ost1"), data.to_str().unwrap());
    let running = up(&m);
    let (zero, one) = (put(&m, &mount, "zero", 0, b"first"), put(&m, &mount, "one", 1, b"second"));
    running.stop();
    fs::remove_dir_all(&ost1).unwrap();
    let command = format!("nacre target replace demo-OST0001 --mgs {data_text}");
    let words = ["demo-OST0001 is missing", "put it back", &command];
    up_is_refused(&m, &words);
    assert!(!ost1.exists(), "nothing is formatted without an admission");
    fs::create_dir(&ost1).unwrap();
    up_is_refused(&m, &words);
    assert!(fs::read_dir(&ost1).unwrap().next().is_none(), "nothing is formatted without an admission");

    let args: Vec<&str> = command.split(' ').skip(1).collect();
    let said = m.good(&args);
    assert!(said.contains(&format!("formats an empty target in {}", ost1.display())), "{said}");
    m.good(&[&args[..], &["--revoke"]].concat());
    up_is_refused(&m, &words);
    m.good(&args);
    fs::remove_dir(&ost1).unwrap();
    let running = up(&m);
    assert_eq!((whole(&zero, b"first"), whole(&one, b"second")), (Ok(()), Err(EIO)));
    let fresh = put(&m, &mount, "fresh", 1, b"third");
    assert_eq!(whole(&fresh, b"third"), Ok(()));
    fs::remove_file(&one).unwrap();
    running.stop();
    m.good(&["check", data_text]);

    // The admission was for one replacement.
    fs::remove_dir_all(&ost1).unwrap();
    up_is_refused(&m, &words);
    m.good(&args);
    let running = up(&m);
    assert_eq!((whole(&zero, b"first"), whole(&fresh, b"third")), (Ok(()), Err(EIO)));
    running.stop();
}

#[test]
fn an_admission_does_not_format_an_ost_that_has_only_lost_its_label() {
    let Some(m) = Machine::new() else { return };
    let (mount, data) = (m.mount(), m.path("data"));
    let running = up(&m);
    let one = put(&m, &mount, "one", 1, b"second");
    running.stop();
    let (label, away) = (data.join("ost1/super"), m.path("super"));
    fs::rename(&label, &away).unwrap();
    m.good(&["target", "replace", "demo-OST0001", "--mgs", data.to_str().unwrap()]);
    up_is_refused(&m, &["holds the files of a nacre store", "put that back"]);
    fs::rename(&away, &label).unwrap();
    let running = up(&m);
    assert_eq!(whole(&one, b"second"), Ok(()));
    running.stop();
}

#[test]
fn writes_that_a_killed_up_has_left_for_a_lost_ost_do_not_keep_a_new_one_out() {
    let Some(m) = Machine::new() else { return };
    let (mount, data) = (m.mount(), m.path("data"));
    let running = up(&m);
    let zero = put(&m, &mount, "zero", 0, b"first");
    let one = put(&m, &mount, "one", 1, b"second");
    running.kill();
    fs::remove_dir_all(data.join("ost1")).unwrap();
    m.good(&["target", "replace", "demo-OST0001", "--mgs", data.to_str().unwrap()]);
    let running = up(&m);
    assert_eq!((whole(&zero, b"first"), whole(&one, b"second")), (Ok(()), Err(EIO)));
    running.stop();
}

#[test]
fn an_up_with_an_ost_from_an_old_copy_does_not_start() {
    let Some(m) = Machine::new() else { return };
    let (mount, data) = (m.mount(), m.path("data"));
    let running = up(&m);
    let early = put(&m, &mount, "early", 1, b"early");
    running.stop();
    copy(&data.join("ost1"), &m.path("copy"));
    let running = up(&m);
    let late = put(&m, &mount, "late", 1, b"late");
    running.stop();
    copy(&data.join("ost1"), &m.path("current"));
    copy(&m.path("copy"), &data.join("ost1"));
    up_is_refused(&m, &["demo-OST0001 has gone back", "accept-rollback demo-OST0001"]);
    // Offline it is seen as well.
    let said = m.nacre(&["check", data.to_str().unwrap()]);
    assert_eq!(said.code, Some(1), "{}", said.out);
    assert!(said.out.contains("has gone back") && said.out.contains("/late: "), "{}", said.out);
    // The current copy is found: nothing has happened.
    copy(&m.path("current"), &data.join("ost1"));
    let running = up(&m);
    assert_eq!((whole(&early, b"early"), whole(&late, b"late")), (Ok(()), Ok(())));
    running.stop();
    // And lost for good.
    copy(&m.path("copy"), &data.join("ost1"));
    m.good(&["target", "accept-rollback", "demo-OST0001", "--mgs", data.to_str().unwrap()]);
    let running = up(&m);
    assert_eq!((whole(&early, b"early"), whole(&late, b"late")), (Ok(()), Err(EIO)));
    fs::write(put(&m, &mount, "again", 1, b"x"), "new").unwrap();
    running.stop();
}

#[test]
fn check_of_an_up_that_has_lost_an_ost_checks_the_others() {
    let Some(m) = Machine::new() else { return };
    let (data, ost1) = (m.path("data"), m.path("data/ost1"));
    let running = up(&m);
    put(&m, &m.mount(), "f", 1, b"x");
    running.stop();
    let data = data.to_str().unwrap();
    for make in [|_: &Path| Ok(()), |dir: &Path| fs::create_dir(dir)] {
        drop(fs::remove_dir_all(&ost1));
        make(&ost1).unwrap();
        let said = m.nacre(&["check", data]);
        assert_eq!(said.code, Some(3), "{} {}", said.out, said.err);
        let lines = [
            "demo-MDT0000     ok",
            "demo-OST0000     ok",
            "demo-OST0001     is missing",
            "hint: put it back; or, if it is lost for good, ",
            &format!("nacre target replace demo-OST0001 --mgs {data}"),
            "ok as far as given: demo-OST0001 was not given",
        ];
        for line in lines {
            assert!(said.out.contains(line), "{line:?} is not in: {}", said.out);
        }
        let said = m.nacre(&["check", "--json", data]);
        assert_eq!(said.code, Some(3), "{} {}", said.out, said.err);
        assert!(said.out.contains("\"not_given\""), "{}", said.out);
    }
}

#[test]
fn check_names_the_targets_that_it_was_not_given() {
    let Some(m) = Machine::new() else { return };
    let data = m.path("data");
    let running = up(&m);
    put(&m, &m.mount(), "f", 1, b"x");
    running.stop();
    let dir = |name: &str| data.join(name).to_str().unwrap().to_owned();
    let (mgs, mdt, ost0) = (dir("mgs"), dir("mdt0"), dir("ost0"));
    let said = m.nacre(&["check", &mgs, &mdt, &ost0]);
    assert_eq!(said.code, Some(3), "{} {}", said.out, said.err);
    assert!(said.out.contains("ok as far as given") && said.out.contains("demo-OST0001"), "{}", said.out);
    assert!(said.out.contains("demo-OST0001 was not given"), "{}", said.out);
    let said = m.nacre(&["check", &mgs, &mdt]);
    assert!(said.out.contains("demo-OST0000, demo-OST0001 were not given"), "{} {}", said.out, said.err);
    let whole = m.good(&["check", data.to_str().unwrap()]);
    assert!(!whole.contains("as far as given"), "{whole}");
    let one = m.nacre(&["check", &ost0]);
    assert_eq!(one.code, Some(0), "one target alone says nothing of others: {} {}", one.out, one.err);
}
