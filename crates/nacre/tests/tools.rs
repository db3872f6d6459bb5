//! Commands for many hosts and tools, used rightly and wrongly. Needs root and /dev/fuse; without them the tests say
//! so and pass.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::cluster::Cluster;
use machine::{Machine, eventually, said};
use rustix::process::Signal;
use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

#[test]
fn tools_on_nothing_say_what_to_start() {
    let Some(m) = Machine::new() else { return };
    let plain = m.made("plain");
    let plain = plain.to_str().unwrap();
    m.refused(&["lfs", "df"], &["no nacre file system is mounted here", "hint: nacre up"]);
    for args in [
        vec!["lfs", "getstripe", plain],
        vec!["lfs", "setstripe", "-c", "1", plain],
        vec!["lfs", "df", plain],
        vec!["lfs", "path2fid", plain],
        vec!["sync", plain],
    ] {
        m.refused(&args, &["is not on a nacre file system", "hint:"]);
    }
    m.refused(&["lfs", "fid2path", "demo", "[0x1:0x1:0x0]"], &["no mount of \"demo\"", "hint:"]);
    m.refused(&["lfs", "getstripe", m.path("none").to_str().unwrap()], &["none", "No such file"]);
    m.refused(&["lctl", "get_param", "*.*.stats"], &["no parameter matches", "hint:"]);
    m.refused(&["lctl", "set_param", "x"], &["is not NAME=VALUE"]);
    m.refused(&["umount", plain], &["is not a mount point", "hint:"]);
    m.refused(&["umount", m.path("none").to_str().unwrap()], &["is not a mount point"]);
    m.refused(&["umount", "/proc"], &["is not a nacre mount"]);
    m.refused(&["serve", plain], &["is not a nacre store", "nacre mkfs"]);
    m.refused(&["check", plain], &["is not a nacre store", "nacre mkfs"]);
    for command in ["check", "serve", "lr_reader"] {
        m.refused(&[command, m.path("none").to_str().unwrap()], &["none", "does not exist"]);
    }
    let usage = m.nacre(&["serve", ""]);
    assert_eq!((usage.code, usage.err.contains("a value is required")), (Some(2), true), "{}", usage.err);
    assert!(m.good(&["lctl", "dl"]).is_empty());
}

#[test]
fn links_named_lfs_and_lctl_are_those_commands() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let run = |name: &str, args: &[&str]| {
        let link = m.path(name);
        drop(std::os::unix::fs::symlink(m.command().get_program(), &link));
        said(Command::new(&link).args(args).env("NACRE_RUN_DIR", m.path("run")).output().unwrap())
    };
    let file = m.mount().join("f");
    let file = file.to_str().unwrap();
    for (option, bad, range) in [
        ("-c", "2001", "1 to 512"),
        ("-c", "513", "1 to 512"),
        ("-c", "-2", "1 to 512"),
        ("-S", "100", "a multiple of 64K below 4G"),
        ("-S", "4G", "a multiple of 64K below 4G"),
        ("-i", "65536", "0 to 65535"),
        ("-i", "-2", "0 to 65535"),
    ] {
        let said = run("lfs", &["setstripe", option, bad, file]);
        assert!(
            !said.ok && said.err.contains("is out of range: ") && said.err.contains(range),
            "{}",
            said.err
        );
        assert!(said.err.contains(bad.trim_end_matches('G')), "{}", said.err);
    }
    assert!(!m.mount().join("f").exists());
    assert!(run("lfs", &["setstripe", "-c", "2", "-S", "64K", file]).ok);
    assert_eq!(run("lfs", &["getstripe", "-c", file]).out, "2\n");
    let many = m.mount().join("many");
    let many = run("lfs", &["setstripe", "--timeout", "60", "-c", "5", many.to_str().unwrap()]);
    assert!(many.ok && many.err.contains("5 stripes were asked for, it has 2"), "{}", many.err);
    let nowhere = m.mount().join("nowhere");
    m.refused(
        &["lfs", "setstripe", "-i", "9", nowhere.to_str().unwrap()],
        &["index 9 does not exist", "hint:"],
    );
    assert!(!nowhere.exists(), "a file without the layout is not wanted");
    let df = run("lfs", &["df", "-h"]).out;
    assert!(df.contains("nacre-OST0001_UUID") && df.contains("filesystem_summary:"), "{df}");
    let fid = run("lfs", &["path2fid", file]).out;
    assert_eq!(run("lfs", &["fid2path", "nacre", fid.trim()]).out, "f\n");
    let here = m.command().args(["lfs", "fid2path", "mnt", fid.trim()]).current_dir(m.path("")).output();
    assert_eq!(said(here.unwrap()).out, "mnt/f\n", "a directory without a slash");
    fs::hard_link(file, m.mount().join("g")).unwrap();
    assert_eq!(run("lfs", &["path2fid", "--parents", file]).out, "[0x0:0x1:0x0]/f\t[0x0:0x1:0x0]/g\n");
    assert!(run("lctl", &["dl"]).out.contains("UP mdt nacre-MDT0000"));
    assert!(run("lctl", &["get_param", "-n", "*.*.kbytestotal"]).ok);
    let json: serde_json::Value = serde_json::from_str(&run("lfs", &["df", "--json"]).out).unwrap();
    assert_eq!(json[0]["targets"].as_array().unwrap().len(), 3);
    assert_eq!(json[0]["targets"][2]["state"], "up");
    assert!(run("lctl", &["set_param", "osc.*OST0001*.active=0"]).ok);
    assert!(run("lfs", &["df"]).out.contains("nacre-OST0001_UUID  : inactive device\n"));
    let json: serde_json::Value = serde_json::from_str(&run("lfs", &["df", "--json"]).out).unwrap();
    assert_eq!(json[0]["targets"][2]["state"], "inactive");
    assert!(run("lctl", &["set_param", "osc.*OST0001*.active=1"]).ok);
    let json: serde_json::Value = serde_json::from_str(&m.good(&["status", "--json"])).unwrap();
    assert_eq!(json[0]["kind"], "up");
    up.stop();
}

