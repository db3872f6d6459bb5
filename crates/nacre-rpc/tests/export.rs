//! Scripts of requests against an export: what is executed, gets its reply from a record, is dropped or refused.

use bytes::Bytes;
use nacre_rpc::{Admission, Export, PreVersions, ReplyRecord};
use nacre_types::{ConnEpoch, Errno, Fid, Generation, ProtocolOutcome, Tag, Transno, Xid};
use nacre_wire::{Class, Header, Kind, Opcode, flags};

fn request(xid: u64, tag: u16, last_xid: u64, epoch: u32) -> Header {
    let mut h = Header::new(Kind::Request, Opcode::Create.number());
    (h.xid, h.tag, h.last_xid, h.epoch) = (Xid(xid), Tag(tag), Xid(last_xid), ConnEpoch(epoch));
    h
}
fn resent(xid: u64, tag: u16, last_xid: u64, epoch: u32) -> Header {
    let mut h = request(xid, tag, last_xid, epoch);
    h.flags |= flags::RESENT;
    h
}
fn record(xid: u64, tag: u16, transno: u64) -> ReplyRecord {
    ReplyRecord {
        transno: Transno(transno),
        xid: Xid(xid),
        data: 0,
        result: 0,
        generation: Generation(1),
        tag: Tag(tag),
        pre_versions: PreVersions::default(),
        results: vec![],
        fid: Fid::ROOT,
    }
}
fn export() -> Export {
    let mut e = Export::new(Generation(1));
    e.connect(ConnEpoch(1), 7).expect("the script");
    e
}
/// Admits and executes a change, and sends its reply.
fn change(e: &mut Export, h: &Header, transno: u64) {
    assert_eq!(e.admit(h, Class::Modify), Admission::Execute);
    e.remember(record(h.xid.0, h.tag.0, transno));
    assert_eq!(e.finish(h.xid, h.epoch), Some(h.epoch));
}
fn xids(e: &Export) -> Vec<u64> {
    e.records().map(|r| r.xid.0).collect()
}

#[test]
fn resend_after_lost_reply_returns_first_result() {
    let mut e = export();
    change(&mut e, &request(5, 1, 4, 1), 100);
    e.connect(ConnEpoch(2), 7).expect("the script");
    assert_eq!(e.admit(&resent(5, 1, 4, 2), Class::Modify), Admission::Reply(record(5, 1, 100)));
}

#[test]
fn resend_of_a_running_request_is_dropped_and_its_reply_goes_to_the_newest_epoch() {
    let mut e = export();
    assert_eq!(e.admit(&request(5, 1, 4, 1), Class::Modify), Admission::Execute);
    assert_eq!(e.admit(&request(6, 2, 4, 1), Class::Modify), Admission::Execute);
    e.connect(ConnEpoch(2), 7).expect("the script");
    assert_eq!(e.admit(&resent(5, 1, 4, 2), Class::Modify), Admission::Drop);
    e.remember(record(5, 1, 100));
    assert_eq!(e.finish(Xid(5), ConnEpoch(1)), Some(ConnEpoch(2)));
    e.remember(record(6, 2, 101));
    assert_eq!(
        e.finish(Xid(6), ConnEpoch(1)),
        None,
        "its copy has not come yet and will get the reply of the record"
    );
    assert_eq!(e.admit(&resent(6, 2, 4, 2), Class::Modify), Admission::Reply(record(6, 2, 101)));
}

#[test]
fn a_copy_of_an_abandoned_request_is_executed_and_the_task_of_the_first_sends_no_reply() {
    let mut e = export();
    assert_eq!(e.admit(&request(5, 1, 4, 1), Class::Modify), Admission::Execute);
    e.abandon(Xid(5));
    e.connect(ConnEpoch(2), 7).expect("the script");
    assert_eq!(e.admit(&resent(5, 1, 4, 2), Class::Modify), Admission::Execute);
    assert_eq!(e.finish(Xid(5), ConnEpoch(1)), None);
    assert_eq!(e.admit(&resent(5, 1, 4, 2), Class::Modify), Admission::Drop, "the second is still executed");
    assert_eq!(e.finish(Xid(5), ConnEpoch(2)), Some(ConnEpoch(2)));
}

