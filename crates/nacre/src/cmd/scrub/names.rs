//! The paths of damaged files, by their FIDs, from a mount of their file system on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Names that were asked for.
#[derive(Default)]
pub(super) struct Names {
    known: BTreeMap<(PathBuf, String), Vec<String>>,
    /// Mounts that did not reply in time.
    silent: BTreeSet<PathBuf>,
}

impl Names {
    /// All paths of a file, with the mount point. Empty: it has none (any more), or the mount does not reply.
    pub(super) fn of(&mut self, mount: &Path, fid: &str, limit: Duration) -> Vec<String> {
        let key = (mount.to_path_buf(), fid.to_owned());
        if let Some(paths) = self.known.get(&key) {
            return paths.clone();
        }
        if self.silent.contains(mount) {
            return Vec::new();
        }
        let begin = Instant::now();
        let paths = ask(mount, fid, limit).unwrap_or_default();
        if paths.is_empty() && begin.elapsed() >= limit {
            self.silent.insert(mount.to_path_buf());
        }
        self.known.insert(key, paths.clone());
        paths
    }
}

/// In a process of its own, because a mount whose process is stopped never replies.
fn ask(mount: &Path, fid: &str, limit: Duration) -> Option<Vec<String>> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.args(["lfs", "fid2path", "--json", "--timeout", &limit.as_secs().to_string()]);
    let said = command.arg(mount).arg(fid).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let found: serde_json::Value = serde_json::from_slice(&said.stdout).ok()?;
    let paths = found.get(0)?.get("paths")?.as_array()?;
    let whole = |path: &str| mount.join(path.trim_start_matches('/')).to_string_lossy().into_owned();
    Some(paths.iter().filter_map(|path| path.as_str()).map(whole).collect())
}
