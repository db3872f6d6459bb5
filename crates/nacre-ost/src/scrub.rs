//! The scrub of an OST as its parameter shows it: lines `key: value`, then a line for each damaged place.
//!
//! The pass itself is that of the object layer (`nacre_osd`, `maintenance/scrub.rs`). Each line of damage begins with the
//! FID of the file, in the form that `lfs fid2path` takes; `nacre scrub` reads these lines.

use crate::store::Store;
use alloc::format;
use alloc::string::String;
use nacre_osd::{Damage, DamageKind, ScrubState};

/// Starts or stops it, as the words of the parameter say.
pub(crate) fn request(store: &Store, word: &str) {
    match word {
        "start" => store.objects().start_scrub(),
        _ => store.objects().stop_scrub(),
    }
}

/// The value of the parameter.
pub(crate) fn render(store: &Store) -> String {
    let status = store.objects().scrub_status();
    let usage = store.objects().osd().usage_total();
    let mut text = format!("state: {}\n", state(status.state));
    if status.state == ScrubState::Never {
        return text;
    }
    text.push_str(&format!("started: {}\n", status.started.sec));
    if status.state != ScrubState::Running {
        text.push_str(&format!("ended: {}\n", status.ended.sec));
    }
    // Objects that were removed behind a pass count for it and not for the total.
    text.push_str(&format!(
        "objects: {} of {}\nbytes: {} of {}\nverified_bytes: {}\nunverified_regions: {}\ndamaged_places: {}\n\
         damaged_bytes: {}\n",
        status.objects,
        usage.objects.max(status.objects),
        status.bytes,
        usage.bytes.max(status.bytes),
        status.verified_bytes,
        status.unverified_regions,
        status.damaged_places,
        status.damaged_bytes,
    ));
    for Damage { object, from, to, kind } in &status.damage {
        let kind = word(*kind);
        text.push_str(&format!("damage: {} stripe {} bytes {from} {to} {kind}\n", object.fid, object.stripe));
    }
    text
}

fn state(state: ScrubState) -> &'static str {
    match state {
        ScrubState::Never => "none",
        ScrubState::Running => "running",
        ScrubState::Stopped => "stopped",
        ScrubState::Finished => "finished",
        ScrubState::Failed => "failed",
    }
}

fn word(kind: DamageKind) -> &'static str {
    match kind {
        DamageKind::Checksum => "checksum",
        DamageKind::Lost => "lost",
        DamageKind::Unreadable => "unreadable",
        DamageKind::Quarantined => "quarantined",
        DamageKind::Rows => "rows",
    }
}
