//! Tables of a metadata target and the keys of their rows.
//!
//! Invariants: every key starts with the FID (or owner) it belongs to, big-endian, so that everything of one inode,
//! directory, client or OST is one range; numbers of tables are for ever. Rows are in `row.rs`; the page for
//! people is `docs/disk-format.md`.

use alloc::vec::Vec;
use nacre_osd::{Table, table::MDT_FIRST};
use nacre_types::{Fid, Generation, OpenHandle, OstIndex, Seq, name::DISCRIMINATORS};

/// FID → [`crate::rows::row::Inode`].
pub const INODE: Table = Table(MDT_FIRST);
/// Directory FID, cookie → [`crate::rows::row::EntryRow`].
pub const ENTRY: Table = Table(MDT_FIRST + 1);
/// Client generation, handle → [`crate::rows::row::OpenRow`].
pub const OPEN: Table = Table(MDT_FIRST + 2);
/// FID → empty: no name is left, an open keeps the inode. [`NEVER_NAMED`] instead: it may still get a name.
pub const ORPHAN: Table = Table(MDT_FIRST + 3);
/// Value in [`ORPHAN`] of a file that was created without a name.
pub const NEVER_NAMED: &[u8] = &[1];
/// OST, FID → [`crate::rows::row::Stripes`]: objects that must go.
pub const DESTROY: Table = Table(MDT_FIRST + 4);
/// FID, client generation, owner, family → [`crate::rows::row::FlocksRow`].
pub const FLOCK: Table = Table(MDT_FIRST + 5);
/// Sequence → uuid of the client it was granted to.
pub const SEQUENCE: Table = Table(MDT_FIRST + 6);
/// Word → value: see [`meta`].
pub const META: Table = Table(MDT_FIRST + 7);
/// FID, name → value of an extended attribute that is too large for the inode's row.
pub const XATTR: Table = Table(MDT_FIRST + 8);
/// FID, parent FID, name → empty: hard links beyond those in the inode's row.
pub const LINK: Table = Table(MDT_FIRST + 9);
/// OST, FID → [`crate::rows::row::Stripes`]: objects whose owner changed.
pub const CHOWN: Table = Table(MDT_FIRST + 10);
/// FID → [`crate::rows::row::Unsettled`]: a size that is `Open` although no client may be writing.
pub const UNSETTLED: Table = Table(MDT_FIRST + 11);

/// OST → objects that it has granted and that were not used at the last clean stop (u64).
pub const RESERVED: Table = Table(MDT_FIRST + 12);

/// OST → [`crate::rows::row::KnownOst`]: which OST was met, and how far it had come.
pub const KNOWN: Table = Table(MDT_FIRST + 13);

/// FID → all bytes of a regular file that the target keeps (`Layout::dom_bytes`); no row: it has none.
pub const DATA: Table = Table(MDT_FIRST + 14);

/// Every table of a metadata target.
pub const ALL: [Table; 15] = [
    META, SEQUENCE, INODE, ENTRY, LINK, XATTR, OPEN, ORPHAN, DESTROY, CHOWN, FLOCK, UNSETTLED, RESERVED,
    KNOWN, DATA,
];

/// Keys of [`META`].
pub mod meta {
    /// Next sequence to grant (u64).
    pub const NEXT_SEQ: &[u8] = b"next_seq";
    /// Key of the name hash ((u64, u64)).
    pub const HASH_KEY: &[u8] = b"hash_key";
    /// Default layout template of the file system.
    pub const TEMPLATE: &[u8] = b"template";
}

/// Key of one entry.
pub fn entry(dir: Fid, cookie: u64) -> [u8; 20] {
    let mut key = [0; 20];
    key[..12].copy_from_slice(&dir.key());
    key[12..].copy_from_slice(&cookie.to_be_bytes());
    key
}
/// Bytes of a key of [`ENTRY`] that all names of one hash share: the last byte ends with the discriminator.
pub const ENTRY_PREFIX: u8 = 19;
const _: () = assert!(DISCRIMINATORS == 16);

