//! The targets and mounts of one file system in a world.

use crate::lease_table::LeaseTable;
use crate::mount::{Jobs, MountIsland};
use crate::offline::{self, osd_config};
use crate::plan::Plan;
use crate::run::{SECOND, STUCK_NS};
use crate::world::net::Noise;
use crate::world::{Faults, NodeId, World};
use nacre_client::MountConfig;
use nacre_mdt::Mdt;
use nacre_mgs::Mgs;
use nacre_node::store::Store;
use nacre_node::{Ctx, Effect, Event, Logic, StoreError, StoreOp};
use nacre_osd::Label;
use nacre_osd_mem::MemStore;
use nacre_ost::Ost;
use nacre_target::{KeptWrites, Service, TargetConfig, TargetIsland, set_params};
use nacre_testkit::CrashDevice;
use nacre_types::{
    Caller, ClientUuid, Failure, Fid, FsName, Instant, LayoutTemplate, TargetKind, TargetName, Timestamp,
};
use nacre_wire::target::{Param, SetParam};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const FS: &str = "demo";
/// Bytes of each target's store.
const STORE_BYTES: u64 = 256 << 20;
/// Far worse than a broken quartz; the margin of a lease is a third.
const DRIFT_PPM: u64 = 40_000;
/// As long as most frames take.
const JOINED_US: u64 = 100;
/// In the order of servers, behind the MGS.
const MDT: usize = 1;

/// The bytes that a store loses when its server dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreLoss {
    /// Any part of what was not synced, with the machine.
    Power,
    /// All bytes that were not synced, because the device refused them; the kernel's cache still shows them.
    Refused,
    /// The same, and the store is mounted again, so that the cache is gone.
    Remounted,
    /// Any part of what was not synced: a copy of the device takes its place.
    Copied,
}
impl StoreLoss {
    /// Every kind, for tests that try all of them.
    pub const ALL: [Self; 4] = [Self::Power, Self::Refused, Self::Remounted, Self::Copied];
}

/// The devices below the stores of the targets.
#[derive(Clone, Copy)]
enum Disks {
    /// In memory, each with a device of its own.
    Own,
    /// In memory; the OSTs share a device.
    OstsShare,
    /// Devices that can lose what was not synced.
    Forget,
}

/// For each OST, the writes of killed processes that its starts execute first.
type LeftWrites = Rc<RefCell<BTreeMap<u32, Vec<KeptWrites>>>>;

/// A file system: one MGS, one MDT, OSTs, mounts.
pub struct Cluster {
    /// Owns the nodes, their network and their clocks.
    pub world: World,
    /// Work that was given to mounts.
    pub jobs: Jobs,
    /// The MGS, the MDT, then the OSTs by index.
    pub servers: Vec<NodeId>,
    /// Mounts that run the operations of the plan, in the order of their start.
    pub mounts: Vec<NodeId>,
    /// A mount that will be killed.
    pub victim: Option<NodeId>,
    /// Stores of the servers, in the order of `servers`; they survive a kill.
    pub stores: Vec<Arc<dyn Store>>,
    /// Under the stores of servers that can lose their machine, in their order.
    pub devices: Vec<CrashDevice>,
    /// Of targets that are started from now on.
    pub ack_or_commit: Rc<Cell<bool>>,
    /// The targets are islands of one process: it stops, or is cut off, as a whole.
    pub one_process: bool,
    replaced: u32,
    /// When the machine of another server was last lost, and that of the MDT.
    pub lost_ns: [u64; 2],
    /// Whether the MDT runs with `commit_on_sharing`, from its next start on.
    pub commit_on_sharing: Rc<Cell<bool>>,
    left_writes: LeftWrites,
    /// Of mounts that are started from now on: names that a listing requests at a time.
    pub names_per_page: Rc<Cell<u32>>,
}

impl Cluster {
    /// Formats and starts everything; the mounts are there at once and wait for their servers.
    pub fn new(seed: u64, ost_count: u32, mount_count: u32) -> Self {
        Self::build(seed, Noise::default(), ost_count, mount_count, Disks::Own)
    }

    /// The same with all OSTs on one device: they share its space.
    pub fn on_one_device(seed: u64, ost_count: u32, mount_count: u32) -> Self {
        Self::build(seed, Noise::default(), ost_count, mount_count, Disks::OstsShare)
    }

    /// The same on devices that forget what was not synced, see [`Cluster::power_loss`].
    pub fn on_devices(seed: u64, ost_count: u32, mount_count: u32) -> Self {
        Self::build(seed, Noise::default(), ost_count, mount_count, Disks::Forget)
    }

