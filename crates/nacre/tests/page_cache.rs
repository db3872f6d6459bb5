//! Two mounts of one file system, whose kernels keep the bytes of files that are open only for reading: what one mount has
//! written, the other shows at once. Needs root and /dev/fuse; without them the tests say so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::pair::Pair;
use nacre_node::Rng;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

const LEN: usize = 100_000;

/// All bytes that a handle shows.
fn seen(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 4 * LEN];
    let mut len = 0;
    loop {
        match file.read_at(&mut bytes[len..], len as u64).unwrap() {
            0 => break,
            n => len += n,
        }
    }
    bytes.truncate(len);
    bytes
}
fn writer(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

#[test]
fn bytes_that_were_read_are_not_requested_again() {
    let Some(p) = Pair::new() else { return };
    fs::write(p.a("f"), vec![1; LEN]).unwrap();
    assert_eq!(fs::read(p.b("f")).unwrap(), vec![1; LEN]);
    let before = p.requests(&["read"]);
    assert!(before > 0);
    for _ in 0..20 {
        assert_eq!(fs::read(p.b("f")).unwrap(), vec![1; LEN]);
    }
    assert_eq!(p.requests(&["read"]), before, "{}", p.of_b("fuse_requests"));
    // A write of the other mount ends that, and not for long.
    writer(&p.a("f")).write_all_at(&[2; 10], 50_000).unwrap();
    let mut expected = vec![1; LEN];
    expected[50_000..50_010].fill(2);
    assert_eq!(fs::read(p.b("f")).unwrap(), expected);
    assert!(p.requests(&["read"]) > before);
    machine::eventually("the bytes are kept again", || {
        let before = p.requests(&["read"]);
        assert_eq!(fs::read(p.b("f")).unwrap(), expected);
        p.requests(&["read"]) == before
    });
}

/// Random writes, appends and truncates of two mounts, and readers of both that have the file open all the time.
#[test]
fn readers_of_two_mounts_see_every_write_at_once() {
    let Some(p) = Pair::new() else { return };
    let mut random = Rng::new(7);
    for stripes in ["1", "2"] {
        let name = format!("f{stripes}");
        let path = p.a(&name);
        p.m.good(&["lfs", "setstripe", "-c", stripes, "-S", "64K", path.to_str().unwrap()]);
        let mut model = vec![7; LEN];
        fs::write(&path, &model).unwrap();
        let readers = [File::open(p.a(&name)).unwrap(), File::open(p.b(&name)).unwrap()];
        for round in 0..300 {
            for (mount, reader) in readers.iter().enumerate() {
                assert!(seen(reader) == model, "round {round}: reader on mount {mount}, {stripes} stripes");
            }
            let path = if random.below(2) == 0 { p.a(&name) } else { p.b(&name) };
            let (at, len) = (random.below(LEN as u64) as usize, 1 + random.below(20_000) as usize);
            let bytes = vec![round as u8; len];
            match random.below(8) {
                0 => {
                    writer(&path).set_len(at as u64).unwrap();
                    model.resize(at, 0);
                }
                1 => {
                    std::io::Write::write_all(
                        &mut OpenOptions::new().append(true).open(&path).unwrap(),
                        &bytes,
                    )
                    .unwrap();
                    model.extend(&bytes);
                }
                _ => {
                    writer(&path).write_all_at(&bytes, at as u64).unwrap();
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].fill(round as u8);
                }
            }
            if model.len() > 3 * LEN {
                writer(&path).set_len(0).unwrap();
                model.clear();
            }
        }
    }
}

#[test]
fn mappings_of_two_mounts_agree() {
    let Some(p) = Pair::new() else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page_cache/mappings.py");
    let Ok(status) = Command::new("python3").arg(script).arg(p.a("")).arg(p.b("")).status() else {
        eprintln!("skipped: needs python3");
        return;
    };
    assert!(status.success());
}

/// Programs and scripts are mapped: what they are is read once.
#[test]
fn a_program_is_read_once() {
    let Some(p) = Pair::new() else { return };
    fs::copy("/bin/true", p.a("true")).unwrap();
    assert!(Command::new(p.b("true")).status().unwrap().success());
    let before = p.requests(&["read"]);
    for _ in 0..5 {
        assert!(Command::new(p.b("true")).status().unwrap().success());
    }
    assert_eq!(p.requests(&["read"]), before);
}
