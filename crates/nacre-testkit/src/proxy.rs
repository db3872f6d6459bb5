//! A proxy between a client and a server, in user space: delays, drops, doubles and reorders whole frames.
//!
//! There is no netem where the tests run. Each connection is two threads per direction: one reads whole frames, one
//! sends them when they are due, so that a delay does not reduce the rate. A transport promises order or its end; so a
//! frame that is dropped ends its connection, as a lost packet of a broken network does in the end. Doubled and swapped
//! frames test what the protocol promises beyond that.

use nacre_wire::HEADER_BYTES;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Frames on their way in one direction of a connection.
const QUEUE_MAX: usize = 4096;
/// Read at a time.
const READ_BYTES: usize = 64 << 10;
/// A frame that is to be overtaken is late by so much more.
const OVERTAKEN_BY: Duration = Duration::from_millis(10);
/// Where a header says how long body and bulk are.
const BODY_LEN_AT: usize = 20;
const BULK_LEN_AT: usize = 80;

/// Faults of frames; one in so many, 0 = none.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProxyFaults {
    /// Each way.
    pub delay: Duration,
    /// Its connection ends with it.
    pub drop_one_in: u64,
    /// Frames sent twice.
    pub double_one_in: u64,
    /// Those that follow within 10 ms overtake it.
    pub swap_one_in: u64,
    /// Of the random choices.
    pub seed: u64,
}

/// Serves connections to `listener` with connections to `server` until the process ends.
///
/// # Errors
/// When the listener fails.
pub fn run(listener: &TcpListener, server: &str, faults: ProxyFaults) -> std::io::Result<()> {
    for (number, client) in (1..).zip(listener.incoming()) {
        let client = client?;
        let Ok(server) = TcpStream::connect(server) else { continue }; // the client tries again
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        for (at, from, to) in [(0, &client, &server), (1, &server, &client)] {
            let seed = (faults.seed ^ (number * 2 + at)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let (sender, receiver) = sync_channel(QUEUE_MAX);
            let (reads, writes) = (from.try_clone()?, to.try_clone()?);
            thread("proxy read", move || read_frames(reads, &sender, faults, seed))?;
            thread("proxy write", move || write_frames(writes, &receiver))?;
        }
    }
    Ok(())
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(body).map(drop)
}

/// When a frame leaves, its number on the connection, its bytes.
type Due = (Instant, u64, Vec<u8>);

fn read_frames(from: TcpStream, to: &SyncSender<Due>, faults: ProxyFaults, seed: u64) {
    let mut random = seed;
    let mut one_in = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        n > 0 && (random >> 11).is_multiple_of(n)
    };
    let mut number = 0;
    let mut from = BufReader::with_capacity(READ_BYTES, from);
    while let Ok(frame) = read_frame(&mut from) {
        if one_in(faults.drop_one_in) {
            break;
        }
        let double = one_in(faults.double_one_in).then(|| frame.clone());
        let late = if one_in(faults.swap_one_in) { OVERTAKEN_BY } else { Duration::ZERO };
        let due = Instant::now() + faults.delay;
        for (due, frame) in [Some((due + late, frame)), double.map(|copy| (due, copy))].into_iter().flatten()
        {
            number += 1;
            if to.send((due, number, frame)).is_err() {
                break;
            }
        }
    }
    // Both directions end.
    drop(from.get_ref().shutdown(Shutdown::Both));
}

fn read_frame(from: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut frame = vec![0; HEADER_BYTES];
    from.read_exact(&mut frame)?;
    let length = |at: usize| -> usize {
        frame.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes) as usize
    };
    let rest = length(BODY_LEN_AT) + length(BULK_LEN_AT);
    frame.resize(HEADER_BYTES + rest, 0);
    from.read_exact(&mut frame[HEADER_BYTES..])?;
    Ok(frame)
}

/// Sends every frame when it is due; those that are due together go together.
fn write_frames(mut to: TcpStream, from: &Receiver<Due>) {
    let mut waiting: BinaryHeap<Reverse<Due>> = BinaryHeap::new();
    let mut open = true;
    while open || !waiting.is_empty() {
        let next = match waiting.peek() {
            None => from.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(Reverse((due, ..))) => {
                let left = due.saturating_duration_since(Instant::now());
                if !open {
                    std::thread::park_timeout(left); // nothing more comes; what is on its way arrives
                    Err(RecvTimeoutError::Timeout)
                } else if left.is_zero() {
                    Err(RecvTimeoutError::Timeout)
                } else {
                    from.recv_timeout(left)
                }
            }
        };
        match next {
            Ok(frame) => waiting.push(Reverse(frame)),
            Err(RecvTimeoutError::Disconnected) => open = false,
            Err(RecvTimeoutError::Timeout) => {
                let (now, mut bytes) = (Instant::now(), Vec::new());
                while waiting.peek().is_some_and(|Reverse((due, ..))| *due <= now) {
                    bytes.extend(waiting.pop().map(|Reverse((_, _, frame))| frame).unwrap_or_default());
                }
                if to.write_all(&bytes).is_err() {
                    break;
                }
            }
        }
    }
    drop(to.shutdown(Shutdown::Both));
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_wire::{Frame, Header, Kind};

    #[test]
    fn frames_arrive_whole_doubled_and_late() {
        let sum = |_: &[u8]| 7;
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = server.local_addr().expect("bound").to_string();
        let proxy = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = proxy.local_addr().expect("bound");
        let delay = Duration::from_millis(20);
        thread("proxy", move || {
            let faults = ProxyFaults { delay, double_one_in: 1, ..ProxyFaults::default() };
            drop(run(&proxy, &to, faults));
        })
        .expect("a thread");
        let began = Instant::now();
        let mut client = TcpStream::connect(address).expect("the proxy listens");
        let mut frame = Frame::new(Header::new(Kind::Request, 1), vec![1, 2, 3]);
        frame.bulk.push(bytes::Bytes::from_static(b"bulk"));
        let mut bytes = frame.encode_header(0, sum).to_vec();
        bytes.extend_from_slice(b"\x01\x02\x03bulk");
        client.write_all(&bytes).expect("sent");
        let (mut served, _) = server.accept().expect("the proxy connects");
        for _ in 0..2 {
            assert_eq!(read_frame(&mut served).expect("a frame"), bytes);
        }
        assert!(began.elapsed() >= delay);
    }

    #[test]
    fn a_late_frame_is_overtaken_and_not_kept() {
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (mut arrives, _) = listener.accept().expect("connected");
        thread("proxy write", move || write_frames(to, &receiver)).expect("a thread");
        let now = Instant::now();
        for (late, number, byte) in [(OVERTAKEN_BY, 1, b'a'), (Duration::ZERO, 2, b'b')] {
            sender.send((now + late, number, vec![byte])).expect("it receives");
        }
        let mut order = [0; 2];
        arrives.read_exact(&mut order).expect("both arrive");
        assert_eq!(&order, b"ba");
    }
}
