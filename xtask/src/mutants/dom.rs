//! Data on the MDT.

use super::{Mutation, planted};

pub(super) const MUTATIONS: &[Mutation] = &[
    planted(
        "the mark that a file may have objects breaks all locks of a file without names",
        "crates/nacre-mdt/src/osts/move_data.rs",
        &[("view.put_unnoticed(&inode);", "view.put_inode(&inode);")],
    )
    .found_by("nacre-sim", "data_on_mdt", "a_removed_file_that_is_open_grows"),
    planted(
        "data on the MDT: a write forgets the bytes that the MDT has beside it",
        "crates/nacre-client/src/data/dom.rs",
        &[("beside.push((0, data));", "drop(data);")],
    )
    .found_by("nacre-sim", "data_on_mdt", "random_changes_through_one_mount_are_seen_by_both"),
    planted(
        "data on the MDT: an own change leaves the bytes that a mount has kept of a closed file",
        "crates/nacre-client/src/cache/inodes.rs",
        &[("inode.set_entry(known, false, &mut self.data_bytes);", "inode.set_entry(known, true, &mut self.data_bytes);")],
    )
    .found_by(
        "nacre-sim",
        "data_on_mdt",
        "bytes_that_a_mount_has_closed_a_file_with_are_read_without_a_request",
    ),
    planted(
        "data on the MDT: a mount shows the size of the MDT while it has dirty bytes",
        "crates/nacre-client/src/metadata/attr.rs",
        &[("(is_complete(reply) && !has_dirty)", "is_complete(reply)")],
    )
    .found_by("nacre-sim", "data_on_mdt", "acknowledged_bytes_survive_the_loss_of_a_server"),
    planted(
        "data on the MDT: the size of a dead writer's file is that of its objects",
        "crates/nacre-mdt/src/ops/opening.rs",
        &[(
            "if inode.dom_bytes() > 0 {\n        return",
            "if inode.dom_bytes() > u32::MAX - 1 {\n        return",
        )],
    )
    .found_by("nacre-sim", "data_on_mdt", "a_dead_writer_leaves_what_it_had_stored"),
    planted(
        "data on the MDT: bytes move to objects that are not durable",
        "crates/nacre-mdt/src/osts/move_data.rs",
        &[("peer.call(&SyncObject { object, laid }).await.map(drop)", "Ok(())")],
    )
    .found_by("nacre-sim", "data_on_mdt", "synced_bytes_that_have_moved_survive_a_loss_of_power"),
    planted(
        "data on the MDT: an MDT does not learn of writes that a killed process had kept",
        "crates/nacre-mdt/src/service/start.rs",
        &[("mdt.follow_kept_writes().await", "Ok::<(), nacre_types::Errno>(())")],
    )
    .found_by("nacre-sim", "kept_log", "a_killed_process_loses_no_acknowledged_write_of_a_small_file"),
    planted(
        "data on the MDT: a file that grows is written to objects while the MDT has its bytes",
        "crates/nacre-client/src/data/dom.rs",
        &[("if kept || open.file.dom_bytes() == 0 {", "if kept || open.file.dom_bytes() < u32::MAX {")],
    )
    .found_by("nacre-sim", "data_on_mdt", "a_file_that_grows_moves_to_objects_with_what_it_had"),
    planted(
        "data on the MDT: an outcome of an OST reaches the program",
        "crates/nacre-mdt/src/osts/move_data.rs",
        &[(
            "RpcError::Failed(Failure::Errno(errno)) => Failure::Errno(errno),",
            "RpcError::Failed(failure) => failure,",
        )],
    )
    .found_by("nacre-sim", "data_on_mdt", "a_move_to_objects_waits_for_an_ost_that_stands_still"),
    planted(
        "data on the MDT: a sync relies on a move that the MDT may forget",
        "crates/nacre-client/src/files/state.rs",
        &[(
            "SyncPoint { changes, dom_bytes: self.dom_bytes.get() }",
            "SyncPoint { changes, dom_bytes: (0, 0) }",
        )],
    )
    .found_by(
        "nacre-sim",
        "data_on_mdt",
        "what_a_mount_syncs_survives_although_another_had_the_bytes_moved",
    ),
    planted(
        "data on the MDT: an earlier copy of the bytes is not cut when they move again",
        "crates/nacre-mdt/src/osts/move_data.rs",
        &[("if *may_have_object {", "if *may_have_object && data.len() > usize::MAX - 1 {")],
    )
    .found_by("nacre-sim", "data_on_mdt", "bytes_that_are_cut_off_during_a_move_to_objects_do_not_return"),
    planted(
        "data on the MDT: an earlier copy of the bytes stays when the file has none any more",
        "crates/nacre-mdt/src/ops/data.rs",
        &[("(inode.attr.size > 0 || inode.may_have_objects) && !has_moved", "inode.attr.size > 0 && !has_moved")],
    )
    .found_by("nacre-sim", "data_on_mdt", "bytes_that_are_cut_off_during_a_move_to_objects_do_not_return"),
    planted(
        "data on the MDT: a time that a program has set moves to the objects",
        "crates/nacre-mdt/src/osts/move_data.rs",
        &[("(inode.owner(), inode.mtime_order)", "(inode.owner(), inode.attr.mtime)")],
    )
    .found_by("nacre-sim", "data_on_mdt", "a_time_in_the_future_does_not_outlive_the_move_to_objects"),
    planted(
        "data on the MDT: requests wait as long as an OST is silent",
        "crates/nacre-mdt/src/osts/move_data.rs",
        &[("const SLOT_TIMEOUT: Duration = Duration::from_secs(1);", "const SLOT_TIMEOUT: Duration = Duration::from_secs(100);")],
    )
    .found_by("nacre-sim", "data_on_mdt", "moves_to_objects_that_wait_for_an_ost_do_not_keep_the_slots"),
    planted(
        "data on the MDT: a program that syncs without a pause keeps bytes from moving",
        "crates/nacre-mdt/src/osts/move_data.rs",
        &[("self.data_moves().give_way(fid).await;", "")],
    )
    .found_by("nacre-sim", "data_on_mdt", "a_move_to_objects_ends_while_a_mount_syncs_the_file_all_the_time"),
    planted(
        "data on the MDT: a move to an OST that was set inactive never ends",
        "crates/nacre-client/src/data/dom.rs",
        &[("while is_active() {", "while is_active() || ost.name.len() < 1000 {")],
    )
    .found_by("nacre-sim", "data_on_mdt", "a_move_to_objects_ends_when_its_ost_is_set_inactive"),
    planted(
        "data on the MDT: bytes that a killed process had kept are stored like those of a client, which revokes locks",
        "crates/nacre-mdt/src/ops/data.rs",
        &[(
            "inode.may_have_objects = true;\n    view.put_data_changed(&mut inode);",
            "inode.may_have_objects = true;\n    view.put_changed(&mut inode);",
        )],
    )
    .found_by("nacre-sim", "kept_log", "a_start_that_stores_kept_bytes_does_not_wait_for_leases"),
    planted(
        "data on the MDT: a truncate by name waits for an OST that was set inactive",
        "crates/nacre-client/src/data/dom.rs",
        &[("if file.known_component().is_none() {", "if file.known_component().is_none() && fid.oid.0 > u32::MAX - 1 {")],
    )
    .found_by("nacre-sim", "data_on_mdt", "a_truncate_by_name_ends_when_the_ost_of_the_bytes_is_set_inactive"),
];
