//! Targets that are one process: they know together which clients were heard.

use nacre_target::Neighbours;
use nacre_types::{ClientUuid, Instant};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// What they know.
#[derive(Debug, Default)]
pub struct Household(Mutex<(BTreeMap<ClientUuid, Instant>, u64)>);
impl Household {
    fn lock(&self) -> MutexGuard<'_, (BTreeMap<ClientUuid, Instant>, u64)> {
        self.0.lock().expect("nobody panics with the lock")
    }
}
impl Neighbours for Household {
    fn process(&self) -> u64 {
        1
    }
    fn hear(&self, client: ClientUuid, now: Instant) -> u64 {
        let mut state = self.lock();
        state.0.insert(client, now);
        state.1
    }
    fn heard_or_end(&self, client: ClientUuid, after: Instant) -> Option<Instant> {
        let mut state = self.lock();
        let heard = state.0.get(&client).copied().filter(|at| *at > after);
        state.1 += u64::from(heard.is_none());
        heard
    }
    fn end(&self) {
        self.lock().1 += 1;
    }
    fn ended(&self) -> u64 {
        self.lock().1
    }
}
