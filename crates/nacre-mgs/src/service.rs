//! The service of an MGS: registrations and lists.
//!
//! Invariants: a registration is answered when it is durable (the key of the name hash may never change under a
//! file system that has used it); the list in memory is what the rows say, so it is changed after the write.

use crate::registry::{
    Change, FILE_SYSTEMS, PARAMS, ParamChange, Refused, Registry, STATE, TARGETS, VERSION_KEY,
};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_osd::{Credits, Osd, Pins};
use nacre_rpc::ReplyRecord;
use nacre_target::{ExportId, RECORD_BYTES, RECORD_ROWS, Reply, Request, Service, TargetCore};
use nacre_types::{Errno, TargetName};
use nacre_wire::Opcode;
use nacre_wire::mgs::{KeepParam, ListTargets, RegisterTarget};
use nacre_wire::target::{Empty, Param, StatfsReply};

/// Rows of one scan.
const PAGE: u32 = 1000;

/// The management server.
pub struct Mgs {
    core: Rc<TargetCore>,
    registry: RefCell<Registry>,
}

impl Mgs {
    async fn load(osd: &Osd) -> Result<Registry, Errno> {
        let mut registry = Registry::default();
        if let Some(row) = osd.get(STATE, VERSION_KEY).await? {
            registry.load_version(&row)?;
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

    /// Keeps a parameter; whoever has it learns of it with the list of targets.
    async fn keep_param(&self, request: &Request) -> Result<Reply, Errno> {
        let new: KeepParam = request.args()?;
        let credits = Credits {
            rows: ParamChange::ROWS,
            row_bytes: ParamChange::BYTES,
            object_bytes: 0,
            frees: new.value.is_none(),
        };
        let reservation = self.core.osd.reserve(credits).await?;
        // Nothing waits between the check and the change.
        let change = self.registry.borrow().check_param(&new).map_err(|refused| {
            tracing::warn!(name = new.name, %refused, "parameter not kept");
            Errno::EINVAL
        })?;
        let transno = match change {
            None => self.core.osd.last_transno(),
            Some(change) => {
                let (transno, ()) = self.core.transact_local(&Pins::default(), reservation, |tx| {
                    change.write(tx);
                    Ok(())
                })?;
                tracing::info!(name = new.name, value = ?new.value, "parameter kept");
                self.registry.borrow_mut().apply_param(change);
                transno
            }
        };
        self.core.osd.commit(transno).await?;
        let kept = self.registry.borrow().kept();
        self.core.apply_kept(self, &kept);
        Ok(Reply::of(&Empty {}))
    }

    async fn register(&self, request: &Request) -> Result<Reply, Errno> {
        let new: RegisterTarget = request.args()?;
        let key = (self.core.ctx.random(), self.core.ctx.random());
        let credits = Credits {
            rows: Change::ROWS + RECORD_ROWS,
            row_bytes: Change::BYTES + RECORD_BYTES,
            object_bytes: 0,
            frees: true, // a full disk must not keep a target from being found
        };
        let reservation = self.core.osd.reserve(credits).await?;
        // Nothing waits between the check and the change.
        let checked = self.registry.borrow().check(&new, key);
        let change = match checked {
            Ok(Some(change)) => change,
            Ok(None) => {
                self.core.osd.commit(self.core.osd.last_transno()).await?;
                return self.registered(&new);
            }
            Err(refused) => return Err(refuse(&new, &refused)),
        };
        let (transno, ()) = self.core.transact(request, &Pins::default(), reservation, |tx| {
            change.write(tx);
            Ok(())
        })?;
        tracing::info!(fs = %new.fs, kind = ?new.kind, index = new.index, uuid = %new.uuid,
            addresses = ?new.addresses, version = change.version, "target registered");
        self.registry.borrow_mut().apply(change);
        self.core.osd.commit(transno).await?;
        Ok(self.registered(&new)?.with_transno(transno))
    }

    fn registered(&self, new: &RegisterTarget) -> Result<Reply, Errno> {
        Ok(Reply::of(&self.registry.borrow().register_reply(&new.fs).ok_or(Errno::ENOENT)?))
    }

    fn list(&self, request: &Request) -> Result<Reply, Errno> {
        let ListTargets { fs } = request.args()?;
        Ok(Reply::of(&self.registry.borrow().list(&fs).ok_or(Errno::ENOENT)?))
    }
}

fn refuse(new: &RegisterTarget, refused: &Refused) -> Errno {
    tracing::warn!(fs = %new.fs, kind = ?new.kind, index = new.index, uuid = %new.uuid, %refused,
        "registration refused");
    match refused {
        Refused::Taken { .. } => Errno::EEXIST,
        Refused::Invalid { .. } => Errno::EINVAL,
        Refused::Full => Errno::ENOSPC,
    }
}

impl Service for Mgs {
    async fn start(core: &Rc<TargetCore>) -> Result<Rc<Self>, String> {
        if core.name != TargetName::Mgs {
            return Err(format!("{} is not an MGS", core.name));
        }
        let registry = Self::load(&core.osd)
            .await
            .map_err(|e| format!("the list of targets of the MGS cannot be read: {e}"))?;
        let mgs = Self { core: core.clone(), registry: RefCell::new(registry) };
        let kept = mgs.registry.borrow().kept();
        core.apply_kept(&mgs, &kept);
        Ok(Rc::new(mgs))
    }

    async fn handle(self: Rc<Self>, request: Rc<Request>) -> Result<Reply, Errno> {
        match request.opcode {
            Opcode::RegisterTarget => self.register(&request).await,
            Opcode::ListTargets => self.list(&request),
            Opcode::KeepParam => self.keep_param(&request).await,
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    async fn refill(self: Rc<Self>, request: Rc<Request>, record: ReplyRecord) -> Result<Reply, Errno> {
        match request.opcode {
            Opcode::RegisterTarget => {
                self.core.osd.commit(record.transno).await?;
                self.registered(&request.args()?)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    async fn export_gone(self: Rc<Self>, _export: ExportId) {} // clients hold nothing here

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

    /// `mgs.MGS.live.<fs>`: the targets of a file system.
    fn params(&self) -> Vec<Param> {
        let registry = self.registry.borrow();
        let mut params = Vec::new();
        for (fs, targets) in registry.file_systems() {
            let mut value = format!("fsname: {fs}\nconfig_version: {}\n", registry.version());
            for t in targets {
                let name = TargetName::Of { fs: fs.clone(), kind: t.kind, index: t.index };
                let line =
                    format!("{name}: {{ uuid: {}, addresses: [{}] }}\n", t.uuid, t.addresses.join(", "));
                value.push_str(&line);
            }
            for kept in registry.kept() {
                value.push_str(&format!("kept: {}={}\n", kept.name, kept.value));
            }
            params.push(Param {
                name: format!("{}live.{fs}", self.core.param_prefix()),
                value,
                writable: false,
                help: "targets of a file system, as they registered".to_string(),
            });
        }
        params
    }
}
