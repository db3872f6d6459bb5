//! The contract of every store: one function per promise of `nacre_node::store`. A store's test calls
//! [`store_contract!`](crate::store_contract), which makes a test of each.

use bytes::Bytes;
use nacre_node::{FileId, FileKind, Keep, ReadFrom, Rng, Store, StoreDone, StoreError, StoreOp, WriteTo};
use nacre_osd::checksum::block_checksum;
use nacre_types::{Fid, ObjectId, Oid, Seq};
use std::collections::BTreeMap;

/// Declares one test per promise. `$make` is an expression of a fresh, empty `Box<dyn Store>`.
#[macro_export]
macro_rules! store_contract {
    ($make:expr) => {
        $crate::store_contract!(@tests $make;
            reads_are_short_at_the_end,
            what_is_missing_is_missing,
            create_makes_zeros_and_empties,
            holes_are_zeros_even_exabytes_away,
            truncate_cuts_and_extends_with_zeros,
            punch_makes_zeros_and_allocate_keeps_bytes_and_length,
            zero_makes_zeros_and_keeps_the_length,
            replace_is_whole,
            listing_is_in_order_by_pages,
            many_buffers_are_one_write,
            checksummed_writes_pad_keep_and_checksum,
            bytes_that_were_written_are_there_or_missed,
            writes_past_the_cache_are_read_like_others,
            kept_bytes_are_verified_and_reads_carry_checksums,
            random_operations_match_a_model,
            space_is_known,
        );
    };
    (@tests $make:expr; $($name:ident),* $(,)?) => {
        $(#[test] fn $name() { $crate::contract::$name(&*$make); })*
    };
}

/// Object `n` of the tests.
pub fn blob(n: u32) -> FileId {
    FileId::Blob(ObjectId { fid: Fid::new(Seq(0x100 + u64::from(n % 7)), Oid(n)), stripe: n % 3 })
}

/// As a driver does it: inline if the store can.
fn run(store: &dyn Store, op: StoreOp) -> Result<StoreDone, StoreError> {
    match store.try_execute(op) {
        Ok(result) => result,
        Err(op) => store.execute(op),
    }
}
fn done(store: &dyn Store, op: StoreOp) {
    assert_eq!(run(store, op.clone()), Ok(StoreDone::Unit), "{op:?}");
}
fn write(store: &dyn Store, file: FileId, offset: u64, data: &[u8]) {
    done(store, StoreOp::Write { file, offset, data: vec![Bytes::copy_from_slice(data)] });
}
fn read(store: &dyn Store, file: FileId, offset: u64, len: u32) -> Vec<u8> {
    match run(store, StoreOp::Read { file, offset, len }) {
        Ok(StoreDone::Bytes(bytes)) => bytes.to_vec(),
        other => panic!("read of {file:?} at {offset}: {other:?}"),
    }
}
fn len(store: &dyn Store, file: FileId) -> Option<u64> {
    match run(store, StoreOp::Len { file }) {
        Ok(StoreDone::Len(len)) => len,
        other => panic!("length of {file:?}: {other:?}"),
    }
}

/// A read beyond the end returns what is there, and no error.
pub fn reads_are_short_at_the_end(store: &dyn Store) {
    for file in [blob(1), FileId::Run(7)] {
        write(store, file, 0, b"hello world");
        assert_eq!(read(store, file, 6, 100), b"world");
        assert_eq!(read(store, file, 11, 100), b"");
        assert_eq!(read(store, file, 1 << 50, 100), b"");
        assert_eq!(len(store, file), Some(11));
        done(store, StoreOp::Sync { file });
        assert_eq!(read(store, file, 0, 5), b"hello");
    }
}

/// Missing files: an empty read of a blob, `NotFound` for others; deletes of them succeed.
pub fn what_is_missing_is_missing(store: &dyn Store) {
    assert_eq!(read(store, blob(1), 0, 10), b"");
    for file in [FileId::Log(1), FileId::Run(1), FileId::Super] {
        let op = StoreOp::Read { file, offset: 0, len: 1 };
        assert_eq!(run(store, op), Err(StoreError::NotFound { file }));
    }
    let data = vec![Bytes::from_static(b"x")];
    let op = StoreOp::Write { file: FileId::Log(1), offset: 0, data };
    assert_eq!(run(store, op), Err(StoreError::NotFound { file: FileId::Log(1) }));
    for file in [blob(1), FileId::Log(1), FileId::Run(1)] {
        done(store, StoreOp::Delete { file });
        done(store, StoreOp::Sync { file });
        assert_eq!(len(store, file), None);
    }
    done(store, StoreOp::Truncate { file: blob(1), len: 0 });
    done(store, StoreOp::Punch { file: blob(1), offset: 0, len: 4096 });
    assert_eq!(len(store, blob(1)), None);
    done(store, StoreOp::Truncate { file: blob(1), len: 100 });
    assert_eq!(read(store, blob(1), 0, 1000), [0; 100]);
    write(store, blob(2), 0, b"gone");
    done(store, StoreOp::Delete { file: blob(2) });
    assert_eq!((len(store, blob(2)), read(store, blob(2), 0, 9)), (None, vec![]));
    write(store, blob(2), 2, b"new");
    assert_eq!(read(store, blob(2), 0, 9), b"\0\0new");
}

/// Create gives a file of zeros, also where one with other bytes was.
pub fn create_makes_zeros_and_empties(store: &dyn Store) {
    for file in [FileId::Log(3), FileId::Ballast, FileId::Mark, FileId::Run(1)] {
        done(store, StoreOp::Create { file, len: 3 << 20 });
        assert_eq!(len(store, file), Some(3 << 20));
        write(store, file, 1 << 20, b"record");
        assert_eq!(read(store, file, (1 << 20) - 1, 8), b"\0record\0");
        done(store, StoreOp::Create { file, len: 2 << 20 });
        assert_eq!(len(store, file), Some(2 << 20));
        assert!(read(store, file, 0, 2 << 20).iter().all(|&b| b == 0));
    }
}

/// Writes far behind the end leave holes that read as zeros, up to the largest offset.
pub fn holes_are_zeros_even_exabytes_away(store: &dyn Store) {
    let far = (1 << 62) + 4096 * 3;
    write(store, blob(1), far, b"far");
    assert_eq!(len(store, blob(1)), Some(far + 3));
    assert_eq!(read(store, blob(1), far - 2, 10), b"\0\0far");
    assert_eq!(read(store, blob(1), 1 << 44, 5), [0; 5]);
    write(store, blob(1), 100, b"near");
    assert_eq!(read(store, blob(1), 98, 8), b"\0\0near\0\0");
    assert_eq!(len(store, blob(1)), Some(far + 3));
    done(store, StoreOp::Sync { file: blob(1) });
    assert_eq!(run(store, list(FileKind::Blob, None, 10)), Ok(StoreDone::List(vec![blob(1)])));
    done(store, StoreOp::Truncate { file: blob(1), len: (1 << 62) + 5 });
    assert_eq!(read(store, blob(1), 1 << 62, 100), [0; 5]);
    done(store, StoreOp::Truncate { file: blob(1), len: 102 });
    assert_eq!(read(store, blob(1), 98, 100), b"\0\0ne");
    assert_eq!(len(store, blob(1)), Some(102));
    done(store, StoreOp::Delete { file: blob(1) });
    assert_eq!(len(store, blob(1)), None);
    // The last byte of the largest object.
    write(store, blob(2), i64::MAX as u64 - 1, b"!");
    assert_eq!(read(store, blob(2), i64::MAX as u64 - 2, 9), b"\0!");
}

/// A truncate that shrinks and one that grows: the bytes in between are zeros.
pub fn truncate_cuts_and_extends_with_zeros(store: &dyn Store) {
    write(store, blob(1), 0, &[7; 10_000]);
    done(store, StoreOp::Truncate { file: blob(1), len: 5000 });
    done(store, StoreOp::Truncate { file: blob(1), len: 9000 });
    let got = read(store, blob(1), 0, 20_000);
    assert_eq!(got.len(), 9000);
    assert!(got[..5000].iter().all(|&b| b == 7));
    assert!(got[5000..].iter().all(|&b| b == 0));
}

/// Punch zeroes the range within the file; allocate changes neither bytes nor length.
pub fn punch_makes_zeros_and_allocate_keeps_bytes_and_length(store: &dyn Store) {
    write(store, blob(1), 0, &[7; 20_000]);
    done(store, StoreOp::Punch { file: blob(1), offset: 5000, len: 8000 });
    done(store, StoreOp::Punch { file: blob(1), offset: 19_000, len: 8000 });
    done(store, StoreOp::Allocate { file: blob(1), offset: 0, len: 1 << 20 });
    let got = read(store, blob(1), 0, 1 << 21);
    let expected: Vec<u8> =
        (0..20_000).map(|i| if (5000..13_000).contains(&i) || i >= 19_000 { 0 } else { 7 }).collect();
    assert!(got == expected);
    done(store, StoreOp::Allocate { file: blob(2), offset: 4096, len: 4096 });
    assert_eq!((len(store, blob(2)), read(store, blob(2), 0, 100)), (Some(0), vec![]));
}

/// Zero makes zeros and keeps the length, also of a range that lies beyond the end or in no file.
pub fn zero_makes_zeros_and_keeps_the_length(store: &dyn Store) {
    write(store, blob(1), 0, &[7; 20_000]);
    done(store, StoreOp::Zero { file: blob(1), offset: 4096, len: 8192 });
    done(store, StoreOp::Zero { file: blob(1), offset: 16_384, len: 8192 });
    done(store, StoreOp::Zero { file: blob(2), offset: 0, len: 4096 });
    let expected: Vec<u8> =
        (0..20_000).map(|i| if (4096..12_288).contains(&i) || i >= 16_384 { 0 } else { 7 }).collect();
    assert!(read(store, blob(1), 0, 1 << 21) == expected);
    assert_eq!(len(store, blob(2)), None);
}

/// Replace leaves the new bytes only, whatever the length of the old ones.
pub fn replace_is_whole(store: &dyn Store) {
    done(store, StoreOp::Replace { file: FileId::Super, data: Bytes::from_static(b"first and long") });
    assert_eq!(read(store, FileId::Super, 0, 100), b"first and long");
    done(store, StoreOp::Replace { file: FileId::Super, data: Bytes::from_static(b"second") });
    assert_eq!(read(store, FileId::Super, 0, 100), b"second");
    assert_eq!(len(store, FileId::Super), Some(6));
}

fn list(kind: FileKind, after: Option<FileId>, limit: u32) -> StoreOp {
    StoreOp::List { kind, after, limit }
}

/// Pages of a listing continue behind the last entry, in the order of the ids.
pub fn listing_is_in_order_by_pages(store: &dyn Store) {
    let mut expected: BTreeMap<FileId, u64> = BTreeMap::new();
    for n in 0..50u32 {
        write(store, blob(n * 500), 0, &vec![1; n as usize + 1]);
        expected.insert(blob(n * 500), u64::from(n) + 1);
    }
    // A chunk far away is no file of its own.
    write(store, blob(3), 1 << 55, b"x");
    expected.insert(blob(3), (1 << 55) + 1);
    for n in [9, 3, 300, 4] {
        done(store, StoreOp::Create { file: FileId::Log(n), len: n });
        expected.insert(FileId::Log(n), n);
        write(store, FileId::Run(n + 1), 0, b"run");
        expected.insert(FileId::Run(n + 1), 3);
    }
    let mut got = BTreeMap::new();
    for kind in [FileKind::Log, FileKind::Run, FileKind::Blob] {
        let mut after = None;
        loop {
            let Ok(StoreDone::List(page)) = run(store, list(kind, after, 7)) else { panic!("no list") };
            let Some(&last) = page.last() else { break };
            assert!(page.len() <= 7 && page.is_sorted() && after.is_none_or(|a| a < page[0]));
            got.extend(page.into_iter().map(|file| (file, len(store, file).expect("listed"))));
            after = Some(last);
        }
    }
    assert!(got == expected, "listed {got:?}");
}

/// A write of thousands of buffers, empty ones too, and across the files of a large object.
pub fn many_buffers_are_one_write(store: &dyn Store) {
    let data: Vec<Bytes> = (0..3000u32).map(|i| Bytes::from(vec![i as u8; (i % 13) as usize])).collect();
    let flat = data.concat();
    let op = StoreOp::Write { file: blob(1), offset: 10, data: data.clone() };
    assert_eq!(store.execute(op), Ok(StoreDone::Unit));
    assert!(read(store, blob(1), 10, 1 << 20) == flat);
    // Across borders of chunk files, where a store has them.
    let border = (1 << 42) - 5000;
    done(store, StoreOp::Write { file: blob(2), offset: border, data });
    assert!(read(store, blob(2), border, 1 << 20) == flat);
}

/// Checksummed writes pad blocks with zeros, keep their rest and return the sums of the blocks.
pub fn checksummed_writes_pad_keep_and_checksum(store: &dyn Store) {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let file = blob(seed as u32);
        let mut model: Vec<u8> = Vec::new();
        for _ in 0..40 {
            let offset = rng.below(40_000);
            let n = 1 + rng.below(12_000);
            let data: Vec<u8> = (0..n).map(|i| (rng.below(3) * 85 + i % 3) as u8).collect();
            let cut = rng.below(n) as usize;
            let pieces = vec![Bytes::copy_from_slice(&data[..cut]), Bytes::copy_from_slice(&data[cut..])];
            let mut keep = || if rng.below(2) == 0 { Keep::Bytes } else { Keep::Nothing };
            let (keep_head, keep_tail) = (keep(), keep());
            let end = offset + n;
            let size = end + rng.below(8192);
            let op = StoreOp::WriteChecksummed {
                file,
                offset,
                data: pieces,
                keep_head,
                keep_tail,
                size,
                written_to: None,
                to: WriteTo::Cache,
            };
            let Ok(StoreDone::Checksums(sums)) = run(store, op) else { panic!("no sums") };

            let (start, stop) = (offset / 4096 * 4096, end.div_ceil(4096) * 4096);
            if model.len() < stop as usize {
                model.resize(stop as usize, 0);
            }
            if !keep_head.is_any() {
                model[start as usize..offset as usize].fill(0);
            }
            if !keep_tail.is_any() {
                model[end as usize..stop as usize].fill(0);
            }
            model[offset as usize..end as usize].copy_from_slice(&data);
            let expected: Vec<u32> = (start..stop)
                .step_by(4096)
                .map(|at| block_checksum(&model[at as usize..(at + 4096).min(size).max(at) as usize]))
                .collect();
            assert_eq!(sums, expected, "seed {seed}");
            let mut got = read(store, file, 0, 1 << 20);
            assert!(got.len() <= model.len() && got.len() as u64 >= end);
            got.resize(model.len(), 0);
            assert!(got == model, "seed {seed}");
        }
    }
}

