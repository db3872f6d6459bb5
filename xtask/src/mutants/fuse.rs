//! Bugs planted into the kernel's cache of a mount.

use super::{Mutation, planted};

pub(super) const MUTATIONS: &[Mutation] = &[
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
        "crates/nacre-fuse/src/kernel_cache.rs",
        &[(
            "self.ctx.now() - start > BEGIN_PATIENCE => return false,",
            "self.ctx.now() - start > BEGIN_PATIENCE => return true,",
        )],
    )
    .found_by(
        "nacre-fuse",
        "kernel_cache",
        "device::notifications_that_wait_in_the_kernel_are_followed_by_an_epoch_and_the_queue_may_fill",
    ),
    planted(
        "attributes survive the end of all locks",
        "crates/nacre-fuse/src/kernel_cache.rs",
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
];
