//! How many connections a process lets in, from the command line and from what it may have open.

use crate::store;
use nacre_rt::Config;

#[derive(clap::Args, Debug)]
pub(crate) struct ConnectionArgs {
    /// Connections that are let in at each address; more are refused (each mount has one to every target)
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    max_connections: u32,
    /// Of these, connections from one host (an IPv4 address, an IPv6 network of 64 bits)
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    max_connections_per_host: u32,
}

impl ConnectionArgs {
    /// Never so many that the process runs out of descriptors: half of them are for the stores, and there are two
    /// addresses as a rule.
    pub(crate) fn config(&self) -> Config {
        let most = usize::try_from(store::raise_descriptor_limit() / 5).unwrap_or(usize::MAX);
        let bounded = |wanted: u32| most.min(wanted as usize);
        let connections_max = bounded(self.max_connections);
        if connections_max < self.max_connections as usize {
            tracing::info!(
                connections_max,
                "fewer connections than asked for: the limit of open files is low"
            );
        }
        let connections_per_host_max = bounded(self.max_connections_per_host);
        Config { connections_max, connections_per_host_max, ..Config::default() }
    }
}
