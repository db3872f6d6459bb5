//! The reply record: what a target remembers so that a resent request is not executed twice.

use nacre_types::{Fid, Generation, Tag, Transno, Xid, codec_struct};

codec_struct! {
    /// Written in the transaction of its change; found by (client, xid).
    #[derive(Copy)]
    pub struct ReplyRecord {
        pub transno: Transno,
        pub xid: Xid,
        /// Per-operation data (open disposition, ...).
        pub data: u64,
        pub result: i32,
        pub generation: Generation,
        pub tag: Tag,
        /// FID of the object that was opened or made.
        pub fid: Fid,
        pub pre_versions: ((u64, u64), (u64, u64)),
    }
}
