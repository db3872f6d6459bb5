//! Two clocks that are never mixed: `Instant` for deadlines, `Timestamp` for times of files.

use core::ops::{Add, Sub};
use core::time::Duration;

/// Nanoseconds of CLOCK_BOOTTIME (or of the simulator). Only differences are meaningful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The time since `earlier`; zero if it is later.
    pub fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}
impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_since(earlier)
    }
}

/// Wall clock time of files: seconds since 1970, negative before, and nanoseconds 0..1e9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub sec: i64,
    /// Below 1e9; added to `sec`, also when that is negative.
    pub nsec: u32,
}

impl Timestamp {
    /// Nanoseconds since 1970, as a single number.
    pub fn from_nanos(ns: i128) -> Self {
        let sec = ns.div_euclid(1_000_000_000);
        Self { sec: sec as i64, nsec: (ns - sec * 1_000_000_000) as u32 }
    }
    /// Exact inverse of [`Timestamp::from_nanos`].
    pub fn as_nanos(self) -> i128 {
        i128::from(self.sec) * 1_000_000_000 + i128::from(self.nsec)
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;
    fn add(self, d: Duration) -> Timestamp {
        Self::from_nanos(self.as_nanos() + i128::from(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl<'a> crate::Codec<'a> for Timestamp {
    #[inline]
    fn encode(&self, w: &mut crate::Writer) {
        self.sec.encode(w);
        self.nsec.encode(w);
    }
    #[inline]
    fn decode(r: &mut crate::Reader<'a>) -> Result<Self, crate::DecodeError> {
        let (sec, nsec) = (i64::decode(r)?, u32::decode(r)?);
        if nsec >= 1_000_000_000 {
            return Err(crate::DecodeError::BadValue { what: "nanoseconds", value: u64::from(nsec) });
        }
        Ok(Self { sec, nsec })
    }
}
