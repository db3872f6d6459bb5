//! The client core: POSIX-like calls by FID on top of imports, layouts and locks. Knows nothing of FUSE.
//!
//! Every call is an `async fn` on the mount's island. Nothing is cached yet: each call asks the target that knows.
//!
//! Module map: `client` is the front door, `api` the arguments and results of its calls; the calls live by concern:
//!
//! - `metadata`: names, attributes, layouts, batches of changes;
//! - `files`: open handles, closes, access times;
//! - `data`: reads, writes, striping, appends, space;
//! - `locks`: extent locks, file locks, leases;
//! - `cache`: directories that the MDT lets this mount hold;
//! - `targets`: the MGS, the MDT and the OSTs, and how they are found.
//!
//! `params` and `stats` are the view of administrators.
//! Caches will live under locks that `locks` keeps instead of cancelling; nothing above it has to know.
//!
//! Objects of the core refer to each other by FID, not by pointer, so that a mount can be cut into shards by FID.
#![no_std]
extern crate alloc;

mod api;
mod cache;
mod client;
mod data;
mod files;
mod locks;
mod metadata;
mod params;
mod stats;
mod targets;

pub use api::{
    AllocateArgs, Attach, Connection, CreateArgs, ListedEntry, MountConfig, ReaddirPage, ResolvedInode,
    SetxattrArgs, WriteArgs,
};
pub use cache::kernel::{KernelCache, Stale, Validity};
pub use client::Client;
pub use files::atime::{Atime, AtimePolicy};
pub use metadata::batch::{Changed, MetadataChange};
