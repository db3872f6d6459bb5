//! The kernel's cache beside a dispatcher that keeps the notifications.

use super::*;
use nacre_types::{Oid, Seq};

/// A dispatcher that keeps the notifications, of which nothing is written.
#[derive(Default, Clone)]
struct Around {
    orders: Rc<RefCell<Vec<Order>>>,
    locked: Rc<Cell<bool>>,
    changes: Rc<Cell<bool>>,
    names: Rc<RefCell<Vec<(Fid, Bytes)>>>,
    reads: Rc<RefCell<Vec<(Fid, Range)>>>,
}
impl Surroundings for Around {
    fn holds_request_of(&self, _: Fid) -> bool {
        self.locked.get()
    }
    fn changes(&self, _: Fid) -> bool {
        self.changes.get()
    }
    fn names_in_kernel(&self) -> Option<Vec<(Fid, Bytes)>> {
        Some(self.names.borrow().clone())
    }
    fn reads_into_pages(&self, fid: Fid) -> Vec<Range> {
        self.reads.borrow().iter().filter(|(of, _)| *of == fid).map(|(_, range)| *range).collect()
    }
    fn send(&self, order: Order) {
        self.orders.borrow_mut().push(order);
    }
}
struct World {
    ctx: Rc<Ctx>,
    around: Around,
    kernel: KernelDoor,
    now: Duration,
}
impl World {
    fn new() -> Self {
        let (ctx, around) = (Ctx::new(1), Around::default());
        let kernel = KernelDoor::new(&ctx, around.clone());
        kernel.event(KernelEvent::Link(KernelLink::new(|_| Ok(()), true).unwrap()));
        Self { ctx, around, kernel, now: Duration::ZERO }
    }
    /// Lets time pass and returns the notifications that were sent. They count as written if `written` is set.
    fn run(&mut self, after_ms: u64, written: bool) -> Vec<Vec<Notification>> {
        self.now += Duration::from_millis(after_ms);
        self.ctx.set_time(Instant::default() + self.now, nacre_types::Timestamp::default());
        let mut sent = Vec::new();
        loop {
            self.ctx.run();
            let orders = std::mem::take(&mut *self.around.orders.borrow_mut());
            if orders.is_empty() {
                return sent;
            }
            for order in orders {
                sent.push(order.batch.notifications);
                if written {
                    self.kernel.event(KernelEvent::Written { number: order.number, result: Written::Done });
                }
            }
        }
    }
    /// A reply with attributes of `inodes` to thread `pid`, which holds `dir`.
    fn reply(&self, pid: u32, dir: Option<Fid>, inodes: &[Fid]) -> Option<Box<Terms>> {
        let long = Duration::from_secs(6);
        let mut grant = self.kernel.grant(pid, dir, inodes.len() > 1);
        for inode in inodes {
            grant.take(Validity { entry: long, attr: long }, *inode);
        }
        grant.terms(Places::None)
    }
    fn forget(&self, stale: Vec<Stale>) {
        self.ctx.spawn(self.kernel.forget(stale));
    }
    fn have_neighbours(&self, present: bool) {
        let link = self.kernel.0.link.borrow().clone().unwrap();
        link.gate.neighbours().pretended.store(present, Ordering::SeqCst);
    }
}
fn attributes(n: u32) -> Notification {
    Notification::InvalInode { fid: fid(n), pages: None }
}
fn expired(parent: u32) -> Notification {
    Notification::ExpireEntry { parent: fid(parent), name: b"x".to_vec() }
}
fn leave(dir: u32) -> Notification {
    Notification::InvalEntry { parent: fid(dir), name: NO_NAME.to_vec() }
}

