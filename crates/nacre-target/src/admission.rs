//! Who this target is for its clients: it refuses those that mean another one, or itself with more than it has.
//!
//! The page is docs/targets.md. `replaced` counts how often an administrator has admitted another target, or an old copy,
//! under this name. Client and target must agree on it: a client with an older list means the former target, and a target
//! that has not heard of its admission yet still has clients, locks and numbers of before it.

use crate::clients::ExportId;
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
    /// The latest `replaced` that this target was told.
    pub fn replaced(&self) -> u32 {
        self.replaced.get()
    }

    /// Why this client is not let in, and whether it means another target, which does not pass.
    pub(crate) fn refusal(&self, connect: &Connect) -> Option<(String, bool)> {
        let known = connect.known.as_ref().filter(|_| connect.role != Role::Tool)?;
        let mine = self.replaced.get();
        if connect.replaced < mine {
            let text =
                "its list of targets is older than the admission of this target: it asks the MGS again";
            return Some((String::from(text), false));
        }
        let mismatch = self.osd.identity().check(known);
        if connect.replaced > mine && !mismatch.is_err_and(|m| m.is_other()) {
            return Some((String::from("the target has not heard of its admission from the MGS yet"), false));
        }
        let mismatch = mismatch.err()?;
        Some((format!("the target that answers as {} {mismatch}", self.name), true))
    }

    pub(crate) async fn load_replaced(&self) -> Result<(), Errno> {
        if let Some(row) = self.osd.get(table::TARGET, REPLACED_KEY).await? {
            self.replaced.set(u32::from_slice(&row)?);
        }
        Ok(())
    }

    /// The MGS has admitted this target. Clients of before are evicted first: they come with the new list.
    pub(crate) async fn take_admission<S: Service>(
        &self,
        service: &Rc<S>,
        replaced: u32,
    ) -> Result<(), Errno> {
        if replaced == self.replaced.get() {
            return Ok(());
        }
        tracing::warn!(target_name = %self.name, replaced,
            "an administrator has admitted this target under its name: clients of before are evicted");
        let known: Vec<ExportId> =
            self.exports.borrow().iter().filter(|(_, e)| e.has_lease()).map(|(id, _)| id).collect();
        for export in known {
            self.evict(export, String::from("the target was admitted anew, its clients begin anew"));
        }
        service.clone().admitted().await?;
        let credits = Credits { rows: 1, row_bytes: 64, object_bytes: 0, frees: true };
        let reservation = self.osd.reserve(credits).await?;
        let (transno, ()) = self.transact_local(&Pins::default(), reservation, |tx| {
            tx.put(table::TARGET, REPLACED_KEY, replaced.to_vec());
            Ok(())
        })?;
        self.osd.commit(transno).await?;
        self.replaced.set(replaced);
        Ok(())
    }
}
