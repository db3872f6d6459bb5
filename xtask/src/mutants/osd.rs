//! Bugs planted into the storage engine and its stores.

use super::{Mutation, planted};

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "rows of an overwrite have no room on a full device",
        "crates/nacre-osd/src/engine/reserve.rs",
        &[("if credits.in_place { SEGMENTS_KEPT_IN_PLACE }", "if credits.frees { SEGMENTS_KEPT_IN_PLACE }")],
    )
    .found_by("nacre-sim", "full_osts", "writes_that_need_no_new_space_succeed_on_a_full_ost"),
    planted(
        "the deletion of a row that only a run has is left out",
        "crates/nacre-osd/src/engine/state.rs",
        &[("None if !below && self.mem.slot(&key).is_none() => return,", "None if self.mem.slot(&key).is_none() => return,")],
    )
    .found_by("nacre-osd", "engine", "a_deletion_of_what_is_nowhere_is_not_logged"),
    planted(
        "nobody compares the copies of runs",
        "crates/nacre-osd/src/maintenance/compare_copies.rs",
        &[("one.is_err() || two.is_err() || one != two", "one.is_err() && two.is_err()")],
    )
    .found_by("nacre-osd", "bounds", "damage_of_one_copy_of_a_run_is_repaired_in_the_background"),
    planted(
        "removals are not merged with what they hide",
        "crates/nacre-osd/src/maintenance/merge.rs",
        &[("if start == 0 && whole.len() > 1 &&", "if start > end && whole.len() > 1 &&")],
    )
    .found_by("nacre-osd", "space", "rows_that_were_removed_leave_memory"),
    planted(
        "rows that say nothing any more stay in memory",
        "crates/nacre-osd/src/maintenance/merge.rs",
        &[("                        self.drop_absent_rows().await;\n", "")],
    )
    .found_by("nacre-osd", "space", "rows_that_were_removed_leave_memory"),
    planted(
        "a target goes on although its files were removed",
        "crates/nacre-node/src/event.rs",
        &[("if let Err(error @ StoreError::Gone(_)) = &result {", "if let Err(error @ StoreError::Stopped) = &result {")],
    )
    .found_by("nacre-osd", "crash", "a_store_whose_files_were_removed_ends_the_island_at_once"),
    planted(
        "a region is overwritten without a mark",
        "crates/nacre-osd/src/object/overwrite.rs",
        &[("false => due.push(region),", "false => {}")],
    )
    .found_by("nacre-osd", "objects", "rot::no_loss_of_a_machine_during_an_overwrite_is_taken_for_damage"),
    planted(
        "the mark of an overwrite is not durable",
        "crates/nacre-osd/src/object/overwrite.rs",
        &[("            self.osd().commit(version).await?;\n", "")],
    )
    .found_by("nacre-osd", "objects", "rot::no_loss_of_a_machine_during_an_overwrite_is_taken_for_damage"),
    planted(
        "a version that the log may lose counts as a mark",
        "crates/nacre-osd/src/object/overwrite.rs",
        &[("match version > stable && is_durable {", "match version > stable && (is_durable || version > 0) {")],
    )
    .found_by("nacre-osd", "objects", "rot::no_loss_of_a_machine_during_an_overwrite_is_taken_for_damage"),
    planted(
        "the stable point passes overwrites that are under way",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[("overwritten.map_or(stable, |below| stable.min(below))", "overwritten.map_or(stable, |_| stable)")],
    )
    .found_by("nacre-osd", "objects", "rot::no_loss_of_a_machine_during_an_overwrite_is_taken_for_damage"),
    planted(
        "a sync waits for the timer of commits",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[("self.osd().commit(row).await?;\n        }\n        self.note", "self.osd().committed(row).await?;\n        }\n        self.note")],
    )
    .found_by(
        "nacre-osd",
        "objects",
        "sync_many::a_sync_that_follows_another_one_does_not_wait_for_the_timer_of_commits",
    ),
    planted(
        "scrub: a region is inspected while it changes",
        "crates/nacre-osd/src/object/inspect.rs",
        &[(
            "let _guard = self.locks().lock(object, range, false).await;",
            "let _guard = self.locks().lock(object, Extent::new(range.start, range.start), false).await;",
        )],
    )
    .found_by("nacre-osd", "objects", "scrub::changes_beside_it_are_never_taken_for_damage"),
    planted(
        "scrub: a page of regions is left out",
        "crates/nacre-osd/src/maintenance/scrub.rs",
        &[("next = block_key(object, region + 1);", "next = block_key(object, region + 2);")],
    )
    .found_by("nacre-osd", "objects", "scrub::every_kind_of_damage_is_found_and_named_exactly"),
    planted(
        "scrub: one bad read is damage",
        "crates/nacre-osd/src/object/inspect.rs",
        &[("let second = self.compare(object, expected, size).await?;", "let second = first.clone();")],
    )
    .found_by(
        "nacre-osd",
        "objects",
        "scrub::a_block_that_the_device_cannot_read_is_damage_only_if_it_is_so_twice",
    ),
    planted(
        "scrub: the target stops only when the next piece is due",
        "crates/nacre-osd/src/object/objects.rs",
        &[("        self.scrub.wake();\n", "")],
    )
    .found_by("nacre-osd", "objects", "scrub::it_keeps_to_its_rate_and_ends_when_it_is_stopped"),
    planted(
        "objects count as stable although the sync of all of them failed",
        "crates/nacre-osd/src/maintenance/sync_many.rs",
        &[(
            "let result = self.sync_taken(object, Some(bytes), true).await;",
            "let result = Ok(self.writeback().ended(object, bytes));",
        )],
    )
    .found_by(
        "nacre-osd",
        "objects",
        "sync_many::an_error_of_the_step_costs_only_the_object_that_it_belongs_to",
    ),
    planted(
        "a fresh hole is overwritten before it is durable",
        "crates/nacre-osd/src/object/punch.rs",
        &[("if zeroed || frees {", "if false {")],
    )
    .found_by(
        "nacre-osd",
        "objects",
        "rot::no_loss_of_a_machine_after_bytes_were_removed_and_written_is_taken_for_damage",
    ),
    planted(
        "kept bytes get a new checksum unverified",
        "crates/nacre-osd/src/object/prepare.rs",
        &[("|(_, sum)| Keep::Verified { sum, len }", "|_| { let _ = len; Keep::Bytes }")],
    )
    .found_by(
        "nacre-osd",
        "objects",
        "rot::a_damaged_block_is_an_error_for_its_own_bytes_only_and_never_gets_a_sum_that_fits",
    ),
    planted(
        "the check after a crash gives damaged bytes a checksum that fits",
        "crates/nacre-osd/src/object/rechecksum.rs",
        &[("if block_checksum(&found) != sum && !is_unverified {", "if block_checksum(&found) != sum && false {")],
    )
    .found_by(
        "nacre-osd",
        "objects",
        "rot::rot_of_stable_bytes_is_found_although_a_machine_was_lost_after_the_object_had_been_changed",
    ),
    planted(
        "a sync does not wait for another one that got the error",
        "crates/nacre-osd/src/object/objects.rs",
        &[(
            "        self.osd().commit(self.logged().deleted()).await?;\n        self.other_syncs_ended(object).await;\n",
            "        self.osd().commit(self.logged().deleted()).await?;\n",
        )],
    )
    .found_by("nacre-osd", "objects", "changes::an_early_write_back_that_fails_is_reported_by_every_later_sync"),
    planted(
        "space is reported as free before it is",
        "crates/nacre-osd/src/maintenance/reclaim.rs",
        &[("freed_to.get() < asked", "freed_to.get() > asked")],
    )
    .found_by("nacre-sim", "placement", "statfs_shows_the_space_of_a_file_that_was_removed_just_before"),
    planted(
        "pages that the device has refused are written again in place",
        "crates/nacre-osd/src/object/refresh.rs",
        &[("if trust.is_whole() ||", "if true ||")],
    )
    .found_by("nacre-sim", "stores", "acknowledged_bytes_are_there_whatever_the_store_of_an_ost_has_lost"),
    planted(
        "the end of the log is not rewritten",
        "crates/nacre-osd/src/log/recover.rs",
        &[(
            "for restore in core::mem::take(&mut self.plan.restores) {",
            "for restore in core::mem::take(&mut self.plan.restores).into_iter().take(0) {",
        )],
    )
    .found_by("nacre-sim", "stores", "acknowledged_names_are_there_whatever_the_store_of_the_mdt_has_lost"),
    planted(
        "a block that already has its bytes is not rewritten",
        "crates/nacre-osd/src/object/restore.rs",
        &[("true => self.rewrite(object, first, held).await?,", "true => {}")],
    )
    .found_by(
        "nacre-osd",
        "objects",
        "machine_loss::a_write_that_is_put_back_is_on_the_device_although_the_cache_still_had_its_bytes",
    ),
    planted(
        "an object is quarantined when its whole device fails",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[("                self.osd().probe().await?;\n", "")],
    )
    .found_by(
        "nacre-sim",
        "stores",
        "a_target_whose_device_refuses_everything_ends_itself_and_clients_make_good_what_it_has_lost",
    ),
    planted(
        "an object is quarantined when its device is full",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[("self.osd().no_room_underneath(object);", "self.quarantine(object, &StoreError::NoSpace).await;")],
    )
    .found_by(
        "nacre-sim",
        "stores",
        "a_target_whose_device_refuses_everything_ends_itself_and_clients_make_good_what_it_has_lost",
    ),
    planted(
        "the deadline of a write is not checked after its waits",
        "crates/nacre-osd/src/object/prepare.rs",
        &[
            (
                "        let mut checked = true;\n",
                "        let mut checked = true;\n        let mut early = Some(admit()?);\n",
            ),
            (
                "let admitted = admit()?;\n            let (offset, data",
                "let admitted = match early.take() { Some(a) => a, None => admit()? };\n            let (offset, data",
            ),
        ],
    )
    .found_by("nacre-sim", "stores", "a_write_whose_mount_dies_while_it_waits_in_the_ost_is_not_begun"),
    planted(
        "lost bytes are not restored",
        "crates/nacre-osd/src/object/restore.rs",
        &[(
            "false => self.rewrite(object, from, bytes(from, to)).await?,",
            "false => {}",
        )],
    )
    .found_by(
        "nacre-sim",
        "stores",
        "acknowledged_bytes_are_there_whatever_the_store_of_an_ost_has_lost",
    ),
    planted(
        "bytes are reported as stable without a sync",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[(
            "let result = self.ctx().io(StoreOp::SyncWritten { file: FileId::Blob(object), len, aside }).await;",
            "let result: Result<StoreDone, StoreError> = Ok((len, aside, StoreDone::Unit).2);",
        )],
    )
    .found_by("nacre-sim", "recovery", "acknowledged_data_survives_the_loss_of_the_machine_of_its_ost"),
    planted(
        "the new epoch is recorded before the loss",
        "crates/nacre-osd/src/engine/osd.rs",
        &[(
            "self.log.advance_transno(state.last_transno());",
            "state.note(crate::log::segment::RecordKind::Change, &[]); self.log.advance_transno(state.last_transno());",
        )],
    )
    .found_by(
        "nacre-sim",
        "recovery",
        "a_start_that_dies_after_the_loss_of_the_machine_does_not_hide_the_loss",
    ),
    planted(
        "checksums that a second loss interrupted are not computed",
        "crates/nacre-osd/src/object/rechecksum.rs",
        &[(
            "            Ok(!self.tasks().is_stopping())\n        })\n        .await?;\n        if self.tasks().is_stopping() {",
            "            Ok(found == 0)\n        })\n        .await?;\n        if found > 0 {",
        )],
    )
    .found_by("nacre-sim", "lost_bytes", "after_the_recovery_sums_are_those_of_the_bytes_that_are_there"),
    planted(
        "zeros that a growing object needs are not synced",
        "crates/nacre-osd/src/object/apply.rs",
        &[("self.objects.note_unstable(object, tx.transno(), end_block);", "")],
    )
    .found_by("nacre-osd", "objects", "machine_loss::bytes_of_a_write_that_a_kill_has_cut_off_do_not_come_back_with_a_lost_machine"),
    planted(
        "objects whose rows are damaged are not synced after a crash",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[("Err(_) => unread += 1, // told with the sync", "Err(_) => return Ok(true),")],
    )
    .found_by("nacre-osd", "objects", "damage::a_damaged_block_of_object_rows_costs_its_objects_and_holds_up_nothing"),
    planted(
        "damaged rows of one object hold up the space of all",
        "crates/nacre-osd/src/maintenance/reclaim.rs",
        &[("Err(error @ OsdError::Corrupt { .. }) => self.skip_damaged(object, &error),", "")],
    )
    .found_by("nacre-osd", "objects", "damage::damaged_rows_of_one_object_hold_up_the_space_of_no_other"),
    planted(
        "an object is deleted in one visit, however large",
        "crates/nacre-osd/src/maintenance/thin.rs",
        &[("if self.drop_clean(&from, &to).await > ROWS_MAX {", "if ROWS_MAX == 0 {")],
    )
    .found_by("nacre-osd", "objects", "changes::a_large_object_goes_without_a_long_visit"),
    planted(
        "bytes that no file has are read as zeros",
        "crates/nacre-osd/src/object/lost.rs",
        &[("Err(_) if is_unverified => {", "Err(_) if is_unverified || row.written > 0 => {")],
    )
    .found_by("nacre-osd", "objects", "damage::a_deleted_or_cut_blob_is_an_error_and_never_zeros"),
    planted(
        "a write puts a hole over lost bytes",
        "crates/nacre-osd/src/object/prepare.rs",
        &[("written_to: checked.then_some(row.written_to),", "written_to: None,")],
    )
    .found_by("nacre-osd", "objects", "damage::a_deleted_or_cut_blob_is_an_error_and_never_zeros"),
    planted(
        "a sync succeeds without the file",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[("map_or(0, |row| row.written_to)", "map_or(0, |_| 0)")],
    )
    .found_by("nacre-osd", "objects", "damage::a_deleted_or_cut_blob_is_an_error_and_never_zeros"),
    planted(
        "a lost machine explains the loss of bytes that were stable",
        "crates/nacre-osd/src/object/rechecksum.rs",
        &[("let is_unverified = self.unverified().may_differ(object, region, blocks.version);", "let is_unverified = self.unverified().is_later(row.version);")],
    )
    .found_by("nacre-osd", "objects", "damage::a_lost_machine_explains_missing_bytes_that_were_not_stable_and_no_others"),
    planted(
        "a log segment is used before its zeros are on the device",
        "crates/nacre-osd/src/log/segment_maker.rs",
        &[("if fits && let Err(error)", "if fits && file == FileId::Mark && let Err(error)")],
    )
    .found_by("nacre-osd", "bounds", "a_log_segment_is_synced_when_it_is_made_and_not_by_the_first_commit_in_it"),
    planted(
        "truncated bytes stay in the last block",
        "crates/nacre-osd/src/maintenance/reclaim.rs",
        &[("self.punch(object, state.size, block_ceil(state.size)).await?;", "")],
    )
    .found_by("nacre-osd", "objects", "machine_loss::a_write_that_is_put_back_has_its_zeros_before_it"),
    planted(
        "the RECLAIM row is deleted before the truncation is durable",
        "crates/nacre-osd/src/maintenance/reclaim.rs",
        &[(
            "zeros that a later write puts before itself in\n                    // a block are not made again by its client when a machine is lost.\n                    self.io(StoreOp::Sync { file: FileId::Blob(object) }).await?;",
            "",
        )],
    )
    .found_by("nacre-osd", "objects", "machine_loss::a_write_that_is_put_back_has_its_zeros_before_it"),
    planted(
        "a write into a hole does not wait until truncated bytes there are freed",
        "crates/nacre-osd/src/object/prepare.rs",
        &[("is_some_and(|cut| end > cut.from)", "is_some_and(|cut| end > cut.from && !fills)")],
    )
    .found_by("nacre-osd", "objects", "machine_loss::a_write_beyond_a_cut_does_not_bring_back_what_was_cut_off"),
    planted(
        "a hole does not say that the blob has its old bytes",
        "crates/nacre-osd/src/object/punch.rs",
        &[("let old_bytes_from = Some(locked.start);", "let old_bytes_from = None;")],
    )
    .found_by("nacre-osd", "objects", "machine_loss::a_write_into_a_hole_does_not_bring_back_what_was_there"),
    planted(
        "zeros in allocated space leave the old bytes in the blob",
        "crates/nacre-osd/src/maintenance/reclaim.rs",
        &[("let Some(run) = run else { return Ok(()) };", "let Some(run) = run.filter(|run| run.is_empty()) else { return Ok(()) };")],
    )
    .found_by("nacre-osd", "objects", "machine_loss::a_write_into_a_hole_does_not_bring_back_what_was_there"),
    planted(
        "truncated bytes stay between the size and space that is allocated behind it",
        "crates/nacre-osd/src/maintenance/reclaim.rs",
        &[("self.clear_unwritten(object, row.from, block_ceil(keep)).await?;", "self.clear_unwritten(object, row.from, block_ceil(state.size)).await?;")],
    )
    .found_by("nacre-osd", "objects", "machine_loss::a_write_into_allocated_space_does_not_bring_back_what_was_cut_off"),
    planted(
        "a truncate that releases nothing leaves the reclaim of an earlier one as it is",
        "crates/nacre-osd/src/object/apply.rs",
        &[("last_checksum.is_some() || is_due {", "last_checksum.is_some() || is_due && size == 0 {")],
    )
    .found_by("nacre-osd", "objects", "changes::a_blob_is_cut_neither_under_a_write_nor_early_after_a_second_truncate_into_a_hole"),
    planted(
        "a blob is cut at its end while only blocks behind it are locked",
        "crates/nacre-osd/src/maintenance/reclaim.rs",
        &[("if end < locked_from {", "if end == 0 && locked_from > 0 {")],
    )
    .found_by("nacre-osd", "objects", "changes::a_write_that_is_given_up_far_behind_the_end_cuts_no_other"),
    planted(
        "a write beyond the size does not wait until truncated bytes there are freed",
        "crates/nacre-osd/src/object/prepare.rs",
        &[("            if reclaim.is_some() {\n                // The bytes", "            if reclaim.is_some() && row.size == 0 {\n                // The bytes")],
    )
    .found_by("nacre-osd", "objects", "machine_loss::a_write_beyond_a_cut_does_not_bring_back_what_was_cut_off"),
    planted(
        "write many: a write keeps what was in its block before the write that it follows",
        "crates/nacre-osd/src/object/prepare_many.rs",
        &[("part.keep_head = if follows { Keep::Bytes } else { head };", "part.keep_head = head;")],
    )
    .found_by("nacre-osd", "objects", "many::one_transaction_has_all_writes"),
    planted(
        "a range that was empty when it was fetched stays empty",
        "crates/nacre-osd/src/table/pins.rs",
        &[("self.empty_at == Some(changes)", "self.empty_at.is_some_and(|at| at <= changes)")],
    )
    .found_by(
        "nacre-osd",
        "engine",
        "a_range_that_was_empty_when_it_was_fetched_shows_rows_that_have_come_since",
    ),
];
