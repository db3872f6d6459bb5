//! The superblock: the file that identifies a store (label, format version, log epochs, clean mark). It is small, and
//! always replaced as a whole. Its file holds it twice, so that damage of one copy costs nothing.

use crate::combine::combine;
use crate::crc::crc32c;
use crate::error::OsdError;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::{Ctx, FileId, StoreDone, StoreOp};
use nacre_types::{ClientUuid, Codec, Identity, Incarnation, TargetName, Transno, codec_struct};

const MAGIC: [u8; 8] = *b"NACREOSD";
/// Version of everything below a store: superblock, log, runs.
pub const FORMAT_VERSION: u32 = 4;
/// The oldest version that can be opened; it is the present one from then on. Version 3 has no bytes of objects in the log.
const OLDEST_VERSION: u32 = 3;
const HEAD_BYTES: usize = 20;
/// Each copy ends at a multiple of this, at least [`GAP_BYTES`] after its last byte: the copies share no sector.
const COPY_ALIGN: usize = 4096;
const GAP_BYTES: usize = 512;

codec_struct! {
    /// The description of a store: written by mkfs, never changed except for `mgs_nodes`.
    pub struct Label {
        /// Random, made by mkfs; identifies the target to others for ever.
        pub uuid: ClientUuid,
        /// `MGS`, `demo-OST0001`.
        pub name: String,
        /// Addresses of the MGS; empty for the MGS itself.
        pub mgs_nodes: Vec<String>,
        /// Fast identity of the format: see docs/disk-format.md.
        pub format_version: u32,
    }
}
impl Label {
    /// The parsed `name`; `None` if it is not a valid name of a target.
    pub fn target(&self) -> Option<TargetName> {
        TargetName::parse(&self.name)
    }
}

codec_struct! {
    /// The superblock.
    pub struct Super {
        /// As mkfs wrote it.
        pub label: Label,
        /// How often the store was opened.
        pub instance: u64,
        /// Epoch of the log that is written.
        pub log_epoch: u32,
        /// Stopped as planned: the log ends where it ends.
        pub clean: bool,
        /// Segments at or above this number were never used.
        pub next_segment: u64,
        /// (epoch, last lsn) of earlier epochs whose segments may still be needed, oldest first.
        pub epoch_ends: Vec<(u32, u64)>,
        /// How often it was opened after it had not been stopped as planned.
        pub unclean_stops: u64,
        /// The latest openings, oldest first: see [`Identity`].
        pub incarnations: Vec<Incarnation>,
    }
}

/// The damaged one of a superblock's copies. `Both`: at different places, so that they complete each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DamagedCopy {
    First,
    Second,
    Both,
}
impl DamagedCopy {
    /// The sentence of a check, before it is repaired.
    pub(crate) fn found(self) -> &'static str {
        match self {
            Self::First => {
                "the first of the two copies of the superblock is damaged: the next start of the target uses the other one and writes both"
            }
            Self::Second => {
                "the second of the two copies of the superblock is damaged: the next start of the target uses the other one and writes both"
            }
            Self::Both => {
                "the two copies of the superblock are damaged at different places: the next start of the target unites them and writes both"
            }
        }
    }
    /// The sentence of a start that has repaired it.
    pub(crate) fn repaired(self) -> &'static str {
        match self {
            Self::First => {
                "the first of the two copies of the superblock was damaged: the other one was used, and both have been written again"
            }
            Self::Second => {
                "the second of the two copies of the superblock was damaged: the other one was used, and both have been written again"
            }
            Self::Both => {
                "the two copies of the superblock were damaged at different places: they were united, and both have been written again"
            }
        }
    }
}

/// The label in the bytes of a superblock's file, of a store that another process has open.
///
/// # Errors
/// `Format` with the whole sentence for the operator.
pub fn label_of(bytes: &[u8]) -> Result<Label, OsdError> {
    Super::parse(bytes).map(|found| found.label)
}

/// Why a copy is no superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unreadable {
    Foreign,
    Version(u32),
    Damaged,
}
impl Unreadable {
    /// What two copies show together. A whole copy of another version tells that; something else is what neither copy is like.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Version(version), _) | (_, Self::Version(version)) => Self::Version(version),
            (Self::Foreign, Self::Foreign) => Self::Foreign,
            _ => Self::Damaged,
        }
    }
}
impl core::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Foreign => f.write_str(
                "the file `super` holds no superblock of a nacre target: check the path; if this was a target, restore that file from a backup, and do not format it",
            ),
            Self::Version(version) => write!(
                f,
                "this target was written in format version {version}, this program knows version {FORMAT_VERSION}: use the program that wrote it"
            ),
            Self::Damaged => f.write_str(
                "the superblock of this target is damaged, in both copies: restore the file `super` from a backup, do not format the target",
            ),
        }
    }
}

