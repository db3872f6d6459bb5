//! `--detach`: the same command again in a session of its own; the first one shows what it says and ends.
//!
//! The child writes its banner to a pipe and closes it when it is up; if the child fails before that, its message
//! and its exit status are the parent's.

use crate::say;
use anyhow::{Context as _, Result, bail};
use std::cell::Cell;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Set in the background process.
const VARIABLE: &str = "NACRE_DETACHED";

#[derive(clap::Args, Debug)]
pub(crate) struct ChildArgs {}

impl ChildArgs {
    #[allow(clippy::unused_self, reason = "reads as a property of the arguments")]
    pub(crate) fn is_child(&self) -> bool {
        std::env::var_os(VARIABLE).is_some()
    }
    /// Leaves the terminal, in the background process only.
    pub(crate) fn detach(&self) -> Result<()> {
        if self.is_child() {
            std::env::set_current_dir("/")?;
        }
        Ok(())
    }
}

/// Starts this command again in the background; returns when it is up.
pub(crate) fn spawn() -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let mut text = String::new();
    child.stdout.take().context("no pipe")?.read_to_string(&mut text)?;
    say::raw(&text);
    if text.contains("\nnext: ") {
        return Ok(());
    }
    let mut why = String::new();
    child.stderr.take().context("no pipe")?.read_to_string(&mut why)?;
    let status = child.wait()?;
    bail!(
        "{}",
        if why.trim().is_empty() { format!("the background process ended: {status}") } else { strip(&why) }
    );
}

/// The child's own `nacre: ` is not said twice.
fn strip(why: &str) -> String {
    why.trim().strip_prefix("nacre: ").unwrap_or(why.trim()).to_owned()
}

/// Where a starting process talks: a terminal, or the pipe to the parent.
pub(crate) struct Talk {
    detached: bool,
    live: say::Live,
    open: Cell<bool>,
}

impl Talk {
    pub(crate) fn new(args: &ChildArgs) -> Self {
        Self { detached: args.is_child(), live: say::Live::new(), open: Cell::new(true) }
    }
    pub(crate) fn is_detached(&self) -> bool {
        self.detached
    }
    pub(crate) fn line(&self, text: &str) {
        if self.open.get() {
            say::line(text);
        }
    }
    /// A live line per service: on a terminal as it happens, otherwise only its last word.
    pub(crate) fn service(&self, name: &str, state: &str) {
        if self.open.get() {
            self.live.state(name, state, matches!(state, "up" | "mounted"));
        }
    }
    /// The live lines end here; ordinary ones follow.
    pub(crate) fn services_end(&self) {
        self.live.end();
    }
    /// It is up: a parent goes on.
    pub(crate) fn done(&self) {
        if self.detached {
            self.open.set(false);
            say::close_stdout();
        }
    }
}