#[test]
fn a_request_of_an_old_epoch_is_dropped_silently() {
    let mut e = export();
    e.connect(ConnEpoch(2), 7).expect("the script");
    assert_eq!(e.admit(&request(5, 1, 4, 1), Class::Modify), Admission::Drop);
    assert_eq!(e.last_xid(), Xid(0), "and says nothing");
    assert_eq!(e.connect(ConnEpoch(2), 7), Err(ProtocolOutcome::StaleEpoch));
}

#[test]
fn an_obsolete_duplicate_is_a_protocol_error() {
    let mut e = export();
    change(&mut e, &request(5, 1, 4, 1), 100);
    change(&mut e, &request(6, 1, 5, 1), 101);
    assert_eq!(e.admit(&request(5, 1, 4, 1), Class::Modify), Admission::Error(Errno::EPROTO));
    assert_eq!(e.admit(&request(3, 0, 2, 1), Class::Read), Admission::Error(Errno::EPROTO));
}

#[test]
fn an_older_xid_of_the_same_tag_is_a_protocol_error() {
    let mut e = export();
    change(&mut e, &request(7, 1, 4, 1), 100);
    assert_eq!(e.admit(&request(6, 1, 4, 1), Class::Modify), Admission::Error(Errno::EPROTO));
}

#[test]
fn a_doubled_message_of_a_failed_change_is_not_executed_again() {
    let mut e = export();
    assert_eq!(e.admit(&request(5, 1, 4, 1), Class::Modify), Admission::Execute);
    assert_eq!(e.finish(Xid(5), ConnEpoch(1)), Some(ConnEpoch(1)));
    assert_eq!(e.admit(&request(5, 1, 4, 1), Class::Modify), Admission::Drop);
    e.connect(ConnEpoch(2), 7).expect("the script");
    assert_eq!(e.admit(&resent(5, 1, 4, 2), Class::Modify), Admission::Execute, "its reply was lost");
}

#[test]
fn records_go_with_last_xid_but_never_the_one_with_the_highest_transno() {
    let mut e = export();
    change(&mut e, &request(5, 1, 4, 1), 101);
    change(&mut e, &request(6, 2, 4, 1), 100);
    change(&mut e, &request(7, 3, 4, 1), 99);
    assert_eq!(xids(&e), [5, 6, 7]);
    assert_eq!(e.admit(&request(8, 0, 7, 1), Class::Read), Admission::Execute);
    assert_eq!(xids(&e), [5]);
    change(&mut e, &request(9, 1, 8, 1), 102);
    assert_eq!(xids(&e), [9], "a newer one is safe");
}

#[test]
fn records_that_last_xid_releases_are_counted_also_when_they_were_the_newest() {
    let mut e = export();
    for xid in 5..=9 {
        change(&mut e, &request(xid, 1 + (xid % 2) as u16, xid - 1, 1), 100 + xid);
    }
    assert_eq!((xids(&e), e.record_counts()), (vec![9], (1, 4, 0)));
}

#[test]
fn a_record_goes_when_its_tag_is_used_again() {
    let mut e = export();
    change(&mut e, &request(5, 1, 3, 1), 100);
    change(&mut e, &request(6, 2, 3, 1), 101);
    change(&mut e, &request(7, 1, 3, 1), 102);
    assert_eq!(xids(&e), [6, 7], "xid 4 has no reply, so last_xid alone would keep 5");
}

#[test]
fn an_older_running_request_of_a_reused_tag_leaves_no_record() {
    let mut e = export();
    assert_eq!(e.admit(&request(5, 1, 4, 1), Class::Modify), Admission::Execute);
    change(&mut e, &request(6, 1, 4, 1), 101);
    e.remember(record(5, 1, 100));
    assert_eq!(xids(&e), [6]);
}

