//! The real driver of islands: entry, threads, event loops, timers, store operations, connections.
//!
//! The path of an event: a loop (or any other thread) reads it and calls [`Node::deliver`]; the thread enters the
//! island, runs its tasks, and leaves; the same thread carries out the effects, which may enter other islands of the
//! process, and only then polls the kernel again. No work on this path is handed to another thread, with two
//! exceptions: operations that wait for a device (`io.rs`), and sockets that belong to another loop (`event_loop.rs`).
//!
//! Map: `allocator.rs` the memory of the process; `entry.rs` the entry lock; `island.rs` a visit, its effects, the end of an island; `driver.rs` the queue
//! of a thread; `conn.rs` and `open.rs` connections; `socket.rs`, `progress.rs` and `listen.rs` those to other processes;
//! `host.rs` what an island requests of its node; `io.rs` and `sync_thread.rs` store operations; `event_loop.rs` epoll, timers, sources; `server.rs` threads bound to a CPU; `node.rs` the
//! front door.

mod allocator;
mod budget;
mod clock;
mod conn;
mod cpu;
mod driver;
mod entry;
mod event_loop;
mod gate;
mod host;
mod idle_poll;
mod io;
mod island;
mod leader;
mod listen;
mod node;
mod open;
mod progress;
mod server;
mod socket;
mod stats;
mod sync_thread;

pub use allocator::Allocator;
pub use clock::{now, random, wall};
pub use cpu::bind;
pub use idle_poll::IdlePoll;
pub use island::{DoorSink, EndReason, IslandRef};
pub use leader::Leader;
pub use nacre_net::{SharedBuffer, SharedMemory, kept_bytes};
pub use node::{Config, IoThreads, Node, RtError, Server, Source, SourceId, SourceState};
pub use stats::{IslandStats, NodeStats, Times};
