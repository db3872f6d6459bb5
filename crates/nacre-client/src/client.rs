//! The front door: one API for all doors of a mount, FUSE first. The calls stand with their concepts.

use crate::api::MountConfig;
use crate::cache::dirs::{Dirs, Touches};
use crate::files::close_queue::CloseQueue;
use crate::files::lost::LostHandles;
use crate::files::table::Files;
use crate::locks::extents::ExtentLocks;
use crate::locks::pending::PendingFlocks;
use crate::metadata::fid_pool::FidPool;
use crate::stats::Stats;
use crate::targets::mount::Mount;
use alloc::rc::{Rc, Weak};
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use core::time::Duration;
use nacre_node::{Ctx, Event, join_all};
use nacre_types::{Codec, ConnEpoch, Errno, LockCookie, OpenHandle};
use nacre_wire::mdt::{EntryReply, Getattr, Lookup};
use nacre_wire::{Rpc, flags};

/// An unmount waits that long for calls under way, and for each farewell.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// A mounted file system. Its parts have private state; the calls, which live by concern in the folders of this crate, reach
/// the parts through these fields.
pub struct Client {
    pub(crate) ctx: Rc<Ctx>,
    pub(crate) config: MountConfig,
    pub(crate) mount: Mount,
    pub(crate) files: Rc<Files>,
    pub(crate) fids: FidPool,
    pub(crate) locks: ExtentLocks,
    pub(crate) flocks: PendingFlocks,
    pub(crate) lost: LostHandles,
    pub(crate) dirs: Rc<Dirs>,
    pub(crate) closes: CloseQueue,
    pub(crate) stats: Stats,
    /// Metadata changes of this mount so far.
    pub(crate) changes: Cell<u64>,
    /// Last number given to a handle or a lock.
    last_number: Cell<u64>,
    me: Weak<Client>,
}

impl Client {
    /// Starts: connects to the MGS, learns the targets, connects to them. Returns at once; calls wait.
    pub fn new(ctx: &Rc<Ctx>, config: MountConfig) -> Rc<Client> {
        let client = Rc::new_cyclic(|me| Client {
            ctx: ctx.clone(),
            mount: Mount::new(ctx, &config),
            config,
            files: Rc::default(),
            lost: LostHandles::default(),
            fids: FidPool::new(ctx),
            locks: ExtentLocks::default(),
            flocks: PendingFlocks::default(),
            dirs: Rc::default(),
            closes: CloseQueue::default(),
            stats: Stats::new(ctx),
            changes: Cell::new(0),
            last_number: Cell::new(0),
            me: me.clone(),
        });
        ctx.spawn(client.clone().watch());
        ctx.spawn(client.clone().watch_version());
        client
    }

    /// Handles an event of a connection; returns events that do not belong to this client.
    pub fn handle_event(&self, event: Event) -> Option<Event> {
        self.mount.peers.handle(event)
    }