/// The keys that a name with this hash may have: `from <= key < to`.
pub fn entries_of_hash(dir: Fid, base: u64) -> ([u8; 20], [u8; 20]) {
    (entry(dir, base), entry(dir, base + DISCRIMINATORS))
}
/// Cookie in a key of [`ENTRY`].
pub fn cookie_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(12..20)?.try_into().ok()?))
}
/// Key in [`OPEN`].
pub fn open(generation: Generation, handle: OpenHandle) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&generation.0.to_be_bytes());
    key[4..].copy_from_slice(&handle.0.to_be_bytes());
    key
}
/// Inverse of [`open`].
pub fn open_of(key: &[u8]) -> Option<(Generation, OpenHandle)> {
    let generation = u32::from_be_bytes(key.get(..4)?.try_into().ok()?);
    let handle = u64::from_be_bytes(key.get(4..12)?.try_into().ok()?);
    Some((Generation(generation), OpenHandle(handle)))
}
/// Key in [`SEQUENCE`].
pub fn sequence(seq: Seq) -> [u8; 8] {
    seq.0.to_be_bytes()
}
/// Key in [`RESERVED`] and [`KNOWN`].
pub fn reserved(ost: OstIndex) -> [u8; 4] {
    ost.0.to_be_bytes()
}
/// Key in [`DESTROY`] and [`CHOWN`].
pub fn of_ost(ost: OstIndex, fid: Fid) -> [u8; 16] {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&ost.0.to_be_bytes());
    key[4..].copy_from_slice(&fid.key());
    key
}
/// Key in [`FLOCK`].
pub fn flock(fid: Fid, generation: Generation, owner: u64, family: u8) -> [u8; 25] {
    let mut key = [0; 25];
    key[..12].copy_from_slice(&fid.key());
    key[12..16].copy_from_slice(&generation.0.to_be_bytes());
    key[16..24].copy_from_slice(&owner.to_be_bytes());
    key[24] = family;
    key
}
/// Inverse of [`flock`].
pub fn flock_of(key: &[u8]) -> Option<(Fid, Generation, u64, u8)> {
    let fid = Fid::from_key(key)?;
    let generation = u32::from_be_bytes(key.get(12..16)?.try_into().ok()?);
    let owner = u64::from_be_bytes(key.get(16..24)?.try_into().ok()?);
    Some((fid, Generation(generation), owner, *key.get(24)?))
}
/// Key in [`XATTR`].
pub fn xattr(fid: Fid, name: &[u8]) -> Vec<u8> {
    [&fid.key()[..], name].concat()
}
/// Key in [`LINK`].
pub fn link(fid: Fid, parent: Fid, name: &[u8]) -> Vec<u8> {
    [&fid.key()[..], &parent.key()[..], name].concat()
}
/// Every key that starts with `prefix` is in `from <= key < to`.
pub fn range_of(prefix: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut to = prefix.to_vec();
    while let Some(last) = to.last_mut() {
        if *last == u8::MAX {
            to.pop();
        } else {
            *last += 1;
            return (prefix.to_vec(), to);
        }
    }
    // All 0xff: longer than any key we make.
    (prefix.to_vec(), [0xff; 320].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::Oid;

    #[test]
    fn keys_give_back_what_they_were_made_of_and_stay_in_their_range() {
        let fid = Fid::new(Seq(0x1ff), Oid(0xff_ffff));
        assert_eq!(cookie_of(&entry(fid, 77)), Some(77));
        assert_eq!(open_of(&open(Generation(3), OpenHandle(9))), Some((Generation(3), OpenHandle(9))));
        assert_eq!(flock_of(&flock(fid, Generation(3), 5, 2)), Some((fid, Generation(3), 5, 2)));
        for prefix in [&fid.key()[..], &[0xff; 4], &[1, 0xff]] {
            let (from, to) = range_of(prefix);
            let inside = [prefix, &[0xff; 8]].concat();
            assert!(from <= inside && inside < to, "{prefix:?}");
        }
    }
}
