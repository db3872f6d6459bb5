//! `cargo xtask ci`: the same command on every desk and in CI. Steps run in order of how fast they fail.

use crate::{package, policy};
use anyhow::{Context as _, Result};
use nacre_e2e as e2e;
use nacre_e2e::shell::{cargo, run as sh};
use std::time::Instant;

/// Seeds of the smoke simulation.
const SEEDS: u64 = 1000;
/// The full matrix has 100 rounds: `cargo xtask matrix`.
const MATRIX_ROUNDS: u32 = 2;

type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("format", || sh(&mut cargo(&["fmt", "--all", "--check"]))),
    ("policy", || policy::run(&policy::Options::default())),
    ("clippy", || {
        sh(&mut cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
    }),
    ("tests", || sh(&mut cargo(&["test", "--workspace", "--quiet"]))),
    ("tests over io_uring", || {
        let args = ["test", "--package", "nacre-fuse", "--quiet", "--test", "mount", "--test", "node"];
        let killed = ["test", "--package", "nacre", "--quiet", "--test", "kernel_cache", "--", "killed"];
        e2e::with_uring(true, || sh(&mut cargo(&args)).and_then(|()| sh(&mut cargo(&killed))))
    }),
    ("simulation", || sim(SEEDS, None, &[])),
    ("package", package::test),
    ("pjdfstest", || e2e::with_uring(true, e2e::pjdfstest)),
    ("trips", || e2e::trips(&e2e::Trips::for_ci())),
    ("matrix", || e2e::with_uring(true, || e2e::matrix(MATRIX_ROUNDS))),
    ("apps", || e2e::with_uring(false, || e2e::apps(&["git", "sqlite", "fio"].map(str::to_owned)))),
    ("edges", e2e::edges),
    ("fsx", || {
        e2e::fsx(&e2e::Fsx::for_ci(true, false)).and_then(|()| e2e::fsx(&e2e::Fsx::for_ci(false, true)))
    }),
    ("netns", e2e::netns),
    ("stores", || e2e::stores(&e2e::StoreOptions::default())),
    ("crash", || e2e::crash(&e2e::CrashOptions::short(false))),
    ("crash with kept writes", || e2e::crash(&e2e::CrashOptions::short(true))),
    (
        "docs",
        || sh(cargo(&["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings")),
    ),
];

/// Runs so many seeds of the simulator from `first` on, or from its own first one.
pub(crate) fn sim(seeds: u64, first: Option<u64>, options: &[String]) -> Result<()> {
    let mut simulator = cargo(&["run", "--release", "--quiet", "--package", "nacre-sim", "--"]);
    simulator.args(["--seeds", &seeds.to_string()]);
    if let Some(first) = first {
        simulator.args(["--seed", &first.to_string()]);
    }
    sh(simulator.args(options))
}

/// The tests of `crates/nacre/tests/membership.rs` with their log lines.
pub(crate) fn membership(lease: f64) -> Result<()> {
    let args = ["test", "--package", "nacre", "--test", "membership", "--", "--nocapture"];
    sh(cargo(&args).env("NACRE_TEST_LEASE", lease.to_string()))
}

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
