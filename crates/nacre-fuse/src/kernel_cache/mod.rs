//! The kernel's cache of names and attributes, as an extension of the client's locks.
//!
//! A reply says how long the kernel may use a name and attributes without asking again: as long as the client's locks
//! stand (`Ops::validity`). When the client gives up a lock earlier, it has the kernel forget ([`KernelDoor::forget`])
//! before it returns the lock. Invariants: while the future of `forget` is not complete, the lock is not returned; when it
//! is complete, the kernel uses nothing of what was to be forgotten, also if a reply that was decided earlier is written
//! later (`gate.rs`); no notification is written by a thread that serves requests (`notify.rs`).
//!
//! Names are forgotten by INVAL_ENTRY. It waits for the kernel's lock of the directory, which a request without a reply
//! may hold, and that request may wait for the lock that is to be returned. So INC_EPOCH, which takes no lock and makes
//! the kernel ask for every name again, is sent instead when we hold a request of the directory, when more than
//! [`NAMES_MAX`] names are concerned, and when INVAL_ENTRY has not returned after [`NAME_TIMEOUT`]. It detaches file
//! systems that are mounted on directories of the mount, at their next access: it is counted and to be rare. A kernel
//! without INC_EPOCH (before 7.44) gets no validity of names, and neither does any kernel while there are such file systems
//! (`neighbours.rs`). INVAL_ENTRY detaches them too. When the first of them is seen, all names are made to expire
//! (`expire.rs`), so that neither is needed from then on; a change that comes in between waits for that. INC_EPOCH leaves attributes alone; INVAL_INODE of
//! attributes takes no lock, so it is always sent.
//!
//! **Permissions.** The kernel compares the caller of a chmod, chown, utimensat, and of a removal from a sticky directory,
//! with the owner that it remembers, and renews that with the name. So a name expires when the permissions of its inode
//! change ([`Stale::Permissions`]): EXPIRE_ONLY detaches nothing, also no working directory. Access control lists stay in the
//! kernel beyond the validity of attributes, and are forgotten by INVAL_INODE whenever it may have some ([`Stale::Acls`]).
//!
//! **Attributes without a validity.** The kernel discards attributes of LOOKUP, GETATTR and READDIRPLUS that it asked
//! for before an INVAL_INODE, but takes over those of SETATTR and LINK unchecked. So these have no validity
//! (`handlers`). Those of an inode that is new to the kernel are taken over unchecked, too, but under the lock of the
//! directory: while such a reply may not have been taken over (`unsettled.rs`), INVAL_INODE is sent once more behind an
//! INVAL_ENTRY of the directory. INC_EPOCH alone does not reach the names of a listing that is being taken over, so it
//! is sent once more likewise. Attributes of a directory in which a change is running have no validity, and a change
//! that overtakes older attributes makes the kernel forget them before its reply ([`KernelDoor::overlapped`]).

mod expire;
mod inodes;
pub(crate) mod listings;
#[cfg(test)]
mod tests;

use self::expire::Moves;
use self::inodes::Inodes;
use crate::gate::{Counted, Gate, Places, Terms};
use crate::late_attributes::LateAttributes;
use crate::left_names::LeftNames;
use crate::moved::Forgotten;
use crate::notify::{Batch, HAS_NEIGHBOURS, NO_NAME, Notification, Notifier};
use crate::pages::{Range, all_but};
use crate::unsettled::Unsettled;
use bytes::Bytes;
use nacre_client::{KernelCache, Stale, Validity};
use nacre_node::{Awaited, Ctx, Promise, WaitList};
use nacre_types::{Fid, Instant, SeededHash};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