#[test]
fn attributes_of_a_new_inode_are_forgotten_again_behind_the_callers_lock() {
    let mut w = World::new();
    assert!(w.reply(7, Some(fid(9)), &[fid(1)]).is_some());
    w.forget(vec![Stale::Inode(fid(1))]);
    assert_eq!(w.run(0, true), [vec![attributes(1)], vec![leave(9), attributes(1)]]);
    w.forget(vec![Stale::Inode(fid(1))]);
    assert!(w.run(0, true).is_empty(), "the kernel does not have them any more");
    // The thread has made its next request.
    w.reply(7, Some(fid(9)), &[fid(1)]);
    w.kernel.settle(7);
    w.forget(vec![Stale::Inode(fid(1))]);
    assert_eq!(w.run(0, true), [vec![attributes(1)]]);
    // A listing brings any inode and name.
    w.reply(7, Some(fid(9)), &[fid(1), fid(2)]);
    w.around.locked.set(true);
    w.forget(vec![Stale::Inode(fid(2)), Stale::Name { parent: fid(9), name: "x".into(), child: None }]);
    let epoch = Notification::IncEpoch;
    assert_eq!(
        w.run(0, true),
        [vec![epoch.clone()], vec![leave(9), epoch], vec![attributes(2)], vec![leave(9), attributes(2)]]
    );
    assert_eq!(w.ctx.live_tasks(), 0);
}

#[test]
fn attributes_are_forgotten_that_the_kernel_has_taken_over_late() {
    let mut w = World::new();
    for (after_ms, inode) in [(0, 1), (4900, 2), (600, 3), (5450, 4)] {
        w.run(after_ms, true);
        w.reply(7, None, &[fid(inode)]);
    }
    // The reply with them was decided 6.05 s ago, and its validity is 6 s.
    w.forget(vec![Stale::Inode(fid(2))]);
    assert_eq!(w.run(0, true), [vec![attributes(2)]]);
}

#[test]
fn what_is_being_forgotten_is_not_forgotten_yet() {
    for first in [Stale::All, Stale::Inode(fid(1))] {
        let mut w = World::new();
        w.reply(7, None, &[fid(1)]);
        w.forget(vec![first]);
        assert!(w.run(0, false).concat().contains(&attributes(1)));
        w.forget(vec![Stale::Inode(fid(1))]);
        assert_eq!(w.run(0, false), [vec![attributes(1)]], "the first notification may not be written yet");
        w.forget(vec![Stale::All]);
        assert!(w.run(0, false).concat().contains(&attributes(1)));
        (0..3).for_each(|number| w.kernel.event(KernelEvent::Written { number, result: Written::Done }));
        w.run(0, true);
        assert_eq!(w.ctx.live_tasks(), 0);
    }
}

#[test]
fn a_caller_that_is_slow_to_take_over_its_reply_is_waited_for() {
    let mut w = World::new();
    let lookup = |w: &World| w.reply(7, Some(fid(9)), &[fid(1)]);
    let written_but_one_that_waits = |w: &mut World| {
        // The attributes are written at once, the notification behind the lock waits.
        w.forget(vec![Stale::Inode(fid(1))]);
        w.ctx.run();
        let first = w.around.orders.borrow_mut().pop().unwrap();
        w.kernel.event(KernelEvent::Written { number: first.number, result: Written::Done });
        assert_eq!(w.run(0, false), [vec![leave(9), attributes(1)]]);
    };
    lookup(&w);
    written_but_one_that_waits(&mut w);
    assert!(w.run(50, false).is_empty());
    assert_eq!(w.ctx.live_tasks(), 1);
    w.kernel.settle(7);
    assert_eq!(w.run(1, true), [vec![attributes(1)]], "once more, as the caller has brought them back");
    assert_eq!(w.ctx.live_tasks(), 0);
    // It waits behind a change that waits for us.
    lookup(&w);
    written_but_one_that_waits(&mut w);
    for _ in 0..99 {
        assert!(w.run(1, false).is_empty());
    }
    assert_eq!(w.run(1, true), [vec![attributes(1)]], "the caller had the time to bring them back");
    assert_eq!(w.ctx.live_tasks(), 0);
}

