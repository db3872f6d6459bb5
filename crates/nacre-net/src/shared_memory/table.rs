//! The table that travels instead of bulk: number and serial of the loan, then offset and length of each part. All numbers
//! are little-endian u32.

use super::word::Serial;

/// Most parts of a frame; more travel in the socket.
pub(super) const PARTS_MAX: usize = 64;

/// A loan as it travels.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) loan: u32,
    pub(super) serial: Serial,
    /// Offset and length.
    pub(super) parts: Vec<(u32, u32)>,
}

impl Table {
    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = self.parts.iter().flat_map(|(offset, len)| [*offset, *len]);
        [self.loan, self.serial.number()].into_iter().chain(numbers).flat_map(u32::to_le_bytes).collect()
    }
    /// `None` if it is malformed.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<4>() else { return None };
        let mut numbers = words.iter().map(|word| u32::from_le_bytes(*word));
        let (loan, serial) = (numbers.next()?, Serial::from_number(numbers.next()?)?);
        let count = numbers.len() / 2;
        if numbers.len() % 2 != 0 || !(1..=PARTS_MAX).contains(&count) {
            return None;
        }
        let mut parts = Vec::with_capacity(count);
        while let (Some(offset), Some(len)) = (numbers.next(), numbers.next()) {
            parts.push((offset, len));
        }
        Some(Self { loan, serial, parts })
    }
}