impl Super {
    pub(crate) fn new(label: Label) -> Self {
        Self {
            label,
            instance: 0,
            log_epoch: 0,
            clean: true,
            next_segment: 1,
            epoch_ends: Vec::new(),
            unclean_stops: 0,
            incarnations: Vec::new(),
        }
    }
    /// The identity that the target presents.
    pub(crate) fn identity(&self) -> Identity {
        Identity { uuid: self.label.uuid, incarnations: self.incarnations.clone() }
    }
    /// Counts this opening; durable with the next write of the superblock.
    pub(crate) fn open(&mut self, id: u64, last_transno: u64) {
        let mut identity = self.identity();
        identity.open(id, Transno(last_transno));
        self.incarnations = identity.incarnations;
        self.instance += 1;
    }
    pub(crate) fn to_bytes(&self) -> Bytes {
        let payload = self.to_vec();
        let mut out = Vec::with_capacity(HEAD_BYTES + payload.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&crc32c(&payload).to_le_bytes());
        out.extend_from_slice(&payload);
        out.resize((out.len() + GAP_BYTES).next_multiple_of(COPY_ALIGN), 0);
        Bytes::from(out.repeat(2))
    }
    /// # Errors
    /// `Format` with the whole sentence for the operator, if both copies are damaged.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, OsdError> {
        Self::parse_copies(bytes).map(|(found, _)| found)
    }
    /// The same, with the copy that is damaged, or not there, or another than the first.
    fn parse_copies(bytes: &[u8]) -> Result<(Self, Option<DamagedCopy>), OsdError> {
        let halves = bytes.split_at(bytes.len() / 2);
        let second = Self::parse_copy(halves.1);
        match (Self::parse_copy(bytes), second) {
            (Ok(first), Ok(second)) if first == second => Ok((first, None)),
            (Ok(first), _) => Ok((first, Some(DamagedCopy::Second))),
            (Err(_), Ok(second)) => Ok((second, Some(DamagedCopy::First))),
            (Err(one), Err(two)) => {
                let united = combine(halves.0, halves.1, |bytes| Self::parse_copy(bytes).is_ok());
                match united.and_then(|bytes| Self::parse_copy(&bytes).ok()) {
                    Some(found) => Ok((found, Some(DamagedCopy::Both))),
                    None => Err(OsdError::Format(one.and(two).to_string())),
                }
            }
        }
    }
    fn parse_copy(bytes: &[u8]) -> Result<Self, Unreadable> {
        let Some(head) = bytes.get(..HEAD_BYTES) else { return Err(Unreadable::Foreign) };
        let equal = MAGIC.iter().zip(head).filter(|(expected, found)| expected == found).count();
        if equal < MAGIC.len() {
            return Err(if equal >= MAGIC.len() / 2 { Unreadable::Damaged } else { Unreadable::Foreign });
        }
        let number = |at: usize| crate::log::segment::u32_at(head, at).unwrap_or(0);
        let payload = bytes.get(HEAD_BYTES..).and_then(|p| p.get(..number(12) as usize));
        let payload = payload.filter(|p| crc32c(p) == number(16)).ok_or(Unreadable::Damaged)?;
        if !(OLDEST_VERSION..=FORMAT_VERSION).contains(&number(8)) {
            return Err(Unreadable::Version(number(8)));
        }
        Self::from_slice(payload).map_err(|_| Unreadable::Damaged)
    }
    /// `None`: the store is empty.
    pub(crate) async fn read(ctx: &Ctx) -> Result<Option<Self>, OsdError> {
        Ok(Self::read_copies(ctx).await?.map(|(found, _)| found))
    }
    /// The same, with the copy that is damaged.
    pub(crate) async fn read_copies(ctx: &Ctx) -> Result<Option<(Self, Option<DamagedCopy>)>, OsdError> {
        let StoreDone::Len(Some(len)) = ctx.io(StoreOp::Len { file: FileId::Super }).await? else {
            return Ok(None);
        };
        let len = u32::try_from(len).unwrap_or(u32::MAX).min(1 << 20);
        match ctx.io(StoreOp::Read { file: FileId::Super, offset: 0, len }).await? {
            StoreDone::Bytes(bytes) => Self::parse_copies(&bytes).map(Some),
            other => Err(OsdError::Format(format!("the store returned {other:?} to a read").to_string())),
        }
    }
    pub(crate) async fn write(&self, ctx: &Ctx) -> Result<(), OsdError> {
        ctx.io(StoreOp::Replace { file: FileId::Super, data: self.to_bytes() }).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_comes_back_and_others_are_refused_in_a_sentence() {
        let label = Label {
            uuid: ClientUuid([9; 16]),
            name: String::from("demo-OST0001"),
            mgs_nodes: alloc::vec![String::from("unix:/run/x")],
            format_version: FORMAT_VERSION,
        };
        let mut s = Super { epoch_ends: alloc::vec![(1, 77)], unclean_stops: 3, ..Super::new(label) };
        s.open(0x1234_5678, 42);
        let bytes = s.to_bytes();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let (used, rest) = first.split_at(HEAD_BYTES + s.to_vec().len());
        assert_eq!(crc32c(used), 0x6305_957b, "golden bytes: {used:02x?}");
        assert!(first == second && rest.len() >= GAP_BYTES && rest.iter().all(|b| *b == 0));
        assert_eq!(Super::parse(&bytes).as_ref(), Ok(&s));
        let text = |b: &[u8]| Super::parse(b).unwrap_err().to_string();
        assert!(text(b"hello").contains("no superblock of a nacre target"));
        let mut other = Vec::from(&bytes[..]);
        (other[8], other[bytes.len() / 2 + 8]) = (99, 99);
        assert!(text(&other).contains("format version 99"));
        // Of a version that keeps no second copy.
        let mut single = Vec::from(first);
        single[8] = 99;
        single.resize(2 * first.len(), 0xee);
        assert!(text(&single).contains("format version 99"));
        let mut bad = Vec::from(&bytes[..]);
        bad[40] ^= 1;
        assert_eq!(Super::parse(&bad).as_ref(), Ok(&s), "there is another copy");
        bad[bytes.len() / 2 + 40] ^= 1;
        assert!(text(&bad).contains("damaged"));
        // Of a file that was cut the first copy may be whole.
        let used = HEAD_BYTES + s.to_vec().len();
        for n in 0..used {
            assert!(Super::parse(&bytes[..n]).is_err());
        }
        assert_eq!(Super::parse(&bytes[..used]).as_ref(), Ok(&s));
    }

    fn opened_often() -> Super {
        let label = Label {
            uuid: ClientUuid([9; 16]),
            name: String::from("demo-OST0001"),
            mgs_nodes: Vec::new(),
            format_version: FORMAT_VERSION,
        };
        let mut s = Super::new(label);
        (0..200).for_each(|id| s.open(id, 42));
        s
    }

    #[test]
    fn copies_that_are_damaged_at_different_places_complete_each_other() {
        let s = opened_often();
        let bytes = s.to_bytes();
        let half = bytes.len() / 2;
        let used = HEAD_BYTES + s.to_vec().len();
        let damaged = |one: usize, two: usize| {
            let mut bad = Vec::from(&bytes[..]);
            for at in [one, half + two] {
                bad[at..at + 64].iter_mut().for_each(|byte| *byte = !*byte);
            }
            Super::parse_copies(&bad)
        };
        for at in (0..used - 200).step_by(7) {
            for (one, two) in [(at, at + 80), (at + 80, at)] {
                assert_eq!(
                    damaged(one, two),
                    Ok((s.clone(), Some(DamagedCopy::Both))),
                    "damage at {one} and {two}"
                );
            }
            // Nobody is told to format a damaged target, or to use another program.
            let error = damaged(at, at + 5).unwrap_err().to_string();
            assert!(at < 8 || error.contains("damaged"), "damage at {at}: {error}");
        }
        let mut bad = Vec::from(&bytes[..]);
        for at in [0, half] {
            bad[at..at + 4].fill(0);
        }
        assert!(Super::parse(&bad).unwrap_err().to_string().contains("do not format"));
    }

    #[test]
    fn damage_anywhere_leaves_one_copy() {
        let s = opened_often();
        let bytes = s.to_bytes();
        let used = HEAD_BYTES + s.to_vec().len();
        assert_eq!(Super::parse_copies(&bytes).unwrap(), (s.clone(), None));
        for at in 0..bytes.len() - 64 {
            let mut bad = Vec::from(&bytes[..]);
            bad[at..at + 64].iter_mut().for_each(|byte| *byte = !*byte);
            let (found, damaged) = Super::parse_copies(&bad).unwrap();
            assert_eq!(found, s, "damage at {at}");
            let copy = if at < bytes.len() / 2 { DamagedCopy::First } else { DamagedCopy::Second };
            // The zeros between the copies belong to neither.
            let is_of_a_copy = at % (bytes.len() / 2) < used;
            assert!(!is_of_a_copy || damaged == Some(copy), "damage at {at}: {damaged:?}");
        }
    }
}