/// Writes past the cache beside others of the same file: each reader sees the latest bytes, and so does a sync.
pub fn writes_past_the_cache_are_read_like_others(store: &dyn Store) {
    const SPAN: u64 = 12 << 20;
    let file = blob(11);
    let mut model = vec![0u8; SPAN as usize];
    let mut rng = Rng::new(11);
    let mut end = 0;
    for turn in 0..60u8 {
        // Long ones are aligned, in file and memory, as they come from the network.
        let is_long = rng.below(2) == 0;
        let (offset, len) = match is_long {
            true => (rng.below(9) << 20, (1 + rng.below(3)) << 20),
            false => (rng.below(SPAN - 20_000), 1 + rng.below(20_000)),
        };
        let memory = Bytes::from(vec![turn ^ 0x5a; len as usize + 4096]);
        let start = if is_long { memory.as_ptr().align_offset(4096) } else { 1 };
        let data = vec![memory.slice(start..start + len as usize)];
        end = end.max(offset + len);
        let (keep_head, keep_tail, to) = (Keep::Bytes, Keep::Bytes, WriteTo::PastCache);
        let op = StoreOp::WriteChecksummed {
            file,
            offset,
            data,
            keep_head,
            keep_tail,
            size: end,
            written_to: None,
            to,
        };
        assert!(matches!(run(store, op), Ok(StoreDone::Checksums(_))));
        model[offset as usize..(offset + len) as usize].fill(turn ^ 0x5a);
        let near = offset.saturating_sub(rng.below(9000));
        let wanted = (end.min(offset + len + 9000) - near).min(2 << 20) as u32;
        let got = read(store, file, near, wanted);
        assert!(got == model[near as usize..][..wanted as usize], "turn {turn}");
    }
    let synced = run(store, StoreOp::SyncWritten { file, len: end, aside: false });
    assert_eq!(synced.map(drop), Ok(()));
    assert!(run(store, StoreOp::Refresh { file }).is_ok());
    assert!(read(store, file, 0, end as u32) == model[..end as usize]);
}

