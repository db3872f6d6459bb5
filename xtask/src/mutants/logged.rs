//! Bugs planted into the bytes of small syncs that are in the log.

use super::{Mutation, planted};

const LOGGED: &str = "crates/nacre-osd/src/object/logged.rs";
const LOGGED_BLOCKS: &str = "crates/nacre-osd/src/object/logged_blocks.rs";
const CUT_OFF: &str = "logged::bytes_that_were_cut_off_do_not_come_back_from_the_log";

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "logged bytes: blocks are read without their lock",
        LOGGED,
        &[(
            "let _guard = self.locks().lock(object, range, true).await;",
            "drop(self.locks().lock(object, range, true).await);",
        )],
    )
    .found_by(
        "nacre-osd",
        "objects",
        "logged::a_block_that_is_written_during_a_sync_is_not_taken_for_logged",
    ),
    planted(
        "logged bytes: a sync of the file does not wait until older rows are gone",
        "crates/nacre-osd/src/object/objects.rs",
        &[("        self.osd().commit(self.logged().deleted()).await?;\n", "")],
    )
    .found_by("nacre-osd", "objects", "logged::an_overwrite_that_was_under_way_undoes_no_sync_of_the_file"),
    planted(
        "logged bytes: rows of blocks that are cut off stay",
        LOGGED_BLOCKS,
        &[("if !self.has_row(object, from..u64::MAX) {", "if !self.has_row(object, from..from) {")],
    )
    .found_by("nacre-osd", "objects", CUT_OFF),
    planted(
        "logged bytes: rows of blocks that become zeros stay",
        LOGGED,
        &[("if !self.logged().has_row(object, blocks) {", "if !self.logged().has_row(object, 0..blocks.start.min(0)) {")],
    )
    .found_by("nacre-osd", "objects", "logged::blocks_that_become_zeros_have_no_row"),
    planted(
        "logged bytes: a sync forgets that there were many changes",
        LOGGED_BLOCKS,
        &[("            dirty.many = Some(serial);\n", "")],
    )
    .found_by("nacre-osd", "objects", "logged::a_sync_after_many_changes_makes_all_of_them_durable"),
    planted(
        "logged bytes: a block is overwritten whose row is older than its bytes",
        LOGGED,
        &[("if stale.is_empty() {", "if stale.len() < 1000 {")],
    )
    .found_by(
        "nacre-osd",
        "objects",
        "logged_races::a_write_that_was_under_way_when_the_process_was_killed_takes_no_other_away",
    ),
    planted(
        "logged bytes: a block that was written back meanwhile gets a row",
        LOGGED,
        &[(
            "rows.retain(|(block, _)| dirty.binary_search(block).is_ok());",
            "let dirty = match dirty.len() { 0 => blocks.to_vec(), _ => dirty };",
        ), (
            "        self.logged().are_logged(object, &dirty, &logged);",
            "        self.logged().are_logged(object, &dirty, &[]);\n        let serial = self.logged().serial();\n        self.logged().have_rows(object, logged.iter().map(|block| (*block, serial)));",
        )],
    )
    .found_by(
        "nacre-osd",
        "objects",
        "logged_races::no_row_stays_behind_when_everything_has_been_written_back",
    ),
];
