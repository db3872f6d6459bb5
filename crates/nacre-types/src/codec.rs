//! The one little-endian codec: messages, log records and table rows are encoded with it.
//!
//! Invariants: decoding never allocates for borrowed fields, never reads past the end, never panics; a length prefix is
//! checked against the remaining bytes before memory is reserved for it.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::marker::PhantomData;

/// The reason why bytes could not be decoded, with the expected value for the log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("truncated: {needed} bytes needed, {left} left")]
    Truncated { needed: u32, left: u32 },
    #[error("{what}: value {value} is not one of those known")]
    BadValue { what: &'static str, value: u64 },
    #[error("{what}: {found} where at most {most} are allowed")]
    TooLong { what: &'static str, found: u32, most: u32 },
    #[error("{bytes} bytes cannot be the name of a directory entry")]
    BadName { bytes: u32 },
    #[error("{left} bytes left over after the last field")]
    TrailingBytes { left: u32 },
}

/// Appends fields to a byte vector.
#[derive(Debug, Default)]
pub struct Writer {
    /// Everything written so far; its length is the offset of the next field.
    pub buf: Vec<u8>,
}

impl Writer {
    /// An empty writer with room for a small message: the description of an inode fits.
    pub fn new() -> Self {
        Self { buf: Vec::with_capacity(256) }
    }
    /// Appends bytes without a length.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }
    /// Writes a `u32` length and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        (bytes.len() as u32).encode(self);
        self.raw(bytes);
    }
}

/// Fields of a fixed length, to be appended together: one check for room, where each field would have its own.
pub(crate) struct FixedWriter<const N: usize> {
    bytes: [u8; N],
    at: usize,
}
impl<const N: usize> FixedWriter<N> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }
    #[inline]
    pub(crate) fn add<const M: usize>(&mut self, field: [u8; M]) {
        self.bytes[self.at..self.at + M].copy_from_slice(&field);
        self.at += M;
    }
    #[inline]
    pub(crate) fn append_to(self, w: &mut Writer) {
        debug_assert_eq!(self.at, N, "not all fields were added");
        w.raw(&self.bytes);
    }
}

/// Takes fields from a byte slice. Borrowed fields live as long as the slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
    /// Bytes that were not taken yet.
    pub fn left(&self) -> usize {
        self.rest.len()
    }
    /// Takes `len` bytes.
    #[inline]
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        match self.rest.split_at_checked(len) {
            Some((head, tail)) => {
                self.rest = tail;
                Ok(head)
            }
            None => Err(self.truncated(len)),
        }
    }
    /// Takes as many bytes as a number has: a load, where [`Reader::raw`] would be a copy of any length.
    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        match self.rest.split_first_chunk::<N>() {
            Some((head, tail)) => {
                self.rest = tail;
                Ok(*head)
            }
            None => Err(self.truncated(N)),
        }
    }
    #[cold]
    fn truncated(&self, needed: usize) -> DecodeError {
        DecodeError::Truncated {
            needed: u32::try_from(needed).unwrap_or(u32::MAX),
            left: u32::try_from(self.rest.len()).unwrap_or(u32::MAX),
        }
    }
    /// Reads a `u32` length and that many bytes, borrowed.
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = u32::decode(self)?;
        self.raw(len as usize)
    }
    /// Fails unless everything was read.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(DecodeError::TrailingBytes { left: u32::try_from(left).unwrap_or(u32::MAX) }),
        }
    }
}

/// A value with one byte representation. `'a` is the life of borrowed fields.
pub trait Codec<'a>: Sized {
    /// Appends the value to what `w` has.
    fn encode(&self, w: &mut Writer);
    /// Takes a value from the front of `r`, which an error leaves anywhere. Never panics, whatever the bytes.
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError>;
    /// Checks a value as `decode` does, and takes it, without making it: lists and texts reserve no memory.
    fn skip(r: &mut Reader<'a>) -> Result<(), DecodeError> {
        Self::decode(r).map(drop)
    }

    /// Encodes into a fresh vector.
    fn to_vec(&self) -> Vec<u8> {
        let mut w = Writer::new();
        self.encode(&mut w);
        w.buf
    }
    /// Decodes a slice. Bytes after the last known field are skipped: they are fields of a newer version.
    fn from_slice(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Self::decode(&mut Reader::new(bytes))
    }
}

macro_rules! int_codec {
    ($($t:ty),*) => {$(
        impl<'a> Codec<'a> for $t {
            #[inline]
            fn encode(&self, w: &mut Writer) { w.raw(&self.to_le_bytes()); }
            #[inline]
            fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(<$t>::from_le_bytes(r.array()?))
            }
        }
    )*};
}
int_codec!(u8, u16, u32, u64, i32, i64);

