//! Bit rot: 64 bytes at a time, anywhere in the files of a target that runs, was stopped or was killed. Wrong data are
//! never returned, and everything undamaged is served. Needs root and /dev/fuse; without them the test says so and
//! passes.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::Machine;
use nacre_node::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

const FLIPS: usize = 400;
const FLIP_BYTES: u64 = 64;
const BLOCK: u64 = 4096;
/// Of these, so many hit each kind of file beside blobs, although the others are much smaller; the rest hits any byte.
const FLIPS_PER_KIND: usize = 8;
const LARGE: u64 = 18;
const SMALL: u64 = 300;

fn large_len(n: u64) -> u64 {
    1 + n * 70_001
}
fn bytes(n: u64, len: u64) -> Vec<u8> {
    (0..len).map(|i| (i / 3 * (n + 1)) as u8).collect()
}
fn large(mount: &Path, n: u64) -> PathBuf {
    mount.join(format!("f{n}"))
}
fn small(mount: &Path, n: u64) -> PathBuf {
    mount.join(format!("d{}/s{n}", n % 7))
}

/// Writes everything, and waits until it is stable: bytes that were not, when a process was killed, cannot be verified.
fn write_all(m: &Machine) {
    let mount = &m.mount();
    for n in 0..LARGE {
        fs::write(large(mount, n), bytes(n, large_len(n))).unwrap();
    }
    for n in 0..SMALL {
        let path = small(mount, n);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes(n, 100 + n)).unwrap();
        rustix::fs::setxattr(&path, "user.n", &n.to_le_bytes(), rustix::fs::XattrFlags::empty()).unwrap();
    }
    m.good(&["sync", mount.to_str().unwrap()]);
}

/// Reads everything: each block is what was written, or EIO. Returns how many blocks are whole, and how many are not.
fn read_all(mount: &Path) -> (u64, u64) {
    let (mut whole, mut damaged) = (0, 0);
    let mut read = |path: &Path, wanted: &[u8]| {
        let file = fs::File::open(path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), wanted.len() as u64);
        for (n, wanted) in wanted.chunks(BLOCK as usize).enumerate() {
            let mut block = vec![0; wanted.len()];
            match file.read_exact_at(&mut block, n as u64 * BLOCK) {
                Ok(()) => {
                    assert!(block == wanted, "{}, block {n}: wrong bytes", path.display());
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(5), "{}, block {n}: {error}", path.display());
                    damaged += 1;
                }
            }
        }
    };
    (0..LARGE).for_each(|n| read(&large(mount, n), &bytes(n, large_len(n))));
    for n in 0..SMALL {
        let path = small(mount, n);
        read(&path, &bytes(n, 100 + n));
        let mut value = [0; 8];
        rustix::fs::getxattr(&path, "user.n", &mut value).unwrap();
        assert_eq!(u64::from_le_bytes(value), n);
    }
    for n in 0..7 {
        let names = fs::read_dir(mount.join(format!("d{n}"))).unwrap().count() as u64;
        assert_eq!(names, (0..SMALL).filter(|s| s % 7 == n).count() as u64);
    }
    (whole, damaged)
}

/// Blocks of the targets' files that hold anything, by kind of file: blobs, log, runs, superblock.
fn blocks(data: &Path) -> BTreeMap<&'static str, Vec<(PathBuf, u64)>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    let mut dirs = vec![data.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let text = path.to_string_lossy().into_owned();
            let kind = match () {
                () if path.is_dir() => {
                    dirs.push(path);
                    continue;
                }
                () if text.contains("/objects/") => "blobs",
                () if text.contains("/log/") => "log",
                () if text.contains("/runs/") => "runs",
                () if text.ends_with("/super") => "super",
                () => continue,
            };
            let content = fs::read(&path).unwrap();
            let used = content
                .chunks(BLOCK as usize)
                .enumerate()
                .filter(|(_, b)| **b != [0; BLOCK as usize][..b.len()]);
            found.entry(kind).or_default().extend(used.map(|(n, _)| (path.clone(), n as u64)));
        }
    }
    found
}

/// Damages 64 bytes in 400 places. No two of them are in the same block of both copies of
/// a log, run or superblock: what has lost both copies is damaged for good.
fn rot(data: &Path, random: &mut Rng) -> BTreeMap<&'static str, usize> {
    let kinds = blocks(data);
    let mut hit = BTreeMap::new();
    let mut used = BTreeSet::new();
    let all = kinds.iter().flat_map(|(kind, blocks)| blocks.iter().map(|(path, n)| (*kind, path, *n)));
    let all = all.collect::<Vec<_>>();
    for n in 0..FLIPS {
        let kind = ["log", "runs", "super"].get(n / FLIPS_PER_KIND);
        let some = all.iter().filter(|(k, ..)| kind.is_none_or(|kind| kind == k)).collect::<Vec<_>>();
        let (kind, path, block) = *some[random.below(some.len() as u64) as usize];
        let fd = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let len = fd.metadata().unwrap().len();
        let at = (block * BLOCK + random.below(BLOCK)).min(len - FLIP_BYTES);
        let half = len / 2;
        let in_copy = |at: u64| if kind == "blobs" { at } else { at % half };
        let touched = [at, at + FLIP_BYTES - 1].map(|at| (path.clone(), in_copy(at) / BLOCK, at >= half));
        if kind != "blobs" && touched.iter().any(|(p, b, second)| used.contains(&(p.clone(), *b, !second))) {
            continue;
        }
        used.extend(touched);
        let mut part = [0; FLIP_BYTES as usize];
        fd.read_exact_at(&mut part, at).unwrap();
        part.iter_mut().for_each(|byte| *byte ^= 0x5a);
        fd.write_all_at(&part, at).unwrap();
        fd.sync_all().unwrap();
        *hit.entry(kind).or_default() += 1;
    }
    hit
}

#[test]
fn rot_anywhere_is_never_returned_as_data_and_costs_nothing_else() {
    let Some(m) = Machine::new() else { return };
    let (mount, data) = (m.mount(), m.path("data"));
    let mut random = Rng::new(12345);
    // More openings than a start leaves log segments behind: their records are in runs.
    for _ in 0..10 {
        m.up().stop();
    }
    let mut up = Some(m.up());
    write_all(&m);
    let mut hits = BTreeMap::<_, usize>::new();
    for state in ["running", "stopped", "killed"] {
        match state {
            "stopped" => drop(up.take().map(|up| up.stop())),
            "killed" => {
                let up = up.take().unwrap();
                up.signal(rustix::process::Signal::KILL);
                drop(up.ended());
            }
            _ => {}
        }
        for (kind, count) in rot(&data, &mut random) {
            *hits.entry(kind).or_default() += count;
        }
        let running = up.take().unwrap_or_else(|| m.up());
        let (whole, damaged) = read_all(&mount);
        assert!(whole > 2500 && (1..=2 * FLIPS as u64).contains(&damaged), "{state}: {whole}, {damaged}");
        // A start after this damage finds everything, too.
        running.stop();
        up = Some(m.up());
        assert_eq!(read_all(&mount), (whole, damaged), "{state}");
        // Written anew, everything is whole.
        write_all(&m);
        assert_eq!(read_all(&mount), (whole + damaged, 0), "{state}");
    }
    assert!(["blobs", "log", "runs", "super"].iter().all(|kind| hits.contains_key(kind)), "{hits:?}");
    assert!(hits.values().sum::<usize>() > 2 * FLIPS, "{hits:?}");
    drop(up.map(|up| up.stop()));
}
