//! The table that travels instead of bulk: number and serial of the loan, then offset and length of each part. All numbers
//! are little-endian u32.

use super::word::Serial;

/// Most parts of a frame; more travel in the socket.
pub(super) const PARTS_MAX: usize = 64;

/// Number and serial of a loan, and its parts: offset and length.
pub(super) type Loan = (u32, Serial, Vec<(u32, u32)>);

pub(super) fn encode((number, serial, parts): &Loan) -> Vec<u8> {
    let numbers = parts.iter().flat_map(|(offset, len)| [*offset, *len]);
    [*number, serial.number()].into_iter().chain(numbers).flat_map(u32::to_le_bytes).collect()
}
/// `None` if it is malformed.
pub(super) fn decode(bytes: &[u8]) -> Option<Loan> {
    let (words, []) = bytes.as_chunks::<4>() else { return None };
    let mut numbers = words.iter().map(|word| u32::from_le_bytes(*word));
    let (number, serial) = (numbers.next()?, Serial::from_number(numbers.next()?)?);
    let count = numbers.len() / 2;
    if numbers.len() % 2 != 0 || !(1..=PARTS_MAX).contains(&count) {
        return None;
    }
    let mut parts = Vec::with_capacity(count);
    while let (Some(offset), Some(len)) = (numbers.next(), numbers.next()) {
        parts.push((offset, len));
    }
    Some((number, serial, parts))
}
