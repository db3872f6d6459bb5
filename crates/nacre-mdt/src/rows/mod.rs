//! Tables of a metadata target, the records in them, and the transaction as the operations see it.

pub(crate) mod access;
pub(crate) mod acl;
pub(crate) mod ancestry;
pub mod check;
pub(crate) mod inode;
mod inode_changes;
pub(crate) mod lock_changes;
pub(crate) mod name_hash;
pub(crate) mod opens;
pub(crate) mod read_set;
pub mod row;
pub(crate) mod state_change;
pub mod table;
pub(crate) mod versions;
pub(crate) mod view;
pub(crate) mod xattr_name;