#[test]
fn fids_tell_nobody_the_names_in_directories_that_are_closed_to_them() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let (mount, private) = (m.mount(), m.mount().join("private"));
    let mode =
        |path: &std::path::Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    fs::create_dir_all(private.join("below")).unwrap();
    fs::write(private.join("below/secret"), "").unwrap();
    fs::hard_link(private.join("below/secret"), mount.join("public")).unwrap();
    fs::write(private.join("below/hidden"), "").unwrap();
    chown(&private, Some(7000), Some(7007)).unwrap();
    mode(&mount, 0o755);
    mode(&private, 0o700);
    let root = mount.to_str().unwrap();
    let fid =
        |name: &str| m.good(&["lfs", "path2fid", private.join(name).to_str().unwrap()]).trim().to_owned();
    let (secret, hidden) = (fid("below/secret"), fid("below/hidden"));
    let paths = |uid, groups, fid: &str| m.nacre_as(uid, groups, &["lfs", "fid2path", root, fid]);
    let refused = |said: machine::Said| {
        assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
        assert!(said.err.contains("Permission denied") && said.out.is_empty(), "{}{}", said.out, said.err);
        assert!(!said.err.contains("below"), "{}", said.err);
    };
    let all = format!("{root}/private/below/hidden\n");
    refused(paths(8000, "", &hidden));
    refused(paths(8000, "7007", &hidden));
    assert_eq!(paths(7000, "", &hidden).out, all, "its owner");
    assert_eq!(paths(0, "", &hidden).out, all);
    // Of several links only those that can be found.
    assert_eq!(paths(8000, "", &secret).out, format!("{root}/public\n"));
    let public = mount.join("public");
    let parents = |uid| m.nacre_as(uid, "", &["lfs", "path2fid", "--parents", public.to_str().unwrap()]).out;
    assert_eq!(parents(0).matches('/').count(), 2);
    assert_eq!(parents(8000), "[0x0:0x1:0x0]/public\n", "`below` is open to all, but nobody else gets to it");
    // A group that the caller has only as a supplementary one; a directory that can be searched but not listed.
    mode(&private, 0o750);
    assert_eq!(paths(8000, "7007", &hidden).out, all);
    refused(paths(8000, "7008", &hidden));
    mode(&private, 0o711);
    refused(paths(8000, "", &hidden));
    up.stop();
}

/// The loads of `bench md` beside the plain one: limits of slots in turn, and the client library without the kernel.
#[test]
fn bench_md_sweeps_and_batches() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let mount = m.mount();
    let mount = mount.to_str().unwrap();
    let limits =
        || m.good(&["lctl", "get_param", "mdc.*.max_mod_rpcs_in_flight", "mdc.*.max_rpcs_in_flight"]);
    let before = limits();
    let picture = m.path("sweep.svg");
    let json = m.good(&[
        "bench",
        "md",
        mount,
        "--sweep=1,8",
        "-n",
        "5",
        "-p",
        "2",
        "-r",
        "1",
        "--json",
        "--picture",
        picture.to_str().unwrap(),
    ]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["limits"], serde_json::json!([1, 8]));
    let create = &json["rows"][0];
    assert_eq!((create["phase"].as_str(), create["ratio"][0].as_f64()), (Some("file-create"), Some(1.0)));
    assert!(create["rpcs_per_operation"].as_f64() >= Some(1.0), "closes are sent together: {create}");
    assert!(fs::read_to_string(picture).unwrap().contains("file-create"));
    assert_eq!(limits(), before, "put back");
    m.refused(
        &["bench", "md", mount, "--sweep=1,64", "-n", "1"],
        &["Numerical result out of range", "hint: raise"],
    );
    assert_eq!(limits(), before, "put back");

    fs::create_dir(m.mount().join("below")).unwrap();
    for place in [m.mount().join("below").display().to_string(), format!("{}/below", up.address())] {
        let phases = "--phases=file-create,file-setattr,file-rename,file-remove,dir-create,dir-remove";
        let args =
            ["bench", "md", &place, "--batch", "8", "-n", "16", "-p", "2", "-r", "1", "--json", phases];
        let json: serde_json::Value = serde_json::from_str(&m.good(&args)).unwrap();
        for row in json["rows"].as_array().unwrap() {
            assert_eq!(row["one_by_one"]["rpcs_per_operation"].as_f64(), Some(1.0), "{row}");
            assert_eq!(row["batch"]["rpcs_per_operation"].as_f64(), Some(1.0 / 8.0), "{row}");
        }
        assert_eq!(json["rows"].as_array().unwrap().len(), 6);
    }
    assert_eq!(fs::read_dir(m.mount().join("below")).unwrap().count(), 0, "nothing is left");
    m.refused(
        &["bench", "md", "nowhere", "--batch", "8"],
        &["is neither a directory nor ADDRESS:/FS", "hint:"],
    );
    m.refused(
        &["bench", "md", mount, "--batch", "8", "--phases=file-stat"],
        &["file-stat is not in the client library's load"],
    );
    up.stop();
}

