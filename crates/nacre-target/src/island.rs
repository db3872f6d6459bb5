//! The island of a target: its start and stop, its connections, and the way of events to whom they belong.
//!
//! Invariants: no request is admitted before the service has started nor after a planned stop began; what comes
//! earlier waits (bounded) or is not answered, and its sender asks the next instance again. Requests are tasks,
//! one each. Who may ask is `connect.rs`, what becomes of a request is `dispatch.rs`.

use crate::clients::ClientRow;
use crate::clients::ExportId;
use crate::connect::Gone;
use crate::identity::{SECRET_KEY, without_secrets};
use crate::lease::{LEASE_KEY, Neighbours, earlier_lease, lease};
use crate::recovery::RECOVERY_KEY;
use crate::rivals::Contest;
use crate::service::Service;
use crate::target_core::{TargetConfig, TargetCore};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, OnceCell, RefCell};
use core::time::Duration;
use nacre_node::{ConnId, Ctx, Effect, Event, Logic, Origin, StoreError, StoreOp, WaitList};
use nacre_osd::{Credits, Osd, OsdConfig, Pins, key_after, table};
use nacre_rpc::{Export, ReplyRecord};
use nacre_types::{Codec, Errno, Generation, Instant, TargetName, Transno};
use nacre_wire::target::{RecoveryRows, RecoveryRowsReply};

/// Connections of a target; more are closed at once.
const CONNS_MAX: usize = 65_536;
/// Who is connected to the process becomes a client of the target within this time.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A tool asks and goes.
const TOOL_QUIET_MAX: Duration = Duration::from_secs(60);
/// Events that may come before the target has started.
const EARLY_MAX: usize = 4096;
/// A planned stop waits for running requests no longer than this.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// Rows of one scan.
const PAGE: u32 = 1000;

/// Row of `TARGET` that counts the starts.
const INSTANCE_KEY: &[u8] = b"instance";
/// Row of `TARGET` with the latest generation.
pub(crate) const GENERATION_KEY: &[u8] = b"generation";

/// An inbound connection.
pub(crate) struct Conn {
    /// For people.
    pub(crate) from: String,
    pub(crate) origin: Origin,
    /// When it was accepted, or disconnected from its export.
    pub(crate) since: Instant,
    /// When a frame came last.
    pub(crate) heard: Instant,
    pub(crate) export: Option<ExportId>,
}

/// What the tasks of an island share.
pub(crate) struct Inner<S: Service> {
    pub(crate) ctx: Rc<Ctx>,
    config: TargetConfig,
    osd_config: OsdConfig,
    neighbours: OnceCell<Arc<dyn Neighbours>>,
    pub(crate) core: OnceCell<Rc<TargetCore>>,
    pub(crate) service: OnceCell<Rc<S>>,
    pub(crate) conns: RefCell<BTreeMap<ConnId, Conn>>,
    /// Wakes the task that gives up connections without a lease.
    strangers: WaitList,
    /// Came before the service had started.
    early: RefCell<VecDeque<Event>>,
    /// The start has ended, well or not.
    start_ended: Cell<bool>,
    pub(crate) stopping: Cell<bool>,
    /// Requests that are being executed, on behalf of whomever.
    pub(crate) running: Cell<usize>,
    /// The number of running requests has become 0, or the service has started.
    pub(crate) idle: WaitList,
}

/// What a start has found of clients.
struct Loaded {
    /// Exports in whose place another has come.
    superseded: Vec<ExportId>,
    /// Of mounts and targets in the former process.
    local: Vec<ExportId>,
    /// There are records of them and nothing else.
    nobodys: Vec<ExportId>,
}

/// A served target.
pub struct TargetIsland<S: Service> {
    inner: Rc<Inner<S>>,
}

impl<S: Service> TargetIsland<S> {
    /// Opens the store and starts the service when [`Event::Start`] comes.
    pub fn new(ctx: &Rc<Ctx>, config: TargetConfig, mut osd: OsdConfig) -> Self {
        S::tune(&mut osd);
        let inner = Inner {
            ctx: ctx.clone(),
            config,
            osd_config: osd,
            neighbours: OnceCell::new(),
            core: OnceCell::new(),
            service: OnceCell::new(),
            conns: RefCell::default(),
            strangers: ctx.wait_list(),
            early: RefCell::default(),
            start_ended: Cell::new(false),
            stopping: Cell::new(false),
            running: Cell::new(0),
            idle: ctx.wait_list(),
        };
        Self { inner: Rc::new(inner) }
    }
    /// Tells the target of the others in its process; before it starts.
    pub fn with_neighbours(self, neighbours: Arc<dyn Neighbours>) -> Self {
        let _first = self.inner.neighbours.set(neighbours);
        self
    }
    /// The parts, once the service has started: for drivers in the same process and for tests.
    pub fn core(&self) -> Option<&Rc<TargetCore>> {
        self.inner.service.get().and(self.inner.core.get())
    }
    pub fn service(&self) -> Option<&Rc<S>> {
        self.inner.service.get()
    }
}

