//! What a client sends, in which order: scripts against fakes.

#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, unreachable_pub, reason = "a module of several tests")]
mod support;

use nacre_types::*;
use nacre_wire::Opcode;
use nacre_wire::mdt::{FileLock, FlockFamily, FlockGranted, FlockOutcome, FlockType};
use support::{Bed, SECOND, new, write_args};

fn read(bed: &mut Bed, handle: OpenHandle, offset: u64, len: u32) -> Vec<u8> {
    bed.call(move |c| async move { c.read(handle, offset, len).await.unwrap().concat() })
}

#[test]
fn create_write_close_is_one_request_each_and_the_close_brings_the_size() {
    let mut bed = Bed::new(1);
    let (_, handle) = bed.create("f");
    bed.log();
    assert_eq!(bed.call(move |c| async move { c.write(write_args(handle, 0, b"hello")).await }), Ok(5));
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
    assert_eq!(bed.log(), ["OST0000 Write 0 0+5", "MDT0000 Close"]);
    assert_eq!(bed.shared.borrow().closed[0].written.unwrap().size, 5);
    let idle = bed.call(|c| async move { c.is_idle() });
    assert!(idle);
}

#[test]
fn a_reader_closes_without_a_word_about_the_size() {
    let mut bed = Bed::new(1);
    let (fid, handle) = bed.create("f");
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
    let (_, handle) = bed.call(move |c| async move { c.open(fid, 0, Caller::root()).await.unwrap() });
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
    assert!(bed.shared.borrow().closed.iter().all(|c| c.written.is_none()));
}

#[test]
fn the_size_of_an_open_file_is_asked_from_all_stripes() {
    let mut bed = Bed::new(3);
    let (fid, handle) = bed.create("f");
    bed.call(move |c| async move { c.write(write_args(handle, 9, b"x")).await }).unwrap();
    bed.log();
    let entry = bed.call(move |c| async move { c.getattr(fid).await.unwrap() });
    assert_eq!((entry.attr.size, entry.attr.mtime.sec), (10, 7));
    assert_eq!(bed.log(), ["MDT0000 Getattr", "OST0000 Glimpse 0", "OST0001 Glimpse 1", "OST0002 Glimpse 2"]);
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
    bed.log();
    let entry = bed.call(move |c| async move { c.getattr(fid).await.unwrap() });
    assert_eq!(entry.attr.size, 10);
    assert_eq!(bed.log(), ["MDT0000 Getattr"]);
}

#[test]
fn the_size_of_a_file_that_only_this_mount_writes_is_known_here() {
    let mut bed = Bed::new(2);
    let (fid, handle) = bed.create("f");
    let yours = |bed: &Bed, yours| bed.shared.borrow_mut().inodes.get_mut(&fid).unwrap().yours = yours;
    let size = |bed: &mut Bed| {
        bed.log();
        bed.call(move |c| async move { c.getattr(fid).await.unwrap().attr.size })
    };
    yours(&bed, true);
    assert_eq!(size(&mut bed), 0);
    assert_eq!(bed.log(), ["MDT0000 Getattr"]);
    bed.call(move |c| async move { c.write(write_args(handle, 5, b"x")).await }).unwrap();
    assert_eq!(size(&mut bed), 6);
    assert_eq!(bed.log(), ["MDT0000 Getattr"]);
    // A write of which nobody knows what it did.
    bed.shared.borrow_mut().refuse.push((Opcode::Write, Failure::EIO));
    bed.call(move |c| async move { c.write(write_args(handle, 6, b"y")).await }).unwrap_err();
    assert_eq!(size(&mut bed), 6);
    assert_eq!(bed.log(), ["MDT0000 Getattr", "OST0000 Glimpse 0", "OST0001 Glimpse 1"]);
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
    // Opened anew, nothing written yet: what the MDT says is right.
    let (_, handle) = bed.call(move |c| async move { c.open(fid, 2, Caller::root()).await.unwrap() });
    assert_eq!(size(&mut bed), 6);
    assert_eq!(bed.log(), ["MDT0000 Getattr"]);
    // Somebody else has opened it too.
    yours(&bed, false);
    assert_eq!(size(&mut bed), 6);
    assert_eq!(bed.log(), ["MDT0000 Getattr", "OST0000 Glimpse 0", "OST0001 Glimpse 1"]);
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
}

