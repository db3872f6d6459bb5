//! `cargo xtask bench compare`: nacre beside ext4 and the floor of the FUSE layer, row by row in turn.
//!
//! Sets everything up below a directory in memory: servers in one process and the mount in another one (or both in one),
//! the same on ext4 on a loop device, `nacre bench floor`. Then `nacre bench md` and `nacre bench tree` measure all
//! directories in turn, and print medians and ratios.

use crate::shell::{output, run as sh};
use crate::system::binary;
use anyhow::{Context as _, Result, bail, ensure};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Space for the files of ext4 and for the stores of the servers, which are on ext4 too; sparse.
const IMAGE_BYTES: u64 = 8 << 30;

/// Options of the comparison.
#[derive(clap::Args, Debug)]
pub struct Compare {
    /// Measure these directories instead of those that are set up; ratios are of the first one to the others
    #[arg(value_name = "NAME=DIR")]
    dirs: Vec<String>,
    /// What to set up: nacre (mount in a process of its own), up (servers and mount in one), floor, ext4
    #[arg(long, value_delimiter = ',', default_value = "nacre,up,floor,ext4", conflicts_with = "dirs")]
    with: Vec<String>,
    /// Numbers of processes, one table each
    #[arg(short, long, value_delimiter = ',', default_value = "1,2")]
    processes: Vec<u32>,
    /// Files and directories of each process
    #[arg(short = 'n', long, default_value_t = 300)]
    items: u32,
    /// Files of the source tree; 0: no tree
    #[arg(long, default_value_t = 500)]
    tree: u32,
    #[arg(short, long, default_value_t = 3)]
    rounds: u32,
    /// Take requests from /dev/fuse only (default: io_uring where the kernel offers it)
    #[arg(long)]
    no_uring: bool,
}

impl Compare {
    /// Few files and one round: as a load, not to compare.
    pub(crate) fn once(no_uring: bool) -> Self {
        let (dirs, with, processes) = (Vec::new(), Vec::new(), vec![1, 2]);
        Self { dirs, with, processes, items: 1000, tree: 500, rounds: 1, no_uring }
    }
}

/// Measures and prints the tables.
pub fn run(options: &Compare) -> Result<()> {
    crate::profile::warn_if_void()?;
    let mut setup = Setup::new(binary()?, options.no_uring)?;
    if options.dirs.is_empty() {
        for what in &options.with {
            setup.add(what).with_context(|| format!("cannot set up {what}"))?;
        }
    }
    for named in &options.dirs {
        let (name, dir) = named.split_once('=').with_context(|| format!("{named:?} is not NAME=DIR"))?;
        setup.link(name, Path::new(dir))?;
    }
    let transport = if options.no_uring { "/dev/fuse" } else { crate::transport::default_transport() };
    println!(
        "requests of the kernel come through {transport}; ratios are of the first directory to each other one"
    );
    setup.measure(options)?;
    setup.end()
}

/// Everything that was started, in this order.
pub(crate) struct Setup {
    binary: PathBuf,
    base: tempfile::TempDir,
    /// Whether requests come from /dev/fuse only.
    no_uring: bool,
    /// Names and directories to measure.
    places: Vec<PathBuf>,
    /// File systems on loop devices.
    loops: Vec<PathBuf>,
    processes: Vec<Process>,
}

/// A process in the foreground, and its mount point.
struct Process {
    child: Child,
    /// Open as long as it runs.
    _stdout: BufReader<ChildStdout>,
    mount: PathBuf,
}