impl<S: Service> Logic for TargetIsland<S> {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.inner.ctx
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Start => {
                self.inner.ctx.spawn(self.inner.clone().start());
            }
            Event::Stop => {
                self.inner.ctx.spawn(self.inner.clone().stop());
            }
            other => self.inner.route(other),
        }
    }
    fn log_writes(&mut self, out: &mut Vec<StoreOp>) {
        if let Some(core) = self.inner.core.get() {
            core.osd.log_writes(out);
            if self.inner.ctx.is_barred() {
                out.clear();
            }
            core.faults.end_of_visit(&self.inner.ctx);
        }
    }
    fn log_failed(&mut self, error: &StoreError) {
        if let Some(core) = self.inner.core.get() {
            core.osd.log_failed(&error.to_string());
        }
    }
}

impl<S: Service> Inner<S> {
    // ---- start and stop

    async fn start(self: Rc<Self>) {
        let started = self.clone().try_start().await;
        self.start_ended.set(true);
        self.idle.wake_all();
        match started {
            Ok(()) => loop {
                let Some(event) = self.early.borrow_mut().pop_front() else { break };
                self.route(event);
            },
            Err(reason) => self.ctx.push(Effect::Fatal(reason)),
        }
    }

    async fn try_start(self: Rc<Self>) -> Result<(), String> {
        let osd = Osd::open(&self.ctx, self.osd_config.clone()).await.map_err(|e| e.to_string())?;
        let label = osd.label().name.clone();
        let name =
            osd.label().target().ok_or_else(|| format!("the store's label is {label:?}, not a target"))?;
        let neighbours = self.neighbours.get().cloned();
        if let Some(neighbours) = &neighbours {
            neighbours.end(); // whatever was granted before this start
        }
        let core =
            TargetCore::new(&self.ctx, osd, name, self.config.clone(), neighbours, S::VOLATILE_LOCK_FEATURES);
        self.core.set(core.clone()).map_err(|_| String::from("the target was started twice"))?;
        let failed = |e: Errno| format!("{}: client records cannot be read: {e}", core.name);
        core.incompat.load(&core.osd, &core.name).await?;
        core.load_secret().await.map_err(failed)?;
        core.load_replaced().await.map_err(failed)?;
        let loaded = self.load_clients(&core).await.map_err(failed)?;
        let loss = self.find_loss(&core).await.map_err(failed)?;
        if let Some(base) = loss {
            core.begin_recovery(base);
            crate::recovery::announce(&core);
        }
        self.count_start(&core, loss).await.map_err(failed)?;
        let service = S::start(&core).await?;
        core.restore_kept(&*service).await.map_err(failed)?;
        let clients = core.exports.borrow().len();
        tracing::info!(target_name = %core.name, instance = core.instance(), clients, "target started");
        self.service.set(service).map_err(|_| String::from("the target was started twice"))?;
        for id in loaded.superseded {
            self.drop_export(&core, id, Gone::Replaced);
        }
        for id in loaded.local {
            self.drop_export(&core, id, Gone::WithItsProcess);
        }
        for id in loaded.nobodys {
            tracing::warn!(target_name = %core.name, generation = %id, "reply records of a client that is not known: deleted");
            self.clear_after(&core, id);
        }
        self.ctx.spawn(self.clone().reap());
        if core.earlier_lease.get() > lease(&core) {
            self.ctx.spawn(self.clone().forget_earlier_lease());
        }
        self.ctx.spawn(self.clone().watch_strangers());
        self.ctx.spawn(self.clone().follow_kept());
        if core.in_recovery() {
            self.ctx.spawn(self.clone().recover());
        } else if let Some(service) = self.service.get() {
            service.clone().recovered();
        }
        Ok(())
    }

    /// Sets what the MGS keeps, now and whenever its list changes; ends with the import.
    async fn follow_kept(self: Rc<Self>) {
        let Some((core, service)) = self.started() else { return };
        let Some(registration) = core.registration.get() else { return };
        let reply = registration.registered().await;
        if let Err(error) = core.take_admission(service, reply.replaced).await {
            tracing::error!(target_name = %core.name, %error, "what the MGS has admitted cannot be stored: clients wait until the next start");
        }
        while !self.stopping.get() {
            let Ok(list) = registration.targets().await else { return };
            if let Err(error) = core.keep(&**service, &list.params).await {
                tracing::warn!(target_name = %core.name, %error, "the next start will not know what the MGS keeps at once");
            }
            while registration.version() <= list.config_version && !self.stopping.get() {
                registration.mgs().changed().await;
            }
        }
    }

