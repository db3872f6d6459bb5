//! Opening a target directory that is going to be served or read.

use crate::process::{data_dir, store};
use anyhow::{Context as _, Result, ensure};
use nacre_node::Store;
use nacre_types::TargetName;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A target to be served: a plain record.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) name: TargetName,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) mgs_nodes: Vec<String>,
    /// Where it lives, for people.
    pub(crate) place: Option<PathBuf>,
}

/// Opens a formatted target directory.
pub(crate) fn open(dir: &Path) -> Result<Served> {
    check_is_target(dir)?;
    served(dir, store::open_dir(dir)?)
}
/// Opens a formatted target directory of which nothing is going to be changed.
pub(crate) fn open_read_only(dir: &Path) -> Result<Served> {
    check_is_target(dir)?;
    served(dir, store::open_dir_read_only(dir)?)
}
/// Refuses a path that users confuse with a target directory.
pub(crate) fn check_is_target(dir: &Path) -> Result<()> {
    ensure!(dir.exists(), "{} does not exist\nhint: nacre mkfs makes a target", dir.display());
    ensure!(
        !data_dir::is_data_dir(dir),
        "{} is the data directory of an `up`, its targets are the directories in it\nhint: {}",
        dir.display(),
        dir.join("mdt0").display()
    );
    Ok(())
}
fn served(dir: &Path, store: Arc<dyn Store>) -> Result<Served> {
    let label = store::label(&store).with_context(|| dir.display().to_string())?;
    let name = label
        .target()
        .with_context(|| format!("{}: the label names no target ({:?})", dir.display(), label.name))?;
    let place = Some(dir.canonicalize()?);
    Ok(Served { name, store, mgs_nodes: label.mgs_nodes, place })
}
