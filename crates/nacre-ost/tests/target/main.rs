//! An OST as its clients see it: locks, appends, truncates, destroys, restarts, resends.

#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

mod crashes;
mod recall;
mod resend;
mod support;
mod write_many;

use nacre_types::*;
use nacre_wire::ost::*;
use nacre_wire::target::{GetParams, SetParam, Statfs};
use support::*;

#[test]
fn an_object_comes_into_being_at_its_first_write() {
    let mut c = Cluster::new(1, 1);
    let o = object(1);
    let nothing = c.run(0, move |c| async move { (c.glimpse(o).await, c.read(o, 0, 100).await) });
    assert_eq!(nothing, (Ok(ObjectState::default()), Ok(vec![])));
    let state = c.run(0, move |c| async move { c.write(o, 3, b"hello").await }).unwrap();
    assert_eq!((state.size, state.mtime), (8, at(1)));
    assert!(state.blocks >= 8);
    let bytes = c.run(0, move |c| async move { c.read(o, 0, 100).await }).unwrap();
    assert_eq!(bytes, b"\0\0\0hello");
    let found = c.check();
    assert_eq!((found.objects, found.problems), (1, 0), "{found:?}");
}

#[test]
fn bytes_beyond_sixteen_tib_are_kept_and_holes_are_zeros() {
    let mut c = Cluster::new(2, 1);
    let (o, far) = (object(1), (16u64 << 40) + 12_345);
    c.run(0, move |c| async move {
        c.write(o, 0, b"near").await.unwrap();
        let state = c.write(o, far, b"far away").await.unwrap();
        assert_eq!(state.size, far + 8);
        assert!(state.blocks < 100, "{state:?}");
        assert_eq!(c.read(o, far - 4, 100).await.unwrap(), b"\0\0\0\0far away");
        assert_eq!(c.read(o, 1 << 40, 8).await.unwrap(), [0; 8]);
        assert_eq!(c.read(o, 0, 6).await.unwrap(), b"near\0\0");
        assert_eq!(c.write(o, i64::MAX as u64, b"x").await, Err(Failure::EFBIG));
    });
    let found = c.check();
    assert_eq!((found.problems, found.sums_differ), (0, 0), "{found:?}");
}

#[test]
fn appends_of_two_clients_never_interleave() {
    for seed in 0..8 {
        let mut c = Cluster::new(seed, 2);
        let o = object(1);
        let append = |number: u8| {
            move |c: std::rc::Rc<Client>| async move {
                for n in 0..12u64 {
                    let cookie = n + 1;
                    let state = c.lock(o, cookie, LockMode::Pw, Extent::ALL).await.unwrap();
                    let record = [number; 700];
                    c.write_under(o, state.size, &record, LockCookie(cookie)).await.unwrap();
                    c.cancel(o, cookie).await.unwrap();
                }
            }
        };
        let (a, b) = (c.start(0, append(1)), c.start(1, append(2)));
        c.wait(&a);
        c.wait(&b);
        let bytes = c.run(0, move |c| async move { c.read(o, 0, 1 << 20).await }).unwrap();
        assert_eq!(bytes.len(), 24 * 700, "an append was overwritten, seed {seed}");
        for record in bytes.chunks(700) {
            assert!(record.iter().all(|&b| b == record[0]), "two appends are mixed, seed {seed}");
        }
        assert_eq!(bytes.iter().filter(|&&b| b == 1).count(), 12 * 700);
        let found = c.check();
        assert_eq!((found.problems, found.sums_differ), (0, 0), "seed {seed}: {found:?}");
    }
}

