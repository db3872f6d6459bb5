//! Store operations: carried out by the thread that left the island, by an I/O thread, or by a sync thread.
//!
//! Operations that memory or the page cache can serve are executed in place, up to a size. Operations that would block
//! go to an I/O thread of the node, syncs of the log to the island's sync thread (`sync_thread.rs`). The thread that has completed an operation enters the island itself with the
//! result.
//!
//! I/O threads have classes ([`Class`]), each with a queue and a bound of its own, so that no class waits for another:
//! a sync that a caller waits for never queues behind transfers or write-back, and a cold read of metadata never queues
//! behind syncs.
//!
//! Invariants: an operation holds the island's store permit until it has ended; operations of an island that has ended
//! are dropped unexecuted; with a full queue the requesting thread does the work itself. Operations in progress are not
//! ordered: an island that needs an order waits for the first operation before it starts the second.

use crate::island::IslandRef;
use crate::node::{Config, Node, Shared};
use crate::sync_thread;
use nacre_node::{Event, FileId, IoTicket, StoreError, StoreOp};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Jobs that may wait for an I/O thread; beyond it the requesting thread works itself.
const JOBS_MAX: usize = 1024;

/// Starts an operation that an island has requested.
pub(crate) fn start(node: &Arc<Shared>, island: IslandRef, ticket: IoTicket, op: StoreOp) {
    let Some(store) = island.inner().store.clone() else {
        return island.visit_once(Event::IoDone {
            ticket,
            result: Err(StoreError::Device("the island has no store".into())),
        });
    };
    if !island.inner().store_permit.try_use() {
        return; // the island has ended
    }
    let stats = &node.stats;
    if waits_for_log_device(&op) {
        stats.io_synced.add(1);
        return sync_thread::sync(&island, &store, ticket, op);
    }
    let is_read = matches!(op, StoreOp::Read { .. } | StoreOp::ReadWritten { .. });
    let config = &node.config;
    let max = if is_read { config.io_inline_read_bytes } else { config.io_inline_bytes };
    let op = if payload_bytes(&op) <= max && !waits_for_device(&op) {
        match store.try_execute(op) {
            Ok(result) => {
                stats.io_inline.add(1);
                return island.io_done(ticket, result);
            }
            Err(op) => op,
        }
    } else {
        op
    };
    stats.io_handed_over.add(1);
    let class = Class::of(&op);
    node.io_pool.run(node, class, Box::new(move |_| island.io_done(ticket, store.execute(op))));
}

fn waits_for_log_device(op: &StoreOp) -> bool {
    matches!(op, StoreOp::Sync { file: FileId::Log(_) } | StoreOp::Replace { .. })
}
/// Syncs of blobs and runs go to the I/O threads: they run in parallel, also with the sync of the log.
fn waits_for_device(op: &StoreOp) -> bool {
    matches!(
        op,
        StoreOp::Sync { .. }
            | StoreOp::SyncWritten { .. }
            | StoreOp::SyncAside { .. }
            | StoreOp::SyncMany { .. }
            | StoreOp::Refresh { .. }
            | StoreOp::StartWriteback { .. }
    )
}
fn payload_bytes(op: &StoreOp) -> usize {
    match op {
        StoreOp::Write { data, .. } | StoreOp::WriteChecksummed { data, .. } => {
            data.iter().map(bytes::Bytes::len).sum()
        }
        StoreOp::Read { len, .. } | StoreOp::ReadWritten { len, .. } => *len as usize,
        StoreOp::Replace { data, .. } => data.len(),
        StoreOp::Create { .. }
        | StoreOp::Truncate { .. }
        | StoreOp::Allocate { .. }
        | StoreOp::Punch { .. }
        | StoreOp::Zero { .. }
        | StoreOp::Sync { .. }
        | StoreOp::SyncWritten { .. }
        | StoreOp::SyncAside { .. }
        | StoreOp::SyncMany { .. }
        | StoreOp::Refresh { .. }
        | StoreOp::StartWriteback { .. }
        | StoreOp::Delete { .. }
        | StoreOp::List { .. }
        | StoreOp::Len { .. }
        | StoreOp::Space => 0,
    }
}

// ---- the I/O threads of a node

/// Why a job may wait, and for what: jobs of one class queue behind each other only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Moves bytes of objects.
    Transfer,
    /// Cold rows, listings, name resolution: small and waited for.
    Metadata,
    /// Syncs that a request waits for.
    Sync,
    /// Nobody waits: write-back, syncs of it, space that is released.
    Background,
}

