//! The kernel's pages of files, as an extension of the lock bit SIZE, and its listings of directories, of UPDATE.
//!
//! The bytes of a file are *covered* while this mount holds SIZE of it and has it not open for writing itself: nobody
//! changes them meanwhile, because the MDT revokes SIZE before another client opens the file for writing or truncates it,
//! and a writer changes objects only while the MDT knows of it (`locks/under_lease.rs`). A handle for reading that is
//! opened then uses the kernel's page cache.
//!
//! Rules: (1) Pages are *trusted* if they were loaded while the bytes were covered without a break. The first handle has
//! the kernel drop what it has from before; later ones keep the pages. (2) When the cover ends, pages are *doubtful*. If a
//! lock ends it, the kernel drops them before the lock is returned. (3) Handles stay cached all the same. The kernel asks
//! for attributes that have no validity before each read(2) of such a handle; while pages are doubtful, attributes have none,
//! and the reply makes the kernel drop all pages (`nacre-fuse/src/handlers/attrs.rs`). So a read returns no page that was
//! loaded before the read began, whoever writes. (4) Pages stay doubtful until all cached handles are closed; further
//! handles are not cached until then.
//!
//! The kernel keeps the names of a listing in pages of the directory, and the same rules hold for them: its names are
//! covered while this mount holds UPDATE. (The kernel itself notices the changes of its own programs.) It asks for the
//! attributes of the directory, if they have no validity, before a listing begins, and reads the names again if the time
//! of modification is another one. A listing whose handle was opened before the cover ended is therefore exact, too.
//!
//! What is loaded through a mapping, or by splice(2) and sendfile(2), while pages are doubtful, stays until attributes are
//! read: the kernel asks for nothing then. (Before copy_file_range(2) it does: `nacre-fuse/src/handlers/data.rs`.)
//!
//! Bounded: a file is here while a cached handle is open or SIZE is held. Not here: which handles use the page cache
//! (`serve`).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_types::{Fid, MdtIndex};

/// How a new handle uses the kernel's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageUse {
    /// Not at all.
    Direct,
    /// The open drops the pages of the file first.
    Emptied,
    /// The pages that are there are used.
    Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    Doubtful,
    /// The bytes are covered, and each open has the kernel drop older pages. No open is known to have done so.
    Beginning,
    Trusted,
}

/// The contents of the pages of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Bytes of a file, covered by SIZE.
    Bytes,
    /// Names of a directory, covered by UPDATE.
    Names,
}

#[derive(Debug)]
struct CachedFile {
    contents: Contents,
    /// Cached handles.
    handles: usize,
    trust: Trust,
}

/// The files and directories of which the kernel may have pages.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    files: RefCell<BTreeMap<Fid, CachedFile>>,
}

impl Pages {
    /// Whether a read must not use the pages that the kernel has.
    pub(crate) fn are_doubtful(&self, fid: Fid) -> bool {
        self.files.borrow().get(&fid).is_some_and(|file| file.trust == Trust::Doubtful)
    }
    /// Whether whatever pages the kernel has were loaded while the contents were covered without a break.
    pub(crate) fn are_trusted(&self, fid: Fid) -> bool {
        self.files.borrow().get(&fid).is_some_and(|file| file.trust == Trust::Trusted)
    }
    /// A handle is opened while the contents are covered. `renew`: the pages are to be loaded again.
    pub(super) fn open(&self, fid: Fid, contents: Contents, renew: bool) -> PageUse {
        let mut files = self.files.borrow_mut();
        let file = files.entry(fid).or_insert(CachedFile { contents, handles: 0, trust: Trust::Beginning });
        if file.trust == Trust::Doubtful {
            return PageUse::Direct;
        }
        file.handles += 1;
        if file.trust == Trust::Trusted && !renew { PageUse::Kept } else { PageUse::Emptied }
    }
    /// A request through a cached handle has come: its open has ended in the kernel.
    pub(crate) fn used(&self, fid: Fid) {
        if let Some(file) = self.files.borrow_mut().get_mut(&fid)
            && file.trust == Trust::Beginning
        {
            file.trust = Trust::Trusted;
        }
    }
    /// A cached handle is closed.
    pub(crate) fn closed(&self, fid: Fid) {
        self.used(fid);
        let mut files = self.files.borrow_mut();
        let Some(file) = files.get_mut(&fid) else { return };
        file.handles = file.handles.saturating_sub(1);
        if file.handles == 0 && file.trust == Trust::Doubtful {
            files.remove(&fid);
        }
    }
    /// The cover of names has ended, if `fid` is a directory. Returns whether the kernel may have some that were trusted.
    pub(super) fn names_ended(&self, fid: Fid) -> bool {
        let is_listed = |file: &CachedFile| file.contents == Contents::Names;
        self.files.borrow().get(&fid).is_some_and(is_listed) && self.ended(fid)
    }
    /// The cover has ended. Returns whether the kernel may have pages that were trusted.
    pub(crate) fn ended(&self, fid: Fid) -> bool {
        let mut files = self.files.borrow_mut();
        let Some(file) = files.get_mut(&fid) else { return false };
        let was_trusted = core::mem::replace(&mut file.trust, Trust::Doubtful) != Trust::Doubtful;
        if file.handles == 0 {
            files.remove(&fid);
        }
        was_trusted
    }
    /// The file was removed, and its lock with it. Returns whether handles use pages that were trusted.
    pub(crate) fn removed(&self, fid: Fid) -> bool {
        self.ended(fid) && self.files.borrow().contains_key(&fid)
    }
    /// All locks of an MDT have ended. Returns the files of which the kernel may have pages that were trusted.
    pub(crate) fn all_ended(&self, mdt: MdtIndex) -> Vec<Fid> {
        let fids: Vec<Fid> = self.files.borrow().keys().filter(|fid| fid.mdt() == mdt).copied().collect();
        fids.into_iter().filter(|fid| self.ended(*fid)).collect()
    }
    /// The files of which the kernel may have pages.
    pub(crate) fn fids(&self) -> Vec<Fid> {
        self.files.borrow().keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Oid, Seq};

