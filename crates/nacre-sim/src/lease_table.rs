//! The leases that the targets of one simulated process share.

use nacre_target::{DeviceShare, Neighbours, SharedDevices};
use nacre_types::{ClientUuid, Instant};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// The time of the latest message of each client, and the number of leases that have ended; the devices of the targets.
#[derive(Debug, Default)]
pub struct LeaseTable(Mutex<(BTreeMap<ClientUuid, Instant>, u64)>, Mutex<SharedDevices>);
impl LeaseTable {
    fn lock(&self) -> MutexGuard<'_, (BTreeMap<ClientUuid, Instant>, u64)> {
        self.0.lock().expect("no panic while the lock is held")
    }
}
impl Neighbours for LeaseTable {
    fn process(&self) -> u64 {
        1
    }
    fn renew(&self, client: ClientUuid, now: Instant) -> u64 {
        let mut state = self.lock();
        state.0.insert(client, now);
        state.1
    }
    fn renewed_or_end(&self, client: ClientUuid, after: Instant) -> Option<Instant> {
        let mut state = self.lock();
        let renewed = state.0.get(&client).copied().filter(|at| *at > after);
        state.1 += u64::from(renewed.is_none());
        renewed
    }
    fn share_device(&self, device: u64, target: &str) -> DeviceShare {
        self.1.lock().expect("no panic while the lock is held").share(device, target)
    }
    fn end(&self) {
        self.lock().1 += 1;
    }
    fn ended(&self) -> u64 {
        self.lock().1
    }
}
