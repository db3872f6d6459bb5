//! Access to the targets of a mount: calls wait for a target that is not known yet, however long it is away.

use crate::api::{Attach, Connection};
use crate::client::Client;
use crate::targets::target::Target;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use nacre_types::{Errno, OstIndex, Timestamp};

/// The first report of an attach comes after that time.
const ATTACH_QUIET: Duration = Duration::from_secs(1);

impl Client {
    /// The MDT, as soon as it is known.
    pub(crate) async fn mdt(&self) -> Result<Rc<Target>, Errno> {
        loop {
            if let Some(mdt) = self.mount.known_mdt() {
                return Ok(mdt);
            }
            if self.mount.stopped.get() {
                return Err(Errno::ESHUTDOWN);
            }
            self.mount.changed.wait().await;
        }
    }

    /// An OST of a layout. One that the MGS does not know even when asked again is an error, not a wait.
    pub(crate) async fn ost(&self, index: OstIndex) -> Result<Rc<Target>, Errno> {
        let asked = self.mount.lists.get();
        loop {
            if let Some(ost) = self.mount.osts.borrow().get(&index) {
                return Ok(ost.clone());
            }
            if self.mount.stopped.get() {
                return Err(Errno::ESHUTDOWN);
            }
            if self.mount.lists.get() > asked + 1 {
                tracing::error!(
                    fs = %self.config.fs,
                    ost = index.0,
                    "a layout names an OST that the MGS does not know: start it, or remove the file"
                );
                return Err(Errno::EIO);
            }
            self.mount.kick.wake_all();
            self.mount.changed.wait().await;
        }
    }

    /// Time for what this mount writes: its wall clock corrected by the MDT's, strictly growing.
    pub(crate) fn now(&self) -> Timestamp {
        let offset = self.mount.known_mdt().map_or(0, |mdt| mdt.peer.wall_offset_ns());
        let now = self.ctx.wall().as_nanos() + i128::from(offset);
        let now = now.max(self.mount.last_time.get() + 1);
        self.mount.last_time.set(now);
        Timestamp::from_nanos(now)
    }

    /// Waits until the MGS and the MDT have been reached.
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
            if let Some(mdt) = self.mount.known_mdt() {
                mdt.peer.connected().await;
                return Ok(());
            }
            self.mount.changed.wait().await;
        }
    }

    /// Like [`Client::ready`]; reports to `tell` why the mount waits, each reason once, and at last the outcome.
    pub async fn attach(&self, tell: impl Fn(Attach)) {
        let mut told = Vec::new();
        let end = loop {
            if let Some(end) = self.ctx.timeout(self.ctx.now() + ATTACH_QUIET, self.ready()).await {
                break end;
            }
            let waits = self.waits_for();
            if !told.contains(&waits) && told.len() + 1 < Attach::NEWS_MAX {
                tell(Attach::Waiting(waits.clone()));
                told.push(waits);
            }
        };
        tell(end.map_or_else(Attach::Failed, |()| Attach::Ready));
    }

    fn waits_for(&self) -> String {
        let missing = |t: &Target| {
            let at = t.peer.with_import(|import| import.config().addresses.join(", "));
            match t.peer.last_error() {
                Some(why) if why.contains(&at) => format!("{}: {why}", t.name),
                Some(why) => format!("{} at {at}: {why}", t.name),
                None => format!("{} at {at}: no answer so far", t.name),
            }
        };
        let mgs = &self.mount.mgs;
        match self.mount.known_mdt() {
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
