//! The state of a request's caller, from `/proc`: whether it is ending, its pending signals, its groups, and its open
//! files.
//!
//! The kernel's INTERRUPT names no signal and may come for one without any effect: a child that ends while the main
//! thread of a program is inside posix_spawn, where all signals are blocked, interrupts another thread with a SIGCHLD
//! that has no handler. So an INTERRUPT is a reason to examine the caller, not to reply.

use nacre_types::Fid;
use std::collections::BTreeSet;

/// Which signals end a call that waits for a server: mount option `intr` or `nointr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interrupts {
    /// Only those that end the process. Programs such as databases use timers with handlers and treat EINTR of lseek(2) or
    /// fdatasync(2) as a failure of the disk.
    #[default]
    Fatal,
    /// Also INT, QUIT, ALRM and TERM with a handler, when the call changes nothing.
    Handled,
}

/// The reason to end the call of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The caller is ending and uses no result.
    Ends,
    /// The caller has a handler for a pending signal that asks programs to end or to stop waiting.
    Asked,
}

/// Examines a thread by its number. A caller in a foreign pid name space has number 0: its state is unknown. With
/// [`Interrupts::Handled`] its interrupt ends the call; otherwise it waits, even if it was killed.
pub(crate) fn reason(pid: u32, interrupts: Interrupts) -> Option<Reason> {
    let asked = interrupts == Interrupts::Handled;
    if pid == 0 {
        return asked.then_some(Reason::Asked);
    }
    let read = |what| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
    if stat_says_ending(&read("stat")) {
        return Some(Reason::Ends);
    }
    let signals = Signals::of_status(&read("status"));
    if signals.end() {
        return Some(Reason::Ends);
    }
    (asked && signals.ask()).then_some(Reason::Asked)
}

/// Whether an unblocked signal is pending for a thread.
pub(crate) fn has_signal(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| Signals::of_status(&status).waiting() != 0)
}

/// Supplementary groups of a thread; none if they are not visible (a foreign pid name space, where `pid` is 0).
pub(crate) fn groups(pid: u32) -> Vec<u32> {
    let status = match pid {
        0 => String::new(),
        _ => std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(),
    };
    groups_of_status(&status)
}
fn groups_of_status(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().take(GROUPS_MAX).filter_map(|group| group.parse().ok()).collect()
}
/// The kernel's NGROUPS_MAX.
const GROUPS_MAX: usize = 65_536;

