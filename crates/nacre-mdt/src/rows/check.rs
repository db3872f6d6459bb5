//! Verification of a stopped target's rows, for `nacre check`.
//!
//! Pass every row to [`Check::row`], in any order, then take the [`Report`]. Its sentences name the inode and the
//! problem; the number of sentences is bounded, the count of problems is complete. Not here: log, runs, blocks (the
//! engine checks those).
//!
//! The check covers: every entry has an inode of its type and lies where its name's hash says; names and parent links
//! are the same set; link and entry counts; every directory hangs below the root; orphans are open and nameless;
//! layouts are sane; large attributes and data on the MDT have their rows; FIDs come from granted sequences, which lie in the range of this
//! MDT; no object of a file that exists waits to be destroyed.

use crate::rows::row::{EntryRow, FlocksRow, Inode, KnownOst, OpenRow, Row, Stripes, Unsettled};
use crate::rows::table::{
    self, CHOWN, DATA, DESTROY, ENTRY, FLOCK, INODE, KNOWN, LINK, META, OPEN, ORPHAN, RESERVED, SEQUENCE,
    UNSETTLED, XATTR, meta,
};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::hash::Hasher;
use nacre_osd::Table;
use nacre_types::name::{self, DISCRIMINATORS, HashKey};
use nacre_types::{
    ClientUuid, Fid, FileType, LayoutTemplate, MdtIndex, Name, Owner, STRIPE_BYTES_UNIT, Seq, SizeState,
};

/// Sentences that are kept.
const SENTENCES_MAX: usize = 1000;

/// The findings of a check.
#[derive(Debug, Default)]
pub struct Report {
    /// All inodes, orphans included.
    pub inodes: u64,
    /// Those of them that are directories.
    pub directories: u64,
    /// Names in all directories.
    pub entries: u64,
    /// Records of open files.
    pub opens: u64,
    /// Inodes without a name.
    pub orphans: u64,
    /// Objects that OSTs still have to destroy, by file.
    pub destroys: u64,
    /// Files whose size only the OSTs know now.
    pub open_sizes: u64,
    /// Inodes per owner, to be compared with the engine's accounts.
    pub owners: BTreeMap<Owner, u64>,
    /// All problems found; more than `sentences` has if it is full.
    pub problems: u64,
    /// The first of them.
    pub sentences: Vec<String>,
}

/// The facts of an inode that are compared at the end.
struct Seen {
    file_type: FileType,
    nlink: u32,
    entries: u64,
    /// The directory it lies in.
    parent: Option<Fid>,
    inline_links: u32,
    links_beyond: u32,
    xattrs_beyond: u32,
    size_open: bool,
    /// The bytes that the row of its data must have; `None`: it has no such row.
    data_bytes: Option<u64>,
}

/// Counts of the rows that refer to an inode. Two sets of names are the same if count and sum are.
#[derive(Default)]
struct Found {
    names: u32,
    names_sum: u64,
    links_sum: u64,
    link_rows: u32,
    xattr_rows: u32,
    data_bytes: Option<u64>,
    opens: u32,
    is_orphan: bool,
    is_destroyed: bool,
    /// The types that its entries say.
    types: BTreeSet<FileType>,
    /// As a directory.
    entries: u64,
    subdirs: u32,
}

/// A check under way.
pub struct Check {
    mdt: MdtIndex,
    /// The key of the name hash, once its row was seen.
    hash: Option<HashKey>,
    inodes: BTreeMap<Fid, Seen>,
    found: BTreeMap<Fid, Found>,
    sequences: BTreeSet<u64>,
    next_seq: Option<u64>,
    unsettled: BTreeSet<Fid>,
    /// Entries whose place could not be checked before the hash key was seen: (directory, cookie, base by name).
    places: Vec<(Fid, u64, Vec<u8>)>,
    last_name: Option<(Fid, u64, Vec<u8>)>,
    report: Report,
}

