//! A mount in a node: its island, its place in the name space, and the descriptors that the event loops watch.
//!
//! The thread that reads a request carries it through and sends the reply: [`FuseSource`] delivers on the loop's own
//! thread, [`FuseSink`] sends on whichever thread left the island. A loop above the first has a descriptor of its
//! own, so that the kernel keeps their requests apart.

use crate::device::{Channel, Read};
use crate::door::FuseEffect;
use crate::island::MountIsland;
use crate::mount::{MountError, MountOptions, Mounted, mount_fuse, unmount_fuse};
use nacre_client::MountConfig;
use nacre_node::{Ctx, Event};
use nacre_rt::{DoorSink, IslandRef, Node, RtError, Source, SourceId, SourceState};
use rustix::fd::BorrowedFd;
use std::any::Any;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tracing::{error, info, warn};

/// A value that is set once and waited for.
struct Once<T> {
    value: Mutex<Option<T>>,
    set: Condvar,
}
impl<T: Clone> Once<T> {
    fn new() -> Self {
        Self { value: Mutex::new(None), set: Condvar::new() }
    }
    fn set(&self, value: T) {
        let mut slot = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(value);
        }
        drop(slot);
        self.set.notify_all();
    }
    fn get(&self) -> Option<T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    fn wait(&self, limit: Duration) -> Option<T> {
        let slot = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.set.wait_timeout_while(slot, limit, |value| value.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// Takes what a mount's island has for its front end: replies are sent at once.
pub struct FuseSink {
    ready: Once<Result<(), String>>,
}
impl FuseSink {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { ready: Once::new() })
    }
    /// Waits until the client has reached its servers; `None` after `limit`.
    pub fn wait_ready(&self, limit: Duration) -> Option<Result<(), String>> {
        self.ready.wait(limit)
    }
}
impl DoorSink for FuseSink {
    fn door(&self, item: Box<dyn Any + Send>) {
        match item.downcast::<FuseEffect>().map(|effect| *effect) {
            Ok(FuseEffect::Reply(reply)) => reply.send(),
            Ok(FuseEffect::Ready(result)) => self.ready.set(result),
            Err(_) => warn!("an effect that is not the FUSE door's came to it"),
        }
    }
}

/// The descriptors of a mount as the event loops see them.
pub struct FuseSource {
    /// One per event loop.
    channels: Vec<Arc<Channel>>,
    /// Replaced when the island ended on a bug and was made again.
    island: RwLock<IslandRef>,
    gone: Once<()>,
}

impl FuseSource {
    /// `loops`: event loops of the node; each gets a descriptor if the kernel gives one.
    pub fn new(channel: &Arc<Channel>, loops: usize, island: IslandRef) -> Arc<Self> {
        let mut channels = vec![channel.clone()];
        while channels.len() < loops {
            match channel.clone_channel() {
                Ok(clone) => channels.push(Arc::new(clone)),
                Err(error) => {
                    warn!(%error, "no further descriptor of /dev/fuse; one event loop serves the mount");
                    break;
                }
            }
        }
        Arc::new(Self { channels, island: RwLock::new(island), gone: Once::new() })
    }
    fn island(&self) -> IslandRef {
        self.island.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Requests read before the loop looks at its other descriptors.
const REQUESTS_PER_TURN: usize = 32;

impl Source for FuseSource {
    fn fd(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.channels.get(index)?.poll_fd()
    }
    fn ready(&self, node: &Node, index: usize) -> SourceState {
        let Some(channel) = self.channels.get(index) else { return SourceState::Ended };
        let island = self.island();
        for _ in 0..REQUESTS_PER_TURN {
            match channel.read() {
                // To a dead island: dropped there, and answered EIO by being dropped.
                Ok(Read::Request(request)) => node.deliver(&island, Event::Door(Box::new(request))),
                Ok(Read::Empty) => break,
                Ok(Read::Gone) => {
                    self.gone.set(());
                    return SourceState::Ended;
                }
                Err(error) => {
                    error!(%error, "reading /dev/fuse failed; the mount is given up");
                    self.gone.set(());
                    return SourceState::Ended;
                }
            }
        }
        SourceState::More
    }
}

/// Why a mount could not be started.
#[derive(Debug, thiserror::Error)]
pub enum MountStartError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Rt(#[from] RtError),
    /// The client's own sentence.
    #[error("{0}")]
    Client(String),
    #[error(
        "no answer from the servers of {fs} within {seconds} s ({addresses})\n  hint: are they started and reachable?"
    )]
    Silent { fs: String, addresses: String, seconds: u64 },
}

