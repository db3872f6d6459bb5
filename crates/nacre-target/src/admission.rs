//! The identity of this target for its clients: it refuses clients that mean another target, or a later state of this one.
//!
//! The page is docs/targets.md. `replaced` counts how often an administrator has admitted another target, or an old copy,
//! under this name. Client and target must agree on it: a client with a lower count means the former target; a target with
//! a lower count has not received its admission yet, and still has clients, locks and transnos from before.

use crate::clients::rows::ExportId;
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_osd::{Credits, Pins, table};
use nacre_types::{Codec, Errno};
use nacre_wire::target::{Connect, Role};

/// Row of `TARGET`: how often another target was admitted under this name (u32).
const REPLACED_KEY: &[u8] = b"replaced";

impl TargetCore {
    /// Why this client is refused, and whether it means another target, in which case a retry cannot help.
    pub(crate) fn refusal(&self, connect: &Connect) -> Option<(String, bool)> {
        let known = connect.known.as_ref().filter(|_| connect.role != Role::Tool)?;
        let mine = self.replaced();
        if connect.replaced < mine {
            let text =
                "its list of targets is older than the admission of this target: it asks the MGS again";
            return Some((String::from(text), false));
        }
        let mismatch = self.osd.identity().check(known);
        if connect.replaced > mine && !mismatch.is_err_and(|m| m.is_other()) {
            return Some((String::from("the MGS has not notified the target of its admission yet"), false));
        }
        let mismatch = mismatch.err()?;
        Some((format!("the target that serves as {} {mismatch}", self.name), true))
    }

    pub(crate) async fn load_replaced(&self) -> Result<(), Errno> {
        if let Some(row) = self.osd.get(table::TARGET, REPLACED_KEY).await? {
            self.set_replaced(u32::from_slice(&row)?);
        }
        Ok(())
    }

    /// The MGS has admitted this target. Its former clients are evicted first: they reconnect with the new list.
    pub(crate) async fn take_admission<S: Service>(
        &self,
        service: &Rc<S>,
        replaced: u32,
    ) -> Result<(), Errno> {
        if replaced == self.replaced() {
            return Ok(());
        }
        tracing::warn!(target_name = %self.name, replaced,
            "an administrator has admitted this target under its name: its former clients are evicted");
        let known: Vec<ExportId> =
            self.clients().exports().iter().filter(|(_, e)| e.has_lease()).map(|(id, _)| id).collect();
        for export in known {
            self.evict(export, String::from("the target was admitted anew, its clients start anew"));
        }
        service.clone().admitted().await?;
        let credits = Credits { rows: 1, row_bytes: 64, frees: true, ..Credits::default() };
        let reservation = self.osd.reserve(credits).await?;
        let (transno, ()) = self.transact_local(&Pins::default(), reservation, |tx| {
            tx.put(table::TARGET, REPLACED_KEY, replaced.to_vec());
            Ok(())
        })?;
        self.osd.commit(transno).await?;
        self.set_replaced(replaced);
        Ok(())
    }
}