    /// Whether no file is open and no call waits: for leak checks at rest.
    pub fn is_idle(&self) -> bool {
        let closed = self.files.is_idle() && self.closes.is_idle();
        closed && self.locks.is_idle() && self.flocks.is_idle() && self.dirs.is_idle()
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

    /// Closes every handle and disconnects from the servers. Calls that still wait after `UNMOUNT_TIMEOUT` end with an error.
    pub async fn unmount(&self) {
        let (done, closed) = self.ctx.promise();
        let client = self.me();
        self.ctx.spawn(async move {
            client.close_all().await;
            client.all_replied().await;
            done.fulfil(());
        });
        if !self.within_timeout(closed).await {
            for (target_name, unanswered, not_durable) in self.unreplied() {
                let connected =
                    self.mount.targets().iter().any(|t| t.name == target_name && t.peer.is_connected());
                if connected {
                    tracing::warn!(
                        %target_name, unanswered, not_durable,
                        "calls wait at unmount, for the server or for other mounts, and are given up: what was not answered \
                         may be lost"
                    );
                    continue;
                }
                tracing::warn!(
                    %target_name, unanswered, not_durable,
                    "does not answer at unmount: what it has not answered may be lost, and what is not durable if its machine \
                     was lost, too"
                );
            }
        }
        self.dirs.set_on(false); // holds end with the disconnect
        self.mount.stop();
        let farewells = self.mount.targets().into_iter().map(|target| async move {
            let (done, gone) = self.ctx.promise();
            let name = target.name.clone();
            self.ctx.spawn(async move {
                target.peer.disconnect().await;
                done.fulfil(());
            });
            if !self.within_timeout(gone).await {
                tracing::warn!(target_name = %name, "does not answer at unmount: it drops this client after its lease");
            }
        });
        join_all(farewells).await;
        // Calls whose callers were killed end as well.
        self.locks.retry_all();
        self.flocks.retry_all();
    }

    /// Targets with requests that have no reply: their number, and the number of changes that are not known to be durable.
    fn unreplied(&self) -> Vec<(String, usize, usize)> {
        // Not the MGS: a request to it is always under way, and it keeps no state of this mount.
        let targets = self.mount.known_mdt().into_iter().chain(self.mount.osts());
        let counts = targets.map(|t| {
            let (open, list) = t.peer.with_import(|i| (i.in_flight() + i.waiting(), i.replay_list().len()));
            (t.name.clone(), open, list)
        });
        counts.filter(|(_, open, _)| *open > 0).collect()
    }

    /// Waits until every request has its reply: closes, and calls whose callers were killed.
    async fn all_replied(&self) {
        const LOOK: Duration = Duration::from_millis(10);
        while !self.unreplied().is_empty() || !self.closes.is_idle() {
            self.ctx.sleep(LOOK).await;
        }
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
        if self.config.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }
    /// A change is about to be sent to the MDT, which the latest sync does not cover.
    pub(crate) fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }
    /// Sends a change to the MDT that changes no directory.
    pub(crate) async fn change<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Result<R::Reply, Errno> {
        self.change_dirs(Touches::default(), request).await
    }
    /// Sends a change to the MDT that changes these directories and names.
    pub(crate) async fn change_dirs<'a, R: Rpc + Codec<'a>>(
        &self,
        touches: Touches,
        request: &R,
    ) -> Result<R::Reply, Errno> {
        let mdt = self.mdt().await?;
        self.note_change();
        let changing = self.dirs.begin(touches);
        let reply = mdt.send(mdt.request(request)).await?;
        changing.replied(mdt.peer.with_import(|import| import.epoch()), &reply.frame);
        Ok(reply.body)
    }
    /// Reads attributes from the MDT; the reply may grant a hold of the directory.
    pub(crate) async fn read_inode(&self, request: &Getattr) -> Result<EntryReply, Errno> {
        self.read_entry(request, Some).await?.ok_or(Errno::EPROTO)
    }
    /// The same by name; ENOENT: the directory has no such name.
    pub(crate) async fn lookup_name(&self, request: &Lookup<'_>) -> Result<EntryReply, Errno> {
        self.read_entry(request, |reply| reply.entry).await?.ok_or(Errno::ENOENT)
    }
    async fn read_entry<'a, R: Rpc + Codec<'a>>(
        &self,
        request: &R,
        entry: impl FnOnce(R::Reply) -> Option<EntryReply>,
    ) -> Result<Option<EntryReply>, Errno> {
        let mdt = self.mdt().await?;
        let wanted = if self.dirs.is_on() { flags::MAY_HOLD } else { 0 };
        let reply = mdt.send(mdt.request(request).flags(wanted)).await?;
        let entry = entry(reply.body);
        if let Some(entry) = &entry {
            self.dirs.granted(mdt.peer.with_import(|import| import.epoch()), &reply.frame, entry);
        }
        Ok(entry)
    }
    /// The epoch on which holds of the MDT may be used now. Without a connection there is none: a restarted MDT of this process
    /// waits for no lease, because its mounts learn of the restart at once.
    pub(crate) fn holds_usable(&self) -> Option<ConnEpoch> {
        let mdt = self.mount.known_mdt()?;
        let up = mdt.peer.is_connected();
        mdt.peer.with_import(|import| (up && import.lease_ok(self.ctx.now())).then(|| import.epoch()))
    }
}
