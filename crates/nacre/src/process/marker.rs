//! The marker file of a data directory of `nacre up`: the file system in it, and how many OSTs it has.
//!
//! All that it says can be found in the targets, too. So a damaged file costs nothing: it is made again from them, by the
//! next `up`.

use crate::output;
use anyhow::{Context as _, Result};
use nacre_types::{FsName, TargetName};
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::Path;

/// The file that makes a directory a data directory of `up`.
pub(crate) const MARKER: &str = "nacre-up.json";

/// Contents of the marker file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marker {
    fsname: String,
    osts: u32,
    /// Every target was formatted.
    #[serde(default)]
    complete: bool,
    /// CRC-32C of the rest; files of earlier programs have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<u32>,
}

impl Marker {
    pub(crate) fn new(name: &FsName, osts: u32, complete: bool) -> Self {
        let mut marker = Self { fsname: name.to_string(), osts, complete, checksum: None };
        marker.checksum = Some(marker.sum());
        marker
    }
    pub(crate) fn name(&self) -> Result<FsName> {
        FsName::parse(&self.fsname).context("the marker file names no file system")
    }
    pub(crate) fn osts(&self) -> u32 {
        self.osts
    }
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }
    fn sum(&self) -> u32 {
        let Self { fsname, osts, complete, checksum: _ } = self;
        let text = format!("{fsname}\n{osts}\n{complete}");
        // This algorithm has 32 bits.
        crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, text.as_bytes()) as u32
    }

    /// Reads the file, or, if it is damaged, what the targets below `dir` show instead.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(MARKER);
        let text = std::fs::read(&path)?;
        let damage = match serde_json::from_slice::<Self>(&text) {
            Ok(marker) if marker.checksum.is_none_or(|sum| sum == marker.sum()) => return Ok(marker),
            Ok(_) => "its checksum is wrong".to_owned(),
            Err(error) => error.to_string(),
        };
        let found = Self::of_targets(dir).with_context(|| {
            format!(
                "{} is damaged ({damage}), and the targets beside it do not tell what was in it\n\
                 hint: the file has the lines {{\"fsname\": \"NAME\", \"osts\": NUMBER, \"complete\": true}}",
                path.display()
            )
        })?;
        output::note(&format!(
            "nacre: {} is damaged ({damage}): its targets show file system {} with {} OSTs",
            path.display(),
            found.fsname,
            found.osts
        ));
        Ok(found)
    }
    /// A sentence about a directory with targets of a whole file system, but without the file: it may have been lost.
    pub(crate) fn loss_in(dir: &Path) -> Option<String> {
        let found = Self::of_targets(dir).ok()?;
        let path = dir.join(MARKER);
        let line = serde_json::to_string(&Self { checksum: None, ..found.clone() }).ok()?;
        (!path.exists()).then(|| {
            format!(
                "{} holds targets of the file system {} with {} OSTs, but not the file {MARKER} of `nacre up`\n\
                 hint: if `nacre up` made them, write this line into {}: {line}",
                dir.display(),
                found.fsname,
                found.osts,
                path.display()
            )
        })
    }
    /// What the labels of the targets in `dir` show. Nothing is formatted there any more: the file system counts as complete.
    fn of_targets(dir: &Path) -> Result<Self> {
        let label = |sub: &str| -> Result<TargetName> {
            let path = dir.join(sub).join("super");
            let label = std::fs::read(&path)
                .map_err(anyhow::Error::from)
                .and_then(|bytes| nacre_osd::label_of(&bytes).map_err(|error| anyhow::anyhow!("{error}")));
            let name = label.with_context(|| path.display().to_string())?.name;
            TargetName::parse(&name).with_context(|| format!("{}: {name:?} is no target", path.display()))
        };
        let TargetName::Of { fs, .. } = label("mdt0")? else {
            anyhow::bail!("{} holds no MDT", dir.join("mdt0").display())
        };
        // Up to the highest one: an OST that is missing below it is lost, and its absence must be an error.
        let names = std::fs::read_dir(dir)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let last = names.filter_map(|name| name.strip_prefix("ost")?.parse::<u32>().ok()).max();
        let osts = last.and_then(|last| last.checked_add(1));
        Ok(Self::new(&fs, osts.with_context(|| format!("{} holds no OST", dir.display()))?, true))
    }
    /// The bytes of the file.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec_pretty(self)?)
    }
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let (path, new) = (dir.join(MARKER), dir.join(format!("{MARKER}.new")));
        let write = || {
            let mut file = std::fs::File::create(&new)?;
            file.write_all(&self.to_json()?)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            anyhow::Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}
