//! The FUSE front end: takes the kernel's requests, calls the client core, and sends the replies.
//!
//! A thin layer on the kernel interface 7.45. The path of a request: [`Channel::read`] on the thread of an event loop →
//! `Event::Door(FuseRequest)` into the [`MountIsland`] → a task of [`Door`] that calls the client →
//! `Effect::Door(FuseEffect::Reply)` → the thread that leaves the island sends it. No thread is woken on this path.
//! Where the kernel supports it, requests come through io_uring instead, a queue and a thread per CPU (`uring`).
//!
//! The kernel caches names and attributes while the client's locks cover them (`kernel_cache/`), and the bytes of files that
//! nobody has open for writing (`pages.rs`); other handles are FOPEN_DIRECT_IO. Node number = inode number = FID; only a directory that another mount has moved may
//! get another node number for a moment (`moved.rs`).

pub mod abi;
mod abort;
mod buffers;
mod call;
mod caller;
mod client_ops;
mod device;
mod dispatch;
mod door;
mod front;
mod fusermount;
mod gate;
mod handlers;
mod holders;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod interrupt;
mod island;
mod kernel_cache;
mod kernel_options;
mod late_attributes;
mod left_names;
mod lock_owners;
mod mount;
mod moved;
mod name_locks;
mod neighbours;
mod notify;
mod ops;
mod pages;
mod read_window;
mod removals;
mod replace;
#[cfg(test)]
#[path = "../../../fuzz/support/replay.rs"]
mod replay_corpus;
mod reply;
mod request;
mod session;
mod special_files;
mod stats;
mod table;
mod tools;
mod unmount;
mod unsettled;
mod uring;
mod virtual_xattr;
mod walks;

pub use abort::open_abort_file;
pub use buffers::BufferPool;
pub use caller::Interrupts;
pub use client_ops::ClientOps;
pub use device::{Channel, MAX_WRITE_BYTES, Read};
pub use door::{Door, FuseEffect};
pub use front::{FuseSink, FuseSource};
pub use interrupt::Interrupted;
pub use island::MountIsland;
pub use kernel_cache::{Order, without_mount};
pub use kernel_options::{KernelAtime, KernelOptions};
pub use mount::{MountError, MountOptions, Mounted, check_device, check_mount_point, mount_fuse, remount};
pub use notify::{Batch, Done, Notification, Notifier};
pub use ops::{OpenedFile, Ops};
pub use reply::{Body, FuseReply};
pub use request::{Args, FuseRequest, Origin};
pub use session::{Session, SessionConfig, SessionError};
pub use stats::OpStats;
pub use table::{FS_TYPE, mount_of, mount_points, mounted_type, options_of};
pub use unmount::{Holder, Unmount, elsewhere, holders, shortened, unmount_fuse, users};
pub use uring::{ENABLE_PATH, EnableError, Ticket, Transport, WhyDevice, enable_rings};
