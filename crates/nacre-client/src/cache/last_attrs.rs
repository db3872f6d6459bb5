//! The last known attributes of files that may be gone: this mount has removed them, or has lost them to the change of another.
//!
//! A program may ask for the attributes of a name at the moment at which another program replaces or removes it. The kernel has
//! found the inode by then and asks for its attributes, which a local file system would still give. With ESTALE it would walk the
//! path again, which it does only once. So they are given once the MDT has said that the file is gone.
//!
//! Bounded: [`FILES_MAX`], because the kernel asks soon or, for a handle without an open (O_PATH), rarely. Not directories: a
//! path through a directory that was replaced is to be walked again.

use alloc::collections::VecDeque;
use nacre_types::{Attr, Fid, SizeState};
use nacre_wire::mdt::EntryReply;

const FILES_MAX: usize = 64;

/// The attributes, those noted first in front.
#[derive(Debug, Default)]
pub(super) struct LastAttrs(VecDeque<Attr>);

impl LastAttrs {
    /// From now on nothing is known of an inode, and this was.
    pub(super) fn note(&mut self, entry: &EntryReply) {
        if entry.attr.is_dir() || entry.attr.size_state != SizeState::Exact {
            return;
        }
        if self.0.len() >= FILES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(entry.attr);
    }
    /// The attributes of a file that is gone.
    pub(super) fn of_removed(&self, fid: Fid) -> Option<Attr> {
        let last = self.0.iter().rev().find(|attr| attr.fid == fid)?;
        Some(Attr { nlink: 0, ..*last })
    }
}
