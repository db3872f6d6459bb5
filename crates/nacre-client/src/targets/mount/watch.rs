//! The list of targets: how it is kept up to date, and how its targets become part of the mount.
//!
//! The MGS knows the targets; it is asked at the start, every [`POLL_INTERVAL`], and every [`POLL_INTERVAL_MISSING`] while a
//! target is not connected (its address may have changed). A target that has left the list is kept: its files stay.
//! Not here: connections and resends (`nacre_node::Peer`).

use crate::cache::metadata::MetadataCache;
use crate::client::Client;
use crate::params::Source;
use crate::targets::mdt::Mdt;
use crate::targets::target::Target;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;
use nacre_node::PeerConfig;
use nacre_types::{Failure, Instant, MdtIndex, OstIndex, TargetKind, TargetName};
use nacre_wire::Opcode;
use nacre_wire::mgs::{ListTargets, PermanentParam, TargetEntry, TargetList};
use nacre_wire::params::{ImportParam, apply_permanent};
use nacre_wire::target::{GetParams, Role};

/// How often the list of targets is asked for.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// The same while a target is missing.
const POLL_INTERVAL_MISSING: Duration = Duration::from_secs(1);
/// How long a file system may be unknown to an MGS that knows others before a mount gives up.
const UNKNOWN_FS_TIMEOUT: Duration = Duration::from_secs(3);
/// The same while the MGS knows none: its targets are probably starting.
const EMPTY_MGS_TIMEOUT: Duration = Duration::from_secs(30);
/// Modifying requests in flight per MDT and per OST.
const MDT_MOD_RPCS: u16 = ImportParam::MdcMaxModRpcs.row().default_u16();
const OST_MOD_RPCS: u16 = ImportParam::OscMaxModRpcs.row().default_u16();

impl Client {
    /// Keeps the list of targets up to date until the mount is stopped.
    pub(crate) async fn watch(self: Rc<Self>) {
        let mount = &self.mount;
        let mut unknown_since: Option<Instant> = None;
        while !mount.stopped.get() {
            match mount.mgs.call(&ListTargets { fs: self.config.fs.clone() }).await {
                Ok(list) if !list.targets.is_empty() => {
                    unknown_since = None;
                    self.take_list(list);
                }
                Ok(_) | Err(Failure::ENOENT) => {
                    let since = *unknown_since.get_or_insert(self.ctx.now());
                    let known = self.known_file_systems().await;
                    let timeout = if known.is_empty() { EMPTY_MGS_TIMEOUT } else { UNKNOWN_FS_TIMEOUT };
                    if mount.lists.get() == 0 && self.ctx.now() - since >= timeout {
                        *mount.failure.borrow_mut() = Some(self.unknown_fs(&known));
                    }
                }
                Err(Failure::ESHUTDOWN) => break,
                Err(error) => {
                    tracing::warn!(fs = %self.config.fs, %error, "the list of targets cannot be read from the MGS: it is asked again");
                }
            }
            mount.lists.set(mount.lists.get() + u64::from(unknown_since.is_none()));
            mount.changed.wake_all();
            for ost in mount.osts() {
                self.ctx.spawn(ost.return_idle_grant());
            }
            let pause = if mount.is_complete() { POLL_INTERVAL } else { POLL_INTERVAL_MISSING };
            let _ = self.ctx.timeout(self.ctx.now() + pause, mount.list_wanted.wait()).await;
        }
    }

    /// Names of the file systems of this MGS, from its parameters `mgs.MGS.live.<fs>`.
    async fn known_file_systems(&self) -> Vec<String> {
        let request = GetParams { pattern: "mgs.MGS.live.*".to_string() };
        let params = self.mount.mgs.call(&request).await.map_or_else(|_| Vec::new(), |list| list.params);
        params.iter().filter_map(|p| p.name.rsplit('.').next()).map(String::from).collect()
    }

    fn unknown_fs(&self, known: &[String]) -> String {
        let what = format!(
            "the management server at {} does not know a file system `{}`",
            self.config.mgs_addresses.join(", "),
            self.config.fs
        );
        if known.is_empty() {
            return format!("{what}; no target has registered there\nhint: start the targets (nacre serve)");
        }
        format!(
            "{what}; it knows: {}\nhint: check the name after the colon; if it is right, start its targets (nacre serve)",
            known.join(", ")
        )
    }

    /// Asks for the list as soon as the MGS says that it has changed.
    pub(crate) async fn watch_version(self: Rc<Self>) {
        let mount = &self.mount;
        while !mount.stopped.get() {
            mount.mgs.peer.changed().await;
            if mount.mgs.peer.config_version() > mount.config_version.get() {
                mount.list_wanted.wake_all();
            }
        }
    }

