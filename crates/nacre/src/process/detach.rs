//! `--detach`: starts the same command again in a session of its own; the first process prints its output and ends.
//!
//! The child writes its banner to a pipe and closes it when the service is up. Until then it shares stderr and the signals
//! of the terminal with the parent, and ends with it.

use crate::output;
use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;
use std::cell::Cell;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

/// Set in the background process.
const VARIABLE: &str = "NACRE_DETACHED";

#[derive(clap::Args, Debug)]
pub(crate) struct ChildArgs {}

impl ChildArgs {
    #[allow(clippy::unused_self, reason = "reads as a property of the arguments")]
    pub(crate) fn is_child(&self) -> bool {
        in_background()
    }
    /// In the background process only: leaves the directory, and does not outlive the command before it is up.
    pub(crate) fn detach(&self) -> Result<()> {
        if self.is_child() {
            std::env::set_current_dir("/")?;
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
        }
        Ok(())
    }
}

/// Whether this process was started in the background by [`spawn`].
pub(crate) fn in_background() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Starts this command again in the background; returns when it is up.
pub(crate) fn spawn() -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdout = BufReader::new(child.stdout.take().context("no pipe")?);
    let (mut line, mut up) = (String::new(), false);
    while stdout.read_line(&mut line)? > 0 {
        up |= line.starts_with("next: ");
        output::raw(&line);
        line.clear();
    }
    if up {
        return Ok(());
    }
    match child.wait()?.signal() {
        Some(signal) => bail!("the background process was ended by signal {signal} before it was up"),
        None => Err(anyhow::Error::msg(AlreadyReported)),
    }
}

/// The child has failed and has printed the error itself.
#[derive(Debug)]
pub(crate) struct AlreadyReported;
impl std::fmt::Display for AlreadyReported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the background process has failed")
    }
}

/// Output of a process that is starting: to a terminal, or into the pipe to the parent.
pub(crate) struct Talk {
    detached: bool,
    live: output::Live,
    open: Cell<bool>,
}

impl Talk {
    pub(crate) fn new(args: &ChildArgs) -> Self {
        Self { detached: args.is_child(), live: output::Live::new(), open: Cell::new(true) }
    }
    pub(crate) fn is_detached(&self) -> bool {
        self.detached
    }
    pub(crate) fn line(&self, text: &str) {
        if self.open.get() {
            output::line(text);
        }
    }
    /// The state of a service. On a terminal its line is updated in place; otherwise only the final state is printed.
    pub(crate) fn service(&self, name: &str, state: &str) {
        if self.open.get() {
            self.live.state(name, state, matches!(state, "up" | "mounted"));
        }
    }
    /// The live lines end here; ordinary ones follow.
    pub(crate) fn services_end(&self) {
        self.live.end();
    }
    /// Reports that the process is up, so that its parent ends.
    pub(crate) fn done(&self) {
        if self.detached {
            self.open.set(false);
            // In a session of its own it gets no more signals from the terminal.
            let alone = rustix::process::set_parent_process_death_signal(None)
                .and_then(|()| rustix::process::setsid());
            if let Err(error) = alone {
                tracing::warn!(%error, "the process is still attached to its terminal");
            }
            output::close_stdout();
        }
    }
}
