//! A node: the islands of one process, the threads that drive them, and its addresses.

use crate::budget::BulkBudget;
use crate::event_loop::{self, LoopHandle};
use crate::io::IoPool;
use crate::island::{DoorSink, EndReason, IslandRef};
use crate::stats::NodeStats;
use crate::{clock, driver};
use nacre_net::{Address, BulkBuffers, SharedMemory};
use nacre_node::{ConnId, Ctx, Event, LogLimiter, Logic, RepeatedErrors, Store};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Configuration of a node, with all its bounds.
#[derive(Debug, Clone)]
pub struct Config {
    /// Event loops, each a thread. At least 1.
    pub loops: usize,
    /// Binds loop `n` to CPU `n`. Off: the scheduler places a loop near its clients.
    pub pin: bool,
    /// Threads for store operations that would block, and for name resolution.
    pub io_threads: IoThreads,
    /// Store operations with more payload go to an I/O thread.
    pub io_inline_bytes: usize,
    /// The same for reads, which are carried out in place only where they need not wait: copying so much takes less time
    /// than waking another thread and waiting for its reply.
    pub io_inline_read_bytes: usize,
    /// Bytes that may wait for a peer; beyond this the connection is closed. Far above the next bound, so that requests
    /// that were already read can get their replies.
    pub send_queue_bytes_max: usize,
    /// While so many bytes wait for an inbound peer, its requests are not read.
    pub send_queue_pause_bytes: usize,
    /// Bulk bytes from peers that have connected here, in use in the whole process. While there are more, connections
    /// that hold some of them are not read; each may have one frame more.
    pub bulk_bytes_max: u64,
    /// A connection that is paused because of these bounds is read for one frame after this time: a frame for which
    /// others wait may be behind those that fill the bounds.
    pub pause_max: Duration,
    /// Connections accepted at one address; more are refused.
    pub connections_max: usize,
    /// Of these, connections from one host.
    pub connections_per_host_max: usize,
    /// Time limit of a handshake, in either direction.
    pub handshake_max: Duration,
    /// A peer that neither completes its frames nor receives ours is disconnected after this time.
    pub stall_max: Duration,
    /// When the first loop has been busy for this long, a further loop helps with the front ends' descriptors.
    pub help_after: Duration,
    /// On small virtual machines, keeps idle CPUs from halting while loops are woken in quick succession.
    pub idle_poll: bool,
    /// Threads of front ends that wait for replies serve the sockets meanwhile ([`crate::Leader`]).
    pub servers_lead: bool,
    /// Memory for bulk that is shared with servers on this machine; without it bulk travels through their sockets.
    pub shared_memory: Option<SharedMemory>,
}
impl Default for Config {
    fn default() -> Self {
        Self {
            loops: 1,
            pin: false,
            io_threads: IoThreads::default(),
            io_inline_bytes: 256 << 10,
            io_inline_read_bytes: 1 << 20,
            send_queue_bytes_max: 512 << 20,
            send_queue_pause_bytes: 16 << 20,
            bulk_bytes_max: 512 << 20,
            pause_max: Duration::from_secs(1),
            connections_max: 4096,
            connections_per_host_max: 1024,
            handshake_max: Duration::from_secs(5),
            stall_max: Duration::from_secs(30),
            help_after: Duration::from_micros(100),
            idle_poll: false,
            servers_lead: false,
            shared_memory: None,
        }
    }
}

/// Upper bounds of the I/O threads of a node, by what they wait for. A thread is started when it is first needed.
#[derive(Debug, Clone, Copy)]
pub struct IoThreads {
    /// Reads and writes of object bytes.
    pub transfers: usize,
    /// Cold rows, listings, name resolution.
    pub metadata: usize,
    /// Syncs that requests wait for.
    pub syncs: usize,
    /// Write-back and released space.
    pub background: usize,
}
impl Default for IoThreads {
    fn default() -> Self {
        Self { transfers: 4, metadata: 2, syncs: 8, background: 4 }
    }
}

