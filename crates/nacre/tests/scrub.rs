//! `nacre scrub` on a running file system: it names damaged files by their paths, and nothing else. Needs root and
//! /dev/fuse; without them the tests say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::{Machine, eventually};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Files of the objects of both OSTs.
fn objects(m: &Machine) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![m.path("data/ost0/objects"), m.path("data/ost1/objects")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { dirs.push(path) } else { found.push(path) }
        }
    }
    found
}
/// The object of a file that has nothing but this byte.
fn object_of(m: &Machine, byte: u8) -> PathBuf {
    let is_it = |file: &PathBuf| fs::read(file).unwrap().starts_with(&[byte; 100]);
    objects(m).into_iter().find(is_it).unwrap()
}
fn flip(file: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}
fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn damaged_files_are_named_until_they_are_written_again_or_removed() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let mount = m.mount();
    let file = |n: u8| mount.join(format!("dir {n}/f{n}"));
    for n in 1..9u8 {
        fs::create_dir(file(n).parent().unwrap()).unwrap();
        fs::write(file(n), vec![n; 900_000]).unwrap();
    }
    fs::hard_link(file(4), mount.join("another name")).unwrap();
    m.good(&["sync", mount.to_str().unwrap()]);
    let none = m.good(&["scrub", "status"]);
    assert_eq!(none.matches(" none ").count(), 2, "{none}");
    let out = m.good(&["scrub", "--wait"]);
    assert_eq!(out.matches(" finished ").count(), 2, "{out}");
    let all = json(&m.good(&["scrub", "status", "--json"]));
    let sum = |key: &str| all.as_array().unwrap().iter().map(|ost| ost[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("objects"), sum("objects_total"), sum("damaged_places")), (8, 8, 0), "{all}");
    assert_eq!((sum("verified_bytes"), sum("bytes")), (8 * 901_120, sum("bytes_total")), "{all}");

    flip(&object_of(&m, 2), 300_000);
    let fourth = object_of(&m, 4);
    flip(&fourth, 0);
    flip(&fourth, 899_999);
    fs::OpenOptions::new().write(true).open(object_of(&m, 7)).unwrap().set_len(819_200).unwrap();
    let said = m.nacre(&["scrub", "--wait"]);
    assert_eq!(said.code, Some(1), "{} {}", said.out, said.err);
    for words in [
        format!("{}\n", file(2).display()),
        format!("{}\n", file(4).display()),
        format!("{}\n", mount.join("another name").display()),
        format!("{}\n", file(7).display()),
        "bytes 299008 to 303104 of stripe 0 are not those that were written".into(),
        "bytes 0 to 4096 of stripe 0".into(),
        "bytes 897024 to 900000 of stripe 0".into(),
        "bytes 819200 to 900000 of stripe 0 are lost".into(),
    ] {
        assert!(said.out.contains(&words), "{words:?} is not in: {}", said.out);
    }
    for n in [1, 3, 5, 6, 8] {
        assert!(!said.out.contains(&format!("/f{n}\n")), "{}", said.out);
    }
    assert!(
        said.err.contains("4 damaged places found") && said.err.contains("hint: write each"),
        "{}",
        said.err
    );
    let status = m.good(&["status"]);
    assert!(status.contains("damaged: the scrub of nacre-OST000"), "{status}");
    let log = fs::read_to_string(m.path("data/nacre.log")).unwrap_or_default();
    assert!(log.contains("a scrub found damage") && log.contains("from=299008"), "{log}");
    let shown = m.nacre(&["scrub", "status", "--json"]);
    let files: Vec<_> = json(&shown.out)
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|ost| ost["files"].as_array().unwrap().clone())
        .collect();
    assert_eq!((shown.code, files.len()), (Some(1), 3), "{}", shown.out);
    assert!(files.iter().any(|f| f["paths"].as_array().unwrap().len() == 2), "{files:?}");

    fs::write(file(2), vec![20; 900_000]).unwrap();
    fs::write(file(4), vec![40; 900_000]).unwrap();
    fs::remove_file(file(7)).unwrap();
    eventually("nothing is damaged", || m.nacre(&["scrub", "--wait"]).ok);
    assert!(!m.good(&["status"]).contains("damaged"));
    up.stop();
}

#[test]
fn it_is_slowed_down_stopped_and_forgotten() {
    let Some(m) = Machine::new() else { return };
    m.refused(&["scrub"], &["no OST runs on this machine", "hint:"]);
    let up = m.up();
    fs::write(m.mount().join("large"), vec![1; 64 << 20]).unwrap();
    fs::write(m.mount().join("large2"), vec![2; 64 << 20]).unwrap();
    m.good(&["lctl", "set_param", "obdfilter.*.scrub_rate_mb=1"]);
    m.good(&["scrub", "start"]);
    let running = m.good(&["scrub", "status"]);
    assert_eq!(running.matches(" running ").count(), 2, "{running}");
    // At this rate it takes a minute; without a limit it ends.
    m.good(&["scrub", "stop"]);
    assert_eq!(m.good(&["scrub", "status"]).matches(" stopped ").count(), 2);
    let set = m.good(&["lctl", "set_param", "obdfilter.nacre-OST0000.scrub=start"]);
    assert_eq!(set.trim(), "obdfilter.nacre-OST0000.scrub=start");
    let shown = m.good(&["lctl", "get_param", "obdfilter.*.scrub"]);
    assert!(shown.contains("state: running") && shown.contains("state: stopped"), "{shown}");
    m.refused(&["lctl", "set_param", "obdfilter.*.scrub=pause"], &["start or stop"]);
    m.good(&["lctl", "set_param", "obdfilter.*.scrub_rate_mb=0"]);
    // It joins the pass that runs, and begins one on the other OST.
    let out = m.good(&["scrub", "--wait"]);
    assert_eq!(out.matches(" finished ").count(), 2, "{out}");
    // A stop of the servers does not wait for a pass.
    m.good(&["lctl", "set_param", "obdfilter.*.scrub_rate_mb=1"]);
    m.good(&["scrub"]);
    up.stop();
    let up = m.up();
    assert_eq!(m.good(&["scrub", "status"]).matches(" none ").count(), 2);
    up.stop();
}