/// More names than this are forgotten by an epoch.
const NAMES_MAX: usize = 64;
/// How long INVAL_ENTRY may wait for the kernel's lock of the directory.
const NAME_TIMEOUT: Duration = Duration::from_millis(1);
/// The same for a name that expires. An epoch instead would detach what programs have for their working directories, so it is
/// not sent because the machine is busy.
const EXPIRE_TIMEOUT: Duration = Duration::from_millis(50);
/// How long a thread of the notifier may take to begin: longer than [`NAME_TIMEOUT`] on a busy machine, where an epoch
/// would not be faster.
const BEGIN_TIMEOUT: Duration = Duration::from_millis(20);
/// How long callers are waited for that may not have taken over a reply, while a notification behind the lock of their
/// directory waits: they run, unless they wait behind a change that itself waits for the lock that is to be returned.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(100);
/// Files whose pages are dropped together, and notifications under way for them: each READ that comes in between may block
/// one, until it has its reply.
const FILES_AT_A_TIME: usize = 64;
const PAGE_ORDERS_MAX: usize = 4;
/// A shorter validity is not worth its notification.
const VALIDITY_MIN: Duration = Duration::from_millis(200);

/// The way to the kernel: the gate and the notifier of a mount.
pub(crate) struct KernelLink {
    gate: Arc<Gate>,
    notifier: Notifier,
    has_epoch: bool,
    forgotten: Arc<Forgotten>,
}
impl KernelLink {
    /// `write` writes a notification to the kernel; `has_epoch`: INC_EPOCH is supported.
    ///
    /// # Errors
    /// Threads could not be created.
    pub(crate) fn new(
        write: impl Fn(&[u8]) -> rustix::io::Result<()> + Send + Sync + 'static,
        has_epoch: bool,
    ) -> std::io::Result<Arc<Self>> {
        Self::with_gate(write, has_epoch, Gate::default())
    }
    fn with_gate(
        write: impl Fn(&[u8]) -> rustix::io::Result<()> + Send + Sync + 'static,
        has_epoch: bool,
        gate: Gate,
    ) -> std::io::Result<Arc<Self>> {
        let gate = Arc::new(gate);
        let notifier = Notifier::with_gate(write, gate.clone())?;
        Ok(Arc::new(Self { gate, notifier, has_epoch, forgotten: Arc::default() }))
    }
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }
    /// The nodes that the kernel has forgotten.
    pub(crate) fn forgotten(&self) -> &Arc<Forgotten> {
        &self.forgotten
    }
}

/// The event by which the island of a mount gives the kernel validities although there is no kernel: for measurements of the
/// island. Notifications are lost.
///
/// # Errors
/// Threads could not be created.
pub fn without_mount() -> std::io::Result<nacre_node::Event> {
    let link = KernelLink::with_gate(|_| Ok(()), true, Gate::without_clocks())?;
    Ok(nacre_node::Event::Door(Box::new(KernelEvent::Link(link))))
}

/// Delivered to the island as [`nacre_node::Event::Door`].
pub(crate) enum KernelEvent {
    Link(Arc<KernelLink>),
    /// The notifications of this number have been written.
    Written {
        number: u64,
        result: Written,
    },
    /// A suspend, or a reply that was written too late: nothing that the kernel was given is valid.
    Everything,
    /// A file system was mounted on a directory of the mount.
    Neighbours,
}

/// The result of notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// The queue of the notifier is full, or the kernel had no memory.
    Failed,
    /// Notifications of names were left out: there are neighbours.
    LeftOut,
}

/// Notifications to be written outside the island.
pub struct Order {
    link: Arc<KernelLink>,
    batch: Batch,
    number: u64,
}
impl Order {
    /// Queues the notifications; `tell` receives the event for the island.
    pub(crate) fn submit(self, tell: impl Fn(KernelEvent) + Send + Sync + 'static) {
        let Self { link, batch, number } = self;
        let told = Arc::new(tell);
        let later = told.clone();
        let done = Box::new(move |result: rustix::io::Result<bool>| {
            let result = match result {
                Err(rustix::io::Errno::NOMEM | rustix::io::Errno::INTR) => Written::Failed,
                Err(HAS_NEIGHBOURS) => Written::LeftOut,
                // Any other error: the mount has ended.
                _ => Written::Done,
            };
            later(KernelEvent::Written { number, result });
        });
        if link.notifier.submit(batch, done).is_err() {
            told(KernelEvent::Written { number, result: Written::Failed });
        }
    }
}

