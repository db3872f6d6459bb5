//! The client core: POSIX-like calls by FID on top of imports, layouts and locks. Knows nothing of FUSE.
//!
//! Every call is an `async fn` on the mount's island. State that `cache` does not hold is requested from its target
//! with each call.
//!
//! Module map: `client` is the front door, `api` the arguments and results of its calls; there is a folder per concern:
//!
//! - `metadata`: names, attributes, layouts, batches of changes;
//! - `files`: open handles, closes, access times;
//! - `data`: reads, writes, striping, appends, space;
//! - `kept_log`: the log of kept writes, of a mount in the process of its servers;
//! - `locks`: extent locks, file locks, leases;
//! - `cache`: names and inodes under locks of their MDT, and what the kernel uses of them;
//! - `targets`: the MGS, the MDT and the OSTs, and how they are found.
//!
//! `params` and `stats` are the view of administrators.
//!
//! Objects of the core refer to each other by FID, not by pointer, so that the files of a mount can be divided between
//! several islands by FID.
#![no_std]
extern crate alloc;

mod api;
mod cache;
mod client;
mod data;
mod files;
mod kept_log;
mod locks;
mod metadata;
mod params;
mod stats;
mod targets;

pub use api::{
    AllocateArgs, AllocateMode, Attach, Connection, CreateArgs, ListedEntry, MountConfig, ReaddirPage,
    ResolvedInode, SetxattrArgs, WriteArgs,
};
pub use cache::kernel::{KernelCache, Stale, Validity};
pub use cache::pages::PageUse;
pub use client::Client;
pub use files::atime::{Atime, AtimePolicy};
pub use kept_log::{KeptLogConfig, KeptMemory, KeptWrites, SEGMENT_BYTES, SEGMENTS, kept_writes};
pub use metadata::batch::{Changed, MetadataChange};
