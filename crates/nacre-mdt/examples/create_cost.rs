//! The load of `cargo xtask cost`: N changes, or lookups, through a metadata target in the simulator, the same at every run.
//!
//! `create_cost create|mkdir|lookup|unlink with|without N`. Everything that the target does for a message happens in
//! [`visit_mdt`] and [`log_mdt`], so that a profiler can count these alone: no client, network or object target.
//! As in a process of nacre, memory comes from mimalloc, and as by a mount, closes that say nothing are sent together.
#![allow(clippy::unwrap_used, reason = "a measurement")]

#[allow(dead_code, unused_imports, reason = "the tests use the rest")]
#[path = "../tests/target/support.rs"]
mod support;

use nacre_mdt::Mdt;
use nacre_node::{Ctx, Event, Logic, StoreError, StoreOp};
use nacre_target::TargetConfig;
use nacre_types::{Codec as _, Fid, OpenHandle};
use nacre_wire::Opcode;
use nacre_wire::mdt::{BATCH_MAX, Batch, Close, SubOperation};
use std::rc::Rc;
use support::{Cluster, DIR, O_RDWR, REG};

/// Files that are looked up.
const LOOKED_UP: u32 = 500;
/// Files of which some are removed: more than any N.
const REMOVABLE: u32 = 3000;

#[global_allocator]
static ALLOCATOR: nacre_rt::Allocator = nacre_rt::Allocator;

/// A metadata target whose work is done where it can be counted.
struct Counted(Box<dyn Logic>);

#[inline(never)]
fn visit_mdt(mdt: &mut dyn Logic, event: Event) {
    mdt.handle(event);
    mdt.ctx().clone().run();
}
#[inline(never)]
fn log_mdt(mdt: &mut dyn Logic, out: &mut Vec<StoreOp>) {
    mdt.log_writes(out);
}

impl Logic for Counted {
    fn ctx(&self) -> &Rc<Ctx> {
        self.0.ctx()
    }
    fn handle(&mut self, event: Event) {
        visit_mdt(&mut *self.0, event);
    }
    fn log_writes(&mut self, out: &mut Vec<StoreOp>) {
        log_mdt(&mut *self.0, out);
    }
    fn log_failed(&mut self, error: &StoreError) {
        self.0.log_failed(error);
    }
}

fn with_records(ctx: &Rc<Ctx>, config: TargetConfig) -> Box<dyn Logic> {
    Box::new(Counted(nacre_sim::bed::target::<Mdt>(ctx, config)))
}
fn without_records(ctx: &Rc<Ctx>, config: TargetConfig) -> Box<dyn Logic> {
    with_records(ctx, TargetConfig { reply_records: false, ..config })
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, op, records, count] = &args[..] else {
        panic!("create_cost create|mkdir|lookup|unlink|rename with|without N")
    };
    let (mkdir, lookup, unlink, rename) = (op == "mkdir", op == "lookup", op == "unlink", op == "rename");
    let count = count.parse::<u32>().unwrap();
    let make = if records == "without" { without_records } else { with_records };
    let mut cluster = Cluster::with_mdt(nacre_types::MdtIndex::ROOT, 1, 2, 1, make);
    cluster.run(0, move |client| async move {
        let mut closes = Vec::new();
        let changes = match (lookup, unlink || rename) {
            (true, _) => LOOKED_UP,
            (_, true) => REMOVABLE,
            _ => count,
        };
        for n in 0..changes {
            let name = format!("file.0.{n}");
            if mkdir {
                client.make(Fid::ROOT, name.as_bytes(), DIR).await.unwrap();
            } else {
                let handle = u64::from(n) + 1;
                let open = Some((handle, O_RDWR));
                let made = client.make_open(Fid::ROOT, name.as_bytes(), REG, open, true).await.unwrap();
                closes.push(close(made.entry.attr.fid, handle));
            }
            if closes.len() == BATCH_MAX || n + 1 == changes && !mkdir {
                let operations = std::mem::take(&mut closes);
                client.call(&Batch { stop_at_error: false, operations }).await.unwrap();
            }
        }
        for n in 0..if lookup { count } else { 0 } {
            client.lookup(Fid::ROOT, format!("file.0.{}", n % LOOKED_UP).as_bytes()).await.unwrap();
        }
        for n in 0..if unlink { count } else { 0 } {
            client.unlink(Fid::ROOT, format!("file.0.{n}").as_bytes(), false).await.unwrap();
        }
        for n in 0..if rename { count } else { 0 } {
            let (from, to) = (format!("file.0.{n}"), format!("file.1.{n}"));
            client.rename((Fid::ROOT, from.as_bytes()), (Fid::ROOT, to.as_bytes()), 0).await.unwrap();
        }
    });
}

fn close(fid: Fid, handle: u64) -> SubOperation {
    let close =
        Close { fid, handle: OpenHandle(handle), dirty: false, written: None, atime: None, data: None };
    SubOperation { opcode: Opcode::Close as u16, body: close.to_vec().into() }
}
