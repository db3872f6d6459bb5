//! A running file system for a test: `nacre up` with its own run directory, data and mount points.

use crate::shell::{cargo, output, root, run};
use anyhow::{Context as _, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release binary, built if needed; or the one that `NACRE_BINARY` names.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("NACRE_BINARY") {
        return Ok(path.into());
    }
    run(&mut cargo(&["build", "--release", "--quiet", "--package", "nacre"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(target.join("release/nacre"))
}

/// Started by [`System::up`], stopped when dropped.
pub(crate) struct System {
    binary: PathBuf,
    base: tempfile::TempDir,
    /// `unix:…:/FS` for another mount.
    address: String,
    mounts: Vec<PathBuf>,
    /// Mount options, with `-o`.
    options: &'static [&'static str],
    osts: u32,
}

/// The number of OSTs that `up` makes by default.
const OSTS: u32 = 2;

impl System {
    pub(crate) fn up() -> Result<Self> {
        Self::up_with(&[])
    }
    /// The address of the MGS, for another mount.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// All mounts have these options.
    pub(crate) fn up_with(options: &'static [&'static str]) -> Result<Self> {
        Self::up_with_osts(options, OSTS)
    }

    /// A file system of so many OSTs.
    pub(crate) fn up_with_osts(options: &'static [&'static str], osts: u32) -> Result<Self> {
        let base = tempfile::Builder::new().prefix("nacre-e2e-").tempdir()?;
        let mut system =
            Self { binary: binary()?, base, address: String::new(), mounts: Vec::new(), options, osts };
        let mount = system.base.path().join("mnt");
        std::fs::create_dir(&mount)?;
        system.mounts.push(mount);
        system.up_again()?;
        Ok(system)
    }

    /// Starts it (again, after [`System::kill`]).
    pub(crate) fn up_again(&mut self) -> Result<()> {
        let data = self.base.path().join("data");
        let mut up = self.nacre();
        up.arg("up").arg(self.mount()).arg("--dir").arg(&data).arg("--detach").args(self.options);
        if !data.exists() {
            up.args(["--osts", &self.osts.to_string()]);
        }
        let text = output(&mut up)?;
        let line = text.lines().find_map(|l| l.split_once("mount another: nacre mount "));
        let (_, rest) = line.with_context(|| format!("no line `mount another:` in\n{text}"))?;
        self.address = rest.split_whitespace().next().unwrap_or_default().to_owned();
        Ok(())
    }

    /// The process of `up`.
    pub(crate) fn pid(&self) -> Result<u32> {
        let mount = self.mount().display().to_string();
        for process in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
            let line = std::fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            if line.contains("\0up\0") && line.contains(&mount) {
                return Ok(pid);
            }
        }
        bail!("no process serves {mount}")
    }

    /// The processes of this system: those that have registered in its run directory.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let files = std::fs::read_dir(self.base.path().join("run")).into_iter().flatten().flatten();
        files.filter_map(|file| file.file_name().to_str()?.strip_suffix(".json")?.parse().ok()).collect()
    }

    /// The counters of the kernel's caches of all mounts, a line for each.
    pub(crate) fn kernel_caches(&self) -> Result<String> {
        let text = output(self.nacre().args(["lctl", "get_param", "llite.*.kernel_cache"]))?;
        Ok(text.lines().map(str::trim).collect::<Vec<_>>().join(" ").replace(" llite", "\nllite"))
    }

    /// kill -9 of `up`; the dead mount point stays.
    pub(crate) fn kill(&self) -> Result<()> {
        let pid = self.pid()?;
        run(Command::new("kill").args(["-9", &pid.to_string()]))?;
        // It is gone when nothing of it is left but perhaps its number.
        let stat = format!("/proc/{pid}/stat");
        while std::fs::read_to_string(&stat).is_ok_and(|s| !s.contains(") Z ")) {
            super::pause();
        }
        Ok(())
    }

    /// Fails if a transaction of any target has written more than it had reserved.
    fn check_credits(&self) -> Result<()> {
        let mut get = self.nacre();
        get.args(["lctl", "get_param", "-n", "mgs.*.storage", "mdt.*.storage", "obdfilter.*.storage"]);
        let text = output(&mut get)?;
        let counts: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("credits_exceeded: ")).collect();
        ensure!(
            counts.len() == self.osts as usize + 2 && counts.iter().all(|n| *n == "0"),
            "credits exceeded: {counts:?}\n{text}"
        );
        Ok(())
    }

    /// A nacre command with this system's run directory.
    pub(crate) fn nacre(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.env("NACRE_RUN_DIR", self.base.path().join("run"));
        command
    }

    pub(crate) fn mount(&self) -> &Path {
        &self.mounts[0]
    }

    /// A directory beside the data, on the file system below.
    pub(crate) fn below(&self, name: &str) -> Result<PathBuf> {
        let dir = self.base.path().join(name);
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// One more mount of the same file system.
    pub(crate) fn second_mount(&mut self) -> Result<PathBuf> {
        let dir = self.base.path().join(format!("mnt{}", self.mounts.len() + 1));
        std::fs::create_dir(&dir)?;
        let mut command = self.nacre();
        run(command.arg("mount").arg("--detach").arg(&self.address).arg(&dir).args(self.options))?;
        self.mounts.push(dir.clone());
        Ok(dir)
    }

    /// Stops everything; an error if something did not stop cleanly.
    pub(crate) fn down(mut self) -> Result<()> {
        self.check_credits()?;
        for mount in self.mounts.split_off(1).iter().rev() {
            run(self.nacre().arg("umount").arg(mount))?;
        }
        let mount = self.mounts.pop().context("no mount")?;
        run(self.nacre().arg("down").arg(&mount))?;
        let left = std::fs::read_to_string("/proc/mounts")?;
        ensure!(!left.contains(&mount.display().to_string()), "{} is still mounted", mount.display());
        Ok(())
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // Only after a failure: `down` has emptied the list.
        for mount in self.mounts.drain(..).rev() {
            drop(Command::new("umount").arg("-l").arg(&mount).status());
        }
        let list = self.base.path().join("run");
        for file in std::fs::read_dir(list).into_iter().flatten().flatten() {
            if let Some(pid) = file.file_name().to_str().and_then(|n| n.strip_suffix(".json")) {
                drop(Command::new("kill").args(["-9", pid]).status());
            }
        }
    }
}
