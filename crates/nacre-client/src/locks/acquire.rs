//! The call that takes an extent lock for an operation of this mount.

use crate::client::Client;
use crate::data::stripes::Laid;
use crate::locks::extents::{ExtentRequest, GrantedExtent};
use crate::targets::target::Target;
use alloc::rc::Rc;
use nacre_types::{Extent, Failure};
use nacre_wire::ost::LockMode;

impl Client {
    /// Takes a lock; waits for conflicting locks of others. A `persistent` lock survives a restart of the OST. With
    /// `interruptible` the wait ends with EINTR once the caller has cancelled the operation.
    pub(crate) async fn lock_extent(
        &self,
        ost: &Rc<Target>,
        object: Laid,
        mode: LockMode,
        extent: Extent,
        persistent: bool,
        interruptible: bool,
    ) -> Result<GrantedExtent, Failure> {
        let request =
            ExtentRequest::new(object, mode, extent).persistent(persistent).interruptible(interruptible);
        self.locks.acquire(&self.ctx, self.new_cookie(), ost, request).await
    }
}
