//! FUSE-over-io_uring: a queue and a thread per CPU, so that a request is served on the CPU of its caller.
//!
//! A wake-up on another CPU costs more than most requests, so the kernel can put a request into the queue of the CPU on
//! which it is made. It does so once every possible CPU has a queue with a slot; INIT, FORGET, INTERRUPT and
//! notifications stay on /dev/fuse. INIT negotiates io_uring; from then on requests wait until the queues exist, so
//! every step that can fail is taken before the reply to INIT. The module parameter `enable_uring` of fuse is off by
//! default.
//!
//! `ring.rs` is the io_uring, `slots.rs` its memory, `queue.rs` the thread; `hub.rs` has the messages to that thread;
//! `transport.rs` tells whether io_uring is used. Not here: what a request means (`door.rs`).

pub(crate) mod hub;
mod queue;
mod ring;
mod slots;
pub(crate) mod transport;

use crate::device::Channel;
use crate::front::FuseSource;
pub use hub::Ticket;
use nacre_rt::{Node, RtError, Server};
use queue::RingServer;
use std::sync::Arc;
pub use transport::{ENABLE_PATH, EnableError, Transport, WhyDevice, enable_rings};

/// Rings that were created and not started.
pub(crate) struct Rings {
    servers: Vec<(usize, Arc<RingServer>)>,
}

impl Rings {
    /// Creates a ring per online CPU; the first one also serves the queues of offline CPUs.
    pub(crate) fn prepare(channel: &Arc<Channel>) -> Result<Self, WhyDevice> {
        match std::fs::read_to_string(ENABLE_PATH) {
            Ok(text) if text.trim() == "Y" => {}
            Ok(_) => return Err(WhyDevice::Disabled),
            Err(_) => return Err(WhyDevice::Unknown),
        }
        let cpus = |name: &str| {
            let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).unwrap_or_default();
            parse_cpus(&text).ok_or_else(|| WhyDevice::Refused(format!("cannot tell which CPUs are {name}")))
        };
        let (possible, online) = (cpus("possible")?, cpus("online")?);
        may_run_on(&online)?;
        let mut offline: Vec<u16> = possible.into_iter().filter(|cpu| !online.contains(cpu)).collect();
        let servers = online.iter().map(|&cpu| {
            let mut queues = vec![cpu];
            queues.append(&mut offline);
            let server = RingServer::new(queues, channel).map_err(|e| WhyDevice::Refused(e.to_string()))?;
            Ok((usize::from(cpu), Arc::new(server)))
        });
        Ok(Self { servers: servers.collect::<Result<_, _>>()? })
    }

    /// Starts the threads. If that fails the kernel falls back to /dev/fuse.
    pub(crate) fn start(self, node: &Node, source: &Arc<FuseSource>) -> Result<Running, RtError> {
        for (started, (cpu, server)) in self.servers.iter().enumerate() {
            server.attach(source);
            let name = format!("ring-{cpu}");
            if let Err(error) = node.start_server(&name, Some(*cpu), server.clone()) {
                let refused = server.refuse();
                self.servers.iter().take(started).for_each(|(_, server)| server.stop());
                if let Err(error) = refused {
                    tracing::error!(%error, "the kernel cannot be switched back to /dev/fuse");
                }
                return Err(error);
            }
        }
        Ok(Running { servers: self.servers.into_iter().map(|(_, server)| server).collect() })
    }
    pub(crate) fn threads(&self) -> usize {
        self.servers.len()
    }
}

/// Rings whose threads run.
pub(crate) struct Running {
    servers: Vec<Arc<RingServer>>,
}
impl Running {
    /// The threads end when the kernel has returned the slots.
    pub(crate) fn mount_is_gone(&self) {
        for server in &self.servers {
            server.mount_is_gone();
        }
    }
}

/// Requests from a CPU that this process may not use would be served on another one, without a gain.
fn may_run_on(online: &[u16]) -> Result<(), WhyDevice> {
    let allowed = rustix::thread::sched_getaffinity(None)
        .map_err(|e| WhyDevice::Refused(format!("cannot tell which CPUs may be used: {e}")))?;
    match online.iter().find(|cpu| !allowed.is_set(usize::from(**cpu))) {
        None => Ok(()),
        Some(cpu) => Err(WhyDevice::Refused(format!("this process may not run on CPU {cpu}"))),
    }
}

/// Lists of the kernel: `0-3,8`.
fn parse_cpus(text: &str) -> Option<Vec<u16>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_cpus("0-1\n"), Some(vec![0, 1]));
        assert_eq!(parse_cpus("0"), Some(vec![0]));
        assert_eq!(parse_cpus("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse_cpus(""), None);
        assert_eq!(parse_cpus("a-b"), None);
    }
}