fn sum(parent: Fid, name: &[u8]) -> u64 {
    let mut h = siphasher::sip::SipHasher24::new_with_keys(1, 2);
    h.write(&parent.key());
    h.write(name);
    h.finish()
}

impl Check {
    /// A check of the rows of this MDT.
    pub fn new(mdt: MdtIndex) -> Self {
        Self {
            mdt,
            hash: None,
            inodes: BTreeMap::new(),
            found: BTreeMap::new(),
            sequences: BTreeSet::new(),
            next_seq: None,
            unsettled: BTreeSet::new(),
            places: Vec::new(),
            last_name: None,
            report: Report::default(),
        }
    }

    fn problem(&mut self, sentence: String) {
        self.report.problems += 1;
        if self.report.sentences.len() < SENTENCES_MAX {
            self.report.sentences.push(sentence);
        }
    }
    fn decode<R: Row>(&mut self, what: &str, key: &[u8], value: &[u8]) -> Option<R> {
        match R::from_row(value) {
            Ok(row) => Some(row),
            Err(e) => {
                self.problem(format!("{what} with key {key:02x?} cannot be read: {e}"));
                None
            }
        }
    }
    fn fid(&mut self, what: &str, key: &[u8]) -> Option<Fid> {
        let fid = Fid::from_key(key).filter(|fid| fid.is_valid());
        if fid.is_none() {
            self.problem(format!("{what} has the impossible key {key:02x?}"));
        }
        fid
    }

    /// Takes in one row of any table; those of other crates are left alone.
    pub fn row(&mut self, table: Table, key: &[u8], value: &[u8]) {
        match table {
            INODE => self.inode(key, value),
            ENTRY => self.entry(key, value),
            LINK => {
                let (fid, parent) = (self.fid("a link", key), key.get(12..).and_then(Fid::from_key));
                if let (Some(fid), Some(parent), Some(name)) = (fid, parent, key.get(24..)) {
                    let found = self.found.entry(fid).or_default();
                    found.link_rows += 1;
                    found.links_sum = found.links_sum.wrapping_add(sum(parent, name));
                }
            }
            XATTR => {
                if let Some(fid) = self.fid("an attribute", key) {
                    self.found.entry(fid).or_default().xattr_rows += 1;
                }
            }
            DATA => {
                if let Some(fid) = self.fid("the data of a file", key) {
                    self.found.entry(fid).or_default().data_bytes = Some(value.len() as u64);
                }
            }
            OPEN => {
                self.report.opens += 1;
                if let Some(opened) = self.decode::<OpenRow>("an open", key, value) {
                    self.found.entry(opened.fid).or_default().opens += 1;
                }
            }
            ORPHAN => {
                self.report.orphans += 1;
                if let Some(fid) = self.fid("an orphan", key) {
                    self.found.entry(fid).or_default().is_orphan = true;
                }
            }
            DESTROY => {
                self.report.destroys += 1;
                let row = self.decode::<Stripes>("a destroy", key, value);
                if let (Some(_), Some(fid)) = (row, key.get(4..).and_then(Fid::from_key)) {
                    self.found.entry(fid).or_default().is_destroyed = true;
                }
            }
            CHOWN => drop(self.decode::<Stripes>("an owner change", key, value)),
            FLOCK => drop(self.decode::<FlocksRow>("a file lock", key, value)),
            UNSETTLED => {
                if let (Some(_), Some(fid)) =
                    (self.decode::<Unsettled>("an open size", key, value), self.fid("an open size", key))
                {
                    self.unsettled.insert(fid);
                }
            }
            RESERVED => {
                self.decode::<u64>("a reservation", key, value);
            }
            KNOWN => {
                self.decode::<KnownOst>("what is known of an OST", key, value);
            }
            SEQUENCE => {
                self.decode::<ClientUuid>("a sequence", key, value);
                match key.try_into() {
                    Ok(bytes) => drop(self.sequences.insert(u64::from_be_bytes(bytes))),
                    Err(_) => self.problem(format!("a sequence has the impossible key {key:02x?}")),
                }
            }
            META => self.meta(key, value),
            _ => {}
        }
    }

