//! A connect in the name of a target that another process may still serve. The rules are in `rivals.rs`.

use crate::island::inner::Inner;
use crate::lease::a_lease_before;
use crate::rivals::{Verdict, probe_holder};
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use nacre_wire::target::{Connect, Role};

impl<S: Service> Inner<S> {
    /// Why a connect in the name of a target is refused because another process has that name, and whether that is for
    /// good; `None` if it is admitted.
    pub(crate) fn contest(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        service: &S,
        connect: &Connect,
    ) -> Option<(String, bool)> {
        let now = self.ctx().now();
        let mut exports = core.clients().exports_mut();
        let id = exports.of_client(connect.client).filter(|_| connect.role == Role::Target)?;
        let entry = exports.get_mut(id)?;
        let known = service.whereabouts(connect.client).filter(|known| !known.addresses.is_empty());
        let is_renewed = entry.is_seen() && entry.lease_ending().is_none();
        let lease_deadline = entry.lease_deadline();
        let last_message = is_renewed.then(|| a_lease_before(core, lease_deadline));
        let is_connected = entry.conn().is_some();
        let (name, place) = match &known {
            Some(known) => (known.name.to_string(), format!(" ({})", known.addresses.join(", "))),
            None => (connect.name.clone(), String::new()),
        };
        match entry.contest_mut().judge(connect.instance, now, is_connected, last_message, known.as_ref()) {
            Verdict::Admit => None,
            Verdict::Refuse => Some((
                format!(
                    "{name} is being served by another process{place}, which is alive. The store that was started here is \
                     a copy of its store, or the same store opened a second time: only one of them may be used\nhint: stop \
                     the other process first to continue with this store, or do not start this one"
                ),
                true,
            )),
            Verdict::Wait { begins, asks } => {
                let left_ms = lease_deadline.saturating_since(now).as_millis();
                if begins && let Some(left_out) = core.lines.allow("rival", now) {
                    tracing::warn!(target_name = %core.name, client = %connect.client, name, left_ms, left_out,
                        "a second process connects in the name of a target: it waits until the first one is known to \
                         live or to have ended");
                }
                if let Some(known) = known.filter(|_| asks) {
                    let (holder, instance) = (entry.contest().holder(), connect.instance);
                    let (core, client) = (core.clone(), connect.client);
                    self.ctx().spawn(async move {
                        let who = (client, holder);
                        let found = probe_holder(&core.ctx, &core.peers, who, &known, &core.name).await;
                        let now = core.ctx.now();
                        core.clients().with(id, |entry| entry.contest_mut().probed(instance, found, now));
                    });
                }
                let why = format!(
                    "{name} may still be served by another process{place}: waiting for its reply, or {left_ms} ms until \
                     its lease has expired"
                );
                Some((why, false))
            }
        }
    }
}
