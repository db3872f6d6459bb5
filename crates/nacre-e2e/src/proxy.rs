//! `cargo xtask proxy`: the proxy of frames of the test kit as a process.

use anyhow::Result;
use nacre_testkit::proxy::{self, ProxyFaults};
use std::net::TcpListener;
use std::time::Duration;

/// Options of the proxy.
#[derive(clap::Args, Debug)]
pub struct Proxy {
    /// Where clients connect (what the server advertises)
    #[arg(long)]
    listen: String,
    /// Where the server listens
    #[arg(long)]
    to: String,
    /// Delay of each direction, microseconds
    #[arg(long, default_value_t = 500)]
    delay_us: u64,
    /// Drops one frame in so many; 0 = none
    #[arg(long, default_value_t = 0)]
    drop_one_in: u64,
    /// Sends one frame in so many twice; 0 = none
    #[arg(long, default_value_t = 0)]
    double_one_in: u64,
    /// Swaps one frame in so many with the next one; 0 = none
    #[arg(long, default_value_t = 0)]
    swap_one_in: u64,
    /// Seed of the random choice of frames
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Forwards frames until the process is killed.
pub fn run(options: &Proxy) -> Result<()> {
    let &Proxy { delay_us, drop_one_in, double_one_in, swap_one_in, seed, .. } = options;
    let delay = Duration::from_micros(delay_us);
    let faults = ProxyFaults { delay, drop_one_in, double_one_in, swap_one_in, seed };
    Ok(proxy::run(&TcpListener::bind(&options.listen)?, &options.to, faults)?)
}