impl Setup {
    pub(crate) fn new(binary: PathBuf, no_uring: bool) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let mut base = tempfile::Builder::new();
        base.prefix("nacre-compare-");
        let base = if memory.is_dir() { base.tempdir_in(memory)? } else { base.tempdir()? };
        Ok(Self { binary, base, no_uring, places: Vec::new(), loops: Vec::new(), processes: Vec::new() })
    }

    fn nacre(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.env("NACRE_RUN_DIR", self.base.path().join("run")).env("NACRE_LOG", "warn");
        command
    }

    fn dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.base.path().join(name);
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// Names of directories that exist appear in the tables as links.
    fn link(&mut self, name: &str, dir: &Path) -> Result<()> {
        let dir = dir.canonicalize().with_context(|| dir.display().to_string())?;
        let link = self.base.path().join(name);
        std::os::unix::fs::symlink(dir, &link)?;
        self.places.push(link);
        Ok(())
    }

    pub(crate) fn add(&mut self, what: &str) -> Result<()> {
        let dir = self.dir(what)?;
        match what {
            "ext4" => self.ext4("ext4")?,
            "floor" => {
                let mut floor = self.nacre();
                floor.args(["bench", "floor"]).arg(&dir).args(self.no_uring.then_some("--no-uring"));
                self.start(floor, "next: ", &dir)?;
            }
            "up" => {
                let data = self.data("up")?;
                let mut up = self.nacre();
                up.arg("up").arg(&dir).arg("--dir").arg(data).args(self.mount_options());
                self.start(up, "next: ", &dir)?;
            }
            "nacre" => self.servers_and_mount(&dir)?,
            other => bail!("{other:?} is none of nacre, up, floor, ext4"),
        }
        self.places.push(dir);
        Ok(())
    }

    fn mount_options(&self) -> &'static [&'static str] {
        if self.no_uring { &["-o", "nouring"] } else { &[] }
    }

    /// The stores of servers are on ext4 in memory.
    fn data(&mut self, name: &str) -> Result<PathBuf> {
        let disk = format!("{name}-disk");
        self.ext4(&disk)?;
        Ok(self.base.path().join(disk).join("data"))
    }

    fn ext4(&mut self, name: &str) -> Result<()> {
        let (dir, image) = (self.dir(name)?, self.base.path().join(format!("{name}.img")));
        File::create_new(&image)?.set_len(IMAGE_BYTES)?;
        output(Command::new("mkfs.ext4").args(["-q", "-F", "-E", "lazy_itable_init=1"]).arg(&image))?;
        output(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&dir))?;
        self.loops.push(dir.clone());
        fs::remove_dir(dir.join("lost+found"))?;
        Ok(())
    }

    /// Servers in one process, on a unix socket, and the mount in another one.
    fn servers_and_mount(&mut self, dir: &Path) -> Result<()> {
        let (data, own) = (self.data("nacre")?, self.dir("nacre-servers")?);
        let mut up = self.nacre();
        up.arg("up").arg(&own).arg("--dir").arg(data);
        let said = self.start(up, "next: ", &own)?;
        let line = said.iter().find_map(|l| l.split_once("mount another: nacre mount "));
        let (_, rest) = line.context("`up` says no line `mount another:`")?;
        let address = rest.split_whitespace().next().unwrap_or_default().to_owned();
        let mut mount = self.nacre();
        mount.arg("mount").arg(address).arg(dir).args(self.mount_options());
        self.start(mount, "next: ", dir)?;
        Ok(())
    }

    /// Starts a process and waits for a line that begins with `until`; its lines up to there.
    fn start(&mut self, mut command: Command, until: &str, mount: &Path) -> Result<Vec<String>> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().context("stdout is a pipe")?);
        let mut ready = false;
        let (mut said, mut line) = (Vec::new(), String::new());
        while !ready && stdout.read_line(&mut line)? > 0 {
            ready = line.starts_with(until);
            said.push(std::mem::take(&mut line));
        }
        self.processes.push(Process { child, _stdout: stdout, mount: mount.to_owned() });
        ensure!(ready, "it ended before it was ready: its message is above");
        Ok(said)
    }

    fn bench(&self, load: &str, options: &Compare) -> Result<Command> {
        let (first, others) = self.places.split_first().context("there is nothing to measure")?;
        let mut bench = self.nacre();
        bench.args(["bench", load]).arg(first).args(["-r", &options.rounds.to_string()]);
        for other in others {
            bench.arg("--vs").arg(other);
        }
        // The archive and the repository of the tree are in memory too.
        bench.env("TMPDIR", self.base.path());
        Ok(bench)
    }

    pub(crate) fn measure(&self, options: &Compare) -> Result<()> {
        /// Files as large as those of a source tree usually are.
        const SMALL_FILE_BYTES: &str = "3901";
        let items = options.items.to_string();
        for processes in options.processes.iter().map(u32::to_string) {
            let md = ["-n", &items, "-p", &processes];
            sh(self.bench("md", options)?.args(md))?;
            let names = "--phases=file-create,file-stat,file-remove";
            sh(self.bench("md", options)?.args(md).arg("--shared").arg(names))?;
            let small = "--phases=file-create,file-read,file-remove";
            sh(self.bench("md", options)?.args(md).args(["--data", SMALL_FILE_BYTES, small]))?;
        }
        if options.tree > 0 {
            // The kernel forgets the names of that file system, and with FUSE the inodes. Without `-i` the helper of the
            // installed nacre would be called.
            let cold = "mount -i -o remount \"$1\"";
            let files = options.tree.to_string();
            sh(self.bench("tree", options)?.args(["-n", &files, "--list", &files, "--cold", cold]))?;
        }
        Ok(())
    }

    /// Streams, then small blocks in random order.
    pub(crate) fn measure_io(&self, options: &Compare) -> Result<()> {
        const CAST_OUT: &str = "sync; echo 1 > /proc/sys/vm/drop_caches";
        let streams = ["--size", "64M", "--rows", "write,read"];
        let small = ["--size", "8M", "--block", "4K", "--rows", "random-write,random-read"];
        for row in [streams.as_slice(), &small] {
            sh(self.bench("io", options)?.args(row).arg("--fsync"))?;
            sh(self.bench("io", options)?.args(row).args(["--cold", CAST_OUT]))?;
        }
        Ok(())
    }

    pub(crate) fn end(mut self) -> Result<()> {
        // Each process ends when its directory is unmounted.
        while let Some(mut process) = self.processes.pop() {
            sh(Command::new("umount").arg(&process.mount))?;
            let status = process.child.wait()?;
            ensure!(status.success(), "the process of {} ended with {status}", process.mount.display());
        }
        while let Some(dir) = self.loops.pop() {
            output(Command::new("umount").arg(&dir))?;
        }
        Ok(())
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        // Only after a failure does anything run still.
        for mut process in self.processes.drain(..).rev() {
            drop(Command::new("umount").arg("-l").arg(&process.mount).status());
            drop(process.child.kill());
            drop(process.child.wait());
        }
        for dir in self.loops.drain(..).rev() {
            drop(Command::new("umount").arg("-l").arg(&dir).status());
        }
    }
}
