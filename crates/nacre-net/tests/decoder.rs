//! The decoder against every way of cutting, damaging and inventing a stream.

#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use nacre_net::{BulkBuffers, Decoder, Limits, Sent, Writer};
use nacre_types::{Tag, Xid};
use nacre_wire::{Frame, FrameError, HEADER_BYTES, Header, Kind};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// A frame's bytes as the writer sends them.
fn encode(frames: &[Frame], sums: bool) -> Vec<u8> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut writer = Writer::new(sums);
    for frame in frames {
        writer.push(frame.clone());
    }
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut bytes = Vec::new();
            theirs.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut calls = 0;
        while writer.send(&ours, &mut calls).unwrap() == Sent::Blocked {
            std::thread::yield_now();
        }
        assert!(writer.is_empty());
        drop(ours);
        reader.join().unwrap()
    })
}

fn decode(pieces: &[&[u8]], limits: Limits) -> (Vec<Frame>, Option<FrameError>, u64) {
    let mut decoder = Decoder::new(limits, BulkBuffers::default());
    let mut frames = Vec::new();
    for piece in pieces {
        if let Err(error) = decoder.feed(piece, &mut |f| frames.push(f)) {
            assert_eq!(decoder.feed(b"more", &mut |_| panic!("a frame after an error")), Err(error));
            return (frames, Some(error), decoder.reserved_bytes());
        }
    }
    (frames, None, decoder.reserved_bytes())
}

fn joined(frame: &Frame) -> (Header, Bytes, Vec<u8>) {
    (frame.header.clone(), frame.body.clone(), frame.bulk.concat())
}

fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let frame = (any::<u64>(), any::<u16>(), 0usize..3000, 0usize..40_000, any::<u8>()).prop_map(
        |(xid, tag, body, bulk, fill)| {
            let mut header = Header::new(Kind::Request, 3);
            header.xid = Xid(xid);
            header.tag = Tag(tag);
            let mut frame = Frame::new(header, vec![fill; body]);
            let bulk = Bytes::from(vec![fill ^ 0xff; bulk]);
            frame.bulk = vec![bulk.slice(..bulk.len() / 3), bulk.slice(bulk.len() / 3..)];
            frame
        },
    );
    prop::collection::vec(frame, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_come_back_however_the_stream_is_cut(
        frames in frames(), sums in any::<bool>(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)
    ) {
        let bytes = encode(&frames, sums);
        let mut at: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len())).collect();
        at.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in at.into_iter().chain([bytes.len()]) {
            pieces.push(&bytes[from..cut]);
            from = cut;
        }
        let (got, error, _) = decode(&pieces, Limits::default());
        prop_assert_eq!(error, None);
        let (got, sent): (Vec<_>, Vec<_>) = (got.iter().map(joined).collect(), frames.iter().map(joined).collect());
        prop_assert!(got == sent);
    }

    #[test]
    fn a_truncated_stream_gives_the_whole_frames_and_no_other(
        frames in frames(), cut in any::<prop::sample::Index>()
    ) {
        let bytes = encode(&frames, true);
        let (got, error, _) = decode(&[&bytes[..cut.index(bytes.len())]], Limits::default());
        prop_assert_eq!(error, None);
        prop_assert!(got.len() < frames.len());
        for (got, sent) in got.iter().zip(&frames) {
            prop_assert!(joined(got) == joined(sent));
        }
    }

    #[test]
    fn a_damaged_byte_never_gives_another_frame(
        frames in frames(), at in any::<prop::sample::Index>(), flip in 1u8..
    ) {
        let mut bytes = encode(&frames, true);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let (got, error, _) = decode(&[&bytes], Limits::default());
        prop_assert!(error.is_some(), "byte {}", at);
        for (got, sent) in got.iter().zip(&frames) {
            prop_assert!(joined(got) == joined(sent));
        }
    }

    #[test]
    fn garbage_is_refused_and_reserves_nothing(bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES..4000)) {
        let (got, error, reserved) = decode(&[&bytes], Limits::default());
        prop_assert!(error.is_some());
        prop_assert!(got.is_empty());
        prop_assert_eq!(reserved, 0);
    }
}

/// A header that announces more than comes.
fn announce(body: usize, bulk: usize) -> Vec<u8> {
    let mut frame = Frame::new(Header::new(Kind::Request, 3), vec![0; body]);
    frame.bulk = vec![Bytes::from(vec![0; bulk])];
    frame.encode_header(0, crc_fast::crc32_iscsi).to_vec()
}

#[test]
fn a_hostile_length_reserves_no_more_than_it_sends() {
    const STEP: u64 = 256 << 10;
    let mut bytes = announce(2 << 20, 16 << 20);
    let (_, error, reserved) = decode(&[&bytes], Limits::default());
    assert_eq!(error, None);
    assert!(reserved <= STEP, "{reserved} for a header");
    bytes.resize(HEADER_BYTES + (3 << 20), 0);
    let (_, _, reserved) = decode(&[&bytes], Limits::default());
    assert!(reserved <= 2 * (3 << 20) + STEP, "{reserved} for 3 MiB");
}

#[test]
fn lengths_over_the_limit_are_refused_by_name() {
    for (body, bulk, what) in [((2 << 20) + 1, 0, "body"), (0, (16 << 20) + 1, "bulk")] {
        let (_, error, reserved) = decode(&[&announce(body, bulk)], Limits::default());
        assert!(matches!(error, Some(FrameError::TooLarge { what: w, .. }) if w == what), "{error:?}");
        assert_eq!(reserved, 0);
    }
    let (_, error, _) = decode(&[&announce(2000, 0)], Limits::hello());
    assert!(matches!(error, Some(FrameError::TooLarge { what: "body", bytes: 2000, limit: 1024 })));
}

#[test]
fn a_large_bulk_is_read_into_its_own_buffers_and_the_next_frame_is_not_swallowed() {
    let mut big = Frame::new(Header::new(Kind::Reply, 3), b"body".to_vec());
    big.bulk = vec![Bytes::from((0..3_000_000u32).map(|n| n as u8).collect::<Vec<_>>())];
    let small = Frame::new(Header::new(Kind::Reply, 4), b"next".to_vec());
    let bytes = encode(&[big.clone(), small.clone()], true);
    let (theirs, ours) = UnixStream::pair().unwrap();
    let mut decoder = Decoder::new(Limits::default(), BulkBuffers::default());
    let mut scratch = nacre_net::Scratch::default();
    let mut got = Vec::new();
    let mut direct = 0;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut theirs = theirs;
            theirs.write_all(&bytes).unwrap();
        });
        while got.len() < 2 {
            direct += u32::from(decoder.direct().is_some());
            nacre_net::receive(&ours, &mut decoder, &mut scratch, &mut |f| got.push(f)).unwrap();
        }
    });
    assert!(joined(&got[0]) == joined(&big) && joined(&got[1]) == joined(&small));
    assert!(direct > 3, "most of it without a copy");
    assert!(decoder.is_between_frames());
}
