//! Bugs planted into the file locks that a mount grants itself.

use super::{Mutation, planted};

const OWN: &str = "a_process_waits_for_a_lock_of_its_own_mount_that_was_granted_without_a_request";
const ALONE: &str = "a_mount_that_alone_has_a_file_open_locks_it_without_a_request";
const WRITER: &str = "a_lock_through_a_handle_for_reading_is_met_by_others_when_the_writer_is_closed";
const RETURNS: &str = "crates/nacre-client/src/targets/lock_returns.rs";

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "local flocks: WRITE_BACK is returned before the locks under it are reported",
        RETURNS,
        &[("self.report_flocks(&locked).await;", "self.report_flocks(&locked[..0]).await;")],
    )
    .found_by("nacre-sim", "file_locks", ALONE),
    planted(
        "local flocks: a writer is closed before the locks are reported",
        "crates/nacre-client/src/files/open.rs",
        &[("mdt.report_flocks(&[file.fid]).await;", "")],
    )
    .found_by("nacre-sim", "file_locks", WRITER),
    planted(
        "local flocks: a conversion that is refused keeps the shared lock",
        "crates/nacre-client/src/locks/flocks.rs",
        &[("self.unlock_all(&open.file, lock.family, lock.owner).await?;\n        if wait", "if wait")],
    )
    .found_by(
        "nacre-sim",
        "file_locks",
        "a_conversion_that_fails_or_waits_gives_up_the_shared_lock_of_flock",
    ),
    planted(
        "local flocks: a lock is granted without a writer",
        "crates/nacre-client/src/locks/flocks.rs",
        &[("file.has_writers() && mdt.may_write_back(file.fid)", "mdt.may_write_back(file.fid)")],
    )
    .found_by("nacre-sim", "file_locks", WRITER),
    planted(
        "local flocks: a lock is granted beside one that the MDT knows",
        "crates/nacre-client/src/locks/local_flocks.rs",
        &[("            return None;\n        }\n        let state =", "        }\n        let state =")],
    )
    .found_by("nacre-sim", "file_locks", OWN),
    planted(
        "local flocks: an eviction forgets requests that wait",
        "crates/nacre-client/src/locks/local_flocks.rs",
        &[("state.at_mdt.retain(|_, requests| *requests > 0);", "state.at_mdt.clear();")],
    )
    .found_by("nacre-sim", "file_locks", "a_wait_outlives_the_eviction_and_gets_the_lock_once"),
];
