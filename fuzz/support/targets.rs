//! What is decoded outside the store's own files: rows of tables, texts that users type, frames as a stream.
//!
//! Nothing here may panic, loop or allocate beyond a small multiple of its input; what was accepted once is accepted
//! again as the same value.

use nacre_net::{Address, BulkBuffers, Decoder, Limits};
use nacre_types::{Codec, Fid, FsName, Layout, LayoutTemplate, MdtIndex, TargetName};
use nacre_wire::{Frame, HEADER_BYTES, Header};

fn settle(decode: impl Fn(&[u8]) -> Option<Vec<u8>>, bytes: &[u8]) {
    if let Some(once) = decode(bytes) {
        assert_eq!(decode(&once).as_deref(), Some(once.as_slice()));
    }
}

type Decode = fn(&[u8]) -> Option<Vec<u8>>;

macro_rules! codecs {
    ($($t:ty),* $(,)?) => { &[$((stringify!($t), |b| <$t as Codec<'_>>::from_slice(b).ok().map(|v| v.to_vec()))),*] };
}
macro_rules! mdt_rows {
    ($($t:ident),* $(,)?) => {
        &[$((stringify!($t), |b| {
            use nacre_mdt::row::Row;
            nacre_mdt::row::$t::from_row(b).ok().map(|row| row.to_row())
        })),*]
    };
}

/// Rows with a codec of their own.
const CODECS: &[(&str, Decode)] = codecs![
    nacre_target::ClientRow,
    nacre_rpc::ReplyRecord,
    nacre_mgs::FsRow,
    nacre_mgs::TargetRow,
    nacre_osd::Label,
    nacre_osd::ObjectRow,
    nacre_osd::object_rows::ReclaimRow,
    Layout,
    LayoutTemplate,
    Fid,
    nacre_rpc::PreVersions,
    nacre_rpc::SubRecord,
];
/// Rows with a version before them.
const MDT_ROWS: &[(&str, Decode)] = mdt_rows![Inode, EntryRow, OpenRow, Stripes, FlocksRow, Unsettled];

/// A row: the first byte chooses the table.
pub(crate) fn row(data: &[u8]) {
    let Some((&which, bytes)) = data.split_first() else { return };
    let kinds = CODECS.iter().chain(MDT_ROWS);
    if let Some((_, decode)) = kinds.clone().nth(usize::from(which) % (kinds.count() + 1)) {
        settle(decode, bytes);
    }
    settle(|b| nacre_osd::object_rows::BlockRow::decode(b).map(|row| row.encode()), bytes);
    let _ = nacre_osd::object_rows::object_of_key(bytes);
    let _ = nacre_osd::object_rows::region_of_key(bytes);
    if let Ok(layout) = Layout::from_slice(bytes) {
        for component in &layout.components {
            let end: u64 = component.pieces(u64::MAX - 9000, 4096).iter().map(|piece| piece.len).sum();
            assert!(end <= 4096);
            let _ = (component.file_size(7, u64::MAX), component.object_size(u32::MAX, u64::MAX));
        }
    }
}

/// Rows of a metadata target as the offline check reads them: each is led by its table, and by how long its key and its
/// value are. Whatever they are, the check ends with a verdict.
pub(crate) fn check(mut data: &[u8]) {
    let mut check = nacre_mdt::check::Check::new(MdtIndex::ROOT);
    while let Some((&[table, key_len, low, high], rest)) = data.split_first_chunk::<4>() {
        let Some((key, rest)) = rest.split_at_checked(key_len.into()) else { break };
        let Some((value, rest)) = rest.split_at_checked(u16::from_le_bytes([low, high]).into()) else {
            break;
        };
        data = rest;
        let tables = nacre_mdt::table::ALL;
        check.row(tables[usize::from(table) % tables.len()], key, value);
    }
    let report = check.finish();
    assert!(report.problems > 0 || report.entries > 0 || report.inodes > 0, "there is no root directory");
}

/// A text: names, addresses, patterns.
pub(crate) fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (first, second) = text.split_once('\n').unwrap_or((text, ""));
    let _ = nacre_wire::matches(first, second);
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse::<Address>().ok(), Some(address));
    }
    if let Some(name) = FsName::parse(text) {
        assert_eq!(name.as_str(), text);
    }
    if let Some(name) = TargetName::parse(text) {
        assert_eq!(TargetName::parse(&name.to_string()), Some(name));
    }
    if let Some(fid) = Fid::parse(text) {
        assert_eq!(Fid::parse(&fid.to_string()), Some(fid));
    }
}

/// Frames as they come from a socket: in pieces, the first with good checksums so that the rest is reached.
pub(crate) fn stream(data: &[u8]) {
    let Some((&step, bytes)) = data.split_first() else { return };
    let mut signed = bytes.to_vec();
    if let Some(head) = signed.first_chunk_mut::<HEADER_BYTES>() {
        let sum = crc32c(&head[..HEADER_BYTES - 4]);
        head[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        let _ = Header::decode(head, crc32c);
    }
    for bytes in [bytes, &signed] {
        let mut decoder = Decoder::new(Limits::default(), BulkBuffers::default());
        let mut frames: Vec<Frame> = Vec::new();
        for piece in bytes.chunks(usize::from(step) + 1) {
            if decoder.feed(piece, &mut |frame| frames.push(frame)).is_err() {
                break;
            }
        }
        let taken: usize =
            frames.iter().map(|f| f.body.len() + f.bulk.iter().map(|b| b.len()).sum::<usize>()).sum();
        assert!(taken <= bytes.len(), "a decoder invents nothing");
        for frame in &frames {
            let _greeting =
                (nacre_net::read_hello(frame).is_ok(), nacre_net::read_hello_reply(frame).is_ok());
        }
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}
