//! The end of a seed: checks the trees, then the idle targets, then their stores after the stop.

use crate::check;
use crate::common::Common;
use crate::ops::{Op, SLOTS};
use crate::run::{Run, SECOND};
use crate::{model::Outcome, offline};
use nacre_node::store::Store;
use nacre_types::Failure;
use std::collections::BTreeMap;

/// Numbers that are 0 on a server without clients.
const LEAVES: [&str; 6] =
    ["open_files", "file_locks", "file_locks_waiting", "unsettled_files", "lock_count", "lock_waiting"];

impl Run {
    /// Everything that must hold at the end.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.compare()?;
        self.remove_all()?;
        self.shut_down()?;
        // The MGS comes first, then the MDT, then the OSTs.
        let stores: Vec<&dyn Store> = self.cluster.stores.iter().map(|s| &**s).collect();
        match stores.as_slice() {
            [mgs, mdt, osts @ ..] => {
                offline::check(*mdt, osts, true)?;
                for (n, store) in [*mgs, *mdt].iter().chain(osts).enumerate() {
                    let name = self.cluster.world.name(self.cluster.servers[n]).to_string();
                    offline::check_records(*store).map_err(|what| format!("{name}: {what}"))?;
                }
                Ok(())
            }
            _ => Err("a file system without an MDT".into()),
        }
    }

    /// Every mount shows what the models say.
    fn compare(&mut self) -> Result<(), String> {
        // The effects of a fault end, and servers that were killed come back.
        if let Some(victim) = self.cluster.victim
            && self.cluster.world.is_up(victim)
        {
            self.cluster.world.kill(victim);
        }
        self.faults.clear();
        self.cluster.world.end_faults();
        self.cluster.world.run_for(3 * SECOND);
        for slot in 0..SLOTS {
            for t in 0..self.tasks.len() {
                let Some(&owner) = self.tasks[t].slot_owner.get(&slot) else { continue };
                self.tasks[t].forget_slot(slot);
                let session = self.tasks[t].sessions[owner].clone();
                let run = move |client| async move { Op::Close(slot).execute(client, session).await };
                let closed: Outcome = self.call(owner, run)?;
                if closed.is_err() {
                    return Err(format!("the last close on mount{owner} gave {closed:?}"));
                }
            }
        }
        for mount in 0..self.cluster.mounts.len() {
            for t in 0..self.tasks.len() {
                let base = self.tasks[t].base.clone();
                let run = move |client: std::rc::Rc<nacre_client::Client>| async move {
                    check::walk(&client, &base).await
                };
                let seen: Result<_, Failure> = self.call(mount, run)?;
                let seen = seen.map_err(|e| format!("mount{mount} cannot be walked: {e}"))?;
                self.tasks[t].compare(&seen).map_err(|differences| {
                    format!("mount{mount} shows another tree:\n  {}", differences.join("\n  "))
                })?;
            }
        }
        if let Some(common) = self.common.take() {
            let reads = common.take(&mut self.cluster.jobs)?;
            for mount in 0..self.cluster.mounts.len() {
                let seen = self.call(mount, Common::read)?;
                reads.check(&seen.map_err(|e: Failure| format!("common files on mount{mount}: {e}"))?)?;
            }
        }
        Ok(())
    }

    /// Removes every file; then nothing of them may be left on any target.
    fn remove_all(&mut self) -> Result<(), String> {
        let removed: Result<(), Failure> =
            self.call(0, |client| async move { check::remove_all(&client).await })?;
        removed.map_err(|e| format!("the trees cannot be removed: {e}"))?;
        // An evicted mount's files go with its lease, objects after a commit.
        let mut last = BTreeMap::new();
        for _ in 0..40 {
            self.cluster.world.run_for(SECOND);
            last = self.files()?;
            if last == self.usual_files {
                return Ok(());
            }
        }
        // OSTs are not notified of a file whose create is lost: at most one object stays on each, and nothing on the MDT.
        let strays = |name: &str| last[name].saturating_sub(self.usual_files[name]);
        let osts: Vec<u64> =
            last.keys().filter(|name| name.contains("OST")).map(|name| strays(name)).collect();
        let others = last.keys().all(|name| name.contains("OST") || last[name] == self.usual_files[name]);
        if others && osts.iter().all(|strays| *strays <= self.files_gone) {
            self.report.stray_objects += osts.iter().sum::<u64>();
            return Ok(());
        }
        Err(format!("something is left of removed files: {last:?}, before them {:?}", self.usual_files))
    }

    /// Objects or inodes in use, by target.
    pub(crate) fn files(&mut self) -> Result<BTreeMap<String, u64>, String> {
        for _ in 0..30 {
            let found = self.call(0, |client| async move { client.statfs_targets().await })?;
            let found = found.map_err(|e| format!("statfs: {e}"))?;
            // One that was not reached in time tells nothing.
            let files = found.into_iter().map(|(name, reply)| Some((name, reply.ok()?.files_used)));
            if let Some(files) = files.collect() {
                return Ok(files);
            }
            self.cluster.world.run_for(SECOND);
        }
        Err("statfs does not reach all targets".into())
    }

    /// No open, no lock, no wait, no unsettled size, no export stays on a server without clients.
    fn nothing_left(&mut self) -> Result<(), String> {
        let mut left = Vec::new();
        for _ in 0..30 {
            left = self
                .cluster
                .params(|name| name.rsplit('.').next().is_some_and(|leaf| LEAVES.contains(&leaf)));
            left.retain(|(_, _, value)| value.trim() != "0");
            for (server, exports) in self.cluster.exports() {
                let usual = self.usual_exports[&server] - self.mounts_at_start;
                if exports != usual {
                    left.push((server, "num_exports".into(), format!("{exports}, without mounts {usual}")));
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            self.cluster.world.run_for(SECOND);
        }
        Err(format!("left on servers without clients: {left:?}"))
    }

    /// Unmounts, stops, and looks at what is left.
    fn shut_down(&mut self) -> Result<(), String> {
        for mount in 0..self.cluster.mounts.len() {
            let mut left = vec![String::from("?")];
            for _ in 0..200 {
                left = self.call(mount, |client| async move { crate::mount::left_at_rest(&client) })?;
                if left.is_empty() {
                    break;
                }
                // It asks the MGS now and then, which may wait in its recovery for a mount that went.
                self.cluster.world.run_for(SECOND / 10);
            }
            if !left.is_empty() {
                return Err(format!("mount{mount} has at rest: {}", left.join(", ")));
            }
            self.call(mount, |client| async move { client.unmount().await })?;
        }
        let world = &mut self.cluster.world;
        world.run_for(SECOND);
        for &mount in &self.cluster.mounts {
            let tasks = world.live_tasks(mount);
            if tasks != 0 {
                return Err(format!("{} has {tasks} tasks after its unmount", world.name(mount)));
            }
        }
        for (&server, &usual) in self.cluster.servers.iter().zip(&self.usual_tasks) {
            // Work in the background may take its time; a leak stays.
            let until = world.now_ns() + 60 * SECOND;
            if !world.run_until(until, |world| world.live_tasks(server) <= usual) {
                let tasks = world.live_tasks(server);
                return Err(format!(
                    "{} has {tasks} tasks at rest, {usual} before the work",
                    world.name(server)
                ));
            }
        }
        self.nothing_left()?;
        self.cluster.stop_servers()
    }
}
