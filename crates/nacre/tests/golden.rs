//! What administrators' eyes and scripts know, word for word: transcripts of `lctl` and `lr_reader`.
//!
//! `NACRE_BLESS=1 cargo test -p nacre --test golden` writes `tests/golden/*.txt` anew. Left out: identities, times,
//! and numbers that depend on when something was written. Needs root and /dev/fuse; without them the test says so
//! and passes.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::{Machine, said};
use std::fs;
use std::process::Command;

/// A transcript and what stands for what changes from run to run.
struct Transcript<'a> {
    machine: &'a Machine,
    names: Vec<(String, &'static str)>,
    text: String,
}

impl<'a> Transcript<'a> {
    fn new(machine: &'a Machine) -> Self {
        let names = vec![(machine.path("").display().to_string(), "DIR/")];
        Self { machine, names, text: String::new() }
    }
    fn hide(&mut self, value: &str, name: &'static str) {
        self.names.insert(0, (value.to_owned(), name));
    }
    /// Runs a command line and takes down what it says.
    fn run(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').map(|w| w.trim_matches('\'')).collect();
        let (link, args) = words.split_first().unwrap();
        let path = self.machine.path(link);
        if !path.exists() {
            std::os::unix::fs::symlink(self.machine.command().get_program(), &path).unwrap();
        }
        let args = args.iter().map(|w| w.replace("DIR/", &self.machine.path("").display().to_string()));
        let mut command = Command::new(&path);
        let said = said(command.args(args).env("NACRE_RUN_DIR", self.machine.path("run")).output().unwrap());
        let mut out = format!("{}{}", said.out, said.err);
        for (value, name) in &self.names {
            out = out.replace(value, name);
        }
        self.text.push_str(&format!("$ {line}\n"));
        // How far a histogram goes is a matter of the moment.
        let is_further = |line: &str| {
            line.split_once(":\t\t").is_some_and(|(row, _)| row.parse::<u32>().is_ok_and(|row| row > 1))
        };
        for line in out.lines().filter(|line| !is_further(line)) {
            self.text.push_str(&steady(line));
            self.text.push('\n');
        }
        self.text.push_str(&format!("[exit status {}]\n\n", said.code.unwrap_or(-1)));
    }
    fn check(self, file: &str) {
        let path = format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("NACRE_BLESS").is_some() {
            fs::write(&path, &self.text).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            self.text == golden,
            "{path} is another (NACRE_BLESS=1 writes it anew); now:\n{}",
            diff(&golden, &self.text)
        );
    }
}

/// Lines that are not in both.
fn diff(then: &str, now: &str) -> String {
    let only = |a: &str, b: &str, mark: &str| -> String {
        a.lines().filter(|l| !b.lines().any(|o| o == *l)).map(|l| format!("{mark} {l}\n")).collect()
    };
    only(then, now, "-") + &only(now, then, "+")
}

/// A line without its times and other numbers that no two runs share.
fn steady(line: &str) -> String {
    // How many requests met each other is a matter of the moment; the rows themselves: `imports.rs`.
    if let Some((row, _)) = line.split_once(":\t\t").filter(|(row, _)| *row != "0") {
        return format!("{row}:\t\tRPCS PERCENT CUM");
    }
    if let Some((head, _)) = line.split_once("[usecs]") {
        return format!("{head}[usecs] MIN MAX SUM SQUARES");
    }
    for key in [
        "last_transaction:",
        "last_xid:",
        "peer_committed:",
        "peer_stable:",
        "last_data:",
        "avg_waittime:",
        "kept_for_replay:",
        "kept_bytes:",
        "reply_max:",
        "reply_released_by_xid:",
    ] {
        if let Some((head, value)) = line.split_once(key)
            && value.trim() != "0"
        {
            return format!("{head}{key} N");
        }
    }
    let mut out = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end.max(rest.chars().next().map_or(1, char::len_utf8)));
        let is_time = match word.split_once('.') {
            Some((_, nanos)) => nanos.len() == 9,
            None => word.len() == 10,
        };
        let is_number = word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        out.push_str(if is_number && is_time { "TIME" } else { word });
        rest = behind;
    }
    out
}

