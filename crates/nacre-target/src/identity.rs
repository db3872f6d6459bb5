//! How a client proves its identity, and how this target proves its own where it is a client.
//!
//! Rules: a client gives its secret at its first connect, and the secret is in its row; a connect in the name of that client
//! with another secret is refused and changes nothing. A target's secrets (one for each target that it connects to, so that
//! none of those can impersonate it at another) are derived from a key in its store, so that they survive its restarts. No
//! secret leaves the target, whatever the role of the sender. Not here: registration with an MGS (`nacre-mgs`).

use crate::clients::export::ClientExport;
use crate::request::Request;
use crate::target_core::TargetCore;
use alloc::string::ToString;
use nacre_node::Origin;
use nacre_osd::table;
use nacre_types::{ClientUuid, Codec, Errno, Secret, TargetName};
use nacre_wire::target::{Connect, Role};

/// Row of `TARGET`: the key from which the secrets of this target are derived.
pub(crate) const SECRET_KEY: &[u8] = b"secret";

/// The identity of the client of an export.
#[derive(Debug, Clone, Copy)]
pub struct Sender {
    /// Its uuid.
    pub uuid: ClientUuid,
    /// Its secret.
    pub secret: Secret,
    /// Its role.
    pub role: Role,
    /// Where its connection comes from.
    pub origin: Origin,
}
impl Sender {
    /// Whether its requests count as those of the administrator of this machine.
    pub fn is_trusted(&self) -> bool {
        matches!(self.origin, Origin::Process | Origin::Administrator)
    }
}

impl TargetCore {
    /// Reads the key from the store, or creates one, which the start of the target will store.
    pub(crate) async fn load_secret(&self) -> Result<(), Errno> {
        let row = self.osd.get(table::TARGET, SECRET_KEY).await?;
        let key = row.map_or_else(|| Ok(self.ctx.secret()), |row| Secret::from_slice(&row))?;
        self.set_secret(key);
        Ok(())
    }
    /// The secret with which this target connects to another.
    pub fn secret_for(&self, target: &TargetName) -> Secret {
        self.secret().derive(target.to_string().as_bytes())
    }
    /// The sender of a request; `None` when the export has ended.
    pub fn sender(&self, request: &Request) -> Option<Sender> {
        let exports = self.clients().exports();
        let of = |e: &ClientExport| Sender {
            uuid: e.uuid(),
            secret: e.secret(),
            role: e.role(),
            origin: e.origin(),
        };
        exports.get(request.export).map(of)
    }
    /// Whether a request comes from this machine's administrator.
    pub fn is_administrator(&self, request: &Request) -> bool {
        self.sender(request).is_some_and(|sender| sender.is_trusted())
    }
    /// Whether this connect is in the name of a client that is known with another secret.
    pub(crate) fn is_impostor(&self, connect: &Connect) -> bool {
        let exports = self.clients().exports();
        let named = exports.of_client(connect.client).and_then(|id| exports.get(id));
        connect.role != Role::Tool && named.is_some_and(|entry| entry.secret() != connect.secret)
    }
}