/// The reason why the node refused a call.
#[derive(Debug, thiserror::Error)]
pub enum RtError {
    #[error("an island named {name} runs in this process already")]
    NameTaken { name: String },
    #[error("{what}")]
    System {
        what: String,
        #[source]
        cause: std::io::Error,
    },
    #[error(transparent)]
    Net(#[from] nacre_net::NetError),
    #[error("{name} cannot be started, this process is stopping")]
    Stopping { name: String },
    #[error("{name} has not stopped within {limit:?}")]
    StillRunning { name: String, limit: Duration },
}
impl RtError {
    pub(crate) fn system(what: impl Into<String>, cause: impl Into<std::io::Error>) -> Self {
        Self::System { what: what.into(), cause: cause.into() }
    }
}

/// Result of reading a [`Source`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceState {
    /// Read again when the descriptor is readable.
    More,
    /// As `More`, but not for a while: nothing urgent comes, and one wake-up suffices for several messages.
    Rests,
    /// The other side is gone: the source is dropped from every loop.
    Ended,
}

/// A descriptor of a front end that an event loop watches (/dev/fuse).
pub trait Source: Send + Sync {
    /// The descriptor for loop `index`: a clone of its own for each loop, or `None` when only loop 0 may serve it.
    fn fd(&self, index: usize) -> Option<BorrowedFd<'_>>;
    /// Readable: reads a few requests without blocking and delivers them to its island, on this thread.
    fn ready(&self, node: &Node, index: usize) -> SourceState;
}

/// A server that runs on its own thread.
pub trait Server: Send + Sync {
    /// The main function of the thread: returns when the other side has ended, or after [`Server::stop`]. Calls
    /// [`Node::work`] before it sleeps.
    fn run(&self, node: &Node);
    /// Ends [`Server::run`] soon. Called from another thread, at any time.
    fn stop(&self);
}

/// Names a source of a node: a plain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceId(pub(crate) u64);

type OnIslandEnd = Box<dyn Fn(&Node, &IslandRef, &EndReason) + Send + Sync>;

/// Behind a [`Node`]. The parts that other files use directly never change, or guard their own state.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) on_island_end: OnIslandEnd,
    pub(crate) io_pool: IoPool,
    pub(crate) stats: NodeStats,
    pub(crate) loops: Vec<LoopHandle>,
    /// Threads that serve what loop 0 watches (`leader.rs`).
    leaders: AtomicUsize,
    pub(crate) sockets: AtomicUsize,
    pub(crate) bulk: BulkBudget,
    bulk_buffers: BulkBuffers,
    idle_memory: OnceLock<SharedMemory>,
    refusal_lines: Mutex<LogLimiter>,
    peer_errors: Mutex<RepeatedErrors>,
    islands: RwLock<BTreeMap<String, IslandRef>>,
    addresses: RwLock<Vec<Address>>,
    next_inbound: AtomicU64,
    next_token: AtomicU64,
    next_loop: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    servers: Mutex<Vec<Weak<dyn Server>>>,
    stopping: AtomicBool,
}

/// The islands of this process and what drives them. Clones are handles on the same node.
#[derive(Clone)]
pub struct Node(Arc<Shared>);

impl From<Arc<Shared>> for Node {
    fn from(shared: Arc<Shared>) -> Self {
        Self(shared)
    }
}

impl Node {
    /// The memory for bulk that is shared with servers on this machine.
    pub fn shared_memory(&self) -> Option<SharedMemory> {
        self.0.config.shared_memory.clone()
    }
    /// Gives what is not needed of a memory back from time to time. One memory per node; that of its sockets needs no call.
    pub fn trim_when_idle(&self, memory: SharedMemory) {
        let _first = self.0.idle_memory.set(memory);
    }
    /// Bulk bytes that came in over sockets and are in use.
    pub fn bulk_bytes(&self) -> u64 {
        self.0.bulk.used()
    }
    /// Starts the event loops. `on_island_end` is called once for each island that ends, by the thread that detected
    /// the end, outside every island and after the last operation on its store: it may add the island again.
    ///
    /// # Errors
    /// `System` when the kernel gives no epoll, eventfd or thread.
    pub fn start(
        config: Config,
        on_island_end: impl Fn(&Node, &IslandRef, &EndReason) + Send + Sync + 'static,
    ) -> Result<Node, RtError> {
        let count = config.loops.max(1);
        let loops = (0..count).map(|_| LoopHandle::new()).collect::<Result<_, _>>()?;
        let node = Node(Arc::new(Shared {
            config,
            on_island_end: Box::new(on_island_end),
            io_pool: IoPool::default(),
            bulk: BulkBudget::default(),
            bulk_buffers: BulkBuffers::default(),
            idle_memory: OnceLock::new(),
            stats: NodeStats::default(),
            loops,
            leaders: AtomicUsize::new(0),
            sockets: AtomicUsize::new(0),
            refusal_lines: Mutex::default(),
            peer_errors: Mutex::default(),
            islands: RwLock::default(),
            addresses: RwLock::default(),
            next_inbound: AtomicU64::new(1),
            next_token: AtomicU64::new(1),
            next_loop: AtomicUsize::new(0),
            threads: Mutex::default(),
            servers: Mutex::default(),
            stopping: AtomicBool::new(false),
        }));
        for index in 0..count {
            let body = node.clone();
            let thread = std::thread::Builder::new()
                .name(format!("loop-{index}"))
                .spawn(move || event_loop::run(&body, index))
                .map_err(|e| RtError::system("cannot start an event loop", e))?;
            node.0.keep_thread(thread);
        }
        Ok(node)
    }

