//! Holes that are punched into files, and zeros in their place, over the loss of an OST's process or machine.

mod support;

use nacre_client::{AllocateArgs, AllocateMode, Client};
use nacre_types::{Failure, OpenHandle};
use std::rc::Rc;
use support::{MS, OST, SEC, create, on_devices, read, run, write};

const LEN: u64 = 300_000;
/// Begins and ends inside blocks.
const HOLE: std::ops::Range<u64> = 10_001..200_003;

async fn allocate(client: &Rc<Client>, handle: OpenHandle, mode: AllocateMode) -> Result<(), Failure> {
    let args = AllocateArgs { offset: HOLE.start, len: HOLE.end - HOLE.start, mode, kill_suidgid: None };
    client.allocate(handle, args).await
}

fn with_a_hole(byte: u8) -> Vec<u8> {
    (0..LEN).map(|at| if HOLE.contains(&at) { 0 } else { byte }).collect()
}

/// The bytes beside the hole share blocks with zeros that were never synced; the log has the rows of both.
#[test]
fn a_hole_stays_when_its_ost_is_killed_or_loses_its_machine() {
    for seed in 1..=12 {
        let mut c = on_devices(seed, 2);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let mode = if seed % 2 == 0 { AllocateMode::Hole } else { AllocateMode::Zeros { keep_size: true } };
        let fid = run(&mut c, first, async move |client| {
            let (fid, handle) = create(&client, "f").await?;
            write(&client, handle, 0, vec![7; LEN as usize]).await?;
            client.fsync(fid, Some(handle)).await?;
            allocate(&client, handle, mode).await?;
            Ok::<_, Failure>(fid)
        });
        let fid = fid.expect("changed");
        assert_eq!(read(&mut c, second, fid).expect("reads"), with_a_hole(7), "seed {seed}");
        let pause = c.world.rng().below(900 * MS);
        c.world.run_for(pause);
        let ost = c.servers[OST];
        if seed % 4 < 2 {
            c.power_loss(OST);
        } else {
            c.world.kill(ost);
        }
        c.world.start_later(ost, 100 * MS);
        c.world.run_for(5 * SEC);
        assert_eq!(read(&mut c, second, fid).expect("reads"), with_a_hole(7), "seed {seed}: after the loss");
    }
}

/// A program that punches sees the space of the hole go, and so do others after its close.
#[test]
fn a_hole_takes_its_blocks_off_the_file() {
    let mut c = on_devices(5, 2);
    let (first, second) = (c.mounts[0], c.mounts[1]);
    let punched = run(&mut c, first, async |client| {
        let (fid, handle) = create(&client, "f").await?;
        write(&client, handle, 0, vec![7; LEN as usize]).await?;
        let before = client.getattr(fid).await?.attr.blocks;
        allocate(&client, handle, AllocateMode::Hole).await?;
        write(&client, handle, 0, vec![8; 10]).await?;
        let after = client.getattr(fid).await?.attr.blocks;
        client.release(handle, None).await?;
        Ok::<_, Failure>((fid, before, after))
    });
    let (fid, before, after) = punched.expect("punched");
    let hole_blocks = (HOLE.end / 4096 - HOLE.start.div_ceil(4096)) * 8;
    assert_eq!(after, before - hole_blocks);
    let later = run(&mut c, second, async move |client| client.getattr(fid).await.map(|e| e.attr.blocks));
    assert_eq!(later, Ok(after));
}

#[test]
fn data_and_holes_are_found_over_stripes() {
    let mut c = on_devices(3, 1);
    let first = c.mounts[0];
    let found = run(&mut c, first, async |client| {
        let (_, handle) = create(&client, "f").await?;
        assert_eq!(client.seek(handle, 0, true).await, Err(Failure::ENXIO));
        write(&client, handle, 1 << 20, vec![7; 5000]).await?;
        allocate(&client, handle, AllocateMode::Space { keep_size: true }).await?;
        let size = (1 << 20) + 5000;
        assert_eq!(client.seek(handle, size, false).await, Err(Failure::ENXIO));
        let data = client.seek(handle, 5, true).await?;
        let hole = client.seek(handle, 5, false).await?;
        let end = client.seek(handle, data + 1, false).await?;
        assert_eq!(client.seek(handle, data + 1, true).await, Ok(data + 1));
        client.release(handle, None).await?;
        Ok::<_, Failure>((data, hole, end))
    });
    assert_eq!(found, Ok((1 << 20, 5, (1 << 20) + 5000)));
}
