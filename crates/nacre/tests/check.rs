//! `nacre check`: silent on what is whole, exact on what is damaged. Needs root and /dev/fuse; without them the tests
//! say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::{Machine, eventually};
use rustix::mount::MountFlags;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Files below a directory, largest first.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { dirs.push(path) } else { found.push(path) }
        }
    }
    found.sort_by_key(|f| std::cmp::Reverse(f.metadata().unwrap().len()));
    found
}

fn flip(file: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}

/// A file system that was used and stopped.
fn used(m: &Machine) -> PathBuf {
    let up = m.up();
    for n in 0..50 {
        fs::create_dir(m.mount().join(format!("d{n}"))).unwrap();
        fs::write(m.mount().join(format!("d{n}/f")), vec![n; 9000]).unwrap();
    }
    fs::write(m.mount().join("small"), vec![1; 5000]).unwrap(); // its bytes stay at the MDT
    fs::remove_file(m.mount().join("d7/f")).unwrap();
    fs::rename(m.mount().join("d8/f"), m.mount().join("d7/g")).unwrap();
    let wide = m.mount().join("wide");
    m.good(&["lfs", "setstripe", "-c", "2", "-S", "64K", wide.to_str().unwrap()]);
    fs::write(&wide, vec![1; 300_000]).unwrap();
    fs::OpenOptions::new().write(true).open(&wide).unwrap().set_len(100_000).unwrap();
    up.stop();
    m.path("data")
}

#[test]
fn what_is_whole_is_ok_and_told_in_numbers() {
    let Some(m) = Machine::new() else { return };
    let data = used(&m);
    let out = m.good(&["check", "--data", data.to_str().unwrap()]);
    assert_eq!(out.matches(" ok").count(), 5, "{out}");
    // Twice the same, in two ways.
    let twice =
        m.good(&["check", "--data", data.to_str().unwrap(), data.join("../data/mdt0").to_str().unwrap()]);
    assert_eq!(twice, out);
    assert!(out.contains("objects compared 5"), "{out}");
    let json: serde_json::Value =
        serde_json::from_str(&m.good(&["check", "--json", data.to_str().unwrap()])).unwrap();
    assert_eq!(json["problems"], 0);
    assert_eq!(json["targets"][1]["target"], "nacre-MDT0000");
    assert_eq!(json["targets"][1]["counts"]["directories"], 51);
    assert_eq!(json["targets"][1]["clean"], true);
    // Nothing was changed: it starts as planned stops do.
    let again = m.nacre(&["check", data.join("mdt0").to_str().unwrap(), data.join("ost1").to_str().unwrap()]);
    assert_eq!(again.code, Some(3), "the other OST was not given: {}", again.err);
    assert!(!again.out.contains("not stopped as planned"), "{}", again.out);
}

#[test]
fn damage_is_found_and_named() {
    let Some(m) = Machine::new() else { return };
    let data = used(&m);
    let check = |args: &[&str]| {
        let args: Vec<_> = ["check"].iter().chain(args).copied().chain([data.to_str().unwrap()]).collect();
        m.nacre(&args)
    };
    // A byte of file data.
    let object = files(&data.join("ost0/objects")).swap_remove(0);
    flip(&object, 100);
    assert!(check(&[]).ok, "data is read with --data only");
    let said = check(&["--data"]);
    assert_eq!(said.code, Some(1), "{}", said.out);
    assert!(said.out.contains("byte 0 does not match its checksum"), "{}", said.out);
    assert!(said.err.contains("1 problem was found") && said.err.contains("hint:"), "{}", said.err);
    flip(&object, 100);
    assert!(check(&["--data"]).ok);

    // An object's file that is gone.
    fs::rename(&object, m.path("kept")).unwrap();
    let said = check(&[]);
    assert!(
        said.code == Some(1) && said.out.contains("nacre-OST0000") && said.out.contains("is gone"),
        "{}",
        said.out
    );
    fs::rename(m.path("kept"), &object).unwrap();

    // Rows of the MDT.
    let rows = files(&data.join("mdt0")).into_iter().find(|f| {
        let text = f.to_string_lossy().into_owned();
        (text.contains("/runs/") || text.contains("/log/"))
            && fs::read(f).unwrap().iter().skip(4096).any(|b| *b != 0)
    });
    flip(&rows.unwrap(), 4100);
    let said = check(&[]);
    assert!(said.code == Some(1) && said.out.contains("nacre-MDT0000"), "{} {}", said.out, said.err);
}

