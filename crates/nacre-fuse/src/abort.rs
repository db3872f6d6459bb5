//! Aborting a connection with the kernel from outside: the file `abort` of its directory in fusectl.
//!
//! The kernel aborts a connection when its last descriptor is closed, so a process that ends usually needs nothing here.
//! But a thread that waits inside a notification (INVAL_ENTRY, for the kernel's lock of a directory) cannot be killed and
//! keeps the descriptors of its process open; and the holder of that lock may wait for a reply of this very process.

use crate::table;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::path::Path;

/// Opens the file to which a byte is written to abort the connection of the mount on `path`. It stands for this
/// connection only: once the connection is gone, writing to it has no effect.
///
/// # Errors
/// `ENOENT`: there is no such mount. Others: fusectl is neither mounted nor may be by this user.
pub fn open_abort_file(path: &Path) -> rustix::io::Result<OwnedFd> {
    let line = table::own().and_then(|own| table::mount_on(&own, path)).ok_or(Errno::NOENT)?;
    // Connections are named by the minor number of their device; the major number of all of them is 0.
    let number = line.device.strip_prefix("0:").ok_or(Errno::NOENT)?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let mounted = format!("/sys/fs/fuse/connections/{number}/abort");
    openat(CWD, mounted, flags, Mode::empty()).or_else(|error| {
        // Not mounted there, as in most containers: a mount of our own that is never attached to a directory.
        let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).map_err(|_| error)?;
        fsconfig_create(&control)?;
        let root = fsmount(&control, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        openat(&root, format!("{number}/abort"), flags, Mode::empty())
    })
}