/// The file system to compare with serves every row of both loads, on several directories in turn, and ends on a signal.
#[test]
fn bench_rows_run_on_the_floor_and_beside_it() {
    let Some(m) = Machine::new() else { return };
    let (floor, slow, plain) = (m.made("floor"), m.made("slow"), m.made("plain"));
    let (floor, slow, plain) = (floor.to_str().unwrap(), slow.to_str().unwrap(), plain.to_str().unwrap());
    let cached = m.start(&["bench", "floor", floor], "next: ");
    let uncached = m.start(&["bench", "floor", slow, "--validity", "0", "--no-uring"], "next: ");
    let rows = |args: &[&str]| -> Vec<serde_json::Value> {
        let vs = ["--vs", slow, "--vs", plain, "-r", "1", "--json"];
        let json: serde_json::Value = serde_json::from_str(&m.good(&[args, &vs].concat())).unwrap();
        let rows = json["rows"].as_array().unwrap().clone();
        for row in &rows {
            assert!(row["median"].as_f64() > Some(0.0), "{row}");
            assert_eq!(row["vs"].as_array().unwrap().len(), 2, "{row}");
        }
        rows
    };
    assert_eq!(rows(&["bench", "md", floor, "-n", "10", "-p", "2", "--data", "5000"]).len(), 17);
    assert_eq!(rows(&["bench", "md", floor, "-n", "10", "-p", "2", "--shared"]).len(), 17);
    assert_eq!(rows(&["bench", "tree", floor, "-n", "20", "--list", "5"]).len(), 9);
    assert_eq!(
        rows(&["bench", "tree", floor, "-n", "20", "--list", "5", "--cold", "test -d \"$1\""]).len(),
        12
    );
    m.refused(&["bench", "tree", plain, "-n", "20", "--cold", "false"], &["walk cold", "sh ended with"]);
    for dir in [floor, slow, plain] {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "nothing is left in {dir}");
    }
    cached.stop();
    m.good(&["umount", slow]);
    assert!(uncached.ended().ok);
}

#[test]
fn mkfs_refuses_what_makes_no_target() {
    let Some(m) = Machine::new() else { return };
    let dir = m.path("t");
    let dir = dir.to_str().unwrap();
    m.refused(&["mkfs", "--mgs", "--mgsnode", "h:1", dir], &["--mgsnode is for MDTs and OSTs"]);
    m.refused(&["mkfs", "--mgs", "--index", "1", dir], &["are for MDTs and OSTs"]);
    m.refused(&["mkfs", "--ost", dir], &["--fsname is missing", "hint:"]);
    m.refused(&["mkfs", "--ost", "--fsname", "demo", dir], &["--index is missing", "hint:"]);
    m.refused(
        &["mkfs", "--ost", "--fsname", "demo", "--index", "0", dir],
        &["--mgsnode is missing", "hint:"],
    );
    m.refused(&["mkfs", "--mdt", "--fsname", "demo", "--index", "1", "--mgsnode", "h:1", dir], &["one MDT"]);
    m.refused(
        &["mkfs", "--ost", "--fsname", "demo", "--index", "0", "--mgsnode", "h:x", dir],
        &["is not an address", "hint:"],
    );
    let ost = ["mkfs", "--ost", "--fsname", "demo", "--index", "0", "--mgsnode"];
    m.refused(&[&ost[..], &["local", dir]].concat(), &["no address that others can use", "hint:"]);
    assert_eq!(m.nacre(&["mkfs", dir]).code, Some(2), "wrong usage");
    m.good(&["mkfs", "--mgs", dir]);
    m.refused(&["mkfs", "--mgs", dir], &["holds a nacre store already", "--reformat"]);
    m.good(&["mkfs", "--mgs", "--reformat", dir]);

    // A server that is started elsewhere finds the MGS.
    let relative = ["unix:mgs/nacre.sock", "ost"];
    m.made("run");
    let made = m.command().args([&ost[..], &relative].concat()).current_dir(m.path("")).output().unwrap();
    assert!(made.status.success());
    let served = m.start(&["serve", m.path("ost").to_str().unwrap()], "registering");
    assert!(served.said.contains(&format!("unix:{}", m.path("mgs/nacre.sock").display())), "{}", served.said);
    served.stop();
}