#[test]
fn a_damaged_copy_of_a_superblock_is_found_and_the_next_start_writes_it_again() {
    let Some(m) = Machine::new() else { return };
    m.up().stop();
    let data = m.path("data");
    let check = || m.nacre(&["check", data.to_str().unwrap()]);
    let label = data.join("ost1/super");
    for (copy, at) in [("first", 24), ("second", label.metadata().unwrap().len() / 2 + 24)] {
        flip(&label, at);
        let said = check();
        let sentence = format!("the {copy} of the two copies of the superblock is damaged");
        assert!(said.code == Some(1) && said.out.contains(&sentence), "{}", said.out);
        m.up().stop();
        let log = fs::read_to_string(data.join("nacre.log")).unwrap();
        let told = |line: &&str| {
            line.contains(&format!("the {copy} of the two copies of the superblock was damaged"))
                && line.contains("nacre-OST0001")
        };
        assert_eq!(log.lines().filter(told).count(), 1, "{log}");
        assert!(check().ok);
    }
}

/// The file of an object is deleted or cut, under a running OST and under a stopped one: EIO and not zeros, named in the
/// log; other files are well, and overwriting the whole file heals it.
#[test]
fn a_file_whose_object_lost_its_bytes_returns_eio_until_it_is_written_again() {
    let Some(m) = Machine::new() else { return };
    let mut up = m.up();
    let file = |n: u32| m.mount().join(format!("f{n}"));
    for n in 0..8 {
        fs::write(file(n), vec![n as u8 + 1; 900_000 + n as usize]).unwrap();
        fs::File::open(file(n)).unwrap().sync_all().unwrap();
    }
    let of = |n: u32| {
        let len = u64::from(n) + 900_000;
        let objects = [files(&m.path("data/ost0/objects")), files(&m.path("data/ost1/objects"))].concat();
        objects.into_iter().find(|f| {
            f.metadata().unwrap().len() == len.next_multiple_of(4096) && {
                let mut byte = [0];
                fs::File::open(f).unwrap().read_exact_at(&mut byte, 0).is_ok() && byte == [n as u8 + 1]
            }
        })
    };
    let eio = |n: u32| {
        let error = fs::read(file(n)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5), "file {n}: {error}");
    };
    // Under a running OST.
    fs::OpenOptions::new().write(true).open(of(0).unwrap()).unwrap().set_len(300_000).unwrap();
    eio(0);
    let mut start = vec![0; 200_000];
    fs::File::open(file(0)).unwrap().read_exact_at(&mut start, 0).unwrap();
    assert!(start.iter().all(|b| *b == 1), "what is there can be read");
    fs::remove_file(of(1).unwrap()).unwrap();
    // It has the file open; whoever wants it durable hears that it has no name.
    let handle = fs::OpenOptions::new().write(true).open(file(1)).unwrap();
    handle.write_all_at(&[9; 100], 0).unwrap();
    assert_eq!(handle.sync_all().unwrap_err().raw_os_error(), Some(5));
    drop(handle);
    eio(1);
    // Under a stopped one.
    up.stop();
    fs::remove_file(of(2).unwrap()).unwrap();
    fs::OpenOptions::new().write(true).open(of(3).unwrap()).unwrap().set_len(5000).unwrap();
    up = m.up();
    for n in 0..4 {
        eio(n);
        // The mount keeps a small write for a moment: its error comes from the sync.
        let handle = fs::OpenOptions::new().write(true).open(file(n)).unwrap();
        assert!(handle.write_at(&[7; 10], 700_000).and_then(|_| handle.sync_all()).is_err());
    }
    for n in 4..8 {
        assert_eq!(fs::read(file(n)).unwrap(), vec![n as u8 + 1; 900_000 + n as usize]);
    }
    let log = fs::read_to_string(m.path("data/nacre.log")).unwrap_or_default();
    assert!(log.contains("are lost: they were written"), "{log}");
    for n in 0..4 {
        let whole = fs::OpenOptions::new().write(true).open(file(n)).unwrap();
        whole.write_all_at(&vec![100 + n as u8; 900_000 + n as usize], 0).unwrap();
        whole.sync_all().unwrap();
        assert_eq!(fs::read(file(n)).unwrap(), vec![100 + n as u8; 900_000 + n as usize]);
    }
    up.stop();
    let out = m.good(&["check", "--data", m.path("data").to_str().unwrap()]);
    assert_eq!(out.matches(" ok").count(), 5, "{out}");
}

