//! The parameters of an OST.

use crate::service::Ost;
use crate::service::bulk_sizes::BulkSizes;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nacre_wire::settings::{parse_clear, parse_switch};
use nacre_wire::target::Param;

impl Ost {
    pub(super) fn list_params(&self) -> Vec<Param> {
        let now = self.core.ctx.wall();
        let s = *self.statfs.borrow();
        let (locks, waiting) = self.locks.counts();
        let stats = self.core.stats.borrow().render(now);
        let kb = |bytes: u64| (bytes / 1024).to_string();
        let row = |name: &str, value: String, writable: bool, help: &str| Param {
            name: format!("obdfilter.{}.{name}", self.core.name),
            value,
            writable,
            help: help.into(),
        };
        let mut rows = alloc::vec![
            row("stats", stats, true, "operations since the start; writing 0 clears them"),
            row(
                "brw_stats",
                self.bulk_sizes.borrow().render(now),
                true,
                "sizes of bulk transfers; writing 0 clears them"
            ),
            row("kbytestotal", kb(s.bytes_total), false, "size of the store, KiB"),
            row("kbytesfree", kb(s.bytes_free), false, "free on the device, KiB"),
            row("kbytesavail", kb(s.bytes_avail), false, "free for objects, KiB, at the last statfs"),
            row(
                "filestotal",
                (s.files_used + s.files_free).to_string(),
                false,
                "objects in use and estimated room"
            ),
            row("filesfree", s.files_free.to_string(), false, "estimated room for objects"),
            row(
                "promised_objects",
                self.store.room().count().promised.to_string(),
                false,
                "objects promised to MDTs, not yet written"
            ),
            row(
                "tombstones",
                self.store.tombstones().count().to_string(),
                false,
                "destroyed objects that refuse late writes"
            ),
            row(
                "sync_on_cancel",
                u8::from(self.sync_on_cancel.get()).to_string(),
                true,
                "1: when a client gives a lock for writing back, what it wrote goes to the device; nobody waits for it. 0: \
                 default"
            ),
            row("lock_count", locks.to_string(), false, "extent locks held or awaited"),
            row("lock_waiting", waiting.to_string(), false, "extent locks awaited"),
        ];
        if let Some(reply) = self.registration.as_ref().and_then(|r| r.reply()) {
            let version = reply.config_version.to_string();
            rows.push(row("config_version", version, false, "version of the target list at registration"));
        }
        rows
    }

    pub(super) fn set_one_param(&self, name: &str, value: &str) -> Result<(), String> {
        let field = name.rsplit('.').next().unwrap_or(name);
        match (field, value.trim()) {
            ("stats" | "brw_stats", _) => {
                parse_clear(name, value)?;
                *self.bulk_sizes.borrow_mut() = BulkSizes::new(self.core.ctx.wall());
                self.core.clear_stats();
                Ok(())
            }
            ("sync_on_cancel", value) => {
                self.sync_on_cancel.set(parse_switch(name, value)?);
                Ok(())
            }
            _ => Err(format!("{name} cannot be set")),
        }
    }
}
