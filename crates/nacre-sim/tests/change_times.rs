//! Times of changes that several mounts make, whose clocks agree only about as well as a message tells.

mod support;

use nacre_types::{SetAttr, Timestamp};
use support::{MS, caller, cluster, create, run, write, write_back};

/// Bytes of a file that stays at its MDT, and of one that does not.
const SIZES: [usize; 2] = [100, 100_000];

#[test]
fn a_write_replaces_the_time_that_another_mount_has_just_set() {
    for seed in 1..=60 {
        for size in SIZES {
            let what = format!("seed {seed}, {size} bytes");
            let mut c = cluster(seed, 1, 2);
            if seed % 2 == 0 {
                write_back(&mut c);
            }
            let (writer, other) = (c.mounts[0], c.mounts[1]);
            let stored = run(&mut c, writer, async move |client| {
                let (fid, handle) = create(&client, "f").await?;
                write(&client, handle, 0, vec![1; size]).await?;
                client.release(handle, None).await.map(|()| fid)
            });
            let fid = stored.expect("stored");
            let set = run(&mut c, other, async move |client| {
                let set = SetAttr { mtime: Some(Timestamp { sec: 1000, nsec: 0 }), ..SetAttr::default() };
                client.setattr(fid, set, caller()).await.map(|entry| entry.attr.mtime.sec)
            });
            assert_eq!(set, Ok(1000), "{what}");
            let written = run(&mut c, writer, async move |client| {
                let (_, handle) = client.open(fid, 2, caller()).await?;
                write(&client, handle, 0, vec![2; 100]).await?;
                client.release(handle, None).await?;
                client.getattr(fid).await.map(|entry| entry.attr.mtime)
            });
            let written = written.expect("written");
            assert!(written.sec > 1000, "{what}: the write has left {written:?}");
            for pause in [0, 200 * MS] {
                c.world.run_for(pause);
                let seen = run(&mut c, other, async move |client| client.getattr(fid).await);
                assert_eq!(seen.expect("seen").attr.mtime, written, "{what}, {pause}");
            }
        }
    }
}
