//! Imports and exports: exactly once over connections that break.
#![no_std]
extern crate alloc;

mod record;
pub use record::ReplyRecord;