    /// Every known client gets its export back; it has a full lease from now on to come, as it was or as it is.
    async fn load_clients(&self, core: &Rc<TargetCore>) -> Result<Loaded, Errno> {
        let (mut superseded, mut local) = (Vec::new(), Vec::new());
        if let Some(row) = core.osd.get(table::TARGET, GENERATION_KEY).await? {
            core.exports.borrow_mut().set_last_generation(Generation::from_slice(&row)?);
        }
        if let Some(row) = core.osd.get(table::TARGET, LEASE_KEY).await? {
            core.earlier_lease.set(Duration::from_millis(u64::from(u32::from_slice(&row)?)));
        }
        let mut records: BTreeMap<Generation, Vec<ReplyRecord>> = BTreeMap::new();
        let mut pages = core.osd.pages(table::REPLY, PAGE);
        while let Some(rows) = pages.next().await? {
            for (key, row) in rows {
                match ReplyRecord::from_slice(&row) {
                    Ok(record) => records.entry(record.generation).or_default().push(record),
                    Err(error) => {
                        tracing::error!(target_name = %core.name, ?key, %error, "reply record cannot be read: skipped");
                    }
                }
            }
        }
        for (key, row) in core.osd.pages(table::CLIENT, PAGE).all().await? {
            let row = match ClientRow::from_slice(&row) {
                Ok(row) => row,
                Err(error) => {
                    tracing::error!(target_name = %core.name, ?key, %error, "client record cannot be read: skipped");
                    continue;
                }
            };
            let mine = records.remove(&row.generation).unwrap_or_default();
            let features = row.features;
            let export = Export::restore(row.generation, row.last_transno, mine);
            let mut exports = core.exports.borrow_mut();
            // Rows come in the order of their generations: of a target that was started anew the older one is
            // there when this process died before it was deleted.
            superseded.extend(exports.of_client(row.uuid));
            core.incompat.found(row.generation, features);
            exports.set_last_generation(row.generation);
            exports.insert(self.new_entry(core, row.uuid, row.secret, row.name, row.role, export));
            if let Some(entry) = exports.get_mut(row.generation) {
                (entry.durable, entry.seen) = (true, false);
                (entry.features, entry.row_features) = (features, features);
                entry.lease_until = self.ctx.now() + earlier_lease(core);
                entry.contest = Contest::held_by(row.instance);
                entry.origin = if row.local { Origin::Process } else { entry.origin };
            }
            if row.local {
                local.push(row.generation);
            }
        }
        Ok(Loaded { superseded, local, nobodys: records.into_keys().collect() })
    }

    /// A new instance; with it everything that the log held is committed, so that no client replays what is here.
    async fn count_start(&self, core: &Rc<TargetCore>, loss: Option<Transno>) -> Result<(), Errno> {
        let before = match core.osd.get(table::TARGET, INSTANCE_KEY).await? {
            Some(row) => u64::from_slice(&row)?,
            None => 0,
        };
        core.set_instance(before + 1);
        let start_rows = S::start_rows(core).await?;
        let credits = Credits { rows: 7, row_bytes: 384, object_bytes: 0, frees: true };
        let reservation = core.osd.reserve(credits).await?;
        if loss.is_some() || !core.osd.was_clean() {
            // One record says both that there is a recovery and that numbers of a new epoch are in use: a start that dies
            // before it must leave the latest number of the old one to the next. Without a recovery, too, no number of a
            // change that the store may have lost is used twice.
            core.osd.raise_epoch();
        }
        let (transno, ()) = core.transact_local(&Pins::default(), reservation, |tx| {
            tx.put(table::TARGET, SECRET_KEY, core.secret.get().to_vec());
            tx.put(table::TARGET, INSTANCE_KEY, (before + 1).to_vec());
            tx.put(table::TARGET, LEASE_KEY, (earlier_lease(core).as_millis() as u32).to_vec());
            start_rows.into_iter().for_each(|(key, value)| tx.put(table::TARGET, key, value));
            match loss {
                Some(base) => tx.put(table::TARGET, RECOVERY_KEY, base.to_vec()),
                None => core.incompat.clear_unused(tx),
            }
            Ok(())
        })?;
        Ok(core.osd.commit(transno).await?)
    }