    /// The cluster of a plan.
    pub fn of(plan: &Plan) -> Self {
        let n = plan.noise_one_in;
        let noise = Noise { drop_one_in: 4 * n, double_one_in: n, swap_one_in: n };
        let forget = plan.power || plan.machines + plan.lose_both > 0;
        let disks = if forget { Disks::Forget } else { Disks::Own };
        let mounts = plan.mounts + u32::from(plan.victim);
        let mut cluster = Self::build(plan.seed, noise, plan.osts, mounts, disks);
        cluster.commit_on_sharing.set(plan.lose_both > 0);
        // Directories are small here, and their listings have several pages nevertheless.
        cluster.names_per_page.set(4);
        if plan.victim {
            cluster.victim = cluster.mounts.pop();
        }
        cluster
    }

    /// The machine of a server dies: any part of the bytes that were not synced is lost. The caller starts it again.
    pub fn power_loss(&mut self, server: usize) {
        self.lose_store(server, StoreLoss::Power);
    }
    /// A server dies, and its store loses bytes as `loss` says. The caller starts the server again.
    pub fn lose_store(&mut self, server: usize, loss: StoreLoss) {
        let id = self.servers[server];
        self.world.note(id, || format!("loses {loss:?}"));
        self.world.kill(id);
        let device = &mut self.devices[server];
        match loss {
            StoreLoss::Power => device.power_loss(self.world.rng()),
            StoreLoss::Refused => {
                device.refuse_writeback();
                device.kill_process();
            }
            StoreLoss::Remounted => {
                device.refuse_writeback();
                device.remount();
            }
            StoreLoss::Copied => *device = device.copy_unsynced(self.world.rng()),
        }
        self.stores[server] = self.devices[server].store();
        self.world.set_store(id, self.stores[server].clone());
    }

    /// The target of a server that does not run lies on another device from its next start on.
    pub fn set_device(&mut self, server: usize, device: CrashDevice) {
        self.stores[server] = device.store();
        self.world.set_store(self.servers[server], self.stores[server].clone());
        self.devices[server] = device;
    }
    /// One more server, not started: an OST's target in a copy of its store, on another machine.
    pub fn add_copy(&mut self, server: usize, device: CrashDevice) -> NodeId {
        let target_name = self.world.name(self.servers[server]).to_string();
        let name = format!("copy-of-{target_name}");
        let (rule, sharing) = (self.ack_or_commit.clone(), self.commit_on_sharing.clone());
        let address = World::address(&name);
        let start =
            move |ctx: &Rc<Ctx>| target(ctx, TargetKind::Ost, &address, (&rule, &sharing), None, Vec::new());
        let node = self.world.add(&name, Some(device.store()), Box::new(start));
        self.world.set_serves(node, &target_name);
        self.servers.push(node);
        self.stores.push(device.store());
        self.devices.push(device);
        node
    }
    /// A device with a new, empty target of the same name, as `mkfs --reformat` makes it.
    pub fn blank_device(&mut self, server: usize) -> CrashDevice {
        let name =
            TargetName::parse(self.world.name(self.servers[server])).expect("servers have names of targets");
        let device = CrashDevice::new(STORE_BYTES);
        format(&*device.store(), &name, &mut self.world);
        device
    }

    /// The machine that serves this target is lost with all that it serves, and comes back.
    pub fn lose_machine(&mut self, server: usize, loss: StoreLoss, down_ns: u64) {
        for node in self.process_of(self.servers[server]) {
            let lost = self.servers.iter().position(|s| *s == node).unwrap_or(server);
            self.lose_store(lost, loss);
            self.lost_ns[usize::from(lost == MDT)] = self.world.now_ns();
            self.world.start_later(node, down_ns);
        }
    }

