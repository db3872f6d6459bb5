//! crc32c (Castagnoli), the checksum of headers, bodies and blocks.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The checksum of the body followed by the bulk. A checksum that happens to be 0 means "not computed", which is
/// harmless once in 2^32 frames.
pub(crate) fn of_parts(body: &[u8], bulk: &[Bytes]) -> u32 {
    if bulk.is_empty() {
        return crc32c(body);
    }
    let mut digest = running();
    digest.update(body);
    for part in bulk {
        digest.update(part);
    }
    finish(&digest)
}

pub(crate) fn running() -> Digest {
    Digest::new(CrcAlgorithm::Crc32Iscsi)
}
pub(crate) fn finish(digest: &Digest) -> u32 {
    // The algorithm has 32 bits; the crate's type serves 64-bit ones too.
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_standard_and_parts_add_up() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(of_parts(b"1234", &[Bytes::from_static(b"56"), Bytes::from_static(b"789")]), 0xe306_9283);
    }
}
