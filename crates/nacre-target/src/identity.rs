//! How a client proves that it is the one whom it names, and how this target proves itself where it is a client.
//!
//! Rules: a client's secret comes with its first connect and is in its row; a connect in the client's name with another
//! secret is refused and changes nothing. A target's secrets (one for each target that it connects to, so that none of
//! those can pass for it at another) are derived from a key in its store, so that they survive its restarts. No secret
//! leaves the target, in whatever role somebody asks. Not here: who may register with an MGS (`nacre-mgs`).

use crate::clients::{ClientRow, Entry};
use crate::island::Inner;
use crate::request::Request;
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::{ConnId, Origin};
use nacre_osd::table;
use nacre_types::{ClientUuid, Codec, Errno, Secret, TargetName};
use nacre_wire::Header;
use nacre_wire::target::{Connect, Role};

/// Row of `TARGET`: the key from which the secrets of this target are derived.
pub(crate) const SECRET_KEY: &[u8] = b"secret";

/// The client of an export as it has shown itself.
#[derive(Debug, Clone, Copy)]
pub struct Sender {
    pub uuid: ClientUuid,
    pub secret: Secret,
    pub role: Role,
    pub origin: Origin,
}
impl Sender {
    /// What it does counts as done by the administrator of this machine.
    pub fn is_trusted(&self) -> bool {
        matches!(self.origin, Origin::Process | Origin::Administrator)
    }
}

impl TargetCore {
    /// The key is that of the store, or a new one that the start of the target will keep.
    pub(crate) async fn load_secret(&self) -> Result<(), Errno> {
        let row = self.osd.get(table::TARGET, SECRET_KEY).await?;
        let key = row.map_or_else(|| Ok(self.ctx.secret()), |row| Secret::from_slice(&row))?;
        self.secret.set(key);
        Ok(())
    }
    /// With which this target connects to another.
    pub fn secret_for(&self, target: &TargetName) -> Secret {
        self.secret.get().derive(target.to_string().as_bytes())
    }
    /// Who has sent a request; `None` when the export has gone.
    pub fn sender(&self, request: &Request) -> Option<Sender> {
        let exports = self.exports.borrow();
        let of = |e: &Entry| Sender { uuid: e.uuid, secret: e.secret, role: e.role, origin: e.origin };
        exports.get(request.export).map(of)
    }
    /// Whether a request comes from this machine's administrator.
    pub fn is_administrator(&self, request: &Request) -> bool {
        self.sender(request).is_some_and(|sender| sender.is_trusted())
    }
    /// Whether this connect names a client that is known under another secret.
    pub(crate) fn is_impostor(&self, connect: &Connect) -> bool {
        let exports = self.exports.borrow();
        let named = exports.of_client(connect.client).and_then(|id| exports.get(id));
        connect.role != Role::Tool && named.is_some_and(|entry| entry.secret != connect.secret)
    }
}

impl<S: Service> Inner<S> {
    /// Answers a connect in somebody else's name; the export is as if it had not come.
    pub(crate) fn refuse_impostor(
        &self,
        core: &Rc<TargetCore>,
        conn: ConnId,
        header: &Header,
        connect: &Connect,
    ) {
        if let Some(left_out) = core.lines.allow("impostor", self.ctx.now()) {
            let from = self.conns.borrow().get(&conn).map(|c| c.from.clone());
            tracing::warn!(target_name = %core.name, client = %connect.client, name = connect.name, from, left_out,
                "connect refused: it names a client that is known with another secret");
        }
        self.send_reply(core, conn, header, Err(Errno::EACCES));
        self.close(conn);
    }

    /// A connection was taken in place of one that stood: where that came from, if it was another host.
    pub(crate) fn note_replaced(&self, core: &TargetCore, entry: &Entry, old_from: &str) -> String {
        if host(&entry.from) == host(old_from) {
            return String::new();
        }
        if let Some(left_out) = core.lines.allow("take-over", self.ctx.now()) {
            tracing::warn!(target_name = %core.name, client = %entry.uuid, name = entry.name, from = entry.from,
                former = old_from, left_out, "another host has taken over the connection of a client");
        }
        old_from.to_string()
    }
}

/// Rows of clients for a reader of records: with a secret of zeros. One that cannot be read comes empty: a secret may be in it.
pub(crate) fn without_secrets(rows: Vec<Bytes>) -> Vec<Bytes> {
    let without = |row: Bytes| match ClientRow::from_slice(&row) {
        Ok(row) => Bytes::from(ClientRow { secret: Secret::default(), ..row }.to_vec()),
        Err(_) => Bytes::new(),
    };
    rows.into_iter().map(without).collect()
}

/// Of `HOST:PORT` the host; anything else as it is.
fn host(from: &str) -> &str {
    from.rsplit_once(':').map_or(from, |(host, _)| host)
}
