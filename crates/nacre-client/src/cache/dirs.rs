//! Directories that the MDT lets this mount hold: lookups and getattrs of them need no request.
//!
//! Rules: (1) a hold is valid on the connection epoch of its grant and while the lease may be used; a new epoch begins without
//! holds. (2) A revoke ends a hold; the acknowledgement is sent after this table has removed it. The task that processes a
//! grant may run after a later revoke was processed: revokes are numbered, a grant carries the number of the revoke before it,
//! and a grant older than the latest revoke is discarded. (3) Attributes carry the transno up to which they are known; older
//! ones never replace newer ones. (4) While a change of this mount to a directory or its name has no reply, the MDT is asked:
//! others may have seen the effect. (5) A reply without attributes (reconstructed from a record) leaves a hold without
//! attributes; the next request fills it. The table is bounded; nothing else is cached.

use crate::api::ResolvedInode;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use nacre_types::{Codec, ConnEpoch, Fid, Timestamp, Transno};
use nacre_wire::Frame;
use nacre_wire::mdt::{DirGrant, DirState, DirTail, EntryReply, RevokeDir};

/// Bound of the table; the MDT has a bound of its own.
const DIRS_MAX: usize = 65_536;

/// The directories and names that a request may change.
#[derive(Debug, Default)]
pub(crate) struct Touches {
    dirs: Vec<Fid>,
    names: Vec<(Fid, Bytes)>,
}
impl Touches {
    /// The attributes of a directory, or new entries in it.
    pub(crate) fn dir(fid: Fid) -> Self {
        Self { dirs: alloc::vec![fid], names: Vec::new() }
    }
    /// Names that may be removed or changed, with their directories.
    pub(crate) fn names(names: &[(Fid, &[u8])]) -> Self {
        let mut touches = Self::default();
        names.iter().for_each(|(parent, name)| touches.add_name(*parent, name));
        touches
    }
    pub(crate) fn add_dir(&mut self, fid: Fid) {
        self.dirs.push(fid);
    }
    pub(crate) fn add_name(&mut self, parent: Fid, name: &[u8]) {
        self.dirs.push(parent);
        self.names.push((parent, Bytes::copy_from_slice(name)));
    }
}

/// A directory that is held.
#[derive(Debug)]
struct Dir {
    attrs: Option<ResolvedInode>,
    /// The attributes, if present, contain every change up to this one; older attributes are not accepted.
    seen: Transno,
    parent: Fid,
    name: Bytes,
}

#[derive(Debug, Default)]
struct Table {
    epoch: ConnEpoch,
    /// Number of the latest revoke of this epoch.
    revokes: u64,
    dirs: BTreeMap<Fid, Dir>,
    names: BTreeMap<Fid, BTreeMap<Bytes, Fid>>,
    /// The latest change of this mount to a directory that is not in the table: a read from before it may be under way.
    unnoted: Transno,
    /// Changes of this mount without a reply.
    changing_dirs: BTreeMap<Fid, u32>,
    changing_names: Vec<(Fid, Bytes)>,
}

impl Table {
    /// Enters the epoch of a frame, which ends the holds of earlier epochs. False: the frame is of an earlier epoch.
    fn enter(&mut self, epoch: ConnEpoch) -> bool {
        if epoch > self.epoch {
            self.clear();
            (self.epoch, self.revokes, self.unnoted) = (epoch, 0, Transno(0));
        }
        epoch == self.epoch
    }
    fn clear(&mut self) {
        self.dirs.clear();
        self.names.clear();
    }
    fn remove(&mut self, fid: Fid) {
        if let Some(dir) = self.dirs.remove(&fid) {
            self.forget_name(fid, dir.parent, &dir.name);
        }
    }
    fn forget_name(&mut self, fid: Fid, parent: Fid, name: &[u8]) {
        let Some(names) = self.names.get_mut(&parent) else { return };
        if names.get(name) == Some(&fid) {
            names.remove(name);
        }
        if names.is_empty() {
            self.names.remove(&parent);
        }
    }
    fn set_name(&mut self, fid: Fid, parent: Fid, name: Bytes) {
        if let Some(dir) = self.dirs.get_mut(&fid) {
            let old = (dir.parent, core::mem::replace(&mut dir.name, name.clone()));
            dir.parent = parent;
            self.forget_name(fid, old.0, &old.1);
        }
        // The root has no name.
        if !name.is_empty() {
            self.names.entry(parent).or_default().insert(name, fid);
        }
    }
    fn usable(&self, fid: Fid) -> Option<&ResolvedInode> {
        let dir = self.dirs.get(&fid)?;
        let attrs = dir.attrs.as_ref()?;
        let changing = self.changing_dirs.contains_key(&fid) || self.is_changing(dir.parent, &dir.name);
        (!changing).then_some(attrs)
    }
    fn is_changing(&self, parent: Fid, name: &[u8]) -> bool {
        self.changing_names.iter().any(|(p, n)| *p == parent && n == name)
    }

