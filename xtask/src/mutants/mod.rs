//! `cargo xtask mutants`: bugs that are planted one at a time into a copy of the tree; the tests must find each.
//!
//! A mutation replaces a text that occurs exactly once in its file. Therefore the product contains no code for
//! mutations, and a mutation whose text has changed is an error instead of being skipped silently. The copy has its own
//! target directory and is built without optimisation, because an optimised build would take longer than the tests. If
//! a mutation names a test, that test must fail; otherwise the simulator runs seeds first, then its scripts. A bug that
//! nothing finds is printed as `not found`, and the command fails.
//!
//! The mutations are in one file per area.

mod client;
mod dom;
mod fuse;
mod kept_log;
mod local_flocks;
mod locks;
mod logged;
mod mdt;
mod net;
mod osd;
mod ost;
mod rpc;
mod target;

use anyhow::{Context as _, Result, ensure};
use nacre_e2e::shell::{cargo, output, root};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Mutation {
    name: &'static str,
    file: &'static str,
    /// Texts and their replacements; each text occurs once in the file.
    edits: &'static [(&'static str, &'static str)],
    /// Package, test target (`lib`: the tests beside the code), test. `None`: any seed or script of the simulator.
    test: Option<(&'static str, &'static str, &'static str)>,
}

const fn planted(
    name: &'static str,
    file: &'static str,
    edits: &'static [(&'static str, &'static str)],
) -> Mutation {
    Mutation { name, file, edits, test: None }
}
impl Mutation {
    const fn found_by(self, package: &'static str, tests: &'static str, test: &'static str) -> Self {
        Self { test: Some((package, tests, test)), ..self }
    }
}

/// Every planted bug.
fn mutations() -> impl Iterator<Item = &'static Mutation> {
    [
        client::MUTATIONS,
        dom::MUTATIONS,
        fuse::MUTATIONS,
        kept_log::MUTATIONS,
        local_flocks::MUTATIONS,
        locks::MUTATIONS,
        logged::MUTATIONS,
        mdt::MUTATIONS,
        net::MUTATIONS,
        osd::MUTATIONS,
        ost::MUTATIONS,
        rpc::MUTATIONS,
        target::MUTATIONS,
    ]
    .into_iter()
    .flatten()
}

/// Plants each bug whose name contains `only`, and looks for it in `seeds` seeds.
pub(crate) fn run(seeds: u64, only: &str) -> Result<()> {
    let tree = root().join("target/mutants/tree");
    let mut missed = 0;
    println!("{:<48} found by", "planted bug");
    for mutation in mutations().filter(|m| m.name.contains(only)) {
        copy_tree(&tree)?;
        let file = tree.join(mutation.file);
        std::fs::write(&file, mutated(mutation)?)?;
        // One that cannot be built does not keep the others from being tried.
        let found = hunt(&tree, mutation, seeds).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", mutation.name);
            None
        });
        missed += u32::from(found.is_none());
        println!("{:<48} {}", mutation.name, found.unwrap_or_else(|| "not found".into()));
    }
    ensure!(missed == 0, "{missed} planted bugs were not found");
    Ok(())
}

/// Returns the text of the file with the bug in it.
fn mutated(m: &Mutation) -> Result<String> {
    let mut text = std::fs::read_to_string(root().join(m.file)).context(m.file)?;
    for (from, to) in m.edits {
        let times = text.matches(from).count();
        ensure!(times == 1, "{}: {from:?} occurs {times} times in {}, but must occur once", m.name, m.file);
        text = text.replacen(from, to, 1);
    }
    Ok(text)
}

