//! The sync thread of an island: one sync of its log serves all requests from before its start (group commit).

use crate::island::IslandRef;
use nacre_node::{IoTicket, Store, StoreOp};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError};

/// Operations that wait for a sync thread.
const SYNCS_MAX: usize = 1024;

struct SyncJob {
    island: IslandRef,
    ticket: IoTicket,
    op: StoreOp,
}

/// Ends when it is dropped and its queue is empty.
pub(crate) struct SyncThread(SyncSender<SyncJob>);

/// Has the island's sync thread execute `op`; without one, or with a full queue, this thread does.
pub(crate) fn sync(island: &IslandRef, store: &Arc<dyn Store>, ticket: IoTicket, op: StoreOp) {
    let job = SyncJob { island: island.clone(), ticket, op };
    let refused = {
        let mut thread = island.inner().sync_thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            *thread = start_sync_thread(island, store.clone());
        }
        match &*thread {
            Some(running) => match running.0.try_send(job) {
                Ok(()) => None,
                Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => Some(job),
            },
            None => Some(job),
        }
    };
    if let Some(job) = refused {
        job.island.io_done(job.ticket, store.execute(job.op));
    }
}

fn start_sync_thread(island: &IslandRef, store: Arc<dyn Store>) -> Option<SyncThread> {
    let (sender, receiver) = sync_channel(SYNCS_MAX);
    let body = move || sync_loop(&store, &receiver);
    let started = std::thread::Builder::new().name(format!("sync-{}", island.name())).spawn(body);
    match started {
        Ok(thread) => {
            island.host().keep_thread(thread);
            Some(SyncThread(sender))
        }
        Err(error) => {
            tracing::warn!(island = island.name(), %error, "no thread for syncs, event loops will wait for the device");
            None
        }
    }
}

fn sync_loop(store: &Arc<dyn Store>, jobs: &Receiver<SyncJob>) {
    let mut waiting: VecDeque<SyncJob> = VecDeque::new();
    loop {
        if waiting.is_empty() {
            let Ok(first) = jobs.recv() else { return };
            waiting.push_back(first);
        }
        waiting.extend(jobs.try_iter());
        let Some(first) = waiting.pop_front() else { continue };
        let file = match first.op {
            StoreOp::Sync { file } => Some(file),
            _ => None,
        };
        let result = store.execute(first.op);
        first.island.io_done(first.ticket, result.clone());
        // One sync serves all requests for the same file from before its start, up to the first other operation.
        while let Some(file) = file
            && matches!(waiting.front(), Some(next) if matches!(next.op, StoreOp::Sync { file: f } if f == file))
            && let Some(next) = waiting.pop_front()
        {
            next.island.io_done(next.ticket, result.clone());
        }
    }
}