    fn build(seed: u64, noise: Noise, ost_count: u32, mount_count: u32, disks: Disks) -> Self {
        let mut world = World::new(seed);
        world.faults = faults(seed, noise);
        let fs = FsName::parse(FS).expect("a valid name");
        let of = |kind, index| TargetName::Of { fs: fs.clone(), kind, index };
        let mut names = vec![TargetName::Mgs, of(TargetKind::Mdt, 0)];
        names.extend((0..ost_count).map(|index| of(TargetKind::Ost, index)));
        let mut servers = Vec::new();
        let mut stores = Vec::new();
        let mut devices = Vec::new();
        let shared = MemStore::on(1, STORE_BYTES);
        let ack_or_commit = Rc::new(Cell::new(true));
        let left_writes = LeftWrites::default();
        let commit_on_sharing = Rc::new(Cell::new(false));
        // Every other file system is served by one process.
        let one_process = seed.is_multiple_of(2);
        let lease_table = one_process.then(|| Arc::new(LeaseTable::default()));
        for name in &names {
            let store: Arc<dyn Store> = match disks {
                Disks::Forget => {
                    devices.push(CrashDevice::new(STORE_BYTES));
                    devices[devices.len() - 1].store()
                }
                Disks::OstsShare if name.kind() == TargetKind::Ost => Arc::new(shared.beside()),
                Disks::Own | Disks::OstsShare => Arc::new(MemStore::new(STORE_BYTES)),
            };
            format(&*store, name, &mut world);
            let kind = name.kind();
            let address = World::address(&name.to_string());
            let (rule, lease_table) = (ack_or_commit.clone(), lease_table.clone());
            let sharing = commit_on_sharing.clone();
            let left = LeftWritesOf { all: left_writes.clone(), target: name.clone() };
            let start = move |ctx: &Rc<Ctx>| {
                target(ctx, kind, &address, (&rule, &sharing), lease_table.as_ref(), left.get())
            };
            let server = world.add(&name.to_string(), Some(store.clone()), Box::new(start));
            if one_process {
                world.share_clock(server, *servers.first().unwrap_or(&server));
            }
            servers.push(server);
            stores.push(store);
        }
        let names_per_page = Rc::new(Cell::new(MountConfig::NAMES_PER_PAGE));
        let mounts: Vec<NodeId> =
            (0..mount_count).map(|i| add_mount(&mut world, &format!("mount{i}"), &names_per_page)).collect();
        // In any order.
        let mut all: Vec<NodeId> = servers.iter().chain(&mounts).copied().collect();
        while !all.is_empty() {
            let at = world.rng().below(all.len() as u64) as usize;
            let after_ns = world.rng().below(50_000_000);
            world.start_later(all.swap_remove(at), after_ns);
        }
        Self {
            world,
            jobs: Jobs::default(),
            servers,
            mounts,
            victim: None,
            stores,
            devices,
            ack_or_commit,
            replaced: 0,
            lost_ns: [0; 2],
            commit_on_sharing,
            one_process,
            left_writes,
            names_per_page,
        }
    }

    /// For each OST, the writes of killed processes that its starts execute first.
    pub(crate) fn left_writes(&self) -> &RefCell<BTreeMap<u32, Vec<KeptWrites>>> {
        &self.left_writes
    }

    /// Waits until the mounts from `first` on are ready.
    pub fn ready(&mut self, first: usize) -> Result<(), String> {
        for &mount in &self.mounts[first..] {
            let until = self.world.now_ns() + STUCK_NS;
            self.world.run_until(until, |world| world.is_up(mount));
            let job = self.jobs.start(&mut self.world, mount, |client| async move { client.ready().await });
            match self.jobs.wait::<Result<(), String>>(&mut self.world, job, STUCK_NS) {
                Some(ready) => ready?,
                None => return Err("a mount does not get ready".into()),
            }
        }
        Ok(())
    }

    /// The machine dies with everything on it, and comes back; there is one more mount then.
    pub fn lose_power(&mut self) -> Result<(), String> {
        for &node in &self.mounts {
            self.world.kill(node);
        }
        for server in 0..self.servers.len() {
            self.power_loss(server);
            self.world.start_later(self.servers[server], 50_000_000);
        }
        let name = format!("mount{}", self.mounts.len());
        let mount = add_mount(&mut self.world, &name, &self.names_per_page);
        self.world.start_later(mount, 50_000_000);
        self.mounts.push(mount);
        Ok(())
    }

    /// Planned stops, one server after the other.
    pub fn stop_servers(&mut self) -> Result<(), String> {
        let world = &mut self.world;
        for &server in self.servers.iter().rev() {
            world.tell(server, Event::Stop);
            let until = world.now_ns() + 60 * SECOND;
            if !world.run_until(until, |world| world.take_stopped().contains(&server)) {
                return Err(format!("{} does not stop", world.name(server)));
            }
        }
        match world.fatal.first() {
            Some(fatal) => Err(format!("an island gave up: {fatal}")),
            None => Ok(()),
        }
    }

    /// A new mount in the place of one that died.
    pub fn replace_mount(&mut self, number: usize) -> Result<(), String> {
        self.replaced += 1;
        let mount =
            add_mount(&mut self.world, &format!("mount{number}.{}", self.replaced), &self.names_per_page);
        self.mounts[number] = mount;
        self.world.start(mount);
        self.ready(number)
    }

