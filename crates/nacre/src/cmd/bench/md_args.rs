//! The options of `nacre bench md`, and the phases that they ask for.

use super::worker::Phase;
use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
#[command(
    about = "Metadata: create, stat, read, change, lock, link, rename, remove of files and directories",
    long_about = "Metadata rates: create, stat, read, change, lock, link, rename and remove of files and\n\
        directories.\n\
        \n\
        It works on any directory of any file system, with --vs on several in turn. A temporary directory\n\
        is created and removed. Each process works in a directory of its own, in which names\n\
        are looked up without a path before them, as mdtest does. A rate is the operations of all\n\
        processes over the time from the first start to the last end.\n\
        \n\
        --sweep repeats the load on a nacre mount for several limits of modifying requests in\n\
        flight (mdc.*.max_mod_rpcs_in_flight) and shows the rates of each. The limits are restored\n\
        at the end. max_rpcs_in_flight stays constant and is large enough for all.\n\
        \n\
        --batch N leaves the kernel out: the tasks of one client, in this process, make their\n\
        changes through the client library, one by one and N in a request, in turn. A file\n\
        is made without being opened there (one request; a program needs two, open and close).",
    after_help = "Examples:\n\
        \x20 nacre bench md /mnt/nacre --vs /tmp -p 2\n\
        \x20 nacre bench md /mnt/nacre -p 16 --sweep=1,2,4,8 --picture sweep.svg\n\
        \x20 nacre bench md /mnt/nacre -p 4 --batch 64            the file system mounted there\n\
        \x20 nacre bench md 10.0.0.1:9988:/demo/bench --batch 64  no mount is needed\n\
        \x20 nacre bench md 10.0.0.1:9988:/demo --batch 1 --sweep -p 16"
)]
pub(crate) struct MdArgs {
    // The fields that are open are read by the files of this command; clap alone writes them.
    /// Directory to work in; with --batch also ADDRESS:/FS[/DIR] of a file system that is not mounted
    #[arg(value_name = "DIR")]
    pub(super) dir: String,
    /// A further directory, measured in turn with the first; a ratio column is added. Several are possible
    #[arg(long, value_name = "DIR")]
    vs: Vec<PathBuf>,
    /// Files and directories per process
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) items: u32,
    /// Processes
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) processes: u32,
    /// All processes in one directory (default: a directory each)
    #[arg(long)]
    pub(super) shared: bool,
    /// Bytes written to each file, and read in the read phase
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    pub(super) data: usize,
    /// Rounds; the median is shown
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Phases to run, in order (default: all; --sweep and --batch: the changes)
    #[arg(long, value_delimiter = ',', value_name = "PHASE,…")]
    phases: Vec<String>,
    /// Through the client library: N changes in a request (1 to 64) against one by one
    #[arg(long, value_name = "N", conflicts_with_all = ["vs", "data"], value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) batch: Option<u16>,
    /// Measure at several limits of modifying requests in flight [without a value: 1,2,4,7,16,64]
    #[arg(long, value_delimiter = ',', value_name = "LIMIT,…", num_args = 0..=1, require_equals = true,
          default_missing_value = "1,2,4,7,16,64", conflicts_with = "vs")]
    pub(super) sweep: Option<Vec<u16>>,
    /// With --sweep: draw the result into this file (SVG)
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub(super) picture: Option<PathBuf>,
    /// Print JSON with stable keys instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

impl MdArgs {
    /// The directories, in the order in which they are measured.
    pub(super) fn dirs(&self) -> Vec<PathBuf> {
        std::iter::once(PathBuf::from(&self.dir)).chain(self.vs.clone()).collect()
    }
    /// The phases that were asked for.
    pub(super) fn phases(&self, default: &[Phase]) -> Result<Vec<Phase>> {
        if self.phases.is_empty() {
            return Ok(default.to_vec());
        }
        self.phases
            .iter()
            .map(|name| {
                Phase::parse(name).with_context(|| {
                    format!("unknown phase {name:?}\nhint: one of {}", Phase::ALL.map(Phase::name).join(", "))
                })
            })
            .collect()
    }

    /// The phases for a load of the client library, which makes changes only.
    pub(super) fn changes(&self) -> Result<Vec<Phase>> {
        let phases = self.phases(&Phase::CHANGES)?;
        if let Some(phase) = phases.iter().find(|p| self.batch.is_some() && !p.is_in_library()) {
            bail!(
                "{} is not in the client library's load: --batch has {}",
                phase.name(),
                Phase::CHANGES.map(Phase::name).join(", ")
            );
        }
        Ok(phases)
    }
}
