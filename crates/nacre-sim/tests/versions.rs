//! Version-based recovery: of a client that does not come back the latest changes stay lost. Who has built on them is
//! evicted, nobody else notices.
//!
//! Every mount holds a file lock from before the loss: it is usable afterwards exactly when the mount was not evicted.

mod support;

use bytes::Bytes;
use nacre_client::{Client, MetadataChange, WriteArgs};
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, OpenHandle, SetAttr, mode};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockType, rename_flags};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use support::{DIR, FILE, MDT, SEC, caller, make, new, on_devices, run};

/// A cluster whose mounts hold a file lock each, and a directory that they share. All of it is durable.
struct Scene {
    c: Cluster,
    dir: Fid,
    locked: Vec<OpenHandle>,
}

fn scene(seed: u64, mounts: u32) -> Scene {
    let mut c = on_devices(seed, mounts);
    let mut locked = Vec::new();
    for (number, mount) in c.mounts.clone().into_iter().enumerate() {
        let handle = run(&mut c, mount, async move |client| {
            let fid = make(&client, Fid::ROOT, &format!("lock{number}"), FILE).await?;
            let (_, handle) = client.open(fid, 2, caller()).await?;
            let lock = FileLock {
                family: FlockFamily::Flock,
                kind: FlockType::Write,
                start: 0,
                end: u64::MAX,
                owner: 1,
                pid: 1,
            };
            client.flock(handle, lock, false).await?;
            Ok::<_, Failure>(handle)
        });
        locked.push(handle.expect("locked"));
    }
    let mount = c.mounts[0];
    let dir = run(&mut c, mount, async |client| make(&client, Fid::ROOT, "shared", DIR).await);
    c.world.run_for(2 * SEC);
    Scene { c, dir: dir.expect("made"), locked }
}

impl Scene {
    /// The machine of the MDT is lost together with a mount; the MDT is there again, the mount never.
    fn lose(&mut self, victim: usize) {
        let c = &mut self.c;
        c.world.kill(c.mounts[victim]);
        c.power_loss(MDT);
        let mdt = c.servers[MDT];
        c.world.start_later(mdt, 100_000_000);
    }
    /// Whether a mount was evicted since.
    fn was_evicted(&mut self, mount: usize) -> bool {
        let handle = self.locked[mount];
        let node = self.c.mounts[mount];
        let written = run(&mut self.c, node, async move |client| {
            // What is resent comes after the recovery and what it decides.
            client.getattr(Fid::ROOT).await?;
            let data = Bytes::from_static(b"x");
            let args = WriteArgs {
                handle,
                offset: 0,
                append: false,
                call_bytes: 0,
                data,
                kill_suidgid: None,
                sync: false,
            };
            client.write(args).await
        });
        match written {
            Ok(_) => false,
            Err(Failure::EIO) => true,
            Err(e) => panic!("{e}"),
        }
    }
    fn names(&mut self, mount: usize) -> BTreeSet<String> {
        let dir = self.dir;
        let node = self.c.mounts[mount];
        let page = run(&mut self.c, node, async move |client| client.readdir(dir, 2, 1000, false).await);
        let entries = page.expect("it is readable").entries;
        entries.into_iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect()
    }
}

