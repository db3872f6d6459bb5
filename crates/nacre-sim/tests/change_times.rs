//! Times that programs set, and writes after that, on mounts whose clocks agree only about as well as a message tells.

mod support;

use nacre_types::{SetAttr, Timestamp};
use support::{MS, SEC, caller, cluster, create, run, write, write_back};

/// Bytes of a file that stays at its MDT, and of one that does not.
const SIZES: [usize; 3] = [0, 100, 100_000];

/// A write replaces a time that was set just before, by the same mount or another one, to the past or to the future.
#[test]
fn a_write_replaces_the_time_that_was_set_just_before() {
    for seed in 1..=60 {
        for size in SIZES {
            for is_future in [false, true] {
                written_after_set(seed, size, is_future);
            }
        }
    }
}

fn written_after_set(seed: u64, size: usize, is_future: bool) {
    let mut c = cluster(seed, 1, 2);
    if seed.is_multiple_of(2) {
        write_back(&mut c);
        c.keep_data_at_mdt(8192).expect("the root has a layout");
    }
    let mounts = [c.mounts[0], c.mounts[1]];
    let (writer, setter) = (mounts[0], mounts[usize::from(seed % 4 < 2)]);
    let stays_open = seed.is_multiple_of(3);
    let what = format!("seed {seed}, {size} bytes, future: {is_future}, stays open: {stays_open}");
    let stored = run(&mut c, writer, async move |client| {
        let (fid, handle) = create(&client, "f").await?;
        write(&client, handle, 0, vec![1; size]).await?;
        if !stays_open {
            client.release(handle, None).await?;
        }
        client.getattr(fid).await.map(|entry| (fid, handle, entry.attr.mtime.sec))
    });
    let (fid, first, now) = stored.expect("stored");
    // The setter does not know of the write when it sets the time: so long after it, its clock is later, too.
    c.world.run_for(if seed.is_multiple_of(5) { SEC } else { 50 * MS });
    let sec = if is_future { now + 100_000 } else { 1000 };
    let set = run(&mut c, setter, async move |client| {
        let set = SetAttr { mtime: Some(Timestamp { sec, nsec: 0 }), ..SetAttr::default() };
        client.setattr(fid, set, caller()).await.map(|entry| entry.attr.mtime.sec)
    });
    assert_eq!(set, Ok(sec), "{what}");
    let written = run(&mut c, writer, async move |client| {
        let handle = if stays_open { first } else { client.open(fid, 2, caller()).await?.1 };
        // A handle that is open does not bring the time of the other mount.
        client.getattr(fid).await?;
        write(&client, handle, size as u64 / 2, vec![2; 100]).await?;
        client.release(handle, None).await?;
        client.getattr(fid).await.map(|entry| entry.attr)
    });
    let written = written.expect("written");
    let is_now = |time: Timestamp| time.sec >= now && time.sec < now + 1000;
    assert!(is_now(written.mtime) && is_now(written.ctime), "{what}: {written:?}");
    for pause in [0, 200 * MS] {
        c.world.run_for(pause);
        for mount in mounts {
            let seen = run(&mut c, mount, async move |client| client.getattr(fid).await);
            let seen = seen.expect("seen").attr;
            assert_eq!((seen.mtime, seen.ctime), (written.mtime, written.ctime), "{what}, {pause}");
        }
    }
}
