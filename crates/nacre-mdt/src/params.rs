//! Parameters of a metadata target under the field's names.

use crate::mdt::Mdt;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nacre_target::TargetCore;
use nacre_types::OstIndex;
use nacre_wire::settings::{DIR_HOLDS_MAX, parse_limit, parse_switch};
use nacre_wire::target::Param;

pub(crate) fn list(mdt: &Mdt) -> Vec<Param> {
    let row = |name: &str, value: String, writable: bool, help: &str| Param {
        name: format!("mdt.{}.{name}", mdt.core.name),
        value,
        writable,
        help: help.into(),
    };
    let stats = mdt.core.stats.borrow().render(mdt.core.ctx.wall());
    let mut rows = alloc::vec![
        row(
            "md_stats",
            stats,
            true,
            "operations since the start: count, min, max, sum, sum of squares; writing clears them"
        ),
        row("open_files", mdt.opens.borrow().len().to_string(), false, "handles that clients have open"),
        row(
            "commit_on_sharing",
            u8::from(mdt.commit_on_sharing.get()).to_string(),
            true,
            "1: what another client has changed is durable before a change may build on it. 0 (default): not if that client \
             has its reply, and can make it again"
        ),
        row(
            "dir_holds",
            mdt.dirs.count().to_string(),
            false,
            "directories that clients may answer for out of their memory, counted once for each of them"
        ),
        row(
            "dir_holds_max",
            mdt.dirs.limit().to_string(),
            true,
            "the same of one client at most, 1 to 65535, default 1024; at the limit one ends for another after 30 s"
        ),
        row(
            "dir_hold_revokes",
            mdt.dirs.revokes().to_string(),
            false,
            "holds of directories that clients were told to give up since the start"
        ),
        row("file_locks", mdt.flocks.borrow().counts().0.to_string(), false, "flock and fcntl locks held"),
        row(
            "file_locks_waiting",
            mdt.flocks.borrow().counts().1.to_string(),
            false,
            "flock and fcntl requests that wait"
        ),
        row(
            "unsettled_files",
            (mdt.osts.unsettled.borrow().len() + mdt.osts.later.borrow().len()).to_string(),
            false,
            "files whose size is being asked from the OSTs"
        ),
    ];
    for (index, room) in mdt.osts.rooms() {
        let name = format!("ost_room.{:04x}", index.0);
        let value = format!(
            "up={} avail_kb={} reserved={} full={}",
            u8::from(room.up),
            room.bytes_avail / 1024,
            room.objects,
            u8::from(room.refused)
        );
        rows.push(row(
            &name,
            value,
            false,
            "an OST as the allocator sees it: connected, free space, objects reserved",
        ));
    }
    rows.extend(mdt.osts.active().into_iter().map(|(index, active)| Param {
        name: active_name(&mdt.core, index),
        value: u8::from(active).to_string(),
        writable: true,
        help: "1: new files may go to the OST. 0: they leave it out.".into(),
    }));
    rows
}

/// `osp.demo-OST0001-osc-MDT0000.active`.
pub(crate) fn active_name(core: &TargetCore, index: OstIndex) -> String {
    let name = core.name.to_string();
    let (fs, mdt) = name.split_once('-').unwrap_or((&name, ""));
    format!("osp.{fs}-OST{:04x}-osc-{mdt}.active", index.0)
}

pub(crate) fn set(mdt: &Mdt, name: &str, value: &str) -> Result<(), String> {
    if name == format!("mdt.{}.md_stats", mdt.core.name) {
        mdt.core.clear_stats();
        return Ok(());
    }
    if name == format!("mdt.{}.dir_holds_max", mdt.core.name) {
        mdt.dirs.set_limit(usize::from(parse_limit(name, value, DIR_HOLDS_MAX)?));
        return Ok(());
    }
    if name == format!("mdt.{}.commit_on_sharing", mdt.core.name) {
        mdt.commit_on_sharing.set(parse_switch(name, value)?);
        return Ok(());
    }
    if let Some((index, _)) =
        mdt.osts.active().into_iter().find(|(index, _)| name == active_name(&mdt.core, *index))
    {
        mdt.osts.set_active(index, parse_switch(name, value)?);
        return Ok(());
    }
    Err(format!("{name} cannot be set (value {value})"))
}