#[test]
fn a_write_without_a_lock_waits_for_the_locks_of_others() {
    let mut c = Cluster::new(3, 2);
    let o = object(1);
    c.run(0, move |c| async move { c.lock(o, 1, LockMode::Pw, Extent::new(0, 100)).await.unwrap() });
    let (inside, beside) = (
        c.start(1, move |c| async move { c.write(o, 50, b"b").await }),
        c.start(1, move |c| async move { c.write(o, 5000, b"b").await }),
    );
    c.wait(&beside).unwrap();
    c.run_ms(500);
    assert!(inside.borrow().is_none(), "written under another client's lock");
    let told = c.run(0, |c| async move { c.blocking.borrow().clone() });
    assert!(told.contains(&LockCookie(1)), "the holder was not told");
    c.run(0, move |c| async move {
        c.write_under(o, 50, b"a", LockCookie(1)).await.unwrap();
        c.cancel(o, 1).await.unwrap();
    });
    c.wait(&inside).unwrap();
    let byte = c.run(0, move |c| async move { c.read(o, 50, 1).await }).unwrap();
    assert_eq!(byte, b"b");
}

#[test]
fn what_was_written_under_a_lock_is_durable_soon_after_its_cancel_where_that_is_set() {
    for (set, durable) in [("0", false), ("1", true)] {
        let mut c = Cluster::new(5, 1);
        let o = object(1);
        let before = c.run(0, move |c| async move {
            let set = SetParam { name: "obdfilter.*.sync_on_cancel".into(), value: set.into() };
            let reply = c.peer.call(&set).await.unwrap();
            assert_eq!((reply.matched, reply.refused.as_str()), (1, ""));
            c.lock(o, 1, LockMode::Pw, Extent::ALL).await.unwrap();
            c.write_under(o, 0, b"x", LockCookie(1)).await.unwrap();
            c.cancel(o, 1).await.unwrap();
            c.peer.last_committed()
        });
        c.run_ms(50);
        let after = c.run(0, move |c| async move {
            c.glimpse(o).await.unwrap();
            c.peer.last_committed()
        });
        assert_eq!(after > before, durable, "sync_on_cancel={set}: {before}, {after}");
    }
}

#[test]
fn a_lock_that_does_not_cover_or_is_not_held_is_refused() {
    let mut c = Cluster::new(4, 2);
    let o = object(1);
    c.run(0, move |c| async move {
        c.lock(o, 1, LockMode::Pr, Extent::new(0, 100)).await.unwrap();
        assert_eq!(c.write_under(o, 0, b"x", LockCookie(1)).await, Err(Failure::EPROTO), "PR is not PW");
        c.lock(o, 2, LockMode::Pw, Extent::new(200, 300)).await.unwrap();
        assert_eq!(c.write_under(o, 290, &[0; 20], LockCookie(2)).await, Err(Failure::EPROTO), "beyond");
        assert_eq!(
            c.write_under(object(2), 200, b"x", LockCookie(2)).await,
            Err(Failure::EPROTO),
            "other object"
        );
        assert_eq!(
            c.write_under(o, 200, b"x", LockCookie(9)).await,
            Err(ProtocolOutcome::LockLost.into()),
            "never granted"
        );
        c.write_under(o, 200, b"x", LockCookie(2)).await.unwrap();
        let again = Enqueue {
            object: o,
            laid: 0,
            cookie: LockCookie(2),
            mode: LockMode::Pw,
            extent: Extent::ALL,
            persistent: false,
        };
        assert_eq!(c.peer.call(&again).await.map_err(Failure::from), Err(Failure::EPROTO), "cookie in use");
        let empty = Enqueue { extent: Extent::new(5, 5), cookie: LockCookie(7), ..again };
        assert_eq!(c.peer.call(&empty).await.map_err(Failure::from), Err(Failure::EINVAL));
    });
    let stolen = c.run(1, move |c| async move { c.write_under(o, 200, b"y", LockCookie(2)).await });
    assert_eq!(stolen, Err(ProtocolOutcome::LockLost.into()), "cookies belong to their client");
}