impl Class {
    const ALL: [Self; 4] = [Self::Transfer, Self::Metadata, Self::Sync, Self::Background];

    fn of(op: &StoreOp) -> Self {
        match op {
            StoreOp::Read {
                file: FileId::Run(_) | FileId::Log(_) | FileId::Super | FileId::Mark, ..
            }
            | StoreOp::List { .. }
            | StoreOp::Len { .. }
            | StoreOp::Space => Self::Metadata,
            StoreOp::Read { .. }
            | StoreOp::ReadWritten { .. }
            | StoreOp::Create { .. }
            | StoreOp::Write { .. }
            | StoreOp::WriteChecksummed { .. }
            | StoreOp::Allocate { .. } => Self::Transfer,
            StoreOp::SyncWritten { aside: true, .. }
            | StoreOp::SyncAside { .. }
            | StoreOp::SyncMany { .. }
            | StoreOp::StartWriteback { .. }
            | StoreOp::Truncate { .. }
            | StoreOp::Punch { .. }
            | StoreOp::Zero { .. }
            | StoreOp::Delete { .. } => Self::Background,
            StoreOp::Sync { .. }
            | StoreOp::SyncWritten { .. }
            | StoreOp::Refresh { .. }
            | StoreOp::Replace { .. } => Self::Sync,
        }
    }
    fn threads_max(self, config: &Config) -> usize {
        match self {
            Self::Transfer => config.io_threads.transfers,
            Self::Metadata => config.io_threads.metadata,
            Self::Sync => config.io_threads.syncs,
            Self::Background => config.io_threads.background,
        }
    }
    /// Prefix of the names of its threads.
    fn name(self) -> &'static str {
        match self {
            Self::Transfer => "io",
            Self::Metadata => "io-meta",
            Self::Sync => "io-sync",
            Self::Background => "io-back",
        }
    }
}

type Job = Box<dyn FnOnce(&Node) + Send>;

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    stopping: bool,
}

/// The threads of one class. Grows with need, up to a parameter.
#[derive(Default)]
struct ClassPool {
    jobs: Mutex<Jobs>,
    some: Condvar,
}

/// Threads that may wait for a device or for name resolution, by class.
#[derive(Default)]
pub(crate) struct IoPool([ClassPool; Class::ALL.len()]);

impl IoPool {
    pub(crate) fn run(&self, node: &Arc<Shared>, class: Class, job: Job) {
        let pool = &self.0[class as usize];
        let refused = {
            let mut jobs = pool.lock();
            if jobs.idle <= jobs.queue.len() && jobs.threads.len() < class.threads_max(&node.config) {
                grow(node, class, &mut jobs);
            }
            if jobs.threads.is_empty() || jobs.queue.len() >= JOBS_MAX || jobs.stopping {
                Some(job)
            } else {
                jobs.queue.push_back(job);
                None
            }
        };
        match refused {
            Some(job) => job(&Node::from(node.clone())),
            None => pool.some.notify_one(),
        }
    }

    /// Queued jobs are still executed.
    pub(crate) fn stop(&self) {
        for pool in &self.0 {
            pool.stop();
        }
    }
}

fn grow(node: &Arc<Shared>, class: Class, jobs: &mut Jobs) {
    let name = format!("{}-{}", class.name(), jobs.threads.len());
    let shared = node.clone();
    let body = move || shared.io_pool.0[class as usize].serve(&shared);
    match std::thread::Builder::new().name(name).spawn(body) {
        Ok(thread) => jobs.threads.push(thread),
        Err(error) => {
            tracing::warn!(%error, ?class, "a further I/O thread cannot be started, operations wait for the present ones")
        }
    }
}

impl ClassPool {
    fn serve(&self, node: &Arc<Shared>) {
        let node = Node::from(node.clone());
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.queue.pop_front() {
                drop(jobs);
                job(&node);
                jobs = self.lock();
            } else if jobs.stopping {
                return;
            } else {
                jobs.idle += 1;
                jobs = self.some.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                jobs.idle -= 1;
            }
        }
    }

    fn stop(&self) {
        let threads = {
            let mut jobs = self.lock();
            jobs.stopping = true;
            std::mem::take(&mut jobs.threads)
        };
        self.some.notify_all();
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("an I/O thread had panicked");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
