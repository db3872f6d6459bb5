//! Bugs planted into the log of kept writes and its execution.

use super::{Mutation, planted};

const KILLED: &str = "a_process_that_is_killed_at_any_instant_loses_no_acknowledged_write";
const MODEL: &str = "kept_log::tests::what_is_left_is_what_was_kept_and_is_not_void";

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "kept log: a killed process's writes are not executed",
        "crates/nacre-target/src/kept_logs.rs",
        &[("if given.is_empty() {", "if given.len() < 1000 {")],
    )
    .found_by("nacre-sim", "kept_log", KILLED),
    planted(
        "kept log: a log is executed at each start that is given it",
        "crates/nacre-target/src/kept_logs.rs",
        &[("given.iter().filter(|kept| !followed.contains(&kept.log)).collect()", "given.iter().collect()")],
    )
    .found_by("nacre-sim", "kept_log", "a_log_is_executed_once"),
    planted(
        "kept log: writes that the OSTs have are not void",
        "crates/nacre-client/src/kept_log/mod.rs",
        &[("if to <= logged.void_to.get() {", "if to <= u64::MAX {")],
    )
    .found_by("nacre-sim", "kept_log", KILLED),
    planted(
        "kept log: a segment is written anew although a file has writes in it",
        "crates/nacre-client/src/kept_log/mod.rs",
        &[("self.begun.get() + 1 < oldest + SEGMENTS", "self.begun.get() < oldest + SEGMENTS")],
    )
    .found_by("nacre-client", "lib", MODEL),
    planted(
        "kept log: a later segment lacks the layout of a file",
        "crates/nacre-client/src/kept_log/mod.rs",
        &[(
            "if logged.described_in.replace(segment) != segment {",
            "if logged.described_in.replace(segment) == 0 {",
        )],
    )
    .found_by("nacre-client", "lib", MODEL),
    planted(
        "kept log: records of a former lap are taken for later ones",
        "crates/nacre-client/src/kept_log/record.rs",
        &[("Some((_, last, _)) => serial == last + 1,", "Some((_, last, _)) => serial > 0 && *last > 0,")],
    )
    .found_by(
        "nacre-client",
        "lib",
        "kept_log::tests::records_of_a_former_lap_are_not_read_behind_later_ones",
    ),
];