    /// Applies the permanent parameters, once per version of the list and number of targets.
    fn apply_params(&self, version: u64, permanent: &[PermanentParam]) {
        let now = (version, self.mount.targets().len());
        if permanent.is_empty() || self.mount.params_applied.replace(now) == now {
            return;
        }
        apply_permanent(
            || self.params_for(Source::Mgs),
            permanent,
            |reason, name| {
                tracing::warn!(
                    reason,
                    "a permanent parameter is refused\nhint: nacre lctl set_param -P -d {name}"
                );
            },
        );
    }

    fn take_list(&self, list: TargetList) {
        let (version, permanent) = (list.config_version, list.params.clone());
        self.take_targets(list);
        self.apply_params(version, &permanent);
    }

    fn take_targets(&self, list: TargetList) {
        let mount = &self.mount;
        mount.config_version.set(list.config_version);
        for entry in list.targets {
            match entry.kind {
                TargetKind::Mgs => {}
                TargetKind::Mdt if MdtIndex(entry.index) == MdtIndex::ROOT => {
                    let index = MdtIndex::ROOT;
                    let known = mount.mdts.borrow().get(&index).map(|mdt| mdt.target().clone());
                    let is_new = known.is_none();
                    let target = self.place(known, &entry, MDT_MOD_RPCS);
                    if is_new {
                        let cache =
                            MetadataCache::new(&self.ctx, mount.caches(), mount.pages(), mount.dirty_files());
                        mount.kernel().into_iter().for_each(|kernel| cache.set_kernel(kernel));
                        let mdt = Mdt::new(&self.ctx, index, target, cache);
                        self.adopt_mdt(&mdt);
                        mount.mdts.borrow_mut().insert(index, mdt);
                    }
                }
                TargetKind::Mdt => {
                    if !mount.warned_of_mdts.replace(true) {
                        tracing::warn!(
                            index = entry.index,
                            "this build uses one MDT and ignores further ones"
                        );
                    }
                }
                TargetKind::Ost => {
                    let index = OstIndex(entry.index);
                    let known = mount.osts.borrow().get(&index).cloned();
                    if known.as_ref().is_some_and(|ost| ost.replaced() < entry.replaced) {
                        self.lost_with(index, entry.replaced);
                    }
                    let is_new = known.is_none();
                    let ost = self.place(known, &entry, OST_MOD_RPCS);
                    if is_new {
                        self.locks.listen(&self.ctx, &ost);
                        mount.osts.borrow_mut().insert(index, ost);
                    }
                }
            }
        }
    }

    /// A target where it is now.
    fn place(&self, known: Option<Rc<Target>>, entry: &TargetEntry, max_mod_rpcs: u16) -> Rc<Target> {
        if let Some(target) = known {
            target.peer.set_addresses(entry.addresses.clone());
            target.peer.expect(entry.known, entry.replaced);
            return target;
        }
        let name = TargetName::Of { fs: self.config.fs.clone(), kind: entry.kind, index: entry.index };
        let config = PeerConfig {
            client: self.mount.uuid,
            role: Role::Client,
            secret: self.ctx.secret(),
            name: self.config.name.clone(),
            target: name.to_string(),
            addresses: entry.addresses.clone(),
            max_mod_rpcs,
            known: Some(entry.known),
            replaced: entry.replaced,
            instance: 0,
        };
        Target::new(&self.ctx, &self.mount.peers, config, entry.kind)
    }

    /// The file system was in memory and is gone: no call waits for its servers any more.
    fn file_system_ended(&self) {
        tracing::error!(fs = %self.config.fs,
            "the file system was in memory only and has ended with its server: every call fails with EIO\nhint: unmount it");
        for target in self.mount.targets() {
            target.peer.set_active(false);
        }
        self.retry_waiting_locks();
    }

    /// Callbacks and evictions of an MDT. The target belongs to the MDT, so its handlers refer to the MDT weakly.
    fn adopt_mdt(&self, mdt: &Rc<Mdt>) {
        let (this, retry_flocks) = (Rc::downgrade(mdt), mdt.flocks().retry_handler());
        mdt.peer.on_restarted(Box::new(move || {
            retry_flocks();
            if let Some(mdt) = this.upgrade() {
                mdt.locks_ended(true);
            }
        }));
        let (this, client) = (Rc::downgrade(mdt), self.weak());
        mdt.peer.on_callback(Box::new(move |frame| {
            let Some(mdt) = this.upgrade() else { return };
            match Opcode::from_number(frame.header.opcode) {
                Some(Opcode::RevokeInodeLocks) => mdt.locks_revoked(frame),
                Some(Opcode::Ended) => {
                    if let Some(client) = client.upgrade() {
                        client.file_system_ended();
                    }
                }
                _ => mdt.flocks().handle(frame),
            }
        }));
        let (this, client) = (Rc::downgrade(mdt), self.weak());
        mdt.peer.on_evicted(Box::new(move || {
            if let (Some(client), Some(mdt)) = (client.upgrade(), this.upgrade()) {
                mdt.locks_ended(false);
                client.evicted_by_mdt(&mdt);
            }
        }));
        if mdt.fids().wants_more() {
            mdt.request_sequence();
        }
    }
}
