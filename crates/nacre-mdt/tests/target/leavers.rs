//! What a client leaves behind when it goes, where rows are damaged.

use crate::support::*;
use nacre_types::*;

#[test]
fn a_damaged_inode_does_not_keep_the_other_opens_of_a_client_that_goes() {
    let mut c = Cluster::new(71, 1, 2);
    let orphans = c.run(0, |c| async move {
        let mut orphans = Vec::new();
        for number in 0..40u64 {
            let name = format!("f{number}");
            let made = c.make_open(Fid::ROOT, name.as_bytes(), REG, Some((number, O_RDWR)), true).await;
            orphans.push(made.unwrap().entry.attr.fid);
            c.unlink(Fid::ROOT, name.as_bytes(), false).await.unwrap();
        }
        orphans
    });
    let bad = orphans[3];
    c.run_ms(2000);
    c.stop_mdt();
    let row = c.inode_row(bad);
    c.put_inode_rows(vec![(bad, vec![0xff; 9])]);
    c.restart();
    c.run(0, |c| async move {
        c.getattr(Fid::ROOT).await.unwrap();
        c.leave().await;
    });
    c.run_ms(3000);
    let open = c.run(1, |c| async move { param(&c, "mdt.*.open_files").await });
    assert_eq!(open, "0", "every open has ended");
    for fid in orphans.into_iter().filter(|fid| *fid != bad) {
        let gone = c.run(1, move |c| async move { c.getattr(fid).await });
        assert_eq!(gone.map(drop), Err(Failure::ESTALE), "{fid}");
    }
    c.stop_mdt();
    let found = c.report();
    assert_eq!((found.orphans, found.opens), (1, 0));
    let key = format!("{:02x?}", bad.key());
    assert!(found.sentences.iter().any(|s| s.contains(&key)), "the check names it: {:?}", found.sentences);
    // Once it is mended, the next start ends it.
    c.put_inode_rows(vec![(bad, row)]);
    c.restart();
    c.run_ms(3000);
    let (report, _) = c.check();
    assert_eq!((report.inodes, report.orphans), (1, 0));
}
