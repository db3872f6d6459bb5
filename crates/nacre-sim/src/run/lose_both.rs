//! A mount dies, sleeps or is cut off for longer than its lease, and about then the machine of a server is lost.

use crate::check;
use crate::cluster::StoreLoss;
use crate::common::Common;
use crate::faults::Fault;
use crate::loss::{Left, Lost};
use crate::model::{Outcome, Value};
use crate::ops::Op;
use crate::run::{RECOVERY_NS, Run, SECOND, SLEEP_NS, STUCK_NS};
use nacre_types::Failure;
use std::collections::BTreeMap;
use std::rc::Rc;

/// No file is as large.
const WHOLE: usize = 1 << 22;

impl Run {
    /// Survivors go on; then their trees must be those that `loss` allows.
    pub(crate) fn lose_both(&mut self, mount: usize, fault: Fault) -> Result<(), String> {
        if self.common.is_some() {
            for op in Common::sync() {
                let synced = self.one(mount, op)?;
                synced.map_err(|e| format!("common files cannot be synced: {e}"))?;
            }
        }
        for running in self.tasks.iter_mut().filter_map(|task| task.running.as_mut()) {
            running.unsure = Some(mount);
        }
        let machine_first = self.below(3) == 0;
        if machine_first {
            self.lose_some_machine();
            self.pause_below(3 * SECOND);
        }
        let cut_off = self.below(2) == 0;
        let node = self.cluster.mounts[mount];
        match fault {
            Fault::Replace(_) => self.cluster.world.kill(node),
            _ if cut_off => self.hear_mount(mount, false),
            _ => self.cluster.world.pause(node, true),
        }
        if !machine_first {
            if self.below(2) == 0 {
                self.pause_below(SECOND / 20);
            }
            self.lose_some_machine();
        }
        let lost = Lost { mount, names: self.cluster.lost_ns[1] + RECOVERY_NS > self.cluster.world.now_ns() };
        match fault {
            Fault::Replace(_) => {
                for t in 0..self.tasks.len() {
                    if let Some(running) = self.tasks[t].running.take_if(|r| r.mount == mount) {
                        self.tasks[t].ended_unsure(&running.op, mount, &Err(Failure::EIO), mount)?;
                        self.report.operations += 1;
                    }
                    self.tasks[t].mount_gone(mount);
                }
                self.cluster.replace_mount(mount)?;
                self.exports_go()?;
            }
            _ => {
                self.cluster.world.run_for(SLEEP_NS);
                match cut_off {
                    true => self.hear_mount(mount, true),
                    false => self.cluster.world.pause(node, false),
                }
            }
        }
        self.wait_for_tasks()?;
        while let Err(why) = self.recoveries_are_over() {
            if self.cluster.world.now_ns() > self.cluster.world.last_fault_ns + RECOVERY_NS {
                return Err(why);
            }
            self.cluster.world.run_for(SECOND);
        }
        for t in 0..self.tasks.len() {
            for slot in self.tasks[t].slots_of(mount) {
                self.tasks[t].forget_slot(slot);
                let session = self.tasks[t].sessions[mount].clone();
                let _may_be_gone: Outcome =
                    self.call(
                        mount,
                        move |client| async move { Op::Close(slot).execute(client, session).await },
                    )?;
            }
            self.settle(t, &lost)?;
        }
        Ok(())
    }

    fn below(&mut self, n: u64) -> u64 {
        self.cluster.world.rng().below(n)
    }
    fn pause_below(&mut self, ns: u64) {
        let ns = self.below(ns);
        self.cluster.world.run_for(ns);
    }
    fn lose_some_machine(&mut self) {
        // The MGS has nothing that clients depend on.
        let server = 1 + self.below(self.cluster.servers.len() as u64 - 1) as usize;
        let down_ns = 1_000_000 + self.below(2 * SECOND);
        self.report.machines += 1;
        self.cluster.lose_machine(server, StoreLoss::Power, down_ns);
    }
    fn hear_mount(&mut self, mount: usize, hear: bool) {
        let node = self.cluster.mounts[mount];
        for server in self.cluster.servers.clone() {
            for (from, to) in [(node, server), (server, node)] {
                match hear {
                    true => self.cluster.world.heal(from, to),
                    false => self.cluster.world.block(from, to),
                }
            }
        }
    }

    fn wait_for_tasks(&mut self) -> Result<(), String> {
        let until = self.cluster.world.now_ns() + STUCK_NS;
        while self.tasks.iter().any(|task| task.running.is_some()) {
            if self.cluster.world.now_ns() > until {
                return Err("a mount and a machine went, and an operation does not end".into());
            }
            self.cluster.world.run_for(SECOND / 100);
            self.collect()?;
        }
        Ok(())
    }

    /// Looks at the tree, ends sizes that are not those of the bytes, reads through every handle: that must be a state that
    /// may be.
    fn settle(&mut self, t: usize, lost: &Lost) -> Result<(), String> {
        let survivor = (lost.mount + 1) % self.cluster.mounts.len();
        let mut tree = self.walk(survivor, t)?;
        let mut odd_sizes = BTreeMap::new();
        for (path, seen) in tree.iter().filter(|(_, seen)| seen.stat.kind == 'f') {
            if seen.stat.size == seen.bytes.len() as u64 {
                continue;
            }
            odd_sizes.insert(path.clone(), seen.stat.size as usize);
            let has = seen.bytes.len() as u64;
            self.one(survivor, Op::Truncate(path.clone(), has))?
                .map_err(|e| format!("{path} cannot be truncated after a loss: {e}"))?;
        }
        if !odd_sizes.is_empty() {
            self.report.odd_sizes += 1;
            tree = self.walk(survivor, t)?;
        }
        // A size that is too small hides bytes from a walk, not from a handle: so handles come after the truncates.
        let mut handles = BTreeMap::new();
        for (slot, owner) in self.tasks[t].slot_owner.clone() {
            let session = self.tasks[t].sessions[owner].clone();
            let read = Op::ReadSlot { slot, offset: 0, len: WHOLE };
            match self.call(owner, move |client| async move { read.execute(client, session).await })? {
                Ok(Value::Bytes(bytes)) => handles.insert(slot, bytes),
                other => return Err(format!("handle {slot} on mount{owner} gave {other:?} after a loss")),
            };
        }
        // The last operations and the truncates may not be durable yet; the next loss begins here.
        self.one(survivor, Op::SyncAll)?.map_err(|e| format!("a sync after a loss: {e}"))?;
        let gone = self.tasks[t].settle(lost, &Left { tree, handles, odd_sizes }).map_err(|why| {
            let (mount, why) = (lost.mount, why.join("\n  "));
            format!(
                "after the loss of mount{mount} and a machine task {t} sees no state that may be:\n  {why}"
            )
        })?;
        self.report.gone += u64::from(gone.anything);
        self.files_gone += gone.files;
        Ok(())
    }
    fn walk(&mut self, mount: usize, t: usize) -> Result<check::Tree, String> {
        let base = self.tasks[t].base.clone();
        let walk = move |client: Rc<nacre_client::Client>| async move {
            check::walk_what_is_left(&client, &base).await
        };
        let seen: Result<check::Tree, Failure> = self.call(mount, walk)?;
        seen.map_err(|e| format!("mount{mount} cannot be walked after a loss: {e}"))
    }
}
