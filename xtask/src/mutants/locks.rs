//! Bugs planted into the lock service.

use super::{Mutation, planted};

pub(super) const MUTATIONS: &[Mutation] = &[
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
];
