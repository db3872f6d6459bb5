//! Addresses under which a process is reached.

use anyhow::{Context as _, Result, bail, ensure};
use nacre_net::Address;
use nacre_types::FsName;
use std::path::{Path, PathBuf};

/// An address to give to other processes: absolute, and reachable from outside this process.
pub(crate) fn shared_address(text: &str) -> Result<String> {
    let address = text.parse::<Address>()?.absolute()?;
    ensure!(
        address != Address::Local,
        "`local` is no address that others can use\nhint: HOST[:PORT] or unix:PATH"
    );
    Ok(address.to_string())
}

/// The socket of a data directory, or `fallback` where the path is too long for one.
pub(crate) fn socket_in(dir: &Path, fallback: &Path) -> PathBuf {
    const PATH_MAX: usize = 100;
    let path = dir.join("nacre.sock");
    if path.as_os_str().len() <= PATH_MAX { path } else { fallback.to_path_buf() }
}

/// Parses `ADDRESS:/FS`, the source of a mount.
pub(crate) fn parse_source(text: &str) -> Result<(String, FsName)> {
    let Some((address, fs)) = text.rsplit_once(":/") else {
        bail!("{text:?} is not ADDRESS:/FS\nhint: 10.0.0.1:9988:/demo, or unix:/path/nacre.sock:/demo")
    };
    if address == "unix" {
        bail!("{text:?} does not name a file system\nhint: append :/FS, as in unix:/path/nacre.sock:/demo")
    }
    // The kernel's table of mounts shows it to other processes, so it must mean the same to them.
    let address = shared_address(address)?;
    let fs = FsName::parse(fs)
        .with_context(|| format!("{fs:?} is no file system name (1 to 8 of A-Z a-z 0-9 _ -)"))?;
    Ok((address, fs))
}

#[cfg(test)]
mod tests {
    use super::parse_source;

    #[test]
    fn what_a_user_types_is_an_address_or_refused() {
        crate::replay::replay("text", |bytes| {
            if let Ok((address, fs)) = parse_source(&String::from_utf8_lossy(bytes)) {
                assert_eq!(parse_source(&format!("{address}:/{fs}")).ok(), Some((address, fs)));
            }
        });
    }
}