/// The parts of the dispatcher that the kernel's cache needs.
pub(crate) trait Surroundings {
    /// Whether the kernel may hold its lock of a directory until we reply to a request.
    fn holds_request_of(&self, dir: Fid) -> bool;
    /// Whether a change of a directory's entries is running.
    fn changes(&self, dir: Fid) -> bool;
    /// The names that may be valid. A change through a stand-in leaves those of the directory's own node as they were
    /// (`moved.rs`): they are among them until its reply. `None`: there may be others, which are being forgotten.
    fn names_in_kernel(&self) -> Option<Vec<(Fid, Bytes)>>;
    /// The parts of a file whose pages the replies to requests under way will fill.
    fn reads_into_pages(&self, fid: Fid) -> Vec<Range>;
    /// Passes notifications to the front end.
    fn send(&self, order: Order);
}

struct State {
    ctx: Rc<Ctx>,
    door: Box<dyn Surroundings>,
    /// `None` before the mount, and in the simulator: the kernel is given nothing.
    link: RefCell<Option<Arc<KernelLink>>>,
    /// Raised by every `forget`; replies carry that of their decision.
    generation: Cell<u64>,
    inodes: RefCell<Inodes>,
    /// The end of the latest validity of a name.
    names_until: Cell<Instant>,
    /// Counts the names that were given a validity, and when the last one was.
    names_given: Cell<u64>,
    names_given_at: Cell<Instant>,
    /// Woken when no name is valid before that.
    names_expired: WaitList,
    /// All names are being made to expire that were given up to this number.
    expiring: Cell<Option<u64>>,
    moves: RefCell<Moves>,
    unsettled: RefCell<Unsettled>,
    late: RefCell<LateAttributes>,
    left_names: RefCell<LeftNames>,
    /// Inodes whose attributes are being forgotten: they are in `inodes` no more, and the kernel may still use them.
    forgetting: RefCell<BTreeMap<u64, Vec<Fid>>>,
    orders: RefCell<BTreeMap<u64, Promise<Written>>>,
    next_order: Cell<u64>,
}

/// The kernel's cache as the island of a mount sees it.
#[derive(Clone)]
pub(crate) struct KernelDoor(Rc<State>);

impl KernelCache for KernelDoor {
    fn forget(&self, stale: Vec<Stale>) -> Pin<Box<dyn Future<Output = ()>>> {
        let (state, generation) = (self.0.clone(), self.next_generation());
        let now = state.ctx.now();
        for stale in &stale {
            if let Stale::Name { parent, name, child: Some(child) } = stale {
                let mut left = state.left_names.borrow_mut();
                let place = left.place(*parent, name);
                left.add(*child, place, None, now);
            }
        }
        Box::pin(async move {
            let pages: Vec<Fid> = stale.iter().filter_map(Stale::pages).collect();
            state.forget(stale, generation, false).await;
            state.forget_pages(generation, &pages).await;
        })
    }
}

