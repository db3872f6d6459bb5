//! The plan of a seed, its report, and its failure.

use nacre_node::Rng;

/// The plan of a seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Also of the world's random source: the same seed gives the same run.
    pub seed: u64,
    /// Mounts that run operations.
    pub mounts: u32,
    /// Number of OSTs.
    pub osts: u32,
    /// Sequences of operations, each in a directory of its own, that move between mounts.
    pub tasks: u32,
    /// Operations of a task, in order.
    pub ops_per_task: u32,
    /// Files over several stripes.
    pub big: bool,
    /// Servers killed and started again.
    pub kills: u32,
    /// Servers whose machine is lost, one at a time; their clients live.
    pub machines: u32,
    /// Connections lost.
    pub cuts: u32,
    /// Processes stopped for shorter than a lease (a mount) or for as long as it likes (a server).
    pub stops: u32,
    /// Messages between two processes are blocked for a while, in one direction or both.
    pub partitions: u32,
    /// Wall clocks that are set.
    pub clocks: u32,
    /// One frame in so many is lost with its connection, doubled, or overtaken; 0 = none.
    pub noise_one_in: u64,
    /// The tasks meet on common files.
    pub common: bool,
    /// A further mount dies while it holds a lock and an open file.
    pub victim: bool,
    /// A mount dies with what it has under way, and another comes in its place.
    pub replace: bool,
    /// A mount is stopped for longer than its lease.
    pub sleep: bool,
    /// The whole machine loses its power once, and that is all (see `power`).
    pub power: bool,
    /// Mounts have one slot for changes, so that closes go together.
    pub one_slot: bool,
    /// Mounts that die or sleep, and with each the machine of a server is lost (see `loss`).
    pub lose_both: u32,
    /// Mounts keep what they write to files that no other mount has open. Only where none of them goes: it would take that
    /// with it (`nacre-sim/tests/write_back.rs`).
    pub write_back: bool,
    /// The MDT keeps so many bytes of a new file, at most.
    pub dom_bytes: u32,
}

impl Plan {
    /// Everything follows from the seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6e61_6372_6500);
        let mut pick = |n: u64| rng.below(n) as u32;
        let tasks = 1 + pick(3);
        let machines = [0, 0, 0, 1, 2, 3][pick(6) as usize];
        // A client that goes takes what it had made since with it: not at the loss of a machine, but see `lose_both`.
        let clients_go = machines == 0;
        let mut plan = Self {
            seed,
            mounts: 2 + pick(2),
            osts: 1 + pick(3),
            tasks,
            ops_per_task: (60 + pick(60)) / tasks,
            big: pick(3) == 0,
            kills: [0, 0, 1, 2, 3][pick(5) as usize],
            machines,
            cuts: [0, 1, 3, 8][pick(4) as usize],
            stops: [0, 0, 0, 1, 2][pick(5) as usize],
            partitions: [0, 0, 0, 1, 2][pick(5) as usize],
            clocks: [0, 0, 1][pick(3) as usize],
            noise_one_in: [0, 0, 0, 0, 500, 100, 20][pick(7) as usize],
            common: pick(2) == 0,
            victim: pick(4) == 0 && clients_go,
            replace: pick(5) == 0 && clients_go,
            sleep: pick(5) == 0 && clients_go,
            power: pick(6) == 0,
            one_slot: pick(3) == 0,
            // Not with further losses: a hole may then show what a lost append had left on the device (docs/recovery.md).
            lose_both: if machines == 0 { [0, 0, 0, 0, 0, 1, 1, 2][pick(8) as usize] } else { 0 },
            write_back: false,
            dom_bytes: 0,
        };
        let client_goes = plan.victim || plan.replace || plan.sleep || plan.power || plan.lose_both > 0;
        plan.write_back = !client_goes && pick(4) > 0;
        plan.dom_bytes = [0, 0, 10, 1000, 8192, 65536][pick(6) as usize];
        plan
    }
}

/// The report of a seed.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Operations that ended, those of all tasks.
    pub operations: u64,
    /// Processes killed and started again.
    pub kills: u64,
    /// Connections cut.
    pub cuts: u64,
    /// Processes that are stopped or cut off for a while.
    pub outages: u64,
    /// Mounts that died, or slept for longer than their lease.
    pub evictions: u64,
    /// Machines lost.
    pub machines: u64,
    /// Tasks whose changes were partly gone with a mount and a machine.
    pub gone: u64,
    /// Tasks that found sizes which their bytes do not have, and objects of files that are gone (see `loss`).
    pub odd_sizes: u64,
    /// Objects left of removed files, where the loss of a mount and a machine permits them.
    pub stray_objects: u64,
    /// Virtual time of the runs.
    pub virtual_ms: u64,
}
impl Report {
    /// Adds the counts of another seed.
    pub fn add(&mut self, other: &Self) {
        let Self {
            operations,
            kills,
            cuts,
            outages,
            evictions,
            machines,
            gone,
            odd_sizes,
            stray_objects,
            virtual_ms,
        } = other;
        self.operations += operations;
        self.kills += kills;
        self.cuts += cuts;
        self.outages += outages;
        self.evictions += evictions;
        self.machines += machines;
        self.gone += gone;
        self.odd_sizes += odd_sizes;
        self.stray_objects += stray_objects;
        self.virtual_ms += virtual_ms;
    }
}

/// Why a seed failed, with the last of what happened.
#[derive(Debug)]
pub struct FailedSeed {
    /// The rule that was broken, or the first difference from the model.
    pub what: String,
    /// The latest events of the world, oldest first.
    pub trace: String,
}
