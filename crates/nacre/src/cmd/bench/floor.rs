//! `nacre bench floor`: a file system in memory behind nacre's FUSE layer, as a mount to measure against.
//!
//! No file system behind this layer can be faster, so the ratio of nacre to it shows the cost of everything else.

use super::memory::Memory;
use crate::output::{self, log};
use crate::process::data_dir;
use crate::process::islands::Process;
use crate::process::mounted::{self, Mounted};
use crate::process::registry::ProcessKind;
use crate::process::signals::{self, Signals};
use anyhow::Result;
use nacre_fuse::{
    Door, FuseSink, FuseSource, Interrupts, KernelAtime, KernelOptions, MountOptions, SessionConfig, Unmount,
};
use nacre_node::{Ctx, Effect, Event, Logic};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

#[derive(clap::Args, Debug)]
#[command(
    about = "Mount a file system in memory, to measure others against",
    long_about = "Mount a file system in memory behind nacre's FUSE layer, to measure others against.\n\
        \n\
        It has no servers and no disk, so that a load on it shows what the kernel and the FUSE\n\
        layer cost. Permissions are not checked, and the files are lost when the process ends. It\n\
        serves until the directory is unmounted, or until Ctrl-C.",
    after_help = "Examples:\n\
        \x20 nacre bench floor /mnt/floor                 the kernel caches names, attributes and data\n\
        \x20 nacre bench floor /mnt/floor --validity 0    every call is a request\n\
        \x20 nacre bench md /mnt/nacre --vs /mnt/floor"
)]
pub(crate) struct FloorArgs {
    /// Mount point
    dir: PathBuf,
    /// Seconds for which the kernel may use names, attributes and file data without a request
    #[arg(long, value_name = "SECONDS", default_value_t = 1_000_000_000, value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    validity: u64,
    /// Take requests from /dev/fuse, although the kernel offers io_uring
    #[arg(long)]
    no_uring: bool,
}

pub(crate) fn run(args: &FloorArgs) -> Result<()> {
    let dir = data_dir::absolute(&args.dir)?;
    let mount_point = mounted::check_mount_point(&dir)?;
    log::init(None)?;
    let mut signals = Signals::catch()?;
    let process = Process::start(ProcessKind::Mount)?;
    let validity = Duration::from_secs(args.validity);
    // The receiver is only for mounts that connect to servers.
    let (sink, _) = FuseSink::new(Interrupts::default());
    let island = process.node().add_island("floor", None, Some(sink), move |ctx| -> Box<dyn Logic> {
        Box::new(Floor { ctx: ctx.clone(), door: Door::new(ctx, Rc::new(Memory::new(ctx, validity))) })
    })?;
    let options = MountOptions {
        source: "floor".to_owned(),
        kernel: KernelOptions {
            atime: KernelAtime { never: true, ..KernelAtime::default() },
            ..KernelOptions::default()
        },
        shared_memory: None,
        session: SessionConfig {
            readdirplus: args.validity > 0,
            rings: !args.no_uring,
            ..SessionConfig::default()
        },
    };
    let mut kernel = nacre_fuse::mount_fuse(&dir, &options)?;
    mount_point.keep();
    let source = match FuseSource::start(process.node(), &mut kernel, island, signals::wake) {
        Ok(source) => source,
        Err(error) => {
            drop(nacre_fuse::unmount_fuse(&dir, Unmount::Force));
            return Err(error.into());
        }
    };
    let mount = Mounted::new(kernel.path, "floor".to_owned(), source);
    output::line(&format!(
        "a file system in memory is mounted on {}, {}",
        mount.dir().display(),
        kernel.transport
    ));
    output::line(&format!(
        "next: nacre bench md {0}; stop: nacre umount {0}, or Ctrl-C",
        mount.dir().display()
    ));
    match mount.serve(&mut signals, &process)? {
        Ok(()) => process.stop(&mut signals),
        Err(lost) => Err(process.fail(lost)),
    }
}

/// The island of the mount.
struct Floor {
    ctx: Rc<Ctx>,
    door: Rc<Door<Memory>>,
}

impl Logic for Floor {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Door(item) => self.door.event(item),
            Event::Stop => self.ctx.push(Effect::Stopped),
            _ => {}
        }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.door.abandon();
    }
}
