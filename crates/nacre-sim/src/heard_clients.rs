//! Clients from which any target of one simulated process has received a message.

use nacre_target::Neighbours;
use nacre_types::{ClientUuid, Instant};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// When each client was heard last, and the number of leases that have ended.
#[derive(Debug, Default)]
pub struct HeardClients(Mutex<(BTreeMap<ClientUuid, Instant>, u64)>);
impl HeardClients {
    fn lock(&self) -> MutexGuard<'_, (BTreeMap<ClientUuid, Instant>, u64)> {
        self.0.lock().expect("no panic while the lock is held")
    }
}
impl Neighbours for HeardClients {
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
