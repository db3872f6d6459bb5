//! What the targets of one process share: the leases of clients, so that an idle client sends one ping per process, and
//! their devices (`shared_device.rs`).

use crate::shared_device::DeviceShare;
use alloc::sync::Arc;
use core::fmt;
use nacre_types::{ClientUuid, Instant};

/// Shared by the targets of one process.
///
/// Every ping reply carries the number that [`Neighbours::renew`] returned. A ping reply of another target of the process
/// renews the lease of an import only if its number is that of the import's own latest reply: then no lease has ended in
/// between, so the export of the import still exists.
pub trait Neighbours: fmt::Debug + Send + Sync {
    /// Identifies this process; not 0.
    fn process(&self) -> u64;
    /// A message of a client has arrived: renews its lease. Returns how many leases have ended in this process so far.
    fn renew(&self, client: ClientUuid, now: Instant) -> u64;
    /// When the latest message of the client arrived, if that was later than `after`; otherwise counts the end of a lease.
    /// Atomic with regard to [`Neighbours::renew`].
    fn renewed_or_end(&self, client: ClientUuid, after: Instant) -> Option<Instant>;
    /// Counts the end of a lease of any client, or the start of a target, which has no former grants.
    fn end(&self);
    /// How many leases have ended in this process so far.
    fn ended(&self) -> u64;
    /// The share of a target that starts in the device below its store, see [`SharedDevices`](crate::SharedDevices).
    fn share_device(&self, device: u64, target: &str) -> DeviceShare;
}

/// The neighbours of a target; none if it is alone in its process.
#[derive(Debug)]
pub(crate) struct ProcessLeases(Option<Arc<dyn Neighbours>>);

impl ProcessLeases {
    pub(crate) fn new(neighbours: Option<Arc<dyn Neighbours>>) -> Self {
        Self(neighbours)
    }
    /// Counts the end of a lease.
    pub(crate) fn end(&self) {
        if let Some(neighbours) = &self.0 {
            neighbours.end();
        }
    }
    /// Process and number of ended leases, for a reply; 0 when this target is alone.
    pub(crate) fn process(&self) -> (u64, u64) {
        self.0.as_ref().map_or((0, 0), |n| (n.process(), n.ended()))
    }
    /// The same; a message of this client has arrived.
    pub(crate) fn renew(&self, client: ClientUuid, now: Instant) -> (u64, u64) {
        self.0.as_ref().map_or((0, 0), |n| (n.process(), n.renew(client, now)))
    }
    /// See [`Neighbours::share_device`]. Device 0 is not shared.
    pub(crate) fn share_device(&self, device: u64, target: &str) -> DeviceShare {
        let shared = self.0.as_ref().filter(|_| device != 0);
        shared.map(|neighbours| neighbours.share_device(device, target)).unwrap_or_default()
    }
    /// See [`Neighbours::renewed_or_end`].
    pub(crate) fn renewed_or_end(&self, client: ClientUuid, after: Instant) -> Option<Instant> {
        self.0.as_ref()?.renewed_or_end(client, after)
    }
}