#[test]
fn an_explicit_time_outlives_the_writes_before_it() {
    let mut bed = Bed::new(1);
    let (fid, handle) = bed.create("f");
    bed.call(move |c| async move { c.write(write_args(handle, 0, b"x")).await }).unwrap();
    {
        let mut shared = bed.shared.borrow_mut();
        let entry = shared.inodes.get_mut(&fid).unwrap();
        entry.attr.mtime = Timestamp { sec: 3, nsec: 0 };
        entry.mtime_set_at = Timestamp { sec: 8, nsec: 0 };
    }
    let entry = bed.call(move |c| async move { c.getattr(fid).await.unwrap() });
    assert_eq!(entry.attr.mtime.sec, 3);
}

#[test]
fn a_range_over_several_objects_is_locked_in_order_and_done_in_parallel() {
    let mut bed = Bed::new(2);
    let (_, handle) = bed.create("f");
    bed.log();
    bed.call(move |c| async move { c.write(write_args(handle, 2, b"abcdefgh")).await }).unwrap();
    let log = bed.log();
    assert_eq!(log[..2], ["OST0000 Enqueue Pw 0 [2, 6)", "OST0001 Enqueue Pw 1 [0, 4)"]);
    assert_eq!(log[2..4], ["OST0000 Write 0 2+4 locked", "OST0001 Write 1 0+4 locked"]);
    assert_eq!(log[4..], ["OST0000 Cancel 0", "OST0001 Cancel 1"]);
    assert_eq!(read(&mut bed, handle, 0, 100), b"\0\0abcdefgh");
}

#[test]
fn a_short_object_is_a_hole_when_the_file_goes_on() {
    let mut bed = Bed::new(2);
    let (_, handle) = bed.create("f");
    bed.call(move |c| async move { c.write(write_args(handle, 9, b"x")).await }).unwrap();
    bed.log();
    // Stripe 1 (bytes 4..8) was never written.
    assert_eq!(read(&mut bed, handle, 5, 3), b"\0\0\0");
    let log = bed.log();
    assert_eq!(
        log,
        ["OST0001 Read 1 1+3", "OST0001 Enqueue Pr 1 [1, 4)", "OST0000 Glimpse 0", "OST0001 Cancel 1"],
        "an empty object is not read again"
    );
    assert_eq!(read(&mut bed, handle, 10, 2), b"");
    assert_eq!(read(&mut bed, handle, 0, 20), b"\0\0\0\0\0\0\0\0\0x");
}

#[test]
fn an_append_locks_everything_in_order_and_writes_at_the_end_it_found() {
    let mut bed = Bed::new(2);
    let (_, handle) = bed.create("f");
    bed.call(move |c| async move { c.write(write_args(handle, 0, b"12345")).await }).unwrap();
    bed.log();
    bed.call(move |c| async move {
        let args = nacre_client::WriteArgs { append: true, ..write_args(handle, 999, b"abcdef") };
        c.write(args).await
    })
    .unwrap();
    let log = bed.log();
    assert_eq!(log[..2], ["OST0000 Enqueue Pw 0 [0, inf)", "OST0001 Enqueue Pw 1 [0, inf)"]);
    assert_eq!(log[2..4], ["OST0000 Write 0 4+3 locked", "OST0001 Write 1 1+3 locked"]);
    assert_eq!(log[4..], ["OST0000 Cancel 0", "OST0001 Cancel 1"]);
    assert_eq!(read(&mut bed, handle, 0, 100), b"12345abcdef");
}

#[test]
fn an_append_that_loses_a_lock_half_way_leaves_nothing_behind() {
    let mut bed = Bed::new(2);
    let (_, handle) = bed.create("f");
    bed.call(move |c| async move { c.write(write_args(handle, 0, b"12")).await }).unwrap();
    // The first of the two writes fails, the other one is executed.
    bed.shared.borrow_mut().refuse.push((Opcode::Write, ProtocolOutcome::LockLost.into()));
    bed.call(move |c| async move {
        c.write(nacre_client::WriteArgs { append: true, ..write_args(handle, 0, b"abcdef") }).await
    })
    .unwrap();
    assert_eq!(read(&mut bed, handle, 0, 100), b"12abcdef");
}

