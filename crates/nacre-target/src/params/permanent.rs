//! Permanent parameters (`set_param -P`), which the MGS stores: applied at the start from the latest list, and whenever the list changes.

use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_osd::{Credits, Pins, table};
use nacre_types::{Codec, Errno};
use nacre_wire::matches;
use nacre_wire::mgs::PermanentParam;
use nacre_wire::params::apply_permanent;

/// Row of `TARGET`: the permanent parameters of this target.
const PERMANENT_KEY: &[u8] = b"kept";

impl TargetCore {
    /// Applies the list that the MGS sent last, at the start and before any client connects.
    pub(crate) async fn restore_permanent<S: Service>(&self, service: &S) -> Result<(), Errno> {
        if let Some(row) = self.osd.get(table::TARGET, PERMANENT_KEY).await? {
            match Vec::<PermanentParam>::from_slice(&row) {
                Ok(list) => self.set_permanent(service, &list),
                Err(error) => tracing::error!(target_name = %self.name, %error,
                    "the stored parameters of the MGS cannot be read: they apply again once the MGS replies"),
            }
        }
        Ok(())
    }

    /// Applies a list of the MGS, and stores it for the next start.
    pub(crate) async fn store_permanent<S: Service>(
        &self,
        service: &S,
        list: &[PermanentParam],
    ) -> Result<(), Errno> {
        self.apply_permanent(service, list);
        let params = self.bound_params(service);
        let is_ours =
            |stored: &&PermanentParam| params.iter().any(|param| matches(&stored.name, param.name()));
        let row = Codec::to_vec(&list.iter().filter(is_ours).cloned().collect::<Vec<_>>());
        drop(params);
        let old = self.osd.get(table::TARGET, PERMANENT_KEY).await?;
        if old.map_or(row == Codec::to_vec(&Vec::<PermanentParam>::new()), |old| old[..] == row[..]) {
            return Ok(());
        }
        let row_bytes = u32::try_from(row.len()).unwrap_or(u32::MAX).saturating_add(64);
        let credits = Credits { rows: 1, row_bytes, ..Credits::default() };
        let reservation = self.osd.reserve(credits).await?;
        self.transact_local(&Pins::default(), reservation, |tx| {
            tx.put(table::TARGET, PERMANENT_KEY, row);
            Ok(())
        })?;
        Ok(())
    }

    /// Sets those parameters of the list that this target has; once per change of the list.
    pub fn apply_permanent<S: Service>(&self, service: &S, list: &[PermanentParam]) {
        if self.params().replace_permanent(list) {
            self.set_permanent(service, list);
        }
    }
    /// The permanent value of a parameter that is new here, for example of a target that has just appeared in `list`. That list
    /// may be older than the one that was applied last, or newer.
    pub fn permanent_value(&self, name: &str, list: &[PermanentParam]) -> Option<String> {
        self.params().permanent_value(name, list)
    }
    fn set_permanent<S: Service>(&self, service: &S, list: &[PermanentParam]) {
        let refused = |reason: &str, name: &str| {
            tracing::warn!(target_name = %self.name, reason,
                "a permanent parameter is refused\nhint: nacre lctl set_param -P -d {name}");
        };
        apply_permanent(|| self.bound_params(service), list, refused);
    }
}
