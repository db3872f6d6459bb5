//! The process that serves a store: recorded in its lock file, and reported to a second process that tries to open it.

use std::fmt;
use std::fs;

/// The process that has the lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holder {
    /// In the pid namespace of the holder.
    pub pid: u32,
    /// Start time of the process in ticks since boot (field 22 of its stat): with the pid it names one process.
    pub start_ticks: u64,
    /// Host name, for people.
    pub host: String,
    /// Command line, for people.
    pub command: String,
    /// When it took the lock, for people.
    pub since: String,
}

impl Holder {
    /// This process.
    pub(crate) fn me() -> Self {
        let pid = std::process::id();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let command = fs::read("/proc/self/cmdline")
            .map(|b| String::from_utf8_lossy(&b).replace('\0', " ").trim().replace('\n', " "))
            .unwrap_or_default();
        Self { pid, start_ticks: start_ticks(pid).unwrap_or(0), host, command, since: now_utc() }
    }

    /// Whether that very process is alive on this host.
    pub fn is_running_here(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Whether it is a process of this host that has ended, or is about to: its lock goes with it.
    pub fn is_ending(&self) -> bool {
        let here = rustix::system::uname().nodename().to_string_lossy() == self.host;
        here && (!self.is_running_here() || is_dying(self.pid))
    }

    pub(crate) fn to_text(&self) -> String {
        let Self { pid, start_ticks, host, command, since } = self;
        format!("pid {pid}\nstart {start_ticks}\nhost {host}\nsince {since}\ncommand {command}\n")
    }
    /// Reads the fields of a lock file; a missing field stays empty.
    pub(crate) fn from_text(text: &str) -> Self {
        let mut holder = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(' ') else { continue };
            match key {
                "pid" => holder.pid = value.parse().unwrap_or(0),
                "start" => holder.start_ticks = value.parse().unwrap_or(0),
                "host" => holder.host = value.into(),
                "since" => holder.since = value.into(),
                "command" => holder.command = value.into(),
                _ => {}
            }
        }
        holder
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, host, command, since, .. } = self;
        write!(f, "process {pid} (`{command}`) on {host}, since {since}")
    }
}

fn start_ticks(pid: u32) -> Option<u64> {
    stat_field(pid, 19)?.parse().ok()
}

/// A field of `/proc/PID/stat`, counted from the third.
fn stat_field(pid: u32, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the command in brackets and may hold anything: count from behind it.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(field).map(String::from)
}

/// Killed and not gone: on its way out, waiting for its parent, or about to take the signal.
fn is_dying(pid: u32) -> bool {
    const EXITING: u64 = 4; // PF_EXITING of linux/sched.h
    const SIGKILL: u64 = 1 << 8;
    let flags: u64 = stat_field(pid, 6).and_then(|f| f.parse().ok()).unwrap_or(0);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().filter_map(|line| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    });
    flags & EXITING != 0 || pending.into_iter().any(|set| set & SIGKILL != 0)
}

/// `2026-11-21 03:18:36 UTC`.
fn now_utc() -> String {
    let seconds = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(0));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {h:02}:{m:02}:{s:02} UTC")
}

/// Date of a day since 1970-01-01 (eras of 400 years that begin in March).
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let (era, doe) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_comes_back_and_knows_whether_it_runs() {
        let me = Holder::me();
        assert_eq!(Holder::from_text(&me.to_text()), me);
        assert!(me.is_running_here());
        assert!(!Holder { start_ticks: me.start_ticks + 1, ..me }.is_running_here());
        assert_eq!(Holder::from_text("garbage"), Holder::default());
    }

    #[test]
    fn a_killed_process_is_ending_before_it_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().expect("a child");
        let holder = Holder {
            pid: child.id(),
            start_ticks: start_ticks(child.id()).expect("it runs"),
            ..Holder::me()
        };
        assert!(!holder.is_ending());
        child.kill().expect("killed");
        assert!(holder.is_ending(), "nobody has waited for it");
        child.wait().expect("gone");
        assert!(holder.is_ending());
        assert!(!Holder { host: "elsewhere".into(), ..holder }.is_ending(), "nobody can see that from here");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_778), (2026, 11, 21));
    }
}
