//! Parameters: patterns, and those that every target has.

use crate::core_::TargetCore;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nacre_types::TargetKind;
use nacre_wire::target::Param;

/// Largest `max_mod_rpcs_in_flight` of a server.
const MOD_RPCS_MAX: u16 = 512;

/// Whether a parameter's name fits: part by part between dots, `*` for any characters of one part.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (mut patterns, mut parts) = (pattern.split('.'), name.split('.'));
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return true,
            (Some(pattern), Some(part)) if part_matches(pattern.as_bytes(), part.as_bytes()) => {}
            _ => return false,
        }
    }
}

/// Linear: on a mismatch only the last star can take one more byte.
fn part_matches(pattern: &[u8], part: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < part.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(b) if Some(b) == part.get(n) => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                Some((at, taken)) => {
                    *taken += 1;
                    (p, n) = (*at + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern.get(p..).is_some_and(|rest| rest.iter().all(|b| *b == b'*'))
}

fn param(name: String, value: String, writable: bool, help: &str) -> Param {
    Param { name, value, writable, help: help.to_string() }
}

impl TargetCore {
    /// What the names of this target's parameters begin with: `mdt.demo-MDT0000.`, `obdfilter.demo-OST0000.`.
    pub fn param_prefix(&self) -> String {
        let component = match self.name.kind() {
            TargetKind::Mgs => "mgs",
            TargetKind::Mdt => "mdt",
            TargetKind::Ost => "obdfilter",
        };
        format!("{component}.{}.", self.name)
    }

    /// The parameters that every target has.
    pub(crate) fn common_params(&self) -> Vec<Param> {
        let prefix = self.param_prefix();
        let name = |suffix: &str| format!("{prefix}{suffix}");
        let exports = self.exports.borrow();
        let mut list = alloc::vec![
            param(name("uuid"), self.osd.label().uuid.to_string(), false, "identity of the target"),
            param(name("instance"), self.instance.get().to_string(), false, "starts of the target"),
            param(name("num_exports"), exports.len().to_string(), false, "clients that the target knows"),
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
                self.max_mod_rpcs.get().to_string(),
                true,
                "modifying requests a client may have in flight, 1 to 512, default 8; holds for new connections",
            ),
        ];
        for (id, e) in exports.iter().filter(|(_, e)| e.has_lease()) {
            let state = match (e.conn, e.seen) {
                (Some(_), _) => "connected",
                (None, true) => "disconnected",
                (None, false) => "not seen since the target started",
            };
            let value = format!(
                "name: {}\ngeneration: {id}\nstate: {state}\nlast_xid: {}\nlast_transno: {}\nrunning: {}\n\
                 reply_records: {}\nunacknowledged_callbacks: {}\n",
                e.name,
                e.rpc.last_xid(),
                e.rpc.last_transno(),
                e.rpc.running().len(),
                e.rpc.records().len(),
                e.rpc.unacknowledged_callbacks(),
            );
            list.push(param(
                name(&format!("exports.{}.state", e.uuid)),
                value,
                false,
                "what is known of a client",
            ));
        }
        list
    }

    /// `None`: not one of the common ones. `Err` is the sentence for the user.
    pub(crate) fn set_common_param(&self, name: &str, value: &str) -> Option<Result<(), String>> {
        let suffix = name.strip_prefix(&self.param_prefix())?;
        if suffix != "max_mod_rpcs_in_flight" {
            return None;
        }
        Some(match value.parse::<u16>() {
            Ok(n) if (1..=MOD_RPCS_MAX).contains(&n) => {
                self.max_mod_rpcs.set(n);
                Ok(())
            }
            _ => Err(format!("{name} takes a number from 1 to {MOD_RPCS_MAX}, not {value:?}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_within_its_part() {
        for (pattern, name, fits) in [
            ("mdt.*.uuid", "mdt.demo-MDT0000.uuid", true),
            ("mdt.demo-*.num*", "mdt.demo-MDT0000.num_exports", true),
            ("mdt.*", "mdt.demo-MDT0000.uuid", false),
            ("*.*.*", "mdt.demo-MDT0000.uuid", true),
            ("m*t.a*b*c.x", "mdt.aXbYbZc.x", true),
            ("m*t.a*b*c.x", "mdt.aXbYbZ.x", false),
            ("", "mdt", false),
            ("mdt", "mdt", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
