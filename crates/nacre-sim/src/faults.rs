//! The faults of a seed, and their times.
//!
//! A fault takes place some time after a number of operations have ended, so that operations are in flight however fast the
//! run is. Faults that must not cost a mount its lease are bounded: a mount is stopped or cut off for at most [`ABSENT_NS`],
//! and not twice in a row. Faults that end a lease belong to `run`, which knows the operations in flight.

use crate::cluster::{Cluster, StoreLoss};
use crate::plan::{Plan, Report};
use crate::world::{DieAt, NodeId, World};

const SECOND: u64 = 1_000_000_000;
/// A mount renews its lease (10 s) at the latest after 3 s.
const ABSENT_NS: u64 = 5_500_000_000;
/// Until it is surely connected again.
const RECOVERED_NS: u64 = 6 * SECOND;
/// The one process of all servers may be away for longer than any lease.
const SERVERS_STOP_NS: u64 = 12 * SECOND;
/// One of several only for a short while: creates fail when the MDT has no OST for 15 s.
const SERVER_STOP_NS: u64 = 5 * SECOND;
const WALL_JUMP_S: u64 = 100_000;

/// One thing that goes wrong. Numbers are those of the cluster's lists.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// A server is killed, within a visit or between two.
    Kill {
        server: usize,
        at: Option<DieAt>,
        down_ns: u64,
    },
    /// The machine of a server is lost, or its device fails.
    Machine {
        server: usize,
        loss: StoreLoss,
        down_ns: u64,
    },
    Cut {
        server: usize,
    },
    Stop {
        node: NodeId,
        ns: u64,
    },
    Partition {
        from: NodeId,
        to: NodeId,
        both: bool,
        ns: u64,
    },
    SetClock {
        node: NodeId,
        by_ns: i64,
    },
    /// The further mount dies.
    Victim(NodeId),
    /// A mount dies, and another comes in its place.
    Replace(usize),
    /// A mount is stopped for longer than its lease.
    Sleep(usize),
}

/// Faults to come.
#[derive(Default)]
pub(crate) struct Faults {
    /// After so many operations, and so much later.
    planned: Vec<(u64, u64, Fault)>,
    timed: Vec<(u64, Fault)>,
    /// No mount is cut off before this.
    mounts_rest_until_ns: u64,
}

impl Faults {
    pub(crate) fn of(plan: &Plan, cluster: &mut Cluster) -> Self {
        let (servers, mounts) = (cluster.servers.clone(), cluster.mounts.clone());
        let one_process = cluster.one_process;
        let rng = cluster.world.rng();
        let operations = u64::from(plan.ops_per_task * plan.tasks);
        let mut below = |n: u64| rng.below(n.max(1));
        let mut faults = Vec::new();
        let server = |n: u64| n as usize % servers.len();
        for _ in 0..plan.kills {
            let at = [None, None, Some(DieAt::BeforeLog), Some(DieAt::InLog), Some(DieAt::AfterLog)];
            let at = at[below(5) as usize];
            faults.push(Fault::Kill {
                server: server(below(1000)),
                at,
                down_ns: 1_000_000 + below(2 * SECOND),
            });
        }
        for _ in 0..plan.machines {
            let loss = StoreLoss::ALL[below(4) as usize];
            let down_ns = 1_000_000 + below(2 * SECOND);
            faults.push(Fault::Machine { server: server(below(1000)), loss, down_ns });
        }
        for _ in 0..plan.cuts {
            faults.push(Fault::Cut { server: server(below(1000)) });
        }
        let server_stop_ns = if one_process { SERVERS_STOP_NS } else { SERVER_STOP_NS };
        faults.extend(of_any_node(plan, &servers, &mounts, server_stop_ns, &mut below));
        faults.extend(cluster.victim.map(Fault::Victim));
        let mount = |n: u64| n as usize % mounts.len();
        if plan.replace {
            faults.push(Fault::Replace(mount(below(1000))));
        }
        if plan.sleep {
            faults.push(Fault::Sleep(mount(below(1000))));
        }
        for _ in 0..plan.lose_both {
            let mount = mount(below(1000));
            faults.push(if below(2) == 0 { Fault::Replace(mount) } else { Fault::Sleep(mount) });
        }
        let mut planned: Vec<(u64, u64, Fault)> = faults
            .into_iter()
            .map(|fault| {
                let after = below(operations);
                // Soon after it, while what came with it goes on, or somewhere in what another fault has left.
                let ns = if below(3) > 0 { below(20_000_000) } else { below(4 * SECOND) };
                (after, ns, fault)
            })
            .collect();
        planned.sort_by_key(|(after, ..)| std::cmp::Reverse(*after));
        Self { planned, ..Self::default() }
    }