#[test]
fn an_append_waits_for_the_grant_and_believes_its_state() {
    let mut bed = Bed::new(1);
    let (fid, handle) = bed.create("f");
    bed.shared.borrow_mut().contended = true;
    bed.log();
    let job = bed.start(move |c| async move {
        c.write(nacre_client::WriteArgs { append: true, ..write_args(handle, 0, b"end") }).await
    });
    assert_eq!(bed.log(), ["OST0000 Enqueue Pw 0 [0, inf)"]);
    // Somebody else appended meanwhile. The handle was number 1, so the lock is number 2.
    let object = ObjectId { fid, stripe: 0 };
    bed.shared.borrow_mut().objects.insert(object, b"other".to_vec());
    let state = nacre_wire::ost::ObjectState { size: 5, ..Default::default() };
    let grant = nacre_wire::ost::LockGranted { cookie: LockCookie(handle.0 + 1), state };
    bed.callback("demo-OST0000", Opcode::LockGranted, &grant);
    assert_eq!(bed.jobs.wait(&mut bed.world, job, SECOND), Some(Ok::<u32, Failure>(3)));
    assert_eq!(bed.shared.borrow().objects[&object], b"otherend");
}

#[test]
fn overlapping_writes_of_one_mount_are_not_in_flight_together() {
    let mut bed = Bed::new(1);
    let (fid, handle) = bed.create("f");
    bed.log();
    bed.shared.borrow_mut().hold.insert(Opcode::Write);
    let first = bed.start(move |c| async move { c.write(write_args(handle, 0, b"aaaa")).await });
    let second = bed.start(move |c| async move { c.write(write_args(handle, 2, b"bbbb")).await });
    let apart = bed.start(move |c| async move { c.write(write_args(handle, 10, b"cc")).await });
    assert_eq!(bed.log(), ["OST0000 Write 0 0+4", "OST0000 Write 0 10+2"]);
    bed.release();
    assert_eq!(bed.log(), ["OST0000 Write 0 2+4"]);
    for job in [first, second, apart] {
        assert!(bed.jobs.is_done(job));
    }
    let content = bed.shared.borrow().objects[&ObjectId { fid, stripe: 0 }].clone();
    assert_eq!(content, b"aabbbb\0\0\0\0cc");
}

const CUT: SetAttr = SetAttr {
    size: Some(5),
    mode: None,
    uid: None,
    gid: None,
    atime: None,
    mtime: None,
    ctime: None,
    kill_suidgid: false,
};

#[test]
fn a_truncate_reports_its_size_before_it_gives_the_locks_back() {
    let mut bed = Bed::new(2);
    let (fid, handle) = bed.create("f");
    bed.call(move |c| async move { c.write(write_args(handle, 0, b"0123456789")).await }).unwrap();
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
    bed.log();
    let entry = bed.call(move |c| async move { c.setattr(fid, CUT, Caller::root()).await.unwrap() });
    assert_eq!(entry.attr.size, 5);
    assert_eq!(
        bed.log(),
        [
            "MDT0000 Setattr",
            "OST0000 Enqueue Pw 0 [4, inf)",
            "OST0001 Enqueue Pw 1 [1, inf)",
            "OST0000 Truncate 0 4",
            "OST0001 Truncate 1 1",
            "MDT0000 ReportSize",
            "OST0000 Cancel 0",
            "OST0001 Cancel 1",
        ]
    );
    assert!(bed.shared.borrow().reports[0].truncate);
}

/// By name as well: so it is after an open with O_TRUNC. The MDT of this bed grants no locks.
#[test]
fn a_truncate_of_a_file_that_is_open_for_writing_is_reported_by_the_close() {
    for (osts, by_name, expected) in [
        (1, false, &["MDT0000 Getattr", "OST0000 Truncate 0 5"][..]),
        (1, true, &["MDT0000 Getattr", "OST0000 Truncate 0 5"]),
        (
            2,
            false,
            &[
                "MDT0000 Getattr",
                "OST0000 Enqueue Pw 0 [4, inf)",
                "OST0001 Enqueue Pw 1 [1, inf)",
                "OST0000 Truncate 0 4",
                "OST0001 Truncate 1 1",
                "OST0000 Cancel 0",
                "OST0001 Cancel 1",
            ],
        ),
    ] {
        let mut bed = Bed::new(osts);
        let (fid, handle) = bed.create("f");
        bed.call(move |c| async move { c.write(write_args(handle, 0, b"0123456789")).await }).unwrap();
        bed.log();
        let entry = bed.call(move |c| async move {
            match by_name {
                true => c.setattr(fid, CUT, Caller::root()).await,
                false => c.setattr_through(handle, fid, CUT, Caller::root()).await,
            }
            .unwrap()
        });
        assert_eq!(entry.attr.size, 5);
        assert_eq!(bed.log(), expected);
        bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
        assert_eq!(bed.shared.borrow().closed[0].written.unwrap().size, 5);
    }
}

