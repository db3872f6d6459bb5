//! Tables of a metadata target, the records in them, and the transaction as the operations see it.

pub(crate) mod acl;
pub(crate) mod ancestry;
pub mod check;
pub(crate) mod inode;
pub(crate) mod opens;
pub mod row;
pub mod table;
pub(crate) mod versions;
pub(crate) mod view;
