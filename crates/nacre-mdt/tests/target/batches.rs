//! Many changes in one request: what they need together.

use crate::support::*;
use nacre_types::*;
use nacre_wire::mdt::*;

/// Each removal leaves a row for each OST, far more than an ordinary close writes.
#[test]
fn orphans_over_many_osts_are_closed_together() {
    const OSTS: u32 = 96;
    let mut c = Cluster::new(21, OSTS, 1);
    c.run_ms(5000);
    c.run(0, |c| async move {
        let mut closes = Vec::new();
        for number in 0..BATCH_MAX as u64 {
            let request = Create {
                parent: Fid::ROOT,
                name: b"wide",
                fid: c.new_fid().await,
                mode: REG,
                rdev: 0,
                target: b"",
                layout: Some(LayoutTemplate { stripe_count: -1, stripe_bytes: 0, first_ost: -1 }),
                open: Some(OpenHow { handle: OpenHandle(number), flags: O_RDWR }),
                exclusive: true,
                caller: Caller::root(),
                time: c.now(),
            };
            let made = c.call(&request).await.unwrap().entry;
            assert_eq!(made.layout.unwrap().components[0].stripes.len(), OSTS as usize);
            c.unlink(Fid::ROOT, b"wide", false).await.unwrap();
            let fid = request.fid;
            closes.push(sub(&Close { fid, handle: OpenHandle(number), dirty: true, written: None }));
        }
        let closed = c.call(&Batch { stop_at_error: false, operations: closes }).await.unwrap();
        assert!(closed.results.iter().all(|r| r.status == 0), "{closed:?}");
        assert_eq!(closed.results.len(), BATCH_MAX);
    });
    let (report, _) = c.check();
    assert_eq!((report.inodes, report.orphans), (1, 0));
}