/// Bytes that were written are read or reported as missing, never returned as zeros.
pub fn bytes_that_were_written_are_there_or_missed(store: &dyn Store) {
    let file = blob(1);
    let missing = |from, to| Err(StoreError::Missing { file, from, to });
    let read = |offset, len| run(store, StoreOp::ReadWritten { file, offset, len, from: ReadFrom::Cache });
    let checksummed = |offset: u64, written_to| {
        let data = vec![Bytes::from_static(&[9; 100])];
        let keep_head = if offset.is_multiple_of(4096) { Keep::Nothing } else { Keep::Bytes };
        let (keep_tail, size) = (Keep::Nothing, offset + 100);
        let op = StoreOp::WriteChecksummed {
            file,
            offset,
            data,
            keep_head,
            keep_tail,
            size,
            written_to,
            to: WriteTo::Cache,
        };
        run(store, op).map(drop)
    };
    let sync = |len| run(store, StoreOp::SyncWritten { file, len, aside: false }).map(drop);
    // No file at all.
    assert_eq!((read(0, 10), sync(0), sync(1)), (missing(0, 10), Ok(()), missing(0, 1).map(drop)));
    assert_eq!(checksummed(8192, Some(8192)), missing(0, 8192).map(drop));
    assert_eq!(len(store, file), None, "a write that was refused makes nothing");
    // One that is too short.
    write(store, file, 0, &[7; 5000]);
    let sum = block_checksum(&[7; 1000]);
    assert_eq!(read(4000, 1000), Ok(StoreDone::Checksummed(Bytes::from(vec![7; 1000]), vec![sum])));
    assert_eq!(read(4000, 1001), missing(5000, 5001));
    let of_device =
        |len| run(store, StoreOp::ReadWritten { file, offset: 4096, len, from: ReadFrom::PastCache });
    assert_eq!(
        of_device(904),
        Ok(StoreDone::Checksummed(Bytes::from(vec![7; 904]), vec![block_checksum(&[7; 904])]))
    );
    assert_eq!(of_device(905), missing(5000, 5001));
    assert_eq!((sync(5000), sync(5001)), (Ok(()), missing(5000, 5001).map(drop)));
    assert_eq!(checksummed(8192, Some(8192)), missing(5000, 8192).map(drop), "a hole would be left");
    assert_eq!(checksummed(6000, Some(6000)), missing(5000, 6000).map(drop), "bytes to keep are gone");
    assert_eq!(len(store, file), Some(5000));
    // A first write may leave a hole before it; a hole is not the end of the file.
    assert_eq!(checksummed(40_960, Some(5000)), Ok(()));
    assert_eq!((sync(41_060), checksummed(8192, None)), (Ok(()), Ok(())));
    assert_eq!(run(store, StoreOp::SyncAside { file }), Ok(StoreDone::Unit));
    let files = vec![(file, 41_060), (file, 1 << 20), (blob(2), 0), (blob(2), 1)];
    match run(store, StoreOp::SyncMany { files }) {
        Ok(StoreDone::Synced(results)) => {
            let is_missing = |result: &Result<(), StoreError>| match result {
                Err(StoreError::Missing { .. }) => true,
                other => {
                    assert_eq!(other, &Ok(()));
                    false
                }
            };
            assert_eq!(results.iter().map(is_missing).collect::<Vec<_>>(), [false, true, false, true]);
        }
        other => assert_eq!(other, Err(StoreError::Unsupported)),
    }
    // An early write-back changes nothing that can be read, and makes nothing.
    for file in [file, blob(2)] {
        assert_eq!(
            run(store, StoreOp::StartWriteback { file, offset: 0, len: 1 << 20 }),
            Ok(StoreDone::Unit)
        );
    }
    assert_eq!((len(store, file), len(store, blob(2))), (Some(45_056), None));
}

