//! The commands: one file (or folder) per command, with its options, its help and its execution.
//!
//! A command parses, calls what [`crate::process`] or [`crate::query`] offer, and prints through [`crate::output`].
//! [`crate::cli`] lists them.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod destroy;
pub(crate) mod down;
pub(crate) mod lctl;
pub(crate) mod lfs;
pub(crate) mod lr_reader;
pub(crate) mod manual;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod mount_helper;
pub(crate) mod remount;
pub(crate) mod scrub;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod target;
pub(crate) mod up;
