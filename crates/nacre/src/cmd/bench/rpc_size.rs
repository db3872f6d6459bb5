//! The largest read and write request of one mount, varied for a measurement and restored afterwards.

use super::scratch::SavedSettings;
use super::site;
use crate::cmd::lctl;
use anyhow::{Result, ensure};
use std::path::Path;

const PAGE: u64 = 4096;

/// `osc.*.max_pages_per_rpc` of one mount.
pub(super) struct RpcSize {
    names: Vec<String>,
    _saved: SavedSettings,
}

impl RpcSize {
    /// Those of the mount that `dir` is on.
    pub(super) fn of(dir: &Path) -> Result<Self> {
        let found = lctl::matching(&format!("osc.*-{}.max_pages_per_rpc", site::instance(dir)?))?;
        ensure!(
            !found.is_empty(),
            "the mount of {} knows no OST yet\nhint: nacre status shows the targets",
            dir.display()
        );
        let settings = found.iter().map(|param| format!("{}={}", param.name, param.value)).collect();
        Ok(Self {
            _saved: SavedSettings::save(settings)?,
            names: found.into_iter().map(|param| param.name).collect(),
        })
    }
    pub(super) fn set(&self, bytes: u64) -> Result<()> {
        ensure!(bytes.is_multiple_of(PAGE), "--rpc {bytes} is no multiple of {PAGE}");
        self.names.iter().try_for_each(|name| lctl::apply(&format!("{name}={}", bytes / PAGE)))
    }
}
