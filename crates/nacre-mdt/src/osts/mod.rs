//! The OSTs as the metadata target sees them: their identity, their connection, their space, their reservations.
//!
//! The list of OSTs comes from the MGS and is fetched again when its version changes. Each OST has an import, a task
//! that keeps a reservation of objects, and a task that sends it the destroys and owner changes in its rows
//! (`work.rs`).
//! Invariants: a create never waits for a full OST, and waits for stopped OSTs only during a short outage; reserved objects
//! that were not used are kept over a clean restart.

pub(crate) mod allocator;
pub(crate) mod data_moves;
pub(crate) mod free_space;
mod known;
pub(crate) mod layout_choice;
mod move_data;
mod reclaim;
mod size_queue;
mod sizes;
mod work;

use crate::osts::allocator::{Allocator, NoLayout, OstRoom};
use crate::osts::free_space::{Qos, Reserve};
use crate::osts::known::KnownOsts;
use crate::osts::size_queue::SizeQueue;
use crate::rows::row::Row;
use crate::rows::table::{self, RESERVED};
use crate::service::params::osp_prefix;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::{Peer, PeerConfig, RpcError, WaitList};
use nacre_osd::{Credits, OsdError, Pins};
use nacre_target::{Registration, TargetCore};
use nacre_types::{
    Errno, Failure, Instant, Layout, LayoutTemplate, OstIndex, ProtocolOutcome, TargetKind, TargetName,
    Transno,
};
use nacre_wire::mgs::{PermanentParam, TargetEntry};
use nacre_wire::ost::FreeSpace;
use nacre_wire::params::{OspParam, Value};
use nacre_wire::target::{Role, Statfs};
use tracing::{info, warn};

/// Objects reserved at a time, and when to ask for more.
const RESERVE_OBJECTS: u64 = 8192;
const RESERVE_BELOW: u64 = 4096;
/// Interval at which an OST is asked for its space; shorter while it would soon be full at the rate since the last reply.
const STATFS_EVERY: Duration = Duration::from_secs(2);
const STATFS_OFTEN: Duration = Duration::from_millis(50);
/// Interval at which the version of the target list is checked (without a message).
const LIST_EVERY: Duration = Duration::from_secs(1);
/// Time that creates wait when every OST is stopped, before they fail.
const OUTAGE: Duration = Duration::from_secs(15);
/// Time that a create of several stripes waits for OSTs that have not replied since the start.
const FIRST_WORD: Duration = Duration::from_secs(3);
/// Connections' worth of modifying requests to one OST.
const MOD_RPCS: u16 = 16;
/// The same refusal is logged once in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// One OST. Its index and its peer never change.
pub(crate) struct Ost {
    pub(crate) index: OstIndex,
    pub(crate) peer: Rc<Peer>,
    /// Woken when there are rows for this OST, or the service stops.
    work: WaitList,
    has_work: Cell<bool>,
    /// A round is under way whose destroys have no reply yet.
    in_hand: Cell<bool>,
    /// Woken when the destroys of a round have replies, or the round has failed.
    destroyed: WaitList,
    /// It has executed the destroys that changes up to this one have asked for.
    destroyed_to: Cell<Transno>,
    /// Callers that wait for destroys: rounds request the commits that they wait for.
    hurrying: Cell<u32>,
    /// Woken when there is one more of them, or the service stops.
    hurry: WaitList,
    low: WaitList,
    /// The administrator allows new files on it.
    active: Cell<bool>,
    /// The log says that it is full.
    full: Cell<bool>,
    /// The last time at which it could take a file (or the time of its first appearance).
    last_usable: Cell<Instant>,
}

impl Ost {
    /// Whether there may be destroys for it that were not sent, or have no reply.
    pub(crate) fn owes_destroys(&self) -> bool {
        self.has_work.get() || self.in_hand.get()
    }
    /// The OST has executed the destroys of a round, or the round is over. One that was full may have room again.
    pub(crate) fn destroys_acknowledged(&self) {
        self.in_hand.set(false);
        self.destroyed.wake_all();
        if self.full.get() {
            self.low.wake_all();
        }
    }
}

