//! The mount options that the kernel itself applies.

use rustix::mount::{MountAttrFlags, MountFlags};

/// The options that the kernel itself checks, and shows in the table of mounts.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelOptions {
    /// `ro`.
    pub read_only: bool,
    /// `nosuid`.
    pub no_suid: bool,
    /// `nodev`.
    pub no_dev: bool,
    /// `noexec`.
    pub no_exec: bool,
    /// Access times, for the table of mounts only.
    pub atime: KernelAtime,
}
impl KernelOptions {
    pub(crate) fn flags(self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, self.no_suid);
        flags.set(MountFlags::NODEV, self.no_dev);
        flags.set(MountFlags::NOEXEC, self.no_exec);
        flags.set(MountFlags::NOATIME, self.atime.never);
        flags.set(MountFlags::STRICTATIME, self.atime.always);
        // A remount keeps what the table has unless one of these flags is set.
        flags.set(MountFlags::RELATIME, !self.atime.never && !self.atime.always);
        flags.set(MountFlags::NODIRATIME, self.atime.no_directories);
        flags.set(MountFlags::LAZYTIME, self.atime.lazy);
        flags
    }
    /// The same for fsmount(2). `ro` and `lazytime` belong to the file system as well.
    pub(crate) fn attributes(self) -> MountAttrFlags {
        let mut attributes = MountAttrFlags::empty();
        attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, self.read_only);
        attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, self.no_suid);
        attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, self.no_dev);
        attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, self.no_exec);
        // Without another one of the access times: relatime.
        attributes.set(MountAttrFlags::MOUNT_ATTR_NOATIME, self.atime.never);
        attributes.set(MountAttrFlags::MOUNT_ATTR_STRICTATIME, self.atime.always);
        attributes.set(MountAttrFlags::MOUNT_ATTR_NODIRATIME, self.atime.no_directories);
        attributes
    }
}

/// The access time options in the table of mounts. The kernel changes no access times of a FUSE file system: the file
/// system does. Neither `never` nor `always`: relatime.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelAtime {
    /// `noatime`.
    pub never: bool,
    /// `strictatime`.
    pub always: bool,
    /// `nodiratime`.
    pub no_directories: bool,
    /// `lazytime`.
    pub lazy: bool,
}
