//! `nacre bench md`: the phases of mdtest on any directory of any file system.
//!
//! With `--vs DIR` the same phases run on further directories, interleaved phase by phase and round by round, so that a
//! noisy machine disturbs all alike; the ratio is the figure to quote. A rate is operations of all processes over the
//! time from the first start to the last end.

use super::crew::{Crew, OnMount};
use super::library::Library;
use super::md_args::MdArgs;
use super::report::{self, Unit};
use super::worker::Phase;
use super::{batch, sweep};
use anyhow::Result;
use serde::Serialize;
use std::path::Path;

/// The options in the report.
#[derive(Serialize)]
struct Load {
    processes: u32,
    items_per_process: u32,
    shared_directory: bool,
    data_bytes: usize,
}

pub(crate) fn run(args: &MdArgs) -> Result<()> {
    match (&args.sweep, args.batch) {
        (Some(limits), None) => sweep::run(args, limits, &mut OnMount::new(args)?),
        (Some(limits), Some(batch)) => sweep::run(args, limits, &mut Library::start(args, batch)?),
        (None, Some(batch)) => batch::run(args, batch),
        (None, None) => compare(args),
    }
}

/// One directory, or several in turn.
fn compare(args: &MdArgs) -> Result<()> {
    let phases = args.phases(&Phase::ALL)?;
    let names: Vec<_> = phases.iter().map(|phase| phase.name()).collect();
    let dirs = args.dirs();
    let load = Load {
        processes: args.processes,
        items_per_process: args.items,
        shared_directory: args.shared,
        data_bytes: args.data,
    };
    let start = |dir: &Path, round| Crew::start(dir, round, args);
    let run = |crew: &mut Crew, at: usize| crew.run(phases[at]);
    report::measure((&dirs, Unit::Rate, load), &names, args.rounds, start, run)?.print(args.json, |load| {
        format!(
            "{} process(es), {} items each, {} directory, {} bytes per file, {} round(s)",
            load.processes,
            load.items_per_process,
            if load.shared_directory { "one shared" } else { "own" },
            load.data_bytes,
            args.rounds
        )
    })
}
