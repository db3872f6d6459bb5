//! Output for people: data on stdout; messages, errors and progress on stderr. No other file prints.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is where the binary prints")]

pub(crate) mod log;

use anyhow::Result;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicI32, Ordering};

/// The first error of stdout, 0 if there was none.
static LOST: AtomicI32 = AtomicI32::new(0);

/// A line of output.
pub(crate) fn line(text: &str) {
    remember(writeln!(std::io::stdout(), "{}", harmless(text)));
}

/// Output without a newline.
pub(crate) fn raw(text: &str) {
    let text = harmless(text);
    remember(write!(std::io::stdout(), "{text}").and_then(|()| std::io::stdout().flush()));
}

/// A name of a file for people, as `ls -b` writes it: control characters, backslashes and bytes that are no text as escapes,
/// so that a name is on one line and can be told from every other. JSON has names as they are.
pub(crate) fn name(name: impl AsRef<OsStr>) -> String {
    let mut shown = String::new();
    for chunk in name.as_ref().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => shown.push_str("\\\\"),
                '\n' => shown.push_str("\\n"),
                '\t' => shown.push_str("\\t"),
                '\r' => shown.push_str("\\r"),
                c if c.is_control() => {
                    let octal = |byte: &u8| format!("\\{byte:03o}");
                    shown.extend(c.encode_utf8(&mut [0; 4]).as_bytes().iter().map(octal));
                }
                c => shown.push(c),
            }
        }
        shown.extend(chunk.invalid().iter().map(|byte| format!("\\{byte:03o}")));
    }
    shown
}

/// Escapes control characters that would act on the terminal: the text may contain names and messages of others (files,
/// peers).
fn harmless(text: &str) -> Cow<'_, str> {
    let acts = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(acts) {
        return text.into();
    }
    text.split_inclusive(acts)
        .flat_map(|part| {
            let control = part.chars().next_back().filter(|c| acts(*c));
            let plain = part.get(..part.len() - control.map_or(0, char::len_utf8)).unwrap_or_default();
            [plain.to_owned(), control.map(|c| name(c.to_string())).unwrap_or_default()]
        })
        .collect()
}

/// Keeps the first error. Printing never fails; the exit status of the command reports lost output.
fn remember(result: std::io::Result<()>) {
    if let Err(error) = result {
        let errno = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
        let _ = LOST.compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The error of stdout that lost output, if there was one.
pub(crate) fn lost_output() -> Option<rustix::io::Errno> {
    remember(std::io::stdout().flush());
    Some(LOST.load(Ordering::Relaxed)).filter(|errno| *errno != 0).map(rustix::io::Errno::from_raw_os_error)
}

/// A line on stderr.
pub(crate) fn note(text: &str) {
    drop(writeln!(std::io::stderr(), "{}", harmless(text)));
}

/// An error with its causes, then its hints.
pub(crate) fn error(who: &str, error: &anyhow::Error) {
    note(&format!("{who}: {}", sentence(error)));
}

/// Causes in one sentence from the outermost on, then each hint in a line of its own.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let (mut causes, mut hints) = (Vec::<String>::new(), Vec::<String>::new());
    for cause in error.chain() {
        let text = cause.to_string();
        let (hint, said): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|l| l.trim_start().starts_with("hint:"));
        let said = said.join("\n");
        // An error whose own text ends with that of its cause is printed once.
        if !said.is_empty() && causes.last().is_none_or(|last| !last.ends_with(&said)) {
            causes.push(said);
        }
        hints.extend(hint.into_iter().map(|h| h.trim_start().to_owned()));
    }
    if hints.is_empty() && error.chain().any(is_of_dead_mount) {
        hints.push(
            "hint: the process of this mount has ended; nacre status names the command that mounts it again"
                .into(),
        );
    }
    hints.dedup();
    std::iter::once(causes.join(": ")).chain(hints).collect::<Vec<_>>().join("\n")
}

