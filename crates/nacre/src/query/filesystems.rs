//! The file systems of this machine, and the choice of the one that a command applies to.
//!
//! Two file systems may have the same name. They are distinguished by the addresses of their MGS: processes that know a
//! common address of an MGS belong together. A command without an explicit choice applies to one file system only: the
//! one that matches its names, or else the one in which it was started. If that does not decide, it fails with an error
//! that lists them.

use crate::process::registry::ProcessEntry;
use anyhow::{Result, bail};
use nacre_types::TargetName;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The choice of a command.
#[derive(clap::Args, Debug, Clone, Default)]
pub(crate) struct ScopeArgs {
    /// The file system: its name, or a mount point of it (default: the only one that the names fit, else the one that the
    /// current directory is in)
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    fs: Option<String>,
    /// Every file system of this machine
    #[arg(long)]
    all: bool,
}
impl ScopeArgs {
    pub(crate) fn all() -> Self {
        Self::one_or_all(None)
    }
    /// The file system of that name or mount point, or every one.
    pub(crate) fn one_or_all(fs: Option<&str>) -> Self {
        Self { fs: fs.map(str::to_owned), all: fs.is_none() }
    }
}

/// A file system; without a name an MGS, which may serve several.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileSystem {
    /// Which MGS, as the first entry that knows it.
    mgs: usize,
    name: Option<String>,
}
impl FileSystem {
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
    /// Whether what belongs to `self` belongs to `other` too.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.mgs == other.mgs && (self.name.is_none() || other.name.is_none() || self.name == other.name)
    }
}

/// The processes of this machine by file system.
pub(crate) struct FileSystems {
    entries: Vec<ProcessEntry>,
    /// For each entry the first one with the same MGS.
    mgs: Vec<usize>,
}

impl FileSystems {
    pub(crate) fn entries(&self) -> &[ProcessEntry] {
        &self.entries
    }
    pub(crate) fn new(entries: Vec<ProcessEntry>) -> Self {
        let mut mgs: Vec<usize> = (0..entries.len()).collect();
        for a in 0..entries.len() {
            for b in 0..a {
                if share_mgs(&entries[a], &entries[b]) && mgs[a] != mgs[b] {
                    let (old, new) = (mgs[a].max(mgs[b]), mgs[a].min(mgs[b]));
                    mgs.iter_mut().filter(|group| **group == old).for_each(|group| *group = new);
                }
            }
        }
        Self { entries, mgs }
    }

