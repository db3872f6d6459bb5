//! Changes of this mount that have no reply yet.
//!
//! Rule: the names of a change without a reply, and the inodes behind them, are not served from the cache, because
//! other clients may have seen the change. The other names of the directory are still served. A change whose name is
//! not known here may change any inode: while there is one, no attributes are served.

use alloc::vec::Vec;
use bytes::Bytes;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use nacre_types::{Fid, SeededHash};

/// The names and inodes that a request may change; only the cache reads it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Touches {
    /// Inodes of which the attributes change.
    pub(super) inodes: Vec<Fid>,
    /// Those of them whose extended attributes may change, too.
    pub(super) xattrs: Vec<Fid>,
    /// Names that may be added, removed or changed. Their directories are among the inodes.
    pub(super) names: Vec<(Fid, Bytes)>,
    /// It opens a file for writing: the reply says whether bytes may be kept from now on.
    opens_for_write: bool,
}
impl Touches {
    /// The change opens a file for writing as well.
    pub(crate) fn and_opens_for_write(self) -> Self {
        Self { opens_for_write: true, ..self }
    }
    pub(super) fn opens_for_write(&self) -> bool {
        self.opens_for_write
    }
    /// The attributes of an inode, without its extended attributes.
    pub(crate) fn attrs(fid: Fid) -> Self {
        Self { inodes: alloc::vec![fid], ..Self::default() }
    }
    /// The attributes and extended attributes of an inode.
    pub(crate) fn inode(fid: Fid) -> Self {
        Self { inodes: alloc::vec![fid], xattrs: alloc::vec![fid], ..Self::default() }
    }
    /// Names, their directories, and the inodes that have these names.
    pub(crate) fn names(names: &[(Fid, &[u8])]) -> Self {
        let mut touches = Self::default();
        names.iter().for_each(|(parent, name)| touches.add_name(*parent, name));
        touches
    }
    pub(crate) fn add_attrs(&mut self, fid: Fid) {
        self.inodes.push(fid);
    }
    pub(crate) fn add_inode(&mut self, fid: Fid) {
        self.inodes.push(fid);
        self.xattrs.push(fid);
    }
    pub(crate) fn add_name(&mut self, parent: Fid, name: &[u8]) {
        self.inodes.push(parent);
        self.names.push((parent, Bytes::copy_from_slice(name)));
    }
}

/// The changes of one name: a plain record.
#[derive(Debug)]
struct NameChanges {
    name: Bytes,
    count: u32,
    /// One of the changes may change an inode that is not known here.
    is_blind: bool,
}

/// The changes that are under way.
#[derive(Debug)]
pub(super) struct InFlight {
    inodes: HashMap<Fid, u32, SeededHash>,
    /// By directory. Few of one directory change at a time, because the kernel locks it.
    names: HashMap<Fid, Vec<NameChanges>, SeededHash>,
    /// Names with changes that may change any inode.
    blind: usize,
}

impl InFlight {
    pub(super) fn new(hash: SeededHash) -> Self {
        Self { inodes: HashMap::with_hasher(hash), names: HashMap::with_hasher(hash), blind: 0 }
    }
    pub(super) fn is_idle(&self) -> bool {
        self.inodes.is_empty() && self.names.is_empty()
    }
    /// Whether the attributes of an inode may be changing.
    pub(super) fn changes_inode(&self, fid: Fid) -> bool {
        self.blind > 0 || self.inodes.contains_key(&fid)
    }
    /// The number of changes that may change an inode.
    pub(super) fn changes_of_inode(&self, fid: Fid) -> usize {
        self.blind + self.inodes.get(&fid).map_or(0, |count| *count as usize)
    }
    fn changes(&self, parent: Fid, name: &[u8]) -> Option<&NameChanges> {
        self.names.get(&parent)?.iter().find(|changes| changes.name == name)
    }
    fn changes_mut(&mut self, parent: Fid, name: &[u8]) -> Option<&mut NameChanges> {
        self.names.get_mut(&parent)?.iter_mut().find(|changes| changes.name == name)
    }
    /// The number of changes of a name that are under way.
    pub(super) fn changes_of_name(&self, parent: Fid, name: &[u8]) -> u32 {
        self.changes(parent, name).map_or(0, |changes| changes.count)
    }
    /// Whether names in a directory are changing.
    pub(super) fn changes_names_in(&self, dir: Fid) -> bool {
        self.names.contains_key(&dir)
    }

    pub(super) fn begin_inode(&mut self, fid: Fid) {
        *self.inodes.entry(fid).or_default() += 1;
    }
    pub(super) fn end_inode(&mut self, fid: Fid) {
        if let Entry::Occupied(mut count) = self.inodes.entry(fid) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
    /// A change of a name begins. `is_known`: the inode behind it, or that there is none, is known.
    pub(super) fn begin_name(&mut self, parent: Fid, name: &Bytes, is_known: bool) {
        let of_dir = self.names.entry(parent).or_default();
        match of_dir.iter_mut().find(|changes| changes.name == name) {
            Some(changes) => changes.count += 1,
            None => of_dir.push(NameChanges { name: name.clone(), count: 1, is_blind: false }),
        }
        if !is_known {
            self.name_became_unknown(parent, name);
        }
    }
    /// Another client may have put another inode behind the name.
    pub(super) fn name_became_unknown(&mut self, parent: Fid, name: &[u8]) {
        if let Some(changes) = self.changes_mut(parent, name)
            && !core::mem::replace(&mut changes.is_blind, true)
        {
            self.blind += 1;
        }
    }
    /// The same for all names of a directory that are not known.
    pub(super) fn names_became_unknown(&mut self, dir: Fid, is_known: impl Fn(&[u8]) -> bool) {
        let Some(names) = self.names.get_mut(&dir) else { return };
        for changes in names.iter_mut().filter(|changes| !changes.is_blind && !is_known(&changes.name)) {
            changes.is_blind = true;
            self.blind += 1;
        }
    }
    /// Whether changes of a name may change an inode that is not known.
    pub(super) fn is_blind(&self, parent: Fid, name: &[u8]) -> bool {
        self.changes(parent, name).is_some_and(|changes| changes.is_blind)
    }
    pub(super) fn end_name(&mut self, parent: Fid, name: &[u8]) {
        let Entry::Occupied(mut of_dir) = self.names.entry(parent) else { return };
        let Some(at) = of_dir.get().iter().position(|changes| changes.name == name) else { return };
        let Some(changes) = of_dir.get_mut().get_mut(at) else { return };
        changes.count -= 1;
        if changes.count == 0 {
            self.blind -= usize::from(changes.is_blind);
            of_dir.get_mut().swap_remove(at);
            if of_dir.get().is_empty() {
                of_dir.remove();
            }
        }
    }
}
