//! Losses of the machine: truncated bytes do not return, and only synced bytes count as stable.

use crate::support::*;
use bytes::Bytes;
use nacre_node::Rng;
use nacre_node::WriteTo;
use nacre_testkit::CrashDevice;
use nacre_types::Extent;

#[test]
fn background_write_back_moves_the_stable_number() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    let row = t.write(object(1), 0, vec![1; 5000]).expect("writes");
    assert_eq!(t.objects.oldest_unstable().map(|t| t.0), Some(row.version));
    t.settle();
    assert_eq!(t.objects.oldest_unstable(), None);
    assert!(t.drive.osd().last_stable().0 >= row.version);
    let mut t = t.power_loss(&mut Rng::new(3));
    assert_eq!(t.read(object(1), 0, 1 << 20).expect("reads").1, vec![1; 5000]);
    t.write(object(1), 0, vec![2; 5000]).expect("writes");
    t.run(|o| async move {
        o.stop().await;
        o.osd().stop().await.expect("stops");
    });
    let mut t = t.power_loss(&mut Rng::new(4));
    assert_eq!(t.read(object(1), 0, 1 << 20).expect("reads").1, vec![2; 5000]);
}

/// A truncate is the latest change: it has no bytes, and is stable all the same.
#[test]
fn what_was_made_stable_is_stable_at_the_next_start() {
    for seed in 0..10 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 5000]).expect("writes");
        let cut = nacre_types::Transno(t.truncate(object(1), 3000).expect("cuts").version);
        t.write(object(2), 0, vec![2; 5000]).expect("writes");
        assert!(t.run(move |o| async move { o.make_stable(cut).await.expect("syncs") }));
        assert!(t.drive.osd().last_stable() >= cut);
        let mut t = t.power_loss(&mut Rng::new(seed));
        assert!(t.drive.osd().last_stable() >= cut);
        assert_eq!(t.read(object(1), 0, 1 << 20).expect("reads").1, vec![1; 3000]);
        let again = nacre_types::Transno(t.truncate(object(1), 2000).expect("cuts").version);
        assert!(t.run(move |o| async move { o.make_stable(again).await.expect("syncs") }));
    }
}

/// What lay beyond a size is overwritten before it becomes part of the object, and that is synced like any write.
#[test]
fn bytes_that_were_cut_off_do_not_come_back_with_a_lost_machine() {
    for seed in 0..20 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 3000]).expect("writes");
        t.sync(object(1)).expect("syncs");
        t.truncate(object(1), 700).expect("cuts");
        t.truncate(object(1), 2500).expect("grows");
        make_durable(&mut t);
        let mut t = t.power_loss(&mut Rng::new(seed));
        let (row, bytes) = t.read(object(1), 0, 1 << 20).expect("reads");
        assert_eq!((row.size, &bytes[..700]), (2500, &[1; 700][..]));
        assert!(bytes.len() == 2500 && bytes[700..].iter().all(|b| *b == 0), "seed {seed}");
    }
}

/// The same of a write beyond the size whose client makes it again.
#[test]
fn a_write_that_is_put_back_has_its_zeros_before_it() {
    for seed in 0..20 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 3000]).expect("writes");
        t.truncate(object(1), 700).expect("cuts");
        make_durable(&mut t);
        t.write(object(1), 1000, vec![2; 100]).expect("writes");
        t.run(|o| async move { o.osd().commit(o.osd().last_transno()).await.expect("commits") });
        let mut t = t.power_loss(&mut Rng::new(seed));
        t.run(|o| async move {
            o.restore(object(1), 1000, &[Bytes::from(vec![2; 100])]).await.expect("puts back");
        });
        let (row, bytes) = t.read(object(1), 0, 1 << 20).expect("reads");
        assert_eq!((row.size, &bytes[..700]), (1100, &[1; 700][..]), "seed {seed}");
        assert!(bytes[700..1000].iter().all(|b| *b == 0), "seed {seed}");
        assert_eq!(bytes[1000..], [2; 100], "seed {seed}");
    }
}

