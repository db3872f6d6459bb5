//! The name of a new file system for which none was given.

use crate::process::{data_dir, registry};
use crate::query::filesystems;
use anyhow::{Context as _, Result};
use nacre_types::FsName;
use std::collections::BTreeSet;
use std::path::Path;

const DEFAULT_NAME: &str = "nacre";

/// Returns a name that no other file system of this machine has, so that patterns and tools can tell them apart.
/// `wanted`: the data directory, if one was given; `default`: the one that is made otherwise.
pub(super) fn free_name(wanted: Option<&Path>, default: Option<&Path>, mount: &Path) -> Result<FsName> {
    let mut taken: BTreeSet<String> = registry::entries()?
        .iter()
        .flat_map(|e| e.islands.iter().filter_map(|island| filesystems::name_of(island)).chain(e.fs.clone()))
        .collect();
    // File systems that do not run now are found at the default place of their data. No other place is read: it may be a
    // mount whose servers are away.
    let base = default.and_then(Path::parent).and_then(|base| std::fs::read_dir(base).ok());
    let kept = base.into_iter().flatten().flatten().filter_map(|entry| data_dir::name_of(&entry.path()).ok());
    taken.extend(kept.map(|name| name.to_string()));
    let place = wanted.unwrap_or(mount).file_name().unwrap_or_default().to_string_lossy();
    new_name(&place, &taken).context("no free name for the file system\nhint: --fsname NAME")
}
/// `nacre`; if that is taken, `place` without the characters that a name may not have; if that is taken, with a number.
fn new_name(place: &str, taken: &BTreeSet<String>) -> Option<FsName> {
    let is_good = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let base: String = place.chars().filter(is_good).collect();
    let base = base.trim_start_matches('-');
    let base = if base.is_empty() { DEFAULT_NAME } else { base };
    let cut = |len: usize| base.get(..len.min(base.len())).unwrap_or(base).trim_end_matches('-');
    let numbered = (2..1000).map(|n: u32| n.to_string()).map(|n| format!("{}{n}", cut(8 - n.len())));
    [DEFAULT_NAME.to_owned(), cut(8).to_owned()]
        .into_iter()
        .chain(numbered)
        .find(|name| !taken.contains(name))
        .and_then(|name| FsName::parse(&name))
}

#[cfg(test)]
mod tests {
    use super::new_name;

    #[test]
    fn a_new_file_system_has_a_name_of_its_own() {
        let name = |place: &str, taken: &[&str]| {
            let taken = taken.iter().map(ToString::to_string).collect();
            new_name(place, &taken).unwrap().to_string()
        };
        assert_eq!(name("data", &[]), "nacre");
        assert_eq!(name("data", &["nacre"]), "data");
        assert_eq!(name("data", &["nacre", "data"]), "data2");
        assert_eq!(name("a long name", &["nacre"]), "alongnam");
        assert_eq!(name("a long name", &["nacre", "alongnam"]), "alongna2");
        assert_eq!(name("nacre", &["nacre"]), "nacre2");
        for odd in ["", "ü", "--", "/"] {
            assert_eq!(name(odd, &["nacre"]), "nacre2", "{odd:?}");
        }
        assert_eq!(name("a-b-c-d-e", &["nacre"]), "a-b-c-d");
    }
}