    /// Nothing goes wrong any more.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Injects the faults that are due; returns the next one that the run itself must carry out.
    pub(crate) fn inject(&mut self, cluster: &mut Cluster, report: &mut Report) -> Option<Fault> {
        let now = cluster.world.now_ns();
        while let Some(&(after, delay_ns, fault)) = self.planned.last()
            && after <= report.operations
        {
            self.planned.pop();
            self.timed.push((now + delay_ns, fault));
        }
        while let Some(due) = self.timed.iter().position(|(at, _)| *at <= now) {
            let (_, fault) = self.timed.swap_remove(due);
            if let Some(fault) = self.happen(fault, cluster, report) {
                return Some(fault);
            }
        }
        None
    }

    fn happen(&mut self, fault: Fault, cluster: &mut Cluster, report: &mut Report) -> Option<Fault> {
        let now = cluster.world.now_ns();
        let is_mount = |node| cluster.mounts.contains(&node);
        let absence = match fault {
            Fault::Stop { node, ns } if is_mount(node) => Some(ns),
            Fault::Partition { from, to, ns, .. } if is_mount(from) || is_mount(to) => Some(ns),
            _ => None,
        };
        if let Some(ns) = absence {
            if now < self.mounts_rest_until_ns {
                self.timed.push((self.mounts_rest_until_ns, fault));
                return None;
            }
            self.mounts_rest_until_ns = now + ns + RECOVERED_NS;
        }
        let (one, other) = match fault {
            Fault::Stop { node, .. } | Fault::SetClock { node, .. } => (cluster.process_of(node), Vec::new()),
            Fault::Partition { from, to, .. } => (cluster.process_of(from), cluster.process_of(to)),
            _ => (Vec::new(), Vec::new()),
        };
        let world = &mut cluster.world;
        match fault {
            Fault::Kill { server, at, down_ns } => {
                let node = cluster.servers[server];
                if world.is_up(node) {
                    report.kills += 1;
                    match at {
                        Some(at) => world.kill_in_visit(node, at, down_ns),
                        None => kill(world, node, down_ns),
                    }
                }
            }
            Fault::Machine { server, loss, down_ns } => {
                report.machines += 1;
                cluster.lose_machine(server, loss, down_ns);
            }
            Fault::Cut { server } => {
                report.cuts += 1;
                world.cut_some_link(cluster.servers[server]);
            }
            Fault::Stop { ns, .. } => {
                report.outages += 1;
                one.iter().for_each(|node| world.pause_for(*node, ns));
            }
            Fault::Partition { both, ns, .. } => {
                report.outages += 1;
                for (&from, &to) in one.iter().flat_map(|from| other.iter().map(move |to| (from, to))) {
                    if one == other {
                        continue; // within a process there is no network
                    }
                    world.block_for(from, to, ns);
                    if both {
                        world.block_for(to, from, ns);
                    }
                }
            }
            Fault::SetClock { by_ns, .. } => one.iter().for_each(|node| world.set_wall(*node, by_ns)),
            Fault::Victim(mount) => {
                report.evictions += 1;
                world.kill(mount);
            }
            Fault::Replace(_) | Fault::Sleep(_) => return Some(fault),
        }
        None
    }
}

fn kill(world: &mut World, node: NodeId, down_ns: u64) {
    world.kill(node);
    world.start_later(node, down_ns);
}

/// Stops, partitions and set clocks, which may hit servers and mounts.
fn of_any_node(
    plan: &Plan,
    servers: &[NodeId],
    mounts: &[NodeId],
    server_stop_ns: u64,
    below: &mut impl FnMut(u64) -> u64,
) -> Vec<Fault> {
    let all: Vec<NodeId> = servers.iter().chain(mounts).copied().collect();
    let mut faults = Vec::new();
    for _ in 0..plan.stops {
        let node = all[below(all.len() as u64) as usize];
        let most = if mounts.contains(&node) { ABSENT_NS } else { server_stop_ns };
        let ns = if below(2) == 0 { below(most) } else { below(100_000_000) };
        faults.push(Fault::Stop { node, ns });
    }
    for _ in 0..plan.partitions {
        let server = servers[below(servers.len() as u64) as usize];
        let other = all[below(all.len() as u64) as usize];
        if server == other {
            continue;
        }
        let most = if mounts.contains(&other) { ABSENT_NS } else { SERVER_STOP_NS };
        let (from, to) = if below(2) == 0 { (server, other) } else { (other, server) };
        faults.push(Fault::Partition { from, to, both: below(2) == 0, ns: below(most) });
    }
    for _ in 0..plan.clocks {
        let node = all[below(all.len() as u64) as usize];
        let by_s = below(2 * WALL_JUMP_S) as i64 - WALL_JUMP_S as i64;
        faults.push(Fault::SetClock { node, by_ns: by_s * SECOND as i64 });
    }
    faults
}
