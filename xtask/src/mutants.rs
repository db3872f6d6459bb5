//! `cargo xtask mutants`: bugs planted one at a time into a copy of the tree; the simulator must find each.
//!
//! A mutation is a piece of text that is there once, and what it becomes; so the product knows nothing of it, and one that
//! no longer fits is an error, not a mutation that nobody looks for. The copy has its own target directory. Where a test is
//! named it must find the bug; else seeds come first, then the scripts. Nothing is
//! optimised: building would take longer. What nothing finds is printed as `not found`, and the command fails.

use anyhow::{Context as _, Result, ensure};
use nacre_e2e::shell::{cargo, output, root};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Mutation {
    name: &'static str,
    file: &'static str,
    /// What becomes of what; each text is there once.
    edits: &'static [(&'static str, &'static str)],
    /// Package, file of tests, test. `None`: any seed or script.
    test: Option<(&'static str, &'static str, &'static str)>,
}

const fn planted(
    name: &'static str,
    file: &'static str,
    edits: &'static [(&'static str, &'static str)],
) -> Mutation {
    Mutation { name, file, edits, test: None }
}
impl Mutation {
    const fn found_by(self, package: &'static str, tests: &'static str, test: &'static str) -> Self {
        Self { test: Some((package, tests, test)), ..self }
    }
}

const MUTATIONS: &[Mutation] = &[
    planted(
        "a second process takes the name of a target whose connection stands",
        "crates/nacre-target/src/rivals.rs",
        &[("if !is_connected && (known", "if is_connected || (known")],
    )
    .found_by("nacre-sim", "identity", "a_copy_beside_the_living_original_is_refused_and_the_original_goes_on"),
    planted(
        "a target that answers at its registered address counts as gone",
        "crates/nacre-target/src/rivals.rs",
        &[("if incarnation == holder { Found::Holder } else { Found::Absent }", "if incarnation == holder && holder == 0 { Found::Holder } else { Found::Absent }")],
    )
    .found_by("nacre-sim", "identity", "a_copy_that_comes_first_to_a_new_mgs_is_refused_while_the_original_answers"),
    planted(
        "an address that does not answer counts as gone",
        "crates/nacre-target/src/rivals.rs",
        &[("break Found::Silent;", "break Found::Absent;"), ("if !is_connected && (known", "if found == Found::Absent || (known")],
    )
    .found_by("nacre-sim", "identity", "a_copy_of_a_target_that_stands_still_waits_for_the_end_of_its_lease"),
    planted(
        "a target that was killed waits for the end of its lease",
        "crates/nacre-target/src/rivals.rs",
        &[("(peer.is_absent() || peer.mismatch().is_some()).then_some(Found::Absent)", "peer.mismatch().is_some().then_some(Found::Absent)"), ("{ Found::Holder } else { Found::Absent }", "{ Found::Holder } else { Found::Silent }")],
    )
    .found_by("nacre-sim", "identity", "a_target_that_was_killed_is_registered_again_without_waiting_for_its_lease"),
    planted(
        "a new file with a fixed OST does not have space freed",
        "crates/nacre-mdt/src/service/operations.rs",
        &[("Err(Errno::ENOSPC) if self.free_full_osts().await =>", "Err(Errno::ENOSPC) if !op.needs_ost() =>")],
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
        "space is called free before it is",
        "crates/nacre-osd/src/maintenance/reclaim.rs",
        &[("freed_to.get() < asked", "freed_to.get() > asked")],
    )
    .found_by("nacre-sim", "placement", "statfs_shows_the_space_of_a_file_that_was_removed_just_before"),
    planted(
        "a mount gives up what it knows of a target for what the MGS has met",
        "crates/nacre-types/src/identity.rs",
        &[("if other.incarnation.began < self.committed {", "if other.incarnation.began.0 == u64::MAX {")],
    )
    .found_by("nacre-sim", "identity", "a_copy_that_the_mgs_lets_in_is_refused_by_a_mount_that_knows_more"),
    planted(
        "what a neighbour has renewed is forgotten when a lease ends",
        "crates/nacre-target/src/lease.rs",
        &[("Some(_) => self.leave_neighbours(entry),", "Some(_) => self.process_leases().end(),")],
    )
    .found_by("nacre-sim", "holds", "a_mount_that_is_cut_off_holds_up_others_for_a_lease_and_is_silent_before"),
    planted(
        "an OST in recovery counts as stopped",
        "crates/nacre-mdt/src/osts/mod.rs",
        &[("room.usable() || ost.active.get() && ost.peer.is_recovering()", "room.usable()")],
    )
    .found_by("nacre-sim", "osts", "a_create_waits_for_the_only_ost_as_long_as_that_is_in_recovery"),
    planted(
        "a lock that is not given back is kept for ever",
        "crates/nacre-target/src/locks/deadlines.rs",
        &[("if deadline > now {", "if deadline > now || next >= now {")],
    )
    .found_by("nacre-ost", "target", "a_client_that_does_not_give_a_lock_back_is_evicted_although_it_acknowledges"),
    planted(
        "whoever knows a client's name may act in it",
        "crates/nacre-target/src/island/connect.rs",
        &[("if core.is_impostor(&connect) {", "if core.is_impostor(&connect) && connect.name == \"\" {")],
    )
    .found_by("nacre-target", "strangers", "a_connect_in_a_clients_name_without_its_secret_is_refused_and_disturbs_nobody"),
    planted(
        "identities are not compared at connect",
        "crates/nacre-target/src/admission.rs",
        &[("let mismatch = mismatch.err()?;", "let mismatch = mismatch.err().filter(|m| !m.is_other() && m.is_other())?;")],
    )
    .found_by("nacre-sim", "identity", "a_clone_that_is_behind_or_has_diverged_is_refused"),
    planted(
        "a client does not remember what was durable",
        "crates/nacre-rpc/src/import/identity.rs",
        &[("committed: known.committed.max(last_committed)", "committed: Default::default()")],
    )
    .found_by("nacre-sim", "identity", "a_clone_that_is_behind_or_has_diverged_is_refused"),
    planted(
        "a diverged copy is taken for the original",
        "crates/nacre-types/src/identity.rs",
        &[("if self.incarnations[at].id != incarnation.id =>", "if self.incarnations[at].id == u64::MAX =>")],
    )
    .found_by("nacre-sim", "identity", "a_clone_that_is_behind_or_has_diverged_is_refused"),
    planted(
        "the MGS takes any target",
        "crates/nacre-mgs/src/registry.rs",
        &[("admission(old, new, mismatch).map_err(Refused::Mismatch)?", "admission(old, new, mismatch).unwrap_or(Admit::Rollback)")],
    )
    .found_by("nacre-sim", "identity", "a_blank_ost_is_used_by_nobody_until_it_is_admitted"),
    planted(
        "a lost object is a hole",
        "crates/nacre-ost/src/service/requests.rs",
        &[("if laid >= self.core.replaced()", "if laid < u32::MAX")],
    )
    .found_by("nacre-sim", "identity", "a_blank_ost_is_used_by_nobody_until_it_is_admitted"),
    planted(
        "an old copy of the MDT gives FIDs out again",
        "crates/nacre-mdt/src/service/dispatch.rs",
        &[("self.skip_sequences().await", "Ok(())")],
    )
    .found_by("nacre-sim", "identity", "an_mdt_from_an_old_copy_lets_nobody_in_until_it_is_admitted"),
    planted(
        "the reply record is dropped",
        "crates/nacre-target/src/transact.rs",
        &[("entry.rpc.remember(record);", "drop(record);")],
    ),
    planted(
        "the record is not in the transaction",
        "crates/nacre-target/src/transact.rs",
        &[("tx.put(table::REPLY, &reply_key(request.export, tag), record.to_vec());", "")],
    ),
    planted(
        "the lease is not looked at",
        "crates/nacre-rpc/src/lease.rs",
        &[(
            "self.usable_until().is_some_and(|end| now < end)",
            "self.usable_until().is_some_and(|_| now >= Instant(0))",
        )],
    )
    .found_by("nacre-rpc", "import", "beyond_the_lease_new_calls_wait_for_an_answered_ping"),
    planted(
        "the replay list counts payload only",
        "crates/nacre-rpc/src/replay.rs",
        &[("ReplayList::ENTRY_BYTES + self.request.cost()", "self.request.cost()")],
    )
    .found_by("nacre-fuse", "kept_writes", "kept_writes_hold_no_more_memory_than_the_list_counts"),
    planted(
        "a short request keeps the buffer that it was read into",
        "crates/nacre-fuse/src/buffers.rs",
        &[("if buffer.len() >= LEND_MIN_BYTES {", "if buffer.len() >= 8192 {")],
    )
    .found_by("nacre-fuse", "kept_writes", "kept_writes_hold_no_more_memory_than_the_list_counts"),
    planted(
        "a full OST gets new files",
        "crates/nacre-mdt/src/osts/free_space.rs",
        &[("core::mem::replace(&mut self.low, low) != low", "!low && core::mem::replace(&mut self.low, low) != low")],
    )
    .found_by("nacre-sim", "placement", "large_files_leave_a_full_ost_out_until_it_has_room_again"),
    planted(
        "OSTs take turns however full they are",
        "crates/nacre-mdt/src/osts/allocator.rs",
        &[("|| self.about_equal(&usable);", "|| self.about_equal(&usable) || !usable.is_empty();")],
    )
    .found_by("nacre-sim", "placement", "the_emptier_ost_gets_more_files"),
    planted(
        "a write that finds no room does not ask for what is owed to the OST",
        "crates/nacre-client/src/locks/under_lease.rs",
        &[("if reclaims < RECLAIMS_MAX && self.reclaim(ost).await =>", "if reclaims > RECLAIMS_MAX && self.reclaim(ost).await =>")],
    )
    .found_by("nacre-sim", "placement", "a_write_finds_the_space_of_a_file_that_was_removed_just_before"),
    planted(
        "a write does not wait for space that is being freed",
        "crates/nacre-ost/src/store.rs",
        &[("Err(Errno::ENOSPC) if self.objects.wait_for_freed_space(deadline).await? => {}", "Err(Errno::ENOSPC) if deadline < self.core.ctx.now() => {}")],
    )
    .found_by("nacre-sim", "placement", "a_write_finds_the_space_of_a_file_that_was_cut_just_before"),
    planted(
        "replay goes backwards",
        "crates/nacre-rpc/src/replay.rs",
        &[("self.entries.first_key_value()\n    }", "self.entries.last_key_value()\n    }")],
    )
    .found_by("nacre-rpc", "import", "changes_are_kept_until_committed_and_replayed_to_a_new_instance"),
    planted(
        "an OST makes what has come too late",
        "crates/nacre-target/src/transact.rs",
        &[("is_expired(self.clock_ms(), request.header.clock_ms)", "is_expired(0, request.header.clock_ms)")],
    )
    .found_by("nacre-sim", "evictions", "a_write_that_reaches_its_ost_after_the_eviction_is_not_made"),
    planted(
        "a change that is sent again gets new time",
        "crates/nacre-rpc/src/import/queues.rs",
        &[("clock(&frame.header, call.deadline)", "clock(&frame.header, None)")],
    )
    .found_by("nacre-sim", "evictions", "a_write_that_is_sent_again_after_the_eviction_is_not_made"),
    planted(
        "what came too late is given no more time",
        "crates/nacre-rpc/src/import/deadlines.rs",
        &[("now + self.extension.max(lease / 4)", "now + lease / 4")],
    )
    .found_by("nacre-sim", "evictions", "a_change_without_file_locks_gets_through_a_slow_network"),
    planted(
        "an allocate is made however late it comes",
        "crates/nacre-ost/src/service/requests.rs",
        &[("        self.core.check_deadline(request)?;\n", "")],
    )
    .found_by("nacre-sim", "evictions", "what_a_dead_mount_has_sent_is_not_made_after_its_eviction"),
    planted(
        "a sync that took longer than the lease is a success",
        "crates/nacre-client/src/data/io.rs",
        &[("Some(open) => self.check_lease(&open).await,", "Some(_) => Ok(()),")],
    )
    .found_by("nacre-sim", "evictions", "a_sync_that_an_ost_answers_after_the_eviction_is_no_success"),
    planted(
        "a truncate does not ask whose the file locks are",
        "crates/nacre-client/src/metadata/attr.rs",
        &[
            // Either one alone hides the loss of the other.
            (
                "let open = self.handle_under_lease(handle).await?;",
                "let open = self.files.all().into_iter().find(|o| o.handle == handle).ok_or(Errno::EBADF)?;",
            ),
            ("caller, Some(&open)).await?", "caller, None).await?"),
        ],
    )
    .found_by(
        "nacre-sim",
        "evictions",
        "a_truncate_through_a_handle_that_has_lost_its_locks_is_not_made",
    ),
    planted(
        "a change of a dead mount is made when its turn comes",
        "crates/nacre-mdt/src/service/attempt.rs",
        &[("Some(request) if let Err(gone) = self.core().check_deadline(request) => Err(gone),\n", "")],
    )
    .found_by("nacre-sim", "holds", "what_a_dead_mount_waited_to_change_is_not_changed_when_its_turn_comes"),
    planted(
        "who waits for a commit is overtaken",
        "crates/nacre-mdt/src/locks/change_order.rs",
        &[("self.turns.before(request.export, accesses).map(WaitFor::Turn)", "None")],
    )
    .found_by(
        "nacre-sim",
        "turns",
        "a_change_beside_a_mount_that_loops_on_the_same_inode_is_made_within_five_commits",
    ),
    planted(
        "waits are attempts",
        "crates/nacre-mdt/src/service/attempt.rs",
        &[("RetryReason::HeldDirs | RetryReason::WaitFor(_) => 0,", "RetryReason::HeldDirs | RetryReason::WaitFor(_) => fetches_max,")],
    )
    .found_by(
        "nacre-sim",
        "turns",
        "a_change_beside_a_mount_that_loops_on_the_same_inode_is_made_within_five_commits",
    ),
    planted(
        "whether a client is alone is asked before a change waits",
        "crates/nacre-mdt/src/service/attempt.rs",
        &[
            ("    turn: Option<Turn<'a>>,\n}", "    turn: Option<Turn<'a>>,\n    tracks: bool,\n}"),
            (
                "        let mut state = Attempts { request, hash, read_set, credits, turn: None };\n",
                "        let tracks = request.is_some_and(|request| self.core().tracks_uncommitted(request));\n        let mut state = Attempts { request, hash, read_set, credits, turn: None, tracks };\n",
            ),
            (
                "        // Here and not before the waits: other clients may have connected meanwhile.\n        let tracks = request.is_some_and(|request| self.core().tracks_uncommitted(request));\n",
                "",
            ),
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
        "one open that cannot be closed keeps the others",
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
        "a process that has lost its locks changes what it likes",
        "crates/nacre-client/src/files/eviction.rs",
        &[("Err(Errno::EIO)\n    }", "Ok(())\n    }")],
    )
    .found_by(
        "nacre-sim",
        "databases",
        "a_journal_of_the_next_holder_is_not_removed_by_who_has_lost_the_locks",
    ),
    planted(
        "a lost handle is not forgotten when it is closed",
        "crates/nacre-client/src/files/open.rs",
        &[("        self.lost.closed(handle);\n", "")],
    )
    .found_by(
        "nacre-sim",
        "databases",
        "a_journal_of_the_next_holder_is_not_removed_by_who_has_lost_the_locks",
    ),
    planted(
        "a change is not asked for at the door",
        "crates/nacre-fuse/src/door.rs",
        &[("match door.allowed(&request).await {", "match Ok::<(), Errno>(()) {")],
    )
    .found_by(
        "nacre",
        "databases",
        "a_database_stays_whole_when_a_mount_is_back_after_another_has_taken_its_locks",
    ),
    planted(
        "the task of an abandoned request answers for its next copy",
        "crates/nacre-rpc/src/export.rs",
        &[(".filter(|running| running.began == began)", "")],
    )
    .found_by("nacre-rpc", "model", "every_change_is_executed_exactly_once_and_every_call_is_answered"),
    planted(
        "a replay is not waited for",
        "crates/nacre-target/src/recovery/state.rs",
        &[("if ready { Step::End } else { Step::Wait }", "Step::End")],
    ),
    planted(
        "a tag is used again too early",
        "crates/nacre-rpc/src/slots.rs",
        &[("self.used[word] |= 1 << bit;", "self.used[word] |= u64::from(bit != 0) << bit;")],
    ),
    planted(
        "an older epoch is answered",
        "crates/nacre-rpc/src/export.rs",
        &[(
            "if header.epoch < self.epoch {\n            return Admission::Drop;",
            "if header.epoch < ConnEpoch(0) {\n            return Admission::Drop;",
        )],
    )
    .found_by("nacre-rpc", "export", "a_request_of_an_old_epoch_is_dropped_silently"),
    planted(
        "a running copy is executed",
        "crates/nacre-rpc/src/export.rs",
        &[(
            "running.epoch = header.epoch;\n            return Admission::Drop;",
            "running.epoch = header.epoch;\n            return Admission::Execute;",
        )],
    )
    .found_by(
        "nacre-rpc",
        "export",
        "resend_of_a_running_request_is_dropped_and_its_reply_goes_to_the_newest_epoch",
    ),
    planted(
        "a resent request is a new one",
        "crates/nacre-rpc/src/export.rs",
        &[(".filter(|_| !data)", ".filter(|_| !data && replay)")],
    )
    .found_by("nacre-rpc", "export", "resend_after_lost_reply_returns_first_result"),
    planted(
        "the answer leaves before the log is written",
        "crates/nacre-target/src/island/mod.rs",
        &[(
            "core.osd.log_writes(out);",
            "if core.ctx.random().is_multiple_of(2) { core.osd.log_writes(out); }",
        )],
    ),
    planted(
        "acknowledge or commit is skipped",
        "crates/nacre-target/src/locks/uncommitted.rs",
        &[("self.config.ack_or_commit && ", "!self.config.ack_or_commit && ")],
    )
    .found_by("nacre-sim", "recovery", "a_change_that_builds_on_one_whose_reply_was_lost_survives"),
    planted(
        "last_xid releases nothing",
        "crates/nacre-rpc/src/export.rs",
        &[(
            "self.records.remove(&xid);\n            self.released_by_xid += 1;",
            "self.released_by_xid += u64::from(xid > Xid(0));\n            break;",
        )],
    )
    .found_by(
        "nacre-rpc",
        "export",
        "records_go_with_last_xid_but_never_the_one_with_the_highest_transno",
    ),
    planted(
        "locks of an evicted client stay",
        "crates/nacre-ost/src/service/mod.rs",
        &[("self.locks.remove_client(export).await;", "let _ = export;")],
    ),
    planted(
        "records of a client that is gone stay",
        "crates/nacre-target/src/island/export_end.rs",
        &[("tx.delete_range(table::REPLY, &reply_key(id, Tag(0)), &reply_end(id));", "")],
    ),
    planted(
        "slots of calls that were refused stay taken",
        "crates/nacre-rpc/src/import/queues.rs",
        &[("self.free(&call);\n        Some(call)", "if reply.status.number() <= 0 { self.free(&call); }\n        Some(call)")],
    ),
    planted(
        "an orphan stays after its last close",
        "crates/nacre-mdt/src/ops/opening.rs",
        &[("view.opens().count(opened.fid) <= 1 {", "view.opens().count(opened.fid) == 0 {")],
    ),
    planted(
        "objects of removed files stay",
        "crates/nacre-mdt/src/rows/inode_changes.rs",
        &[(
            "self.put(DESTROY, &table::of_ost(ost, fid), &Stripes { stripes });",
            "let _ = (DESTROY, fid, Stripes { stripes });",
        )],
    ),
    planted(
        "a recovery waits for those who have reported",
        "crates/nacre-target/src/recovery/state.rs",
        &[("&& (r.waiting.remove(&export) || r.late.remove(&export))", "&& r.waiting.contains(&export)")],
    ),
    planted(
        "callbacks may be missing",
        "crates/nacre-rpc/src/import/replies.rs",
        &[("frame.header.xid.0 > self.callback_seen.0 + 1", "frame.header.xid.0 > u64::MAX - 1")],
    )
    .found_by("nacre-rpc", "import", "a_callback_behind_a_missing_one_is_not_taken_in"),
    planted(
        "a change is replayed twice",
        "crates/nacre-target/src/island/replay.rs",
        &[("if old <= safe.max(core.recovery().replayed(export)) {", "if old <= safe && core.recovery().replayed(export).0 < u64::MAX {")],
    ),
    planted(
        "a store that comes back on the same boot is trusted",
        "crates/nacre-target/src/island/start.rs",
        &[("let nothing = core.osd.was_clean() ||", "let nothing = true ||")],
    )
    .found_by("nacre-sim", "stores", "answered_names_are_there_whatever_the_store_of_the_mdt_has_lost"),
    planted(
        "pages that the device has refused are written again in place",
        "crates/nacre-osd/src/object/refresh.rs",
        &[("if trust.is_whole() ||", "if true ||")],
    )
    .found_by("nacre-sim", "stores", "answered_bytes_are_there_whatever_the_store_of_an_ost_has_lost"),
    planted(
        "the end of the log is not written again",
        "crates/nacre-osd/src/log/recover.rs",
        &[("            rewrite_segment(ctx, superblock, segment).await?;", "            let _ = segment;")],
    )
    .found_by("nacre-sim", "stores", "answered_names_are_there_whatever_the_store_of_the_mdt_has_lost"),
    planted(
        "a block that holds its bytes is not written again",
        "crates/nacre-osd/src/object/restore.rs",
        &[("true => self.rewrite(object, first, held).await?,", "true => {}")],
    )
    .found_by("nacre-sim", "stores", "answered_bytes_are_there_whatever_the_store_of_an_ost_has_lost"),
    planted(
        "an object is taken out of use when its whole device fails",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[("                self.osd().probe().await?;\n", "")],
    )
    .found_by(
        "nacre-sim",
        "stores",
        "a_target_whose_device_refuses_everything_ends_itself_and_clients_make_good_what_it_has_lost",
    ),
    planted(
        "an object is taken out of use when the device is full underneath",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[("self.osd().no_room_underneath(object);", "self.quarantine(object, &StoreError::NoSpace).await;")],
    )
    .found_by(
        "nacre-sim",
        "stores",
        "a_target_whose_device_refuses_everything_ends_itself_and_clients_make_good_what_it_has_lost",
    ),
    planted(
        "a mount forgets the oldest data for the newest",
        "crates/nacre-rpc/src/replay.rs",
        &[
            ("self.writes.bytes >= Self::DATA_BYTES_MAX\n", "false\n"),
            ("self.writes.bytes >= Self::DATA_BYTES_MAX / 2", "false"),
            (
                "            self.writes.insert(key, Kept { request, reply });",
                "            self.writes.insert(key, Kept { request, reply });\n            while self.writes.bytes > Self::DATA_BYTES_MAX && self.writes.pop_first() {}",
            ),
        ],
    )
    .found_by("nacre-sim", "stores", "more_data_than_a_mount_keeps_is_right_after_the_store_has_lost_it"),
    planted(
        "the deadline of a write is not looked at after its waits",
        "crates/nacre-osd/src/object/prepare.rs",
        &[("            check_deadline().map_err(OsdError::Rejected)?;\n            let (offset, data", "            let (offset, data")],
    )
    .found_by("nacre-sim", "stores", "a_write_whose_mount_dies_while_it_waits_in_the_ost_is_not_begun"),
    planted(
        "lost bytes are not put back",
        "crates/nacre-osd/src/object/restore.rs",
        &[(
            "false => self.rewrite(object, from, bytes(from, to)).await?,",
            "false => {}",
        )],
    ),
    planted(
        "bytes are called stable without a sync",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[(
            "let result = self.ctx().io(StoreOp::SyncWritten { file: FileId::Blob(object), len }).await;",
            "let result: Result<StoreDone, StoreError> = Ok((len, StoreDone::Unit).1);",
        )],
    )
    .found_by("nacre-sim", "stable", "what_was_written_before_a_kill_survives_the_machine_too"),
    planted(
        "opens are forgotten at a start",
        "crates/nacre-mdt/src/service/start.rs",
        &[(
            "opens.insert(generation, handle, row::<Opened>(OPEN, &value)?, before);",
            "let _ = (generation, handle, before);",
        )],
    ),
    planted(
        "an append whose locks are lost is made twice",
        "crates/nacre-client/src/data/append.rs",
        &[
            // What a kill of the OSTs leaves them does not hide it.
            ("let persistent = goes_on || component.stripes.len() > 1;", "let persistent = goes_on || component.stripes.len() > 1000;"),
            (
                "false => Box::pin(self.remains_of_append(file.fid, &earlier, data, &locks)).await?,",
                "false => Remains::Nothing,",
            ),
        ],
    )
    .found_by(
        "nacre-sim",
        "appends",
        "an_append_of_which_one_object_has_its_part_is_ended_not_made_twice",
    ),
    planted(
        "the xid comes before the slot",
        "crates/nacre-rpc/src/import/queues.rs",
        &[
            ("self.next_serial += 1;", "self.next_serial = self.take_xid().0;"),
            (
                "header.xid = self.take_xid();\n        header.job = job;",
                "header.xid = Xid(waiting.serial);\n        header.job = job;",
            ),
        ],
    )
    .found_by("nacre-rpc", "import", "the_xid_comes_after_the_slot_so_that_xids_of_a_tag_increase"),
    planted(
        "last_xid releases the record with the highest transno",
        "crates/nacre-rpc/src/export.rs",
        &[(".find(|(xid, _)| **xid != newest)", ".find(|(xid, _)| **xid != newest || **xid <= last_xid)")],
    )
    .found_by(
        "nacre-rpc",
        "export",
        "records_go_with_last_xid_but_never_the_one_with_the_highest_transno",
    ),
    planted(
        "replays of several clients are not put in order",
        "crates/nacre-target/src/recovery/state.rs",
        &[("r.queue.pop_first()", "r.queue.pop_last()")],
    ),
    planted(
        "a write that was never answered is not made again in its turn",
        "crates/nacre-rpc/src/import/connection.rs",
        &[("self.keep_unreplied(&reply.made);", "")],
    )
    .found_by("nacre-sim", "stable", "a_write_in_the_log_whose_answer_was_lost_keeps_its_bytes"),
    planted(
        "acknowledge or commit is skipped for bytes",
        "crates/nacre-ost/src/uncommitted.rs",
        &[("if self.core.tracks_uncommitted(request)", "if !self.core.tracks_uncommitted(request)")],
    )
    .found_by("nacre-sim", "stable", "a_write_that_was_never_answered_does_not_cover_a_later_one"),
    planted(
        "an evicted mount still knows the size",
        "crates/nacre-client/src/files/eviction.rs",
        &[("open.file.evicted();", "")],
    )
    .found_by("nacre-sim", "evictions", "a_close_after_the_eviction_does_not_bring_an_old_size_back"),
    planted(
        "a close that an eviction refused tells nobody",
        "crates/nacre-client/src/files/open.rs",
        &[("if dirty && matches!(closed,", "if !dirty && matches!(closed,")],
    )
    .found_by("nacre-sim", "evictions", "what_was_written_after_the_eviction_counts_at_the_close"),
    planted(
        "the new epoch is in the log before the loss is",
        "crates/nacre-osd/src/engine/osd.rs",
        &[(
            "self.log.advance_transno(state.last_transno());",
            "state.note(crate::log::segment::RecordKind::Transno, &[]); self.log.advance_transno(state.last_transno());",
        )],
    )
    .found_by(
        "nacre-sim",
        "recovery",
        "a_start_that_dies_after_the_loss_of_the_machine_does_not_hide_the_loss",
    ),
    planted(
        "holds are not revoked",
        "crates/nacre-mdt/src/locks/dir_holds.rs",
        &[(
            "dirs.iter().any(|dir| table.others(own, dir.fid()).next().is_some())",
            "dirs.iter().any(|dir| table.others(own, dir.fid()).count() > 1000)",
        )],
    )
    .found_by("nacre-sim", "holds", "a_change_of_another_mount_is_seen_at_once"),
    planted(
        "a revoke is acknowledged and not obeyed",
        "crates/nacre-client/src/cache/dirs.rs",
        &[("table.remove(revoke.fid);", "")],
    )
    .found_by("nacre-sim", "holds", "a_change_of_another_mount_is_seen_at_once"),
    planted(
        "holds outlive their connection",
        "crates/nacre-client/src/cache/dirs.rs",
        &[("            self.clear();\n            (self.epoch", "            (self.epoch")],
    )
    .found_by("nacre-sim", "holds", "a_hold_ends_with_its_connection"),
    planted(
        // Either condition alone hides the loss of the other.
        "holds outlive the lease",
        "crates/nacre-client/src/client.rs",
        &[(
            "(up && import.lease_ok(self.ctx.now())).then(|| import.epoch())",
            "Some(import.epoch()).filter(|_| up || !up)",
        )],
    )
    .found_by(
        "nacre-sim",
        "holds",
        "a_mount_that_stood_still_for_longer_than_its_lease_asks",
    ),
    planted(
        "an unanswered change is denied",
        "crates/nacre-client/src/cache/dirs.rs",
        &[("(!changing).then_some(attrs)", "Some(attrs).filter(|_| changing || !changing)")],
    )
    .found_by("nacre-sim", "holds", "what_others_have_seen_of_an_unanswered_change_is_not_denied"),
    planted(
        "holds of before a restart are not waited for",
        "crates/nacre-mdt/src/service/holds.rs",
        &[(
            "!dirs.is_empty() && self.core().former_locks_deadline().is_some()",
            "dirs.len() > 1000 && self.core().former_locks_deadline().is_some()",
        )],
    )
    .found_by(
        "nacre-sim",
        "holds",
        "an_mdt_that_has_forgotten_its_holds_waits_for_those_who_may_believe_in_them",
    ),
    planted(
        "a grant from before a revoke is taken",
        "crates/nacre-client/src/cache/dirs.rs",
        &[("granted.revokes < self.revokes ||", "granted.revokes == u64::MAX ||")],
    )
    .found_by("nacre-sim", "holds", "a_grant_that_a_revoke_has_overtaken_is_not_taken"),
    planted(
        "older attributes replace newer ones",
        "crates/nacre-client/src/cache/dirs.rs",
        &[("if seen >= dir.seen {", "if seen >= Transno(0) {")],
    )
    .found_by(
        "nacre-sim",
        "holds",
        "an_answer_from_before_a_change_does_not_replace_what_the_change_has_brought",
    ),
    planted(
        "who waits for an extent lock does not hear of a restart",
        "crates/nacre-client/src/locks/extents.rs",
        &[("        ost.peer.on_restarted(self.pending.retry_handler());\n", "")],
    )
    .found_by("nacre-sim", "appends", "who_waits_for_a_lock_asks_a_restarted_ost_at_once"),
    planted(
        "who waits for a file lock does not hear of a restart",
        "crates/nacre-client/src/targets/mount/watch.rs",
        &[("        mdt.peer.on_restarted(self.flocks.retry_handler());\n", "")],
    )
    .found_by("nacre-sim", "file_locks", "who_waits_while_the_mdt_is_killed_waits_again_and_gets_the_lock"),
    planted(
        "an MDT that was restarted is believed not to have granted a lock",
        "crates/nacre-client/src/locks/flocks.rs",
        &[("                    _ if pending.is_forgotten() => {}\n", "")],
    )
    .found_by(
        "nacre-sim",
        "file_locks",
        "a_wait_that_is_interrupted_while_the_mdt_is_killed_leaves_no_lock_behind",
    ),
    planted(
        "who is not waited for any more stays in the queue",
        "crates/nacre-client/src/locks/extents.rs",
        &[("if !interruptible {", "if interruptible || !interruptible {")],
    )
    .found_by("nacre-sim", "appends", "who_is_not_waited_for_any_more_leaves_the_queue"),
    planted(
        "a batch writes more than it has reserved",
        "crates/nacre-mdt/src/service/batch.rs",
        &[("if rows > room.rows || row_bytes > room.row_bytes {", "if rows == u32::MAX {")],
    )
    .found_by("nacre-mdt", "target", "batches::orphans_over_many_osts_are_closed_together"),
    planted(
        "closes that go together end with the first that fails",
        "crates/nacre-client/src/files/closes.rs",
        &[("stop_at_error: false", "stop_at_error: true")],
    )
    .found_by("nacre-sim", "closes", "closes_that_an_eviction_meets_bring_no_old_size"),
    planted(
        "closes that go together have one result",
        "crates/nacre-client/src/files/closes.rs",
        &[("results.iter().map(|r| result(r.status))", "results.iter().map(|_| result(results[0].status))")],
    )
    .found_by("nacre-client", "protocol", "each_of_the_closes_that_go_together_has_its_own_result"),
    planted(
        "closes that go together need an ordinary slot",
        "crates/nacre-client/src/files/closes.rs",
        &[(".class(Class::Close)", ".class(Class::Modify)")],
    )
    .found_by("nacre-client", "protocol", "closes_that_wait_for_slots_go_together_in_the_extra_slot"),
    planted(
        "the record of a batch has no results",
        "crates/nacre-mdt/src/service/batch.rs",
        &[("mdt.core().set_record_results(self.request, progress.records);", "drop(progress.records);")],
    )
    .found_by("nacre-sim", "closes", "each_close_happens_once_at_every_fault_point"),
    planted(
        "a new connection forgets what was not answered on the one before",
        "crates/nacre-target/src/clients/reply_order.rs",
        &[("self.before = last;", "let _ = last;")],
    )
    .found_by(
        "nacre-sim",
        "one_mount",
        "an_answered_change_survives_that_builds_on_one_of_its_own_mount_whose_answer_was_lost",
    ),
    planted(
        "what a second loss interrupts is not summed",
        "crates/nacre-osd/src/object/rechecksum.rs",
        &[(
            "            Ok(!self.tasks().is_stopping())\n        })\n        .await?;\n        if self.tasks().is_stopping() {",
            "            Ok(found == 0)\n        })\n        .await?;\n        if found > 0 {",
        )],
    )
    .found_by("nacre-sim", "lost_bytes", "after_the_recovery_sums_are_those_of_the_bytes_that_are_there"),
    planted(
        "locks of writes over several objects die with the OST",
        "crates/nacre-target/src/locks/persistent.rs",
        &[(
            "Lock { request, in_row: true });",
            "Lock { request, in_row: true });\n                this.locks.borrow_mut().clear();",
        )],
    )
    .found_by("nacre-sim", "striped_writes", "nobody_reads_half_of_a_write_whose_ost_was_killed"),
    planted(
        "a handle is used without a look at the lease",
        "crates/nacre-client/src/locks/under_lease.rs",
        &[("if mdt.peer.lease_ok() {", "if mdt.peer.lease_ok() || open.handle.0 > 0 {")],
    )
    .found_by("nacre-sim", "evictions", "a_read_beyond_the_lease_waits_for_the_word_of_the_mdt"),
    planted(
        "a change of an object does not say until when its file locks are certain",
        "crates/nacre-client/src/locks/under_lease.rs",
        &[("Some(open) => self.flock_deadline(open).await?,", "Some(open) => self.flock_deadline(open).await?.and(None),")],
    )
    .found_by("nacre-sim", "evictions", "a_write_that_is_sent_again_after_the_eviction_is_not_made"),
    planted(
        "a change that reached its OST too late is not made anew",
        "crates/nacre-client/src/locks/under_lease.rs",
        &[("Err(e) if e.is(ProtocolOutcome::DeadlinePassed) => {", "Err(e) if e.is(ProtocolOutcome::DeadlinePassed) && open.is_none() => {")],
    )
    .found_by("nacre-sim", "evictions", "a_write_that_reaches_its_ost_after_the_eviction_is_not_made"),
    planted(
        "a time that is over is now",
        "crates/nacre-rpc/src/import/deadlines.rs",
        &[(".wrapping_sub(over.as_millis() as u32)", ".wrapping_sub(0 * over.as_millis() as u32)")],
    )
    .found_by("nacre-rpc", "import", "a_change_of_an_object_says_until_when_it_may_be_begun"),
    planted(
        "an eviction takes only the handle that has locked",
        "crates/nacre-dlm/src/client/granted_flocks.rs",
        &[("*family == Family::Posix || owned", "*family == Family::Posix && owned")],
    )
    .found_by("nacre-sim", "evictions", "every_handle_of_a_file_that_was_locked_is_lost_and_no_other"),
    planted(
        "an eviction takes handles whose locks were given back",
        "crates/nacre-dlm/src/client/granted_flocks.rs",
        &[("if owned.ranges.is_empty() {", "if owned.ranges.as_slice().len() > 1000 {")],
    )
    .found_by("nacre-sim", "evictions", "every_handle_of_a_file_that_was_locked_is_lost_and_no_other"),
    planted(
        "a close does not wait for writes whose callers were killed",
        "crates/nacre-client/src/files/open.rs",
        &[("if open.is_writer() || !open.lock_owners", "if !open.is_writer() && !open.lock_owners")],
    )
    .found_by("nacre-sim", "osts", "a_close_waits_for_writes_whose_callers_were_killed"),
    planted(
        "locks are dropped before writes whose callers were killed have ended",
        "crates/nacre-client/src/locks/flocks.rs",
        &[("            self.wait_for_writes(&open.file).await;\n", "")],
    )
    .found_by("nacre-sim", "file_locks", "locks_are_dropped_after_writes_whose_callers_were_killed"),
    planted(
        "a replayed lock does not take the place of its mount's",
        "crates/nacre-mdt/src/locks/flocks.rs",
        &[("if holder.client != owner.client {", "if holder != owner {")],
    )
    .found_by("nacre-sim", "file_locks", "a_lock_is_made_again_whose_answer_overtook_that_of_the_unlock"),
    planted(
        "zeros that a growing object needs are not synced",
        "crates/nacre-osd/src/object/apply.rs",
        &[("self.objects.note_unstable(object, tx.transno(), BLOCK_BYTES);", "")],
    )
    .found_by("nacre-osd", "objects", "bytes_of_a_write_that_a_kill_has_cut_off_do_not_come_back_with_a_lost_machine"),
    planted(
        "objects whose rows are damaged are not synced after a crash",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[("Err(_) => unread += 1, // told with the sync", "Err(_) => return Ok(true),")],
    )
    .found_by("nacre-osd", "objects", "a_damaged_block_of_object_rows_costs_its_objects_and_holds_up_nothing"),
    planted(
        "damaged rows of one object hold up the space of all",
        "crates/nacre-osd/src/maintenance/reclaim.rs",
        &[("Err(error @ OsdError::Corrupt { .. }) => self.skip_damaged(object, &error),", "")],
    )
    .found_by("nacre-osd", "objects", "damaged_rows_of_one_object_hold_up_the_space_of_no_other"),
    planted(
        "a connection is read whatever waits for it",
        "crates/nacre-rt/src/socket.rs",
        &[("o.queued_bytes()) > config.send_queue_pause_bytes", "o.queued_bytes()) > config.send_queue_bytes_max")],
    )
    .found_by("nacre-rt", "sockets", "who_asks_for_more_than_it_reads_is_read_later_and_not_closed"),
    planted(
        "a connection that is not read never gets through",
        "crates/nacre-rt/src/socket.rs",
        &[("None if now >= paused.until => paused.frames = Some(came + 1),", "None if now < Instant(0) => paused.frames = Some(came + 1),")],
    )
    .found_by(
        "nacre-rt",
        "sockets",
        "bulk_of_one_peer_fills_the_bound_of_the_process_and_holds_up_no_small_requests",
    ),
    planted(
        "an object goes in one visit, however large",
        "crates/nacre-osd/src/maintenance/thin.rs",
        &[("if self.drop_clean(&from, &to).await > ROWS_MAX {", "if ROWS_MAX == 0 {")],
    )
    .found_by("nacre-osd", "objects", "a_large_object_goes_without_a_long_visit"),
    planted(
        "bytes that no file has are zeros",
        "crates/nacre-osd/src/object/lost.rs",
        &[("Err(_) if self.is_unverified(row.version) => {", "Err(_) if self.is_unverified(row.version) || row.written > 0 => {")],
    )
    .found_by("nacre-osd", "objects", "a_deleted_or_cut_blob_is_an_error_and_never_zeros"),
    planted(
        "a write lays a hole over bytes that are gone",
        "crates/nacre-osd/src/object/prepare.rs",
        &[("written_to: checked.then_some(row.written_to),", "written_to: None,")],
    )
    .found_by("nacre-osd", "objects", "a_deleted_or_cut_blob_is_an_error_and_never_zeros"),
    planted(
        "a sync succeeds without the file",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[("map_or(0, |row| row.written_to)", "map_or(0, |_| 0)")],
    )
    .found_by("nacre-osd", "objects", "a_deleted_or_cut_blob_is_an_error_and_never_zeros"),
    planted(
        "a lost machine explains the loss of bytes that were stable",
        "crates/nacre-osd/src/object/rechecksum.rs",
        &[("&& !self.is_unverified(blocks.version);", "&& !self.is_unverified(row.version);")],
    )
    .found_by("nacre-osd", "objects", "a_lost_machine_explains_missing_bytes_that_were_not_stable_and_no_others"),
    planted(
        "a log segment is used before its zeros are on the device",
        "crates/nacre-osd/src/log/segment_maker.rs",
        &[("if fits && let Err(error)", "if fits && file == FileId::Mark && let Err(error)")],
    )
    .found_by("nacre-osd", "bounds", "a_log_segment_is_synced_when_it_is_made_and_not_by_the_first_commit_in_it"),
    planted(
        "what was cut off stays in its last block",
        "crates/nacre-osd/src/maintenance/reclaim.rs",
        &[("self.punch(object, state.size, block_ceil(state.size)).await?;", "")],
    )
    .found_by("nacre-osd", "objects", "a_write_that_is_put_back_has_its_zeros_before_it"),
    planted(
        "the row of a cut goes before the cut is on the device",
        "crates/nacre-osd/src/maintenance/reclaim.rs",
        &[(
            "zeros that a later write puts before itself in\n                    // a block are not made again by its client when a machine is lost.\n                    self.io(StoreOp::Sync { file: FileId::Blob(object) }).await?;",
            "",
        )],
    )
    .found_by("nacre-osd", "objects", "a_write_that_is_put_back_has_its_zeros_before_it"),
    planted(
        "a write into a hole does not wait until what was cut off there is gone",
        "crates/nacre-osd/src/object/prepare.rs",
        &[("is_some_and(|cut| end > cut.from)", "is_some_and(|cut| end > cut.from && !fills)")],
    )
    .found_by("nacre-osd", "objects", "a_write_beyond_a_cut_does_not_bring_back_what_was_cut_off"),
    planted(
        "a write beyond the size does not wait until what was cut off there is gone",
        "crates/nacre-osd/src/object/prepare.rs",
        &[("            if reclaim.is_some() {\n                // The bytes", "            if reclaim.is_some() && row.size == 0 {\n                // The bytes")],
    )
    .found_by("nacre-osd", "objects", "a_write_beyond_a_cut_does_not_bring_back_what_was_cut_off"),
    planted(
        "changes that were called before an eviction was known are sent after it",
        "crates/nacre-rpc/src/import/queues.rs",
        &[("let unsent = core::mem::take(&mut self.changes).into_iter();", "let unsent = core::iter::empty();")],
    )
    .found_by("nacre-rpc", "import", "an_eviction_ends_changes_and_repeats_reads"),
    planted(
        "reads that an eviction has met are not sent again",
        "crates/nacre-rpc/src/import/queues.rs",
        &[("for call in reads.into_iter().rev() {", "for call in reads.into_iter().rev().take(0) {")],
    )
    .found_by("nacre-rpc", "import", "an_eviction_ends_changes_and_repeats_reads"),
];

/// Plants each bug, or those whose name has `only` in it, and looks for it in so many seeds.
pub(crate) fn run(seeds: u64, only: &str) -> Result<()> {
    let tree = root().join("target/mutants/tree");
    let mut missed = 0;
    println!("{:<48} found by", "planted bug");
    for mutation in MUTATIONS.iter().filter(|m| m.name.contains(only)) {
        copy_tree(&tree)?;
        let file = tree.join(mutation.file);
        std::fs::write(&file, mutated(mutation)?)?;
        let found = hunt(&tree, mutation, seeds)?;
        missed += u32::from(found.is_none());
        println!("{:<48} {}", mutation.name, found.unwrap_or_else(|| "not found".into()));
    }
    ensure!(missed == 0, "{missed} planted bugs were not found");
    Ok(())
}

/// The file with the bug in it.
fn mutated(m: &Mutation) -> Result<String> {
    let mut text = std::fs::read_to_string(root().join(m.file)).context(m.file)?;
    for (from, to) in m.edits {
        let times = text.matches(from).count();
        ensure!(times == 1, "{}: {from:?} is {times} times in {}, it must be there once", m.name, m.file);
        text = text.replacen(from, to, 1);
    }
    Ok(text)
}

/// What git knows of, as it is now. Files that have not changed keep their times, so that little is built again.
fn copy_tree(to: &Path) -> Result<()> {
    let files = output(Command::new("git").args(["ls-files"]).current_dir(root()))?;
    for name in files.lines() {
        let (from, to) = (root().join(name), to.join(name));
        let Ok(bytes) = std::fs::read(&from) else { continue }; // deleted, and not committed yet
        if std::fs::read(&to).is_ok_and(|old| old == bytes) {
            continue;
        }
        std::fs::create_dir_all(to.parent().unwrap_or(&to))?;
        std::fs::write(&to, bytes)?;
    }
    Ok(())
}

/// The seed or the script that fails.
fn hunt(tree: &Path, mutation: &Mutation, seeds: u64) -> Result<Option<String>> {
    let target: PathBuf = root().join("target/mutants/target");
    let here = |args: &[&str]| {
        let mut command = cargo(args);
        command.current_dir(tree).env("CARGO_TARGET_DIR", &target);
        command
    };
    if let Some((package, tests, test)) = mutation.test {
        let test_of = ["test", "--quiet", "--package", package, "--test", tests];
        output(here(&test_of).arg("--no-run"))?;
        let ended = here(&test_of).args(["--", "--exact", test]).output()?;
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        ensure!(!said.contains(" 0 passed; 0 failed"), "{}: no test {test} in {tests}", mutation.name);
        return Ok((!ended.status.success()).then(|| format!("{tests}: {test}")));
    }
    output(&mut here(&["build", "--quiet", "--package", "nacre-sim"]))?;
    let seeds = seeds.to_string();
    let said = Command::new(target.join("debug/nacre-sim"))
        .args(["--seeds", &seeds, "--trace", "1", "--failures", "1"])
        .output()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    if let Some(line) = said.lines().find(|line| line.starts_with("seed ")) {
        return Ok(Some(line.chars().take(120).collect()));
    }
    let tests = here(&["test", "--quiet", "--package", "nacre-sim"]).output()?;
    let said = String::from_utf8_lossy(&tests.stdout).into_owned();
    let failed = said.lines().find(|line| line.starts_with("---- "));
    Ok((!tests.status.success()).then(|| failed.unwrap_or("a script").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutation_fits() {
        let wrong: Vec<String> =
            MUTATIONS.iter().filter_map(|m| mutated(m).err()).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