    fn grant(&mut self, granted: DirGrant, reply: &EntryReply) {
        let fid = reply.attr.fid;
        if granted.revokes < self.revokes || !self.dirs.contains_key(&fid) && self.dirs.len() >= DIRS_MAX {
            return;
        }
        let DirGrant { seen, parent, name, .. } = granted;
        let new = Dir { attrs: None, seen: self.unnoted, parent, name: name.clone() };
        let dir = self.dirs.entry(fid).or_insert(new);
        if seen >= dir.seen {
            (dir.attrs, dir.seen) = (Some(ResolvedInode::of(reply)), seen);
            self.set_name(fid, parent, name);
        }
    }
    /// Records the state of a directory after the change `at` of this mount.
    fn changed(&mut self, at: Transno, state: DirState) {
        let fid = state.attr.fid;
        match self.dirs.get_mut(&fid) {
            Some(dir) if at >= dir.seen => {
                let entry = ResolvedInode { attr: state.attr, kill_priv: state.kill_priv };
                (dir.attrs, dir.seen) = (Some(entry), at);
                self.set_name(fid, state.parent, state.name);
            }
            Some(_) => {}
            None => self.unnoted = self.unnoted.max(at),
        }
    }
    /// The state of a directory after the change `at` of this mount is not known.
    fn unknown(&mut self, at: Transno, fid: Fid) {
        if let Some(dir) = self.dirs.get_mut(&fid).filter(|dir| at >= dir.seen) {
            (dir.attrs, dir.seen) = (None, at);
        }
    }
}

/// The held directories.
pub(crate) struct Dirs {
    on: Cell<bool>,
    table: RefCell<Table>,
}
impl Default for Dirs {
    fn default() -> Self {
        Self { on: Cell::new(true), table: RefCell::default() }
    }
}

impl Dirs {
    pub(crate) fn is_on(&self) -> bool {
        self.on.get()
    }
    pub(crate) fn set_on(&self, on: bool) {
        self.on.set(on);
        let mut table = self.table.borrow_mut();
        // Reads from before the latest changes of the forgotten directories may be under way.
        table.unnoted = table.dirs.values().map(|dir| dir.seen).fold(table.unnoted, Transno::max);
        table.clear();
    }
    pub(crate) fn is_idle(&self) -> bool {
        let table = self.table.borrow();
        table.changing_dirs.is_empty() && table.changing_names.is_empty()
    }

    /// Attributes of a directory, on the epoch on which holds may be used now.
    pub(crate) fn attrs(&self, epoch: Option<ConnEpoch>, fid: Fid) -> Option<ResolvedInode> {
        let table = self.table.borrow();
        let usable = self.on.get() && epoch == Some(table.epoch);
        usable.then(|| table.usable(fid).cloned())?
    }
    /// The held directory with this name.
    pub(crate) fn named(&self, epoch: Option<ConnEpoch>, parent: Fid, name: &[u8]) -> Option<ResolvedInode> {
        let fid = {
            let table = self.table.borrow();
            let fid = *table.names.get(&parent)?.get(name)?;
            (!table.is_changing(parent, name)).then_some(fid)?
        };
        self.attrs(epoch, fid)
    }

    /// Processes the reply to a read. `epoch` is the current one of the import.
    pub(crate) fn granted(&self, epoch: ConnEpoch, frame: &Frame, reply: &EntryReply) {
        let mut table = self.table.borrow_mut();
        if let Some(DirTail { granted: Some(granted), .. }) = tail(frame)
            && self.on.get()
            && frame.header.epoch == epoch
            && table.enter(epoch)
        {
            table.grant(granted, reply);
        }
    }
    /// Processes a revoke: the hold has ended when this returns; the acknowledgement follows.
    pub(crate) fn revoked(&self, frame: &Frame) {
        let mut table = self.table.borrow_mut();
        match RevokeDir::from_slice(&frame.body) {
            Ok(revoke) => {
                if table.enter(frame.header.epoch) {
                    table.revokes = table.revokes.max(revoke.number);
                    table.remove(revoke.fid);
                }
            }
            Err(error) => {
                tracing::error!(%error, "a revoke of the MDT cannot be read: every hold is given up");
                table.clear();
                table.revokes = u64::MAX; // until the next epoch
            }
        }
    }

