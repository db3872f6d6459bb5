//! The layer under the real driver: event loops with descriptors of their own, islands that end under a mount.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod common;

use common::memfs::MemFs;
use nacre_fuse::{Door, FuseSink, FuseSource, Interrupts, MountOptions, SessionConfig, mount_fuse};
use nacre_node::{Ctx, Event, Logic};
use nacre_rt::{Config, IslandRef, Node};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// The mount's island with the file system in memory in the place of the client.
struct MemIsland {
    ctx: Rc<Ctx>,
    door: Rc<Door<MemFs>>,
    /// Held back from the first request on.
    hold: Option<&'static str>,
    /// How many requests are held back now.
    held: Arc<AtomicU32>,
}
impl Logic for MemIsland {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Door(item) => {
                if let Some(operation) = self.hold.take() {
                    self.door.file_system().hold(operation, None);
                }
                self.door.event(item);
            }
            Event::Stop => self.ctx.push(nacre_node::Effect::Stopped),
            _ => {}
        }
        // What was spawned in this visit has not run yet: told by the next one at the latest.
        let held = self.door.file_system().waiting.borrow().values().sum();
        self.held.store(held, Ordering::Release);
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
    held: Arc<AtomicU32>,
    _dir: tempfile::TempDir,
}

fn add(node: &Node, name: &str, hold: Option<&'static str>, held: &Arc<AtomicU32>) -> IslandRef {
    let (sink, _) = FuseSink::new(Interrupts::default());
    let held = held.clone();
    let make = move |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
        let door = Door::new(ctx, Rc::new(MemFs::new(ctx)));
        Box::new(MemIsland { ctx: ctx.clone(), door, hold, held })
    };
    node.add_island(name, None, Some(sink), make).unwrap()
}

fn mount(loops: usize, hold: Option<&'static str>) -> Option<Mount> {
    if !rustix::process::getuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return None;
    }
    let node = Node::start(Config { loops, ..Config::default() }, |_, _, _| {}).unwrap();
    let held = Arc::default();
    let island = add(&node, "memory", hold, &held);
    let dir = tempfile::Builder::new().prefix("fuse-node-").tempdir().unwrap();
    let options = MountOptions {
        shared_memory: None,
        source: "memory".to_owned(),
        kernel: nacre_fuse::KernelOptions {
            no_suid: true,
            no_dev: true,
            ..nacre_fuse::KernelOptions::default()
        },
        session: SessionConfig::default(),
    };
    let mut mounted = mount_fuse(dir.path(), &options).unwrap();
    let gone = Arc::new(AtomicBool::new(false));
    let told = gone.clone();
    let on_gone = move || told.store(true, Ordering::Release);
    let source = FuseSource::start(&node, &mut mounted, island, on_gone).unwrap();
    eprintln!("{}", source.transport());
    Some(Mount { node, path: mounted.path, source, gone, held, _dir: dir })
}
impl Mount {
    fn end(self) {
        common::unmount(&self.path);
        common::eventually("the source is told", || self.gone.load(Ordering::Acquire));
        self.node.shutdown();
    }
}

#[test]
fn two_loops_serve_many_processes_and_the_end_is_told() {
    let Some(m) = mount(2, None) else { return };
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
    let Some(m) = mount(1, Some("read")) else { return };
    std::fs::write(m.path.join("f"), "x").unwrap();
    let path = m.path.join("f");
    let reader = std::thread::spawn(move || std::fs::read(path).unwrap_err().raw_os_error());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!reader.is_finished(), "the read is held back");
    m.node.kill_island(&m.source.island());
    assert_eq!(reader.join().unwrap(), Some(5));
    assert_eq!(std::fs::metadata(m.path.join("f")).unwrap_err().raw_os_error(), Some(5));
    m.source.replace_island(add(&m.node, "memory", None, &m.held));
    std::fs::write(m.path.join("g"), "again").unwrap();
    assert_eq!(std::fs::read(m.path.join("g")).unwrap(), b"again");
    m.end();
}

/// A process that waits for a reply, until it is killed.
fn killed_while_it_waits(operation: &'static str, command: &str) {
    let Some(m) = mount(1, Some(operation)) else { return };
    let mut child = Command::new("sh").args(["-c", command]).current_dir(&m.path).spawn().unwrap();
    common::eventually("its request is held back", || {
        // A visit more, so that the count is that after the tasks of the one before. Not by a name: the kernel holds the
        // directory's lock, and a server that waits for itself can never be killed.
        drop(std::fs::metadata(&m.path));
        m.held.load(Ordering::Acquire) > 0
    });
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    common::eventually("the killed process ends", || child.try_wait().unwrap().is_some());
    m.end();
}

#[test]
fn a_process_that_waits_for_a_change_can_be_killed() {
    killed_while_it_waits("mkdir", "exec mkdir d");
}

#[test]
fn a_process_that_is_killed_is_not_kept_by_closing_its_files() {
    killed_while_it_waits("flush", "exec 3>f; exec 3>&-");
    killed_while_it_waits("flush", "exec 3>f; kill -9 $$");
}
