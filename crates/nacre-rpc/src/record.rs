//! Reply records: a target's records of executed changes. From its record a target replies to the resend of a change,
//! without executing it again.

use alloc::vec::Vec;
use nacre_types::{Codec, DecodeError, Fid, Generation, Reader, Tag, Transno, Writer, Xid, codec_struct};

codec_struct! {
    /// Written in the transaction of its change.
    pub struct ReplyRecord {
        /// Of the change.
        pub transno: Transno,
        /// Of the request: a resend carries the same.
        pub xid: Xid,
        /// Data of the operation for the reconstruction of its reply (the disposition of an open, ...).
        pub data: u64,
        /// 0 or a positive errno.
        pub result: i32,
        /// Generation of the export that the record belongs to.
        pub generation: Generation,
        /// Slot of the request: its next use releases the record.
        pub tag: Tag,
        /// Versions before the change: parent, name, child (rename: both directories, both children).
        pub pre_versions: PreVersions,
        /// Inode that was created or opened.
        pub fid: Fid,
        /// Results of a batch, one per sub-operation.
        pub results: Vec<SubRecord>,
    }
}
codec_struct! {
    /// Result of a sub-operation of a batch.
    #[derive(Copy)]
    pub struct SubRecord {
        /// 0 or a positive errno.
        pub result: u16,
        /// Data of the operation for the reconstruction of its reply (the disposition of an open).
        pub data: u8,
        /// Inode that was created or opened.
        pub fid: Fid,
    }
}
impl SubRecord {
    /// Encoded length: a record with 64 of them stays below 1 KiB.
    pub const BYTES: usize = 15;
}

/// Versions of the objects that a change depends on, as they were before it; 0 for an object that did not exist or does not
/// matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PreVersions(pub [Transno; 4]);

impl PreVersions {
    /// Encoded length: they end the body of a reply that has them.
    pub const BYTES: usize = 32;
}

impl<'a> Codec<'a> for PreVersions {
    fn encode(&self, w: &mut Writer) {
        self.0.iter().for_each(|v| v.encode(w));
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut versions = [Transno(0); 4];
        for v in &mut versions {
            *v = Codec::decode(r)?;
        }
        Ok(Self(versions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_keeps_its_bytes() {
        let r = ReplyRecord {
            transno: Transno(0x0102),
            xid: Xid(3),
            data: 4,
            result: 17,
            generation: Generation(5),
            tag: Tag(6),
            pre_versions: PreVersions([Transno(0), Transno(7), Transno(0), Transno(0)]),
            fid: Fid::ROOT,
            results: alloc::vec![SubRecord { result: 2, data: 1, fid: Fid::ROOT }],
        };
        let bytes = r.to_vec();
        assert_eq!(bytes[..8], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(r.results[0].to_vec().len(), SubRecord::BYTES);
        assert_eq!(ReplyRecord::from_slice(&bytes), Ok(r));
    }
}