    fn meta(&mut self, key: &[u8], value: &[u8]) {
        match key {
            meta::NEXT_SEQ => self.next_seq = self.decode("the next sequence", key, value),
            meta::HASH_KEY => {
                let found: Option<(u64, u64)> = self.decode("the hash key", key, value);
                self.hash = self.hash.or(found.map(|(a, b)| HashKey(a, b)));
            }
            meta::TEMPLATE => drop(self.decode::<LayoutTemplate>("the default layout", key, value)),
            _ => self.problem(format!("an unknown setting {key:02x?}")),
        }
    }

    fn inode(&mut self, key: &[u8], value: &[u8]) {
        let Some(inode) = self.decode::<Inode>("an inode", key, value) else { return };
        let fid = inode.attr.fid;
        if fid.key() != key {
            self.problem(format!("inode {fid} lies under the key {key:02x?} of another"));
        }
        let Some(file_type) = FileType::of_mode(inode.attr.mode) else {
            self.problem(format!("{fid}: mode {:o} has no type", inode.attr.mode));
            return;
        };
        self.layout(&inode, file_type);
        *self.report.owners.entry(inode.owner()).or_default() += 1;
        self.report.inodes += 1;
        self.report.directories += u64::from(file_type == FileType::Directory);
        let size_open = inode.attr.size_state == SizeState::Open;
        self.report.open_sizes += u64::from(size_open);
        let found = self.found.entry(fid).or_default();
        for link in &inode.links {
            found.links_sum = found.links_sum.wrapping_add(sum(link.parent, &link.name));
        }
        let seen = Seen {
            file_type,
            nlink: inode.attr.nlink,
            entries: inode.entries,
            parent: inode.links.first().map(|l| l.parent),
            inline_links: inode.links.len() as u32,
            links_beyond: inode.links_beyond,
            xattrs_beyond: inode.xattrs.iter().filter(|x| x.value.is_none()).count() as u32,
            size_open,
            data_bytes: (inode.dom_bytes() > 0 && inode.attr.size > 0).then_some(inode.attr.size),
        };
        self.inodes.insert(fid, seen);
    }

    fn layout(&mut self, inode: &Inode, file_type: FileType) {
        let fid = inode.attr.fid;
        match (&inode.layout, file_type) {
            (Some(layout), FileType::Regular) => {
                let sane = layout.components.iter().all(|c| {
                    !c.stripes.is_empty()
                        && c.stripe_bytes > 0
                        && c.stripe_bytes.is_multiple_of(STRIPE_BYTES_UNIT)
                        && !c.extent.is_empty()
                });
                if layout.components.is_empty() || !sane {
                    self.problem(format!("{fid}: impossible layout {layout:?}"));
                }
            }
            (None, FileType::Regular) => self.problem(format!("{fid}: a file without a layout")),
            (Some(_), _) => self.problem(format!("{fid}: a layout, but not a file")),
            (None, _) => {}
        }
        if file_type == FileType::Symlink && inode.target.len() as u64 != inode.attr.size {
            self.problem(format!("{fid}: symbolic link whose size is not that of its target"));
        }
    }

