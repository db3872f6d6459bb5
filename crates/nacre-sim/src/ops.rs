//! The operations that are tried: drawn from the seed, and applied to the model. `execute.rs` executes them through a client.

use crate::model::{Kind, Model, Outcome, Required, Value};
use nacre_client::AllocateMode;
use nacre_node::Rng;
use nacre_types::{Errno, Failure};
use std::collections::BTreeMap;

/// Handles kept open, by slot.
pub const SLOTS: u32 = 3;

/// One operation. Contents are a byte value repeated with a counter, so that misplaced pieces show.
#[derive(Debug, Clone)]
pub enum Op {
    Mkdir(String),
    Mkfifo(String),
    Symlink(String, String),
    /// With a number of stripes; 0 = the default.
    Create {
        path: String,
        exclusive: bool,
        stripes: i32,
    },
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename {
        from: String,
        to: String,
        flags: u32,
    },
    Write {
        path: String,
        offset: u64,
        len: usize,
        byte: u8,
        sync: bool,
    },
    Append {
        path: String,
        len: usize,
        byte: u8,
    },
    Read {
        path: String,
        offset: u64,
        len: usize,
    },
    Truncate(String, u64),
    Allocate {
        path: String,
        offset: u64,
        len: u64,
        mode: AllocateMode,
    },
    Stat(String),
    Readdir {
        path: String,
        page: u32,
        with_attrs: bool,
    },
    Readlink(String),
    Chmod(String, u32),
    Setxattr {
        path: String,
        name: String,
        value: Vec<u8>,
        flags: u32,
    },
    Getxattr(String, String),
    Removexattr(String, String),
    Listxattr(String),
    Fsync(String),
    /// Everything that this mount has completed.
    SyncAll,
    /// Keeps the file open in a slot.
    Open(u32, String),
    WriteSlot {
        slot: u32,
        offset: Option<u64>,
        len: usize,
        byte: u8,
    },
    ReadSlot {
        slot: u32,
        offset: u64,
        len: usize,
    },
    TruncateSlot {
        slot: u32,
        size: u64,
    },
    StatSlot(u32),
    Close(u32),
}

/// `len` bytes that tell their place.
pub fn pattern(byte: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| byte.wrapping_add((i / 1000) as u8)).collect()
}

/// A path below `base`; few names, so that operations meet.
fn path(rng: &mut Rng, base: &str) -> String {
    let depth = [1, 1, 2, 2, 2, 3][rng.below(6) as usize];
    let mut path = base.to_string();
    for _ in 0..depth {
        path.push('/');
        path.push((b'a' + rng.below(4) as u8) as char);
    }
    path
}

