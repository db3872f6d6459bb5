//! Grants that clients do not need are asked back before a write is refused.

use crate::support::*;
use nacre_types::*;
use nacre_wire::ost::*;
use nacre_wire::target::Statfs;

const MIB: u64 = 1 << 20;

/// A small store whose free space the second client has granted to it, up to a little: how much.
fn granted(seed: u64) -> (Cluster, u64) {
    let mut c = Cluster::with_capacity(seed, 2, 64 << 20);
    let granted = c.run(1, |c| async move {
        let mut granted = 0;
        while let Ok(GrantReply { bytes }) = c.peer.call(&Grant { bytes: 1 << 40 }).await
            && bytes > granted + (64 << 10)
        {
            granted = bytes;
        }
        granted
    });
    assert!(granted > 20 * MIB, "{granted} bytes");
    (c, granted)
}
async fn write_2_mib(c: std::rc::Rc<Client>, oid: u32) -> Result<u64, Failure> {
    c.write(object(oid), 0, &vec![2; 2 << 20]).await.map(|state| state.size)
}

#[test]
fn a_write_gets_the_room_that_another_client_does_not_need() {
    let (mut c, all) = granted(41);
    c.run(1, |c| async move { c.needs.set(Some(MIB)) });
    let written = c.run(0, |c| async move { write_2_mib(c, 1).await });
    assert_eq!(written, Ok(2 * MIB));
    let (recalls, left) = c.run(1, |c| async move {
        let left = c.peer.call(&Grant { bytes: 1 << 30 }).await.map(|reply| reply.bytes);
        (c.recalls.get(), left.expect("it replies"))
    });
    assert_eq!(recalls, 1, "it is asked once");
    assert!(left < all / 2, "{left} of {all} bytes: all of it was given back and a part is granted again");
}

/// What a client needs stays its own, and it is asked again only when it has answered.
#[test]
fn room_that_another_client_needs_is_not_taken() {
    for answers in [true, false] {
        let (mut c, all) = granted(42);
        c.run(1, move |c| async move { c.needs.set(answers.then_some(all)) });
        let took = c.run(0, |c| async move {
            let mut took = Vec::new();
            for oid in 1..=3 {
                let begin = c.ctx.now();
                assert_eq!(write_2_mib(c.clone(), oid).await, Err(Failure::ENOSPC));
                took.push((c.ctx.now() - begin).as_millis());
            }
            took
        });
        let recalls = c.run(1, |c| async move { c.recalls.get() });
        assert_eq!(recalls, if answers { 3 } else { 1 });
        assert_eq!(took[0] >= 500, !answers, "{took:?} ms");
        assert!(took[1..].iter().all(|ms| *ms < 100), "{took:?} ms: nobody is waited for again");
    }
}

/// What `df` shows: the MDT has the space freed before it.
#[test]
fn statfs_after_freeing_does_not_count_what_is_granted_without_need() {
    let (mut c, all) = granted(43);
    c.run(1, |c| async move { c.needs.set(Some(0)) });
    let (before, freed, after) = c.run(0, |c| async move {
        let avail =
            async || c.peer.call(&Statfs {}).await.map(|reply| reply.bytes_avail).expect("it replies");
        let before = avail().await;
        let freed = c.peer.call(&FreeSpace {}).await.map(|reply| reply.freed);
        (before, freed, avail().await)
    });
    assert_eq!(freed, Ok(true));
    assert!(after >= before + all * 9 / 10, "{before}, then {after}; {all} were granted");
}
