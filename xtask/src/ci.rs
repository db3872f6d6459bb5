//! `cargo xtask ci`: the same command on every desk and in CI. Steps run in order of how fast they fail.

use crate::policy;
use crate::shell::{cargo, run as sh};
use anyhow::{Context as _, Result};
use std::time::Instant;

type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("format", || sh(&mut cargo(&["fmt", "--all", "--check"]))),
    ("policy", policy::run),
    ("clippy", || {
        sh(&mut cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
    }),
    ("tests", || sh(&mut cargo(&["test", "--workspace", "--quiet"]))),
    (
        "docs",
        || sh(cargo(&["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings")),
    ),
];

pub(crate) fn run() -> Result<()> {
    let mut times = Vec::new();
    for (name, step) in STEPS {
        eprintln!("== {name}");
        let start = Instant::now();
        step().with_context(|| format!("step {name}"))?;
        times.push(format!("{name} {:.0} s", start.elapsed().as_secs_f64()));
    }
    println!("{}", times.join(", "));
    println!("{} passed, 0 failed", STEPS.len());
    Ok(())
}
