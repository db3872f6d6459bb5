//! The limits of connections to a process, from the command line and from its limit of open files.

use crate::output;
use crate::process::store;
use nacre_rt::Config;

const CONNECTIONS: u32 = 4096;
const CONNECTIONS_PER_HOST: u32 = 1024;

#[derive(clap::Args, Debug)]
pub(crate) struct ConnectionArgs {
    /// Connections accepted at each address; more are refused (each mount has one to every target) (default: 4096)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=65_536))]
    max_connections: Option<u32>,
    /// Of these, connections from one host (an IPv4 address, an IPv6 network of 64 bits) (default: 1024)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=65_536))]
    max_connections_per_host: Option<u32>,
}

impl ConnectionArgs {
    /// Bounded so that the process does not run out of descriptors: half of them are for the stores, and a process usually
    /// listens at two addresses.
    pub(crate) fn config(&self) -> Config {
        let most = usize::try_from(store::raise_descriptor_limit() / 5).unwrap_or(usize::MAX);
        let bounded = |wanted: u32| most.min(wanted as usize);
        let connections_max = bounded(self.max_connections.unwrap_or(CONNECTIONS));
        let connections_per_host_max = bounded(self.max_connections_per_host.unwrap_or(CONNECTIONS_PER_HOST));
        for (option, wanted, holds) in [
            ("--max-connections", self.max_connections, connections_max),
            ("--max-connections-per-host", self.max_connections_per_host, connections_per_host_max),
        ] {
            if let Some(wanted) = wanted.filter(|wanted| holds < *wanted as usize) {
                output::note(&format!(
                    "nacre: {option} {wanted}: {holds} holds, a fifth of the limit of open files\nhint: ulimit -n"
                ));
            }
        }
        Config { connections_max, connections_per_host_max, ..Config::default() }
    }
}
