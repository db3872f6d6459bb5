//! Target directories: opening a store, formatting it, reading its label.

use crate::output;
use crate::process::pause;
use anyhow::{Context as _, Result, anyhow};
use nacre_node::{Ctx, Effect, Event, Logic, Store, visit};
use nacre_osd::{Label, Osd, OsdConfig};
use nacre_osd_fs::{DirLock, FsConfig, FsStore, OpenError};
use nacre_osd_mem::MemStore;
use nacre_types::{ClientUuid, TargetName};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that a memory store may hold.
const MEMORY_BYTES: u64 = 4 << 30;
/// A killed process has ended by then, or hangs in the kernel waiting for a device.
const DYING_MAX: Duration = Duration::from_secs(10);
/// Open files for the 66 targets of the largest `up`.
const DESCRIPTORS_WANTED: u64 = 128 << 10;

pub(crate) fn random_uuid() -> ClientUuid {
    let mut bytes = [0u8; 16];
    for half in bytes.chunks_exact_mut(8) {
        half.copy_from_slice(&nacre_rt::random().to_le_bytes());
    }
    ClientUuid(bytes)
}

/// Opens the store in a directory and locks it against a second server. A server that was killed
/// a moment ago may still hold the lock; its end is waited for, at most [`DYING_MAX`].
pub(crate) fn open_dir(dir: &Path) -> Result<Arc<dyn Store>> {
    with_descriptors(|config| when_free(dir, || FsStore::open(dir, config)))
}

/// Takes the lock of a directory without opening its store, as [`open_dir`] does.
pub(crate) fn lock_dir(dir: &Path) -> Result<DirLock> {
    Ok(when_free(dir, || FsStore::lock(dir))?)
}

/// Tries again while the lock is that of a process that is ending.
fn when_free<T>(dir: &Path, open: impl Fn() -> Result<T, OpenError>) -> Result<T, OpenError> {
    let until = Instant::now() + DYING_MAX;
    let mut told = false;
    loop {
        match open() {
            Err(OpenError::Busy { holder, .. }) if holder.is_ending() && Instant::now() < until => {
                if !told {
                    output::note(&format!("{}: waiting for the end of {holder}", dir.display()));
                    told = true;
                }
                pause(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// Opens the store in a directory of which nothing is going to be changed.
pub(crate) fn open_dir_read_only(dir: &Path) -> Result<Arc<dyn Store>> {
    with_descriptors(|config| FsStore::open_read_only(dir, config))
}

/// Makes an empty store in a directory.
pub(crate) fn format_dir(dir: &Path, reformat: bool) -> Result<Arc<dyn Store>> {
    with_descriptors(|config| FsStore::format(dir, config, reformat))
}

fn with_descriptors(make: impl FnOnce(&FsConfig) -> Result<FsStore, OpenError>) -> Result<Arc<dyn Store>> {
    let limit = raise_descriptor_limit();
    let mut config = FsConfig::default();
    // Half of the limit is for the stores of one process, of which there are four as a rule.
    config.descriptors_max = config.descriptors_max.min(usize::try_from(limit / 8).unwrap_or(usize::MAX));
    match make(&config) {
        Ok(store) => Ok(Arc::new(store)),
        Err(OpenError::Io { what, path, source }) if source.raw_os_error() == Some(EMFILE) => {
            let hint = "raise it: 1024 do for the targets of one `up`, 1100 for each target are good";
            Err(anyhow!("{what} {path}: {source}\nhint: `ulimit -n` is {limit}, {hint}"))
        }
        Err(error) => Err(error.into()),
    }
}

const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();

/// Raises the limit of open files as far as this process may, and returns it. The usual 1024 is too little for
/// the targets of one `up`; nothing here uses select(2), the reason for that number.
pub(crate) fn raise_descriptor_limit() -> u64 {
    let now = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|n| n >= DESCRIPTORS_WANTED);
    if enough(now.current) {
        return now.current.unwrap_or(u64::MAX);
    }
    let wanted = Some(DESCRIPTORS_WANTED);
    let tries = [
        Rlimit { current: wanted, maximum: if enough(now.maximum) { now.maximum } else { wanted } },
        Rlimit { current: now.maximum, maximum: now.maximum },
    ];
    // Only root may lift the upper limit.
    let _ = tries.into_iter().find(|limit| setrlimit(Resource::Nofile, *limit).is_ok());
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// A fresh memory store.
pub(crate) fn memory() -> Arc<dyn Store> {
    Arc::new(MemStore::new(MEMORY_BYTES))
}

/// Writes label and empty log.
pub(crate) fn format(
    store: &Arc<dyn Store>,
    name: &TargetName,
    mgs: &[String],
    reformat: bool,
) -> Result<()> {
    let label = Label {
        uuid: random_uuid(),
        name: name.to_string(),
        mgs_nodes: mgs.to_vec(),
        format_version: nacre_osd::FORMAT_VERSION,
    };
    run_alone(store, |ctx| async move { Osd::format(&ctx, &label, &osd_config(), reformat).await })?
        .map_err(|e| anyhow!("cannot format {name}: {e}"))
}

/// The label of a formatted store.
pub(crate) fn label(store: &Arc<dyn Store>) -> Result<Label> {
    run_alone(store, |ctx| async move { Osd::read_label(&ctx).await })?.map_err(|e| anyhow!("{e}"))
}

/// Bounds of a target's engine in this process.
pub(crate) fn osd_config() -> OsdConfig {
    OsdConfig::default()
}

/// A logic that is nothing but its context.
struct Alone(Rc<Ctx>);
impl Logic for Alone {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.0
    }
    fn handle(&mut self, event: Event) {
        drop(event);
    }
}

/// Runs one future against a store on this thread, to its end.
pub(crate) fn run_alone<T: 'static, F: Future<Output = T> + 'static>(
    store: &Arc<dyn Store>,
    make: impl FnOnce(Rc<Ctx>) -> F,
) -> Result<T> {
    let ctx = Ctx::new(nacre_rt::random());
    let mut logic = Alone(ctx.clone());
    let result = Rc::new(RefCell::new(None));
    let slot = result.clone();
    let future = make(ctx.clone());
    ctx.spawn(async move { drop(slot.replace(Some(future.await))) });
    let mut events = VecDeque::from([Event::Start]);
    while let Some(event) = events.pop_front() {
        visit(&mut logic, nacre_rt::now(), nacre_rt::wall(), event);
        for effect in ctx.take_effects() {
            if let Effect::Io { ticket, op } = effect {
                events.push_back(Event::IoDone { ticket, result: store.execute(op) });
            }
        }
    }
    let value = result.borrow_mut().take();
    value.context("a store operation never ended")
}
