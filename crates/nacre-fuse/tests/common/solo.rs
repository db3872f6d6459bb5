//! Serves one file system in an island of a node with one event loop, through whichever transport was agreed. With
//! /dev/fuse that loop is the only reader, which makes it the strictest driver for everything about held-back requests.

use nacre_fuse::{
    Door, FuseEffect, FuseReply, FuseRequest, FuseSink, FuseSource, Interrupts, Mounted, Ops, Transport,
};
use nacre_node::{Ctx, Effect, Event, Logic};
use nacre_rt::{Config, DoorSink, IslandRef, Node};
use std::any::Any;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

type Call<O> = Box<dyn FnOnce(&Rc<Door<O>>) + Send>;

/// Can hold back replies between their decision and their write.
pub struct HoldingSink {
    sink: Arc<FuseSink>,
    /// Operations whose replies are held back.
    operations: Mutex<&'static [u32]>,
    /// Requests whose replies are to be held back.
    chosen: Mutex<BTreeSet<u64>>,
    held: Mutex<Vec<FuseReply>>,
}
impl HoldingSink {
    fn new(sink: Arc<FuseSink>) -> Arc<Self> {
        Arc::new(Self {
            sink,
            operations: Mutex::default(),
            chosen: Mutex::default(),
            held: Mutex::default(),
        })
    }
    fn see(&self, request: &FuseRequest) {
        if self.operations.lock().unwrap().contains(&request.opcode()) {
            self.chosen.lock().unwrap().insert(request.unique());
        }
    }
}
impl DoorSink for HoldingSink {
    fn door(&self, island: &IslandRef, item: Box<dyn Any + Send>) {
        match item.downcast::<FuseEffect>().map(|effect| *effect) {
            Ok(FuseEffect::Reply(reply)) if self.chosen.lock().unwrap().remove(&reply.unique()) => {
                self.held.lock().unwrap().push(reply);
            }
            Ok(effect) => self.sink.door(island, Box::new(effect)),
            Err(item) => self.sink.door(island, item),
        }
    }
}

/// A served mount.
pub struct Solo<O> {
    node: Node,
    source: Arc<FuseSource>,
    gone: Arc<AtomicBool>,
    sink: Arc<HoldingSink>,
    calls: std::marker::PhantomData<fn(O)>,
}

impl<O: Ops> Solo<O> {
    pub fn serve(mounted: &mut Mounted, make: impl FnOnce(&Rc<Ctx>) -> O + Send + 'static) -> Self {
        let node = Node::start(Config::default(), |_, _, _| {}).unwrap();
        let sink = HoldingSink::new(FuseSink::new(Interrupts::default()).0);
        let seen = sink.clone();
        let logic = |ctx: &Rc<Ctx>| -> Box<dyn Logic> {
            let door = Door::new(ctx, Rc::new(make(ctx)));
            Box::new(SoloLogic { ctx: ctx.clone(), door, seen })
        };
        let island = node.add_island("solo", None, Some(sink.clone()), logic).unwrap();
        let gone = Arc::new(AtomicBool::new(false));
        let told = gone.clone();
        let on_gone = move || told.store(true, Ordering::Release);
        let source = FuseSource::start(&node, mounted, island, on_gone).unwrap();
        Self { node, source, gone, sink, calls: std::marker::PhantomData }
    }
    pub fn transport(&self) -> &Transport {
        self.source.transport()
    }
    /// Runs `call` on the file system, inside its island, between two requests.
    pub fn call(&self, call: impl FnOnce(&O) + Send + 'static) {
        self.call_door(|door| call(door.file_system()));
    }
    fn call_door(&self, call: impl FnOnce(&Rc<Door<O>>) + Send + 'static) {
        let call: Call<O> = Box::new(call);
        self.node.deliver(&self.source.island(), Event::Door(Box::new(call)));
    }
    /// Like `ask`, of the dispatcher.
    pub fn ask_door<R: Send + 'static>(&self, ask: impl FnOnce(&Rc<Door<O>>) -> R + Send + 'static) -> R {
        let (tx, rx) = std::sync::mpsc::sync_channel(1);
        self.call_door(move |door| tx.send(ask(door)).unwrap());
        rx.recv().unwrap()
    }
    /// From now on replies to these operations are decided and not written.
    pub fn hold_replies(&self, operations: &'static [u32]) {
        *self.sink.operations.lock().unwrap() = operations;
    }
    pub fn held_replies(&self) -> usize {
        self.sink.held.lock().unwrap().len()
    }
    pub fn release_replies(&self) {
        self.hold_replies(&[]);
        let held = std::mem::take(&mut *self.sink.held.lock().unwrap());
        held.into_iter().for_each(FuseReply::send);
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
    seen: Arc<HoldingSink>,
}
impl<O: Ops> Logic for SoloLogic<O> {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Door(item) => match item.downcast::<Call<O>>() {
                Ok(call) => call(&self.door),
                Err(item) => {
                    if let Some(request) = item.downcast_ref() {
                        self.seen.see(request);
                    }
                    self.door.event(item);
                }
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