/// All OSTs of the file system.
pub(crate) struct Osts {
    core: Rc<TargetCore>,
    allocator: RefCell<Allocator>,
    peers: RefCell<BTreeMap<OstIndex, Rc<Ost>>>,
    /// Woken when space or connections have changed.
    changed: WaitList,
    stopping: Cell<bool>,
    started: Instant,
    /// The last time at which any OST could take a file (or the start).
    last_usable: Cell<Instant>,
    /// The last time at which this process was known to run.
    ran_at: Cell<Instant>,
    refusal_logged: Cell<Option<Instant>>,
    sizes: SizeQueue,
    registration: RefCell<Option<Rc<Registration>>>,
    known: KnownOsts,
}

impl Osts {
    pub(crate) fn new(core: &Rc<TargetCore>) -> Rc<Self> {
        Rc::new(Self {
            core: core.clone(),
            allocator: RefCell::default(),
            peers: RefCell::default(),
            changed: core.ctx.wait_list(),
            stopping: Cell::new(false),
            started: core.ctx.now(),
            last_usable: Cell::new(core.ctx.now()),
            ran_at: Cell::new(core.ctx.now()),
            refusal_logged: Cell::new(None),
            sizes: SizeQueue::new(&core.ctx),
            registration: RefCell::default(),
            known: KnownOsts::default(),
        })
    }

    pub(crate) fn get(&self, index: OstIndex) -> Option<Rc<Ost>> {
        self.peers.borrow().get(&index).cloned()
    }
    /// The import of an OST, if it can be asked now.
    pub(crate) fn connected(&self, index: OstIndex) -> Option<Rc<Peer>> {
        self.get(index).map(|ost| ost.peer.clone()).filter(|peer| peer.is_connected())
    }
    pub(crate) fn rooms(&self) -> Vec<(OstIndex, OstRoom)> {
        self.refresh();
        self.allocator.borrow().osts().collect()
    }
    /// Whether new files may go to an OST, as the administrator has set it.
    pub(crate) fn is_active(&self, index: OstIndex) -> bool {
        self.get(index).is_some_and(|ost| ost.active.get())
    }
    /// Allows new files on an OST, or forbids them. Existing files are not affected.
    pub(crate) fn set_active(&self, index: OstIndex, active: bool) {
        if let Some(ost) = self.get(index) {
            ost.active.set(active);
            warn!(target_name = %self.core.name, ost = index.0, active, "the administrator set osp.active of an OST");
            self.refresh();
            self.changed.wake_all();
        }
    }
    /// The OSTs that are full.
    pub(crate) fn full(&self) -> Vec<Rc<Ost>> {
        let allocator = self.allocator.borrow();
        let full = allocator.osts().filter(|(_, room)| room.full());
        full.filter_map(|(index, _)| self.get(index)).collect()
    }
    /// Those on a device that one of these is on, itself included.
    pub(crate) fn on_devices_of(&self, osts: &[Rc<Ost>]) -> Vec<Rc<Ost>> {
        let allocator = self.allocator.borrow();
        let device = |index| allocator.room(index).map_or(0, |room| room.space.device());
        let devices: BTreeSet<u64> = osts.iter().map(|ost| device(ost.index)).collect();
        let shared = |index| device(index) != 0 && devices.contains(&device(index));
        let named = |index| osts.iter().any(|ost| ost.index == index);
        let peers = self.peers.borrow();
        peers.values().filter(|ost| named(ost.index) || shared(ost.index)).cloned().collect()
    }
    /// Those whose stores are on the device with this number.
    pub(crate) fn on_device(&self, device: u64) -> Vec<Rc<Ost>> {
        let allocator = self.allocator.borrow();
        let on_it = allocator.osts().filter(|(_, room)| device != 0 && room.space.device() == device);
        on_it.filter_map(|(index, _)| self.get(index)).collect()
    }
    pub(crate) fn all(&self) -> Vec<Rc<Ost>> {
        self.peers.borrow().values().cloned().collect()
    }
    pub(crate) fn is_full(&self, index: OstIndex) -> bool {
        self.allocator.borrow().room(index).is_some_and(|room| room.full())
    }
    pub(crate) fn any_usable(&self) -> bool {
        self.allocator.borrow().any_usable()
    }
    pub(crate) fn qos(&self) -> Qos {
        self.allocator.borrow().qos()
    }
    pub(crate) fn set_qos(&self, qos: Qos) {
        self.allocator.borrow_mut().set_qos(qos);
    }
    /// The identities of the OSTs, as they were met last.
    pub(crate) fn known(&self) -> &KnownOsts {
        &self.known
    }
    /// `reserved_mb_low` and `reserved_mb_high` of an OST.
    pub(crate) fn set_reserve(&self, index: OstIndex, change: impl FnOnce(Reserve) -> Reserve) {
        self.update(index, |room| {
            let reserve = change(room.space.reserve());
            room.space.set_reserve(reserve);
        });
        if let Some(ost) = self.get(index) {
            self.log_if_full(&ost);
        }
        self.changed.wake_all();
    }
    /// Rows for this OST were written. A full one needs its space: the commit that its destroys wait for is hurried.
    pub(crate) fn kick(&self, index: OstIndex) {
        if let Some(ost) = self.get(index) {
            if ost.full.get() {
                self.core.osd.request_commit();
            }
            ost.has_work.set(true);
            ost.work.wake_all();
        }
    }
    /// Returns the reservation of one object that will never be created.
    pub(crate) fn give_back(&self, index: OstIndex) {
        let mut allocator = self.allocator.borrow_mut();
        if let Some(mut room) = allocator.room(index) {
            room.objects += 1;
            allocator.set_room(index, room);
        }
    }
    /// A file that this MDT kept uses its object on this OST from now on.
    pub(crate) fn note_moved(&self, index: OstIndex) {
        self.allocator.borrow_mut().note_moved(index);
    }
    /// The files whose size has to be asked for.
    pub(crate) fn sizes(&self) -> &SizeQueue {
        &self.sizes
    }