    fn entry(&mut self, key: &[u8], value: &[u8]) {
        let Some(entry) = self.decode::<EntryRow>("an entry", key, value) else { return };
        let (Some(dir), Some(cookie)) = (self.fid("an entry", key), table::cookie_of(key)) else { return };
        self.report.entries += 1;
        if Name::new(&entry.name).is_err() {
            self.problem(format!("{dir}: impossible name {:02x?}", &entry.name[..]));
        }
        match self.hash {
            Some(hash) => self.place(hash, dir, cookie, &entry.name),
            None => self.places.push((dir, cookie, entry.name.to_vec())),
        }
        let same = self.last_name.as_ref().is_some_and(|(d, c, n)| {
            *d == dir && c / DISCRIMINATORS == cookie / DISCRIMINATORS && *n == entry.name
        });
        if same {
            self.problem(format!("{dir}: the name {:?} twice", text(&entry.name)));
        }
        let in_dir = self.found.entry(dir).or_default();
        in_dir.entries += 1;
        in_dir.subdirs += u32::from(entry.file_type == FileType::Directory);
        let child = self.found.entry(entry.fid).or_default();
        child.names += 1;
        child.names_sum = child.names_sum.wrapping_add(sum(dir, &entry.name));
        child.types.insert(entry.file_type);
        self.last_name = Some((dir, cookie, entry.name.to_vec()));
    }
    fn place(&mut self, hash: HashKey, dir: Fid, cookie: u64, entry: &[u8]) {
        let base = name::cookie_base(hash, entry);
        if !(base..base + DISCRIMINATORS).contains(&cookie) {
            self.problem(format!("{dir}: {:?} lies at {cookie:#x}, its hash is {base:#x}", text(entry)));
        }
    }

    /// Compares nothing: there are rows that cannot be read. The report has the problems of single rows.
    pub fn finish_incomplete(self) -> Report {
        self.report
    }
    /// Compares everything.
    pub fn finish(mut self) -> Report {
        if let Some(hash) = self.hash {
            for (dir, cookie, entry) in core::mem::take(&mut self.places) {
                self.place(hash, dir, cookie, &entry);
            }
        } else if self.report.entries > 0 {
            self.problem(String::from("there are entries and no key of the name hash"));
        }
        if !self.inodes.contains_key(&Fid::ROOT) {
            self.problem(String::from("there is no root directory"));
        }
        let inodes = core::mem::take(&mut self.inodes);
        let found = core::mem::take(&mut self.found);
        for fid in found.keys().filter(|fid| !inodes.contains_key(fid)) {
            let f = &found[fid];
            if f.names > 0
                || f.entries > 0
                || f.opens > 0
                || f.is_orphan
                || f.link_rows > 0
                || f.xattr_rows > 0
                || f.data_bytes.is_some()
            {
                self.problem(format!(
                    "{fid}: no inode, but {} names, {} entries, {} opens, {} links, {} attributes, {} bytes",
                    f.names,
                    f.entries,
                    f.opens,
                    f.link_rows,
                    f.xattr_rows,
                    f.data_bytes.unwrap_or(0)
                ));
            }
        }
        let none = Found::default();
        for (fid, seen) in &inodes {
            self.compare(*fid, seen, found.get(fid).unwrap_or(&none));
        }
        self.connected(&inodes);
        self.sequences_of(&inodes);
        self.report
    }

