//! Random namespace operations against a naive model of POSIX, every row checked after every change.

use crate::testing::{EXPORT, Fs};
use nacre_node::Rng;
use nacre_types::{Caller, Errno, Fid};
use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

const DIR: u32 = 0o040755;
const REG: u32 = 0o100644;
const LNK: u32 = 0o120777;

/// A node of the model: its names are where it is found.
#[derive(Debug, Clone)]
struct Node {
    mode: u32,
    nlink: u32,
    children: BTreeMap<String, Fid>,
    opens: u32,
}
#[derive(Debug)]
struct Model {
    nodes: BTreeMap<Fid, Node>,
}

type Done = Result<(), Errno>;

impl Model {
    fn new() -> Self {
        let root = Node { mode: DIR, nlink: 2, children: BTreeMap::new(), opens: 0 };
        Self { nodes: BTreeMap::from([(Fid::ROOT, root)]) }
    }
    fn dir(&mut self, fid: Fid) -> Result<&mut Node, Errno> {
        let node = self.nodes.get_mut(&fid).ok_or(Errno::ENOENT)?;
        match (node.mode, node.nlink) {
            (DIR, 0) => Err(Errno::ENOENT),
            (DIR, _) => Ok(node),
            _ => Err(Errno::ENOTDIR),
        }
    }
    fn create(&mut self, parent: Fid, name: &str, fid: Fid, mode: u32) -> Done {
        let dir = self.dir(parent)?;
        if dir.children.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        dir.children.insert(name.into(), fid);
        dir.nlink += u32::from(mode == DIR);
        let nlink = if mode == DIR { 2 } else { 1 };
        self.nodes.insert(fid, Node { mode, nlink, children: BTreeMap::new(), opens: 0 });
        Ok(())
    }
    fn drop_name(&mut self, fid: Fid) {
        let node = self.nodes.get_mut(&fid).unwrap();
        node.nlink = if node.mode == DIR { 0 } else { node.nlink - 1 };
        if node.nlink == 0 && node.opens == 0 {
            self.nodes.remove(&fid);
        }
    }
    fn unlink(&mut self, parent: Fid, name: &str, directory: bool) -> Done {
        let fid = *self.dir(parent)?.children.get(name).ok_or(Errno::ENOENT)?;
        let child = &self.nodes[&fid];
        match (directory, child.mode == DIR) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !child.children.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        let dir = self.dir(parent)?;
        dir.children.remove(name);
        dir.nlink -= u32::from(directory);
        self.drop_name(fid);
        Ok(())
    }
    fn link(&mut self, fid: Fid, parent: Fid, name: &str) -> Done {
        let exists = self.dir(parent)?.children.contains_key(name);
        let node = self.nodes.get(&fid).ok_or(Errno::ESTALE)?;
        if exists {
            return Err(Errno::EEXIST);
        }
        if node.mode == DIR {
            return Err(Errno::EPERM);
        }
        if node.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        self.nodes.get_mut(&fid).unwrap().nlink += 1;
        self.dir(parent)?.children.insert(name.into(), fid);
        Ok(())
    }
    /// `fid` is `below` or an ancestor of it.
    fn contains(&self, fid: Fid, below: Fid) -> bool {
        fid == below || self.nodes[&fid].children.values().any(|child| self.contains(*child, below))
    }
    fn rename(&mut self, a: (Fid, &str), b: (Fid, &str), flags: u32) -> Done {
        self.dir(a.0)?;
        self.dir(b.0)?;
        let from = *self.dir(a.0)?.children.get(a.1).ok_or(Errno::ENOENT)?;
        let to = self.dir(b.0)?.children.get(b.1).copied();
        match (flags, to) {
            (1, Some(_)) => return Err(Errno::EEXIST),
            (2, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        if self.nodes[&from].mode == DIR && self.contains(from, b.0) {
            return Err(Errno::EINVAL);
        }
        match to {
            Some(to) if to == from => return Ok(()),
            _ => {}
        }
        let is_dir = |m: &Self, fid: Fid| m.nodes[&fid].mode == DIR;
        if let Some(to) = to {
            if flags == 2 {
                if is_dir(self, to) && self.contains(to, a.0) {
                    return Err(Errno::EINVAL);
                }
                let (d1, d2) = (u32::from(is_dir(self, from)), u32::from(is_dir(self, to)));
                let dir = self.dir(a.0)?;
                dir.children.insert(a.1.into(), to);
                dir.nlink = dir.nlink + d2 - d1;
                let dir = self.dir(b.0)?;
                dir.children.insert(b.1.into(), from);
                dir.nlink = dir.nlink + d1 - d2;
                return Ok(());
            }
            match (is_dir(self, from), is_dir(self, to)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.nodes[&to].children.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
            let d = u32::from(is_dir(self, to));
            let dir = self.dir(b.0)?;
            dir.children.remove(b.1);
            dir.nlink -= d;
            self.drop_name(to);
        }
        let d = u32::from(is_dir(self, from));
        let dir = self.dir(a.0)?;
        dir.children.remove(a.1);
        dir.nlink -= d;
        let dir = self.dir(b.0)?;
        dir.children.insert(b.1.into(), from);
        dir.nlink += d;
        Ok(())
    }
    fn compare(&self, fs: &Fs) {
        for (fid, node) in &self.nodes {
            let inode = fs.inode(*fid).unwrap_or_else(|| panic!("{fid} is gone"));
            assert_eq!((inode.attr.mode, inode.attr.nlink), (node.mode, node.nlink), "{fid}");
            assert_eq!(inode.entries, node.children.len() as u64, "{fid}");
        }
        assert_eq!(fs.check().inodes, self.nodes.len() as u64);
    }
}

fn history(seed: u64, steps: u32) {
    let mut rng = Rng::new(seed);
    let (mut fs, mut model) = (Fs::new(), Model::new());
    let mut known: Vec<Fid> = std::vec![Fid::ROOT];
    let mut handles: Vec<(Fid, u64)> = Vec::new();
    let names = ["a", "b", "c", "d"];
    for step in 0..steps {
        let mut pick = |n: usize| rng.below(n as u64) as usize;
        let (p, q) = (known[pick(known.len())], known[pick(known.len())]);
        let (n, m) = (names[pick(4)], names[pick(4)]);
        let (fs_did, model_did) = match pick(12) {
            0..=3 => {
                let mode = [REG, DIR, DIR, LNK][pick(4)];
                let args = fs.create_args(p, n.as_bytes(), mode);
                let fid = args.fid;
                let did = fs.create_with(&args).map(|_| ());
                if did.is_ok() {
                    known.push(fid);
                }
                (did, model.create(p, n, fid, mode))
            }
            4 => (fs.link(q, p, n.as_bytes()), model.link(q, p, n)),
            5 | 6 => {
                let directory = pick(2) == 0;
                (fs.unlink(p, n.as_bytes(), directory), model.unlink(p, n, directory))
            }
            7..=9 => {
                let flags = [0, 0, 1, 2][pick(4)];
                let did = fs.rename_as(&Caller::root(), (p, n.as_bytes()), (q, m.as_bytes()), flags);
                (did, model.rename((p, n), (q, m), flags))
            }
            10 => {
                let did = fs.open(EXPORT, q, u64::from(step), 0).map(|_| ());
                let expected = match model.nodes.get_mut(&q) {
                    None => Err(Errno::ESTALE),
                    Some(node) if node.mode == LNK => Err(Errno::ELOOP),
                    Some(node) => {
                        node.opens += 1;
                        handles.push((q, u64::from(step)));
                        Ok(())
                    }
                };
                (did, expected)
            }
            _ => match handles.pop() {
                None => continue,
                Some((fid, handle)) => {
                    let node = model.nodes.get_mut(&fid).unwrap();
                    node.opens -= 1;
                    if node.nlink == 0 && node.opens == 0 {
                        model.nodes.remove(&fid);
                    }
                    (fs.close(EXPORT, fid, handle, false, None), Ok(()))
                }
            },
        };
        assert_eq!(fs_did, model_did, "seed {seed} step {step}: {p} {n} {q} {m}");
        model.compare(&fs);
    }
}

#[test]
fn random_histories_agree_with_posix() {
    for seed in 0..25 {
        history(seed, 200);
    }
}
