//! Freed space and inodes on real mounts: two OSTs on one ext4 that is full.
//! Needs root and /dev/fuse; without them the test says so and passes.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::{Machine, Running, eventually};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: usize = 1 << 20;

fn run(program: &str, args: &[&str]) {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}
/// Writes until there is no room, at most so many MiB: how many were written.
fn fill(file: &mut File, most: usize) -> usize {
    let piece = vec![7; MIB];
    for n in 0..most {
        match file.write_all(&piece) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return n,
            Err(error) => panic!("MiB {n}: {error}"),
        }
    }
    most
}
/// MiB that `df` shows as available.
fn avail_mib(mount: &Path) -> usize {
    let space = rustix::fs::statvfs(mount).unwrap();
    (space.f_bavail * space.f_frsize) as usize / MIB
}

/// `up` with two OSTs on an ext4 of so many MiB and inodes, which is mounted on the directory returned.
fn up_on_ext4(m: &Machine, mib: usize, inodes: usize) -> (Running, PathBuf) {
    let (image, disk) = (m.path("image"), m.made("disk"));
    File::create(&image).unwrap().set_len((mib * MIB) as u64).unwrap();
    run("mkfs.ext4", &["-q", "-N", &inodes.to_string(), image.to_str().unwrap()]);
    run("mount", &["-o", "loop", image.to_str().unwrap(), disk.to_str().unwrap()]);
    let (mount, data) = (m.mount(), disk.join("data"));
    let args = ["up", mount.to_str().unwrap(), "--osts", "2", "--dir", data.to_str().unwrap()];
    (m.start(&args, "next: "), disk)
}

#[test]
fn removed_files_leave_their_space_to_both_osts_of_a_device_at_once() {
    let Some(m) = Machine::new() else { return };
    let (up, disk) = up_on_ext4(&m, 1600, 65536);
    let mount = m.mount();
    let on = |ost: &str, name: &str| {
        let path = mount.join(name);
        m.good(&["lfs", "setstripe", "-c", "1", "-i", ost, path.to_str().unwrap()]);
        File::options().append(true).open(path).unwrap()
    };
    let (mut kept, mut other) = (on("1", "kept"), on("1", "other"));
    assert_eq!(fill(&mut kept, 1), 1);
    // Each of the targets may take a log segment of what is freed: it could make none while all was full.
    for (name, most) in [("first", 400), ("second", 300), ("rest", usize::MAX)] {
        fill(&mut on("0", name), most);
    }
    fill(&mut other, usize::MAX);
    assert_eq!(fill(&mut kept, 1), 0, "the device is full");

    fs::remove_file(mount.join("first")).unwrap();
    let written = fill(&mut kept, 100);
    assert_eq!(written, 100, "MiB of 400 that another OST has let go of just before");
    fill(&mut kept, usize::MAX);
    let before = avail_mib(&mount);
    fs::remove_file(mount.join("second")).unwrap();
    // The space is there for a write at once; `df` shows it when the OSTs have told what they have.
    eventually("df shows the space", || avail_mib(&mount) >= before + 80);
    drop((kept, other));
    up.stop();
    run("umount", &[disk.to_str().unwrap()]);
}

#[test]
fn small_files_that_use_up_the_inodes_can_be_removed() {
    let Some(m) = Machine::new() else { return };
    let (up, disk) = up_on_ext4(&m, 600, 4096);
    let mount = m.mount();
    for round in 0..2 {
        let dir = mount.join("small");
        fs::create_dir(&dir).unwrap();
        // The files that an MDT keeps need no inodes.
        m.good(&["lfs", "setstripe", "-L", "raid0", dir.to_str().unwrap()]);
        let mut written = 0;
        let refused = loop {
            match File::create_new(dir.join(written.to_string())) {
                Ok(mut file) => file.write_all(b"small").unwrap(),
                Err(refused) => break refused,
            }
            written += 1;
            assert!(written < 4096, "more files than inodes");
        };
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert!(written > 1500, "round {round}: {written} files");
        for file in 0..written {
            assert_eq!(fs::read(dir.join(file.to_string())).unwrap(), b"small", "file {file}");
        }
        fs::remove_dir_all(&dir).unwrap();
        // The next round waits until the OSTs have deleted their objects.
        let free = || rustix::fs::statvfs(&mount).unwrap().f_ffree;
        eventually("the inodes are free", || free() > 2000);
    }
    up.stop();
    run("umount", &[disk.to_str().unwrap()]);
}

/// Overwrites so many random blocks of a file; the bytes that it has then go to `expected`.
fn overwrite(file: &File, expected: &mut [u8], writes: usize) {
    use std::os::unix::fs::FileExt as _;
    let mut state = 88_172_645_463_325_252_u64;
    for n in 0..writes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let at = (state as usize % (expected.len() / 4096)) * 4096;
        let block = [n as u8; 4096];
        file.write_all_at(&block, at as u64).unwrap_or_else(|error| panic!("write {n} at {at}: {error}"));
        expected[at..at + 4096].copy_from_slice(&block);
    }
    file.sync_all().unwrap();
}

#[test]
fn a_full_disk_takes_overwrites_and_writes_into_preallocated_space_and_a_kill_loses_none() {
    let Some(m) = Machine::new() else { return };
    let (up, disk) = up_on_ext4(&m, 600, 65536);
    let (mount, open) = (m.mount(), |path: PathBuf| {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    });
    let (allocated, written) = (open(mount.join("allocated")), open(mount.join("written")));
    let mut expected = [vec![0; 32 * MIB], vec![7; 32 * MIB]];
    rustix::fs::fallocate(&allocated, rustix::fs::FallocateFlags::empty(), 0, 32 << 20).unwrap();
    (&written).write_all(&expected[1]).unwrap();
    written.sync_all().unwrap();
    for n in 0..16 {
        match File::create(mount.join(format!("full{n}"))) {
            Ok(mut file) => drop(fill(&mut file, usize::MAX)),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
            Err(error) => panic!("{error}"),
        }
    }
    overwrite(&allocated, &mut expected[0], 4000);
    overwrite(&written, &mut expected[1], 4000);
    drop((allocated, written));
    up.kill();
    let data = disk.join("data");
    let args = ["up", mount.to_str().unwrap(), "--osts", "2", "--dir", data.to_str().unwrap()];
    let up = m.start(&args, "next: ");
    for (name, expected) in ["allocated", "written"].into_iter().zip(&mut expected) {
        assert!(fs::read(mount.join(name)).unwrap() == *expected, "{name} after the kill");
        overwrite(&open(mount.join(name)), expected, 500);
        assert!(fs::read(mount.join(name)).unwrap() == *expected, "{name} in the end");
    }
    up.stop();
    m.good(&["check", "--data", data.to_str().unwrap()]);
    run("umount", &[disk.to_str().unwrap()]);
}