impl<'a> Codec<'a> for bool {
    #[inline]
    fn encode(&self, w: &mut Writer) {
        u8::from(*self).encode(w);
    }
    #[inline]
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match u8::decode(r)? {
            0 => Ok(false),
            1 => Ok(true),
            v => Err(DecodeError::BadValue { what: "bool", value: u64::from(v) }),
        }
    }
}

impl<'a> Codec<'a> for &'a [u8] {
    fn encode(&self, w: &mut Writer) {
        w.bytes(self);
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        r.bytes()
    }
}

/// Owned bytes. (Not `Vec<u8>`: that is a list of `u8` and would be encoded element by element.)
impl<'a> Codec<'a> for bytes::Bytes {
    fn encode(&self, w: &mut Writer) {
        w.bytes(self);
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(bytes::Bytes::copy_from_slice(r.bytes()?))
    }
    fn skip(r: &mut Reader<'a>) -> Result<(), DecodeError> {
        r.bytes().map(drop)
    }
}

impl<'a> Codec<'a> for String {
    fn encode(&self, w: &mut Writer) {
        w.bytes(self.as_bytes());
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match core::str::from_utf8(r.bytes()?) {
            Ok(s) => Ok(s.to_string()),
            Err(e) => Err(DecodeError::BadValue { what: "utf-8 text", value: e.valid_up_to() as u64 }),
        }
    }
}

impl<'a, T: Codec<'a>> Codec<'a> for Option<T> {
    fn encode(&self, w: &mut Writer) {
        match self {
            None => 0u8.encode(w),
            Some(v) => {
                1u8.encode(w);
                v.encode(w);
            }
        }
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(if bool::decode(r)? { Some(T::decode(r)?) } else { None })
    }
    #[inline]
    fn skip(r: &mut Reader<'a>) -> Result<(), DecodeError> {
        if bool::decode(r)? { T::skip(r) } else { Ok(()) }
    }
}

/// A list: `u32` count, then the elements. An element takes at least one byte, so a hostile count is refused before
/// memory is reserved.
impl<'a, T: Codec<'a>> Codec<'a> for Vec<T> {
    fn encode(&self, w: &mut Writer) {
        (self.len() as u32).encode(w);
        for v in self {
            v.encode(w);
        }
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = element_count(r)?;
        let mut list = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            list.push(T::decode(r)?);
        }
        Ok(list)
    }
    fn skip(r: &mut Reader<'a>) -> Result<(), DecodeError> {
        (0..element_count(r)?).try_for_each(|_| T::skip(r))
    }
}
/// The count of a list, which the bytes that are left can have.
fn element_count(r: &mut Reader<'_>) -> Result<usize, DecodeError> {
    let count = u32::decode(r)? as usize;
    if count > r.left() {
        return Err(DecodeError::Truncated { needed: count as u32, left: r.left() as u32 });
    }
    Ok(count)
}

/// A value that was checked and stays encoded: it costs nothing to pass on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded<'a, T> {
    bytes: &'a [u8],
    value: PhantomData<T>,
}
impl<'a, T: Codec<'a>> Encoded<'a, T> {
    /// The value.
    ///
    /// # Errors
    /// None for a value that is decoded as it was checked.
    pub fn value(&self) -> Result<T, DecodeError> {
        T::from_slice(self.bytes)
    }
}
impl<T> Encoded<'_, Vec<T>> {
    /// Whether the list has no element.
    pub fn is_empty(&self) -> bool {
        self.bytes.starts_with(&0u32.to_le_bytes())
    }
}
impl<'a, T: Codec<'a>> Codec<'a> for Encoded<'a, T> {
    fn encode(&self, w: &mut Writer) {
        w.raw(self.bytes);
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let all = r.rest;
        T::skip(r)?;
        let bytes = all.get(..all.len() - r.left()).unwrap_or_default();
        Ok(Self { bytes, value: PhantomData })
    }
}

impl<'a, A: Codec<'a>, B: Codec<'a>> Codec<'a> for (A, B) {
    fn encode(&self, w: &mut Writer) {
        self.0.encode(w);
        self.1.encode(w);
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok((A::decode(r)?, B::decode(r)?))
    }
}