#[test]
fn truncate_and_write_of_two_clients_leave_one_of_the_two_results() {
    for seed in 0..12 {
        let mut c = Cluster::new(100 + seed, 2);
        let o = object(1);
        c.run(0, move |c| async move { c.write(o, 0, &[1; 20_000]).await.unwrap() });
        let cut = c.start(0, move |c| async move { c.truncate(o, 5000).await });
        let write = c.start(1, move |c| async move { c.write(o, 4000, &[2; 9000]).await });
        let (cut, write) = (c.wait(&cut).unwrap(), c.wait(&write).unwrap());
        let bytes = c.run(0, move |c| async move { c.read(o, 0, 100_000).await }).unwrap();
        let write_last = bytes.len() == 13_000;
        let written_end = if write_last { 13_000 } else { 5000 };
        assert_eq!(bytes.len(), written_end, "seed {seed}");
        assert!(
            bytes[..4000].iter().all(|&b| b == 1) && bytes[4000..].iter().all(|&b| b == 2),
            "seed {seed}"
        );
        assert_eq!((cut.size, write.size), if write_last { (5000, 13_000) } else { (5000, 20_000) });
        let found = c.check();
        assert_eq!((found.problems, found.sums_differ), (0, 0), "seed {seed}: {found:?}");
    }
}

#[test]
fn a_grown_object_reads_zeros_where_it_was_cut() {
    let mut c = Cluster::new(5, 1);
    let o = object(1);
    c.run(0, move |c| async move {
        c.write(o, 0, &[7; 10_000]).await.unwrap();
        c.truncate(o, 4100).await.unwrap();
        c.truncate(o, 9000).await.unwrap();
        let bytes = c.read(o, 0, 20_000).await.unwrap();
        assert_eq!(bytes.len(), 9000);
        assert!(bytes[..4100].iter().all(|&b| b == 7) && bytes[4100..].iter().all(|&b| b == 0));
        assert_eq!(c.glimpse(o).await.unwrap().mtime, at(2));
        c.write(o, 0, b"late").await.unwrap();
        assert_eq!(c.glimpse(o).await.unwrap().mtime, at(2), "an older write does not move mtime back");
    });
}

#[test]
fn late_changes_of_a_destroyed_object_are_refused_also_after_a_restart() {
    let mut c = Cluster::new(6, 2);
    let o = object(1);
    c.run(0, move |c| async move {
        c.write(o, 0, &[1; 8192]).await.unwrap();
        c.destroy(o).await.unwrap();
        c.destroy(o).await.unwrap();
        c.destroy(object(2)).await.unwrap();
    });
    for _ in 0..2 {
        c.run(1, move |c| async move {
            assert_eq!(c.write(o, 0, b"late").await, Err(Failure::ENOENT));
            assert_eq!(c.truncate(o, 1).await, Err(Failure::ENOENT));
            assert_eq!(c.write(object(2), 0, b"late").await, Err(Failure::ENOENT));
            assert_eq!(c.glimpse(o).await, Ok(ObjectState::default()));
        });
        c.restart();
    }
    // Two leases later nobody can be that late: the tombstones are gone.
    c.run_ms(u64::from(LEASE_MS) * 2 + 1000);
    let found = c.check();
    assert_eq!((found.tombstones, found.objects, found.problems), (0, 0, 0), "{found:?}");
}

#[test]
fn a_restart_keeps_objects_and_loses_locks() {
    let mut c = Cluster::new(7, 2);
    let o = object(1);
    c.run(0, move |c| async move {
        c.write(o, 10, b"kept").await.unwrap();
        c.lock(o, 5, LockMode::Pw, Extent::ALL).await.unwrap();
    });
    c.restart();
    c.run(0, move |c| async move {
        assert_eq!(c.write_under(o, 0, b"x", LockCookie(5)).await, Err(ProtocolOutcome::LockLost.into()));
        assert_eq!(c.read(o, 10, 10).await.unwrap(), b"kept");
    });
    let other = c.run(1, move |c| async move { c.write(o, 0, b"other").await });
    assert_eq!(other.unwrap().size, 14);
    let found = c.check();
    assert_eq!((found.problems, found.sums_differ), (0, 0), "{found:?}");
}

