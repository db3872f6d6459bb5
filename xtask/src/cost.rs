//! `cargo xtask cost`: instructions that the metadata target, and the island of a mount, need for a change or a lookup,
//! counted by valgrind.
//!
//! The loads are the example `create_cost` of nacre-mdt, the real target in the simulator, and `request_cost` of
//! nacre-fuse, a mount that gets the kernel's requests there. Only the work of that island is counted, and the difference
//! of two runs is taken, so that the set-up drops out; the figure hardly depends on other work of the machine.

use anyhow::{Context as _, Result, ensure};
use nacre_e2e::shell::{cargo, root, run as sh};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Changes in the shorter and the longer run.
const COUNTS: [u64; 2] = [500, 2500];

pub(crate) fn run() -> Result<()> {
    let example = example("nacre-mdt", "create_cost")?;
    println!("{:<16} {:>14} {:>14} {:>9}", "instructions for", "with records", "without", "records");
    for (op, shown) in [("create", "create + close"), ("mkdir", "mkdir")] {
        let with = per_change(&example, op, "with")?;
        let without = per_change(&example, op, "without")?;
        let share = format!("{:.1} %", (with - without) / with * 100.0);
        println!("{shown:<16} {with:>14.0} {without:>14.0} {share:>9}");
    }
    for op in ["unlink", "rename", "lookup"] {
        println!("{op:<16} {:>14.0}", per_change(&example, op, "with")?);
    }
    of_a_mount()
}

/// Instructions of the island of a mount, with all requests of the kernel for a call of a program.
fn of_a_mount() -> Result<()> {
    let example = self::example("nacre-fuse", "request_cost")?;
    println!("{:<16} {:>14}", "in the mount", "instructions");
    for op in ["create", "mkdir", "unlink", "rename", "stat"] {
        let shown = if op == "create" { "create + close" } else { op };
        let per_call =
            difference(|count| instructions(&example, &[op, &count.to_string()], &["*counted_visit*"]))?;
        println!("{shown:<16} {per_call:>14.0}");
    }
    Ok(())
}

fn per_change(example: &Path, op: &str, records: &str) -> Result<f64> {
    let functions = ["*visit_mdt*", "*log_mdt*"];
    difference(|count| instructions(example, &[op, records, &count.to_string()], &functions))
}
/// The instructions of one operation, from runs with few and with many of them.
fn difference(measure: impl Fn(u64) -> Result<u64>) -> Result<f64> {
    let [few, many] = COUNTS;
    let (less, more) = (measure(few)?, measure(many)?);
    Ok((more - less) as f64 / (many - few) as f64)
}

/// Builds an example of a crate for a measurement.
pub(crate) fn example(package: &str, name: &str) -> Result<PathBuf> {
    sh(&mut cargo(&["build", "--release", "--quiet", "--package", package, "--example", name]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(target.join("release/examples").join(name))
}

/// Instructions of an example within the functions that hold all of the counted island's work.
pub(crate) fn instructions(example: &Path, args: &[&str], functions: &[&str]) -> Result<u64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    valgrind.args(functions.iter().map(|function| format!("--toggle-collect={function}")));
    valgrind.arg(example).args(args);
    let out = valgrind.output().context("valgrind cannot be started: is it installed?")?;
    let text = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "valgrind ended with {}:\n{text}", out.status);
    let found = text.lines().find_map(|line| line.split_once("Collected : "));
    let (_, number) = found.with_context(|| format!("valgrind counted nothing:\n{text}"))?;
    Ok(number.trim().parse()?)
}
