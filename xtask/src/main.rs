//! Everything a developer or CI runs: `cargo xtask --help`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for developers talks on the terminal")]

mod ci;
mod cost;
mod crowd;
mod mutants;
mod package;
mod policy;

use anyhow::Result;
use clap::{Parser, Subcommand};
use nacre_e2e as e2e;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks, tests and measurements of nacre")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that must be green before a change lands
    Ci,
    /// Layers, dependencies and licences; and, per crate, import circles, `pub(crate)` fields, long functions and public
    /// items without documentation, none of which may become more
    Policy(policy::Options),
    /// Whole clusters from seeds, with faults, against a model of POSIX
    Sim {
        #[arg(long, default_value_t = 1000)]
        seeds: u64,
        /// The first of them
        #[arg(long)]
        seed: Option<u64>,
        /// Further options of nacre-sim, after `--`
        #[arg(last = true)]
        options: Vec<String>,
    },
    /// Bugs planted into a copy of the tree, one at a time: the simulator must find each
    Mutants {
        #[arg(long, default_value_t = 1000)]
        seeds: u64,
        /// Only those whose name contains this
        #[arg(default_value = "")]
        only: String,
    },
    /// A Debian package of the binary with units, manual pages and completions (needs dpkg-deb)
    Package {
        /// Install it, check it with systemd's tools, mount with it, and remove it (as root)
        #[arg(long)]
        test: bool,
    },
    /// Records the profile of usual operations that optimized builds use (needs the component llvm-tools; ten minutes)
    Profile,
    /// POSIX cases on a real mount
    Pjdfstest,
    /// Source tree, git, SQLite and fio on a real mount (all, or those named); `postgres`, only by name: PostgreSQL while servers are
    /// killed, two to four minutes
    Apps { names: Vec<String> },
    /// Rare calls on two mounts: handles over a remount, OFD locks, huge sparse files, inherited ACLs
    Edges,
    /// Servers and mounts in network namespaces, in several orders, with kill -9 of each server
    Netns,
    /// kill -9, SIGSTOP and cut links of every kind of process while programs work on two mounts
    Crash(e2e::CrashOptions),
    /// Stores of an OST and the MDT on loop devices that fail, are mounted again or are copies, while a program writes
    Stores(e2e::StoreOptions),
    /// SIGSTOP, SIGKILL and takeover of servers and mounts with the lease of production (CI: a shorter one)
    Membership {
        /// Seconds; a mount is stopped for three times as long
        #[arg(long, default_value_t = 10.0)]
        lease: f64,
    },
    /// RPCs, requests of the kernel and wake-ups per operation on a real mount, beside their bars
    Trips(e2e::Trips),
    /// Rates and seconds of nacre beside other file systems, measured in turn
    #[command(subcommand)]
    Bench(Bench),
    /// Changes per second of one mount by max_mod_rpcs_in_flight, the servers a round trip away: table and picture
    Sweep(e2e::Sweep),
    /// The cost of a create in a file system full of files, against an empty one; memory and restart (in TMPDIR)
    Million {
        #[arg(long, default_value_t = 1_000_000)]
        files: u64,
        /// Turns of 10 000 files in both
        #[arg(long, default_value_t = 20)]
        rounds: u32,
    },
    /// CPU cost of a create on the metadata target, with and without reply records, and of a create and close in the
    /// island of a mount (needs valgrind)
    Cost,
    /// CPU cost of a create on the metadata target for 10 and for many mounts that share a directory (needs valgrind); the
    /// return of mounts with many locks after a kill of the target
    Crowd(crowd::Options),
    /// Stands between a client and a server and delays, drops, doubles and swaps whole frames
    Proxy(e2e::Proxy),
    /// Random changes and checks by several programs on two mounts, with a watchdog; a mount that is stopped or cut off
    Pairs(e2e::Pairs),
    /// Random operations on one file through two mounts, every byte compared with a model in memory
    Fsx(e2e::Fsx),
    /// Changes that one mount has completed are seen by the other: every change × every observation
    Matrix {
        #[arg(long, default_value_t = 100)]
        rounds: u32,
    },
}

#[derive(Subcommand)]
enum Bench {
    /// Sets up nacre, the floor of the FUSE layer and ext4 in memory, and runs `nacre bench md` and `nacre bench tree` on all
    Compare(e2e::Compare),
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Ci => ci::run(),
        Task::Policy(options) => policy::run(&options),
        Task::Sim { seeds, seed, options } => ci::sim(seeds, seed, &options),
        Task::Mutants { seeds, only } => mutants::run(seeds, &only),
        Task::Package { test: true } => package::test(),
        Task::Package { test: false } => package::build().map(|package| println!("{}", package.display())),
        Task::Profile => e2e::profile(),
        Task::Pjdfstest => e2e::pjdfstest(),
        Task::Apps { names } => e2e::apps(&names),
        Task::Edges => e2e::edges(),
        Task::Netns => e2e::netns(),
        Task::Crash(options) => e2e::crash(&options),
        Task::Stores(options) => e2e::stores(&options),
        Task::Membership { lease } => ci::membership(lease),
        Task::Bench(Bench::Compare(options)) => e2e::compare(&options),
        Task::Trips(options) => e2e::trips(&options),
        Task::Million { files, rounds } => e2e::million(files, rounds),
        Task::Sweep(sweep) => e2e::sweep(&sweep),
        Task::Cost => cost::run(),
        Task::Crowd(options) => crowd::run(&options),
        Task::Proxy(options) => e2e::proxy(&options),
        Task::Pairs(options) => e2e::pairs(&options),
        Task::Fsx(options) => e2e::fsx(&options),
        Task::Matrix { rounds } => e2e::matrix(rounds),
    }
}
