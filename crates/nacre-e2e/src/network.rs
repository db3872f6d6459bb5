//! Hosts of a test: network namespaces on one bridge, whose links can be cut.

use crate::shell::run as sh;
use anyhow::Result;
use std::path::Path;
use std::process::{Command, Stdio};

/// One namespace holds the bridge, each host has one of its own. Removed when dropped.
pub(crate) struct Network {
    /// In front of every name, so that two runs do not meet.
    prefix: String,
    hosts: Vec<(&'static str, &'static str)>,
}

impl Network {
    /// `hosts`: names and addresses in one /24. A name with its prefix has at most 15 characters.
    pub(crate) fn new(prefix: &str, hosts: &[(&'static str, &'static str)]) -> Result<Self> {
        let network = Self { prefix: prefix.to_owned(), hosts: hosts.to_vec() };
        network.clear();
        let ip = |args: &str| sh(Command::new("ip").args(args.split_whitespace()));
        let bridge = network.bridge();
        ip(&format!("netns add {bridge}"))?;
        ip(&format!("-n {bridge} link add br0 type bridge"))?;
        ip(&format!("-n {bridge} link set br0 up"))?;
        for (host, address) in hosts {
            let name = network.name(host);
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add {name} netns {bridge} type veth peer name eth0 netns {name}"))?;
            ip(&format!("-n {bridge} link set {name} master br0 up"))?;
            ip(&format!("-n {name} addr add {address}/24 dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(network)
    }
    fn name(&self, host: &str) -> String {
        format!("{}{host}", self.prefix)
    }
    fn bridge(&self) -> String {
        self.name("bridge")
    }

    /// `program` on a host. Only the network is the host's own: `ip netns exec` would hide the mounts from us.
    pub(crate) fn on(&self, host: &str, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name(host))).arg("--").arg(program);
        command
    }
    /// Takes a host off the network or brings it back: nothing is refused or closed, messages do not arrive.
    pub(crate) fn link(&self, host: &str, up: bool) -> Result<()> {
        let (bridge, name) = (self.bridge(), self.name(host));
        let state = if up { "up" } else { "down" };
        let status = Command::new("ip").args(["-n", &bridge, "link", "set", &name, state]).status()?;
        anyhow::ensure!(status.success(), "the link of {name} cannot be set {state}");
        Ok(())
    }
    fn clear(&self) {
        let hosts = self.hosts.iter().map(|(host, _)| self.name(host));
        for name in hosts.chain([self.bridge()]) {
            drop(Command::new("ip").args(["netns", "del", &name]).stderr(Stdio::null()).status());
        }
    }
}
impl Drop for Network {
    fn drop(&mut self) {
        self.clear();
    }
}