    /// Clients that each server knows.
    pub fn exports(&mut self) -> BTreeMap<String, u64> {
        let found = self.params(|name| name.ends_with(".num_exports"));
        found.into_iter().map(|(server, _, n)| (server, n.parse().expect("a number"))).collect()
    }

    /// The process of an island: other islands that stop with it.
    pub fn process_of(&self, node: NodeId) -> Vec<NodeId> {
        if self.one_process && self.servers.contains(&node) { self.servers.clone() } else { vec![node] }
    }

    /// Parameters of the servers by a condition on their names: (server, name, value).
    pub fn params(&mut self, wanted: impl Fn(&str) -> bool) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        self.jobs.collect(&mut self.world);
        for &server in &self.servers {
            if self.world.is_paused(server) {
                continue;
            }
            self.world.tell(server, Event::Door(Box::new(())));
            let Some((_, said)) = self.world.hear() else { continue };
            let params = said.downcast::<Vec<Param>>().expect("servers say nothing but their parameters");
            let name = self.world.name(server).to_string();
            found.extend(
                params.into_iter().filter(|p| wanted(&p.name)).map(|p| (name.clone(), p.name, p.value)),
            );
        }
        found
    }
}

impl Cluster {
    /// Slots of all mounts for changes at the MDT. They must be ready.
    pub fn limit_slots(&mut self, limit: u16) {
        for &mount in &self.mounts {
            self.jobs.start(&mut self.world, mount, move |client| async move {
                let mut names = client.params().into_iter().map(|p| p.name);
                let name = names.find(|n| n.starts_with("mdc.") && n.ends_with(".max_mod_rpcs_in_flight"));
                client
                    .set_param(&name.expect("a ready mount knows the MDT"), &limit.to_string())
                    .expect("it is set");
            });
        }
    }
    /// All mounts keep from now on what they write to files that no other mount has open. They must be ready.
    pub fn write_back(&mut self) -> Result<(), String> {
        for mount in self.mounts.clone() {
            let job = self.jobs.start(&mut self.world, mount, move |client| async move {
                client.set_param(&format!("llite.{}.write_back", client.mount_name()), "1")
            });
            let set: Option<Result<(), String>> = self.jobs.wait(&mut self.world, job, 1_000_000_000);
            set.ok_or("a mount did not reply")??;
        }
        Ok(())
    }
    /// The MDT keeps so many bytes of each new file, unless another layout was set. The mounts must be ready.
    pub fn keep_data_at_mdt(&mut self, dom_bytes: u32) -> Result<(), String> {
        let job = self.jobs.start(&mut self.world, self.mounts[0], move |client| async move {
            let template = LayoutTemplate { dom_bytes: Some(dom_bytes), ..LayoutTemplate::default() };
            client.set_layout(Fid::ROOT, template, Caller::root()).await
        });
        let set: Option<Result<(), Failure>> = self.jobs.wait(&mut self.world, job, STUCK_NS);
        set.ok_or("a mount did not reply")?.map_err(|error| format!("the layout of the root: {error}"))
    }
    /// Sets parameters of a server that has started.
    pub fn set_param(&mut self, server: usize, name: &str, value: &str) {
        let set = SetParam { name: name.into(), value: value.into() };
        self.world.tell(self.servers[server], Event::Door(Box::new(set)));
    }
}

/// The part of one target.
struct LeftWritesOf {
    all: LeftWrites,
    target: TargetName,
}
impl LeftWritesOf {
    /// A start that does not get to its end is given them again.
    fn get(&self) -> Vec<KeptWrites> {
        match self.target {
            TargetName::Of { kind: TargetKind::Ost, index, .. } => {
                self.all.borrow().get(&index).cloned().unwrap_or_default()
            }
            TargetName::Of { kind: TargetKind::Mdt, .. } => {
                self.all.borrow().values().flatten().cloned().collect()
            }
            _ => Vec::new(),
        }
    }
}

fn add_mount(world: &mut World, name: &str, names_per_page: &Rc<Cell<u32>>) -> NodeId {
    let config = MountConfig {
        mgs_addresses: vec![World::address("MGS")],
        fs: FsName::parse(FS).expect("a valid name"),
        name: name.to_string(),
        instance: None,
        read_only: false,
        atime: nacre_client::AtimePolicy::default(),
        names_per_page: MountConfig::NAMES_PER_PAGE,
        write_back: false,
        kept_log: None,
        left_writes: Vec::new(),
    };
    let names_per_page = names_per_page.clone();
    let start = move |ctx: &Rc<Ctx>| {
        let config = MountConfig { names_per_page: names_per_page.get(), ..config.clone() };
        Box::new(MountIsland::new(ctx, config)) as Box<dyn Logic>
    };
    world.add(name, None, Box::new(start))
}

