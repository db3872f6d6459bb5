//! How full an OST is, and how likely it gets the next object: the rules of the field for its parameters.
//!
//! Invariants: a value without I/O. An OST whose free space falls below `reserved_mb_low` gets no new files until it is
//! above `reserved_mb_high` again; the same holds for free files, of [`FILES_LOW`] and [`FILES_HIGH`]. While OSTs have about the same free space they take turns; otherwise the choice is
//! random, by weight. Weights are free bytes times free objects, less a penalty for recent use.

use nacre_wire::params::QosParam;
use nacre_wire::target::StatfsReply;

const MIB: u64 = 1 << 20;

/// Watermarks of the free files of an OST. (The OST reports none as free that it has promised.)
const FILES_LOW: u64 = 32;
const FILES_HIGH: u64 = 2 * FILES_LOW + 1;

/// `qos_threshold_rr` and `qos_prio_free`, in percent: a plain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Qos {
    /// OSTs take turns while the fullest has at least this much less than the emptiest. 100: always.
    pub(crate) threshold_rr: u8,
    /// How much free space counts against spreading files: at 100 recent use is no penalty.
    pub(crate) prio_free: u8,
}
impl Default for Qos {
    fn default() -> Self {
        let percent = |param: QosParam| param.row().default_u16() as u8; // at most 100
        Self { threshold_rr: percent(QosParam::ThresholdRr), prio_free: percent(QosParam::PrioFree) }
    }
}

/// `reserved_mb_low` and `reserved_mb_high` of one OST; `low < high`. A plain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reserve {
    pub(crate) low_mb: u64,
    pub(crate) high_mb: u64,
}
impl Reserve {
    /// A thousandth of the store, at least 1 MiB, and a little more than twice that.
    pub(crate) fn of_size(bytes_total: u64) -> Self {
        let low_mb = StatfsReply::reserve_bytes(bytes_total) / MIB;
        Self { low_mb, high_mb: 2 * low_mb + 1 }
    }
    /// Raises the upper watermark if it is not above this one.
    pub(crate) fn with_low(self, low_mb: u64) -> Self {
        Self { low_mb, high_mb: self.high_mb.max(low_mb.saturating_add(1)) }
    }
    /// Lowers the lower watermark if it is not below this one.
    pub(crate) fn with_high(self, high_mb: u64) -> Self {
        Self { low_mb: self.low_mb.min(high_mb.saturating_sub(1)), high_mb }
    }
}

/// The space of an OST, by its last report: a plain value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FreeSpace {
    pub(crate) bytes_total: u64,
    pub(crate) bytes_avail: u64,
    pub(crate) files_free: u64,
    device: u64,
    /// Watermarks of the administrator; `None`: by the size.
    low_mb: Option<u64>,
    high_mb: Option<u64>,
    /// Below the reserve, or not yet above it again.
    low: bool,
    penalty: u128,
}

impl FreeSpace {
    /// Takes new figures of the OST. Returns whether it has become full, or is full no longer.
    pub(crate) fn update(&mut self, space: &StatfsReply) -> bool {
        self.bytes_total = space.bytes_total;
        self.bytes_avail = space.bytes_avail;
        self.files_free = space.files_free;
        self.device = space.device;
        self.penalty /= 2;
        self.judge()
    }
    /// Of an OST that has sent no figures yet, with the watermarks that the administrator has set.
    pub(crate) fn reserving(low_mb: Option<u64>, high_mb: Option<u64>) -> Self {
        Self { low_mb, high_mb, ..Self::default() }
    }
    /// Sets other watermarks. Returns the same as [`FreeSpace::update`].
    pub(crate) fn set_reserve(&mut self, reserve: Reserve) -> bool {
        (self.low_mb, self.high_mb) = (Some(reserve.low_mb), Some(reserve.high_mb));
        self.judge()
    }
    fn judge(&mut self) -> bool {
        let Reserve { low_mb, high_mb } = self.reserve();
        let avail_mb = self.bytes_avail / MIB;
        let low = match self.low {
            true => avail_mb <= high_mb || self.files_free <= FILES_HIGH,
            false => avail_mb < low_mb || self.files_free < FILES_LOW,
        };
        core::mem::replace(&mut self.low, low) != low
    }
    pub(crate) fn reserve(&self) -> Reserve {
        let reserve = Reserve::of_size(self.bytes_total);
        let reserve = self.low_mb.map_or(reserve, |low_mb| reserve.with_low(low_mb));
        self.high_mb.map_or(reserve, |high_mb| reserve.with_high(high_mb))
    }
    /// OSTs with the same number share their device; 0: it is not shared.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }
    /// No new files.
    pub(crate) fn is_low(&self) -> bool {
        self.low
    }

    fn units(&self) -> u128 {
        u128::from(self.bytes_avail >> 16) * u128::from((self.files_free >> 8).max(1))
    }
    fn weight(&self) -> u128 {
        self.units().saturating_sub(self.penalty)
    }
}

