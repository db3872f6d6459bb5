//! The client of a mount: the one interface for all front ends, of which FUSE is the first. This file has its start and end;
//! the calls are in the folders of their subjects (`data`, `files`, `metadata`, `locks`).

use crate::api::MountConfig;
use crate::files::atime::AtimePolicy;
use crate::files::lost::LostHandles;
use crate::files::table::Files;
use crate::locks::extents::ExtentLocks;
use crate::stats::Stats;
use crate::targets::mount::Mount;
use alloc::rc::{Rc, Weak};
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use core::time::Duration;
use nacre_node::{Ctx, Event, LeftOut, LogLimiters, StoreOp, join_all};
use nacre_types::{Errno, LockCookie, OpenHandle};

/// An unmount waits that long for calls under way, and for each farewell.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// A mounted file system. Its parts have private state; the calls, which live by concern in the folders of this crate, reach
/// the parts through these fields.
pub struct Client {
    pub(crate) ctx: Rc<Ctx>,
    pub(crate) config: MountConfig,
    pub(crate) mount: Mount,
    pub(crate) files: Rc<Files>,
    pub(crate) locks: ExtentLocks,
    pub(crate) lost: LostHandles,
    pub(crate) stats: Stats,
    /// Changes are refused and access times stay (`llite.*.read_only`).
    read_only: Cell<bool>,
    /// `llite.*.atime` and `llite.*.dir_atime`.
    atime: Cell<AtimePolicy>,
    /// Last number given to a handle or a lock.
    last_number: Cell<u64>,
    lines: LogLimiters,
    me: Weak<Client>,
}

impl Client {
    /// Starts: connects to the MGS, learns the targets, connects to them. Returns at once; calls wait.
    pub fn new(ctx: &Rc<Ctx>, config: MountConfig) -> Rc<Client> {
        let client = Rc::new_cyclic(|me| Client {
            ctx: ctx.clone(),
            mount: Mount::new(ctx, &config),
            read_only: Cell::new(config.read_only),
            atime: Cell::new(config.atime),
            config,
            files: Rc::new(Files::new(ctx)),
            lost: LostHandles::default(),
            locks: ExtentLocks::default(),
            stats: Stats::new(ctx),
            last_number: Cell::new(0),
            lines: LogLimiters::default(),
            me: me.clone(),
        });
        ctx.spawn(client.clone().watch());
        ctx.spawn(client.clone().watch_version());
        client
    }

    /// Whether a line of a kind that programs can cause without end may be logged: how many were left out before it.
    pub(crate) fn allows_line(&self, kind: &'static str) -> Option<LeftOut> {
        self.lines.allow(kind, self.ctx.now())
    }

    /// Handles an event of a connection; returns events that do not belong to this client.
    pub fn handle_event(&self, event: Event) -> Option<Event> {
        self.mount.handle_event(event)
    }

    /// The store operations of this visit, in their order: see `nacre_node::Logic::log_writes`.
    pub fn log_writes(&self, out: &mut Vec<StoreOp>) {
        if let Some(log) = self.mount.dirty_files().log() {
            log.take_writes(out);
        }
    }

    /// Whether no file is open and no call waits: for leak checks at rest.
    pub fn is_idle(&self) -> bool {
        self.files.is_idle()
            && self.mount.dirty_files().is_idle()
            && self.locks.is_idle()
            && self.mount.mdts().iter().all(|mdt| mdt.is_idle())
    }

    /// Requests under way and slots in use, by target: none while the mount is idle.
    pub fn requests_left(&self) -> Vec<String> {
        let targets = self.mount.targets();
        let left = targets.iter().filter_map(|target| target.requests_left());
        left.collect()
    }

    /// A cookie for a waiting lock.
    pub fn new_cookie(&self) -> LockCookie {
        LockCookie(self.next_number())
    }

