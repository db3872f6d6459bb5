//! How long the kernel can serve a listing that it keeps without asking for the inodes one by one.
//!
//! A program that lists a directory often asks for the attributes of everything in it next. READDIRPLUS brings them along,
//! and a listing that the kernel serves itself does not. So the kernel is told to read the names again unless it was
//! given the whole directory by READDIRPLUS and all of that is still valid. Bounded: [`DIRS_MAX`] directories.
//!
//! Not here: whether the names are exact (`nacre_client`, `cache/pages.rs`).

use nacre_client::Validity;
use nacre_types::{Fid, Instant};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Directories that are remembered; with more, all are forgotten.
const DIRS_MAX: usize = 10_000;
/// With more than one name in so many without a validity, the directory is read again by every listing.
const VALID_AT_LEAST: usize = 8;

/// The reply to one READDIRPLUS.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// The cookies before its first name and of its last one.
    from: u64,
    to: u64,
    /// It ends the directory.
    is_end: bool,
    /// Its names that lead to an inode, and those of them that are valid with their attributes.
    names: usize,
    valid: usize,
    /// The earliest end of a validity.
    until: Instant,
}
impl Part {
    /// A part that begins after a cookie. `is_end`: it ends the directory, if all of it is given.
    pub(crate) fn new(from: u64, is_end: bool) -> Self {
        Self { from, to: from, is_end, names: 0, valid: 0, until: Instant(u64::MAX) }
    }
    /// The name with this cookie is given.
    pub(crate) fn reach(&mut self, cookie: u64) {
        self.to = cookie;
    }
    /// The rest is not given.
    pub(crate) fn stop(&mut self) {
        self.is_end = false;
    }
    /// The inode of a name is given.
    pub(crate) fn add(&mut self, validity: Validity, now: Instant) {
        self.names += 1;
        let shorter = validity.entry.min(validity.attr);
        if !shorter.is_zero() {
            self.valid += 1;
            self.until = self.until.min(now + shorter);
        }
    }
    fn is_valid(&self) -> bool {
        (self.names - self.valid) * VALID_AT_LEAST <= self.names
    }
}

#[derive(Debug, Clone, Copy)]
enum Progress {
    /// The listing has come to this cookie.
    To(u64),
    /// It has come to the end.
    Whole,
}

#[derive(Debug, Clone, Copy)]
struct Listing {
    progress: Progress,
    until: Instant,
}

/// The directories that the kernel is being given, or was given as a whole.
#[derive(Debug, Default)]
pub(crate) struct Listings(RefCell<BTreeMap<Fid, Listing>>);

impl Listings {
    /// Whether the kernel can serve the directory itself.
    pub(crate) fn is_valid(&self, dir: Fid, now: Instant) -> bool {
        let is_whole = |l: &Listing| matches!(l.progress, Progress::Whole) && l.until > now;
        self.0.borrow().get(&dir).is_some_and(is_whole)
    }
    /// A part of a directory is given to the kernel.
    pub(crate) fn read(&self, dir: Fid, part: Part) {
        let mut dirs = self.0.borrow_mut();
        let before = match dirs.remove(&dir) {
            _ if part.from == 0 => Instant(u64::MAX),
            Some(Listing { progress: Progress::To(to), until }) if to == part.from => until,
            // The end is read twice: the last part may be empty.
            Some(whole) if part.from == part.to => {
                dirs.insert(dir, whole);
                return;
            }
            _ => return,
        };
        if !part.is_valid() {
            return;
        }
        if dirs.len() >= DIRS_MAX {
            dirs.clear();
        }
        let progress = if part.is_end { Progress::Whole } else { Progress::To(part.to) };
        dirs.insert(dir, Listing { progress, until: before.min(part.until) });
    }
    /// The kernel reads names without their inodes.
    pub(crate) fn has_gap(&self, dir: Fid) {
        self.0.borrow_mut().remove(&dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const DIR: Fid = Fid::ROOT;
    fn at(s: u64) -> Instant {
        Instant(s * 1_000_000_000)
    }
    fn part(from: u64, to: u64, is_end: bool, until: u64) -> Part {
        Part { from, to, is_end, names: 10, valid: 10, until: at(until) }
    }

    #[test]
    fn a_listing_is_valid_when_each_part_is_and_until_the_first_of_them_ends() {
        let listings = Listings::default();
        listings.read(DIR, part(0, 5, false, 9));
        assert!(!listings.is_valid(DIR, at(1)), "it is not whole");
        listings.read(DIR, part(5, 8, false, 7));
        listings.read(DIR, part(8, 8, true, 9));
        assert!(listings.is_valid(DIR, at(6)) && !listings.is_valid(DIR, at(7)));
        listings.read(DIR, part(8, 8, true, 9));
        assert!(listings.is_valid(DIR, at(6)), "the end was read once more");
        listings.read(DIR, part(0, 5, false, 20));
        assert!(!listings.is_valid(DIR, at(6)), "it is read again");
    }

    #[test]
    fn a_gap_or_names_without_validity_end_it() {
        let listings = Listings::default();
        listings.read(DIR, part(0, 5, true, 9));
        listings.has_gap(DIR);
        assert!(!listings.is_valid(DIR, at(1)), "a part was read without its inodes");
        listings.read(DIR, part(0, 5, false, 9));
        listings.read(DIR, part(6, 8, true, 9));
        assert!(!listings.is_valid(DIR, at(1)), "another listing has read a part");
        let mut some = part(0, 5, true, 9);
        some.valid = 8;
        listings.read(DIR, some);
        assert!(!listings.is_valid(DIR, at(1)), "two in ten are asked for");
        (some.names, some.valid) = (16, 14);
        listings.read(DIR, some);
        assert!(listings.is_valid(DIR, at(1)), "one in eight is asked for each time anyway");
    }

    #[test]
    fn the_shorter_validity_of_a_name_counts() {
        let mut part = Part { names: 0, valid: 0, until: at(100), ..part(0, 5, true, 0) };
        let seconds =
            |entry, attr| Validity { entry: Duration::from_secs(entry), attr: Duration::from_secs(attr) };
        part.add(seconds(6, 4), at(10));
        part.add(seconds(6, 0), at(10));
        assert_eq!((part.names, part.valid, part.until), (2, 1, at(14)));
    }
}
