//! The vocabulary of all other crates: identifiers, quantities, attributes, layouts, error numbers, counters and the
//! little-endian codec. No I/O, no policy.
//!
//! Invariants: every identifier that could be confused with another one is a newtype; every stored integer is
//! `u8`..`u64`, little-endian. Not here: messages (`nacre-wire`), rows of a target's tables (the target's crate).
#![no_std]
extern crate alloc;

mod attr;
pub mod codec;
mod errno;
mod fid;
mod hash;
mod id;
mod identity;
mod inode_bits;
mod layout;
pub mod name;
mod outcome;
mod samples;
mod secret;
mod time;

pub use attr::{Attr, Caller, FileType, Owner, SetAttr, SizeState, mode};
pub use codec::{Bound, Codec, DecodeError, Encoded, Reader, Writer};
pub use errno::Errno;
pub use fid::{Fid, OIDS_PER_SEQ, Oid, Seq};
pub use hash::{Folded, SeededHash};
pub use id::{
    Boot, ClientUuid, ConnEpoch, FsName, Generation, KeptPlace, LockCookie, MdtIndex, OpenHandle, OstIndex,
    Tag, TargetKind, TargetName, Transno, Xid,
};
pub use identity::{Identity, Incarnation, Mismatch, Remembered};
pub use inode_bits::{InodeBits, InodeMode};
pub use layout::{
    Component, DEFAULT_STRIPE_BYTES, DOM_BYTES_MAX, Extent, Layout, LayoutTemplate, ObjectId,
    STRIPE_BYTES_UNIT, STRIPES_MAX, StripePiece,
};
pub use name::Name;
pub use outcome::{Failure, ProtocolOutcome};
pub use samples::{Samples, clocks};
pub use secret::Secret;
pub use time::{Instant, Timestamp};
