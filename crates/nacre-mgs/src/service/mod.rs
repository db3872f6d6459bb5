//! The service of an MGS: registrations and lists, and the decision which targets may register.
//!
//! Invariants: the reply to a registration is sent when the registration is durable (the key of the name hash may never
//! change under a file system that has used it); the list in memory equals the rows, so it is changed after the write.

mod params;

use crate::registry::{
    FILE_SYSTEMS, FsRow, News, PARAMS, ParamChange, REGISTER_KEY, Refused, Register, Registry, STATE,
    TARGETS, TargetChange, VERSION_KEY,
};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::rc::{Rc, Weak};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::LeftOut;
use nacre_osd::{Credits, Osd, Pins};
use nacre_rpc::ReplyRecord;
use nacre_target::{ExportId, RECORD_BYTES, RECORD_ROWS, Reply, Request, Service, TargetCore, Whereabouts};
use nacre_types::{
    ClientUuid, Codec as _, Errno, Failure, FsName, Instant, ProtocolOutcome, Remembered, TargetKind,
    TargetName,
};
use nacre_wire::Opcode;
use nacre_wire::mgs::{
    AdmitReply, AdmitTarget, ListTargets, RegisterReply, RegisterTarget, SetPermanentParam,
};
use nacre_wire::params::BoundParam;
use nacre_wire::target::{Empty, Role, StatfsReply};

/// Rows of one scan.
const PAGE: u32 = 1000;
/// Registration is closed when clients have mounted a file system and for so long no target was added: servers may be
/// started in any order, also after the first mount.
const SETTLED_AFTER: Duration = Duration::from_secs(60);

/// The management server.
pub struct Mgs {
    core: Rc<TargetCore>,
    registry: RefCell<Registry>,
    /// When a target was last added.
    added: Cell<Instant>,
    /// File systems that wait for [`SETTLED_AFTER`].
    settling: RefCell<BTreeSet<FsName>>,
    /// To the tasks.
    me: Weak<Self>,
}

impl Mgs {
    async fn load(osd: &Osd) -> Result<Registry, Errno> {
        let mut registry = Registry::default();
        if let Some(row) = osd.get(STATE, VERSION_KEY).await? {
            registry.load_version(&row)?;
        }
        if let Some(row) = osd.get(STATE, REGISTER_KEY).await? {
            registry.load_register(&row)?;
        }
        for (key, row) in osd.pages(FILE_SYSTEMS, PAGE).all().await? {
            registry.load_fs(&key, &row)?;
        }
        for (_, row) in osd.pages(TARGETS, PAGE).all().await? {
            registry.load_target(&row)?;
        }
        for (key, row) in osd.pages(PARAMS, PAGE).all().await? {
            registry.load_param(&key, &row)?;
        }
        Ok(registry)
    }

    /// Sets or removes a permanent parameter; processes that have it receive it with the list of targets.
    async fn set_permanent_param(&self, request: &Request) -> Result<Reply, Errno> {
        let new: SetPermanentParam = request.args()?;
        // It is set at every server and mount.
        if !self.core.is_administrator(request) {
            return Err(Errno::EPERM);
        }
        let credits = Credits {
            rows: ParamChange::ROWS,
            row_bytes: ParamChange::BYTES,
            frees: new.value.is_none(),
            ..Credits::default()
        };
        let reservation = self.core.osd.reserve(credits).await?;
        // Nothing waits between the check and the change.
        let change = self.registry.borrow().check_param(&new).map_err(|refused| {
            if let Some(left_out) = self.may_say("not kept") {
                tracing::warn!(name = new.name, %refused, left_out, "parameter not kept");
            }
            Errno::EINVAL
        })?;
        let transno = match change {
            None => self.core.osd.last_transno(),
            Some(change) => {
                let (transno, ()) = self.core.transact_local(&Pins::default(), reservation, |tx| {
                    change.write(tx);
                    Ok(())
                })?;
                if let Some(left_out) = self.may_say("kept") {
                    tracing::info!(name = new.name, value = ?new.value, left_out, "parameter kept");
                }
                self.registry.borrow_mut().apply_param(change);
                transno
            }
        };
        self.core.osd.commit(transno).await?;
        let permanent = self.registry.borrow().permanent();
        self.core.apply_permanent(self, &permanent);
        Ok(Reply::of(&Empty {}))
    }

