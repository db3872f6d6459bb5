//! Parameters of a metadata target under the field's names.

use crate::mdt::Mdt;
use crate::osts::free_space::Qos;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nacre_target::TargetCore;
use nacre_types::OstIndex;
use nacre_wire::settings::{
    DIR_HOLDS_MAX, parse_clear, parse_limit, parse_megabytes, parse_percent, parse_switch,
};
use nacre_wire::target::Param;

/// All parameters, with their values.
pub(crate) fn list(mdt: &Mdt) -> Vec<Param> {
    let mut params = state_params(mdt);
    params.extend(lock_params(mdt));
    params.extend(ost_params(mdt));
    params.extend(qos_params(mdt));
    params.extend(mdt.osts().active().into_iter().map(|(index, active)| Param {
        name: osp_name(mdt.core(), index, "active"),
        value: u8::from(active).to_string(),
        writable: true,
        help: "1: new files may go to the OST. 0: they leave it out.".into(),
    }));
    params
}

fn row(mdt: &Mdt, name: &str, value: String, writable: bool, help: &str) -> Param {
    Param { name: format!("mdt.{}.{name}", mdt.core().name), value, writable, help: help.into() }
}

/// State and switches of the target itself.
fn state_params(mdt: &Mdt) -> Vec<Param> {
    let row = |name: &str, value, writable, help: &str| row(mdt, name, value, writable, help);
    let stats = mdt.core().stats.borrow().render(mdt.core().ctx.wall());
    alloc::vec![
        row(
            "md_stats",
            stats,
            true,
            "operations since the start: count, min, max, sum, sum of squares; write `clear` to clear"
        ),
        row("open_files", mdt.opens().borrow().len().to_string(), false, "handles that clients have open"),
        row(
            "commit_on_sharing",
            u8::from(mdt.change_order().commit_on_sharing()).to_string(),
            true,
            "1: what another client has changed is durable before a change may build on it. 0 (default): not if that client \
             has its reply, and can make it again"
        ),
        row(
            "dir_holds",
            mdt.dir_holds().count().to_string(),
            false,
            "directories that clients may answer for out of their memory, counted once for each of them"
        ),
        row(
            "dir_holds_max",
            mdt.dir_holds().limit().to_string(),
            true,
            "the same of one client at most, 1 to 65535, default 1024; at the limit one ends for another after 30 s"
        ),
        row(
            "dir_hold_revokes",
            mdt.dir_holds().revokes().to_string(),
            false,
            "holds of directories that clients were told to give up since the start"
        ),
        row("file_locks", mdt.flocks().borrow().counts().0.to_string(), false, "flock and fcntl locks held"),
        row(
            "file_locks_waiting",
            mdt.flocks().borrow().counts().1.to_string(),
            false,
            "flock and fcntl requests that wait"
        ),
        row(
            "unsettled_files",
            mdt.osts().sizes().waiting().to_string(),
            false,
            "files whose size is being asked from the OSTs"
        ),
    ]
}

/// Locks of inodes.
fn lock_params(mdt: &Mdt) -> Vec<Param> {
    let row = |name: &str, value, writable, help: &str| row(mdt, name, value, writable, help);
    alloc::vec![
        row(
            "inode_locks",
            mdt.inode_locks().count().to_string(),
            false,
            "locks of inodes that clients have: they may cache names and attributes"
        ),
        row(
            "inode_locks_max",
            mdt.inode_locks().limit().to_string(),
            true,
            "the same of one client at most, 1 to 65535, default 400000; at the limit one ends for another after 30 s"
        ),
        row(
            "inode_lock_revokes",
            mdt.inode_locks().revoke_count().to_string(),
            false,
            "locks of inodes that clients were told to return since the start"
        ),
        row(
            "inode_lock_waiting",
            mdt.inode_locks().waiting_count().to_string(),
            false,
            "changes that wait until other clients have returned locks of inodes"
        ),
    ]
}

