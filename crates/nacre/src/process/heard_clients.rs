//! Clients from which a target of this process has received a message: one ping of an idle client renews its leases with
//! all of them.

use nacre_target::Neighbours;
use nacre_types::{ClientUuid, Instant};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bound of the table; when it is full, clients that were not heard for [`OLD`] are removed.
const CLIENTS_MAX: usize = 65_536;
/// Longer than any lease.
const OLD: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(crate) struct HeardClients {
    process: u64,
    state: Mutex<State>,
}
#[derive(Debug, Default)]
struct State {
    heard: HashMap<ClientUuid, Instant>,
    ended: u64,
}

impl HeardClients {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { process: nacre_rt::random().max(1), state: Mutex::default() })
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Neighbours for HeardClients {
    fn process(&self) -> u64 {
        self.process
    }
    fn hear(&self, client: ClientUuid, now: Instant) -> u64 {
        let mut state = self.lock();
        if state.heard.len() >= CLIENTS_MAX {
            state.heard.retain(|_, at| *at + OLD > now);
        }
        // A client that finds no room must ping each of its targets: the count tells it that a lease has ended.
        if state.heard.len() >= CLIENTS_MAX && !state.heard.contains_key(&client) {
            state.ended += 1;
        } else {
            state.heard.insert(client, now);
        }
        state.ended
    }
    fn heard_or_end(&self, client: ClientUuid, after: Instant) -> Option<Instant> {
        let mut state = self.lock();
        let heard = state.heard.get(&client).copied().filter(|at| *at > after);
        if heard.is_none() {
            state.ended += 1;
        }
        heard
    }
    fn end(&self) {
        self.lock().ended += 1;
    }
    fn ended(&self) -> u64 {
        self.lock().ended
    }
}
