//! A load without the kernel: the tasks of one client in this process, over the network to the servers.
//!
//! The client core lives in an island of a node, as that of a mount does; orders go in through its door, and each
//! is replied to by an effect. The tasks are in [`super::tasks`].

use super::md_args::MdArgs;
use super::site::{Mdc, Site};
use super::tasks::{BenchIsland, Order, Outcome, Plan, Reply};
use super::worker::Phase;
use crate::process::{addresses, islands, mounted};
use anyhow::{Context as _, Result, bail};
use nacre_client::{Attach, MountConfig};
use nacre_node::{Event, Logic};
use nacre_rt::{Config, DoorSink, IslandRef, Node};
use nacre_types::FsName;
use nacre_wire::target::Param;
use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// How long the client may take to say goodbye.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// One order is under way at a time, and the client may end.
const REPLIES_MAX: usize = 4;

/// A client of a file system in this process.
pub(super) struct Library {
    node: Node,
    island: IslandRef,
    replies: Receiver<Reply>,
}

/// Brings the island's replies to the main thread.
struct Replies {
    attach: SyncSender<Attach>,
    replies: SyncSender<Reply>,
}
impl DoorSink for Replies {
    fn door(&self, _island: &IslandRef, item: Box<dyn Any + Send>) {
        // Nobody listens any more only when this process is ending.
        match item.downcast::<Reply>() {
            Ok(reply) => drop(self.replies.try_send(*reply)),
            Err(item) => drop(item.downcast::<Attach>().map(|news| self.attach.try_send(*news))),
        }
    }
}

impl Library {
    /// Connects to the file system that `args` names.
    pub(super) fn start(args: &MdArgs, batch: u16) -> Result<Self> {
        let (address, fs, below) = place(&args.dir)?;
        let config = MountConfig {
            mgs_addresses: vec![address.clone()],
            fs,
            name: format!("bench, pid {}", std::process::id()),
            instance: None,
            read_only: false,
            atime: nacre_client::AtimePolicy::default(),
            names_per_page: MountConfig::NAMES_PER_PAGE,
            write_back: false,
            kept_log: None,
            left_writes: Vec::new(),
        };
        let plan = Plan {
            below,
            name: format!("nacre-bench-{}", std::process::id()),
            workers: args.processes,
            items: args.items,
            shared: args.shared,
            batch: usize::from(batch),
        };
        let (attach, news) = sync_channel(Attach::NEWS_MAX);
        let (to, replies) = sync_channel(REPLIES_MAX);
        let lost = to.clone();
        let node =
            Node::start(Config { loops: islands::LOOPS, ..Config::default() }, move |_, _, reason| {
                drop(lost.try_send(Err(format!("the client ended: {reason}"))));
            })?;
        let sink = Arc::new(Replies { attach, replies: to });
        let island = node.add_island("bench", None, Some(sink), move |ctx| {
            Box::new(BenchIsland::new(ctx, config, plan)) as Box<dyn Logic>
        })?;
        mounted::wait_ready(&news, &address, mounted::WaitLimits::default())?;
        Ok(Self { node, island, replies })
    }

    /// Changes in a request from now on; 1: each on its own.
    pub(super) fn set_batch(&self, batch: u16) {
        self.node.deliver(&self.island, Event::Door(Box::new(Order::Batch(usize::from(batch)))));
    }

    /// Closes the client.
    pub(super) fn stop(self) -> Result<()> {
        self.node.stop_island(&self.island, STOP_LIMIT)?;
        self.node.shutdown();
        Ok(())
    }

    fn ask(&self, order: Order) -> Result<Outcome> {
        self.node.deliver(&self.island, Event::Door(Box::new(order)));
        match self.replies.recv()? {
            Ok(outcome) => Ok(outcome),
            Err(why) => bail!("{why}"),
        }
    }
}

impl Site for Library {
    fn begin(&mut self, round: u32) -> Result<()> {
        self.ask(Order::Begin(round)).map(drop)
    }
    fn run(&mut self, phase: Phase) -> Result<f64> {
        match self.ask(Order::Run(phase))? {
            Outcome::Ran { operations, took } => Ok(operations as f64 / took.as_secs_f64().max(1e-9)),
            Outcome::Done | Outcome::Params(_) => bail!("the client returned something else"),
        }
    }
    fn end(&mut self) -> Result<()> {
        self.ask(Order::End).map(drop)
    }
    fn mdc(&mut self) -> Result<Mdc> {
        match self.ask(Order::Params)? {
            Outcome::Params(all) => Ok(Mdc(all.into_iter().filter(|p| p.name.starts_with("mdc.")).collect())),
            Outcome::Done | Outcome::Ran { .. } => bail!("the client returned something else"),
        }
    }
    fn set(&mut self, param: &Param, value: &str) -> Result<()> {
        self.ask(Order::Set(param.name.clone(), value.to_owned())).map(drop)
    }
}

/// Address of the MGS, file system, and names below its root: of `ADDRESS:/FS[/DIR]`, or of a place on a mount.
fn place(text: &str) -> Result<(String, FsName, Vec<Vec<u8>>)> {
    use std::os::unix::ffi::OsStrExt as _;
    let names = |path: &Path| path.iter().map(|name| name.as_bytes().to_vec()).collect();
    if let Ok(dir) = Path::new(text).canonicalize() {
        let Some((point, source)) = nacre_fuse::mount_of(&dir) else {
            bail!("{text} is not on a nacre file system\nhint: nacre status lists the mounts")
        };
        let (address, fs) = addresses::parse_source(&source)?;
        return Ok((address, fs, names(dir.strip_prefix(point)?)));
    }
    let not_there = || {
        format!(
            "{text:?} is neither a directory nor ADDRESS:/FS[/DIR]\nhint: 10.0.0.1:9988:/demo, or a mount point"
        )
    };
    let (at, _) = text.rmatch_indices(":/").next().with_context(not_there)?;
    // The name of the file system ends at the next slash.
    let end = text[at + 2..].find('/').map_or(text.len(), |slash| at + 2 + slash);
    let (address, fs) = addresses::parse_source(&text[..end]).with_context(not_there)?;
    Ok((address, fs, names(Path::new(text[end..].trim_matches('/')))))
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn a_place_is_address_file_system_and_directory() {
        let parts = |text: &str| {
            let (address, fs, names) = place(text).unwrap();
            (address, fs.to_string(), names)
        };
        assert_eq!(parts("10.0.0.1:9988:/demo"), ("10.0.0.1:9988".into(), "demo".into(), vec![]));
        assert_eq!(
            parts("unix:/run/x.sock:/demo/a/b/"),
            ("unix:/run/x.sock".into(), "demo".into(), vec![b"a".to_vec(), b"b".to_vec()])
        );
        for wrong in ["nothing", "/proc", "h:1:/bad name"] {
            assert!(place(wrong).unwrap_err().to_string().contains("hint:"), "{wrong}");
        }
    }
}