    async fn register(&self, request: &Request) -> Result<Reply, Failure> {
        let new: RegisterTarget = request.args()?;
        let key = (self.core.ctx.random(), self.core.ctx.random());
        let credits = Credits {
            rows: TargetChange::ROWS + RECORD_ROWS,
            row_bytes: TargetChange::BYTES + RECORD_BYTES,
            frees: true, // a full disk must not keep a target from being found
            ..Credits::default()
        };
        let reservation = self.core.osd.reserve(credits).await?;
        // Nothing waits between the check and the change.
        let sender = self.core.sender(request).ok_or(ProtocolOutcome::ExportGone)?;
        let checked = self.registry.borrow().check(&new, &sender, key);
        let change = match checked {
            Ok(Some(change)) => change,
            Ok(None) => {
                self.core.osd.commit(self.core.osd.last_transno()).await?;
                return Ok(self.registered(&new)?);
            }
            Err(Refused::Mismatch(refused)) => {
                if let Some(left_out) = self.may_say("mismatch") {
                    tracing::error!(fs = %new.fs, kind = ?new.kind, index = new.index, left_out,
                        "registration refused: {refused}");
                }
                let config_version = self.registry.borrow().version();
                let nothing = RegisterReply { config_version, hash_key: (0, 0), replaced: 0, refused };
                return Ok(Reply::of(&nothing));
            }
            Err(refused) => return Err(self.refuse(&new, &refused).into()),
        };
        if !self.registry.borrow().is_known(&new) {
            self.added.set(self.core.ctx.now());
        }
        let admitted = self.core.admit_change(request)?;
        let (transno, ()) = self.core.transact(admitted, &Pins::default(), reservation, |tx| {
            change.write(tx);
            Ok(())
        })?;
        self.say(&new, &change);
        self.registry.borrow_mut().apply(change);
        self.core.osd.commit(transno).await?;
        Ok(self.registered(&new)?.with_transno(transno))
    }

    fn registered(&self, new: &RegisterTarget) -> Result<Reply, Errno> {
        let reply = self.registry.borrow().register_reply(&new.fs, new.kind, new.index);
        Ok(Reply::of(&reply.ok_or(Errno::ENOENT)?))
    }

    /// An administrator lets another target, or an old copy, take the place of a registered one.
    async fn admit(&self, request: &Request) -> Result<Reply, Errno> {
        let asked: AdmitTarget = request.args()?;
        if !self.core.is_administrator(request) {
            return Err(Errno::EPERM);
        }
        let credits = Credits {
            rows: TargetChange::ROWS,
            row_bytes: TargetChange::BYTES,
            frees: true,
            ..Credits::default()
        };
        let reservation = self.core.osd.reserve(credits).await?;
        // Nothing waits between the check and the change.
        let checked = self.registry.borrow().check_admission(&asked);
        let refused = match checked {
            Ok(None) => String::new(),
            Ok(Some(change)) => {
                self.core.transact_local(&Pins::default(), reservation, |tx| {
                    change.write(tx);
                    Ok(())
                })?;
                tracing::warn!(fs = %asked.fs, kind = ?asked.kind, index = asked.index, admit = ?asked.admit,
                    revoked = asked.revoke, "the administrator has admitted another target under this name");
                self.registry.borrow_mut().apply(change);
                String::new()
            }
            Err(refused) => refused.to_string(),
        };
        self.core.osd.commit(self.core.osd.last_transno()).await?;
        let registry = self.registry.borrow();
        let target = registry.target(&asked.fs, asked.kind, asked.index);
        let nothing = Remembered {
            uuid: self.core.osd.label().uuid,
            incarnation: Default::default(),
            committed: Default::default(),
        };
        let (known, replaced) = target.map_or((nothing, 0), |t| (t.known, t.replaced));
        Ok(Reply::of(&AdmitReply { known, replaced, refused }))
    }

    fn list(&self, request: &Request) -> Result<Reply, Errno> {
        let ListTargets { fs } = request.args()?;
        let list = self.registry.borrow().list(&fs).ok_or(Errno::ENOENT)?;
        let is_client = self.core.sender(request).is_some_and(|sender| sender.role == Role::Client);
        let has = |kind| list.targets.iter().any(|t| t.kind == kind);
        if is_client && has(TargetKind::Mdt) && has(TargetKind::Ost) {
            self.mounted(fs);
        }
        Ok(Reply::of(&list))
    }

    // ---- who may register

    /// A client has what it needs to mount this file system.
    fn mounted(&self, fs: FsName) {
        if self.registry.borrow().is_unsettled(&fs) && self.settling.borrow_mut().insert(fs.clone()) {
            let mgs = self.me.clone();
            self.core.ctx.spawn(async move {
                if let Some(mgs) = mgs.upgrade() {
                    mgs.settle(fs).await;
                }
            });
        }
    }

    /// Closes registration once the first targets of a file system are there.
    async fn settle(&self, fs: FsName) {
        loop {
            let until = self.added.get() + SETTLED_AFTER;
            if self.core.ctx.now() >= until {
                break;
            }
            self.core.ctx.sleep(until.saturating_since(self.core.ctx.now())).await;
        }
        self.settling.borrow_mut().remove(&fs);
        let was = self.registry.borrow().register();
        self.registry.borrow_mut().set_register(Register::Known);
        let row = self.registry.borrow_mut().settle(&fs);
        if was == Register::Open {
            tracing::info!(fs = %fs, "clients have mounted the file system: new targets are not taken any more, \
                mgs.MGS.register=known\nhint: to add one, on this machine: nacre lctl set_param mgs.MGS.register=open");
        }
        self.keep_register(row.map(|row| (fs, row))).await;
    }

