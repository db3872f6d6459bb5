//! `nacre bench io`: bandwidth of reads and writes on any directory of any file system, as IOR measures it.
//!
//! Every thread has an open file of its own, or its part of a shared file, and transfers each block of it once: in order,
//! every fourth block, or at random. With `--vs DIR` the same rows run on further directories, row by row and round by
//! round in turn. A rate is the bytes of all threads over the time from the first start to the last end, which includes
//! the fsync of `--fsync`.

use super::chart::{self, Line, Panel};
use super::report::{self, Report, Unit};
use super::rpc_size::RpcSize;
use super::scratch::Scratch;
use crate::cmd::lfs::parse_size;
use crate::output;
use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A strided row transfers every block of this distance, and then the next ones between them.
const STRIDE: u64 = 4;
/// Alignment of the buffers, for direct I/O.
const ALIGN: usize = 4096;
const FILE_BYTES_MAX: u64 = 1 << 50;
const BLOCK_BYTES_MAX: u64 = 64 << 20;

#[derive(clap::Args, Debug)]
#[command(
    about = "Bandwidth: sequential, strided and random reads and writes, one file per thread or a shared one",
    long_about = "Bandwidth of reads and writes: sequential, strided and random.\n\
        \n\
        Works on any directory of any file system, with --vs on several in turn. A temporary directory\n\
        is created and removed, also when Ctrl-C ends the command. Every thread transfers each block of its file once, or of its part of\n\
        the shared file: in order, every fourth block and then those between, or at random. Reads\n\
        follow writes, so caches are warm; --cold empties them before each row that reads. A rate is\n\
        the bytes of all threads over the time from the first start to the last end. With several\n\
        values of --block everything is measured with each, and --picture draws the rates over them.\n\
        \n\
        --rpc does the same on a nacre mount with several sizes of its largest read and write requests\n\
        (osc.*.max_pages_per_rpc), and restores the size at the end.",
    after_help = "Examples:\n\
        \x20 nacre bench io /mnt/nacre --vs /tmp --fsync\n\
        \x20 nacre bench io /mnt/nacre -t 4 --shared --block 1M,4M,16M --picture io.svg\n\
        \x20 nacre bench io /mnt/nacre -t 2 --fsync --rows write,read --rpc 1M,4M,8M,16M --picture rpc.svg\n\
        \x20 nacre bench io /mnt/nacre --rows read --cold 'sync; echo 3 >/proc/sys/vm/drop_caches'\n\
        \x20 nacre bench io /mnt/nacre --rows random-write,random-read --block 4K --size 64M --direct"
)]
pub(crate) struct IoArgs {
    /// Directory to work in
    dir: PathBuf,
    /// A further directory, measured in turn with the first; a ratio column is added. Several are possible
    #[arg(long, value_name = "DIR")]
    vs: Vec<PathBuf>,
    /// Bytes that each thread transfers in a row; K, M, G, T are units
    #[arg(short, long, default_value = "256M", value_parser = parse_size)]
    size: u64,
    /// Bytes of each read and write; with several values everything is measured with each
    #[arg(short, long, default_value = "1M", value_delimiter = ',', value_parser = parse_size, value_name = "SIZE,…")]
    block: Vec<u64>,
    /// The largest read and write request of the mount that DIR is on; with several values everything is measured with each
    #[arg(long, value_delimiter = ',', value_parser = parse_size, value_name = "SIZE,…")]
    rpc: Vec<u64>,
    /// Threads
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// One file for all threads (default: a file each)
    #[arg(long)]
    shared: bool,
    /// End each row that writes with an fsync of every thread's file
    #[arg(long)]
    fsync: bool,
    /// Open with O_DIRECT: past the page cache of this machine
    #[arg(long)]
    direct: bool,
    /// Shell command that empties the caches of the directory `$1` before each row that reads
    #[arg(long, value_name = "COMMAND")]
    cold: Option<String>,
    /// Rows to measure, in order (default: all). If the first one reads, the files are written before it
    #[arg(long, value_delimiter = ',', value_name = "ROW,…")]
    rows: Vec<String>,
    /// Rounds; the median is shown
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Draw the rates over the sizes of --block or --rpc into this file (SVG)
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Print JSON with stable keys instead of a table
    #[arg(long)]
    json: bool,
}

