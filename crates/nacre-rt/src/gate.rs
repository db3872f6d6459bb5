//! Connection limits of a listener: in total, and per host.
//!
//! Each listener has its own gate, so that a flood over TCP does not block the unix socket (which tools use). A place
//! is taken until the descriptor is closed. Not here: connections that this process opens.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The host of a peer: an IPv4 address, or the first half of an IPv6 address, because a host owns the whole second
/// half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Host {
    V4([u8; 4]),
    V6([u8; 8]),
}
impl Host {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.octets()),
            IpAddr::V6(v6) => {
                let [a, b, c, d, e, f, g, h, ..] = v6.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

/// The bounds of one listener, and its current connections.
#[derive(Debug)]
pub(crate) struct Gate {
    max: usize,
    per_host_max: usize,
    inside: Mutex<Inside>,
}
#[derive(Debug, Default)]
struct Inside {
    all: usize,
    /// Only hosts with a connection: as many entries as connections at most.
    by_host: BTreeMap<Host, usize>,
}

/// A place behind a gate; released when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    gate: Arc<Gate>,
    host: Option<Host>,
}

impl Gate {
    pub(crate) fn new(max: usize, per_host_max: usize) -> Arc<Self> {
        Arc::new(Self { max, per_host_max, inside: Mutex::default() })
    }
    /// Takes a place for a peer; without an address it counts only in the total.
    ///
    /// # Errors
    /// The reason of the refusal, for the log.
    pub(crate) fn admit(self: &Arc<Self>, from: Option<IpAddr>) -> Result<Place, String> {
        let host = from.map(Host::of);
        let mut inside = self.lock();
        if inside.all >= self.max {
            return Err(format!("refused, {} connections are there already (--max-connections)", inside.all));
        }
        if let Some(host) = host {
            let of_host = inside.by_host.get(&host).copied().unwrap_or(0);
            if of_host >= self.per_host_max {
                return Err(format!(
                    "refused, {of_host} connections of that host are there already (--max-connections-per-host)"
                ));
            }
            inside.by_host.insert(host, of_host + 1);
        }
        inside.all += 1;
        Ok(Place { gate: self.clone(), host })
    }
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inside = self.gate.lock();
        inside.all -= 1;
        let Some(host) = self.host else { return };
        if let Some(of_host) = inside.by_host.get_mut(&host) {
            *of_host -= 1;
            if *of_host == 0 {
                inside.by_host.remove(&host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_and_all_together_have_their_bound_and_places_come_back() {
        let gate = Gate::new(5, 2);
        let from = |text: &str| gate.admit(Some(text.parse().unwrap()));
        let mut inside = vec![from("10.0.0.1"), from("10.0.0.1")];
        assert!(from("10.0.0.1").unwrap_err().contains("2 connections of that host"));
        assert!(from("::ffff:10.0.0.1").is_err(), "the same host");
        inside.extend([from("2001:db8::1"), from("2001:db8::2")]);
        assert!(from("2001:db8::3").is_err(), "the same network of one host");
        inside.push(gate.admit(None));
        assert!(inside.iter().all(Result::is_ok));
        assert!(from("10.0.0.2").unwrap_err().contains("5 connections are there"));
        inside.remove(0).unwrap();
        inside.push(from("10.0.0.1"));
        assert!(inside.iter().all(Result::is_ok));
        drop(inside);
        let left = gate.lock();
        assert!(left.all == 0 && left.by_host.is_empty(), "{left:?}");
    }

    #[test]
    fn who_is_refused_leaves_nothing_behind() {
        let gate = Gate::new(5, 0);
        for host in 1..=100 {
            assert!(gate.admit(Some(IpAddr::from([10, 0, 0, host]))).is_err());
        }
        assert!(gate.lock().by_host.is_empty());
    }
}