/// Bytes that are read right may be only in the kernel's cache, which need not forget a page that it is told to forget.
/// When the client makes its write again, they are written again, and the next sync makes them durable.
#[test]
fn a_write_that_is_put_back_is_on_the_device_although_the_cache_still_had_its_bytes() {
    let written = || vec![1; 10_000];
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(object(1), 0, written()).expect("writes");
    t.run(|o| async move { o.osd().commit(o.osd().last_transno()).await.expect("commits") });
    t.device.refuse_writeback_and_keep_pages();
    let mut t = t.kill();
    t.settle();
    t.run(move |o| async move {
        o.restore(object(1), 0, &[Bytes::from(written())]).await.expect("puts back");
    });
    make_durable(&mut t);
    let mut t = t.power_loss(&mut Rng::new(1));
    assert_eq!(t.read(object(1), 0, 1 << 20).expect("reads").1, written());
}

/// The same of an overwrite that a kill has cut off: its bytes lie beyond the size, and no row tells of them.
#[test]
fn bytes_of_a_write_that_a_kill_has_cut_off_do_not_come_back_with_a_lost_machine() {
    for seed in 0..20 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 700]).expect("writes");
        t.settle();
        t.run(|o| async move {
            let cut_off = o
                .prepare_write(object(1), 700, vec![Bytes::from(vec![2; 2300])], WriteTo::Cache, &at_any_time)
                .await;
            core::mem::forget(cut_off.expect("prepares"));
        });
        let mut t = t.kill();
        t.truncate(object(1), 2500).expect("grows");
        make_durable(&mut t);
        let mut t = t.power_loss(&mut Rng::new(seed));
        let (row, bytes) = t.read(object(1), 0, 1 << 20).expect("reads");
        assert_eq!((row.size, &bytes[..700]), (2500, &[1; 700][..]), "seed {seed}");
        assert!(bytes.len() == 2500 && bytes[700..].iter().all(|b| *b == 0), "seed {seed}");
    }
}

/// A write soon after a cut puts zeros before its bytes: in the block that was cut, or in one that is a hole by now.
#[test]
fn a_write_beyond_a_cut_does_not_bring_back_what_was_cut_off() {
    for (seed, (written, size, at)) in (0..40).zip([(3000, 700, 1000), (12_288, 4096, 9000)].iter().cycle()) {
        let (size, at) = (*size, *at);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; *written]).expect("writes");
        t.sync(object(1)).expect("syncs");
        t.truncate(object(1), size as u64).expect("cuts");
        t.write(object(1), at as u64, vec![2; 100]).expect("writes");
        t.run(|o| async move { o.osd().commit(o.osd().last_transno()).await.expect("commits") });
        let mut t = t.power_loss(&mut Rng::new(seed));
        t.run(move |o| async move {
            o.restore(object(1), at as u64, &[Bytes::from(vec![2; 100])]).await.expect("puts back");
        });
        let (row, bytes) = t.read(object(1), 0, 1 << 20).expect("reads");
        assert_eq!((row.size as usize, &bytes[..size]), (at + 100, &vec![1; size][..]), "seed {seed}");
        assert!(bytes[size..at].iter().all(|b| *b == 0), "seed {seed}");
        assert_eq!(bytes[at..], [2; 100], "seed {seed}");
    }
}

/// A write into a part of a block: alone, or in a transaction of many.
fn write_some(t: &mut Target, at: u64, many: bool) {
    match many {
        true => drop(t.write_many(vec![(object(1), vec![(at, vec![2; 100])])])),
        false => drop(t.write(object(1), at, vec![2; 100]).expect("writes")),
    }
    t.run(|o| async move { o.osd().commit(o.osd().last_transno()).await.expect("commits") });
}
/// The machine is lost, and the client makes its write again. Returns the bytes of the object.
fn lose_and_restore(t: Target, at: u64, seed: u64) -> Vec<u8> {
    let mut t = t.power_loss(&mut Rng::new(seed));
    t.run(move |o| async move {
        o.restore(object(1), at, &[Bytes::from(vec![2; 100])]).await.expect("puts back");
    });
    t.start_rechecksum();
    t.read(object(1), 0, 1 << 20).expect("reads").1
}
fn check_hole(bytes: &[u8], hole: std::ops::Range<usize>, at: usize, what: &str) {
    for (i, byte) in bytes.iter().enumerate() {
        let expected = if (at..at + 100).contains(&i) { 2 } else { u8::from(!hole.contains(&i)) };
        assert_eq!(*byte, expected, "{what}: byte {i}");
    }
}

