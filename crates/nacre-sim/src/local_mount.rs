//! A mount in the process of the servers, as `nacre up` has it: the kill of the process ends all of them, and the next one
//! executes the writes that the mount has left in its log.

use crate::cluster::{Cluster, FS};
use crate::mount::MountIsland;
use crate::world::{NodeId, World};
use bytes::Bytes;
use nacre_client::{KeptLogConfig, KeptMemory, MountConfig, SEGMENT_BYTES, SEGMENTS, kept_writes};
use nacre_node::store::Store;
use nacre_node::{Ctx, FileId, Logic, StoreDone, StoreOp};
use nacre_osd_mem::MemStore;
use nacre_target::KeptWrites;
use nacre_types::{Boot, FsName, KeptPlace, OstIndex};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

const BOOT: Boot = Boot { high: 7, low: 7 };

/// The memory in which the bytes of long writes survive the process.
#[derive(Debug, Default)]
struct Memory(Mutex<Vec<Bytes>>);
impl Memory {
    /// Shorter writes are in the log.
    const BYTES_MIN: usize = 256 << 10;

    /// Buffers that nobody needs any more. Every other one has been taken for another request since.
    fn taken_again(&self) -> Vec<bool> {
        let buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.iter().enumerate().map(|(at, bytes)| at % 2 == 0 && bytes.is_unique()).collect()
    }
    fn bytes(&self, place: KeptPlace, len: u64) -> Option<Bytes> {
        let buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (index, at) = ((place.offset >> 32) as usize, (place.offset & 0xffff_ffff) as usize);
        Some(buffers.get(index)?.slice(at..at + len as usize))
    }
}
impl KeptMemory for Memory {
    fn place_of(&self, bytes: &Bytes) -> Option<KeptPlace> {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        let place = |index: usize, at: usize| KeptPlace { offset: (index << 32 | at) as u64, uses: 0 };
        for (index, buffer) in buffers.iter().enumerate() {
            let first = buffer.as_ptr() as usize;
            if first <= start && end <= first + buffer.len() {
                return Some(place(index, start - first));
            }
        }
        if bytes.len() < Self::BYTES_MIN {
            return None;
        }
        buffers.push(bytes.clone());
        Some(place(buffers.len() - 1, 0))
    }
    fn log_ended(&self) {}
}

/// Such a mount, the store with its log, and its memory.
pub struct LocalMount {
    node: NodeId,
    log: Arc<dyn Store>,
    memory: Arc<Memory>,
}
impl LocalMount {
    /// Its island.
    pub fn node(&self) -> NodeId {
        self.node
    }
}

impl Cluster {
    /// One more mount, not started, in the process of the servers.
    pub fn add_local_mount(&mut self, name: &str) -> LocalMount {
        let memory = Arc::new(Memory::default());
        let kept = memory.clone() as Arc<dyn KeptMemory>;
        let config = MountConfig {
            mgs_addresses: vec![World::address("MGS")],
            fs: FsName::parse(FS).expect("a valid name"),
            name: name.to_string(),
            instance: None,
            read_only: false,
            atime: nacre_client::AtimePolicy::default(),
            names_per_page: MountConfig::NAMES_PER_PAGE,
            write_back: true,
            kept_log: Some(KeptLogConfig { boot: BOOT, memory: Some(kept), streams_from: 0 }),
            left_writes: Vec::new(),
        };
        let log: Arc<dyn Store> = Arc::new(MemStore::new(2 * SEGMENTS * SEGMENT_BYTES));
        let start = move |ctx: &Rc<Ctx>| Box::new(MountIsland::new(ctx, config.clone())) as Box<dyn Logic>;
        let node = self.world.add(name, Some(log.clone()), Box::new(start));
        LocalMount { node, log, memory }
    }

    /// Writes that were left to the OSTs by the processes so far.
    pub fn left_writes_given(&self) -> usize {
        self.left_writes().borrow().values().flatten().map(|kept| kept.writes.len()).sum()
    }

    /// The process of all servers and of a local mount is killed. The servers start again after `down_ns`.
    pub fn kill_process_with(&mut self, mount: &LocalMount, down_ns: u64) {
        self.kill_process_of(mount, &self.servers.clone(), down_ns);
    }
    /// The same for a process that serves these targets only.
    pub fn kill_process_of(&mut self, mount: &LocalMount, servers: &[NodeId], down_ns: u64) {
        let taken_again = mount.memory.taken_again();
        for node in servers.iter().chain([&mount.node]) {
            self.world.kill(*node);
        }
        let read = |segment: u64| {
            let op = StoreOp::Read { file: FileId::Log(segment), offset: 0, len: SEGMENT_BYTES as u32 };
            match mount.log.execute(op) {
                Ok(StoreDone::Bytes(bytes)) => bytes,
                _ => Bytes::new(),
            }
        };
        let segments: Vec<Bytes> = (0..SEGMENTS).map(read).collect();
        let mut placed = |place: KeptPlace, len| {
            let is_left = taken_again.get((place.offset >> 32) as usize) == Some(&false);
            if is_left { mount.memory.bytes(place, len) } else { None }
        };
        if let Some(kept) = kept_writes(&segments, BOOT, &mut placed) {
            let mut left = self.left_writes().borrow_mut();
            let mut of_osts: BTreeMap<OstIndex, Vec<_>> = BTreeMap::new();
            for (ost, write, data) in kept.writes {
                of_osts.entry(ost).or_default().push((write, data));
            }
            for (ost, writes) in of_osts {
                left.entry(ost.0).or_default().push(KeptWrites { log: kept.log, writes });
            }
        }
        for server in servers {
            self.world.start_later(*server, down_ns);
        }
    }
}