/// The kernel's reply of a mount whose process was killed.
fn is_of_dead_mount(cause: &(dyn std::error::Error + 'static)) -> bool {
    let io = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    let errno = io.map(rustix::io::Errno::from_raw_os_error).or(cause.downcast_ref().copied());
    errno == Some(rustix::io::Errno::NOTCONN)
}

pub(crate) fn json<T: Serialize>(value: &T) -> Result<()> {
    line(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// A bar on stderr while it is a terminal; invisible otherwise.
pub(crate) fn progress(total: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// The same for bytes, whose number may change.
pub(crate) fn progress_bytes(what: &'static str) -> ProgressBar {
    let bar = progress(0, what);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {binary_bytes}/{binary_total_bytes} {msg} {elapsed}")
    {
        bar.set_style(style);
    }
    bar
}

/// After the `^C` that a terminal shows.
pub(crate) fn after_ctrl_c() {
    if std::io::stderr().is_terminal() {
        note("");
    }
}

/// A table with columns as wide as their widest cell; numbers to the right.
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}
impl Table {
    /// Adds columns to the right.
    pub(crate) fn add_columns(&mut self, head: impl IntoIterator<Item = String>) {
        self.head.extend(head);
    }
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|h| (*h).into()).collect(), rows: Vec::new() }
    }
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
    pub(crate) fn print(&self) {
        let columns = self.head.len();
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let width: Vec<usize> = (0..columns)
            .map(|c| all().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0))
            .collect();
        let numeric: Vec<bool> = (0..columns)
            .map(|c| {
                self.rows
                    .iter()
                    .filter_map(|r| r.get(c))
                    .all(|s| s.starts_with(|ch: char| ch.is_ascii_digit()))
            })
            .collect();
        for row in all() {
            let mut text = String::new();
            for (c, cell) in row.iter().enumerate() {
                let w = width.get(c).copied().unwrap_or(0);
                if numeric.get(c) == Some(&true) {
                    text.push_str(&format!("{cell:>w$}  "));
                } else {
                    text.push_str(&format!("{cell:<w$}  "));
                }
            }
            line(text.trim_end());
        }
    }
}

/// `1.5G`-like, 1024-based, as the field's tools print with `-h`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes}") } else { format!("{value:.1}{}", UNITS[unit]) }
}

/// stdout and stderr become /dev/null: a parent that reads them sees the end.
pub(crate) fn close_stdout() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// One line per service that changes in place while a person watches; otherwise each end is a line.
pub(crate) struct Live {
    bars: Option<(MultiProgress, RefCell<Vec<Line>>)>,
}
/// A service and its line.
type Line = (String, ProgressBar);

impl Live {
    pub(crate) fn new() -> Self {
        let draw = || (MultiProgress::with_draw_target(ProgressDrawTarget::stderr()), RefCell::default());
        Self { bars: std::io::stderr().is_terminal().then(draw) }
    }
    /// A new state of a service; `done`: its last.
    pub(crate) fn state(&self, name: &str, state: &str, done: bool) {
        let Some((all, lines)) = &self.bars else {
            if done {
                line(&format!("  {name:<24} {state}"));
            }
            return;
        };
        let mut lines = lines.borrow_mut();
        let bar = match lines.iter().find(|(n, _)| n == name) {
            Some((_, bar)) => bar.clone(),
            None => {
                let bar = all.add(ProgressBar::no_length());
                if let Ok(style) = ProgressStyle::with_template("  {prefix:24} {msg}") {
                    bar.set_style(style);
                }
                bar.set_prefix(name.to_owned());
                lines.push((name.to_owned(), bar.clone()));
                bar
            }
        };
        if done {
            bar.finish_with_message(state.to_owned());
        } else {
            bar.set_message(state.to_owned());
            bar.tick();
        }
    }
    /// Leaves the lines as they are; a service that is not up keeps the state it has reached.
    pub(crate) fn end(&self) {
        if let Some((_, lines)) = &self.bars {
            lines.borrow().iter().for_each(|(_, bar)| bar.abandon());
            // The cursor stands behind the last of them.
            note("");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{harmless, name, sentence};
    use anyhow::{Context as _, anyhow};

    #[test]
    fn names_are_on_one_line_and_do_nothing_to_a_terminal() {
        use std::os::unix::ffi::OsStrExt as _;
        let odd = b"a\nb\t\x1b[2J\\ \xff \xc3\xa9\xc2\x9b";
        assert_eq!(name(std::ffi::OsStr::from_bytes(odd)), "a\\nb\\t\\033[2J\\\\ \\377 \u{e9}\\302\\233");
        assert_eq!(
            harmless("of a peer: \x1b[2J\n\tsecond \\ line\x07"),
            "of a peer: \\033[2J\n\tsecond \\ line\\007"
        );
        assert_eq!(harmless("plain"), "plain");
    }

    #[test]
    fn hints_come_after_the_whole_sentence() {
        let cause = anyhow!("permission denied\n  hint: be root");
        let error = Err::<(), _>(cause).context("cannot make /x\nhint: --dir DIR").unwrap_err();
        assert_eq!(sentence(&error), "cannot make /x: permission denied\nhint: --dir DIR\nhint: be root");
        assert_eq!(sentence(&anyhow!("a: b").context("a: b")), "a: b");
    }
}