#[test]
fn a_gap_in_a_shared_directory_does_not_touch_those_who_work_beside_it() {
    let mut lost = 0;
    for seed in 1..=12 {
        let mut s = scene(seed, 3);
        let dir = s.dir;
        for i in 0..10 {
            for mount in 0..3 {
                let node = s.c.mounts[mount];
                let made = run(&mut s.c, node, async move |client| {
                    let name = format!("m{mount}.{i}");
                    let fid = make(&client, dir, &name, if i % 2 == 0 { DIR } else { FILE }).await?;
                    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
                    client.setattr(fid, set, caller()).await?;
                    let moved = format!("m{mount}.{i}.moved");
                    client.rename((dir, name.as_bytes()), (dir, moved.as_bytes()), 0, caller()).await?;
                    let batch = [MetadataChange::Make(new(dir, &name, DIR))];
                    client.batch(&batch, &caller(), true).await.map(|_| ())
                });
                made.expect("the reply comes");
            }
        }
        s.lose(0);
        let names = s.names(1);
        for mount in 1..3 {
            assert!(!s.was_evicted(mount), "seed {seed}, mount {mount}\n{}", s.c.world.trace(80));
            for i in 0..10 {
                for name in [format!("m{mount}.{i}"), format!("m{mount}.{i}.moved")] {
                    assert!(names.contains(&name), "seed {seed}: {name} is lost");
                }
            }
        }
        lost += usize::from(!names.contains("m0.9"));
    }
    assert!(lost > 0, "there was no gap");
}

/// Makes y of x, one way or another.
async fn build(client: Rc<Client>, dir: Fid, way: u64) -> Result<(), Failure> {
    let x = client.lookup(dir, b"x").await?.attr.fid;
    match way % 4 {
        0 => client.rename((dir, b"x"), (dir, b"y"), 0, caller()).await,
        1 => client.link(x, dir, b"y", caller()).await.map(|_| ()),
        2 => {
            let batch = [MetadataChange::Rename { from: (dir, b"x"), to: (dir, b"y"), flags: 0 }];
            client.batch(&batch, &caller(), true).await.map(|_| ())
        }
        // The name alone: gone, and another file under it.
        _ => {
            client.unlink(dir, b"x", false, caller()).await?;
            make(&client, dir, "y", FILE).await.map(|_| ())
        }
    }
}

/// The loss of a machine and of a client at once, which evicts others in the next test.
#[test]
fn with_commit_on_sharing_nobody_builds_on_what_two_losses_would_take() {
    for seed in 1..=24 {
        let mut s = scene(seed, 2);
        let (dir, nodes) = (s.dir, s.c.mounts.clone());
        s.c.set_param(MDT, "mdt.*.commit_on_sharing", "1");
        run(&mut s.c, nodes[0], async move |client| make(&client, dir, "x", FILE).await).expect("made");
        s.c.world.run_for(5_000_000);
        run(&mut s.c, nodes[1], move |client| build(client, dir, seed)).expect("built");
        s.lose(0);
        assert!(!s.was_evicted(1), "seed {seed}\n{}", s.c.world.trace(80));
        assert!(s.names(1).contains("y"), "seed {seed}");
    }
}

#[test]
fn who_has_built_on_a_change_that_is_lost_is_evicted_alone() {
    let mut lost = 0;
    for seed in 1..=24 {
        let mut s = scene(seed, 3);
        let dir = s.dir;
        let nodes = s.c.mounts.clone();
        run(&mut s.c, nodes[0], async move |client| make(&client, dir, "x", FILE).await).expect("made");
        // Its reply is acknowledged: nobody has to wait for a commit.
        s.c.world.run_for(5_000_000);
        run(&mut s.c, nodes[1], move |client| build(client, dir, seed)).expect("built");
        run(&mut s.c, nodes[2], async move |client| make(&client, dir, "beside", DIR).await).expect("made");
        s.lose(0);
        assert!(!s.was_evicted(2), "seed {seed}\n{}", s.c.world.trace(80));
        let evicted = s.was_evicted(1);
        let names = s.names(2);
        assert!(names.contains("beside"), "seed {seed}");
        if evicted {
            lost += 1;
            // The unlink failed, the create beside it did not depend on it.
            assert_eq!(names.contains("y"), seed % 4 == 3, "seed {seed}: {names:?}");
            assert!(!names.contains("x"), "seed {seed}: {names:?}");
        } else {
            assert!(names.contains("y"), "seed {seed}: {names:?}");
        }
    }
    assert!(lost > 2, "the change was hardly ever lost: {lost}");
}

