//! Start and planned stop of a target.

use crate::clients::export::ClientExport;
use crate::clients::rows::{ClientRow, ExportId};
use crate::identity::SECRET_KEY;
use crate::island::export_end::ExportEnd;
use crate::island::inner::Inner;
use crate::lease::{LEASE_KEY, lease, longest_lease};
use crate::recovery::RECOVERY_KEY;
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;
use nacre_node::Effect;
use nacre_osd::{Credits, Osd, Pins, table};
use nacre_rpc::{Export, ReplyRecord};
use nacre_types::{Codec, Errno, Generation, Transno};

/// A planned stop waits for running requests no longer than this.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Rows of one scan.
const PAGE: u32 = 1000;

/// Row of `TARGET` that counts the starts.
const INSTANCE_KEY: &[u8] = b"instance";
/// Row of `TARGET` with the latest generation.
pub(crate) const GENERATION_KEY: &[u8] = b"generation";

/// Clients that a start has found and that end at once.
struct Leftovers {
    /// Exports that another one of the same client has replaced.
    superseded: Vec<ExportId>,
    /// Mounts and targets in the former process.
    local: Vec<ExportId>,
    /// Generations that have reply records and no client row.
    unknown: Vec<ExportId>,
}

impl<S: Service> Inner<S> {
    /// Starts the target, then handles the events that have arrived meanwhile.
    pub(crate) async fn start(self: Rc<Self>) {
        let started = self.clone().try_start().await;
        self.end_start();
        match started {
            Ok(()) => {
                while let Some(event) = self.take_early() {
                    self.route(event);
                }
            }
            Err(reason) => self.ctx().push(Effect::Fatal(reason)),
        }
    }

    async fn try_start(self: Rc<Self>) -> Result<(), String> {
        let core = self.open_core().await?;
        let failed = |e: Errno| format!("{}: client records cannot be read: {e}", core.name);
        core.clients().incompat().load(&core.osd, &core.name).await?;
        core.load_secret().await.map_err(failed)?;
        core.load_replaced().await.map_err(failed)?;
        let leftovers = self.load_clients(&core).await.map_err(failed)?;
        let loss = self.find_loss(&core).await.map_err(failed)?;
        if let Some(base) = loss {
            self.begin_recovery(&core, base);
        }
        self.count_start(&core, loss).await.map_err(failed)?;
        let service = S::start(&core).await?;
        core.restore_permanent(&*service).await.map_err(failed)?;
        let clients = core.clients().exports().len();
        tracing::info!(target_name = %core.name, instance = core.instance(), clients, "target started");
        self.set_service(service)?;
        self.end_leftovers(&core, leftovers);
        self.spawn_tasks(&core);
        Ok(())
    }

    /// Opens the store.
    async fn open_core(&self) -> Result<Rc<TargetCore>, String> {
        let osd = Osd::open(self.ctx(), self.osd_config().clone()).await.map_err(|e| e.to_string())?;
        let label = osd.label().name.clone();
        let name =
            osd.label().target().ok_or_else(|| format!("the store's label is {label:?}, not a target"))?;
        let neighbours = self.neighbours().cloned();
        if let Some(neighbours) = &neighbours {
            neighbours.end(); // of all grants of earlier starts
        }
        let config = self.config().clone();
        let core = TargetCore::new(self.ctx(), osd, name, config, neighbours, S::VOLATILE_LOCK_FEATURES);
        self.set_core(&core)?;
        Ok(core)
    }

    /// Restores the export of every known client. It has a full lease, of the former or the present length, to connect.
    async fn load_clients(&self, core: &Rc<TargetCore>) -> Result<Leftovers, Errno> {
        let (mut superseded, mut local) = (Vec::new(), Vec::new());
        if let Some(row) = core.osd.get(table::TARGET, GENERATION_KEY).await? {
            core.clients().exports_mut().set_last_generation(Generation::from_slice(&row)?);
        }
        if let Some(row) = core.osd.get(table::TARGET, LEASE_KEY).await? {
            core.set_former_lease(Duration::from_millis(u64::from(u32::from_slice(&row)?)));
        }
        let mut records = load_records(core).await?;
        let (now, wall) = (self.ctx().now(), self.ctx().wall());
        for (key, row) in core.osd.pages(table::CLIENT, PAGE).all().await? {
            let row = match ClientRow::from_slice(&row) {
                Ok(row) => row,
                Err(error) => {
                    tracing::error!(target_name = %core.name, ?key, %error, "client record cannot be read: skipped");
                    continue;
                }
            };
            let own = records.remove(&row.generation).unwrap_or_default();
            let rpc = Export::restore(row.generation, row.last_transno, own);
            let mut exports = core.clients().exports_mut();
            // Rows come in the order of their generations. A client target that was started anew has two if this
            // process died before the older one was deleted.
            superseded.extend(exports.of_client(row.uuid));
            core.clients().incompat().found(row.generation, row.features);
            exports.set_last_generation(row.generation);
            if row.local {
                local.push(row.generation);
            }
            exports.insert(ClientExport::restored(row, rpc, now + longest_lease(core), wall));
        }
        Ok(Leftovers { superseded, local, unknown: records.into_keys().collect() })
    }

