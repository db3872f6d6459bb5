//! What a mount consists of: the targets, how they are found, and the mount's clock.
//!
//! The MGS knows the targets; it is asked at the start, every [`POLL`], and every [`POLL_MISSING`] while a target is not
//! reached (it may be elsewhere now). A target that has left the list is kept: its files do not vanish with it.
//! Calls wait for what they need, however long it is away. Not here: connections and resends (`nacre_node::Peer`).

use crate::client::{Attach, Client, Connection, MountConfig};
use crate::targets::target::Target;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::{Ctx, PeerConfig, Peers, WaitList};
use nacre_types::{ClientUuid, Errno, Instant, OstIndex, TargetKind, TargetName, Timestamp};
use nacre_wire::mgs::{KeptParam, ListTargets, TargetEntry, TargetList};
use nacre_wire::target::{GetParams, Role};
use nacre_wire::{Opcode, matches};

/// How often the list of targets is asked for.
const POLL: Duration = Duration::from_secs(10);
/// The same while a target is missing.
const POLL_MISSING: Duration = Duration::from_secs(1);
/// How long a file system may be unknown to an MGS that knows others before a mount gives up.
const UNKNOWN_FS: Duration = Duration::from_secs(3);
/// The same while the MGS knows none: its targets are probably starting.
const EMPTY_MGS: Duration = Duration::from_secs(30);
/// How long whoever attaches hears nothing.
const ATTACH_QUIET: Duration = Duration::from_secs(1);
/// Modifying requests in flight per MDT and per OST.
const MDT_MOD_RPCS: u16 = 7;
const OST_MOD_RPCS: u16 = 8;

/// The targets of the file system as far as they are known.
pub(crate) struct Mount {
    pub(crate) uuid: ClientUuid,
    pub(crate) peers: Rc<Peers>,
    mgs: Rc<Target>,
    mdt: RefCell<Option<Rc<Target>>>,
    osts: RefCell<BTreeMap<OstIndex, Rc<Target>>>,
    config_version: Cell<u64>,
    /// Version of the list whose parameters were set last, and the targets known then.
    kept: Cell<(u64, usize)>,
    /// Lists taken in so far, a new one tells waiters.
    lists: Cell<u64>,
    changed: WaitList,
    /// Wakes the watch task.
    kick: WaitList,
    hopeless: RefCell<Option<String>>,
    stopped: Cell<bool>,
    last_time: Cell<i128>,
    /// The log knows of an MDT that this build does not use.
    told_of_mdt: Cell<bool>,
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
        Self {
            uuid,
            peers,
            mgs,
            mdt: RefCell::default(),
            osts: RefCell::default(),
            config_version: Cell::new(0),
            kept: Cell::new((0, 0)),
            lists: Cell::new(0),
            changed: ctx.wait_list(),
            kick: ctx.wait_list(),
            hopeless: RefCell::default(),
            stopped: Cell::new(false),
            last_time: Cell::new(i128::MIN),
            told_of_mdt: Cell::new(false),
        }
    }
    /// Every target known: MGS, MDT, OSTs.
    pub(crate) fn targets(&self) -> Vec<Rc<Target>> {
        let mut all = alloc::vec![self.mgs.clone()];
        all.extend(self.mdt.borrow().iter().cloned());
        all.extend(self.osts.borrow().values().cloned());
        all
    }
    pub(crate) fn known_mdt(&self) -> Option<Rc<Target>> {
        self.mdt.borrow().clone()
    }
    pub(crate) fn osts(&self) -> Vec<Rc<Target>> {
        self.osts.borrow().values().cloned().collect()
    }
    fn is_complete(&self) -> bool {
        self.mdt.borrow().is_some() && self.targets().iter().all(|t| t.peer.is_connected())
    }
    /// Ends the watch task and every wait.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        self.kick.wake_all();
        self.changed.wake_all();
    }
}

