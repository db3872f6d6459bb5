//! Devices that targets of one process share, so that together they promise no more than a device has.
//!
//! The targets are islands, which know nothing of each other: each counts in atomic numbers that all of a device read. Two
//! that look at the same moment may both take the last bytes; then the device refuses one of them.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
struct Device {
    granted: AtomicU64,
    taken: AtomicU64,
}

/// A target's part in the counts of its device.
#[derive(Debug, Clone, Default)]
pub struct DeviceShare {
    device: Arc<Device>,
    granted: Arc<AtomicU64>,
}
impl DeviceShare {
    /// Bytes that all targets of the device have granted to clients.
    pub fn granted_by_all(&self) -> u64 {
        self.device.granted.load(Ordering::Relaxed)
    }
    /// This target has granted so many bytes from now on.
    pub fn set_granted(&self, bytes: u64) {
        let before = self.granted.swap(bytes, Ordering::Relaxed);
        // Wraps if it became less: the sum is right again.
        self.device.granted.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }
    /// This target takes so many bytes of the device.
    pub fn take(&self, bytes: u64) {
        self.device.taken.fetch_add(bytes, Ordering::Relaxed);
    }
    /// Bytes that all targets of the device have taken so far.
    pub fn taken_by_all(&self) -> u64 {
        self.device.taken.load(Ordering::Relaxed)
    }
}

/// The devices below the targets of one process.
#[derive(Debug, Default)]
pub struct SharedDevices(BTreeMap<(u64, String), DeviceShare>);
impl SharedDevices {
    /// The share of a target that starts; what an earlier island of it had granted is void. `device`: its number, as the
    /// store reports it.
    pub fn share(&mut self, device: u64, target: &str) -> DeviceShare {
        let beside =
            self.0.range((device, String::new())..).next().filter(|((number, _), _)| *number == device);
        let device_counts = beside.map(|(_, share)| share.device.clone()).unwrap_or_default();
        let share = self
            .0
            .entry((device, target.to_string()))
            .or_insert_with(|| DeviceShare { device: device_counts, granted: Arc::default() });
        share.set_granted(0);
        share.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_a_device_count_together_and_a_restart_begins_anew() {
        let mut devices = SharedDevices::default();
        let [a, b, c] = [(7, "a"), (7, "b"), (8, "c")].map(|(device, name)| devices.share(device, name));
        a.set_granted(100);
        b.set_granted(50);
        c.set_granted(1);
        assert_eq!([&a, &b, &c].map(DeviceShare::granted_by_all), [150, 150, 1]);
        a.set_granted(30);
        b.take(5);
        assert_eq!((b.granted_by_all(), a.taken_by_all(), c.taken_by_all()), (80, 5, 0));
        let again = devices.share(7, "a");
        assert_eq!((again.granted_by_all(), again.taken_by_all()), (50, 5));
    }
}
