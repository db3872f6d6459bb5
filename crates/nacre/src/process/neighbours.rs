//! Which clients the targets of this process have heard: one ping of an idle client is good for all of them.

use nacre_target::Neighbours;
use nacre_types::{ClientUuid, Instant};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Clients that are remembered; beyond it those that were not heard for [`OLD`] are forgotten.
const CLIENTS_MAX: usize = 65_536;
/// No lease is as long.
const OLD: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(crate) struct Household {
    process: u64,
    state: Mutex<State>,
}
#[derive(Debug, Default)]
struct State {
    heard: HashMap<ClientUuid, Instant>,
    ended: u64,
}

impl Household {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { process: nacre_rt::random().max(1), state: Mutex::default() })
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Neighbours for Household {
    fn process(&self) -> u64 {
        self.process
    }
    fn hear(&self, client: ClientUuid, now: Instant) -> u64 {
        let mut state = self.lock();
        if state.heard.len() >= CLIENTS_MAX {
            state.heard.retain(|_, at| *at + OLD > now);
        }
        // One that finds no room pings each of its targets: its number says that a lease has ended.
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
