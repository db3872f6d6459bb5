//! The choice of OSTs for a new file, among those that are connected and have room: in turn, or by their free space
//! (`free_space.rs`).
//!
//! A file whose bytes the MDT has needs its object only if it grows. It takes no turn: it names the OST to which the fewest
//! of these files have moved so far, and counts there when it moves. So small files between large ones leave those evenly
//! spread.
//!
//! Invariants: a value without I/O; an OST that is stopped, full or out of reservation is never chosen; a choice
//! takes one object of the reservation of each OST it names. The figures come from `osts/mod.rs`.

use crate::osts::free_space::{self, FreeSpace, Qos};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use nacre_types::{
    Component, DEFAULT_STRIPE_BYTES, DOM_BYTES_MAX, Errno, Extent, Layout, LayoutTemplate, OstIndex,
    STRIPE_BYTES_UNIT, STRIPES_MAX,
};

/// The state of an OST, as far as the choice depends on it: a plain record, in the allocator that owns it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OstRoom {
    /// It is connected.
    pub(crate) up: bool,
    /// It has reported its space since the start.
    pub(crate) asked: bool,
    pub(crate) space: FreeSpace,
    /// Objects that it has room for, granted to us and not used.
    pub(crate) objects: u64,
    /// It has no room for more objects.
    pub(crate) refused: bool,
}
impl OstRoom {
    pub(crate) fn full(&self) -> bool {
        self.up && self.asked && (self.space.is_low() || self.objects == 0 && self.refused)
    }
    pub(crate) fn usable(&self) -> bool {
        self.up && self.asked && self.objects > 0 && !self.space.is_low()
    }
}

/// Why no layout could be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoLayout {
    #[error("no OST is known: is one formatted, served and registered with the MGS?")]
    NoOsts,
    #[error("no OST can take a new file: {stopped} of {known} OSTs are stopped, and the others are full")]
    NoneUsable { known: u32, stopped: u32 },
    #[error("OST {0} does not exist")]
    Unknown(i32),
    #[error("OST {0} is stopped")]
    Stopped(i32),
    #[error("OST {0} is full")]
    Full(i32),
    #[error("stripe size {0} is not a multiple of 64 KiB")]
    StripeBytes(u32),
    #[error("stripe count {0} is not -1 or 0..=512")]
    StripeCount(i32),
    #[error("an MDT keeps at most 64 KiB of a file, not {0}")]
    DomBytes(u32),
}
impl From<NoLayout> for Errno {
    fn from(e: NoLayout) -> Self {
        match e {
            NoLayout::NoOsts | NoLayout::NoneUsable { .. } | NoLayout::Full(_) => Errno::ENOSPC,
            NoLayout::Unknown(_) | NoLayout::Stopped(_) => Errno::ENXIO,
            NoLayout::StripeBytes(_) | NoLayout::StripeCount(_) | NoLayout::DomBytes(_) => Errno::EINVAL,
        }
    }
}

/// Refuses templates that no file could have.
pub(crate) fn check_template(t: &LayoutTemplate) -> Result<(), NoLayout> {
    if !t.stripe_bytes.is_multiple_of(STRIPE_BYTES_UNIT) {
        return Err(NoLayout::StripeBytes(t.stripe_bytes));
    }
    if t.stripe_count < -1 || t.stripe_count > STRIPES_MAX.into() {
        return Err(NoLayout::StripeCount(t.stripe_count));
    }
    if let Some(dom_bytes) = t.dom_bytes.filter(|bytes| *bytes > DOM_BYTES_MAX) {
        return Err(NoLayout::DomBytes(dom_bytes));
    }
    if t.first_ost < -1 {
        return Err(NoLayout::Unknown(t.first_ost));
    }
    Ok(())
}

/// Fields that `asked` leaves open come from `dir`, then from `default`.
pub(crate) fn resolve(
    asked: Option<LayoutTemplate>,
    dir: Option<LayoutTemplate>,
    default: LayoutTemplate,
) -> LayoutTemplate {
    let mut t = LayoutTemplate::default();
    for source in [asked, dir, Some(default)].into_iter().flatten() {
        if t.stripe_count == 0 {
            t.stripe_count = source.stripe_count;
        }
        if t.stripe_bytes == 0 {
            t.stripe_bytes = source.stripe_bytes;
        }
        if t.first_ost == -1 {
            t.first_ost = source.first_ost;
        }
        t.dom_bytes = t.dom_bytes.or(source.dom_bytes);
    }
    t
}