#[test]
fn attributes_of_a_directory_do_not_overtake_a_change_of_it() {
    let mut w = World::new();
    w.around.changes.set(true);
    let mut grant = w.kernel.grant(7, None, false);
    let long = Duration::from_secs(6);
    assert!(grant.take(Validity { entry: Duration::ZERO, attr: long }, fid(9)).attr.is_zero());
    assert!(grant.terms(Places::None).is_none());
    w.around.changes.set(false);
    w.reply(7, None, &[fid(9)]);
    assert!(w.kernel.overlapped(fid(9), 7).is_none(), "the thread that makes the change has them");
    assert!(w.kernel.overlapped(fid(8), 8).is_none());
    let forgotten = w.kernel.overlapped(fid(9), 8).unwrap();
    w.ctx.spawn(forgotten);
    assert_eq!(w.run(0, true), [vec![attributes(9)]]);
}

#[test]
fn a_file_lock_overtakes_attributes_that_no_lock_of_the_inode_covers() {
    let mut w = World::new();
    let give = |w: &World, attr: Duration| {
        let mut grant = w.kernel.grant(7, None, false);
        grant.take(Validity { entry: Duration::ZERO, attr }, fid(1));
        drop(grant.terms(Places::None));
    };
    let locked = |w: &mut World, is_asked: bool| {
        let overtaken = w.kernel.locked(fid(1), is_asked);
        overtaken.map_or_else(Vec::new, |overtaken| {
            w.ctx.spawn(overtaken);
            w.run(0, true)
        })
    };
    assert!(locked(&mut w, false).is_empty());
    assert_eq!(locked(&mut w, true), [vec![attributes(1)]], "a request for them is under way");
    give(&w, Duration::ZERO);
    assert_eq!(locked(&mut w, false), [vec![attributes(1)]]);
    w.run(1000, true);
    assert!(locked(&mut w, false).is_empty(), "they were taken over");
    // Covered, but without a validity, because a change is running.
    w.around.changes.set(true);
    give(&w, Duration::from_secs(6));
    assert!(locked(&mut w, false).is_empty());
    w.forget(vec![Stale::Inode(fid(1))]);
    w.run(0, true);
    assert_eq!(locked(&mut w, false), [vec![attributes(1)]]);
}

#[test]
fn a_directory_is_forgotten_once_for_all_replies_from_before() {
    let mut w = World::new();
    w.reply(7, Some(fid(5)), &[fid(9)]);
    w.run(1, true);
    w.ctx.spawn(w.kernel.overlapped(fid(9), 8).unwrap());
    assert_eq!(w.run(0, true), [vec![attributes(9)], vec![leave(5), attributes(9)]]);
    assert!(w.kernel.overlapped(fid(9), 8).is_none(), "thread 7 does not bring them back any more");
    let given = |w: &World| {
        let attr = Duration::from_secs(6);
        let mut grant = w.kernel.grant(7, None, false);
        let given = grant.take(Validity { entry: Duration::ZERO, attr }, fid(9)).attr;
        drop(grant.terms(Places::None));
        given == attr
    };
    // Thread 7 may have ended: the directory is not shared yet, and is forgotten again if it is.
    assert!(given(&w));
    w.run(1, true);
    w.ctx.spawn(w.kernel.overlapped(fid(9), 8).unwrap());
    assert_eq!(w.run(0, true), [vec![attributes(9)]]);
    // While several threads use the directory its attributes have no validity, which changes would have to end.
    assert!(!given(&w));
    assert!(w.kernel.overlapped(fid(9), 8).is_none());
    w.run(100, true);
    assert!(given(&w));
    assert!(w.kernel.overlapped(fid(9), 8).is_some());
}