impl Client {
    /// The MDT, as soon as it is known.
    pub(crate) async fn mdt(&self) -> Result<Rc<Target>, Errno> {
        loop {
            if let Some(mdt) = self.mount.known_mdt() {
                return Ok(mdt);
            }
            if self.mount.stopped.get() {
                return Err(Errno::ESHUTDOWN);
            }
            self.mount.changed.wait().await;
        }
    }

    /// An OST of a layout. One that the MGS does not know even when asked again is an error, not a wait.
    pub(crate) async fn ost(&self, index: OstIndex) -> Result<Rc<Target>, Errno> {
        let asked = self.mount.lists.get();
        loop {
            if let Some(ost) = self.mount.osts.borrow().get(&index) {
                return Ok(ost.clone());
            }
            if self.mount.stopped.get() {
                return Err(Errno::ESHUTDOWN);
            }
            if self.mount.lists.get() > asked + 1 {
                tracing::error!(
                    fs = %self.config.fs,
                    ost = index.0,
                    "a layout names an OST that the MGS does not know: start it, or remove the file"
                );
                return Err(Errno::EIO);
            }
            self.mount.kick.wake_all();
            self.mount.changed.wait().await;
        }
    }

    /// Time for what this mount writes: its wall clock corrected by the MDT's, strictly growing.
    pub(crate) fn now(&self) -> Timestamp {
        let offset = self.mount.known_mdt().map_or(0, |mdt| mdt.peer.wall_offset_ns());
        let now = self.ctx.wall().as_nanos() + i128::from(offset);
        let now = now.max(self.mount.last_time.get() + 1);
        self.mount.last_time.set(now);
        Timestamp::from_nanos(now)
    }

    /// Waits until the MGS and the MDT have been reached.
    ///
    /// # Errors
    /// A sentence for the user: what is missing, where, what to do. Only for errors that waiting cannot mend.
    pub async fn ready(&self) -> Result<(), String> {
        loop {
            if let Some(sentence) = &*self.mount.hopeless.borrow() {
                return Err(sentence.clone());
            }
            if self.mount.stopped.get() {
                return Err(String::from("the mount was stopped"));
            }
            if let Some(mdt) = self.mount.known_mdt() {
                mdt.peer.connected().await;
                return Ok(());
            }
            self.mount.changed.wait().await;
        }
    }

    /// The same; while it lasts `tell` hears what is waited for, once each, and at last how it ended.
    pub async fn attach(&self, tell: impl Fn(Attach)) {
        let mut told = Vec::new();
        let end = loop {
            if let Some(end) = self.ctx.timeout(self.ctx.now() + ATTACH_QUIET, self.ready()).await {
                break end;
            }
            let waits = self.waits_for();
            if !told.contains(&waits) && told.len() + 1 < Attach::NEWS_MAX {
                tell(Attach::Waits(waits.clone()));
                told.push(waits);
            }
        };
        tell(end.map_or_else(Attach::Hopeless, |()| Attach::Ready));
    }

    fn waits_for(&self) -> String {
        let missing = |t: &Target| {
            let at = t.peer.with_import(|import| import.config().addresses.join(", "));
            match t.peer.last_error() {
                Some(why) if why.contains(&at) => format!("{}: {why}", t.name),
                Some(why) => format!("{} at {at}: {why}", t.name),
                None => format!("{} at {at}: no answer so far", t.name),
            }
        };
        let mgs = &self.mount.mgs;
        match self.mount.known_mdt() {
            Some(mdt) => missing(&mdt),
            None if mgs.peer.is_connected() => {
                format!("the metadata target of `{}`: the MGS does not know it yet", self.config.fs)
            }
            None => missing(mgs),
        }
    }

