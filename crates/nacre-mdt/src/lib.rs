//! The metadata target: names, inodes, opens and file locks of a file system.
//!
//! A request is one operation over the rows of one transaction (`view`): an operation is a synchronous function that can be
//! read on its own (`create`, `open`, `unlink`, `rename`, `setattr`, `xattr`, `layout`), the service (`mdt`) fetches what
//! it asks for and runs it. What the OSTs owe is rows too (`ost_work`).
//! Specification: `docs/disk-format.md` for the rows, `nacre_wire::mdt` for the messages.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod acl;
mod allocator;
mod attempt;
mod batch;
pub mod check;
mod choice;
mod clients;
mod create;
mod dirs;
mod flocks;
mod free_space;
mod held;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod inode;
mod known_osts;
mod layout;
mod mdt;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod op_tests;
mod open;
mod opens;
mod ost_work;
mod osts;
mod params;
mod read;
mod reclaim;
mod refill;
mod rename;
#[cfg(test)]
#[path = "../../../fuzz/support/replay.rs"]
mod replay_corpus;
pub mod row;
mod setattr;
mod start;
pub mod table;
#[cfg(test)]
mod testing;
mod turns;
mod unlink;
mod versions;
mod view;
mod ways;
mod xattr;

pub use check::check;
pub use mdt::Mdt;
