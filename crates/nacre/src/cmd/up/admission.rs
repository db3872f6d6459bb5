//! The admission of an empty OST in place of a lost one, as the MGS has recorded it (docs/targets.md). The MGS is open, but not
//! served yet, and its store is not changed.

use crate::process::store;
use crate::process::target_dir::Served;
use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use nacre_mgs::{TARGETS, TargetRow};
use nacre_types::{Codec as _, TargetKind, TargetName};
use nacre_wire::mgs::Admit;

/// Rows that are read at once.
const PAGE: u32 = 256;

/// Whether an administrator has admitted an empty target in place of the registered `name`. The MGS is among `opened`.
pub(super) fn is_replacement_admitted(opened: &[Served], name: &TargetName) -> Result<bool> {
    Ok(given_up(opened, name)?.is_some())
}

/// Whether this target is to take the place of another one, which an administrator has given up.
pub(super) fn is_replacement(opened: &[Served], served: &Served) -> Result<bool> {
    let Some(lost) = given_up(opened, &served.name)? else { return Ok(false) };
    Ok(store::label(&served.store)?.uuid != lost.known.uuid)
}

/// The registered OST, if an administrator has admitted an empty one in its place.
fn given_up(opened: &[Served], name: &TargetName) -> Result<Option<TargetRow>> {
    let TargetName::Of { fs, kind: TargetKind::Ost, index } = name else { return Ok(None) };
    let Some(mgs) = opened.iter().find(|served| served.name == TargetName::Mgs) else { return Ok(None) };
    let rows = registered(mgs).with_context(|| format!("cannot read what the MGS knows of {name}"))?;
    let is_it = |row: &TargetRow| (&row.fs, row.kind, row.index) == (fs, TargetKind::Ost, *index);
    Ok(rows.into_iter().find(is_it).filter(|row| row.admitted == Some(Admit::Replacement)))
}

fn registered(mgs: &Served) -> Result<Vec<TargetRow>> {
    let rows = nacre_osd::offline(&*mgs.store, async |osd| osd.pages(TARGETS, PAGE).all().await);
    let rows = rows.and_then(|rows| rows).map_err(|error| anyhow!("{error}"))?;
    let row = |(_, row): (Bytes, Bytes)| TargetRow::from_slice(&row).map_err(|error| anyhow!("{error}"));
    rows.into_iter().map(row).collect()
}
