//! Threads of front ends that wait for the kernel in their own way (a ring per CPU), bound to a CPU.
//!
//! Such a thread delivers events and does the work that follows, as an event loop does; it has no sockets and no
//! timers. The node owns it: [`Node::shutdown`] stops and joins it.

use crate::cpu::bind;
use crate::driver::{self, Work};
use crate::idle_poll::IdlePoll;
use crate::island::IslandRef;
use crate::node::{Node, RtError, Server};
use nacre_node::Event;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl Node {
    /// Starts the thread of `server`, bound to `cpu` (unbound if the CPU is offline).
    ///
    /// # Errors
    /// `Stopping` during [`Node::shutdown`], `System` if no thread can be created.
    pub fn start_server(
        &self,
        name: &str,
        cpu: Option<usize>,
        server: Arc<dyn Server>,
    ) -> Result<(), RtError> {
        let shared = self.shared();
        let (node, serving, label) = (self.clone(), server.clone(), name.to_owned());
        let body = move || {
            if let Some(cpu) = cpu
                && let Err(error) = bind(cpu)
            {
                tracing::debug!(cpu, %error, "cannot bind a thread to its CPU");
            }
            driver::take_turns();
            if catch_unwind(AssertUnwindSafe(|| serving.run(&node))).is_err() {
                tracing::error!(thread = label, "a bug of a front end ended its thread");
            }
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|e| RtError::system("cannot start a thread", e))?;
        shared.keep_server(&server);
        shared.keep_thread(thread);
        if shared.is_stopping() {
            shared.stop_servers();
        }
        Ok(())
    }

    /// For the thread of a server: keeps idle CPUs from halting while it is woken in quick succession.
    pub fn idle_poll(&self) -> IdlePoll {
        IdlePoll::new(self.shared().config.idle_poll)
    }
    /// An [`IdlePoll`] began to keep CPUs from halting.
    pub fn count_idle_poll(&self) {
        self.shared().stats.idle_polls.add(1);
    }

    /// Puts an event onto this thread's queue: [`Self::work`] delivers it, together with others for the same island.
    pub fn enqueue(&self, island: &IslandRef, event: Event) {
        driver::push(Work::Event(island.clone(), event));
    }
    /// Does the work left on this thread's queue, up to one turn. False: more is left, do not sleep.
    pub fn work(&self) -> bool {
        driver::run();
        driver::is_idle()
    }
}