    /// Writes the number of this start. With it everything that the log held is committed, so that no client replays
    /// changes that are here.
    async fn count_start(&self, core: &Rc<TargetCore>, loss: Option<Transno>) -> Result<(), Errno> {
        let before = match core.osd.get(table::TARGET, INSTANCE_KEY).await? {
            Some(row) => u64::from_slice(&row)?,
            None => 0,
        };
        core.set_instance(before + 1);
        let start_rows = S::start_rows(core).await?;
        let credits = Credits { rows: 7, row_bytes: 384, frees: true, ..Credits::default() };
        let reservation = core.osd.reserve(credits).await?;
        if loss.is_some() || !core.osd.was_clean() {
            // One record says both that there is a recovery and that transnos of a new epoch are in use: a start that
            // dies before it must leave the latest transno of the old epoch to the next start. Even without a recovery
            // no transno of a change that the store may have lost is reused.
            core.osd.raise_epoch();
        }
        let (transno, ()) = core.transact_local(&Pins::default(), reservation, |tx| {
            tx.put(table::TARGET, SECRET_KEY, core.secret().to_vec());
            tx.put(table::TARGET, INSTANCE_KEY, (before + 1).to_vec());
            tx.put(table::TARGET, LEASE_KEY, (longest_lease(core).as_millis() as u32).to_vec());
            start_rows.into_iter().for_each(|(key, value)| tx.put(table::TARGET, key, value));
            match loss {
                Some(base) => tx.put(table::TARGET, RECOVERY_KEY, base.to_vec()),
                None => core.clients().incompat().clear_unused(tx),
            }
            Ok(())
        })?;
        Ok(core.osd.commit(transno).await?)
    }

    fn end_leftovers(self: &Rc<Self>, core: &Rc<TargetCore>, leftovers: Leftovers) {
        for id in leftovers.superseded {
            self.end_export(core, id, ExportEnd::Replaced);
        }
        for id in leftovers.local {
            self.end_export(core, id, ExportEnd::ProcessEnded);
        }
        for id in leftovers.unknown {
            tracing::warn!(target_name = %core.name, generation = %id, "reply records of an unknown client: deleted");
            self.clean_up(core, id);
        }
    }

    fn spawn_tasks(self: &Rc<Self>, core: &Rc<TargetCore>) {
        core.osd.compare_copies_from_now_on();
        let ctx = self.ctx();
        ctx.spawn(self.clone().reap());
        if core.former_lease() > lease(core) {
            ctx.spawn(self.clone().forget_former_lease());
        }
        ctx.spawn(self.clone().watch_unleased());
        ctx.spawn(self.clone().follow_mgs());
        if core.in_recovery() {
            ctx.spawn(self.clone().recover());
        } else if let Some(service) = self.service() {
            service.clone().recovered();
        }
    }

    /// Applies the admission and the kept parameters of the MGS, now and whenever its list changes. Ends with the import.
    async fn follow_mgs(self: Rc<Self>) {
        let Some((core, service)) = self.started() else { return };
        let Some(registration) = core.registration() else { return };
        let reply = registration.registered().await;
        if let Err(error) = core.take_admission(service, reply.replaced).await {
            tracing::error!(target_name = %core.name, %error, "the admission by the MGS cannot be stored: clients wait until the next start");
        }
        while !self.is_stopping() {
            let Ok(list) = registration.targets().await else { return };
            if let Err(error) = core.store_permanent(&**service, &list.params).await {
                tracing::warn!(target_name = %core.name, %error, "the parameters that the MGS keeps cannot be stored: the next start will apply them late");
            }
            while registration.version() <= list.config_version && !self.is_stopping() {
                registration.mgs().changed().await;
            }
        }
    }

    /// A planned stop: running requests end, the service and the engine stop.
    pub(crate) async fn stop(self: Rc<Self>) {
        self.begin_stop();
        let ctx = self.ctx();
        let deadline = ctx.now() + STOP_TIMEOUT;
        while !self.has_start_ended() {
            self.wait_idle().await;
        }
        while !self.is_idle() && ctx.timeout(deadline, self.wait_idle()).await.is_some() {}
        if ctx.is_barred() {
            return ctx.push(Effect::Stopped); // as in a crash: nothing can be written any more
        }
        if let Some(service) = self.service() {
            service.clone().stop().await;
        }
        if let Some(core) = self.core() {
            core.evictions().wake_reaper();
            match core.osd.stop().await {
                Ok(()) => tracing::info!(target_name = %core.name, "target stopped"),
                Err(error) => {
                    tracing::error!(target_name = %core.name, %error, "the target stopped with unwritten changes")
                }
            }
        }
        ctx.push(Effect::Stopped);
    }

    /// Begins a recovery; without clients nothing waits.
    fn begin_recovery(&self, core: &Rc<TargetCore>, base: Transno) {
        let waiting: BTreeSet<ExportId> =
            core.clients().exports().iter().filter(|(_, e)| e.is_awaited()).map(|(id, _)| id).collect();
        let clients = waiting.len();
        core.osd.freeze_stable(true);
        let now = self.ctx().now();
        core.recovery().begin(base, (now, self.ctx().wall()), now + longest_lease(core), waiting);
        let lease_ms = longest_lease(core).as_millis() as u64;
        let target_name = core.name.to_string();
        tracing::warn!(
            target_name,
            clients,
            lease_ms,
            "not stopped as planned: in recovery until every known client has reported or a lease has passed"
        );
    }

    /// Whether changes may have been lost since the latest start; returns the latest one that was not.
    async fn find_loss(&self, core: &Rc<TargetCore>) -> Result<Option<Transno>, Errno> {
        let unfinished = match core.osd.get(table::TARGET, RECOVERY_KEY).await? {
            Some(row) => Some(Transno::from_slice(&row)?),
            None => None,
        };
        let nobody = core.clients().exports().iter().all(|(_, e)| !e.is_awaited());
        let nothing = core.osd.was_clean() || S::COMMITS_BEFORE_REPLY || nobody;
        Ok(unfinished.or((!nothing).then(|| core.osd.last_transno())))
    }
}

/// The reply records of all clients.
async fn load_records(core: &TargetCore) -> Result<BTreeMap<Generation, Vec<ReplyRecord>>, Errno> {
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
    Ok(records)
}
