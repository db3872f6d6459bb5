use super::owner::{Lender, SharedMemory};
use super::peer::PeerMemory;
use super::table::{self, PARTS_MAX};
use super::word::Serial;
use super::*;
use bytes::Bytes;
use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::Arc;

/// Both ends of the memory in one process.
struct Bed {
    memory: SharedMemory,
    peer: Arc<PeerMemory>,
}
impl Bed {
    fn new() -> Self {
        let memory = SharedMemory::create().unwrap();
        let peer = PeerMemory::open(&memory.as_fd().try_clone_to_owned().unwrap()).unwrap();
        Self { memory, peer }
    }
    fn lender(&self) -> Lender {
        let (here, _there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        self.memory.lender(&here).unwrap()
    }
    /// A payload behind a head of 80 bytes.
    fn payload(&self, fill: u8) -> Option<Bytes> {
        let mut buffer = self.memory.take(80, 1 << 20)?;
        buffer.space().fill(fill);
        Some(buffer.filled(80 + (1 << 20)).slice(80..))
    }
    fn parts(&self, table: &[u8]) -> Option<Vec<Bytes>> {
        self.peer.parts(table, 16 << 20)
    }
    fn free(&self) -> usize {
        let mut taken = Vec::new();
        while let Some(buffer) = self.memory.take(80, 1 << 20) {
            taken.push(buffer);
        }
        taken.len()
    }
}

#[test]
fn a_part_is_seen_where_it_is_and_its_buffer_is_used_again_when_it_was_returned() {
    let bed = Bed::new();
    let lender = bed.lender();
    let payload = bed.payload(7).unwrap();
    assert_eq!(payload.as_ptr().align_offset(4096), 0);
    let table = lender.lend(&[payload.slice(..4096), payload.slice(4096..)]).unwrap();
    drop(payload);
    let parts = bed.parts(&table).unwrap();
    assert_eq!(parts.iter().map(Bytes::len).collect::<Vec<_>>(), [4096, (1 << 20) - 4096]);
    assert!(parts.iter().all(|part| part.iter().all(|byte| *byte == 7)));
    assert_eq!(bed.free(), BUFFERS - 1);
    let last = parts.last().unwrap().slice(100..101);
    drop(parts);
    assert_eq!(bed.free(), BUFFERS - 1, "a byte is in use");
    drop(last);
    assert_eq!(bed.free(), BUFFERS);
}

#[test]
fn short_bulk_and_many_parts_are_not_lent() {
    let bed = Bed::new();
    let lender = bed.lender();
    let payload = bed.payload(1).unwrap();
    assert!(lender.lend(&[payload.slice(..LEND_MIN_BYTES - 1)]).is_none());
    assert!(lender.lend(&vec![payload.slice(..4096); PARTS_MAX + 1]).is_none());
    assert!(lender.lend(&[payload]).is_some());
    assert!(bed.memory.take(FRONT_BYTES + 1, 1).is_none() && bed.memory.take(1, (1 << 20) + 1).is_none());
}

#[test]
fn parts_that_a_device_would_refuse_are_copied() {
    let bed = Bed::new();
    let lender = bed.lender();
    let long = bed.payload(1).unwrap();
    let tail = bed.payload(4).unwrap().slice(..100);
    let elsewhere = Bytes::from(vec![3; 3 << 20]);
    for bulk in [
        vec![long.clone(), tail.clone()],
        vec![tail.clone(), long.clone()],
        vec![long.slice(1..)],
        vec![long.slice(..(1 << 20) - 32), Bytes::from(vec![2; 32]), Bytes::new(), long.clone()],
        vec![elsewhere],
    ] {
        let table = lender.lend(&bulk).unwrap();
        let parts = bed.parts(&table).unwrap();
        assert!(parts.concat() == bulk.concat());
        assert!(parts.iter().all(|part| part.as_ptr().align_offset(ALIGN) == 0));
        let (_, front) = parts.split_last().unwrap();
        assert!(front.iter().all(|part| part.len().is_multiple_of(ALIGN)));
    }
    drop((long, tail));
    assert_eq!(bed.free(), BUFFERS);
}

#[test]
fn the_end_of_a_connection_revokes_what_the_peer_has_not_taken_and_nothing_else() {
    let bed = Bed::new();
    let (broken, other) = (bed.lender(), bed.lender());
    let taken = broken.lend(&[bed.payload(1).unwrap()]).unwrap();
    let parts = bed.parts(&taken).unwrap();
    let lost = broken.lend(&[bed.payload(2).unwrap()]).unwrap();
    let kept = other.lend(&[bed.payload(3).unwrap()]).unwrap();
    drop(broken);
    assert_eq!(bed.free(), BUFFERS - 2);
    assert!(parts.iter().flatten().all(|byte| *byte == 1));
    assert!(bed.parts(&lost).is_none(), "a revoked loan");
    // The word of the revoked loan serves another one now.
    let next = other.lend(&[bed.payload(4).unwrap()]).unwrap();
    assert_eq!(next[..4], lost[..4]);
    assert!(bed.parts(&lost).is_none(), "a revoked loan whose word is in use again");
    for (table, fill) in [(kept, 3), (next, 4)] {
        assert!(bed.parts(&table).unwrap().iter().flatten().all(|byte| *byte == fill));
    }
    drop(parts);
    assert_eq!(bed.free(), BUFFERS);
}

/// A process that was killed returns nothing.
#[test]
fn the_end_of_a_process_ends_its_loans() {
    let bed = Bed::new();
    // Its loan is taken here, in its stead.
    let mut other = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let lender = bed.memory.lender_to(rustix::process::Pid::from_child(&other)).unwrap();
    let table = lender.lend(&[bed.payload(1).unwrap()]).unwrap();
    let parts = bed.parts(&table).unwrap();
    drop(lender);
    bed.memory.is_idle_for(IDLE);
    bed.memory.look_for_returns();
    assert_eq!(bed.free(), BUFFERS - 1, "it runs");
    other.kill().unwrap();
    other.wait().unwrap();
    bed.memory.look_for_returns();
    assert_eq!(bed.memory.loans(), 1, "buffers are in use at this time");
    bed.memory.is_idle_for(IDLE);
    bed.memory.look_for_returns();
    assert_eq!((bed.memory.loans(), bed.free()), (0, BUFFERS));
    drop(parts);
}

#[test]
fn tables_that_name_what_is_not_there_are_refused() {
    let bed = Bed::new();
    let lender = bed.lender();
    let good = lender.lend(&[bed.payload(1).unwrap()]).unwrap();
    let (loan, serial, parts) = table::decode(&good).unwrap();
    let end = (WORDS_BYTES + BUFFERS * BUFFER_BYTES) as u32;
    let with = |loan, parts: &[(u32, u32)]| table::encode(&(loan, serial, parts.to_vec()));
    assert!(bed.peer.parts(&good, (1 << 20) - 1).is_none(), "more than the limit");
    for table in [
        Vec::new(),
        good[..15].to_vec(),
        with(loan, &[]),
        with(loan, &vec![(4096, 1); PARTS_MAX + 1]),
        with(LOANS_MAX as u32, &parts),
        with(u32::MAX, &parts),
        table::encode(&(loan, serial.next(), parts.clone())),
    ] {
        assert!(bed.parts(&table).is_none(), "{table:?}");
    }
    for part in [(0, 4096), (4095, 1), (end - 1, 2), (end, 1), (u32::MAX, 1), (u32::MAX, u32::MAX)] {
        let table = lender.lend(&[bed.payload(1).unwrap()]).unwrap();
        let (loan, serial, _) = table::decode(&table).unwrap();
        assert!(bed.parts(&table::encode(&(loan, serial, vec![part]))).is_none(), "{part:?}");
    }
    assert!(bed.parts(&good).is_some() && bed.parts(&good).is_none(), "it is taken once");
    drop(lender); // and the loans that were refused before they were taken
    assert_eq!(bed.free(), BUFFERS);
}

#[test]
fn serial_numbers_are_never_zero() {
    assert_eq!(Serial::from_number(0), None);
    let last = Serial::from_number((1 << 30) - 1).unwrap();
    assert_eq!((last.next(), Serial::from_number(1 << 30)), (Serial::first(), None));
}

#[test]
fn memory_that_may_shrink_or_is_no_memory_is_refused() {
    let open = |bytes: u64, seals: SealFlags| {
        let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        PeerMemory::open(&file)
    };
    assert!(open(1 << 20, SEALS).is_ok());
    assert!(open(1 << 20, SealFlags::GROW).is_err());
    assert!(open(WORDS_BYTES as u64, SEALS).is_err());
    assert!(open(2 << 30, SEALS).is_err());
    let file = rustix::fs::open(c"/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    assert!(PeerMemory::open(&file).is_err());
}

#[test]
fn buffers_that_were_not_needed_for_a_while_give_their_memory_back() {
    let bed = Bed::new();
    let in_memory = || rustix::fs::fstat(bed.memory.as_fd()).unwrap().st_blocks as usize * 512;
    let all: Vec<_> = (0..FREE_MAX + 2 * TRIM_MAX).map_while(|_| bed.payload(1)).collect();
    drop(all);
    bed.memory.look_for_returns();
    assert!(in_memory() >= (FREE_MAX + 2 * TRIM_MAX) << 20, "they may be needed again");
    bed.memory.is_idle_for(IDLE);
    bed.memory.look_for_returns();
    assert!(in_memory() >= (FREE_MAX + TRIM_MAX) << 20, "not all at once");
    bed.memory.look_for_returns();
    bed.memory.look_for_returns();
    assert!(in_memory() <= WORDS_BYTES + FREE_MAX * BUFFER_BYTES, "{} bytes", in_memory());
    assert_eq!(bed.free(), BUFFERS);
}
