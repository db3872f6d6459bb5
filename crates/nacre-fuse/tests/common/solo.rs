//! Serves one file system in an island of a node with one event loop, through whichever transport was agreed. With
//! /dev/fuse that loop is the only reader, which makes it the strictest driver for everything about held-back requests.

use nacre_fuse::{Door, FuseSink, FuseSource, Interrupts, Mounted, Ops, Transport};
use nacre_node::{Ctx, Effect, Event, Logic};
use nacre_rt::{Config, Node};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Call<O> = Box<dyn FnOnce(&O) + Send>;

/// A served mount.
pub struct Solo<O> {
    node: Node,
    source: Arc<FuseSource>,
    gone: Arc<AtomicBool>,
    calls: std::marker::PhantomData<fn(O)>,
}

impl<O: Ops> Solo<O> {
    pub fn serve(mounted: &mut Mounted, make: impl FnOnce(&Rc<Ctx>) -> O + Send + 'static) -> Self {
        let node = Node::start(Config::default(), |_, _, _| {}).unwrap();
        let (sink, _) = FuseSink::new(Interrupts::default());
        let logic = |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
            let door = Door::new(ctx, Rc::new(make(ctx)));
            Box::new(SoloLogic { ctx: ctx.clone(), door })
        };
        let island = node.add_island("solo", None, Some(sink), logic).unwrap();
        let gone = Arc::new(AtomicBool::new(false));
        let told = gone.clone();
        let on_gone = move || told.store(true, Ordering::Release);
        let source = FuseSource::start(&node, mounted, island, on_gone).unwrap();
        Self { node, source, gone, calls: std::marker::PhantomData }
    }
    pub fn transport(&self) -> &Transport {
        self.source.transport()
    }
    /// Runs `call` on the file system, inside its island, between two requests.
    pub fn call(&self, call: impl FnOnce(&O) + Send + 'static) {
        let call: Call<O> = Box::new(call);
        self.node.deliver(&self.source.island(), Event::Door(Box::new(call)));
    }
    /// Like `call`, and waits for its result.
    pub fn ask<R: Send + 'static>(&self, ask: impl FnOnce(&O) -> R + Send + 'static) -> R {
        let (tx, rx) = std::sync::mpsc::sync_channel(1);
        self.call(move |fs| tx.send(ask(fs)).unwrap());
        rx.recv().unwrap()
    }
    /// Waits until the kernel has let go of the mount.
    pub fn join(self) {
        super::forever(|| self.gone.load(Ordering::Acquire));
        self.stop();
    }
    /// Ends it, after the unmount. Not left to the kernel: as long as a process has a mount name space that was copied
    /// while the mount was there, the file system lives on.
    pub fn stop(self) {
        self.node.shutdown();
    }
}

struct SoloLogic<O: Ops> {
    ctx: Rc<Ctx>,
    door: Rc<Door<O>>,
}
impl<O: Ops> Logic for SoloLogic<O> {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Door(item) => match item.downcast::<Call<O>>() {
                Ok(call) => call(self.door.file_system()),
                Err(item) => self.door.event(item),
            },
            Event::Stop => self.ctx.push(Effect::Stopped),
            _ => {}
        }
    }
}
impl<O: Ops> Drop for SoloLogic<O> {
    fn drop(&mut self) {
        self.door.abandon();
    }
}
