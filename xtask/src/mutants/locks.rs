//! Bugs planted into the lock service.

use super::{Mutation, planted};

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "other mounts keep the old access time of a file that was read",
        "crates/nacre-mdt/src/ops/opening.rs",
        &[("if is_first || old.sec != atime.sec {", "if is_first && old.sec > atime.sec {")],
    )
    .found_by("nacre-sim", "access_times", "another_mount_with_the_attributes_in_its_cache_sees_a_read"),
    planted(
        "each of many readers of a file takes its attributes from all others",
        "crates/nacre-mdt/src/ops/opening.rs",
        &[("if is_first || old.sec != atime.sec {", "if is_first || old != atime {")],
    )
    .found_by(
        "nacre-sim",
        "access_times",
        "readers_at_the_same_time_do_not_take_the_attributes_from_each_other",
    ),
    planted(
        "the first extended attribute breaks no lock of the attributes",
        "crates/nacre-mdt/src/rows/lock_changes.rs",
        &[("|| old.xattrs.is_empty() != new.xattrs.is_empty(),", ",")],
    )
    .found_by(
        "nacre-sim",
        "inode_locks",
        "the_first_extended_attribute_of_another_mount_is_seen_at_once",
    ),
    planted(
        "an eviction invalidates only the handle that has locked",
        "crates/nacre-dlm/src/client/granted_flocks.rs",
        &[("*family == Family::Posix || owned", "*family == Family::Posix && owned")],
    )
    .found_by("nacre-sim", "evictions", "every_handle_of_a_file_that_was_locked_is_lost_and_no_other"),
    planted(
        "an eviction invalidates handles whose locks were released",
        "crates/nacre-dlm/src/client/granted_flocks.rs",
        &[("if owned.ranges.is_empty() {", "if owned.ranges.as_slice().len() > 1000 {")],
    )
    .found_by("nacre-sim", "evictions", "every_handle_of_a_file_that_was_locked_is_lost_and_no_other"),
    planted(
        "bits are granted to a client whose callback for them is open",
        "crates/nacre-dlm/src/server/inode_locks.rs",
        &[("let mut new = wanted - has - revoking;", "let mut new = wanted - has;")],
    )
    .found_by("nacre-dlm", "inode_locks", "random_histories_of_few_clients_end_as_the_naive_model_says"),
    planted(
        "a read from before a revoke is granted the revoked bits",
        "crates/nacre-dlm/src/server/inode_locks.rs",
        &[("if claim.number < lock.lost_at {", "if claim.number < lock.lost_at && lock.lost.is_empty() {")],
    )
    .found_by(
        "nacre-dlm",
        "inode_lock_caches",
        "no_mount_serves_from_an_old_cache_in_whatever_order_messages_arrive",
    ),
    planted(
        "a read from before the end of a lock is granted the next lock",
        "crates/nacre-dlm/src/server/inode_locks.rs",
        &[("if claim.number < lock.first || bits", "if bits")],
    )
    .found_by("nacre-dlm", "inode_locks", "a_read_from_before_a_revoke_is_not_granted_the_revoked_bits"),
    planted(
        "bits are granted whose callback was sent after the claim",
        "crates/nacre-dlm/src/server/inode_locks.rs",
        &[("(lock.held.covering(claim.mode) - lock.revoking)", "lock.held.covering(claim.mode)")],
    )
    .found_by(
        "nacre-dlm",
        "inode_lock_caches",
        "no_mount_serves_from_an_old_cache_in_whatever_order_messages_arrive",
    ),
    planted(
        "a cancel ends a lock that was granted after it was sent",
        "crates/nacre-dlm/src/server/inode_locks.rs",
        &[(".is_none_or(|lock| number < lock.granted)", ".is_none()")],
    )
    .found_by(
        "nacre-dlm",
        "inode_lock_caches",
        "no_mount_serves_from_an_old_cache_in_whatever_order_messages_arrive",
    ),
    planted(
        "readers are granted bits for which a change waits",
        "crates/nacre-dlm/src/server/inode_locks.rs",
        &[("new -= self.waits.wanted(fid, mode) | self.pauses", "new -= self.pauses")],
    )
    .found_by("nacre-dlm", "inode_locks", "a_reader_gets_no_bit_for_which_a_change_waits"),
    planted(
        "a change that waits for its last blocker is not woken",
        "crates/nacre-dlm/src/server/inode_locks.rs",
        &[("counts.above(1)\n            }\n        };", "counts.above(0)\n            }\n        };")],
    )
    .found_by("nacre-dlm", "inode_locks", "random_histories_of_few_clients_end_as_the_naive_model_says"),
    planted(
        "the blockers of a change in a crowd leave out those of its own bits",
        "crates/nacre-dlm/src/server/inode_locks.rs",
        &[("counts.above(1) | (counts.above(0) - own)", "counts.above(0) - own")],
    )
    .found_by("nacre-dlm", "inode_locks", "a_crowd_on_one_inode_costs_no_quadratic_search"),
    planted(
        "a mount takes a grant that a callback has overtaken",
        "crates/nacre-dlm/src/client/inode_locks.rs",
        &[("end.fid == fid && number <= end.number", "end.fid != fid && number <= end.number")],
    )
    .found_by("nacre-dlm", "inode_lock_caches", "a_callback_that_overtakes_a_grant_ends_it_and_no_other"),
    planted(
        "a mount takes a grant that its own cancel has overtaken",
        "crates/nacre-dlm/src/client/inode_locks.rs",
        &[(
            "        lock.held.drop_bits(bits);\n        self.remember(End { number, fid, bits });\n",
            "        lock.held.drop_bits(bits);\n",
        )],
    )
    .found_by(
        "nacre-dlm",
        "inode_lock_caches",
        "no_mount_serves_from_an_old_cache_in_whatever_order_messages_arrive",
    ),
];
