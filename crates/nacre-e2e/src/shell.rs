//! Running commands, and where things are.

use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(PathBuf::from).unwrap_or_default()
}

/// A cargo command at the root.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs to the end; a failure names the command.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", show(command));
    let status = command.status().with_context(|| format!("cannot start {}", show(command)))?;
    ensure!(status.success(), "{} ended with {status}", show(command));
    Ok(())
}

/// Runs and returns stdout as text.
pub fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("cannot start {}", show(command)))?;
    ensure!(
        out.status.success(),
        "{} ended with {}: {}",
        show(command),
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn show(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    words.join(" ")
}
