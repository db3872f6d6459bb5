//! Parameters of a mount under the field's names: `llite.*`, `mdc.*`, `osc.*`.

use crate::api::MountConfig;
use crate::client::Client;
use crate::targets::imports;
use crate::targets::target::Target;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nacre_types::{TargetKind, TargetName};
use nacre_wire::settings::{CLIENT_MOD_RPCS_MAX, CLIENT_RPCS_MAX, parse_clear, parse_limit, parse_switch};
use nacre_wire::target::Param;

impl Client {
    /// Parameters (`llite.*`, `mdc.*`, `osc.*`).
    pub fn params(&self) -> Vec<Param> {
        let mut params = alloc::vec![
            param(
                self.llite("stats"),
                self.stats.render(),
                true,
                "Calls of this mount: samples, unit, least, greatest, sum, sum of squares. Write `clear` to clear.",
            ),
            param(
                self.llite("uuid"),
                self.mount.uuid().to_string(),
                false,
                "Identity of this mount, new at each start.",
            ),
            param(
                self.llite("dir_attr_cache"),
                u8::from(self.mount.holds()).to_string(),
                true,
                "1 (default): attributes of directories are kept as long as the MDT lets this mount hold them. 0: asked each \
                 time.",
            ),
        ];
        for target in self.mount.targets() {
            let Some(device) = self.device(&target) else { continue };
            params.push(param(
                format!("{device}.stats"),
                target.requests.render(),
                true,
                "Requests sent to the target: samples, unit, least, greatest, sum, sum of squares. Write `clear` to clear.",
            ));
            for (name, value, help) in [
                ("state", imports::state(&self.ctx, &target), "State of the import and its history."),
                ("import", imports::import(&device_name(&device), &target), "The import in full."),
            ] {
                params.push(param(format!("{device}.{name}"), value, false, help));
            }
            if device.starts_with("mgc") {
                continue;
            }
            if device.starts_with("osc") {
                params.push(param(
                    format!("{device}.active"),
                    u8::from(target.peer.with_import(|import| import.is_active())).to_string(),
                    true,
                    "1: a server that is down is waited for. 0: what needs it fails at once (EIO).",
                ));
            }
            params.push(param(
                format!("{device}.rpc_stats"),
                imports::rpc_stats(&self.ctx, &target),
                true,
                "Modifying requests by the number in flight when each was sent. Write `clear` to clear.",
            ));
            let (max_mod, max) = imports::limits(&target);
            params.push(param(
                format!("{device}.max_mod_rpcs_in_flight"),
                max_mod,
                true,
                "Modifying requests in flight, 1 to 511, default 7 (OST: 8); the server's limit holds too.",
            ));
            params.push(param(
                format!("{device}.max_rpcs_in_flight"),
                max,
                true,
                "Requests in flight, 1 to 512, default 8 (OST: 16); at least one more than modifying ones.",
            ));
        }
        params
    }

    /// Sets one parameter; `Err` is the sentence for the user.
    pub fn set_param(&self, name: &str, value: &str) -> Result<(), String> {
        self.set(name, value, false)
    }
    /// One that the MGS keeps may be more than a server agrees to today: it counts from the connect on that allows it.
    pub(crate) fn set(&self, name: &str, value: &str, is_kept: bool) -> Result<(), String> {
        if name == self.llite("stats") {
            parse_clear(name, value)?;
            self.stats.clear();
            return Ok(());
        }
        if name == self.llite("dir_attr_cache") {
            self.mount.set_holds(parse_switch(name, value)?);
            return Ok(());
        }
        for target in self.mount.targets() {
            let Some(device) = self.device(&target) else { continue };
            let Some(field) = name.strip_prefix(&device).and_then(|rest| rest.strip_prefix('.')) else {
                continue;
            };
            match field {
                "stats" => {
                    parse_clear(name, value)?;
                    target.clear_requests();
                }
                "rpc_stats" if !device.starts_with("mgc") => {
                    parse_clear(name, value)?;
                    target.clear_slots(self.ctx.wall());
                }
                "max_mod_rpcs_in_flight" => {
                    let limit = parse_limit(name, value, CLIENT_MOD_RPCS_MAX)?;
                    if !is_kept {
                        imports::check_server_limit(name, limit, &target)?;
                    }
                    target.peer.set_max_mod_rpcs(limit);
                }
                "active" if device.starts_with("osc") => {
                    let active = parse_switch(name, value)?;
                    target.peer.set_active(active);
                    self.locks.retry_all();
                    tracing::warn!(target_name = %target.name, active, "set by the administrator");
                }
                "max_rpcs_in_flight" => {
                    target.peer.set_max_rpcs(parse_limit(name, value, CLIENT_RPCS_MAX)?);
                }
                _ => continue,
            }
            return Ok(());
        }
        let is_known = self.params().iter().any(|p| p.name == name);
        Err(if is_known {
            format!("{name} is read-only, it cannot be set to {value}")
        } else {
            format!("there is no parameter {name}; hint: list them with `nacre lctl list_param '*.*'`")
        })
    }

    fn llite(&self, name: &str) -> String {
        format!("llite.{}.{name}", self.mount_name())
    }
    /// `demo-0011223344556677`: this mount in names of parameters and wherever else it is shown.
    pub fn mount_name(&self) -> String {
        MountConfig::mount_name(&self.config.fs, self.instance())
    }
    fn instance(&self) -> u64 {
        self.mount.uuid().0.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
    }

    /// `mdc.demo-MDT0000-mdc-0011223344556677`.
    fn device(&self, target: &Target) -> Option<String> {
        let (kind, suffix) = match TargetName::parse(&target.name)?.kind() {
            TargetKind::Mdt => ("mdc", "mdc"),
            TargetKind::Ost => ("osc", "osc"),
            TargetKind::Mgs => ("mgc", "mgc"),
        };
        Some(format!("{kind}.{}-{suffix}-{:016x}", target.name, self.instance()))
    }
}

/// `demo-MDT0000-mdc-0011223344556677` of `mdc.demo-MDT0000-mdc-0011223344556677`.
fn device_name(device: &str) -> String {
    device.split_once('.').map_or(device, |(_, name)| name).to_string()
}

fn param(name: String, value: String, writable: bool, help: &str) -> Param {
    Param { name, value, writable, help: help.to_string() }
}
