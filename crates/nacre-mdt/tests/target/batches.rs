//! Many changes in one request: what they need together, and how they are counted.

use crate::support::*;
use nacre_types::*;
use nacre_wire::Status;
use nacre_wire::mdt::*;

/// Makes a file over all OSTs, opens it as `handle`, and removes its name.
async fn orphan(c: &Client, handle: u64, osts: u32) -> Fid {
    let request = Create {
        parent: Fid::ROOT,
        name: Some(name_of(b"wide")),
        fid: c.new_fid().await,
        mode: REG,
        rdev: 0,
        target: b"",
        layout: Some(LayoutTemplate {
            stripe_count: -1,
            stripe_bytes: 0,
            first_ost: -1,
            ..LayoutTemplate::default()
        }),
        open: Some(OpenHow { handle: OpenHandle(handle), flags: O_RDWR }),
        exclusive: true,
        caller: Caller::root(),
        time: c.now(),
    };
    let made = c.call(&request).await.unwrap().entry;
    assert_eq!(made.layout.unwrap().components[0].stripes.len(), osts as usize);
    c.unlink(Fid::ROOT, b"wide", false).await.unwrap();
    request.fid
}

/// Each removal leaves a row for each OST, far more than an ordinary close writes.
#[test]
fn orphans_over_many_osts_are_closed_together() {
    const OSTS: u32 = 96;
    let mut c = Cluster::new(21, OSTS, 1);
    c.run_ms(5000);
    c.run(0, |c| async move {
        let mut closes = Vec::new();
        for number in 0..BATCH_MAX as u64 {
            let fid = orphan(&c, number, OSTS).await;
            closes.push(sub(&Close {
                fid,
                handle: OpenHandle(number),
                dirty: true,
                written: None,
                atime: None,
                data: None,
            }));
        }
        let closed = c.call(&Batch { stop_at_error: false, operations: closes }).await.unwrap();
        assert!(closed.results.iter().all(|r| r.status == Status::Success), "{closed:?}");
        assert_eq!(closed.results.len(), BATCH_MAX);
    });
    let (report, _) = c.check();
    assert_eq!((report.inodes, report.orphans), (1, 0));
}

/// As above, of a client that has gone.
#[test]
fn an_orphan_over_hundreds_of_osts_ends_with_its_client() {
    const OSTS: u32 = 360;
    let mut c = Cluster::new(23, OSTS, 1);
    c.run_ms(3000);
    c.run(0, |c| async move {
        orphan(&c, 1, OSTS).await;
        c.leave().await;
    });
    let (report, _) = c.check();
    assert_eq!((report.inodes, report.orphans), (1, 0));
}

#[test]
fn the_changes_of_a_batch_are_counted_under_their_own_names() {
    let mut c = Cluster::new(22, 1, 1);
    c.run(0, |c| async move {
        let dir = c.make(Fid::ROOT, b"d", DIR).await.unwrap();
        let unlink = |name, directory| Unlink {
            parent: Fid::ROOT,
            name,
            directory,
            caller: Caller::root(),
            time: c.now(),
            reported: Fid::default(),
        };
        let mode = Setattr {
            fid: dir,
            set: SetAttr { mode: Some(0o700), ..SetAttr::default() },
            caller: Caller::root(),
            time: c.now(),
        };
        let operations = vec![
            sub(&mode),
            sub(&mode),
            sub(&unlink(name_of(b"d"), true)),
            sub(&unlink(name_of(b"nothing"), false)),
        ];
        c.call(&Batch { stop_at_error: false, operations }).await.unwrap();
        for pattern in ["mdt.*.md_stats", "mdt.*.exports.*.stats"] {
            let stats = param(&c, pattern).await;
            let count = |name: &str| {
                let line = stats.lines().find(|line| line.starts_with(&format!("{name} ")));
                line.map_or("0", |line| line[name.len()..].trim_start().split(' ').next().unwrap()).to_owned()
            };
            let counts = ["mkdir", "setattr", "rmdir", "unlink", "batch"].map(count);
            assert_eq!(counts, ["1", "2", "1", "1", "0"], "{pattern}: {stats}");
        }
    });
}