fn target(
    ctx: &Rc<Ctx>,
    kind: TargetKind,
    address: &str,
    (rule, sharing): (&Cell<bool>, &Cell<bool>),
    lease_table: Option<&Arc<LeaseTable>>,
    kept_writes: Vec<KeptWrites>,
) -> Box<dyn Logic> {
    let config = TargetConfig {
        addresses: vec![address.to_string()],
        mgs_nodes: if kind == TargetKind::Mgs { Vec::new() } else { vec![World::address("MGS")] },
        lease_ms: 10_000,
        max_mod_rpcs: 8,
        ack_or_commit: rule.get(),
        reply_records: true,
        fault_points: true,
        in_memory: false,
        root_owner: (0, 0),
        kept_writes,
    };
    match kind {
        TargetKind::Mgs => watched(TargetIsland::<Mgs>::new(ctx, config, osd_config()), lease_table, vec![]),
        TargetKind::Mdt => {
            let set = |name: &str, value: &str| SetParam { name: name.into(), value: value.into() };
            // Most scripts are about objects; those of small files set a layout (`Cluster::keep_data_at_mdt`).
            let mut at_start = vec![set("lod.*.dom_stripesize", "0")];
            at_start.extend(sharing.get().then(|| set("mdt.*.commit_on_sharing", "1")));
            watched(TargetIsland::<Mdt>::new(ctx, config, osd_config()), lease_table, at_start)
        }
        TargetKind::Ost => watched(TargetIsland::<Ost>::new(ctx, config, osd_config()), lease_table, vec![]),
    }
}

fn watched<S: Service>(
    island: TargetIsland<S>,
    lease_table: Option<&Arc<LeaseTable>>,
    at_start: Vec<SetParam>,
) -> Box<dyn Logic> {
    let island = match lease_table {
        Some(lease_table) => island.with_neighbours(lease_table.clone()),
        None => island,
    };
    Box::new(Watched(island, at_start))
}

/// A target whose parameters can be read and set through its front end; some are set as soon as it serves.
struct Watched<S: Service>(TargetIsland<S>, Vec<SetParam>);
impl<S: Service> Watched<S> {
    fn set(&self, set: &SetParam) -> bool {
        let Some((core, service)) = self.0.core().zip(self.0.service()) else { return false };
        let reply = set_params(core, &**service, set);
        assert!(reply.matched > 0 && reply.refused.is_empty(), "{set:?}: {}", reply.refused);
        true
    }
}
impl<S: Service> Logic for Watched<S> {
    fn ctx(&self) -> &Rc<Ctx> {
        self.0.ctx()
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Door(wish) => match wish.downcast::<SetParam>() {
                Ok(set) => {
                    self.set(&set);
                }
                Err(_) => {
                    let Some((core, service)) = self.0.core().zip(self.0.service()) else { return };
                    self.0.ctx().push(Effect::Door(Box::new(core.all_params(&**service))));
                }
            },
            other => {
                self.0.handle(other);
                if !self.1.is_empty() && self.1.iter().all(|set| self.set(set)) {
                    self.1.clear();
                }
            }
        }
    }
    fn log_writes(&mut self, out: &mut Vec<StoreOp>) {
        self.0.log_writes(out);
    }
    fn log_failed(&mut self, error: &StoreError) {
        self.0.log_failed(error);
    }
}

/// The faults of the network and of clocks.
fn faults(seed: u64, noise: Noise) -> Faults {
    // In every third file system, servers and mounts take in several frames at one entry, as those of a busy machine do.
    let joined_us = if seed.is_multiple_of(3) { JOINED_US } else { 0 };
    Faults { noise, drift_ppm: DRIFT_PPM, joined_us, ..Faults::default() }
}

/// Writes the label of a new target, as mkfs does.
fn format(store: &dyn Store, name: &TargetName, world: &mut World) {
    let ctx = Ctx::new(world.rng().next_u64());
    ctx.set_time(Instant(0), Timestamp::default());
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&ctx.random().to_le_bytes());
    uuid[8..].copy_from_slice(&ctx.random().to_le_bytes());
    let mgs_nodes = if *name == TargetName::Mgs { Vec::new() } else { vec![World::address("MGS")] };
    let label = Label {
        uuid: ClientUuid(uuid),
        name: name.to_string(),
        mgs_nodes,
        format_version: nacre_osd::FORMAT_VERSION,
    };
    offline::format(store, label, &ctx);
}
