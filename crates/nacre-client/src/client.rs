//! The front door: one API for all doors of a mount, FUSE first. The calls stand with their concepts.

use crate::cache::dirs::{Dirs, Touches};
use crate::files::atime::AtimePolicy;
use crate::files::closes::Closes;
use crate::files::lost::LostHandles;
use crate::files::open::Files;
use crate::locks::extents::ExtentLocks;
use crate::locks::flocks::Flocks;
use crate::metadata::fids::Fids;
use crate::stats::Stats;
use crate::targets::mount::Mount;
use alloc::rc::{Rc, Weak};
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::Cell;
use core::time::Duration;
use nacre_node::{Ctx, Event, join_all};
use nacre_types::{
    Attr, Caller, Codec, ConnEpoch, Errno, Fid, FileType, FsName, LayoutTemplate, LockCookie, OpenHandle,
};
use nacre_wire::mdt::EntryReply;
use nacre_wire::{Rpc, flags};

/// What a mount is told.
#[derive(Debug, Clone)]
pub struct MountConfig {
    pub mgs_addresses: Vec<String>,
    pub fs: FsName,
    /// For people, in the servers' logs: host and mount point.
    pub name: String,
    /// What names this mount wherever it is shown: the first half of its uuid. A mount that is made again after a bug keeps
    /// it, and is a new client to the servers. `None`: chosen at random.
    pub instance: Option<u64>,
    pub read_only: bool,
    pub atime: AtimePolicy,
}
impl MountConfig {
    /// `demo-0011223344556677`: the mount as parameters, metrics, logs and tools name it.
    pub fn mount_name(fs: &FsName, instance: u64) -> String {
        alloc::format!("{fs}-{instance:016x}")
    }
}

/// An inode with its resolved size.
#[derive(Debug, Clone)]
pub struct Entry {
    pub attr: Attr,
    /// A write by an ordinary user must take set-id bits or capabilities away first.
    pub kill_priv: bool,
}

/// A new inode.
#[derive(Debug, Clone)]
pub struct CreateArgs<'a> {
    pub parent: Fid,
    pub name: &'a [u8],
    /// Type and permission bits before the umask.
    pub mode: u32,
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
    pub layout: Option<LayoutTemplate>,
    pub exclusive: bool,
    pub caller: Caller,
}

/// One request of the kernel, at most `max_write` bytes: atomic with regard to other mounts.
#[derive(Debug, Clone)]
pub struct WriteArgs {
    pub handle: OpenHandle,
    /// With `append` the data goes to the end of the file, found under the lock; this only tells whether it goes on where
    /// the request before has ended.
    pub offset: u64,
    pub append: bool,
    /// Of an append: bytes of its whole call from this request on, as far as they are known; more than `data` has when the
    /// kernel has split the call. The file stays locked for the next request then.
    pub call_bytes: u64,
    pub data: Bytes,
    /// An ordinary user, whose change takes set-id bits and file capabilities away.
    pub kill_suidgid: Option<Caller>,
    /// Return when the data is durable (O_SYNC, O_DSYNC).
    pub sync: bool,
}

/// fallocate(2) without a mode, or with KEEP_SIZE.
#[derive(Debug, Clone)]
pub struct AllocateArgs {
    pub offset: u64,
    pub len: u64,
    pub keep_size: bool,
    /// An ordinary user, whose change takes set-id bits and file capabilities away.
    pub kill_suidgid: Option<Caller>,
}

/// One entry of a directory listing.
#[derive(Debug, Clone)]
pub struct ListedEntry {
    pub cookie: u64,
    pub name: Bytes,
    pub fid: Fid,
    pub file_type: FileType,
    pub entry: Option<Entry>,
}

/// A page of a directory listing; `.` and `..` included with cookies 1 and 2.
#[derive(Debug, Clone)]
pub struct ReaddirPage {
    pub entries: Vec<ListedEntry>,
    pub eof: bool,
}

/// What a front end hears until its mount can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attach {
    /// Not yet: what is waited for and why, a part of a sentence.
    Waits(String),
    Ready,
    /// Never: a sentence for the user.
    Hopeless(String),
}
impl Attach {
    /// No front end hears more, whatever happens on the way.
    pub const NEWS_MAX: usize = 32;
}

