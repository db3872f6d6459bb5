//! The targets and mounts of one file system in a world.

use crate::mount::{Jobs, MountIsland};
use crate::world::{NodeId, World};
use nacre_client::MountConfig;
use nacre_mdt::Mdt;
use nacre_mgs::Mgs;
use nacre_node::store::Store;
use nacre_node::{Ctx, Effect, Logic};
use nacre_osd::{Label, Osd, OsdConfig};
use nacre_osd_mem::MemStore;
use nacre_ost::Ost;
use nacre_target::{TargetConfig, TargetIsland};
use nacre_types::{ClientUuid, FsName, Instant, TargetKind, TargetName, Timestamp};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of each target's store.
const STORE_BYTES: u64 = 256 << 20;

/// A file system: one MGS, one MDT, OSTs, mounts.
pub struct Cluster {
    pub world: World,
    pub jobs: Jobs,
    pub servers: Vec<NodeId>,
    pub mounts: Vec<NodeId>,
    pub stores: Vec<Arc<dyn Store>>,
}

/// Small bounds, so that checkpoints and segments are reached.
pub fn osd_config() -> OsdConfig {
    OsdConfig {
        dirty_bytes_max: 8 << 20,
        cache_bytes_max: 1 << 20,
        log_bytes_max: 4 << 20,
        commit_interval_ms: 200,
        ballast_bytes: 1 << 20,
        ..OsdConfig::default()
    }
}

impl Cluster {
    /// Formats and starts everything; the mounts are there at once and wait for their servers.
    pub fn new(seed: u64, ost_count: u32, mount_count: u32) -> Self {
        let mut world = World::new(seed);
        let fs = FsName::parse("demo").expect("a valid name");
        let mut names =
            vec![TargetName::Mgs, TargetName::Of { fs: fs.clone(), kind: TargetKind::Mdt, index: 0 }];
        names.extend((0..ost_count).map(|index| TargetName::Of {
            fs: fs.clone(),
            kind: TargetKind::Ost,
            index,
        }));
        let mut servers = Vec::new();
        let mut stores = Vec::new();
        for name in &names {
            let store: Arc<dyn Store> = Arc::new(MemStore::new(STORE_BYTES));
            format(&*store, name, &mut world);
            let kind = name.kind();
            let address = World::address(&name.to_string());
            let start = move |ctx: &Rc<Ctx>| target(ctx, kind, &address);
            servers.push(world.add(&name.to_string(), Some(store.clone()), Box::new(start)));
            stores.push(store);
        }
        let mut mounts = Vec::new();
        for i in 0..mount_count {
            let config = MountConfig {
                mgs_addresses: vec![World::address("MGS")],
                fs: fs.clone(),
                name: format!("mount{i}"),
                read_only: false,
            };
            let start =
                move |ctx: &Rc<Ctx>| Box::new(MountIsland::new(ctx, config.clone())) as Box<dyn Logic>;
            mounts.push(world.add(&format!("mount{i}"), None, Box::new(start)));
        }
        // In any order.
        let mut all: Vec<NodeId> = servers.iter().chain(&mounts).copied().collect();
        while !all.is_empty() {
            let at = world.rng().below(all.len() as u64) as usize;
            let after_ns = world.rng().below(50_000_000);
            world.start_later(all.swap_remove(at), after_ns);
        }
        Self { world, jobs: Jobs::default(), servers, mounts, stores }
    }
}

fn target(ctx: &Rc<Ctx>, kind: TargetKind, address: &str) -> Box<dyn Logic> {
    let config = TargetConfig {
        addresses: vec![address.to_string()],
        mgs_nodes: if kind == TargetKind::Mgs { Vec::new() } else { vec![World::address("MGS")] },
        lease_ms: 10_000,
        max_mod_rpcs: 8,
    };
    match kind {
        TargetKind::Mgs => Box::new(TargetIsland::<Mgs>::new(ctx, config, osd_config())),
        TargetKind::Mdt => Box::new(TargetIsland::<Mdt>::new(ctx, config, osd_config())),
        TargetKind::Ost => Box::new(TargetIsland::<Ost>::new(ctx, config, osd_config())),
    }
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
    let outcome = Rc::new(RefCell::new(None));
    let (inner, told) = (ctx.clone(), outcome.clone());
    ctx.spawn(async move {
        *told.borrow_mut() = Some(Osd::format(&inner, &label, &osd_config(), false).await);
    });
    loop {
        ctx.run();
        let effects = ctx.take_effects();
        if effects.is_empty() {
            break;
        }
        for effect in effects {
            if let Effect::Io { ticket, op } = effect {
                ctx.complete_io(ticket, store.execute(op));
            }
        }
    }
    match outcome.take() {
        Some(Ok(())) => {}
        Some(Err(e)) => panic!("formatting {name} failed: {e}"),
        None => panic!("formatting {name} did not end"),
    }
}