    /// Builds an island around a context with the time, registers it by name and delivers [`Event::Start`]. `make` runs
    /// on this thread.
    ///
    /// # Errors
    /// `NameTaken` while an island of that name exists, `Stopping` during [`Node::shutdown`].
    pub fn add_island(
        &self,
        name: &str,
        store: Option<Arc<dyn Store>>,
        door: Option<Arc<dyn DoorSink>>,
        make: impl FnOnce(&Rc<Ctx>) -> Box<dyn Logic> + Send,
    ) -> Result<IslandRef, RtError> {
        let taken = || RtError::NameTaken { name: name.to_owned() };
        if self.0.is_stopping() {
            return Err(RtError::Stopping { name: name.to_owned() });
        }
        if self.island(name).is_some() {
            return Err(taken());
        }
        let island = IslandRef::build(self.0.clone(), name, store, make);
        if let Some(door) = door {
            island.set_door(door);
        }
        {
            let mut islands = self.0.islands.write().unwrap_or_else(PoisonError::into_inner);
            if islands.contains_key(name) {
                return Err(taken());
            }
            islands.insert(name.to_owned(), island.clone());
        }
        self.deliver(&island, Event::Start);
        Ok(island)
    }

    /// The living island of this name.
    pub fn island(&self, name: &str) -> Option<IslandRef> {
        self.0.islands.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
    /// All living islands.
    pub fn islands(&self) -> Vec<IslandRef> {
        self.0.islands.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
    /// Delivers an event and does all work that follows on this thread; if it is called during that work (from a
    /// [`DoorSink`] or a [`Source`]), the event is queued.
    pub fn deliver(&self, island: &IslandRef, event: Event) {
        driver::deliver(island, event);
    }

    /// `address` also leads to this process (the advertised address of a listener on `0.0.0.0`): islands of this
    /// process that open it are connected without a socket.
    pub fn add_alias(&self, address: Address) {
        self.0.add_address(address);
    }

    /// Event loops.
    pub fn loops(&self) -> usize {
        self.0.loops.len()
    }
    /// Watches a front end's descriptor on loop 0, and on others under load.
    ///
    /// # Errors
    /// `System` when the descriptor cannot be watched.
    pub fn add_source(&self, source: Arc<dyn Source>) -> Result<SourceId, RtError> {
        let id = SourceId(self.0.token());
        event_loop::add_source(self, id, &source)?;
        Ok(id)
    }
    /// No loop calls the source after it has processed this; returns at once.
    pub fn remove_source(&self, id: SourceId) {
        event_loop::remove_source(self, id);
    }

    /// Asks an island for its planned stop and waits for it. Not to be called from an event loop.
    ///
    /// # Errors
    /// `StillRunning` after `limit`; the island continues its stop.
    pub fn stop_island(&self, island: &IslandRef, limit: Duration) -> Result<EndReason, RtError> {
        self.deliver(island, Event::Stop);
        island.wait_end(limit).ok_or_else(|| RtError::StillRunning { name: island.name().to_owned(), limit })
    }
    /// Ends an island as a crash would: it sends nothing more.
    pub fn kill_island(&self, island: &IslandRef) {
        island.kill();
        driver::run();
    }

    /// Sockets to other processes that are open now.
    pub fn sockets(&self) -> usize {
        self.0.sockets.load(Ordering::Relaxed)
    }
    /// Counted since the process started.
    pub fn stats(&self) -> &NodeStats {
        &self.0.stats
    }

    /// Ends the remaining islands (as a crash would: stop them first), the loops and all threads. Not to be called from
    /// a thread of the node.
    pub fn shutdown(&self) {
        self.0.stopping.store(true, Ordering::Release);
        for island in self.islands() {
            self.kill_island(&island);
        }
        for handle in &self.0.loops {
            handle.wake(&self.0.stats);
        }
        self.0.stop_servers();
        self.0.io_pool.stop();
        let threads = std::mem::take(&mut *self.0.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the node had panicked");
            }
        }
        self.0.addresses.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Shared {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
    pub(crate) fn bulk_buffers(&self) -> &BulkBuffers {
        &self.bulk_buffers
    }
    pub(crate) fn trim_idle_memory(&self) {
        if let Some(memory) = self.idle_memory.get() {
            memory.look_for_returns();
        }
    }
    /// Whether other threads serve what loop 0 watches.
    pub(crate) fn is_led(&self) -> bool {
        // SeqCst, here and below: the loop publishes its sleep and then looks; the last leader ends and then looks for a
        // sleeping loop.
        self.leaders.load(Ordering::SeqCst) > 0
    }
    pub(crate) fn begin_lead(&self) {
        self.leaders.fetch_add(1, Ordering::SeqCst);
    }
    pub(crate) fn end_lead(&self) {
        if self.leaders.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(handle) = self.loops.first()
        {
            handle.wake(&self.stats);
        }
    }
    pub(crate) fn inbound_id(&self) -> ConnId {
        ConnId(ConnId::INBOUND | self.next_inbound.fetch_add(1, Ordering::Relaxed))
    }
    /// Logs the refusal of a peer.
    pub(crate) fn complain(&self, peer: &str, what: &str) {
        let allowed = self.refusal_lines.lock().unwrap_or_else(PoisonError::into_inner).allow(clock::now());
        if let Some(left_out) = allowed {
            tracing::warn!(peer, what, left_out, "connection closed");
        }
    }
    /// Logs the error of a peer that this process contacts repeatedly.
    pub(crate) fn complain_again(&self, peer: &str, what: &str) {
        let mut peer_errors = self.peer_errors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left_out) = peer_errors.allow(peer, what, clock::now()) {
            tracing::warn!(peer, what, left_out, "no connection, trying again");
        }
    }
    /// A unique number for a source, listener or socket.
    pub(crate) fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }
    /// The loop for a new socket: this thread's own, else the next in turn.
    pub(crate) fn loop_for_new_socket(&self) -> usize {
        driver::event_loop().unwrap_or_else(|| self.next_loop())
    }
    pub(crate) fn next_loop(&self) -> usize {
        self.next_loop.fetch_add(1, Ordering::Relaxed) % self.loops.len()
    }
    pub(crate) fn add_address(&self, address: Address) {
        self.addresses.write().unwrap_or_else(PoisonError::into_inner).push(address);
    }
    pub(crate) fn listens_on(&self, address: &Address) -> bool {
        self.addresses.read().unwrap_or_else(PoisonError::into_inner).contains(address)
    }
    pub(crate) fn forget(&self, island: &IslandRef) {
        let mut islands = self.islands.write().unwrap_or_else(PoisonError::into_inner);
        if islands.get(island.name()).is_some_and(|known| known.same(island)) {
            islands.remove(island.name());
        }
    }
    pub(crate) fn keep_thread(&self, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|t| !t.is_finished());
        threads.push(thread);
    }
    pub(crate) fn keep_server(&self, server: &Arc<dyn Server>) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|s| s.strong_count() > 0);
        servers.push(Arc::downgrade(server));
    }
    pub(crate) fn stop_servers(&self) {
        let servers = std::mem::take(&mut *self.servers.lock().unwrap_or_else(PoisonError::into_inner));
        for server in servers.iter().filter_map(Weak::upgrade) {
            server.stop();
        }
    }
    /// Calls `f` for every living island.
    pub(crate) fn each_island(&self, mut f: impl FnMut(&IslandRef)) {
        for island in self.islands.read().unwrap_or_else(PoisonError::into_inner).values() {
            f(island);
        }
    }
}