#[test]
fn the_locks_of_a_dead_client_go_with_its_lease() {
    let mut c = Cluster::new(8, 2);
    let o = object(1);
    c.run(0, move |c| async move { c.lock(o, 5, LockMode::Pw, Extent::ALL).await.unwrap() });
    let dead = c.client_node(0);
    c.world.kill(dead);
    let before = c.world.now_ns();
    c.run(1, move |c| async move { c.write(o, 0, b"mine").await }).unwrap();
    let waited_ms = (c.world.now_ns() - before) / 1_000_000;
    assert!((5_000..30_000).contains(&waited_ms), "waited {waited_ms} ms for a lease of {LEASE_MS} ms");
}

#[test]
fn a_waiting_lock_can_be_withdrawn() {
    let mut c = Cluster::new(9, 3);
    let o = object(1);
    c.run(0, move |c| async move { c.lock(o, 1, LockMode::Pw, Extent::ALL).await.unwrap() });
    let waits = c.run(1, move |c| async move {
        c.peer
            .call(&Enqueue {
                object: o,
                laid: 0,
                cookie: LockCookie(1),
                mode: LockMode::Pw,
                extent: Extent::ALL,
                persistent: false,
            })
            .await
    });
    assert!(!waits.unwrap().granted);
    let third = c.start(2, move |c| async move { c.lock(o, 1, LockMode::Pr, Extent::ALL).await });
    c.run_ms(100);
    assert!(third.borrow().is_none());
    c.run(1, move |c| async move { c.cancel(o, 1).await.unwrap() });
    c.run(0, move |c| async move { c.cancel(o, 1).await.unwrap() });
    c.wait(&third).unwrap();
}

#[test]
fn connections_that_break_lose_and_repeat_no_write() {
    for seed in 0..20 {
        let mut c = Cluster::new(200 + seed, 1);
        let o = object(1);
        let writes = c.start(0, move |c| async move {
            for n in 0..30u64 {
                let state = c.write(o, n * 100, &[n as u8 + 1; 100]).await.unwrap();
                assert_eq!(state.size, (n + 1) * 100);
            }
        });
        for _ in 0..12 {
            c.run_ms(2);
            let node = c.client_node(0);
            c.world.cut_some_link(node);
            if seed % 4 == 0 {
                c.restart();
            }
        }
        c.wait(&writes);
        let bytes = c.run(0, move |c| async move { c.read(o, 0, 10_000).await }).unwrap();
        let expected: Vec<u8> = (0..30u8).flat_map(|n| [n + 1; 100]).collect();
        assert_eq!(bytes, expected, "seed {seed}");
        let found = c.check();
        assert_eq!((found.problems, found.sums_differ), (0, 0), "seed {seed}: {found:?}");
    }
}

/// As after many kills of the MDT, which forgets each time what it has reserved.
#[test]
fn reservations_that_nobody_uses_hide_little_free_space() {
    let mut c = Cluster::with_capacity(10, 1, 16 << 30);
    let avail =
        |c: &mut Cluster| c.run(0, |c| async move { c.peer.call(&Statfs {}).await }).unwrap().bytes_avail;
    let before = avail(&mut c);
    for _ in 0..40 {
        let granted = c.run(0, |c| async move { c.peer.call(&Reserve { objects: 8192 }).await }).unwrap();
        assert_eq!(granted.objects, 8192);
    }
    assert!(before - avail(&mut c) <= 130 << 20, "{} MiB hidden", (before - avail(&mut c)) >> 20);
}

