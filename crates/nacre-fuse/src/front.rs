//! A mount in a node: its island, its mount point, and the descriptors that the event loops watch.
//!
//! The thread that reads a request executes it and sends the reply: [`FuseSource`] delivers on the loop's own thread,
//! [`FuseSink`] sends on the thread that left the island. Each further loop has its own descriptor, so that the kernel
//! separates their requests.

use crate::call;
use crate::caller::{self, Interrupts};
use crate::device::{Channel, Read};
use crate::door::{CallBytes, FuseEffect};
use crate::holders::Looked;
use crate::interrupt::Interrupted;
use crate::kernel_cache::{KernelEvent, KernelLink};
use crate::mount::Mounted;
use crate::uring::{Running, Transport};
use nacre_client::Attach;
use nacre_node::Event;
use nacre_rt::{DoorSink, IslandRef, Node, RtError, Source, SourceState};
use rustix::fd::BorrowedFd;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use tracing::{error, warn};

/// Receives the effects of a mount's island for its front end; sends replies at once.
pub struct FuseSink {
    attach: SyncSender<Attach>,
    interrupts: Interrupts,
}
impl FuseSink {
    /// The receiver gets the progress of the connection to the servers, and its end.
    pub fn new(interrupts: Interrupts) -> (Arc<Self>, Receiver<Attach>) {
        let (attach, news) = sync_channel(Attach::NEWS_MAX);
        (Arc::new(Self { attach, interrupts }), news)
    }
}
impl DoorSink for FuseSink {
    fn door(&self, island: &IslandRef, item: Box<dyn Any + Send>) {
        match item.downcast::<FuseEffect>().map(|effect| *effect) {
            Ok(FuseEffect::Reply(reply)) => reply.send(),
            Ok(FuseEffect::Notify(order)) => {
                let island = island.clone();
                order.submit(move |event| island.deliver(Event::Door(Box::new(event))));
            }
            Ok(FuseEffect::LookAtCaller { unique, pid }) => {
                if let Some(reason) = caller::reason(pid, self.interrupts) {
                    island.deliver(Event::Door(Box::new(Interrupted { unique, reason })));
                }
            }
            Ok(FuseEffect::LookAtFiles { unique, pid, files }) => {
                let look = caller::look(pid, &files);
                island.deliver(Event::Door(Box::new(Looked::new(unique, look))));
            }
            Ok(FuseEffect::LookAtCall { unique, pid }) => {
                let bytes = call::bytes(pid);
                island.deliver(Event::Door(Box::new(CallBytes { unique, bytes })));
            }
            Ok(FuseEffect::LockWaits { ticket, pid }) => ticket.waits(pid),
            // There is no receiver for a second attachment (a client that was created again).
            Ok(FuseEffect::Attach(news)) => drop(self.attach.try_send(news)),
            Err(_) => warn!("a bug: the FUSE front end got an effect that is none of FUSE"),
        }
    }
}

/// The descriptors of a mount, as a source for the event loops.
pub struct FuseSource {
    /// One per event loop.
    channels: Vec<Arc<Channel>>,
    /// Replaced when the island ended on a bug and was created again.
    island: RwLock<IslandRef>,
    transport: Transport,
    link: Arc<KernelLink>,
    rings: OnceLock<Running>,
    gone: AtomicBool,
    on_gone: Box<dyn Fn() + Send + Sync>,
}

