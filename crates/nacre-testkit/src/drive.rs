//! A driver for one island and one store: the event loop of the real driver without threads and without a network.
//!
//! It keeps the order that the real driver promises: the log bytes of a visit are written before any of its effects
//! is carried out. Store operations are executed one at a time, in order or in an order drawn from a seed. Time
//! stands still while anything can run, and otherwise jumps to the next deadline.

use nacre_node::{Ctx, Effect, Event, IoTicket, Logic, Rng, Store, StoreError, StoreOp, visit};
use nacre_osd::{Label, Osd, OsdConfig, OsdError};
use nacre_types::{ClientUuid, Instant, Timestamp};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// One island on one store.
pub struct Drive<L: Logic> {
    /// Entered by this driver only.
    pub logic: L,
    store: Arc<dyn Store>,
    now: Instant,
    pending: VecDeque<(IoTicket, StoreOp)>,
    /// Effects for doors and connections, which this driver has not.
    pub effects: Vec<Effect>,
    /// Draws the order of store operations; `None`: as they were asked for.
    pub shuffle: Option<Rng>,
    ended: Option<String>,
}

impl<L: Logic> Drop for Drive<L> {
    fn drop(&mut self) {
        self.logic.ctx().abandon();
    }
}

impl<L: Logic> Drive<L> {
    /// An island at time 1 that got no event yet.
    pub fn new(logic: L, store: Arc<dyn Store>) -> Self {
        Self {
            logic,
            store,
            now: Instant(1),
            pending: VecDeque::new(),
            effects: Vec::new(),
            shuffle: None,
            ended: None,
        }
    }
    /// Why the island has ended, if it has.
    pub fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }
    /// Time of the drive. It jumps to the next deadline when nothing can run.
    pub fn now(&self) -> Instant {
        self.now
    }
    /// One visit and what follows from it, store operations excepted.
    pub fn enter(&mut self, event: Event) {
        if self.ended.is_some() {
            return;
        }
        visit(&mut self.logic, self.now, Timestamp::from_nanos(i128::from(self.now.0)), event);
        let mut writes = Vec::new();
        self.logic.log_writes(&mut writes);
        for op in writes {
            if let Err(e) = self.store.execute(op) {
                self.logic.log_failed(&e);
                self.logic.ctx().take_effects();
                self.ended = Some(e.to_string());
                return;
            }
        }
        for effect in self.logic.ctx().take_effects() {
            match effect {
                Effect::Io { ticket, op } => self.pending.push_back((ticket, op)),
                Effect::Fatal(text) | Effect::Refused(text) => self.ended = Some(text),
                other => self.effects.push(other),
            }
        }
    }
    /// Executes one store operation; `false` if there is none.
    pub fn io(&mut self) -> bool {
        let at = match &mut self.shuffle {
            Some(rng) => rng.below(self.pending.len() as u64) as usize,
            None => 0,
        };
        let Some((ticket, op)) = self.pending.remove(at) else { return false };
        let result = self.store.execute(op);
        self.enter(Event::IoDone { ticket, result });
        true
    }
    /// One step: a store operation, else the next deadline; `false` if the island is idle or has ended.
    pub fn step(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        if self.io() {
            return true;
        }
        let Some(at) = self.logic.ctx().deadline() else { return false };
        self.now = self.now.max(at);
        self.enter(Event::Timer);
        true
    }
}

/// An island that is nothing but an engine.
pub struct OsdLogic {
    ctx: Rc<Ctx>,
    osd: Rc<RefCell<Option<Rc<Osd>>>>,
}
impl OsdLogic {
    /// `osd` is filled in when the engine is open.
    pub fn new(ctx: Rc<Ctx>, osd: Rc<RefCell<Option<Rc<Osd>>>>) -> Self {
        Self { ctx, osd }
    }
}
impl Logic for OsdLogic {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, _: Event) {}
    fn log_writes(&mut self, out: &mut Vec<StoreOp>) {
        if let Some(osd) = &*self.osd.borrow() {
            osd.log_writes(out);
        }
    }
    fn log_failed(&mut self, error: &StoreError) {
        if let Some(osd) = &*self.osd.borrow() {
            osd.log_failed(&error.to_string());
        }
    }
}

/// An engine under a [`Drive`].
pub struct OsdDrive {
    /// Runs the engine's tasks and store operations.
    pub drive: Drive<OsdLogic>,
    osd: Rc<RefCell<Option<Rc<Osd>>>>,
}

/// A label for tests.
pub fn test_label() -> Label {
    Label {
        uuid: ClientUuid([7; 16]),
        name: "test-OST0000".into(),
        mgs_nodes: Vec::new(),
        format_version: nacre_osd::FORMAT_VERSION,
    }
}

impl OsdDrive {
    fn empty(store: Arc<dyn Store>) -> Self {
        let osd = Rc::new(RefCell::new(None));
        let logic = OsdLogic { ctx: Ctx::new(1), osd: osd.clone() };
        Self { drive: Drive::new(logic, store), osd }
    }
    /// Formats the store.
    ///
    /// # Errors
    /// Those of the engine; `Stopped` when the store ended the run.
    pub fn format(store: &Arc<dyn Store>, config: &OsdConfig, overwrite: bool) -> Result<(), OsdError> {
        let mut this = Self::empty(store.clone());
        let (ctx, config) = (this.drive.logic.ctx.clone(), config.clone());
        let done = async move { Osd::format(&ctx, &test_label(), &config, overwrite).await };
        this.run_future(done).unwrap_or(Err(OsdError::Stopped("the store".into())))
    }
    /// Opens the store.
    ///
    /// # Errors
    /// Those of the engine; `Stopped` when the store ended the run.
    pub fn open(store: &Arc<dyn Store>, config: &OsdConfig) -> Result<Self, OsdError> {
        let mut this = Self::empty(store.clone());
        let (ctx, config, place) = (this.drive.logic.ctx.clone(), config.clone(), this.osd.clone());
        let opened = async move {
            let osd = Osd::open(&ctx, config).await?;
            *place.borrow_mut() = Some(osd);
            Ok(())
        };
        this.run_future(opened).unwrap_or(Err(OsdError::Stopped("the store".into())))?;
        Ok(this)
    }
    /// The engine; panics before it is open.
    pub fn osd(&self) -> Rc<Osd> {
        self.osd.borrow().clone().expect("opened")
    }
    fn run_future<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> Option<T> {
        let done = Rc::new(RefCell::new(None));
        let place = done.clone();
        self.drive.logic.ctx.spawn(async move {
            let value = future.await;
            *place.borrow_mut() = Some(value);
        });
        self.drive.enter(Event::Timer);
        while done.borrow().is_none() && self.drive.step() {}
        done.borrow_mut().take()
    }
    /// Runs a task to its end; `None` when the island ended before.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        task: impl FnOnce(Rc<Osd>) -> F,
    ) -> Option<T> {
        let future = task(self.osd());
        self.run_future(future)
    }
    /// Starts a task and lets it run as far as it goes without store or time.
    pub fn start<F: Future<Output = ()> + 'static>(&mut self, task: impl FnOnce(Rc<Osd>) -> F) {
        let future = task(self.osd());
        self.drive.logic.ctx.spawn(future);
        self.drive.enter(Event::Timer);
    }
}
