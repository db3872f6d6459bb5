//! The way of an event: to an import, to the service, or to a connection of this target.

use crate::island::connections::CONNECT_TIMEOUT;
use crate::island::inner::Inner;
use crate::service::Service;
use alloc::rc::Rc;
use nacre_node::{Effect, Event};

impl<S: Service> Inner<S> {
    pub(crate) fn route(self: &Rc<Self>, event: Event) {
        let event = match self.core() {
            Some(core) => core.peers.handle(event),
            None => Some(event),
        };
        let Some(event) = event else { return };
        let Some(service) = self.service() else {
            return self.keep_early(event);
        };
        let Some(event) = service.handle_event(event) else { return };
        match event {
            Event::Accepted { conn, from, origin } => {
                if self.is_stopping() || !self.conns().accept(conn, from, origin, self.ctx().now()) {
                    self.ctx().push(Effect::Close { conn });
                }
            }
            Event::Frame { conn, frame } => self.handle_frame(conn, frame),
            Event::Closed { conn, .. } => self.conn_closed(conn),
            Event::Start
            | Event::Opened { .. }
            | Event::IoDone { .. }
            | Event::Timer
            | Event::Door(_)
            | Event::Stop => {}
        }
    }

    /// Closes connections that no lease watches over: peers that do not connect, and idle tools.
    pub(crate) async fn watch_unleased(self: Rc<Self>) {
        let Some(core) = self.core().cloned() else { return };
        while !self.is_stopping() {
            let unleased = {
                let exports = core.clients().exports();
                let has_lease = |id| exports.get(id).is_some_and(|e| e.has_lease());
                self.conns().unleased(self.ctx().now(), core.in_recovery(), has_lease)
            };
            for conn in unleased.expired() {
                self.protocol_error(
                    &core,
                    *conn,
                    "it did not connect in time, or said nothing for too long and has no lease",
                );
            }
            match unleased.any() {
                true => self.ctx().sleep(CONNECT_TIMEOUT / 4).await,
                false => self.conns().wait_accepted().await,
            }
        }
    }
}
