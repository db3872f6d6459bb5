//! Bugs planted into object targets.

use super::{Mutation, planted};

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "a lost object is read as a hole",
        "crates/nacre-ost/src/service/requests.rs",
        &[("if laid >= self.core.replaced()", "if laid < u32::MAX")],
    )
    .found_by("nacre-sim", "identity", "a_blank_ost_is_used_by_nobody_until_it_is_admitted"),
    planted(
        "the total of a scrub is that of its progress",
        "crates/nacre-ost/src/scrub.rs",
        &[("usage.objects.max(status.objects)", "usage.objects.min(status.objects) + 1")],
    )
    .found_by(
        "nacre-sim",
        "scrub",
        "damage_is_named_by_the_fid_of_its_file_and_is_gone_when_the_file_is_written_again",
    ),
    planted(
        "a write into space that its file has is refused on a full OST",
        "crates/nacre-ost/src/store.rs",
        &[("let needed = self.needed_space(object, range).await?;", "let needed = range.end - range.start;")],
    )
    .found_by("nacre-sim", "full_osts", "writes_that_need_no_new_space_succeed_on_a_full_ost"),
    planted(
        "a full OST takes writes that need some new space",
        "crates/nacre-ost/src/store.rs",
        &[("if needed == 0 { Ok(()) }", "if needed < u64::MAX { Ok(()) }")],
    )
    .found_by("nacre-sim", "full_osts", "writes_that_need_no_new_space_succeed_on_a_full_ost"),
    planted(
        "an OST does not count what another on its device has granted",
        "crates/nacre-ost/src/room.rs",
        &[("saturating_add(self.share().granted_by_all())", "saturating_add(self.granted.get())")],
    )
    .found_by("nacre-sim", "full_osts", "osts_of_one_process_on_one_device_count_their_grants_together"),
    planted(
        "a write does not wait for space that the device frees with delay",
        "crates/nacre-ost/src/service/requests.rs",
        &[("if self.store.room().grows_soon().await? {", "if request.bulk.is_empty() {")],
    )
    .found_by("nacre-sim", "full_osts", "a_write_waits_a_moment_for_space_that_the_device_frees_with_delay"),
    planted(
        "a write does not wait for space that is being freed",
        "crates/nacre-ost/src/store.rs",
        &[(
            "Err(Errno::ENOSPC) if self.objects.wait_for_freed_space(deadline).await? => {}",
            "Err(Errno::ENOSPC) if deadline < self.core.ctx.now() => {}",
        )],
    )
    .found_by(
        "nacre-ost",
        "target",
        "a_write_finds_the_space_that_was_released_on_a_full_target_just_before",
    ),
    planted(
        "locks of an evicted client stay",
        "crates/nacre-ost/src/service/mod.rs",
        &[("self.locks.remove_client(export).await;", "let _ = export;")],
    )
    .found_by("nacre-ost", "target", "the_locks_of_a_dead_client_go_with_its_lease"),
    planted(
        "acknowledge or commit is skipped for bytes",
        "crates/nacre-ost/src/uncommitted.rs",
        &[("if self.core.tracks_uncommitted(request)", "if !self.core.tracks_uncommitted(request)")],
    )
    .found_by("nacre-sim", "stable", "a_write_that_was_never_acknowledged_does_not_cover_a_later_one"),
    planted(
        "a write does not wait until the bytes of another client that it covers are stable",
        "crates/nacre-ost/src/uncommitted.rs",
        &[(
            "match self.store.make_stable(last).await {",
            "match self.store.make_stable(last.min(self.core.osd.last_stable())).await {",
        )],
    )
    .found_by(
        "nacre-ost",
        "target",
        "crashes::a_replay_does_not_cover_a_later_write_whose_next_overwrite_was_cut_off",
    ),
    planted(
        "a truncate does not become stable",
        "crates/nacre-osd/src/maintenance/writeback.rs",
        &[("                unstable.newest = unstable.newest.max(change);\n", "")],
    )
    .found_by("nacre-osd", "objects", "machine_loss::what_was_made_stable_is_stable_at_the_next_start"),
    planted(
        "zeros beside a hole that were lost with the machine are not written again",
        "crates/nacre-ost/src/service/requests.rs",
        &[("        self.store.restore_zeros(args.object, extent).await?;", "        let _ = extent;")],
    )
    .found_by("nacre-sim", "holes", "a_hole_stays_when_its_ost_is_killed_or_loses_its_machine"),
    planted(
        "write many: the bytes of a request are restored without those of its second write",
        "crates/nacre-ost/src/service/write_many.rs",
        &[(
            "if former.get(nth).is_none_or(|status| *status == Status::Success) {",
            "if nth != 1 && former.get(nth).is_none_or(|status| *status == Status::Success) {",
        )],
    )
    .found_by("nacre-sim", "write_batches", "batches_are_replayed_after_the_loss_of_the_machine"),
    planted(
        "write many: the locks of one object are awaited one after the other",
        "crates/nacre-ost/src/locks.rs",
        &[(
            "        let requests = extents.iter().map(|&extent| self.request_for_operation(object, mode, extent));\n",
            "        let mut awaited = Vec::new();\n        for &extent in extents {\n            awaited.push(self.lock_for_operation(object, mode, extent).await?);\n        }\n        if !awaited.is_empty() {\n            return Ok(awaited);\n        }\n        let requests = extents.iter().map(|&extent| self.request_for_operation(object, mode, extent));\n",
        )],
    )
    .found_by("nacre-ost", "target", "write_many::many_writes_wait_for_the_locks_of_others"),
    planted(
        "a failed write of a batch uses up the grant of its client",
        "crates/nacre-ost/src/store.rs",
        &[("self.room.give_back(request.export, failed.map(|(used, _)| *used).sum());", "drop(failed);")],
    )
    .found_by("nacre-sim", "write_batches", "a_write_of_a_batch_that_fails_does_not_hold_the_others_up"),
];