    // ---- allocation

    fn refresh(&self) {
        self.skip_standstill();
        let now = self.core.ctx.now();
        let peers = self.peers.borrow();
        let mut allocator = self.allocator.borrow_mut();
        for ((index, room), ost) in allocator.rooms_mut().zip(peers.values()) {
            assert_eq!(*index, ost.index, "an OST and its room come together");
            room.up = ost.peer.is_connected() && ost.active.get();
            // An OST that was restarted and waits for its other clients counts as usable: this wait ends with their
            // leases.
            if room.usable() || ost.active.get() && ost.peer.is_recovering() {
                ost.last_usable.set(now);
                self.last_usable.set(now);
            }
        }
    }
    /// Time in which this process stood still does not count as an outage of the OSTs: their replies were not read, or they
    /// stood still as well.
    fn skip_standstill(&self) {
        let now = self.core.ctx.now();
        let gap = now.saturating_since(self.ran_at.replace(now));
        if gap > 2 * LIST_EVERY {
            let peers = self.peers.borrow();
            for last in peers.values().map(|ost| &ost.last_usable).chain([&self.last_usable]) {
                last.set(last.get() + gap);
            }
        }
    }
    /// Refreshes often enough that a standstill of this process is noticed.
    async fn tick(self: Rc<Self>) {
        while !self.stopping.get() {
            self.refresh();
            self.core.ctx.sleep(LIST_EVERY).await;
        }
    }
    /// Waits while no OST can take a file but one may soon: at the start, and in a short outage. The state may be a second
    /// old, so the choice of a layout refreshes it.
    pub(crate) async fn wait_usable(&self) {
        while !self.allocator.borrow().any_usable() {
            self.refresh();
            let done = self.allocator.borrow().any_usable() || self.allocator.borrow().all_full();
            let until = self.last_usable.get() + OUTAGE;
            if done || self.core.ctx.now() >= until {
                return;
            }
            let _changed = self.core.ctx.timeout(until, self.changed.wait()).await;
        }
    }
    /// Whether the OSTs that the template read_set may soon be able to: at the start, and in a short outage.
    fn may_be_usable_soon(&self, template: &LayoutTemplate) -> bool {
        let (now, allocator) = (self.core.ctx.now(), self.allocator.borrow());
        let first = u32::try_from(template.first_ost).ok().and_then(|index| self.get(OstIndex(index)));
        match first {
            Some(ost) => {
                let room = allocator.room(ost.index).unwrap_or_default();
                ost.active.get() && !room.usable() && !room.full() && now < ost.last_usable.get() + OUTAGE
            }
            None => {
                let several = !matches!(template.stripe_count, 0 | 1);
                // The last one may have gone while the rows of the operation were read.
                let outage = !allocator.any_usable() && !allocator.all_full();
                (outage && now < self.last_usable.get() + OUTAGE)
                    || (several && !allocator.all_known() && now < self.started + FIRST_WORD)
            }
        }
    }
    /// A layout for a new file. [`ProtocolOutcome::TryLater`]: an OST may connect soon.
    pub(crate) fn layout(&self, template: &LayoutTemplate) -> Result<Layout, Failure> {
        self.refresh();
        if self.may_be_usable_soon(template) {
            return Err(ProtocolOutcome::TryLater.into());
        }
        let layout = self.allocator.borrow_mut().layout(template, || self.core.ctx.random());
        match layout {
            Ok(mut layout) => {
                for component in &mut layout.components {
                    component.lay_out(|ost| self.known.replaced(ost));
                }
                self.ask_for_more(&layout);
                Ok(layout)
            }
            Err(e) => {
                self.log_refusal(e);
                Err(Errno::from(e).into())
            }
        }
    }
    fn ask_for_more(&self, layout: &Layout) {
        let allocator = self.allocator.borrow();
        for index in layout.components.iter().flat_map(|c| &c.stripes) {
            if allocator.room(*index).is_some_and(|r| r.objects <= RESERVE_BELOW && r.objects % 256 == 0)
                && let Some(ost) = self.peers.borrow().get(index)
            {
                ost.low.wake_all();
            }
        }
    }
    fn log_refusal(&self, e: NoLayout) {
        let now = self.core.ctx.now();
        if self.refusal_logged.get().is_none_or(|at| now >= at + LOG_INTERVAL) {
            self.refusal_logged.set(Some(now));
            warn!(target_name = %self.core.name, reason = %e, "a new file was refused its layout");
        }
    }

