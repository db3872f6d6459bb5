//! `mount.nacre`: the helper that mount(8) calls for `mount -t nacre` and for lines of /etc/fstab.
//!
//! mount(8) calls `mount.nacre SOURCE DIR [-sfnv] [-o OPTIONS]` and expects the file system to be mounted when the
//! helper ends. The helper leaves out the options that are addressed to mount(8) or systemd and becomes
//! `nacre mount --detach`.

use anyhow::{Context as _, Result, bail};
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Options that mount(8), systemd or other tools read; they mean nothing to a mount that is being made.
const FOR_OTHERS: &[&str] = &[
    "auto", "noauto", "defaults", "user", "nouser", "users", "owner", "group", "_netdev", "nofail", "async",
];

/// The arguments of mount(8).
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    source: String,
    dir: PathBuf,
    options: Vec<String>,
    /// `timeout=SECONDS`: how long the servers are waited for.
    timeout: Option<String>,
    /// `-f`: check the arguments, mount nothing.
    fake: bool,
    /// `-v`: say what was done.
    verbose: bool,
}

/// Runs as the helper; returns only when nothing is to be mounted, or with an error.
pub(crate) fn run(args: impl Iterator<Item = OsString>) -> Result<()> {
    let asked = parse(args)?;
    if asked.fake {
        return Ok(());
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("mount").arg("--detach");
    if !asked.verbose {
        // As every mount helper: silent when it has worked.
        command.stdout(Stdio::null());
    }
    if let Some(seconds) = &asked.timeout {
        command.arg("--timeout").arg(seconds);
    }
    if !asked.options.is_empty() {
        command.arg("-o").arg(asked.options.join(","));
    }
    Err(command.arg(&asked.source).arg(&asked.dir).exec()).context("cannot start nacre mount")
}

fn parse(args: impl Iterator<Item = OsString>) -> Result<Asked> {
    const USAGE: &str = "usage: mount.nacre ADDRESS:/FS DIR [-sfnv] [-o OPTIONS]\nhint: mount(8) calls this program; \
                         by hand, use `nacre mount`";
    let (mut places, mut options) = (Vec::new(), Vec::new());
    let (mut fake, mut verbose) = (false, false);
    let mut args = args;
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-o") => {
                let list = args.next().and_then(|list| list.into_string().ok()).context(USAGE)?;
                options.extend(list.split(',').filter(|word| !is_for_others(word)).map(str::to_owned));
            }
            // The type by which mount(8) found the helper.
            Some("-t") => drop(args.next().context(USAGE)?),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                for flag in flags.chars().skip(1) {
                    match flag {
                        'f' => fake = true,
                        'v' => verbose = true,
                        's' | 'n' => {}
                        _ => bail!("unknown flag -{flag}\n{USAGE}"),
                    }
                }
            }
            _ => places.push(arg),
        }
    }
    let [source, dir] = <[OsString; 2]>::try_from(places).ok().context(USAGE)?;
    let timeout =
        options.iter().rev().find_map(|word: &String| word.strip_prefix("timeout=").map(str::to_owned));
    options.retain(|word| !word.starts_with("timeout="));
    let source = source.into_string().ok().context("the address is not UTF-8")?;
    Ok(Asked { source, dir: PathBuf::from(dir), options, timeout, fake, verbose })
}

fn is_for_others(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or_default();
    option.is_empty() || FOR_OTHERS.contains(&name) || name.starts_with("x-") || name == "comment"
}

#[cfg(test)]
mod tests {
    use super::{Asked, parse};

    fn asked(line: &str) -> anyhow::Result<Asked> {
        parse(line.split_whitespace().map(Into::into))
    }

    #[test]
    fn options_for_mount_and_systemd_are_left_out() {
        let line =
            "10.0.0.1:9988:/demo /mnt/demo -sn -o rw,_netdev,nofail,x-systemd.automount,timeout=30,noatime";
        let got = asked(line).expect("a line as mount(8) writes it");
        assert_eq!(got.source, "10.0.0.1:9988:/demo");
        assert_eq!(got.dir.to_str(), Some("/mnt/demo"));
        assert_eq!(got.options, ["rw", "noatime"]);
        assert_eq!(got.timeout.as_deref(), Some("30"));
        assert!(!got.fake);
        assert!(asked("a:/fs /mnt -f -o defaults").expect("fake").fake);
    }

    #[test]
    fn a_line_without_address_or_directory_is_refused() {
        for line in ["", "a:/fs", "a:/fs /mnt /more", "a:/fs /mnt -o", "a:/fs /mnt -x"] {
            let error = asked(line).expect_err(line);
            assert!(format!("{error:#}").contains("usage: mount.nacre"), "{error:#}");
        }
    }
}
