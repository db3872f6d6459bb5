//! Rows by the names that people write: which rows a pattern means, which values may be kept, which names are similar.

use crate::params::pattern::matches;
use crate::params::row::{Row, SetWhen};
use crate::params::table::{GROUPS, owner_of};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Similar names in one hint.
const SIMILAR_MAX: usize = 3;

/// Every row with each of its components.
fn rows() -> impl Iterator<Item = (&'static str, &'static Row)> {
    let rows = GROUPS.iter().flat_map(|group| group.rows.iter().copied());
    rows.flat_map(|row| row.components.iter().map(move |component| (*component, row)))
}

/// The rows that a name or pattern means. Devices, clients and other things may be unknown yet: any part of the pattern
/// names one.
fn matching(pattern: &str) -> impl Iterator<Item = (&'static str, &'static Row)> {
    let pattern = pattern.to_string();
    rows().filter(move |(component, row)| {
        let parts: Vec<&str> = pattern.split('.').collect();
        let part = |at: usize| parts.get(at).copied().unwrap_or_default();
        let fields = row.field.split('.').enumerate();
        let fields =
            fields.map(|(at, field)| if field == "*" { part(at + 2) } else { field }).collect::<Vec<_>>();
        matches(&pattern, &format!("{component}.{}.{}", part(1), fields.join(".")))
    })
}

/// The row of a parameter by its full name.
pub fn row_of(name: &str) -> Option<&'static Row> {
    matching(name).map(|(_, row)| row).next()
}

/// The names (with `*` for the device) and rows of the parameters that can be set permanently.
pub fn permanent_rows() -> impl Iterator<Item = (String, &'static Row)> {
    let permanent = rows().filter(|(_, row)| row.set == SetWhen::Permanently);
    permanent.map(|(component, row)| (row.name(&format!("{component}.*"), "*"), row))
}

/// The reason why a permanent value is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotPermanent {
    /// No parameter that can be set permanently has such a name.
    Unknown,
    /// The sentence for the user, `NAME=VALUE: …`.
    Value(String),
}

/// Whether the parameters whose names match `pattern` may be set to `value` permanently.
///
/// # Errors
/// See [`NotPermanent`].
pub fn check_permanent(pattern: &str, value: &str) -> Result<(), NotPermanent> {
    let mut is_known = false;
    for (_, row) in matching(pattern).filter(|(_, row)| row.set == SetWhen::Permanently) {
        is_known = true;
        row.parse(value).map_err(|reason| NotPermanent::Value(format!("{pattern}={value}: {reason}")))?;
    }
    if is_known { Ok(()) } else { Err(NotPermanent::Unknown) }
}

/// Why no process has a parameter that matches, as a sentence without a period: it belongs to other processes, or
/// similar names exist. `None`: nothing is similar.
pub fn explain_unmatched(pattern: &str) -> Option<String> {
    let owners: BTreeSet<&str> = matching(pattern).map(|(component, _)| owner_of(component)).collect();
    if !owners.is_empty() {
        let owners = owners.into_iter().collect::<Vec<_>>().join(" or ");
        return Some(format!(
            "{pattern} is a parameter of {owners}, and no process on this machine shows it"
        ));
    }
    let similar = similar(pattern);
    if similar.is_empty() { None } else { Some(format!("similar names: {}", similar.join(", "))) }
}

/// Names that resemble a pattern, the most similar first.
fn similar(pattern: &str) -> Vec<String> {
    let (component, field) = match *pattern.split('.').collect::<Vec<_>>() {
        [component, _, ref field @ ..] if !field.is_empty() => (component, field.join(".")),
        [component, field] => (component, field.to_string()),
        _ => ("*", pattern.to_string()),
    };
    let mut found: Vec<(usize, String)> = rows()
        .filter_map(|(known, row)| {
            let of_field = difference(&field, row.field)?;
            let of_component =
                if matches(component, known) { 0 } else { edits(component.as_bytes(), known.as_bytes()) };
            Some((of_field + of_component, row.name(&format!("{known}.*"), "*")))
        })
        .collect();
    found.sort();
    found.dedup_by(|a, b| a.1 == b.1);
    found.into_iter().take(SIMILAR_MAX).map(|(_, name)| name).collect()
}