/// Without versions the old file under the name would be taken for the new one, which its user had seen.
#[test]
fn a_name_that_was_another_file_then_is_not_removed_again() {
    let mut lost = 0;
    for seed in 1..=16 {
        let mut s = scene(seed, 3);
        let dir = s.dir;
        let nodes = s.c.mounts.clone();
        run(&mut s.c, nodes[2], async move |client| {
            make(&client, dir, "x", FILE).await?;
            make(&client, dir, "draft", FILE).await
        })
        .expect("made");
        s.c.world.run_for(SEC);
        let replace =
            async move |client: Rc<Client>| client.rename((dir, b"draft"), (dir, b"x"), 0, caller()).await;
        run(&mut s.c, nodes[0], replace).expect("replaced");
        s.c.world.run_for(5_000_000);
        let remove = async move |client: Rc<Client>| client.unlink(dir, b"x", false, caller()).await;
        run(&mut s.c, nodes[1], remove).expect("removed");
        s.lose(0);
        let (evicted, names) = (s.was_evicted(1), s.names(2));
        let (was_lost, kept_x) = (names.contains("draft"), names.contains("x"));
        assert_eq!(
            (evicted, kept_x),
            (was_lost, was_lost),
            "seed {seed}: {names:?}\n{}",
            s.c.world.trace(60)
        );
        lost += usize::from(was_lost);
    }
    assert!(lost > 0, "the change was never lost");
}

// ---- random histories against a model

type Node = usize;
const TOP: Node = 0;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Inode {
    dir: bool,
    mode: u32,
    version: usize,
}