    // ---- the list

    /// Follows the list of the MGS; calls `found` for each new OST.
    pub(crate) async fn watch(
        self: Rc<Self>,
        registration: Rc<Registration>,
        stored: BTreeMap<OstIndex, u64>,
        found: impl Fn(Rc<Ost>),
    ) {
        *self.registration.borrow_mut() = Some(registration.clone());
        self.core.ctx.spawn(self.clone().tick());
        let mut known = 0;
        loop {
            if self.stopping.get() {
                return;
            }
            let version = registration.mgs().config_version();
            // The version comes with a ping, and no ping is needed while lists are asked for: each second one is, then.
            if known == 0 || version != known {
                match registration.targets().await {
                    Ok(list) => {
                        known = list.config_version;
                        for entry in list.targets.iter().filter(|t| t.kind == TargetKind::Ost) {
                            self.add_or_update(entry, &list.params, &stored, &found);
                        }
                    }
                    Err(_) if self.stopping.get() => return,
                    Err(error) => {
                        warn!(target_name = %self.core.name, %error, "the MGS did not send the list of targets, trying again")
                    }
                }
            }
            self.core.ctx.sleep(LIST_EVERY).await;
        }
    }
    fn add_or_update(
        self: &Rc<Self>,
        entry: &TargetEntry,
        permanent: &[PermanentParam],
        stored: &BTreeMap<OstIndex, u64>,
        found: &impl Fn(Rc<Ost>),
    ) {
        let index = OstIndex(entry.index);
        if let Some(ost) = self.get(index) {
            ost.peer.set_addresses(entry.addresses.clone());
            let (meant, admitted) = self.known.meant(entry);
            if admitted {
                // It has promised nothing yet.
                self.allocator.borrow_mut().set_room(index, OstRoom::default());
            }
            ost.peer.expect(meant.known, meant.replaced);
            return;
        }
        let TargetName::Of { fs, .. } = &self.core.name else { return };
        let target = TargetName::Of { fs: fs.clone(), kind: TargetKind::Ost, index: entry.index };
        let (meant, admitted) = self.known.meant(entry);
        let config = PeerConfig {
            client: self.core.osd.label().uuid,
            role: Role::Target,
            secret: self.core.secret_for(&target),
            name: self.core.name.to_string(),
            target: target.to_string(),
            addresses: entry.addresses.clone(),
            max_mod_rpcs: MOD_RPCS,
            known: Some(meant.known),
            replaced: meant.replaced,
            instance: self.core.osd.identity().latest().id,
        };
        let value_of = |param: OspParam| {
            let row = param.row();
            let value =
                self.core.permanent_value(&row.name(&osp_prefix(&self.core, index), ""), permanent)?;
            row.parse(&value).ok()
        };
        let megabytes = |param: OspParam| value_of(param)?.number();
        let active = match value_of(OspParam::Active) {
            Some(Value::Switch(active)) => active,
            _ => OspParam::Active.row().default_switch(),
        };
        let (low, high) = (megabytes(OspParam::ReservedMbLow), megabytes(OspParam::ReservedMbHigh));
        info!(target_name = %self.core.name, ost = %target, active, "a new OST");
        let ctx = &self.core.ctx;
        let ost = Rc::new(Ost {
            index,
            peer: Peer::new(ctx, &self.core.peers, config),
            work: ctx.wait_list(),
            has_work: Cell::new(true),
            in_hand: Cell::new(false),
            destroyed: ctx.wait_list(),
            destroyed_to: Cell::new(Transno(0)),
            hurrying: Cell::new(0),
            hurry: ctx.wait_list(),
            low: ctx.wait_list(),
            active: Cell::new(active),
            full: Cell::new(false),
            last_usable: Cell::new(ctx.now()),
        });
        let objects = stored.get(&index).copied().filter(|_| !admitted).unwrap_or(0);
        let room =
            OstRoom { objects, space: free_space::FreeSpace::reserving(low, high), ..OstRoom::default() };
        self.allocator.borrow_mut().set_room(index, room);
        self.peers.borrow_mut().insert(index, ost.clone());
        ctx.spawn(self.clone().keep_room(ost.clone()));
        found(ost);
    }