#[test]
fn reservations_are_kept_and_a_full_target_says_so() {
    let mut c = Cluster::with_capacity(10, 1, 64 << 20);
    let granted = c.run(0, |c| async move { c.peer.call(&Reserve { objects: 100 }).await }).unwrap();
    assert_eq!(granted.objects, 100);
    let o = object(1);
    let full = c.run(0, move |c| async move {
        for n in 0..200u64 {
            if let Err(errno) = c.write(o, n << 20, &vec![3; 1 << 20]).await {
                return (errno, c.glimpse(o).await.unwrap().size);
            }
        }
        panic!("a store of 64 MiB took 200 MiB")
    });
    assert_eq!(full.0, Failure::ENOSPC);
    assert!(full.1 > 20 << 20, "{full:?}");
    let none = c.run(0, |c| async move { c.peer.call(&Reserve { objects: 1 << 30 }).await });
    assert!(none.is_err() || none.unwrap().objects < 1000);
    // What was promised can still be made, and everything can be removed.
    c.run(0, move |c| async move {
        for n in 0..100 {
            c.write(object(100 + n), 0, b"promised").await.unwrap();
        }
        c.destroy(o).await.unwrap();
    });
    c.run_ms(3000);
    let space = c.run(0, |c| async move { c.peer.call(&Statfs {}).await }).unwrap();
    assert!(space.bytes_avail > 20 << 20, "{space:?}");
    assert_eq!(space.files_used, 100);
    c.restart();
    c.run(0, |c| async move { c.write(object(500), 0, b"x").await }).unwrap();
    let found = c.check();
    assert_eq!((found.objects, found.problems), (101, 0), "{found:?}");
}

/// The client need not ask for it: an OST frees space that a change of its own has released, and a write waits for that.
#[test]
fn a_write_finds_the_space_that_was_released_on_a_full_target_just_before() {
    for is_destroy in [false, true] {
        let mut c = Cluster::with_capacity(14, 1, 64 << 20);
        let (grows, full) = (object(1), object(2));
        let written = c.run(0, move |c| async move {
            let piece = vec![3; 1 << 20];
            c.write(grows, 0, &piece).await?;
            let mut n = 0;
            while n < 64 && c.write(full, n << 20, &piece).await.is_ok() {
                n += 1;
            }
            let refused = c.write(grows, 1 << 20, &piece).await;
            match is_destroy {
                true => c.destroy(full).await?,
                false => c.truncate(full, 0).await.map(drop)?,
            }
            for n in 1..8 {
                c.write(grows, n << 20, &piece).await?;
            }
            Ok::<_, Failure>((n > 20, refused))
        });
        assert_eq!(written, Ok((true, Err(Failure::ENOSPC))), "destroyed: {is_destroy}");
    }
}

#[test]
fn promises_to_an_mdt_that_died_again_and_again_do_not_fill_the_target() {
    let mut c = Cluster::with_capacity(13, 1, 256 << 20);
    for _ in 0..30 {
        let granted = c.run(0, |c| async move { c.peer.call(&Reserve { objects: 8192 }).await }).unwrap();
        assert!(granted.objects > 500, "{granted:?}");
    }
    let written = c.run(0, |c| async move {
        for n in 0..200u64 {
            c.write(object(1), n << 20, &vec![3; 1 << 20]).await?;
        }
        Ok::<(), Failure>(())
    });
    assert_eq!(written, Ok(()), "most of an empty target can be written");
}

#[test]
fn operations_are_counted_in_all_and_of_each_client() {
    let mut c = Cluster::new(14, 2);
    c.run(0, |c| async move {
        c.write(object(1), 0, &[1; 5000]).await.unwrap();
        c.write(object(1), 9, &[1; 5000]).await.unwrap();
        c.destroy(object(1)).await.unwrap();
    });
    c.run(1, |c| async move {
        c.read(object(2), 0, 10).await.unwrap();
        let told = c.peer.call(&GetParams { pattern: "obdfilter.*.**".into() }).await.unwrap().params;
        let counts = |stats: &str| -> Vec<(String, String)> {
            let words = stats.lines().skip(3).map(|line| line.split_whitespace());
            let counts = words.map(|mut words| Some((words.next()?.into(), words.next()?.into())));
            counts.map(|count| count.expect("name and count")).collect()
        };
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, n)| ((*name).into(), (*n).into())).collect()
        };
        let all = told.iter().find(|p| p.name.ends_with("-OST0000.stats")).unwrap();
        let expected =
            [("destroy", "1"), ("read", "1"), ("read_bytes", "1"), ("write", "2"), ("write_bytes", "2")];
        assert_eq!(counts(&all.value), pairs(&expected), "{}", all.value);
        let of_clients = told.iter().filter(|p| p.name.contains(".exports.") && p.name.ends_with(".stats"));
        let of_clients: Vec<_> = of_clients.map(|p| counts(&p.value)).collect();
        assert_eq!(of_clients, [pairs(&[("destroy", "1"), ("write", "2")]), pairs(&[("read", "1")])]);
    });
}

