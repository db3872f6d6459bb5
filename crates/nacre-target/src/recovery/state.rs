//! The state of a recovery: the clients that it waits for, and the queue of replays. See `recovery/mod.rs`.

use crate::clients::rows::ExportId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Instant, TargetName, Timestamp, Transno};
use nacre_wire::Frame;

/// A recovery under way.
struct Recovery {
    /// Everything up to this is in the log, durably; later changes are lost.
    base: Transno,
    started: Instant,
    /// Clients that have not connected by then are given up.
    deadline: Instant,
    /// Clients that have not reported the end of their replay.
    waiting: BTreeSet<ExportId>,
    /// Clients that were given up: their changes are lost, even if they connect before the end.
    given_up: BTreeSet<ExportId>,
    /// The next change of each client, by its old transno.
    queue: BTreeMap<(Transno, ExportId), Frame>,
    /// The latest change that each client has replayed.
    replayed: BTreeMap<ExportId, Transno>,
    /// Clients whose change could not be replayed, with the cause.
    failed: BTreeMap<ExportId, String>,
    summary: RecoverySummary,
}

/// The figures of `recovery_status`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecoverySummary {
    start: Timestamp,
    duration: Duration,
    clients: usize,
    completed: usize,
    replayed: u64,
    evicted: usize,
    last_transno: Transno,
}

impl RecoverySummary {
    /// Writes the end of a recovery to the log.
    pub(crate) fn log(&self, target_name: &TargetName) {
        tracing::info!(%target_name, clients = self.clients, completed = self.completed, evicted = self.evicted,
            replayed = self.replayed, milliseconds = self.duration.as_millis() as u64, "recovery over");
    }
}

/// The clients that a recovery has left behind.
pub(crate) struct Abandoned {
    given_up: BTreeSet<ExportId>,
    failed: BTreeMap<ExportId, String>,
}
impl Abandoned {
    /// Whether this client was given up.
    pub(crate) fn is_given_up(&self, export: ExportId) -> bool {
        self.given_up.contains(&export)
    }
    /// The clients whose change could not be replayed, with the cause.
    pub(crate) fn failed(&self) -> &BTreeMap<ExportId, String> {
        &self.failed
    }
}

/// The next step of a recovery.
pub(crate) enum Step {
    Replay(ExportId, Frame),
    /// The time of a client is over.
    GiveUp,
    Wait,
    End,
}

/// The recoveries of one start of a target.
pub(crate) struct RecoveryState {
    current: RefCell<Option<Recovery>>,
    /// The latest recovery that has ended.
    last: Cell<Option<RecoverySummary>>,
    ended: Cell<Instant>,
    /// Bytes of objects written by changes up to this may be lost although their rows are not.
    bytes_lost_to: Cell<Transno>,
    /// A replay was queued, or fewer clients are waited for.
    changed: WaitList,
}