#[test]
fn a_failed_truncate_is_looked_after_at_the_close() {
    let mut bed = Bed::new(1);
    let (fid, handle) = bed.create("f");
    bed.call(move |c| async move { c.write(write_args(handle, 0, b"abc")).await }).unwrap();
    bed.shared.borrow_mut().refuse.push((Opcode::Truncate, Failure::EIO));
    let failed =
        bed.call(move |c| async move { c.setattr_through(handle, fid, CUT, Caller::root()).await.map(drop) });
    assert_eq!(failed, Err(Failure::EIO));
    bed.log();
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
    assert_eq!(bed.log(), ["OST0000 Glimpse 0", "MDT0000 Close"]);
}

#[test]
fn an_operation_whose_lock_was_lost_is_done_again_under_a_new_one() {
    let mut bed = Bed::new(2);
    let (_, handle) = bed.create("f");
    bed.log();
    bed.shared.borrow_mut().refuse.push((Opcode::Write, ProtocolOutcome::LockLost.into()));
    bed.call(move |c| async move { c.write(write_args(handle, 0, b"abcdefgh")).await }).unwrap();
    let log = bed.log();
    assert_eq!(log.iter().filter(|l| l.contains("Enqueue")).count(), 4, "{log:?}");
    assert_eq!(log.iter().filter(|l| l.contains("Cancel")).count(), 4, "{log:?}");
    assert_eq!(read(&mut bed, handle, 0, 8), b"abcdefgh");
}

#[test]
fn a_failed_write_is_looked_after_at_the_close() {
    let mut bed = Bed::new(1);
    let (_, handle) = bed.create("f");
    bed.shared.borrow_mut().refuse.push((Opcode::Write, Failure::EIO));
    let failed = bed.call(move |c| async move { c.write(write_args(handle, 0, b"abc")).await });
    assert_eq!(failed, Err(Failure::EIO));
    bed.log();
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
    assert_eq!(bed.log(), ["OST0000 Glimpse 0", "MDT0000 Close"]);
}

#[test]
fn set_id_bits_go_before_a_truncate_of_an_ordinary_user() {
    let mut bed = Bed::new(1);
    let (fid, handle) = bed.create("f");
    bed.shared.borrow_mut().inodes.get_mut(&fid).unwrap().kill_priv = true;
    bed.log();
    bed.call(move |c| async move {
        let ordinary = Caller { uid: 9, gid: 9, ..Caller::root() };
        c.setattr_through(handle, fid, SetAttr { kill_suidgid: true, ..CUT }, ordinary).await
    })
    .unwrap();
    // The bit was set after the open: the attributes tell.
    assert_eq!(bed.log(), ["MDT0000 Getattr", "MDT0000 Setattr", "OST0000 Truncate 0 5"]);
}

#[test]
fn set_id_bits_go_before_the_first_write_of_an_ordinary_user_and_once() {
    let mut bed = Bed::new(1);
    let (fid, handle) = bed.create("f");
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
    bed.shared.borrow_mut().inodes.get_mut(&fid).unwrap().kill_priv = true;
    let (_, handle) = bed.call(move |c| async move { c.open(fid, 1, Caller::root()).await.unwrap() });
    bed.log();
    for _ in 0..2 {
        bed.call(move |c| async move {
            c.write(nacre_client::WriteArgs {
                kill_suidgid: Some(Caller { uid: 9, gid: 9, ..Caller::root() }),
                ..write_args(handle, 0, b"x")
            })
            .await
        })
        .unwrap();
    }
    assert_eq!(bed.log(), ["MDT0000 Setattr", "OST0000 Write 0 0+1", "OST0000 Write 0 0+1"]);
}

fn lock(kind: FlockType, owner: u64) -> FileLock {
    FileLock { family: FlockFamily::Posix, kind, start: 0, end: 10, owner, pid: 1 }
}