    async fn stop(self: Rc<Self>) {
        self.stopping.set(true);
        let deadline = self.ctx.now() + STOP_WAIT;
        while !self.start_ended.get() {
            self.idle.wait().await;
        }
        while self.running.get() > 0 && self.ctx.timeout(deadline, self.idle.wait()).await.is_some() {}
        if self.ctx.is_barred() {
            return self.ctx.push(Effect::Stopped); // as a crash: nothing can be handed over
        }
        if let Some(service) = self.service.get() {
            service.clone().stop().await;
        }
        if let Some(core) = self.core.get() {
            core.reaper.wake_all();
            match core.osd.stop().await {
                Ok(()) => tracing::info!(target_name = %core.name, "target stopped"),
                Err(error) => {
                    tracing::error!(target_name = %core.name, %error, "stopped with unwritten changes")
                }
            }
        }
        self.ctx.push(Effect::Stopped);
    }

    // ---- events

    /// Gives an event to whom it belongs: an import, the service, or a connection of this target.
    fn route(self: &Rc<Self>, event: Event) {
        let event = match self.core.get() {
            Some(core) => core.peers.handle(event),
            None => Some(event),
        };
        let Some(event) = event else { return };
        let Some(service) = self.service.get() else {
            return self.keep_early(event);
        };
        let Some(event) = service.handle_event(event) else { return };
        match event {
            Event::Accepted { conn, from, origin } => self.accepted(conn, from, origin),
            Event::Frame { conn, frame } => self.handle_frame(conn, frame),
            Event::Closed { conn, .. } => self.conn_gone(conn),
            Event::Start
            | Event::Opened { .. }
            | Event::IoDone { .. }
            | Event::Timer
            | Event::Door(_)
            | Event::Stop => {}
        }
    }

    fn keep_early(&self, event: Event) {
        let mut early = self.early.borrow_mut();
        if early.len() < EARLY_MAX {
            early.push_back(event);
        } else if let Event::Accepted { conn, .. } | Event::Frame { conn, .. } = event {
            self.ctx.push(Effect::Close { conn }); // its client tries again
        }
    }

    /// Gives up connections that no lease watches over: those that do not connect, and idle tools.
    async fn watch_strangers(self: Rc<Self>) {
        let Some(core) = self.core.get().cloned() else { return };
        while !self.stopping.get() {
            let now = self.ctx.now();
            // In a recovery new clients wait, and ask from time to time.
            let waits = core.in_recovery();
            let until = |c: &Conn| match c.export {
                None => Some(if waits { c.heard } else { c.since } + CONNECT_MAX),
                Some(id) => {
                    let tool = core.exports.borrow().get(id).is_none_or(|e| !e.has_lease());
                    tool.then_some(c.heard + TOOL_QUIET_MAX)
                }
            };
            let (mut watched, mut over) = (false, Vec::new());
            for (conn, c) in self.conns.borrow().iter() {
                let Some(until) = until(c) else { continue };
                watched = true;
                if until <= now {
                    over.push(*conn);
                }
            }
            for conn in over {
                self.protocol_error(
                    &core,
                    conn,
                    "it did not connect in time, or said nothing for too long and has no lease",
                );
            }
            match watched {
                true => self.ctx.sleep(CONNECT_MAX / 4).await,
                false => self.strangers.wait().await,
            }
        }
    }

    fn accepted(&self, conn: ConnId, from: String, origin: Origin) {
        let mut conns = self.conns.borrow_mut();
        if conns.len() >= CONNS_MAX || self.stopping.get() {
            return self.ctx.push(Effect::Close { conn });
        }
        conns.insert(conn, Conn { from, origin, since: self.ctx.now(), heard: self.ctx.now(), export: None });
        self.strangers.wake_all();
    }

    /// Closes a connection from this side.
    pub(crate) fn close(&self, conn: ConnId) {
        if self.conns.borrow().contains_key(&conn) {
            self.conn_gone(conn);
            self.ctx.push(Effect::Close { conn });
        }
    }

    pub(crate) fn started(&self) -> Option<(&Rc<TargetCore>, &Rc<S>)> {
        Some((self.core.get()?, self.service.get()?))
    }
}

/// One page of rows for the reader of records: clients, then records.
pub(crate) async fn recovery_rows(
    core: &TargetCore,
    args: &RecoveryRows,
) -> Result<RecoveryRowsReply, Errno> {
    let table = if args.replies { table::REPLY } else { table::CLIENT };
    let rows = core.osd.scan(table, &args.from, &[], PAGE).await?;
    let full = rows.len() >= PAGE as usize;
    let next = rows.last().filter(|_| full).map(|(key, _)| Bytes::from(key_after(key)));
    let target_index = match &core.name {
        TargetName::Mgs => 0,
        TargetName::Of { index, .. } => *index,
    };
    let rows: Vec<Bytes> = rows.into_iter().map(|(_, row)| row).collect();
    Ok(RecoveryRowsReply {
        name: core.name.to_string(),
        incompat: core.incompat.flags(),
        last_transaction: core.osd.last_transno().0,
        target_index,
        mount_count: core.instance(),
        rows: if args.replies { rows } else { without_secrets(rows) },
        next,
    })
}