/// The OSTs as the allocator sees them, and their watermarks.
fn ost_params(mdt: &Mdt) -> Vec<Param> {
    let mut rows = Vec::new();
    for (index, room) in mdt.osts().rooms() {
        let name = format!("ost_room.{:04x}", index.0);
        let value = format!(
            "up={} avail_kb={} reserved={} full={}",
            u8::from(room.up),
            room.space.bytes_avail / 1024,
            room.objects,
            u8::from(room.full())
        );
        rows.push(row(
            mdt,
            &name,
            value,
            false,
            "an OST as the allocator sees it: connected, free space, objects reserved, no new files because it is full",
        ));
        let reserve = room.space.reserve();
        let mut osp = |field: &str, megabytes: u64, help: &str| {
            rows.push(Param {
                name: osp_name(mdt.core(), index, field),
                value: megabytes.to_string(),
                writable: true,
                help: help.into(),
            });
        };
        osp(
            "reserved_mb_low",
            reserve.low_mb,
            "MiB: an OST with less gets no new files, 1 to 4294967295, default 0.1 % of its size",
        );
        osp(
            "reserved_mb_high",
            reserve.high_mb,
            "MiB: a full OST with more gets new files again, 1 to 4294967295, default 0.2 % of its size; more than \
             reserved_mb_low, which gives way",
        );
    }
    rows
}

/// Parameters of the choice of OSTs by free space.
fn qos_params(mdt: &Mdt) -> Vec<Param> {
    let mut rows = Vec::new();
    let Qos { threshold_rr, prio_free } = mdt.osts().qos();
    let mut lod = |field: &str, percent: u8, help: &str| {
        let (name, value) = (lod_name(mdt.core(), field), format!("{percent}%"));
        rows.push(Param { name, value, writable: true, help: help.into() });
    };
    lod(
        "qos_threshold_rr",
        threshold_rr,
        "new files go to the OSTs in turn as long as the free space of the fullest is no more than this part below that \
         of the emptiest, else by free space; 0 to 100 (always in turn), default 17",
    );
    lod(
        "qos_prio_free",
        prio_free,
        "where files go by free space: how little it counts that an OST was used just now, 0 to 100 (not at all), default 91",
    );
    rows
}

/// `osp.demo-OST0001-osc-MDT0000.active`.
pub(crate) fn osp_name(core: &TargetCore, index: OstIndex, field: &str) -> String {
    let name = core.name.to_string();
    let (fs, mdt) = name.split_once('-').unwrap_or((&name, ""));
    format!("osp.{fs}-OST{:04x}-osc-{mdt}.{field}", index.0)
}
/// `lod.demo-MDT0000-mdtlov.qos_prio_free`.
fn lod_name(core: &TargetCore, field: &str) -> String {
    format!("lod.{}-mdtlov.{field}", core.name)
}

pub(crate) fn set(mdt: &Mdt, name: &str, value: &str) -> Result<(), String> {
    if name == format!("mdt.{}.md_stats", mdt.core().name) {
        parse_clear(name, value)?;
        mdt.core().clear_stats();
        return Ok(());
    }
    if name == format!("mdt.{}.dir_holds_max", mdt.core().name) {
        mdt.dir_holds().set_limit(usize::from(parse_limit(name, value, DIR_HOLDS_MAX)?));
        return Ok(());
    }
    if name == format!("mdt.{}.inode_locks_max", mdt.core().name) {
        mdt.inode_locks().set_limit(usize::from(parse_limit(name, value, DIR_HOLDS_MAX)?));
        return Ok(());
    }
    if name == format!("mdt.{}.commit_on_sharing", mdt.core().name) {
        mdt.change_order().set_commit_on_sharing(parse_switch(name, value)?);
        return Ok(());
    }
    if name == lod_name(mdt.core(), "qos_threshold_rr") {
        mdt.osts().set_qos(Qos { threshold_rr: parse_percent(name, value)?, ..mdt.osts().qos() });
        return Ok(());
    }
    if name == lod_name(mdt.core(), "qos_prio_free") {
        mdt.osts().set_qos(Qos { prio_free: parse_percent(name, value)?, ..mdt.osts().qos() });
        return Ok(());
    }
    for (index, _) in mdt.osts().active() {
        let is = |field: &str| name == osp_name(mdt.core(), index, field);
        if is("active") {
            mdt.osts().set_active(index, parse_switch(name, value)?);
        } else if is("reserved_mb_low") {
            let low_mb = parse_megabytes(name, value)?;
            mdt.osts().set_reserve(index, |reserve| reserve.with_low(low_mb));
        } else if is("reserved_mb_high") {
            let high_mb = parse_megabytes(name, value)?;
            mdt.osts().set_reserve(index, |reserve| reserve.with_high(high_mb));
        } else {
            continue;
        }
        return Ok(());
    }
    Err(format!("{name} cannot be set (value {value})"))
}