    /// Stores which targets may register, so that a restart knows it, together with the row of a file system that
    /// clients have now mounted.
    async fn keep_register(&self, settled: Option<(FsName, FsRow)>) {
        let credits = Credits { rows: 2, row_bytes: 256, frees: true, ..Credits::default() };
        let kept = match self.core.osd.reserve(credits).await {
            Ok(reservation) => self.core.transact_local(&Pins::default(), reservation, |tx| {
                tx.put(STATE, REGISTER_KEY, self.registry.borrow().register().to_vec());
                if let Some((fs, row)) = settled {
                    tx.put(FILE_SYSTEMS, &fs.to_vec(), row.to_vec());
                }
                Ok(())
            }),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = kept {
            tracing::error!(%error, "the next start of the MGS will not know mgs.MGS.register");
        }
    }

    /// The line of a registration in the log; nothing of what a target says from time to time.
    fn say(&self, new: &RegisterTarget, change: &TargetChange) {
        let (fs, kind, index, uuid) = (&new.fs, new.kind, new.index, new.identity.uuid);
        if let Some(News::Admitted(admit)) = change.news {
            tracing::warn!(%fs, ?kind, index, %uuid, addresses = ?new.addresses, version = change.version,
                replaced = change.target.replaced, ?admit, "another target was admitted under this name");
        } else if change.news.is_some()
            && let Some(left_out) = self.may_say("registered")
        {
            tracing::info!(%fs, ?kind, index, %uuid, addresses = ?new.addresses, version = change.version,
                left_out, "target registered");
        }
    }

    fn may_say(&self, kind: &'static str) -> Option<LeftOut> {
        self.core.lines.allow(kind, self.core.ctx.now())
    }

    fn refuse(&self, new: &RegisterTarget, refused: &Refused) -> Errno {
        if let Some(left_out) = self.may_say("registration refused") {
            tracing::warn!(fs = %new.fs, kind = ?new.kind, index = new.index, uuid = %new.identity.uuid, %refused, left_out,
                "registration refused");
        }
        match refused {
            Refused::Mismatch(_) => Errno::EEXIST,
            Refused::Impostor { .. } => Errno::EACCES,
            Refused::Closed { .. } => Errno::EPERM,
            Refused::Address { .. } | Refused::Invalid { .. } => Errno::EINVAL,
            Refused::Full => Errno::ENOSPC,
        }
    }
}

impl Service for Mgs {
    const COMMITS_BEFORE_REPLY: bool = true;

    async fn start(core: &Rc<TargetCore>) -> Result<Rc<Self>, String> {
        if core.name != TargetName::Mgs {
            return Err(format!("{} is not an MGS", core.name));
        }
        let registry = Self::load(&core.osd)
            .await
            .map_err(|e| format!("the list of targets of the MGS cannot be read: {e}"))?;
        let mgs = Rc::new_cyclic(|me| Self {
            core: core.clone(),
            registry: RefCell::new(registry),
            added: Cell::new(core.ctx.now()),
            settling: RefCell::default(),
            me: me.clone(),
        });
        let permanent = mgs.registry.borrow().permanent();
        core.apply_permanent(&*mgs, &permanent);
        Ok(mgs)
    }

    async fn handle(self: Rc<Self>, request: Rc<Request>) -> Result<Reply, Failure> {
        match request.opcode {
            Opcode::RegisterTarget => self.register(&request).await,
            Opcode::ListTargets => Ok(self.list(&request)?),
            Opcode::SetPermanentParam => Ok(self.set_permanent_param(&request).await?),
            Opcode::AdmitTarget => Ok(self.admit(&request).await?),
            _ => Err(Failure::EOPNOTSUPP),
        }
    }

    async fn reconstruct(self: Rc<Self>, request: Rc<Request>, record: ReplyRecord) -> Result<Reply, Errno> {
        match request.opcode {
            Opcode::RegisterTarget => {
                self.core.osd.commit(record.transno).await?;
                self.registered(&request.args()?)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    async fn export_gone(self: Rc<Self>, _export: ExportId) -> Result<(), Errno> {
        Ok(()) // clients hold nothing here
    }

    fn whereabouts(&self, target: ClientUuid) -> Option<Whereabouts> {
        self.registry.borrow().whereabouts(target)
    }

    async fn statfs(self: Rc<Self>) -> Result<StatfsReply, Errno> {
        let space = self.core.osd.space().await?;
        Ok(StatfsReply {
            bytes_total: space.bytes_total,
            bytes_free: space.bytes_free,
            bytes_avail: space.bytes_avail,
            files_used: 0,
            files_free: space.files_free.unwrap_or(0),
            device: space.device,
        })
    }

    fn config_version(&self) -> u64 {
        self.registry.borrow().version()
    }

    fn params(&self) -> Vec<BoundParam<'_>> {
        self.list_params()
    }
}
