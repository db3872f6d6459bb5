//! Two processes in the name of one target: of a copy that is started beside the living original, the original is kept.
//!
//! A target connects to others under its own uuid, so that its next start finds its export again. A copy of its store has
//! the same uuid and the same secrets; only the openings of the two stores differ (`Connect::instance`). While the process
//! that has the export (the *holder*) may live, another one (its *rival*) is not let in:
//! - the holder lives if a message of it comes after the rival has, or if it answers at its registered addresses: the rival is
//!   refused for good and ends (`registration.rs`);
//! - it has ended if its connection is gone and each of these addresses says that nobody, or somebody else, serves the target
//!   there: the rival takes its place at once. So a target that was killed is registered again without a wait;
//! - else (it was stopped, or the network is cut) the rival waits until the lease of the export has run out.
//!
//! Clients are not compared: their uuid is new at each start. The addresses are known to an MGS. An OST does not know those of
//! its MDT, and takes a connection that is gone for the end of the process. Not here: the connect itself (`connect.rs`).

use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;
use nacre_node::{Ctx, Peer, PeerConfig, Peers};
use nacre_types::{ClientUuid, Incarnation, Instant, Remembered, Secret, TargetName, Transno};
use nacre_wire::target::Role;

/// A process that lives answers within this time; asked again as often.
const PROBE_MAX: Duration = Duration::from_secs(1);

/// Where a target is served, as it has registered.
#[derive(Debug, Clone)]
pub struct Whereabouts {
    /// Its name, which its server is asked for.
    pub name: TargetName,
    /// All of them are asked at the same time.
    pub addresses: Vec<String>,
}

/// Which process has an export, and which other one wants it.
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

/// What the registered addresses of a target have answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The process that has the export.
    Holder,
    /// Nobody serves the target there, or another process does.
    Absent,
    /// At least one has not answered in time.
    Silent,
}

/// What becomes of a connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The holder has ended, or it is the holder that connects.
    Admit,
    /// The holder lives.
    Refuse,
    /// Nobody knows yet.
    Wait {
        /// The rival comes for the first time.
        begins: bool,
        /// The addresses are to be asked now.
        asks: bool,
    },
}

impl Contest {
    /// Of an export that this process has.
    pub(crate) fn held_by(instance: u64) -> Self {
        Self { holder: instance, rival: None }
    }
    /// See [`nacre_wire::target::Connect::instance`].
    pub(crate) fn holder(&self) -> u64 {
        self.holder
    }

    /// Another process, or the holder, wants the export. Of the holder it is known whether its connection stands, when it was
    /// `heard` last since the start of this target, and where it is served.
    pub(crate) fn judge(
        &mut self,
        instance: u64,
        now: Instant,
        is_connected: bool,
        heard: Option<Instant>,
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
            Probe::Ended { found, at } => (found, at + PROBE_MAX <= now),
        };
        let was_heard = heard.is_some_and(|at| at > rival.since);
        if was_heard || found == Found::Holder {
            self.rival = None; // it is compared anew if it comes again
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

    /// What was found for a rival, for its next connect.
    pub(crate) fn probed(&mut self, instance: u64, found: Found, now: Instant) {
        if let Some(rival) = self.rival.as_mut().filter(|rival| rival.instance == instance) {
            rival.probe = Probe::Ended { found, at: now };
        }
    }
}

/// Asks at all addresses of a target whether the process that opened its store as `holder` serves it.
pub(crate) async fn who_answers(
    ctx: &Rc<Ctx>,
    peers: &Rc<Peers>,
    (uuid, holder): (ClientUuid, u64),
    known: &Whereabouts,
    asker: &TargetName,
) -> Found {
    let any = Remembered { uuid, incarnation: Incarnation::default(), committed: Transno(0) };
    let until = ctx.now() + PROBE_MAX;
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
            if let Some(found) = answer(peer, holder) {
                break found;
            }
            if ctx.now() >= until {
                break Found::Silent;
            }
            let _changed = ctx.timeout(until, peer.changed()).await;
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

/// What one address has answered so far.
fn answer(peer: &Peer, holder: u64) -> Option<Found> {
    if peer.is_connected() {
        let incarnation = peer.remembered().map_or(0, |found| found.incarnation.id);
        return Some(if incarnation == holder { Found::Holder } else { Found::Absent });
    }
    (peer.is_absent() || peer.mismatch().is_some()).then_some(Found::Absent)
}
