//! Permanent parameters (`set_param -P`) and their valid values.
//!
//! The MGS stores values for processes that it has never seen, so it must know the valid values; all processes refuse
//! an invalid value with the same text.

use crate::pattern::matches;
use alloc::format;
use alloc::string::String;
use core::num::IntErrorKind;

/// Largest limits of a client: modifying requests, and all requests.
pub const CLIENT_MOD_RPCS_MAX: u16 = 511;
pub const CLIENT_RPCS_MAX: u16 = 512;
/// Greatest `max_mod_rpcs_in_flight` of a server.
pub const SERVER_MOD_RPCS_MAX: u16 = 512;
/// Greatest number of directories that one client may hold.
pub const DIR_HOLDS_MAX: u16 = 65_535;

#[derive(Clone, Copy)]
enum Values {
    /// From 1 on.
    UpTo(u16),
    Switch,
    Percent,
    Megabytes,
}
use Values::{Megabytes, Percent, Switch, UpTo};

/// Counters are not listed: clearing one cannot be permanent.
const SETTINGS: &[(&str, &str, Values)] = &[
    ("mdc", "max_mod_rpcs_in_flight", UpTo(CLIENT_MOD_RPCS_MAX)),
    ("mdc", "max_rpcs_in_flight", UpTo(CLIENT_RPCS_MAX)),
    ("osc", "max_mod_rpcs_in_flight", UpTo(CLIENT_MOD_RPCS_MAX)),
    ("osc", "max_rpcs_in_flight", UpTo(CLIENT_RPCS_MAX)),
    ("llite", "dir_attr_cache", Switch),
    ("osc", "active", Switch),
    ("osp", "active", Switch),
    ("osp", "reserved_mb_low", Megabytes),
    ("osp", "reserved_mb_high", Megabytes),
    ("lod", "qos_threshold_rr", Percent),
    ("lod", "qos_prio_free", Percent),
    ("mdt", "commit_on_sharing", Switch),
    ("obdfilter", "sync_on_cancel", Switch),
    ("mdt", "dir_holds_max", UpTo(DIR_HOLDS_MAX)),
    ("mgs", "max_mod_rpcs_in_flight", UpTo(SERVER_MOD_RPCS_MAX)),
    ("mdt", "max_mod_rpcs_in_flight", UpTo(SERVER_MOD_RPCS_MAX)),
    ("obdfilter", "max_mod_rpcs_in_flight", UpTo(SERVER_MOD_RPCS_MAX)),
];

/// The reason why a parameter is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotKept {
    /// No permanent parameter has such a name.
    Unknown,
    /// The sentence for the user, `NAME=VALUE: …`.
    Value(String),
}

/// Whether the parameters whose names match `pattern` may be set to `value` permanently.
///
/// # Errors
/// See [`NotKept`].
pub fn check_setting(pattern: &str, value: &str) -> Result<(), NotKept> {
    // The device may be unknown yet: its part of the pattern matches itself.
    let device = pattern.split('.').nth(1).unwrap_or_default();
    let mut known = false;
    for (component, field, values) in SETTINGS {
        if matches(pattern, &format!("{component}.{device}.{field}")) {
            known = true;
            match *values {
                UpTo(most) => parse_limit(pattern, value, most).map(drop),
                Switch => parse_switch(pattern, value).map(drop),
                Percent => parse_percent(pattern, value).map(drop),
                Megabytes => parse_megabytes(pattern, value).map(drop),
            }
            .map_err(NotKept::Value)?;
        }
    }
    if known { Ok(()) } else { Err(NotKept::Unknown) }
}

/// Parses a limit.
///
/// # Errors
/// The sentence for the user.
pub fn parse_limit(name: &str, value: &str, most: u16) -> Result<u16, String> {
    parse_number(name, value, value.trim(), 1, u32::from(most)).map(|limit| limit as u16)
}

/// Parses a percentage, `17` or `17%`.
///
/// # Errors
/// The sentence for the user.
pub fn parse_percent(name: &str, value: &str) -> Result<u8, String> {
    let digits = value.trim();
    parse_number(name, value, digits.strip_suffix('%').unwrap_or(digits), 0, 100).map(|part| part as u8)
}

/// Parses a size in MiB.
///
/// # Errors
/// The sentence for the user.
pub fn parse_megabytes(name: &str, value: &str) -> Result<u64, String> {
    parse_number(name, value, value.trim(), 1, u32::MAX).map(u64::from)
}

fn parse_number(name: &str, value: &str, digits: &str, least: u32, most: u32) -> Result<u32, String> {
    match digits.parse::<i64>() {
        Ok(n) if (i64::from(least)..=i64::from(most)).contains(&n) => Ok(n as u32),
        Err(e) if matches!(e.kind(), IntErrorKind::InvalidDigit | IntErrorKind::Empty) => {
            Err(format!("{name}={value}: Invalid argument ({least} to {most})"))
        }
        _ => Err(format!("{name}={value}: Numerical result out of range ({least} to {most})")),
    }
}

/// The value that clears a counter, as replies show it.
pub const CLEAR: &str = "clear";

/// Checks a value written to a counter, which can only be cleared.
///
/// # Errors
/// The sentence for the user.
pub fn parse_clear(name: &str, value: &str) -> Result<(), String> {
    match value.trim() {
        CLEAR | "0" => Ok(()),
        _ => Err(format!("{name}={value}: Invalid argument ({CLEAR} or 0: counters can only be cleared)")),
    }
}

/// Parses 0 or 1.
///
/// # Errors
/// The sentence for the user.
pub fn parse_switch(name: &str, value: &str) -> Result<bool, String> {
    match value.trim() {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("{name}={value}: Invalid argument (0 or 1)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_takes_no_value() {
        assert_eq!((parse_clear("n", "clear"), parse_clear("n", " 0\n")), (Ok(()), Ok(())));
        for bad in ["", "5", "1", "clean", "00"] {
            assert!(parse_clear("n", bad).is_err_and(|why| why.starts_with(&format!("n={bad}: "))), "{bad}");
        }
    }

    #[test]
    fn what_nobody_would_take_is_not_kept() {
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
            assert_eq!(check_setting(name, value), Ok(()), "{name}={value}");
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
        ] {
            assert_eq!(check_setting(name, "1"), Err(NotKept::Unknown), "{name}");
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
            let Err(NotKept::Value(why)) = check_setting(name, value) else { panic!("{name}={value}") };
            assert!(why.starts_with(&format!("{name}={value}: ")), "{why}");
        }
    }
}