/// The options in the report.
#[derive(Serialize)]
struct Load {
    threads: u32,
    bytes_per_thread: u64,
    block_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rpc_bytes: Option<u64>,
    shared_file: bool,
    fsync: bool,
    direct: bool,
    cold: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Sequential,
    Strided,
    Random,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    name: &'static str,
    writes: bool,
    order: Order,
}

const ROWS: [Row; 6] = [
    Row { name: "write", writes: true, order: Order::Sequential },
    Row { name: "read", writes: false, order: Order::Sequential },
    Row { name: "strided-write", writes: true, order: Order::Strided },
    Row { name: "strided-read", writes: false, order: Order::Strided },
    Row { name: "random-write", writes: true, order: Order::Random },
    Row { name: "random-read", writes: false, order: Order::Random },
];

pub(crate) fn run(args: &IoArgs) -> Result<()> {
    let rows = rows(args)?;
    ensure!(
        args.rpc.len() < 2 || args.block.len() < 2,
        "--rpc and --block have several values each\nhint: give several values to one of them"
    );
    let rpc = (!args.rpc.is_empty()).then(|| RpcSize::of(&args.dir)).transpose()?;
    let mut reports = Vec::new();
    for size in sizes(args) {
        if let (Some(rpc), Some(bytes)) = (&rpc, size.rpc) {
            rpc.set(bytes)?;
        }
        reports.push(measure(args, &rows, size)?);
    }
    drop(rpc);
    if let Some(file) = &args.picture {
        draw(args, &reports, file)?;
    }
    if args.json { output::json(&reports) } else { print(args, &reports) }
}

/// The bytes of a program's transfers, and of the largest request of the mount if it is varied.
#[derive(Clone, Copy)]
struct Sizes {
    block: u64,
    rpc: Option<u64>,
}

/// Everything is measured with each of these.
fn sizes(args: &IoArgs) -> Vec<Sizes> {
    let with_block = |block| {
        let with_rpc = move |rpc: &u64| Sizes { block, rpc: Some(*rpc) };
        let without = args.rpc.is_empty().then_some(Sizes { block, rpc: None });
        args.rpc.iter().map(with_rpc).chain(without)
    };
    args.block.iter().copied().flat_map(with_block).collect()
}

fn measure(args: &IoArgs, rows: &[Row], Sizes { block, rpc }: Sizes) -> Result<Report<Load>> {
    ensure!(
        (1..=BLOCK_BYTES_MAX).contains(&block) && args.size.is_multiple_of(block) && args.size > 0,
        "--block {block} does not divide --size {}, or is larger than {BLOCK_BYTES_MAX}",
        args.size
    );
    ensure!(
        !args.direct || block.is_multiple_of(ALIGN as u64),
        "--block {block} is no multiple of {ALIGN}, which --direct needs"
    );
    let names: Vec<_> = rows.iter().map(|row| row.name).collect();
    let dirs: Vec<_> = std::iter::once(&args.dir).chain(&args.vs).cloned().collect();
    let load = Load {
        threads: args.threads,
        bytes_per_thread: args.size,
        block_bytes: block,
        rpc_bytes: rpc,
        shared_file: args.shared,
        fsync: args.fsync,
        direct: args.direct,
        cold: args.cold.is_some(),
    };
    let start = |dir: &Path, round| Place::make(dir, round, args, block);
    let run = |place: &mut Place<'_>, at: usize| {
        place
            .measure(rows[at])
            .with_context(|| format!("{} in {}", rows[at].name, place.base.path().display()))
    };
    report::measure((&dirs, Unit::Bandwidth, load), &names, args.rounds, start, run)
}

