//! The targets of a file system against each other: every object belongs to a file or waits to be destroyed, and lies
//! within the size of its file; every file has its objects; every target is the one that the MGS knows, with all that
//! was durable. The list of targets comes from the MGS, or else from the layouts; targets that were not given are
//! named.

use super::Found;
use crate::output;
use bytes::Bytes;
use nacre_mdt::row::{Inode, Row as _, Stripes};
use nacre_mdt::table::{DESTROY, INODE};
use nacre_mgs::{TARGETS, TargetRow};
use nacre_osd::object_rows::object_of_key;
use nacre_osd::{ObjectRow, Table, table};
use nacre_types::{
    Codec as _, Component, Fid, FsName, Identity, Layout, ObjectId, OstIndex, SizeState, TargetKind,
    TargetName,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

const SENTENCES_MAX: usize = 1000;
/// Deepest path that is followed; a loop would be damage.
const DEPTH_MAX: usize = 4096;

struct File {
    layout: Layout,
    /// `None`: only the OSTs know it.
    size: Option<u64>,
    /// The bytes of its objects when its size was settled.
    bytes: u64,
    may_have_objects: bool,
}

/// Rows of one target that refer to others. Rows that cannot be read are reported by the target's own check.
pub(super) struct Rows {
    index: OstIndex,
    files: BTreeMap<Fid, File>,
    /// One parent and name of each inode: the way up to the root.
    names: BTreeMap<Fid, (Fid, Bytes)>,
    /// Of an MGS.
    registered: Vec<TargetRow>,
    identity: Option<Identity>,
    destroys: BTreeSet<(OstIndex, ObjectId)>,
    objects: BTreeMap<ObjectId, Object>,
}

/// The row of an object on its OST.
struct Object {
    size: u64,
    bytes: u64,
}

impl Rows {
    pub(super) fn new(index: u32) -> Self {
        Self {
            index: OstIndex(index),
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            registered: Vec::new(),
            identity: None,
            destroys: BTreeSet::new(),
            objects: BTreeMap::new(),
        }
    }
    pub(super) fn row(&mut self, kind: TargetKind, table: Table, key: &[u8], value: &[u8]) {
        match kind {
            TargetKind::Mdt if table == INODE => {
                let Ok(Inode { attr, layout, may_have_objects, links, .. }) = Inode::from_row(value) else {
                    return;
                };
                if let Some(link) = links.into_iter().next() {
                    self.names.insert(attr.fid, (link.parent, link.name));
                }
                if let Some(layout) = layout {
                    let size = (attr.size_state == SizeState::Exact).then_some(attr.size);
                    let bytes = attr.blocks.saturating_mul(512);
                    self.files.insert(attr.fid, File { layout, size, bytes, may_have_objects });
                }
            }
            TargetKind::Mdt if table == DESTROY => {
                let ost = key.get(..4).and_then(|k| k.try_into().ok()).map(u32::from_be_bytes);
                let fid = key.get(4..).and_then(Fid::from_key);
                if let (Some(ost), Some(fid), Ok(row)) = (ost, fid, Stripes::from_row(value)) {
                    let all = row.stripes.iter().map(|&stripe| (OstIndex(ost), ObjectId { fid, stripe }));
                    self.destroys.extend(all);
                }
            }
            TargetKind::Ost if table == table::OBJECT => {
                if let (Some(object), Ok(row)) = (object_of_key(key), ObjectRow::from_slice(value)) {
                    let bytes = row.blocks.saturating_mul(512);
                    self.objects.insert(object, Object { size: row.size, bytes });
                }
            }
            TargetKind::Mgs if table == TARGETS => self.registered.extend(TargetRow::from_slice(value)),
            _ => {}
        }
    }
    pub(super) fn is(&mut self, identity: Identity) {
        self.identity = Some(identity);
    }

    /// The path of an inode from the root, as far as the rows lead.
    fn path(&self, fid: Fid) -> String {
        let (mut at, mut parts) = (fid, Vec::new());
        while at != Fid::ROOT {
            let Some((parent, name)) = self.names.get(&at).filter(|_| parts.len() < DEPTH_MAX) else {
                parts.push(format!("[{at}]"));
                break;
            };
            parts.push(output::name(OsStr::from_bytes(name)));
            at = *parent;
        }
        parts.reverse();
        format!("/{}", parts.join("/"))
    }
}

/// The targets of a file system that were given.
#[derive(Default)]
struct Given {
    mdt: Option<Rows>,
    osts: BTreeMap<OstIndex, Rows>,
}

/// Collects targets; compares those of one file system, and with the MGS.
#[derive(Default)]
pub(super) struct Cross {
    all: BTreeMap<String, Given>,
    registered: Vec<TargetRow>,
}

/// The problems that the comparison has found, and the targets that were not given: a plain record.
pub(super) struct Compared {
    /// `None`: there was nothing to compare.
    pub(super) found: Option<Found>,
    pub(super) not_given: BTreeSet<String>,
}

impl Cross {
    pub(super) fn add(&mut self, name: &TargetName, rows: Rows) {
        let TargetName::Of { fs, kind, .. } = name else {
            self.registered.extend(rows.registered);
            return;
        };
        let given = self.all.entry(fs.to_string()).or_default();
        match kind {
            TargetKind::Mdt => given.mdt = Some(rows),
            TargetKind::Ost => drop(given.osts.insert(rows.index, rows)),
            TargetKind::Mgs => {}
        }
    }

    pub(super) fn finish(self) -> Compared {
        let mut found = Found { clean: true, ..Found::default() };
        let (mut names, mut not_given) = (Vec::new(), BTreeSet::new());
        for (fs, given) in &self.all {
            let Some(name) = FsName::parse(fs) else { continue };
            let registered: Vec<&TargetRow> = self.registered.iter().filter(|row| row.fs == name).collect();
            for row in &registered {
                let target = TargetName::Of { fs: name.clone(), kind: row.kind, index: row.index };
                match given.identity(row.kind, row.index) {
                    None => drop(not_given.insert(target.to_string())),
                    Some(identity) => {
                        *found.counts.entry("identities_compared").or_default() += 1;
                        if let Err(mismatch) = identity.check(&row.known) {
                            found.problem(format!("{target} {mismatch}"));
                        }
                    }
                }
            }
            let Some(mdt) = &given.mdt else {
                if !registered.is_empty() {
                    names.push(fs.clone());
                }
                continue;
            };
            let ost =
                |index: OstIndex| TargetName::Of { fs: name.clone(), kind: TargetKind::Ost, index: index.0 };
            let used = mdt.files.values().flat_map(|f| &f.layout.components).flat_map(|c| &c.stripes);
            let absent = used.collect::<BTreeSet<_>>().into_iter().filter(|i| !given.osts.contains_key(i));
            not_given.extend(absent.map(|index| ost(*index).to_string()));
            given.osts.values().for_each(|ost| compare(mdt, ost, &mut found));
            let replaced = |index: OstIndex| {
                let of = |row: &&&TargetRow| row.kind == TargetKind::Ost && row.index == index.0;
                registered.iter().find(of).map_or(0, |row| row.replaced)
            };
            for (fid, file) in &mdt.files {
                for (stripe, index, bytes) in missing(*fid, file, &given.osts, replaced) {
                    *found.counts.entry("objects_missing").or_default() += 1;
                    let (path, object) = (mdt.path(*fid), ObjectId { fid: *fid, stripe });
                    found.problem(format!(
                        "{path}: object {object} is not on {}, up to {bytes} bytes of the file are lost",
                        ost(index)
                    ));
                }
            }
            if !given.osts.is_empty() || !registered.is_empty() {
                names.push(fs.clone());
            }
        }
        found.target = names.join(", ");
        Compared { found: (!names.is_empty()).then_some(found), not_given }
    }
}

impl Given {
    fn identity(&self, kind: TargetKind, index: u32) -> Option<&Identity> {
        match kind {
            TargetKind::Mdt => self.mdt.as_ref().filter(|_| index == 0)?.identity.as_ref(),
            TargetKind::Ost => self.osts.get(&OstIndex(index))?.identity.as_ref(),
            TargetKind::Mgs => None,
        }
    }
}

impl Found {
    fn problem(&mut self, text: String) {
        self.problems += 1;
        if self.sentences.len() < SENTENCES_MAX {
            self.sentences.push(text);
        }
    }
}

/// Stripes of a file whose objects are missing: stripe, OST, bytes at most. An object that was never written is a hole.
/// So an absent object counts as missing only if its OST was replaced since the layout was chosen, or if the existing
/// objects hold fewer bytes than the file had when its size was settled.
fn missing(
    fid: Fid,
    file: &File,
    osts: &BTreeMap<OstIndex, Rows>,
    replaced: impl Fn(OstIndex) -> u32,
) -> Vec<(u32, OstIndex, u64)> {
    let [component] = file.layout.components.as_slice() else { return Vec::new() };
    if !file.may_have_objects || file.layout.dom_bytes > 0 {
        return Vec::new();
    }
    let (mut present, mut all_given, mut absent) = (0u64, true, Vec::new());
    for (stripe, index) in (0u32..).zip(&component.stripes) {
        match osts.get(index) {
            None => all_given = false,
            Some(ost) => match ost.objects.get(&ObjectId { fid, stripe }) {
                Some(object) => present = present.saturating_add(object.bytes),
                None => absent.push((stripe, *index)),
            },
        }
    }
    let lacks = all_given && file.size.is_some() && present < file.bytes;
    let most = |stripe| match file.size {
        Some(size) => component.object_size(stripe, size),
        None => file.bytes,
    };
    let gone = |(stripe, index): &(u32, OstIndex)| lacks || component.laid(*stripe) < replaced(*index);
    let lost = absent.into_iter().filter(gone).map(|(stripe, index)| (stripe, index, most(stripe)));
    lost.filter(|(_, _, bytes)| *bytes > 0 || file.size.is_none()).collect()
}

fn compare(mdt: &Rows, ost: &Rows, found: &mut Found) {
    let index = ost.index;
    for (&object, &Object { size, .. }) in &ost.objects {
        *found.counts.entry("objects_compared").or_default() += 1;
        let problem = match mdt.files.get(&object.fid) {
            _ if mdt.destroys.contains(&(index, object)) => None,
            None => Some(format!("object {object} of OST {} belongs to no file", index.0)),
            Some(file) => in_file(file, index, object, size),
        };
        if let Some(text) = problem {
            found.problem(text);
        }
    }
}

/// The problem of an object of `file`, if it has one.
fn in_file(file: &File, index: OstIndex, object: ObjectId, size: u64) -> Option<String> {
    let here = |c: &&Component| c.stripes.get(object.stripe as usize) == Some(&index);
    let Some(component) = file.layout.components.iter().find(here) else {
        return Some(format!("object {object} is on OST {}, the layout of its file says otherwise", index.0));
    };
    if file.layout.dom_bytes > 0 {
        // A move of its bytes may have been cut off.
        let text = || format!("object {object} of OST {}: the MDT has all bytes of its file", index.0);
        return (!file.may_have_objects).then(text);
    }
    // Of several components only the last one is bounded by the file's size.
    let most = component.object_size(object.stripe, file.size?);
    (size > most && file.layout.components.len() == 1).then(|| {
        format!(
            "object {object} of OST {} has {size} bytes, its file of {} bytes has at most {most} there",
            index.0,
            file.size.unwrap_or(0)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Extent, Oid, Seq};

    #[test]
    fn objects_without_a_file_in_the_wrong_place_or_too_long_are_found() {
        let fid = Fid::new(Seq(0x100), Oid(2));
        let layout = Layout {
            generation: 0,
            dom_bytes: 0,
            components: vec![Component {
                extent: Extent::ALL,
                stripe_bytes: 64 << 10,
                stripes: vec![OstIndex(1), OstIndex(0)],
                laid: vec![],
            }],
        };
        let mut mdt = Rows::new(0);
        let file = File { layout, size: Some(70 << 10), bytes: 72 << 10, may_have_objects: true };
        mdt.files.insert(fid, file);
        mdt.names.insert(fid, (Fid::ROOT, Bytes::from_static(b"f")));
        assert_eq!((mdt.path(fid).as_str(), mdt.path(Fid::ROOT).as_str()), ("/f", "/"));
        let on_ost = |index, fid, stripe, size| {
            let mut ost = Rows::new(index);
            ost.objects.insert(ObjectId { fid, stripe }, Object { size, bytes: size });
            let mut found = Found::default();
            compare(&mdt, &ost, &mut found);
            found.sentences.pop().unwrap_or_default()
        };
        assert_eq!(on_ost(1, fid, 0, 64 << 10), "");
        assert_eq!(on_ost(0, fid, 1, 6 << 10), "");
        assert!(on_ost(0, fid, 1, (6 << 10) + 1).contains("at most 6144"));
        assert!(on_ost(0, fid, 0, 1).contains("the layout of its file says otherwise"));
        assert!(on_ost(0, Fid::new(Seq(0x100), Oid(3)), 0, 1).contains("belongs to no file"));
    }

    #[test]
    fn missing_objects_are_told_from_holes() {
        let fid = Fid::new(Seq(0x100), Oid(2));
        let component = Component {
            extent: Extent::ALL,
            stripe_bytes: 64 << 10,
            stripes: vec![OstIndex(0), OstIndex(1)],
            laid: vec![],
        };
        let layout = Layout { generation: 0, dom_bytes: 0, components: vec![component] };
        let file =
            |bytes| File { layout: layout.clone(), size: Some(128 << 10), bytes, may_have_objects: true };
        let mut osts = BTreeMap::from([0, 1].map(|index| (OstIndex(index), Rows::new(index))));
        let object = Object { size: 64 << 10, bytes: 64 << 10 };
        let first = ObjectId { fid, stripe: 0 };
        osts.get_mut(&OstIndex(0)).expect("it is there").objects.insert(first, object);
        let hole = missing(fid, &file(64 << 10), &osts, |_| 0);
        assert!(hole.is_empty(), "{hole:?}");
        let lost = vec![(1, OstIndex(1), 64 << 10)];
        assert_eq!(missing(fid, &file(128 << 10), &osts, |_| 0), lost);
        assert_eq!(missing(fid, &file(64 << 10), &osts, |_| 1), lost, "it was laid out on a former OST");
        osts.remove(&OstIndex(1));
        assert!(missing(fid, &file(128 << 10), &osts, |_| 0).is_empty(), "it was not given");
    }
}
