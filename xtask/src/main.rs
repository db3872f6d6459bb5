//! Everything a developer or CI runs: `cargo xtask --help`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for developers talks on the terminal")]

mod ci;
mod cost;
mod e2e;
mod mutants;
mod package;
mod policy;
mod shell;

use anyhow::Result;
use clap::{Parser, Subcommand};
use nacre_testkit::proxy::{self, ProxyFaults};

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
    /// Messages and wake-ups per operation on a real mount
    Trips,
    /// Changes per second of one mount by max_mod_rpcs_in_flight, the servers a round trip away: table and picture
    Sweep {
        /// Round trip, microseconds
        #[arg(long, default_value_t = 1000)]
        rtt_us: u64,
        /// Processes on the mount, a directory each
        #[arg(short, long, default_value_t = 16)]
        processes: u32,
        /// Files and directories of each
        #[arg(short = 'n', long, default_value_t = 100)]
        items: u32,
        #[arg(short, long, default_value_t = 3)]
        rounds: u32,
        #[arg(long, value_delimiter = ',', default_value = "1,2,4,7,16,64")]
        limits: Vec<u16>,
        /// The client library alone, without the kernel's look-ups
        #[arg(long)]
        library: bool,
        /// Draws here (SVG)
        #[arg(long)]
        picture: Option<std::path::PathBuf>,
    },
    /// What a create costs in a file system full of files, against an empty one; memory and restart (TMPDIR says where)
    Million {
        #[arg(long, default_value_t = 1_000_000)]
        files: u64,
        /// Turns of 10 000 files in both
        #[arg(long, default_value_t = 20)]
        rounds: u32,
    },
    /// CPU cost of a create on the metadata target, with and without reply records (needs valgrind)
    Cost,
    /// Stands between a client and a server and delays, drops, doubles and swaps whole frames
    Proxy {
        /// Where clients connect (what the server advertises)
        #[arg(long)]
        listen: String,
        /// Where the server listens
        #[arg(long)]
        to: String,
        /// Each way, microseconds
        #[arg(long, default_value_t = 500)]
        delay_us: u64,
        /// One frame in so many; 0 = none
        #[arg(long, default_value_t = 0)]
        drop_one_in: u64,
        #[arg(long, default_value_t = 0)]
        double_one_in: u64,
        #[arg(long, default_value_t = 0)]
        swap_one_in: u64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// What one mount has completed the other sees: every change × every observation
    Matrix {
        #[arg(long, default_value_t = 100)]
        rounds: u32,
    },
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Ci => ci::run(),
        Task::Policy(options) => policy::run(&options),
        Task::Sim { seeds, seed, options } => ci::sim(seeds, seed, &options),
        Task::Mutants { seeds, only } => mutants::run(seeds, &only),
        Task::Package { test: true } => package::test(),
        Task::Package { test: false } => package::build().map(|package| println!("{}", package.display())),
        Task::Pjdfstest => e2e::pjdfstest(),
        Task::Apps { names } => e2e::apps(&names),
        Task::Edges => e2e::edges(),
        Task::Netns => e2e::netns(),
        Task::Crash(options) => e2e::crash(&options),
        Task::Stores(options) => e2e::stores(&options),
        Task::Membership { lease } => ci::membership(lease),
        Task::Trips => e2e::trips(),
        Task::Million { files, rounds } => e2e::million(files, rounds),
        Task::Sweep { rtt_us, processes, items, rounds, limits, library, picture } => {
            e2e::sweep(&e2e::Sweep { rtt_us, processes, items, rounds, limits, library, picture })
        }
        Task::Cost => cost::run(),
        Task::Proxy { listen, to, delay_us, drop_one_in, double_one_in, swap_one_in, seed } => {
            let delay = std::time::Duration::from_micros(delay_us);
            let faults = ProxyFaults { delay, drop_one_in, double_one_in, swap_one_in, seed };
            Ok(proxy::run(&std::net::TcpListener::bind(listen)?, &to, faults)?)
        }
        Task::Matrix { rounds } => e2e::matrix(rounds),
    }
}