#[test]
fn a_waiting_lock_is_asked_for_again_at_the_callback() {
    let mut bed = Bed::new(1);
    let (_, handle) = bed.create("f");
    bed.shared.borrow_mut().contended = true;
    bed.log();
    let cookie = LockCookie(bed.call(|c| async move { c.new_cookie().0 }) + 1);
    let job = bed.start(move |c| async move { c.flock(handle, lock(FlockType::Write, 5), true).await });
    assert_eq!(bed.log(), ["MDT0000 Flock Write wait"]);
    assert!(!bed.jobs.is_done(job));
    let grant = FlockGranted { cookie, outcome: FlockOutcome::Granted };
    bed.shared.borrow_mut().contended = false;
    bed.callback("demo-MDT0000", Opcode::FlockGranted, &grant);
    assert_eq!(bed.jobs.wait(&mut bed.world, job, SECOND), Some(Ok::<_, Failure>(FlockOutcome::Granted)));
    // The grant was another client's change: this one is our own.
    assert_eq!(bed.log(), ["MDT0000 Flock Write wait"]);
}

#[test]
fn an_interrupted_lock_ends_with_the_targets_word_on_who_was_first() {
    for (outcome, expected) in
        [(FlockOutcome::Conflict, Err(Failure::EINTR)), (FlockOutcome::Granted, Ok(FlockOutcome::Granted))]
    {
        let mut bed = Bed::new(1);
        let (_, handle) = bed.create("f");
        bed.shared.borrow_mut().contended = true;
        bed.shared.borrow_mut().cancel_outcome = Some(outcome);
        bed.log();
        let job = bed.start(move |c| async move { c.flock(handle, lock(FlockType::Write, 5), true).await });
        bed.settle();
        bed.jobs.give_up(&mut bed.world, bed.mount, job);
        assert_eq!(bed.jobs.wait(&mut bed.world, job, SECOND), Some(expected));
        assert_eq!(bed.log(), ["MDT0000 Flock Write wait", "MDT0000 FlockCancel"]);
    }
}

#[test]
fn a_lock_that_is_waited_for_ends_with_the_mount() {
    let mut bed = Bed::new(1);
    let (_, handle) = bed.create("f");
    bed.shared.borrow_mut().contended = true;
    let job = bed.start(move |c| async move { c.flock(handle, lock(FlockType::Write, 5), true).await });
    bed.settle();
    bed.call(|c| async move { c.unmount().await });
    assert_eq!(bed.jobs.wait(&mut bed.world, job, SECOND), Some(Err::<FlockOutcome, _>(Failure::EBADF)));
}

#[test]
fn an_interrupt_before_the_reply_is_not_lost() {
    let mut bed = Bed::new(1);
    let (_, handle) = bed.create("f");
    bed.shared.borrow_mut().contended = true;
    bed.shared.borrow_mut().hold.insert(Opcode::Flock);
    let job = bed.start(move |c| async move { c.flock(handle, lock(FlockType::Write, 5), true).await });
    bed.settle();
    bed.jobs.give_up(&mut bed.world, bed.mount, job);
    bed.release();
    assert_eq!(bed.jobs.wait(&mut bed.world, job, SECOND), Some(Err::<FlockOutcome, _>(Failure::EINTR)));
}

#[test]
fn closing_any_descriptor_drops_the_owners_posix_locks_and_release_the_rest() {
    let mut bed = Bed::new(1);
    let (fid, first) = bed.create("f");
    let (_, second) = bed.call(move |c| async move { c.open(fid, 0, Caller::root()).await.unwrap() });
    bed.call(move |c| async move { c.flock(first, lock(FlockType::Write, 5), false).await.unwrap() });
    bed.call(move |c| async move { c.flock(first, lock(FlockType::Read, 6), false).await.unwrap() });
    bed.log();
    bed.call(move |c| async move { c.flush(second, 5).await.unwrap() });
    assert_eq!(bed.log(), ["MDT0000 Flock Unlock"]);
    bed.call(move |c| async move { c.flush(first, 5).await.unwrap() });
    assert_eq!(bed.log(), [""; 0], "nothing left to drop for this owner");
    bed.call(move |c| async move { c.release(first, None).await.unwrap() });
    assert_eq!(bed.log(), ["MDT0000 Flock Unlock", "MDT0000 Close"], "an OFD lock goes with its handle");
    bed.call(move |c| async move { c.release(second, Some(9)).await.unwrap() });
    assert_eq!(bed.log(), ["MDT0000 Close"], "there is no lock at the MDT");
}

