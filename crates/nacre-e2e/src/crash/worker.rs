//! A program with a directory of its own, whose content it knows: mdtest-like changes, each checked.
//!
//! An error of a call is a violation, unless the mount itself was killed or evicted while the call ran. Then the
//! call has happened or not, as a whole; a write may have come in part. Everything that was acknowledged before stays.

use super::common::Common;
use super::shared::Shared;
use nacre_testkit::wait::pause;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Names a worker uses.
const NAMES: u64 = 24;
/// A file is not appended to beyond this.
const FILE_BYTES_MAX: usize = 64 << 10;

pub(super) type Io<T> = std::io::Result<T>;

pub(crate) struct Rng(u64);
impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        // Zero would stay zero.
        Self(seed | 1)
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Dir,
    /// Number of the content: names of one file have the same.
    File(u64),
}

#[derive(Debug, Clone)]
enum Op {
    Create(String, Vec<u8>),
    Append(String, Vec<u8>),
    Rename(String, String),
    Unlink(String),
    Link(String, String),
    Mkdir(String),
    Rmdir(String),
    Read(String),
    /// One of many who want to make a file of this number.
    Claim(u64),
    /// A line at the end of a file that all write.
    Log(u64),
}

/// The state of a name: absent, a directory, a file with this content.
type Seen = Option<Option<Vec<u8>>>;

