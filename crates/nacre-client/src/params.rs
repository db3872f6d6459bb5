//! Parameters of a mount under the field's names: `llite.*`, `mdc.*`, `osc.*`.

use crate::client::Client;
use crate::target::Target;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nacre_types::{TargetKind, TargetName};
use nacre_wire::target::Param;

impl Client {
    /// Parameters (`llite.*`, `mdc.*`, `osc.*`).
    pub fn params(&self) -> Vec<Param> {
        let mut params = alloc::vec![
            param(
                self.llite("stats"),
                self.stats.render(),
                true,
                "Calls of this mount: samples, unit, least, greatest, sum, sum of squares. Write 0 to clear.",
            ),
            param(
                self.llite("uuid"),
                self.mount.uuid.to_string(),
                false,
                "Identity of this mount, new at each start.",
            ),
        ];
        for target in self.mount.targets() {
            let Some(device) = self.device(&target) else { continue };
            params.push(param(
                format!("{device}.stats"),
                target.requests.render(),
                true,
                "Requests sent to the target: samples, unit, least, greatest, sum, sum of squares. Write 0 to clear.",
            ));
            let state = if target.peer.is_connected() { "FULL" } else { "DISCONN" };
            params.push(param(
                format!("{device}.state"),
                format!("current_state: {state}\n"),
                false,
                "State of the import.",
            ));
        }
        params
    }

    /// Sets one parameter; `Err` is the sentence for the user.
    pub fn set_param(&self, name: &str, value: &str) -> Result<(), String> {
        if name == self.llite("stats") {
            self.stats.clear();
            return Ok(());
        }
        for target in self.mount.targets() {
            if self.device(&target).is_some_and(|device| format!("{device}.stats") == name) {
                target.requests.clear();
                return Ok(());
            }
        }
        let is_known = self.params().iter().any(|p| p.name == name);
        Err(if is_known {
            format!("{name} is read-only, it cannot be set to {value}")
        } else {
            format!("there is no parameter {name}; hint: list them with `nacre lctl list_param '*.*'`")
        })
    }

    fn llite(&self, name: &str) -> String {
        format!("llite.{}-{}.{name}", self.config.fs, self.instance())
    }

    /// Tells the mounts of one node apart.
    fn instance(&self) -> String {
        self.mount.uuid.0.iter().take(8).map(|b| format!("{b:02x}")).collect()
    }

    /// `mdc.demo-MDT0000-mdc-0011223344556677`.
    fn device(&self, target: &Target) -> Option<String> {
        let (kind, suffix) = match TargetName::parse(&target.name)?.kind() {
            TargetKind::Mdt => ("mdc", "mdc"),
            TargetKind::Ost => ("osc", "osc"),
            TargetKind::Mgs => ("mgc", "mgc"),
        };
        Some(format!("{kind}.{}-{suffix}-{}", target.name, self.instance()))
    }
}

fn param(name: String, value: String, writable: bool, help: &str) -> Param {
    Param { name, value, writable, help: help.to_string() }
}