impl FuseSource {
    /// Serves `mounted` from now on. Each of the node's loops gets a descriptor if the kernel gives one; with rings one
    /// descriptor suffices for the remaining requests. `on_gone` is called once, on a thread of the node, when the
    /// kernel has released the mount.
    ///
    /// # Errors
    /// Those of the node, or no thread for notifications; the mount is to be unmounted then.
    pub fn start(
        node: &Node,
        mounted: &mut Mounted,
        island: IslandRef,
        on_gone: impl Fn() + Send + Sync + 'static,
    ) -> Result<Arc<Self>, RtError> {
        let rings = mounted.take_rings();
        let loops = if rings.is_some() { 1 } else { node.loops() };
        let mut channels = vec![mounted.channel.clone()];
        while channels.len() < loops {
            match mounted.channel.clone_channel() {
                Ok(clone) => channels.push(Arc::new(clone)),
                Err(error) => {
                    warn!(%error, "/dev/fuse cannot be cloned; one event loop serves the mount");
                    break;
                }
            }
        }
        let channel = mounted.channel.clone();
        let write = move |bytes: &[u8]| channel.write_notification(bytes);
        let link = KernelLink::new(write, mounted.session.has_epoch()).map_err(|cause| {
            let what = "cannot start the threads for notifications".to_owned();
            RtError::System { what, cause }
        })?;
        let source = Arc::new(Self {
            channels,
            link,
            island: RwLock::new(island),
            transport: mounted.transport.clone(),
            rings: OnceLock::new(),
            gone: AtomicBool::new(false),
            on_gone: Box::new(on_gone),
        });
        let weak = Arc::downgrade(&source);
        source.link.gate().attach(move || {
            if let Some(source) = weak.upgrade() {
                source.island().deliver(Event::Door(Box::new(KernelEvent::Everything)));
            }
        });
        node.add_source(source.clone())?;
        source.tell_transport();
        let weak = Arc::downgrade(&source);
        let came = move || {
            if let Some(source) = weak.upgrade() {
                source.island().deliver(Event::Door(Box::new(KernelEvent::Neighbours)));
            }
        };
        if let Err(error) = source.link.gate().neighbours().watch(mounted.path.clone(), came) {
            warn!(%error, "the table of mounts cannot be watched; file systems mounted below this mount may be detached");
        }
        if let Some(rings) = rings {
            let running = rings.start(node, &source)?;
            let _first = source.rings.set(running);
            if source.is_gone() {
                source.end_rings();
            }
        }
        Ok(source)
    }
    /// How requests arrive, with the reason if it is not through io_uring.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }
    /// The island that receives requests now.
    pub fn island(&self) -> IslandRef {
        self.island.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
    /// The island ended on a bug and was created again: the mount stays, its open files are lost. Requests of the old
    /// island got EIO when it was dropped.
    pub fn replace_island(&self, island: IslandRef) {
        *self.island.write().unwrap_or_else(PoisonError::into_inner) = island;
        self.tell_transport();
    }
    fn tell_transport(&self) {
        self.island().deliver(Event::Door(Box::new(self.transport.clone())));
        self.island().deliver(Event::Door(Box::new(KernelEvent::Link(self.link.clone()))));
    }
    /// Whether the kernel has released the mount.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }
    /// The mount has ended, or is unusable.
    pub(crate) fn end(&self) -> SourceState {
        if !self.gone.swap(true, Ordering::SeqCst) {
            self.end_rings();
            (self.on_gone)();
        }
        SourceState::Ended
    }
    fn end_rings(&self) {
        if let Some(rings) = self.rings.get() {
            rings.mount_is_gone();
        }
    }
}

/// Requests read before the loop polls its other descriptors.
const REQUESTS_PER_TURN: usize = 32;

impl Source for FuseSource {
    fn fd(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.channels.get(index)?.poll_fd()
    }
    fn ready(&self, node: &Node, index: usize) -> SourceState {
        let Some(channel) = self.channels.get(index) else { return SourceState::Ended };
        for _ in 0..REQUESTS_PER_TURN {
            match channel.read() {
                // Not worth a visit.
                Ok(Read::Request(request)) if request.is_forget() => {
                    self.link.forgotten().add(request.forgotten());
                }
                // For a dead island: the request is dropped there, which returns EIO.
                Ok(Read::Request(request)) => node.deliver(&self.island(), Event::Door(Box::new(request))),
                Ok(Read::Empty) => break,
                Ok(Read::Gone) => return self.end(),
                Err(error) => {
                    error!(%error, "reading /dev/fuse failed; the mount is given up");
                    return self.end();
                }
            }
        }
        // Beside rings only FORGET and INTERRUPT come here. Every removal of a file makes a FORGET, and a wake-up for each
        // would cost as much as the removal; the kernel collects them.
        if self.rings.get().is_some() { SourceState::Rests } else { SourceState::More }
    }
}