    // ---- room

    /// Keeps the figures of an OST up to date and its reservation filled.
    async fn keep_room(self: Rc<Self>, ost: Rc<Ost>) {
        let mut before = None;
        while !self.stopping.get() {
            let asked = self.ask_room(&ost).await;
            if let Err(error) = self.known.keep(&self.core, [&*ost].into_iter(), false).await {
                warn!(target_name = %self.core.name, ost = ost.index.0, %error, "the state of an OST cannot be stored, trying again");
            }
            // Also while nothing is created: an outage is counted from when the last OST went, not from the last file.
            self.refresh();
            self.changed.wake_all();
            let now = self.core.ctx.now();
            let pause = match asked {
                Ok(()) => {
                    let space = self.allocator.borrow().room(ost.index).unwrap_or_default().space;
                    let free = [space.bytes_avail, space.files_free];
                    let before = before.replace((now, free)).map(|(at, had)| (now.saturating_since(at), had));
                    until_next_question(before, free)
                }
                Err(error) => {
                    if !self.stopping.get() {
                        warn!(target_name = %self.core.name, ost = ost.index.0, %error, "an OST did not report its space, trying again");
                    }
                    STATFS_EVERY
                }
            };
            let _low = self.core.ctx.timeout(now + pause, ost.low.wait()).await;
        }
    }
    /// Asks an OST for its space. Returns the objects reserved on it.
    async fn ask_space(&self, ost: &Ost) -> Result<u64, RpcError> {
        if ost.full.get() {
            // New files come as soon as truncates and destroys have given it room again.
            ost.peer.call(&FreeSpace {}).await?;
        }
        let space = ost.peer.call(&Statfs {}).await?;
        let objects = self.update(ost.index, |room| {
            room.space.update(&space);
            room.asked = true;
        });
        self.log_if_full(ost);
        Ok(objects)
    }
    /// The same, and reserves more objects.
    pub(crate) async fn ask_room(&self, ost: &Ost) -> Result<(), RpcError> {
        let objects = self.ask_space(ost).await?;
        if objects >= RESERVE_BELOW {
            return Ok(());
        }
        match ost.peer.call(&nacre_wire::ost::Reserve { objects: RESERVE_OBJECTS - objects }).await {
            Ok(granted) => {
                self.update(ost.index, |room| {
                    room.objects += granted.objects;
                    room.refused = false;
                });
            }
            Err(RpcError::Failed(Failure::ENOSPC)) => {
                self.update(ost.index, |room| room.refused = true);
            }
            Err(e) => return Err(e),
        }
        self.log_if_full(ost);
        Ok(())
    }
    /// Logs once when an OST becomes full, and once when it has room again.
    fn log_if_full(&self, ost: &Ost) {
        let Some(room) = self.allocator.borrow().room(ost.index) else { return };
        let full = room.asked && (room.space.is_low() || room.objects == 0 && room.refused);
        if ost.full.replace(full) == full {
            return;
        }
        let Reserve { low_mb, high_mb } = room.space.reserve();
        let avail_mb = room.space.bytes_avail >> 20;
        if full {
            warn!(target_name = %self.core.name, ost = ost.index.0, avail_mb, reserved_mb_low = low_mb,
                "an OST is full: it gets no new files until its free space exceeds reserved_mb_high");
        } else {
            warn!(target_name = %self.core.name, ost = ost.index.0, avail_mb, reserved_mb_high = high_mb,
                "an OST has room for new files again");
        }
    }
    fn update(&self, index: OstIndex, change: impl FnOnce(&mut OstRoom)) -> u64 {
        let mut allocator = self.allocator.borrow_mut();
        let mut room = allocator.room(index).unwrap_or_default();
        change(&mut room);
        allocator.set_room(index, room);
        room.objects
    }

