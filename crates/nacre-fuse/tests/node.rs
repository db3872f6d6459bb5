//! The layer under the real driver: event loops with descriptors of their own, islands that end under a mount.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod common;

use common::memfs::MemFs;
use nacre_fuse::{
    Door, FuseRequest, FuseSink, FuseSource, MountOptions, SessionConfig, mount_fuse, unmount_fuse,
};
use nacre_node::{Ctx, Event, Logic};
use nacre_rt::{Config, IslandRef, Node};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The mount's island with the file system in memory in the place of the client.
struct MemIsland {
    ctx: Rc<Ctx>,
    door: Rc<Door<MemFs>>,
    hold_reads: bool,
}
impl Logic for MemIsland {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Door(item) => {
                if std::mem::take(&mut self.hold_reads) {
                    self.door.file_system().hold("read", None);
                }
                self.door.handle(*item.downcast::<FuseRequest>().unwrap());
            }
            Event::Stop => self.ctx.push(nacre_node::Effect::Stopped),
            _ => {}
        }
    }
}
impl Drop for MemIsland {
    fn drop(&mut self) {
        self.door.abandon();
    }
}

struct Mount {
    node: Node,
    path: PathBuf,
    source: Arc<FuseSource>,
    gone: Arc<AtomicBool>,
    _dir: tempfile::TempDir,
}

fn add(node: &Node, name: &str, hold_reads: bool) -> IslandRef {
    let (sink, _) = FuseSink::new();
    let make = move || -> Box<dyn Logic> {
        let ctx = Ctx::new(1);
        let door = Door::new(&ctx, Rc::new(MemFs::new(&ctx)));
        Box::new(MemIsland { ctx, door, hold_reads })
    };
    node.add_island(name, None, Some(sink), make).unwrap()
}

fn mount(loops: usize, hold_reads: bool) -> Option<Mount> {
    if !rustix::process::getuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return None;
    }
    let node = Node::start(Config { loops, ..Config::default() }, |_, _, _| {}).unwrap();
    let island = add(&node, "memory", hold_reads);
    let dir = tempfile::Builder::new().prefix("fuse-node-").tempdir().unwrap();
    let options = MountOptions {
        source: "memory".to_owned(),
        read_only: false,
        no_suid: true,
        no_dev: true,
        no_exec: false,
        session: SessionConfig::default(),
    };
    let mounted = mount_fuse(dir.path(), &options).unwrap();
    let gone = Arc::new(AtomicBool::new(false));
    let told = gone.clone();
    let source =
        FuseSource::new(&mounted.channel, loops, island, move || told.store(true, Ordering::Release));
    node.add_source(source.clone()).unwrap();
    Some(Mount { node, path: mounted.path, source, gone, _dir: dir })
}
impl Mount {
    fn end(self) {
        unmount_fuse(&self.path, false).unwrap();
        let start = Instant::now();
        while !self.gone.load(Ordering::Acquire) {
            assert!(start.elapsed() < Duration::from_secs(5), "the source was never told");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.node.shutdown();
    }
}

#[test]
fn two_loops_serve_many_processes_and_the_end_is_told() {
    let Some(m) = mount(2, false) else { return };
    let threads: Vec<_> = (0..6)
        .map(|t| {
            let dir = m.path.join(format!("d{t}"));
            std::thread::spawn(move || {
                std::fs::create_dir(&dir).unwrap();
                for n in 0..200 {
                    let file = dir.join(format!("f{n}"));
                    std::fs::write(&file, vec![t as u8; 100 * n]).unwrap();
                    assert_eq!(std::fs::read(&file).unwrap(), vec![t as u8; 100 * n]);
                }
                assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 200);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    m.end();
}

#[test]
fn requests_of_an_island_that_ends_are_errors_and_a_new_island_serves_the_mount() {
    let Some(m) = mount(1, true) else { return };
    std::fs::write(m.path.join("f"), "x").unwrap();
    let path = m.path.join("f");
    let reader = std::thread::spawn(move || std::fs::read(path).unwrap_err().raw_os_error());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!reader.is_finished(), "the read is held back");
    m.node.kill_island(&m.source.island());
    assert_eq!(reader.join().unwrap(), Some(5));
    assert_eq!(std::fs::metadata(m.path.join("f")).unwrap_err().raw_os_error(), Some(5));
    m.source.replace_island(add(&m.node, "memory", false));
    std::fs::write(m.path.join("g"), "again").unwrap();
    assert_eq!(std::fs::read(m.path.join("g")).unwrap(), b"again");
    m.end();
}
