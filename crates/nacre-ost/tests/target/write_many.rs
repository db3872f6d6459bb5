//! Many writes in one request: each has its own result, its own lock and its own space.

use crate::support::*;
use bytes::Bytes;
use nacre_types::*;
use nacre_wire::Status;
use nacre_wire::ost::*;

fn states(results: Result<Vec<ManyResult>, Failure>) -> Vec<Result<u64, Failure>> {
    let state = |result: &ManyResult| result.status.failure().map_or(Ok(result.state.size), Err);
    results.expect("replied").iter().map(state).collect()
}

#[test]
fn many_writes_are_one_transaction_with_a_result_for_each() {
    let mut c = Cluster::new(31, 2);
    c.run(0, |c| async move { c.destroy(object(2)).await }).unwrap();
    let (states, transnos) = c
        .run(0, |c| async move {
            let writes = [
                (object(1), 0, vec![1; 100]),
                (object(1), 200, vec![2; 10]),
                (object(1), 50_000, vec![3; 5000]),
                (object(2), 0, vec![4; 10]),
                (object(3), 7, vec![5; 1]),
            ];
            let before = c.peer.request(&SetOwner { object: object(9), owner: owner() }).send().await?;
            let (request, bulk) = many(&writes);
            let reply = c.peer.request(&request).bulk(bulk).send().await?;
            let transnos = (before.frame.header.transno, reply.frame.header.transno);
            Ok::<_, Failure>((states(Ok(reply.body.results)), transnos))
        })
        .expect("written");
    let gone = Err(Failure::ENOENT);
    assert_eq!(states, [Ok(55_000), Ok(55_000), Ok(55_000), gone, Ok(8)]);
    assert_eq!(transnos.1.0 - transnos.0.0, 1, "one transaction");
    for restart in [false, true] {
        if restart {
            c.restart();
        }
        let bytes = c.run(1, |c| async move {
            Ok::<_, Failure>((c.read(object(1), 0, 60_000).await?, c.read(object(3), 0, 10).await?))
        });
        let mut expected = vec![0; 55_000];
        expected[..100].fill(1);
        expected[200..210].fill(2);
        expected[50_000..].fill(3);
        assert_eq!(bytes, Ok((expected, vec![0, 0, 0, 0, 0, 0, 0, 5])), "restart: {restart}");
    }
    let checked = c.check();
    assert_eq!(checked.problems, 0);
}

#[test]
fn a_request_that_breaks_a_rule_is_refused_and_changes_nothing() {
    let mut c = Cluster::new(32, 1);
    let part = |oid, offset, len| (object(oid), offset, vec![1u8; len]);
    let requests: [(&str, Vec<_>); 7] = [
        ("no write", vec![]),
        ("too many", (0..257).map(|nth| part(1, nth * 10, 1)).collect()),
        ("twice the same", vec![part(1, 0, 5), part(1, 0, 5)]),
        ("an overlap", vec![part(1, 0, 5), part(1, 4, 5)]),
        ("offsets in another order", vec![part(1, 10, 5), part(1, 0, 5)]),
        ("objects in another order", vec![part(2, 0, 5), part(1, 0, 5)]),
        ("an empty write", vec![part(1, 0, 5), part(1, 9, 0)]),
    ];
    for (what, writes) in requests {
        let refused = c.run(0, move |c| async move { c.write_many(&writes).await });
        assert_eq!(refused, Err(Failure::EINVAL), "{what}");
    }
    for (what, bulk) in [("fewer bytes", 9), ("more bytes", 11), ("no bytes", 0)] {
        let refused = c.run(0, move |c| async move {
            let (request, _) = many(&[part(1, 0, 5), part(1, 9, 5)]);
            let bulk = vec![Bytes::from(vec![1; bulk])];
            c.peer.request(&request).bulk(bulk).send().await.map(drop).map_err(Failure::from)
        });
        assert_eq!(refused, Err(Failure::EINVAL), "{what}");
    }
    let much = (0..65).map(|nth| part(1, nth << 16, 1 << 16)).collect::<Vec<_>>();
    let refused = c.run(0, move |c| async move { c.write_many(&much).await });
    assert_eq!(refused, Err(Failure::EINVAL), "more than 4 MiB");
    let far = c.run(0, move |c| async move { c.write_many(&[part(1, i64::MAX as u64, 5)]).await });
    assert_eq!(far, Err(Failure::EFBIG));
    let state = c.run(0, |c| async move { c.glimpse(object(1)).await });
    assert_eq!(state, Ok(ObjectState::default()), "nothing was written");
}

