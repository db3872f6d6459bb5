//! Files in use: open handles, the state that this mount keeps per file, closes.
//!
//! `open` holds handles, opens and their end; `closes` combines closes into batches; `ranges` orders the operations of this
//! mount on one file; `atime` updates access times; `lost` knows the handles whose file locks an eviction took.

pub(crate) mod atime;
pub(crate) mod closes;
pub(crate) mod lost;
pub(crate) mod open;
pub(crate) mod ranges;
