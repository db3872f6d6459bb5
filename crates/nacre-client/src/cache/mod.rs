//! The cache of a mount: inodes and names that it serves without an RPC, under locks of their MDT, and a record of
//! those that the kernel may use.
//!
//! `metadata` is the front; `tables` combines `inodes`, `entries` (over `name_table`), `in_flight` (own changes without
//! a reply) and the locks; `pages` knows which files the kernel has pages of; `returns` gives locks back; `serve` serves
//! calls while the lease allows it; `kernel` is the interface to the kernel's cache.

mod entries;
pub(crate) mod in_flight;
mod inodes;
pub(crate) mod kernel;
mod last_attrs;
pub(crate) mod metadata;
mod name_table;
pub(crate) mod pages;
pub(crate) mod returns;
pub(crate) mod serve;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
