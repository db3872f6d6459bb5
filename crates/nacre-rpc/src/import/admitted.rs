//! The properties that the target reported when it admitted this client: identity, instance, generation, features,
//! slots, wall clock.

use nacre_types::{ClientUuid, Generation, Instant, Timestamp};
use nacre_wire::target::{ConnectReply, features};

/// See the module. Empty before the first connect.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    generation: Generation,
    target: Option<ClientUuid>,
    instance: Option<u64>,
    /// Features and slots that both sides agree to.
    agreed: Option<(u64, u16)>,
    server_time: Option<ServerTime>,
    /// As of the latest ping of an MGS.
    config_version: u64,
}

/// The wall clock of a target at a moment between two moments of the local clock.
#[derive(Debug, Clone, Copy)]
pub struct ServerTime {
    /// When the connect was sent, on the clock of this process.
    pub sent: Instant,
    /// When its reply came.
    pub replied: Instant,
    /// The clock of the target between these moments.
    pub wall: Timestamp,
}

/// Differences to the former connection: a plain value.
pub(super) struct Differences {
    /// The target was created anew: its commit numbers have another meaning.
    pub(super) is_other_target: bool,
    /// The export is another one than before.
    pub(super) is_other_export: bool,
    /// The target was restarted.
    pub(super) is_other_instance: bool,
}

impl Admitted {
    /// Records a reply to connect.
    pub(super) fn record(&mut self, sent: Instant, now: Instant, reply: &ConnectReply) -> Differences {
        let differences = Differences {
            is_other_target: self.target.is_some_and(|old| old != reply.target),
            is_other_export: self.generation != Generation(0) && self.generation != reply.generation,
            is_other_instance: self.instance.is_some_and(|old| old != reply.instance),
        };
        self.target = Some(reply.target);
        self.generation = reply.generation;
        self.instance = Some(reply.instance);
        self.agreed = Some((reply.features, reply.max_mod_rpcs));
        self.server_time = Some(ServerTime { sent, replied: now, wall: reply.server_time });
        differences
    }
    /// Another target was admitted in the place of this one.
    pub(super) fn forget_target(&mut self) {
        (self.generation, self.target, self.instance) = (Generation(0), None, None);
    }
    pub(super) fn generation(&self) -> Generation {
        self.generation
    }
    pub(super) fn instance(&self) -> Option<u64> {
        self.instance
    }
    pub(super) fn features(&self) -> u64 {
        self.agreed.map_or(0, |(features, _)| features)
    }
    pub(super) fn max_mod_rpcs(&self) -> Option<u16> {
        self.agreed.map(|(_, slots)| slots)
    }
    /// The lower of both limits of slots; one slot if the target knows no more or has not replied yet.
    pub(super) fn slots(&self, configured: u16) -> u16 {
        match self.agreed {
            Some((known, _)) if known & features::MULTI_MOD_RPCS == 0 => 1,
            Some((_, theirs)) => configured.min(theirs),
            None => 1,
        }
    }
    pub(super) fn server_time(&self) -> Option<ServerTime> {
        self.server_time
    }
    pub(super) fn config_version(&self) -> u64 {
        self.config_version
    }
    pub(super) fn set_config_version(&mut self, version: u64) {
        self.config_version = version;
    }
}