/// A write into a part of a block that has become a hole, or zeros, puts zeros beside its bytes; its client does not make
/// those again.
#[test]
fn a_write_into_a_hole_does_not_bring_back_what_was_there() {
    for seed in 0..40 {
        let (frees, many) = (seed % 2 == 0, seed % 4 < 2);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 20_000]).expect("writes");
        t.sync(object(1)).expect("syncs");
        t.settle();
        t.zero(object(1), Extent::new(4096, 12_288), frees).expect("makes zeros");
        write_some(&mut t, 9000, many);
        let bytes = lose_and_restore(t, 9000, seed);
        check_hole(&bytes, 4096..12_288, 9000, &format!("seed {seed}, frees {frees}, many {many}"));
    }
}

/// The same when the process is killed before the hole was made in the file of the object, at each store operation.
#[test]
fn a_hole_that_a_kill_has_cut_off_does_not_bring_back_what_was_there() {
    for (seed, frees) in (0..24).flat_map(|stop| [(stop, true), (stop, false)]) {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 20_000]).expect("writes");
        t.sync(object(1)).expect("syncs");
        t.settle();
        t.device.stop_after(seed);
        let objects = t.objects.clone();
        t.drive.start(move |_| async move {
            // It is cut off.
            let _cut = objects.zero_blocks(object(1), Extent::new(4096, 12_288), frees).await;
        });
        while t.drive.drive.step() {}
        let mut t = t.kill();
        let zeros = t.read(object(1), 4096, 8192).expect("reads").1;
        if zeros.contains(&1) {
            continue;
        }
        write_some(&mut t, 9000, false);
        let bytes = lose_and_restore(t, 9000, seed);
        check_hole(&bytes, 4096..12_288, 9000, &format!("stopped after {seed}, frees {frees}"));
    }
}

/// Space that is allocated where bytes were cut off a moment ago has them until the truncate is durable in the file.
#[test]
fn a_write_into_allocated_space_does_not_bring_back_what_was_cut_off() {
    for seed in 0..40 {
        let keep_size = seed % 2 == 0;
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 20_000]).expect("writes");
        t.sync(object(1)).expect("syncs");
        t.settle();
        t.truncate(object(1), 0).expect("cuts");
        t.allocate(object(1), 8192, 12_288, keep_size).expect("allocates");
        if seed % 4 < 2 {
            t.settle();
        }
        // In allocated space, or in the gap before it.
        let at = if seed % 8 < 4 { 9000 } else { 5000 };
        write_some(&mut t, at, false);
        let bytes = lose_and_restore(t, at, seed);
        check_hole(&bytes, 0..20_480, at as usize, &format!("seed {seed}"));
    }
}

/// A killed process leaves bytes in the kernel's cache: they are not called stable before they are synced.
#[test]
fn after_a_kill_nothing_is_called_stable_that_a_lost_machine_would_take() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let first = t.write(object(1), 0, vec![1; 5000]).expect("writes");
        t.settle();
        t.settle();
        assert!(t.drive.osd().last_stable().0 >= first.version);
        let second = t.write(object(2), 0, vec![2; 50_000]).expect("writes");
        let mut t = t.kill();
        let stable = t.drive.osd().last_stable().0;
        assert!((first.version..second.version).contains(&stable), "{stable}");
        assert!(t.objects.oldest_unstable().is_some_and(|oldest| oldest.0 <= second.version));
        // A sync of the whole target covers what the former process wrote.
        t.run(|o| async move {
            o.sync_all().await.expect("syncs");
            let osd = o.osd().clone();
            osd.commit(osd.last_transno()).await.expect("commits");
        });
        let mut t = t.power_loss(&mut rng);
        assert_eq!(t.read(object(2), 0, 1 << 20).expect("reads").1, vec![2; 50_000], "seed {seed}");
        t.settle();
        t.settle();
        assert!(t.drive.osd().last_stable().0 >= second.version);
    }
}
