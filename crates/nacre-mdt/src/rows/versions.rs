//! Version-based recovery: a replayed change must find what it found when it was made first.
//!
//! Why: of a client that does not come back after the loss of a machine, the latest changes stay lost. Who has
//! built on them must learn it; who has not must not notice. So every modifying reply carries the versions of
//! what the change depends on, and in replay another version fails that change, and its client's export when
//! the recovery is over.
//!
//! Rules: a version is the number of the latest change. That of an inode changes with its own attributes, its names
//! and its end, not with the entries of a directory, nor with opens, sizes and times that writers report: these are
//! merged. That of a name is its entry's; a name that is not there has version 0.

use crate::rows::row::Inode;
use crate::rows::view::{Slot, Step, View};
use nacre_rpc::{PreVersions, SubRecord};
use nacre_types::{Errno, Fid, ProtocolOutcome, Transno};
use tracing::warn;

/// Which of the versions.
pub(crate) const PARENT: usize = 0;
pub(crate) const NAME: usize = 1;
pub(crate) const CHILD: usize = 2;
/// The same of a rename.
pub(crate) const SOURCE_DIR: usize = 0;
pub(crate) const TARGET_DIR: usize = 1;
pub(crate) const SOURCE_CHILD: usize = 2;
pub(crate) const TARGET_CHILD: usize = 3;

impl View<'_> {
    /// The operation depends on this inode as it is.
    pub(crate) fn depends_on(&mut self, place: usize, inode: &Inode) -> Step<()> {
        self.check_version(place, "inode", inode.attr.fid, inode.attr.version)
    }
    /// The operation depends on what `name` is in `dir`.
    pub(crate) fn depends_on_name(&mut self, dir: Fid, slot: &Slot) -> Step<()> {
        let version = match slot {
            Slot::Taken { entry, .. } => entry.version,
            Slot::Free { .. } | Slot::Full => 0,
        };
        self.check_version(NAME, "name in directory", dir, version)
    }
    /// The operation depends on it that nothing is there.
    pub(crate) fn depends_on_nothing(&mut self, place: usize, dir: Fid) -> Step<()> {
        self.check_version(place, "name in directory", dir, 0)
    }
    fn check_version(&mut self, place: usize, what: &str, fid: Fid, version: u64) -> Step<()> {
        let version = Transno(version);
        match self.version_found(place, version) {
            Some(expected) if expected != version => {
                warn!(what, %fid, found = %version, %expected,
                    "replay refused: a change that this one builds on is lost");
                Err(Errno::from(ProtocolOutcome::VersionMismatch).into())
            }
            _ => Ok(()),
        }
    }
}

/// Versions and results of all sub-operations of a batch in one number: the batch is made again as a whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Digest(u64);
impl Digest {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
    fn mix(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
    pub(crate) fn add(&mut self, found: &PreVersions, record: &SubRecord) {
        found.0.iter().for_each(|version| self.mix(version.0));
        self.mix(u64::from(record.result) << 8 | u64::from(record.data));
    }
    pub(crate) fn versions(self) -> PreVersions {
        // 0 would say that there are none.
        PreVersions([Transno(self.0 | 1), Transno(0), Transno(0), Transno(0)])
    }
}