impl Op {
    /// A random operation below `base`. `big` allows sizes over several stripes.
    pub fn random(rng: &mut Rng, base: &str, big: bool) -> Self {
        let byte = rng.next_u64() as u8;
        let slot = rng.below(u64::from(SLOTS)) as u32;
        let most = if big { 200_000 } else { 3000 };
        let len_most = if rng.below(4) == 0 { most } else { 500 };
        let offset_most = if rng.below(3) == 0 { most } else { 1000 };
        let len = 1 + rng.below(len_most) as usize;
        let offset = rng.below(offset_most);
        let p = path(rng, base);
        match rng.below(64) {
            0..=5 => Op::Mkdir(p),
            6 => Op::Mkfifo(p),
            7 | 8 => Op::Symlink(p, format!("to-{byte}")),
            9..=16 => Op::Create {
                path: p,
                exclusive: rng.below(2) == 0,
                stripes: [0, 0, 1, 2, -1][rng.below(5) as usize],
            },
            17 | 18 => Op::Link(p, path(rng, base)),
            19..=21 => Op::Unlink(p),
            22 | 23 => Op::Rmdir(p),
            24..=28 => {
                let flags = [0, 0, 0, 1, 2][rng.below(5) as usize];
                Op::Rename { from: p, to: path(rng, base), flags }
            }
            29..=33 => Op::Write { path: p, offset, len, byte, sync: rng.below(10) == 0 },
            34..=36 => Op::Append { path: p, len, byte },
            37..=39 => Op::Read { path: p, offset: offset / 2, len: len * 2 },
            40 | 41 => Op::Truncate(p, if rng.below(3) == 0 { 0 } else { offset }),
            42 => {
                let mode = match rng.below(6) {
                    0 => AllocateMode::Space { keep_size: true },
                    1 => AllocateMode::Space { keep_size: false },
                    2 => AllocateMode::Zeros { keep_size: true },
                    3 => AllocateMode::Zeros { keep_size: false },
                    _ => AllocateMode::Hole,
                };
                Op::Allocate { path: p, offset: offset / 2, len: len as u64, mode }
            }
            43..=45 => Op::Stat(p),
            46..=48 => {
                let path = if rng.below(3) == 0 { base.to_string() } else { p };
                Op::Readdir { path, page: 1 + rng.below(4) as u32, with_attrs: rng.below(2) == 0 }
            }
            49 => Op::Readlink(p),
            50 => Op::Chmod(p, 0o600 + rng.below(0o100) as u32),
            51 => Op::Setxattr {
                path: p,
                name: format!("user.{}", rng.below(3)),
                value: pattern(byte, rng.below(100) as usize),
                flags: rng.below(3) as u32,
            },
            52 => Op::Getxattr(p, format!("user.{}", rng.below(3))),
            53 => match rng.below(2) {
                0 => Op::Removexattr(p, format!("user.{}", rng.below(3))),
                _ => Op::Listxattr(p),
            },
            54 => Op::Fsync(p),
            55 | 56 => Op::Open(slot, p),
            57 | 58 => Op::WriteSlot { slot, offset: (rng.below(3) > 0).then_some(offset), len, byte },
            59 => Op::ReadSlot { slot, offset: offset / 2, len: len * 2 },
            60 => Op::TruncateSlot { slot, size: if byte.is_multiple_of(3) { 0 } else { offset } },
            61 => Op::StatSlot(slot),
            _ => Op::Close(slot),
        }
    }

    /// Whether an outcome is the one that POSIX asks for. A rename into itself or onto its ancestor breaks several rules at
    /// once; the kernel, which a mount does not have here, decides which one is named.
    pub fn agrees(&self, got: &Outcome, want: &Outcome) -> bool {
        if let (Op::Rename { from, to, .. }, Err(_), Err(_)) = (self, got, want)
            && (from.starts_with(to.as_str()) || to.starts_with(from.as_str()))
        {
            return true;
        }
        got == want
    }

    /// Whether it is made wholly or not at all, wherever its mount dies: it changes nothing, or in one request.
    pub fn is_one_change(&self) -> bool {
        match self {
            Op::Mkdir(_) | Op::Mkfifo(_) | Op::Symlink(..) | Op::Create { .. } | Op::Link(..) => true,
            Op::Unlink(_) | Op::Rmdir(_) | Op::Rename { .. } | Op::Chmod(..) | Op::Setxattr { .. } => true,
            Op::Removexattr(..) => true,
            Op::Stat(_) | Op::Readdir { .. } | Op::Readlink(_) | Op::Getxattr(..) | Op::Listxattr(_) => true,
            Op::Read { .. } | Op::Fsync(_) | Op::SyncAll => true,
            Op::Write { .. } | Op::Append { .. } | Op::Truncate(..) | Op::Allocate { .. } => false,
            Op::Open(..) | Op::WriteSlot { .. } | Op::ReadSlot { .. } => false,
            Op::TruncateSlot { .. } | Op::StatSlot(_) | Op::Close(_) => false,
        }
    }

    /// Whether it leaves anything behind.
    pub fn is_change(&self) -> bool {
        !matches!(
            self,
            Op::Stat(_)
                | Op::Readdir { .. }
                | Op::Readlink(_)
                | Op::Getxattr(..)
                | Op::Listxattr(_)
                | Op::Read { .. }
                | Op::Fsync(_)
                | Op::SyncAll
        )
    }