/// Whether the OSTs are so equally free that they take turns.
pub(crate) fn about_equal<'a>(qos: Qos, osts: impl Iterator<Item = &'a FreeSpace>) -> bool {
    let (mut most, mut least) = ([0; 2], [u64::MAX; 2]);
    for ost in osts {
        let free = [ost.bytes_avail, ost.files_free];
        for ((most, least), free) in most.iter_mut().zip(&mut least).zip(free) {
            (*most, *least) = ((*most).max(free), (*least).min(free));
        }
    }
    let percent = 100 - u128::from(qos.threshold_rr.min(100));
    most.iter().zip(&least).all(|(most, least)| u128::from(*most) * percent <= u128::from(*least) * 100)
}

/// The place in `osts` that `random` falls on, by weight. `None` only if there are none.
pub(crate) fn pick(osts: &[&FreeSpace], random: u128) -> Option<usize> {
    let total: u128 = osts.iter().map(|ost| ost.weight()).sum();
    if total == 0 {
        return usize::try_from(random % (osts.len() as u128).max(1)).ok().filter(|at| *at < osts.len());
    }
    let mut left = random % total;
    osts.iter().position(|ost| match left.checked_sub(ost.weight()) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    })
}

/// Files of OST `used` were just placed on it: it is less likely for a while, the others are again more likely.
pub(crate) fn note_use<'a>(qos: Qos, osts: impl Iterator<Item = (bool, &'a mut FreeSpace)>, count: usize) {
    let spread = 256 - 256 * u128::from(qos.prio_free.min(100)) / 100;
    let count = (count as u128).max(1);
    for (used, ost) in osts {
        let per_object = ost.units() * spread / 256 / count / 2;
        if used {
            ost.penalty = ost.penalty / 2 + per_object * count;
        } else {
            ost.penalty = ost.penalty.saturating_sub(per_object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn space(total_mb: u64, avail_mb: u64) -> FreeSpace {
        let mut space = FreeSpace::default();
        space.update(&reply(total_mb, avail_mb));
        space
    }
    fn reply(total_mb: u64, avail_mb: u64) -> StatfsReply {
        let files_free = avail_mb * 256;
        StatfsReply {
            bytes_total: total_mb * MIB,
            bytes_avail: avail_mb * MIB,
            files_free,
            ..StatfsReply::default()
        }
    }

    #[test]
    fn an_ost_is_full_below_the_reserve_and_has_room_again_above_the_second_mark() {
        let mut ost = space(100_000, 200);
        assert_eq!(ost.reserve(), Reserve { low_mb: 100, high_mb: 201 });
        let mut went = Vec::new();
        for avail in [100, 99, 0, 100, 201, 202, 150, 99] {
            let changed = ost.update(&reply(100_000, avail));
            went.push((avail, changed, ost.is_low()));
        }
        let expected = [
            (100, false, false),
            (99, true, true),
            (0, false, true),
            (100, false, true),
            (201, false, true),
            (202, true, false),
            (150, false, false),
            (99, true, true),
        ];
        assert_eq!(went, expected);
        assert!(ost.set_reserve(Reserve { low_mb: 10, high_mb: 20 }) && !ost.is_low(), "set by hand");
        assert_eq!(space(100, 50).reserve(), Reserve { low_mb: 1, high_mb: 3 }, "of a small store");
        let r = Reserve { low_mb: 5, high_mb: 9 };
        assert_eq!(
            (r.with_low(9), r.with_high(5)),
            (Reserve { low_mb: 9, high_mb: 10 }, Reserve { low_mb: 4, high_mb: 5 })
        );
    }

    #[test]
    fn osts_take_turns_up_to_the_threshold() {
        let equal = |threshold_rr, a, b| {
            about_equal(Qos { threshold_rr, prio_free: 91 }, [space(1000, a), space(1000, b)].iter())
        };
        assert!(equal(17, 100, 83) && !equal(17, 100, 82));
        assert!(equal(100, 100, 1) && !equal(0, 100, 99) && equal(0, 100, 100));
    }

    #[test]
    fn the_choice_follows_the_weights_and_recent_use() {
        let (a, b) = (space(1000, 900), space(1000, 100));
        let share = |osts: [&FreeSpace; 2]| {
            let total: u128 = osts.iter().map(|o| o.weight()).sum();
            (0..1000).filter(|n| pick(&osts, total * n / 1000) == Some(0)).count()
        };
        assert!((980..1000).contains(&share([&a, &b])), "{}", share([&a, &b]));
        assert_eq!(pick(&[], 7), None);
        assert_eq!(pick(&[&space(1000, 0), &space(1000, 0)], 7), Some(1), "nothing to weigh");
        let (mut used, mut other) = (space(1000, 500), space(1000, 500));
        let spread = Qos { threshold_rr: 17, prio_free: 0 };
        note_use(spread, [(true, &mut used), (false, &mut other)].into_iter(), 2);
        assert!(share([&used, &other]) < 400, "{}", share([&used, &other]));
        let free_only = Qos { prio_free: 100, ..spread };
        let mut used = space(1000, 500);
        note_use(free_only, [(true, &mut used), (false, &mut other)].into_iter(), 2);
        assert_eq!(share([&used, &other]), 500);
    }
}
