//! The parameters that every target has: the arms of the rows in `nacre-wire/src/params/table.rs`. How any parameter of a
//! target is read and set.

use crate::clients::ExportId;
use crate::clients::export::ClientExport;
use crate::clients::op_stats::OpStats;
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nacre_types::TargetKind;
use nacre_wire::params::{Arm, BoundParam, ExportParam, TargetParam, bind, set_matching};
use nacre_wire::target::{Param, SetParam, SetParamReply, features};

/// Why fault points cannot be set in this build.
const NO_FAULT_POINTS: &str = "this is a release build, it has no fault points\nhint: they are in what `cargo build` makes \
                               without --release, for tests";

impl TargetCore {
    /// The beginning of the names of this target's parameters: `mdt.demo-MDT0000`, `obdfilter.demo-OST0000`.
    pub fn param_prefix(&self) -> String {
        let component = match self.name.kind() {
            TargetKind::Mgs => "mgs",
            TargetKind::Mdt => "mdt",
            TargetKind::Ost => "obdfilter",
        };
        format!("{component}.{}", self.name)
    }

    /// Every parameter of a target as messages show it, by name.
    pub fn all_params<S: Service>(&self, service: &S) -> Vec<Param> {
        let mut params: Vec<Param> =
            self.bound_params(service).into_iter().map(BoundParam::into_param).collect();
        params.sort_by(|a, b| a.name.cmp(&b.name));
        params
    }

    /// Every parameter of a target.
    pub(crate) fn bound_params<'a, S: Service>(&'a self, service: &'a S) -> Vec<BoundParam<'a>> {
        let mut params = bind(&self.param_prefix(), "", |param| self.common_param(param));
        let exports = self.clients().exports();
        for (id, export) in exports.iter().filter(|(_, e)| e.has_lease()) {
            let uuid = export.uuid().to_string();
            params.extend(bind(&self.param_prefix(), &uuid, |param| self.client_param(param, id, export)));
        }
        drop(exports);
        params.extend(service.params());
        params
    }

    /// A parameter that every target has.
    fn common_param(&self, param: TargetParam) -> Arm<'_> {
        let faults = self.faults();
        match param {
            TargetParam::Uuid => Arm::shown(self.osd.label().uuid),
            TargetParam::Instance => Arm::shown(self.instance()),
            TargetParam::NumExports => Arm::shown(self.clients().exports().len()),
            TargetParam::LastTransno => Arm::shown(self.osd.last_transno()),
            TargetParam::LastCommitted => Arm::shown(self.osd.last_committed()),
            TargetParam::LeaseMs => Arm::shown(self.config.lease_ms),
            TargetParam::MaxModRpcs => {
                Arm::number(self.params().max_mod_rpcs(), |max| self.params().set_max_mod_rpcs(max))
            }
            TargetParam::FailLoc | TargetParam::FailVal if !self.config.fault_points => {
                let value = if param == TargetParam::FailVal { "1" } else { "0" };
                Arm::unavailable(value, NO_FAULT_POINTS)
            }
            TargetParam::FailLoc => {
                Arm::text(faults.fail_loc(&self.ctx), |name| faults.set_loc(&self.ctx, &name))
            }
            TargetParam::FailVal => Arm::number(faults.fail_val(), |times| faults.set_val(times)),
            TargetParam::RecoveryStatus => Arm::shown(self.recovery_status()),
            TargetParam::Storage => Arm::shown(self.storage_text()),
        }
    }

    /// A parameter of one client.
    fn client_param(&self, param: ExportParam, id: ExportId, e: &ClientExport) -> Arm<'_> {
        match param {
            ExportParam::Uuid => Arm::shown(format!("{}\n", e.uuid())),
            ExportParam::State => Arm::shown(self.export_state(id, e)),
            ExportParam::Export => Arm::shown(self.export_text(e)),
            ExportParam::ReplyData => Arm::shown(reply_data(e)),
            ExportParam::Stats => Arm::counters(e.stats.render(self.ctx.wall()), move || {
                if let Some(export) = self.clients().exports_mut().get_mut(id) {
                    export.stats = OpStats::new(self.ctx.wall());
                }
            }),
        }
    }

    fn storage_text(&self) -> String {
        let (s, max) = (self.osd.stats(), self.osd.config());
        format!(
            "rows_in_memory: {}\nclean_bytes: {} of {}\ndirty_bytes: {} of {}\nlog_bytes: {} of {}\nruns: {}\n\
             run_bytes: {}\nrun_index_bytes: {}\ntransactions: {}\nsyncs: {}\nflushes: {}\nflush_bytes_written: {}\n\
             merges: {}\nmerge_bytes_written: {}\ncold_reads: {}\nslowed_writers: {}\ncredits_exceeded: {}",
            s.rows_in_memory,
            s.clean_bytes,
            max.cache_bytes_max,
            s.dirty_bytes,
            max.dirty_bytes_max,
            s.log_bytes,
            max.log_bytes_max,
            s.runs,
            s.run_bytes,
            s.run_index_bytes,
            s.transactions,
            s.syncs,
            s.flushes,
            s.flush_bytes_written,
            s.merges,
            s.merge_bytes_written,
            s.cold_reads,
            s.slowed_writers,
            s.credits_exceeded,
        )
    }

    fn export_state(&self, id: ExportId, e: &ClientExport) -> String {
        let state = match (e.conn(), e.is_seen()) {
            (Some(_), _) => "connected",
            (None, true) => "disconnected",
            (None, false) => "not seen since the target started",
        };
        format!(
            "name: {}\ngeneration: {id}\nstate: {state}\nlast_xid: {}\nlast_transno: {}\nrunning: {}\n\
             unacknowledged_callbacks: {}\n",
            e.name(),
            e.rpc.last_xid(),
            e.rpc.last_transno(),
            e.rpc.running().len(),
            e.rpc.unacknowledged_callbacks(),
        )
    }

    fn export_text(&self, e: &ClientExport) -> String {
        format!(
            "{}:\n    name: {}\n    client: {}\n    connect_flags: [ {} ]\n    connect_data:\n       flags: {:#x}\n       \
             instance: {}\n       max_mod_rpcs: {}\n    export_flags: [ {} ]\n",
            e.uuid(),
            e.name(),
            e.from(),
            features::names(e.features()),
            e.features(),
            self.instance(),
            e.max_mod_rpcs(),
            if e.lease_ending().is_some() { "lease_ending" } else { "" },
        )
    }
}

/// Sets every parameter whose name matches.
pub fn set_params<S: Service>(core: &TargetCore, service: &S, set: &SetParam) -> SetParamReply {
    set_matching(core.bound_params(service), &set.name, &set.value)
}

/// In the format of Lustre's `reply_data`.
fn reply_data(e: &ClientExport) -> String {
    let (most, by_xid, by_tag) = e.rpc.record_counts();
    format!(
        "reply_cnt: {}\nreply_max: {most}\nreply_released_by_xid: {by_xid}\nreply_released_by_tag: {by_tag}\n",
        e.rpc.records().len(),
    )
}
