//! Turns: changes that have had to wait for a commit are applied in the order in which they came.
//!
//! Why: a change waits until the changes on which it depends are committed. If another client changed the same rows in a
//! loop, each commit would be followed by a new uncommitted change, and the waiting change would never be applied. So a
//! request that has waited once has a turn, and a later conflicting change of another client waits until that turn is over.
//!
//! Rules: a change waits only for turns that are earlier (so there is no cycle), that belong to other clients (a change
//! never waits for the commit of a change of its own client), and whose owner reads or writes a row that the change
//! *writes* (reads cause no waits). A turn ends with its request, whatever the result.
//! Bounded by the requests under way.

use crate::rows::access::{AccessKey, AccessSet};
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
    /// The keys that the owners of turns read or write.
    keys: BTreeSet<(AccessKey, u64)>,
}

struct Waiting {
    export: ExportId,
    keys: Vec<AccessKey>,
    /// Promises to the requests that wait for the end of this turn; dropping them wakes these requests.
    ended: Vec<Promise<()>>,
}

/// The turns of one target.
pub(crate) struct Turns {
    ctx: Rc<Ctx>,
    queue: RefCell<Queue>,
}

/// The turn of one request. It ends when this is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turns {
    pub(crate) fn new(ctx: &Rc<Ctx>) -> Self {
        Self { ctx: ctx.clone(), queue: RefCell::default() }
    }
    /// Takes a turn behind all others.
    pub(crate) fn enter(&self, export: ExportId) -> Turn<'_> {
        let mut queue = self.queue.borrow_mut();
        queue.last += 1;
        let number = queue.last;
        queue.waiting.insert(number, Waiting { export, keys: Vec::new(), ended: Vec::new() });
        Turn { turns: self, number }
    }
    /// The latest turn of another client that has to end before a change may be applied.
    pub(crate) fn before(&self, export: ExportId, accesses: &AccessSet) -> Option<u64> {
        let queue = self.queue.borrow();
        if queue.waiting.is_empty() {
            return None;
        }
        let own = accesses.turn().unwrap_or(u64::MAX);
        let others = accesses.writes().iter().flat_map(|key| queue.keys.range((*key, 0)..(*key, own)));
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
    /// Sets the keys that the owner of the turn reads and writes, as far as they are known now.
    pub(crate) fn set_accesses(&self, accesses: &AccessSet) {
        let queue = &mut *self.turns.queue.borrow_mut();
        let Some(waiting) = queue.waiting.get_mut(&self.number) else { return };
        for key in waiting.keys.drain(..) {
            queue.keys.remove(&(key, self.number));
        }
        waiting.keys.extend(accesses.all());
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
        drop(ended); // wakes the requests that wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Fid, Generation, Oid, Seq};

    fn accesses(reads: &[u32], writes: &[u32], turn: Option<u64>) -> AccessSet {
        let keys = |oids: &[u32]| -> Vec<_> {
            oids.iter().map(|oid| AccessKey::inode(Fid::new(Seq(0x100), Oid(*oid)))).collect()
        };
        let mut set = AccessSet::with_turn(turn);
        keys(reads).into_iter().for_each(|key| set.read(key));
        keys(writes).into_iter().for_each(|key| set.write(key));
        set
    }

    #[test]
    fn only_changes_of_others_that_came_later_wait_for_a_turn() {
        let turns = Turns::new(&Ctx::new(1));
        let (a, b, c) = (Generation(1), Generation(2), Generation(3));
        let first = turns.enter(a);
        first.set_accesses(&accesses(&[1], &[2], Some(first.number())));
        assert_eq!(turns.before(b, &accesses(&[1, 2], &[3], None)), None, "reads cause no waits");
        assert_eq!(turns.before(a, &accesses(&[], &[1, 2], None)), None, "a change of its own client");
        assert_eq!(turns.before(b, &accesses(&[], &[1], None)), Some(first.number()));
        let second = turns.enter(b);
        second.set_accesses(&accesses(&[], &[1], Some(second.number())));
        assert_eq!(turns.before(b, &accesses(&[], &[1], Some(second.number()))), Some(first.number()));
        assert_eq!(
            turns.before(c, &accesses(&[], &[1], None)),
            Some(second.number()),
            "the latest of the turns"
        );
        let own = accesses(&[], &[1], Some(first.number()));
        assert_eq!(turns.before(a, &own), None, "the first turn waits for no other");
        drop(first);
        assert_eq!(turns.before(b, &accesses(&[], &[1, 2], Some(second.number()))), None);
        second.set_accesses(&accesses(&[], &[4], Some(second.number())));
        assert_eq!(
            turns.before(c, &accesses(&[], &[1], None)),
            None,
            "the owner of the turn accesses other keys now"
        );
        drop(second);
        assert!(turns.queue.borrow().keys.is_empty());
    }
}