#[test]
fn what_the_mgs_keeps_is_checked_first() {
    let Some(m) = Machine::new() else { return };
    m.refused(&["lctl", "set_param", "-P", "mdc.*.max_rpcs_in_flight=9"], &["no MGS runs", "hint:"]);
    let up = m.up();
    let kept = || m.good(&["lctl", "get_param", "mgs.MGS.live.*"]).matches("kept: ").count();
    let keep = |more: &[&str]| -> Vec<String> {
        ["lctl", "set_param", "-P"].iter().chain(more).map(ToString::to_string).collect()
    };
    m.refused(
        &keep(&["mdc.*.max_rpcs_in_flight=9", "mdc.*.max_mod_rpcs_in_flight=0"]),
        &["set_param: setting mdc.*.max_mod_rpcs_in_flight=0: Numerical result out of range (1 to 511 requests)"],
    );
    m.refused(&keep(&["osc.*.active=2"]), &["osc.*.active=2: Invalid argument (0 or 1)"]);
    m.refused(&keep(&["mdc.*.max_rpcs=9"]), &["matches 'mdc.*.max_rpcs'", "mdc.*.max_rpcs_in_flight"]);
    m.refused(&keep(&["mdc.*.stats=0"]), &["no parameter that can be kept", "--help lists those"]);
    let help = m.good(&["lctl", "set_param", "--help"]);
    assert!(help.contains("  mdt.*.inode_locks_max  1 to 16000000 inodes, default 400000\n"), "{help}");
    m.refused(&["lctl", "get_param", "mdt.*.inode_lock_max"], &["similar names: mdt.*.inode_locks_max"]);
    // The parameters of the front end, which `nacre-sim/tests/parameters.rs` does not see; with all others.
    let all = m.good(&["lctl", "get_param", "--json", "**"]);
    let all: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&all).unwrap();
    for name in all.keys() {
        assert!(nacre_wire::params::row_of(name).is_some(), "{name} is not in the table");
    }
    let front =
        m.good(&["lctl", "get_param", "llite.*.fuse_requests", "llite.*.fuse_waiting", "llite.*.transport"]);
    assert!(front.contains("fuse_requests=") && front.contains("transport="), "{front}");
    let stats = |value: &str| m.nacre(&["lctl", "set_param", &format!("mdc.*.stats={value}")]);
    let cleared = stats("0");
    assert!(cleared.ok && cleared.out.ends_with(".stats=clear\n"), "{}{}", cleared.out, cleared.err);
    assert!(!stats("5").ok && stats("5").err.contains("counters can only be cleared"), "{}", stats("5").err);
    let bounded = m.nacre(&keep(&["mdc.*.max_mod_rpcs_in_flight=9"]));
    assert!(
        bounded.ok && bounded.err.contains("8 is in effect, 9 is kept"),
        "{}{}",
        bounded.out,
        bounded.err
    );
    m.good(&keep(&["-d", "mdc.*.max_mod_rpcs_in_flight"]));
    m.refused(&keep(&["-d", "mdc.*.max_rpcs_in_flight"]), &["is not kept", "hint:"]);
    assert_eq!(kept(), 0);
    m.good(&keep(&["mdc.*.max_rpcs_in_flight=9"]));
    assert_eq!(kept(), 1);
    machine::eventually("it holds", || {
        m.good(&["lctl", "get_param", "-n", "mdc.*.max_rpcs_in_flight"]).trim() == "9"
    });
    m.good(&keep(&["-d", "mdc.*.max_rpcs_in_flight"]));
    assert_eq!(kept(), 0);
    up.stop();
}

