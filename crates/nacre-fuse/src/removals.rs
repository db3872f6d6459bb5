//! Files of which a name is being removed.
//!
//! When an UNLINK has succeeded, or a RENAME over a file, the kernel takes one off the number of links that it remembers of the
//! file. If it has taken over attributes from after the removal by then, it counts the removal twice, and link(2) refuses a file
//! that has no links without a request. So attributes of a file that has links left wait until the caller of the removal has
//! taken its reply over (`handlers`): until its thread makes another request, or for [`TAKES_OVER`].
//!
//! This holds for LOOKUP, GETATTR and STATX, which programs send all the time. Listings with attributes, LINK and SETATTR bring
//! the number of links, too, and do not wait.
//!
//! A removal delays nothing if it is not known which file has the name: another mount has changed the directory meanwhile.

use nacre_client::ResolvedInode;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Errno, Fid, Instant};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// A caller has run after its reply, unless the machine is very busy.
const TAKES_OVER: Duration = Duration::from_millis(2);
/// Attributes wait no longer: a removal may wait for a mount that is away, and has not taken effect then.
const WAIT_MAX: Duration = Duration::from_millis(100);

struct Removing {
    file: Fid,
    /// The thread.
    pid: u32,
    /// When the reply was made.
    replied: Option<Instant>,
}

/// The removals whose replies the kernel may not have taken over.
pub(crate) struct Removals {
    ctx: Rc<Ctx>,
    removing: RefCell<Vec<Removing>>,
    changed: WaitList,
}

/// A removal whose reply is made when this is dropped.
pub(crate) struct Removal<'a> {
    of: &'a Removals,
    file: Fid,
    pid: u32,
}
impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let mut removing = self.of.removing.borrow_mut();
        let is_this = |r: &&mut Removing| (r.file, r.pid, r.replied) == (self.file, self.pid, None);
        if let Some(removing) = removing.iter_mut().find(is_this) {
            removing.replied = Some(self.of.ctx.now());
        }
        drop(removing);
        self.of.changed.wake_all();
    }
}

impl Removals {
    pub(crate) fn new(ctx: &Rc<Ctx>) -> Self {
        Self { ctx: ctx.clone(), removing: RefCell::default(), changed: ctx.wait_list() }
    }
    /// Thread `pid` is about to remove a name of `file`.
    pub(crate) fn begin(&self, file: Fid, pid: u32) -> Removal<'_> {
        let mut removing = self.removing.borrow_mut();
        removing.retain(|r| self.until(r).is_some());
        removing.push(Removing { file, pid, replied: None });
        Removal { of: self, file, pid }
    }
    /// A thread has made a request: it has taken over its last reply.
    pub(crate) fn settle(&self, pid: u32) {
        let mut removing = self.removing.borrow_mut();
        if removing.extract_if(.., |r| r.pid == pid && r.replied.is_some()).count() > 0 {
            drop(removing);
            self.changed.wake_all();
        }
    }
    /// Until when attributes wait for a removal. `None`: no longer.
    fn until(&self, removing: &Removing) -> Option<Instant> {
        let now = self.ctx.now();
        let until = removing.replied.map_or(now + WAIT_MAX, |at| at + TAKES_OVER);
        (until > now).then_some(until)
    }
    /// The attributes that `read` returns, read again after every removal that they have to wait for.
    pub(crate) async fn read_beside(
        &self,
        read: impl AsyncFn() -> Result<ResolvedInode, Errno>,
    ) -> Result<ResolvedInode, Errno> {
        let end = self.ctx.now() + WAIT_MAX;
        loop {
            let entry = read().await?;
            let of_file = |r: &&Removing| r.file == entry.attr.fid;
            let until = self.removing.borrow().iter().filter(of_file).filter_map(|r| self.until(r)).max();
            let Some(until) = until else { return Ok(entry) };
            if entry.attr.nlink == 0 || self.ctx.now() >= end {
                return Ok(entry);
            }
            // Whether it was woken or the time is over, it looks again.
            let _ = self.ctx.timeout(until.min(end), self.changed.wait()).await;
        }
    }
}