    const FILE: Fid = Fid::new(Seq(0x100), Oid(1));

    #[test]
    fn pages_are_kept_once_an_open_has_dropped_older_ones() {
        let pages = Pages::default();
        assert_eq!(pages.open(FILE, Contents::Bytes, false), PageUse::Emptied);
        assert_eq!(
            pages.open(FILE, Contents::Bytes, false),
            PageUse::Emptied,
            "the first open may not have ended in the kernel"
        );
        pages.used(FILE);
        assert_eq!(
            (pages.open(FILE, Contents::Bytes, false), pages.open(FILE, Contents::Bytes, true)),
            (PageUse::Kept, PageUse::Emptied)
        );
        (0..4).for_each(|_| pages.closed(FILE));
        assert_eq!(pages.open(FILE, Contents::Bytes, false), PageUse::Kept, "also when no handle is left");
        pages.closed(FILE);
        assert!(pages.ended(FILE), "the kernel has to drop them");
        assert!(pages.fids().is_empty());
        assert_eq!(pages.open(FILE, Contents::Bytes, false), PageUse::Emptied);
    }

    #[test]
    fn pages_stay_doubtful_until_every_cached_handle_is_closed() {
        let pages = Pages::default();
        pages.open(FILE, Contents::Bytes, false);
        pages.open(FILE, Contents::Bytes, false);
        assert!(!pages.are_trusted(FILE), "pages of before may be there");
        pages.used(FILE);
        assert!(!pages.are_doubtful(FILE) && pages.are_trusted(FILE));
        assert!(pages.ended(FILE));
        assert!(!pages.ended(FILE), "they were doubtful already");
        assert!(!pages.are_trusted(FILE));
        pages.used(FILE);
        assert_eq!(pages.open(FILE, Contents::Bytes, false), PageUse::Direct);
        pages.closed(FILE);
        assert!(pages.are_doubtful(FILE));
        assert_eq!(pages.open(FILE, Contents::Bytes, false), PageUse::Direct);
        pages.closed(FILE);
        assert!(pages.fids().is_empty());
        assert_eq!(pages.open(FILE, Contents::Bytes, false), PageUse::Emptied);
        assert!(pages.removed(FILE), "a handle is open");
        pages.closed(FILE);
        pages.open(FILE, Contents::Bytes, false);
        pages.closed(FILE);
        assert!(!pages.removed(FILE), "nobody reads what is gone");
    }

    #[test]
    fn the_end_of_update_ends_the_cover_of_names_alone() {
        let pages = Pages::default();
        let dir = Fid::new(Seq(0x100), Oid(3));
        assert_eq!(pages.open(FILE, Contents::Bytes, false), PageUse::Emptied);
        assert_eq!(pages.open(dir, Contents::Names, false), PageUse::Emptied);
        assert!(!pages.names_ended(FILE) && pages.names_ended(dir) && !pages.names_ended(dir));
        assert!(!pages.are_doubtful(FILE) && pages.are_doubtful(dir));
    }

    #[test]
    fn a_restart_of_the_mdt_ends_the_cover_of_all_its_files() {
        let pages = Pages::default();
        let second = Fid::new(Seq(0x100), Oid(2));
        pages.open(FILE, Contents::Bytes, false);
        pages.open(second, Contents::Bytes, false);
        pages.closed(second);
        assert_eq!(pages.all_ended(FILE.mdt()), [FILE, second]);
        assert_eq!((pages.fids(), pages.all_ended(FILE.mdt())), (alloc::vec![FILE], Vec::new()));
    }
}
