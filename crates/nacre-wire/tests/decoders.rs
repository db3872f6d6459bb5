//! Every message: its bytes are the documented ones, and its decoder refuses what is not a message.

#[path = "support/hostile.rs"]
mod hostile;
#[path = "support/messages.rs"]
mod messages;
#[path = "../../../fuzz/support/replay.rs"]
mod replay;

use nacre_wire::Opcode;
use std::fmt::Write;

/// Opcodes whose body is not a request of its own: callbacks, and those without a message yet.
const NOT_REQUESTS: [Opcode; 8] = [
    Opcode::Status,
    Opcode::Shutdown,
    Opcode::LockGranted,
    Opcode::LockBlocking,
    Opcode::ReturnGrant,
    Opcode::FlockGranted,
    Opcode::RevokeInodeLocks,
    Opcode::Ended,
];

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 29
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

#[test]
fn every_opcode_has_a_sample() {
    let messages = messages::all();
    for &opcode in Opcode::ALL {
        let known = messages.iter().any(|m| m.opcode == Some(opcode));
        assert_eq!(known, !NOT_REQUESTS.contains(&opcode), "{opcode:?}: add it to tests/support/messages.rs");
    }
}

/// A change of these bytes is a change of the protocol: a new `VERSION` (frame.rs), and docs/wire.md. For a version that
/// the file does not have, `NACRE_BLESS=1 cargo test -p nacre-wire` writes it anew.
#[test]
fn messages_have_their_golden_bytes() {
    let mut text = String::new();
    let header = ("Header", header_sample());
    let messages = messages::all().into_iter().map(|m| (m.name, m.sample));
    for (name, bytes) in std::iter::once(header).chain(messages) {
        write!(text, "{name} ").unwrap();
        for byte in bytes {
            write!(text, "{byte:02x}").unwrap();
        }
        text.push('\n');
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt");
    let mut golden = std::fs::read_to_string(path).unwrap();
    if std::env::var_os("NACRE_BLESS").is_some() && text != golden {
        let version = |text: &str| {
            text.strip_prefix("Header 6572636e").and_then(|rest| rest.get(..4)).map(str::to_owned)
        };
        assert_ne!(
            version(&text),
            version(&golden),
            "messages have changed: raise VERSION in src/frame.rs first"
        );
        std::fs::write(path, &text).unwrap();
        golden.clone_from(&text);
    }
    for (now, then) in text.lines().zip(golden.lines()) {
        assert_eq!(now, then);
    }
    assert_eq!(text.lines().count(), golden.lines().count());
}

/// Every field another value.
fn header_sample() -> Vec<u8> {
    use nacre_types::{ConnEpoch, Tag, Transno, Xid};
    use nacre_wire::{Frame, HEADER_BYTES, Header, Kind};
    /// Where the status is: the field is signed, although no status is negative.
    const STATUS: std::ops::Range<usize> = 16..20;
    const CHECKSUM: std::ops::RangeFrom<usize> = HEADER_BYTES - 4..;
    let header = Header {
        flags: 0x0102_0304,
        xid: Xid(6),
        tag: Tag(7),
        last_xid: Xid(8),
        transno: Transno(9),
        last_committed: Transno(10),
        last_stable: Transno(11),
        epoch: ConnEpoch(12),
        clock_ms: 13,
        job: 14,
        ..Header::new(Kind::Reply, 0x1516)
    };
    let mut frame = Frame::new(header, vec![1, 2, 3]);
    frame.bulk.push(bytes::Bytes::from_static(b"bulk"));
    let mut bytes = frame.encode_header(0x1718_1920, hostile::sum).to_vec();
    bytes[STATUS].copy_from_slice(&(-5i32).to_le_bytes());
    let sum = hostile::sum(&bytes[..CHECKSUM.start]);
    bytes[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn the_wire_page_names_every_message() {
    let page = include_str!("../../../docs/wire.md");
    for message in messages::all() {
        let name = message.name.trim_start_matches("ost::").trim_end_matches("<'_>");
        assert!(page.contains(&format!("`{name}`")), "docs/wire.md does not name {name}");
    }
    for &opcode in Opcode::ALL {
        let number = format!("| {:#04x} | `{opcode:?}`", opcode.number());
        assert!(page.contains(&number), "docs/wire.md has no row {number}");
    }
}

#[test]
fn a_message_comes_back_and_every_truncation_is_refused() {
    for message in messages::all() {
        assert_eq!((message.decode)(&message.sample).as_ref(), Some(&message.sample), "{}", message.name);
        for len in 0..message.sample.len() {
            assert_eq!((message.decode)(&message.sample[..len]), None, "{} cut to {len}", message.name);
        }
    }
}

#[test]
fn fields_of_a_newer_version_are_skipped() {
    for message in messages::all() {
        let mut longer = message.sample.clone();
        longer.extend_from_slice(b"newer");
        assert_eq!((message.decode)(&longer).as_ref(), Some(&message.sample), "{}", message.name);
    }
}

#[test]
fn damaged_messages_are_refused_or_are_other_messages() {
    let mut rng = Rng(7);
    for message in messages::all() {
        for _ in 0..2_000 {
            let mut bytes = message.sample.clone();
            for _ in 0..=rng.below(4) {
                if bytes.is_empty() {
                    break;
                }
                let at = rng.below(bytes.len());
                match rng.below(4) {
                    0 => bytes[at] = rng.next() as u8,
                    1 => bytes[at] ^= 1 << rng.below(8),
                    2 => bytes.truncate(at),
                    _ => bytes.insert(at, [0, 0xff, 0x7f, 0x80][rng.below(4)]),
                }
            }
            hostile::settle(message.decode, &bytes);
        }
    }
}

#[test]
fn random_bytes_are_refused_or_are_messages() {
    let mut rng = Rng(11);
    let messages = messages::all();
    for _ in 0..3_000 {
        let len = rng.below(300);
        let spread = [1, 4, 256][rng.below(3)];
        let bytes: Vec<u8> = (0..len).map(|_| rng.below(spread) as u8).collect();
        for message in &messages {
            hostile::settle(message.decode, &bytes);
        }
        hostile::take_in(&bytes);
    }
}

#[test]
fn the_corpus_of_the_fuzz_target_is_taken_in() {
    replay::replay("frame", hostile::take_in);
}

/// `NACRE_BLESS=1` makes the seeds of the corpus: a good frame of every request, and the classic lies.
#[test]
fn the_corpus_has_a_good_frame_of_every_request() {
    let seeds = seeds();
    replay::seeds(
        "frame",
        &seeds.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect::<Vec<_>>(),
    );
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    use nacre_wire::{Frame, Header, Kind};
    let frame = |opcode: u16, body: &[u8]| {
        let frame = Frame::new(Header::new(Kind::Request, opcode), body.to_vec());
        let mut bytes = frame.encode_header(hostile::sum(body), hostile::sum).to_vec();
        bytes.extend_from_slice(body);
        bytes
    };
    let mut seeds = Vec::new();
    for message in messages::all() {
        if let Some(opcode) = message.opcode {
            seeds.push((format!("{opcode:?}"), frame(opcode.number(), &message.sample)));
        }
    }
    let destroy = Opcode::Destroy.number();
    seeds.push(("lie-unknown-opcode".into(), frame(0xffff, b"")));
    seeds.push(("lie-count".into(), frame(destroy, &[0xff; 40])));
    seeds.push(("lie-cut-header".into(), frame(destroy, b"")[..50].to_vec()));
    let mut oversize = frame(destroy, b"");
    oversize[20..24].fill(0xff);
    seeds.push(("lie-oversize-body".into(), oversize));
    seeds
}
