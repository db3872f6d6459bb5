//! The log beside a model: after every step, what is left in the segments is what was kept and is not void.

use super::*;
use alloc::collections::BTreeMap;
use alloc::vec;
use nacre_types::{Component, Extent, Layout, ObjectId, Oid, OstIndex, Seq};

const BOOT: Boot = Boot { high: 1, low: 2 };

fn config() -> KeptLogConfig {
    KeptLogConfig { boot: BOOT, memory: None, streams_from: 0 }
}

/// The store: segments, and how often each was written anew.
#[derive(Default)]
struct Segments {
    bytes: Vec<Vec<u8>>,
    creates: usize,
}
impl Segments {
    fn execute(&mut self, log: &KeptLog) {
        let mut ops = Vec::new();
        log.take_writes(&mut ops);
        for op in ops {
            match op {
                StoreOp::Create { file: FileId::Log(number), len } => {
                    self.creates += 1;
                    self.bytes.resize_with(SEGMENTS as usize, Vec::new);
                    self.bytes[number as usize] = vec![0; len as usize];
                }
                StoreOp::Write { file: FileId::Log(number), offset, data } => {
                    let data = data.concat();
                    let at = offset as usize..offset as usize + data.len();
                    self.bytes[number as usize][at].copy_from_slice(&data);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    fn left(&self, boot: Boot) -> Option<KeptWrites> {
        let segments: Vec<Bytes> = self.bytes.iter().cloned().map(Bytes::from).collect();
        kept_writes(&segments, boot, &mut |_, _| None)
    }
}

fn file(number: u32) -> FileState {
    let file = FileState::new(Fid::new(Seq(0x100), Oid(number)));
    let component = Component {
        extent: Extent::ALL,
        stripe_bytes: 65536,
        stripes: vec![OstIndex(number), OstIndex(7)],
        laid: vec![0, 0],
    };
    file.learn_layout(&Layout { generation: 1, dom_bytes: 0, components: vec![component] });
    file
}

/// A file of the test: its state, its record in the log, and the writes that are not void, with their places.
struct Modelled {
    state: FileState,
    logged: LoggedFile,
    writes: Vec<(u64, u64, Bytes)>,
}

/// The bytes of objects; 0: none.
type Images = BTreeMap<(OstIndex, ObjectId), Vec<u8>>;

fn put(images: &mut Images, ost: OstIndex, object: ObjectId, offset: u64, data: &[u8]) {
    let (image, at) = (images.entry((ost, object)).or_default(), offset as usize);
    image.resize(image.len().max(at + data.len()), 0);
    image[at..at + data.len()].copy_from_slice(data);
}
fn images_of(writes: &[(OstIndex, nacre_wire::ost::Write, Vec<Bytes>)]) -> Images {
    let mut images = Images::new();
    writes.iter().for_each(|(ost, w, data)| put(&mut images, *ost, w.object, w.offset, &data.concat()));
    images
}
fn modelled(files: &[Modelled]) -> Images {
    let mut images = Images::new();
    for file in files {
        let component = file.state.known_component().unwrap();
        for (_, offset, data) in &file.writes {
            for piece in component.pieces(*offset, data.len() as u64) {
                let object = ObjectId { fid: file.state.fid, stripe: piece.stripe };
                let from = (piece.file_offset - offset) as usize;
                let data = &data[from..from + piece.len as usize];
                put(&mut images, piece.ost, object, piece.object_offset, data);
            }
        }
    }
    images
}

#[test]
fn what_is_left_is_what_was_kept_and_is_not_void() {
    for seed in 1..4u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let log = KeptLog::new(seed, config());
        let mut segments = Segments::default();
        let mut files: Vec<Modelled> = (1..4)
            .map(|n| Modelled { state: file(n), logged: LoggedFile::default(), writes: Vec::new() })
            .collect();
        let (mut full, mut steps) = (0, 0);
        while log.begun.get() < 3 * SEGMENTS {
            steps += 1;
            let nth = random(3) as usize;
            let len = random(WRITE_BYTES_MAX) + 1;
            let live = files.iter().filter(|file| !file.writes.is_empty());
            let oldest = live.map(|file| file.logged.since()).min();
            if !log.has_room(len, || oldest) {
                // All of the file whose writes are the oldest is sent.
                full += 1;
                let oldest = files.iter_mut().filter(|file| !file.writes.is_empty());
                let file = oldest.min_by_key(|file| file.logged.since()).unwrap();
                log.sent(file.state.fid, &file.logged, log.place());
                file.writes.clear();
            } else if random(400) == 0 {
                // A part of a file is sent.
                let file = &mut files[nth];
                let place = match file.writes.get(random(file.writes.len() as u64 + 1) as usize) {
                    Some((serial, _, _)) => LogPlace { serial: *serial, segment: 0 },
                    None => log.place(),
                };
                log.sent(file.state.fid, &file.logged, place);
                file.writes.retain(|(serial, _, _)| *serial > place.serial);
            } else {
                let file = &mut files[nth];
                let (offset, data) =
                    (random(4_000_000), Bytes::from(vec![random(255) as u8 + 1; len as usize]));
                let is_first = file.writes.is_empty();
                log.kept(&file.state, &file.logged, is_first, (offset, Timestamp::default()), &data);
                file.writes.push((log.serial.get(), offset, data));
            }
            segments.execute(&log);
            if steps % 64 == 0 {
                let left = segments.left(BOOT).expect("a log");
                assert_eq!(left.log, seed);
                assert!(images_of(&left.writes) == modelled(&files), "seed {seed}, step {steps}");
            }
        }
        assert!(full > 0, "the log was never full");
        assert_eq!(segments.creates, SEGMENTS as usize);
        assert_eq!(segments.left(Boot { high: 1, low: 3 }), None, "of another start of the machine");
    }
}

/// A segment of the second lap ends where, in the first, other records followed, which are void by a record in a segment
/// that was written anew as well.
#[test]
fn records_of_a_former_lap_are_not_read_behind_later_ones() {
    let log = KeptLog::new(9, config());
    let mut segments = Segments::default();
    let (first, others) = ((file(1), LoggedFile::default()), (file(2), LoggedFile::default()));
    let limit = SEGMENT_BYTES - RESERVED_BYTES - BESIDE_DATA_BYTES;
    let mut keep = |(file, logged): &(FileState, LoggedFile), offset: u64, len: u64| {
        let data = Bytes::from(vec![1; len as usize]);
        log.kept(file, logged, offset == 0, (offset, Timestamp::default()), &data);
        segments.execute(&log);
    };
    // The first file fills a segment, others fill the rest.
    let mut kept = 0;
    while log.begun.get() <= 1 && (kept == 0 || log.end.get() + 1000 <= limit) {
        keep(&first, kept, 1000);
        kept += 1000;
    }
    while log.begun.get() < SEGMENTS || log.end.get() + 1000 <= limit {
        keep(&others, 0, 1000);
        log.sent(others.0.fid, &others.1, log.place());
        log.sent(first.0.fid, &first.1, log.place());
    }
    // The same again, but not up to its end; the record that makes the first lap void is written over.
    let mut left = 0;
    while left == 0 || log.end.get() + WRITE_BYTES_MAX <= limit {
        keep(&first, left, 1000);
        left += 1000;
    }
    assert!((left < kept, log.begun.get()) == (true, SEGMENTS + 1));
    keep(&others, 0, WRITE_BYTES_MAX);
    assert_eq!(log.begun.get(), SEGMENTS + 2);
    let bytes = images_of(&segments.left(BOOT).unwrap().writes).values().map(Vec::len).sum::<usize>();
    assert_eq!(bytes as u64, left + WRITE_BYTES_MAX);
}

#[test]
fn a_write_that_was_torn_by_the_end_of_the_process_is_not_read_and_those_before_it_are() {
    let (log, file, logged) = (KeptLog::new(9, config()), file(1), LoggedFile::default());
    let mut segments = Segments::default();
    for nth in 0..3u64 {
        let data = Bytes::from(vec![nth as u8 + 1; 5000]);
        log.kept(&file, &logged, nth == 0, (nth * 5000, Timestamp::default()), &data);
        segments.execute(&log);
    }
    let end = log.end.get() as usize;
    for cut in [1, 400, 4999, 5020] {
        let mut torn = Segments { bytes: segments.bytes.clone(), creates: 0 };
        torn.bytes[1][end - cut..end].fill(0);
        let left = images_of(&torn.left(BOOT).unwrap().writes);
        assert_eq!(left.values().map(Vec::len).collect::<Vec<_>>(), [10_000], "{cut}");
    }
}

/// What a hostile file may contain.
#[test]
fn random_damage_of_a_segment_is_no_error() {
    let (log, file, logged) = (KeptLog::new(9, config()), file(1), LoggedFile::default());
    let mut segments = Segments::default();
    log.kept(&file, &logged, true, (10, Timestamp::default()), &Bytes::from_static(b"abc"));
    segments.execute(&log);
    let end = log.end.get() as usize;
    for at in 0..end {
        for value in [0, 0x7f, 0xff] {
            let mut segment = segments.bytes[1][..end + 64].to_vec();
            segment[at] = value;
            let left = kept_writes(&[Bytes::from(segment)], BOOT, &mut |_, _| None);
            assert!(left.is_none_or(|left| left.writes.len() <= 1));
        }
    }
}

/// Memory in which all bytes lie at their addresses.
#[derive(Debug)]
struct Addresses;
impl KeptMemory for Addresses {
    fn place_of(&self, bytes: &Bytes) -> Option<KeptPlace> {
        Some(KeptPlace { offset: bytes.as_ptr() as u64, uses: 1 })
    }
    fn log_ended(&self) {}
}

/// Of two writes of the same bytes the OSTs have both, and only the buffer of the later one was taken again: the earlier one must
/// not be executed over it.
#[test]
fn bytes_that_were_written_over_since_are_not_left() {
    let config = KeptLogConfig { memory: Some(Arc::new(Addresses)), streams_from: 1 << 20, ..config() };
    let log = KeptLog::new(9, config);
    let mut segments = Segments::default();
    let (file, logged) = (file(1), LoggedFile::default());
    let long = |byte: u8| Bytes::from(vec![byte; 300 << 10]);
    let writes = [(1 << 20, long(1)), (3 << 20, long(2)), ((1 << 20) + 8192, long(3)), (3 << 20, long(4))];
    assert!(!log.takes(0, &writes[0].1), "not of a stream");
    for (number, (offset, data)) in writes.iter().enumerate() {
        assert!(log.takes(*offset, data));
        log.kept(&file, &logged, number == 0, (*offset, Timestamp::default()), data);
        segments.execute(&log);
    }
    assert!(
        segments
            .bytes
            .iter()
            .all(|segment| segment.get(4096..).is_none_or(|rest| rest.iter().all(|b| *b == 0)))
    );
    let bytes: Vec<Bytes> = segments.bytes.iter().cloned().map(Bytes::from).collect();
    let mut left = |place: KeptPlace, len: u64| {
        let (_, data) = writes.iter().find(|(_, data)| data.as_ptr() as u64 == place.offset)?;
        (data[0] != 3 && data[0] != 4 && place.uses == 1 && data.len() as u64 == len).then(|| data.clone())
    };
    let left = kept_writes(&bytes, BOOT, &mut left).unwrap();
    let mut seen = vec![0u8; 4 << 20];
    for (_, write, data) in &left.writes {
        // Two objects, stripes of 64 KiB.
        for (at, byte) in (write.offset..).zip(data.concat()) {
            let stripe = u64::from(write.object.stripe);
            seen[((at / 65536 * 2 + stripe) * 65536 + at % 65536) as usize] = byte;
        }
    }
    let expected = |at: usize| u8::from((1 << 20..(1 << 20) + 8192).contains(&at));
    assert!(seen.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
}