/// A write beside bytes that do not match their checksum is refused; reads return the checksums of their blocks.
pub fn kept_bytes_are_verified_and_reads_carry_checksums(store: &dyn Store) {
    let file = blob(1);
    let old: Vec<u8> = (0..10_000u32).map(|i| (i / 7) as u8).collect();
    write(store, file, 0, &old);
    let blocks: Vec<u32> = old.chunks(4096).map(block_checksum).collect();
    for from in [ReadFrom::Cache, ReadFrom::Device, ReadFrom::PastCache] {
        let op = StoreOp::ReadWritten { file, offset: 4096, len: 10_000 - 4096, from };
        let expected = StoreDone::Checksummed(Bytes::copy_from_slice(&old[4096..]), blocks[1..].to_vec());
        assert_eq!(run(store, op), Ok(expected));
    }
    let verified = |block: usize, wrong: u32| Keep::Verified {
        sum: blocks[block] ^ wrong,
        len: (10_000 - block as u32 * 4096).min(4096),
    };
    let overwrite = |offset: u64, len: usize, keep_head, keep_tail| {
        let data = vec![Bytes::from(vec![0xee; len])];
        let written_to = Some(10_000);
        run(
            store,
            StoreOp::WriteChecksummed {
                file,
                offset,
                data,
                keep_head,
                keep_tail,
                size: 10_000,
                written_to,
                to: WriteTo::Cache,
            },
        )
    };
    // (offset, length, block of the head, block of the tail): inside one block, over two, in the short last one.
    for (offset, len, head, tail) in
        [(5000, 10, 1, 1), (4000, 1000, 0, 1), (9000, 50, 2, 2), (100, 9000, 0, 2)]
    {
        for (wrong_head, wrong_tail, bad) in [(1, 0, head), (0, 1, tail)] {
            let refused = overwrite(offset, len, verified(head, wrong_head), verified(tail, wrong_tail));
            assert_eq!(refused, Err(StoreError::Mismatch { file, offset: bad as u64 * 4096 }));
            assert!(read(store, file, 0, 20_000) == old, "nothing is written beside bytes that are wrong");
        }
        let mut new = old.clone();
        new[offset as usize..offset as usize + len].fill(0xee);
        let sums = new.chunks(4096).map(block_checksum).collect::<Vec<_>>()[head..=tail].to_vec();
        assert_eq!(
            overwrite(offset, len, verified(head, 0), verified(tail, 0)),
            Ok(StoreDone::Checksums(sums))
        );
        assert!(read(store, file, 0, 20_000) == new);
        write(store, file, 0, &old);
    }
}

