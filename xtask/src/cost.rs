//! `cargo xtask cost`: instructions that the metadata target needs for a change, counted by valgrind.
//!
//! The load is the example `create_cost` of nacre-mdt: the real target in the simulator. Only what the target does
//! is counted, and the difference of two runs is taken, so that the set-up drops out; the figure hardly depends on
//! what else the machine does.

use anyhow::{Context as _, Result, ensure};
use nacre_e2e::shell::{cargo, root, run as sh};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Changes in the shorter and the longer run.
const COUNTS: [u64; 2] = [500, 2500];

pub(crate) fn run() -> Result<()> {
    sh(&mut cargo(&["build", "--release", "--quiet", "--package", "nacre-mdt", "--example", "create_cost"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let example = target.join("release/examples/create_cost");
    println!("{:<16} {:>14} {:>14} {:>9}", "instructions for", "with records", "without", "records");
    for (op, shown) in [("create", "create + close"), ("mkdir", "mkdir")] {
        let with = per_change(&example, op, "with")?;
        let without = per_change(&example, op, "without")?;
        let share = format!("{:.1} %", (with - without) / with * 100.0);
        println!("{shown:<16} {with:>14.0} {without:>14.0} {share:>9}");
    }
    Ok(())
}

fn per_change(example: &Path, op: &str, records: &str) -> Result<f64> {
    let [few, many] = COUNTS;
    let (less, more) = (instructions(example, op, records, few)?, instructions(example, op, records, many)?);
    Ok((more - less) as f64 / (many - few) as f64)
}

/// Within the functions of the example that hold all of the target's work.
fn instructions(example: &Path, op: &str, records: &str, count: u64) -> Result<u64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    valgrind.args(["--toggle-collect=*visit_mdt*", "--toggle-collect=*log_mdt*"]);
    valgrind.arg(example).args([op, records, &count.to_string()]);
    let out = valgrind.output().context("valgrind cannot be started: is it installed?")?;
    let text = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "valgrind ended with {}:\n{text}", out.status);
    let found = text.lines().find_map(|line| line.split_once("Collected : "));
    let (_, number) = found.with_context(|| format!("valgrind counted nothing:\n{text}"))?;
    Ok(number.trim().parse()?)
}
