//! Store operations: who carries them out, what waits for what, what a failure does.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
use bytes::Bytes;
use common::{Order, Puppet, Report, next, node, reports, tell};
use nacre_node::{Event, FileId, FileKind, Store, StoreDone, StoreError, StoreOp};
use nacre_rt::{EndReason, IoThreads};
use nacre_types::{Fid, ObjectId, Oid, Seq};
use std::sync::{Arc, Condvar, Mutex};

/// Records who did what; `Len` is served in place, the rest is for others; syncs wait for the gate.
#[derive(Default)]
struct Recorder {
    log: Mutex<Vec<String>>,
    gate: Mutex<Gate>,
    changed: Condvar,
}
#[derive(Default)]
struct Gate {
    closed: bool,
    waiting: usize,
}
impl Recorder {
    fn note(&self, text: &str) {
        let thread = std::thread::current().name().unwrap_or("?").to_owned();
        self.log.lock().unwrap().push(format!("{text} on {thread}"));
    }
    fn list(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
    fn close_gate(&self) {
        self.gate.lock().unwrap().closed = true;
    }
    fn wait_for_waiters(&self, n: usize) {
        let gate = self.gate.lock().unwrap();
        drop(self.changed.wait_while(gate, |g| g.waiting < n).unwrap());
    }
    fn open_gate(&self) {
        self.gate.lock().unwrap().closed = false;
        self.changed.notify_all();
    }
    fn pass_gate(&self) {
        let mut gate = self.gate.lock().unwrap();
        gate.waiting += 1;
        self.changed.notify_all();
        gate = self.changed.wait_while(gate, |g| g.closed).unwrap();
        gate.waiting -= 1;
    }
}
impl Store for Recorder {
    fn execute(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        match op {
            StoreOp::Sync { file } | StoreOp::SyncWritten { file, .. } => {
                self.pass_gate();
                self.note(&format!("sync {file:?}"));
                Ok(StoreDone::Unit)
            }
            StoreOp::Write { offset: 13, .. } => Err(StoreError::Device("bad sector".into())),
            StoreOp::Write { offset, .. } => {
                self.note(&format!("write {offset}"));
                Ok(StoreDone::Unit)
            }
            StoreOp::Read { offset, .. } => {
                self.pass_gate();
                self.note(&format!("read {offset}"));
                Ok(StoreDone::Bytes(Bytes::new()))
            }
            _ => Ok(StoreDone::Len(Some(1))),
        }
    }
    fn try_execute(&self, op: StoreOp) -> Result<Result<StoreDone, StoreError>, StoreOp> {
        match op {
            StoreOp::Len { .. } => {
                self.note("len");
                Ok(self.execute(op))
            }
            StoreOp::Write { .. } => Ok(self.execute(op)),
            op => Err(op),
        }
    }
}

const LOG: FileId = FileId::Log(1);
fn write(offset: u64, bytes: usize) -> StoreOp {
    StoreOp::Write { file: LOG, offset, data: vec![vec![0; bytes].into()] }
}

#[test]
fn what_does_not_block_is_done_in_place_and_the_rest_by_its_thread() {
    let (node, _) = node(1);
    let store = Arc::new(Recorder::default());
    let (sink, heard) = reports();
    let a = node.add_island("a", Some(store.clone()), Some(sink), Puppet::make(false)).unwrap();
    let here = std::thread::current().name().unwrap().to_owned();
    let tell_and_wait = |op| {
        tell(&a, Order::Io(vec![op]));
        next(&heard)
    };
    tell_and_wait(StoreOp::Len { file: LOG });
    tell_and_wait(write(1, 1000));
    tell_and_wait(write(2, 1 << 20));
    tell_and_wait(StoreOp::Read { file: LOG, offset: 3, len: 10 });
    tell_and_wait(StoreOp::Sync { file: LOG });
    let done = store.list();
    assert_eq!(
        done,
        [
            format!("len on {here}"),
            format!("write 1 on {here}"),
            "write 2 on io-0".to_owned(),
            "read 3 on io-meta-0".to_owned(),
            "sync Log(1) on sync-a".to_owned(),
        ]
    );
    node.shutdown();
}

/// Each class of operations has threads of its own: those that a device holds up hold up no others.
#[test]
fn syncs_that_hang_delay_neither_transfers_nor_metadata_nor_each_others_class() {
    let (node, _) = node(1);
    let store = Arc::new(Recorder::default());
    let (sink, heard) = reports();
    let a = node.add_island("a", Some(store.clone()), Some(sink), Puppet::make(false)).unwrap();
    let blob = |n| FileId::Blob(ObjectId { fid: Fid::new(Seq(0x100), Oid(n)), stripe: 0 });
    store.close_gate();
    // More than there are threads for, of both kinds.
    let syncs = 40;
    tell(&a, Order::Io((0..syncs).map(|n| StoreOp::Sync { file: blob(n) }).collect()));
    let aside = |n| StoreOp::SyncWritten { file: blob(n), len: 0, aside: true };
    tell(&a, Order::Io((0..syncs).map(aside).collect()));
    let threads = IoThreads::default();
    store.wait_for_waiters(threads.syncs + threads.background);
    tell(&a, Order::Io(vec![write(7, 1 << 20)]));
    assert_eq!(next(&heard), Report::Text("Ok(Unit)".into()));
    tell(&a, Order::Io(vec![StoreOp::List { kind: FileKind::Run, after: None, limit: 1 }]));
    assert_eq!(next(&heard), Report::Text("Ok(Len(Some(1)))".into()));
    store.open_gate();
    for _ in 0..2 * syncs {
        assert_eq!(next(&heard), Report::Text("Ok(Unit)".into()));
    }
    let list = store.list();
    assert!(list.iter().any(|line| line == "write 7 on io-0"), "{list:?}");
    let count = |thread: &str| list.iter().filter(|l| l.contains("sync") && l.contains(thread)).count();
    assert_eq!((count("on io-sync-"), count("on io-back-")), (syncs as usize, syncs as usize), "{list:?}");
    node.shutdown();
}

#[test]
fn one_sync_serves_all_that_had_asked_before_it_began() {
    let (node, _) = node(1);
    let store = Arc::new(Recorder::default());
    let (sink, heard) = reports();
    let a = node.add_island("a", Some(store.clone()), Some(sink), Puppet::make(false)).unwrap();
    store.close_gate();
    tell(&a, Order::Io(vec![StoreOp::Sync { file: LOG }]));
    store.wait_for_waiters(1);
    tell(&a, Order::Io((0..10).map(|_| StoreOp::Sync { file: LOG }).collect()));
    store.open_gate();
    for _ in 0..11 {
        assert_eq!(next(&heard), Report::Text("Ok(Unit)".into()));
    }
    assert_eq!(store.list().len(), 2, "the first, and one for the ten");
    node.shutdown();
}

#[test]
fn the_log_is_written_before_any_effect_of_the_visit_and_its_failure_ends_the_island() {
    let (node, ends) = node(1);
    let store = Arc::new(Recorder::default());
    let (sink, heard) = reports();
    let a = node.add_island("a", Some(store.clone()), Some(sink), Puppet::make(false)).unwrap();
    tell(&a, Order::Log(write(1, 10)));
    assert_eq!((store.list().len(), heard.try_recv()), (1, Ok(Report::Text("logged".into()))));
    tell(&a, Order::Log(write(13, 10)));
    assert!(heard.try_recv().is_err(), "its report must not leave");
    assert_eq!(
        *ends.lock().unwrap(),
        [("a".to_owned(), EndReason::Fatal("log of a: device: bad sector".into()))]
    );
    a.deliver(Event::Stop);
    assert!(!a.is_alive());
    node.shutdown();
}

#[test]
fn the_end_of_an_island_is_told_after_its_last_store_operation() {
    let (node, ends) = node(1);
    let store = Arc::new(Recorder::default());
    let a = node.add_island("a", Some(store.clone()), None, Puppet::make(false)).unwrap();
    store.close_gate();
    tell(&a, Order::Io(vec![StoreOp::Read { file: LOG, offset: 0, len: 1 }]));
    store.wait_for_waiters(1);
    tell(&a, Order::Fatal);
    assert!(!a.is_alive());
    assert!(ends.lock().unwrap().is_empty(), "a read is still under way");
    tell(&a, Order::Io(vec![StoreOp::Len { file: LOG }]));
    store.open_gate();
    assert_eq!(a.wait_end(common::LIMIT), Some(EndReason::Fatal("as ordered".into())));
    assert_eq!(ends.lock().unwrap().len(), 1);
    assert_eq!(store.list(), ["read 0 on io-meta-0"], "nothing after the end");
    node.shutdown();
}
