//! The attributes of the files that this mount has removed last.
//!
//! A program may ask for the attributes of a name at the moment at which another one of the same mount replaces or removes it.
//! The kernel has found the inode by then and asks for its attributes, which a local file system would still give. With ESTALE it
//! would walk the path again, which it does only once. So they are given once the MDT has said that the file is gone.
//!
//! They are noted while locks cover them, in the visit that learns of the removal. Nobody has the file open then, so they are
//! final. Nothing is noted when another mount removes a file: between the loss of a lock and the removal, others may have
//! changed it.
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
    /// A file is gone of which this was known.
    pub(super) fn note(&mut self, entry: &EntryReply) {
        if entry.attr.is_dir() || entry.attr.size_state != SizeState::Exact {
            return;
        }
        if self.0.len() >= FILES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Attr { nlink: 0, ..entry.attr });
    }
    pub(super) fn of_removed(&self, fid: Fid) -> Option<Attr> {
        self.0.iter().find(|attr| attr.fid == fid).copied()
    }
}
