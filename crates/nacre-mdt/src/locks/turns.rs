//! Turns: changes that have had to wait for a commit are served in the order in which they came.
//!
//! Why: a change waits until what it builds on is committed. A neighbour that changes the same rows in a loop would have
//! changed them again by then, and again, so that the waiting change would never be made. So whoever has waited once has
//! a turn, and a later change of another client that would put rows in its way waits until that turn is over.
//!
//! Rules: a change waits for *earlier* turns only, so there is no cycle; only for turns of other clients, because a
//! change never waits for the commit of one of its own client; and only if it *changes* what the turn's owner looks at or
//! changes, because looking puts nothing in anybody's way. A turn ends with its request, whatever the result.
//! Bounded by the requests under way.

use crate::locks::uncommitted::{Key, Touched};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_node::{Ctx, Promise};
use nacre_target::ExportId;

#[derive(Default)]
struct Queue {
    last: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// What the owners of turns look at or change.
    keys: BTreeSet<(Key, u64)>,
}

struct Waiting {
    export: ExportId,
    keys: Vec<Key>,
    /// Dropped with the turn, which wakes those who wait for its end.
    ended: Vec<Promise<()>>,
}

/// The turns of one target.
pub(crate) struct Turns {
    ctx: Rc<Ctx>,
    queue: RefCell<Queue>,
}

/// The turn of one request. Dropping it ends it.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turns {
    pub(crate) fn new(ctx: &Rc<Ctx>) -> Self {
        Self { ctx: ctx.clone(), queue: RefCell::default() }
    }
    /// A turn behind all others.
    pub(crate) fn enter(&self, export: ExportId) -> Turn<'_> {
        let mut queue = self.queue.borrow_mut();
        queue.last += 1;
        let number = queue.last;
        queue.waiting.insert(number, Waiting { export, keys: Vec::new(), ended: Vec::new() });
        Turn { turns: self, number }
    }
    /// The latest turn of another client that has to end before a change may be made.
    pub(crate) fn before(&self, export: ExportId, touched: &Touched) -> Option<u64> {
        let queue = self.queue.borrow();
        if queue.waiting.is_empty() {
            return None;
        }
        let own = touched.turn.unwrap_or(u64::MAX);
        let others = touched.made.iter().flat_map(|key| queue.keys.range((*key, 0)..(*key, own)));
        let others = others.map(|(_, number)| *number);
        others.filter(|number| queue.waiting.get(number).is_some_and(|w| w.export != export)).max()
    }
    /// Waits until a turn is over.
    pub(crate) async fn ended(&self, number: u64) {
        let (promise, ended) = self.ctx.promise();
        if let Some(waiting) = self.queue.borrow_mut().waiting.get_mut(&number) {
            waiting.ended.push(promise);
        } else {
            return;
        }
        ended.await;
    }
}

impl Turn<'_> {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
    /// What its owner touches, as far as is known now.
    pub(crate) fn touches(&self, touched: &Touched) {
        let queue = &mut *self.turns.queue.borrow_mut();
        let Some(waiting) = queue.waiting.get_mut(&self.number) else { return };
        for key in waiting.keys.drain(..) {
            queue.keys.remove(&(key, self.number));
        }
        waiting.keys.extend(touched.seen.iter().chain(&touched.made));
        queue.keys.extend(waiting.keys.iter().map(|key| (*key, self.number)));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let ended = {
            let queue = &mut *self.turns.queue.borrow_mut();
            let Some(waiting) = queue.waiting.remove(&self.number) else { return };
            for key in &waiting.keys {
                queue.keys.remove(&(*key, self.number));
            }
            waiting.ended
        };
        drop(ended); // wakes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Fid, Generation, Oid, Seq};

    fn touched(seen: &[u32], made: &[u32], turn: Option<u64>) -> Touched {
        let keys =
            |oids: &[u32]| oids.iter().map(|oid| Key::inode(Fid::new(Seq(0x100), Oid(*oid)))).collect();
        Touched { seen: keys(seen), made: keys(made), turn }
    }

    #[test]
    fn only_changes_of_others_that_came_later_wait_for_a_turn() {
        let turns = Turns::new(&Ctx::new(1));
        let (a, b, c) = (Generation(1), Generation(2), Generation(3));
        let first = turns.enter(a);
        first.touches(&touched(&[1], &[2], Some(first.number())));
        assert_eq!(turns.before(b, &touched(&[1, 2], &[3], None)), None, "looking is in nobody's way");
        assert_eq!(turns.before(a, &touched(&[], &[1, 2], None)), None, "its own client");
        assert_eq!(turns.before(b, &touched(&[], &[1], None)), Some(first.number()));
        let second = turns.enter(b);
        second.touches(&touched(&[], &[1], Some(second.number())));
        assert_eq!(turns.before(b, &touched(&[], &[1], Some(second.number()))), Some(first.number()));
        assert_eq!(turns.before(c, &touched(&[], &[1], None)), Some(second.number()), "the latest of them");
        let own = touched(&[], &[1], Some(first.number()));
        assert_eq!(turns.before(a, &own), None, "the first waits for nobody");
        drop(first);
        assert_eq!(turns.before(b, &touched(&[], &[1, 2], Some(second.number()))), None);
        second.touches(&touched(&[], &[4], Some(second.number())));
        assert_eq!(turns.before(c, &touched(&[], &[1], None)), None, "it touches something else now");
        drop(second);
        assert!(turns.queue.borrow().keys.is_empty());
    }
}
