//! Mounting in the place of a dead mount, the server of which was killed.
//!
//! While the dead mount is there, every call on it fails. Without it, programs would see the directory below, and what they
//! write there would be hidden, or prevent the next mount. So the new mount is made first, put beneath the dead one, and
//! shows when that is removed. Before Linux 6.5 the directory shows for an instant.

use crate::kernel_options::KernelOptions;
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::fs::CWD;
use rustix::io::Result;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MoveMountFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};
use std::path::Path;

/// Mounts the connection on `place` instead of the dead mount there.
///
/// # Errors
/// Those of the kernel; the dead mount is still there, unless the last step failed.
pub(crate) fn replace_dead(
    place: &Path,
    connection: &OwnedFd,
    source: &str,
    options: KernelOptions,
) -> Result<()> {
    let mount = unattached(connection, source, options)?;
    let attach = |flags| move_mount(&mount, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | flags);
    let is_beneath = attach(MoveMountFlags::MOVE_MOUNT_BENEATH).is_ok();
    unmount(place, UnmountFlags::DETACH)?;
    if is_beneath { Ok(()) } else { attach(MoveMountFlags::empty()) }
}

/// A mount of the connection that has no place yet.
fn unattached(connection: &OwnedFd, source: &str, options: KernelOptions) -> Result<OwnedFd> {
    let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    fsconfig_set_string(&fs, "source", source)?;
    fsconfig_set_string(&fs, "subtype", "nacre")?;
    fsconfig_set_string(&fs, "fd", connection.as_raw_fd().to_string())?;
    fsconfig_set_string(&fs, "rootmode", "40000")?;
    fsconfig_set_string(&fs, "user_id", uid.to_string())?;
    fsconfig_set_string(&fs, "group_id", gid.to_string())?;
    let flags = [
        ("allow_other", true),
        ("default_permissions", true),
        ("ro", options.read_only),
        ("lazytime", options.atime.lazy),
    ];
    for (flag, _) in flags.iter().filter(|(_, is_set)| *is_set) {
        fsconfig_set_flag(&fs, *flag)?;
    }
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, options.attributes())
}