/// Names and inodes with their versions: the number of the latest operation.
#[derive(Debug, Clone)]
struct Model {
    inodes: BTreeMap<Node, Inode>,
    names: BTreeMap<(Node, &'static str), (Node, usize)>,
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

#[derive(Debug, Clone)]
enum Op {
    /// The new inode has the number of the operation.
    Make {
        dir: Node,
        name: &'static str,
        is_dir: bool,
    },
    Unlink {
        dir: Node,
        name: &'static str,
        is_dir: bool,
    },
    Rename {
        from: (Node, &'static str),
        to: (Node, &'static str),
        flags: u32,
    },
    Link {
        of: Node,
        dir: Node,
        name: &'static str,
    },
    Chmod {
        of: Node,
        mode: u32,
    },
}

type Versions = Vec<usize>;

impl Model {
    fn new() -> Self {
        let top = Inode { dir: true, mode: 0o755, version: 0 };
        Self { inodes: BTreeMap::from([(TOP, top)]), names: BTreeMap::new() }
    }
    fn dir(&self, node: Node) -> Result<usize, Failure> {
        let inode = self.inodes.get(&node).ok_or(Failure::ENOENT)?;
        if inode.dir { Ok(inode.version) } else { Err(Failure::ENOTDIR) }
    }
    fn name(&self, dir: Node, name: &'static str) -> Option<Node> {
        self.names.get(&(dir, name)).map(|(node, _)| *node)
    }
    fn name_version(&self, dir: Node, name: &'static str) -> usize {
        self.names.get(&(dir, name)).map_or(0, |(_, version)| *version)
    }
    fn version(&self, node: Option<Node>) -> usize {
        node.map_or(0, |node| self.inodes[&node].version)
    }
    fn is_empty(&self, node: Node) -> bool {
        !self.names.keys().any(|(dir, _)| *dir == node)
    }
    fn nlink(&self, node: Node) -> usize {
        self.names.values().filter(|(n, _)| *n == node).count()
    }
    fn below(&self, mut at: Node, node: Node) -> bool {
        while at != TOP && at != node {
            at = self.names.iter().find(|(_, (n, _))| *n == at).map_or(TOP, |((dir, _), _)| *dir);
        }
        at == node
    }
    fn take_name(&mut self, dir: Node, name: &'static str, number: usize) {
        let Some((node, _)) = self.names.remove(&(dir, name)) else { return };
        if self.nlink(node) == 0 {
            self.inodes.remove(&node);
        } else {
            self.touch(node, number);
        }
    }
    fn touch(&mut self, node: Node, number: usize) {
        self.inodes.get_mut(&node).expect("it is there").version = number;
    }
    /// Does an operation; the versions that it has met.
    fn apply(&mut self, op: &Op, number: usize) -> Result<Versions, Failure> {
        match *op {
            Op::Make { dir, name, is_dir } => {
                let parent = self.dir(dir)?;
                if self.name(dir, name).is_some() {
                    return Err(Failure::EEXIST);
                }
                let mode = if is_dir { DIR } else { FILE } & 0o777;
                self.inodes.insert(number, Inode { dir: is_dir, mode, version: number });
                self.names.insert((dir, name), (number, number));
                Ok(vec![parent, 0, 0])
            }
            Op::Unlink { dir, name, is_dir } => {
                let parent = self.dir(dir)?;
                let node = self.name(dir, name).ok_or(Failure::ENOENT)?;
                match (is_dir, self.inodes[&node].dir) {
                    (true, false) => return Err(Failure::ENOTDIR),
                    (false, true) => return Err(Failure::EISDIR),
                    (true, true) if !self.is_empty(node) => return Err(Failure::ENOTEMPTY),
                    _ => {}
                }
                let met = vec![parent, self.name_version(dir, name), self.version(Some(node))];
                self.take_name(dir, name, number);
                Ok(met)
            }
            Op::Rename { from, to, flags } => {
                let (source_dir, target_dir) = (self.dir(from.0)?, self.dir(to.0)?);
                let node = self.name(from.0, from.1).ok_or(Failure::ENOENT)?;
                let other = self.name(to.0, to.1);
                let met = vec![source_dir, target_dir, self.version(Some(node)), self.version(other)];
                match (flags, other) {
                    (rename_flags::EXCHANGE, None) => return Err(Failure::ENOENT),
                    (rename_flags::NOREPLACE, Some(_)) => return Err(Failure::EEXIST),
                    _ => {}
                }
                if from.0 != to.0 && self.inodes[&node].dir && self.below(to.0, node) {
                    return Err(Failure::EINVAL);
                }
                match other {
                    Some(other) if other == node => return Ok(met),
                    Some(other) => {
                        let exchange = flags == rename_flags::EXCHANGE;
                        if from.0 != to.0 && !self.is_empty(other) && self.below(from.0, other) {
                            return Err(if exchange { Failure::EINVAL } else { Failure::ENOTEMPTY });
                        }
                        if exchange {
                            self.names.insert(from, (other, number));
                            self.names.insert(to, (node, number));
                            self.touch(other, number);
                            self.touch(node, number);
                            return Ok(met);
                        }
                        match (self.inodes[&node].dir, self.inodes[&other].dir) {
                            (true, false) => return Err(Failure::ENOTDIR),
                            (false, true) => return Err(Failure::EISDIR),
                            (true, true) if !self.is_empty(other) => return Err(Failure::ENOTEMPTY),
                            _ => {}
                        }
                        self.take_name(to.0, to.1, number);
                    }
                    None => {}
                }
                self.names.remove(&from);
                self.names.insert(to, (node, number));
                self.touch(node, number);
                Ok(met)
            }
            Op::Link { of, dir, name } => {
                let parent = self.dir(dir)?;
                if !self.inodes.contains_key(&of) {
                    return Err(Failure::ESTALE);
                }
                if self.name(dir, name).is_some() {
                    return Err(Failure::EEXIST);
                }
                if self.inodes[&of].dir {
                    return Err(Failure::EPERM);
                }
                let met = vec![parent, 0, self.version(Some(of))];
                self.names.insert((dir, name), (of, number));
                self.touch(of, number);
                Ok(met)
            }
            Op::Chmod { of, mode } => {
                let inode = self.inodes.get_mut(&of).ok_or(Failure::ESTALE)?;
                let met = vec![inode.version];
                (inode.mode, inode.version) = (mode, number);
                Ok(met)
            }
        }
    }
    /// Every path with mode and, of files, the number of names.
    fn tree(&self) -> BTreeMap<String, (u32, usize)> {
        let mut tree = BTreeMap::new();
        let mut todo = vec![(TOP, String::new())];
        while let Some((dir, path)) = todo.pop() {
            for ((_, name), (node, _)) in self.names.range((dir, "")..(dir + 1, "")) {
                let (inode, path) = (&self.inodes[node], format!("{path}/{name}"));
                tree.insert(path.clone(), (inode.mode, if inode.dir { 0 } else { self.nlink(*node) }));
                if inode.dir {
                    todo.push((*node, path));
                }
            }
        }
        tree
    }
}

async fn execute(client: Rc<Client>, op: Op, fids: BTreeMap<Node, Fid>) -> Result<Option<Fid>, Failure> {
    let fid = |node: &Node| fids.get(node).copied().expect("operations name inodes that were made");
    match op {
        Op::Make { dir, name, is_dir } => {
            make(&client, fid(&dir), name, if is_dir { DIR } else { FILE }).await.map(Some)
        }
        Op::Unlink { dir, name, is_dir } => {
            client.unlink(fid(&dir), name.as_bytes(), is_dir, caller()).await.map(|()| None)
        }
        Op::Rename { from, to, flags } => {
            let (from, to) = ((fid(&from.0), from.1.as_bytes()), (fid(&to.0), to.1.as_bytes()));
            client.rename(from, to, flags, caller()).await.map(|()| None)
        }
        Op::Link { of, dir, name } => {
            client.link(fid(&of), fid(&dir), name.as_bytes(), caller()).await.map(|_| None)
        }
        Op::Chmod { of, mode } => {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            client.setattr(fid(&of), set, caller()).await.map(|_| None)
        }
    }
}

/// What is there, as `Model::tree` says it.
async fn walk(client: Rc<Client>, top: Fid) -> Result<BTreeMap<String, (u32, usize)>, Failure> {
    let mut tree = BTreeMap::new();
    let mut todo = vec![(top, String::new())];
    while let Some((dir, path)) = todo.pop() {
        for found in client.readdir(dir, 2, 1000, false).await?.entries {
            let attr = client.getattr(found.fid).await?.attr;
            let path = format!("{path}/{}", String::from_utf8_lossy(&found.name));
            let nlink = if attr.is_dir() { 0 } else { attr.nlink as usize };
            tree.insert(path.clone(), (attr.mode & mode::PERM, nlink));
            if attr.is_dir() {
                todo.push((found.fid, path));
            }
        }
    }
    Ok(tree)
}

fn random_op(c: &mut Cluster, model: &Model) -> Op {
    let mut pick = |n: usize| c.world.rng().below(n as u64) as usize;
    let nodes: Vec<Node> = model.inodes.keys().copied().collect();
    let dirs: Vec<Node> = nodes.iter().copied().filter(|n| model.inodes[n].dir).collect();
    let mut dir = || if pick(2) == 0 { TOP } else { dirs[pick(dirs.len())] };
    let (here, there) = (dir(), dir());
    let (name, other) = (NAMES[pick(5)], NAMES[pick(5)]);
    let node = nodes[pick(nodes.len())];
    match pick(12) {
        0..=3 => Op::Make { dir: here, name, is_dir: pick(3) == 0 },
        4 | 5 => {
            let is_dir = model.name(here, name).is_some_and(|n| model.inodes[&n].dir);
            Op::Unlink { dir: here, name, is_dir }
        }
        6..=8 => {
            let flags = [0, 0, rename_flags::NOREPLACE, rename_flags::EXCHANGE][pick(4)];
            Op::Rename { from: (here, name), to: (there, other), flags }
        }
        9 => Op::Link { of: node, dir: here, name },
        _ if node != TOP => Op::Chmod { of: node, mode: 0o600 | pick(64) as u32 },
        _ => Op::Make { dir: TOP, name, is_dir: true },
    }
}

/// An operation that was acknowledged without error.
struct Done {
    mount: usize,
    op: Op,
    met: Versions,
}

/// What must be there when the log ends after operation `kept`: the tree, and who is evicted.
fn after(history: &[Done], kept: usize, victim: usize) -> (BTreeMap<String, (u32, usize)>, BTreeSet<usize>) {
    let mut model = Model::new();
    let mut evicted = BTreeSet::new();
    for (number, done) in (1..).zip(history) {
        if number > kept && done.mount == victim {
            continue;
        }
        let mut next = model.clone();
        match next.apply(&done.op, number) {
            Ok(met) if met == done.met => model = next,
            _ => {
                assert!(number > kept, "what was kept needs no replay");
                evicted.insert(done.mount);
            }
        }
    }
    (model.tree(), evicted)
}

#[test]
fn random_histories_with_a_client_that_never_returns_end_as_the_model_says() {
    let (mut evictions, mut gaps) = (0, 0);
    for seed in 1..=60 {
        let mounts = 3;
        let mut s = scene(seed, mounts);
        let mut fids = BTreeMap::from([(TOP, s.dir)]);
        let mut model = Model::new();
        let mut history: Vec<Done> = Vec::new();
        let operations = 10 + s.c.world.rng().below(40);
        for _ in 0..operations {
            let op = random_op(&mut s.c, &model);
            let mount = s.c.world.rng().below(u64::from(mounts)) as usize;
            let (node, all): (NodeId, _) = (s.c.mounts[mount], fids.clone());
            let number = history.len() + 1;
            let mut next = model.clone();
            let want = next.apply(&op, number);
            let again = op.clone();
            let got = run(&mut s.c, node, async move |client| execute(client, again, all).await);
            assert_eq!(got.map(|_| ()), want.clone().map(|_| ()), "seed {seed}, {op:?}");
            let Ok(met) = want else { continue };
            if let Ok(Some(fid)) = got {
                fids.insert(number, fid);
            }
            model = next;
            history.push(Done { mount, op, met });
            // Mostly the reply is acknowledged before somebody builds on it.
            let pause = s.c.world.rng().below(6_000_000);
            s.c.world.run_for(pause);
        }
        let victim = s.c.world.rng().below(u64::from(mounts)) as usize;
        s.lose(victim);
        let others: Vec<usize> = (0..mounts as usize).filter(|m| *m != victim).collect();
        let evicted: BTreeSet<usize> = others.iter().copied().filter(|m| s.was_evicted(*m)).collect();
        let (node, top) = (s.c.mounts[others[0]], s.dir);
        let tree = run(&mut s.c, node, async move |client| walk(client, top).await).expect("it is readable");
        let found = (0..=history.len())
            .rev()
            .find(|&kept| after(&history, kept, victim) == (tree.clone(), evicted.clone()));
        let Some(kept) = found else {
            let told: Vec<String> = history
                .iter()
                .enumerate()
                .map(|(n, d)| format!("{} mount{} {:?} met {:?}", n + 1, d.mount, d.op, d.met))
                .collect();
            panic!(
                "seed {seed}, victim {victim}: evicted {evicted:?} and {tree:?} belong to no end of the log\n{}\n{}",
                told.join("\n"),
                s.c.world.trace(40)
            );
        };
        evictions += evicted.len();
        gaps += usize::from(history[kept..].iter().any(|d| d.mount == victim));
    }
    assert!(evictions >= 3 && gaps >= 10, "{evictions} evictions, {gaps} gaps: this tests nothing");
}
