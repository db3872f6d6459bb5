//! The parameters that every target has, and how any parameter of a target is read and set.

use crate::clients::ExportId;
use crate::clients::export::ClientExport;
use crate::clients::op_stats::OpStats;
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nacre_types::TargetKind;
use nacre_wire::matches;
use nacre_wire::settings::{SERVER_MOD_RPCS_MAX, parse_clear, parse_limit};
use nacre_wire::target::{Param, SetParam, SetParamReply, features};

fn param(name: String, value: String, writable: bool, help: &str) -> Param {
    Param { name, value, writable, help: help.to_string() }
}

impl TargetCore {
    /// The prefix of this target's parameters: `mdt.demo-MDT0000.`, `obdfilter.demo-OST0000.`.
    pub fn param_prefix(&self) -> String {
        let component = match self.name.kind() {
            TargetKind::Mgs => "mgs",
            TargetKind::Mdt => "mdt",
            TargetKind::Ost => "obdfilter",
        };
        format!("{component}.{}.", self.name)
    }

    /// Every parameter of a target.
    pub fn all_params<S: Service>(&self, service: &S) -> Vec<Param> {
        let mut params = self.common_params();
        params.extend(service.params());
        params.sort_by(|a, b| a.name.cmp(&b.name));
        params
    }

    /// The parameters that every target has.
    pub(crate) fn common_params(&self) -> Vec<Param> {
        let prefix = self.param_prefix();
        let name = |suffix: &str| format!("{prefix}{suffix}");
        let exports = self.clients().exports();
        let mut list = alloc::vec![
            param(name("uuid"), self.osd.label().uuid.to_string(), false, "identity of the target"),
            param(name("instance"), self.instance().to_string(), false, "starts of the target"),
            param(name("num_exports"), exports.len().to_string(), false, "known clients"),
            param(name("last_transno"), self.osd.last_transno().to_string(), false, "latest change"),
            param(
                name("last_committed"),
                self.osd.last_committed().to_string(),
                false,
                "latest durable change"
            ),
            param(
                name("lease_ms"),
                self.config.lease_ms.to_string(),
                false,
                "lease of a client, milliseconds"
            ),
            param(
                name("max_mod_rpcs_in_flight"),
                self.params().max_mod_rpcs().to_string(),
                true,
                "modifying requests a client may have in flight, 1 to 512, default 8; holds for new connections",
            ),
        ];
        list.push(param(
            name("fail_loc"),
            self.faults().fail_loc(&self.ctx),
            self.config.fault_points,
            "the fault point that is set, 0 for none; only builds for tests have any",
        ));
        list.push(param(
            name("fail_val"),
            self.faults().fail_val(),
            self.config.fault_points,
            "how often a fault point strikes that is set afterwards, from 1, default 1",
        ));
        list.push(param(
            name("recovery_status"),
            self.recovery_status(),
            false,
            "recovery after an unclean start: state, clients, replayed requests",
        ));
        list.push(param(
            name("storage"),
            self.storage_text(),
            false,
            "the storage engine: its contents and their bounds",
        ));
        exports.iter().filter(|(_, e)| e.has_lease()).for_each(|(id, e)| self.list_client(id, e, &mut list));
        list
    }

    /// The parameters of one client.
    fn list_client(&self, id: ExportId, e: &ClientExport, list: &mut Vec<Param>) {
        let target = self.param_prefix();
        let prefix = format!("exports.{}.", e.uuid());
        let named = |suffix: &str| format!("{target}{prefix}{suffix}");
        list.push(param(named("uuid"), format!("{}\n", e.uuid()), false, "identity of a client"));
        list.push(param(named("state"), self.export_state(id, e), false, "state of a client"));
        list.push(param(named("export"), self.export_text(e), false, "a client's connection in full"));
        list.push(param(
            named("reply_data"),
            reply_data(e),
            false,
            "reply records of a client: now, maximum, released by the client's last_xid and by their tag",
        ));
        list.push(param(
            named("stats"),
            e.stats.render(self.ctx.wall()),
            true,
            "operations of a client: count, min, max, sum, sum of squares; write `clear` to clear",
        ));
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

    /// Sets a common parameter; `None` if it is none. `Err` is the sentence for the user.
    pub(crate) fn set_common_param(&self, name: &str, value: &str) -> Option<Result<(), String>> {
        let suffix = name.strip_prefix(&self.param_prefix())?;
        if let Some(uuid) = suffix.strip_prefix("exports.").and_then(|rest| rest.strip_suffix(".stats")) {
            let mut exports = self.clients().exports_mut();
            let id = exports.iter().find(|(_, e)| e.uuid().to_string() == uuid).map(|(id, _)| id)?;
            if let Err(why) = parse_clear(name, value) {
                return Some(Err(why));
            }
            exports.get_mut(id)?.stats = OpStats::new(self.ctx.wall());
            return Some(Ok(()));
        }
        if matches!(suffix, "fail_loc" | "fail_val") && !self.config.fault_points {
            return Some(Err(format!(
                "{name}={value}: this is a release build, it has no fault points\nhint: they are in what `cargo build` \
                 makes without --release, for tests"
            )));
        }
        match suffix {
            "fail_loc" => return Some(self.faults().set_loc(&self.ctx, name, value)),
            "fail_val" => return Some(self.faults().set_val(name, value)),
            "max_mod_rpcs_in_flight" => {}
            _ => return None,
        }
        Some(parse_limit(name, value, SERVER_MOD_RPCS_MAX).map(|n| self.params().set_max_mod_rpcs(n)))
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
    let mut names: Vec<String> = core.all_params(service).into_iter().map(|p| p.name).collect();
    names.retain(|name| matches(&set.name, name));
    let mut refused = String::new();
    for name in &names {
        let done =
            core.set_common_param(name, &set.value).unwrap_or_else(|| service.set_param(name, &set.value));
        if let Err(sentence) = done {
            refused = sentence;
        }
    }
    SetParamReply { matched: u32::try_from(names.len()).unwrap_or(u32::MAX), refused }
}

/// In the format of Lustre's `reply_data`.
fn reply_data(e: &ClientExport) -> String {
    let (most, by_xid, by_tag) = e.rpc.record_counts();
    format!(
        "reply_cnt: {}\nreply_max: {most}\nreply_released_by_xid: {by_xid}\nreply_released_by_tag: {by_tag}\n",
        e.rpc.records().len(),
    )
}
