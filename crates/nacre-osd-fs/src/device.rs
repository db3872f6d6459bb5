//! The file system below a store: its number, so that the space of two stores on one file system is counted once, and
//! whether it overwrites blocks in place.
//!
//! The number of a file system is unique within its kernel only, and cloned disks have equal ids. So the number is
//! combined with the id of the running kernel (`boot_id`), which all containers of a host share. Not detected: hosts
//! that share a network file system; its space is counted once per host.

use rustix::fd::BorrowedFd;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// File systems that overwrite blocks in place, and keep what fallocate(2) has set aside: ext4 (and ext2, ext3, which
/// have the same number), XFS, tmpfs. (XFS copies blocks that files share; those of a store share none.) All others may
/// need space for an overwrite, as Btrfs and ZFS do.
const IN_PLACE: [i64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

/// A number that stores share exactly if they are on one file system of one running kernel; 0 if this is unknown.
pub(crate) fn number(dir: BorrowedFd<'_>) -> u64 {
    let (Ok(boot), Ok(stat)) = (std::fs::read(BOOT_ID), rustix::fs::fstat(dir)) else { return 0 };
    mix(&boot, stat.st_dev)
}

/// Whether writes to blocks that a file has need no free space.
pub(crate) fn overwrites_in_place(dir: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(dir).is_ok_and(|s| IN_PLACE.contains(&s.f_type))
}

/// FNV-1a: servers of different versions on one host must agree.
fn mix(boot: &[u8], device: u64) -> u64 {
    let bytes = boot.iter().copied().chain(device.to_le_bytes());
    bytes
        .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::mix;

    #[test]
    fn a_device_is_known_by_kernel_and_number() {
        assert_eq!(mix(b"a", 1), mix(b"a", 1));
        assert_ne!(mix(b"a", 1), mix(b"a", 2));
        assert_ne!(mix(b"a", 1), mix(b"b", 1));
        assert_eq!(mix(b"", 0), 0xa8c7_f832_281a_39c5);
    }
}
