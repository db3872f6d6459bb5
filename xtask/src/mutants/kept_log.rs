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
        "kept log: earlier bytes are written over those whose buffer was taken again",
        "crates/nacre-client/src/kept_log/read.rs",
        &[(
            "None => drop(bytes.take(Extent::new(write.offset, write.offset.saturating_add(write.len)))),",
            "None => drop(write.len),",
        )],
    )
    .found_by("nacre-client", "lib", "kept_log::tests::bytes_that_were_written_over_since_are_not_left"),
    planted(
        "kept log: a part of a long write leaves the place that the log names",
        "crates/nacre-client/src/files/dirty_bytes.rs",
        &[("memory.is_none_or(|memory| memory.place_of(&part).is_none())", "memory.is_none_or(|_| true)")],
    )
    .found_by(
        "nacre-client",
        "lib",
        "files::dirty_bytes::tests::a_small_part_of_a_divided_write_stays_where_the_log_of_kept_writes_says",
    ),
    planted(
        "kept log: a buffer that is taken again still counts as the former one",
        "crates/nacre-net/src/shared_memory/kept.rs",
        &[(
            "mapping.word(index).fetch_add(1, Ordering::SeqCst);",
            "mapping.word(index).fetch_add(0, Ordering::SeqCst);",
        )],
    )
    .found_by(
        "nacre-net",
        "lib",
        "shared_memory::kept::tests::bytes_stay_until_their_buffer_is_taken_again",
    ),
    planted(
        "kept log: memory that was given back to the system is read as zeros",
        "crates/nacre-net/src/shared_memory/owner.rs",
        &[("kept::begin_use(&self.mapping, *index); // a log may still name bytes in it", "")],
    )
    .found_by(
        "nacre-net",
        "lib",
        "shared_memory::kept::tests::bytes_that_were_given_back_to_the_system_are_not_read_as_zeros",
    ),
    planted(
        "kept log: the bytes of long writes are not read after a kill",
        "crates/nacre-client/src/kept_log/read.rs",
        &[("data: placed(place, len) }", "data: placed(place, len).filter(|_| false) }")],
    )
    .found_by("nacre-sim", "kept_log", KILLED),
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
