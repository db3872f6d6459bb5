//! Registration of a target with the MGS of its label; the import is kept for later requests.
//!
//! Invariants: one import to the MGS per target; the registration is repeated until the MGS has replied, however late the
//! MGS starts, and again from time to time, so that the MGS has a recent `last_committed` of this target. A target that the
//! MGS refuses (another one has this name, or this store is an old copy) ends with the reason: no client may use it.
//! Not here: how an MDT uses the list of targets.

use crate::target_core::TargetCore;
use alloc::rc::Rc;
use alloc::string::ToString;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::Effect;
use nacre_node::{Peer, PeerConfig, RpcError, WaitList};
use nacre_osd::table;
use nacre_types::{Errno, Failure, FsName, TargetKind, TargetName};
use nacre_wire::mgs::{ListTargets, RegisterReply, RegisterTarget, TargetList};
use nacre_wire::target::Role;

/// Pause after a refused registration: the operator has to act first.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How often a target registers again if its `last_committed` has changed.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);

/// The registration of one target.
pub struct Registration {
    mgs: Rc<Peer>,
    fs: FsName,
    reply: RefCell<Option<RegisterReply>>,
    changed: WaitList,
    /// The version of the latest list.
    version: Cell<u64>,
}

impl Registration {
    /// Starts to register in the background. `None` for the MGS itself.
    pub fn start(core: &Rc<TargetCore>) -> Option<Rc<Self>> {
        let TargetName::Of { fs, .. } = &core.name else { return None };
        let uuid = core.osd.label().uuid;
        let mgs = Peer::new(
            &core.ctx,
            &core.peers,
            PeerConfig {
                client: uuid,
                role: Role::Target,
                secret: core.secret_for(&TargetName::Mgs),
                name: core.osd.label().name.clone(),
                target: TargetName::Mgs.to_string(),
                addresses: core.config.mgs_nodes.clone(),
                max_mod_rpcs: 1,
                known: None,
                replaced: 0,
                instance: core.osd.identity().latest().id,
            },
        );
        let changed = core.ctx.wait_list();
        let this =
            Rc::new(Self { mgs, fs: fs.clone(), reply: RefCell::new(None), changed, version: Cell::new(0) });
        core.ctx.spawn(this.clone().run(core.clone()));
        core.ctx.spawn(this.clone().watch(core.clone()));
        core.set_registration(&this);
        Some(this)
    }

    /// Waits for the reply of the MGS.
    pub async fn registered(&self) -> RegisterReply {
        loop {
            if let Some(reply) = self.reply.borrow().clone() {
                return reply;
            }
            self.changed.wait().await;
        }
    }

    /// The reply of the MGS, if it has arrived.
    pub fn reply(&self) -> Option<RegisterReply> {
        self.reply.borrow().clone()
    }

    /// The targets of the file system as the MGS knows them now; waits while it is away.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn targets(&self) -> Result<TargetList, RpcError> {
        let list = self.mgs.call(&ListTargets { fs: self.fs.clone() }).await?;
        if self.version.replace(list.config_version) != list.config_version {
            self.mgs.wake();
        }
        Ok(list)
    }

    /// The version of the list at the MGS, from the latest list or ping reply. A change wakes the tasks that wait for the
    /// import.
    pub fn version(&self) -> u64 {
        self.version.get().max(self.mgs.config_version())
    }

    /// The import, for other requests and for [`Peer::disconnect`] at the end.
    pub fn mgs(&self) -> &Rc<Peer> {
        &self.mgs
    }

    /// Ends the target when the MGS refuses its connection: another process serves it, and this store is a copy.
    async fn watch(self: Rc<Self>, core: Rc<TargetCore>) {
        while !self.mgs.is_stopped() {
            if let Some(why) = self.mgs.mismatch() {
                return core.ctx.push(Effect::Refused(why));
            }
            self.mgs.changed().await;
        }
    }

    async fn run(self: Rc<Self>, core: Rc<TargetCore>) {
        loop {
            let pause = match self.register(&core).await {
                Ok(RegisterReply { refused, .. }) if !refused.is_empty() => {
                    // Clients without that information would use it.
                    return core.ctx.push(Effect::Refused(refused));
                }
                Ok(reply) => {
                    if self.reply.borrow().is_none() {
                        tracing::info!(target_name = %core.name, config_version = reply.config_version,
                            "registered with the MGS");
                        *self.reply.borrow_mut() = Some(reply);
                        self.changed.wake_all();
                    }
                    REPEAT_INTERVAL
                }
                Err(RpcError::Stopped | RpcError::Mismatch) => return,
                Err(RpcError::Failed(Failure::EPERM)) => {
                    tracing::error!(target_name = %core.name,
                        "the MGS takes no new targets, trying again\nhint: on the machine of the MGS: \
                         nacre lctl set_param mgs.MGS.register=open");
                    RETRY_INTERVAL
                }
                Err(RpcError::Failed(Failure::EACCES)) => {
                    tracing::error!(target_name = %core.name,
                        "the MGS knows this target with another secret, which is in its store: is this a copy of it?");
                    RETRY_INTERVAL
                }
                Err(error) => {
                    tracing::warn!(target_name = %core.name, %error, "registration refused, trying again");
                    RETRY_INTERVAL
                }
            };
            let registered = core.osd.last_committed();
            core.ctx.sleep(pause).await;
            // An idle target does not register again: its numbers have not changed.
            while self.reply.borrow().is_some() && core.osd.last_committed() == registered {
                core.ctx.sleep(pause).await;
            }
        }
    }

    /// Registers the identity of this target and its `last_committed`.
    async fn register(&self, core: &TargetCore) -> Result<RegisterReply, RpcError> {
        let TargetName::Of { fs, kind, index } = &core.name else { return Err(RpcError::Stopped) };
        // Read first: the MGS must never remember a number that is higher than the store's.
        let committed = core.osd.last_committed();
        let first = core.osd.scan(table::OBJECT, &[], &[], 1).await.map_err(Errno::from)?;
        let request = RegisterTarget {
            fs: fs.clone(),
            kind: *kind,
            index: *index,
            identity: core.osd.identity(),
            committed,
            replaced: core.replaced(),
            blank: *kind == TargetKind::Ost && first.is_empty(),
            addresses: core.config.addresses.clone(),
        };
        self.mgs.call(&request).await
    }
}