#[test]
fn an_epoch_follows_a_name_that_waits_in_the_kernel_but_not_a_busy_notifier() {
    let mut w = World::new();
    let name = || Stale::Name { parent: fid(9), name: "x".into(), child: None };
    w.forget(vec![name()]);
    assert!(w.run(0, false).is_empty(), "no name is valid");
    w.reply(7, None, &[fid(9)]);
    w.forget(vec![name()]);
    assert_eq!(w.run(0, false).len(), 1);
    // No thread has begun to write it.
    for _ in 0..20 {
        assert!(w.run(1, false).is_empty());
    }
    assert_eq!(w.run(1, true), [vec![Notification::IncEpoch]]);
    w.forget(vec![name()]);
    w.run(0, true);
    assert_eq!((w.run(1, false).len(), w.ctx.live_tasks()), (0, 0));
    w.forget(vec![name()]);
    w.ctx.run();
    let order = w.around.orders.borrow_mut().pop().unwrap();
    order.batch.begun.store(true, Ordering::Release);
    assert!(w.run(1, true).is_empty(), "it has the time from when it was seen to begin");
    assert_eq!(w.run(1, true), [vec![Notification::IncEpoch]]);
    assert_eq!(w.ctx.live_tasks(), 0);
}

#[test]
fn access_control_lists_are_forgotten_without_valid_attributes() {
    let mut w = World::new();
    w.forget(vec![Stale::Inode(fid(1))]);
    assert!(w.run(0, true).is_empty());
    w.forget(vec![Stale::Acls(fid(1))]);
    assert_eq!(w.run(0, true), [vec![attributes(1)]]);
    assert_eq!(w.ctx.live_tasks(), 0);
}

#[test]
fn a_name_whose_inode_has_other_permissions_expires_and_is_not_detached() {
    let mut w = World::new();
    let stale = || Stale::Permissions { parent: fid(9), name: "x".into() };
    w.forget(vec![stale()]);
    assert!(w.run(0, false).is_empty(), "no name is valid");
    w.reply(7, None, &[fid(9)]);
    // A request of the directory, which is soon replied to, is no reason for an epoch.
    w.around.locked.set(true);
    w.forget(vec![stale()]);
    assert_eq!(w.run(0, true), [vec![expired(9)]]);
    assert_eq!(w.ctx.live_tasks(), 0);
    w.around.locked.set(false);
    w.forget(vec![stale()]);
    w.ctx.run();
    w.around.orders.borrow_mut().pop().unwrap().batch.begun.store(true, Ordering::Release);
    for _ in 1..EXPIRE_TIMEOUT.as_millis() {
        assert!(w.run(1, true).is_empty());
    }
    assert_eq!(w.run(1, true), [vec![Notification::IncEpoch]], "it waits in the kernel");
    assert_eq!(w.ctx.live_tasks(), 0);
}

#[test]
fn pages_are_dropped_beside_reads_that_wait_but_not_before_they_are() {
    let pages = |from, len| Notification::InvalInode { fid: fid(1), pages: Some((from, len)) };
    let mut w = World::new();
    w.around.reads.borrow_mut().push((fid(1), (4096, 8192)));
    w.forget(vec![Stale::Pages(fid(1))]);
    assert_eq!(w.run(0, false), [vec![pages(0, 4096), pages(8192, 0)]]);
    assert!(w.run(5, false).is_empty());
    assert_eq!(w.ctx.live_tasks(), 1, "it waits");
    // Another read has come since, for which the notification may wait.
    w.around.reads.borrow_mut().push((fid(1), (8192, 16384)));
    assert_eq!(w.run(1, true), [vec![pages(0, 4096), pages(16384, 0)]]);
    assert_eq!(w.ctx.live_tasks(), 0);
}