#[test]
fn an_ost_of_another_time_does_not_fit_its_mdt() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    up.stop();
    let copy =
        std::process::Command::new("cp").arg("-a").arg(m.path("data/mdt0")).arg(m.path("old")).status();
    assert!(copy.unwrap().success());
    let data = used(&m);
    fs::rename(data.join("mdt0"), m.path("new")).unwrap();
    fs::rename(m.path("old"), data.join("mdt0")).unwrap();
    let said = m.nacre(&["check", data.to_str().unwrap()]);
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("belongs to no file"), "{}", said.out);
    assert!(said.out.contains(" more"), "not all of them are shown: {}", said.out);
}

#[test]
fn a_read_only_medium_is_checked_as_it_is() {
    let Some(m) = Machine::new() else { return };
    let data = used(&m);
    let (data, seen) = (data.to_str().unwrap(), m.made("seen"));
    rustix::mount::mount_bind(data, &seen).unwrap();
    rustix::mount::mount_remount(&seen, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
    fs::write(seen.join("x"), "").unwrap_err();
    let seen = seen.to_str().unwrap();
    let out = m.good(&["check", "--data", seen]);
    assert_eq!(out.matches(" ok").count(), 5, "{out}");
    m.good(&["lr_reader", "-c", "-r", &format!("{seen}/mdt0")]);
    // Whoever serves it elsewhere is found there, too.
    let up = m.up();
    m.refused(&["check", seen], &["is in use by process"]);
    up.stop();
    // Nor does it need a lock file.
    fs::remove_file(m.path("data/mdt0/lock")).unwrap();
    let alone = m.nacre(&["check", &format!("{seen}/mdt0")]);
    assert_eq!(alone.code, Some(3), "its OSTs were not given: {} {}", alone.out, alone.err);
}

#[test]
fn after_each_kill_it_is_clean_and_what_a_kill_cut_off_is_a_note() {
    let Some(m) = Machine::new() else { return };
    for round in 0..4u8 {
        let up = m.up();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let (dir, stop) = (m.mount().join(format!("w{worker}")), &stop);
                scope.spawn(move || work(&dir, round, stop));
            }
            // In the middle of it, after a different amount of work each time.
            let busy = m.mount().join("w1");
            let wanted = 40 + usize::from(round) * 30;
            eventually("there is work", || fs::read_dir(&busy).is_ok_and(|d| d.count() > wanted));
            stop.store(true, Ordering::Relaxed);
            up.kill();
            // The mount is dead now: this ends the calls that wait for it.
            let _ = rustix::mount::unmount(m.mount(), rustix::mount::UnmountFlags::DETACH);
        });
        let out = m.good(&["check", "--data", m.path("data").to_str().unwrap()]);
        assert!(out.contains("was not stopped as planned"), "{out}");
    }
    let data = m.path("data");
    // A start verifies the last changes before the crash beside its other work, and a stop interrupts it.
    eventually("every checksum is verified", || {
        m.up().stop();
        let out = m.good(&["check", "--data", data.to_str().unwrap()]);
        assert!(!out.contains("was not stopped as planned"), "{out}");
        !out.contains("not all verified yet")
    });
    // A crash explains what was being written when it came, and nothing else.
    flip(&files(&data.join("ost0/objects")).swap_remove(0), 100);
    let said = m.nacre(&["check", "--data", data.to_str().unwrap()]);
    assert_eq!(said.code, Some(1), "{}", said.out);
    assert!(said.out.contains("byte 0 does not match its checksum"), "{}", said.out);
}

/// Makes files and overwrites them in place, until the mount dies or it is told to stop.
fn work(dir: &Path, round: u8, stop: &AtomicBool) {
    let _there_already = fs::create_dir(dir);
    for n in 0u64.. {
        let path = dir.join(format!("f{}", n % 300));
        let file = fs::OpenOptions::new().write(true).create(true).truncate(n % 7 == 0).open(&path);
        let Ok(file) = file else { return };
        let wrote = file.write_all_at(&vec![round; 3000 + (n % 11) as usize * 4000], n % 5 * 1000);
        let renamed = if n % 13 == 0 { fs::rename(&path, dir.join("other")) } else { Ok(()) };
        if wrote.is_err() || renamed.is_err() || stop.load(Ordering::Relaxed) {
            return;
        }
    }
}