impl KernelDoor {
    pub(crate) fn new(ctx: &Rc<Ctx>, door: impl Surroundings + 'static) -> Self {
        Self(Rc::new(State {
            ctx: ctx.clone(),
            door: Box::new(door),
            link: RefCell::default(),
            generation: Cell::new(0),
            inodes: RefCell::new(Inodes::new(SeededHash::new(ctx.random()))),
            names_until: Cell::default(),
            names_given: Cell::new(0),
            names_given_at: Cell::default(),
            names_expired: ctx.wait_list(),
            expiring: Cell::default(),
            moves: RefCell::default(),
            unsettled: RefCell::default(),
            late: RefCell::default(),
            left_names: RefCell::new(LeftNames::new(SeededHash::new(ctx.random()))),
            forgetting: RefCell::default(),
            orders: RefCell::default(),
            next_order: Cell::new(0),
        }))
    }
    /// From here on decisions belong to the next generation, also if a future that is made now is polled later.
    fn next_generation(&self) -> u64 {
        let generation = self.0.generation.get() + 1;
        self.0.generation.set(generation);
        generation
    }
    pub(crate) fn event(&self, event: KernelEvent) {
        match event {
            KernelEvent::Link(link) => {
                // An earlier island of this mount may have raised it.
                self.0.generation.set(link.gate.generation());
                *self.0.link.borrow_mut() = Some(link);
            }
            KernelEvent::Written { number, result } => {
                let promise = self.0.orders.borrow_mut().remove(&number);
                if let Some(promise) = promise {
                    promise.fulfil(result);
                }
            }
            KernelEvent::Everything => {
                // The kernel's validities do not end with those that are known here.
                let (state, generation) = (self.0.clone(), self.next_generation());
                self.0.ctx.spawn(async move { state.forget(vec![Stale::All], generation, true).await });
            }
            KernelEvent::Neighbours => {
                let (state, generation) = (self.0.clone(), self.next_generation());
                self.0.ctx.spawn(async move { state.expire_names(generation).await });
            }
        }
    }
    pub(crate) fn left_names(&self) -> RefMut<'_, LeftNames> {
        self.0.left_names.borrow_mut()
    }
    /// A thread has made a request.
    pub(crate) fn settle(&self, pid: u32) {
        self.0.unsettled.borrow_mut().settle(pid);
    }
    /// Begins the grant of validities in one reply to thread `pid`, which holds `dir` in the kernel.
    pub(crate) fn grant(&self, pid: u32, dir: Option<Fid>, is_listing: bool) -> Grant<'_> {
        let link = self.0.link.borrow().clone();
        Grant { from: link.map(|link| (&*self.0, link)), pid, dir, is_listing, ..Grant::none() }
    }
    /// A change of the entries of `dir` for thread `pid` is complete. If another thread may still take over attributes of
    /// the directory from before, they are forgotten: the kernel would put them back after the reply to the change.
    pub(crate) fn overlapped(&self, dir: Fid, pid: u32) -> Option<Pin<Box<dyn Future<Output = ()>>>> {
        let since = self.0.ctx.now();
        let other = self.0.unsettled.borrow().has_other(dir, pid, since);
        other.then(|| -> Pin<Box<dyn Future<Output = ()>>> {
            let (state, forgotten) = (self.0.clone(), self.forget(vec![Stale::Inode(dir)]));
            Box::pin(async move {
                forgotten.await;
                state.unsettled.borrow_mut().forgotten(dir, since, state.ctx.now());
            })
        })
    }
    /// A thread gets a file lock. If the kernel may still take over attributes from before, on another thread, it is made to
    /// ignore them.
    pub(crate) fn locked(&self, fid: Fid, is_asked: bool) -> Option<Pin<Box<dyn Future<Output = ()>>>> {
        let is_late = is_asked || self.0.late.borrow().may_come(fid, self.0.ctx.now());
        // The notification for access control lists is sent in any case, and the kernel compares the same version.
        is_late.then(|| self.forget(vec![Stale::Acls(fid)]))
    }
    /// A rename has succeeded, before its reply: the kernel moves an entry to this name in the directory that it knows as
    /// `node`.
    pub(crate) fn moved(&self, node: u64, name: &[u8]) {
        self.0.moves.borrow_mut().add(Fid::from_ino(node), name);
    }
    /// Counters for people.
    pub(crate) fn text(&self) -> String {
        self.0.link.borrow().as_ref().map(|link| link.gate.text()).unwrap_or_default()
    }
    /// The island ends, and its locks with it.
    pub(crate) fn abandon(&self, pages: &[Fid]) {
        let (Ok(link), Ok(mut inodes)) = (self.0.link.try_borrow(), self.0.inodes.try_borrow_mut()) else {
            return;
        };
        if let Some(link) = &*link {
            let notifications = everything(link, &mut inodes);
            // At once: the next island of this mount begins with this generation.
            link.gate.raise(self.0.generation.get() + 1);
            let batch = Batch { notifications, is_forced: true, ..Batch::default() };
            // Refused only if the notifier is stuck or stopped: then the validities run out.
            drop(link.notifier.submit(batch, Box::new(|_| {})));
            // Apart: they wait for requests that are being given up.
            let notifications = pages.iter().flat_map(|fid| all_but(*fid, Vec::new())).collect();
            drop(link.notifier.submit(Batch { notifications, ..Batch::default() }, Box::new(|_| {})));
        }
    }
}

