//! The parameters of an OST: the arms of the rows in `nacre-wire/src/params/table.rs`.

use crate::scrub;
use crate::service::Ost;
use crate::service::bulk_sizes::BulkSizes;
use alloc::vec::Vec;
use nacre_wire::params::{Arm, BoundParam, OstParam, bind};

impl Ost {
    pub(super) fn list_params(&self) -> Vec<BoundParam<'_>> {
        bind(&self.core.param_prefix(), "", |param| self.param(param))
    }

    fn param(&self, param: OstParam) -> Arm<'_> {
        let now = self.core.ctx.wall();
        let space = *self.statfs.borrow();
        let (locks, waiting) = self.locks.counts();
        match param {
            OstParam::Stats => Arm::counters(self.core.stats.borrow().render(now), || self.clear_counters()),
            OstParam::BrwStats => {
                Arm::counters(self.bulk_sizes.borrow().render(now), || self.clear_counters())
            }
            OstParam::KbytesTotal => Arm::shown(space.bytes_total / 1024),
            OstParam::KbytesFree => Arm::shown(space.bytes_free / 1024),
            OstParam::KbytesAvail => Arm::shown(space.bytes_avail / 1024),
            OstParam::FilesTotal => Arm::shown(space.files_used + space.files_free),
            OstParam::FilesFree => Arm::shown(space.files_free),
            OstParam::PromisedObjects => Arm::shown(self.store.room().count().promised),
            OstParam::TotGranted => Arm::shown(self.store.room().granted_bytes()),
            OstParam::Tombstones => Arm::shown(self.store.tombstones().count()),
            OstParam::SyncOnCancel => {
                Arm::switch(self.sync_on_cancel.get(), |on| self.sync_on_cancel.set(on))
            }
            OstParam::WritethroughCacheEnable => {
                Arm::switch(self.writethrough_cache.get(), |on| self.writethrough_cache.set(on))
            }
            OstParam::Scrub => Arm::word(scrub::render(&self.store), |word| {
                scrub::request(&self.store, word);
                Ok(())
            }),
            OstParam::ScrubRateMb => {
                Arm::number(self.scrub_rate_mb.get(), |rate: u64| self.set_scrub_rate_mb(rate))
            }
            OstParam::LockCount => Arm::shown(locks),
            OstParam::LockWaiting => Arm::shown(waiting),
            OstParam::ConfigVersion => {
                let reply = self.registration.as_ref().and_then(|r| r.reply());
                Arm::shown_if(reply.map(|reply| reply.config_version))
            }
        }
    }

    pub(super) fn set_scrub_rate_mb(&self, rate: u64) {
        self.scrub_rate_mb.set(rate);
        self.store.objects().set_scrub_rate(rate << 20);
    }

    /// The counters of operations and of bulk begin at the same time.
    fn clear_counters(&self) {
        *self.bulk_sizes.borrow_mut() = BulkSizes::new(self.core.ctx.wall());
        self.core.clear_stats();
    }
}