#[test]
fn names_expire_when_a_neighbour_comes() {
    let mut w = World::new();
    w.reply(7, None, &[fid(9)]);
    *w.around.names.borrow_mut() = (0..1000).map(|n| (fid(n / 300), Bytes::from(n.to_string()))).collect();
    // An epoch that would detach the neighbour waits.
    w.have_neighbours(true);
    w.around.locked.set(true);
    w.forget(vec![Stale::Name { parent: fid(9), name: "x".into(), child: None }]);
    assert_eq!(w.run(0, false), [vec![Notification::IncEpoch]]);
    w.kernel.event(KernelEvent::Neighbours);
    let at_a_time = expire::EXPIRING_ORDERS * expire::EXPIRING_NAMES;
    assert_eq!(w.run(0, false).concat().len(), at_a_time);
    w.kernel.event(KernelEvent::Written { number: 0, result: Written::LeftOut });
    // The name that has changed expires as well.
    assert_eq!(w.run(1, false), [vec![expired(9)]]);
    w.kernel.event(KernelEvent::Written { number: at_a_time as u64 / 64 + 1, result: Written::Done });
    for number in 1..=expire::EXPIRING_ORDERS as u64 {
        w.kernel.event(KernelEvent::Written { number, result: Written::Done });
    }
    assert_eq!(w.run(0, true).concat().len(), 1000 - at_a_time);
    assert_eq!(w.ctx.live_tasks(), 0, "no name is valid any more");
    w.forget(vec![Stale::Name { parent: fid(9), name: "x".into(), child: None }]);
    assert!(w.run(0, false).is_empty());
}

#[test]
fn names_expire_again_where_a_caller_may_bring_them_back() {
    for settles in [true, false] {
        let mut w = World::new();
        *w.around.names.borrow_mut() = (0..30).map(|n| (fid(n / 10), Bytes::from(n.to_string()))).collect();
        // The name of a file without valid attributes.
        let mut grant = w.kernel.grant(7, Some(fid(1)), false);
        grant.take(Validity { entry: Duration::from_secs(6), attr: Duration::ZERO }, fid(9));
        assert!(grant.terms(Places::None).is_some());
        w.kernel.event(KernelEvent::Neighbours);
        // One that has been given attributes since, and no name, is not waited for.
        let mut grant = w.kernel.grant(8, Some(fid(2)), false);
        w.now += Duration::from_millis(1);
        w.ctx.set_time(Instant::default() + w.now, nacre_types::Timestamp::default());
        grant.take(Validity { entry: Duration::ZERO, attr: Duration::from_secs(6) }, fid(9));
        assert!(grant.terms(Places::None).is_some());
        assert_eq!(w.run(0, true).concat().len(), 30);
        assert!(w.run(50, true).is_empty(), "the caller has not run");
        if settles {
            w.kernel.settle(7);
        }
        // Without another request it has run after a second: its thread may not have had a CPU before.
        assert!(settles || w.run(948, true).is_empty());
        let again = w.run(1, true).concat();
        assert_eq!(again.len(), 10);
        assert!(
            again.iter().all(|n| matches!(n, Notification::ExpireEntry { parent, .. } if *parent == fid(1)))
        );
        assert_eq!(w.ctx.live_tasks(), 0);
        w.forget(vec![Stale::Name { parent: fid(1), name: "x".into(), child: None }]);
        assert!(w.run(0, false).is_empty());
    }
}

#[test]
fn a_name_to_which_an_entry_moves_meanwhile_expires_too() {
    let mut w = World::new();
    w.reply(7, None, &[fid(9)]);
    w.kernel.moved(fid(3).ino(), b"x");
    w.around.names.borrow_mut().push((fid(1), "x".into()));
    w.kernel.event(KernelEvent::Neighbours);
    assert_eq!(w.run(0, false), [vec![expired(1)]], "not the name of a rename from before");
    w.kernel.moved(fid(2).ino(), b"x");
    w.kernel.event(KernelEvent::Written { number: 0, result: Written::Done });
    assert_eq!(w.run(0, false), [vec![expired(2)]]);
    w.kernel.moved(fid(4).ino(), b"x");
    w.kernel.event(KernelEvent::Written { number: 1, result: Written::Done });
    assert_eq!(w.run(0, true), [vec![expired(4)]]);
    assert_eq!(w.ctx.live_tasks(), 0);
    w.forget(vec![Stale::Name { parent: fid(4), name: "x".into(), child: None }]);
    assert!(w.run(0, false).is_empty(), "no name is valid any more");
}