    /// The file system of an island.
    pub(crate) fn of(&self, entry: usize, island: &str) -> FileSystem {
        FileSystem { mgs: self.mgs[entry], name: name_of(island) }
    }
    /// Every file system with a name.
    pub(crate) fn all(&self) -> BTreeSet<FileSystem> {
        let named = self.entries.iter().enumerate().flat_map(|(index, entry)| {
            entry.islands.iter().map(move |island| self.of(index, island)).filter(|fs| fs.name.is_some())
        });
        named.collect()
    }
    /// Those called `name`.
    pub(crate) fn named(&self, name: &str) -> Vec<FileSystem> {
        self.all().into_iter().filter(|fs| fs.name.as_deref() == Some(name)).collect()
    }
    pub(crate) fn mounts(&self, fs: &FileSystem) -> Vec<PathBuf> {
        let of = self
            .entries
            .iter()
            .enumerate()
            .filter(|(index, e)| self.mgs[*index] == fs.mgs && (fs.name.is_none() || e.fs == fs.name));
        of.flat_map(|(_, entry)| entry.mounts.clone()).collect()
    }
    /// In words, so that it cannot be taken for another: `nacre, mounted on /mnt/a`.
    pub(crate) fn describe(&self, fs: &FileSystem) -> String {
        let name = fs.name.clone().unwrap_or_else(|| "MGS".into());
        let mounts: Vec<_> = self.mounts(fs).iter().map(|m| m.display().to_string()).collect();
        if !mounts.is_empty() {
            return format!("{name}, mounted on {}", mounts.join(", "));
        }
        let address = self.entries.get(fs.mgs).and_then(|entry| entry.mgs.first());
        match address {
            Some(address) => format!("{name}, with its MGS at {address}"),
            None => format!("{name} (pid {})", self.entries.get(fs.mgs).map_or(0, |e| e.pid)),
        }
    }
    /// A line for each.
    fn list<'a>(&self, which: impl IntoIterator<Item = &'a FileSystem>) -> String {
        which.into_iter().map(|fs| format!("\n  {}", self.describe(fs))).collect()
    }

    /// The choice among the file systems that `what` (a pattern, in words) matches; `None`: all of them.
    ///
    /// # Errors
    /// Several are possible.
    pub(crate) fn choose(
        &self,
        args: &ScopeArgs,
        what: &str,
        fits: BTreeSet<FileSystem>,
    ) -> Result<Option<FileSystem>> {
        if args.all {
            return Ok(None);
        }
        if let Some(text) = &args.fs {
            return self.parse(text).map(Some);
        }
        // An MGS counts where it is the only one of its file systems that fits.
        let is_named = |fs: &FileSystem| fits.iter().any(|other| other.mgs == fs.mgs && other.name.is_some());
        let fits: Vec<&FileSystem> = fits.iter().filter(|fs| fs.name.is_some() || !is_named(fs)).collect();
        match fits.as_slice() {
            [] => return Ok(None),
            [one] => return Ok(Some((*one).clone())),
            _ => {}
        }
        if let Some(here) = self.here().filter(|here| fits.iter().any(|fs| fs.is_of(here))) {
            return Ok(Some(here));
        }
        bail!(
            "{what} fits {} file systems on this machine:{}\nhint: --fs with a name or mount point, --all, or run it in a \
             directory of the one that is meant",
            fits.len(),
            self.list(fits)
        )
    }
    fn of_entry(&self, index: usize) -> FileSystem {
        FileSystem { mgs: self.mgs[index], name: self.entries[index].fs.clone() }
    }
    /// The value of `--fs`.
    fn parse(&self, text: &str) -> Result<FileSystem> {
        let mount = std::path::absolute(text)?;
        let by_mount = self.entries.iter().position(|e| e.mounts.contains(&mount));
        let found = match by_mount.filter(|_| text.contains('/')) {
            Some(index) => vec![self.of_entry(index)],
            None => match (self.named(text), by_mount) {
                // A mount point in the current directory.
                (none, Some(index)) if none.is_empty() => vec![self.of_entry(index)],
                (named, _) => named,
            },
        };
        match found.as_slice() {
            [one] => Ok(one.clone()),
            [] => match self.all() {
                none if none.is_empty() => bail!("no file system runs on this machine\nhint: nacre up"),
                all => bail!("no file system {text:?} on this machine; there are:{}", self.list(&all)),
            },
            many => bail!(
                "{} file systems on this machine are named {text:?}:{}\nhint: name a mount point instead",
                many.len(),
                self.list(many)
            ),
        }
    }
    /// The file system that the current directory is in.
    fn here(&self) -> Option<FileSystem> {
        let (point, _) = nacre_fuse::mount_of(&std::env::current_dir().ok()?)?;
        let index = self.entries.iter().position(|e| e.mounts.contains(&point))?;
        Some(FileSystem { mgs: self.mgs[index], name: self.entries[index].fs.clone() })
    }
    /// Says which file system a command acts on, where there are others.
    pub(crate) fn announce(&self, chosen: Option<&FileSystem>) {
        if let Some(fs) = chosen.filter(|_| self.all().len() > 1) {
            crate::output::note(&format!("file system {}", self.describe(fs)));
        }
    }
}

fn share_mgs(a: &ProcessEntry, b: &ProcessEntry) -> bool {
    a.mgs.iter().any(|x| b.mgs.iter().any(|y| x == y || is_wildcard_of(x, y) || is_wildcard_of(y, x)))
}
/// `0.0.0.0:9988` is every address of this machine with that port.
fn is_wildcard_of(wild: &str, address: &str) -> bool {
    let port = wild.strip_prefix("0.0.0.0:").or_else(|| wild.strip_prefix("[::]:"));
    port.is_some_and(|port| !address.starts_with("unix:") && address.rsplit(':').next() == Some(port))
}