#[test]
fn tags_beyond_the_agreed_limit_are_refused() {
    let mut e = export();
    assert_eq!(e.admit(&request(5, 10, 4, 1), Class::Modify), Admission::Error(Errno::EPROTO));
    assert_eq!(e.admit(&request(5, 0, 4, 1), Class::Modify), Admission::Error(Errno::EPROTO));
    assert_eq!(e.admit(&request(5, 9, 4, 1), Class::Close), Admission::Execute);
}

/// The limit may have been a higher one before it.
#[test]
fn after_a_restart_tags_of_the_time_before_are_not_refused() {
    let mut e = Export::restore(Generation(1), Transno(90), []);
    e.connect(ConnEpoch(4), 8).expect("the script");
    assert_eq!(e.admit(&resent(9, 64, 6, 4), Class::Modify), Admission::Execute);
    assert_eq!(e.admit(&resent(10, 514, 6, 4), Class::Modify), Admission::Error(Errno::EPROTO));
}

#[test]
fn after_a_restart_records_decide_and_the_highest_transno_is_known() {
    let mut e = Export::restore(Generation(1), Transno(90), [record(8, 2, 101), record(7, 1, 100)]);
    assert_eq!(e.last_transno(), Transno(101));
    e.connect(ConnEpoch(4), 7).expect("the script");
    assert_eq!(e.admit(&resent(7, 1, 6, 4), Class::Modify), Admission::Reply(record(7, 1, 100)));
    assert_eq!(e.admit(&resent(9, 3, 6, 4), Class::Modify), Admission::Execute);
    let mut replay = request(3, 5, 0, 4);
    replay.flags |= flags::REPLAY;
    assert_eq!(e.admit(&replay, Class::Modify), Admission::Execute, "older than last_xid, and wanted");
}

#[test]
fn callbacks_are_sent_again_on_each_epoch_until_acknowledged() {
    let mut e = export();
    let first = e.callback(Opcode::LockGranted, Bytes::from_static(b"1")).expect("the script");
    let second = e.callback(Opcode::LockGranted, Bytes::from_static(b"2")).expect("the script");
    assert!(first.header.xid < second.header.xid);
    e.handle_callback_ack(first.header.xid);
    e.connect(ConnEpoch(2), 7).expect("the script");
    let again = e.callbacks();
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].header.xid, again[0].header.epoch), (second.header.xid, ConnEpoch(2)));
    e.handle_callback_ack(second.header.xid);
    assert_eq!(e.unacknowledged_callbacks(), 0);
}

#[test]
fn a_flood_is_refused() {
    let mut e = export();
    let mut refused = 0;
    for n in 0..2 * nacre_rpc::RUNNING_MAX as u64 {
        refused += u32::from(e.admit(&request(5 + n, 0, 4, 1), Class::Read) != Admission::Execute);
    }
    assert_eq!((e.running().len(), refused), (nacre_rpc::RUNNING_MAX, 1024));
    let mut acked = 0;
    while e.callback(Opcode::LockGranted, Bytes::new()).is_ok() {
        acked += 1;
    }
    assert_eq!(acked, 16_384);
}

/// They are remembered beyond a request that has no reply: until the connection ends, or there are too many.
#[test]
fn locks_that_are_asked_for_beyond_a_request_without_a_reply_have_a_bound() {
    let mut e = export();
    let enqueue = |e: &mut Export, xid: u64, epoch: u32| {
        let mut h = Header::new(Kind::Request, Opcode::Enqueue.number());
        (h.xid, h.epoch) = (Xid(xid), ConnEpoch(epoch));
        let admitted = e.admit(&h, Class::Read);
        e.finish(h.xid, h.epoch);
        admitted
    };
    let refused = (1..2_000_000).find(|xid| enqueue(&mut e, *xid, 1) != Admission::Execute);
    let refused = refused.expect("a bound");
    assert!(refused > 1_000_000, "{refused}: sooner than a slow device is to blame");
    assert_eq!(enqueue(&mut e, refused, 1), Admission::Error(Errno::EPROTO));
    e.connect(ConnEpoch(2), 7).expect("it connects again");
    assert_eq!(enqueue(&mut e, refused, 2), Admission::Execute);
    assert_eq!(enqueue(&mut e, refused, 2), Admission::Drop, "a doubled message");
}
