//! Several clients write their own parts of shared objects while the OST is killed and connections break: every
//! client reads what it wrote, nothing is lost, and the rows agree with the bytes.

use crate::support::{Client, Cluster, object};
use nacre_node::Rng;
use nacre_types::*;
use nacre_wire::ost::LockMode;
use std::cell::RefCell;
use std::rc::Rc;

const CLIENTS: u64 = 3;
const OBJECTS: u64 = 2;
/// Not a multiple of a block: neighbours share blocks.
const PART: u64 = 1000;
const PARTS: u64 = 20;
const OBJECT: u64 = PART * PARTS * CLIENTS;

type Bytes = Rc<RefCell<Vec<Vec<u8>>>>;

/// Under a lock, as a client does it: lost locks are taken again.
async fn write_locked(c: &Client, o: ObjectId, cookie: &mut u64, offset: u64, data: &[u8]) {
    loop {
        *cookie += 1;
        let end = offset + data.len() as u64;
        c.lock_again(o, *cookie, LockMode::Pw, Extent::new(offset, end)).await.unwrap();
        let done = c.write_under(o, offset, data, LockCookie(*cookie)).await;
        c.cancel(o, *cookie).await.unwrap();
        match done {
            Ok(_) => return,
            Err(Failure::Outcome(ProtocolOutcome::LockLost)) => {}
            Err(failure) => panic!("{failure}"),
        }
    }
}

async fn exercise(c: Rc<Client>, number: u64, seed: u64, model: Bytes) {
    let mut rng = Rng::new(seed * 100 + number);
    let mut cookie = 0;
    for n in 0..40u64 {
        let which = rng.below(OBJECTS);
        let o = object(1 + which as u32);
        let part = (rng.below(PARTS) * CLIENTS + number) * PART;
        let from = rng.below(PART);
        let len = 1 + rng.below(PART - from);
        let data = vec![(n * CLIENTS + number) as u8 + 1; len as usize];
        let offset = part + from;
        if rng.below(2) == 0 {
            write_locked(&c, o, &mut cookie, offset, &data).await;
        } else {
            c.write(o, offset, &data).await.unwrap();
        }
        let at = offset as usize;
        model.borrow_mut()[which as usize][at..at + data.len()].copy_from_slice(&data);
        let read = c.read(o, part, PART as u32).await.unwrap();
        let expected = model.borrow()[which as usize][part as usize..][..read.len()].to_vec();
        assert_eq!(read, expected, "client {number} does not see its own writes, seed {seed}");
        assert!(read.len() as u64 >= from + len);
    }
}

#[test]
fn every_acknowledged_byte_survives_crashes_of_the_server() {
    for seed in 0..12 {
        let mut c = Cluster::new(300 + seed, CLIENTS as u8);
        let model: Bytes = Rc::new(RefCell::new(vec![vec![0; OBJECT as usize]; OBJECTS as usize]));
        let jobs: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let model = model.clone();
                c.start(number as usize, move |c| exercise(c, number, seed, model))
            })
            .collect();
        for n in 0..15 {
            let pause = 1 + c.world.rng().below(20);
            c.run_ms(pause);
            if n % 3 == 0 {
                c.restart();
            } else {
                let node = c.client_node(n % CLIENTS as usize);
                c.world.cut_some_link(node);
            }
        }
        for job in &jobs {
            c.wait(job);
        }
        for which in 0..OBJECTS as usize {
            let o = object(1 + which as u32);
            let bytes = c.run(0, move |c| async move { c.read(o, 0, 2 * OBJECT as u32).await }).unwrap();
            let expected = &model.borrow()[which][..];
            assert!(bytes == expected[..bytes.len()], "seed {seed}");
            assert!(expected[bytes.len()..].iter().all(|&b| b == 0), "seed {seed}");
        }
        let found = c.check();
        assert_eq!((found.problems, found.sums_differ), (0, 0), "seed {seed}: {found:?}");
        assert_eq!(found.objects, OBJECTS);
        assert!(found.sums > 10);
    }
}

/// The first client writes, the second writes over it and begins its next overwrite, in the middle of which it dies with the
/// OST. The block matches no checksum then, and the replay of the first client must not put its older bytes there.
#[test]
fn a_replay_does_not_cover_a_later_write_whose_next_overwrite_was_cut_off() {
    for instant in 0..60 {
        let mut c = Cluster::new(400 + instant, 2);
        let o = object(1);
        c.run(0, move |c| async move { c.write(o, 0, &[1; 5000]).await }).unwrap();
        c.run(1, move |c| async move { c.write(o, 100, &[2; 6000]).await }).unwrap();
        let _never_ends = c.start(1, move |c| async move { c.write(o, 0, &[3; 6100]).await });
        c.world.run_for(instant * 25_000);
        let gone = c.client_node(1);
        c.world.kill(gone);
        c.restart();
        let bytes = c.run(0, move |c| async move { c.read(o, 0, 10_000).await }).unwrap();
        let is_one_of = |bytes: &[u8], values: [u8; 2]| bytes.iter().all(|byte| values.contains(byte));
        assert_eq!(bytes.len(), 6100, "instant {instant}");
        assert!(is_one_of(&bytes[..100], [1, 3]) && is_one_of(&bytes[100..], [2, 3]), "instant {instant}");
    }
}
