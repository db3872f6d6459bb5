//! Bugs planted into the client and its FUSE front end.

use super::{Mutation, planted};

const HOLES: &str = "kept_bytes_in_holes_and_in_preallocated_space_are_counted_like_those_of_the_ost";

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "the time of a mount does not go beyond that of the changes that it has seen",
        "crates/nacre-client/src/targets/mount/ready.rs",
        &[("if time > self.mount.last_time.get()", "if time < self.mount.last_time.get()")],
    )
    .found_by("nacre-sim", "change_times", "a_write_replaces_the_time_that_was_set_just_before"),
    planted(
        "the kernel is not told that another mount has changed the owner of a file",
        "crates/nacre-client/src/cache/tables.rs",
        &[("if ended.intersects(InodeBits::PERM) {", "if ended.is_empty() {")],
    )
    .found_by("nacre", "kernel_cache", "a_file_belongs_to_its_new_owner_on_every_mount_at_once"),
    planted(
        "the kernel keeps access control lists beyond the validity of attributes",
        "crates/nacre-client/src/cache/tables.rs",
        &[("if self.inodes.take_acls(fid, ended) {", "if self.inodes.take_acls(fid, ended) && false {")],
    )
    .found_by(
        "nacre-client",
        "lib",
        "cache::tests::the_kernel_is_told_of_other_access_control_lists_whenever_it_had_some",
    ),
    planted(
        "a name is given to the kernel without a lock of the permissions of its inode",
        "crates/nacre-client/src/cache/entries.rs",
        &[("!entry.under.child || !covers_permissions(fid)", "!entry.under.child && !covers_permissions(fid)")],
    )
    .found_by(
        "nacre-client",
        "lib",
        "cache::tests::the_kernel_asks_for_a_name_again_when_the_permissions_of_its_inode_change",
    ),
    planted(
        "a small file's time that was set counts as that of its bytes",
        "crates/nacre-client/src/data/dom.rs",
        &[("file.states_of_data(data.len() as u64, Timestamp::default())", "file.states_of_data(data.len() as u64, _mtime)")],
    )
    .found_by("nacre-sim", "change_times", "a_write_replaces_the_time_that_was_set_just_before"),
    planted(
        "a clock is corrected by the time that a connect takes",
        "crates/nacre-node/src/peer/effects.rs",
        &[("0.clamp(ahead_of(server.replied), ahead_of(server.sent))", "ahead_of(server.replied)")],
    )
    .found_by("nacre-node", "peer", "a_clock_is_corrected_by_what_the_time_of_a_connect_proves"),
    planted(
        "a listing through a handle that was opened with O_NOATIME changes the access time",
        "crates/nacre-client/src/files/table.rs",
        &[("if self.noatime { Atime::Never } else { policy.directories }", "policy.directories")],
    )
    .found_by("nacre", "posix", "reads_change_access_times_as_the_mount_options_say"),
    planted(
        "a short request keeps the buffer that it was read into",
        "crates/nacre-fuse/src/buffers.rs",
        &[("if buffer.len() >= LEND_MIN_BYTES {", "if buffer.len() >= 8192 {")],
    )
    .found_by("nacre-fuse", "kept_writes", "kept_writes_hold_no_more_memory_than_the_list_counts"),
    planted(
        "a write that fails with ENOSPC does not request the pending destroys of the OST",
        "crates/nacre-client/src/locks/under_lease.rs",
        &[(
            "if reclaims < RECLAIMS_MAX && self.reclaim(ost).await =>",
            "if reclaims > RECLAIMS_MAX && self.reclaim(ost).await =>",
        )],
    )
    .found_by("nacre-sim", "placement", "a_write_finds_the_space_of_a_file_that_was_removed_just_before"),
    planted(
        "a mount that is cut off from the MDT goes on writing",
        "crates/nacre-client/src/locks/under_lease.rs",
        &[("if !mdt.peer.lease_ok() {", "if !mdt.peer.lease_ok() && change.is_under_flock() {")],
    )
    .found_by(
        "nacre-sim",
        "evictions",
        "who_is_cut_off_from_the_mdt_alone_changes_nothing_after_its_eviction",
    ),
    planted(
        "an operation does not wait for handles of its file that end later",
        "crates/nacre-client/src/files/late_releases.rs",
        &[("if !fids.iter().any(|fid| self.has(*fid)) {", "if !fids.is_empty() {")],
    )
    .found_by("nacre-sim", "late_releases", "no_operation_can_tell_that_a_handle_ends_later"),
    planted(
        "a lock is returned before handles of its inode that end later",
        "crates/nacre-client/src/targets/lock_returns.rs",
        &[("self.late_releases().ended(self.ctx(), &inodes).await;", "")],
    )
    .found_by("nacre-sim", "late_releases", "no_operation_can_tell_that_a_handle_ends_later"),
    planted(
        "a handle with locks ends later",
        "crates/nacre-client/src/files/open.rs",
        &[(" || open.is_reopening() || open.has_lock_owners() {", " || open.is_reopening() {")],
    )
    .found_by("nacre-sim", "late_releases", "a_lock_of_a_handle_ends_with_its_close"),
    planted(
        "a listing fails because one of its files has gone",
        "crates/nacre-client/src/metadata/attr.rs",
        &[("Err(Failure::ESTALE | Failure::EIO) =>", "Err(Failure::EIO) =>")],
    )
    .found_by(
        "nacre-sim",
        "replaced_names",
        "a_listing_does_not_fail_because_one_of_its_files_has_gone",
    ),
    planted(
        "a listing fails because an OST is away",
        "crates/nacre-client/src/metadata/attr.rs",
        &[("Err(Failure::ESTALE | Failure::EIO) =>", "Err(Failure::ESTALE) =>")],
    )
    .found_by("nacre-sim", "osts", "an_ost_that_is_away_hides_no_name_and_a_failed_open_leaves_no_handle"),
    planted(
        "a name whose file is replaced is not looked up again",
        "crates/nacre-client/src/metadata/namespace.rs",
        &[("Err(Failure::ESTALE) => {}", "Err(Failure::ESTALE) => break,")],
    )
    .found_by("nacre-sim", "replaced_names", "a_name_is_found_although_its_file_is_replaced_meanwhile"),
    planted(
        "an open that fails leaves its handle open",
        "crates/nacre-client/src/files/open.rs",
        &[("self.release_now(handle).await;", "let _ = handle;")],
    )
    .found_by("nacre-sim", "osts", "an_ost_that_is_away_hides_no_name_and_a_failed_open_leaves_no_handle"),
    planted(
        "a write does not replace a time in the future",
        "crates/nacre-client/src/metadata/attr.rs",
        &[("attr.mtime = objects.mtime;", "attr.mtime = attr.mtime.max(objects.mtime);")],
    )
    .found_by(
        "nacre-sim",
        "late_releases",
        "all_mounts_agree_on_the_time_of_a_write_before_and_after_the_handle_ends",
    ),
    planted(
        "a truncate of an empty file leaves its times",
        "crates/nacre-client/src/metadata/truncate.rs",
        &[("states.iter_mut().for_each(|state| state.mtime = state.mtime.max(mtime));", "let _ = &mut states;")],
    )
    .found_by("nacre-sim", "truncates", "a_truncate_of_an_empty_file_changes_its_times"),
    planted(
        "a revoke of SIZE leaves the pages trusted",
        "crates/nacre-client/src/cache/tables.rs",
        &[("if ended.intersects(InodeBits::SIZE) {", "if ended.intersects(InodeBits::LAYOUT) {")],
    )
    .found_by("nacre-sim", "pages", "a_cached_handle_sees_each_write_of_a_file_that_is_open_for_writing"),
    planted(
        "a revoke of UPDATE leaves the kernel its listing",
        "crates/nacre-client/src/cache/tables.rs",
        &[("stale.push(Stale::Listing(fid));", "")],
    )
    .found_by("nacre-sim", "listings", "a_kept_listing_shows_every_change_of_both_mounts"),
    planted(
        "a part of a listing is served although a name was added",
        "crates/nacre-client/src/cache/entries.rs",
        &[("self.listed_to = None;\n        self.named_at", "self.named_at")],
    )
    .found_by("nacre-sim", "listings", "a_listing_of_several_pages_contains_every_name_that_was_made_before_it"),
    planted(
        "a page from before an own change begins the known part of a listing",
        "crates/nacre-client/src/cache/entries.rs",
        &[(" || seen < dir.named_at)", ")")],
    )
    .found_by("nacre-client", "lib", "cache::tests::a_part_of_a_listing_is_not_served_after_a_name_was_added"),
    planted(
        "kept bytes in holes are counted as overwritten ones",
        "crates/nacre-client/src/files/state.rs",
        &[("            self.fills_holes.set(true);\n", "")],
    )
    .found_by("nacre-sim", "write_back", HOLES),
    planted(
        "kept bytes in preallocated space are counted twice",
        "crates/nacre-client/src/files/state.rs",
        &[("let has_all_blocks = old.blocks == Attr", "let has_all_blocks = old.blocks >= Attr")],
    )
    .found_by("nacre-sim", "write_back", HOLES),
    planted(
        "as many preallocated blocks as missing ones hide the holes of a file",
        "crates/nacre-client/src/files/state.rs",
        &[(" && !self.is_preallocated.get();", ";")],
    )
    .found_by(
        "nacre-sim",
        "write_back",
        HOLES,
    ),
    planted(
        "the kernel keeps listings without a lock of the directory",
        "crates/nacre-client/src/cache/serve.rs",
        &[("locks_usable_until().is_some() && mdt.cache().has_names(fid);", "locks_usable_until().is_some();")],
    )
    .found_by("nacre-sim", "listings", "a_kept_listing_shows_every_change_of_both_mounts"),
    planted(
        "pages of a file that this mount opens for writing stay trusted",
        "crates/nacre-client/src/files/open.rs",
        &[("self.mount.pages().ended(open.file.fid);", "")],
    )
    .found_by("nacre-sim", "pages", "who_writes_on_the_same_mount_ends_the_use_of_pages"),
    planted(
        "pages stay trusted when all locks have ended",
        "crates/nacre-client/src/targets/lock_returns.rs",
        &[("let pages = self.cache().pages().all_ended(self.index());", "let pages = Vec::new();")],
    )
    .found_by("nacre-sim", "pages", "pages_are_not_used_beyond_the_lease"),
    planted(
        "attributes of files with doubtful pages have a validity",
        "crates/nacre-client/src/cache/serve.rs",
        &[("if self.mount.pages().are_doubtful(fid) {", "if false {")],
    )
    .found_by("nacre-sim", "pages", "attributes_that_a_program_reads_do_not_make_old_pages_good"),
    planted(
        "the pages of a file with a READ under way are all waited for",
        "crates/nacre-fuse/src/kernel_cache/mod.rs",
        &[("all_but(*fid, reads.clone())", "all_but(*fid, reads[..0].to_vec())")],
    )
    .found_by(
        "nacre-fuse",
        "lib",
        "kernel_cache::tests::pages_are_dropped_beside_reads_that_wait_but_not_before_they_are",
    ),
    planted(
        "a sync that took longer than the lease is a success",
        "crates/nacre-client/src/data/io.rs",
        &[(
            "self.check_lease(&open).await?;\n                open.report_failed_writes()",
            "open.report_failed_writes()",
        )],
    )
    .found_by("nacre-sim", "evictions", "a_sync_that_an_ost_acknowledges_after_the_eviction_is_no_success"),
    planted(
        "a truncate does not check who holds the file locks",
        "crates/nacre-client/src/metadata/attr.rs",
        &[
            // Either one alone hides the loss of the other.
            (
                "let open = self.handle_under_lease(handle).await?;",
                "let open = self.files.all().into_iter().find(|o| o.handle == handle).ok_or(Failure::EBADF)?;",
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
        "a process that has lost its locks may still change files",
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
        "the front end does not check whether the caller may change anything",
        "crates/nacre-fuse/src/holders.rs",
        &[("!changes(request.opcode()) || self.ops.files_with_lost_locks().is_empty()", "true")],
    )
    .found_by(
        "nacre",
        "databases",
        "a_database_stays_whole_when_a_mount_is_back_after_another_has_taken_its_locks",
    ),
    planted(
        "an append whose locks were lost is applied twice",
        "crates/nacre-client/src/data/append.rs",
        &[
            // What a kill of the OSTs leaves them does not hide it.
            (
                "let persistent = goes_on || component.stripes.len() > 1;",
                "let persistent = goes_on || component.stripes.len() > 1000;",
            ),
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
        "a write fails that an OST's eviction has ended before it was sent",
        "crates/nacre-client/src/locks/under_lease.rs",
        &[("Err(RpcError::EvictedUnsent) if lock == NO_LOCK => {}", "")],
    )
    .found_by(
        "nacre-sim",
        "evictions",
        "a_write_that_waits_for_an_ost_succeeds_although_the_ost_has_evicted_the_mount",
    ),
    planted(
        "a punched hole leaves the count of blocks as it was",
        "crates/nacre-client/src/data/allocate.rs",
        &[("open.file.note_freed();", "")],
    )
    .found_by("nacre-sim", "holes", "a_hole_takes_its_blocks_off_the_file"),
    planted(
        "an evicted mount still trusts its size of a file",
        "crates/nacre-client/src/files/eviction.rs",
        &[("open.file.evicted();", "")],
    )
    .found_by("nacre-sim", "evictions", "a_close_after_the_eviction_does_not_bring_an_old_size_back"),
    planted(
        "a name that is not there survives a create of another mount",
        "crates/nacre-client/src/cache/entries.rs",
        &[("        dir.incomplete();\n        dir.placed.clear();", "        dir.placed.clear();")],
    )
    .found_by("nacre-sim", "inode_locks", "what_another_mount_has_changed_is_not_revived_by_a_later_grant"),
    planted(
        "attributes survive the loss of their bits",
        "crates/nacre-client/src/cache/inodes.rs",
        &[(
            "            inode.set_entry(None, false, &mut self.data_bytes);\n            used_by_kernel",
            "            used_by_kernel",
        )],
    )
    .found_by("nacre-sim", "inode_locks", "what_another_mount_has_changed_is_not_revived_by_a_later_grant"),
    planted(
        "the kernel goes on with set-id bits that a write has removed",
        "crates/nacre-client/src/data/io.rs",
        &[("            mdt.kernel_forgets(Stale::Inode(file.fid)).await;\n", "")],
    )
    .found_by("nacre", "posix", "allocating_and_writing_as_an_ordinary_user_takes_set_id_bits_away"),
    planted(
        "locks survive a restart of the MDT",
        "crates/nacre-client/src/cache/metadata.rs",
        &[("self.tables().begin_era(epoch);", "let _ = epoch;")],
    )
    .found_by(
        "nacre-client",
        "inode_locks",
        "after_a_restart_the_mdt_learns_when_the_kernel_has_forgotten_everything",
    ),
    planted(
        "locks are returned before the kernel has forgotten",
        "crates/nacre-client/src/targets/lock_returns.rs",
        &[("kernel.forget(stale).await;", "drop(kernel.forget(stale));")],
    )
    .found_by("nacre-client", "inode_locks", "a_lock_is_returned_after_the_kernel_has_forgotten"),
    planted(
        // Either condition alone hides the loss of the other.
        "locks outlive the lease",
        "crates/nacre-client/src/cache/serve.rs",
        &[
            ("if !self.cache().is_on() || !self.peer.is_connected() {", "if !self.cache().is_on() {"),
            ("(self.ctx().now() < until).then_some(until)", "Some(until)"),
        ],
    )
    .found_by("nacre-sim", "inode_locks", "a_mount_that_stood_still_for_longer_than_its_lease_asks"),
    planted(
        "a change without a reply does not invalidate the cache",
        "crates/nacre-client/src/cache/tables.rs",
        &[(
            "        if self.in_flight.changes_inode(fid) {\n            return None;",
            "        if self.in_flight.changes_inode(fid) && self.now == Instant(0) {\n            return None;",
        )],
    )
    .found_by("nacre-sim", "inode_locks", "what_others_have_seen_of_a_pending_change_is_not_denied"),
    planted(
        "the bit OPEN is returned when the kernel has forgotten names of others",
        "crates/nacre-client/src/cache/metadata.rs",
        &[("if revoke.bits == InodeBits::OPEN &&", "if false && revoke.bits == InodeBits::OPEN &&")],
    )
    .found_by(
        "nacre-client",
        "lib",
        "cache::tests::the_bit_open_alone_does_not_wait_until_the_kernel_has_forgotten_names",
    ),
    planted(
        "the kernel has forgotten the names that it is being told to forget",
        "crates/nacre-client/src/cache/metadata.rs",
        &[("let mut names = self.returns.leaving()?;", "let mut names = Vec::new();")],
    )
    .found_by("nacre-client", "lib", "cache::tests::the_kernel_has_the_names_that_it_is_being_told_to_forget"),
    planted(
        "older attributes replace newer ones",
        "crates/nacre-client/src/cache/inodes.rs",
        &[("            && seen >= inode.changed_at", "            && seen >= Transno(0)")],
    )
    .found_by(
        "nacre-sim",
        "inode_locks",
        "a_reply_from_before_a_change_does_not_replace_what_the_change_has_brought",
    ),
    planted(
        "a waiter for an extent lock is not woken by a restart",
        "crates/nacre-client/src/locks/extents.rs",
        &[("        ost.peer.on_restarted(self.pending.retry_handler());\n", "")],
    )
    .found_by("nacre-sim", "appends", "who_waits_for_a_lock_asks_a_restarted_ost_at_once"),
    planted(
        "a waiter for a file lock is not woken by a restart",
        "crates/nacre-client/src/targets/mount/watch.rs",
        &[("            retry_flocks();\n", "")],
    )
    .found_by(
        "nacre-sim",
        "file_locks",
        "who_waits_while_the_mdt_is_killed_waits_again_and_gets_the_lock",
    ),
    planted(
        "after a restart of the MDT a lock counts as not granted",
        "crates/nacre-client/src/locks/flocks.rs",
        &[("                    _ if pending.is_forgotten() => {}\n", "")],
    )
    .found_by(
        "nacre-sim",
        "file_locks",
        "a_wait_that_is_interrupted_while_the_mdt_is_killed_leaves_no_lock_behind",
    ),
    planted(
        "an abandoned lock request stays in the queue",
        "crates/nacre-client/src/locks/extents.rs",
        &[("if !interruptible {", "if interruptible || !interruptible {")],
    )
    .found_by("nacre-sim", "appends", "who_is_not_waited_for_any_more_leaves_the_queue"),
    planted(
        "a batch of closes ends with the first that fails",
        "crates/nacre-client/src/files/closes.rs",
        &[("stop_at_error: false", "stop_at_error: true")],
    )
    .found_by("nacre-sim", "closes", "closes_that_an_eviction_meets_bring_no_old_size"),
    planted(
        "all closes of a batch get the result of the first",
        "crates/nacre-client/src/files/closes.rs",
        &[("results.iter().map(|r| result(r.status))", "results.iter().map(|_| result(results[0].status))")],
    )
    .found_by("nacre-client", "protocol", "each_of_the_closes_that_go_together_has_its_own_result"),
    planted(
        "a batch of closes needs an ordinary slot",
        "crates/nacre-client/src/files/closes.rs",
        &[(".class(Class::Close)", ".class(Class::Modify)")],
    )
    .found_by("nacre-client", "protocol", "closes_that_wait_for_slots_go_together_in_the_extra_slot"),
    planted(
        "a handle is used without a check of the lease",
        "crates/nacre-client/src/locks/under_lease.rs",
        &[("if mdt.peer.lease_ok() {", "if mdt.peer.lease_ok() || open.handle.0 > 0 {")],
    )
    .found_by("nacre-sim", "evictions", "a_read_beyond_the_lease_waits_for_the_word_of_the_mdt"),
    planted(
        "a change of an object under file locks has no deadline",
        "crates/nacre-client/src/locks/under_lease.rs",
        &[(
            "let until = self.change_deadline(&change).await?;",
            "let until = self.change_deadline(&change).await?.and(None);",
        )],
    )
    .found_by("nacre-sim", "evictions", "a_write_that_is_sent_again_after_the_eviction_is_not_made"),
    planted(
        "a change that reached its OST too late is not sent again",
        "crates/nacre-client/src/locks/under_lease.rs",
        &[(
            "Err(RpcError::Failed(Failure::Outcome(ProtocolOutcome::DeadlinePassed))) => {",
            "Err(RpcError::Failed(Failure::Outcome(ProtocolOutcome::DeadlinePassed))) if change.open.is_none() => {",
        )],
    )
    .found_by("nacre-sim", "evictions", "a_write_that_reaches_its_ost_after_the_eviction_is_not_made"),
    planted(
        "a close does not wait for writes whose callers were killed",
        "crates/nacre-client/src/files/open.rs",
        &[("if open.is_writer() || open.has_lock_owners", "if !open.is_writer() && open.has_lock_owners")],
    )
    .found_by("nacre-sim", "osts", "a_close_waits_for_writes_whose_callers_were_killed"),
    planted(
        "locks are dropped before writes whose callers were killed have ended",
        "crates/nacre-client/src/locks/flocks.rs",
        &[("            self.wait_for_writes(&open.file).await;\n", "")],
    )
    .found_by("nacre-sim", "file_locks", "locks_are_dropped_after_writes_whose_callers_were_killed"),
    planted(
        "an OPEN bit is returned before its opens are reported",
        "crates/nacre-client/src/targets/lock_returns.rs",
        &[("            self.report_opens(&opens).await;\n", "            drop(opens);\n")],
    )
    .found_by("nacre-sim", "opens", "what_another_mount_removes_stays_as_long_as_it_is_open"),
    planted(
        "a lock is returned before the closes that are kept under it are sent",
        "crates/nacre-client/src/targets/lock_returns.rs",
        &[("            self.closed_before_return(&closes).await;\n", "            drop(closes);\n")],
    )
    .found_by("nacre-sim", "late_closes", "an_inode_that_no_process_has_open_ends_with_its_last_name"),
    planted(
        "a file is opened for writing while the close of an earlier writer is kept",
        "crates/nacre-client/src/files/open.rs",
        &[("                if !is_reader {\n                    mdt.no_close_is_kept(fid).await;\n                }\n", "")],
    )
    .found_by("nacre-sim", "late_closes", "a_file_that_no_process_has_open_is_changed_as_such"),
    planted(
        "an open for reading that was not sent yet fails with the eviction",
        "crates/nacre-client/src/targets/mdt.rs",
        &[("Err(RpcError::Evicted | RpcError::EvictedUnsent) if !is_writer", "Err(RpcError::Evicted) if !is_writer")],
    )
    .found_by("nacre-sim", "evictions", "a_file_is_opened_for_reading_by_who_was_evicted_before"),
    planted(
        "closes are kept until they fill a batch",
        "crates/nacre-client/src/files/closes.rs",
        &[("                mdt.ctx().sleep(KEPT_TIME).await;\n", "                mdt.ctx().sleep(KEPT_TIME * 1000).await;\n")],
    )
    .found_by("nacre-sim", "late_closes", "a_kept_close_is_sent_after_a_while"),
    planted(
        "opens are not reported to a restarted MDT",
        "crates/nacre-client/src/targets/lock_returns.rs",
        &[("                self.report_all_opens().await;\n", "")],
    )
    .found_by("nacre-sim", "opens", "opens_are_reported_to_a_restarted_mdt_before_anything_is_removed"),
    planted(
        "write back: a lock under which bytes are kept is returned before the OSTs have them",
        "crates/nacre-client/src/cache/metadata.rs",
        &[(
                "if self.must_flush(revoke.fid, revoke.bits) {",
                "if self.must_flush(revoke.fid, InodeBits::NONE) {",
            )],
    )
    .found_by("nacre-sim", "write_back", "another_mount_that_asks_for_the_size_or_opens_the_file_sees_all_bytes"),
    planted(
        "write back: an evicted mount sends what it has kept",
        "crates/nacre-client/src/data/write_batches.rs",
        &[(
            "Change::kept(open, evictions)",
            "if evictions == u64::MAX { Change::kept(open, 0) } else { Change::through(open) }",
        )],
    )
    .found_by("nacre-sim", "write_back", "bytes_of_an_evicted_mount_are_reported_once_and_overwrite_nothing"),
    planted(
        "write back: the MDT is not told that bytes under a revoked lock are being written",
        "crates/nacre-client/src/targets/lock_returns.rs",
        &[(
                "flushing: flushing.to_vec() };",
                "flushing: flushing[..0].to_vec() };",
            )],
    )
    .found_by("nacre-sim", "write_back", "a_mount_that_cannot_reach_an_ost_is_not_evicted_for_the_bytes_it_keeps"),
    planted(
        "write back: a mount that opens a file again relies on the lock of its earlier open",
        "crates/nacre-client/src/cache/metadata.rs",
        &[(
                "entry.filter(|_| touches.opens_for_write())",
                "entry.filter(|_| touches.opens_for_write() && at.0 == u64::MAX)",
            )],
    )
    .found_by("nacre-sim", "write_back", "a_mount_that_opens_a_file_again_keeps_nothing_while_another_one_has_it_open"),
    planted(
        "write back: a truncate through a handle leaves kept bytes to be sent after it",
        "crates/nacre-client/src/metadata/truncate.rs",
        &[(
                "self.exclusive(file, Extent::ALL).await;",
                "file.ranges.acquire(&self.ctx, Extent::ALL, crate::files::ranges::Share::Exclusive).await;",
            )],
    )
    .found_by("nacre-sim", "truncates", "kept_bytes_are_not_sent_after_a_truncate"),
    planted(
        "write back: pieces of a few bytes take no room",
        "crates/nacre-client/src/files/dirty_files.rs",
        &[(
                "self.pieces.get() as u64 * PIECE_ROOM)",
                "self.pieces.get() as u64 * PIECE_ROOM / 4096)",
            )],
    )
    .found_by("nacre-sim", "write_back", "many_small_pieces_wait_for_room"),
    planted(
        "write many: small writes are sent one at a time",
        "crates/nacre-client/src/data/write_batches.rs",
        &[("if !is_small {", "if !is_small || open.is_writer() {")],
    )
    .found_by("nacre-sim", "write_batches", "pieces_of_a_file_are_sent_in_few_requests"),
    planted(
        "write many: a write that fails in a batch is taken for written",
        "crates/nacre-client/src/data/write_batches.rs",
        &[("if status.failure().is_some() {", "if status.failure().is_some() && state.size > 0 {")],
    )
    .found_by("nacre-sim", "write_batches", "a_write_of_a_batch_that_fails_does_not_hold_the_others_up"),
    planted(
        "write many: the batch of an evicted mount is sent",
        "crates/nacre-client/src/data/write_batches.rs",
        &[(
            "match self.change_deadline(&change_of(waiting.kept())).await {",
            "match Ok::<_, Failure>(self.mount.dirty_files().is_on().then(|| self.ctx.now() + core::time::Duration::from_secs(90))) {",
        )],
    )
    .found_by("nacre-sim", "write_batches", "a_batch_of_an_evicted_mount_overwrites_nothing"),
    planted(
        "a file that is opened for writing while its close is under way counts as unchanged",
        "crates/nacre-client/src/files/state.rs",
        &[("self.dirty.set(self.dirty_closes.get() > 0);", "self.dirty.set(self.dirty_closes.get() > 9);")],
    )
    .found_by("nacre-sim", "closes", "who_opens_a_file_again_while_its_close_is_under_way_sees_what_was_written"),
    planted(
        "what the kernel has taken over late is not forgotten",
        "crates/nacre-client/src/cache/metadata.rs",
        &[("until + (until - self.ctx.now()) / 2", "until")],
    )
    .found_by(
        "nacre-client",
        "lib",
        "cache::tests::what_the_kernel_was_given_and_may_still_use_is_told_when_its_lock_ends",
    ),
    planted(
        "a rename moves an entry that the kernel has not forgotten yet to a name that is not forgotten",
        "crates/nacre-client/src/cache/tables.rs",
        &[("(until > self.now || !leaves(*parent, name)).then_some(until)", "{ let _ = leaves; Some(until) }")],
    )
    .found_by(
        "nacre-client",
        "lib",
        "cache::tests::a_name_that_the_kernel_is_told_to_forget_may_still_move_in_an_own_rename",
    ),
    planted(
        "a write trusts the set-id bits that the open has shown",
        "crates/nacre-client/src/data/io.rs",
        &[("learned.is_some() && learned == self.permissions_serial(file.fid)", "learned.is_some()")],
    )
    .found_by(
        "nacre-sim",
        "privileges",
        "a_write_by_a_user_takes_set_id_bits_away_that_another_mount_has_set",
    ),
    planted(
        "the reply to an earlier change of a name undoes what the cache knows from a later one",
        "crates/nacre-client/src/cache/entries.rs",
        &[("known.unwrap_or_else(|| self.changed_in(parent))", "known.unwrap_or_default()")],
    )
    .found_by(
        "nacre-sim",
        "one_mount",
        "the_names_that_two_changes_leave_are_known_although_the_later_one_is_acknowledged_first",
    ),
    planted(
        "a mount that loses a lock of a file takes its attributes for those at its end",
        "crates/nacre-client/src/cache/tables.rs",
        &[(
            "            self.lost(fid, ended, stale);\n        }\n    }\n",
            "            if let Some(entry) = self.inodes.entry(fid) {\n                self.last_attrs.note(entry);\n            }\n            self.lost(fid, ended, stale);\n        }\n    }\n",
        )],
    )
    .found_by(
        "nacre-sim",
        "replaced_names",
        "the_attributes_of_a_file_are_known_to_the_mount_that_has_replaced_it",
    ),
];