    /// State of every connection, for whoever waits for `ready`.
    pub fn connections(&self) -> Vec<Connection> {
        let state = |t: Rc<Target>| Connection {
            target: t.name.clone(),
            connected: t.peer.is_connected(),
            error: t.peer.last_error(),
        };
        self.mount.targets().into_iter().map(state).collect()
    }

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
                Ok(_) | Err(Errno::ENOENT) => {
                    let since = *unknown_since.get_or_insert(self.ctx.now());
                    let known = self.known_file_systems().await;
                    let patience = if known.is_empty() { EMPTY_MGS } else { UNKNOWN_FS };
                    if mount.lists.get() == 0 && self.ctx.now() - since >= patience {
                        *mount.hopeless.borrow_mut() = Some(self.unknown_fs(&known));
                    }
                }
                Err(Errno::ESHUTDOWN) => break,
                Err(error) => {
                    tracing::warn!(fs = %self.config.fs, %error, "the MGS does not tell the list of targets, asking again");
                }
            }
            mount.lists.set(mount.lists.get() + u64::from(unknown_since.is_none()));
            mount.changed.wake_all();
            let pause = if mount.is_complete() { POLL } else { POLL_MISSING };
            let _ = self.ctx.timeout(self.ctx.now() + pause, mount.kick.wait()).await;
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
                mount.kick.wake_all();
            }
        }
    }

    /// Sets the parameters that the MGS keeps, once per version of the list.
    fn apply_kept(&self, version: u64, kept: &[KeptParam]) {
        let now = (version, self.mount.targets().len());
        if kept.is_empty() || self.mount.kept.replace(now) == now {
            return;
        }
        let params = self.params();
        for KeptParam { name, value } in kept {
            for param in params.iter().filter(|p| p.writable && matches(name, &p.name)) {
                if let Err(reason) = self.set(&param.name, value, true) {
                    tracing::warn!(
                        reason,
                        "a parameter that the MGS keeps is refused\nhint: nacre lctl set_param -P -d {name}"
                    );
                }
            }
        }
    }

    fn take_list(&self, list: TargetList) {
        let (version, kept) = (list.config_version, list.params.clone());
        self.take_targets(list);
        self.apply_kept(version, &kept);
    }

    fn take_targets(&self, list: TargetList) {
        let mount = &self.mount;
        mount.config_version.set(list.config_version);
        for entry in list.targets {
            match entry.kind {
                TargetKind::Mgs => {}
                TargetKind::Mdt if entry.index == 0 => {
                    let known = mount.mdt.borrow().clone();
                    let mdt = self.place(known, &entry, MDT_MOD_RPCS);
                    if mount.mdt.borrow().is_none() {
                        self.adopt_mdt(&mdt);
                        *mount.mdt.borrow_mut() = Some(mdt);
                    }
                }
                TargetKind::Mdt => {
                    if !mount.told_of_mdt.replace(true) {
                        tracing::warn!(
                            index = entry.index,
                            "this build uses one MDT, further ones are left alone"
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
    fn ended(&self) {
        tracing::error!(fs = %self.config.fs,
            "the file system was in memory only and has ended with its server: every call fails with EIO\nhint: unmount it");
        for target in self.mount.targets() {
            target.peer.set_active(false);
        }
        self.locks.ask_again();
        self.flocks.ask_again();
    }

    /// Callbacks and evictions of the MDT.
    fn adopt_mdt(&self, mdt: &Rc<Target>) {
        mdt.peer.on_restarted(self.flocks.asks_again());
        let (flocks, dirs, client) = (self.flocks.clone(), self.dirs.clone(), self.weak());
        mdt.peer.on_callback(alloc::boxed::Box::new(move |frame| {
            match Opcode::from_number(frame.header.opcode) {
                Some(Opcode::RevokeDir) => dirs.revoked(frame),
                Some(Opcode::Ended) => {
                    if let Some(client) = client.upgrade() {
                        client.ended();
                    }
                }
                _ => flocks.handle(frame),
            }
        }));
        let client = self.weak();
        mdt.peer.on_evicted(alloc::boxed::Box::new(move || {
            if let Some(client) = client.upgrade() {
                client.evicted_by_mdt();
            }
        }));
        if self.fids.wants_more() {
            self.ask_for_sequence();
        }
    }
}
