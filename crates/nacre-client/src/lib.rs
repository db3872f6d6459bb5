//! The client core: POSIX-like calls by FID on top of imports, layouts and locks. Knows nothing of FUSE.
//!
//! Every call is an `async fn` on the mount's island. Nothing is cached yet: each call asks the target that knows.
//!
//! Module map: `client` is the front door; its calls live by concept in `namespace`, `attr`, `file`, `io`, `append`, `flock`,
//! `batch`, `layout` and `space`. Below them: `mount` (targets and how they are found), `target` (one target with its
//! counters), `closes` (closes that go together), `dirs` (attributes of held directories), `fids` (sequences), `ranges`
//! (order among the operations of this mount on one file), `locks` (extent locks of OSTs, for the time of one operation),
//! `long_append` (appends that are longer than a request), `atime` (access times),
//! `under_lease` (what the file locks of a process and the lease of the MDT allow), `waits` (calls that wait for
//! a callback), `stripes` (which bytes lie where), `stats`, `imports` and `params`.
//! Caches will live under locks that `locks` keeps instead of cancelling; nothing above it has to know.
//!
//! Objects of the core refer to each other by FID, not by pointer, so that a mount can be cut into shards by FID.
#![no_std]
extern crate alloc;

mod append;
mod atime;
mod attr;
mod batch;
mod client;
mod closes;
mod dirs;
mod fids;
mod file;
mod flock;
mod imports;
mod io;
mod layout;
mod locks;
mod long_append;
mod lost;
mod mount;
mod namespace;
mod params;
mod ranges;
mod space;
mod stats;
mod stripes;
mod target;
mod under_lease;
mod waits;

pub use atime::{Atime, AtimePolicy};
pub use batch::{Change, Changed};
pub use client::{
    AllocateArgs, Attach, Client, Connection, CreateArgs, Entry, ListedEntry, MountConfig, ReaddirPage,
    WriteArgs,
};
