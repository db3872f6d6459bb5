//! Rows of clients that are damaged, or of another build, and what a start makes of them.

mod common;

use common::{Jobs, Ledger, SEC, TARGET, add, add_client, add_target, store};
use nacre_node::store::Store;
use nacre_osd::{Credits, Pins, Table, table};
use nacre_osd_mem::MemStore;
use nacre_rpc::ReplyRecord;
use nacre_sim::offline::{check_records, with_engine};
use nacre_sim::{NodeId, World};
use nacre_target::ClientRow;
use nacre_types::{ClientUuid, Codec, Generation, Tag, Transno};
use nacre_wire::target::{RecoveryRows, Role};
use std::sync::Arc;

/// Changes the rows of a target that does not run.
fn put(store: &dyn Store, rows: Vec<(Table, Vec<u8>, Vec<u8>)>) {
    let done = with_engine(store, |_, osd| async move {
        for rows in rows.chunks(1000) {
            let credits = Credits { rows: 1000, row_bytes: 256 << 10, frees: true, ..Credits::default() };
            let room = osd.reserve(credits).await?;
            osd.transact(&Pins::default(), room, |tx| {
                rows.iter().for_each(|(table, key, value)| tx.put(*table, key, value.clone()));
                Ok::<_, nacre_osd::OsdError>(())
            })?;
        }
        osd.commit(osd.last_transno()).await
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

/// They are read, and told to `lr_reader`, a page at a time.
#[test]
fn thousands_of_clients_and_records_come_back() {
    let (mut w, mut jobs, store, target, _) = killed(33);
    let row = ReplyRecord::from_slice(&records(&*store)[0].1).expect("a record");
    let mut rows = Vec::new();
    for n in 2..=2500_u32 {
        let client = ClientRow {
            secret: nacre_types::Secret::default(),
            uuid: ClientUuid([n.to_le_bytes(); 4].concat().try_into().expect("16 bytes")),
            generation: Generation(n),
            last_transno: Transno(0),
            name: "one of many".into(),
            role: Role::Client,
            features: 1,
            local: false,
            instance: 0,
        };
        let record = ReplyRecord { generation: Generation(n), tag: Tag(n as u16), ..row.clone() };
        rows.push((table::CLIENT, n.to_be_bytes().to_vec(), client.to_vec()));
        let key = [&n.to_be_bytes()[..], &(n as u16).to_be_bytes()[..]].concat();
        rows.push((table::REPLY, key, record.to_vec()));
    }
    put(&*store, rows);
    w.start(target);
    let last = add_client(&mut w, TARGET, 2, Role::Client);
    w.run_for(SEC);
    let tool = add_client(&mut w, TARGET, 9, Role::Tool);
    for replies in [false, true] {
        let (told, pages) = jobs.run(&mut w, tool, async move |a| {
            let (mut from, mut told, mut pages) = (bytes::Bytes::new(), 0, 0);
            loop {
                let page = a.peer.call(&RecoveryRows { replies, from }).await.expect("readable");
                (told, pages) = (told + page.rows.len(), pages + 1);
                match page.next {
                    Some(next) => from = next,
                    None => return (told, pages),
                }
            }
        });
        assert_eq!((told, pages), (2500, 3), "replies: {replies}");
    }
    assert_eq!(jobs.run(&mut w, last, |a| add(a, 5)), Ok(10), "{:?}", w.fatal);
    w.kill(target);
    w.start(target);
    assert_eq!(jobs.run(&mut w, last, |a| add(a, 5)), Ok(15), "{:?}", w.fatal);
    assert_eq!(jobs.run(&mut w, last, async |a| a.evictions.get()), 0, "it was known");
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
