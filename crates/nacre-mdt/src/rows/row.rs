//! Rows of a metadata target's tables: disk format.
//!
//! Invariants: the first byte of a row is its version; a row of another version is refused with a sentence, never
//! guessed; fields may be added at the end only with a new version. Golden bytes are in the tests below.

use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{
    Attr, Codec, DecodeError, Encoded, Fid, FileType, Generation, Layout, LayoutTemplate, Reader, Remembered,
    Timestamp, Writer, codec_struct,
};
use nacre_wire::mdt::FileLock;

/// Hard links kept in the inode's row; more of them are rows of their own.
pub const LINKS_INLINE_MAX: usize = 8;
/// Bytes of their names.
pub const LINK_BYTES_INLINE_MAX: usize = 1024;
/// Longest value of an extended attribute that is kept in the inode's row.
pub const XATTR_INLINE_MAX: usize = 256;
/// Values of extended attributes in the inode's row together.
pub const XATTRS_INLINE_MAX: usize = 1024;
/// Names of extended attributes of one inode together.
pub const XATTR_NAMES_MAX: usize = 8 << 10;

/// Why a row could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    #[error("the row is empty")]
    Empty,
    #[error("row version {found}, this build reads {known}: use the release that wrote it, or a newer one")]
    Version { found: u8, known: u8 },
    #[error("{0}")]
    Damaged(#[from] DecodeError),
}

/// A row: version byte and fields.
pub trait Row: for<'a> Codec<'a> {
    /// Version that this build writes and reads.
    const VERSION: u8 = 1;
    /// Appends version and fields.
    fn encode_row(&self, w: &mut Writer) {
        Self::VERSION.encode(w);
        self.encode(w);
    }
    /// Version and fields as they are stored.
    fn to_row(&self) -> Vec<u8> {
        let mut w = Writer::new();
        self.encode_row(&mut w);
        w.buf
    }
    /// Reads a stored row.
    ///
    /// # Errors
    /// See [`RowError`]; bytes left over are damage.
    fn from_row(bytes: &[u8]) -> Result<Self, RowError> {
        read_row(Self::VERSION, bytes)
    }
}

/// Decodes the fields that follow the version byte.
fn read_row<'a, R: Codec<'a>>(version: u8, bytes: &'a [u8]) -> Result<R, RowError> {
    match bytes.split_first() {
        None => Err(RowError::Empty),
        Some((&found, rest)) if found == version => {
            let mut r = Reader::new(rest);
            let row = R::decode(&mut r)?;
            r.finish()?;
            Ok(row)
        }
        Some((&found, _)) => Err(RowError::Version { found, known: version }),
    }
}

codec_struct! {
    /// One name of an inode.
    pub struct ParentLink { pub parent: Fid, pub name: Bytes }
}
codec_struct! {
    /// An extended attribute; `None`: the value is a row of [`crate::rows::table::XATTR`].
    pub struct Xattr { pub name: Bytes, pub value: Option<Bytes> }
}
codec_struct! {
    /// An OST that was met.
    #[derive(Copy)]
    pub struct KnownOst {
        /// Its identity, compared at each connect.
        pub known: Remembered,
        /// How often another one was admitted in its place.
        pub replaced: u32,
    }
}
impl Row for KnownOst {}