/// Maximum length of a field from outside. The decoder checks it, before the field is stored or logged.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    bytes: usize,
    elements: usize,
}
impl Bound {
    /// Bytes of a text.
    pub const fn text(bytes: usize) -> Self {
        Self { bytes, elements: 1 }
    }
    /// Elements of a list of texts, and bytes of each.
    pub const fn texts(elements: usize, bytes: usize) -> Self {
        Self { bytes, elements }
    }
    /// # Errors
    /// `TooLong` with the name of the field.
    pub fn check(self, what: &'static str, field: &impl Bounded) -> Result<(), DecodeError> {
        let (elements, longest) = field.size();
        for (found, most) in [(elements, self.elements), (longest, self.bytes)] {
            if found > most {
                let short = |n| u32::try_from(n).unwrap_or(u32::MAX);
                return Err(DecodeError::TooLong { what, found: short(found), most: short(most) });
            }
        }
        Ok(())
    }
}
/// A field to which a [`Bound`] applies.
pub trait Bounded {
    /// The number of elements, and the bytes of the longest one.
    fn size(&self) -> (usize, usize);
}
impl Bounded for String {
    fn size(&self) -> (usize, usize) {
        (1, self.len())
    }
}
impl Bounded for Option<String> {
    fn size(&self) -> (usize, usize) {
        (usize::from(self.is_some()), self.as_ref().map_or(0, String::len))
    }
}
impl Bounded for Vec<String> {
    fn size(&self) -> (usize, usize) {
        (self.len(), self.iter().map(String::len).max().unwrap_or(0))
    }
}

