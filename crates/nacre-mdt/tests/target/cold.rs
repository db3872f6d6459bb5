//! Requests whose rows are not in memory: they take the way of those that wait, and give the same answers.

use crate::support::*;
use nacre_mdt::Mdt;
use nacre_node::{Ctx, Logic};
use nacre_osd::OsdConfig;
use nacre_target::{TargetConfig, TargetIsland};
use nacre_types::*;
use std::rc::Rc;

/// A metadata target that keeps few rows in memory.
fn forgetful(ctx: &Rc<Ctx>, config: TargetConfig) -> Box<dyn Logic> {
    let osd = OsdConfig {
        dirty_bytes_max: 256 << 10,
        cache_bytes_max: 1,
        ballast_bytes: 1 << 20,
        ..OsdConfig::default()
    };
    Box::new(TargetIsland::<Mdt>::new(ctx, config, osd))
}

#[test]
fn rows_that_are_not_in_memory_are_read_for_lookups_and_changes() {
    const FILES: u32 = 3000;
    let name = |n: u32| format!("file{n}").into_bytes();
    let mut c = Cluster::with_mdt(MdtIndex::ROOT, 72, 1, 1, forgetful);
    let fids = c.run(0, move |c| async move {
        let dir = c.make(Fid::ROOT, b"dir", DIR).await.unwrap();
        let mut fids = vec![dir];
        for n in 0..FILES {
            fids.push(c.make(dir, &name(n), REG).await.unwrap());
        }
        fids
    });
    c.run_ms(3000);
    c.run(0, move |c| async move {
        let dir = fids[0];
        for n in (0..FILES).step_by(29) {
            let fid = fids[n as usize + 1];
            assert_eq!(c.lookup(dir, &name(n)).await.map(|attr| attr.fid), Ok(fid));
            assert_eq!(c.lookup(dir, &name(n + FILES)).await.map(drop), Err(Failure::ENOENT));
            assert_eq!(c.lookup(fid, b"x").await.map(drop), Err(Failure::ENOTDIR));
        }
        for n in (1..FILES).step_by(31) {
            let fid = fids[n as usize + 1];
            assert_eq!(c.getattr(fid).await.map(|attr| attr.fid), Ok(fid));
            assert_eq!(c.make(dir, &name(n), REG).await.map(drop), Err(Failure::EEXIST));
            c.unlink(dir, &name(n), false).await.unwrap();
            assert_eq!(c.getattr(fid).await.map(drop), Err(Failure::ESTALE));
            assert_eq!(c.lookup(dir, &name(n)).await.map(drop), Err(Failure::ENOENT));
        }
    });
}
