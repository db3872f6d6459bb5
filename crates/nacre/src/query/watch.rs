//! Requests through a mount that may never reply: a child process sends them, so that the command can give up.
//!
//! A thread would not do: a process does not end while one of its threads waits in the kernel for a mount whose process
//! is stopped. A child that is given up is killed, and ends when the mount replies or is unmounted.

use crate::process::detach::AlreadyReported;
use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Set in a child; its stdin is a socket to the command.
const VARIABLE: &str = "NACRE_ASKS";

fn is_child() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

fn child(args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args).env(VARIABLE, "1");
    Ok(command)
}

/// Does `work` in a child process, which is given up when one of its requests ([`asks`]) gets no reply within `limit`.
pub(crate) fn within(limit: Duration, work: impl FnOnce() -> Result<()>) -> Result<()> {
    if is_child() {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        return work();
    }
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let mut child = child(args)?.arg0(name).stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
    let mut asked = String::new();
    loop {
        let mut ready = [PollFd::new(&ours, PollFlags::IN)];
        if poll(&mut ready, Some(&timespec(limit)))? == 0 {
            drop(child.kill());
            bail!("{}", no_reply(&asked, limit));
        }
        let mut buffer = [0; 8192];
        let len = ours.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        // The latest; a path may hold anything, so a question ends with a NUL.
        let text = String::from_utf8_lossy(buffer.get(..len).unwrap_or_default());
        asked = text.trim_end_matches('\0').rsplit('\0').next().unwrap_or_default().to_owned();
    }
    match child.wait()?.code() {
        Some(0) => Ok(()),
        Some(_) => Err(anyhow::Error::msg(AlreadyReported)),
        None => bail!("{asked}: the process that asked was ended by a signal"),
    }
}

/// The same, but with a limit only if one was requested: by default the command waits for a change.
pub(crate) fn within_or_wait(limit: Option<u64>, work: impl FnOnce() -> Result<()>) -> Result<()> {
    match limit {
        Some(seconds) => within(Duration::from_secs(seconds), work),
        None => work(),
    }
}

/// Says what is asked next; the time of the question begins.
pub(crate) fn asks(path: &Path) {
    if is_child() {
        let question = format!("{}\0", path.display());
        // The parent has ended: the message has no reader.
        let _ = rustix::io::write(rustix::stdio::stdin(), question.as_bytes());
    }
}

fn no_reply(asked: &str, limit: Duration) -> String {
    format!(
        "{asked}: no reply within {} s: its servers may be away, or the process of the mount stands still\n\
         hint: nacre status; --timeout waits longer",
        limit.as_secs()
    )
}

/// Reads an attribute of each of some paths, all at the same time; the results are in the order of the paths.
pub(crate) fn attributes(paths: &[PathBuf], name: &str, limit: Duration) -> Vec<Result<String>> {
    let until = Instant::now() + limit;
    let questions: Vec<_> = paths.iter().map(|path| Question::start(path, name)).collect();
    let reply = |(path, question): (&PathBuf, Result<Question>)| question?.reply(path, until, limit);
    paths.iter().zip(questions).map(reply).collect()
}

/// A child that reads one attribute.
struct Question {
    process: OwnedFd,
    output: mpsc::Receiver<std::io::Result<std::process::Output>>,
}
impl Question {
    fn start(path: &Path, name: &str) -> Result<Self> {
        let mut command = child(["lfs", "attribute", name])?;
        let child = command
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a process that asks")?;
        let process = pidfd(&child)?;
        let (sender, output) = mpsc::sync_channel(1);
        // It ends with the child; if that cannot end, with this process.
        let wait = move || drop(sender.send(child.wait_with_output()));
        std::thread::Builder::new().name("question".into()).spawn(wait)?;
        Ok(Self { process, output })
    }
    fn reply(self, path: &Path, until: Instant, limit: Duration) -> Result<String> {
        let Ok(output) = self.output.recv_timeout(until.saturating_duration_since(Instant::now())) else {
            let _ = pidfd_send_signal(&self.process, Signal::KILL);
            bail!("{}", no_reply(&path.display().to_string(), limit));
        };
        let output = output?;
        if output.status.success() {
            return String::from_utf8(output.stdout).context("the mount returned something that is not text");
        }
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}", said.trim().trim_start_matches("nacre: "))
    }
}

fn pidfd(child: &Child) -> Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a child has a pid")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn timespec(limit: Duration) -> Timespec {
    Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() }
}

/// Runs in the child of [`attributes`].
pub(crate) fn reply(path: &Path, name: &str) -> Result<()> {
    let text = crate::cmd::lfs::attribute(path, name)?;
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
