//! The leases that the targets of this process share: the time of the latest message of each client to any of them. Thus
//! one ping of an idle client renews its leases with all of them. And the devices that they share.

use nacre_target::{DeviceShare, Neighbours, SharedDevices};
use nacre_types::{ClientUuid, Instant};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bound of the table; when it is full, clients without a message for [`OLD`] are removed.
const CLIENTS_MAX: usize = 65_536;
/// Longer than any lease.
const OLD: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(crate) struct LeaseTable {
    process: u64,
    state: Mutex<State>,
    devices: Mutex<SharedDevices>,
}
#[derive(Debug, Default)]
struct State {
    renewed: HashMap<ClientUuid, Instant>,
    ended: u64,
}

impl LeaseTable {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            process: nacre_rt::random().max(1),
            state: Mutex::default(),
            devices: Mutex::default(),
        })
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Neighbours for LeaseTable {
    fn process(&self) -> u64 {
        self.process
    }
    fn renew(&self, client: ClientUuid, now: Instant) -> u64 {
        let mut state = self.lock();
        if state.renewed.len() >= CLIENTS_MAX {
            state.renewed.retain(|_, at| *at + OLD > now);
        }
        // A client for which the table has no room must ping each of its targets, as after the end of a lease.
        if state.renewed.len() >= CLIENTS_MAX && !state.renewed.contains_key(&client) {
            state.ended += 1;
        } else {
            state.renewed.insert(client, now);
        }
        state.ended
    }
    fn renewed_or_end(&self, client: ClientUuid, after: Instant) -> Option<Instant> {
        let mut state = self.lock();
        let renewed = state.renewed.get(&client).copied().filter(|at| *at > after);
        if renewed.is_none() {
            state.ended += 1;
        }
        renewed
    }
    fn share_device(&self, device: u64, target: &str) -> DeviceShare {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner).share(device, target)
    }
    fn end(&self) {
        self.lock().ended += 1;
    }
    fn ended(&self) -> u64 {
        self.lock().ended
    }
}