/// State of a connection to a target, for people.
#[derive(Debug, Clone)]
pub struct Connection {
    pub target: String,
    pub connected: bool,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

/// How long an unmount waits for calls: for servers that do not answer, or for other mounts.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(5);

/// A mounted file system.
pub struct Client {
    pub(crate) ctx: Rc<Ctx>,
    pub(crate) config: MountConfig,
    pub(crate) mount: Mount,
    pub(crate) files: Rc<Files>,
    pub(crate) fids: Fids,
    pub(crate) locks: ExtentLocks,
    pub(crate) flocks: Flocks,
    pub(crate) lost: LostHandles,
    pub(crate) dirs: Rc<Dirs>,
    pub(crate) closes: Closes,
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
            fids: Fids::new(ctx),
            locks: ExtentLocks::default(),
            flocks: Flocks::default(),
            dirs: Rc::default(),
            closes: Closes::default(),
            stats: Stats::new(ctx),
            changes: Cell::new(0),
            last_number: Cell::new(0),
            me: me.clone(),
        });
        ctx.spawn(client.clone().watch());
        ctx.spawn(client.clone().watch_version());
        client
    }

    /// Events of connections; gives back what is not the client's.
    pub fn handle_event(&self, event: Event) -> Option<Event> {
        self.mount.peers.handle(event)
    }

    /// Whether nothing is open and nothing waits: for leak checks at rest.
    pub fn is_idle(&self) -> bool {
        let closed = self.files.is_idle() && self.closes.is_idle();
        closed && self.locks.is_idle() && self.flocks.is_idle() && self.dirs.is_idle()
    }

    /// Requests and slots that are out, by target: nothing while the mount has nothing to do.
    pub fn requests_left(&self) -> Vec<String> {
        let targets = self.mount.targets();
        let left = targets.iter().filter_map(|target| target.requests_left());
        left.collect()
    }

    /// A cookie for a waiting lock.
    pub fn new_cookie(&self) -> LockCookie {
        LockCookie(self.next_number())
    }

    /// Closes everything, tells the servers. Calls that wait are given up after a few seconds.
    pub async fn unmount(&self) {
        let (done, closed) = self.ctx.promise();
        let client = self.me();
        self.ctx.spawn(async move {
            client.close_all().await;
            client.answered().await;
            done.fulfil(());
        });
        if !self.patiently(closed).await {
            for (target_name, unanswered, not_durable) in self.unanswered() {
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
        self.dirs.set_on(false); // they end with the farewell
        self.mount.stop();
        let farewells = self.mount.targets().into_iter().map(|target| async move {
            let (done, gone) = self.ctx.promise();
            let name = target.name.clone();
            self.ctx.spawn(async move {
                target.peer.disconnect().await;
                done.fulfil(());
            });
            if !self.patiently(gone).await {
                tracing::warn!(target_name = %name, "does not answer at unmount: it drops this client after its lease");
            }
        });
        join_all(farewells).await;
        // Calls whose callers were killed end as well.
        self.locks.ask_again();
        self.flocks.ask_again();
    }

    /// Targets with requests that have no answer: how many, and how many answered ones are not known to be durable.
    fn unanswered(&self) -> Vec<(String, usize, usize)> {
        // Not the MGS: it is asked again and again, and keeps nothing of ours.
        let targets = self.mount.known_mdt().into_iter().chain(self.mount.osts());
        let counts = targets.map(|t| {
            let (open, list) = t.peer.with_import(|i| (i.in_flight() + i.waiting(), i.replay_list().len()));
            (t.name.clone(), open, list)
        });
        counts.filter(|(_, open, _)| *open > 0).collect()
    }

    /// Until every request has its answer: closes, and calls whose callers were killed.
    async fn answered(&self) {
        const LOOK: Duration = Duration::from_millis(10);
        while !self.unanswered().is_empty() || !self.closes.is_idle() {
            self.ctx.sleep(LOOK).await;
        }
    }

    async fn patiently(&self, done: impl Future<Output = Option<()>>) -> bool {
        self.ctx.timeout(self.ctx.now() + UNMOUNT_PATIENCE, done).await.is_some()
    }

    // ---- for the modules of the calls

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
    /// The MDT is about to hold something that a sync has not covered.
    pub(crate) fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }
    /// A change at the MDT that leaves directories alone.
    pub(crate) async fn change<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Result<R::Reply, Errno> {
        self.change_dirs(Touches::default(), request).await
    }
    /// A change at the MDT of these directories and names.
    pub(crate) async fn change_dirs<'a, R: Rpc + Codec<'a>>(
        &self,
        touches: Touches,
        request: &R,
    ) -> Result<R::Reply, Errno> {
        let mdt = self.mdt().await?;
        self.note_change();
        let changing = self.dirs.begin(touches);
        let reply = mdt.send(mdt.request(request)).await?;
        changing.answered(mdt.peer.with_import(|import| import.epoch()), &reply.frame);
        Ok(reply.body)
    }
    /// A read of the MDT that may bring a hold of the directory that it is about.
    pub(crate) async fn read_inode<'a, R>(&self, request: &R) -> Result<EntryReply, Errno>
    where
        R: Rpc<Reply = EntryReply> + Codec<'a>,
    {
        let mdt = self.mdt().await?;
        let wanted = if self.dirs.is_on() { flags::MAY_HOLD } else { 0 };
        let reply = mdt.send(mdt.request(request).flags(wanted)).await?;
        self.dirs.granted(mdt.peer.with_import(|import| import.epoch()), &reply.frame, &reply.body);
        Ok(reply.body)
    }
    /// The epoch on which holds of the MDT may be used now. Without a connection there is none: an MDT of this process
    /// waits for nobody's lease when it has been started again, as its mounts hear of it at once.
    pub(crate) fn holds_usable(&self) -> Option<ConnEpoch> {
        let mdt = self.mount.known_mdt()?;
        let up = mdt.peer.is_connected();
        mdt.peer.with_import(|import| (up && import.lease_ok(self.ctx.now())).then(|| import.epoch()))
    }
}