/// Copies the files that git tracks, in their present state. Unchanged files keep their times, so that little is rebuilt.
/// Files of an earlier copy that no longer exist are removed: `tests/a.rs` beside `tests/a/main.rs` would stop cargo.
fn copy_tree(to: &Path) -> Result<()> {
    if to.exists() {
        remove_stale(to, &root())?;
    }
    let files = output(Command::new("git").args(["ls-files"]).current_dir(root()))?;
    for name in files.lines() {
        let (from, to) = (root().join(name), to.join(name));
        let Ok(bytes) = std::fs::read(&from) else { continue }; // deleted, but not committed
        if std::fs::read(&to).is_ok_and(|old| old == bytes) {
            continue;
        }
        std::fs::create_dir_all(to.parent().unwrap_or(&to))?;
        // With its permissions: `profile/rustc` is a program.
        std::fs::copy(&from, &to)?;
    }
    Ok(())
}

fn remove_stale(copy: &Path, original: &Path) -> Result<()> {
    for entry in std::fs::read_dir(copy)? {
        let entry = entry?;
        let original = original.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => remove_stale(&entry.path(), &original)?,
            false if original.exists() => {}
            false => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Returns the seed or the test that fails.
fn hunt(tree: &Path, mutation: &Mutation, seeds: u64) -> Result<Option<String>> {
    let target: PathBuf = root().join("target/mutants/target");
    let here = |args: &[&str]| {
        let mut command = cargo(args);
        command.current_dir(tree).env("CARGO_TARGET_DIR", &target);
        command
    };
    if let Some((package, tests, test)) = mutation.test {
        let mut test_of = vec!["test", "--quiet", "--package", package];
        match tests {
            "lib" => test_of.push("--lib"),
            _ => test_of.extend(["--test", tests]),
        }
        output(here(&test_of).arg("--no-run"))?;
        let ended = here(&test_of).args(["--", "--exact", test]).output()?;
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        ensure!(!said.contains(" 0 passed; 0 failed"), "{}: no test {test} in {tests}", mutation.name);
        return Ok((!ended.status.success()).then(|| format!("{tests}: {test}")));
    }
    output(&mut here(&["build", "--quiet", "--package", "nacre-sim"]))?;
    let seeds = seeds.to_string();
    let said = Command::new(target.join("debug/nacre-sim"))
        .args(["--seeds", &seeds, "--trace", "1", "--failures", "1"])
        .output()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    if let Some(line) = said.lines().find(|line| line.starts_with("seed ")) {
        return Ok(Some(line.chars().take(120).collect()));
    }
    let tests = here(&["test", "--quiet", "--package", "nacre-sim"]).output()?;
    let said = String::from_utf8_lossy(&tests.stdout).into_owned();
    let failed = said.lines().find(|line| line.starts_with("---- "));
    Ok((!tests.status.success()).then(|| failed.unwrap_or("a script").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutation_fits() {
        let wrong: Vec<String> =
            mutations().filter_map(|m| mutated(m).err()).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn every_named_test_exists() {
        let source = |package: &str, tests: &str, test: &str| {
            let folder = root().join("crates").join(package).join("tests");
            let file = match test.rsplit_once("::") {
                Some((module, _)) if tests == "lib" => {
                    // The tests are in a file of their own, or in that of the module.
                    let file = |module: &str| format!("../src/{}.rs", module.replace("::", "/"));
                    let own = file(module);
                    let is_there = folder.join(&own).exists();
                    if is_there { own } else { file(module.trim_end_matches("::tests")) }
                }
                Some((module, _)) => format!("{tests}/{}.rs", module.replace("::", "/")),
                None if folder.join(tests).join("main.rs").exists() => format!("{tests}/main.rs"),
                None => format!("{tests}.rs"),
            };
            std::fs::read_to_string(folder.join(file)).unwrap_or_default()
        };
        for mutation in mutations() {
            let Some((package, tests, test)) = mutation.test else { continue };
            let function = format!("fn {}(", test.rsplit("::").next().unwrap_or(test));
            let exists = source(package, tests, test).contains(&function);
            assert!(exists, "{}: no test {test} in {package}, {tests}", mutation.name);
        }
    }
}