/// An OST counts at most so many fewer files that have moved to it than another: one that was full or stopped is not to get
/// all files when it is back.
const MOVED_BEHIND_MAX: u64 = 4;

/// Every OST, by index, and where the next file starts.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    rooms: BTreeMap<OstIndex, OstRoom>,
    next: usize,
    /// The same among the OSTs to which equally few files have moved.
    next_at_mdt: usize,
    /// Files that have moved from this MDT to an OST.
    moved: BTreeMap<OstIndex, u64>,
    qos: Qos,
}

impl Allocator {
    pub(crate) fn qos(&self) -> Qos {
        self.qos
    }
    pub(crate) fn set_qos(&mut self, qos: Qos) {
        self.qos = qos;
    }
    pub(crate) fn room(&self, ost: OstIndex) -> Option<OstRoom> {
        self.rooms.get(&ost).copied()
    }
    pub(crate) fn set_room(&mut self, ost: OstIndex, room: OstRoom) {
        self.rooms.insert(ost, room);
    }
    pub(crate) fn rooms_mut(&mut self) -> impl Iterator<Item = (&OstIndex, &mut OstRoom)> {
        self.rooms.iter_mut()
    }
    /// Whether any OST can take a file.
    pub(crate) fn any_usable(&self) -> bool {
        self.rooms.values().any(OstRoom::usable)
    }
    /// Whether every OST has said that it is full: waiting does not help.
    pub(crate) fn all_full(&self) -> bool {
        !self.rooms.is_empty() && self.rooms.values().all(OstRoom::full)
    }
    pub(crate) fn osts(&self) -> impl Iterator<Item = (OstIndex, OstRoom)> + '_ {
        self.rooms.iter().map(|(&i, &r)| (i, r))
    }

    /// Whether of every OST it is known whether it can take a file.
    pub(crate) fn all_known(&self) -> bool {
        self.rooms.values().all(|room| room.usable() || room.full())
    }

    /// A layout for a new file. `random` decides where OSTs are chosen by their free space.
    pub(crate) fn layout(
        &mut self,
        t: &LayoutTemplate,
        random: impl FnMut() -> u64,
    ) -> Result<Layout, NoLayout> {
        check_template(t)?;
        let usable: Vec<OstIndex> = self.rooms.iter().filter(|(_, r)| r.usable()).map(|(&i, _)| i).collect();
        let start = self.start(t.first_ost, &usable)?;
        let count = match t.stripe_count {
            -1 => usable.len(),
            0 => 1,
            n => usize::try_from(n).unwrap_or(1).min(usable.len()),
        }
        .min(STRIPES_MAX.into());
        // All of them, or a fixed first one: there is nothing to choose.
        let in_turn = t.first_ost >= 0 || count == usable.len() || self.about_equal(&usable);
        let is_at_mdt = t.dom_bytes.is_some_and(|bytes| bytes > 0);
        let start = match t.first_ost < 0 && is_at_mdt {
            true => self.start_at_mdt(&usable).unwrap_or(start),
            false => start,
        };
        let stripes: Vec<OstIndex> = match in_turn {
            true => usable.iter().cycle().skip(start).take(count).copied().collect(),
            false => self.by_free_space(&usable, count, random),
        };
        for ost in &stripes {
            if let Some(room) = self.rooms.get_mut(ost) {
                room.objects -= 1;
            }
        }
        if t.first_ost < 0 && in_turn && !is_at_mdt {
            self.next = start + count;
        }
        let stripe_bytes = if t.stripe_bytes == 0 { DEFAULT_STRIPE_BYTES } else { t.stripe_bytes };
        Ok(Layout {
            generation: 0,
            dom_bytes: t.dom_bytes.unwrap_or(0),
            components: alloc::vec![Component {
                extent: Extent::ALL,
                stripe_bytes,
                stripes,
                laid: Vec::new()
            }],
        })
    }

    /// The place of the first stripe of a file that this MDT keeps: in turn among the OSTs to which the fewest have moved.
    fn start_at_mdt(&mut self, usable: &[OstIndex]) -> Option<usize> {
        let moved_to = |ost: &OstIndex| self.moved.get(ost).copied().unwrap_or(self.moved_least());
        let fewest = usable.iter().map(moved_to).min()?;
        let places: Vec<usize> =
            usable.iter().enumerate().filter(|(_, ost)| moved_to(ost) == fewest).map(|(at, _)| at).collect();
        let place = places.get(self.next_at_mdt % places.len()).copied();
        self.next_at_mdt = self.next_at_mdt.wrapping_add(1);
        place
    }
    /// A file of this MDT uses its object on this OST from now on.
    pub(crate) fn note_moved(&mut self, ost: OstIndex) {
        let moved = self.moved.get(&ost).copied().unwrap_or(self.moved_least()) + 1;
        self.moved.insert(ost, moved);
        for others in self.moved.values_mut() {
            *others = (*others).max(moved.saturating_sub(MOVED_BEHIND_MAX));
        }
    }
    /// What an OST counts to which none has moved yet.
    fn moved_least(&self) -> u64 {
        self.moved.values().max().map_or(0, |most| most.saturating_sub(MOVED_BEHIND_MAX))
    }

    fn about_equal(&self, usable: &[OstIndex]) -> bool {
        let spaces = usable.iter().filter_map(|ost| self.rooms.get(ost)).map(|room| &room.space);
        free_space::about_equal(self.qos, spaces)
    }
    /// `count` different ones of `usable`.
    fn by_free_space(
        &mut self,
        usable: &[OstIndex],
        count: usize,
        mut random: impl FnMut() -> u64,
    ) -> Vec<OstIndex> {
        let mut left = usable.to_vec();
        let mut chosen = Vec::with_capacity(count);
        while chosen.len() < count {
            let random = u128::from(random()) << 64 | u128::from(random());
            let spaces: Vec<&FreeSpace> =
                left.iter().filter_map(|ost| self.rooms.get(ost)).map(|room| &room.space).collect();
            let Some(at) = free_space::pick(&spaces, random) else { break };
            let ost = left.remove(at);
            let spaces = self
                .rooms
                .iter_mut()
                .filter(|(_, room)| room.usable())
                .map(|(index, room)| (*index == ost, &mut room.space));
            free_space::note_use(self.qos, spaces, usable.len());
            chosen.push(ost);
        }
        chosen
    }

    /// Place in `usable` of the first stripe.
    fn start(&self, first_ost: i32, usable: &[OstIndex]) -> Result<usize, NoLayout> {
        if self.rooms.is_empty() {
            return Err(NoLayout::NoOsts);
        }
        if let Ok(index) = u32::try_from(first_ost) {
            let room = self.rooms.get(&OstIndex(index)).ok_or(NoLayout::Unknown(first_ost))?;
            if !room.up {
                return Err(NoLayout::Stopped(first_ost));
            }
            return usable.iter().position(|o| o.0 == index).ok_or(NoLayout::Full(first_ost));
        }
        if usable.is_empty() {
            let known = self.rooms.len() as u32;
            let stopped = self.rooms.values().filter(|r| !r.up).count() as u32;
            return Err(NoLayout::NoneUsable { known, stopped });
        }
        Ok(self.next % usable.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use nacre_wire::target::StatfsReply;

    fn allocator(rooms: &[(bool, u64, u64)]) -> Allocator {
        let mut a = Allocator::default();
        for (i, &(up, mib, objects)) in rooms.iter().enumerate() {
            a.set_room(
                OstIndex(i as u32),
                OstRoom { up, asked: true, space: space(mib), objects, refused: false },
            );
        }
        a
    }
    fn space(avail_mib: u64) -> FreeSpace {
        let mut space = FreeSpace::default();
        space.update(&StatfsReply {
            bytes_total: 1 << 30,
            bytes_avail: avail_mib << 20,
            files_free: avail_mib << 8,
            ..StatfsReply::default()
        });
        space
    }
    fn ask(count: i32, first: i32) -> LayoutTemplate {
        LayoutTemplate { stripe_count: count, stripe_bytes: 0, first_ost: first, ..LayoutTemplate::default() }
    }
    fn random(seed: u64) -> impl FnMut() -> u64 {
        let mut rng = nacre_node::Rng::new(seed);
        move || rng.next_u64()
    }
    fn stripes(a: &mut Allocator, t: LayoutTemplate) -> Result<Vec<u32>, NoLayout> {
        a.layout(&t, random(1)).map(|l| l.components[0].stripes.iter().map(|o| o.0).collect())
    }

    #[test]
    fn files_go_round_and_full_or_stopped_osts_are_left_out() {
        let mut a = allocator(&[(true, 9, 9), (true, 9, 9), (false, 9, 9), (true, 0, 9), (true, 9, 1)]);
        let got: Vec<_> = (0..5).map(|_| stripes(&mut a, ask(1, -1)).unwrap()[0]).collect();
        assert_eq!(got, vec![0, 1, 4, 1, 0]);
        assert_eq!(stripes(&mut a, ask(-1, -1)), Ok(vec![1, 0]));
        assert_eq!(stripes(&mut a, ask(7, 1)), Ok(vec![1, 0]));
    }

    #[test]
    fn files_that_the_mdt_keeps_take_no_turn_and_those_that_move_are_spread() {
        let mut a = allocator(&[(true, 900, 999); 2]);
        let kept = LayoutTemplate { dom_bytes: Some(8192), ..ask(1, -1) };
        let mut large = [0; 2];
        for _ in 0..20 {
            let ost = stripes(&mut a, kept).unwrap()[0];
            a.note_moved(OstIndex(ost));
            large[ost as usize] += 1;
            stripes(&mut a, kept).unwrap(); // a small one
        }
        assert_eq!(large, [10, 10]);
        let got: Vec<u32> = (0..4).map(|_| stripes(&mut a, kept).unwrap()[0]).collect();
        assert_eq!(got.iter().sum::<u32>(), 2, "those that grow together are spread as well: {got:?}");
        let turns: Vec<u32> = (0..4).map(|_| stripes(&mut a, ask(1, -1)).unwrap()[0]).collect();
        assert_eq!(turns, [0, 1, 0, 1], "their turns are not moved");
        // An OST that is new, or was away, takes a few files more than the others, not all.
        for _ in 0..100 {
            a.note_moved(OstIndex(0));
            a.note_moved(OstIndex(1));
        }
        a.set_room(OstIndex(2), a.room(OstIndex(0)).unwrap());
        let mut new = 0;
        for _ in 0..30 {
            let ost = stripes(&mut a, kept).unwrap()[0];
            a.note_moved(OstIndex(ost));
            new += u64::from(ost == 2);
        }
        assert!((10..=14).contains(&new), "{new}");
    }

    #[test]
    fn the_emptier_osts_get_more_new_files_and_each_a_stripe_at_most() {
        let mut a = allocator(&[(true, 900, 9999), (true, 600, 9999), (true, 20, 9999), (true, 0, 9999)]);
        let mut random = random(7);
        let mut got = [0; 4];
        for _ in 0..1000 {
            let layout = a.layout(&ask(1, -1), &mut random).unwrap();
            got[layout.components[0].stripes[0].0 as usize] += 1;
        }
        assert!(got[0] > got[1] && got[1] > 200 && got[2] < 20 && got[3] == 0, "{got:?}");
        for _ in 0..100 {
            let layout = a.layout(&ask(2, -1), &mut random).unwrap();
            let [one, two] = layout.components[0].stripes[..] else { panic!("{layout:?}") };
            assert_ne!(one, two);
        }
        a.qos.threshold_rr = 100;
        let turns: Vec<u32> =
            (0..4).map(|_| a.layout(&ask(1, -1), &mut random).unwrap().components[0].stripes[0].0).collect();
        assert!(turns[..3].iter().all(|ost| turns[1..].contains(ost)) && turns[0] == turns[3], "{turns:?}");
    }

    #[test]
    fn a_fixed_first_ost_says_what_is_wrong_with_it() {
        let mut a = allocator(&[(true, 9, 9), (false, 9, 9), (true, 0, 9)]);
        assert_eq!(stripes(&mut a, ask(1, 1)), Err(NoLayout::Stopped(1)));
        assert_eq!(stripes(&mut a, ask(1, 2)), Err(NoLayout::Full(2)));
        assert_eq!(stripes(&mut a, ask(1, 7)), Err(NoLayout::Unknown(7)));
        assert_eq!(Allocator::default().layout(&ask(1, -1), random(1)), Err(NoLayout::NoOsts));
        let mut a = allocator(&[(false, 9, 9), (true, 0, 9)]);
        assert_eq!(stripes(&mut a, ask(1, -1)), Err(NoLayout::NoneUsable { known: 2, stopped: 1 }));
    }

    #[test]
    fn templates_fill_each_other_and_nonsense_is_refused() {
        let t = resolve(
            Some(ask(2, -1)),
            Some(ask(1, 3)),
            LayoutTemplate { stripe_bytes: 1 << 20, ..LayoutTemplate::default() },
        );
        assert_eq!(
            t,
            LayoutTemplate {
                stripe_count: 2,
                stripe_bytes: 1 << 20,
                first_ost: 3,
                ..LayoutTemplate::default()
            }
        );
        for bad in [ask(-2, -1), ask(513, -1), ask(1, -2), LayoutTemplate { stripe_bytes: 1, ..ask(1, -1) }] {
            assert!(check_template(&bad).is_err(), "{bad:?}");
        }
    }
}