/// One write does not fit: the others are stored, and its reply says so.
#[test]
fn a_write_without_space_does_not_hold_the_others_up() {
    let mut c = Cluster::with_capacity(33, 2, 64 << 20);
    // The other client has granted to it what is free, up to a little.
    c.run(1, |c| async move {
        let mut granted = 0;
        while let Ok(GrantReply { bytes }) = c.peer.call(&Grant { bytes: 1 << 40 }).await
            && bytes > granted + (64 << 10)
        {
            granted = bytes;
        }
    });
    let written = c.run(0, |c| async move {
        let writes =
            [(object(1), 0, vec![1; 4096]), (object(2), 0, vec![2; 2 << 20]), (object(3), 0, vec![3; 4096])];
        c.write_many(&writes).await
    });
    assert_eq!(states(written), [Ok(4096), Err(Failure::ENOSPC), Ok(4096)]);
    let sizes = c.run(0, |c| async move {
        Ok::<_, Failure>((c.read(object(3), 0, 5000).await?, c.glimpse(object(2)).await?.size))
    });
    assert_eq!(sizes, Ok((vec![3; 4096], 0)));
}

/// Each write waits for the locks of others on its own range, and of no other.
#[test]
fn many_writes_wait_for_the_locks_of_others() {
    let mut c = Cluster::new(34, 2);
    c.run(1, |c| async move { c.lock(object(2), 1, LockMode::Pr, Extent::new(100, 200)).await }).unwrap();
    let beside = c.run(0, |c| async move {
        let writes =
            [(object(1), 0, vec![1; 10]), (object(2), 0, vec![1; 100]), (object(2), 200, vec![1; 10])];
        c.write_many(&writes).await
    });
    assert_eq!(states(beside), [Ok(10), Ok(210), Ok(210)]);
    // The second range of the second object waits.
    let pending = c.start(0, |c| async move {
        let parts = [0, 199, 250].map(|at| (object(2), at, vec![2; 10]));
        c.write_many(&[&[(object(1), 0, vec![2; 10])], &parts[..]].concat()).await
    });
    c.run_ms(500);
    // Whoever asks for all of the object meanwhile comes after the writes, and gets their bytes whole.
    let later = c.start(1, |c| async move {
        let state = c.lock(object(2), 2, LockMode::Pw, Extent::ALL).await?;
        let bytes =
            c.peer.request(&Read { object: object(2), laid: 0, offset: 0, len: 300, lock: LockCookie(2) });
        let bytes = bytes.send().await?.frame.bulk.concat();
        c.cancel(object(2), 2).await?;
        Ok::<_, Failure>((state.size, bytes))
    });
    c.run_ms(500);
    let told = c.run(1, |c| async move {
        let told = c.blocking.borrow().contains(&LockCookie(1));
        c.cancel(object(2), 1).await.map(|()| told)
    });
    assert_eq!(told, Ok(true), "the holder is asked to give it back");
    assert_eq!(states(c.wait(&pending)), [Ok(10), Ok(260), Ok(260), Ok(260)]);
    let (size, bytes) = c.wait(&later).expect("locked");
    assert_eq!((size, &bytes[..10], &bytes[250..]), (260, &[2; 10][..], &[2; 10][..]));
}

/// Writes of many clients on the same objects, in requests with one write and with many: no circle, no mixture.
#[test]
fn requests_for_the_same_objects_end() {
    let mut c = Cluster::new(35, 4);
    let pending: Vec<_> = (0..4u8)
        .map(|client| {
            c.start(client.into(), move |c| async move {
                for round in 0..10 {
                    let fill = client * 10 + round;
                    let parts = |oid| [0, 3000, 9000].map(|at| (object(oid), at, vec![fill; 2000]));
                    let writes: Vec<_> = (1..4).flat_map(parts).collect();
                    let results = c.write_many(&writes).await?;
                    assert!(results.iter().all(|result| result.status == Status::Success), "{results:?}");
                    c.write(object(2), 1000, &[fill; 3000]).await?;
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for pending in &pending {
        assert_eq!(c.wait(pending), Ok(()));
    }
    for oid in [1, 3] {
        let bytes = c.run(0, move |c| async move { c.read(object(oid), 0, 20_000).await }).unwrap();
        let of_one = [&bytes[..2000], &bytes[3000..5000], &bytes[9000..]].concat();
        assert!(of_one.iter().all(|&b| b == of_one[0]), "all writes of a request come together");
    }
}
