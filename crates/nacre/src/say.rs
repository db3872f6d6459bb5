//! What a person sees: stdout is data, stderr is talk. The only file that prints.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is where the binary talks")]

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal as _, Write as _};

/// A line of output.
pub(crate) fn line(text: &str) {
    // A closed pipe (`nacre status | head -1`) is no error of ours.
    drop(writeln!(std::io::stdout(), "{text}"));
}

/// Output as it is, without a newline.
pub(crate) fn raw(text: &str) {
    drop(write!(std::io::stdout(), "{text}"));
    drop(std::io::stdout().flush());
}

/// A line of talk.
pub(crate) fn note(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// An error with its causes and hints.
pub(crate) fn error(error: &anyhow::Error) {
    note(&format!("nacre: {error:#}"));
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

/// Whether a person watches.
pub(crate) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// A table with columns as wide as their widest cell; numbers to the right.
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    rows: Vec<Vec<String>>,
}
impl Table {
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