#[test]
fn a_target_is_served_once_and_a_mount_that_nobody_replies_to_ends_with_ctrl_c() {
    let Some(m) = Machine::new() else { return };
    let dir = m.path("mgs");
    let dir = dir.to_str().unwrap();
    m.good(&["mkfs", "--mgs", dir]);
    let served = m.start(&["serve", dir], "mount with:");
    let pid = served.pid().to_string();
    m.refused(&["serve", dir], &["is in use by process", &pid]);
    m.refused(&["mkfs", "--mgs", "--reformat", dir], &["is in use by process", &pid]);

    let mount = |source: &str| {
        m.command()
            .args(["mount", source, m.mount().to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    // Nobody there; and a file system that this MGS does not know (yet).
    for (source, why) in [
        (format!("unix:{}:/demo", m.path("nobody").display()), "No such file or directory"),
        ("127.0.0.1:1:/demo".to_owned(), "Connection refused"),
        ("no-such-host.invalid:/demo".to_owned(), "cannot find the host no-such-host.invalid"),
        (format!("unix:{dir}/nacre.sock:/other"), "other"),
    ] {
        let child = mount(&source);
        let pid = rustix::process::Pid::from_child(&child);
        let waiting = std::thread::spawn(move || {
            let mut child = child;
            let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
            let mut line = String::new();
            while !line.contains("waiting for ") {
                assert_ne!(std::io::BufRead::read_line(&mut stderr, &mut line).unwrap(), 0, "{line}");
            }
            rustix::process::kill_process(pid, Signal::INT).unwrap();
            let mut rest = String::new();
            std::io::Read::read_to_string(&mut stderr, &mut rest).unwrap();
            (child.wait().unwrap().code(), line + &rest)
        });
        let (code, text) = waiting.join().unwrap();
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(why) && (why == "other" || text.contains("given up")), "{text}");
        assert!(text.contains("hint:"), "{text}");
    }
    m.refused(&["mount", "nonsense", m.mount().to_str().unwrap()], &["is not ADDRESS:/FS", "hint:"]);
    let said = ["does not name a file system", "hint: append :/FS"];
    m.refused(&["mount", "unix:/tmp/nacre.sock", m.mount().to_str().unwrap()], &said);
    m.refused(
        &["mount", "h:/demo", m.mount().to_str().unwrap(), "-o", "sync"],
        &["unknown mount option \"sync\"", "hint: ro, rw"],
    );
    served.stop();
}

#[test]
fn metrics_are_served_where_a_collector_asks() {
    let Some(m) = Machine::new() else { return };
    let up = m.up_with(&["--metrics", "127.0.0.1:0"]);
    let url = up.said.lines().find_map(|l| l.strip_prefix("metrics at ")).unwrap().to_owned();
    let address = url.strip_prefix("http://").and_then(|u| u.strip_suffix("/metrics")).unwrap();
    let ask = |what: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "{what} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let get = |path: &str| ask(&format!("GET {path}"));
    fs::write(m.mount().join("f"), "x").unwrap();
    // Whoever says nothing holds nobody up.
    let idle: Vec<_> = (0..10).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    let began = std::time::Instant::now();
    let text = get("/metrics");
    assert!(began.elapsed() < std::time::Duration::from_secs(4), "{:?}", began.elapsed());
    drop(idle);
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    for word in [
        "# TYPE nacre_mdc_rpc_stats histogram",
        "nacre_mdc_stats_samples_total{device=\"nacre-MDT0000-mdc-",
        "op=\"mds_reint_create\"} 1\n",
        "nacre_mdc_import_state{",
        "nacre_mdt_num_exports{device=\"nacre-MDT0000\"} 1\n",
        "nacre_mdt_exports_reply_data_reply_cnt{",
        "nacre_mdt_recovery_status_status{",
        "nacre_obdfilter_",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(get("/metrics?x=1").starts_with("HTTP/1.1 200 OK\r\n"));
    let head = ask("HEAD /metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(get("/else").starts_with("HTTP/1.1 404 ") && get("/else").contains("are at /metrics"));
    assert!(ask("POST /metrics").starts_with("HTTP/1.1 405 "));
    m.refused(
        &["up", m.path("other").to_str().unwrap(), "--ephemeral", "--metrics", address],
        &["cannot serve metrics at", "in use", "hint:"],
    );
    up.stop();
}

/// One server stands still: the tools show what the others say, once, and name the process.
#[test]
fn tools_do_not_wait_for_each_process_that_stands_still_in_turn() {
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let [_mgs, mdt, mut ost] = c.all();
    for server in [&mdt, &ost] {
        server.says(&["target started"]);
    }
    let up = |name: &str| m.good(&["lctl", "dl"]).contains(&format!("UP {name}"));
    eventually("all are there", || up("mgs") && up("mdt") && up("obdfilter"));
    ost.signal(Signal::STOP);
    eventually("every thread has stopped", || machine::stands_still(ost.child.id()));
    let silent = format!("no reply within 1 s: the process may be stopped or busy (pid {})", ost.child.id());
    let get = |pattern: &str| m.nacre(&["lctl", "get_param", "--timeout", "1", "mdt.*.num_exports", pattern]);
    let said = get("mdt.*.recovery_status");
    assert!(said.ok && said.out.contains("mdt.demo-MDT0000.num_exports="), "{} {}", said.out, said.err);
    assert_eq!(said.err.matches(&format!("demo-OST0000: {silent}")).count(), 1, "{}", said.err);
    let said = get("obdfilter.*.kbytestotal");
    assert!(!said.ok && said.err.contains("1 did not reply"), "{}", said.err);
    assert!(m.good(&["lctl", "dl", "--timeout", "1"]).contains("DN obdfilter demo-OST0000"));
    let status = m.nacre(&["status", "--timeout", "1"]);
    assert_eq!(status.code, Some(3), "{}", status.err);
    assert!(status.out.contains("no reply") && status.out.contains("demo-MDT0000"), "{}", status.out);
    assert!(status.out.contains(&format!("busy (pid {})", ost.child.id())), "{}", status.out);
    let dir = c.dir("ost");
    for device in ["demo-OST0000", dir.to_str().unwrap()] {
        m.refused(&["lr_reader", "--timeout", "1", device], &[&silent, "can be read: nacre lr_reader DIR"]);
    }
    m.refused(&["lctl", "set_param", "--timeout", "1", "*.*.fail_loc=0"], &[&silent]);
    ost.signal(Signal::CONT);
    // A killed one is known until its target is served again.
    ost.kill();
    let is_down = || {
        let status = m.nacre(&["status"]);
        let is_down = status.out.lines().any(|line| line.contains("demo-OST0000") && line.contains("down"));
        assert_eq!(status.code, Some(if is_down { 3 } else { 0 }), "{}", status.out);
        is_down
    };
    assert!(is_down() && is_down());
    let _ost = c.serve("ost");
    eventually("it is served again", || !is_down());
    eventually("it is up", || up("obdfilter"));
}

/// Two file systems of one name: nothing is asked of, or set in, the wrong one.
#[test]
fn file_systems_of_one_name_are_told_apart() {
    let Some(m) = Machine::new() else { return };
    let first = m.up();
    let (other, third) = (m.path("other"), m.path("third"));
    let named = ["up", other.to_str().unwrap(), "--ephemeral", "--fsname", "nacre"];
    let second = m.start(&named, "next: ");
    // A mount of the first, whose address it has from its banner.
    m.good(&["mount", &first.address(), third.to_str().unwrap(), "--detach"]);
    let (mount, other, third) = (m.mount(), other.to_str().unwrap(), third.to_str().unwrap());
    let mount = mount.to_str().unwrap();
    let both =
        [&format!("nacre, mounted on {mount}, {third}") as &str, &format!("nacre, mounted on {other}")];
    let limit =
        |more: &[&str]| m.good(&[&["lctl", "get_param", "-n"], more, &["mdc.*.max_rpcs_in_flight"]].concat());
    fn set<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["lctl", "set_param"], more].concat()
    }
    for args in [
        vec!["lctl", "get_param", "mdc.*.max_rpcs_in_flight"],
        set(&["mdc.*.max_rpcs_in_flight=9"]),
        set(&["--fs", "nacre", "mdc.*.max_rpcs_in_flight=9"]),
    ] {
        m.refused(&args, &[both[0], both[1], "2 file systems", "hint:"]);
    }
    m.refused(&set(&["-P", "mdc.*.max_rpcs_in_flight=9"]), &[mount, other, "fits 2 file systems", "hint:"]);
    m.refused(&["lfs", "fid2path", "nacre", "[0x0:0x1:0x0]"], &[both[0], both[1], "hint:"]);
    m.refused(&set(&["--fs", "demo", "mdc.*.max_rpcs_in_flight=9"]), &["no file system \"demo\"", both[0]]);
    assert_eq!(limit(&["--all"]), "8\n8\n8\n", "nothing was set");
    let done = m.nacre(&set(&["--fs", third, "mdc.*.max_rpcs_in_flight=9"]));
    assert!(done.ok && done.err.contains(&format!("file system {}", both[0])), "{}", done.err);
    assert_eq!((limit(&["--fs", mount]), limit(&["--fs", other])), ("9\n9\n".into(), "8\n".into()));
    // The one that the current directory is in.
    let here = |args: &[&str]| said(m.command().args(args).current_dir(other).output().unwrap());
    assert!(here(&set(&["-P", "mdc.*.max_rpcs_in_flight=10"])).ok);
    assert_eq!((limit(&["--fs", mount]), limit(&["--fs", other])), ("9\n9\n".into(), "10\n".into()));
    let json = m.good(&["lctl", "get_param", "--all", "--json", "mdt.*.num_exports"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.as_object().unwrap().len(), 2, "{json}");
    let status = m.good(&["status"]);
    assert!(status.contains("2 file systems are named nacre:") && status.contains(both[1]), "{status}");
    // One name for a mount wherever it is shown.
    let name = m.good(&["lfs", "getname", third]);
    let name = name.trim();
    assert!(status.contains(name) && m.good(&["lctl", "dl"]).contains(&format!("llite {name} ")), "{status}");
    assert!(!m.good(&["lctl", "get_param", &format!("llite.{name}.uuid")]).is_empty());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let exports = m.good(&["lctl", "get_param", "-n", "--fs", third, "mdt.*.exports.*.export"]);
    assert!(exports.contains(&format!("name: {host}:{third}\n")), "{exports}");
    m.good(&["umount", third]);
    second.stop();
    first.stop();
}

#[test]
fn an_ordinary_user_is_told_that_it_may_not_ask() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let as_user = |args: &[&str]| m.nacre_as(7000, "", args);
    let status = as_user(&["status"]);
    assert_eq!(status.code, Some(4), "{}{}", status.out, status.err);
    assert!(status.out.contains("no permission") && !status.out.contains("busy"), "{}", status.out);
    let dl = as_user(&["lctl", "dl"]);
    assert_eq!((dl.code, dl.out.matches(" ?? ").count()), (Some(1), 5), "{}", dl.out);
    assert!(dl.err.contains("5 of the devices could not be asked: permission denied"), "{}", dl.err);
    assert!(dl.err.contains("hint:"), "{}", dl.err);
    for args in [["lctl", "get_param", "mdc.*.stats"], ["lctl", "set_param", "mdc.*.stats=0"]] {
        let said = as_user(&args);
        assert!(
            !said.ok && said.err.contains("permission denied") && !said.err.contains("stopped or busy"),
            "{}",
            said.err
        );
        // One cause with its hint, not one for each target; get_param also says that nothing was found.
        assert_eq!(said.err.matches("permission denied").count(), 1, "{}", said.err);
        assert_eq!(said.err.lines().count(), if args[1] == "set_param" { 2 } else { 4 }, "{}", said.err);
    }
    let mount = m.mount();
    let umount = as_user(&["umount", mount.to_str().unwrap()]);
    let hint = format!("is not permitted to this user\nhint: sudo nacre umount {}", mount.display());
    assert!(!umount.ok && umount.err.contains(&hint), "{}", umount.err);
    let down = as_user(&["down"]);
    let refused = format!("process {} of {} cannot be stopped", up.pid(), mount.display());
    assert!(!down.ok && down.err.contains(&refused) && down.err.contains("hint:"), "{}", down.err);
    // Attributes that the mount itself serves are for everybody.
    let df = as_user(&["lfs", "df"]);
    assert!(df.ok && df.out.contains("nacre-OST0001_UUID"), "{}{}", df.out, df.err);
    up.stop();
}

#[test]
fn lost_output_is_no_success() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    for args in
        [vec!["status"], vec!["status", "--json"], vec!["lctl", "dl"], vec!["lfs", "df"], vec!["--help"]]
    {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let said = said(m.command().args(&args).stdout(full).stderr(Stdio::piped()).output().unwrap());
        assert_eq!(said.code, Some(1), "{args:?} {}", said.err);
        assert!(said.err.contains("output was lost: No space left"), "{}", said.err);
    }
    up.stop();
}

#[test]
fn a_detached_mount_gives_up_in_time_and_leaves_no_log() {
    let Some(m) = Machine::new() else { return };
    let mount = m.mount();
    let args = ["mount", "no-such-host.invalid:/demo", mount.to_str().unwrap(), "--detach", "--timeout", "2"];
    let said = m.refused(&args, &["given up", "within 2 s", "cannot find the host", "hint:"]);
    assert_eq!(said.matches("given up").count(), 1, "{said}");
    m.refused(&["up", "/", "--ephemeral"], &["is a mount point already", "hint: name an empty directory"]);
    let logs = || {
        fs::read_dir(m.path("run"))
            .unwrap()
            .flatten()
            .filter(|f| f.path().extension() == Some("log".as_ref()))
    };
    assert_eq!(logs().count(), 0);
}

#[test]
fn tables_of_the_field_can_be_read_by_programs() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let mount = m.mount();
    let json = |args: &[&str]| {
        let args = [args, &["--json"]].concat();
        serde_json::from_str::<serde_json::Value>(&m.good(&args)).unwrap()
    };
    let devices = json(&["lctl", "dl"]);
    let mdt = devices.as_array().unwrap().iter().find(|device| device["kind"] == "mdt").unwrap();
    let (number, pid) = (&mdt["number"], up.pid());
    let wanted = serde_json::json!({
        "number": number, "state": "UP", "kind": "mdt", "name": "nacre-MDT0000", "uuid": "nacre-MDT0000_UUID", "pid": pid,
    });
    assert_eq!(*mdt, wanted);
    let names = json(&["lctl", "list_param", "mdt", "mgs.MGS.register"]);
    let wanted = serde_json::json!([
        { "name": "mdt", "writable": false },
        { "name": "mgs.MGS.register", "writable": true },
    ]);
    assert_eq!(names, wanted);
    for (command, target) in [("osts", "nacre-OST0000"), ("mdts", "nacre-MDT0000")] {
        let list = json(&["lfs", command]);
        assert_eq!(list[0]["mount"], mount.to_str().unwrap());
        let first = serde_json::json!({ "index": 0, "target": target, "state": "up" });
        assert_eq!(list[0]["targets"][0], first);
    }
    let name = m.good(&["lfs", "getname"]);
    assert_eq!(json(&["lfs", "getname"]), serde_json::json!([{ "mount": mount, "name": name.trim() }]));
    // jq rounds numbers above 2^53.
    let df = json(&["lfs", "df"]);
    let device = |target: usize| df[0]["targets"][target]["device"].as_str().map(str::parse::<u64>);
    assert!(matches!(device(1), Some(Ok(_))), "{df}");
    up.stop();
}

