//! The number of the file system below a store, so that the space of two stores on one file system is counted once.
//!
//! The number of a file system is unique within its kernel only, and cloned disks have equal ids. So the number is
//! combined with the id of the running kernel (`boot_id`), which all containers of a host share. Not detected: hosts
//! that share a network file system; its space is counted once per host.

use rustix::fd::BorrowedFd;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A number that stores share exactly if they are on one file system of one running kernel; 0 if this is unknown.
pub(crate) fn number(dir: BorrowedFd<'_>) -> u64 {
    let (Ok(boot), Ok(stat)) = (std::fs::read(BOOT_ID), rustix::fs::fstat(dir)) else { return 0 };
    mix(&boot, stat.st_dev)
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