/// The notifications that make the kernel forget everything.
fn everything(link: &KernelLink, inodes: &mut Inodes) -> Vec<Notification> {
    let epoch = link.has_epoch.then_some(Notification::IncEpoch);
    let attributes = inodes.take_all().into_iter().map(|fid| Notification::InvalInode { fid, pages: None });
    epoch.into_iter().chain(attributes).collect()
}

/// The names and attributes that a caller which has not taken over its reply may still bring into the kernel.
#[derive(Clone, Copy)]
enum Bringing {
    Inode(Fid),
    Listing,
    Anything,
}
impl Bringing {
    /// The directories in which there are such callers.
    fn dirs(self, unsettled: &Unsettled, now: Instant) -> Vec<Fid> {
        match self {
            Self::Inode(fid) => unsettled.dirs_of(fid, now),
            Self::Listing => unsettled.dirs(true, now),
            Self::Anything => unsettled.dirs(false, now),
        }
    }
}

/// Names that the kernel must not use as they are.
#[derive(Default)]
struct StaleNames {
    gone: Vec<(Fid, Bytes)>,
    /// These lead to the same inodes as before, and must not be detached: a program may have one for its working directory.
    expiring: Vec<(Fid, Bytes)>,
}
impl StaleNames {
    /// The notifications for those that are gone, and for those that expire.
    fn notifications(&self) -> [Vec<Notification>; 2] {
        let gone = self.gone.iter().cloned();
        let expiring = self.expiring.iter().cloned();
        [
            gone.map(|(parent, name)| Notification::InvalEntry { parent, name: name.to_vec() }).collect(),
            expiring
                .map(|(parent, name)| Notification::ExpireEntry { parent, name: name.to_vec() })
                .collect(),
        ]
    }
    fn into_all(mut self) -> Vec<(Fid, Bytes)> {
        self.gone.append(&mut self.expiring);
        self.gone
    }
}

