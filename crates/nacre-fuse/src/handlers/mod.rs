//! What each operation of the kernel means: arguments out, one call of the file system, structures in.

pub(crate) mod attrs;
pub(crate) mod data;
pub(crate) mod dirs;
pub(crate) mod locks;
pub(crate) mod names;
pub(crate) mod xattrs;
