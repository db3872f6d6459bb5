//! Bounds of texts in messages. The decoder refuses longer ones.

use nacre_types::Bound;

/// Names and descriptions for people: of clients, targets, parameters.
pub const NAME_BYTES_MAX: usize = 255;
/// Addresses of one target.
pub const ADDRESSES_MAX: usize = 16;
/// One address: `unix:/path` or `host:port`.
pub const ADDRESS_BYTES_MAX: usize = 255;
/// A value for a parameter.
pub const VALUE_BYTES_MAX: usize = 1024;
/// Sentences for people, which may contain a name and a value.
pub const SENTENCE_BYTES_MAX: usize = 4096;

pub(crate) const NAME: Bound = Bound::text(NAME_BYTES_MAX);
pub(crate) const ADDRESSES: Bound = Bound::texts(ADDRESSES_MAX, ADDRESS_BYTES_MAX);
pub(crate) const VALUE: Bound = Bound::text(VALUE_BYTES_MAX);
pub(crate) const SENTENCE: Bound = Bound::text(SENTENCE_BYTES_MAX);

/// The beginning of a text that is within `bytes_max`, whole characters only.
pub fn truncated(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(["", "a", "aé", "é"].map(|t| truncated(t, 2)), ["", "a", "a", "é"]);
    }
}
