//! The operations of the kernel: each decodes its arguments, calls the file system once, and encodes the result.

pub(crate) mod attrs;
pub(crate) mod data;
pub(crate) mod dirs;
pub(crate) mod locks;
pub(crate) mod names;
pub(crate) mod xattrs;