/// Random operations on several files give the bytes and lengths of a model in memory.
pub fn random_operations_match_a_model(store: &dyn Store) {
    let mut model: BTreeMap<FileId, Vec<u8>> = BTreeMap::new();
    let mut rng = Rng::new(42);
    for step in 0..3000u64 {
        let file = match rng.below(4) {
            0 => FileId::Run(rng.below(3)),
            _ => blob(rng.below(4) as u32),
        };
        let (offset, n) = (rng.below(100_000), rng.below(30_000));
        match rng.below(12) {
            0..=4 => {
                let data = vec![step as u8; n as usize];
                write(store, file, offset, &data);
                if n == 0 {
                    continue;
                }
                let content = model.entry(file).or_default();
                if content.len() < (offset + n) as usize {
                    content.resize((offset + n) as usize, 0);
                }
                content[offset as usize..(offset + n) as usize].copy_from_slice(&data);
            }
            5..=7 => {
                let Some(content) = model.get(&file) else { continue };
                let from = content.len().min(offset as usize);
                let to = content.len().min((offset + n) as usize);
                let got = read(store, file, offset, n as u32);
                let at = got.iter().zip(&content[from..to]).position(|(a, b)| a != b);
                assert!(
                    got == content[from..to],
                    "step {step}: {file:?} at {offset}, {n} bytes: {} and {}, differ at {at:?}",
                    got.len(),
                    to - from
                );
            }
            8 if model.contains_key(&file) => {
                done(store, StoreOp::Truncate { file, len: offset });
                model.entry(file).or_default().resize(offset as usize, 0);
            }
            9 if model.contains_key(&file) => {
                done(store, StoreOp::Punch { file, offset, len: n + 1 });
                let content = model.entry(file).or_default();
                let (from, to) =
                    (content.len().min(offset as usize), content.len().min((offset + n + 1) as usize));
                content[from..to].fill(0);
            }
            10 => done(store, StoreOp::Sync { file }),
            11 if rng.below(3) == 0 => {
                done(store, StoreOp::Delete { file });
                model.remove(&file);
            }
            _ => assert_eq!(len(store, file), model.get(&file).map(|c| c.len() as u64), "step {step}"),
        }
    }
}

/// The three numbers of free space are in order.
pub fn space_is_known(store: &dyn Store) {
    let Ok(StoreDone::Space(space)) = run(store, StoreOp::Space) else { panic!("no reply") };
    assert!(space.bytes_avail <= space.bytes_free);
    assert!(space.bytes_free <= space.bytes_total);
}
