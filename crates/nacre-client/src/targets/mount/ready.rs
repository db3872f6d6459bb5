//! Access to the targets of a mount: calls wait for a target that is not known yet, however long it is away.

use crate::api::{Attach, Connection};
use crate::client::Client;
use crate::targets::mdt::Mdt;
use crate::targets::mount::Mount;
use crate::targets::target::Target;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use nacre_node::join_all;
use nacre_types::{Errno, Fid, OstIndex, Timestamp};

/// The first report of an attach comes after that time.
const ATTACH_QUIET: Duration = Duration::from_secs(1);
/// OSTs that are up are reached within that time, so that `nacre status` after a mount does not find them missing.
const OSTS_WAIT: Duration = Duration::from_millis(500);
/// Changes of other mounts move the time of this one forward by so much at the most.
const AHEAD_MAX_NS: i128 = 1_000_000_000;

impl Client {
    /// The MDT that has the inode of this FID: where every request about the inode goes, and for a directory those about its
    /// names. Waits for the MDT of the root; for another one that the MGS does not know, the FID is stale.
    pub(crate) async fn mdt_of(&self, fid: Fid) -> Result<Rc<Mdt>, Errno> {
        if fid.mdt() == Fid::ROOT.mdt() {
            return self.root_mdt().await;
        }
        self.listed(|mount| mount.mdt_of(fid)).await?.ok_or(Errno::ESTALE)
    }

    /// The MDT of the root directory, as soon as it is known: for requests about no inode.
    pub(crate) async fn root_mdt(&self) -> Result<Rc<Mdt>, Errno> {
        loop {
            if let Some(mdt) = self.mount.mdt_of(Fid::ROOT) {
                return Ok(mdt);
            }
            if self.mount.stopped.get() {
                return Err(Errno::ESHUTDOWN);
            }
            self.mount.changed.wait().await;
        }
    }

    /// An OST of a layout. If the MGS does not know it even when asked again, the call fails instead of waiting.
    pub(crate) async fn ost(&self, index: OstIndex) -> Result<Rc<Target>, Errno> {
        self.listed(|mount| mount.osts.borrow().get(&index).cloned()).await?.ok_or_else(|| {
            tracing::error!(
                fs = %self.config.fs,
                ost = index.0,
                "a layout names an OST that the MGS does not know: start it, or remove the file"
            );
            Errno::EIO
        })
    }

    /// A target of the list; `None` if it is not in the list even after the MGS was asked again.
    async fn listed<T>(&self, find: impl Fn(&Mount) -> Option<T>) -> Result<Option<T>, Errno> {
        let asked = self.mount.lists.get();
        loop {
            if let Some(target) = find(&self.mount) {
                return Ok(Some(target));
            }
            if self.mount.stopped.get() {
                return Err(Errno::ESHUTDOWN);
            }
            if self.mount.lists.get() > asked + 1 {
                return Ok(None);
            }
            self.mount.list_wanted.wake_all();
            self.mount.changed.wait().await;
        }
    }

    /// Time for what this mount writes: its wall clock corrected by that of the root's MDT, strictly growing.
    pub fn now(&self) -> Timestamp {
        let now = self.clock_ns().max(self.mount.last_time.get() + 1);
        self.mount.last_time.set(now);
        Timestamp::from_nanos(now)
    }
    /// This mount knows of a change that was made at `time`: its own next change is a later one, although its clock may lag
    /// behind that of the other mount. Otherwise a write would not replace a time that the other mount has set just before.
    pub(crate) fn note_time(&self, time: Timestamp) {
        let time = time.as_nanos();
        // A wrong clock elsewhere must not spread.
        if time > self.mount.last_time.get() && time - self.clock_ns() <= AHEAD_MAX_NS {
            self.mount.last_time.set(time);
        }
    }
    fn clock_ns(&self) -> i128 {
        let offset = self.mount.mdt_of(Fid::ROOT).map_or(0, |mdt| mdt.peer.wall_offset_ns());
        self.ctx.wall().as_nanos() + i128::from(offset)
    }

    /// Waits until the MGS and the MDT of the root have been reached.
    ///
    /// # Errors
    /// A sentence for the user: what is missing, where, what to do. Only for errors that waiting cannot mend.
    pub async fn ready(&self) -> Result<(), String> {
        loop {
            if let Some(sentence) = &*self.mount.failure.borrow() {
                return Err(sentence.clone());
            }
            if self.mount.stopped.get() {
                return Err(String::from("the mount was stopped"));
            }
            if let Some(mdt) = self.mount.mdt_of(Fid::ROOT) {
                mdt.peer.connected().await;
                return Ok(());
            }
            self.mount.changed.wait().await;
        }
    }

    /// Like [`Client::ready`]; reports why the mount waits, each reason once, and at last the outcome.
    pub async fn attach(&self, report: impl Fn(Attach)) {
        let mut reported = Vec::new();
        let end = loop {
            if let Some(end) = self.ctx.timeout(self.ctx.now() + ATTACH_QUIET, self.ready()).await {
                break end;
            }
            let waits = self.waits_for();
            if !reported.contains(&waits) && reported.len() + 1 < Attach::NEWS_MAX {
                report(Attach::Waiting(waits.clone()));
                reported.push(waits);
            }
        };
        if end.is_ok() {
            let reached =
                join_all(self.mount.osts().into_iter().map(|ost| async move { ost.peer.connected().await }));
            // One that is down does not keep the mount.
            let _down = self.ctx.timeout(self.ctx.now() + OSTS_WAIT, reached).await;
            self.send_left_writes().await;
        }
        report(end.map_or_else(Attach::Failed, |()| Attach::Ready));
    }

    fn waits_for(&self) -> String {
        let missing = |t: &Target| {
            let at = t.peer.with_import(|import| import.config().addresses.join(", "));
            match t.peer.last_error() {
                Some(why) if why.contains(&at) => format!("{}: {why}", t.name),
                Some(why) => format!("{} at {at}: {why}", t.name),
                None => format!("{} at {at}: no reply so far", t.name),
            }
        };
        let mgs = &self.mount.mgs;
        match self.mount.mdt_of(Fid::ROOT) {
            Some(mdt) => missing(&mdt),
            None if mgs.peer.is_connected() => {
                format!("the metadata target of `{}`: the MGS does not know it yet", self.config.fs)
            }
            None => missing(mgs),
        }
    }

    /// State of every connection, for callers that wait for `ready`.
    pub fn connections(&self) -> Vec<Connection> {
        let state = |t: Rc<Target>| Connection {
            target: t.name.clone(),
            connected: t.peer.is_connected(),
            error: t.peer.last_error(),
        };
        self.mount.targets().into_iter().map(state).collect()
    }
}
