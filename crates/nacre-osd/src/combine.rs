//! Two damaged copies of the same bytes, united: each is used where the other one is damaged.

use alloc::vec::Vec;
use core::ops::Range;

/// Places in which the copies may differ: every choice between them is compared with a checksum.
const PLACES_MAX: usize = 8;
/// Equal bytes that end such a place: damaged bytes are equal to whole ones by chance.
const EQUAL_BYTES: usize = 8;

/// Returns the bytes that `whole` accepts: one of the copies, or parts of both.
pub(crate) fn combine(one: &[u8], two: &[u8], whole: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    if let Some(copy) = [one, two].into_iter().find(|copy| whole(copy)) {
        return Some(copy.to_vec());
    }
    if one.len() != two.len() {
        return None;
    }
    let mut places: Vec<Range<usize>> = Vec::new();
    for at in (0..one.len()).filter(|at| one[*at] != two[*at]) {
        let count = places.len();
        match places.last_mut() {
            Some(last) if at < last.end + EQUAL_BYTES => last.end = at + 1,
            _ if count == PLACES_MAX => return None,
            _ => places.push(at..at + 1),
        }
    }
    (0..1u32 << places.len()).find_map(|choice| {
        let mut united = one.to_vec();
        for (_, place) in places.iter().enumerate().filter(|(n, _)| choice >> n & 1 == 1) {
            united[place.clone()].copy_from_slice(&two[place.clone()]);
        }
        whole(&united).then_some(united)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_damaged_at_different_places_are_united_and_others_are_not() {
        let whole: Vec<u8> = (0..2000u32).map(|n| (n / 7) as u8).collect();
        let damaged = |places: &[usize]| {
            let mut bytes = whole.clone();
            places.iter().for_each(|at| bytes[*at..*at + 64].iter_mut().for_each(|byte| *byte ^= 0x5a));
            bytes
        };
        let united = |one: &[usize], two: &[usize]| {
            combine(&damaged(one), &damaged(two), |bytes| bytes == whole).is_some()
        };
        assert!(united(&[], &[5]) && united(&[5], &[]) && united(&[100, 300], &[200, 1900]));
        assert!(united(&[100, 300, 500, 700], &[200, 400, 600, 800]));
        assert!(!united(&[100, 300, 500, 700, 900], &[200, 400, 600, 800]), "too many places");
        assert!(!united(&[100], &[120]));
        assert!(combine(&whole[..100], &whole, |bytes| bytes.len() == 50).is_none());
    }
}