codec_struct! {
    /// Everything about an inode.
    pub struct Inode {
        /// As `stat` shows them, apart from a size that only the OSTs know.
        pub attr: Attr,
        /// When `mtime` was last set, on the clock of the client or server that set it: a write that was made before an explicit
        /// utimensat does not move the time afterwards, however late it is reported.
        pub mtime_order: Timestamp,
        /// Regular files.
        pub layout: Option<Layout>,
        /// A client had the file open for writing: there may be objects.
        pub may_have_objects: bool,
        /// Target of a symbolic link.
        pub target: Bytes,
        /// The layout template that a directory hands down.
        pub template: Option<LayoutTemplate>,
        /// Entries of a directory.
        pub entries: u64,
        /// Names of the inode as far as they fit into the row; the rest: `links_beyond`.
        pub links: Vec<ParentLink>,
        /// Rows of [`crate::rows::table::LINK`].
        pub links_beyond: u32,
        /// All names; large values are rows of their own.
        pub xattrs: Vec<Xattr>,
    }
}
codec_struct! {
    /// The row of an [`Inode`], of which only the parts are decoded that describe it to a client.
    pub struct InodeRow<'a> {
        /// As in [`Inode`], like all others.
        pub attr: Attr,
        /// For a reply.
        pub mtime_order: Timestamp,
        /// For a reply, which has it in the same form.
        pub layout: Encoded<'a, Option<Layout>>,
        /// Not for replies.
        pub may_have_objects: bool,
        /// Not for replies.
        pub target: Encoded<'a, Bytes>,
        /// Not for replies.
        pub template: Encoded<'a, Option<LayoutTemplate>>,
        /// Not for replies.
        pub entries: u64,
        /// They tell whether LOOKUP can be granted with a name.
        pub links: Encoded<'a, Vec<ParentLink>>,
        /// Not for replies.
        pub links_beyond: u32,
        /// They tell whether the inode has privileges.
        pub xattrs: Encoded<'a, Vec<Xattr>>,
    }
}
impl<'a> InodeRow<'a> {
    /// Reads a stored row.
    ///
    /// # Errors
    /// See [`RowError`].
    pub fn of_row(bytes: &'a [u8]) -> Result<Self, RowError> {
        read_row(Inode::VERSION, bytes)
    }
}
codec_struct! {
    /// A name in a directory; `version`: transno of the latest change of this entry.
    pub struct EntryRow { pub name: Bytes, pub fid: Fid, pub file_type: FileType, pub version: u64 }
}
codec_struct! {
    /// The same, whose name is in the row.
    pub struct BorrowedEntry<'a> { pub name: &'a [u8], pub fid: Fid, pub file_type: FileType, pub version: u64 }
}
impl<'a> BorrowedEntry<'a> {
    /// Reads a stored row.
    ///
    /// # Errors
    /// See [`RowError`].
    pub fn of_row(bytes: &'a [u8]) -> Result<Self, RowError> {
        read_row(EntryRow::VERSION, bytes)
    }
    /// With a name of its own.
    pub fn to_entry(&self) -> EntryRow {
        let Self { name, fid, file_type, version } = *self;
        EntryRow { name: Bytes::copy_from_slice(name), fid, file_type, version }
    }
}
codec_struct! {
    /// An open of a client. `flags` as in open(2).
    #[derive(Copy)]
    pub struct OpenRow { pub fid: Fid, pub flags: u32 }
}
codec_struct! {
    /// Stripes of a file on one OST.
    pub struct Stripes { pub stripes: Vec<u32> }
}
codec_struct! {
    /// The locks of one owner on one file: not overlapping, in order.
    pub struct FlocksRow { pub locks: Vec<FileLock> }
}
codec_struct! {
    /// The clients that have not reported the end of a truncate; `tainted`: only the OSTs know the size.
    pub struct Unsettled { pub pending: Vec<Generation>, pub tainted: bool }
}
impl Row for Inode {
    const VERSION: u8 = 2;
}
impl Row for EntryRow {
    const VERSION: u8 = 2;
}
impl Row for OpenRow {}
impl Row for Stripes {}
impl Row for FlocksRow {}
impl Row for Unsettled {}
impl Row for nacre_types::ClientUuid {}
impl Row for LayoutTemplate {
    const VERSION: u8 = 2;
}
impl Row for u64 {}
impl Row for (u64, u64) {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use nacre_types::{Component, Extent, Oid, OstIndex, Seq, SizeState};

    fn hex(bytes: &[u8]) -> alloc::string::String {
        bytes.iter().map(|b| alloc::format!("{b:02x}")).collect()
    }

