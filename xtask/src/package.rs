//! `cargo xtask package`: a Debian package of the binary, its links, units, manual pages and completions.
//!
//! `--test` also installs it, checks it with systemd's own tools, mounts through `mount -t nacre`, removes it, and
//! fails if anything is left.

use anyhow::{Context as _, Result, ensure};
use nacre_e2e::shell::{cargo, output, root, run as sh};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names under which the binary is called (in /usr/bin), and mount(8)'s helper.
const LINKS: &[(&str, &str)] = &[
    ("usr/bin/lfs", "nacre"),
    ("usr/bin/lctl", "nacre"),
    ("usr/bin/lr_reader", "nacre"),
    ("usr/sbin/mount.nacre", "../bin/nacre"),
    // The type in the table of mounts: what `mount -o remount` looks for.
    ("usr/sbin/mount.fuse.nacre", "../bin/nacre"),
];
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/nacre"),
    ("zsh", "usr/share/zsh/vendor-completions/_nacre"),
    ("fish", "usr/share/fish/vendor_completions.d/nacre.fish"),
];
const DOCS: &[&str] = &["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Builds the package; returns its path.
pub(crate) fn build() -> Result<PathBuf> {
    nacre_e2e::warn_if_profile_is_void()?;
    sh(&mut cargo(&["build", "--release", "--quiet", "--package", "nacre"]))?;
    let target = target_dir()?;
    let binary = target.join("release/nacre");
    let stage = tempfile::tempdir()?;
    let tree = stage.path();
    fs::set_permissions(tree, fs::Permissions::from_mode(0o755))?;

    put(tree, "usr/bin/nacre", &fs::read(&binary)?, 0o755)?;
    sh(Command::new("strip").arg(tree.join("usr/bin/nacre")))?;
    for (link, to) in LINKS {
        let link = tree.join(link);
        fs::create_dir_all(link.parent().context("a link has a directory")?)?;
        symlink(to, link)?;
    }
    let packaging = root().join("packaging");
    put(
        tree,
        "lib/systemd/system/nacre@.service",
        &fs::read(packaging.join("systemd/nacre@.service"))?,
        0o644,
    )?;
    put(tree, "usr/share/doc/nacre/example.conf", &fs::read(packaging.join("example.conf"))?, 0o644)?;
    for doc in DOCS {
        put(tree, &format!("usr/share/doc/nacre/{doc}"), &fs::read(root().join(doc))?, 0o644)?;
    }
    for (shell, path) in COMPLETIONS {
        let script = output(Command::new(&binary).args(["completions", shell]))?;
        put(tree, path, script.as_bytes(), 0o644)?;
    }
    let manual = tree.join("usr/share/man/man1");
    sh(Command::new(&binary).arg("manual").arg(&manual))?;
    for page in fs::read_dir(&manual)? {
        sh(Command::new("gzip").args(["-9", "-n"]).arg(page?.path()))?;
    }
    fs::create_dir_all(tree.join("etc/nacre"))?;

    let version = env!("CARGO_PKG_VERSION");
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let control = fs::read_to_string(packaging.join("debian/control"))?
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture);
    put(tree, "DEBIAN/control", control.as_bytes(), 0o644)?;
    for script in ["postinst", "prerm", "postrm"] {
        put(tree, &format!("DEBIAN/{script}"), &fs::read(packaging.join("debian").join(script))?, 0o755)?;
    }
    let package = target.join(format!("nacre_{version}_{architecture}.deb"));
    sh(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(tree).arg(&package))?;
    Ok(package)
}

