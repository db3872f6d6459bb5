//! Bugs planted into the common part of all targets (clients, leases, recovery, identity) and into the MGS.

use super::{Mutation, planted};

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "a queued change of a mount that has died is applied",
        "crates/nacre-target/src/admitted.rs",
        &[("if entry.conn().is_none() {", "if false && entry.conn().is_none() {")],
    )
    .found_by("nacre-sim", "stores", "a_write_whose_mount_dies_while_it_waits_in_the_ost_is_not_begun"),
    planted(
        "a second process replaces a target that is connected",
        "crates/nacre-target/src/rivals.rs",
        &[("if !is_connected && (known", "if is_connected || (known")],
    )
    .found_by(
        "nacre-sim",
        "identity",
        "a_copy_beside_the_living_original_is_refused_and_the_original_goes_on",
    ),
    planted(
        "a target that replies at its registered address counts as gone",
        "crates/nacre-target/src/rivals.rs",
        &[(
            "if incarnation == holder { Found::Holder } else { Found::Absent }",
            "if incarnation == holder && holder == 0 { Found::Holder } else { Found::Absent }",
        )],
    )
    .found_by(
        "nacre-sim",
        "identity",
        "a_copy_that_comes_first_to_a_new_mgs_is_refused_while_the_original_replies",
    ),
    planted(
        "an address that does not reply counts as gone",
        "crates/nacre-target/src/rivals.rs",
        &[
            ("break Found::Silent;", "break Found::Absent;"),
            ("if !is_connected && (known", "if found == Found::Absent || (known"),
        ],
    )
    .found_by(
        "nacre-sim",
        "identity",
        "a_copy_of_a_target_that_stands_still_waits_for_the_end_of_its_lease",
    ),
    planted(
        "a target that was killed waits for the end of its lease",
        "crates/nacre-target/src/rivals.rs",
        &[
            (
                "(peer.is_absent() || peer.mismatch().is_some()).then_some(Found::Absent)",
                "peer.mismatch().is_some().then_some(Found::Absent)",
            ),
            ("{ Found::Holder } else { Found::Absent }", "{ Found::Holder } else { Found::Silent }"),
        ],
    )
    .found_by(
        "nacre-sim",
        "identity",
        "a_target_that_was_killed_is_registered_again_without_waiting_for_its_lease",
    ),
    planted(
        "renewals by neighbours are forgotten when a lease ends",
        "crates/nacre-target/src/lease.rs",
        &[("Some(_) => self.leave_neighbours(entry),", "Some(_) => self.process_leases().end(),")],
    )
    .found_by(
        "nacre-sim",
        "inode_locks",
        "a_mount_that_is_cut_off_holds_up_others_for_a_lease_and_is_silent_before",
    ),
    planted(
        "a lock that is not returned is kept for ever",
        "crates/nacre-target/src/locks/deadlines.rs",
        &[("if deadline > now {", "if deadline > now || next >= now {")],
    )
    .found_by(
        "nacre-ost",
        "target",
        "a_client_that_does_not_give_a_lock_back_is_evicted_although_it_acknowledges",
    ),
    planted(
        "a connect in a client's name needs no secret",
        "crates/nacre-target/src/island/connect.rs",
        &[("if core.is_impostor(&connect) {", "if core.is_impostor(&connect) && connect.name == \"\" {")],
    )
    .found_by(
        "nacre-target",
        "strangers",
        "a_connect_in_a_clients_name_without_its_secret_is_refused_and_disturbs_nobody",
    ),
    planted(
        "identities are not compared at connect",
        "crates/nacre-target/src/admission.rs",
        &[(
            "let mismatch = mismatch.err()?;",
            "let mismatch = mismatch.err().filter(|m| !m.is_other() && m.is_other())?;",
        )],
    )
    .found_by("nacre-sim", "identity", "a_clone_that_is_behind_or_has_diverged_is_refused"),
    planted(
        "the MGS takes any target",
        "crates/nacre-mgs/src/registry.rs",
        &[(
            "admission(old, new, mismatch).map_err(Refused::Mismatch)?",
            "admission(old, new, mismatch).unwrap_or(Admit::Rollback)",
        )],
    )
    .found_by("nacre-sim", "identity", "a_blank_ost_is_used_by_nobody_until_it_is_admitted"),
    planted(
        "the reply record is dropped",
        "crates/nacre-target/src/transact.rs",
        &[("entry.rpc.remember(record);", "drop(record);")],
    )
    .found_by(
        "nacre-mdt",
        "target",
        "resend::a_change_whose_reply_is_lost_has_happened_once_and_says_the_same",
    ),
    planted(
        "the record is not in the transaction",
        "crates/nacre-target/src/transact.rs",
        &[("tx.put_encoded(table::REPLY, &reply_key(request.export, tag), |w| record.encode(w));", "")],
    )
    .found_by(
        "nacre-mdt",
        "target",
        "resend::a_change_whose_reply_is_lost_has_happened_once_and_says_the_same",
    ),
    planted(
        "an OST applies a change after its deadline",
        "crates/nacre-target/src/admitted.rs",
        &[("is_expired(self.clock_ms(), request.header.clock_ms)", "is_expired(0, request.header.clock_ms)")],
    )
    .found_by("nacre-sim", "evictions", "a_write_that_reaches_its_ost_after_the_eviction_is_not_made"),
    planted(
        "a new change does not wait for the replay",
        "crates/nacre-target/src/recovery/state.rs",
        &[("if ready { Step::End } else { Step::Wait }", "Step::End")],
    ),
    planted(
        "the reply leaves before the log is written",
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
        "records of a former client are kept",
        "crates/nacre-target/src/island/export_end.rs",
        &[("tx.delete_range(table::REPLY, &reply_key(id, Tag(0)), &reply_end(id));", "")],
    ),
    planted(
        "a recovery waits for clients that have reported",
        "crates/nacre-target/src/recovery/state.rs",
        &[("&& (r.waiting.remove(&export) || r.given_up.remove(&export))", "&& r.waiting.contains(&export)")],
    ),
    planted(
        "a change is replayed twice",
        "crates/nacre-target/src/island/replay.rs",
        &[(
            "if old <= safe.max(core.recovery().replayed(export)) {",
            "if old <= safe && core.recovery().replayed(export).0 < u64::MAX {",
        )],
    )
    .found_by("nacre-sim", "recovery", "a_replay_that_begins_anew_makes_no_change_twice"),
    planted(
        "a store that is opened again on the same boot is trusted",
        "crates/nacre-target/src/island/start.rs",
        &[("let nothing = core.osd.was_clean() ||", "let nothing = true ||")],
    )
    .found_by(
        "nacre-sim",
        "stores",
        "acknowledged_names_are_there_whatever_the_store_of_the_mdt_has_lost",
    ),
    planted(
        "replays of several clients are not ordered",
        "crates/nacre-target/src/recovery/state.rs",
        &[("r.queue.pop_first()", "r.queue.pop_last()")],
    ),
    planted(
        "a new connection forgets the changes without a reply on the previous one",
        "crates/nacre-target/src/clients/reply_order.rs",
        &[("self.before = last;", "let _ = last;")],
    )
    .found_by(
        "nacre-sim",
        "one_mount",
        "an_acknowledged_change_survives_that_builds_on_one_of_its_own_mount_whose_reply_was_lost",
    ),
    planted(
        "locks of writes over several objects die with the OST",
        "crates/nacre-target/src/locks/persistent.rs",
        &[(
            "Lock { request, in_row: true });",
            "Lock { request, in_row: true });\n                this.locks.borrow_mut().clear();",
        )],
    )
    .found_by("nacre-sim", "striped_writes", "nobody_reads_half_of_a_write_whose_ost_was_killed"),
];
