//! Names of files in the store's directory. They are part of the disk format and never change: see docs/disk-format.md.

use nacre_node::FileId;
use nacre_types::{Fid, ObjectId, Oid, Seq};

/// Directories of objects.
pub(crate) const FANOUT: usize = 256;
/// Objects with neighbouring ids lie in one directory (a file system places them together), in runs of this many.
const NEIGHBOURS: u32 = 1024;

/// A directory of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Root,
    Log,
    Runs,
    Objects(u8),
}

impl Place {
    pub(crate) fn of(file: FileId) -> Self {
        match file {
            FileId::Super | FileId::Ballast | FileId::Mark => Self::Root,
            FileId::Log(_) => Self::Log,
            FileId::Run(_) => Self::Runs,
            FileId::Blob(object) => Self::Objects(fan(object)),
        }
    }
    /// Position in a list of all directories.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Root => 0,
            Self::Log => 1,
            Self::Runs => 2,
            Self::Objects(n) => 3 + n as usize,
        }
    }
    pub(crate) fn all() -> impl Iterator<Item = Place> {
        [Self::Root, Self::Log, Self::Runs].into_iter().chain((0..=u8::MAX).map(Self::Objects))
    }
    /// Path from the store's directory.
    pub(crate) fn path(self) -> String {
        match self {
            Self::Root => String::from("."),
            Self::Log => String::from("log"),
            Self::Runs => String::from("runs"),
            Self::Objects(n) => format!("objects/{n:02x}"),
        }
    }
}

/// Which directory an object's file is in.
fn fan(object: ObjectId) -> u8 {
    let neighbours = u64::from(object.fid.oid.0 / NEIGHBOURS);
    let mixed = (object.fid.seq.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ neighbours)
        .wrapping_add(u64::from(object.stripe) << 32)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 56) as u8
}

/// Path of a file from the store's directory.
pub(crate) fn path(file: FileId) -> String {
    match file {
        FileId::Super => String::from("super"),
        FileId::Ballast => String::from("ballast"),
        FileId::Mark => String::from("mark"),
        FileId::Log(n) => format!("log/{n:016x}"),
        FileId::Run(n) => format!("runs/{n:016x}"),
        FileId::Blob(o) => {
            format!("objects/{:02x}/{:x}.{:x}.{:x}", fan(o), o.fid.seq.0, o.fid.oid.0, o.stripe)
        }
    }
}

/// Path of the directory with the chunks of a blob beyond the first.
pub(crate) fn chunk_dir(object: ObjectId) -> String {
    format!("{}.d", path(FileId::Blob(object)))
}
/// Path of a chunk beyond the first.
pub(crate) fn chunk_path(object: ObjectId, chunk: u64) -> String {
    format!("{}/{chunk:x}", chunk_dir(object))
}

/// From the name of a log segment or run.
pub(crate) fn parse_number(name: &str) -> Option<u64> {
    (name.len() == 16).then(|| u64::from_str_radix(name, 16).ok()).flatten()
}

/// From the name of a blob's file. A name in any other spelling than ours is not a file of the store.
pub(crate) fn parse_blob(text: &str) -> Option<ObjectId> {
    let mut parts = text.split('.');
    let seq = u64::from_str_radix(parts.next()?, 16).ok()?;
    let oid = u32::from_str_radix(parts.next()?, 16).ok()?;
    let stripe = u32::from_str_radix(parts.next()?, 16).ok()?;
    let object = ObjectId { fid: Fid::new(Seq(seq), Oid(oid)), stripe };
    let ours = format!("{seq:x}.{oid:x}.{stripe:x}");
    (parts.next().is_none() && ours == text).then_some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact_inverses_and_chunk_directories_are_no_blobs() {
        let object = ObjectId { fid: Fid::new(Seq(0x1234), Oid(0xff)), stripe: 3 };
        let of = |path: String| parse_blob(path.rsplit('/').next().unwrap());
        assert_eq!(of(path(FileId::Blob(object))), Some(object));
        assert_eq!(of(chunk_dir(object)), None);
        assert!(path(FileId::Blob(object)).starts_with(&Place::of(FileId::Blob(object)).path()));
        assert_eq!(parse_blob("0x1.2.3"), None);
        assert_eq!(parse_blob("+1.2.3"), None);
        assert_eq!(parse_number(path(FileId::Log(77)).strip_prefix("log/").unwrap()), Some(77));
        assert_eq!(parse_number("77"), None);
    }

    #[test]
    fn neighbours_share_a_directory_and_all_directories_are_used() {
        let at = |seq, oid| fan(ObjectId { fid: Fid::new(Seq(seq), Oid(oid)), stripe: 0 });
        assert_eq!(at(0x100, 1024), at(0x100, 2047));
        let used: std::collections::BTreeSet<u8> = (0..2048).map(|i| at(0x100, i * NEIGHBOURS)).collect();
        assert!(used.len() > 200, "{}", used.len());
    }
}