impl RecoveryState {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            current: RefCell::default(),
            last: Cell::default(),
            ended: Cell::default(),
            bytes_lost_to: Cell::default(),
            changed: ctx.wait_list(),
        }
    }
    pub(crate) fn is_active(&self) -> bool {
        self.current.borrow().is_some()
    }
    /// When the latest recovery ended: now while one is under way, and the beginning of time if there was none.
    pub(crate) fn ended(&self, now: Instant) -> Instant {
        if self.is_active() { now } else { self.ended.get() }
    }
    pub(crate) fn bytes_lost_to(&self) -> Transno {
        self.bytes_lost_to.get()
    }
    /// The latest change that was not lost, while a recovery is under way.
    pub(crate) fn base(&self) -> Option<Transno> {
        self.current.borrow().as_ref().map(|r| r.base)
    }
    /// The latest change that this client has replayed.
    pub(crate) fn replayed(&self, export: ExportId) -> Transno {
        let current = self.current.borrow();
        current.as_ref().and_then(|r| r.replayed.get(&export).copied()).unwrap_or_default()
    }
    /// Milliseconds until the recovery ends at the latest; 0 when none is under way.
    pub(crate) fn remaining_ms(&self, now: Instant) -> u32 {
        let current = self.current.borrow();
        let Some(r) = &*current else { return 0 };
        let left = r.deadline.saturating_since(now);
        u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1)
    }

    // ---- events

    /// Begins a recovery that waits for these clients.
    pub(crate) fn begin(
        &self,
        base: Transno,
        (now, wall): (Instant, Timestamp),
        deadline: Instant,
        waiting: BTreeSet<ExportId>,
    ) {
        self.bytes_lost_to.set(base);
        let summary = RecoverySummary { start: wall, clients: waiting.len(), ..RecoverySummary::default() };
        *self.current.borrow_mut() = Some(Recovery {
            base,
            started: now,
            deadline,
            waiting,
            given_up: BTreeSet::new(),
            queue: BTreeMap::new(),
            replayed: BTreeMap::new(),
            failed: BTreeMap::new(),
            summary,
        });
    }
    /// A client has replayed all its changes.
    pub(crate) fn client_done(&self, export: ExportId) {
        if let Some(r) = &mut *self.current.borrow_mut()
            && (r.waiting.remove(&export) || r.given_up.remove(&export))
        {
            r.summary.completed += 1;
            self.changed.wake_all();
        }
    }
    /// An export has ended: the recovery does not wait for it any more.
    pub(crate) fn client_gone(&self, export: ExportId) {
        if let Some(r) = &mut *self.current.borrow_mut() {
            r.waiting.remove(&export);
            r.given_up.remove(&export);
            r.queue.retain(|(_, id), _| *id != export);
            self.changed.wake_all();
        }
    }
    /// A client has sent a change for replay. The latest copy of the latest change counts.
    pub(crate) fn queue(&self, export: ExportId, frame: Frame) {
        if let Some(r) = &mut *self.current.borrow_mut() {
            let (transno, epoch) = (frame.header.transno, frame.header.epoch);
            let is_stale = |((queued, id), f): (&(Transno, ExportId), &Frame)| {
                *id == export && *queued > transno && f.header.epoch == epoch
            };
            if r.queue.iter().any(is_stale) {
                return; // a late copy of a change that was replayed
            }
            r.queue.retain(|(_, id), _| *id != export);
            r.queue.insert((transno, export), frame);
            self.changed.wake_all();
        }
    }
    /// A change was replayed, or could not be.
    pub(crate) fn executed(&self, export: ExportId, transno: Transno, failure: Option<String>) {
        if let Some(r) = &mut *self.current.borrow_mut() {
            r.summary.replayed += 1;
            r.replayed.insert(export, transno);
            if let Some(cause) = failure {
                r.failed.entry(export).or_insert(cause);
            }
        }
    }
    /// Moves the deadline.
    pub(crate) fn set_deadline(&self, deadline: Instant) {
        if let Some(r) = &mut *self.current.borrow_mut() {
            r.deadline = deadline;
        }
    }

    // ---- steps

    /// The next step. `is_absent`: the client has not connected or its lease has run out.
    pub(crate) fn next_step(&self, now: Instant, is_absent: impl Fn(ExportId) -> bool) -> Step {
        let mut current = self.current.borrow_mut();
        let Some(r) = &mut *current else { return Step::End };
        if now >= r.deadline && r.waiting.iter().any(|id| is_absent(*id)) {
            return Step::GiveUp;
        }
        let ready = r.waiting.iter().all(|id| r.queue.keys().any(|(_, of)| of == id));
        if ready && let Some(((_, export), frame)) = r.queue.pop_first() {
            return Step::Replay(export, frame);
        }
        if ready { Step::End } else { Step::Wait }
    }
    /// Stops waiting for absent clients.
    pub(crate) fn give_up_absent(&self, now: Instant, is_absent: impl Fn(ExportId) -> bool) {
        let mut current = self.current.borrow_mut();
        let Some(r) = current.as_mut().filter(|r| now >= r.deadline) else { return };
        let (absent, waiting) = core::mem::take(&mut r.waiting).into_iter().partition(|id| is_absent(*id));
        r.waiting = waiting;
        r.given_up.extend::<BTreeSet<_>>(absent);
    }
    /// Waits until the next step may be another one.
    pub(crate) async fn wait(&self) {
        self.changed.wait().await;
    }
    /// Ends the recovery with this transno. Returns the clients that it has left behind.
    pub(crate) fn end(&self, now: Instant, last_transno: Transno) -> Option<Abandoned> {
        let r = self.current.borrow_mut().take()?;
        let duration = now.saturating_since(r.started);
        self.ended.set(now);
        self.last.set(Some(RecoverySummary { duration, last_transno, ..r.summary }));
        Some(Abandoned { given_up: r.given_up, failed: r.failed })
    }
    /// Records how many clients were evicted at the end. Returns the summary for the log.
    pub(crate) fn record_evicted(&self, evicted: usize) -> Option<RecoverySummary> {
        let summary = RecoverySummary { evicted, ..self.last.get()? };
        self.last.set(Some(summary));
        Some(summary)
    }

    // ---- figures

    /// `mdt.*.recovery_status` in the words of Lustre. `connected`: clients that have connected.
    pub(crate) fn status(&self, now: Instant, connected: usize) -> String {
        if let Some(r) = &*self.current.borrow() {
            let status = if connected == 0 { "WAITING_FOR_CLIENTS" } else { "RECOVERING" };
            return format!(
                "status: {status}\nrecovery_start: {}\ntime_remaining: {}\nconnected_clients: {connected}/{}\n\
                 completed_clients: {}\nreplayed_requests: {}\nqueued_requests: {}\nnext_transno: {}\n",
                r.summary.start.sec,
                (r.deadline.saturating_since(now).as_millis() as u64).max(1).div_ceil(1000),
                r.summary.clients,
                r.summary.completed,
                r.summary.replayed,
                r.queue.len(),
                r.queue.first_key_value().map_or(r.base.0 + 1, |((transno, _), _)| transno.0),
            );
        }
        match self.last.get() {
            None => String::from("status: INACTIVE\n"),
            Some(s) => format!(
                "status: COMPLETE\nrecovery_start: {}\nrecovery_duration: {}\ncompleted_clients: {}/{}\n\
                 evicted_clients: {}\nreplayed_requests: {}\nlast_transno: {}\nVBR: {}\nIR: DISABLED\n",
                s.start.sec,
                s.duration.as_secs(),
                s.completed,
                s.clients,
                s.evicted,
                s.replayed,
                s.last_transno,
                // In Lustre's words: whether replays met missing changes.
                if s.evicted > 0 { "ENABLED" } else { "DISABLED" },
            ),
        }
    }
}
