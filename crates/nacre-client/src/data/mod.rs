//! Bytes of files: reads, writes, appends and the space that they use.
//!
//! `io` reads and writes, `append` finds the end of a file and writes there, `long_append` and `append_pieces` keep the
//! pieces of one append together, `allocate` is fallocate(2), `seek` finds data and holes, `stripes` maps ranges of a file to
//! ranges of its objects, `space` adds up the space of the targets. `write_back` keeps written bytes until
//! they are sent, small ones together by `write_batches`. `dom`: small files whose bytes are at their MDT.

mod allocate;
mod append;
mod append_pieces;
mod dom;
pub(crate) mod io;
pub(crate) mod long_append;
mod seek;
mod space;
pub(crate) mod stripes;
mod write_back;
mod write_batches;