#[test]
fn hostile_arguments_are_refused() {
    let mut c = Cluster::new(11, 1);
    c.run(0, |c| async move {
        let foreign = ObjectId { fid: Fid::new(Seq(u64::MAX), Oid(u32::MAX)), stripe: 0 };
        assert_eq!(c.write(foreign, 0, b"x").await, Err(Failure::EPROTO));
        assert_eq!(c.read(foreign, 0, 1).await, Err(Failure::EPROTO));
        assert_eq!(c.destroy(foreign).await, Err(Failure::EPROTO));
        assert_eq!(c.write(object(1), u64::MAX, b"x").await, Err(Failure::EFBIG));
        assert_eq!(c.read(object(1), 0, u32::MAX).await, Err(Failure::EINVAL));
        assert_eq!(c.write(object(1), 0, b"").await, Err(Failure::EINVAL));
        assert_eq!(c.truncate(object(1), u64::MAX).await, Err(Failure::EFBIG));
        let stripes = vec![0; 5000];
        let many = c.peer.call(&Destroy { fid: object(1).fid, stripes }).await.map_err(Failure::from);
        assert!(many == Err(Failure::E2BIG), "{many:?}");
        assert_eq!(c.glimpse(object(1)).await, Ok(ObjectState::default()));
    });
}

#[test]
fn allocated_space_is_charged_and_read_as_zeros() {
    let mut c = Cluster::new(12, 1);
    let o = object(1);
    c.run(0, move |c| async move {
        let keep = |keep_size, len| Allocate {
            object: o,
            laid: 0,
            offset: 0,
            len,
            keep_size,
            owner: owner(),
            mtime: at(1),
            lock: LockCookie(0),
        };
        let state = c.peer.call(&keep(true, 1 << 20)).await.unwrap().state;
        assert_eq!((state.size, state.blocks), (0, 2048));
        let state = c.peer.call(&keep(false, 1 << 20)).await.unwrap().state;
        assert_eq!((state.size, state.blocks), (1 << 20, 2048));
        assert_eq!(c.read(o, 0, 1 << 20).await.unwrap(), vec![0; 1 << 20]);
        c.write(o, 4096, &[1; 4096]).await.unwrap();
        c.peer.call(&SyncObject { object: o, laid: 0 }).await.unwrap();
        c.peer.call(&SetOwner { object: o, owner: Owner { uid: 7, gid: 8, projid: 9 } }).await.unwrap();
    });
    let found = c.check();
    assert_eq!((found.blocks, found.problems), (2048, 0), "{found:?}");
}