#[test]
fn names_with_control_characters_are_shown_as_escapes() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let mount = m.mount();
    let odd = mount.join("two\nlines\x1b[2J");
    fs::write(&odd, "x").unwrap();
    let (mount, odd) = (mount.to_str().unwrap(), odd.to_str().unwrap());
    let shown = format!("{mount}/two\\nlines\\033[2J");
    for path in [mount, odd] {
        let said = m.good(&["lfs", "getstripe", path]);
        assert!(said.contains(&format!("{shown}\n")) && !said.contains('\x1b'), "{said:?}");
    }
    let fid = m.good(&["lfs", "path2fid", odd]);
    assert_eq!(m.good(&["lfs", "fid2path", mount, fid.trim()]), format!("{shown}\n"));
    assert!(m.good(&["lfs", "path2fid", "--parents", odd]).ends_with("/two\\nlines\\033[2J\n"));
    let json = m.good(&["lfs", "fid2path", "--json", mount, fid.trim()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["paths"], serde_json::json!(["two\nlines\u{1b}[2J"]), "as it is");
    let gone = m.nacre(&["lfs", "getstripe", &format!("{odd}.gone")]);
    assert!(
        !gone.ok && gone.err.contains("\\033[2J.gone") && gone.err.lines().count() == 1,
        "{:?}",
        gone.err
    );
    up.stop();
}