/// What `/proc` says about the caller of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    /// The process of the thread; 0: unknown.
    process: u32,
    /// The requested files that it has open, inherited and passed ones included. `None`: this process may not look.
    open: Option<Vec<Fid>>,
    /// Its supplementary groups.
    groups: Vec<u32>,
}
impl Look {
    pub(crate) fn new(process: u32, open: Option<Vec<Fid>>, groups: Vec<u32>) -> Self {
        Self { process, open, groups }
    }
    pub(crate) fn process(&self) -> u32 {
        self.process
    }
    pub(crate) fn open(&self) -> Option<&[Fid]> {
        self.open.as_deref()
    }
    pub(crate) fn into_groups(self) -> Vec<u32> {
        self.groups
    }
}
/// Examines a thread, and which of these files its process has open. (`fdinfo` names inodes without a request to the file
/// system, which may be this one. It does not name the mount, so a file that is open through another mount of the same file
/// system counts too.)
pub(crate) fn look(pid: u32, files: &[Fid]) -> Look {
    if pid == 0 {
        return Look::new(0, None, Vec::new());
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let process = number_after(&status, "Tgid:").and_then(|n| u32::try_from(n).ok()).unwrap_or(pid);
    // A caller whose groups are needed is asked for no files: its descriptors, a file of `/proc` each, are not read.
    let open = if files.is_empty() { Some(Vec::new()) } else { files_of(pid, files) };
    Look::new(process, open, groups_of_status(&status))
}
fn files_of(pid: u32, files: &[Fid]) -> Option<Vec<Fid>> {
    let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?;
    let inode = |info: std::fs::DirEntry| number_after(&std::fs::read_to_string(info.path()).ok()?, "ino:");
    // A descriptor may be closed while this is read.
    let inodes: BTreeSet<u64> = infos.flatten().filter_map(inode).collect();
    Some(files.iter().copied().filter(|fid| inodes.contains(&fid.ino())).collect())
}

/// The decimal number in the line that begins with `name`.
fn number_after(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// SIGKILL is pending (the kernel sends it to every thread that a fatal signal ends), or the thread has begun to exit.
fn stat_says_ending(stat: &str) -> bool {
    const PF_EXITING: u64 = 4;
    // The name is in parentheses and may contain any bytes; field 3 is the first after it.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let field = |number: usize| rest.split_whitespace().nth(number - 3).and_then(|f| f.parse::<u64>().ok());
    field(9).is_some_and(|flags| flags & PF_EXITING != 0) || field(31).is_some_and(|set| set & bit(9) != 0)
}

/// Sets of signals of a thread.
#[derive(Debug, Default)]
struct Signals {
    pending: u64,
    blocked: u64,
    ignored: u64,
    handled: u64,
    /// A debugger decides which signals arrive.
    traced: bool,
}
impl Signals {
    fn of_status(status: &str) -> Self {
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
        };
        Self {
            pending: set("SigPnd:") | set("ShdPnd:"),
            blocked: set("SigBlk:"),
            ignored: set("SigIgn:"),
            handled: set("SigCgt:"),
            traced: set("TracerPid:") != 0,
        }
    }
    fn waiting(&self) -> u64 {
        self.pending & !self.blocked
    }
    /// A signal is pending whose default action ends the process, and the process has no handler for it. The kernel
    /// turns most of these into SIGKILL at once, but not those that dump core.
    fn end(&self) -> bool {
        /// CONT, STOP, TSTP, TTIN, TTOU, CHLD, URG, WINCH.
        const HARMLESS: u64 = bit(18) | bit(19) | bit(20) | bit(21) | bit(22) | bit(17) | bit(23) | bit(28);
        !self.traced && self.waiting() & !self.handled & !self.ignored & !HARMLESS != 0
    }
    /// INT, QUIT, ALRM and TERM; signals that runtimes, collectors and profilers send to themselves must not make a
    /// call fail.
    fn ask(&self) -> bool {
        self.waiting() & self.handled & (bit(2) | bit(3) | bit(14) | bit(15)) != 0
    }
}

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// Text as `/proc` might have it, for the fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn look_at(text: &str) {
    let signals = Signals::of_status(text);
    let _ = (stat_says_ending(text), signals.ask(), signals.end(), groups_of_status(text).len());
    let _ = number_after(text, "Tgid:");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_status() {
        assert_eq!(groups_of_status("Name:\ta\nGid:\t1\nGroups:\t4 27 1000 \nNStgid:\t7\n"), [4, 27, 1000]);
        assert!(groups_of_status("Groups:\t \n").is_empty() && groups(0).is_empty());
    }

    #[test]
    fn an_ending_task_is_told_from_a_living_one() {
        let stat = |flags: u64, pending: u64| {
            format!(
                "7 (a) b) D 1 7 7 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 18446744073709551615 0 0 0 0 0 {pending} 0 0 0"
            )
        };
        assert!(!stat_says_ending(&stat(0x40_0000, 0x4000)), "SIGTERM alone may have a handler");
        assert!(stat_says_ending(&stat(0x40_0004, 0)));
        assert!(stat_says_ending(&stat(0x40_0000, 0x100)));
        assert!(!stat_says_ending("") && !stat_says_ending("7 (a"));
        for interrupts in [Interrupts::Fatal, Interrupts::Handled] {
            assert_eq!(reason(std::process::id(), interrupts), None);
        }
        assert_eq!(reason(0, Interrupts::Handled), Some(Reason::Asked));
        assert_eq!(reason(0, Interrupts::Fatal), None, "a handler may be all that the signal meets");
    }

    #[test]
    fn open_files_are_found_by_their_inodes_through_any_thread() {
        use std::os::unix::fs::MetadataExt as _;
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let there = Fid::from_ino(file.metadata().unwrap().ino());
        let absent = Fid::from_ino(u64::MAX - 7);
        let me = std::process::id();
        let found = |pid| {
            let Look { process, open, .. } = look(pid, &[absent, there]);
            (process, open)
        };
        assert_eq!(found(me), (me, Some(vec![there])));
        let from_thread = || {
            let tid = std::fs::read_link("/proc/thread-self").unwrap();
            let tid = tid.file_name().unwrap().to_str().unwrap().parse().unwrap();
            assert_ne!(tid, me);
            found(tid)
        };
        let of_thread = std::thread::scope(|scope| scope.spawn(from_thread).join().unwrap());
        assert_eq!(of_thread, (me, Some(vec![there])), "a thread is its process");
        assert_eq!(found(0), (0, None));
        assert_eq!(number_after("Name:\tTgid:\nTgid:\t12\n", "Tgid:"), Some(12));
    }

    #[test]
    fn only_signals_that_ask_for_an_end_and_have_a_handler_count() {
        let asks = |private: u64, shared: u64, blocked: u64, handled: u64| {
            let text = format!(
                "Name:\ta\nSigQ:\t0/9\nSigPnd:\t{private:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t0\nSigCgt:\t{handled:016x}\n"
            );
            Signals::of_status(&text).ask()
        };
        assert!(!asks(0, 0, 0, u64::MAX), "woken without a signal");
        assert!(!asks(0, bit(17), 0, 0x1_0000_0440), "CHLD; as it was seen");
        assert!(asks(bit(14), 0, 0, bit(14)) && asks(0, bit(2), 0, bit(2)));
        assert!(!asks(bit(14), 0, 0, bit(2)) && !asks(0, bit(2), bit(2), bit(2)));
        assert!(!asks(bit(10), bit(23), 0, u64::MAX), "USR1, URG");
    }

    #[test]
    fn a_signal_without_a_handler_ends_its_process_unless_it_is_harmless_ignored_or_blocked() {
        let ends = |pending: u64, blocked: u64, ignored: u64, handled: u64, tracer: u32| {
            let text = format!(
                "TracerPid:\t{tracer}\nSigPnd:\t{pending:x}\nSigBlk:\t{blocked:x}\nSigIgn:\t{ignored:x}\nSigCgt:\t{handled:x}\n"
            );
            Signals::of_status(&text).end()
        };
        assert!(ends(bit(3), 0, 0, 0, 0), "QUIT dumps core");
        assert!(ends(bit(6) | bit(17), 0, bit(3), bit(14), 0), "ABRT");
        assert!(!ends(bit(3), 0, 0, 0, 12), "the debugger may keep it from the process");
        assert!(
            !ends(bit(3), bit(3), 0, 0, 0)
                && !ends(bit(3), 0, bit(3), 0, 0)
                && !ends(bit(3), 0, 0, bit(3), 0)
        );
        for harmless in [17, 18, 19, 20, 21, 22, 23, 28] {
            assert!(!ends(bit(harmless), 0, 0, 0, 0), "{harmless}");
        }
    }
}