    fn compare(&mut self, fid: Fid, seen: &Seen, f: &Found) {
        let is_dir = seen.file_type == FileType::Directory;
        for wrong in f.types.iter().filter(|t| **t != seen.file_type) {
            self.problem(format!("{fid}: an entry says {wrong:?}, the inode {:?}", seen.file_type));
        }
        let links = seen.inline_links.saturating_add(seen.links_beyond);
        if seen.links_beyond != f.link_rows {
            self.problem(format!(
                "{fid}: {} links beyond the inode, {} rows",
                seen.links_beyond, f.link_rows
            ));
        }
        if links != f.names || f.links_sum != f.names_sum {
            self.problem(format!("{fid}: {} parent links, {} names, or not the same ones", links, f.names));
        }
        let wanted = match (is_dir, f.names) {
            (true, 0) if fid != Fid::ROOT => 0,
            (true, _) => 2 + f.subdirs,
            (false, names) => names,
        };
        if seen.nlink != wanted {
            self.problem(format!("{fid}: link count {}, it should be {wanted}", seen.nlink));
        }
        if is_dir && f.names > 1 {
            self.problem(format!("{fid}: a directory with {} names", f.names));
        }
        if seen.entries != f.entries {
            self.problem(format!("{fid}: entry count {}, there are {}", seen.entries, f.entries));
        }
        if f.entries > 0 && !is_dir {
            self.problem(format!("{fid}: entries in something that is not a directory"));
        }
        if seen.xattrs_beyond != f.xattr_rows {
            self.problem(format!("{fid}: {} large attributes, {} rows", seen.xattrs_beyond, f.xattr_rows));
        }
        if seen.data_bytes != f.data_bytes {
            self.problem(format!(
                "{fid}: {} bytes at the MDT, there are {}",
                seen.data_bytes.unwrap_or(0),
                f.data_bytes.unwrap_or(0)
            ));
        }
        let nameless = f.names == 0 && fid != Fid::ROOT;
        if nameless != f.is_orphan {
            self.problem(format!("{fid}: {} names, orphan row: {}", f.names, f.is_orphan));
        }
        if nameless && f.opens == 0 {
            self.problem(format!("{fid}: it has no name and no client has it open"));
        }
        if f.is_destroyed {
            self.problem(format!("{fid}: its objects are to be destroyed, but it is there"));
        }
        if seen.size_open && f.opens == 0 && !self.unsettled.contains(&fid) {
            self.problem(format!(
                "{fid}: its size is unsettled, no client has it open and the OSTs will not be asked"
            ));
        }
    }

    /// Every directory leads to the root.
    fn connected(&mut self, inodes: &BTreeMap<Fid, Seen>) {
        let mut good: BTreeSet<Fid> = BTreeSet::from([Fid::ROOT]);
        let dirs = inodes.iter().filter(|(_, s)| s.file_type == FileType::Directory && s.parent.is_some());
        for (fid, _) in dirs {
            let mut path = BTreeSet::new();
            let mut at = Some(*fid);
            while let Some(next) = at.filter(|next| !good.contains(next) && path.insert(*next)) {
                at = inodes.get(&next).and_then(|s| s.parent);
            }
            if at.is_some_and(|end| good.contains(&end)) {
                good.append(&mut path);
            } else {
                self.problem(format!("{fid}: the way up from this directory does not lead to the root"));
            }
        }
    }

    fn sequences_of(&mut self, inodes: &BTreeMap<Fid, Seen>) {
        let mdt = self.mdt;
        let foreign: Vec<u64> =
            self.sequences.iter().copied().filter(|seq| !Seq(*seq).is_grantable_by(mdt)).collect();
        for seq in foreign {
            self.problem(format!(
                "sequence {seq:#x} was granted and is not in the range of MDT {:04x}",
                mdt.0
            ));
        }
        let used: BTreeSet<Seq> = inodes.keys().filter(|fid| **fid != Fid::ROOT).map(|fid| fid.seq).collect();
        for seq in used {
            if !self.sequences.contains(&seq.0) {
                self.problem(format!("sequence {:#x} has inodes and was never granted", seq.0));
            }
        }
        let last = self.sequences.last().copied();
        if last.is_some_and(|last| self.next_seq.is_none_or(|next| next <= last)) {
            self.problem(format!("the next sequence {:?} was granted already", self.next_seq));
        }
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Rows read at a time.
const SLICE: u32 = 1024;

/// Checks every row of an open engine.
///
/// # Errors
/// Those of the engine: rows that cannot be read at all.
pub async fn check(
    ctx: &nacre_node::Ctx,
    mdt: MdtIndex,
    osd: &nacre_osd::Osd,
) -> Result<Report, nacre_osd::OsdError> {
    let mut check = Check::new(mdt);
    for table in table::ALL {
        let mut pages = osd.pages(table, SLICE);
        while let Some(rows) = pages.next().await? {
            rows.iter().for_each(|(key, value)| check.row(table, key, value));
            ctx.yield_now().await;
        }
    }
    Ok(check.finish())
}
