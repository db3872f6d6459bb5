//! The nacre binary: servers, mounts and tools behind one command line.
fn main() {}