impl State {
    async fn forget(&self, stale: Vec<Stale>, generation: u64, is_forced: bool) {
        let Some(link) = self.link.borrow().clone() else { return };
        let to = To { link: &link, generation, is_forced };
        let now = self.ctx.now();
        let mut prompt = Vec::new();
        let mut names = StaleNames::default();
        // Repeated when the callers that may bring them back have left their directories.
        let mut again = Vec::new();
        for stale in stale {
            match stale {
                Stale::All => {
                    self.late.borrow_mut().note_all(now);
                    self.inodes.borrow_mut().add_again(self.forgetting.borrow().values().flatten());
                    let all = everything(&link, &mut self.inodes.borrow_mut());
                    let dirs = Bringing::Anything.dirs(&self.unsettled.borrow(), now);
                    if !dirs.is_empty() {
                        again.push((Bringing::Anything, dirs, all.clone()));
                    }
                    prompt.extend(all);
                }
                Stale::Inode(fid) => {
                    self.late.borrow_mut().note(fid, now);
                    // Once more while it is being forgotten: this call must not complete before that is written.
                    let is_forgetting = self.forgetting.borrow().values().any(|fids| fids.contains(&fid));
                    if self.inodes.borrow_mut().remove(fid) | is_forgetting {
                        prompt.push(Notification::InvalInode { fid, pages: None });
                        let dirs = Bringing::Inode(fid).dirs(&self.unsettled.borrow(), now);
                        let attributes = vec![Notification::InvalInode { fid, pages: None }];
                        if !dirs.is_empty() {
                            again.push((Bringing::Inode(fid), dirs, attributes));
                        }
                    }
                }
                Stale::Acls(fid) => prompt.push(Notification::InvalInode { fid, pages: None }),
                Stale::Name { parent, name, .. } if link.has_epoch => names.gone.push((parent, name)),
                Stale::Permissions { parent, name } if link.has_epoch => names.expiring.push((parent, name)),
                // Names had no validity; `forget_pages` follows.
                Stale::Name { .. } | Stale::Permissions { .. } | Stale::Pages(_) | Stale::Listing(_) => {}
            }
        }
        let fids: Vec<Fid> = prompt.iter().filter_map(Notification::inode).collect();
        if !fids.is_empty() {
            self.forgetting.borrow_mut().insert(generation, fids);
        }
        if !is_forced && self.names_until.get() <= now {
            // No name is valid any more.
            names = StaleNames::default();
            prompt.retain(|notification| *notification != Notification::IncEpoch);
        }
        if prompt.contains(&Notification::IncEpoch) {
            names = StaleNames::default();
        } else if names.gone.len() > NAMES_MAX
            || names.gone.iter().any(|(parent, _)| self.door.holds_request_of(*parent))
        {
            self.epoch(to, std::mem::take(&mut names).into_all()).await;
        }
        let [entries, expiring] =
            names.notifications().map(|all| (!all.is_empty()).then(|| self.order(to, all)));
        self.promptly(to, prompt).await;
        for (what, dirs, notifications) in again {
            self.behind(to, what, &dirs, notifications).await;
        }
        if let Some(entries) = entries {
            self.entries_written(to, entries, names.gone).await;
        }
        if let Some(expiring) = expiring {
            self.expired_in_time(to, expiring, names.expiring).await;
        }
        self.forgetting.borrow_mut().remove(&generation);
    }
    async fn expired_in_time(&self, to: To<'_>, entries: Pending, names: Vec<(Fid, Bytes)>) {
        if self.in_time(entries, EXPIRE_TIMEOUT).await != Some(Written::Done) {
            to.link.gate.count(Counted::Blocked);
            self.epoch(to, names).await;
        }
    }
    async fn entries_written(&self, to: To<'_>, entries: Pending, names: Vec<(Fid, Bytes)>) {
        match self.in_time(entries, NAME_TIMEOUT).await {
            Some(Written::Done) => {}
            Some(Written::LeftOut) => self.expire_or_run_out(to, names).await,
            Some(Written::Failed) | None => {
                to.link.gate.count(Counted::Blocked);
                self.epoch(to, names).await;
            }
        }
    }

    /// Drops the pages of files, except those that READs under way will fill.
    async fn forget_pages(&self, generation: u64, fids: &[Fid]) {
        let Some(link) = self.link.borrow().clone() else { return };
        let to = To { link: &link, generation, is_forced: false };
        for some in fids.chunks(FILES_AT_A_TIME) {
            self.forget_pages_of(to, some).await;
        }
    }
    async fn forget_pages_of(&self, to: To<'_>, fids: &[Fid]) {
        let left_out = || fids.iter().map(|fid| (*fid, self.door.reads_into_pages(*fid))).collect::<Vec<_>>();
        let order = |left_out: &[(Fid, Vec<Range>)]| {
            self.order(to, left_out.iter().flat_map(|(fid, reads)| all_but(*fid, reads.clone())).collect())
                .written
        };
        let mut reads = left_out();
        let mut orders = vec![order(&reads)];
        loop {
            let first = std::future::poll_fn(|cx| {
                let ready = |written: &mut Awaited<Written>| match Pin::new(written).poll(cx) {
                    Poll::Ready(result) => Some(result),
                    Poll::Pending => None,
                };
                orders.iter_mut().find_map(ready).map_or(Poll::Pending, Poll::Ready)
            });
            match self.ctx.timeout(self.ctx.now() + NAME_TIMEOUT, first).await {
                Some(Some(Written::Failed)) => {
                    self.ctx.sleep(NAME_TIMEOUT).await;
                    orders = vec![order(&reads)];
                }
                Some(_) => return,
                None => {
                    let now = left_out();
                    if now != reads && orders.len() < PAGE_ORDERS_MAX {
                        reads = now;
                        orders.push(order(&reads));
                    }
                }
            }
        }
    }

