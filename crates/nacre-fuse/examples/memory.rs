//! The floor of the FUSE layer: a file system in memory behind it, one thread, nothing cached by the kernel.
//!
//! `cargo run --release -p nacre-fuse --example memory -- DIR [plus] [device]`, then any benchmark on DIR; ends at umount.
//! `plus` offers READDIRPLUS, `device` does without io_uring.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measuring program")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::memfs::MemFs;
use common::solo::Solo;
use nacre_fuse::{MountOptions, SessionConfig, mount_fuse};

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect("a directory to mount on");
    let words: Vec<String> = args.collect();
    let said = |word: &str| words.iter().any(|w| w == word);
    let options = MountOptions {
        source: "memory".to_owned(),
        read_only: false,
        no_suid: false,
        no_dev: false,
        no_exec: false,
        atime: nacre_fuse::KernelAtime::default(),
        session: SessionConfig {
            readdirplus: said("plus"),
            rings: !said("device"),
            ..SessionConfig::default()
        },
    };
    let mut mounted = mount_fuse(dir.as_ref(), &options).unwrap_or_else(|e| panic!("{e}"));
    println!("mounted on {}, {}", mounted.path.display(), mounted.transport);
    Solo::serve(&mut mounted, MemFs::new).join();
}