#[test]
fn the_name_of_a_file_system_chooses_among_mgss() {
    let Some(m) = Machine::new() else { return };
    let first = m.up();
    m.refused(&["target", "list", "none"], &["knows no file system none", "hint: nacre status"]);
    let (demo, again) = (m.path("demo"), m.path("again"));
    let second = m.start(&["up", demo.to_str().unwrap(), "--ephemeral", "--fsname", "demo"], "next: ");
    for (fs, other) in [("nacre", "demo"), ("demo", "nacre")] {
        let list = m.good(&["target", "list", fs]);
        assert!(list.contains(&format!("{fs}-OST0000")) && !list.contains(&format!("{other}-OST")), "{list}");
    }
    m.refused(&["target", "list", "none"], &["none of the MGSs", "file system none"]);
    let said = m.good(&["target", "accept-rollback", "nacre-OST0000"]);
    assert!(said.contains("nacre-OST0000: an old copy is admitted"), "{said}");
    m.good(&["target", "accept-rollback", "nacre-OST0000", "--revoke"]);
    // Of one name the directory tells, whether the MGS runs or not.
    let third = m.start(&["up", again.to_str().unwrap(), "--ephemeral", "--fsname", "nacre"], "next: ");
    m.refused(&["target", "list", "nacre"], &["2 MGSs", "--mgs"]);
    let data = m.path("data");
    let list = m.good(&["target", "list", "nacre", "--mgs", data.to_str().unwrap()]);
    assert!(list.contains(data.to_str().unwrap()), "{list}");
    third.stop();
    second.stop();
    first.stop();
    let stopped = m.good(&["target", "list", "nacre", "--mgs", data.to_str().unwrap()]);
    let uuids = |list: &str| {
        let uuid = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
        list.lines().map(uuid).collect::<Vec<_>>()
    };
    assert_eq!(uuids(&stopped), uuids(&list));
}

