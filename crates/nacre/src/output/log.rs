//! Where log lines go: stderr for foreground processes, a file for detached ones. `NACRE_LOG` sets the level.
//!
//! Texts of peers are fields of a line: their control characters are written as escapes, so that a peer cannot forge a line
//! or send commands to a terminal.

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Mutex;
use tracing::Level;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Installs the subscriber once per process. With `file` lines are appended there.
pub(crate) fn init(file: Option<&Path>) -> std::io::Result<()> {
    let level = match std::env::var("NACRE_LOG").as_deref() {
        Ok("trace") => Level::TRACE,
        Ok("debug") => Level::DEBUG,
        Ok("warn") => Level::WARN,
        Ok("error") => Level::ERROR,
        Ok("info" | "") | Err(_) => Level::INFO,
        Ok(other) => {
            crate::output::note(&format!(
                "nacre: NACRE_LOG={other}: unknown, info holds\nhint: trace, debug, info, warn, error"
            ));
            Level::INFO
        }
    };
    // A line that cannot be written (the terminal is gone) is lost; complaining about it on stderr would be a panic.
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .log_internal_errors(false)
        .fmt_fields(debug_fn(write_field).delimited(" "));
    let installed = match file {
        Some(path) => {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            builder.with_ansi(false).with_writer(Mutex::new(file)).try_init()
        }
        None => builder.with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr).try_init(),
    };
    installed.map_err(|e| std::io::Error::other(e.to_string()))
}

fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let mut out = Escaped { writer, lines: field.name() == "message" };
    match field.name() {
        "message" => write!(out, "{value:?}"),
        name => write!(out, "{name}={value:?}"),
    }
}

/// Writes control characters as escapes.
struct Escaped<'a, 'w> {
    writer: &'a mut Writer<'w>,
    /// A message may have a second line, for a hint.
    lines: bool,
}
impl fmt::Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let ends = |c: char| c.is_control() && !(self.lines && c == '\n');
        let mut rest = text;
        while let Some(at) = rest.find(ends) {
            let (plain, from) = rest.split_at(at);
            self.writer.write_str(plain)?;
            let mut chars = from.chars();
            if let Some(control) = chars.next() {
                write!(self.writer, "{}", control.escape_default())?;
            }
            rest = chars.as_str();
        }
        self.writer.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_fields_are_escaped_and_hints_keep_their_line() {
        let write = |text: &str, lines: bool| {
            let mut out = String::new();
            let mut writer = Writer::new(&mut out);
            Escaped { writer: &mut writer, lines }.write_str(text).unwrap();
            out
        };
        assert_eq!(write("a\x1b[2J\nb\u{9b}é", false), "a\\u{1b}[2J\\nb\\u{9b}é");
        assert_eq!(write("what\nhint: this\r", true), "what\nhint: this\\r");
    }
}
