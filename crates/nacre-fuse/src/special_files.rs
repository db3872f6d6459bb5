//! Pipes, devices and sockets whose last name is gone.
//!
//! The kernel opens them without asking us, so nobody at the MDT knows that they are open, and the last unlink removes the
//! inode. A program that has one open may go on for long: `mkfifo f; exec 3<>f; rm f` is how shells make a pipe without a
//! name. What it asks about the attributes is answered from what was known last. Extended attributes are gone with the inode.

use nacre_client::ResolvedInode;
use nacre_types::{Attr, Fid, SetAttr, Timestamp, mode};
use std::collections::BTreeMap;

/// Inodes that are remembered; the one that was seen longest ago gives way.
const INODES_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct SpecialFiles {
    known: BTreeMap<Fid, Known>,
    seen: BTreeMap<u64, Fid>,
    next: u64,
}

struct Known {
    entry: ResolvedInode,
    seen: u64,
}

impl SpecialFiles {
    /// The attributes of an inode are given to the kernel.
    pub(crate) fn note(&mut self, entry: &ResolvedInode) {
        if matches!(entry.attr.mode & mode::FMT, mode::FIFO | mode::CHR | mode::BLK | mode::SOCK) {
            self.insert(entry.clone());
        }
    }
    fn insert(&mut self, entry: ResolvedInode) {
        let fid = entry.attr.fid;
        self.next += 1;
        let seen = self.next;
        if let Some(before) = self.known.insert(fid, Known { entry, seen }) {
            self.seen.remove(&before.seen);
        }
        self.seen.insert(seen, fid);
        if self.known.len() > INODES_MAX
            && let Some((_, oldest)) = self.seen.pop_first()
        {
            self.known.remove(&oldest);
        }
    }
    /// The attributes of an inode that the MDT does not have any more.
    pub(crate) fn removed(&self, fid: Fid) -> Option<ResolvedInode> {
        let mut entry = self.known.get(&fid)?.entry.clone();
        entry.attr.nlink = 0;
        Some(entry)
    }
    /// The same after a change of them at `now`, which no other mount sees: it cannot have the inode open.
    pub(crate) fn change_removed(
        &mut self,
        fid: Fid,
        set: &SetAttr,
        now: Timestamp,
    ) -> Option<ResolvedInode> {
        let mut entry = self.removed(fid)?;
        let attr: &mut Attr = &mut entry.attr;
        if let Some(bits) = set.mode {
            attr.mode = attr.mode & mode::FMT | bits & mode::PERM;
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.unwrap_or(attr.atime);
        attr.mtime = set.mtime.unwrap_or(attr.mtime);
        attr.ctime = attr.ctime.max(now);
        self.insert(entry.clone());
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ino: u64, mode: u32) -> ResolvedInode {
        ResolvedInode { attr: Attr::new(Fid::from_ino(ino), mode, Timestamp::default()), kill_priv: false }
    }

    #[test]
    fn what_was_known_of_a_removed_pipe_is_answered_and_changed() {
        let mut files = SpecialFiles::default();
        let (pipe, file) = (entry(7, mode::FIFO | 0o640), entry(8, mode::REG | 0o640));
        files.note(&pipe);
        files.note(&file);
        assert_eq!(files.removed(file.attr.fid).map(|e| e.attr), None);
        let removed = files.removed(pipe.attr.fid).map(|e| e.attr);
        assert_eq!(removed, Some(Attr { nlink: 0, ..pipe.attr }));
        let now = Timestamp { sec: 9, nsec: 1 };
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let changed = files.change_removed(pipe.attr.fid, &set, now).map(|e| e.attr);
        let wanted = Attr { nlink: 0, mode: mode::FIFO | 0o600, ctime: now, ..pipe.attr };
        assert_eq!(changed, Some(wanted));
        assert_eq!(files.removed(pipe.attr.fid).map(|e| e.attr), Some(wanted));
    }

    #[test]
    fn the_one_that_was_seen_longest_ago_gives_way() {
        let mut files = SpecialFiles::default();
        for ino in 1..=INODES_MAX as u64 + 1 {
            files.note(&entry(ino + 100, mode::SOCK));
            files.note(&entry(101, mode::SOCK));
        }
        assert_eq!((files.known.len(), files.seen.len()), (INODES_MAX, INODES_MAX));
        assert!(files.removed(Fid::from_ino(101)).is_some() && files.removed(Fid::from_ino(102)).is_none());
    }
}