fn target_dir() -> Result<PathBuf> {
    let text = output(&mut cargo(&["metadata", "--format-version", "1", "--no-deps", "--locked"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&text)?;
    Ok(PathBuf::from(
        metadata["target_directory"].as_str().context("cargo metadata without a target directory")?,
    ))
}

fn put(tree: &Path, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
    let path = tree.join(path);
    fs::create_dir_all(path.parent().context("a file has a directory")?)?;
    fs::write(&path, bytes)?;
    Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
}

/// Builds, installs, uses and removes the package (as root, on a machine with dpkg).
pub(crate) fn test() -> Result<()> {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        eprintln!("no dpkg-deb on this machine: the package was not made");
        return Ok(());
    }
    let package = build()?;
    let installed =
        output(Command::new("dpkg-query").args(["-W", "-f", "${Status}", "nacre"])).unwrap_or_default();
    ensure!(!installed.contains("ok installed"), "a package nacre is installed already: remove it first");
    sh(Command::new("dpkg").arg("--install").arg(&package))?;
    let used = use_installed();
    sh(Command::new("dpkg").args(["--purge", "nacre"]))?;
    used?;
    let mut left: Vec<&str> = LINKS.iter().map(|(link, _)| *link).collect();
    left.extend(["usr/bin/nacre", "lib/systemd/system/nacre@.service", "usr/share/doc/nacre", "etc/nacre"]);
    left.retain(|path| Path::new("/").join(path).symlink_metadata().is_ok());
    ensure!(left.is_empty(), "left behind by the removal: {left:?}");
    println!("{}: installed, used and removed", package.display());
    Ok(())
}

fn use_installed() -> Result<()> {
    let text = output(
        Command::new("man")
            .args(["--no-hyphenation", "--no-justification", "nacre-mount"])
            .env("MANPAGER", "cat"),
    );
    if let Ok(text) = text {
        ensure!(text.contains("--detach"), "nacre-mount(1) does not name --detach");
    }
    let work = tempfile::tempdir()?;
    let (data, mount) = (work.path().join("data"), work.path().join("mnt"));
    fs::create_dir_all(&mount)?;
    fs::create_dir_all(&data)?;
    let run = work.path().join("run");
    let nacre = |args: &[&str]| {
        let mut command = Command::new("/usr/bin/nacre");
        command.args(args).env("NACRE_RUN_DIR", &run);
        command
    };
    let address = format!("unix:{}/mgs/nacre.sock", data.display());
    for (kind, name) in [("--mgs", "mgs"), ("--mdt", "mdt0"), ("--ost", "ost0")] {
        let dir = data.join(name).display().to_string();
        let mut args = vec!["mkfs", kind];
        if kind != "--mgs" {
            args.extend(["--fsname", "packaged", "--index", "0", "--mgsnode", &address]);
        }
        args.push(&dir);
        sh(&mut nacre(&args))?;
    }
    let targets: Vec<String> =
        ["mgs", "mdt0", "ost0"].iter().map(|t| data.join(t).display().to_string()).collect();
    check_unit(&targets, work.path())?;
    let source = format!("{address}:/packaged");
    check_fstab(&source, &mount, work.path())?;

    // The unit's own command, under a supervisor that waits for READY=1 as systemd does.
    let mut servers = serve_as_unit(&targets, &run, work.path())?;
    let outcome = (|| {
        let mut mounting = Command::new("mount");
        mounting.args(["-t", "nacre", "-o", "_netdev,nofail,noatime"]).arg(&source).arg(&mount);
        sh(mounting.env("NACRE_RUN_DIR", &run))?;
        fs::write(mount.join("file"), b"through mount(8)")?;
        ensure!(fs::read(mount.join("file"))? == b"through mount(8)", "the file came back different");
        let mut remounting = Command::new("mount");
        sh(remounting.args(["-o", "remount,ro"]).arg(&mount).env("NACRE_RUN_DIR", &run))?;
        ensure!(fs::write(mount.join("file"), b"").is_err(), "a file of a read-only mount was written");
        sh(Command::new("umount").arg(&mount))
    })();
    let _gone = rustix::process::kill_process(
        rustix::process::Pid::from_child(&servers),
        rustix::process::Signal::TERM,
    );
    servers.wait()?;
    outcome
}

/// `systemd-analyze verify` on the unit as it is installed.
fn check_unit(targets: &[String], work: &Path) -> Result<()> {
    fs::write("/etc/nacre/packaged.conf", format!("TARGETS=\"{}\"\nOPTIONS=\"\"\n", targets.join(" ")))?;
    if Command::new("systemd-analyze").arg("--version").output().is_ok() {
        sh(Command::new("systemd-analyze")
            .args(["verify", "--man=no", "nacre@packaged.service"])
            .current_dir(work))?;
    } else {
        eprintln!("no systemd-analyze on this machine: the unit was not verified");
    }
    fs::remove_file("/etc/nacre/packaged.conf")?;
    Ok(())
}

/// A line of fstab becomes a mount unit that waits for the network.
fn check_fstab(source: &str, mount: &Path, work: &Path) -> Result<()> {
    const GENERATOR: &str = "/usr/lib/systemd/system-generators/systemd-fstab-generator";
    if !Path::new(GENERATOR).exists() {
        eprintln!("no {GENERATOR} on this machine: the line of fstab was not checked");
        return Ok(());
    }
    let (fstab, units) = (work.join("fstab"), work.join("units"));
    let options = "_netdev,nofail,timeout=30,ro,noatime";
    fs::write(&fstab, format!("{source} {} nacre {options} 0 0\n", mount.display()))?;
    fs::create_dir_all(&units)?;
    sh(Command::new(GENERATOR).args([&units, &units, &units]).env("SYSTEMD_FSTAB", &fstab))?;
    let wants = units.join("remote-fs.target.wants");
    let unit = fs::read_dir(&wants).with_context(|| format!("fstab line without {}", wants.display()))?;
    let unit = unit.flatten().next().context("remote-fs.target wants no mount")?;
    let text = fs::read_to_string(unit.path())?;
    ensure!(text.contains("Type=nacre") && text.contains(options), "unexpected mount unit:\n{text}");
    sh(Command::new("mount").args(["--fake", "-t", "nacre", "-o", options, source]).arg(mount))
}

/// Starts the servers by the unit's ExecStart and waits until they say that they are ready.
fn serve_as_unit(targets: &[String], run: &Path, work: &Path) -> Result<std::process::Child> {
    let unit = fs::read_to_string("/lib/systemd/system/nacre@.service")?;
    let line =
        unit.lines().find_map(|l| l.strip_prefix("ExecStart=")).context("the unit has no ExecStart")?;
    let path = work.join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path)?;
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60)))?;
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().context("an empty ExecStart")?);
    for word in words {
        match word {
            "$TARGETS" => drop(command.args(targets)),
            "$OPTIONS" => {}
            word => drop(command.arg(word)),
        }
    }
    let mut child = command.env("NOTIFY_SOCKET", &path).env("NACRE_RUN_DIR", run).spawn()?;
    let mut told = [0; 64];
    let heard = socket.recv(&mut told).context("the servers did not say that they are ready");
    if !heard.as_ref().is_ok_and(|n| told[..*n].starts_with(b"READY=1")) {
        drop(child.kill());
        child.wait()?;
        ensure!(heard.is_err(), "the first notification is not READY=1");
        heard?;
    }
    Ok(child)
}
