//! Fault points: named moments at which a target fails on purpose, once or several times.
//!
//! Set by `lctl set_param fail_loc=NAME` in builds for tests ([`crate::TargetConfig::fault_points`]), and by the
//! simulator. All but the barrier take effect at the next change that a client with a lease requests. An open connection
//! loses no message; therefore a fault point that drops a message also closes its connection, and the client resends.

use alloc::format;
use alloc::string::{String, ToString};
use core::cell::Cell;
use nacre_node::Ctx;
use nacre_wire::Class;

/// A fault point. The numbers are for `fail_loc=0x…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is not executed.
    RequestLostBefore = 1,
    /// The request is executed, but its connection ends first: the resend meets the running request or its record.
    RequestLostAfter = 2,
    /// The request is executed, and the connection ends instead of carrying the reply.
    ReplyLost = 3,
    /// The change is durable, then the target ends without a reply.
    CrashAfterCommit = 4,
    /// Nothing reaches the store any more: log writes are dropped, and tasks that wait for the device go on waiting. Changes
    /// with a reply that are not committed are lost with the process, as they would be with the machine.
    Barrier = 5,
}

impl Fault {
    /// All fault points.
    pub const ALL: [Self; 5] = [
        Self::RequestLostBefore,
        Self::RequestLostAfter,
        Self::ReplyLost,
        Self::CrashAfterCommit,
        Self::Barrier,
    ];
    /// The name for `fail_loc`.
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestLostBefore => "request_lost_before",
            Self::RequestLostAfter => "request_lost_after",
            Self::ReplyLost => "reply_lost",
            Self::CrashAfterCommit => "crash_after_commit",
            Self::Barrier => "barrier",
        }
    }
    /// Its name, or its number as `0x…`.
    fn parse(text: &str) -> Option<Self> {
        let number = text.strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok());
        Self::ALL.into_iter().find(|f| f.name() == text || number == Some(*f as u32))
    }
}

/// The fault point that is set on a target.
pub(crate) struct Faults {
    set: Cell<Option<Fault>>,
    /// How often a fault that is set strikes.
    times: Cell<u32>,
    /// How often this one still does.
    left: Cell<u32>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { set: Cell::new(None), times: Cell::new(1), left: Cell::new(0) }
    }
}

impl Faults {
    /// Whether this fault strikes now; counts.
    pub(crate) fn strikes(&self, fault: Fault) -> bool {
        if self.set.get() != Some(fault) {
            return false;
        }
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.set.set(None);
        }
        tracing::warn!(fault = fault.name(), left = self.left.get(), "fault point");
        true
    }
    /// The same for a request; only changes are affected.
    pub(crate) fn strikes_change(&self, fault: Fault, class: Class) -> bool {
        matches!(class, Class::Modify | Class::Close) && self.strikes(fault)
    }
    /// Call between two visits: the log of the visit in which the barrier was set is still written, so that a sync which that
    /// visit has requested reports no more than is durable.
    pub(crate) fn end_of_visit(&self, ctx: &Ctx) {
        if self.strikes(Fault::Barrier) {
            ctx.raise_barrier();
        }
    }

    // ---- parameters

    pub(crate) fn fail_loc(&self, ctx: &Ctx) -> String {
        match self.set.get() {
            Some(fault) => fault.name().to_string(),
            None if ctx.is_barred() => Fault::Barrier.name().to_string(),
            None => "0".to_string(),
        }
    }
    pub(crate) fn fail_val(&self) -> String {
        self.times.get().to_string()
    }
    /// Sets a fault point by its name or number.
    ///
    /// # Errors
    /// The reason for the user.
    pub(crate) fn set_loc(&self, ctx: &Ctx, value: &str) -> Result<(), String> {
        if ctx.is_barred() {
            return Err("the barrier holds until the target is started again".to_string());
        }
        let fault = Fault::parse(value);
        if fault.is_none() && !matches!(value, "0" | "0x0") {
            let names = Fault::ALL.map(Fault::name).join(", ");
            return Err(format!("no such fault point\nhint: {names}, or 0 for none"));
        }
        self.set.set(fault);
        self.left.set(self.times.get());
        Ok(())
    }
    /// How often a fault point strikes that is set afterwards.
    pub(crate) fn set_val(&self, times: u32) {
        self.times.set(times);
    }
}
