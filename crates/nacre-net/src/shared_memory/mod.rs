//! Memory for bulk that two processes on one machine share, so that bulk between them is not copied through a socket.
//!
//! The process that opens connections makes the memory (`owner.rs`), and passes its descriptor along with the Hello. From
//! then on a frame whose whole bulk lies in this memory travels without it: its bulk on the wire is a table that names the
//! place of each part (`table.rs`). The receiver looks at the parts where they are (`peer.rs`).
//!
//! ```text
//! 0        one word for each loan: its serial number, and whether it is offered, taken (`word.rs`), or 0 for none
//! 4096     buffers of 4 KiB + 1 MiB: a head that ends at a page boundary, then the payload
//! ```
//!
//! A mount in the process of its servers uses the same buffers for another purpose: its memory has a name, and survives the
//! process (`kept.rs`). It is passed to nobody.
//!
//! Invariants: the memory of a part is not written to, and not given to another request, until the receiver has returned the
//! loan, or the receiver's process has ended. The end of a connection revokes loans that the receiver has not taken yet, but
//! no others, because a server may still be busy with the request. A frame that names a loan which was revoked meanwhile is
//! refused, also if its word serves another loan by then. The receiver maps the buffers read-only. The file cannot shrink (a
//! seal, which the receiver checks), so access to it never raises SIGBUS.

mod kept;
mod mapping;
mod owner;
mod peer;
mod table;
mod word;

pub use kept::kept_bytes;
pub use owner::{Lender, SharedBuffer, SharedMemory};
pub(crate) use peer::PeerMemory;

use rustix::fs::SealFlags;
use std::time::Duration;

/// Bytes of the words of loans.
const WORDS_BYTES: usize = 4096;
/// Loans at a time.
const LOANS_MAX: usize = WORDS_BYTES / 4;
/// Room in front of a payload.
const FRONT_BYTES: usize = 4096;
/// What a device may ask of addresses and lengths.
const ALIGN: usize = 4096;
/// Bytes of a buffer.
const BUFFER_BYTES: usize = FRONT_BYTES + (1 << 20);
/// Buffers of a process: room for what a mount keeps of written data. Only those that were used are in memory.
const BUFFERS: usize = 256;
/// Bytes of the file.
const FILE_BYTES: usize = WORDS_BYTES + BUFFERS * BUFFER_BYTES;
/// Buffers that keep their memory while nobody uses them for longer than [`IDLE`]. The others give it back, a few at a time.
const FREE_MAX: usize = 16;
const TRIM_MAX: usize = 16;
const IDLE: Duration = Duration::from_secs(1);
/// Shorter bulk travels in the socket: a copy costs less than keeping a whole buffer for it.
const LEND_MIN_BYTES: usize = 128 << 10;
/// Without it the owner could take memory away from under the receiver.
const SEALS: SealFlags = SealFlags::SHRINK;

#[cfg(test)]
mod tests;
