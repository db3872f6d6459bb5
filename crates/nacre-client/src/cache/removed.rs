//! Attributes of the inodes that this mount has removed last.
//!
//! A program may ask for the attributes of a name at the moment at which another one of the same mount replaces or removes
//! it. The kernel has found the inode by then and asks for its attributes, which a local file system would still give. With
//! ESTALE it would walk the path again, and does so only once.
//!
//! Bounded: [`INODES_MAX`], because the kernel asks soon or, for a handle without an open (O_PATH), rarely.

use alloc::collections::VecDeque;
use nacre_types::{Attr, Fid, SizeState};
use nacre_wire::mdt::EntryReply;

const INODES_MAX: usize = 64;

/// The inodes, the one that was removed first in front.
#[derive(Debug, Default)]
pub(super) struct RemovedInodes(VecDeque<Attr>);

impl RemovedInodes {
    /// An inode is removed of which this was known.
    pub(super) fn note(&mut self, entry: &EntryReply) {
        if entry.attr.size_state != SizeState::Exact {
            return;
        }
        if self.0.len() >= INODES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Attr { nlink: 0, ..entry.attr });
    }
    pub(super) fn find(&self, fid: Fid) -> Option<Attr> {
        self.0.iter().find(|attr| attr.fid == fid).copied()
    }
}
