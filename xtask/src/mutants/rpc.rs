//! Bugs planted into exactly-once delivery, wire and connections.

use super::{Mutation, planted};

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "a recovery sets the clock of a client back by its length",
        "crates/nacre-node/src/peer/effects.rs",
        &[("server.wall.as_nanos() + ago - wall", "server.wall.as_nanos() - wall")],
    )
    .found_by("nacre-sim", "recovery", "a_recovery_does_not_set_the_clock_of_a_mount_back"),
    planted(
        "a mount replaces its memory of a target by that of the MGS",
        "crates/nacre-types/src/identity.rs",
        &[("if other.incarnation.began < self.committed {", "if other.incarnation.began.0 == u64::MAX {")],
    )
    .found_by("nacre-sim", "identity", "a_copy_that_the_mgs_lets_in_is_refused_by_a_mount_that_knows_more"),
    planted(
        "a client does not remember the durable change of a target",
        "crates/nacre-rpc/src/import/identity.rs",
        &[("committed: known.committed.max(last_committed)", "committed: Default::default()")],
    )
    .found_by("nacre-sim", "identity", "a_clone_that_is_behind_or_has_diverged_is_refused"),
    planted(
        "a diverged copy is accepted as the original",
        "crates/nacre-types/src/identity.rs",
        &[("if self.incarnations[at].id != incarnation.id =>", "if self.incarnations[at].id == u64::MAX =>")],
    )
    .found_by("nacre-sim", "identity", "a_clone_that_is_behind_or_has_diverged_is_refused"),
    planted(
        "the lease is not checked",
        "crates/nacre-rpc/src/lease.rs",
        &[(
            "self.usable_until().is_some_and(|end| now < end)",
            "self.usable_until().is_some_and(|_| now >= Instant(0))",
        )],
    )
    .found_by("nacre-rpc", "import", "beyond_the_lease_new_calls_wait_for_the_reply_to_a_ping"),
    planted(
        "the replay list counts payload only",
        "crates/nacre-rpc/src/replay.rs",
        &[("ReplayList::ENTRY_BYTES + self.request.cost()", "self.request.cost()")],
    )
    .found_by("nacre-fuse", "kept_writes", "kept_writes_hold_no_more_memory_than_the_list_counts"),
    planted(
        "changes are replayed in descending order",
        "crates/nacre-rpc/src/replay.rs",
        &[("self.entries.first_key_value()\n    }", "self.entries.last_key_value()\n    }")],
    )
    .found_by("nacre-rpc", "import", "changes_are_kept_until_committed_and_replayed_to_a_new_instance"),
    planted(
        "a resent change gets a new deadline",
        "crates/nacre-rpc/src/import/queues.rs",
        &[("clock(&frame.header, call.deadline)", "clock(&frame.header, None)")],
    )
    .found_by("nacre-sim", "evictions", "a_write_that_is_sent_again_after_the_eviction_is_not_made"),
    planted(
        "a change that was rejected as late gets no extension",
        "crates/nacre-rpc/src/import/deadlines.rs",
        &[("now + self.extension.max(lease / 4)", "now + lease / 4")],
    )
    .found_by("nacre-sim", "evictions", "a_change_without_file_locks_gets_through_a_slow_network"),
    planted(
        "the task of an abandoned request replies for its next copy",
        "crates/nacre-rpc/src/export.rs",
        &[(".filter(|running| running.began == began)", "")],
    )
    .found_by("nacre-rpc", "model", "every_change_is_executed_exactly_once_and_every_call_gets_its_reply"),
    planted(
        "a tag is reused too early",
        "crates/nacre-rpc/src/slots.rs",
        &[("self.used[word] |= 1 << bit;", "self.used[word] |= u64::from(bit != 0) << bit;")],
    ),
    planted(
        "a request of an older epoch is executed",
        "crates/nacre-rpc/src/export.rs",
        &[(
            "if header.epoch < self.epoch {\n            return Admission::Drop;",
            "if header.epoch < ConnEpoch(0) {\n            return Admission::Drop;",
        )],
    )
    .found_by("nacre-rpc", "export", "a_request_of_an_old_epoch_is_dropped_silently"),
    planted(
        "a copy of a running request is executed",
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
        "a resent request counts as a new one",
        "crates/nacre-rpc/src/export.rs",
        &[(".filter(|_| !data)", ".filter(|_| !data && replay)")],
    )
    .found_by("nacre-rpc", "export", "resend_after_lost_reply_returns_first_result"),
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
        "slots of refused calls are not released",
        "crates/nacre-rpc/src/import/queues.rs",
        &[("self.free(&call);\n        Some(call)", "if reply.status.number() <= 0 { self.free(&call); }\n        Some(call)")],
    ),
    planted(
        "a missing callback is not detected",
        "crates/nacre-rpc/src/import/replies.rs",
        &[("frame.header.xid.0 > self.callback_seen.0 + 1", "frame.header.xid.0 > u64::MAX - 1")],
    )
    .found_by("nacre-rpc", "import", "a_callback_behind_a_missing_one_is_not_taken_in"),
    planted(
        "a full replay list drops its oldest entry",
        "crates/nacre-rpc/src/replay.rs",
        &[
            ("self.writes.bytes >= Self::DATA_BYTES_MAX\n", "false\n"),
            ("self.writes.bytes >= Self::DATA_BYTES_MAX / 2", "false"),
            (
                "            self.writes.insert(key, Acknowledged { request, reply });",
                "            self.writes.insert(key, Acknowledged { request, reply });\n            while self.writes.bytes > Self::DATA_BYTES_MAX && self.writes.pop_first() {}",
            ),
        ],
    )
    .found_by("nacre-sim", "stores", "more_data_than_a_mount_keeps_is_right_after_the_store_has_lost_it"),
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
        "a write without a reply is not replayed in its turn",
        "crates/nacre-rpc/src/import/connection.rs",
        &[("self.keep_unreplied(&reply.executed);", "")],
    )
    .found_by("nacre-sim", "stable", "a_write_in_the_log_whose_reply_was_lost_keeps_its_bytes"),
    planted(
        "a deadline in the past counts as now",
        "crates/nacre-rpc/src/import/deadlines.rs",
        &[(".wrapping_sub(over.as_millis() as u32)", ".wrapping_sub(0 * over.as_millis() as u32)")],
    )
    .found_by("nacre-rpc", "import", "a_change_of_an_object_says_until_when_it_may_be_begun"),
    planted(
        "a connection is read however many bytes wait for it",
        "crates/nacre-rt/src/socket.rs",
        &[("o.queued_bytes()) > config.send_queue_pause_bytes", "o.queued_bytes()) > config.send_queue_bytes_max")],
    )
    .found_by("nacre-rt", "sockets", "who_asks_for_more_than_it_reads_is_read_later_and_not_closed"),
    planted(
        "a paused connection is never read",
        "crates/nacre-rt/src/socket.rs",
        &[("None if now >= paused.until => paused.frames = Some(came + 1),", "None if now < Instant(0) => paused.frames = Some(came + 1),")],
    )
    .found_by(
        "nacre-rt",
        "sockets",
        "bulk_of_one_peer_fills_the_bound_of_the_process_and_holds_up_no_small_requests",
    ),
    planted(
        "changes from before an eviction are sent after it",
        "crates/nacre-rpc/src/import/queues.rs",
        &[("let waiting = core::mem::take(&mut self.changes).into_iter();", "let waiting = core::iter::empty();")],
    )
    .found_by("nacre-rpc", "import", "an_eviction_ends_changes_and_repeats_reads"),
    planted(
        "reads that an eviction interrupted are not resent",
        "crates/nacre-rpc/src/import/queues.rs",
        &[("for call in reads.into_iter().rev() {", "for call in reads.into_iter().rev().take(0) {")],
    )
    .found_by("nacre-rpc", "import", "an_eviction_ends_changes_and_repeats_reads"),
];
