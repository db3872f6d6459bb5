//! Accounting of bulk bytes that were received over sockets and are in use: per process and per connection.
//!
//! A piece counts from the completion of its frame until the last reference to its bytes is dropped, in any part of the
//! process. Bytes of an incomplete frame are bounded by the limits of frames (`nacre_net::Limits`). Not here: back
//! pressure (`socket.rs`).

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes of one process.
#[derive(Debug, Default, Clone)]
pub(crate) struct BulkBudget(Arc<AtomicU64>);

/// The bytes of one connection.
#[derive(Debug)]
pub(crate) struct BulkShare {
    all: BulkBudget,
    own: Arc<AtomicU64>,
}

/// A piece of bulk that is subtracted when it is dropped.
struct CountedBulk {
    bytes: Bytes,
    all: BulkBudget,
    own: Arc<AtomicU64>,
}

impl BulkBudget {
    pub(crate) fn used(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    pub(crate) fn share(&self) -> BulkShare {
        BulkShare { all: self.clone(), own: Arc::default() }
    }
}
impl BulkShare {
    pub(crate) fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }
    pub(crate) fn hold(&self, bytes: Bytes) -> Bytes {
        let len = bytes.len() as u64;
        self.all.0.fetch_add(len, Ordering::Relaxed);
        self.own.fetch_add(len, Ordering::Relaxed);
        Bytes::from_owner(CountedBulk { bytes, all: self.all.clone(), own: self.own.clone() })
    }
}
impl AsRef<[u8]> for CountedBulk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
impl Drop for CountedBulk {
    fn drop(&mut self) {
        let len = self.bytes.len() as u64;
        self.all.0.fetch_sub(len, Ordering::Relaxed);
        self.own.fetch_sub(len, Ordering::Relaxed);
    }
}