    // ---- start and stop

    /// Reads the reservations of the last clean stop. They count once: the rows are deleted.
    pub(crate) async fn load_reserved(core: &TargetCore) -> Result<BTreeMap<OstIndex, u64>, OsdError> {
        let rows = core.osd.scan(RESERVED, &[], &[], u32::MAX).await?;
        let stored: BTreeMap<OstIndex, u64> = rows
            .iter()
            .filter_map(|(key, value)| {
                let index = u32::from_be_bytes(key.get(..4)?.try_into().ok()?);
                Some((OstIndex(index), u64::from_row(value).ok()?))
            })
            .collect();
        if !rows.is_empty() {
            let reservation = core.osd.reserve(credits(rows.len())).await?;
            let deleted = core.transact_local(&Pins::default(), reservation, |tx| {
                rows.iter().for_each(|(key, _)| tx.delete(RESERVED, key));
                Ok(())
            });
            deleted.map_err(|e| OsdError::Stopped(e.to_string()))?;
        }
        Ok(stored)
    }
    /// Ends the tasks and the imports, and stores the reservations.
    pub(crate) async fn stop(&self) {
        self.stopping.set(true);
        self.sizes.wake();
        self.changed.wake_all();
        let osts: Vec<Rc<Ost>> = self.peers.borrow().values().cloned().collect();
        for ost in &osts {
            ost.work.wake_all();
            ost.hurry.wake_all();
            ost.low.wake_all();
        }
        if let Err(error) = self.store_reserved().await {
            warn!(target_name = %self.core.name, %error, "the reservation at the OSTs is not kept over the restart");
        }
        if let Err(error) = self.known.keep(&self.core, osts.iter().map(|ost| &**ost), true).await {
            warn!(target_name = %self.core.name, %error, "the state of the OSTs cannot be stored for the next start");
        }
        for ost in osts {
            ost.peer.disconnect().await;
        }
        let registration = self.registration.borrow_mut().take();
        if let Some(registration) = registration {
            registration.mgs().disconnect().await;
        }
    }
    async fn store_reserved(&self) -> Result<(), Errno> {
        let rooms: Vec<(OstIndex, OstRoom)> = self.allocator.borrow().osts().collect();
        let reservation = self.core.osd.reserve(credits(rooms.len())).await?;
        self.core
            .transact_local(&Pins::default(), reservation, |tx| {
                for (index, room) in &rooms {
                    tx.put(RESERVED, &table::reserved(*index), room.objects.to_row());
                }
                Ok(())
            })
            .map(|_| ())
    }
}

/// The time until an OST is asked for its space again. It has so many bytes and files `free` now; `before` is the time since an
/// earlier reply and the figures of that one. At the same pace at most half of the present space is used until the next
/// question.
fn until_next_question(before: Option<(Duration, [u64; 2])>, free: [u64; 2]) -> Duration {
    let Some((since, had)) = before else { return STATFS_EVERY };
    let until_half_gone = |(had, free): (u64, u64)| {
        let used = had.checked_sub(free).filter(|used| *used > 0)?;
        let ms = since.as_millis() * u128::from(free) / u128::from(used) / 2;
        Some(Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)))
    };
    let soonest = had.into_iter().zip(free).filter_map(until_half_gone).min();
    soonest.map_or(STATFS_EVERY, |soonest| soonest.clamp(STATFS_OFTEN, STATFS_EVERY))
}

/// Rows of a reservation go with the next start: a full disk keeps no target from it.
fn credits(rows: usize) -> Credits {
    let rows = rows as u32;
    Credits { rows, row_bytes: 64 * rows, frees: true, ..Credits::default() }
}
