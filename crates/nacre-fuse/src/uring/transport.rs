//! The transport of a mount's requests: io_uring, or /dev/fuse and the reason for it.

use std::fmt;
use std::io::Write as _;

/// The transport of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// Through queues of their CPU.
    Rings { threads: usize },
    /// Through /dev/fuse, because of this.
    Device(WhyDevice),
}

/// The reason why io_uring is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhyDevice {
    /// It is disabled by an option.
    NotWanted,
    /// The kernel does not support it (before Linux 6.14).
    Unknown,
    /// The module parameter of fuse is off.
    Disabled,
    /// The kernel refuses rings to this process.
    Refused(String),
}

/// The parameter that enables the transport for later mounts of the machine, of every FUSE file system.
pub const ENABLE_PATH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The reason why the transport cannot be enabled.
#[derive(Debug, thiserror::Error)]
pub enum EnableError {
    #[error(
        "this kernel has no FUSE over io_uring\nhint: it came with Linux 6.14; without the option requests go through /dev/fuse"
    )]
    Unknown,
    #[error(
        "cannot enable FUSE over io_uring: writing Y to {path} failed\nhint: root may do it, once for all users"
    )]
    NotWritten {
        path: String,
        #[source]
        cause: std::io::Error,
    },
}

/// Enables the transport for later mounts, if it is disabled.
///
/// # Errors
/// The kernel does not support it, or this process may not change parameters of modules (only root may).
pub fn enable_rings() -> Result<(), EnableError> {
    enable_at(ENABLE_PATH)
}
fn enable_at(path: &str) -> Result<(), EnableError> {
    let now = std::fs::read_to_string(path).map_err(|_| EnableError::Unknown)?;
    if now.trim() == "Y" {
        return Ok(());
    }
    // Not `fs::write`, which would create the file.
    let parameter = std::fs::OpenOptions::new().write(true).open(path);
    let written = parameter.and_then(|mut parameter| parameter.write_all(b"Y"));
    written.map_err(|cause| EnableError::NotWritten { path: path.to_owned(), cause })
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rings { threads } => write!(f, "io_uring ({threads} queues)"),
            Self::Device(why) => {
                write!(f, "/dev/fuse")?;
                match why {
                    WhyDevice::NotWanted => write!(f, " (io_uring turned off for this mount)"),
                    WhyDevice::Unknown => write!(f, " (this kernel has no FUSE over io_uring)"),
                    WhyDevice::Disabled => write!(f, " (io_uring is off: {ENABLE_PATH})"),
                    WhyDevice::Refused(why) => write!(f, " (io_uring: {why})"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transport_is_enabled_where_the_kernel_has_it_and_only_if_it_is_disabled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("enable_uring").display().to_string();
        assert!(matches!(enable_at(&path), Err(EnableError::Unknown)));
        std::fs::write(&path, "N\n").unwrap();
        enable_at(&path).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with('Y'));
        std::fs::write(&path, "Y\n").unwrap();
        enable_at(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "Y\n", "it is not written again");
    }
}
