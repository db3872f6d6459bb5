//! The state in which a transaction leaves a directory, for clients that hold it.

use crate::rows::row::Inode;
use bytes::Bytes;
use nacre_types::Fid;
use nacre_wire::mdt::DirState;

/// What a transaction makes of a directory.
#[derive(Debug, Clone)]
pub(crate) enum DirChange {
    State(DirState),
    Removed(Fid),
}

impl DirChange {
    pub(crate) fn of(inode: &Inode) -> Self {
        if inode.attr.nlink == 0 {
            return Self::Removed(inode.attr.fid);
        }
        let reply = inode.reply();
        let (parent, name) = only_name(inode);
        Self::State(DirState { attr: reply.attr, kill_priv: reply.kill_priv, parent, name })
    }
    pub(crate) fn fid(&self) -> Fid {
        match self {
            Self::State(state) => state.attr.fid,
            Self::Removed(fid) => *fid,
        }
    }
}

/// The only name of a directory. The root is its own parent and has an empty name.
pub(crate) fn only_name(dir: &Inode) -> (Fid, Bytes) {
    dir.links.first().map_or((dir.attr.fid, Bytes::new()), |link| (link.parent, link.name.clone()))
}
