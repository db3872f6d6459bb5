//! The floor of the FUSE layer: a file system in memory behind it, one thread, nothing cached by the kernel.
//!
//! `cargo run --release -p nacre-fuse --example memory -- DIR [plus]`, then any benchmark on DIR; ends at umount.
//! `plus` offers READDIRPLUS.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measuring program")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::memfs::MemFs;
use common::solo::Solo;
use nacre_fuse::{MountOptions, SessionConfig, mount_fuse};

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect("a directory to mount on");
    let readdirplus = args.next().as_deref() == Some("plus");
    let options = MountOptions {
        source: "memory".to_owned(),
        read_only: false,
        no_suid: false,
        no_dev: false,
        no_exec: false,
        session: SessionConfig { readdirplus, ..SessionConfig::default() },
    };
    let mounted = mount_fuse(dir.as_ref(), &options).unwrap_or_else(|e| panic!("{e}"));
    println!("mounted on {}", mounted.path.display());
    Solo::serve(mounted.channel, MemFs::new).join();
}
