//! The nacre binary: servers, mounts and tools behind one command line.
//!
//! Only wiring lives here: parse, put islands, stores and sockets together, run, print. The meaning of
//! requests is in the crates below. Called through a link named `lfs`, `lctl`, `lr_reader` or `mount.nacre` it is that command.

#![allow(rustdoc::broken_intra_doc_links, reason = "help texts show HOST[:PORT]; they are no Markdown")]

mod cli;
mod cmd;
mod output;
mod process;
mod query;

#[cfg(test)]
#[path = "../../../fuzz/support/replay.rs"]
#[allow(dead_code, reason = "the seeds are written by tests/corpus.rs")]
mod replay;

use clap::Parser as _;
use cmd::{check, mount_helper};
use process::detach;
use std::io::Write as _;
use std::process::ExitCode;

/// A mount and its servers keep millions of small rows: glibc's search for a free piece costs 12 % of a create in a
/// file system of a million files.
#[global_allocator]
static ALLOCATOR: nacre_rt::Allocator = nacre_rt::Allocator;

fn main() -> ExitCode {
    let mut args: Vec<_> = std::env::args_os().collect();
    let called = args.first().map(std::path::PathBuf::from);
    let name = called.as_ref().and_then(|p| p.file_name()).and_then(|n| n.to_str()).unwrap_or("");
    if matches!(name, "lfs" | "lctl" | "lr_reader") {
        args.insert(1, name.into());
    }
    if matches!(name, "mount.nacre" | "mount.fuse.nacre") {
        return match mount_helper::run(args.into_iter().skip(1)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                output::error(name, &error);
                ExitCode::from(1)
            }
        };
    }
    let cli = match cli::Cli::try_parse_from(args) {
        Ok(cli) => cli,
        // Help is output as any other.
        Err(said) => match said.print().and_then(|()| std::io::stdout().flush()) {
            Ok(()) => return ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2)),
            Err(error) => {
                output::note(&format!("nacre: output was lost: {error}"));
                return ExitCode::from(1);
            }
        },
    };
    match cli::run(cli.chosen()) {
        Ok(code) => match output::lost_output().filter(|_| !cli.chosen().is_serving()) {
            None => code,
            Some(lost) => {
                // A pipe that is closed early (`nacre status | head -1`) is no error to talk of.
                if lost != rustix::io::Errno::PIPE {
                    output::note(&format!("nacre: output was lost: {lost}"));
                }
                ExitCode::from(1)
            }
        },
        Err(error) if error.is::<check::Incomplete>() => ExitCode::from(check::Incomplete::STATUS),
        Err(error) => {
            if !error.is::<detach::AlreadyReported>() {
                // The field's tools begin so, and scripts look for it.
                output::error(if matches!(name, "lctl" | "lfs") { "error" } else { "nacre" }, &error);
            }
            ExitCode::from(1)
        }
    }
}
