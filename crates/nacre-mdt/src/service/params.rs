//! The parameters of a metadata target: the arms of the rows in `nacre-wire/src/params/table.rs`.

use crate::mdt::Mdt;
use crate::osts::allocator::OstRoom;
use crate::osts::free_space::Qos;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nacre_target::TargetCore;
use nacre_types::OstIndex;
use nacre_wire::params::{Arm, BoundParam, DomParam, MdtParam, OspParam, OstRoomParam, QosParam, bind};

/// All parameters.
pub(crate) fn list(mdt: &Mdt) -> Vec<BoundParam<'_>> {
    let prefix = mdt.core().param_prefix();
    let mut params = bind(&prefix, "", |param| mdt_param(mdt, param));
    params.extend(bind(&lod_prefix(mdt.core()), "", |param| qos_param(mdt, param)));
    params.extend(bind(&lod_prefix(mdt.core()), "", |param| dom_param(mdt, param)));
    for (index, room) in mdt.osts().rooms() {
        params.extend(bind(&prefix, &format!("{:04x}", index.0), |param| room_param(&room, param)));
        params.extend(bind(&osp_prefix(mdt.core(), index), "", |param| osp_param(mdt, index, &room, param)));
    }
    params
}

/// State and switches of the target itself.
fn mdt_param(mdt: &Mdt, param: MdtParam) -> Arm<'_> {
    match param {
        MdtParam::MdStats => {
            let stats = mdt.core().stats.borrow().render(mdt.core().ctx.wall());
            Arm::counters(stats, || mdt.core().clear_stats())
        }
        MdtParam::OpenFiles => Arm::shown(mdt.opens().borrow().len()),
        MdtParam::CommitOnSharing => {
            let order = mdt.change_order();
            Arm::switch(order.commit_on_sharing(), |on| order.set_commit_on_sharing(on))
        }
        MdtParam::InodeLocks => Arm::shown(mdt.inode_locks().count()),
        MdtParam::InodeLocksMax => {
            Arm::number(mdt.inode_locks().limit(), |max| mdt.inode_locks().set_limit(max))
        }
        MdtParam::InodeLockRevokes => Arm::shown(mdt.inode_locks().revoke_count()),
        MdtParam::InodeLockWaiting => Arm::shown(mdt.inode_locks().waiting_count()),
        MdtParam::FileLocks => Arm::shown(mdt.flocks().borrow().counts().0),
        MdtParam::FileLocksWaiting => Arm::shown(mdt.flocks().borrow().counts().1),
        MdtParam::UnsettledFiles => Arm::shown(mdt.osts().sizes().waiting()),
    }
}

/// The bytes of new files that the target keeps.
fn dom_param(mdt: &Mdt, param: DomParam) -> Arm<'_> {
    match param {
        DomParam::DomStripesize => {
            Arm::number(mdt.default_layout().dom_bytes.unwrap_or(0), |bytes| mdt.set_default_dom_bytes(bytes))
        }
    }
}

/// The choice of OSTs by free space.
fn qos_param(mdt: &Mdt, param: QosParam) -> Arm<'_> {
    let osts = mdt.osts();
    let percent = |value: u8| format!("{value}%");
    match param {
        QosParam::ThresholdRr => Arm::number(percent(osts.qos().threshold_rr), |threshold_rr| {
            osts.set_qos(Qos { threshold_rr, ..osts.qos() });
        }),
        QosParam::PrioFree => Arm::number(percent(osts.qos().prio_free), |prio_free| {
            osts.set_qos(Qos { prio_free, ..osts.qos() });
        }),
    }
}

/// An OST as the allocator sees it.
fn room_param<'a>(room: &OstRoom, param: OstRoomParam) -> Arm<'a> {
    match param {
        OstRoomParam::OstRoom => Arm::shown(format!(
            "up={} avail_kb={} reserved={} full={}",
            u8::from(room.up),
            room.space.bytes_avail / 1024,
            room.objects,
            u8::from(room.full())
        )),
    }
}

/// The use of an OST.
fn osp_param<'a>(mdt: &'a Mdt, index: OstIndex, room: &OstRoom, param: OspParam) -> Arm<'a> {
    let osts = mdt.osts();
    let reserve = room.space.reserve();
    match param {
        OspParam::Active => Arm::switch(osts.is_active(index), move |on| osts.set_active(index, on)),
        OspParam::ReservedMbLow => Arm::number(reserve.low_mb, move |low_mb| {
            osts.set_reserve(index, |reserve| reserve.with_low(low_mb));
        }),
        OspParam::ReservedMbHigh => Arm::number(reserve.high_mb, move |high_mb| {
            osts.set_reserve(index, |reserve| reserve.with_high(high_mb));
        }),
    }
}

/// `osp.demo-OST0001-osc-MDT0000`.
pub(crate) fn osp_prefix(core: &TargetCore, index: OstIndex) -> String {
    let name = core.name.to_string();
    let (fs, mdt) = name.split_once('-').unwrap_or((&name, ""));
    format!("osp.{fs}-OST{:04x}-osc-{mdt}", index.0)
}
/// `lod.demo-MDT0000-mdtlov`.
fn lod_prefix(core: &TargetCore) -> String {
    format!("lod.{}-mdtlov", core.name)
}
