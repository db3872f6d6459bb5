//! What a client sends for inodes and names on which it has locks, and in which order it gives them back.

#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, unreachable_pub, reason = "a module of tests")]
mod support;

use nacre_client::{Client, KernelCache, Stale, Validity};
use nacre_types::*;
use nacre_wire::Opcode;
use nacre_wire::mdt::{InodeRevoke, RevokeInodeLocks};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Bed, SECOND};

/// A kernel that forgets when a request of its own has a reply, so that a test can hold it back.
struct Kernel {
    asked: Arc<Mutex<Vec<Stale>>>,
    client: Weak<Client>,
}

impl KernelCache for Kernel {
    fn forget(&self, stale: Vec<Stale>) -> Pin<Box<dyn Future<Output = ()>>> {
        self.asked.lock().unwrap().extend(stale);
        let client = self.client.upgrade().unwrap();
        Box::pin(async move { drop(client.readlink(Fid::ROOT).await) })
    }
}
/// What such a kernel was asked to forget.
struct Asked(Arc<Mutex<Vec<Stale>>>);
impl Asked {
    /// Attaches a kernel that does not forget for now.
    fn attach(bed: &mut Bed) -> Self {
        bed.shared.borrow_mut().hold.insert(Opcode::Readlink);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let of_kernel = asked.clone();
        bed.call(move |c| async move {
            c.set_kernel_cache(Rc::new(Kernel { asked: of_kernel, client: Rc::downgrade(&c) }));
        });
        Self(asked)
    }
    fn take(&self) -> Vec<Stale> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A file that is closed, on an MDT that grants locks.
fn with_a_file() -> (Bed, Fid) {
    let mut bed = Bed::new(1);
    let (fid, handle) = bed.create("f");
    bed.call(move |c| async move { c.release(handle, None).await }).unwrap();
    bed.shared.borrow_mut().grants = true;
    bed.log();
    (bed, fid)
}
fn found(bed: &mut Bed) -> Result<Fid, Failure> {
    bed.call(|c| async move { c.lookup(Fid::ROOT, b"f").await.map(|entry| entry.attr.fid) })
}
fn validity(bed: &mut Bed, name: &'static [u8], fid: Fid) -> Validity {
    bed.call(move |c| async move { c.validity(Some((Fid::ROOT, name)), fid) })
}
fn revoke(bed: &mut Bed, fid: Fid, number: u64) {
    let revoke = InodeRevoke { fid, bits: InodeBits::ALL, wanted: InodeMode::Ex, number };
    bed.callback("demo-MDT0000", Opcode::RevokeInodeLocks, &RevokeInodeLocks { revokes: vec![revoke] });
    bed.settle();
}

#[test]
fn a_question_is_asked_once_while_the_locks_stand() {
    let (mut bed, fid) = with_a_file();
    assert_eq!(found(&mut bed), Ok(fid));
    assert_eq!(bed.log(), ["MDT0000 Lookup"]);
    bed.call(move |c| async move {
        for _ in 0..3 {
            assert_eq!(c.lookup(Fid::ROOT, b"f").await.unwrap().attr.fid, fid);
            assert_eq!(c.getattr(fid).await.unwrap().attr.fid, fid);
            assert_eq!(c.lookup(Fid::ROOT, b"nothing").await.err(), Some(Failure::ENOENT));
            assert_eq!(c.getxattr(fid, b"security.capability").await.err(), Some(Failure::ENODATA));
        }
    });
    assert_eq!(bed.log(), ["MDT0000 Lookup", "MDT0000 Getxattr"]);
    revoke(&mut bed, fid, 50);
    assert_eq!(bed.log(), ["MDT0000 CancelInodeLocks"]);
    assert_eq!(bed.shared.borrow().returned.as_ref().unwrap().acks[0].number, 50);
    assert_eq!(found(&mut bed), Ok(fid));
    assert_eq!(bed.log(), ["MDT0000 Lookup"]);
}

#[test]
fn a_lock_is_returned_after_the_kernel_has_forgotten() {
    let (mut bed, fid) = with_a_file();
    let asked = Asked::attach(&mut bed);
    found(&mut bed).unwrap();
    let Validity { entry, attr } = validity(&mut bed, b"f", fid);
    assert!(entry > Duration::from_secs(5) && entry <= Duration::from_secs(10) * 2 / 3 && attr == entry);
    assert_eq!(validity(&mut bed, b"f", Fid::ROOT).entry, Duration::ZERO, "another inode");
    bed.log();
    revoke(&mut bed, fid, 50);
    assert_eq!(bed.log(), ["MDT0000 Readlink"], "the kernel may still use it");
    assert_eq!(asked.take().len(), 1, "the name is valid under its directory");
    // A revoke of what the kernel has not been given waits for its turn.
    revoke(&mut bed, Fid::ROOT, 51);
    assert_eq!(validity(&mut bed, b"f", fid), Validity::default());
    assert_eq!(bed.log(), [""; 0]);
    bed.release();
    let (cancel, forget) = ("MDT0000 CancelInodeLocks", "MDT0000 Readlink");
    assert_eq!(bed.log(), [cancel, forget, cancel]);
    let name = bytes::Bytes::from_static(b"f");
    assert_eq!(asked.take(), [Stale::Name { parent: Fid::ROOT, name, child: Some(fid) }]);
}

#[test]
fn the_kernel_may_use_a_reply_as_long_as_the_lease_lasts() {
    let (mut bed, fid) = with_a_file();
    let _asked = Asked::attach(&mut bed);
    found(&mut bed).unwrap();
    let nothing = |c: Rc<Client>| async move {
        let found = c.lookup(Fid::ROOT, b"nothing").await.err();
        (found, c.negative_validity(Fid::ROOT, b"nothing"), c.negative_validity(Fid::ROOT, b"never asked"))
    };
    let (error, asked, never_asked) = bed.call(nothing);
    assert_eq!((error, never_asked), (Some(Failure::ENOENT), Duration::ZERO));
    assert!(asked > Duration::from_secs(5));
    bed.restart("demo-MDT0000");
    bed.settle();
    bed.world.run_for(SECOND);
    assert_eq!(validity(&mut bed, b"f", fid), Validity::default());
}

#[test]
fn after_a_restart_the_mdt_learns_when_the_kernel_has_forgotten_everything() {
    let (mut bed, fid) = with_a_file();
    let asked = Asked::attach(&mut bed);
    found(&mut bed).unwrap();
    validity(&mut bed, b"f", fid);
    bed.log();
    bed.restart("demo-MDT0000");
    bed.world.run_for(3 * SECOND);
    assert_eq!(asked.take(), [Stale::All]);
    assert_eq!(bed.log(), ["MDT0000 Readlink"]);
    bed.release();
    assert_eq!(bed.log(), ["MDT0000 FormerLocksEnded"]);
    assert_eq!(found(&mut bed), Ok(fid));
    assert_eq!(bed.log(), ["MDT0000 Lookup"]);
}

#[test]
fn without_the_cache_every_question_is_asked() {
    let (mut bed, fid) = with_a_file();
    found(&mut bed).unwrap();
    let set = |value: &'static str| {
        move |c: Rc<Client>| async move {
            let name = c.params().into_iter().find(|p| p.name.ends_with("dir_attr_cache")).unwrap().name;
            c.set_param(&name, value).unwrap();
        }
    };
    bed.call(set("0"));
    assert_eq!(bed.log(), ["MDT0000 Lookup", "MDT0000 CancelInodeLocks"]);
    assert_eq!(bed.shared.borrow().returned.as_ref().unwrap().cancels.len(), 2);
    bed.call(move |c| async move {
        c.getattr(fid).await.unwrap();
        c.getattr(fid).await.unwrap();
    });
    assert_eq!(bed.log(), ["MDT0000 Getattr", "MDT0000 Getattr"]);
    bed.call(set("1"));
    bed.call(move |c| async move {
        c.getattr(fid).await.unwrap();
        c.getattr(fid).await.unwrap();
    });
    assert_eq!(bed.log(), ["MDT0000 Getattr"]);
}