/// Declares a struct and its codec: the fields in order, nothing else. A field may have a [`Bound`] that the decoder
/// enforces.
///
/// `codec_struct! { /// doc  pub struct Name<'a> { pub a: u32, pub name: &'a [u8], pub text: String [Bound::text(255)] } }`
#[macro_export]
macro_rules! codec_struct {
    ($(#[$m:meta])* pub struct $name:ident<$lt:lifetime> { $($(#[$fm:meta])* pub $f:ident : $t:ty),* $(,)? }) => {
        $(#[$m])* #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name<$lt> { $($(#[$fm])* pub $f: $t),* }
        impl<$lt> $crate::Codec<$lt> for $name<$lt> {
            fn encode(&self, w: &mut $crate::Writer) { let _ = &w; $($crate::Codec::encode(&self.$f, w);)* }
            fn decode(r: &mut $crate::Reader<$lt>) -> Result<Self, $crate::DecodeError> {
                let _ = &r;
                $(let $f = $crate::Codec::decode(r)?;)*
                Ok(Self { $($f),* })
            }
            fn skip(r: &mut $crate::Reader<$lt>) -> Result<(), $crate::DecodeError> {
                let _ = &r;
                $(<$t as $crate::Codec<$lt>>::skip(r)?;)*
                Ok(())
            }
        }
    };
    // A field with a bound is made, because the bound is checked on it.
    (@skip $r:ident $t:ty, $f:ident $bound:expr) => {
        $crate::Bound::check($bound, stringify!($f), &<$t as $crate::Codec<'_>>::decode($r)?)?
    };
    (@skip $r:ident $t:ty, $f:ident) => { <$t as $crate::Codec<'_>>::skip($r)? };
    ($(#[$m:meta])* pub struct $name:ident {
        $($(#[$fm:meta])* pub $f:ident : $t:ty $([$bound:expr])?),* $(,)?
    }) => {
        $(#[$m])* #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$fm])* pub $f: $t),* }
        impl<'a> $crate::Codec<'a> for $name {
            fn encode(&self, w: &mut $crate::Writer) { let _ = &w; $($crate::Codec::encode(&self.$f, w);)* }
            fn decode(r: &mut $crate::Reader<'a>) -> Result<Self, $crate::DecodeError> {
                let _ = &r;
                $(
                    let $f = $crate::Codec::decode(r)?;
                    $($crate::Bound::check($bound, stringify!($f), &$f)?;)?
                )*
                Ok(Self { $($f),* })
            }
            fn skip(r: &mut $crate::Reader<'a>) -> Result<(), $crate::DecodeError> {
                let _ = &r;
                $($crate::codec_struct!(@skip r $t, $f $($bound)?);)*
                Ok(())
            }
        }
    };
}

/// Declares a field-less enum with explicit numbers and its codec over `u8` or `u16`.
#[macro_export]
macro_rules! codec_enum {
    ($(#[$m:meta])* pub enum $name:ident : $repr:ty { $($(#[$vm:meta])* $v:ident = $n:literal),* $(,)? }) => {
        $(#[$m])* #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($repr)]
        pub enum $name { $($(#[$vm])* $v = $n),* }
        impl $name {
            /// Every variant, in the order of the declaration.
            pub const ALL: &'static [$name] = &[$($name::$v),*];
            /// `None` for a number that has no variant.
            pub fn from_number(n: $repr) -> Option<Self> {
                match n { $($n => Some(Self::$v),)* _ => None }
            }
            /// The number of the variant on wire and disk.
            pub fn number(self) -> $repr { self as $repr }
        }
        impl<'a> $crate::Codec<'a> for $name {
            #[inline]
            fn encode(&self, w: &mut $crate::Writer) { $crate::Codec::encode(&(*self as $repr), w); }
            #[inline]
            fn decode(r: &mut $crate::Reader<'a>) -> Result<Self, $crate::DecodeError> {
                let n = <$repr as $crate::Codec<'_>>::decode(r)?;
                Self::from_number(n).ok_or($crate::DecodeError::BadValue {
                    what: stringify!($name), value: u64::from(n) })
            }
        }
    };
}

/// Codec of a newtype over one number.
#[macro_export]
macro_rules! codec_newtype {
    ($($t:ident($inner:ty)),* $(,)?) => {$(
        impl<'a> $crate::Codec<'a> for $t {
            #[inline]
            fn encode(&self, w: &mut $crate::Writer) { $crate::Codec::encode(&self.0, w); }
            #[inline]
            fn decode(r: &mut $crate::Reader<'a>) -> Result<Self, $crate::DecodeError> {
                Ok(Self(<$inner as $crate::Codec<'_>>::decode(r)?))
            }
            #[inline]
            fn skip(r: &mut $crate::Reader<'a>) -> Result<(), $crate::DecodeError> {
                <$inner as $crate::Codec<'a>>::skip(r)
            }
        }
    )*};
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the macro declares public structs")]
mod tests {
    use super::*;

    codec_struct! {
        pub struct Sample<'a> { pub a: u16, pub name: &'a [u8], pub list: Vec<u32>, pub o: Option<u64> }
    }

    #[test]
    fn a_struct_comes_back_and_every_truncation_is_refused() {
        let s = Sample { a: 7, name: b"x\xffy", list: alloc::vec![1, 2], o: Some(9) };
        let v = s.to_vec();
        assert_eq!(Sample::from_slice(&v), Ok(s));
        for n in 0..v.len() {
            assert!(Sample::from_slice(&v[..n]).is_err(), "prefix {n}");
        }
    }

    codec_struct! {
        pub struct Short { pub name: String [Bound::text(3)], pub list: Vec<String> [Bound::texts(2, 1)] }
    }

    #[test]
    fn a_text_or_a_list_beyond_its_bound_is_refused_by_name() {
        let short = |name: &str, list: &[&str]| {
            let list = list.iter().map(|s| s.to_string()).collect();
            Short::from_slice(&Short { name: name.into(), list }.to_vec()).map(drop)
        };
        assert_eq!(short("abc", &["a", "b"]), Ok(()));
        let long = |what, found, most| Err(DecodeError::TooLong { what, found, most });
        assert_eq!(short("abcd", &[]), long("name", 4, 3));
        assert_eq!(short("", &["a", "b", "c"]), long("list", 3, 2));
        assert_eq!(short("", &["ab"]), long("list", 2, 1));
    }

    #[test]
    fn a_value_that_stays_encoded_is_checked_as_one_that_is_decoded() {
        let s = Sample { a: 7, name: b"x\xffy", list: alloc::vec![1, 2], o: Some(9) };
        let short = Short { name: "abc".into(), list: alloc::vec!["a".into()] };
        let both = (s, short).to_vec();
        for n in 0..=both.len() {
            let decoded = <(Sample<'_>, Short)>::from_slice(&both[..n]);
            let encoded = <(Encoded<'_, Sample<'_>>, Encoded<'_, Short>)>::from_slice(&both[..n]);
            assert_eq!(
                encoded.clone().map(|(s, short)| (s.value().unwrap(), short.value().unwrap())),
                decoded
            );
            assert!(encoded.is_ok_and(|e| e.to_vec() == both) || n < both.len());
        }
        let long = Short { name: "abcd".into(), list: Vec::new() }.to_vec();
        assert_eq!(Encoded::<'_, Short>::from_slice(&long).map(drop), Short::from_slice(&long).map(drop));
        for (list, is_empty) in [(Vec::new(), true), (alloc::vec![3u32], false)] {
            let list = list.to_vec();
            assert_eq!(Encoded::<'_, Vec<u32>>::from_slice(&list).unwrap().is_empty(), is_empty);
        }
    }

    #[test]
    fn a_hostile_count_reserves_nothing() {
        let v = u32::MAX.to_le_bytes();
        assert!(matches!(Vec::<u64>::from_slice(&v), Err(DecodeError::Truncated { .. })));
    }
}
