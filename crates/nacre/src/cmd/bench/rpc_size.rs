//! The largest read and write request of one mount, varied for a measurement and restored afterwards.

use super::site;
use crate::cmd::lctl;
use anyhow::{Result, ensure};
use nacre_wire::target::Param;
use std::path::Path;

const PAGE: u64 = 4096;

/// `osc.*.max_pages_per_rpc` of one mount. The values that it found are restored when it is dropped.
pub(super) struct RpcSize {
    before: Vec<Param>,
}

impl RpcSize {
    /// Those of the mount that `dir` is on.
    pub(super) fn of(dir: &Path) -> Result<Self> {
        let before = lctl::matching(&format!("osc.*-{}.max_pages_per_rpc", site::instance(dir)?))?;
        ensure!(!before.is_empty(), "the mount of {} has no OST yet", dir.display());
        Ok(Self { before })
    }
    pub(super) fn set(&self, bytes: u64) -> Result<()> {
        ensure!(bytes.is_multiple_of(PAGE), "--rpc {bytes} is no multiple of {PAGE}");
        self.before.iter().try_for_each(|param| lctl::apply(&format!("{}={}", param.name, bytes / PAGE)))
    }
}

impl Drop for RpcSize {
    fn drop(&mut self) {
        for param in &self.before {
            if let Err(error) = lctl::apply(&format!("{}={}", param.name, param.value)) {
                tracing::warn!("{} cannot be restored: {error:#}", param.name);
            }
        }
    }
}