#[test]
fn lctl_and_lr_reader_say_what_the_fields_tools_say() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    // Changes one after the other, and no close that could run beside the next one.
    let dir = |name: &str| m.mount().join(name);
    for name in ["a", "b", "c"] {
        fs::create_dir(dir(name)).unwrap();
    }
    fs::rename(dir("c"), dir("d")).unwrap();
    fs::remove_dir(dir("d")).unwrap();
    m.good(&["sync", m.mount().to_str().unwrap()]);

    let mut t = Transcript::new(&m);
    let uuid = m.good(&["lctl", "get_param", "-n", "llite.*.uuid"]);
    let uuid = uuid.trim();
    t.hide(&uuid.replace('-', "")[..16], "INSTANCE");
    t.hide(uuid, "UUID");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    t.hide(&format!("{host}:"), "HOST:");

    t.run("lctl list_param *");
    t.run("lctl list_param mdc.*");
    t.run("lctl list_param -F mdc.*.*");
    t.run("lctl list_param -R mdt.*.exports");
    t.run("lctl get_param mdc.*.rpc_stats");
    t.run("lctl get_param mdc.*.import");
    t.run("lctl get_param mdc.*.state");
    t.run(
        "lctl get_param mdc.*.max_mod_rpcs_in_flight mdc.*.max_rpcs_in_flight mdt.*.max_mod_rpcs_in_flight",
    );
    t.run("lctl get_param -n mdc.*.max_mod_rpcs_in_flight");
    t.run("lctl get_param mdt.*.exports.*.uuid mdt.*.exports.*.export mdt.*.exports.*.reply_data");
    t.run("lctl get_param mdt.*.exports.*.stats");
    t.run("lctl get_param mdt.*.recovery_status mdt.*.num_exports");
    t.run("lctl get_param mdt.*.nothing mdt.*.num_exports");
    t.run("lctl set_param mdc.*.max_mod_rpcs_in_flight=4");
    t.run("lctl set_param mdc.*.max_rpcs_in_flight=5");
    t.run("lctl set_param mdc.*.max_mod_rpcs_in_flight=8");
    t.run("lctl get_param mdc.*.max_mod_rpcs_in_flight mdc.*.max_rpcs_in_flight");
    t.run("lctl set_param mdc.*.max_rpcs_in_flight=16");
    t.run("lctl set_param mdc.*.max_mod_rpcs_in_flight=9");
    t.run("lctl set_param osc.*OST0001*.max_mod_rpcs_in_flight=9");
    t.run("lctl set_param mdc.*.max_mod_rpcs_in_flight=0");
    t.run("lctl set_param mdt.*.max_mod_rpcs_in_flight=513");
    t.run("lctl set_param mdt.*.recovery_status=1");
    t.run("lctl set_param mdt.*.nothing=1");
    t.check("lctl.txt");

    let mut t = Transcript::new(&m);
    t.hide(uuid, "UUID");
    t.run("lr_reader DIR/data/mdt0");
    t.run("lr_reader -c nacre-MDT0000");
    t.run("lr_reader -c -r DIR/data/mdt0");
    // Killed, a target remembers its clients.
    up.kill();
    t.run("lr_reader -c -r DIR/data/mdt0");
    t.run("lr_reader DIR/data/ost0");
    t.run("lr_reader DIR/data/mgs");
    t.run("lr_reader nacre-MDT0000");
    t.run("lr_reader DIR/data");
    t.check("lr_reader.txt");

    // A target in memory is there while it is served.
    let served = m.start(&["serve", "mem:MGS"], "mount with:");
    let text = m.good(&["lr_reader", "-c", "-r", "MGS"]);
    assert!(text.starts_with("last_rcvd:\n  uuid: MGS_UUID\n") && text.contains("\nreply_data:\n"), "{text}");
    served.stop();
}
