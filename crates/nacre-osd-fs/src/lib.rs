//! A store on a directory of any kernel file system (ext4, XFS, Btrfs, ZFS, tmpfs).
//!
//! Layout of the directory: `super`, `lock`, `ballast`, `mark`, `log/…`, `runs/…`, `objects/hh/…`. Files are opened by path
//! under directory descriptors, never through symbolic links, as an ordinary user may; the number of open
//! descriptors is bounded. Objects beyond what a file system can hold in one file are cut into chunk files.
//!
//! Not here: what the files mean (`nacre-osd`), which thread calls (`nacre-rt`), making file systems.

mod blob;
mod cache;
mod device;
mod direct;
mod dirs;
mod eof_blocks;
mod error;
mod holder;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod inodes;
mod open;
mod pace;
mod path;
mod probe;
mod raw;
mod read_ahead;
mod read_buffers;
#[cfg(test)]
#[path = "../../../fuzz/support/replay.rs"]
mod replay_corpus;
mod speed;
mod store;

pub use error::OpenError;
pub use holder::Holder;
pub use open::DirLock;
pub use probe::Features;
pub use raw::write_all;
pub use speed::pays_past_cache;
pub use store::{FsConfig, FsStore};