/// How different two words are; `None`: not similar. Part of a word differs by one.
fn difference(word: &str, known: &str) -> Option<usize> {
    if word.len() >= 4 && known.contains(word) {
        return Some(usize::from(word != known));
    }
    let edits = edits(word.as_bytes(), known.as_bytes());
    (edits * 3 <= known.len()).then_some(edits)
}

/// Insertions, removals and replacements that make one word of the other.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut next = Vec::from([i + 1]);
        for (left_above, (above, y)) in row.iter().zip(row.iter().skip(1).zip(b)) {
            let left = next.last().copied().unwrap_or_default();
            next.push((left_above + usize::from(x != y)).min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_the_table_are_not_kept() {
        for (name, value) in [
            ("mdc.*.max_mod_rpcs_in_flight", "511"),
            ("mdc.demo-MDT0000-mdc-*.max_rpcs_in_flight", "512"),
            ("*.*.max_mod_rpcs_in_flight", " 7"),
            ("osc.*OST0001*.active", "0"),
            ("osp.demo-OST0001-osc-MDT0000.act*", "1"),
            ("mdt.demo-MDT0000.max_mod_rpcs_in_flight", "512"),
            ("lod.*.qos_threshold_rr", "17%"),
            ("lod.demo-MDT0000-mdtlov.qos_prio_free", "0"),
            ("osp.*OST0001*.reserved_mb_low", "1048576"),
        ] {
            assert_eq!(check_permanent(name, value), Ok(()), "{name}={value}");
        }
        for name in [
            "",
            "*",
            "mdc",
            "mdc.*",
            "mdc.max_rpcs_in_flight",
            "mdc.*.stats",
            "mdc.*.max_mod_rpc_in_flight",
            "mdc.*.max_rpcs_in_flight.x",
            "llite.*.stats",
            "mgs.MGS.register",
            "mdt.*.fail_loc",
            "mdt.*.lease_ms",
        ] {
            assert_eq!(check_permanent(name, "1"), Err(NotPermanent::Unknown), "{name}");
        }
        for (name, value) in [
            ("mdc.*.max_mod_rpcs_in_flight", "512"),
            // Some of the matching parameters accept the value, others do not.
            ("*.*.max_mod_rpcs_in_flight", "512"),
            ("mdc.*.max_rpcs_in_flight", "0"),
            ("mdc.*.max_rpcs_in_flight", "many"),
            ("osc.*.active", "2"),
            ("lod.*.qos_prio_free", "101%"),
            ("osp.*.reserved_mb_high", "0"),
        ] {
            let Err(NotPermanent::Value(why)) = check_permanent(name, value) else {
                panic!("{name}={value}")
            };
            assert!(why.starts_with(&format!("{name}={value}: ")), "{why}");
        }
    }

    #[test]
    fn rows_are_found_by_full_names() {
        for (name, field) in [
            ("mdt.demo-MDT0000.uuid", "uuid"),
            ("mdt.demo-MDT0000.exports.aaaa-bb.stats", "exports.*.stats"),
            ("mgs.MGS.live.demo", "live.*"),
        ] {
            assert_eq!(row_of(name).map(|row| row.field), Some(field), "{name}");
        }
        assert!(row_of("mdt.demo-MDT0000.exports").is_none());
        assert!(row_of("").is_none());
    }

    #[test]
    fn an_unknown_name_is_explained() {
        for (pattern, explanation) in [
            ("mdc.*.max_rpcs", "similar names: mdc.*.max_rpcs_in_flight"),
            ("mdc.*.max_rpc_in_flight", "similar names: mdc.*.max_rpcs_in_flight"),
            ("mdt.*.inode_lock_max", "similar names: mdt.*.inode_locks_max"),
            ("commit_on_share", "similar names: mdt.*.commit_on_sharing"),
            ("mtd.*.commit_on_sharing", "similar names: mdt.*.commit_on_sharing"),
            (
                "osc.x.active",
                "osc.x.active is a parameter of a mount, and no process on this machine shows it",
            ),
        ] {
            let said = explain_unmatched(pattern).unwrap_or_default();
            assert!(said.starts_with(explanation), "{pattern}: {said}");
        }
        for pattern in ["", "mdt.*.nothing", "x", "....", "a.b.c.d.e"] {
            assert_eq!(explain_unmatched(pattern), None, "{pattern}");
        }
    }
}