fn print(args: &IoArgs, reports: &[Report<Load>]) -> Result<()> {
    for (n, report) in reports.iter().enumerate() {
        if n > 0 {
            output::line("");
        }
        report.print(false, |load| {
            let rpc = load.rpc_bytes.map(|bytes| format!(", requests of {}", output::human_bytes(bytes)));
            format!(
                "{} thread(s), {} each in blocks of {}{}, {}{}{}{}, {} round(s)",
                load.threads,
                output::human_bytes(load.bytes_per_thread),
                output::human_bytes(load.block_bytes),
                rpc.unwrap_or_default(),
                if load.shared_file { "one shared file" } else { "own files" },
                if load.fsync { ", fsync" } else { "" },
                if load.direct { ", direct" } else { "" },
                if load.cold { ", cold reads" } else { "" },
                args.rounds
            )
        })?;
    }
    Ok(())
}

/// The rows that were asked for.
fn rows(args: &IoArgs) -> Result<Vec<Row>> {
    if args.rows.is_empty() {
        return Ok(ROWS.to_vec());
    }
    let find = |name: &String| {
        ROWS.into_iter().find(|row| row.name == name).with_context(|| {
            format!("unknown row {name:?}\nhint: one of {}", ROWS.map(|row| row.name).join(", "))
        })
    };
    args.rows.iter().map(find).collect()
}

/// A panel for each directory, a line for each row.
fn draw(args: &IoArgs, reports: &[Report<Load>], file: &Path) -> Result<()> {
    let dirs = std::iter::once(&args.dir).chain(&args.vs).enumerate();
    let panels = dirs.map(|(dir, path)| {
        let drawn = if args.rpc.is_empty() { &args.block } else { &args.rpc };
        let marks = drawn.iter().map(|b| ((*b as f64).log2(), output::human_bytes(*b)));
        let names = reports.first().into_iter().flat_map(Report::names).enumerate();
        let lines = names.map(|(row, name)| {
            Line::new(name.to_owned(), reports.iter().map(|report| report.median(row, dir)).collect())
        });
        let below = if args.rpc.is_empty() { "bytes of each read and write" } else { "largest request" };
        Panel::new(path.display().to_string(), below.to_owned(), marks.collect(), lines.collect())
    });
    let what =
        format!("{} thread(s), {}", args.threads, if args.shared { "a shared file" } else { "own files" });
    chart::draw(&format!("{what}: MiB per second"), &panels.collect::<Vec<_>>(), file)
}

/// The files of one directory in one round.
struct Place<'a> {
    dir: PathBuf,
    base: Scratch,
    args: &'a IoArgs,
    block: u64,
}

impl<'a> Place<'a> {
    fn make(dir: &Path, round: u32, args: &'a IoArgs, block: u64) -> Result<Self> {
        let dir = dir.canonicalize().with_context(|| dir.display().to_string())?;
        ensure!(
            args.size.saturating_mul(u64::from(args.threads)) <= FILE_BYTES_MAX,
            "{} threads of {} bytes are more than {FILE_BYTES_MAX} bytes",
            args.threads,
            args.size
        );
        let base = Scratch::make(dir.join(format!("nacre-bench-{}-{round}", std::process::id())))?;
        let place = Self { dir, base, args, block };
        // The first row creates nothing but data, and a row that reads finds something to read.
        if rows(args)?.first().is_some_and(|row| !row.writes) {
            place.measure(ROWS[0])?;
        }
        Ok(place)
    }

    fn file(&self, thread: u32) -> PathBuf {
        let thread = if self.args.shared { 0 } else { thread };
        self.base.path().join(format!("file{thread}"))
    }

    /// MiB per second of a row.
    fn measure(&self, row: Row) -> Result<f64> {
        if let Some(command) = self.args.cold.as_deref().filter(|_| !row.writes) {
            let status = Command::new("sh").args(["-c", command, "sh"]).arg(&self.dir).status()?;
            if !status.success() {
                bail!("the command of --cold ended with {status}");
            }
        }
        let times = std::thread::scope(|scope| {
            let run = |thread| scope.spawn(move || self.transfer(row, thread));
            let threads: Vec<_> = (0..self.args.threads).map(run).collect();
            let ended = threads.into_iter().map(|thread| match thread.join() {
                Ok(times) => times,
                Err(_) => bail!("a thread panicked"),
            });
            ended.collect::<Result<Vec<_>>>()
        })?;
        let first = times.iter().map(|(start, _)| *start).min().context("no thread ran")?;
        let last = times.iter().map(|(_, end)| *end).max().context("no thread ran")?;
        let bytes = self.args.size as f64 * f64::from(self.args.threads);
        Ok(bytes / (1 << 20) as f64 / last.duration_since(first).as_secs_f64().max(1e-9))
    }

