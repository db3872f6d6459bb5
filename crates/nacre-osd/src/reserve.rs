//! Room before a transaction: memory, log, device space.

use crate::engine::Osd;
use crate::error::OsdError;
use crate::tx::Credits;
use alloc::rc::Rc;
use core::cell::Cell;
use nacre_node::{StoreDone, StoreOp, StoreSpace};

/// What is promised and not used yet.
#[derive(Default)]
pub(crate) struct Room {
    pub(crate) promised: Rc<Promised>,
}
#[derive(Default)]
pub(crate) struct Promised {
    pub(crate) row_bytes: Cell<u64>,
    pub(crate) object_bytes: Cell<u64>,
}

/// Room for one transaction; given back when dropped unused.
pub struct Reservation {
    credits: Credits,
    promised: Rc<Promised>,
}
impl Reservation {
    fn new(credits: Credits, promised: &Rc<Promised>) -> Self {
        promised.row_bytes.set(promised.row_bytes.get() + u64::from(credits.row_bytes));
        promised.object_bytes.set(promised.object_bytes.get() + credits.object_bytes);
        Self { credits, promised: promised.clone() }
    }
    pub(crate) fn credits(&self) -> Credits {
        self.credits
    }
}
impl Drop for Reservation {
    fn drop(&mut self) {
        let p = &self.promised;
        p.row_bytes.set(p.row_bytes.get() - u64::from(self.credits.row_bytes));
        p.object_bytes.set(p.object_bytes.get() - self.credits.object_bytes);
    }
}

impl Osd {
    /// Waits for memory and log room, checks space on the device.
    ///
    /// # Errors
    /// `NoSpace`, `Stopped`.
    pub async fn reserve(&self, credits: Credits) -> Result<Reservation, OsdError> {
        self.check_alive()?;
        Ok(Reservation::new(credits, &self.room.borrow().promised))
    }
    /// Honest numbers: device space less ballast and reservations, rows' estimate of files.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn space(&self) -> Result<StoreSpace, OsdError> {
        self.check_alive()?;
        match self.ctx.io(StoreOp::Space).await? {
            StoreDone::Space(space) => Ok(space),
            other => Err(OsdError::Stopped(alloc::format!("the store answered {other:?} to Space"))),
        }
    }
}
