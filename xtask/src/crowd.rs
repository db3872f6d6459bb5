//! `cargo xtask crowd`: what the number of mounts, and of their locks, costs the metadata target.
//!
//! The load is the example `crowd` of nacre-sim. In each round every mount asks for the attributes of one directory, so
//! that it has a lock, and then all create a file in it. The difference of two numbers of rounds is taken, so that the
//! connections of the mounts drop out.

use crate::cost::{example, instructions};
use anyhow::{Result, ensure};
use nacre_e2e::shell::run as sh;
use std::path::Path;
use std::process::Command;

const FEW_MOUNTS: u32 = 10;
/// Rounds in the shorter and the longer run.
const ROUNDS: [u32; 2] = [1, 3];
/// Instructions per create of many mounts, over those of few.
const RATIO_MAX: f64 = 2.0;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Mounts that share the directory
    #[arg(long, default_value_t = 1000)]
    mounts: u32,
    /// Locks of each of two mounts when the target is killed
    #[arg(long, default_value_t = 100_000)]
    locks: u32,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let example = example("nacre-sim", "crowd")?;
    sh(Command::new(&example).args(["return", "2", &options.locks.to_string()]))?;
    let few = per_create(&example, FEW_MOUNTS)?;
    println!("instructions per create, {FEW_MOUNTS} mounts: {few:.0}");
    let many = per_create(&example, options.mounts)?;
    println!("instructions per create, {} mounts: {many:.0}", options.mounts);
    let ratio = many / few;
    println!("ratio {ratio:.2}, the bar is {RATIO_MAX:.2}");
    ensure!(ratio <= RATIO_MAX, "a create costs too much when many mounts share a directory");
    Ok(())
}

fn per_create(example: &Path, mounts: u32) -> Result<f64> {
    let measure = |rounds: u32| {
        instructions(example, &["creates", &mounts.to_string(), &rounds.to_string()], &["*counted_visit*"])
    };
    let [short, long] = ROUNDS;
    Ok((measure(long)? as f64 - measure(short)? as f64) / f64::from(mounts * (long - short)))
}
