//! `nacre bench tree`: what people do with a source tree, in seconds: unpack, copy, walk, read, git, remove.

use super::report::{self, Unit};
use super::scratch::Scratch;
use anyhow::{Context as _, Result, bail};
use rustix::fs::{FileType, lstat};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(clap::Args, Debug)]
#[command(
    about = "A source tree: untar, cp -r, walk, read, ls -l, git, rm -rf",
    long_about = "Measure common work on a source tree, in seconds: untar, cp -r, walk, read, ls -l, git clone,\n\
        checkout and status, rm -rf.\n\
        \n\
        It works on any directory of any file system, with --vs on several in turn. Each run makes\n\
        the same tree: text files of 2 to 250 KiB, 23 KiB on average, ten in a directory. A walk\n\
        reads the attributes of every file. A warm row is measured after the same step has run\n\
        once without being measured. A cold row is measured after the command of --cold; without\n\
        this option there are no cold rows. Needs tar and git.",
    after_help = "Examples:\n\
        \x20 nacre bench tree /mnt/nacre --vs /tmp\n\
        \x20 nacre bench tree /mnt/nacre --cold 'mount -i -o remount \"$1\"'    $1: the directory"
)]
pub(crate) struct TreeArgs {
    /// Directory to work in
    dir: PathBuf,
    /// A further directory, measured in turn with the first; a ratio column is added. Several are possible
    #[arg(long, value_name = "DIR")]
    vs: Vec<PathBuf>,
    /// Files of the tree
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    files: u32,
    /// Files of the directory for ls -l
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    list: u32,
    /// Rounds; the median is shown
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Shell command that empties the caches of the directory `$1` before each cold row
    #[arg(long, value_name = "COMMAND")]
    cold: Option<String>,
    /// Print JSON with stable keys instead of a table
    #[arg(long)]
    json: bool,
}

/// The options in the report.
#[derive(Serialize)]
struct Load {
    files: u32,
    listed_files: u32,
    bytes: u64,
}

/// A row. Each step works on what the ones before it left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Untar,
    Copy,
    Walk,
    Read,
    List,
    Clone,
    Checkout,
    Status,
    Remove,
}

/// The preparation of a row, which is not measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// The same step.
    Same,
    /// The command of `--cold`.
    Cold,
}

const ROWS: [(&str, Step, Before); 12] = [
    ("untar", Step::Untar, Before::Nothing),
    ("cp -r", Step::Copy, Before::Nothing),
    ("walk warm", Step::Walk, Before::Same),
    ("walk cold", Step::Walk, Before::Cold),
    ("read warm", Step::Read, Before::Same),
    ("read cold", Step::Read, Before::Cold),
    ("ls -l warm", Step::List, Before::Same),
    ("ls -l cold", Step::List, Before::Cold),
    ("git clone", Step::Clone, Before::Nothing),
    ("git checkout", Step::Checkout, Before::Nothing),
    ("git status", Step::Status, Before::Same),
    ("rm -rf", Step::Remove, Before::Nothing),
];

pub(crate) fn run(args: &TreeArgs) -> Result<()> {
    let source = Source::make(args.files)?;
    let rows: Vec<_> =
        ROWS.into_iter().filter(|(.., before)| args.cold.is_some() || *before != Before::Cold).collect();
    let names: Vec<_> = rows.iter().map(|(name, ..)| *name).collect();
    let dirs: Vec<_> = std::iter::once(&args.dir).chain(&args.vs).cloned().collect();
    let load = Load { files: args.files, listed_files: args.list, bytes: source.bytes };
    let start = |dir: &Path, round| Place::make(dir, round, args.list);
    let run = |place: &mut Place, at: usize| {
        let (name, step, before) = rows[at];
        place.measure(&source, step, before, args.cold.as_deref()).with_context(|| name.to_owned())
    };
    report::measure((&dirs, Unit::Seconds, load), &names, args.rounds, start, run)?.print(args.json, |load| {
        format!(
            "a tree of {} files, {:.1} MB; ls -l of {} files; {} round(s)",
            load.files,
            load.bytes as f64 / 1e6,
            load.listed_files,
            args.rounds
        )
    })
}

/// The tree as an archive and as a repository, in the directory for temporary files.
struct Source {
    base: Scratch,
    bytes: u64,
}

