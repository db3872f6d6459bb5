//! What the tests of several files share.

use nacre_types::{Attr, Fid, SizeState, Timestamp};

/// Attributes of some inode.
pub(crate) fn attr(mode: u32, uid: u32, gid: u32) -> Attr {
    let t = Timestamp::default();
    Attr {
        fid: Fid::ROOT,
        mode,
        uid,
        gid,
        projid: 0,
        nlink: 1,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: t,
        mtime: t,
        ctime: t,
        btime: t,
        size_state: SizeState::Exact,
        version: 0,
    }
}