    /// Has the kernel forget all names, of which these have changed.
    async fn epoch(&self, to: To<'_>, changed: Vec<(Fid, Bytes)>) {
        if self.written(to, vec![Notification::IncEpoch]).await == Written::LeftOut {
            return self.expire_or_run_out(to, changed).await;
        }
        let dirs = Bringing::Listing.dirs(&self.unsettled.borrow(), self.ctx.now());
        if !dirs.is_empty() {
            let epoch = vec![Notification::IncEpoch];
            self.behind(to, Bringing::Listing, &dirs, epoch).await;
        }
    }

    /// Writes notifications that never wait, once the callers in these directories have taken over their replies: they have
    /// left the directory, or made another request, or had the time for it.
    async fn behind(&self, to: To<'_>, what: Bringing, dirs: &[Fid], notifications: Vec<Notification>) {
        let leave = dirs.iter().map(|dir| Notification::InvalEntry { parent: *dir, name: NO_NAME.to_vec() });
        let all = leave.chain(notifications.iter().cloned()).collect();
        let mut written = self.order(to, all).written;
        let end = self.ctx.now() + SETTLE_TIMEOUT;
        while !what.dirs(&self.unsettled.borrow(), self.ctx.now()).is_empty() {
            if self.ctx.now() >= end {
                // They had the time; those that wait for others bring nothing.
                break;
            }
            if let Some(result) = self.ctx.timeout(self.ctx.now() + NAME_TIMEOUT, &mut written).await {
                if result == Some(Written::LeftOut) && !self.names_run_out(to.link).await {
                    break;
                }
                return;
            }
        }
        self.promptly(to, notifications).await;
    }

    /// Writes notifications that never wait.
    async fn promptly(&self, to: To<'_>, notifications: Vec<Notification>) {
        if notifications.is_empty() {
            return;
        }
        while self.written(to, notifications.clone()).await == Written::LeftOut {
            if self.names_run_out(to.link).await {
                return;
            }
        }
    }
    /// The same; they may be left out.
    async fn written(&self, to: To<'_>, notifications: Vec<Notification>) -> Written {
        loop {
            match self.order(to, notifications.clone()).written.await {
                Some(Written::Failed) => self.ctx.sleep(NAME_TIMEOUT).await,
                result => return result.unwrap_or(Written::Done),
            }
        }
    }

    /// Waits for notifications that may wait in the kernel. `None` if they do not return in time.
    async fn in_time(&self, order: Pending, limit: Duration) -> Option<Written> {
        let Pending { mut written, begun } = order;
        let start = self.ctx.now();
        loop {
            let has_begun = begun.load(Ordering::Acquire);
            match self.ctx.timeout(self.ctx.now() + limit, &mut written).await {
                Some(result) => return result,
                None if has_begun || self.ctx.now() - start > BEGIN_TIMEOUT => return None,
                None => {}
            }
        }
    }

    fn order(&self, to: To<'_>, notifications: Vec<Notification>) -> Pending {
        let To { link, generation, is_forced } = to;
        let number = self.next_order.get();
        self.next_order.set(number + 1);
        let (promise, written) = self.ctx.promise();
        self.orders.borrow_mut().insert(number, promise);
        let begun = Arc::<AtomicBool>::default();
        let batch = Batch { notifications, generation, begun: begun.clone(), is_forced };
        self.door.send(Order { link: link.clone(), batch, number });
        Pending { written, begun }
    }
}

