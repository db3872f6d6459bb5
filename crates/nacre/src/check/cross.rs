//! The MDT of a file system against its OSTs: every object belongs to a file or waits to be destroyed, and lies within
//! the size of its file.

use super::Found;
use nacre_mdt::row::{Inode, Row as _, Stripes};
use nacre_mdt::table::{DESTROY, INODE};
use nacre_osd::object_rows::object_of_key;
use nacre_osd::{ObjectRow, Table, table};
use nacre_types::{Codec as _, Component, Fid, FsName, Layout, ObjectId, OstIndex, SizeState, TargetKind};
use std::collections::{BTreeMap, BTreeSet};

const SENTENCES_MAX: usize = 1000;

struct File {
    layout: Layout,
    /// `None`: only the OSTs know it.
    size: Option<u64>,
}

/// What one target says that concerns others. Rows that cannot be read are the business of its own check.
pub(super) struct Rows {
    index: OstIndex,
    files: BTreeMap<Fid, File>,
    destroys: BTreeSet<(OstIndex, ObjectId)>,
    objects: Vec<(ObjectId, u64)>,
}

impl Rows {
    pub(super) fn new(index: u32) -> Self {
        Self {
            index: OstIndex(index),
            files: BTreeMap::new(),
            destroys: BTreeSet::new(),
            objects: Vec::new(),
        }
    }
    pub(super) fn row(&mut self, kind: TargetKind, table: Table, key: &[u8], value: &[u8]) {
        match kind {
            TargetKind::Mdt if table == INODE => {
                let Ok(Inode { attr, layout: Some(layout), .. }) = Inode::from_row(value) else { return };
                let size = (attr.size_state == SizeState::Exact).then_some(attr.size);
                self.files.insert(attr.fid, File { layout, size });
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
                    self.objects.push((object, row.size));
                }
            }
            _ => {}
        }
    }
}

/// Collects targets; compares those of the last file system that has an MDT and OSTs.
#[derive(Default)]
pub(super) struct Cross {
    all: BTreeMap<String, (Option<Rows>, Vec<Rows>)>,
}

impl Cross {
    pub(super) fn add(&mut self, fs: &FsName, kind: TargetKind, rows: Rows) {
        let entry = self.all.entry(fs.to_string()).or_default();
        match kind {
            TargetKind::Mdt => entry.0 = Some(rows),
            TargetKind::Ost => entry.1.push(rows),
            TargetKind::Mgs => {}
        }
    }

    /// `None`: there was nothing to compare.
    pub(super) fn finish(self) -> Option<Found> {
        let mut found = Found { clean: true, ..Found::default() };
        let mut names = Vec::new();
        for (fs, (mdt, osts)) in self.all {
            if let Some(mdt) = mdt.filter(|_| !osts.is_empty()) {
                osts.iter().for_each(|ost| compare(&mdt, ost, &mut found));
                names.push(fs);
            }
        }
        found.target = names.join(", ");
        (!names.is_empty()).then_some(found)
    }
}

fn compare(mdt: &Rows, ost: &Rows, found: &mut Found) {
    let index = ost.index;
    for &(object, size) in &ost.objects {
        *found.counts.entry("objects_compared").or_default() += 1;
        let problem = match mdt.files.get(&object.fid) {
            _ if mdt.destroys.contains(&(index, object)) => None,
            None => Some(format!("object {object} of OST {} belongs to no file", index.0)),
            Some(file) => in_file(file, index, object, size),
        };
        if let Some(text) = problem {
            found.problems += 1;
            if found.sentences.len() < SENTENCES_MAX {
                found.sentences.push(text);
            }
        }
    }
}

/// What is wrong with an object of `file`, if anything.
fn in_file(file: &File, index: OstIndex, object: ObjectId, size: u64) -> Option<String> {
    let here = |c: &&Component| c.stripes.get(object.stripe as usize) == Some(&index);
    let Some(component) = file.layout.components.iter().find(here) else {
        return Some(format!("object {object} is on OST {}, the layout of its file says otherwise", index.0));
    };
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
            components: vec![Component {
                extent: Extent::ALL,
                stripe_bytes: 64 << 10,
                stripes: vec![OstIndex(1), OstIndex(0)],
                laid: vec![],
            }],
        };
        let mut mdt = Rows::new(0);
        mdt.files.insert(fid, File { layout, size: Some(70 << 10) });
        let on_ost = |index, fid, stripe, size| {
            let mut ost = Rows::new(index);
            ost.objects.push((ObjectId { fid, stripe }, size));
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
}