    /// The slot that it uses.
    pub fn slot(&self) -> Option<u32> {
        match self {
            Op::Open(slot, _) | Op::StatSlot(slot) | Op::Close(slot) => Some(*slot),
            Op::WriteSlot { slot, .. } | Op::ReadSlot { slot, .. } => Some(*slot),
            Op::TruncateSlot { slot, .. } => Some(*slot),
            _ => None,
        }
    }

    /// The outcome that POSIX requires.
    pub fn apply(&self, m: &mut Model) -> Outcome {
        self.required(m).map_err(Failure::from)
    }
    fn required(&self, m: &mut Model) -> Required {
        match self {
            Op::Mkdir(p) => m.make(p, Kind::Directory(BTreeMap::new()), 0o755),
            Op::Mkfifo(p) => m.make(p, Kind::Fifo, 0o644),
            Op::Symlink(p, target) => m.make(p, Kind::Symlink(target.clone()), 0o777),
            Op::Create { path, exclusive, .. } => m.create(path, *exclusive).map(|_| Value::Unit),
            Op::Link(from, to) => m.link(from, to),
            Op::Unlink(p) => m.unlink(p),
            Op::Rmdir(p) => m.rmdir(p),
            Op::Rename { from, to, flags } => m.rename(from, to, flags & 1 != 0, flags & 2 != 0),
            Op::Write { path, offset, len, byte, .. } => {
                m.write(m.file(path)?, Some(*offset), &pattern(*byte, *len))
            }
            Op::Append { path, len, byte } => m.write(m.file(path)?, None, &pattern(*byte, *len)),
            Op::Read { path, offset, len } => m.read(m.file(path)?, *offset, *len),
            Op::Truncate(p, size) => m.truncate(m.file(p)?, *size),
            Op::Allocate { path, offset, len, mode } => m.allocate(m.file(path)?, *offset, *len, *mode),
            Op::Stat(p) => m.stat(p),
            Op::Readdir { path, .. } => m.readdir(path),
            Op::Readlink(p) => m.readlink(p),
            Op::Chmod(p, mode) => match m.resolve(p) {
                Ok(i) if matches!(m.inode(i).kind, Kind::Symlink(_)) => Err(Errno::ELOOP),
                Ok(_) => m.chmod(p, *mode),
                Err(e) => Err(e),
            },
            Op::Setxattr { path, name, value, flags } => {
                check_xattr(m, path)?;
                m.setxattr(path, name, value, *flags)
            }
            Op::Getxattr(p, name) => {
                check_xattr(m, p)?;
                m.getxattr(p, name)
            }
            Op::Removexattr(p, name) => {
                check_xattr(m, p)?;
                m.removexattr(p, name)
            }
            Op::Listxattr(p) => {
                check_xattr(m, p)?;
                m.listxattr(p)
            }
            Op::Fsync(p) => m.file(p).map(|_| Value::Unit),
            Op::SyncAll => Ok(Value::Unit),
            Op::Open(slot, p) => {
                let i = m.file(p)?;
                if m.open.contains_key(slot) {
                    return Err(Errno::EBUSY);
                }
                m.open.insert(*slot, i);
                Ok(Value::Unit)
            }
            Op::WriteSlot { slot, offset, len, byte } => {
                m.write(opened(m, *slot)?, *offset, &pattern(*byte, *len))
            }
            Op::ReadSlot { slot, offset, len } => m.read(opened(m, *slot)?, *offset, *len),
            Op::TruncateSlot { slot, size } => m.truncate(opened(m, *slot)?, *size),
            Op::StatSlot(slot) => Ok(Value::Stat(m.stat_of(opened(m, *slot)?))),
            Op::Close(slot) => m.open.remove(slot).map(|_| Value::Unit).ok_or(Errno::EBADF),
        }
    }
}

/// The inode of an open handle.
fn opened(m: &Model, slot: u32) -> Result<usize, Errno> {
    m.open.get(&slot).copied().ok_or(Errno::EBADF)
}

/// user.* belongs to files and directories only.
fn check_xattr(m: &Model, path: &str) -> Result<(), Errno> {
    match m.inode(m.resolve(path)?).kind {
        Kind::File(_) | Kind::Directory(_) => Ok(()),
        Kind::Symlink(_) | Kind::Fifo => Err(Errno::EPERM),
    }
}
