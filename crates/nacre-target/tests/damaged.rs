//! Rows of clients that are damaged, or of another build, and what a start makes of them.

mod common;

use common::{Jobs, Ledger, SEC, TARGET, add, add_client, add_target, store};
use nacre_node::store::Store;
use nacre_osd::{Credits, Pins, Table, table};
use nacre_osd_mem::MemStore;
use nacre_rpc::ReplyRecord;
use nacre_sim::offline::{check_records, with_engine};
use nacre_sim::{NodeId, World};
use nacre_types::{Codec, Generation, Tag};
use nacre_wire::target::Role;
use std::sync::Arc;

/// Changes the rows of a target that does not run.
fn put(store: &dyn Store, rows: Vec<(Table, Vec<u8>, Vec<u8>)>) {
    let done = with_engine(store, |_, osd| async move {
        let credits = Credits { rows: 8, row_bytes: 4096, object_bytes: 0, frees: true };
        let room = osd.reserve(credits).await?;
        let (transno, ()) = osd.transact(&Pins::default(), room, |tx| {
            rows.into_iter().for_each(|(table, key, value)| tx.put(table, &key, value));
            Ok::<_, nacre_osd::OsdError>(())
        })?;
        osd.commit(transno).await
    });
    done.expect("it opens").expect("it is written");
}

/// The records of a target that does not run.
fn records(store: &dyn Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let rows =
        with_engine(store, |_, osd| async move { osd.scan(table::REPLY, &[], &[0xff; 16], 100).await });
    let rows = rows.expect("it opens").expect("readable");
    rows.into_iter().map(|(key, row)| (key[..].to_vec(), row[..].to_vec())).collect()
}

/// A ledger with a client that has made a change, killed.
fn killed(seed: u64) -> (World, Jobs, Arc<MemStore>, NodeId, NodeId) {
    let mut w = World::new(seed);
    let store = store(&mut w, TARGET, &[]);
    let target = add_target::<Ledger>(&mut w, TARGET, store.clone());
    w.start(target);
    let client = add_client(&mut w, TARGET, 1, Role::Client);
    let mut jobs = Jobs::default();
    jobs.run(&mut w, client, |a| add(a, 5)).expect("added");
    w.kill(target);
    (w, jobs, store, target, client)
}

#[test]
fn what_cannot_be_read_of_clients_is_skipped_and_what_belongs_to_nobody_goes() {
    let (mut w, mut jobs, store, target, client) = killed(31);
    let (key, row) = records(&*store).remove(0);
    let of_nobody = ReplyRecord {
        generation: Generation(77),
        tag: Tag(3),
        ..ReplyRecord::from_slice(&row).expect("a record")
    };
    put(
        &*store,
        vec![
            (table::CLIENT, vec![0, 0, 0, 50], b"no client".to_vec()),
            (table::REPLY, [&key[..4], &[0, 9]].concat(), b"no record".to_vec()),
            (table::REPLY, vec![0, 0, 0, 77, 0, 3], of_nobody.to_vec()),
        ],
    );
    w.start(target);
    assert_eq!(jobs.run(&mut w, client, |a| add(a, 5)), Ok(10), "{:?}", w.fatal);
    assert_eq!(jobs.run(&mut w, client, async |a| a.evictions.get()), 0);
    w.run_for(SEC);
    w.kill(target);
    assert!(records(&*store).iter().all(|(key, _)| key[..4] != [0, 0, 0, 77]), "it is nobody's");
    check_records(&*store).expect("every record has its client");
}

#[test]
fn a_target_with_a_feature_of_a_later_build_is_not_served() {
    let (mut w, _, store, target, _) = killed(32);
    put(&*store, vec![(table::TARGET, b"incompat".to_vec(), 0xc00_u32.to_vec())]);
    w.start(target);
    w.run_for(SEC);
    let said = w.fatal.join("\n");
    assert!(said.contains("uses features 0x800 that this build does not know\nhint: "), "{said}");
}