#[test]
fn a_second_sequence_is_fetched_before_it_is_needed() {
    let mut bed = Bed::new(1);
    let (a, _) = bed.create("a");
    let (b, _) = bed.create("b");
    bed.settle();
    assert_eq!((a.seq, a.oid, b.oid), (b.seq, Oid(1), Oid(2)));
    let grants = bed.shared.borrow().log.iter().filter(|l| l.contains("GrantSeq")).count();
    assert_eq!(grants, 2);
}

#[test]
fn a_fid_of_an_mdt_that_is_not_in_the_list_is_stale() {
    let mut bed = Bed::new(1);
    bed.call(|c| async move { c.ready().await }).unwrap();
    bed.log();
    let fid = Fid::new(Seq::first_of(MdtIndex(1)), Oid(1));
    assert_eq!(bed.call(move |c| async move { c.getattr(fid).await.map(drop) }), Err(Failure::ESTALE));
    let opened = bed.call(move |c| async move { c.open(fid, 0, Caller::root()).await.map(drop) });
    assert_eq!(opened, Err(Failure::ESTALE));
    let page = bed.call(move |c| async move { c.readdir(fid, 2, 10, false).await.map(drop) });
    assert_eq!(page, Err(Failure::ESTALE));
    assert_eq!(bed.log().iter().filter(|line| line.starts_with("MDT")).count(), 0, "no MDT was asked");
}

#[test]
fn a_sequence_of_another_mdt_is_not_used() {
    let mut bed = Bed::new(1);
    bed.shared.borrow_mut().sequences = 0x4000_0000;
    let made = bed.call(|c| async move { c.make(new(b"f")).await.map(drop) });
    assert_eq!(made, Err(Failure::EPROTO));
    bed.shared.borrow_mut().sequences = 0;
    bed.create("g");
}

#[test]
fn a_wrong_file_system_name_is_explained() {
    let mut bed = Bed::of_fs(1, "dmeo");
    let sentence = bed.call(|c| async move { c.ready().await }).unwrap_err();
    assert!(sentence.contains("does not know a file system `dmeo`; it knows: demo"), "{sentence}");
    assert!(sentence.contains("hint:"), "{sentence}");
}

#[test]
fn names_that_cannot_be_are_refused_without_a_request() {
    let mut bed = Bed::new(1);
    bed.call(|c| async move { c.ready().await }).unwrap();
    bed.log();
    for (name, errno) in [
        (vec![b'a'; 256], Failure::ENAMETOOLONG),
        (b"a/b".to_vec(), Failure::EINVAL),
        (vec![], Failure::ENOENT),
    ] {
        let got = bed.call(move |c| async move { c.unlink(Fid::ROOT, &name, false, Caller::root()).await });
        assert_eq!(got, Err(errno));
    }
    assert_eq!(bed.log(), [""; 0]);
}

#[test]
fn an_unmount_closes_what_is_open_and_ends_every_task() {
    let mut bed = Bed::new(2);
    let (_, handle) = bed.create("f");
    bed.call(move |c| async move { c.write(write_args(handle, 0, b"x")).await }).unwrap();
    bed.call(|c| async move { c.unmount().await });
    bed.settle();
    assert_eq!(bed.shared.borrow().closed.len(), 1);
    assert_eq!(bed.world.live_tasks(bed.mount), 0);
}

