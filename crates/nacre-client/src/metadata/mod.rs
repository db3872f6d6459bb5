//! Calls that the MDT serves: names, attributes, extended attributes, layouts, batches of changes.
//!
//! `namespace` holds the calls on names, `attr` those on attributes, `truncate` the change of the
//! size, `batch` several changes in one request, `layout` layouts and paths. `fids` assigns the FIDs of new inodes from `fid_pool`.

pub(crate) mod attr;
pub(crate) mod batch;
pub(crate) mod fid_pool;
mod fids;
pub(crate) mod layout;
pub(crate) mod namespace;
mod truncate;