    /// Flushes dirty bytes, for as long as the OSTs take some of them.
    async fn flush_before_unmount(&self) {
        let dirty = self.mount.dirty_files();
        loop {
            let before = dirty.bytes();
            let (done, flushed) = self.ctx.promise();
            let client = self.me();
            self.ctx.spawn(async move {
                client.flush_files().await;
                done.fulfil(());
            });
            if self.within_timeout(flushed).await {
                return;
            }
            let left = dirty.bytes();
            if left >= before {
                tracing::warn!(
                    left,
                    "bytes that programs have written cannot be stored at unmount: an OST does not reply"
                );
                return;
            }
        }
    }
    /// Closes every handle and disconnects from the servers. Calls that still wait after `UNMOUNT_TIMEOUT` end with an error.
    pub async fn unmount(&self) {
        self.flush_before_unmount().await;
        let (done, closed) = self.ctx.promise();
        let client = self.me();
        self.ctx.spawn(async move {
            client.late_handles_ended().await;
            client.close_all().await;
            client.send_kept_closes().await;
            client.all_replied().await;
            done.fulfil(());
        });
        if !self.within_timeout(closed).await {
            for (target_name, without_reply, not_durable) in self.unreplied() {
                let connected =
                    self.mount.targets().iter().any(|t| t.name == target_name && t.peer.is_connected());
                if connected {
                    tracing::warn!(
                        %target_name, without_reply, not_durable,
                        "calls wait at unmount, for the server or for other mounts, and are given up: changes without a \
                         reply may be lost"
                    );
                    continue;
                }
                tracing::warn!(
                    %target_name, without_reply, not_durable,
                    "the target does not reply at unmount: changes without a reply may be lost; so may those that are not durable, if its \
                     machine was lost"
                );
            }
        }
        self.mount.stop_caches(); // locks end with the disconnect
        self.mount.stop();
        let farewells = self.mount.targets().into_iter().map(|target| async move {
            let (done, gone) = self.ctx.promise();
            let name = target.name.clone();
            self.ctx.spawn(async move {
                target.peer.disconnect().await;
                done.fulfil(());
            });
            if !self.within_timeout(gone).await {
                tracing::warn!(target_name = %name, "the target does not reply at unmount: it evicts this client when the lease ends");
            }
        });
        join_all(farewells).await;
        // Calls whose callers were killed end as well.
        self.retry_waiting_locks();
    }

    /// Makes every request that waits for a lock be sent again, or fail.
    pub(crate) fn retry_waiting_locks(&self) {
        self.locks.retry_all();
        self.mount.mdts().iter().for_each(|mdt| mdt.flocks().retry_all());
    }

    /// Targets with requests that have no reply: their number, and the number of changes that are not known to be durable.
    fn unreplied(&self) -> Vec<(String, usize, usize)> {
        // Not the MGS: a request to it is always under way, and it keeps no state of this mount.
        let mdts = self.mount.mdts().into_iter().map(|mdt| mdt.target().clone());
        let targets = mdts.chain(self.mount.osts());
        let counts = targets.map(|t| {
            let (open, list) = t.peer.with_import(|i| (i.in_flight() + i.waiting(), i.replay_list().len()));
            (t.name.clone(), open, list)
        });
        counts.filter(|(_, open, _)| *open > 0).collect()
    }

    /// Waits until every request has its reply: closes, and calls whose callers were killed.
    async fn all_replied(&self) {
        const LOOK: Duration = Duration::from_millis(10);
        let closes_wait = || self.mount.mdts().iter().any(|mdt| !mdt.has_sent_closes());
        while !self.unreplied().is_empty() || closes_wait() {
            self.ctx.sleep(LOOK).await;
        }
    }

    /// Ends the handles that end later, and waits for a moment until it is done.
    pub(crate) async fn late_handles_ended(&self) {
        join_all(self.mount.mdts().iter().map(|mdt| mdt.late_releases().all_ended(&self.ctx))).await;
    }
    /// Sends all closes that are kept, and waits for their replies.
    pub(crate) async fn send_kept_closes(&self) {
        join_all(self.mount.mdts().iter().map(|mdt| mdt.send_kept_closes())).await;
    }

    async fn within_timeout(&self, done: impl Future<Output = Option<()>>) -> bool {
        self.ctx.timeout(self.ctx.now() + UNMOUNT_TIMEOUT, done).await.is_some()
    }

    // ---- for the calls

    pub(crate) fn me(&self) -> Rc<Client> {
        self.me.upgrade().expect("a call borrows a client that lives in an Rc")
    }
    pub(crate) fn weak(&self) -> Weak<Client> {
        self.me.clone()
    }
    pub(crate) fn new_handle(&self) -> OpenHandle {
        OpenHandle(self.next_number())
    }
    fn next_number(&self) -> u64 {
        self.last_number.set(self.last_number.get() + 1);
        self.last_number.get()
    }
    pub(crate) fn check_writable(&self) -> Result<(), Errno> {
        if self.is_read_only() { Err(Errno::EROFS) } else { Ok(()) }
    }
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.get()
    }
    pub(crate) fn set_read_only(&self, on: bool) {
        self.read_only.set(on);
    }
    pub(crate) fn atime(&self) -> AtimePolicy {
        self.atime.get()
    }
    pub(crate) fn set_atime(&self, policy: AtimePolicy) {
        self.atime.set(policy);
    }
}
