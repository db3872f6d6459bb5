//! The targets of a mount as far as they are known, and the mount's clock. `watch` keeps their list up to date, `ready` waits
//! for them.

mod ready;
mod watch;

use crate::api::MountConfig;
use crate::cache::kernel::KernelCache;
use crate::cache::pages::Pages;
use crate::files::dirty_files::DirtyFiles;
use crate::kept_log::KeptLog;
use crate::targets::mdt::Mdt;
use crate::targets::target::Target;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, Event, PeerConfig, Peers, WaitList};
use nacre_types::{ClientUuid, Fid, MdtIndex, OstIndex, TargetKind, TargetName};
use nacre_wire::params::MountParam;
use nacre_wire::target::Role;

/// The targets of the file system as far as they are known.
pub(crate) struct Mount {
    uuid: ClientUuid,
    peers: Rc<Peers>,
    mgs: Rc<Target>,
    mdts: RefCell<BTreeMap<MdtIndex, Rc<Mdt>>>,
    osts: RefCell<BTreeMap<OstIndex, Rc<Target>>>,
    config_version: Cell<u64>,
    /// Version of the list whose permanent parameters were applied last, and the number of targets known then.
    params_applied: Cell<(u64, usize)>,
    /// Number of lists received so far.
    lists: Cell<u64>,
    changed: WaitList,
    /// Wakes the task that asks for the list, before its interval ends.
    list_wanted: WaitList,
    /// Why the mount can never be used, a sentence.
    failure: RefCell<Option<String>>,
    stopped: Cell<bool>,
    last_time: Cell<i128>,
    /// Whether inodes and names are cached (`llite.*.dir_attr_cache`).
    caches: Cell<bool>,
    /// The kernel's cache, which relies on that of this mount.
    kernel: RefCell<Option<Rc<dyn KernelCache>>>,
    pages: Rc<Pages>,
    dirty_files: Rc<DirtyFiles>,
    /// The log has a line about an MDT that this build does not use.
    warned_of_mdts: Cell<bool>,
}

impl Mount {
    pub(crate) fn new(ctx: &Rc<Ctx>, config: &MountConfig) -> Self {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&config.instance.unwrap_or_else(|| ctx.random()).to_be_bytes());
        uuid[8..].copy_from_slice(&ctx.random().to_le_bytes());
        let uuid = ClientUuid(uuid);
        let peers = Rc::new(Peers::default());
        let mgs = PeerConfig {
            client: uuid,
            role: Role::Client,
            secret: ctx.secret(),
            name: config.name.clone(),
            target: TargetName::Mgs.to_string(),
            addresses: config.mgs_addresses.clone(),
            max_mod_rpcs: 1,
            known: None, // an MGS that was made anew has a list of its own
            replaced: 0,
            instance: 0,
        };
        let mgs = Target::new(ctx, &peers, mgs, TargetKind::Mgs);
        let log = config.kept_log.clone().map(|config| KeptLog::new(ctx.random(), config));
        Self {
            uuid,
            peers,
            mgs,
            mdts: RefCell::default(),
            osts: RefCell::default(),
            config_version: Cell::new(0),
            params_applied: Cell::new((0, 0)),
            lists: Cell::new(0),
            changed: ctx.wait_list(),
            list_wanted: ctx.wait_list(),
            failure: RefCell::default(),
            stopped: Cell::new(false),
            last_time: Cell::new(i128::MIN),
            caches: Cell::new(MountParam::DirAttrCache.row().default_switch()),
            kernel: RefCell::default(),
            pages: Rc::default(),
            dirty_files: DirtyFiles::new(ctx, config.write_back, log),
            warned_of_mdts: Cell::new(false),
        }
    }
    /// Handles an event of a connection; returns events that belong to no target.
    pub(crate) fn handle_event(&self, event: Event) -> Option<Event> {
        self.peers.handle(event)
    }
    /// Identity of this mount at its targets.
    pub(crate) fn uuid(&self) -> ClientUuid {
        self.uuid
    }
    /// Every target known: MGS, MDTs, OSTs.
    pub(crate) fn targets(&self) -> Vec<Rc<Target>> {
        let mut all = alloc::vec![self.mgs.clone()];
        all.extend(self.mdts.borrow().values().map(|mdt| mdt.target().clone()));
        all.extend(self.osts.borrow().values().cloned());
        all
    }
    /// The MDT that has the inode, if it is known.
    pub(crate) fn mdt_of(&self, fid: Fid) -> Option<Rc<Mdt>> {
        self.mdts.borrow().get(&fid.mdt()).cloned()
    }
    pub(crate) fn mdts(&self) -> Vec<Rc<Mdt>> {
        self.mdts.borrow().values().cloned().collect()
    }
    pub(crate) fn osts(&self) -> Vec<Rc<Target>> {
        self.osts.borrow().values().cloned().collect()
    }
    /// An OST of the list.
    pub(crate) fn known_ost(&self, index: OstIndex) -> Option<Rc<Target>> {
        self.osts.borrow().get(&index).cloned()
    }
    fn is_complete(&self) -> bool {
        self.mdt_of(Fid::ROOT).is_some() && self.targets().iter().all(|t| t.peer.is_connected())
    }
    /// Whether inodes and names are cached.
    pub(crate) fn caches(&self) -> bool {
        self.caches.get()
    }
    /// Turns the cache of inodes and names on or off.
    pub(crate) fn set_caches(&self, on: bool) {
        self.caches.set(on);
        for mdt in self.mdts() {
            mdt.cache().set_on(on);
            mdt.return_locks();
        }
    }
    /// No locks are used any more; they end with the connections.
    pub(crate) fn stop_caches(&self) {
        self.mdts().iter().for_each(|mdt| mdt.cache().set_on(false));
    }
    /// The kernel's cache, which relies on that of this mount.
    fn kernel(&self) -> Option<Rc<dyn KernelCache>> {
        self.kernel.borrow().clone()
    }
    pub(crate) fn has_kernel(&self) -> bool {
        self.kernel.borrow().is_some()
    }
    /// The files of which the kernel may have pages.
    pub(crate) fn pages(&self) -> &Rc<Pages> {
        &self.pages
    }
    /// Written bytes that the OSTs do not have.
    pub(crate) fn dirty_files(&self) -> &Rc<DirtyFiles> {
        &self.dirty_files
    }
    pub(crate) fn set_kernel(&self, kernel: Rc<dyn KernelCache>) {
        self.mdts().iter().for_each(|mdt| mdt.cache().set_kernel(kernel.clone()));
        *self.kernel.borrow_mut() = Some(kernel);
    }
    /// Ends the watch task and every wait.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        self.list_wanted.wake_all();
        self.changed.wake_all();
    }
}
