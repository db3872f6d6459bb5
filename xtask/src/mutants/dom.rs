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
];
