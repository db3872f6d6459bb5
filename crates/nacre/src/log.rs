//! Where log lines go: stderr for foreground processes, a file for detached ones. `NACRE_LOG` sets the level.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Mutex;
use tracing::Level;

/// Installs the subscriber once per process. With `file` lines are appended there.
pub(crate) fn init(file: Option<&Path>) -> std::io::Result<()> {
    let level = match std::env::var("NACRE_LOG").as_deref() {
        Ok("trace") => Level::TRACE,
        Ok("debug") => Level::DEBUG,
        Ok("warn") => Level::WARN,
        Ok("error") => Level::ERROR,
        _ => Level::INFO,
    };
    // A line that cannot be written (the terminal is gone) is lost; complaining about it on stderr would be a panic.
    let builder =
        tracing_subscriber::fmt().with_max_level(level).with_target(false).log_internal_errors(false);
    let installed = match file {
        Some(path) => {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            builder.with_ansi(false).with_writer(Mutex::new(file)).try_init()
        }
        None => builder.with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr).try_init(),
    };
    installed.map_err(|e| std::io::Error::other(e.to_string()))
}