impl Source {
    fn make(files: u32) -> Result<Self> {
        let base = std::env::temp_dir().join(format!("nacre-bench-tree-{}", std::process::id()));
        let base = Scratch::make(base)?;
        let mut source = Self { base, bytes: 0 };
        let tree = source.tree();
        for file in 0..files {
            let dir = tree.join(format!("part{}/dir{}", file / 100, file / 10 % 10));
            if file % 10 == 0 {
                fs::create_dir_all(&dir)?;
            }
            let text = text(file, size(file));
            source.bytes += text.len() as u64;
            fs::write(dir.join(format!("file{file}.txt")), text)?;
        }
        sh(Command::new("tar")
            .arg("cf")
            .arg(source.archive())
            .arg("-C")
            .arg(source.base.path())
            .arg("tree"))?;
        sh(git(&tree).args(["init", "--quiet"]))?;
        let commit = |message: &str| {
            sh(git(&tree).args(["add", "--all"]))?;
            sh(git(&tree).args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]).args([
                "commit",
                "--quiet",
                "--message",
                message,
            ]))
        };
        commit("all files")?;
        for file in (0..files).step_by(4) {
            let path = tree.join(format!("part{}/dir{}/file{file}.txt", file / 100, file / 10 % 10));
            fs::write(path, text(file + files, size(file)))?;
        }
        commit("every fourth file is another")?;
        Ok(source)
    }
    fn tree(&self) -> PathBuf {
        self.base.path().join("tree")
    }
    fn archive(&self) -> PathBuf {
        self.base.path().join("tree.tar")
    }
}

/// Bytes of a file: most are small, one of twenty is large.
fn size(file: u32) -> usize {
    const KIB: u32 = 1024;
    let spread = file.wrapping_mul(2_654_435_761) >> 16;
    let (least, range) = match file % 20 {
        0 => (128 * KIB, 122 * KIB),
        1..=7 => (12 * KIB, 36 * KIB),
        _ => (2 * KIB, 6 * KIB),
    };
    (least + spread % range) as usize
}

/// Letters and lines, always the same for the same number.
fn text(file: u32, bytes: usize) -> Vec<u8> {
    let mut state = u64::from(file) + 1;
    let letter = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        b"etaoinshrdlucmfwypvbgkjqxz .,;()\n"[(state >> 33) as usize % 33]
    };
    (0..bytes).map(letter).collect()
}

/// A directory in one round.
struct Place {
    dir: PathBuf,
    base: Scratch,
}

impl Place {
    fn make(dir: &Path, round: u32, list: u32) -> Result<Self> {
        let dir = dir.canonicalize().with_context(|| dir.display().to_string())?;
        let base = Scratch::make(dir.join(format!("nacre-bench-{}-{round}", std::process::id())))?;
        fs::create_dir(base.path().join("list"))?;
        let place = Self { dir, base };
        for file in 0..list {
            File::create_new(place.base.path().join(format!("list/file{file}")))?;
        }
        Ok(place)
    }

    /// Seconds of a row.
    fn measure(&self, source: &Source, step: Step, before: Before, cold: Option<&str>) -> Result<f64> {
        match (before, cold) {
            (Before::Same, _) => self.run(source, step)?,
            (Before::Cold, Some(command)) => {
                sh(Command::new("sh").args(["-c", command, "sh"]).arg(&self.dir))?;
            }
            _ => {}
        }
        let start = clock_gettime(ClockId::Monotonic);
        self.run(source, step)?;
        let took = clock_gettime(ClockId::Monotonic) - start;
        Ok(took.tv_sec as f64 + took.tv_nsec as f64 / 1e9)
    }

    fn run(&self, source: &Source, step: Step) -> Result<()> {
        let base = self.base.path();
        let (tree, copy, clone) = (base.join("tree"), base.join("copy"), base.join("clone"));
        match step {
            Step::Untar => sh(Command::new("tar").arg("xf").arg(source.archive()).arg("-C").arg(base)),
            Step::Copy => sh(Command::new("cp").arg("-r").arg(&tree).arg(&copy)),
            Step::Walk => walk(&tree, false),
            Step::Read => walk(&tree, true),
            Step::List => walk(&base.join("list"), false),
            Step::Clone => {
                sh(git(base).args(["clone", "--quiet", "--no-local"]).arg(source.tree()).arg(&clone))
            }
            Step::Checkout => sh(git(&clone).args(["checkout", "--quiet", "HEAD~1"])),
            Step::Status => sh(git(&clone).args(["status", "--short"])),
            Step::Remove => sh(Command::new("rm").arg("-rf").arg(&copy)),
        }
    }
}

/// Asks for the attributes of everything below, and reads the files.
fn walk(dir: &Path, read: bool) -> Result<()> {
    let mut buffer = vec![0; 1 << 17];
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            // `metadata` would ask for the birth time too, which the kernel does not cache with the other attributes.
            let attributes = lstat(&path).with_context(|| path.display().to_string())?;
            if FileType::from_raw_mode(attributes.st_mode).is_dir() {
                dirs.push(path);
            } else if read {
                let mut file = File::open(path)?;
                while file.read(&mut buffer)? > 0 {}
            }
        }
    }
    Ok(())
}

/// git in a directory, without the configuration of the user.
fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

/// Runs a program, which must succeed.
fn sh(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    if !out.status.success() {
        bail!("{name} ended with {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim_end());
    }
    Ok(())
}