    /// The part of a row that one thread does: its start and its end.
    fn transfer(&self, row: Row, thread: u32) -> Result<(Instant, Instant)> {
        let mut options = OpenOptions::new();
        options.read(!row.writes).write(row.writes).create(row.writes);
        if self.args.direct {
            options.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
        }
        let len = usize::try_from(self.block)?;
        let mut buffer = vec![0; len + ALIGN];
        let from = buffer.as_ptr().align_offset(ALIGN).min(ALIGN);
        let buffer = buffer.get_mut(from..from + len).context("the buffer is aligned")?;
        fill(buffer, thread);
        let offsets = offsets(row.order, self.args.size / self.block, self.args, thread);
        let path = self.file(thread);
        let start = Instant::now();
        let file: File = options.open(&path).with_context(|| path.display().to_string())?;
        for block in offsets {
            let at = block * self.block;
            if row.writes {
                file.write_all_at(buffer, at)?;
            } else {
                file.read_exact_at(buffer, at).with_context(|| format!("read of {len} bytes at {at}"))?;
            }
        }
        if row.writes && self.args.fsync {
            file.sync_all()?;
        }
        drop(file);
        Ok((start, Instant::now()))
    }
}

/// Bytes that no device compresses or unites.
fn fill(buffer: &mut [u8], seed: u32) {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ u64::from(seed);
    for word in buffer.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

/// The blocks of one thread in the order of a row, numbered from the beginning of its file.
fn offsets(order: Order, count: u64, args: &IoArgs, thread: u32) -> Vec<u64> {
    let (thread, threads) = (u64::from(thread), u64::from(args.threads));
    let first = if args.shared { thread * count } else { 0 };
    match order {
        Order::Sequential => (0..count).map(|n| first + n).collect(),
        // In a shared file the blocks of the threads alternate.
        Order::Strided if args.shared && threads > 1 => (0..count).map(|n| n * threads + thread).collect(),
        Order::Strided => {
            let from = |offset| (offset..count).step_by(STRIDE as usize);
            (0..STRIDE).flat_map(from).map(|n| first + n).collect()
        }
        Order::Random => {
            let mut blocks: Vec<u64> = (0..count).map(|n| first + n).collect();
            let mut state = thread + 1;
            for n in (1..blocks.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                blocks.swap(n, (state >> 33) as usize % (n + 1));
            }
            blocks
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        io: IoArgs,
    }
    fn args(more: &[&str]) -> IoArgs {
        Line::parse_from([&["x", "dir"], more].concat()).io
    }

    #[test]
    fn every_block_is_transferred_once_by_one_thread() {
        for (more, files) in [(&["-t", "3"][..], 3), (&["-t", "3", "--shared"], 1), (&["--shared"], 1)] {
            let args = args(more);
            for row in ROWS {
                let mut blocks: Vec<(u32, u64)> = (0..args.threads)
                    .flat_map(|t| {
                        let file = if args.shared { 0 } else { t };
                        offsets(row.order, 37, &args, t).into_iter().map(move |block| (file, block))
                    })
                    .collect();
                blocks.sort_unstable();
                let per_file = 37 * u64::from(args.threads) / files;
                let all: Vec<_> =
                    (0..files as u32).flat_map(|f| (0..per_file).map(move |n| (f, n))).collect();
                assert_eq!(blocks, all, "{more:?} {row:?}");
            }
        }
        assert_eq!(offsets(Order::Strided, 9, &args(&[]), 0), [0, 4, 8, 1, 5, 2, 6, 3, 7]);
        let random = offsets(Order::Random, 100, &args(&[]), 0);
        assert!(random.windows(2).filter(|w| w[1] == w[0] + 1).count() < 10, "{random:?}");
    }
}