pub(super) struct Worker<'a> {
    shared: &'a Shared,
    common: &'a Common,
    id: u64,
    // `mount` and `dir` are open: the report of the run names them, and they never change.
    pub(super) mount: usize,
    /// Of the mount.
    root: PathBuf,
    pub(super) dir: PathBuf,
    rng: Rng,
    names: BTreeMap<String, Node>,
    contents: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        common: &'a Common,
        (id, seed): (u64, u64),
        mount: usize,
        root: PathBuf,
    ) -> Io<Self> {
        let dir = root.join(format!("worker{id}"));
        fs::create_dir(&dir)?;
        let rng = Rng::new(seed.wrapping_add(id * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (names, contents) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { shared, common, id, mount, root, dir, rng, names, contents, next: 0 })
    }

    pub(super) fn work(&mut self) {
        while !self.shared.is_over() {
            let Some(faults) = self.shared.mount_stands(self.mount) else {
                pause(Duration::from_millis(20));
                continue;
            };
            let Some(op) = self.plan() else { continue };
            let began = Instant::now();
            let done = self.perform(&op);
            if self.shared.mount_stands(self.mount) != Some(faults) {
                self.after_fault(&op);
                continue;
            }
            self.shared.took(began);
            match done {
                Ok(()) => self.apply(&op),
                Err(text) => {
                    self.shared.violation(format!("{}: {text}", self.dir.display()));
                    self.relearn(&op);
                }
            }
            self.shared.add_operations(1);
        }
    }

    // ---- what to do

    fn plan(&mut self) -> Option<Op> {
        let (a, b) = (self.name(), self.name());
        let node = self.names.get(&a).cloned();
        Some(match self.rng.below(11) {
            0 | 1 => Op::Create(a, self.line()),
            2 | 3 => match node {
                Some(Node::File(id)) if self.contents[&id].len() <= FILE_BYTES_MAX => {
                    Op::Append(a, self.line())
                }
                _ => return None,
            },
            4 => Op::Rename(a, b),
            5 => Op::Unlink(a),
            6 => Op::Link(a, b),
            7 if node == Some(Node::Dir) => Op::Rmdir(a),
            7 => Op::Mkdir(a),
            8 => Op::Claim(self.common.next_claim(&mut self.rng)),
            9 => {
                self.next += 1;
                Op::Log(self.next)
            }
            _ if matches!(node, Some(Node::File(_))) => Op::Read(a),
            _ => return None,
        })
    }
    fn name(&mut self) -> String {
        format!("n{}", self.rng.below(NAMES))
    }
    fn line(&mut self) -> Vec<u8> {
        self.next += 1;
        let mut line = format!("{}:{}", self.dir.display(), self.next).into_bytes();
        line.resize(line.len() + usize::try_from(self.rng.below(3000)).unwrap_or(0), b'.');
        line.push(b'\n');
        line
    }

    // ---- the call

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
    /// Every fourth change waits until it is durable.
    fn write(&mut self, options: &mut OpenOptions, path: &Path, bytes: &[u8]) -> Io<()> {
        let mut file = options.open(path)?;
        file.write_all(bytes)?;
        if self.rng.below(4) == 0 { file.sync_data() } else { Ok(()) }
    }
    /// `Err` says how the outcome differs from what must be.
    fn perform(&mut self, op: &Op) -> Result<(), String> {
        let done = match op {
            Op::Create(a, content) => {
                let path = self.path(a);
                self.write(OpenOptions::new().write(true).create_new(true), &path, content)
            }
            Op::Append(a, line) => {
                let path = self.path(a);
                self.write(OpenOptions::new().append(true), &path, line)
            }
            Op::Rename(a, b) => fs::rename(self.path(a), self.path(b)),
            Op::Unlink(a) => fs::remove_file(self.path(a)),
            Op::Link(a, b) => fs::hard_link(self.path(a), self.path(b)),
            Op::Mkdir(a) => fs::create_dir(self.path(a)),
            Op::Rmdir(a) => fs::remove_dir(self.path(a)),
            Op::Read(a) => {
                let found = read(&self.path(a)).map_err(|e| format!("read {a}: {e}"))?;
                let Some(Node::File(id)) = self.names.get(a) else { return Ok(()) };
                let expected = &self.contents[id];
                let same = found == *expected;
                return if same {
                    Ok(())
                } else {
                    Err(format!("read {a}: {}", difference(&found, expected)))
                };
            }
            Op::Claim(number) => return self.common.claim(&self.root, self.id, *number),
            Op::Log(number) => return self.common.log(&self.root, self.id, *number),
        };
        match (done, self.refusal(op)) {
            (Ok(()), None) => Ok(()),
            (Err(e), Some(why)) if e.to_string().contains(why) => Ok(()),
            (Ok(()), Some(why)) => Err(format!("{} succeeded, must be refused ({why})", show(op))),
            (Err(e), None) => Err(format!("{}: {e}", show(op))),
            (Err(e), Some(why)) => Err(format!("{}: {e}, must be {why}", show(op))),
        }
    }
    /// Why the operation must fail.
    fn refusal(&self, op: &Op) -> Option<&'static str> {
        let node = |name: &String| self.names.get(name);
        match op {
            Op::Create(a, _) | Op::Mkdir(a) => node(a).map(|_| "File exists"),
            Op::Rename(a, b) => match (node(a), node(b)) {
                (None, _) => Some("No such file"),
                _ if a == b => None,
                (Some(Node::Dir), Some(Node::File(_))) => Some("Not a directory"),
                (Some(Node::File(_)), Some(Node::Dir)) => Some("Is a directory"),
                _ => None,
            },
            Op::Unlink(a) => match node(a) {
                None => Some("No such file"),
                Some(Node::Dir) => Some("Is a directory"),
                Some(Node::File(_)) => None,
            },
            Op::Link(a, b) => match (node(a), node(b)) {
                (None, _) => Some("No such file"),
                (_, Some(_)) => Some("File exists"),
                (Some(Node::Dir), None) => Some("not permitted"),
                (Some(Node::File(_)), None) => None,
            },
            Op::Append(..) | Op::Rmdir(_) | Op::Read(_) | Op::Claim(_) | Op::Log(_) => None,
        }
    }
    /// The change in what must be.
    fn apply(&mut self, op: &Op) {
        if self.refusal(op).is_some() {
            return;
        }
        match op {
            Op::Create(a, content) => {
                let id = self.new_content(content.clone());
                self.names.insert(a.clone(), Node::File(id));
            }
            Op::Append(a, line) => {
                if let Some(Node::File(id)) = self.names.get(a)
                    && let Some(content) = self.contents.get_mut(id)
                {
                    content.extend_from_slice(line);
                }
            }
            Op::Rename(a, b) => {
                let (from, to) = (self.names.get(a).cloned(), self.names.get(b));
                let same = matches!((&from, to), (Some(Node::File(x)), Some(Node::File(y))) if x == y);
                if a != b && !same {
                    self.names.remove(a);
                    self.names.extend(from.map(|node| (b.clone(), node)));
                }
            }
            Op::Unlink(a) | Op::Rmdir(a) => drop(self.names.remove(a)),
            Op::Link(a, b) => {
                let node = self.names.get(a).cloned();
                self.names.extend(node.map(|node| (b.clone(), node)));
            }
            Op::Mkdir(a) => drop(self.names.insert(a.clone(), Node::Dir)),
            Op::Read(_) | Op::Claim(_) | Op::Log(_) => {}
        }
    }
    fn new_content(&mut self, content: Vec<u8>) -> u64 {
        self.next += 1;
        self.contents.insert(self.next, content);
        self.next
    }

    // ---- after a kill of the mount

    /// The call was interrupted: it has happened or not.
    fn after_fault(&mut self, op: &Op) {
        self.shared.add_interrupted();
        while self.shared.mount_stands(self.mount).is_none() {
            if self.shared.is_over() {
                return; // the run was given up
            }
            pause(Duration::from_millis(20));
        }
        let matches = |me: &Self| me.concerned(op).into_iter().all(|n| me.seen(n) == Some(me.expected(n)));
        if matches(self) {
            return;
        }
        let before = (self.names.clone(), self.contents.clone());
        self.apply(op);
        if matches(self) {
            return;
        }
        let in_part = match op {
            Op::Create(a, new) | Op::Append(a, new) => match self.seen(a) {
                Some(Some(Some(found))) => {
                    let old = before.0.get(a).and_then(|node| match node {
                        Node::File(id) => before.1.get(id),
                        Node::Dir => None,
                    });
                    let whole = [old.map_or(&[][..], |old| old), new].concat();
                    whole.starts_with(&found) && found.len() >= whole.len() - new.len()
                }
                _ => false,
            },
            _ => false,
        };
        if !in_part && self.shared.mount_stands(self.mount).is_some() {
            let now: Vec<_> =
                self.concerned(op).iter().map(|n| format!("{n}: {}", tell(&self.seen(n)))).collect();
            self.shared.violation(format!(
                "{}: after the mount was killed in {} there is neither the old nor the new: {}",
                self.dir.display(),
                show(op),
                now.join(", ")
            ));
        }
        self.relearn(op);
    }
    fn concerned<'b>(&self, op: &'b Op) -> Vec<&'b String> {
        match op {
            Op::Rename(a, b) | Op::Link(a, b) => vec![a, b],
            Op::Create(a, _) | Op::Append(a, _) => vec![a],
            Op::Unlink(a) | Op::Mkdir(a) | Op::Rmdir(a) | Op::Read(a) => vec![a],
            Op::Claim(_) | Op::Log(_) => Vec::new(),
        }
    }
    fn expected(&self, name: &str) -> Seen {
        self.names.get(name).map(|node| match node {
            Node::Dir => None,
            Node::File(id) => Some(self.contents[id].clone()),
        })
    }
    /// `None`: unknown.
    fn seen(&self, name: &str) -> Option<Seen> {
        let path = self.path(name);
        match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Some(None),
            Err(_) => None,
            Ok(meta) if meta.is_dir() => Some(Some(None)),
            Ok(_) => read(&path).ok().map(|content| Some(Some(content))),
        }
    }
    /// Takes what there is now for right, of the names of one call.
    fn relearn(&mut self, op: &Op) {
        for name in self.concerned(op) {
            match self.seen(name).flatten() {
                None => drop(self.names.remove(name)),
                Some(None) => drop(self.names.insert(name.clone(), Node::Dir)),
                Some(Some(content)) => {
                    // Other names of the file follow.
                    let id = match self.names.get(name) {
                        Some(Node::File(id)) => *id,
                        _ => self.new_content(Vec::new()),
                    };
                    self.contents.insert(id, content);
                    self.names.insert(name.clone(), Node::File(id));
                }
            }
        }
    }

    // ---- the end

    /// Compares everything, seen from another mount.
    pub(super) fn check(&self, root: &Path) -> Io<()> {
        let dir = root.join(self.dir.file_name().unwrap_or_default());
        let mut found: BTreeMap<String, Option<Vec<u8>>> = BTreeMap::new();
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let content = if entry.file_type()?.is_dir() { None } else { Some(read(&entry.path())?) };
            found.insert(entry.file_name().to_string_lossy().into_owned(), content);
        }
        for name in self.names.keys() {
            let (found, expected) = (found.remove(name), self.expected(name));
            if found != expected {
                let text = match (&found, &expected) {
                    (Some(Some(found)), Some(Some(expected))) => difference(found, expected),
                    _ => format!("{} instead of {}", tell(&Some(found)), tell(&Some(expected))),
                };
                self.shared.violation(format!("{}/{name}: {text}", dir.display()));
            }
        }
        for name in found.keys() {
            self.shared.violation(format!("{}/{name} is there again", dir.display()));
        }
        Ok(())
    }
}

fn show(op: &Op) -> String {
    match op {
        Op::Create(a, bytes) => format!("create {a} ({} bytes)", bytes.len()),
        Op::Append(a, bytes) => format!("append {a} ({} bytes)", bytes.len()),
        op => format!("{op:?}"),
    }
}

fn tell(seen: &Option<Seen>) -> String {
    match seen {
        None => "cannot be told".to_owned(),
        Some(None) => "nothing".to_owned(),
        Some(Some(None)) => "a directory".to_owned(),
        Some(Some(Some(content))) => format!("a file of {} bytes", content.len()),
    }
}

pub(super) fn read(path: &Path) -> Io<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.read_to_end(&mut content)?;
    Ok(content)
}

fn difference(found: &[u8], expected: &[u8]) -> String {
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len().min(expected.len()));
    format!("{} bytes instead of {}, first difference at byte {at}", found.len(), expected.len())
}