#[test]
fn parameters_have_the_fields_names_and_count_requests() {
    let mut bed = Bed::new(1);
    let (_, handle) = bed.create("f");
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
    let params = bed.call(|c| async move { c.params() });
    let find = |suffix: &str| {
        let found =
            params.iter().find(|p| p.name.starts_with("mdc.demo-MDT0000-mdc-") && p.name.ends_with(suffix));
        found.unwrap_or_else(|| panic!("no {suffix}")).clone()
    };
    let stats = find(".stats").value;
    assert!(stats.contains("mds_reint_create            1 samples [usecs]"), "{stats}");
    assert!(stats.contains("mds_close                   1 samples [usecs]"), "{stats}");
    assert!(find(".state").value.starts_with("current_state: FULL\nstate_history:\n - [ 1"));
    assert!(find(".import").value.contains("    target: demo-MDT0000_UUID\n    state: FULL\n"));
    assert!(
        find(".rpc_stats").value.contains("rpcs in flight        rpcs   %% cum %%\n0:\t\t"),
        "{:?}",
        find(".rpc_stats")
    );
    let osc = params.iter().find(|p| p.name.starts_with("osc.") && p.name.ends_with(".rpc_stats"));
    assert!(osc.is_some_and(|p| p.value.contains("pages per rpc         rpcs   % cum % |")), "{osc:?}");
    assert_eq!(find(".max_mod_rpcs_in_flight").value, "7");
    let name = find(".max_mod_rpcs_in_flight").name;
    bed.call(move |c| async move {
        c.set_param(&name, "3").unwrap();
        assert!(c.set_param(&name, "0").unwrap_err().contains("out of range"));
        assert!(c.set_param("mdc.x.y", "1").unwrap_err().contains("no parameter"));
        let now = c.params().into_iter().find(|p| p.name == name).unwrap();
        assert_eq!(now.value, "3");
    });
    let llite = params.iter().find(|p| p.name.starts_with("llite.demo-")).unwrap();
    assert!(llite.value.contains("create                      1 samples [usecs]"), "{}", llite.value);
}

