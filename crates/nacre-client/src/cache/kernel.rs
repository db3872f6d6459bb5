//! The cache of the kernel, which relies on the locks of this mount.
//!
//! Rules: the kernel may use a name or attributes only for a time that ends with the locks that cover them: at most 2/3
//! of the lease, counted from the request that renewed it. The kernel counts it from when it takes over the reply: a door
//! sees to it that this is later by half of the time at most. When a lock is revoked before one and a half of that time have
//! passed, the kernel is notified, and only then is the lock returned. Pages have no such time: `pages` has their rules. The door in front of the kernel implements [`KernelCache`].

use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;
use core::pin::Pin;
use core::time::Duration;
use nacre_types::Fid;

/// Something that the kernel must not use any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stale {
    /// A name, found or not found.
    Name {
        /// The directory.
        parent: Fid,
        /// The name in it.
        name: Bytes,
        /// The inode to which it led. `None`: to none, or it is not known.
        child: Option<Fid>,
    },
    /// The mode, owner or access control list of the inode to which a name leads, which it still does. The kernel compares a
    /// caller with the owner that it remembers, without asking for the attributes, but it renews them with the name.
    Permissions {
        /// The directory.
        parent: Fid,
        /// The name in it.
        name: Bytes,
    },
    /// The attributes of an inode, its access control lists and, of a symbolic link, its target.
    Inode(Fid),
    /// The access control lists of an inode. The kernel keeps them beyond the validity of the attributes, and uses them for a
    /// name of the inode that is new to it.
    Acls(Fid),
    /// The pages of a file. Those that a read is loading meanwhile may stay: they are not trusted.
    Pages(Fid),
    /// The names of a directory that the kernel has kept from a listing; likewise.
    Listing(Fid),
    /// Everything: all locks have ended.
    All,
}

impl Stale {
    /// The inode whose pages it is: the kernel keeps a listing in pages of the directory.
    pub fn pages(&self) -> Option<Fid> {
        match self {
            Self::Pages(fid) | Self::Listing(fid) => Some(*fid),
            Self::Name { .. } | Self::Permissions { .. } | Self::Inode(_) | Self::Acls(_) | Self::All => None,
        }
    }
}

/// How long the kernel may use a reply without asking again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Validity {
    /// The name.
    pub entry: Duration,
    /// The attributes.
    pub attr: Duration,
}

/// The way to the kernel that a mount serves.
pub trait KernelCache {
    /// Has the kernel forget these. Completes when it cannot use them any more, also if a reply that was decided earlier is
    /// sent later.
    fn forget(&self, stale: Vec<Stale>) -> Pin<Box<dyn Future<Output = ()>>>;
}