    /// The MDT has recorded an access time that this mount has sent. Other holders are not notified: access
    /// times are not coherent.
    pub(crate) fn accessed(&self, fid: Fid, atime: Timestamp) {
        let mut table = self.table.borrow_mut();
        if let Some(attrs) = table.dirs.get_mut(&fid).and_then(|dir| dir.attrs.as_mut()) {
            attrs.attr.atime = attrs.attr.atime.max(atime);
        }
    }

    /// A change of this mount is about to be requested.
    pub(crate) fn begin(self: &Rc<Self>, touches: Touches) -> Changing {
        let mut table = self.table.borrow_mut();
        for fid in &touches.dirs {
            *table.changing_dirs.entry(*fid).or_default() += 1;
        }
        table.changing_names.extend(touches.names.iter().cloned());
        drop(table);
        Changing { dirs: self.clone(), touches }
    }
}

fn tail(frame: &Frame) -> Option<DirTail> {
    let bytes = frame.dir_tail()?;
    match DirTail::from_slice(bytes) {
        Ok(tail) => Some(tail),
        Err(error) => {
            tracing::error!(%error, "a reply of the MDT has a description of directories that cannot be read: it is ignored");
            None
        }
    }
}

/// A change of this mount without a reply; dropping it ends the wait for the reply.
pub(crate) struct Changing {
    dirs: Rc<Dirs>,
    touches: Touches,
}
impl Changing {
    /// The change was executed. `epoch` is the current one of the import.
    pub(crate) fn replied(self, epoch: ConnEpoch, frame: &Frame) {
        let mut table = self.dirs.table.borrow_mut();
        // Grants of a later epoch contain this change.
        if frame.header.epoch != epoch || !table.enter(epoch) {
            return;
        }
        let at = frame.header.transno;
        match tail(frame) {
            Some(DirTail { changed, removed, .. }) => {
                changed.into_iter().for_each(|state| table.changed(at, state));
                for fid in removed {
                    table.remove(fid);
                    table.unnoted = table.unnoted.max(at);
                }
            }
            None => {
                table.unnoted = table.unnoted.max(at);
                let Touches { dirs, names } = &self.touches;
                dirs.iter().for_each(|fid| table.unknown(at, *fid));
                for (parent, name) in names {
                    let fid = table.names.get(parent).and_then(|names| names.get(name)).copied();
                    fid.into_iter().for_each(|fid| table.unknown(at, fid));
                }
            }
        }
    }
}
impl Drop for Changing {
    fn drop(&mut self) {
        let mut table = self.dirs.table.borrow_mut();
        for fid in &self.touches.dirs {
            if let Some(count) = table.changing_dirs.get_mut(fid) {
                *count -= 1;
                if *count == 0 {
                    table.changing_dirs.remove(fid);
                }
            }
        }
        for name in &self.touches.names {
            if let Some(at) = table.changing_names.iter().position(|n| n == name) {
                table.changing_names.swap_remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Attr, Oid, Seq, mode};

    fn attr(nlink: u32) -> Attr {
        let fid = Fid::new(Seq(0x100), Oid(1));
        Attr { nlink, size: 4096, ..Attr::new(fid, mode::DIR | 0o755, Timestamp::default()) }
    }
    fn grant(dirs: &Dirs, seen: u64, nlink: u32) {
        let reply = EntryReply {
            attr: attr(nlink),
            layout: None,
            kill_priv: false,
            mtime_set_at: Timestamp::default(),
            yours: false,
        };
        let name = Bytes::from_static(b"d");
        let granted = DirGrant { revokes: 0, seen: Transno(seen), parent: Fid::ROOT, name };
        dirs.table.borrow_mut().grant(granted, &reply);
    }
    fn nlink(dirs: &Dirs) -> Option<u32> {
        dirs.attrs(Some(ConnEpoch(0)), attr(0).fid).map(|entry| entry.attr.nlink)
    }

    /// The reply to a read from before the mount's own change comes after holds were turned off and on.
    #[test]
    fn a_reply_from_before_a_change_is_not_taken_because_holds_were_off_meanwhile() {
        let dirs = Dirs::default();
        grant(&dirs, 5, 2);
        let name = Bytes::from_static(b"d");
        let state = DirState { attr: attr(3), kill_priv: false, parent: Fid::ROOT, name };
        dirs.table.borrow_mut().changed(Transno(10), state);
        assert_eq!(nlink(&dirs), Some(3));
        dirs.set_on(false);
        assert_eq!(nlink(&dirs), None);
        dirs.set_on(true);
        grant(&dirs, 7, 2);
        assert_eq!(nlink(&dirs), None, "older than the change");
        grant(&dirs, 10, 3);
        assert_eq!(nlink(&dirs), Some(3));
    }
}
