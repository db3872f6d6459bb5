//! Version-based recovery: a replayed change must find the state that it found when it was executed first.
//!
//! Why: if a client does not return after the loss of a machine, its latest changes stay lost. Clients whose changes build on
//! them have to be evicted; other clients must not notice. So the reply to a change carries the versions of the inodes and
//! names that the change depends on. If a replay finds another version, the change fails, and the export of its client ends
//! with the recovery.
//!
//! Rules: a version is the number of the latest change. The version of an inode changes with its own attributes, its names
//! and its end, not with the entries of a directory, nor with opens, sizes and times that writers report, which are merged.
//! The version of a name is in its entry; a name that does not exist has version 0.

use crate::rows::row::Inode;
use crate::rows::view::{Slot, Step, View};
use nacre_rpc::{PreVersions, SubRecord};
use nacre_types::{Fid, ProtocolOutcome, Transno};
use tracing::warn;

/// The places of the versions of an operation.
pub(crate) const PARENT: usize = 0;
pub(crate) const NAME: usize = 1;
pub(crate) const CHILD: usize = 2;
/// The places of the versions of a rename.
pub(crate) const SOURCE_DIR: usize = 0;
pub(crate) const TARGET_DIR: usize = 1;
pub(crate) const SOURCE_CHILD: usize = 2;
pub(crate) const TARGET_CHILD: usize = 3;

impl View<'_> {
    /// The operation depends on this inode as it is.
    pub(crate) fn depends_on(&mut self, place: usize, inode: &Inode) -> Step<()> {
        self.check_version(place, "inode", inode.attr.fid, inode.attr.version)
    }
    /// The operation depends on the entry of a name, or on its absence.
    pub(crate) fn depends_on_name(&mut self, dir: Fid, slot: &Slot) -> Step<()> {
        let version = match slot {
            Slot::Taken { entry, .. } => entry.version,
            Slot::Free { .. } | Slot::Full => 0,
        };
        self.check_version(NAME, "name in directory", dir, version)
    }
    /// The operation depends on the absence of a name.
    pub(crate) fn depends_on_nothing(&mut self, place: usize, dir: Fid) -> Step<()> {
        self.check_version(place, "name in directory", dir, 0)
    }
    fn check_version(&mut self, place: usize, what: &str, fid: Fid, version: u64) -> Step<()> {
        let version = Transno(version);
        match self.version_found(place, version) {
            Some(expected) if expected != version => {
                warn!(what, %fid, found = %version, %expected,
                    "replay refused: a change that this one builds on is lost");
                Err(ProtocolOutcome::VersionMismatch.into())
            }
            _ => Ok(()),
        }
    }
}

/// The versions and results of all operations of a batch in one number: a batch is replayed as a whole.
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