/// A running mount.
pub struct FuseMount {
    node: Node,
    name: String,
    config: MountConfig,
    sink: Arc<FuseSink>,
    source: Arc<FuseSource>,
    source_id: SourceId,
    mounted: Mounted,
}

impl FuseMount {
    /// Starts the island `name`, waits for the servers, mounts on `path` and serves. Not from an event loop.
    ///
    /// # Errors
    /// A sentence for the user; nothing is left behind then.
    pub fn start(
        node: &Node,
        name: &str,
        loops: usize,
        config: MountConfig,
        path: &Path,
        options: &MountOptions,
        patience: Duration,
    ) -> Result<Self, MountStartError> {
        let sink = FuseSink::new();
        let island = add_island(node, name, &config, &sink)?;
        let mounted = match sink.wait_ready(patience) {
            Some(Ok(())) => mount_fuse(path, options).map_err(MountStartError::from),
            Some(Err(sentence)) => Err(MountStartError::Client(sentence)),
            None => Err(MountStartError::Silent {
                fs: config.fs.to_string(),
                addresses: config.mgs_addresses.join(", "),
                seconds: patience.as_secs(),
            }),
        };
        let served = mounted.and_then(|mounted| {
            let source = FuseSource::new(&mounted.channel, loops, island.clone());
            let source_id = node.add_source(source.clone()).inspect_err(|_| {
                // Nobody can serve it.
                drop(unmount_fuse(&mounted.path, true));
            })?;
            let (node, name) = (node.clone(), name.to_owned());
            Ok(Self { node, name, config, sink, source, source_id, mounted })
        });
        if served.is_err() {
            node.kill_island(&island);
        }
        served
    }
    pub fn path(&self) -> &Path {
        &self.mounted.path
    }
    pub fn island(&self) -> IslandRef {
        self.source.island()
    }
    /// Whether somebody (we or umount(8)) has unmounted it; waits up to `limit`.
    pub fn wait_gone(&self, limit: Duration) -> bool {
        self.source.gone.wait(limit).is_some()
    }
    pub fn is_gone(&self) -> bool {
        self.source.gone.get().is_some()
    }
    /// Unmounts. Not from an event loop: it may need our answers.
    ///
    /// # Errors
    /// `Busy` with the names of who uses it; not with `lazy`.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        if self.is_gone() { Ok(()) } else { unmount_fuse(&self.mounted.path, lazy) }
    }
    /// The last act, once unmounted: tells the servers and ends the island.
    ///
    /// # Errors
    /// `StillRunning` after `limit`.
    pub fn stop(&self, limit: Duration) -> Result<(), RtError> {
        self.node.remove_source(self.source_id);
        self.node.stop_island(&self.island(), limit).map(drop)
    }
    /// The island ended on a bug: makes a new one under the old mount. Its open files are gone, the mount is not.
    ///
    /// # Errors
    /// `NameTaken` while the old one lives.
    pub fn restart(&self) -> Result<(), RtError> {
        let island = add_island(&self.node, &self.name, &self.config, &self.sink)?;
        *self.source.island.write().unwrap_or_else(PoisonError::into_inner) = island;
        info!(mount = self.name, "the mount's client was started again");
        Ok(())
    }
}

fn add_island(
    node: &Node,
    name: &str,
    config: &MountConfig,
    sink: &Arc<FuseSink>,
) -> Result<IslandRef, RtError> {
    let (config, seed) = (config.clone(), seed());
    node.add_island(name, None, Some(sink.clone()), move || {
        Box::new(MountIsland::new(&Ctx::new(seed), config))
    })
}

/// From the kernel's random source, by way of the hasher that std seeds with it.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(rustix::process::getpid().as_raw_nonzero())
}
