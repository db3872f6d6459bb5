//! crc32c, the checksum of everything that the engine writes.

use crc_fast::{CrcAlgorithm, checksum};

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}