/// So many files, open, and one slot for changes at the MDT.
fn open_with_one_slot<const N: usize>(bed: &mut Bed, names: [&'static str; N]) -> [OpenHandle; N] {
    let handles = names.map(|name| bed.create(name).1);
    bed.call(|c| async move {
        let mut names = c.params().into_iter().map(|p| p.name);
        let limit = names.find(|n| n.starts_with("mdc.") && n.ends_with("max_mod_rpcs_in_flight"));
        c.set_param(&limit.unwrap(), "1").unwrap();
    });
    bed.log();
    handles
}
fn close(bed: &mut Bed, handle: OpenHandle) -> nacre_sim::JobId {
    bed.start(move |c| async move { c.release(handle, None).await })
}
/// Something else takes the slot.
fn take_the_slot(bed: &mut Bed) {
    bed.shared.borrow_mut().hold.extend([Opcode::Create, Opcode::Close, Opcode::Batch]);
    bed.start(|c| async move { c.make(new(b"other")).await.map(drop) });
    assert_eq!(bed.log(), ["MDT0000 Create"]);
}
#[test]
fn closes_that_wait_for_slots_go_together_in_the_extra_slot() {
    let mut bed = Bed::new(1);
    let [a, b, c, d] = open_with_one_slot(&mut bed, ["a", "b", "c", "d"]);
    take_the_slot(&mut bed);
    let first = close(&mut bed, a);
    assert_eq!(bed.log(), ["MDT0000 Close"], "a lone close waits for nothing");
    let rest = [b, c].map(|handle| close(&mut bed, handle));
    assert_eq!(bed.log(), Vec::<String>::new());
    bed.reply_held(Opcode::Close);
    assert_eq!(bed.log(), ["MDT0000 Batch of 2"], "the only slot is still taken");
    let last = close(&mut bed, d);
    assert_eq!(bed.log(), Vec::<String>::new());
    bed.reply_held(Opcode::Batch);
    assert_eq!(bed.log(), ["MDT0000 Close"], "and a lone one is what it is");
    bed.release();
    bed.settle();
    for job in [first, rest[0], rest[1], last] {
        assert_eq!(bed.jobs.take(job), Some(Ok::<(), Failure>(())));
    }
    assert!(bed.call(|c| async move { c.is_idle() }));
}

#[test]
fn each_of_the_closes_that_go_together_has_its_own_result() {
    let mut bed = Bed::new(1);
    let [a, b, c, d] = open_with_one_slot(&mut bed, ["a", "b", "c", "d"]);
    take_the_slot(&mut bed);
    let first = close(&mut bed, a);
    let rest = [b, c, d].map(|handle| close(&mut bed, handle));
    bed.settle();
    bed.shared.borrow_mut().refuse.push((Opcode::Close, Failure::ENOSPC));
    bed.release();
    bed.settle();
    let results = [first, rest[0], rest[1], rest[2]].map(|job| bed.jobs.take(job));
    let ok = Some(Ok::<(), Failure>(()));
    assert_eq!(results, [ok, Some(Err(Failure::ENOSPC)), ok, ok]);
    // The request as a whole.
    let [a, b, c] = open_with_one_slot(&mut bed, ["e", "f", "g"]);
    take_the_slot(&mut bed);
    let jobs = [a, b, c].map(|handle| close(&mut bed, handle));
    bed.settle();
    bed.shared.borrow_mut().refuse.push((Opcode::Batch, Failure::EROFS));
    bed.release();
    bed.settle();
    let refused = Some(Err(Failure::EROFS));
    assert_eq!(jobs.map(|job| bed.jobs.take(job)), [ok, refused, refused]);
}

/// On a full device a close alone finds room, and is what makes room.
#[test]
fn closes_for_which_there_is_no_room_together_go_alone() {
    let mut bed = Bed::new(1);
    let [a, b, c] = open_with_one_slot(&mut bed, ["a", "b", "c"]);
    take_the_slot(&mut bed);
    let jobs = [a, b, c].map(|handle| close(&mut bed, handle));
    bed.log();
    bed.shared.borrow_mut().refuse.push((Opcode::Batch, Failure::ENOSPC));
    bed.release();
    assert_eq!(bed.log(), ["MDT0000 Batch refused", "MDT0000 Close", "MDT0000 Close"]);
    assert_eq!(jobs.map(|job| bed.jobs.take(job)), [Some(Ok::<(), Failure>(())); 3]);
}

#[test]
fn a_full_batch_of_closes_waits_for_no_other() {
    let mut bed = Bed::new(1);
    let names: Vec<&'static str> = (0..130).map(|i| &*Box::leak(format!("f{i}").into_boxed_str())).collect();
    let handles: Vec<OpenHandle> = names.into_iter().map(|name| bed.create(name).1).collect();
    bed.log();
    bed.shared.borrow_mut().hold.extend([Opcode::Close, Opcode::Batch]);
    let jobs: Vec<_> = handles.iter().map(|handle| close(&mut bed, *handle)).collect();
    // Four while half of the seven slots are free, one that begins to collect, one full batch; the rest waits.
    let alone = ["MDT0000 Close"; 5].map(String::from).to_vec();
    assert_eq!(bed.log(), [alone, vec!["MDT0000 Batch of 64".into()]].concat());
    bed.release();
    assert_eq!(bed.log(), ["MDT0000 Batch of 61"]);
    for job in jobs {
        assert_eq!(bed.jobs.take(job), Some(Ok::<(), Failure>(())));
    }
}

#[test]
fn a_server_that_does_not_know_batches_gets_each_close_alone() {
    let mut bed = Bed::new(1);
    bed.shared.borrow_mut().lacks = nacre_wire::target::features::BATCH;
    let [a, b, c] = open_with_one_slot(&mut bed, ["a", "b", "c"]);
    take_the_slot(&mut bed);
    let jobs = [a, b, c].map(|handle| close(&mut bed, handle));
    assert_eq!(bed.log(), ["MDT0000 Close"]);
    bed.release();
    assert_eq!(bed.log(), ["MDT0000 Close", "MDT0000 Close"]);
    assert_eq!(jobs.map(|job| bed.jobs.take(job)), [Some(Ok::<(), Failure>(())); 3]);
}

#[test]
fn a_server_that_does_not_know_batches_gets_each_change_alone_and_no_size() {
    use nacre_client::MetadataChange;
    let mut bed = Bed::new(1);
    bed.shared.borrow_mut().lacks = nacre_wire::target::features::BATCH;
    bed.call(|c| async move { c.ready().await }).unwrap();
    bed.log();
    let made = bed.call(|c| async move {
        let changes = [b"a", b"b"].map(|name| MetadataChange::Make(new(name)));
        c.batch(&changes, &Caller::root(), false).await.map(|made| made.iter().filter(|m| m.is_ok()).count())
    });
    assert_eq!((made, bed.log()), (Ok(2), vec!["MDT0000 Create".to_owned(); 2]));
    let refused = bed.call(|c| async move {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        let changes = [MetadataChange::Make(new(b"c")), MetadataChange::Setattr { fid: Fid::ROOT, set }];
        c.batch(&changes, &Caller::root(), false).await.map(drop)
    });
    assert_eq!((refused, bed.log()), (Err(Failure::EINVAL), vec![]));
}
