//! Mounting as an ordinary user: through `fusermount3`, the set-user-ID program of the package fuse3, which checks that
//! the mount point belongs to its caller.
//!
//! It passes the descriptor of the connection over a socket, which it gets as its standard input here. Only the
//! user himself sees such a mount, unless /etc/fuse.conf has the line `user_allow_other`.

use crate::kernel_options::KernelOptions;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = "fusermount3";
/// The variable with the number of the socket's descriptor.
const SOCKET: &str = "_FUSE_COMMFD";
const CONFIG: &str = "/etc/fuse.conf";

/// The reason why there is no mount.
pub(crate) enum Refusal {
    NotInstalled,
    /// In the program's words.
    Said(String),
    Os(Errno),
}

/// Whether this process mounts through the program.
pub(crate) fn is_used() -> bool {
    !rustix::process::geteuid().is_root()
}

/// Whether it is installed.
pub(crate) fn is_there() -> bool {
    Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).output().is_ok_and(|out| out.status.success())
}

/// Mounts on `path`; returns the connection.
pub(crate) fn mount(path: &Path, source: &str, options: KernelOptions) -> Result<OwnedFd, Refusal> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(Refusal::Os)?;
    let mut command = Command::new(PROGRAM);
    command.arg("-o").arg(words(source, options)).arg("--").arg(path).stdin(theirs).env(SOCKET, "0");
    let out = command.output().map_err(|_| Refusal::NotInstalled)?;
    // Closes the program's end of the socket in this process, so that `received` does not wait if the program has sent
    // nothing.
    drop(command);
    if out.status.success() {
        received(&ours).map_err(Refusal::Os)
    } else {
        Err(Refusal::Said(String::from_utf8_lossy(&out.stderr).trim().replace('\n', "; ")))
    }
}

/// Unmounts; `EBUSY` and other reasons as the kernel gives them to root.
pub(crate) fn unmount(path: &Path, lazy: bool) -> rustix::io::Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path).stdin(Stdio::null()).env("LC_ALL", "C");
    let Ok(out) = command.output() else { return Err(Errno::PERM) };
    // The reason is in its words only.
    let is_busy = || String::from_utf8_lossy(&out.stderr).contains("busy");
    match crate::table::mounted_type(path) {
        _ if out.status.success() => Ok(()),
        None => Err(Errno::INVAL),
        Some(_) if is_busy() => Err(Errno::BUSY),
        // It is the mount of another user.
        Some(_) => Err(Errno::PERM),
    }
}

fn words(source: &str, options: KernelOptions) -> String {
    let mut words = vec!["default_permissions", "subtype=nacre"];
    let flags = [
        (options.read_only, "ro"),
        (options.no_exec, "noexec"),
        (options.atime.never, "noatime"),
        (options.atime.always, "strictatime"),
        (options.atime.no_directories, "nodiratime"),
        (others_allowed(), "allow_other"),
    ];
    words.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| *word));
    // The program takes a backslash before a comma out again.
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    format!("{},fsname={source}", words.join(","))
}

/// Whether the administrator lets users open their mounts to other users.
fn others_allowed() -> bool {
    let config = std::fs::read_to_string(CONFIG).unwrap_or_default();
    config.lines().any(|line| line.trim() == "user_allow_other")
}

/// The descriptor that the program has sent.
fn received(socket: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fds = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let device = fds.ok_or(Errno::PROTO)?;
    // The program opens it so that reads wait; here they never do.
    fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::words;
    use crate::kernel_options::KernelOptions;

    #[test]
    fn a_comma_in_the_source_does_not_end_it() {
        let text = words("unix:/a,b\\c:/fs", KernelOptions { read_only: true, ..KernelOptions::default() });
        assert!(text.starts_with("default_permissions,subtype=nacre,ro,"), "{text}");
        assert!(text.ends_with("fsname=unix:/a\\,b\\\\c:/fs"), "{text}");
    }
}