#[test]
fn a_signal_that_ends_a_bench_leaves_nothing_of_it() {
    use rustix::process::Signal;
    use std::os::unix::process::ExitStatusExt as _;
    let m = Machine::without_mounts();
    let dir = m.made("dir");
    let io = ["bench", "io", "-t", "2", "-s", "64M", "-r", "100000"];
    let md = ["bench", "md", "--processes", "2", "--items", "2000", "--rounds", "100000"];
    // Under nohup, a hangup ends neither this test nor the programs that it starts.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignores_hangup = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 != 0;
    let third = if ignores_hangup { Signal::TERM } else { Signal::HUP };
    for (args, signal) in [(&io[..], Signal::INT), (&io[..], Signal::TERM), (&md[..], third)] {
        let mut bench = m.command();
        let mut bench = bench.args(args).arg(&dir).stdout(Stdio::null()).spawn().unwrap();
        let files = || {
            let base = fs::read_dir(&dir).unwrap().flatten().next();
            let all = base.and_then(|base| fs::read_dir(base.path()).ok());
            all.map_or(0, |all| all.count())
        };
        eventually("it works", || files() >= 2);
        machine::signal_child(&bench, signal);
        assert_eq!(bench.wait().unwrap().signal(), Some(signal.as_raw()));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "{args:?} {signal:?}");
    }
}

/// Bandwidth on several directories in turn, with several block sizes, shared files, direct I/O, and a picture.
#[test]
fn bench_io_measures_every_row_on_every_directory() {
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let (mount, plain, picture) = (m.mount(), m.made("plain"), m.path("io.svg"));
    let (mount, plain) = (mount.to_str().unwrap(), plain.to_str().unwrap());
    let measured = |more: &[&str]| -> serde_json::Value {
        let args = ["bench", "io", mount, "--vs", plain, "-r", "1", "--size", "1M", "--json"];
        serde_json::from_str(&m.good(&[&args, more].concat())).unwrap()
    };
    for more in
        [&["--fsync"][..], &["-t", "2", "--shared", "--direct"], &["-t", "2", "--cold", "test -d \"$1\""]]
    {
        let json =
            measured(&[&["--block", "64K,256K", "--picture", picture.to_str().unwrap()], more].concat());
        let reports = json.as_array().unwrap();
        assert_eq!(reports.len(), 2, "{json}");
        for (report, block) in reports.iter().zip([64 << 10, 256 << 10]) {
            assert_eq!((&report["unit"], &report["block_bytes"]), (&"MiB/s".into(), &block.into()));
            let rows = report["rows"].as_array().unwrap();
            assert_eq!(rows.len(), 6, "{report}");
            for row in rows {
                assert!(
                    row["median"].as_f64() > Some(0.0) && row["vs"].as_array().unwrap().len() == 1,
                    "{row}"
                );
            }
        }
        let svg = fs::read_to_string(&picture).unwrap();
        assert_eq!(svg.matches("<circle").count(), 2 * 6 * 2, "{more:?}");
    }
    let rows = measured(&["--rows", "random-read,read"]);
    assert_eq!(rows[0]["rows"][1]["name"], "read", "{rows}");
    m.refused(&["bench", "io", mount, "--rows", "backwards"], &["unknown row", "strided-write"]);
    m.refused(&["bench", "io", mount, "--size", "1M", "--block", "3K"], &["--block 3072 does not divide"]);
    m.refused(&["bench", "io", mount, "--cold", "false", "--size", "1M"], &["the command of --cold"]);
    for dir in [mount, plain] {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "nothing is left in {dir}");
    }
    up.stop();
}

/// The size of requests is a parameter of the mount: it is as before when the command ends, also when a signal ends it.
#[test]
fn bench_io_measures_by_the_size_of_requests_and_restores_it() {
    use rustix::process::Signal;
    use std::os::unix::process::ExitStatusExt as _;
    let Some(m) = Machine::new() else { return };
    let up = m.up();
    let (mount, plain, picture) = (m.mount(), m.made("plain"), m.path("io.svg"));
    let (mount, plain) = (mount.to_str().unwrap(), plain.to_str().unwrap());
    let sizes = || m.good(&["lctl", "get_param", "-n", "osc.*.max_pages_per_rpc"]);
    let before = sizes();
    let args = ["bench", "io", mount, "--vs", plain, "-r", "1", "--size", "1M", "--rows", "write", "--json"];
    let drawn = ["--rpc", "1M,2M", "--picture", picture.to_str().unwrap()];
    let json: serde_json::Value = serde_json::from_str(&m.good(&[&args[..], &drawn].concat())).unwrap();
    assert_eq!((&json[0]["rpc_bytes"], &json[1]["rpc_bytes"]), (&(1 << 20).into(), &(2 << 20).into()));
    assert_eq!(fs::read_to_string(&picture).unwrap().matches("<circle").count(), 4);
    assert_eq!(sizes(), before);
    let mut bench = m.command();
    let endless = ["bench", "io", mount, "--rows", "write", "--size", "1M", "-r", "100000", "--rpc", "2M"];
    let mut bench = bench.args(endless).stdout(Stdio::null()).spawn().unwrap();
    eventually("it works with other requests", || sizes().lines().all(|pages| pages.trim() == "512"));
    machine::signal_child(&bench, Signal::INT);
    assert_eq!(bench.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
    assert_eq!(sizes(), before);
    m.refused(&["bench", "io", plain, "--rpc", "1M"], &["is not on a nacre file system", "nacre status"]);
    m.refused(&["bench", "io", mount, "--rpc", "64K"], &["256 to 4096 pages"]);
    m.refused(&["bench", "io", mount, "--rpc", "1M,2M", "--block", "64K,1M"], &["several values to one"]);
    up.stop();
}