#[test]
fn a_persistent_lock_survives_a_kill_until_it_is_given_back_or_its_client_is_gone() {
    let mut c = Cluster::new(10, 3);
    let o = object(1);
    let enqueue = move |cookie, persistent| Enqueue {
        object: o,
        laid: 0,
        cookie: LockCookie(cookie),
        mode: LockMode::Pw,
        extent: Extent::new(cookie * 100, cookie * 100 + 100),
        persistent,
    };
    c.run(0, move |c| async move {
        for (cookie, persistent) in [(1, true), (2, false), (3, true)] {
            assert!(c.peer.call(&enqueue(cookie, persistent)).await.unwrap().granted);
        }
        c.cancel(o, 3).await.unwrap();
    });
    c.restart();
    let other = c.start(1, move |c| async move { c.write(o, 100, b"other").await });
    c.run(0, move |c| async move {
        assert!(c.peer.call(&enqueue(1, true)).await.unwrap().granted, "the same again");
        c.write_under(o, 100, b"mine", LockCookie(1)).await.unwrap();
        for gone in [2, 3] {
            let written = c.write_under(o, gone * 100, b"x", LockCookie(gone)).await;
            assert_eq!(written, Err(ProtocolOutcome::LockLost.into()), "lock {gone}");
        }
    });
    c.run(1, move |c| async move { c.write(o, 200, b"free").await.unwrap() });
    c.run_ms(100);
    assert!(other.borrow().is_none(), "the lock is there before anybody asks");
    c.run(0, move |c| async move { c.cancel(o, 1).await.unwrap() });
    c.wait(&other).unwrap();

    // One that had to wait, and whose client then vanishes.
    c.run(1, move |c| async move { c.lock(o, 1, LockMode::Pw, Extent::ALL).await.unwrap() });
    let waits = c.run(0, move |c| async move { c.peer.call(&enqueue(4, true)).await.unwrap() });
    assert!(!waits.granted);
    c.run(1, move |c| async move { c.cancel(o, 1).await.unwrap() });
    c.run_ms(100);
    let dead = c.client_node(0);
    c.world.kill(dead);
    c.restart();
    let third = c.start(2, move |c| async move { c.write(o, 400, b"third").await });
    c.run_ms(500);
    assert!(third.borrow().is_none(), "until the lease is over");
    c.wait(&third).unwrap();
    let found = c.check();
    assert_eq!((found.problems, found.persistent_locks), (0, 0), "{found:?}");
}

/// Takes a lock on a whole object, and does as `holds` says from when another client wants to write there. Gives how long
/// that has waited, in seconds, and whether the holder was evicted.
fn waits_for_a_lock<F: Future<Output = ()> + 'static>(
    seed: u64,
    holds: impl FnOnce(std::rc::Rc<support::Client>) -> F + 'static,
) -> (u64, bool) {
    let mut c = Cluster::new(seed, 2);
    let o = object(1);
    c.run(0, move |c| async move { c.lock(o, 1, LockMode::Pw, Extent::ALL).await.unwrap() });
    let began = c.world.now_ns();
    let writing = c.start(1, move |c| async move { c.write(o, 0, b"b").await });
    c.start(0, holds);
    let until = began + 600_000_000_000;
    c.world.run_until(until, |_| writing.borrow().is_some());
    assert!(writing.borrow_mut().take().is_some_and(|written| written.is_ok()), "it waits for ever");
    let waited = (c.world.now_ns() - began) / 1_000_000_000;
    c.run_ms(2 * u64::from(LEASE_MS));
    let evicted = c.run(0, move |c| async move { c.peer.with_import(|import| import.counts().2) });
    (waited, evicted > 0)
}

/// It acknowledges every callback and sends pings, as any client in good order.
#[test]
fn a_client_that_does_not_give_a_lock_back_is_evicted_although_it_acknowledges() {
    let (waited, evicted) = waits_for_a_lock(31, async |_| {});
    assert!(evicted);
    let lease = u64::from(LEASE_MS) / 1000;
    assert!((lease..=3 * lease).contains(&waited), "{waited} s");
}

#[test]
fn work_under_a_lock_prolongs_its_time_but_not_for_ever() {
    let works = |seconds: u64| {
        waits_for_a_lock(32, async move |c| {
            for _ in 0..seconds / 5 {
                let request = Read { object: object(1), laid: 0, offset: 0, len: 1, lock: LockCookie(1) };
                let _refused_after_the_eviction = c.peer.call(&request).await;
                c.sleep(5).await;
            }
            let _refused_after_the_eviction = c.cancel(object(1), 1).await;
        })
    };
    let (waited, evicted) = works(100);
    assert!(!evicted && (95..=110).contains(&waited), "{waited} s, evicted: {evicted}");
    let (waited, evicted) = works(600);
    assert!(evicted && (300..=330).contains(&waited), "{waited} s, evicted: {evicted}");
}
