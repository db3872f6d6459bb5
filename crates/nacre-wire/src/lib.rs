//! The messages between processes: frame header, opcodes, and one struct per message.
//!
//! Invariants: little-endian; a decoder of hostile bytes returns an error and allocates no more than the frame has
//! bytes; unknown trailing fields are skipped, unknown opcodes are refused with EOPNOTSUPP. Specification:
//! `docs/wire.md`. Not here: the rules for sending (`nacre-rpc`), sockets (`nacre-net`).
#![no_std]
extern crate alloc;

mod address;
pub mod bounds;
mod frame;
pub mod mdt;
pub mod mgs;
mod opcode;
pub mod ost;
pub mod params;
mod status;
pub mod target;

pub use address::AddressText;
pub use frame::{
    Frame, FrameError, HEADER_BYTES, Header, Kind, Lengths, MAX_BODY_BYTES, MAX_BULK_BYTES, flags, is_expired,
};
pub use opcode::{Class, KeptUntil, Opcode, Rpc};
pub use params::matches;
pub use status::Status;