/// Where notifications go, and with which terms.
#[derive(Clone, Copy)]
struct To<'a> {
    link: &'a Arc<KernelLink>,
    generation: u64,
    /// Also if neighbours are detached.
    is_forced: bool,
}

/// Notifications under way.
struct Pending {
    written: Awaited<Written>,
    begun: Arc<AtomicBool>,
}

/// Collects the validities of one reply.
pub(crate) struct Grant<'a> {
    /// `None`: the kernel is given nothing.
    from: Option<(&'a State, Arc<KernelLink>)>,
    /// The calling thread.
    pid: u32,
    /// The directory that the caller holds in the kernel.
    dir: Option<Fid>,
    /// Names and attributes of several inodes may follow.
    is_listing: bool,
    /// An inode whose attributes are valid.
    fid: Option<Fid>,
    /// A name is valid.
    has_name: bool,
    shortest: Duration,
    longest: Duration,
}
impl Grant<'_> {
    pub(crate) fn none() -> Self {
        let (shortest, longest) = (Duration::MAX, Duration::ZERO);
        Self {
            from: None,
            pid: 0,
            dir: None,
            is_listing: false,
            fid: None,
            has_name: false,
            shortest,
            longest,
        }
    }
    /// The part of a validity that the kernel gets.
    pub(crate) fn take(&mut self, validity: Validity, fid: Fid) -> Validity {
        let Some((state, link)) = &self.from else { return Validity::default() };
        let now = state.ctx.now();
        let enough = |d: Duration| if d >= VALIDITY_MIN { d } else { Duration::ZERO };
        let mut attr = enough(validity.attr);
        if !attr.is_zero() {
            let mut unsettled = state.unsettled.borrow_mut();
            let may_have = unsettled.has_room(now) && !unsettled.is_shared(fid, now);
            drop(unsettled);
            // The kernel's validity begins when it takes over the reply (`Terms::check`).
            let until = now + attr + attr / 2;
            if may_have && !state.door.changes(fid) && state.inodes.borrow_mut().add(fid, now, until) {
                self.fid = Some(fid);
            } else {
                attr = Duration::ZERO;
            }
        }
        let may_be_valid = link.has_epoch && !link.gate.neighbours().were_lately(now);
        let mut entry = if may_be_valid { enough(validity.entry) } else { Duration::ZERO };
        if !state.unsettled.borrow_mut().has_room(now) {
            entry = Duration::ZERO;
        }
        if !entry.is_zero() {
            self.has_name = true;
            state.names_given.set(state.names_given.get() + 1);
            state.names_given_at.set(now);
            // Likewise.
            state.names_until.set(state.names_until.get().max(now + entry + entry / 2));
        }
        // No lock covers them. (The root stands for a name that is not there, too, and file locks of directories stay here.)
        if validity.attr < VALIDITY_MIN && fid != Fid::ROOT {
            state.late.borrow_mut().note(fid, now);
        }
        for given in [entry, attr].into_iter().filter(|d| !d.is_zero()) {
            self.shortest = self.shortest.min(given);
            self.longest = self.longest.max(given);
        }
        Validity { entry, attr }
    }
    /// That of a name that is not there.
    pub(crate) fn take_negative(&mut self, entry: Duration) -> Duration {
        self.take(Validity { entry, attr: Duration::ZERO }, Fid::ROOT).entry
    }
    /// The terms of the reply. `None`: it has no validity.
    pub(crate) fn terms(self, places: Places) -> Option<Box<Terms>> {
        let (state, link) = self.from.filter(|_| !self.longest.is_zero())?;
        let decided = state.ctx.now();
        if self.is_listing || self.fid.is_some() || self.has_name {
            let fid = (!self.is_listing).then(|| self.fid.unwrap_or_default());
            state.unsettled.borrow_mut().add(self.pid, fid, self.dir, decided);
        }
        if link.gate.note(decided, decided + self.longest) {
            link.notifier.watch_clocks();
        }
        let generation = state.generation.get();
        Some(Box::new(Terms::new(&link.gate, generation, decided, self.shortest, places)))
    }
}
