//! Identifiers of the protocol: clients, requests, changes, locks, targets.

use crate::{codec_enum, codec_newtype, codec_struct};
use alloc::string::String;
use core::fmt;

macro_rules! number {
    ($($(#[$m:meta])* $name:ident($t:ty)),* $(,)?) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $t);
        codec_newtype!($name($t));
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }
    )*};
}
number! {
    /// Number of a request: strictly increasing per client and import. 0 = none.
    Xid(u64),
    /// Number of a change: strictly increasing in execution order per target. 0 = changed nothing.
    Transno(u64),
    /// Slot of a modifying request, from 1; 0 = no slot.
    Tag(u16),
    /// Counts the connections of an import; frames of an older epoch are dropped.
    ConnEpoch(u32),
    /// Number of a client record of a target; ties reply records, opens and locks to it.
    Generation(u32),
    /// Names a lock of a client; chosen by the client, unique for its lifetime.
    LockCookie(u64),
    /// Names an open of a client; chosen by the client, unique for its lifetime.
    OpenHandle(u64),
    /// Index of an OST in its file system.
    OstIndex(u32),
    /// Index of an MDT in its file system, at most [`MdtIndex::MAX`]: the sequences of its files carry it.
    MdtIndex(u32),
}

impl MdtIndex {
    /// The MDT with the root directory.
    pub const ROOT: MdtIndex = MdtIndex(0);
    /// The bits of a sequence that name its MDT hold no more.
    pub const MAX: MdtIndex = MdtIndex(1023);
}

/// Identity of one client instance (a mount, or a target in its client role). Random, new at each start of a
/// mount; a target uses its own uuid.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientUuid(pub [u8; 16]);
impl fmt::Display for ClientUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, b) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}
impl fmt::Debug for ClientUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl<'a> crate::Codec<'a> for ClientUuid {
    fn encode(&self, w: &mut crate::Writer) {
        w.raw(&self.0);
    }
    fn decode(r: &mut crate::Reader<'a>) -> Result<Self, crate::DecodeError> {
        let mut b = [0; 16];
        b.copy_from_slice(r.raw(16)?);
        Ok(Self(b))
    }
}

codec_struct! {
    /// One start of a machine: what it has in memory ends with it.
    #[derive(Copy)]
    pub struct Boot { pub high: u64, pub low: u64 }
}

codec_struct! {
    /// Where bytes lie in memory that survives the process, until the machine starts again.
    #[derive(Copy)]
    pub struct KeptPlace {
        /// From its beginning.
        pub offset: u64,
        /// How often their buffer has been taken: once it was taken again, other bytes lie there.
        pub uses: u32,
    }
}

codec_enum! {
    /// The kind of a target.
    pub enum TargetKind: u8 { Mgs = 1, Mdt = 2, Ost = 3 }
}
impl TargetKind {
    /// The highest index of a target of this kind in its file system.
    pub const fn index_max(self) -> u32 {
        match self {
            Self::Mgs => 0,
            Self::Mdt => MdtIndex::MAX.0,
            Self::Ost => 0xffff,
        }
    }
}

/// Name of a file system: 1 to 8 of `[A-Za-z0-9_-]`, as the field has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FsName(String);
impl FsName {
    /// `None` if the name breaks the rule above.
    pub fn parse(text: &str) -> Option<Self> {
        let ok = (1..=8).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        ok.then(|| Self(text.into()))
    }
    /// The name as it was parsed: 1 to 8 characters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl fmt::Display for FsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl<'a> crate::Codec<'a> for FsName {
    fn encode(&self, w: &mut crate::Writer) {
        w.bytes(self.0.as_bytes());
    }
    fn decode(r: &mut crate::Reader<'a>) -> Result<Self, crate::DecodeError> {
        let bytes = r.bytes()?;
        core::str::from_utf8(bytes)
            .ok()
            .and_then(Self::parse)
            .ok_or(crate::DecodeError::BadValue { what: "file system name", value: bytes.len() as u64 })
    }
}

/// `MGS`, `demo-MDT0000`, `demo-OST001f`: the index is four hexadecimal digits, at most [`TargetKind::index_max`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetName {
    Mgs,
    Of { fs: FsName, kind: TargetKind, index: u32 },
}
impl TargetName {
    /// `None` if the text is not exactly of one of these forms.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "MGS" {
            return Some(Self::Mgs);
        }
        let (fs, rest) = text.rsplit_once('-')?;
        let kind = match rest.get(..3)? {
            "MDT" => TargetKind::Mdt,
            "OST" => TargetKind::Ost,
            _ => return None,
        };
        let hex = rest.get(3..)?;
        let index = u32::from_str_radix(hex, 16).ok()?;
        (hex.len() == 4 && index <= kind.index_max()).then_some(Self::Of {
            fs: FsName::parse(fs)?,
            kind,
            index,
        })
    }
    /// The kind that the name states.
    pub fn kind(&self) -> TargetKind {
        match self {
            Self::Mgs => TargetKind::Mgs,
            Self::Of { kind, .. } => *kind,
        }
    }
    /// The index that the name states; 0 for the MGS.
    pub fn index(&self) -> u32 {
        match self {
            Self::Mgs => 0,
            Self::Of { index, .. } => *index,
        }
    }
}
impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mgs => f.write_str("MGS"),
            Self::Of { fs, kind, index } => {
                let kind = match kind {
                    TargetKind::Mgs => "MGS",
                    TargetKind::Mdt => "MDT",
                    TargetKind::Ost => "OST",
                };
                write!(f, "{fs}-{kind}{index:04x}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn target_names_print_as_they_parse() {
        for text in ["MGS", "demo-MDT0000", "demo-MDT03ff", "a-b-OST00ff", "demo-OSTffff"] {
            assert_eq!(TargetName::parse(text).map(|t| t.to_string()).as_deref(), Some(text));
        }
        for text in ["demo", "demo-XST0000", "demo-OST1", "toolongname-OST0000", "demo-MDT0400"] {
            assert_eq!(TargetName::parse(text), None, "{text}");
        }
    }
}