    fn inode() -> Inode {
        let fid = Fid::new(Seq(0x100), Oid(2));
        let t = |sec| Timestamp { sec, nsec: 5 };
        Inode {
            attr: Attr {
                fid,
                mode: 0o100644,
                uid: 1,
                gid: 2,
                projid: 0,
                nlink: 1,
                rdev: 0,
                size: 10,
                blocks: 8,
                atime: t(1),
                mtime: t(2),
                ctime: t(3),
                btime: t(4),
                size_state: SizeState::Exact,
                version: 7,
            },
            mtime_order: t(2),
            layout: Some(Layout {
                generation: 0,
                dom_bytes: 0,
                components: vec![Component {
                    extent: Extent::ALL,
                    stripe_bytes: 1 << 20,
                    stripes: vec![OstIndex(1)],
                    laid: vec![],
                }],
            }),
            may_have_objects: true,
            target: Bytes::new(),
            template: None,
            entries: 0,
            links: vec![ParentLink { parent: Fid::ROOT, name: Bytes::from_static(b"f") }],
            links_beyond: 0,
            xattrs: vec![Xattr {
                name: Bytes::from_static(b"user.a"),
                value: Some(Bytes::from_static(b"v")),
            }],
        }
    }

    #[test]
    fn an_inode_row_has_the_golden_bytes() {
        let row = inode().to_row();
        assert_eq!(
            hex(&row),
            concat!(
                "02",                                              // version
                "000100000000000002000000",                        // fid
                "a4810000010000000200000000000000010000000000000", // mode uid gid projid nlink rdev
                "00a0000000000000008000000000000000",              // size blocks
                "1000000000000000500000002000000000000000500000003000000000000000500000004000000000000000500000",
                "0000700000000000000",                      // size state, version
                "020000000000000005000000",                 // mtime order
                "01000000000000000001000000", // layout, generation, bytes at the MDT, components
                "0000000000000000ffffffffffffffff00001000", // extent, chunk
                "0100000001000000",           // stripes
                "00000000",                   // laid
                "01",                         // may have objects
                "00000000",                   // target
                "00",                         // template
                "0000000000000000",           // entries
                "01000000000000000000000001000000", // links: count, parent
                "0100000066",                 // name
                "00000000",                   // links beyond
                "0100000006000000757365722e61010100000076", // xattrs
            )
        );
        assert_eq!(Inode::from_row(&row), Ok(inode()));
        assert_eq!(InodeRow::of_row(&row).unwrap().to_vec(), row[1..]);
        assert_eq!(InodeRow::of_row(&row).unwrap().links.value(), Ok(inode().links));
    }

    #[test]
    fn small_rows_have_the_golden_bytes() {
        let fid = Fid::new(Seq(0x100), Oid(2));
        let entry =
            EntryRow { name: Bytes::from_static(b"ab"), fid, file_type: FileType::Regular, version: 7 };
        assert_eq!(hex(&entry.to_row()), "02020000006162000100000000000002000000080700000000000000");
        let row = entry.to_row();
        assert_eq!(BorrowedEntry::of_row(&row).map(|read| read.to_entry()), Ok(entry));
        assert_eq!(hex(&OpenRow { fid, flags: 2 }.to_row()), "0100010000000000000200000002000000");
        assert_eq!(hex(&Stripes { stripes: vec![3] }.to_row()), "010100000003000000");
        let unsettled = Unsettled { pending: vec![Generation(1)], tainted: false };
        assert_eq!(hex(&unsettled.to_row()), "01010000000100000000");
    }

    #[test]
    fn other_versions_and_damage_are_refused() {
        let mut row = inode().to_row();
        for n in 0..row.len() {
            assert_eq!(Inode::from_row(&row[..n]).err(), InodeRow::of_row(&row[..n]).err());
            assert!(Inode::from_row(&row[..n]).is_err(), "prefix {n}");
        }
        row.push(0);
        assert!(matches!(Inode::from_row(&row), Err(RowError::Damaged(_))));
        row[0] = 9;
        assert_eq!(Inode::from_row(&row), Err(RowError::Version { found: 9, known: 2 }));
    }
}
