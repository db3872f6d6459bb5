//! Bugs planted into the metadata target.

use super::{Mutation, planted};

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "an OST that has refused objects is not asked for them before a create fails",
        "crates/nacre-mdt/src/osts/reclaim.rs",
        &[("osts.ask_room(&ost).await.is_ok()", "osts.ask_space(&ost).await.is_ok()")],
    )
    .found_by(
        "nacre-sim",
        "full_osts",
        "a_create_finds_the_space_that_the_device_has_since_the_mdt_was_refused_objects",
    ),
    planted(
        "an inode that cannot be read ends the listing of its directory",
        "crates/nacre-mdt/src/service/read.rs",
        &[("Ok(None) | Err(OsdError::Corrupt { .. }) => return Ok(None),", "Ok(None) => return Ok(None),")],
    )
    .found_by("nacre-sim", "listings", "an_inode_that_cannot_be_read_hides_no_name_of_its_directory"),
    planted(
        "a file whose last name was removed can be linked again",
        "crates/nacre-mdt/src/ops/link.rs",
        &[("if view.bytes(ORPHAN, &key)? != Some(NEVER_NAMED) {", "if view.bytes(ORPHAN, &key)?.is_none() {")],
    )
    .found_by("nacre-sim", "unnamed_files", "a_file_that_had_a_name_gets_none_again"),
    planted(
        "a new file with a fixed OST does not have space freed",
        "crates/nacre-mdt/src/service/operations.rs",
        &[("Err(Failure::ENOSPC) if Box::pin(self.free_full_osts()).await => {", "Err(Failure::ENOSPC) if !op.needs_ost() => {")],
    )
    .found_by("nacre-sim", "placement", "a_new_file_with_a_fixed_ost_finds_the_space_of_a_file_that_was_removed_just_before"),
    planted(
        "users who are not in the group keep the set-group-id bit of a file without group execute permission",
        "crates/nacre-mdt/src/rows/inode_changes.rs",
        &[("mode::XGRP != 0 || !in_group {", "mode::XGRP != 0 || !in_group && inode.attr.is_dir() {")],
    )
    .found_by("nacre", "posix", "allocating_and_writing_as_an_ordinary_user_takes_set_id_bits_away"),
    planted(
        "only the OST that is full frees its space, not the others on its device",
        "crates/nacre-mdt/src/osts/mod.rs",
        &[("named(ost.index) || shared(ost.index)", "named(ost.index) || named(ost.index) && shared(ost.index)")],
    )
    .found_by("nacre-sim", "placement", "space_that_is_freed_on_one_ost_is_there_for_the_others_on_its_device"),
    planted(
        "df does not wait for the destroys of removed files",
        "crates/nacre-mdt/src/osts/reclaim.rs",
        &[("self.free(&self.osts().all(), until).await;", "self.free(&[], until).await;")],
    )
    .found_by("nacre-sim", "placement", "statfs_shows_the_space_of_a_file_that_was_removed_just_before"),
    planted(
        "an OST in recovery counts as stopped",
        "crates/nacre-mdt/src/osts/mod.rs",
        &[("room.usable() || ost.active.get() && ost.peer.is_recovering()", "room.usable()")],
    )
    .found_by("nacre-sim", "osts", "a_create_waits_for_the_only_ost_as_long_as_that_is_in_recovery"),
    planted(
        "an old copy of the MDT grants the same FIDs again",
        "crates/nacre-mdt/src/service/dispatch.rs",
        &[("self.skip_sequences().await", "Ok(())")],
    )
    .found_by("nacre-sim", "identity", "an_mdt_from_an_old_copy_lets_nobody_in_until_it_is_admitted"),
    planted(
        "a full OST gets new files",
        "crates/nacre-mdt/src/osts/free_space.rs",
        &[("core::mem::replace(&mut self.low, low) != low", "!low && core::mem::replace(&mut self.low, low) != low")],
    )
    .found_by("nacre-sim", "placement", "large_files_leave_a_full_ost_out_until_it_has_room_again"),
    planted(
        "files that the MDT keeps do not look where others have moved",
        "crates/nacre-mdt/src/osts/allocator.rs",
        &[("let start = match t.first_ost < 0 && is_at_mdt {", "let start = match t.first_ost > 0 && is_at_mdt {")],
    )
    .found_by("nacre-sim", "placement", "small_files_between_large_ones_take_no_turn_of_an_ost"),
    planted(
        "OSTs are chosen in turn, however full they are",
        "crates/nacre-mdt/src/osts/allocator.rs",
        &[("|| self.about_equal(&usable);", "|| self.about_equal(&usable) || !usable.is_empty();")],
    )
    .found_by("nacre-sim", "placement", "the_emptier_ost_gets_more_files"),
    planted(
        "a change that waits for a commit is overtaken",
        "crates/nacre-mdt/src/locks/change_order.rs",
        &[("let turn = if returns_bytes { None } else {", "let turn = if returns_bytes || !returns_bytes { None } else {")],
    )
    .found_by(
        "nacre-sim",
        "turns",
        "a_change_beside_a_mount_that_loops_on_the_same_inode_is_made_within_five_commits",
    ),
    planted(
        "waits count as attempts",
        "crates/nacre-mdt/src/service/attempt.rs",
        &[("RetryReason::Reports | RetryReason::WaitFor(_) => 0,", "RetryReason::Reports | RetryReason::WaitFor(_) => fetches_max,")],
    )
    .found_by(
        "nacre-sim",
        "turns",
        "a_change_beside_a_mount_that_loops_on_the_same_inode_is_made_within_five_commits",
    ),
    planted(
        "the removal of a name does not wait for the reports of its own mount",
        "crates/nacre-mdt/src/service/inode_locks.rs",
        &[("!is_replay && !changes.unreported().is_empty()", "is_replay && !changes.unreported().is_empty()")],
    )
    .found_by("nacre-sim", "opens", "what_the_mount_itself_removes_stays_as_long_as_it_is_open"),
    planted(
        "the last of several writers counts as the client that asks",
        "crates/nacre-mdt/src/service/inode_locks.rs",
        &[("(None, writers) => writers == 0,", "(None, writers) => writers <= 1,")],
    )
    .found_by(
        "nacre-sim",
        "inode_locks",
        "a_change_by_another_mount_does_not_hide_what_the_last_of_several_writers_writes",
    ),
    planted(
        "the layout of a file is not set because a client keeps a close",
        "crates/nacre-mdt/src/ops/set_layout.rs",
        &[("Err(Abort::AfterRevoke(Errno::EEXIST))", "Err(Abort::Failed(Errno::EEXIST.into()))")],
    )
    .found_by("nacre-sim", "late_closes", "a_file_that_no_process_has_open_is_changed_as_such"),
    planted(
        "clients have no time to report opens after a long recovery",
        "crates/nacre-target/src/locks/restart_wait.rs",
        &[("self.started().max(self.recovery().ended(now)) + longest_lease(self)", "self.started() + longest_lease(self)")],
    )
    .found_by("nacre-sim", "opens", "opens_are_reported_after_a_recovery_of_any_length"),
    planted(
        "the check whether a client is alone is made before a change waits",
        "crates/nacre-mdt/src/service/attempt.rs",
        &[
            ("    turn: Option<Turn<'a>>,\n", "    turn: Option<Turn<'a>>,\n    tracks: bool,\n"),
            (
                "        let mut state = Attempts::new(request, hash, read_set, credits);\n",
                "        let tracks = request.is_some_and(|request| self.tracks_accesses(request));\n        let mut state = Attempts::new(request, hash, read_set, credits);\n        state.tracks = tracks;\n",
            ),
            (
                "        // Here and not before the waits: other clients may have connected meanwhile.\n        let tracks = request.is_some_and(|request| self.tracks_accesses(request));\n",
                "",
            ),
            (
                "        let mut state = Attempts::new(Some(request), hash, read_set, credits);\n",
                "        let mut state = Attempts::new(Some(request), hash, read_set, credits);\n        state.tracks = self.tracks_accesses(request);\n",
            ),
            ("Self { request, hash, read_set, credits, turn: None,", "Self { request, hash, read_set, credits, tracks: false, turn: None,"),
            ("let Attempts { request, hash, read_set, turn, .. } = state;", "let Attempts { request, hash, read_set, turn, tracks, .. } = state;\n        let tracks = *tracks;"),
        ],
    )
    .found_by(
        "nacre-sim",
        "recovery",
        "a_change_that_began_before_the_other_client_came_is_not_built_upon_too_early",
    ),
    planted(
        "two directories move at one time",
        "crates/nacre-mdt/src/mdt.rs",
        &[("moves: Gate::new(&core.ctx, 1),", "moves: Gate::new(&core.ctx, 2),")],
    )
    .found_by("nacre-mdt", "target", "moves::directories_that_move_into_each_other_at_one_time_make_no_circle"),
    planted(
        "one open that cannot be closed prevents the close of the others",
        "crates/nacre-mdt/src/service/clients.rs",
        &[(
            "if let Err(error) = self.end_without_inode(export, handle, opened).await {",
            "if self.opens().borrow().len() > 0 {",
        )],
    )
    .found_by(
        "nacre-mdt",
        "target",
        "leavers::a_damaged_inode_does_not_keep_the_other_opens_of_a_client_that_goes",
    ),
    planted(
        "an orphan stays after its last close",
        "crates/nacre-mdt/src/ops/opening.rs",
        &[("view.opens().count(opened.fid) <= 1 {", "view.opens().count(opened.fid) == 0 {")],
    ),
    planted(
        "objects of removed files are not destroyed",
        "crates/nacre-mdt/src/rows/inode_changes.rs",
        &[(
            "self.put(DESTROY, &table::of_ost(ost, fid), &Stripes { stripes });",
            "let _ = (DESTROY, fid, Stripes { stripes });",
        )],
    ),
    planted(
        "opens are forgotten at a start",
        "crates/nacre-mdt/src/service/start.rs",
        &[(
            "opens.insert(generation, handle, opened, before);",
            "let _ = (handle, before);",
        )],
    ),
    planted(
        "a new name does not break locks of its directory",
        "crates/nacre-mdt/src/rows/view.rs",
        &[
            ("        self.breaks(dir, InodeBits::UPDATE);\n        self.put(", "        self.put("),
            ("        self.breaks(dir, InodeBits::UPDATE);\n        self.delete(", "        self.delete("),
        ],
    )
    .found_by("nacre-sim", "inode_locks", "a_name_is_seen_at_once_although_the_times_of_its_directory_stand_still"),
    planted(
        "changes do not wait for locks from before a restart",
        "crates/nacre-target/src/locks/restart_wait.rs",
        &[("e.row_features() & self.volatile_lock_features() != 0\n        })", "e.row_features() == u64::MAX\n        })")],
    )
    .found_by(
        "nacre-sim",
        "inode_locks",
        "an_mdt_that_has_forgotten_its_locks_waits_for_those_who_may_rely_on_them",
    ),
    planted(
        "a batch writes more than it has reserved",
        "crates/nacre-mdt/src/service/batch.rs",
        &[("if rows > room.rows || row_bytes > room.row_bytes {", "if rows == u32::MAX {")],
    )
    .found_by("nacre-mdt", "target", "batches::orphans_over_many_osts_are_closed_together"),
    planted(
        "the reply record of a batch has no results",
        "crates/nacre-mdt/src/service/batch.rs",
        &[("self.request.set_record_results(progress.records);", "drop(progress.records);")],
    )
    .found_by("nacre-sim", "closes", "each_close_happens_once_at_every_fault_point"),
    planted(
        "a replayed lock does not replace the mount's own",
        "crates/nacre-mdt/src/locks/flocks.rs",
        &[("if holder.client != owner.client {", "if holder != owner {")],
    )
    .found_by("nacre-sim", "file_locks", "a_lock_is_made_again_whose_reply_overtook_that_of_the_unlock"),
    planted(
        "write back: an open leaves the bytes that another client keeps where they are",
        "crates/nacre-mdt/src/ops/opening.rs",
        &[(
                "view.breaks(opened.fid, InodeBits::WRITE_BACK);",
                "view.breaks(opened.fid, InodeBits::LAYOUT);",
            )],
    )
    .found_by("nacre-sim", "write_back", "another_mount_that_asks_for_the_size_or_opens_the_file_sees_all_bytes"),
    planted(
        "write back: a client may keep bytes of a file that another one has open",
        "crates/nacre-mdt/src/service/inode_locks.rs",
        &[(
                "            && opens.opener(fid) == Some(export)\n",
                "",
            )],
    )
    .found_by("nacre-sim", "write_back", "a_mount_that_opens_a_file_again_keeps_nothing_while_another_one_has_it_open"),
    planted(
        "write back: a restarted MDT does not know who may keep bytes",
        "crates/nacre-mdt/src/service/start.rs",
        &[("        opens.note_former(generation, opened);\n", "")],
    )
    .found_by("nacre-sim", "write_back", "a_restarted_mdt_lets_no_mount_overtake_bytes_that_another_one_keeps"),
    planted(
        "write back: a restarted MDT does not know who may keep bytes of files whose opens were replayed",
        "crates/nacre-mdt/src/service/attempt.rs",
        &[("self.opens().borrow_mut().note_former(export, opened);", "drop((export, opened));")],
    )
    .found_by("nacre-sim", "write_back", "a_restarted_mdt_lets_no_mount_overtake_bytes_that_another_one_keeps"),
    planted(
        "write back: a restarted MDT forgets former writers without revoking their bits",
        "crates/nacre-mdt/src/service/inode_locks.rs",
        &[(
                "self.inode_locks().restore(writer, *fid, InodeBits::WRITE_BACK);",
                "self.inode_locks().restore(writer, *fid, InodeBits::NONE);",
            )],
    )
    .found_by("nacre-sim", "write_back", "a_restarted_mdt_waits_for_the_kept_bytes_of_each_file_that_another_mount_changes"),
    planted(
        "the size of an open file is granted to nobody else after its writer has closed it",
        "crates/nacre-mdt/src/rows/opens.rs",
        &[("            if file.writers == 0 {\n", "            if file.writers == 0 && file.opens == 0 {\n")],
    )
    .found_by(
        "nacre-sim",
        "closes",
        "another_mount_caches_the_size_of_a_file_that_it_has_open_once_the_writer_has_closed_it",
    ),
    planted(
        "write back: a client names a file without the bytes that another one keeps",
        "crates/nacre-mdt/src/rows/lock_changes.rs",
        &[("InodeBits::LOOKUP | InodeBits::WRITE_BACK }", "InodeBits::LOOKUP }")],
    )
    .found_by("nacre-sim", "write_back", "a_file_has_its_kept_bytes_before_another_mount_names_it"),
    planted(
        "a report of opens after a restart waits for the locks that only its end ends",
        "crates/nacre-mdt/src/service/inode_locks.rs",
        &[(
                "request.is_none_or(|request| request.opcode != Opcode::ReportOpens)",
                "request.is_none_or(|_| true)",
            )],
    )
    .found_by("nacre-sim", "opens", "reports_after_a_restart_do_not_wait_for_themselves"),
    planted(
        "a new capability leaves the permissions of other mounts in force",
        "crates/nacre-mdt/src/rows/lock_changes.rs",
        &[("                || old.has_privileges() != new.has_privileges()\n", "")],
    )
    .found_by("nacre-sim", "privileges", "any_write_takes_a_capability_away_that_another_mount_has_set"),
];