/// The name of the file system in that of a target or mount.
pub(crate) fn name_of(island: &str) -> Option<String> {
    match TargetName::parse(island) {
        Some(TargetName::Mgs) => None,
        Some(TargetName::Of { fs, .. }) => Some(fs.to_string()),
        None => island.rsplit_once('-').map(|(fs, _)| fs.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::registry::ProcessKind;

    fn entry(fs: Option<&str>, islands: &[&str], mounts: &[&str], mgs: &[&str]) -> ProcessEntry {
        ProcessEntry {
            pid: 7,
            start_time: 0,
            kind: ProcessKind::Up,
            socket: PathBuf::new(),
            islands: islands.iter().map(ToString::to_string).collect(),
            mounts: mounts.iter().map(PathBuf::from).collect(),
            fs: fs.map(str::to_owned),
            targets: Vec::new(),
            mgs: mgs.iter().map(ToString::to_string).collect(),
            refused: Default::default(),
            failure: None,
        }
    }
    fn two_of_one_name() -> FileSystems {
        FileSystems::new(vec![
            entry(Some("nacre"), &["MGS", "nacre-MDT0000", "nacre-00"], &["/mnt/a"], &["unix:/a"]),
            entry(Some("nacre"), &["MGS", "nacre-MDT0000", "nacre-01"], &["/mnt/b"], &["unix:/b", "h:1"]),
            entry(Some("nacre"), &["nacre-02"], &["/mnt/c"], &["h:1"]),
            entry(Some("demo"), &["demo-OST0001"], &[], &["h:1"]),
        ])
    }
    /// Everything that a field fits.
    fn fits(all: &FileSystems, what: impl Fn(&str) -> bool) -> BTreeSet<FileSystem> {
        let islands = |index: usize| all.entries[index].islands.iter().filter(|i| what(i));
        (0..all.entries.len()).flat_map(|index| islands(index).map(move |i| all.of(index, i))).collect()
    }

    #[test]
    fn file_systems_of_one_name_are_told_apart_by_their_mgs() {
        let all = two_of_one_name();
        assert_eq!(all.all().len(), 3);
        let names: Vec<_> = all.named("nacre").iter().map(|fs| all.describe(fs)).collect();
        assert_eq!(names, ["nacre, mounted on /mnt/a", "nacre, mounted on /mnt/b, /mnt/c"]);
        assert_eq!(all.describe(&all.named("demo")[0]), "demo, with its MGS at unix:/b");
    }

    #[test]
    fn a_pattern_of_several_file_systems_wants_a_choice() {
        let all = two_of_one_name();
        let choose = |args: &ScopeArgs, what: &dyn Fn(&str) -> bool| {
            all.choose(args, "'x'", fits(&all, what)).map(|fs| fs.map(|fs| all.describe(&fs)))
        };
        let none = ScopeArgs::default();
        let several = choose(&none, &|island| island.starts_with("nacre-MDT")).unwrap_err().to_string();
        assert!(
            several.contains("'x' fits 2 file systems") && several.contains("/mnt/b, /mnt/c"),
            "{several}"
        );
        assert_eq!(
            choose(&none, &|island| island == "demo-OST0001").unwrap().unwrap().get(..4),
            Some("demo")
        );
        assert!(choose(&none, &|island| island == "MGS").is_err(), "two MGSs");
        assert_eq!(choose(&none, &|_| false).unwrap(), None);
        assert_eq!(choose(&ScopeArgs::all(), &|_| true).unwrap(), None);
        let of = |fs: &str| ScopeArgs { fs: Some(fs.to_owned()), all: false };
        assert!(choose(&of("/mnt/a"), &|_| true).unwrap().unwrap().ends_with("/mnt/a"));
        let twice = choose(&of("nacre"), &|_| true).unwrap_err().to_string();
        assert!(twice.contains("2 file systems on this machine are named \"nacre\""), "{twice}");
        let unknown = choose(&of("other"), &|_| true).unwrap_err().to_string();
        assert!(unknown.contains("no file system \"other\"") && unknown.contains("demo"), "{unknown}");
    }

    #[test]
    fn an_address_of_all_interfaces_is_each_of_them() {
        assert!(is_wildcard_of("0.0.0.0:9988", "10.0.0.1:9988") && is_wildcard_of("[::]:9988", "h:9988"));
        assert!(
            !is_wildcard_of("0.0.0.0:9988", "10.0.0.1:9989") && !is_wildcard_of("0.0.0.0:1", "unix:/a:1")
        );
    }
}