#[test]
fn names_that_are_given_while_others_expire_are_valid() {
    let mut w = World::new();
    w.reply(7, None, &[fid(9)]);
    w.around.names.borrow_mut().push((fid(1), "x".into()));
    w.kernel.event(KernelEvent::Neighbours);
    assert_eq!(w.run(0, false), [vec![expired(1)]]);
    // The neighbours have gone. A validity that does not last as long as those from before.
    let mut grant = w.kernel.grant(8, None, false);
    grant.take(Validity { entry: Duration::from_secs(1), attr: Duration::ZERO }, fid(8));
    assert!(grant.terms(Places::None).is_some());
    w.kernel.event(KernelEvent::Written { number: 0, result: Written::Done });
    assert!(w.run(0, true).is_empty());
    w.forget(vec![Stale::Name { parent: fid(9), name: "x".into(), child: None }]);
    assert_eq!(w.run(0, true).len(), 1);
    assert_eq!(w.ctx.live_tasks(), 0);
}

#[test]
fn a_changed_name_that_could_not_be_made_to_expire_is_not_forgotten_when_the_neighbours_have_gone() {
    let mut w = World::new();
    w.reply(7, None, &[fid(9)]);
    w.have_neighbours(true);
    w.forget(vec![Stale::Name { parent: fid(9), name: "x".into(), child: None }]);
    assert_eq!(w.run(0, false).len(), 1);
    w.kernel.event(KernelEvent::Written { number: 0, result: Written::LeftOut });
    assert_eq!(w.run(0, false), [vec![expired(9)]]);
    w.have_neighbours(false);
    w.kernel.event(KernelEvent::Written { number: 1, result: Written::Failed });
    w.run(0, false);
    assert_eq!(w.run(1, true), [vec![expired(9)]], "again");
    assert_eq!(w.ctx.live_tasks(), 0);
}

#[test]
fn a_name_that_changes_while_there_are_neighbours_expires() {
    let mut w = World::new();
    for locked in [false, true] {
        w.reply(7, None, &[fid(9)]);
        w.have_neighbours(true);
        w.around.locked.set(locked);
        w.forget(vec![Stale::Name { parent: fid(9), name: "x".into(), child: None }]);
        assert_eq!(w.run(0, false).len(), 1);
        let number = if locked { 2 } else { 0 };
        w.kernel.event(KernelEvent::Written { number, result: Written::LeftOut });
        assert_eq!(w.run(1, true), [vec![expired(9)]]);
        assert_eq!(w.ctx.live_tasks(), 0);
        w.have_neighbours(false);
    }
}

#[test]
fn what_was_left_out_is_written_when_the_neighbour_has_gone() {
    let mut w = World::new();
    w.reply(7, None, &[fid(9)]);
    w.have_neighbours(true);
    w.forget(vec![Stale::All]);
    let all = [vec![Notification::IncEpoch, attributes(9)]];
    assert_eq!(w.run(0, false), all);
    w.kernel.event(KernelEvent::Written { number: 0, result: Written::LeftOut });
    assert!(w.run(20, false).is_empty());
    w.have_neighbours(false);
    // Names are valid again, for longer.
    w.reply(8, None, &[fid(8)]);
    assert_eq!(w.run(5, true), all);
    assert_eq!(w.ctx.live_tasks(), 0);
}

#[test]
fn names_run_out_where_a_notification_would_detach_a_neighbour() {
    let mut w = World::new();
    w.reply(7, None, &[fid(9)]);
    w.have_neighbours(true);
    w.forget(vec![Stale::All]);
    w.run(0, false);
    w.kernel.event(KernelEvent::Written { number: 0, result: Written::LeftOut });
    // 6 s from the reply on, which the kernel may have taken over 3 s late.
    assert!(w.run(8_999, false).is_empty());
    assert_eq!(w.ctx.live_tasks(), 1);
    assert!(w.run(1, false).is_empty());
    assert_eq!(w.ctx.live_tasks(), 0);
    w.forget(vec![Stale::All]);
    assert!(w.run(0, true).is_empty(), "no epoch");
}

fn fid(n: u32) -> Fid {
    Fid::new(Seq(0x100), Oid(n))
}
