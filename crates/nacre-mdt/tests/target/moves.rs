//! Directories that move to another parent in a deep tree, and who is served meanwhile.

use crate::support::*;
use nacre_mdt::row::{Inode, ParentLink, Row as _};
use nacre_types::*;
use nacre_wire::mdt::*;
use std::cell::Cell;
use std::rc::Rc;

const DEPTH: u32 = 60_000;

fn make<'a>(parent: Fid, fid: Fid, name: &'a [u8], time: Timestamp) -> Create<'a> {
    Create {
        parent,
        name: Some(name_of(name)),
        fid,
        mode: DIR,
        rdev: 0,
        target: b"",
        layout: None,
        open: None,
        exclusive: true,
        caller: Caller::root(),
        time,
    }
}

/// Puts a chain of directories between `top` and `leaf`, both in the root so far, below each other. (Only what a walk
/// upwards looks at: made one by one they would take a minute.)
fn deepen(c: &mut Cluster, top: Fid, leaf: Fid) {
    c.run_ms(1500);
    c.stop_mdt();
    let (made, mut at, mut rows) = (Inode::from_row(&c.inode_row(leaf)).unwrap(), top, Vec::new());
    let between = (1..DEPTH).map(|n| Fid::new(leaf.seq, Oid(leaf.oid.0 * 0x100_0000 + n)));
    for fid in between.chain([leaf]) {
        let mut inode = made.clone();
        inode.attr.fid = fid;
        inode.links = vec![ParentLink { parent: at, name: made.links[0].name.clone() }];
        rows.push((fid, inode.to_row()));
        at = fid;
    }
    c.put_inode_rows(rows);
    c.restart();
}

#[test]
fn others_are_served_while_a_directory_moves_in_a_deep_tree() {
    let mut c = Cluster::new(61, 1, 2);
    let (top, leaf) = c.run(0, |c| async move {
        let top = c.make(Fid::ROOT, b"top", DIR).await.unwrap();
        let leaf = c.make(Fid::ROOT, b"leaf", DIR).await.unwrap();
        c.make(Fid::ROOT, b"x", DIR).await.unwrap();
        c.make(leaf, b"f", REG).await.unwrap();
        (top, leaf)
    });
    deepen(&mut c, top, leaf);
    let (served, over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let (counts, ends) = (served.clone(), over.clone());
    let other = c.start(1, move |c| async move {
        while !ends.get() {
            c.getattr(Fid::ROOT).await.unwrap();
            counts.set(counts.get() + 1);
        }
    });
    c.run_ms(100);
    assert!(served.get() > 0);
    let before = served.get();
    let moved = c.run(0, move |c| async move { c.rename((Fid::ROOT, b"x"), (leaf, b"x"), 0).await });
    let meanwhile = served.get() - before;
    assert_eq!(moved, Ok(()));
    assert!(meanwhile >= 5, "{meanwhile} requests were served while the tree was walked");
    let refused = c.run(0, move |c| async move { c.rename((Fid::ROOT, b"top"), (leaf, b"d"), 0).await });
    assert_eq!(refused, Err(Failure::EINVAL), "{top} would lie below itself");
    let file = c.run(0, move |c| async move { c.rename((leaf, b"f"), (Fid::ROOT, b"f"), 0).await });
    assert_eq!(file, Ok(()));
    over.set(true);
    c.wait(&other);
}

/// Two renames that are each right alone and make a circle together: one of them is refused, however long the walks take.
#[test]
fn directories_that_move_into_each_other_at_one_time_make_no_circle() {
    let mut c = Cluster::new(63, 1, 2);
    let [top, leaf, a, b] = c.run(0, |c| async move {
        let make = async |parent, name: &'static [u8]| c.make(parent, name, DIR).await.unwrap();
        let (top, leaf) = (make(Fid::ROOT, b"top").await, make(Fid::ROOT, b"leaf").await);
        [top, leaf, make(leaf, b"a").await, make(leaf, b"b").await]
    });
    deepen(&mut c, top, leaf);
    c.run(1, |c| async move { c.getattr(Fid::ROOT).await.unwrap() });
    let first = c.start(0, move |c| async move { c.rename((leaf, b"a"), (b, b"a"), 0).await });
    let second = c.start(0, move |c| async move { c.rename((leaf, b"b"), (a, b"b"), 0).await });
    let done = [c.wait(&first), c.wait(&second)];
    assert!(done.contains(&Ok(())) && done.contains(&Err(Failure::EINVAL)), "{done:?}");
}

/// The parts of a batch see where earlier ones have put directories.
#[test]
fn a_batch_that_moves_directories_makes_no_circle() {
    let mut c = Cluster::new(62, 1, 1);
    let statuses = c.run(0, |c| async move {
        let a = c.make(Fid::ROOT, b"a", DIR).await.unwrap();
        let b = c.make(Fid::ROOT, b"b", DIR).await.unwrap();
        let new = c.new_fid().await;
        let rename = |from: (Fid, &'static [u8]), to: (Fid, &'static [u8])| Rename {
            parent: from.0,
            name: name_of(from.1),
            new_parent: to.0,
            new_name: name_of(to.1),
            flags: 0,
            caller: Caller::root(),
            time: c.now(),
            reported: Fid::default(),
            whiteout: None,
        };
        let operations = vec![
            sub(&rename((Fid::ROOT, b"a"), (b, b"a"))),
            sub(&rename((Fid::ROOT, b"b"), (a, b"b"))), // into its own
            sub(&make(a, new, b"n", c.now())),
            sub(&rename((Fid::ROOT, b"b"), (new, b"b"))), // into its own, by way of a new one
            sub(&rename((b, b"a"), (Fid::ROOT, b"a"))),
            sub(&rename((Fid::ROOT, b"b"), (new, b"b"))),
        ];
        let done = c.call(&Batch { stop_at_error: false, operations }).await.unwrap();
        done.results.iter().map(|r| r.status.number()).collect::<Vec<_>>()
    });
    let einval = Errno::EINVAL.number();
    assert_eq!(statuses, [0, einval, 0, einval, 0, 0]);
    c.check();
}
