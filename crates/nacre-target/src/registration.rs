//! How a target makes itself known: it registers with the MGS of its label and keeps the import for later questions.
//!
//! Invariants: one import to the MGS per target; a registration is asked for until it was answered, however late
//! the MGS starts; a refusal (another target has this index) is said once per attempt, to the operator, and does
//! not stop the target from serving those that know it already.
//! Not here: what an MDT does with the list of targets.

use crate::target_core::TargetCore;
use alloc::rc::Rc;
use alloc::string::ToString;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::{Peer, PeerConfig, RpcError, WaitList};
use nacre_types::{Errno, FsName, TargetName};
use nacre_wire::mgs::{ListTargets, RegisterReply, RegisterTarget, TargetList};
use nacre_wire::target::Role;

/// Pause after a refused registration: the operator has to act first.
const RETRY: Duration = Duration::from_secs(10);

/// The registration of one target. See the module.
pub struct Registration {
    mgs: Rc<Peer>,
    fs: FsName,
    reply: RefCell<Option<RegisterReply>>,
    changed: WaitList,
    /// Of the latest list.
    version: Cell<u64>,
}

impl Registration {
    /// Starts to register in the background. `None` for the MGS itself, which has nobody to tell.
    pub fn start(core: &Rc<TargetCore>) -> Option<Rc<Self>> {
        let TargetName::Of { fs, kind, index } = &core.name else { return None };
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
            },
        );
        let request = RegisterTarget {
            fs: fs.clone(),
            kind: *kind,
            index: *index,
            uuid,
            addresses: core.config.addresses.clone(),
        };
        let changed = core.ctx.wait_list();
        let this =
            Rc::new(Self { mgs, fs: fs.clone(), reply: RefCell::new(None), changed, version: Cell::new(0) });
        core.ctx.spawn(this.clone().run(core.clone(), request));
        // A second start keeps the first: it would be a bug, and harmless.
        let _first = core.registration.set(this.clone());
        Some(this)
    }

    /// What the MGS answered; waits until it has.
    pub async fn registered(&self) -> RegisterReply {
        loop {
            if let Some(reply) = self.reply.borrow().clone() {
                return reply;
            }
            self.changed.wait().await;
        }
    }

    /// What the MGS answered, if it has.
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

    /// The version of the list at the MGS, as a list or a ping has told last. What changes it wakes who waits for the
    /// import.
    pub fn version(&self) -> u64 {
        self.version.get().max(self.mgs.config_version())
    }

    /// The import, for other questions and for [`Peer::disconnect`] at the end.
    pub fn mgs(&self) -> &Rc<Peer> {
        &self.mgs
    }

    async fn run(self: Rc<Self>, core: Rc<TargetCore>, request: RegisterTarget) {
        loop {
            match self.mgs.call(&request).await {
                Ok(reply) => {
                    tracing::info!(target_name = %core.name, config_version = reply.config_version,
                        "registered with the MGS");
                    *self.reply.borrow_mut() = Some(reply);
                    self.changed.wake_all();
                    return;
                }
                Err(RpcError::Stopped) => return,
                Err(RpcError::Errno(Errno::EEXIST)) => {
                    tracing::error!(target_name = %core.name, uuid = %request.uuid,
                        "the MGS knows another target under this name: stop one of them, or format this one \
                         with another --index");
                }
                Err(RpcError::Errno(Errno::EPERM)) => {
                    tracing::error!(target_name = %core.name, uuid = %request.uuid,
                        "the MGS takes no new targets, trying again\nhint: on the machine of the MGS: \
                         nacre lctl set_param mgs.MGS.register=open");
                }
                Err(RpcError::Errno(Errno::EACCES)) => {
                    tracing::error!(target_name = %core.name, uuid = %request.uuid,
                        "the MGS knows this target with another secret, which is in its store: is this a copy of it?");
                }
                Err(error) => {
                    tracing::warn!(target_name = %core.name, %error, "registration refused, trying again");
                }
            }
            core.ctx.sleep(RETRY).await;
        }
    }
}
