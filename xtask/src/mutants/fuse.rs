//! Bugs planted into the kernel's cache of a mount.

use super::{Mutation, planted};

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "an open file has the locks of the one that had its address before",
        "crates/nacre-fuse/src/lock_owners.rs",
        &[("if owner.handles.iter().all(is_closed) {", "if owner.handles.iter().all(|other| is_closed(other) && false) {")],
    )
    .found_by("nacre-fuse", "lib", "lock_owners::tests::an_open_file_in_the_place_of_a_closed_one_waits_for_its_release"),
    planted(
        "a lock is refused because of a handle that its program has closed",
        "crates/nacre-fuse/src/lock_owners.rs",
        &[("|| !self.lock_owners().is_ending(fid)", "|| !wait")],
    )
    .found_by("nacre", "posix", "open_files_one_after_the_other_do_not_share_their_locks"),
    planted(
        "the kernel copies from pages of before another mount's write",
        "crates/nacre-fuse/src/handlers/data.rs",
        &[("if !door.ops.pages_are_trusted(fid) {", "if door.ops.pages_are_doubtful(fid) {")],
    )
    .found_by("nacre", "kernel_cache", "a_copy_by_the_kernel_has_what_another_mount_has_written"),
    planted(
        "the kernel is to move a directory although a caller that has had its reply may hold the former one",
        "crates/nacre-fuse/src/name_locks.rs",
        &[("(reply.pid != pid || pid == UNKNOWN) && conflicts", "reply.pid == pid && conflicts")],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::such_a_name_is_taken_although_the_former_directory_is_still_locked_after_a_reply",
    ),
    planted(
        "a reply that was decided before a revoke keeps its validity",
        "crates/nacre-fuse/src/gate.rs",
        &[("if self.generation < *pass.0 || now", "if now")],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::a_reply_that_was_decided_before_the_revoke_is_not_valid_after_it",
    ),
    planted(
        "a validity begins although its time has passed",
        "crates/nacre-fuse/src/gate.rs",
        &[("|| now - self.decided > self.slack / 2 {", "{")],
    )
    .found_by("nacre-fuse", "kernel_cache", "device::a_validity_does_not_begin_when_its_time_has_passed"),
    planted(
        "a name whose notification waits in the kernel counts as forgotten",
        "crates/nacre-fuse/src/kernel_cache/mod.rs",
        &[(
            "self.ctx.now() - start > BEGIN_TIMEOUT => return None,",
            "self.ctx.now() - start > BEGIN_TIMEOUT => return Some(Written::Done),",
        )],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::notifications_that_wait_in_the_kernel_are_followed_by_an_epoch_and_the_queue_may_fill",
    ),
    planted(
        "a name is only made to expire, and the reply to an earlier LOOKUP makes it valid again",
        "crates/nacre-fuse/src/notify.rs",
        &[("if is_expiry { notify::EXPIRE_ONLY } else { 0 }", "{ let _ = is_expiry; notify::EXPIRE_ONLY }")],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::a_name_is_forgotten_although_a_caller_has_not_taken_over_its_reply",
    ),
    planted(
        "attributes from before a change of extended attributes come back",
        "crates/nacre-fuse/src/handlers/xattrs.rs",
        &[(
            "request.caller(0)).await?,\n    }\n    door.changed(&request, fid).await;",
            "request.caller(0)).await?,\n    }",
        )],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::attributes_do_not_come_back_that_a_caller_takes_over_after_a_change_of_extended_attributes",
    ),
    planted(
        "attributes survive the end of all locks",
        "crates/nacre-fuse/src/kernel_cache/mod.rs",
        &[(
            "epoch.into_iter().chain(attributes).collect()",
            "epoch.into_iter().chain(attributes.take(0)).collect()",
        )],
    )
    .found_by("nacre-fuse", "kernel_cache", "device::everything_is_forgotten_at_once"),
    planted(
        "an own rename leaves the kernel with a name that is not noted",
        "crates/nacre-client/src/cache/entries.rs",
        &[("        entry.kernel_until = until;\n        true\n", "        true\n")],
    )
    .found_by("nacre", "kernel_cache", "changes_of_one_mount_are_seen_by_the_other_at_once"),
    planted(
        "a second walk sends the attributes from before it kept the file open",
        "crates/nacre-fuse/src/handlers/names.rs",
        &[(
            "                entry = door.ops.lookup(parent, name).await?;\n                if entry.attr.fid == kept {",
            "                if entry.attr.fid == kept {",
        )],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::a_file_that_a_second_walk_has_found_has_the_attributes_of_its_lookup",
    ),
    planted(
        "a second ESTALE reaches the program",
        "crates/nacre-fuse/src/walks.rs",
        &[("if is_second || !self.has_room(now) {", "if !is_second && !self.has_room(now) {")],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::in_a_directory_that_another_mount_has_removed_there_are_no_names",
    ),
    planted(
        "a walk that another call has ended counts as the first walk of the next call",
        "crates/nacre-fuse/src/walks.rs",
        &[("by_path || walk.shown == Some(node)", "by_path || walk.lookups > 0")],
    )
    .found_by(
        "nacre-fuse",
        "lib",
        "walks::tests::a_file_that_another_thread_has_looked_up_is_stale_for_the_first_time",
    ),
    planted(
        "attributes overtake the reply to a removal",
        "crates/nacre-fuse/src/removals.rs",
        &[("|r: &&Removing| r.file == entry.attr.fid", "|r: &&Removing| r.file == entry.attr.fid && false")],
    )
    .found_by("nacre-fuse", "lib", "door::tests::attributes_of_a_file_wait_for_the_removal_of_one_of_its_names"),
    planted(
        "an overlayfs with layers on the mount is no neighbour",
        "crates/nacre-fuse/src/table.rs",
        &[("|| line.layers.iter().any(|layer| layer.starts_with(&ours.point))", "")],
    )
    .found_by("nacre-fuse", "kernel_cache", "device::an_overlayfs_with_layers_on_the_mount_stays"),
    planted(
        "a name in a directory that is gone is ESTALE",
        "crates/nacre-fuse/src/handlers/names.rs",
        &[("Err(Errno::ESTALE) => Err(Errno::ENOENT),\n        Err(error)", "Err(error)")],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::nothing_is_made_in_a_directory_that_another_mount_has_removed",
    ),
    planted(
        "the kernel is to move a directory while other requests have locks of names",
        "crates/nacre-fuse/src/handlers/names.rs",
        &[("let may_move = |former| !door.others_lock_names(request, former);", "let may_move = |_| true;")],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::a_name_under_which_another_mount_has_put_a_directory_is_taken",
    ),
    planted(
        "only one moved directory of a call gets a stand-in",
        "crates/nacre-fuse/src/moved.rs",
        &[("        let shows_own = match self.walks.second(pid) {", "        let shows_own = match self.walks.second(pid).filter(|tried| tried.is_some_and(|t| t.fid == fid)) {")],
    )
    .found_by("nacre-fuse", "kernel_cache", "device::several_moved_directories_are_found_in_one_call"),
    planted(
        "two mounts that rename a file to the same name both succeed",
        "crates/nacre-fuse/src/left_names.rs",
        &[("left.place != place && left.until >= now && may_use(left)", "left.place == place && left.until >= now && may_use(left)")],
    )
    .found_by("nacre", "kernel_cache", "one_of_two_mounts_that_rename_a_file_to_the_same_name_succeeds"),
    planted(
        "a name that expires detaches the file system that is mounted on it",
        "crates/nacre-fuse/src/notify.rs",
        &[("if is_expiry { notify::EXPIRE_ONLY } else { 0 }", "if is_expiry { 0 } else { 0 }")],
    )
    .found_by("nacre-fuse", "kernel_cache", "device::a_file_system_that_is_mounted_on_a_directory_stays"),
    planted(
        "a name does not expire to which a rename moves an entry while a neighbour comes",
        "crates/nacre-fuse/src/kernel_cache/expire.rs",
        &[("self.names.push((parent, Bytes::copy_from_slice(name)));", "let _ = (parent, name);")],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::a_name_expires_that_a_rename_takes_away_while_a_neighbour_comes",
    ),
    planted(
        "names are valid again at once when a neighbour has gone",
        "crates/nacre-fuse/src/neighbours.rs",
        &[("const AFTERWARDS: Duration = Duration::from_secs(60)", "const AFTERWARDS: Duration = Duration::ZERO")],
    )
    .found_by("nacre-fuse", "kernel_cache", "device::a_file_system_that_is_mounted_on_a_directory_stays"),
    planted(
        "a name that is changed through a stand-in does not expire when a neighbour comes",
        "crates/nacre-fuse/src/door.rs",
        &[("names.extend(changed.map(|(dir, name)|", "names.extend(changed.take(0).map(|(dir, name)|")],
    )
    .found_by("nacre-fuse", "kernel_cache", "device::a_change_through_a_stand_in_ends_when_a_neighbour_comes"),
    planted(
        "one of two names that a rename exchanges while a neighbour comes does not expire",
        "crates/nacre-fuse/src/handlers/names.rs",
        &[("door.kernel_moves(request.node(), old);", "")],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::both_names_expire_that_a_rename_exchanges_while_a_neighbour_comes",
    ),
    planted(
        "a name that is given while others expire counts as expired",
        "crates/nacre-fuse/src/kernel_cache/expire.rs",
        &[(
            "if done && self.names_given.get() == given {",
            "if done && (self.names_until.get() == until || self.names_given.get() == given) {",
        )],
    )
    .found_by(
        "nacre-fuse",
        "lib",
        "kernel_cache::tests::names_that_are_given_while_others_expire_are_valid",
    ),
    planted(
        "a changed name that could not be made to expire counts as forgotten",
        "crates/nacre-fuse/src/kernel_cache/expire.rs",
        &[(
            "while !self.expire(to, names.clone()).await {",
            "if !self.expire(to, names.clone()).await {",
        )],
    )
    .found_by(
        "nacre-fuse",
        "lib",
        "kernel_cache::tests::a_changed_name_that_could_not_be_made_to_expire_is_not_forgotten_when_the_neighbours_have_gone",
    ),
    planted(
        "a call waits for ever for a name in the directory that it holds",
        "crates/nacre-fuse/src/kernel_cache/expire.rs",
        &[("self.ctx.timeout(until, expired).await;", "let _ = until; expired.await;")],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::a_call_that_waits_for_a_name_in_the_directory_that_it_holds_goes_on_when_the_name_has_run_out",
    ),
    planted(
        "a caller without a CPU brings back a name that has expired",
        "crates/nacre-fuse/src/kernel_cache/expire.rs",
        &[(
            "while !late_callers().is_empty() {",
            "while !late_callers().is_empty() && self.ctx.now() < last + super::SETTLE_TIMEOUT {",
        )],
    )
    .found_by(
        "nacre-fuse",
        "lib",
        "kernel_cache::tests::names_expire_again_where_a_caller_may_bring_them_back",
    ),
    planted(
        "attributes that the kernel has taken over late are not forgotten",
        "crates/nacre-fuse/src/kernel_cache/mod.rs",
        &[("let until = now + attr + attr / 2;", "let until = now + attr;")],
    )
    .found_by(
        "nacre-fuse",
        "lib",
        "kernel_cache::tests::attributes_are_forgotten_that_the_kernel_has_taken_over_late",
    ),
    planted(
        "a thread with a file lock may use a size that was asked for before",
        "crates/nacre-fuse/src/kernel_cache/mod.rs",
        &[("let is_late = is_asked || self.0.late.borrow().may_come(fid, self.0.ctx.now());", "let is_late = is_asked;")],
    )
    .found_by(
        "nacre-fuse",
        "lib",
        "kernel_cache::tests::a_file_lock_overtakes_attributes_that_no_lock_of_the_inode_covers",
    ),
];
