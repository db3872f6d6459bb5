//! Sites of a load, and the counters of the requests that it causes.

use super::worker::Phase;
use crate::cmd::lfs;
use anyhow::Result;
use nacre_wire::target::Param;
use std::path::Path;

/// A place for a load. Every round has directories of its own.
pub(super) trait Site {
    /// Makes the directories of a round.
    fn begin(&mut self, round: u32) -> Result<()>;
    /// Runs a phase in all workers at a time; operations per second.
    fn run(&mut self, phase: Phase) -> Result<f64>;
    /// Removes the directories of the round.
    fn end(&mut self) -> Result<()>;
    /// The parameters `mdc.*` as they are now.
    fn mdc(&mut self) -> Result<Mdc>;
    fn set(&mut self, param: &Param, value: &str) -> Result<()>;
}

/// The instance of the mount that `dir` is on: it is in the name of each of its devices.
///
/// # Errors
/// The directory is on another file system.
pub(super) fn instance(dir: &Path) -> Result<String> {
    let name = lfs::attribute(dir, "nacre.mount")?;
    Ok(name.trim().rsplit('-').next().unwrap_or("*").to_owned())
}

/// A snapshot of the parameters `mdc.*` of one or more mounts.
pub(super) struct Mdc(pub(super) Vec<Param>);

impl Mdc {
    /// Those called `mdc.*.FIELD`.
    pub(super) fn named<'a>(&'a self, field: &'a str) -> impl Iterator<Item = &'a Param> + 'a {
        self.0.iter().filter(move |p| p.name.rsplit('.').next() == Some(field))
    }

    /// Requests to the MDT so far, without those that keep the connection.
    pub(super) fn requests(&self) -> u64 {
        self.samples().map(|(n, _)| n).sum()
    }

    /// The shortest time, in microseconds, that a request has taken: about the round trip.
    pub(super) fn round_trip_us(&self) -> Option<u64> {
        self.samples().map(|(_, least)| least).min()
    }

    /// Samples and the least value of each kind of request.
    fn samples(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.named("stats").flat_map(|p| p.value.lines()).filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, n, "samples", _, least, ..] = words[..] else { return None };
            let other = matches!(name, "connect" | "disconnect" | "obd_ping" | "seq_query");
            Some((n.parse().ok()?, least.parse().ok()?)).filter(|_| !other)
        })
    }

    /// Modifying requests in flight when each was sent: mean and most.
    pub(super) fn in_flight(&self) -> (f64, u64) {
        let (mut requests, mut sum, mut most) = (0, 0, 0);
        for line in self.named("rpc_stats").flat_map(|p| p.value.lines()) {
            let Some((number, rest)) = line.split_once(":\t") else { continue };
            let count = rest.split_whitespace().next().and_then(|c| c.parse::<u64>().ok());
            let (Ok(number), Some(count)) = (number.parse::<u64>(), count) else { continue };
            requests += count;
            sum += number * count;
            most = if count > 0 { most.max(number) } else { most };
        }
        (sum as f64 / requests.max(1) as f64, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_the_texts_that_people_see() {
        let param = |name: &str, value: &str| Param {
            name: name.into(),
            value: value.into(),
            writable: true,
            help: String::new(),
        };
        let stats = "snapshot_time   1.000000000 secs.nsecs\n\
                     mds_close                   5 samples [usecs] 1010 1900 6000 70\n\
                     mds_reint_create            7 samples [usecs] 1005 1900 6000 70\n\
                     obd_ping                    9 samples [usecs] 3 4 5 6\n";
        let histogram = "modify_RPCs_in_flight:  0\n\n\t\t\tmodify\nrpcs in flight        rpcs   % cum %\n\
                         0:\t\t         0   0   0\n1:\t\t         3  75  75\n5:\t\t         1  25 100\n";
        let mdc = Mdc(vec![
            param("mdc.demo-MDT0000-mdc-1.stats", stats),
            param("mdc.demo-MDT0000-mdc-1.rpc_stats", histogram),
        ]);
        assert_eq!(mdc.requests(), 12);
        assert_eq!(mdc.round_trip_us(), Some(1005));
        assert_eq!(mdc.in_flight(), (2.0, 5));
    }
}
