//! Two processes that serve one target: when a copy of a store is started beside the living original, the original stays.
//!
//! A target connects to others under its own uuid, so that its next start finds its export again. A copy of its store has
//! the same uuid and the same secrets; only the openings of the two stores differ (`Connect::instance`). While the process
//! that has the export (the *holder*) may be alive, another one (its *rival*) is not admitted:
//! - the holder is alive if a message of it arrives after the rival's connect, or if it replies at its registered addresses:
//!   the rival is refused for good and ends (`registration.rs`);
//! - the holder has ended if its connection is closed and each of these addresses is served by no process, or by one that
//!   is not the holder: the rival replaces it at once. So a target that was killed is registered again without a wait;
//! - otherwise (it was stopped, or the network is cut) the rival waits until the lease of the export has run out.
//!
//! Clients are not compared: their uuid is new at each start. The MGS knows the addresses. An OST does not know those
//! of its MDT, and treats a closed connection as the end of the process. Not here: the connect itself (`island/contest.rs`).

use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;
use nacre_node::{Ctx, Peer, PeerConfig, Peers};
use nacre_types::{ClientUuid, Incarnation, Instant, Remembered, Secret, TargetName, Transno};
use nacre_wire::target::Role;

/// A living process replies to a probe within this time; probes are repeated at this interval.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The registered addresses of a target.
#[derive(Debug, Clone)]
pub struct Whereabouts {
    /// Its name.
    pub name: TargetName,
    /// All of them are probed at the same time.
    pub addresses: Vec<String>,
}

/// The process that has an export, and its rival.
#[derive(Debug, Default)]
pub(crate) struct Contest {
    holder: u64,
    rival: Option<Rival>,
}

#[derive(Debug)]
struct Rival {
    instance: u64,
    since: Instant,
    probe: Probe,
}

#[derive(Debug, Clone, Copy)]
enum Probe {
    NotBegun,
    Running,
    Ended { found: Found, at: Instant },
}

/// The result of a probe of all registered addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The process that has the export.
    Holder,
    /// No process serves the target there, or another one does.
    Absent,
    /// At least one address has not replied in time.
    Silent,
}

/// The decision about a connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The holder has ended, or it is the holder that connects.
    Admit,
    /// The holder is alive.
    Refuse,
    /// It is not known yet whether the holder is alive.
    Wait {
        /// This is the rival's first connect.
        begins: bool,
        /// The addresses are to be probed now.
        asks: bool,
    },
}

impl Contest {
    /// The process with this instance has the export.
    pub(crate) fn held_by(instance: u64) -> Self {
        Self { holder: instance, rival: None }
    }
    /// See [`nacre_wire::target::Connect::instance`].
    pub(crate) fn holder(&self) -> u64 {
        self.holder
    }

    /// Decides about a connect of the holder or of another process. The other arguments concern the holder: whether it is
    /// connected, when its latest message since the start of this target arrived, and its addresses.
    pub(crate) fn judge(
        &mut self,
        instance: u64,
        now: Instant,
        is_connected: bool,
        last_message: Option<Instant>,
        known: Option<&Whereabouts>,
    ) -> Verdict {
        if instance == self.holder {
            return Verdict::Admit;
        }
        let begins = self.rival.as_ref().is_none_or(|rival| rival.instance != instance);
        if begins {
            self.rival = Some(Rival { instance, since: now, probe: Probe::NotBegun });
        }
        let Some(rival) = &mut self.rival else { return Verdict::Admit };
        let (found, is_due) = match rival.probe {
            Probe::NotBegun => (Found::Silent, true),
            Probe::Running => (Found::Silent, false),
            Probe::Ended { found, at } => (found, at + PROBE_TIMEOUT <= now),
        };
        let has_sent = last_message.is_some_and(|at| at > rival.since);
        if has_sent || found == Found::Holder {
            self.rival = None; // a later connect is decided anew
            return Verdict::Refuse;
        }
        if !is_connected && (known.is_none() || found == Found::Absent) {
            return Verdict::Admit;
        }
        let asks = is_due && known.is_some();
        if asks {
            rival.probe = Probe::Running;
        }
        Verdict::Wait { begins, asks }
    }

    /// Records the result of a probe, for the next connect of the rival.
    pub(crate) fn probed(&mut self, instance: u64, found: Found, now: Instant) {
        if let Some(rival) = self.rival.as_mut().filter(|rival| rival.instance == instance) {
            rival.probe = Probe::Ended { found, at: now };
        }
    }
}

/// Probes all addresses of a target: does the process that opened its store as `holder` serve it?
pub(crate) async fn probe_holder(
    ctx: &Rc<Ctx>,
    peers: &Rc<Peers>,
    (uuid, holder): (ClientUuid, u64),
    known: &Whereabouts,
    asker: &TargetName,
) -> Found {
    let any = Remembered { uuid, incarnation: Incarnation::default(), committed: Transno(0) };
    let deadline = ctx.now() + PROBE_TIMEOUT;
    let ask = |address: &String| {
        let config = PeerConfig {
            client: uuid,
            role: Role::Tool,
            secret: Secret::default(),
            name: asker.to_string(),
            target: known.name.to_string(),
            addresses: Vec::from([address.clone()]),
            max_mod_rpcs: 1,
            known: Some(any),
            replaced: 0,
            instance: 0,
        };
        Peer::new(ctx, peers, config)
    };
    let asked: Vec<Rc<Peer>> = known.addresses.iter().map(ask).collect();
    let mut all = Found::Absent;
    for peer in &asked {
        let found = loop {
            if let Some(found) = result_of(peer, holder) {
                break found;
            }
            if ctx.now() >= deadline {
                break Found::Silent;
            }
            let _changed = ctx.timeout(deadline, peer.changed()).await;
        };
        all = match (all, found) {
            (Found::Holder, _) | (_, Found::Holder) => Found::Holder,
            (Found::Silent, _) | (_, Found::Silent) => Found::Silent,
            (Found::Absent, Found::Absent) => Found::Absent,
        };
    }
    for peer in asked {
        ctx.spawn(async move { peer.disconnect().await });
    }
    all
}

/// The result of one address, if it has replied.
fn result_of(peer: &Peer, holder: u64) -> Option<Found> {
    if peer.is_connected() {
        let incarnation = peer.remembered().map_or(0, |found| found.incarnation.id);
        return Some(if incarnation == holder { Found::Holder } else { Found::Absent });
    }
    (peer.is_absent() || peer.mismatch().is_some()).then_some(Found::Absent)
}
